//! The cleaner of a site's cache: one node at a time, by a claim that it keeps alive.
//!
//! It looks at all chunks now and then, spends at most a twentieth of its time on that, and evicts
//! those that were not used for longest when the high water mark is passed, down to the low one. It
//! removes what dead nodes left: drafts, claims, and old notes of poisoned chunks; that it does now
//! and then also where no marks are said.
//!
//! Whoever finds the storage full makes some room at once, whoever the cleaner is: that may not
//! know of it, and a claim takes room itself.
//!
//! Invariants: pinned chunks stay, whatever the marks say; without marks nothing is evicted; what
//! is removed has a name that caches give, wherever others may have led that path.

use crate::claims::{Held, Taken, Watch};
use crate::pins;
use crate::site::{Inner, NAME, digest_of};
use crate::storage::{Stat, Storage};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tieline_telemetry::metrics::METRICS;
use tokio::time::Instant;

pub(crate) const CLAIM: &str = "cleaner";
/// A look that took long is not repeated soon.
const SHARE: u32 = 20;
/// Where nothing is to be evicted it is looked less often.
const SELDOM: u32 = 12;
/// Of a storage that is full so much is freed at once.
const FREED_SHARE: u64 = 20;
/// What was begun so long ago is finished by nobody.
const LEFT_MS: u64 = 3_600_000;
const NOTES_MAX: usize = 100;

/// One chunk of a directory.
pub(crate) struct Found {
    pub name: String,
    pub path: PathBuf,
    pub stat: Stat,
}

/// What a cleaning did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cleaned {
    pub chunks: u64,
    pub bytes: u64,
    pub evicted: u64,
    pub evicted_bytes: u64,
}

/// Cleans for as long as the cache is in use here, whenever no other node does.
pub(crate) async fn run(inner: Weak<Inner>) {
    let mut held: Option<Held> = None;
    let mut watch: Option<Watch> = None;
    let begin = |cache: Arc<Inner>| {
        let often = if cache.settings.marks.is_some() { 1 } else { SELDOM };
        let first = cache.settings.life + cache.settings.life / 4;
        (cache.full.clone(), first, first * often)
    };
    let Some((full, first, apart)) = inner.upgrade().map(begin) else { return };
    let mut pause = first;
    loop {
        let is_full = tokio::time::timeout(pause, full.notified()).await.is_ok();
        let Some(cache) = inner.upgrade() else { return };
        if is_full {
            // That it cannot be written was told; what fails here fails again at the next look.
            let _ = tokio::task::spawn_blocking(move || clean(&cache, true)).await;
            continue;
        }
        if cache.trouble.is_now() {
            continue;
        }
        if held.is_none() {
            let (claims, seen) = (cache.claims.clone(), watch);
            let taken = tokio::task::spawn_blocking(move || claims.take(CLAIM, seen)).await;
            match taken {
                Ok(Ok(Taken::Ours(generation))) => {
                    tracing::info!(path = %cache.path.display(), "cleans the site cache");
                    held = Some(cache.claims.hold(CLAIM, generation));
                }
                Ok(Ok(Taken::Theirs(seen))) => watch = Some(seen),
                _ => watch = None,
            }
        }
        if held.is_none() {
            continue;
        }
        let begun = Instant::now();
        match tokio::task::spawn_blocking(move || clean(&cache, false)).await {
            Ok(Ok(_)) => {
                if held.as_ref().is_some_and(Held::is_long) {
                    (held, watch) = (None, None);
                }
            }
            Ok(Err(error)) => {
                // Another node may be able to.
                tracing::info!(%error, "the site cache cannot be cleaned");
                (held, watch) = (None, None);
            }
            Err(_) => held = None,
        }
        pause = apart.max(begun.elapsed() * SHARE);
    }
}

/// One look, and what follows from it. Blocks.
pub(crate) fn clean(cache: &Inner, is_full: bool) -> io::Result<Cleaned> {
    let storage = &*cache.storage;
    let cleaned = match cache.settings.marks {
        Some(marks) => keep_marks(cache, marks, is_full)?,
        None => Cleaned::default(),
    };
    if let Some(now_ms) = now_of_storage(cache) {
        for folder in ["tmp", "claims"] {
            remove_left(storage, &cache.path.join(folder), now_ms);
        }
    }
    remove_notes(storage, &cache.path.join("poisoned"));
    Ok(cleaned)
}

