//! What one process needs to prove itself and to judge others.
//!
//! A [`Guard`] knows our secrets ([`Prover`]), our own least flavor, and the federation's rules
//! from the newest map. It is asked before a hello goes out ([`Guard::dialing`]), when one comes
//! ([`Guard::answering`]), and whether who proved itself is who it must be. The stricter of both
//! ends' rules holds, and each end checks that itself.
//!
//! Knows no socket: the handshake's frames are `net`'s affair.
//!
//! Invariants: no flavor below our own floor or the map's rule is ever agreed to; a flavor above
//! null without a proof is refused; nobody is taken for a server by his word, unless all rules are
//! null; at most [`STEPS_MAX`] steps of handshakes block at once.

use crate::cell::MapCell;
use crate::gss::{self, GssAcceptor, GssInitiator, Keys, Tickets, Witnessed};
use crate::mechanism::{BINDING, Mechanism, Proof};
use crate::seal::Transcript;
use crate::seeded::Seeded;
use crate::trouble::Trouble;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_types::{Flavor, MdtIndex, Pair, SessionId};
use tieline_wire::{CredentialKind, Hello, PeerRole};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Handshakes that wait for a KDC or a disk at the same time; further ones take their turn.
const STEPS_MAX: usize = 32;
/// Where a fresh ticket was of no use, the KDC is not asked for another one so soon.
const FRESH_APART: Duration = Duration::from_secs(60);

/// Where mechanisms come from.
pub trait Prover: Send + Sync {
    fn kind(&self) -> CredentialKind;

    /// Proves us to `target`.
    fn initiator(&self, target: &str, tickets: Tickets) -> Box<dyn Mechanism>;

    /// Hears who somebody is.
    fn acceptor(&self) -> Box<dyn Mechanism>;

    /// For which service a token of a door's user is, by what stands on it.
    fn service_of(&self, token: &[u8]) -> Option<String>;

    /// Opens what a user sent to a service of a door, if its key is here. May block.
    fn witness(&self, service: &str, token: &[u8]) -> Result<Witnessed, Trouble>;
}

/// Kerberos: the keys to dial with, and those to be dialed with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kerberos {
    pub dialing: Keys,
    pub answering: Keys,
}

impl Prover for Kerberos {
    fn kind(&self) -> CredentialKind {
        CredentialKind::Kerberos
    }

    fn initiator(&self, target: &str, tickets: Tickets) -> Box<dyn Mechanism> {
        Box::new(GssInitiator::with(self.dialing.clone(), target.to_owned(), tickets))
    }

    fn acceptor(&self) -> Box<dyn Mechanism> {
        Box::new(GssAcceptor::new(self.answering.clone()))
    }

    fn service_of(&self, token: &[u8]) -> Option<String> {
        gss::service_of(token)
    }

    fn witness(&self, service: &str, token: &[u8]) -> Result<Witnessed, Trouble> {
        gss::witness(&self.answering, service, token)
    }
}

/// For tests: see [`Seeded`].
pub struct SeededProver {
    pub secret: u64,
    pub own: String,
    pub nonce: AtomicU64,
}

impl Prover for SeededProver {
    fn kind(&self) -> CredentialKind {
        CredentialKind::Test
    }

    fn initiator(&self, target: &str, _: Tickets) -> Box<dyn Mechanism> {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        Box::new(Seeded::initiator(self.secret, &self.own, target, nonce))
    }

    fn acceptor(&self) -> Box<dyn Mechanism> {
        Box::new(Seeded::acceptor(self.secret, &self.own))
    }

    fn service_of(&self, token: &[u8]) -> Option<String> {
        Seeded::service_of(token)
    }

    fn witness(&self, service: &str, token: &[u8]) -> Result<Witnessed, Trouble> {
        Seeded::witness(self.secret, service, token)
    }
}

/// What a process holds, for its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Serves {
    pub mdt: bool,
    pub ost: bool,
}

/// What a guard is made of.
pub struct GuardParts {
    /// `None`: this process can prove nothing.
    pub prover: Option<Box<dyn Prover>>,
    /// The weakest flavor we agree to, whatever the map says.
    pub floor: Flavor,
    /// The weakest that we take of a server before there is a map: else whoever answers first
    /// could say that nobody proves anything here.
    pub first: Flavor,
    pub serves: Serves,
    /// Offers its proof before anybody asks for one.
    pub is_eager: bool,
    /// The realm of a server that no map names yet; the machine's default for `None`.
    pub realm: Option<String>,
    /// First components of principals that may be asked for here.
    pub services: Vec<String>,
    /// First component of a server that no map names yet; `None` tries the usual ones.
    pub service: Option<String>,
}

