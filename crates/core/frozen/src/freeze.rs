//! Makes a frozen list of a directory: the list, and beside it the chunks.
//!
//! Chunks are written under temporary names and renamed, the list last: whoever serves the
//! directory meanwhile serves what was there before, or all of what is new.
//!
//! Invariants: nothing is written outside of the directory that was named, and nothing read outside
//! of the tree, whatever links somebody puts into them meanwhile.

use crate::list::{Chunk, Entry, Kind, LIST, List, key};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
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
    // The directory that was named may be reached by a link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(from, flags, Mode::empty()).map_err(|errno| at(from, errno.into()))?;
    freezer.add_directory(&root, from, PathBuf::new())?;
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
    /// A directory and what is in it. `from`: how it is called in messages.
    fn add_directory(&mut self, own: &OwnedFd, from: &Path, path: PathBuf) -> io::Result<()> {
        let named = |error: Errno| at(from, error.into());
        let found = rustix::fs::fstat(own).map_err(named)?;
        self.push(&found, from, &path, Kind::Directory)?;
        let mut names = Vec::new();
        for one in Dir::read_from(own).map_err(named)? {
            let name = OsStr::from_bytes(one.map_err(named)?.file_name().to_bytes()).to_owned();
            names.extend((name != "." && name != "..").then_some(name));
        }
        names.sort();
        let mut names = names.iter();
        names.try_for_each(|name| self.add(own, &from.join(name), path.join(name)))
    }

    /// What a directory has under the last name of `from`. No link is followed: who may change the
    /// tree could have anything read.
    fn add(&mut self, above: &OwnedFd, from: &Path, path: PathBuf) -> io::Result<()> {
        let named = |error: Errno| at(from, error.into());
        let name = from.file_name().unwrap_or_default();
        let found = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(named)?;
        let open = |flags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(above, name, flags, Mode::empty()).map_err(named)
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => self.add_directory(&open(OFlags::DIRECTORY)?, from, path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(above, name, Vec::new()).map_err(named)?;
                let target =
                    target.into_string().map_err(|_| wrong(from, "its target is not UTF-8"))?;
                self.push(&found, from, &path, Kind::Symlink)?.target = Some(target);
                Ok(())
            }
            FileType::RegularFile => {
                // A pipe that came in its place is not waited for.
                let mut file = File::from(open(OFlags::NONBLOCK)?);
                if !file.metadata()?.is_file() {
                    return Err(wrong(from, "it is no file any more"));
                }
                let (size, chunks) = self.chunks(&mut file).map_err(|error| at(from, error))?;
                let entry = self.push(&found, from, &path, Kind::File)?;
                (entry.size, entry.chunks) = (size, chunks);
                Ok(())
            }
            _ => Err(wrong(from, "it is neither a file nor a directory nor a link")),
        }
    }

    fn push(
        &mut self,
        found: &Stat,
        from: &Path,
        path: &Path,
        kind: Kind,
    ) -> io::Result<&mut Entry> {
        let name = path
            .to_str()
            .ok_or_else(|| wrong(from, "its name is not UTF-8: a list cannot say it"))?;
        self.made.files += 1;
        self.list.entries.push(Entry {
            path: name.to_owned(),
            kind,
            mode: found.st_mode & 0o7777,
            uid: 0,
            gid: 0,
            mtime: found.st_mtime,
            size: 0,
            target: None,
            chunks: Vec::new(),
        });
        let last = self.list.entries.len() - 1;
        Ok(&mut self.list.entries[last])
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

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn wrong(path: &Path, why: &str) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}

/// A file appears below `to` whole or not at all.
fn place(to: &Path, name: &Path, bytes: &[u8]) -> io::Result<()> {
    let at = |error: io::Error| at(&to.join(name), error);
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
