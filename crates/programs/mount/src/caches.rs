//! What a mount finds nearer than at an OSS: `-o cache=`, `sitecache=`, `direct=`, plugged into the
//! client room.
//!
//! Invariants: a cache that cannot be used keeps nobody from mounting, and is used once it can be
//! ([`late`]), but for one that another mount has; direct access and a site's cache trust all who
//! read that storage, so both are off where data servers are ruled krb5p, unless the operator says
//! `at-rest=trusted`.

mod late;
mod node;
mod usual;

use crate::caches::late::Late;
use crate::caches::node::NodePlug;
use crate::spool::own_directory;
use bytes::Bytes;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_auth::{MapCell, MapVerifier};
use tieline_base::registry::{CachesAt, scope};
use tieline_base::report::Usage;
use tieline_blob::{DirectReader, Identity};
use tieline_bytes::{DirectAccess, Near, SiteCache, SiteClaim, SiteLook};
use tieline_cache::{LocalStorage, Looked, NodeSettings, SiteSettings, Storage};
use tieline_format::map::FederationMap;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    ByteSize, ChunkRef, Digest, ErrorKind, Flavor, FsName, ObjectName, OstIndex, OstPlace, Pair,
};
use tieline_world::World;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Unless `cache-size=` says otherwise, where `cache=` names a directory.
const NODE_SIZE: u64 = 10 << 30;
/// The low water mark, in percent of the high one, unless `sitecache-size=HIGH:LOW` says it.
const LOW_PERCENT: u64 = 90;
/// Direct reads at once; how long one may take; how long a storage that failed is let alone.
const DIRECT_MAX: usize = 16;
const DIRECT_PATIENCE: Duration = Duration::from_secs(15);
const DIRECT_PAUSE: Duration = Duration::from_secs(30);

/// Where a node's cache is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NodeAt {
    #[default]
    Off,
    /// In a directory of the mount's own, below this one or the usual place.
    Auto(Option<PathBuf>),
    /// There, for what comes from far away ([`usual`]).
    Own(PathBuf),
    /// There, for all that is read.
    At(PathBuf),
}

impl NodeAt {
    fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Off | Self::Auto(_) => None,
            Self::Own(path) | Self::At(path) => Some(path),
        }
    }
}

/// What an operator said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearOptions {
    pub node: NodeAt,
    node_size: Option<u64>,
    pub site: Option<PathBuf>,
    marks: Option<(u64, u64)>,
    direct: BTreeMap<OstIndex, PathBuf>,
    is_trusted: bool,
}

impl NearOptions {
    /// What a mount has without being told.
    pub fn of_a_mount() -> Self {
        Self { node: NodeAt::Auto(None), ..Self::default() }
    }

