//! What operators ask of a cache's directory, while mounts use it or not: what is there, is it
//! sound, and away with it.
//!
//! Knows no mount: everything is read from the directory, and what is removed is missed by nobody.

use crate::claims::{Claims, Taken};
use crate::cleaner;
use crate::pins::{self, Pin};
use crate::storage::{LocalStorage, Storage, followed, lets_others_in};
use crate::{Error, Kind, marker, node, site};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_types::ChunkRef;
use tokio::time::Instant;

/// How long a scrub waits for a claim of others: until theirs that are dead can be taken over.
const CLAIM_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A cache's directory.
pub struct Survey {
    pub path: PathBuf,
    pub kind: Kind,
}

/// What is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub kind: Kind,
    pub chunks: u64,
    pub bytes: u64,
    pub pins: Vec<Pin>,
    /// Which process cleans up, if any: of a site's cache.
    pub cleaner: Option<String>,
    /// Bad chunks that were found lately, and what was noted of them.
    pub poisoned: Vec<(String, String)>,
}

/// What was looked at, and what was wrong.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    pub chunks: u64,
    pub bytes: u64,
    /// Those that were bad, and are gone.
    pub bad: Vec<(String, String)>,
    /// Those that are bad, and why they are there still.
    pub kept: Vec<(String, String)>,
}

/// What was taken away, and what stayed: because it is pinned, or because it could not be removed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    pub chunks: u64,
    pub bytes: u64,
    pub pinned: u64,
    pub failed: u64,
    /// Why the first one could not.
    pub why: Option<String>,
}

#[derive(Clone)]
struct ChunkFile {
    name: String,
    path: PathBuf,
    bytes: u64,
}

