//! Workloads in a directory, whatever file system it is on.
//!
//! Content repeats with a period that no block size divides, so that neither holes nor equal blocks
//! help anybody.

use crate::wire::megabytes_per_second;
use anyhow::{Result, anyhow};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const CALL: usize = 1 << 20;

/// A directory of this run's own, removed with everything in it.
pub struct Playground {
    directory: tempfile::TempDir,
}

impl Playground {
    pub fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(parent)?;
        Ok(Self { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn large(&self) -> PathBuf {
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
        if is_cold {
            fadvise(File::open(self.large())?, 0, None, Advice::DontNeed)?;
        }
        read_file(&self.large())
    }

    /// Reads `count` pieces of `length` bytes at places of the large file that are the same in
    /// every directory; reads per second. The kernel forgets the file first.
    pub fn read_randomly(&self, length: usize, count: usize, seed: u64) -> Result<f64> {
        let file = File::open(self.large())?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let places = (file.metadata()?.len() / length as u64).max(1);
        let mut buffer = vec![0; length];
        let start = Instant::now();
        for place in random(seed).take(count) {
            file.read_exact_at(&mut buffer, place % places * length as u64)?;
        }
        Ok(per_second(count, start))
    }

    /// The same places, written; writes per second, the `fsync` at the end included.
    pub fn write_randomly(&self, length: usize, count: usize, seed: u64) -> Result<f64> {
        let file = File::options().write(true).open(self.large())?;
        let places = (file.metadata()?.len() / length as u64).max(1);
        let piece = pattern(length);
        let start = Instant::now();
        for place in random(seed).take(count) {
            file.write_all_at(&piece, place % places * length as u64)?;
        }
        file.sync_all()?;
        drop(file);
        Ok(per_second(count, start))
    }

    /// Several readers of the large file at once, from start to end; MB/s of all together.
    pub fn read_large_together(&self, readers: usize) -> Result<f64> {
        let start = Instant::now();
        let total = std::thread::scope(|scope| -> Result<u64> {
            let readers: Vec<_> =
                (0..readers).map(|_| scope.spawn(|| read_whole(&self.large()))).collect();
            readers.into_iter().map(|reader| reader.join().map_err(|_| anyhow!("panic"))?).sum()
        })?;
        Ok(megabytes_per_second(total, start))
    }
}

/// Reads a file from start to end; MB/s.
pub fn read_file(path: &Path) -> Result<f64> {
    let start = Instant::now();
    let total = read_whole(path)?;
    Ok(megabytes_per_second(total, start))
}

fn read_whole(path: &Path) -> Result<u64> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; CALL];
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(total),
            length => total += length as u64,
        }
    }
}

/// Numbers without a pattern, the same for the same seed.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    // Knuth's MMIX multiplier; the high bits are the random ones.
    let step = |state: &u64| {
        Some(state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407))
    };
    std::iter::successors(Some(seed), step).skip(1).map(|state| state >> 33)
}

pub(crate) fn per_second(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}
