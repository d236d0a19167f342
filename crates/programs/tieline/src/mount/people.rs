//! Who the users of a mount are to the file system.
//!
//! Where the servers believe this machine (or nothing is proven at all), a caller is who the
//! machine's ids say, as [`Idmap`] translates them. Else a caller is whoever his ticket shows
//! ([`Tickets`]); root, and who has no ticket, is whom the servers take him for: nobody, a
//! stranger, or root ([`word`](crate::mount::word)).
//!
//! Invariants: a caller is found anew when his cache changed, when his ticket is over, and when
//! the rules did; at most [`KNOWN_MAX`] are remembered.

use crate::mount::idmap::Idmap;
use crate::mount::tickets::{Purse, Seen, Tickets};
use crate::mount::word::Word;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_client::{FileSystem, Volume};
use tieline_fuse::{Asking, People, Unknown};
use tieline_types::{Caller, ErrorKind, Gid, MdtIndex, Uid};
use tieline_world::World;
use tokio::time::Instant;

const KNOWN_MAX: usize = 4096;
/// How long it is believed what servers take somebody for who shows nothing.
const BELIEVED: Duration = Duration::from_secs(5);
/// How long it is believed whether users must show tickets.
const RULES_BELIEVED: Duration = Duration::from_secs(60);
/// How long a mount that begins waits to hear whether its machine is believed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// A ticket is shown again so long before it is over.
const MARGIN: Duration = Duration::from_secs(2);

/// See the module.
pub struct Users {
    volume: Arc<Volume>,
    /// Whose MDS is asked.
    mdt: MdtIndex,
    world: World,
    map: MapCell,
    idmap: Arc<Idmap>,
    tickets: Arc<Tickets>,
    is_personal: AtomicBool,
    known: Mutex<BTreeMap<Purse, Known>>,
    /// What servers make of those who show nothing.
    word: Arc<Word>,
}

/// A user, as his ticket showed.
#[derive(Clone)]
struct Known {
    caller: Caller,
    seen: Seen,
    until: Option<Instant>,
}

impl Users {
    pub fn new(
        volume: Arc<Volume>,
        (world, map): (World, MapCell),
        idmap: Arc<Idmap>,
        tickets: Arc<Tickets>,
    ) -> Self {
        volume.set_credentials(tickets.clone());
        let is_personal = AtomicBool::new(map.current().map.security.is_some());
        let mdt = volume.root().mdt();
        let (known, word) = (Mutex::default(), Word::new(volume.clone(), map.clone()));
        Self { volume, mdt, world, map, idmap, tickets, is_personal, known, word }
    }

    /// For a process that follows another one: see [`Word::was_believed`].
    pub fn was_believed(&self) {
        self.word.was_believed();
    }

    /// Do the servers take this machine's word for its users? `None`: nobody answers.
    pub async fn are_believed(volume: &Volume) -> Option<bool> {
        if volume.map().security.is_none() {
            return Some(true);
        }
        let (mdt, root) = (volume.root().mdt(), Caller::root());
        match tokio::time::timeout(ANSWER_PATIENCE, volume.taken_anywhere(mdt, &root)).await {
            Ok(Ok(told)) => Some(told.is_believed),
            Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => Some(false),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Whose this mount is, if it is one user's: as an identity, and here.
    pub async fn owner(volume: &Volume) -> Option<(Caller, Caller)> {
        if rustix::process::geteuid().is_root() {
            return None;
        }
        let here = crate::shell::own_caller();
        let told = volume.taken_anywhere(volume.root().mdt(), &here).await.ok()?;
        let is_user = told.principal.is_some_and(|name| !name.contains('/'));
        (is_user && !told.is_believed).then_some((told.caller, here))
    }

    /// Must users show tickets? Asked again when the federation map changed, and now and then.
    async fn look_at_rules(&self) -> Result<bool, Unknown> {
        let is_proven = self.map.current().map.security.is_some();
        let is_personal = match is_proven {
            false => false,
            true => match self.word.told(&Caller::root(), RULES_BELIEVED).await {
                Ok(told) => !told.is_believed,
                Err(unknown) if unknown.kind == ErrorKind::PermissionDenied => true,
                Err(unknown) => return Err(unknown),
            },
        };
        self.is_personal.store(is_personal, Ordering::Relaxed);
        Ok(is_personal)
    }

    /// Whoever shows nothing.
    async fn taken_for(&self, stated: &Caller) -> Result<Caller, Unknown> {
        // Some machines are believed about their users, who have identities, too.
        let stated = self.idmap.caller(stated.clone());
        Ok(self.word.told(&stated, BELIEVED).await?.caller)
    }

    async fn by_ticket(&self, process: u32, stated: &Caller) -> Result<Caller, Unknown> {
        let purse = self.tickets.purse(process, stated.uid.0).await;
        let known = lock(&self.known).get(&purse).cloned();
        let is_good = |known: &Known| {
            let is_over = known.until.is_some_and(|until| Instant::now() >= until);
            // Whether a cache that is no file changed, only a server that is shown it again says.
            let is_untold = || matches!(known.seen, Seen::At(_)) && self.volume.is_away(self.mdt);
            !is_over && (purse.is_as(known.seen) || is_untold())
        };
        match known {
            Some(known) if is_good(&known) => return Ok(known.caller),
            _ => drop(lock(&self.known).remove(&purse)),
        }
        if purse.is_gone() {
            return self.taken_for(stated).await;
        }
        let (before, number) = (purse.look(), self.world.random());
        self.tickets.register(number, &purse, stated);
        let told = match self.volume.show(self.mdt, number).await {
            Ok(told) => told,
            Err(_) if self.tickets.is_empty(number) => {
                self.tickets.forget(number);
                return self.taken_for(stated).await;
            }
            Err(error) => {
                tracing::info!(uid = stated.uid.0, %error, "a user's ticket is refused");
                return Err(error.into());
            }
        };
        // The library itself writes new tickets into the cache, beside what was there.
        let after = purse.look();
        let seen = if is_same_file(before, after) { after } else { before };
        let left = told.seconds.map(|left| Duration::from_secs(left.into()).saturating_sub(MARGIN));
        let caller = Caller { proof: Some(number), ..told.caller };
        let until = left.map(|left| Instant::now() + left);
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(purse, Known { caller: caller.clone(), seen, until });
        Ok(caller)
    }
}

fn is_same_file(before: Seen, after: Seen) -> bool {
    match (before, after) {
        (Seen::File(Some(before)), Seen::File(Some(after))) => {
            (before.0, before.1) == (after.0, after.1)
        }
        (Seen::At(_), Seen::At(_)) => true,
        _ => false,
    }
}

#[async_trait::async_trait]
impl People for Users {
    async fn caller(&self, asking: Asking) -> Result<Caller, Unknown> {
        let Asking { process, stated } = asking;
        if !self.look_at_rules().await? {
            return Ok(self.idmap.caller(stated));
        }
        if stated.is_root() {
            return self.taken_for(&stated).await;
        }
        self.by_ticket(process, &stated).await
    }

    fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid) {
        self.idmap.shown(uid, gid)
    }

    fn stored_uid(&self, uid: Uid) -> Option<Uid> {
        self.idmap.stored_uid(uid)
    }

    fn stored_gid(&self, gid: Gid) -> Option<Gid> {
        self.idmap.stored_gid(gid)
    }

    fn are_personal(&self) -> bool {
        self.is_personal.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
