//! Whose job a process belongs to: notes in a place where everybody may make some, by the names of
//! control groups.
//!
//! Written by who runs a job (`tieline auth run`), read by doors of root that serve this machine.
//!
//! Invariant: a note counts only for the user who made it, and is never waited for.

use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Who has a job in which control group; anybody may enter his own.
pub const JOBS: &str = "/run/tieline/jobs";
/// Of a note: it names a cache, which is a path at most.
const NOTE_MAX: u64 = 8192;

/// Users' jobs are noted where root's doors made a place for that. As in /tmp, everybody makes
/// notes there, and nobody removes another's.
pub fn make_place_for_jobs() {
    if rustix::process::geteuid().is_root() {
        let _ = DirBuilder::new().recursive(true).mode(0o755).create(JOBS);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        let _ = std::fs::set_permissions(JOBS, mode);
    }
}

/// The control group (version 2) of a process.
pub fn group_of(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

pub fn note_of(group: &str) -> PathBuf {
    Path::new(JOBS).join(group.trim_matches('/').replace('/', "+"))
}

/// The cache of the job that a process belongs to, if its user has made it.
pub fn cache_of_job(process: u32, uid: u32) -> Option<String> {
    // Mostly there are no jobs, and nothing is read.
    std::fs::read_dir(JOBS).ok()?.next()?.ok()?;
    let group = group_of(process)?;
    let mut group = group.as_str();
    loop {
        let note = note_of(group);
        if let Some(cache) = read_note(&note, uid) {
            return Some(cache);
        }
        group = group.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty())?;
    }
}

/// A note, if its user made it. Whatever else lies there is of whoever liked: it is not waited for,
/// nor followed to elsewhere.
pub fn read_note(note: &Path, uid: u32) -> Option<String> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(note).ok()?;
    let is_his = |found: Metadata| found.is_file() && found.uid() == uid;
    if !file.metadata().is_ok_and(is_his) {
        return None;
    }
    let mut cache = String::new();
    // One byte more tells what is too long.
    file.take(NOTE_MAX + 1).read_to_string(&mut cache).ok()?;
    (cache.len() as u64 <= NOTE_MAX).then_some(cache)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// Everybody makes notes, and root's mounts read them.
    #[test]
    fn a_note_is_a_small_file_of_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let (note, uid) = (dir.path().join("note"), rustix::process::geteuid().as_raw());
        std::fs::write(&note, "FILE:/tmp/a").unwrap();
        assert_eq!(read_note(&note, uid).as_deref(), Some("FILE:/tmp/a"));
        assert_eq!(read_note(&note, uid + 1), None);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&note, &link).unwrap();
        assert_eq!(read_note(&link, uid), None, "a link");
        std::fs::write(&note, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(read_note(&note, uid), None, "a long one");
        assert_eq!(read_note(dir.path(), uid), None, "a directory");
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(read_note(&pipe, uid)));
        let answer = heard.recv_timeout(Duration::from_secs(5));
        assert_eq!(answer.expect("a pipe that nobody writes to is not waited for"), None);
    }

    #[test]
    fn a_note_has_the_name_of_a_group() {
        assert_eq!(note_of("/a/b"), Path::new(JOBS).join("a+b"));
    }
}
