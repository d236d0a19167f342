//! A storage that can less than a local disk, as told: without overwriting, with stale handles,
//! with attributes and bytes that are late, with nodes that die halfway.
//!
//! The test keeps the [`Awkward`] that it gave and changes it while the storage is in use.

use crate::lock;
use crate::storage::{Space, Stat, Storage};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Any storage, as awkward as told.
pub struct AwkwardStorage {
    inner: Arc<dyn Storage>,
    awkward: Awkward,
}

/// What shall be awkward. Cloned freely; all clones are the same plan.
#[derive(Clone, Default)]
pub struct Awkward(Arc<Mutex<Plan>>);

#[derive(Default)]
struct Plan {
    is_write_once: bool,
    is_full: bool,
    is_failing: bool,
    stale_reads: u32,
    half_made: u32,
    attributes_kept: Duration,
    attributes: BTreeMap<PathBuf, (Instant, Stat)>,
    delay: Duration,
    closing: Duration,
    device: u64,
}

impl Awkward {
    /// Nothing that exists is renamed onto, touched or written again, as with HDFS.
    pub fn set_write_once(&self, is_write_once: bool) {
        lock(&self.0).is_write_once = is_write_once;
    }

    pub fn set_full(&self, is_full: bool) {
        lock(&self.0).is_full = is_full;
    }

    /// Every call gets an I/O error.
    pub fn set_failing(&self, is_failing: bool) {
        lock(&self.0).is_failing = is_failing;
    }

    /// The next `count` reads of chunks get a stale handle.
    pub fn stale_reads(&self, count: u32) {
        lock(&self.0).stale_reads = count;
    }

    /// The next `count` directories that are made are on their way already, and not there yet.
    pub fn half_made(&self, count: u32) {
        lock(&self.0).half_made = count;
    }

    /// Times of a file are told as they were, for so long.
    pub fn keep_attributes(&self, kept: Duration) {
        lock(&self.0).attributes_kept = kept;
    }

    /// Files have no bytes before so long after they were made.
    pub fn set_closing(&self, closing: Duration) {
        lock(&self.0).closing = closing;
    }

    /// It lies on another file system than without that.
    pub fn set_device(&self, device: u64) {
        lock(&self.0).device = device;
    }

    /// Everything takes so much longer.
    pub fn delay(&self, delay: Duration) {
        lock(&self.0).delay = delay;
    }
}

impl AwkwardStorage {
    pub fn new(inner: Arc<dyn Storage>, awkward: Awkward) -> Self {
        Self { inner, awkward }
    }

    fn begin(&self) -> io::Result<()> {
        let (delay, is_failing) = {
            let plan = lock(&self.awkward.0);
            (plan.delay, plan.is_failing)
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        if is_failing { Err(Errno::IO.into()) } else { Ok(()) }
    }

    fn begin_write(&self) -> io::Result<()> {
        self.begin()?;
        if lock(&self.awkward.0).is_full { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn is_write_once(&self) -> bool {
        lock(&self.awkward.0).is_write_once
    }
}

impl Storage for AwkwardStorage {
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.begin_write()?;
        let closing = lock(&self.awkward.0).closing;
        if closing.is_zero() {
            return self.inner.create(path, bytes);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let bytes = bytes.to_vec();
        std::thread::spawn(move || {
            std::thread::sleep(closing);
            // Nobody waits for it; whoever reads sees what is there.
            let _ = file.write_all(&bytes);
        });
        Ok(())
    }

    fn read(&self, path: &Path, length_max: u64) -> io::Result<Vec<u8>> {
        crate::storage::settled(|| {
            self.begin()?;
            {
                let mut plan = lock(&self.awkward.0);
                let is_chunk = path.components().any(|part| part.as_os_str() == "chunks");
                if is_chunk && plan.stale_reads > 0 {
                    plan.stale_reads -= 1;
                    return Err(Errno::STALE.into());
                }
            }
            self.inner.read(path, length_max)
        })
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.begin()?;
        let kept = lock(&self.awkward.0).attributes_kept;
        let known = lock(&self.awkward.0).attributes.get(path).copied();
        if let Some((_, stat)) = known.filter(|(at, _)| at.elapsed() < kept) {
            // That it is gone is seen at once: opening asks the server.
            return self.inner.stat(path).map(|_| stat);
        }
        let stat = self.inner.stat(path)?;
        lock(&self.awkward.0).attributes.insert(path.to_owned(), (Instant::now(), stat));
        Ok(stat)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin_write()?;
        if self.is_write_once() && self.inner.stat(to).is_ok() {
            return Err(Errno::EXIST.into());
        }
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.begin()?;
        self.inner.remove(path)
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        self.begin_write()?;
        if self.is_write_once() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.inner.touch(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.begin()?;
        self.inner.list(path)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.begin()?;
        {
            let mut plan = lock(&self.awkward.0);
            if plan.half_made > 0 {
                plan.half_made -= 1;
                return Err(Errno::EXIST.into());
            }
        }
        self.inner.make_directory(path)
    }

    fn protect(&self, path: &Path) -> io::Result<()> {
        self.begin()?;
        self.inner.protect(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.begin()?;
        self.inner.space(path)
    }

    fn device(&self, path: &Path) -> io::Result<u64> {
        self.begin()?;
        Ok(self.inner.device(path)? ^ lock(&self.awkward.0).device)
    }
}
