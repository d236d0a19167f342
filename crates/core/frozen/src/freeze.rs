//! Makes a frozen list of a directory: the list, and beside it the chunks.
//!
//! Chunks are written under temporary names and renamed, the list last: whoever serves the
//! directory meanwhile serves what was there before, or all of what is new.
//!
//! Invariant: nothing is written outside of the directory that was named, whatever links somebody
//! puts into it meanwhile.

use crate::list::{Chunk, Entry, Kind, LIST, List, key};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tieline_types::{Algorithm, Digest, Encoding, RepositoryName};

/// Files are cut into chunks of so many bytes.
const CHUNK: usize = 4 << 20;

/// What was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Of the list: what the federation map is to name.
    pub list: Digest,
    pub files: u64,
    pub bytes: u64,
    /// Bytes of the chunks as they lie there.
    pub stored: u64,
}

/// Freezes what lies below `from` into `to`, with chunks that are encoded so.
pub fn freeze(
    repository: &RepositoryName,
    from: &Path,
    to: &Path,
    encoding: Encoding,
    told: &mut dyn FnMut(u64),
) -> io::Result<Made> {
    let entries = Vec::new();
    let list = List { frozen: 1, repository: repository.clone(), entries };
    let made = Made { list: Digest::of(b""), files: 0, bytes: 0, stored: 0 };
    let mut freezer = Freezer { to, encoding, list, made, told };
    freezer.add(from, PathBuf::new())?;
    let Freezer { list, mut made, .. } = freezer;
    let bytes = serde_json::to_vec(&list)?;
    made.list = Digest::of(&bytes);
    place(to, Path::new(LIST), &bytes)?;
    Ok(made)
}

struct Freezer<'a> {
    to: &'a Path,
    encoding: Encoding,
    list: List,
    made: Made,
    told: &'a mut dyn FnMut(u64),
}

impl Freezer<'_> {
    fn add(&mut self, from: &Path, path: PathBuf) -> io::Result<()> {
        let metadata = fs::symlink_metadata(from)?;
        let wrong = |why: &str| io::Error::other(format!("{}: {why}", from.display()));
        let text = |path: &Path| path.to_str().map(str::to_owned);
        let name =
            text(&path).ok_or_else(|| wrong("its name is not UTF-8: a list cannot say it"))?;
        let mut entry = Entry {
            path: name,
            kind: Kind::File,
            mode: metadata.mode() & 0o7777,
            uid: 0,
            gid: 0,
            mtime: metadata.mtime(),
            size: 0,
            target: None,
            chunks: Vec::new(),
        };
        self.made.files += 1;
        if metadata.is_dir() {
            entry.kind = Kind::Directory;
            self.list.entries.push(entry);
            let mut names = fs::read_dir(from)?.map(|found| Ok(found?.file_name()));
            let mut names = names.by_ref().collect::<io::Result<Vec<_>>>()?;
            names.sort();
            return names.iter().try_for_each(|name| self.add(&from.join(name), path.join(name)));
        }
        if metadata.is_symlink() {
            let target = fs::read_link(from)?;
            entry.kind = Kind::Symlink;
            entry.target = Some(text(&target).ok_or_else(|| wrong("its target is not UTF-8"))?);
        } else if metadata.is_file() {
            (entry.size, entry.chunks) = self.chunks(&mut File::open(from)?)?;
        } else {
            return Err(wrong("it is neither a file nor a directory nor a link"));
        }
        self.list.entries.push(entry);
        Ok(())
    }

    fn chunks(&mut self, file: &mut File) -> io::Result<(u64, Vec<Chunk>)> {
        let (mut size, mut chunks) = (0, Vec::new());
        loop {
            let mut bytes = Vec::with_capacity(CHUNK);
            file.take(CHUNK as u64).read_to_end(&mut bytes)?;
            if bytes.is_empty() {
                return Ok((size, chunks));
            }
            let length = bytes.len() as u64;
            let stored = match self.encoding {
                Encoding::Plain => bytes,
                Encoding::Zlib => {
                    let level = flate2::Compression::default();
                    let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), level);
                    stream.write_all(&bytes)?;
                    stream.finish()?
                }
            };
            let digest = Digest::compute(Algorithm::Sha256, self.encoding, &stored);
            let name = key(&digest);
            if !self.to.join(&name).exists() {
                place(self.to, Path::new(&name), &stored)?;
            }
            let stored = stored.len() as u64;
            (self.made.bytes, self.made.stored) =
                (self.made.bytes + length, self.made.stored + stored);
            (self.told)(length);
            size += length;
            let (digest, stored) = (digest.to_string(), Some(stored));
            chunks.push(Chunk { length, digest, stored, pack: None, offset: 0 });
        }
    }
}

/// A file appears below `to` whole or not at all.
fn place(to: &Path, name: &Path, bytes: &[u8]) -> io::Result<()> {
    let at = |error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", to.join(name).display()))
    };
    fs::create_dir_all(to)?;
    let folder = folder(to, name).map_err(at)?;
    let file = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let draft = format!("{file}.draft-{}", std::process::id());
    let remove = || {
        let _ = rustix::fs::unlinkat(&folder, &draft, AtFlags::empty());
    };
    // One of a process that died, or somebody's link.
    remove();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = rustix::fs::openat(&folder, &draft, flags, Mode::from_raw_mode(0o666));
    let mut made = File::from(made.map_err(|errno| at(errno.into()))?);
    let written = made.write_all(bytes).and_then(|()| made.sync_all());
    let placed =
        written.and_then(|()| Ok(rustix::fs::renameat(&folder, &draft, &folder, file.as_str())?));
    placed.inspect_err(|_| remove()).map_err(at)
}

/// The folder below `to` that a file lies in, made if it is not there; no link below is followed.
fn folder(to: &Path, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Links on the way to what was named are the publisher's.
    let mut folder = rustix::fs::open(to, flags, Mode::empty())?;
    for step in name.parent().into_iter().flat_map(Path::iter) {
        match rustix::fs::mkdirat(&folder, step, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        folder = rustix::fs::openat(&folder, step, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_written_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, outside] = ["from", "to", "outside"].map(|name| folder.path().join(name));
        for path in [&from, &to, &outside] {
            fs::create_dir(path).unwrap();
        }
        fs::write(from.join("f"), "bytes").unwrap();
        fs::write(outside.join("foreign"), "foreign").unwrap();
        let name: RepositoryName = "sw.example.org".parse().unwrap();
        let run = || freeze(&name, &from, &to, Encoding::Plain, &mut |_| ());
        let draft = format!("{LIST}.draft-{}", std::process::id());
        symlink(outside.join("foreign"), to.join(draft)).unwrap();
        run().unwrap();
        assert_eq!(fs::read_to_string(outside.join("foreign")).unwrap(), "foreign");
        let chunks = fs::read_dir(&to).unwrap().flatten().find(|found| found.path().is_dir());
        let chunks = chunks.unwrap().path();
        fs::remove_dir_all(&chunks).unwrap();
        symlink(&outside, &chunks).unwrap();
        assert!(run().is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "it went through the link");
    }
}
