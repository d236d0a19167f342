//! The newest believed federation map of this process.

use crate::{MapError, MapVerifier};
use std::sync::Arc;
use tieline_format::map::{FederationMap, SignedMap};
use tokio::sync::watch;

/// Holds the newest map; only maps with the federation's signature and a higher version get in.
/// Cloned freely.
#[derive(Clone)]
pub struct MapCell {
    verifier: MapVerifier,
    newest: Arc<watch::Sender<Arc<BelievedMap>>>,
}

/// A verified map, and the bytes to hand on.
pub struct BelievedMap {
    pub map: FederationMap,
    pub signed: SignedMap,
}

impl MapCell {
    pub fn new(verifier: MapVerifier, first: SignedMap) -> Result<Self, MapError> {
        let map = verifier.open(&first)?;
        let (newest, _) = watch::channel(Arc::new(BelievedMap { map, signed: first }));
        Ok(Self { verifier, newest: Arc::new(newest) })
    }

    pub fn current(&self) -> Arc<BelievedMap> {
        self.newest.borrow().clone()
    }

    /// Takes a map if it is genuine and newer; says whether it was newer.
    pub fn offer(&self, signed: SignedMap) -> Result<bool, MapError> {
        let map = self.verifier.open(&signed)?;
        let candidate = Arc::new(BelievedMap { map, signed });
        Ok(self.newest.send_if_modified(|newest| {
            let is_newer = candidate.map.version > newest.map.version;
            if is_newer {
                *newest = candidate.clone();
            }
            is_newer
        }))
    }

    /// Wakes at every newer map.
    pub fn subscribe(&self) -> watch::Receiver<Arc<BelievedMap>> {
        self.newest.subscribe()
    }
}
