//! The federation map of a server: kept on disk, changed where its key is, followed elsewhere.
//!
//! The server with the secret key ([`MapKeeper::edit`]) signs a new map and tells everybody
//! connected. All others keep a session with the root MDS ([`follow`]), fetch the newest map when
//! they are told of one, and tell theirs in turn. Every server keeps its copy on disk, so that it
//! can start while the root MDS is out of reach.
//!
//! The key is replaced here as well ([`MapKeeper::edit`]): the new one is on disk before a map that
//! it signs, and the old one signs nothing after that.
//!
//! Invariants: a map is on disk before it is believed; only genuine and newer maps are taken;
//! changes are made one by one.

use crate::peers::{Peers, failure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{BelievedMap, MapCell, MapError, MapSigner};
use tieline_base::keys::{Successor, settle_signer};
use tieline_format::Record;
use tieline_format::map::{FederationMap, SignedMap};
use tieline_machine::private::write_whole;
use tieline_meta::Mdt;
use tieline_net::NoticeSink;
use tieline_types::{Caller, ErrorKind, MdtIndex, Version};
use tieline_wire::federation::{GetMap, MapEdit, MapReply};
use tieline_wire::{Failure, Notice, NoticeAnswer, Welcome};
use tieline_world::{Bulk, Dice};
use tokio::sync::Notify;

/// The map is fetched this often even when nobody said that it changed.
const FOLLOW_EVERY: Duration = Duration::from_secs(60);
const FETCH_PATIENCE: Duration = Duration::from_secs(10);

/// Whoever keeps a map.
pub struct MapKeeper {
    cell: MapCell,
    is_signer: bool,
    file: Option<PathBuf>,
    /// Whoever has it changes the map; the key of that moment, if it is here.
    changing: tokio::sync::Mutex<Option<MapSigner>>,
}

/// Why a map was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("cannot write the federation map to {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot write a new key into {}", .state.display())]
    Key { state: PathBuf, source: std::io::Error },
    #[error("this server keeps no map on disk, so it can keep no key")]
    Nowhere,
}

impl MapKeeper {
    /// Keeps the map of `cell`, in `file` if there is one; with a signer it can be changed here.
    pub fn new(cell: MapCell, signer: Option<MapSigner>, file: Option<PathBuf>) -> Arc<Self> {
        let (is_signer, changing) = (signer.is_some(), tokio::sync::Mutex::new(signer));
        Arc::new(Self { cell, is_signer, file, changing })
    }

    pub fn cell(&self) -> &MapCell {
        &self.cell
    }

    pub fn is_signer(&self) -> bool {
        self.is_signer
    }

    pub fn reply(&self) -> MapReply {
        let current = self.cell.current();
        MapReply {
            version: current.map.version,
            signed: current.signed.to_bytes(),
            key: Some(current.key.to_hex()),
            now_ms: None,
        }
    }

    /// Changes the map, if the secret key is here, and unless that hides names of the MDT here. The
    /// time is in milliseconds since 1970; the dice make keys.
    pub async fn edit(
        &self,
        edit: &MapEdit,
        (now_ms, dice): (u64, &Arc<dyn Dice>),
        mdt: Option<&Mdt>,
    ) -> Result<Version, Failure> {
        let mut changing = self.changing.lock().await;
        let Some(signer) = changing.as_mut() else {
            let detail = "the federation map is changed at the root MDS, which has its key";
            return Err(Failure::new(ErrorKind::WrongServer, detail));
        };
        let current = self.cell.current();
        let map = tieline_federation::apply(&current.map, edit, now_ms)
            .map_err(|error| Failure::new(error.kind(), error.to_string()))?;
        if let Some(mdt) = mdt {
            mdt.check_junctions(&current.map, &map).await?;
        }
        let version = map.version;
        let done = match edit {
            MapEdit::KeyRotate => self.rotate(signer, &map, &current, dice.clone()).await,
            _ => self.take(signer.sign_after(&map, &current.signed)).await.map(drop),
        };
        let failed = |e| Failure::new(ErrorKind::StorageFault, tieline_base::report::chain(&e));
        done.map_err(failed)?;
        Ok(version)
    }

