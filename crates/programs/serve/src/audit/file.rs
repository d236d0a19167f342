//! The file of the audit log, and the thread that writes it.
//!
//! Whoever rotates it moves it away: the next line begins a new file. A line that cannot be written
//! is tried again until it is; those after it wait.
//!
//! Invariants: lines keep their order; a line begins at the beginning of one, also after a disk was
//! full or a process ended amid the one before.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;

const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why the file cannot be written now, if so. Whoever writes it ends when nobody else has it.
#[derive(Clone, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    pub(super) fn told(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says whether it is news.
    fn set(&self, trouble: Option<String>) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *told != trouble;
        *told = trouble;
        is_new
    }

    fn is_watched(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// See the module.
pub(super) struct LineFile {
    path: PathBuf,
    file: File,
    /// The file ends amid a line.
    is_torn: bool,
    trouble: Trouble,
}

impl LineFile {
    pub(super) fn open(path: &Path, trouble: Trouble) -> io::Result<Self> {
        let (file, is_torn) = (opened(path)?, ends_amid_line(path));
        Ok(Self { path: path.to_owned(), file, is_torn, trouble })
    }

    pub(super) fn write_all(mut self, waiting: &Receiver<String>) {
        while let Ok(line) = waiting.recv() {
            let mut trouble = self.follow();
            while let Err(error) = self.write(&line) {
                METRICS.audit_failures.inc();
                let shown = self.path.display();
                self.tell(Some(format!("the audit log {shown} cannot be written: {error}")));
                std::thread::sleep(TRY_AGAIN);
                if !self.trouble.is_watched() {
                    return;
                }
                trouble = self.follow();
            }
            self.tell(trouble);
        }
    }

    fn tell(&self, trouble: Option<String>) {
        if self.trouble.set(trouble.clone()) {
            match trouble {
                Some(trouble) => tracing::error!("{trouble}"),
                None => tracing::info!("the audit log is written again"),
            }
        }
    }

    /// Begins a new file where the old one was moved away; says why not, if so: what was moved away
    /// is better than nothing.
    fn follow(&mut self) -> Option<String> {
        if is_at(&self.file, &self.path) {
            return None;
        }
        match opened(&self.path) {
            Ok(new) => {
                (self.file, self.is_torn) = (new, ends_amid_line(&self.path));
                None
            }
            Err(error) => {
                METRICS.audit_failures.inc();
                let shown = self.path.display();
                Some(format!(
                    "the audit log {shown} cannot be begun anew: {error}; lines go to the file \
                     that was moved away"
                ))
            }
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let begin = if self.is_torn { "\n" } else { "" };
        let bytes = format!("{begin}{line}\n").into_bytes();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    let (written, left) = rest.split_at(count);
                    self.is_torn = written.last() != Some(&b'\n');
                    rest = left;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn opened(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// What cannot be read is no file of lines that somebody reads.
fn ends_amid_line(path: &Path) -> bool {
    let last = || {
        if !path.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (mut file, mut last) = (File::open(path)?, [0]);
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        Ok::<_, io::Error>(last)
    };
    last().is_ok_and(|last| last != *b"\n")
}

/// Is the file still at its path?
fn is_at(file: &File, path: &Path) -> bool {
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let own = file.metadata().map(place).ok();
    own.is_some() && own == path.metadata().map(place).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn what_is_moved_away_is_followed_by_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let (lines, waiting) = sync_channel(2);
        let file = LineFile::open(&path, Trouble::default()).unwrap();
        let writer = std::thread::spawn(move || file.write_all(&waiting));
        lines.send("one".to_owned()).unwrap();
        while std::fs::read(&path).unwrap().is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).unwrap();
        lines.send("two".to_owned()).unwrap();
        drop(lines);
        writer.join().unwrap();
        assert_eq!(std::fs::read(&moved).unwrap(), b"one\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
    }

    #[test]
    fn a_half_line_swallows_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        std::fs::write(&path, "one\nhal").unwrap();
        let mut file = LineFile::open(&path, Trouble::default()).unwrap();
        file.write("two").unwrap();
        file.write("three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\nhal\ntwo\nthree\n");
    }

    /// The kernel's full device: each write finds no space.
    #[test]
    fn a_full_disk_is_told_and_written_to_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let trouble = Trouble::default();
        let file = LineFile::open(&path, trouble.clone()).unwrap();
        let (lines, waiting) = sync_channel(2);
        let writer = std::thread::spawn(move || file.write_all(&waiting));
        lines.send("one".to_owned()).unwrap();
        lines.send("two".to_owned()).unwrap();
        while trouble.told().is_none() {
            std::thread::yield_now();
        }
        let told = trouble.told().unwrap();
        assert!(told.contains("No space left") && told.contains("/audit"), "{told}");
        std::fs::remove_file(&path).unwrap();
        drop(lines);
        writer.join().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(trouble.told(), None);
    }
}
