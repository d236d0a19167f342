//! MDSs that say what a test wants, and ask for tokens as real ones do.

use crate::judges::Judges;
use crate::tickets::Tickets;
use crate::{Unknown, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner};
use tieline_format::map::{FederationMap, Security, SignedMap};
use tieline_servers::Credentials;
use tieline_types::{Caller, ErrorKind, FlavorRules, Gid, SessionId, Uid, Version};
use tieline_wire::identity::ProveReply;

pub type Told = Result<ProveReply, Unknown>;

#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the uid that is stated.
    taken: BTreeMap<u32, Told>,
    /// Whoever shows a token, and where it comes from.
    shown: Option<(Arc<Tickets>, Told)>,
    asked: usize,
    shows: usize,
    slow: Duration,
    is_away: bool,
}

/// A map of a federation with a realm.
pub fn map(version: u64) -> FederationMap {
    let security = Security {
        realm: "EXTENCI.ORG".to_owned(),
        flavors: FlavorRules::default(),
        services: vec![],
        machines: None,
        strangers: None,
        doors: None,
        issuers: None,
    };
    FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(version),
        mdts: vec![],
        junctions: vec![],
        osts: vec![],
        pools: vec![],
        security: Some(security),
        invitations: None,
        repositories: None,
    }
}

/// As a machine states somebody.
pub fn said(uid: u32) -> Caller {
    Caller { uid: Uid(uid), gid: Gid(uid), groups: vec![], proof: None }
}

/// He is this identity.
pub fn taken(uid: u32) -> Told {
    let (caller, how) = (said(uid), "a test".to_owned());
    let (principal, seconds, is_believed, scope, answer) = (None, None, false, None, None);
    Ok(ProveReply { caller, principal, how, seconds, is_believed, scope, answer })
}

/// Over the connection of this principal.
pub fn by(principal: &str, told: Told) -> Told {
    told.map(|told| ProveReply { principal: Some(principal.to_owned()), ..told })
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn cell(&self) -> MapCell {
        MapCell::new(signer().verifier(), self.sign(&map(1))).unwrap()
    }

    pub fn sign(&self, map: &FederationMap) -> SignedMap {
        signer().sign(map)
    }

    pub fn take(&self, uid: u32, told: Told) {
        lock(&self.state).taken.insert(uid, told);
    }

    pub fn show(&self, tickets: &Arc<Tickets>, told: Told) {
        lock(&self.state).shown = Some((tickets.clone(), told));
    }

    pub fn set_slow(&self, slow: Duration) {
        lock(&self.state).slow = slow;
    }

    pub fn set_away(&self) {
        lock(&self.state).is_away = true;
    }

    /// How often it was asked for whom it takes somebody.
    pub fn asked(&self) -> usize {
        lock(&self.state).asked
    }

    /// How often something was shown to it.
    pub fn shows(&self) -> usize {
        lock(&self.state).shows
    }
}

fn signer() -> MapSigner {
    MapSigner::new([7; 32])
}

#[async_trait::async_trait]
impl Judges for Fake {
    async fn taken(&self, stated: &Caller) -> Told {
        let slow = {
            let mut state = lock(&self.state);
            state.asked += 1;
            state.slow
        };
        tokio::time::sleep(slow).await;
        lock(&self.state).taken[&stated.uid.0].clone()
    }

    async fn shown(&self, proof: u64) -> Told {
        let (tickets, told) = {
            let mut state = lock(&self.state);
            state.shows += 1;
            state.shown.clone().unwrap()
        };
        let address = ["mds:1".to_owned()];
        let token = tickets.token(proof, SessionId(1), &address).await;
        let denied = || Unknown { kind: ErrorKind::PermissionDenied, why: "a ticket".to_owned() };
        token.ok_or_else(denied)?;
        told
    }

    fn is_away(&self) -> bool {
        lock(&self.state).is_away
    }
}