impl Survey {
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.to_owned(), kind: marker::kind(path)? })
    }

    /// What a chunk is called here; one without a digest is in no site's cache.
    pub fn name(&self, chunk: &ChunkRef) -> Option<String> {
        match self.kind {
            Kind::Node => Some(chunk.chunk.to_string()),
            Kind::Site => chunk.digest().map(|digest| digest.to_string()),
        }
    }

    /// Where pins and chunks are: for each federation, in a node's cache.
    fn roots(&self) -> Vec<PathBuf> {
        match self.kind {
            Kind::Site => vec![self.path.clone()],
            Kind::Node => {
                let names = LocalStorage::Private.list(&followed(&self.path)).unwrap_or_default();
                let paths = names.into_iter().map(|name| self.path.join(name));
                paths.filter(|path| path.join("chunks").is_dir()).collect()
            }
        }
    }

    fn files(&self, root: &Path) -> Result<Vec<ChunkFile>, Error> {
        let failed = |source| Error::Failed { path: self.path.clone(), doing: "list", source };
        Ok(match self.kind {
            Kind::Site => {
                let found = cleaner::chunks(&LocalStorage::Private, root).map_err(failed)?;
                let file = |found: cleaner::Found| ChunkFile {
                    name: found.name,
                    path: found.path,
                    bytes: found.stat.length,
                };
                found.into_iter().map(file).collect()
            }
            Kind::Node => {
                let file = |found: node::ChunkFile| ChunkFile {
                    name: found.chunk.to_string(),
                    path: found.path,
                    bytes: found.space,
                };
                node::files(root).into_iter().map(file).collect()
            }
        })
    }

    pub fn status(&self) -> Result<Status, Error> {
        let mut status = Status {
            kind: self.kind,
            chunks: 0,
            bytes: 0,
            pins: Vec::new(),
            cleaner: Claims::owner_of(
                &LocalStorage::Private,
                &self.path.join("claims"),
                cleaner::CLAIM,
            ),
            poisoned: Vec::new(),
        };
        for root in self.roots() {
            let files = self.files(&root)?;
            status.chunks += files.len() as u64;
            status.bytes += files.iter().map(|file| file.bytes).sum::<u64>();
            status.pins.extend(pins::list(&LocalStorage::Private, &root));
        }
        let folder = self.path.join("poisoned");
        let mut names = LocalStorage::Private.list(&folder).unwrap_or_default();
        names.sort();
        for name in names {
            let note = LocalStorage::Private.read(&folder.join(&name), 4096).unwrap_or_default();
            status.poisoned.push((name, String::from_utf8_lossy(&note).trim().to_owned()));
        }
        Ok(status)
    }

    /// Which of these chunks have a file here.
    pub fn holds(&self, names: &BTreeSet<String>) -> Result<BTreeSet<String>, Error> {
        let mut held = BTreeSet::new();
        for root in self.roots() {
            let files = self.files(&root)?;
            held.extend(
                files.into_iter().map(|file| file.name).filter(|name| names.contains(name)),
            );
        }
        Ok(held)
    }

    /// Verifies everything, and takes away what is bad. `seen` hears the bytes of each chunk.
    pub fn scrub(&self, finder: &str, mut seen: impl FnMut(u64)) -> Result<Scrubbed, Error> {
        let mut scrubbed = Scrubbed::default();
        for root in self.roots() {
            for file in self.files(&root)? {
                let why = match self.verify(&file) {
                    Ok(()) => None,
                    // It went away meanwhile.
                    Err(error) if site::is_gone(&error) => continue,
                    Err(error) => Some(error.to_string()),
                };
                scrubbed.chunks += 1;
                scrubbed.bytes += file.bytes;
                seen(file.bytes);
                let Some(why) = why else { continue };
                let gone = match self.kind {
                    Kind::Site => self.discard(&root, &file, finder),
                    Kind::Node => self.remove(&file.path).map(|()| true),
                };
                match gone {
                    Ok(true) => scrubbed.bad.push((file.name, why)),
                    // Another was faster, and brought a good one perhaps.
                    Ok(false) => {}
                    Err(error) => scrubbed.kept.push((file.name, format!("{why}; {error}"))),
                }
            }
        }
        Ok(scrubbed)
    }

    /// Takes a bad chunk away under its claim, as nodes do: what others would bring in its place
    /// meanwhile would go in its place. Says whether it was bad still.
    fn discard(&self, root: &Path, file: &ChunkFile, finder: &str) -> io::Result<bool> {
        let (folder, owner) = (root.join("claims"), format!("{finder}\n"));
        let claims = Claims {
            storage: Arc::new(LocalStorage::Private),
            folder,
            owner,
            life: site::SiteSettings::LIFE,
        };
        let discard = || {
            let bytes = LocalStorage::Private.stat(&file.path).map(|stat| stat.length);
            let now = ChunkFile { bytes: bytes.unwrap_or(0), ..file.clone() };
            match self.verify(&now) {
                Ok(()) => Ok(false),
                Err(error) if site::is_gone(&error) => Ok(false),
                Err(error) => {
                    let why = error.to_string();
                    match site::discard(&LocalStorage::Private, root, &file.name, &why, finder) {
                        true => Ok(true),
                        false => Err(io::Error::other("it cannot be removed")),
                    }
                }
            }
        };
        let (mut watch, end) = (None, Instant::now() + CLAIM_PATIENCE);
        loop {
            match claims.take(&file.name, watch) {
                Ok(Taken::Ours(generation)) => {
                    return claims.during(&file.name, generation, discard);
                }
                Ok(Taken::Theirs(seen)) => watch = Some(seen),
                // Nobody can claim anything.
                Err(error) if site::is_gone(&error) => return discard(),
                Err(error) => return Err(error),
            }
            if Instant::now() >= end {
                return Err(io::Error::other("another node is about to bring it anew"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What stands in the place of a chunk. A node's cache is its user's alone: a directory there
    /// holds nothing of others.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error)
                if error.kind() == io::ErrorKind::IsADirectory && self.kind == Kind::Node =>
            {
                std::fs::remove_dir_all(path)
            }
            removed => removed,
        }
    }

    fn verify(&self, file: &ChunkFile) -> io::Result<()> {
        match self.kind {
            Kind::Node => {
                let wrong = |_| io::Error::other("its name is no chunk id");
                node::verify(&file.path, file.name.parse().map_err(wrong)?)
            }
            Kind::Site => {
                let bytes = LocalStorage::Private.read(&file.path, file.bytes)?;
                let digest =
                    site::digest_of(&file.name).ok_or_else(|| io::Error::other("no digest"))?;
                match digest.is_of(&bytes) {
                    true => Ok(()),
                    false => Err(io::Error::other("its bytes do not have its digest")),
                }
            }
        }
    }

    /// May we see what is there? Who may not would find nothing, and take that for all.
    fn check_listed(&self) -> Result<(), Error> {
        let failed = |source| Error::Failed { path: self.path.clone(), doing: "list", source };
        let names = LocalStorage::Private.list(&followed(&self.path)).map_err(failed)?;
        let below = names.into_iter().map(|name| self.path.join(name));
        let roots: Vec<PathBuf> = match self.kind {
            Kind::Site => vec![self.path.clone()],
            Kind::Node => below.filter(|path| path.is_dir()).collect(),
        };
        for root in roots {
            match LocalStorage::Private.list(&root.join("chunks")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes chunks away: those named, or all. Pinned ones stay.
    pub fn evict(&self, names: Option<&BTreeSet<String>>) -> Result<Evicted, Error> {
        let mut evicted = Evicted::default();
        self.check_listed()?;
        for root in self.roots() {
            let pinned = pins::names(&LocalStorage::Private, &root);
            for file in self.files(&root)? {
                if names.is_some_and(|names| !names.contains(&file.name)) {
                    continue;
                }
                if pinned.contains(&file.name) {
                    evicted.pinned += 1;
                    continue;
                }
                match self.remove(&file.path) {
                    Ok(()) => {
                        evicted.chunks += 1;
                        evicted.bytes += file.bytes;
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        evicted.failed += 1;
                        evicted.why.get_or_insert_with(|| error.to_string());
                    }
                }
            }
        }
        Ok(evicted)
    }

    /// Pins chunks under the words of an operator. `scope`: the federation's, in a node's cache.
    pub fn pin(&self, scope: &str, what: &str, names: &BTreeSet<String>) -> Result<(), Error> {
        let root = self.root(scope);
        pins::pin(&self.storage(), &root, what, names)?;
        pins::give(&root, what);
        Ok(())
    }

    pub fn unpin(&self, scope: &str, what: &str) -> Result<bool, Error> {
        pins::unpin(&LocalStorage::Private, &self.root(scope), what)
    }

    /// Who may read the chunks may read which are pinned.
    fn storage(&self) -> LocalStorage {
        match lets_others_in(&self.path, &self.path.join("chunks")) {
            true => LocalStorage::Shared,
            false => LocalStorage::Private,
        }
    }

    fn root(&self, scope: &str) -> PathBuf {
        match self.kind {
            Kind::Site => self.path.clone(),
            Kind::Node => self.path.join(scope),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::make_fifo;
    use tieline_types::{Digest, Grant, GrantedId, MdtIndex};

    #[test]
    fn a_site_cache_is_scrubbed_and_emptied() {
        let folder = tempfile::tempdir().unwrap();
        marker::ensure(&LocalStorage::Private, folder.path(), Kind::Site).unwrap();
        let place = |claimed: &[u8], bytes: &[u8]| {
            let name = Digest::of(claimed).to_string();
            let path = site::chunk_path(folder.path(), &name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            name
        };
        std::fs::create_dir(folder.path().join("poisoned")).unwrap();
        let (good, bad) = (place(b"good", b"good"), place(b"bad", b"baad"));
        let kept = place(b"kept", b"kept");
        let survey = Survey::open(folder.path()).unwrap();
        assert_eq!((survey.status().unwrap().chunks, survey.status().unwrap().bytes), (3, 12));
        let scrubbed = survey.scrub("a test", |_| ()).unwrap();
        assert_eq!((scrubbed.chunks, scrubbed.bad.len()), (3, 1));
        assert_eq!(scrubbed.bad[0].0, bad);
        let status = survey.status().unwrap();
        assert_eq!(status.poisoned.len(), 1);
        assert!(status.poisoned[0].1.contains("found by a test"));
        survey.pin("", "/extenci/kept", &[kept.clone()].into()).unwrap();
        let evicted = survey.evict(None).unwrap();
        assert_eq!(evicted, Evicted { chunks: 1, bytes: 4, pinned: 1, ..Evicted::default() });
        let all = [good, bad, kept.clone()].into();
        assert_eq!(survey.holds(&all).unwrap(), [kept].into());
        assert!(survey.unpin("", "/extenci/kept").unwrap());
    }

    #[test]
    fn whatever_is_in_the_place_of_a_chunk_of_a_node_goes() {
        let folder = tempfile::tempdir().unwrap();
        marker::ensure(&LocalStorage::Private, folder.path(), Kind::Node).unwrap();
        let root = folder.path().join("extenci-1");
        let foreign = folder.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("mine"), "all of it").unwrap();
        let path_of = |serial| {
            let (mdt, grant) = (MdtIndex(0), Grant(1));
            let folder = root.join(format!("chunks/{serial:02x}"));
            std::fs::create_dir_all(&folder).unwrap();
            folder.join(GrantedId { mdt, grant, serial }.to_string())
        };
        let fill = || {
            std::fs::create_dir(path_of(1)).unwrap();
            std::fs::write(path_of(1).join("x"), "x").unwrap();
            std::os::unix::fs::symlink(&foreign, path_of(2)).unwrap();
            make_fifo(&path_of(3));
        };
        let survey = Survey::open(folder.path()).unwrap();
        fill();
        let scrubbed = survey.scrub("a test", |_| ()).unwrap();
        assert!(scrubbed.bad.len() == 3 && scrubbed.kept.is_empty(), "{scrubbed:?}");
        fill();
        let evicted = survey.evict(None).unwrap();
        assert_eq!((evicted.chunks, evicted.failed), (3, 0));
        assert!(foreign.join("mine").exists());
    }

    /// Another node, which holds the claim, takes the bad one away and brings a good one.
    #[test]
    fn a_scrub_takes_nothing_away_that_came_in_a_bad_ones_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        marker::ensure(&LocalStorage::Private, root, Kind::Site).unwrap();
        for name in ["claims", "poisoned"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let whole = vec![7; 9000];
        let name = Digest::of(&whole).to_string();
        let path = site::chunk_path(root, &name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"short").unwrap();
        let claim = root.join("claims").join(format!("{name}.0"));
        std::fs::write(&claim, "another").unwrap();
        let survey = Survey::open(root).unwrap();
        let scrubbed = std::thread::scope(|scope| {
            let scrub = scope.spawn(|| survey.scrub("a test", |_| ()).unwrap());
            std::thread::sleep(LOOK_EVERY * 2);
            assert!(path.exists(), "it was not ours to take");
            std::fs::write(&path, &whole).unwrap();
            std::fs::remove_file(&claim).unwrap();
            scrub.join().unwrap()
        });
        assert!(scrubbed.bad.is_empty() && scrubbed.kept.is_empty(), "{scrubbed:?}");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        // The next bad one goes, and the claim on it.
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(survey.scrub("a test", |_| ()).unwrap().bad.len(), 1);
        assert!(
            !path.exists() && LocalStorage::Private.list(&root.join("claims")).unwrap().is_empty()
        );
    }

    #[test]
    fn what_others_put_into_a_site_cache_is_neither_waited_for_nor_followed() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = tempfile::tempdir().unwrap();
        let root = folder.path();
        marker::ensure(&LocalStorage::Private, root, Kind::Site).unwrap();
        ["tmp", "poisoned"].iter().for_each(|name| std::fs::create_dir(root.join(name)).unwrap());
        let path_of = |seed: &[u8]| {
            let path = site::chunk_path(root, &blake3::hash(seed).to_hex());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        std::fs::write(foreign.path().join("mine"), "all of it").unwrap();
        make_fifo(&path_of(b"fifo"));
        std::fs::create_dir(path_of(b"folder")).unwrap();
        std::os::unix::fs::symlink(foreign.path().join("mine"), path_of(b"link")).unwrap();
        std::os::unix::fs::symlink(foreign.path(), root.join("chunks/zz")).unwrap();
        for name in ["pins", "claims"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        ["pins/0123", "claims/cleaner.0", "poisoned/0123"]
            .iter()
            .for_each(|name| make_fifo(&root.join(name)));
        let survey = Survey::open(root).unwrap();
        let status = survey.status().unwrap();
        assert_eq!((status.chunks, status.bytes, status.cleaner), (3, 0, None));
        let scrubbed = survey.scrub("a test", |_| ()).unwrap();
        assert_eq!(scrubbed.bad.len(), 3, "{scrubbed:?}");
        assert!(scrubbed.bad.iter().all(|(_, why)| why == "it is no regular file"), "{scrubbed:?}");
        assert_eq!(survey.status().unwrap().chunks, 0, "they are out of the way");
        survey.evict(None).unwrap();
        assert!(foreign.path().join("mine").exists());
    }
}
