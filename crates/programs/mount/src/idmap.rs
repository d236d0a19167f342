//! Identities of the file system as uids and gids of this machine, and back (`-o idmap=`).
//!
//! * `same`: the numbers are the same.
//! * `names`: an identity is the user, or the group, of its name on this machine (nsswitch).
//! * a file: lines of passwd(5) and group(5), whose names are identities; `user NAME UID`, `group
//!   NAME GID` (a number may stand for the name); `range user FIRST LAST LOCAL`, `range group …`.
//!
//! What is not mapped is shown as 2^31 and its number: nobody's, the same on every machine, and
//! understood when it comes back (chown, tar). Root and nobody are themselves everywhere.
//!
//! Invariant: no number is shown as that of somebody else who is mapped.

use anyhow::bail;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tieline_base::report::Usage;
use tieline_client::Volume;
use tieline_identities::{IdentityTable, Pages, Step};
use tieline_types::identity::{IDENTITY_MAX, NOBODY};
use tieline_types::{Caller, Gid, Identity, IdentityKind, Uid};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Whoever is missed is looked for so often, but for so much in advance: an archive is full of
/// owners whom nobody knows.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOKS_AHEAD: Duration = Duration::from_secs(20);
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// How often a mount asks for identities that are new.
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// So many times, and this machine's names or the file are looked at again, too.
const LOOKS: u32 = 8;
/// How long a mount that begins waits for the identities, and one whose daemon is another.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_AGAIN: Duration = Duration::from_secs(3);
/// Names that are looked up at this machine; a larger table wants a file.
const NAMES_MAX: usize = 20_000;
/// Room for an entry of the user database.
const ENTRY: usize = 64 << 10;

/// What `-o idmap=` says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Means {
    /// `names` where the servers want tickets of users, else `same`.
    #[default]
    Auto,
    Same,
    Names,
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