    /// Takes one option; says whether it was one of ours.
    pub fn set(&mut self, word: &str, key: &str, value: Option<&str>) -> Result<bool, Usage> {
        let wrong = |what: &str| Usage(format!("-o {word}: {what}"));
        let absolute = |path: &str| match Path::new(path).is_absolute() {
            true => Ok(PathBuf::from(path)),
            false => Err(wrong("an absolute path is needed")),
        };
        let size = |text: &str| {
            let size: ByteSize = text.parse().map_err(|error| wrong(&format!("{error}")))?;
            if size.0 == 0 { Err(wrong("a size above 0 is needed")) } else { Ok(size.0) }
        };
        match (key, value) {
            ("cache", Some("off")) => self.node = NodeAt::Off,
            ("cache", Some("auto")) => self.node = NodeAt::Auto(None),
            ("cache", Some(path)) => {
                self.node = match path.strip_prefix("auto:") {
                    Some(place) => NodeAt::Auto(Some(absolute(place)?)),
                    None => NodeAt::At(absolute(path)?),
                }
            }
            ("cache-size", Some(text)) => self.node_size = Some(size(text)?),
            ("sitecache", Some(path)) => self.site = Some(absolute(path)?),
            ("sitecache-size", Some(text)) => {
                let (high, low) = match text.split_once(':') {
                    Some((high, low)) => (size(high)?, size(low)?),
                    None => (size(text)?, size(text)? / 100 * LOW_PERCENT),
                };
                if low > high {
                    return Err(wrong("HIGH:LOW, the high water mark first"));
                }
                self.marks = Some((high, low));
            }
            ("direct", Some(pairs)) => {
                let form = || wrong("OST0000=/path, several with `:` between them");
                for pair in pairs.split(':') {
                    let (ost, path) = pair.split_once('=').ok_or_else(form)?;
                    let digits = ost.strip_prefix("OST").ok_or_else(form)?;
                    let ost = u16::from_str_radix(digits, 16).map_err(|_| form())?;
                    self.direct.insert(OstIndex(ost), absolute(path)?);
                }
            }
            ("at-rest", Some("trusted")) => self.is_trusted = true,
            ("at-rest", Some("untrusted")) => self.is_trusted = false,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sizes of caches that are nowhere.
    pub fn without_place(&self) -> Vec<String> {
        let sizes = [
            ("cache", self.node_size.is_some() && self.node == NodeAt::Off),
            ("sitecache", self.marks.is_some() && self.site.is_none()),
        ];
        let nowhere = sizes.into_iter().filter(|(_, is_nowhere)| *is_nowhere);
        nowhere.map(|(name, _)| format!("-o {name}-size=: needs {name}=DIR")).collect()
    }

    /// Refuses storage of OSTs that the federation does not have: it would never be read.
    pub fn check_osts(&self, map: &FederationMap) -> Result<(), Usage> {
        let is_there = |ost: OstIndex| map.osts.iter().any(|entry| entry.ost == ost);
        let unknown = self.direct.iter().filter(|&(&ost, _)| !is_there(ost));
        let lines: Vec<String> = unknown
            .map(|(ost, path)| {
                let osts: Vec<String> = map.osts.iter().map(|entry| entry.ost.label()).collect();
                let (ost, path, osts) = (ost.label(), path.display(), osts.join(", "));
                format!("-o direct={ost}={path}: no such OST: {} has {osts}", map.fs)
            })
            .collect();
        if lines.is_empty() { Ok(()) } else { Err(Usage(lines.join("\n"))) }
    }

    /// Gives the mount the directory of its own, if it has none and shares none.
    pub fn settle(&mut self, fs: &FsName, mountpoint: &Path) {
        let NodeAt::Auto(place) = &self.node else { return };
        let is_near_others = self.site.is_some() || !self.direct.is_empty();
        let place = place.clone().unwrap_or_else(usual::place);
        self.node = match is_near_others {
            true => NodeAt::Off,
            false => NodeAt::Own(own_directory(&place, fs.as_str(), mountpoint)),
        };
    }

    /// `None`: there is none, or no room for it.
    fn node_settings(&self, scope: String) -> Option<NodeSettings> {
        let path = self.node.path()?.clone();
        let usual = match self.node {
            NodeAt::Own(_) => usual::room(&path),
            _ => Some(NODE_SIZE),
        };
        let bytes_max = self.node_size.or(usual)?;
        Some(NodeSettings { path, bytes_max, scope })
    }

    pub fn places(&self, fs: &FsName, key: &MapVerifier) -> CachesAt {
        let (node, site) = (self.node.path().cloned(), self.site.clone());
        let direct = self.direct.iter().map(|(ost, path)| (ost.0, path.clone())).collect();
        CachesAt { node, site, is_shared: self.is_trusted, direct, scope: scope(fs, key) }
    }

    /// Opens what was asked for, and says what cannot be used yet or is open to others. `is_new`:
    /// no program uses the mount so far.
    pub async fn open(
        &self,
        world: &World,
        map: &MapCell,
        (fs, key): (&FsName, &MapVerifier),
        sec: Option<&str>,
        is_new: bool,
    ) -> anyhow::Result<(Near, Vec<String>)> {
        let mut near = Near::default();
        let (mut node, mut site) = (None, None);
        if let Some(settings) = self.node_settings(scope(fs, key)) {
            let (is_own, world) = (matches!(self.node, NodeAt::Own(_)), world.clone());
            let plug = match is_own {
                true => NodePlug::own(settings, world).await,
                false => NodePlug::open(settings, world, is_new).await?,
            };
            near.node = Some(node.insert(Arc::new(plug)).clone());
            near.is_node_for_far = is_own;
        }
        if let Some(path) = self.site.clone() {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let owner = format!("{host} (pid {})", std::process::id());
            let life = SiteSettings::LIFE;
            let settings = SiteSettings { path, marks: self.marks, owner, life };
            let kept = if self.is_trusted { LocalStorage::Shared } else { LocalStorage::Private };
            let (storage, dice): (Arc<dyn Storage>, _) = (Arc::new(kept), world.dice.clone());
            let open = move || {
                tieline_cache::SiteCache::open(settings.clone(), storage.clone(), dice.clone())
            };
            let cache = site.insert(Late::open("site", is_new, Arc::new(open)).await?);
            near.site = Some(Arc::new(SitePlug(cache.clone())));
        }
        if !self.direct.is_empty() {
            let direct = self.direct.iter();
            let ways = direct.map(|(&ost, path)| (ost, Way::new(path, fs, ost))).collect();
            let turns = Arc::new(Semaphore::new(DIRECT_MAX));
            near.direct = Some(Arc::new(DirectPlug { ways, turns }));
        }
        if !self.is_trusted {
            let is_own = sec.is_some_and(|sec| sec == Flavor::Krb5p.name());
            let is_shared = near.site.is_some() || near.direct.is_some();
            if is_shared && (is_own || are_private(map)) {
                tracing::warn!(
                    "data servers are ruled krb5p: site cache and direct access are off unless \
                     the mount has at-rest=trusted"
                );
            }
            let map = map.clone();
            near.is_private = Some(Arc::new(move |_| is_own || are_private(&map)));
        }
        let at = self.places(fs, key);
        let node_trouble = move || node.as_ref().and_then(|plug| plug.trouble());
        let troubles = move || [node_trouble(), site.as_ref().and_then(Late::trouble)];
        let without =
            |why| format!("{why}: mounted without that cache, which is used as soon as it can be");
        let mut warnings: Vec<String> = troubles().into_iter().flatten().map(without).collect();
        if let Some(why) = exposed(&at) {
            tracing::warn!("{why}");
            warnings.push(why);
        }
        near.report = Some(Arc::new(move || report(&at, troubles()).to_string()));
        Ok((near, warnings))
    }
}

/// Who could read a site's cache, though nobody said that others may.
fn exposed(at: &CachesAt) -> Option<String> {
    at.site.as_deref().filter(|_| !at.is_shared).and_then(tieline_cache::exposure)
}

/// Is any client to speak krb5p with data servers? Who else reads a storage is not known, so a rule
/// for one network holds for all that lies on it.
fn are_private(map: &MapCell) -> bool {
    let current = map.current();
    let Some(security) = &current.map.security else { return false };
    let rules = security.flavors.0.iter();
    let mut about = rules.filter(|rule| rule.pair.is_none_or(|pair| pair == Pair::ClientOst));
    about.any(|rule| rule.flavor == Flavor::Krb5p)
}

fn report(at: &CachesAt, [node, site]: [Option<String>; 2]) -> serde_json::Value {
    let one = |name: &str, path: Option<&PathBuf>, trouble: Option<String>| {
        let path = path?;
        let mut value = json!({
            "path": path,
            "trouble": trouble,
            "served_bytes": METRICS.cache_served_bytes.with_label_values(&[name]).get(),
            "missed_bytes": METRICS.cache_missed_bytes.with_label_values(&[name]).get(),
            "kept_bytes": METRICS.cache_kept_bytes.with_label_values(&[name]).get(),
            "evicted_bytes": METRICS.cache_evicted_bytes.with_label_values(&[name]).get(),
            "poisoned": METRICS.cache_poisoned.with_label_values(&[name]).get(),
            "damaged": METRICS.cache_damaged.with_label_values(&[name]).get(),
            "errors": METRICS.cache_errors.with_label_values(&[name]).get(),
        });
        if name == "node" {
            value["bytes"] = METRICS.cache_bytes.with_label_values(&[name]).get().into();
            value["limit_bytes"] =
                METRICS.cache_limit_bytes.with_label_values(&[name]).get().into();
        }
        Some(value)
    };
    json!({
        "node": one("node", at.node.as_ref(), node),
        "site": one("site", at.site.as_ref(), site),
        "direct": {
            "served_bytes": METRICS.cache_served_bytes.with_label_values(&["direct"]).get(),
            "poisoned": METRICS.cache_poisoned.with_label_values(&["direct"]).get(),
            "errors": METRICS.cache_errors.with_label_values(&["direct"]).get(),
        },
        "fetched_bytes": METRICS.client_fetched_bytes.get(),
        "mds_round_trips": METRICS.round_trips.with_label_values(&["mds"]).get(),
        "oss_round_trips": METRICS.round_trips.with_label_values(&["oss"]).get(),
    })
}

struct SitePlug(Late<tieline_cache::SiteCache>);

struct ClaimPlug(tieline_cache::Claim);

#[async_trait::async_trait]
impl SiteCache for SitePlug {
    async fn look(&self, digest: &Digest, length: u64, until: Instant) -> SiteLook {
        let Some(cache) = self.0.now() else { return SiteLook::Aside };
        match cache.look(digest, length, until).await {
            Looked::Here(bytes) => SiteLook::Here(bytes),
            Looked::Ours(claim) => SiteLook::Ours(Box::new(ClaimPlug(claim))),
            Looked::Late => SiteLook::Late,
            Looked::Aside => SiteLook::Aside,
        }
    }
}

#[async_trait::async_trait]
impl SiteClaim for ClaimPlug {
    async fn publish(self: Box<Self>, bytes: Bytes) {
        self.0.publish(bytes).await;
    }
}

/// The way to one OST's storage.
struct Way {
    reader: DirectReader,
    state: Mutex<WayState>,
}

/// What is known of it.
#[derive(Clone, Copy)]
enum WayState {
    Unknown,
    Good,
    BadSince(Instant),
}

struct DirectPlug {
    ways: BTreeMap<OstIndex, Arc<Way>>,
    turns: Arc<Semaphore>,
}

impl Way {
    fn new(path: &Path, fs: &FsName, ost: OstIndex) -> Arc<Self> {
        let reader = DirectReader::new(path, Identity { fs: fs.clone(), ost });
        Arc::new(Self { reader, state: Mutex::new(WayState::Unknown) })
    }

    fn state(&self) -> WayState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: WayState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn is_open(&self) -> bool {
        !matches!(self.state(), WayState::BadSince(since) if since.elapsed() < DIRECT_PAUSE)
    }

    fn failed(&self, error: &dyn std::fmt::Display) {
        METRICS.cache_errors.with_label_values(&["direct"]).inc();
        let path = self.reader.path().display();
        if matches!(self.state(), WayState::BadSince(_)) {
            tracing::debug!(%path, %error, "storage cannot be read directly");
        } else {
            tracing::warn!(%path, %error, "storage cannot be read directly: servers are asked");
        }
        self.set(WayState::BadSince(Instant::now()));
    }
}

#[async_trait::async_trait]
impl DirectAccess for DirectPlug {
    fn has(&self, ost: OstIndex) -> bool {
        self.ways.get(&ost).is_some_and(|way| way.is_open())
    }

    async fn read(&self, _chunk: &ChunkRef, place: &OstPlace) -> Option<Bytes> {
        let way = self.ways.get(&place.ost)?.clone();
        // Files that were there before us are their server's to judge.
        let ObjectName::Chunk(object) = place.object else { return None };
        let (asked, place, turns) = (way.clone(), place.clone(), self.turns.clone());
        let job = async move {
            // The semaphore is never closed; if it were, reads would only lose their bound.
            let turn = turns.acquire_owned().await.ok();
            let task = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                if !matches!(asked.state(), WayState::Good) {
                    asked.reader.verify()?;
                    asked.set(WayState::Good);
                }
                asked.reader.read(object, &place)
            });
            task.await
        };
        match tokio::time::timeout(DIRECT_PATIENCE, job).await {
            Ok(Ok(Ok(bytes))) => Some(bytes),
            // Gone a moment ago, or on its way there: its server knows.
            Ok(Ok(Err(error))) if error.kind() == ErrorKind::Gone => None,
            Ok(Ok(Err(error))) => {
                way.failed(&error);
                None
            }
            Ok(Err(error)) => {
                way.failed(&error);
                None
            }
            Err(_) => {
                way.failed(&"it does not answer");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Result<NearOptions, Usage> {
        let mut options = NearOptions::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap();
            assert!(options.set(word, key, Some(value))?, "{word}");
        }
        Ok(options)
    }

    #[test]
    fn options_are_understood() {
        let all = options(&[
            "cache=/var/cache/tieline",
            "cache-size=20G",
            "sitecache=/gluster/cache",
            "sitecache-size=1T",
            "direct=OST0000=/lustre/ost0:OST000a=/lustre/ost10",
            "at-rest=trusted",
        ]);
        let all = all.unwrap();
        assert_eq!(all.node_size, Some(20 << 30));
        assert_eq!(all.marks.unwrap().0, 1 << 40);
        assert_eq!(all.direct[&OstIndex(10)], Path::new("/lustre/ost10"));
        assert!(all.is_trusted);
        assert_eq!(options(&["sitecache-size=2G:1G"]).unwrap().marks, Some((2 << 30, 1 << 30)));
        for wrong in ["cache=here", "cache-size=0", "sitecache-size=1G:2G", "direct=/lustre/ost0"] {
            assert!(options(&[wrong]).unwrap_err().0.contains(wrong), "{wrong}");
        }
    }
}
