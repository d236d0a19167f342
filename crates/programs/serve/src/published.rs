//! Repositories over HTTP: `/cvmfs/FQRN/…` is what lies in the directory of that name.
//!
//! Only what the format names is served, so that what lies beside it (drafts, a lock) is nobody's.
//! Objects never change, and caches on the way may keep them for ever; what is signed is to be
//! asked for anew each time, which costs a line where nothing changed.
//!
//! Invariants: nothing outside the directory is opened, through no link either; nothing is written.

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tieline_http::body::BodyError;
use tieline_http::conditions::{ETag, Version};
use tieline_http::header::{ALLOW, CACHE_CONTROL, HeaderValue};
use tieline_http::server::content::{About, Content, answer};
use tieline_http::server::{Handler, Request, Response, Server, Settings};
use tieline_http::{Error, Method, StatusCode};
use tieline_types::RepositoryName;
use tieline_world::World;

/// What precedes the repository's name.
const TOP: &[u8] = b"cvmfs";
const FILES: [&str; 7] = [
    ".cvmfspublished",
    ".cvmfswhitelist",
    ".cvmfsreflog",
    ".cvmfs_master_replica",
    ".cvmfs_last_snapshot",
    ".cvmfs_status.json",
    ".cvmfs_is_snapshotting",
];
const FOR_EVER: &str = "public, max-age=31536000, immutable";
const ASK_EACH_TIME: &str = "public, no-cache";

/// Serves the repositories of a directory at `HOST:PORT`.
pub async fn serve(world: &World, address: &str, directory: PathBuf) -> Result<Server, Error> {
    let handler = Arc::new(Published { directory });
    let server = Server::start(world, address, None, Settings::default(), handler).await?;
    tracing::info!(address = %server.address(), "serving repositories over HTTP");
    Ok(server)
}

struct Published {
    directory: PathBuf,
}

#[async_trait::async_trait]
impl Handler for Published {
    async fn answer(&self, request: Request) -> Response {
        if request.method != Method::GET {
            return Response::text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are allowed")
                .with(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        let unknown = || Response::text(StatusCode::NOT_FOUND, "no repository has that");
        let Some((path, is_object)) = named(&request.path.names) else { return unknown() };
        let directory = self.directory.clone();
        let opened = tokio::task::spawn_blocking(move || open(&directory, &path, is_object)).await;
        match opened {
            Ok(Ok((about, file))) => {
                let cache = if is_object { FOR_EVER } else { ASK_EACH_TIME };
                let response = answer(&request, &about, Arc::new(Served(Arc::new(file))));
                response.with(CACHE_CONTROL, HeaderValue::from_static(cache))
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => unknown(),
            Ok(Err(error)) => {
                let path = request.path.encode();
                tracing::warn!(path, %error, "cannot serve a repository's file");
                Response::text(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be read here")
            }
            Err(_) => Response::text(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be read here"),
        }
    }
}

/// The path below the directory, if the format has it, and whether it is an object.
fn named(names: &[Vec<u8>]) -> Option<(String, bool)> {
    let text = |name: &Vec<u8>| String::from_utf8(name.clone()).ok();
    let names: Vec<String> = match names {
        [top, rest @ ..] if top == TOP => rest.iter().map(text).collect::<Option<_>>()?,
        _ => return None,
    };
    let (repository, rest) = names.split_first()?;
    repository.parse::<RepositoryName>().ok()?;
    let is_hex =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let is_object = match rest {
        [file] if FILES.contains(&file.as_str()) => false,
        [data, folder, object] if data == "data" && folder.len() == 2 && is_hex(folder) => {
            // Digits, the tag of an algorithm, a letter.
            let is_name = object.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            let is_digest = object.get(..38).is_some_and(is_hex) && object.len() <= 64;
            if !(is_name && is_digest) {
                return None;
            }
            true
        }
        _ => return None,
    };
    Some((names.join("/"), is_object))
}

fn open(directory: &PathBuf, path: &str, is_object: bool) -> io::Result<(About, File)> {
    let directory = File::open(directory)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = File::from(openat2(&directory, path, flags, Mode::empty(), within)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let modified = u64::try_from(metadata.mtime()).ok().map(Duration::from_secs);
    let tag = match is_object {
        true => path.rsplit_once("data/").map_or(path, |(_, object)| object).replace('/', ""),
        false => {
            let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
            format!("{:x}-{seconds:x}-{nanos:x}-{:x}", metadata.ino(), metadata.len())
        }
    };
    let about = About {
        length: metadata.len(),
        kind: HeaderValue::from_static("application/x-cvmfs"),
        version: Version { tag: ETag::strong(tag), modified },
    };
    Ok((about, file))
}

/// A file that is open.
struct Served(Arc<File>);

#[async_trait::async_trait]
impl Content for Served {
    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, BodyError> {
        let file = self.0.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length];
            let read = file.read_at(&mut bytes, offset)?;
            bytes.truncate(read);
            Ok::<_, io::Error>(bytes)
        });
        Ok(read.await??.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<(String, bool)> {
        named(&text.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn what_the_format_has_is_served_and_nothing_else() {
        let object = "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78";
        for end in ["", "C", "-shake128P"] {
            let text = format!("cvmfs/sw.example.org/{object}{end}");
            assert_eq!(path(&text).unwrap(), (text["cvmfs/".len()..].to_owned(), true));
        }
        assert!(!path("cvmfs/sw.example.org/.cvmfspublished").unwrap().1);
        for wrong in [
            "",
            "cvmfs",
            "cvmfs/sw.example.org",
            "sw.example.org/.cvmfspublished",
            "cvmfs/sw.example.org/.tieline/lock",
            "cvmfs/sw.example.org/.tieline",
            "cvmfs/-x/.cvmfspublished",
            "cvmfs/sw.example.org/data/e8/short",
            "cvmfs/sw.example.org/data/ZZ/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78",
            "cvmfs/sw.example.org/data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78/x",
        ] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn files_are_opened_below_the_directory_and_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        std::fs::create_dir_all(top.join("sw")).unwrap();
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        std::fs::write(top.join("sw/.cvmfspublished"), "abc").unwrap();
        std::os::unix::fs::symlink("../../secret", top.join("sw/.cvmfswhitelist")).unwrap();
        assert_eq!(open(&top, "sw/.cvmfspublished", false).unwrap().0.length, 3);
        assert!(open(&top, "sw/.cvmfswhitelist", false).is_err());
        assert!(open(&top, "sw", false).is_err());
    }
}