/// See the module.
pub struct Guard {
    parts: GuardParts,
    map: OnceLock<MapCell>,
    /// A server wanted proof though no rule that we know does.
    is_asked: AtomicBool,
    /// When a fresh ticket was of no use at a server.
    freshened: Mutex<BTreeMap<String, Instant>>,
    steps: Arc<Semaphore>,
}

/// How to dial.
pub struct Dialing {
    /// The weakest flavor that is taken.
    pub flavor: Flavor,
    /// Whom to expect, and how to prove ourselves: the first of them whom the KDC knows.
    pub proofs: Vec<(String, Box<dyn Mechanism>)>,
}

/// How to answer.
pub struct Answering {
    pub flavor: Flavor,
    /// `None` for flavor null.
    pub mechanism: Option<Box<dyn Mechanism>>,
}

pub const SERVICE_MDS: &str = "tieline_mds";
pub const SERVICE_OSS: &str = "tieline_oss";
/// What servers go by that share their machine's keys.
pub const SERVICE_HOST: &str = "host";

impl Guard {
    pub fn new(parts: GuardParts) -> Arc<Self> {
        Arc::new(Self {
            map: OnceLock::new(),
            // Who was given keys for it offers the proof at once.
            is_asked: AtomicBool::new(parts.is_eager),
            freshened: Mutex::default(),
            steps: Arc::new(Semaphore::new(STEPS_MAX)),
            parts,
        })
    }

    /// Proves nothing, and asks nobody for proof unless the map does.
    pub fn open() -> Arc<Self> {
        Self::new(GuardParts {
            prover: None,
            floor: Flavor::Null,
            first: Flavor::Null,
            serves: Serves::default(),
            is_eager: false,
            realm: None,
            services: Vec::new(),
            service: None,
        })
    }

    /// The rules are this map's from now on; only the first call counts.
    pub fn follow(&self, map: &MapCell) {
        // A second map would be of another federation; a process has one.
        let _ = self.map.set(map.clone());
    }

    /// Wakes at every newer map; `None` while there is no map.
    pub fn changes(&self) -> Option<tokio::sync::watch::Receiver<Arc<crate::BelievedMap>>> {
        self.map.get().map(MapCell::subscribe)
    }

    /// What bounds the steps that may block.
    pub fn steps(&self) -> Arc<Semaphore> {
        self.steps.clone()
    }

    /// The weakest flavor that we take, when we dial a server from `own` address.
    pub fn dialing_flavor(&self, role: PeerRole, address: &str, own: Option<IpAddr>) -> Flavor {
        let Some(current) = self.map.get().map(MapCell::current) else {
            return self.parts.floor.max(self.parts.first);
        };
        self.parts.floor.max(rule(&current.map, role, serves_of(&current.map, address), own))
    }

    /// How to dial a server: with a proof where a rule, or the server, wants one.
    pub fn dialing(
        &self,
        role: PeerRole,
        address: &str,
        own: Option<IpAddr>,
        tickets: Tickets,
    ) -> Result<Dialing, Trouble> {
        let flavor = self.dialing_flavor(role, address, own);
        let is_wanted = flavor > Flavor::Null || self.is_asked.load(Ordering::Relaxed);
        let proofs = match &self.parts.prover {
            Some(prover) if is_wanted => {
                let targets = self.principals_of(address).into_iter();
                let proof = |target: String| {
                    let mechanism = prover.initiator(&target, tickets);
                    (target, mechanism)
                };
                targets.map(proof).collect()
            }
            Some(_) => Vec::new(),
            None if flavor > Flavor::Null => return Err(Trouble::NoCredential(flavor)),
            None => Vec::new(),
        };
        Ok(Dialing { flavor, proofs })
    }

