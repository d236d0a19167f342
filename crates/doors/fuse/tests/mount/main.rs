//! Real mounts of a file system in memory. They need root, as continuous integration has it.

mod coherence;
mod directories;
mod files;
mod life;
mod taken;
mod tickets;
mod waiting;
mod writes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_files::memory::Memory;
use tieline_fuse::{Beginning, Mount, MountOptions};
use tokio::runtime::Runtime;

/// A mount for one test; unmounted when dropped, also if the test fails.
struct Mounted {
    // Dropped in this order.
    mount: Mount,
    fs: Arc<Memory>,
    runtime: Runtime,
    _directory: tempfile::TempDir,
}

impl Mounted {
    fn new() -> Self {
        Self::with(Memory::new(1), |_| {})
    }

    fn with(fs: Memory, change: impl FnOnce(&mut MountOptions)) -> Self {
        Self::beginning(fs, Beginning::Mounted(None), change)
    }

    fn beginning(fs: Memory, beginning: Beginning, change: impl FnOnce(&mut MountOptions)) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_root, "these tests mount for real: run them as root");
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let fs = Arc::new(fs);
        let mut options = MountOptions::new(directory.path(), "127.0.0.1:7988:/extenci");
        options.allows_others = true;
        change(&mut options);
        let handle = runtime.handle().clone();
        let mount = Mount::start_as(Arc::clone(&fs) as Arc<_>, &options, handle, beginning);
        Self { mount: mount.unwrap(), fs, runtime, _directory: directory }
    }

    fn root(&self) -> &Path {
        self.mount.mountpoint()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
}

/// Polls for what another process or the kernel does by itself.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never happened: {what}");
}
