//! Workloads in a directory, whatever file system it is on.
//!
//! Content repeats with a period that no block size divides, so that neither holes nor equal blocks
//! help anybody.

use crate::wire::megabytes_per_second;
use anyhow::Result;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const CALL: usize = 1 << 20;
const SMALL: usize = 1 << 10;

/// A directory of this run's own, removed with everything in it.
pub struct Playground {
    directory: tempfile::TempDir,
}

/// How fast small files were handled, per second.
#[derive(Clone, Copy, Debug)]
pub struct SmallFiles {
    pub create: f64,
    pub stat: f64,
    pub open: f64,
    pub unlink: f64,
}

impl Playground {
    pub fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(parent)?;
        Ok(Self { directory })
    }

    fn large(&self) -> PathBuf {
        self.directory.path().join("large")
    }

    /// Writes the large file anew, and makes it durable; MB/s.
    pub fn write_large(&self, size: u64) -> Result<f64> {
        let pattern = pattern(CALL);
        let start = Instant::now();
        let mut file = File::create(self.large())?;
        let mut left = size;
        while left > 0 {
            let length = left.min(CALL as u64);
            file.write_all(&pattern[..length as usize])?;
            left -= length;
        }
        file.sync_all()?;
        drop(file);
        Ok(megabytes_per_second(size, start))
    }

    /// Reads the large file from start to end; MB/s. Cold: the kernel forgets it first (caches of
    /// others, such as a client's own, are theirs).
    pub fn read_large(&self, is_cold: bool) -> Result<f64> {
        let mut file = File::open(self.large())?;
        if is_cold {
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        let mut buffer = vec![0; CALL];
        let mut total = 0;
        let start = Instant::now();
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                length => total += length as u64,
            }
        }
        Ok(megabytes_per_second(total, start))
    }

    /// Reads `count` pieces of `length` bytes at places of the large file that are the same in
    /// every directory; reads per second. The kernel forgets the file first.
    pub fn read_randomly(&self, length: usize, count: usize, seed: u64) -> Result<f64> {
        let file = File::open(self.large())?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let places = (file.metadata()?.len() / length as u64).max(1);
        let mut buffer = vec![0; length];
        let mut state = seed;
        let start = Instant::now();
        for _ in 0..count {
            // Knuth's MMIX multiplier; the high bits are the random ones.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            file.read_exact_at(&mut buffer, (state >> 33) % places * length as u64)?;
        }
        Ok(per_second(count, start))
    }

    /// Creates, stats, opens and unlinks `count` files of 1 KiB in one directory.
    pub fn small_files(&self, count: usize) -> Result<SmallFiles> {
        let directory = self.directory.path().join("small");
        std::fs::create_dir(&directory)?;
        let paths: Vec<PathBuf> = (0..count).map(|at| directory.join(format!("{at:06}"))).collect();
        let content = pattern(SMALL);
        let create = each(&paths, |path| File::create_new(path)?.write_all(&content))?;
        let stat = each(&paths, |path| path.metadata().map(drop))?;
        let open = each(&paths, |path| File::open(path).map(drop))?;
        let unlink = each(&paths, |path| std::fs::remove_file(path))?;
        std::fs::remove_dir(&directory)?;
        Ok(SmallFiles { create, stat, open, unlink })
    }
}

fn each(paths: &[PathBuf], act: impl Fn(&Path) -> std::io::Result<()>) -> Result<f64> {
    let start = Instant::now();
    for path in paths {
        act(path)?;
    }
    Ok(per_second(paths.len(), start))
}

fn per_second(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}
