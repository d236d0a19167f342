//! Identities of the file system as uids and gids of this machine, and back: by [`tables`], which
//! are made anew when identities or names change.
//!
//! What is not mapped is shown as 2^31 and its number: nobody's, the same on every machine, and
//! understood when it comes back (chown, tar). Root and nobody are themselves everywhere.
//!
//! Invariant: no number is shown as that of somebody else who is mapped.

use crate::judges::table_of;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tables::Tables;
use tieline_identities::IdentityTable;
use tieline_servers::Servers;
use tieline_types::identity::NOBODY;
use tieline_types::{Caller, Gid, Uid};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

mod tables;

pub use tables::FileError;

/// Whoever is missed is looked for so often, but for so much in advance: an archive is full of
/// owners whom nobody knows.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOKS_AHEAD: Duration = Duration::from_secs(20);
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked for identities that are new.
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// So many times, and this machine's names or the file are looked at again, too.
const LOOKS: u32 = 8;
/// How long a door that begins waits for the identities, and one that goes on.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_AGAIN: Duration = Duration::from_secs(3);

/// How owners are to be shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Means {
    /// `names` where the servers want tickets of users, else `same`.
    #[default]
    Auto,
    /// The numbers are the same.
    Same,
    /// An identity is the user, or the group, of its name on this machine (nsswitch).
    Names,
    /// As a file says it: see [`tables`].
    File(PathBuf),
}

impl Means {
    pub fn parse(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "same" => Self::Same,
            "names" => Self::Names,
            path => Self::File(path.into()),
        }
    }

    /// As it is parsed.
    pub fn text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Same => "same".to_owned(),
            Self::Names => "names".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Why nobody can be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no MDS tells the identities")]
    Silent,
    #[error(transparent)]
    Servers(#[from] tieline_servers::Error),
    #[error(transparent)]
    File(#[from] FileError),
}

/// See the module.
pub struct Idmap {
    tables: RwLock<Arc<Tables>>,
    /// Of the identities that were heard of last; 0 before.
    version: AtomicU64,
    /// Somebody is missed.
    missed: Notify,
    /// A look for news is over.
    looked: watch::Sender<()>,
    /// When the next look for somebody is due.
    due: Mutex<Instant>,
}

/// Notes a look when it is over.
struct Over<'i>(&'i watch::Sender<()>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.send_replace(());
    }
}

impl Idmap {
    pub fn same() -> Arc<Self> {
        Arc::new(Self::of(Tables { is_same: true, ..Tables::default() }))
    }

    fn of(tables: Tables) -> Self {
        Self {
            tables: RwLock::new(Arc::new(tables)),
            version: AtomicU64::new(0),
            missed: Notify::new(),
            looked: watch::Sender::new(()),
            due: Mutex::new(Instant::now()),
        }
    }

    /// Reads what the source says, and goes on doing so while the servers are asked.
    ///
    /// `own` is the identity of a door that is one user's, and he himself here. A door that is
    /// not new begins with no identities if nobody tells them.
    pub async fn start(
        source: Means,
        servers: &Arc<Servers>,
        own: Option<(Caller, Caller)>,
        is_new: bool,
    ) -> Result<Arc<Self>, Error> {
        if source == Means::Same {
            let same = Self::same();
            same.clone().follow(servers, (Means::Same, None), IdentityTable::default(), None);
            return Ok(same);
        }
        let patience = if is_new { PATIENCE } else { PATIENCE_AGAIN };
        let told = timeout(patience, table_of(servers, None)).await;
        let table = match told {
            Ok(told) if is_new => told?,
            Err(_) if is_new => return Err(Error::Silent),
            told => told.ok().and_then(|told| told.ok()?),
        };
        let (have, table) =
            (table.as_ref().map(|table| table.version()), table.unwrap_or_default());
        let idmap = Arc::new(Self::of(Tables::read(&source, &table)?.with(own.as_ref())));
        idmap.clone().follow(servers, (source, own), table, have);
        Ok(idmap)
    }

