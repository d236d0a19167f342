//! The directory backend against plain files of the same size in the same directory.

use crate::Settings;
use crate::figure::{Figure, Unit, take_turns};
use crate::files::pattern;
use crate::wire::megabytes_per_second;
use anyhow::Result;
use bytes::Bytes;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tieline_blob::{ChunkStore, DirChunks, Identity};
use tieline_format::object::ObjectTrailer;
use tieline_types::{FileId, Grant, GrantedId, MdtIndex, OstIndex, Version, checksum};
use tieline_world::SystemDice;
use tokio::runtime::Runtime;

const CHUNK: usize = 4 << 20;

/// A store and a directory of plain files, side by side.
struct Bed {
    runtime: Runtime,
    store: DirChunks,
    plain: PathBuf,
    data: Bytes,
    checks: Vec<u32>,
    /// Chunks per turn.
    count: u64,
    next: Cell<u64>,
}

pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    let directory =
        tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(&settings.local)?;
    let bed = Bed::new(directory.path(), settings)?;
    let turns = settings.turns;
    let unit = Unit::MegabytesPerSecond;
    let put = take_turns(
        "store: put 4 MiB chunks",
        unit,
        turns,
        Box::new(|| bed.put(false)),
        vec![("plain files", Box::new(|| bed.write_plain(false)))],
    )?;
    let put_and_sync = take_turns(
        "store: put and sync",
        unit,
        turns,
        Box::new(|| bed.put(true)),
        vec![("plain files, fsync", Box::new(|| bed.write_plain(true)))],
    )?;
    // What was written last is read, warm.
    let read = take_turns(
        "store: read, warm",
        unit,
        turns,
        Box::new(|| bed.read()),
        vec![("plain files", Box::new(|| bed.read_plain()))],
    )?;
    Ok(vec![put, put_and_sync, read])
}

impl Bed {
    fn new(directory: &Path, settings: &Settings) -> Result<Self> {
        let (ost, plain) = (directory.join("ost"), directory.join("plain"));
        std::fs::create_dir(&ost)?;
        std::fs::create_dir(&plain)?;
        let identity = Identity { fs: "bench".parse()?, ost: OstIndex(0) };
        DirChunks::format(&ost, &identity, &SystemDice)?;
        let data = Bytes::from(pattern(CHUNK));
        Ok(Self {
            runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
            store: DirChunks::open(&ost, &identity)?,
            plain,
            checks: checksum::block_checks(&data),
            data,
            // A quarter: it is written twice, and twice again with syncs.
            count: (settings.size / 4 / CHUNK as u64).max(1),
            next: Cell::new(0),
        })
    }

    fn bytes(&self) -> u64 {
        self.count * CHUNK as u64
    }

    /// Puts one turn's chunks, in the place of those of the turn before.
    fn put(&self, is_synced: bool) -> Result<f64> {
        for chunk in self.chunks() {
            self.runtime.block_on(self.store.delete(chunk))?;
        }
        self.next.set(self.next.get() + self.count);
        let start = Instant::now();
        self.runtime.block_on(async {
            for chunk in self.chunks() {
                self.store.put(&self.trailer(chunk), self.data.clone()).await?;
            }
            if is_synced {
                self.store.sync(&self.chunks()).await?;
            }
            Ok::<_, tieline_blob::Error>(())
        })?;
        Ok(megabytes_per_second(self.bytes(), start))
    }

    fn read(&self) -> Result<f64> {
        let start = Instant::now();
        for chunk in self.chunks() {
            let slice = self.runtime.block_on(self.store.read(chunk, 0, CHUNK as u32))?;
            slice.bulk.to_bytes()?;
        }
        Ok(megabytes_per_second(self.bytes(), start))
    }

    fn write_plain(&self, is_synced: bool) -> Result<f64> {
        for path in self.plain_paths().filter(|path| path.exists()) {
            std::fs::remove_file(path)?;
        }
        let start = Instant::now();
        for path in self.plain_paths() {
            let mut file = File::create(path)?;
            file.write_all(&self.data)?;
            if is_synced {
                file.sync_all()?;
            }
        }
        if is_synced {
            File::open(&self.plain)?.sync_all()?;
        }
        Ok(megabytes_per_second(self.bytes(), start))
    }

    fn read_plain(&self) -> Result<f64> {
        let start = Instant::now();
        for path in self.plain_paths() {
            std::fs::read(path)?;
        }
        Ok(megabytes_per_second(self.bytes(), start))
    }

    /// The chunks of this turn.
    fn chunks(&self) -> Vec<GrantedId> {
        let first = self.next.get();
        let chunk = |serial| GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial };
        (first..first + self.count).map(chunk).collect()
    }

    fn plain_paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.count).map(|at| self.plain.join(at.to_string()))
    }

    fn trailer(&self, chunk: GrantedId) -> ObjectTrailer {
        ObjectTrailer {
            chunk,
            file: FileId(2),
            offset: 0,
            version: Version(1),
            path: b"bench/large".to_vec(),
            checks: self.checks.clone(),
            tree: None,
        }
    }
}