    /// Has another key sign the map from now on.
    async fn rotate(
        &self,
        signer: &mut MapSigner,
        map: &FederationMap,
        current: &BelievedMap,
        dice: Arc<dyn Dice>,
    ) -> Result<(), KeepError> {
        let state = self.file.as_deref().and_then(Path::parent).ok_or(KeepError::Nowhere)?;
        let failed = |source| KeepError::Key { state: state.to_owned(), source };
        let (at, key) = (state.to_owned(), current.key.clone());
        let make = move || {
            // What an earlier change left to be done: its key must not be lost.
            settle_signer(&key, &at)?;
            Successor::make(&at, &*dice)
        };
        let next = beside(make).await.map_err(failed)?;
        self.take(signer.sign_over(&next.signer, map, &current.signed)).await?;
        *signer = next.signer.clone();
        if let Err(error) = beside(move || next.succeed()).await {
            tracing::warn!(%error, "the new key has not its place yet: the next start gives it");
        }
        Ok(())
    }

    /// Takes a map that somebody else signed, if it is genuine and newer.
    pub async fn offer(&self, signed: SignedMap) -> Result<bool, KeepError> {
        let _one_by_one = self.changing.lock().await;
        self.take(signed).await
    }

    async fn take(&self, signed: SignedMap) -> Result<bool, KeepError> {
        if self.cell.current().follow(signed.clone())?.is_none() {
            return Ok(false);
        }
        if let Some(file) = self.file.clone() {
            let (bytes, path) = (signed.to_bytes(), file.clone());
            let written = beside(move || write_whole(&path, &bytes)).await;
            written.map_err(|source| KeepError::Write { path: file, source })?;
        }
        Ok(self.cell.offer(signed)?)
    }
}

/// Work on the disk, in a thread of its own.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Keeps the map as new as the root MDS's. Runs until dropped.
pub async fn follow(keeper: Arc<MapKeeper>, peers: Arc<Peers>) {
    let wake = Arc::new(Notify::new());
    loop {
        let current = keeper.cell.current();
        let Some(root) = current.map.mdt(MdtIndex(0)) else {
            tracing::error!("federation map has no MDT0000: it cannot be followed");
            return;
        };
        let channel = peers.dial(&root.addresses, Arc::new(Wake(wake.clone())));
        // Ends when the root MDS has moved: then a new channel is made.
        while keeper.cell.current().map.mdt(MdtIndex(0)) == Some(root) {
            let patience = Some(FETCH_PATIENCE);
            let caller = Caller::root();
            let reply = tieline_net::call(&*channel, &caller, GetMap {}, Bulk::Empty, patience);
            match reply.await.map_err(failure) {
                Ok((reply, _)) => take_reply(&keeper, &reply).await,
                Err(failure) => tracing::info!(%failure, "root MDS does not answer"),
            }
            let _ = tokio::time::timeout(FOLLOW_EVERY, wake.notified()).await;
        }
        channel.close(FETCH_PATIENCE).await;
    }
}

async fn take_reply(keeper: &MapKeeper, reply: &MapReply) {
    if reply.version <= keeper.cell.current().map.version {
        return;
    }
    let taken = match SignedMap::from_bytes(&reply.signed) {
        Ok(signed) => keeper.offer(signed).await.map_err(|e| tieline_base::report::chain(&e)),
        Err(error) => Err(tieline_base::report::chain(&error)),
    };
    if let Err(error) = taken {
        tracing::error!(%error, "federation map from the root MDS was not taken");
    }
}

/// Wakes the follower.
struct Wake(Arc<Notify>);

#[async_trait::async_trait]
impl NoticeSink for Wake {
    async fn notice(&self, notice: Notice) -> NoticeAnswer {
        match notice {
            Notice::MapChanged(_) => self.0.notify_one(),
            Notice::Recall(_) | Notice::Hold(_) | Notice::FreeLocks(_) => (),
        }
        NoticeAnswer::default()
    }

    fn connected(&self, _welcome: &Welcome) {
        self.0.notify_one();
    }

    fn disconnected(&self) {}

    fn renewed(&self, _sent: tokio::time::Instant) {}
}
