//! The newest believed federation map of this process.

use crate::{MapError, MapVerifier};
use std::sync::Arc;
use tieline_format::map::{FederationMap, SignedMap};
use tokio::sync::watch;

/// Holds the newest map; only maps with the federation's signature and a higher version get in. A
/// key that was replaced signs none of them.
/// Cloned freely.
#[derive(Clone)]
pub struct MapCell {
    newest: Arc<watch::Sender<Arc<BelievedMap>>>,
}

/// A verified map, and the bytes to hand on.
pub struct BelievedMap {
    pub map: FederationMap,
    pub signed: SignedMap,
    /// Whose signature that is.
    pub key: MapVerifier,
}

impl MapCell {
    pub fn new(verifier: MapVerifier, first: SignedMap) -> Result<Self, MapError> {
        let (map, key) = verifier.open_by(&first)?;
        let (newest, _) = watch::channel(Arc::new(BelievedMap { map, signed: first, key }));
        Ok(Self { newest: Arc::new(newest) })
    }

    pub fn current(&self) -> Arc<BelievedMap> {
        self.newest.borrow().clone()
    }

    /// Takes a map if it is genuine and newer; says whether it was newer.
    pub fn offer(&self, signed: SignedMap) -> Result<bool, MapError> {
        let mut outcome = Ok(false);
        self.newest.send_if_modified(|newest| {
            // By the key of this moment: two that it hands over to cannot both be believed.
            outcome = newest.follow(signed).map(|next| next.map(|next| *newest = next).is_some());
            matches!(outcome, Ok(true))
        });
        outcome
    }

    /// Wakes at every newer map.
    pub fn subscribe(&self) -> watch::Receiver<Arc<BelievedMap>> {
        self.newest.subscribe()
    }
}

impl BelievedMap {
    /// What the federation is known by, whichever key it has today.
    pub fn origin(&self) -> MapVerifier {
        self.key.origin(&self.signed)
    }

    /// Is it this federation's key, or one of before?
    pub fn had_key(&self, key: &MapVerifier) -> bool {
        self.key == *key || self.key.keys_before(&self.signed).contains(key)
    }

    /// What another map is to whoever believes this one; `None` if it is not newer.
    pub fn follow(&self, signed: SignedMap) -> Result<Option<Arc<Self>>, MapError> {
        let (map, key) = match self.key.open_by(&signed) {
            // Somebody has not heard yet of what came after it.
            Err(MapError::Signature) if self.is_of_before(&signed) => return Ok(None),
            opened => opened?,
        };
        let is_newer = map.version > self.map.version;
        Ok(is_newer.then(|| Arc::new(Self { map, signed, key })))
    }

    /// Is it an older map, by a key that was this federation's then?
    fn is_of_before(&self, signed: &SignedMap) -> bool {
        let before = self.key.keys_before(&self.signed);
        before.iter().any(|key| key.open(signed).is_ok_and(|map| map.version <= self.map.version))
    }
}