    /// A server refused us for want of a proof: is there one, that we did not offer?
    pub fn ask(&self) -> bool {
        self.parts.prover.is_some() && !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// The server at an address refused our proof: is a fresh ticket to be tried? Its key may be
    /// another than when ours was given. Not soon again where that was in vain.
    pub fn freshens(&self, address: &str) -> bool {
        let freshened = self.freshened.lock().unwrap_or_else(PoisonError::into_inner);
        let is_vain = freshened.get(address).is_some_and(|at| at.elapsed() < FRESH_APART);
        self.parts.prover.is_some() && !is_vain
    }

    /// A fresh ticket was refused like the one before it.
    pub fn freshened_in_vain(&self, address: &str) {
        let mut freshened = self.freshened.lock().unwrap_or_else(PoisonError::into_inner);
        freshened.retain(|_, at| at.elapsed() < FRESH_APART);
        freshened.insert(address.to_owned(), Instant::now());
    }

    /// The flavor for who says `hello` from `peer`.
    pub fn answering_flavor(&self, hello: &Hello, peer: Option<IpAddr>) -> Flavor {
        let rule = self.map.get().map_or(Flavor::Null, |cell| {
            rule(&cell.current().map, hello.role, self.parts.serves, peer)
        });
        self.parts.floor.max(rule).max(hello.flavor)
    }

    /// How to answer who says `hello` from `peer`.
    pub fn answering(&self, hello: &Hello, peer: Option<IpAddr>) -> Result<Answering, Trouble> {
        let flavor = self.answering_flavor(hello, peer);
        if flavor == Flavor::Null {
            return Ok(Answering { flavor, mechanism: None });
        }
        let prover = self.parts.prover.as_ref().ok_or(Trouble::NoCredential(flavor))?;
        if hello.credential != prover.kind() {
            return Err(Trouble::NoCredential(flavor));
        }
        Ok(Answering { flavor, mechanism: Some(prover.acceptor()) })
    }

    /// Is who answered whom we dialed?
    pub fn check_server(&self, proof: &Proof, expected: &str) -> Result<(), Trouble> {
        let has_realm = expected.contains('@');
        let peer = proof.peer.as_str();
        let is_same = match has_realm {
            true => peer == expected,
            false => peer.rsplit_once('@').is_some_and(|(name, _)| name == expected),
        };
        let wrong =
            || Trouble::WrongServer { peer: peer.to_owned(), expected: expected.to_owned() };
        is_same.then_some(()).ok_or_else(wrong)
    }

    /// Hears who a user is, beside the machine whose connection this is.
    pub fn acceptor(&self) -> Result<Box<dyn Mechanism>, Trouble> {
        let prover = self.parts.prover.as_ref();
        prover.map(|prover| prover.acceptor()).ok_or(Trouble::NoCredential(Flavor::Krb5n))
    }

    /// Who sent this token to a door, for a service that the door may be; `may_be` says which. May
    /// block.
    pub fn witness(
        &self,
        token: &[u8],
        may_be: impl FnOnce(&str) -> bool,
    ) -> Result<Witnessed, Trouble> {
        let prover = self.parts.prover.as_ref();
        let prover = prover.ok_or(Trouble::NoCredential(Flavor::Krb5n))?;
        let odd = |text: String| Trouble::Other { text };
        let service = prover.service_of(token);
        let service = service.ok_or_else(|| odd("it names no service".to_owned()))?;
        // What is shown to servers themselves stands on the line, and is bound to more.
        if !may_be(&service) || self.is_server(&service) {
            return Err(odd(format!("it is for {service}, which is no service of that door")));
        }
        prover.witness(&service, token)
    }

    /// Was it this server that somebody proved himself to?
    pub fn check_service(&self, proof: &Proof) -> Result<(), Trouble> {
        let service = proof.own.split(['/', '@']).next().unwrap_or_default();
        let services = &self.parts.services;
        if !services.is_empty() && !services.iter().any(|known| known == service) {
            let (peer, expected) = (proof.own.clone(), services.join(" or "));
            return Err(Trouble::WrongServer { peer, expected });
        }
        Ok(())
    }

    /// May who proved itself be what its hello says, and was it this server that it asked for?
    pub fn check_caller(&self, hello: &Hello, proof: &Proof) -> Result<(), Trouble> {
        self.check_service(proof)?;
        if hello.role != PeerRole::Client && !self.is_server(&proof.peer) {
            return Err(Trouble::NoServer { peer: proof.peer.clone() });
        }
        Ok(())
    }

    /// Is this the name of a server that the map names?
    pub fn is_server(&self, principal: &str) -> bool {
        let Some(current) = self.map.get().map(MapCell::current) else { return false };
        let map = &current.map;
        let mdts = map.mdts.iter().flat_map(|mdt| &mdt.addresses);
        let osts = map.osts.iter().flat_map(|ost| &ost.addresses);
        mdts.chain(osts).any(|address| principal_at(map, address).as_deref() == Some(principal))
    }

    /// The MDTs of the server with this name, as the map has it.
    pub fn mdts_of(&self, principal: &str) -> Vec<MdtIndex> {
        let Some(current) = self.map.get().map(MapCell::current) else { return vec![] };
        let is_its =
            |address: &String| principal_at(&current.map, address).as_deref() == Some(principal);
        let mdts = current.map.mdts.iter().filter(|mdt| mdt.addresses.iter().any(is_its));
        mdts.map(|mdt| mdt.mdt).collect()
    }

    /// The principal of the server at an address.
    pub fn principal_of(&self, address: &str) -> String {
        // There always is one.
        self.principals_of(address).swap_remove(0)
    }

    /// The principals that the server at an address may go by, the likeliest first. A map names
    /// one. Before it, a service of our own, or the machine's where the KDC knows no such: which
    /// of both a site made is not to be known from outside.
    pub fn principals_of(&self, address: &str) -> Vec<String> {
        let named = self.map.get().and_then(|cell| principal_at(&cell.current().map, address));
        if let Some(named) = named {
            return vec![named];
        }
        let services = match &self.parts.service {
            Some(service) => vec![service.as_str()],
            None => vec![SERVICE_MDS, SERVICE_HOST],
        };
        let realm = self.parts.realm.as_ref().map_or_else(String::new, |realm| format!("@{realm}"));
        let name = |service| format!("{service}/{}{realm}", host(address));
        services.into_iter().map(name).collect()
    }
}

/// What the token of a user is bound to: the session of the machine, and the number of the proof.
pub fn proof_binding(session: SessionId, number: u64) -> [u8; BINDING] {
    let mut transcript = Transcript::new();
    transcript.add(b"user");
    transcript.add(&session.0.to_le_bytes());
    transcript.add(&number.to_le_bytes());
    transcript.digest()
}

/// The principal of a server that a map names, if the map has proofs at all.
pub fn principal_at(map: &FederationMap, address: &str) -> Option<String> {
    let security = map.security.as_ref()?;
    if let Some(named) = security.services.iter().find(|service| service.address == address) {
        return Some(named.principal.clone());
    }
    let serves = serves_of(map, address);
    let service = match (serves.mdt, serves.ost) {
        (true, _) => SERVICE_MDS,
        (false, true) => SERVICE_OSS,
        (false, false) => return None,
    };
    Some(format!("{service}/{}@{}", host(address), security.realm))
}

fn serves_of(map: &FederationMap, address: &str) -> Serves {
    let is_there = |addresses: &[String]| addresses.iter().any(|known| known == address);
    Serves {
        mdt: map.mdts.iter().any(|mdt| is_there(&mdt.addresses)),
        ost: map.osts.iter().any(|ost| is_there(&ost.addresses)),
    }
}

/// The kinds of talk that may pass between an end that dials and what the other end serves.
fn pairs_of(role: PeerRole, serves: Serves) -> Vec<Pair> {
    let (mdt, ost) = match role {
        PeerRole::Client => (Pair::ClientMdt, Pair::ClientOst),
        PeerRole::Mds => (Pair::MdtMdt, Pair::MdtOst),
        PeerRole::Oss => (Pair::MdtOst, Pair::MdtOst),
    };
    [(serves.mdt, mdt), (serves.ost, ost)]
        .into_iter()
        .filter_map(|(is_served, pair)| is_served.then_some(pair))
        .collect()
}

/// The rule for who says that it has a role. Under null nobody shows it, and a server may more than
/// a client: where anybody has to prove himself, so has who says to be a server, and he is
/// protected no less than the clients there.
fn rule(map: &FederationMap, role: PeerRole, serves: Serves, dialing: Option<IpAddr>) -> Flavor {
    let Some(security) = &map.security else { return Flavor::Null };
    let strictest = |role| {
        let pairs = pairs_of(role, serves).into_iter();
        let flavors = pairs.map(|pair| security.flavors.flavor(pair, dialing));
        flavors.max().unwrap_or(Flavor::Null)
    };
    match (role, strictest(role)) {
        (PeerRole::Mds | PeerRole::Oss, Flavor::Null) if !security.flavors.are_null() => {
            strictest(PeerRole::Client).max(Flavor::Krb5n)
        }
        (_, flavor) => flavor,
    }
}

/// The host in `HOST:PORT`.
pub fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The address in `HOST:PORT`, if it is a number. By which of its own interfaces a machine sees it
/// (`%2`) is no part of it.
pub fn address_of(peer: &str) -> Option<IpAddr> {
    let host = host(peer);
    host.split_once('%').map_or(host, |(address, _)| address).parse().ok()
}

#[cfg(test)]
pub(crate) mod tests;