    /// Looks for news while it and whoever asks the servers live.
    fn follow(
        self: Arc<Self>,
        servers: &Arc<Servers>,
        (source, own): (Means, Option<(Caller, Caller)>),
        mut table: IdentityTable,
        mut have: Option<u64>,
    ) {
        self.version.store(have.unwrap_or(0), Ordering::Relaxed);
        let (idmap, servers) = (Arc::downgrade(&self), Arc::downgrade(servers));
        tokio::spawn(async move {
            for look in 1_u32.. {
                let Some(waiting) = idmap.upgrade() else { return };
                let _ = timeout(RENEW_EVERY, waiting.missed.notified()).await;
                drop(waiting);
                let (Some(idmap), Some(servers)) = (idmap.upgrade(), servers.upgrade()) else {
                    return;
                };
                let told = table_of(&servers, have).await;
                // Whoever waits may go on, whatever comes of it.
                let _over = Over(&idmap.looked);
                match told {
                    Ok(Some(newer)) => {
                        have = Some(newer.version());
                        table = newer;
                    }
                    Ok(None) if look % LOOKS != 0 => continue,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "identities cannot be fetched");
                        continue;
                    }
                }
                let (source, names) = (source.clone(), table.clone());
                let read = tokio::task::spawn_blocking(move || Tables::read(&source, &names)).await;
                match read {
                    Ok(Ok(tables)) => idmap.set(tables.with(own.as_ref())),
                    Ok(Err(error)) => tracing::warn!(%error, "idmap: what was there stays"),
                    Err(_) => {}
                }
                idmap.version.store(table.version(), Ordering::Relaxed);
            }
        });
    }

    /// Somebody is not known here: looks whether he is new, unless that was done often of late.
    pub async fn learn(&self) {
        let mut looked = self.looked.subscribe();
        if self.may_look() {
            self.missed.notify_one();
            let _ = timeout(LOOK_PATIENCE, looked.changed()).await;
        }
    }

    fn may_look(&self) -> bool {
        let now = Instant::now();
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = *due <= now + LOOKS_AHEAD;
        if is_due {
            *due = now.max(*due) + LOOK_PAUSE;
        }
        is_due
    }

    /// Changes whenever identities did: who somebody is may be another then.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid) {
        let tables = self.tables();
        if tables.is_same {
            return (uid, gid);
        }
        (Uid(tables.users.show(uid.0)), Gid(tables.groups.show(gid.0)))
    }

    pub fn stored_uid(&self, uid: Uid) -> Option<Uid> {
        let tables = self.tables();
        if tables.is_same { Some(uid) } else { tables.users.store(uid.0).map(Uid) }
    }

    pub fn stored_gid(&self, gid: Gid) -> Option<Gid> {
        let tables = self.tables();
        if tables.is_same { Some(gid) } else { tables.groups.store(gid.0).map(Gid) }
    }

    /// A caller of this machine as an identity.
    pub fn caller(&self, stated: Caller) -> Caller {
        let tables = self.tables();
        if tables.is_same {
            return stated;
        }
        let groups = stated.groups.iter().filter_map(|gid| tables.groups.store(gid.0)).map(Gid);
        Caller {
            uid: Uid(tables.users.store(stated.uid.0).unwrap_or(NOBODY)),
            gid: Gid(tables.groups.store(stated.gid.0).unwrap_or(NOBODY)),
            groups: groups.collect(),
            proof: None,
        }
    }

    fn tables(&self) -> Arc<Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, tables: Tables) {
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tables);
    }
}

#[cfg(test)]
mod tests {
    use super::tables::{by_name, read_line};
    use super::*;
    use tieline_types::identity::IDENTITY_MAX;
    use tieline_types::{Identity, IdentityKind};

    fn table() -> IdentityTable {
        let identity = |kind, number, name: &str| Identity {
            kind,
            number,
            name: name.parse().unwrap(),
            groups: vec![],
            roles: vec![],
        };
        let mut table = IdentityTable::default();
        let identities = vec![
            identity(IdentityKind::User, 5001, "ann"),
            identity(IdentityKind::User, 5002, "daemon"),
            identity(IdentityKind::Group, 6001, "cms"),
        ];
        table.adopt(1, identities, vec![]);
        table
    }

    #[test]
    fn a_file_names_users_as_passwd_and_group_do() {
        let mut tables = Tables::default();
        for line in [
            "ann:x:1501:1500::/home/ann:/bin/sh",
            "stranger:x:1600:1600::/:",
            "cms:x:1700:ann",
            "user 77 1777",
            "range user 100000 100999 200000",
        ] {
            assert!(read_line(line, &table(), &mut tables).is_some(), "{line}");
        }
        for wrong in [
            "user ann",
            "range user 9 1 1",
            "range user 8 9 0",
            "range user 1 9 65530",
            "group cms x",
            "nonsense",
            "a:b:c",
        ] {
            assert!(read_line(wrong, &table(), &mut tables).is_none(), "{wrong}");
        }
        let idmap = Idmap::of(tables);
        assert_eq!(idmap.shown(Uid(5001), Gid(6001)), (Uid(1501), Gid(1700)));
        assert_eq!(idmap.shown(Uid(77), Gid(0)), (Uid(1777), Gid(0)));
        assert_eq!(idmap.shown(Uid(100_007), Gid(NOBODY)), (Uid(200_007), Gid(NOBODY)));
        assert_eq!(idmap.stored_uid(Uid(200_007)), Some(Uid(100_007)));
        assert_eq!(idmap.stored_uid(Uid(1600)), None);
        let groups = vec![Gid(1700), Gid(4)];
        let stated = Caller { uid: Uid(1501), gid: Gid(9), groups, proof: None };
        let caller = idmap.caller(stated);
        assert_eq!(
            (caller.uid, caller.gid, caller.groups),
            (Uid(5001), Gid(NOBODY), vec![Gid(6001)])
        );
    }

    #[test]
    fn who_is_not_mapped_comes_back_as_he_went() {
        let idmap = Idmap::of(Tables::default());
        let (uid, gid) = idmap.shown(Uid(5002), Gid(6001));
        assert_eq!((uid, gid), (Uid(IDENTITY_MAX + 5002), Gid(IDENTITY_MAX + 6001)));
        assert_eq!(idmap.stored_uid(uid), Some(Uid(5002)));
        assert_eq!(idmap.stored_gid(gid), Some(Gid(6001)));
        assert_eq!(Idmap::same().shown(Uid(5002), Gid(7)), (Uid(5002), Gid(7)));
    }

    #[test]
    fn names_are_looked_up_here() {
        let tables = by_name(&table());
        let known = tables.users.show(5002);
        assert!((1..IDENTITY_MAX).contains(&known), "daemon is a user of every machine");
        assert_eq!(tables.groups.show(5002), IDENTITY_MAX + 5002, "and no group's number");
    }
}