/// Evicts what is over the marks; of a storage that is full, something in any case.
fn keep_marks(cache: &Inner, (high, low): (u64, u64), is_full: bool) -> io::Result<Cleaned> {
    let storage = &*cache.storage;
    let mut chunks = chunks(storage, &cache.path)?;
    let mut bytes: u64 = chunks.iter().map(|found| found.stat.length).sum();
    let mut cleaned = Cleaned { chunks: chunks.len() as u64, ..Cleaned::default() };
    if bytes > high || is_full {
        let freed = if is_full { bytes.div_ceil(FREED_SHARE) } else { 0 };
        let goal = low.min(bytes - freed);
        let pinned = pins::names(storage, &cache.path);
        chunks.retain(|found| !pinned.contains(&found.name));
        chunks.sort_by_key(|found| found.stat.used_ms);
        for found in chunks {
            if bytes <= goal {
                break;
            }
            if storage.remove(&found.path).is_ok() {
                bytes -= found.stat.length;
                cleaned.evicted += 1;
                cleaned.evicted_bytes += found.stat.length;
            }
        }
        let (evicted, evicted_bytes) = (cleaned.evicted, cleaned.evicted_bytes);
        let path = cache.path.display();
        tracing::info!(%path, evicted, evicted_bytes, high, is_full, "made room in the site cache");
        METRICS.cache_evicted_bytes.with_label_values(&[NAME]).inc_by(evicted_bytes);
    }
    cleaned.bytes = bytes;
    METRICS.cache_bytes.with_label_values(&[NAME]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    Ok(cleaned)
}

/// All chunks below a cache's root, and what lies under a chunk's name instead of one.
pub(crate) fn chunks(storage: &dyn Storage, root: &Path) -> io::Result<Vec<Found>> {
    let top = root.join("chunks");
    let folders = match storage.list(&top) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        folders => folders?,
    };
    let mut found = Vec::new();
    for folder in folders {
        let folder = top.join(folder);
        // What goes away meanwhile is not there.
        for name in storage.list(&folder).unwrap_or_default() {
            let path = folder.join(&name);
            if let (Some(_), Ok(stat)) = (digest_of(&name), storage.stat(&path)) {
                found.push(Found { name, path, stat });
            }
        }
    }
    Ok(found)
}

/// The storage's own time: nodes' clocks may differ from it.
fn now_of_storage(cache: &Inner) -> Option<u64> {
    let probe = cache.path.join("tmp").join(cache.random());
    cache.storage.create(&probe, b"").ok()?;
    let now = cache.storage.stat(&probe).ok().map(|stat| stat.modified_ms);
    let _ = cache.storage.remove(&probe);
    now
}

/// Is it the name of a draft (hexadecimal digits), a claim (`NAME.0`) or a note?
fn is_ours(name: &str) -> bool {
    let is_hex = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_hexdigit());
    match name.split_once('.') {
        None => is_hex(name),
        Some((stem, generation)) => {
            (stem == CLAIM || is_hex(stem)) && generation.parse::<u32>().is_ok()
        }
    }
}

fn remove_left(storage: &dyn Storage, folder: &Path, now_ms: u64) {
    for name in storage.list(folder).unwrap_or_default().into_iter().filter(|name| is_ours(name)) {
        let path = folder.join(name);
        let is_left = |stat: Stat| stat.modified_ms.saturating_add(LEFT_MS) < now_ms;
        if storage.stat(&path).is_ok_and(is_left) {
            let _ = storage.remove(&path);
        }
    }
}

fn remove_notes(storage: &dyn Storage, folder: &Path) {
    let mut names = storage.list(folder).unwrap_or_default();
    names.retain(|name| is_ours(name));
    if names.len() > NOTES_MAX {
        let mut notes: Vec<(u64, PathBuf)> = names
            .iter()
            .map(|name| folder.join(name))
            .filter_map(|path| Some((storage.stat(&path).ok()?.modified_ms, path)))
            .collect();
        notes.sort();
        for (_, path) in notes.iter().rev().skip(NOTES_MAX) {
            let _ = storage.remove(path);
        }
    }
}