/// Numbers to uids or gids, and back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Pairs {
    shown: BTreeMap<u32, u32>,
    stored: BTreeMap<u32, u32>,
    /// First and last number, and the first here.
    ranges: Vec<(u32, u32, u32)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Tables {
    /// Numbers are the same.
    is_same: bool,
    users: Pairs,
    groups: Pairs,
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

impl Pairs {
    fn add(&mut self, number: u32, local: u32) {
        // The first that is named is whom a local id means; a second is shown as he is, too.
        self.shown.entry(number).or_insert(local);
        self.stored.entry(local).or_insert(number);
    }

    /// Whatever was said of either.
    fn set(&mut self, number: u32, local: u32) {
        if number != 0 && number != NOBODY && local != 0 {
            self.shown.retain(|_, known| *known != local);
            self.shown.insert(number, local);
            self.stored.insert(local, number);
        }
    }

    fn show(&self, number: u32) -> u32 {
        if number == 0 || number == NOBODY || number >= IDENTITY_MAX {
            return number;
        }
        if let Some(&local) = self.shown.get(&number) {
            return local;
        }
        let within = |range: &&(u32, u32, u32)| (range.0..=range.1).contains(&number);
        match self.ranges.iter().find(within) {
            Some((first, _, local)) => local + (number - first),
            None => IDENTITY_MAX + number,
        }
    }

    fn store(&self, local: u32) -> Option<u32> {
        if local == 0 || local == NOBODY {
            return Some(local);
        }
        if let Some(&number) = self.stored.get(&local) {
            return Some(number);
        }
        if local >= IDENTITY_MAX {
            return Some(local - IDENTITY_MAX);
        }
        let within =
            |range: &&(u32, u32, u32)| (range.2..=range.2 + (range.1 - range.0)).contains(&local);
        let range = self.ranges.iter().find(within)?;
        Some(range.0 + (local - range.2))
    }
}

impl Tables {
    fn with(mut self, own: Option<&(Caller, Caller)>) -> Self {
        if let Some((identity, here)) = own {
            self.users.set(identity.uid.0, here.uid.0);
            self.groups.set(identity.gid.0, here.gid.0);
        }
        self
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

    /// Reads what the source says, and goes on doing so while the volume lives.
    ///
    /// `own` is the identity of a mount that is one user's, and he himself here. A mount that is
    /// not new begins with no identities if nobody tells them.
    pub async fn start(
        source: Means,
        volume: &Arc<Volume>,
        own: Option<(Caller, Caller)>,
        is_new: bool,
    ) -> anyhow::Result<Arc<Self>> {
        if source == Means::Same {
            let same = Self::same();
            same.clone().follow(volume, (Means::Same, None), IdentityTable::default(), None);
            return Ok(same);
        }
        let patience = if is_new { PATIENCE } else { PATIENCE_AGAIN };
        let told = timeout(patience, table_of(volume, None)).await;
        let table = match told {
            Ok(told) if is_new => told?,
            Err(_) if is_new => bail!("no MDS tells the identities"),
            told => told.ok().and_then(|told| told.ok()?),
        };
        let (have, table) =
            (table.as_ref().map(|table| table.version()), table.unwrap_or_default());
        let idmap = Arc::new(Self::of(tables(&source, &table)?.with(own.as_ref())));
        idmap.clone().follow(volume, (source, own), table, have);
        Ok(idmap)
    }

    /// Looks for news while it and the volume live.
    fn follow(
        self: Arc<Self>,
        volume: &Arc<Volume>,
        (source, own): (Means, Option<(Caller, Caller)>),
        mut table: IdentityTable,
        mut have: Option<u64>,
    ) {
        self.version.store(have.unwrap_or(0), Ordering::Relaxed);
        let (idmap, volume) = (Arc::downgrade(&self), Arc::downgrade(volume));
        tokio::spawn(async move {
            for look in 1_u32.. {
                let Some(waiting) = idmap.upgrade() else { return };
                let _ = timeout(RENEW_EVERY, waiting.missed.notified()).await;
                drop(waiting);
                let (Some(idmap), Some(volume)) = (idmap.upgrade(), volume.upgrade()) else {
                    return;
                };
                let told = table_of(&volume, have).await;
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
                let read = tokio::task::spawn_blocking(move || tables(&source, &names)).await;
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

/// The table of identities, if it is newer than `have`.
pub async fn table_of(volume: &Volume, have: Option<u64>) -> anyhow::Result<Option<IdentityTable>> {
    let mut pages = Pages::newer_than(have);
    loop {
        let wanted = pages.wanted();
        match pages.take(volume.identities(wanted.have, wanted.from).await?) {
            Step::More(more) => pages = more,
            Step::Same => return Ok(None),
            Step::Whole(table) => return Ok(Some(table)),
        }
    }
}

fn tables(source: &Means, table: &IdentityTable) -> anyhow::Result<Tables> {
    match source {
        Means::Same => Ok(Tables { is_same: true, ..Tables::default() }),
        Means::File(path) => read(path, table),
        Means::Auto | Means::Names => Ok(by_name(table)),
    }
}

fn by_name(table: &IdentityTable) -> Tables {
    let mut tables = Tables::default();
    for identity in table.identities().take(NAMES_MAX) {
        let Identity { kind, number, name, .. } = identity;
        let Ok(name) = CString::new(name.as_str()) else { continue };
        match kind {
            IdentityKind::User => {
                if let Some(uid) = uid_of(&name).filter(is_somebody) {
                    tables.users.add(*number, uid);
                }
            }
            IdentityKind::Group => {
                if let Some(gid) = gid_of(&name).filter(is_somebody) {
                    tables.groups.add(*number, gid);
                }
            }
        }
    }
    tables
}

fn read(path: &Path, table: &IdentityTable) -> anyhow::Result<Tables> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Usage(format!("idmap={}: {error}", path.display())))?;
    let mut tables = Tables::default();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if read_line(text, table, &mut tables).is_none() {
            let shown = path.display();
            return Err(Usage(format!("idmap={shown}, line {line}: `{text}` means nothing")).into());
        }
    }
    Ok(tables)
}

/// Names that the file system does not know are passed over: the file may be a machine's own.
fn read_line(text: &str, table: &IdentityTable, tables: &mut Tables) -> Option<()> {
    use IdentityKind::{Group, User};
    let fields: Vec<&str> = text.split(':').collect();
    let (kind, name, local) = match fields.as_slice() {
        [name, _, uid, _, _, _, _] => (User, *name, *uid),
        [name, _, gid, _] => (Group, *name, *gid),
        _ => {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words.as_slice() {
                ["user", name, uid] => (User, *name, *uid),
                ["group", name, gid] => (Group, *name, *gid),
                ["range", kind @ ("user" | "group"), first, last, local] => {
                    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                    let local: u32 = local.parse().ok()?;
                    let is_fine = first <= last && last < IDENTITY_MAX && local < IDENTITY_MAX;
                    let end = local.checked_add(last.checked_sub(first)?).filter(|_| is_fine)?;
                    // Root and nobody are nobody else.
                    (local > 0 && !(local..=end).contains(&NOBODY)).then_some(())?;
                    let pairs =
                        if *kind == "user" { &mut tables.users } else { &mut tables.groups };
                    pairs.ranges.push((first, last, local));
                    return Some(());
                }
                _ => return None,
            }
        }
    };
    let local: u32 = local.parse().ok()?;
    let named = name.parse().ok().and_then(|name| table.named(kind, &name));
    let number = named.map(|identity| identity.number).or_else(|| name.parse().ok());
    let is_meant = |number: &u32| *number != 0 && is_somebody(&local);
    let Some(number) = number.filter(is_meant) else { return Some(()) };
    let pairs = if kind == User { &mut tables.users } else { &mut tables.groups };
    pairs.add(number, local);
    Some(())
}

/// Root and nobody are themselves, whatever identity has their name.
fn is_somebody(local: &u32) -> bool {
    *local != 0 && *local != NOBODY
}

fn uid_of(name: &CString) -> Option<u32> {
    // SAFETY: a `passwd` of zeroes is one of null pointers and of ids 0.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let (mut room, mut found) = (vec![0; ENTRY], std::ptr::null_mut());
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.pw_uid)
}

fn gid_of(name: &CString) -> Option<u32> {
    // SAFETY: a `group` of zeroes is one of null pointers and of id 0.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let (mut room, mut found) = (vec![0; ENTRY], std::ptr::null_mut());
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let known = tables.users.shown.get(&5002);
        assert!(known.is_some_and(|&uid| uid > 0), "daemon is a user of every machine");
        assert!(!tables.groups.shown.contains_key(&5002));
    }
}
