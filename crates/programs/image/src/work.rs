//! The folder that an image is made in: beside its place, under a name that nobody takes for an
//! image, and held by a lock while its maker lives.
//!
//! Invariants: an image gets its name in one step, whole; a folder whose maker was killed is
//! removed by the next one that is made beside it.

use anyhow::{Context, bail};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const PREFIX: &str = ".tieline-image-";
const LOCK: &str = "lock";

pub struct Work {
    path: PathBuf,
    _lock: File,
}

impl Work {
    /// Beside `place`, whose folder is made if it is not there.
    pub fn begin(place: &Path) -> anyhow::Result<Self> {
        let folder = place.parent().context("an image needs a folder around it")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // One maker at a time begins: nobody sweeps a folder that has no lock yet.
        let beginning = File::open(folder)?;
        flock(&beginning, FlockOperation::LockExclusive)?;
        sweep(folder);
        let path = folder.join(format!("{PREFIX}{}", std::process::id()));
        let make = || -> std::io::Result<File> {
            fs::create_dir(&path)?;
            let lock = File::create(path.join(LOCK))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok(lock)
        };
        let lock = make().with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a folder in it the place of an image, and takes away what was there. `is_image` says
    /// whether that may be.
    pub fn publish(
        &self,
        name: &str,
        place: &Path,
        is_image: impl Fn(&Path) -> bool,
    ) -> anyhow::Result<()> {
        let made = self.path.join(name);
        let cannot = || format!("cannot put the image at {}", place.display());
        sync(&made).with_context(cannot)?;
        let flags = match place.symlink_metadata() {
            Err(_) => RenameFlags::NOREPLACE,
            // What was there takes the place of the new one here, and is removed with all of this.
            Ok(_) if is_image(place) => RenameFlags::EXCHANGE,
            Ok(_) => bail!("{} is there and is no image: give another --output", place.display()),
        };
        renameat_with(CWD, &made, CWD, place, flags).with_context(cannot)?;
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// An image that has its name is whole after a power cut, too.
fn sync(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(folder)?.sync_all()
}

/// Removes what makers left that were killed.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !is_ours {
            continue;
        }
        // One without a lock's file: its maker was killed right then.
        let lock = File::open(entry.path().join(LOCK));
        let try_lock = |lock: File| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if lock.map_or(true, try_lock) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_gets_its_name_whole_and_what_was_left_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("client");
        let left = folder.path().join(format!("{PREFIX}1"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        fs::write(left.join("half"), "half").unwrap();
        for content in ["one", "two"] {
            let work = Work::begin(&place).unwrap();
            assert!(!left.exists());
            let made = work.path().join("out");
            fs::create_dir(&made).unwrap();
            fs::write(made.join("image"), content).unwrap();
            sweep(folder.path());
            assert!(made.exists(), "what is being made was swept");
            work.publish("out", &place, |place| place.join("image").exists()).unwrap();
            drop(work);
            assert_eq!(fs::read_to_string(place.join("image")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_that_is_no_image_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("client");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("thesis"), "mine").unwrap();
        let work = Work::begin(&place).unwrap();
        fs::create_dir(work.path().join("out")).unwrap();
        let refused = work.publish("out", &place, |_| false).unwrap_err().to_string();
        assert!(refused.contains("--output"), "{refused}");
        assert_eq!(fs::read_to_string(place.join("thesis")).unwrap(), "mine");
    }
}
