//! What outlives a client's process, and how the next one goes on with it.
//!
//! Whatever a program was promised and no server knows yet is put down as a record before the
//! program hears of it, and taken away when a server has it: operations decided here, bytes that
//! were written ([`crate::writes`]), open files and directories, files without names, locks, the
//! sessions with MDSs and the requests under way in them. The process that follows reads all of it
//! ([`Left`]), sends what was under way again under its numbers, and then everything else. Only
//! then does its door serve requests, those first that were not answered: by
//! their numbers it finds what was done for them ([`crate::cause`]).
//!
//! Records are in the words of the wire, so that another version of the program reads them.
//!
//! Invariants: a record is there before its effect is told, and goes after what takes its place is
//! there; what is found is believed only as far as it can be read.

use crate::cause;
use crate::lock;
use crate::spool::{Piece, Place};
use crate::writes::{self, Cut, Laid, LeftWrite, Space};
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tieline_keep::{Keep, Kept, Kind, Record};
use tieline_net::{Held, Unanswered};
use tieline_types::{
    Caller, ClientId, FileId, HandleId, LockKind, LockMode, LockRange, LockWish, Name,
};
use tieline_wire::Op;
use tieline_wire::meta::BatchItem;

const CLIENT: Kind = Kind(1);
const SESSION: Kind = Kind(2);
pub const CALL: Kind = Kind(3);
const HANDLE: Kind = Kind(4);
const ORPHAN: Kind = Kind(5);
pub(crate) const ACT: Kind = Kind(6);
const MARK: Kind = Kind(7);
pub(crate) const WRITE: Kind = Kind(8);
const CUT: Kind = Kind(9);
const LOCKS: Kind = Kind(10);
const WISH: Kind = Kind(11);
const LOST: Kind = Kind(12);

/// Stands for a write where calls of MDSs have their numbers.
pub const MARK_WRITE: u16 = 0;

/// A session with an MDS.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptSession {
    #[n(0)]
    pub addresses: Vec<String>,
    #[n(1)]
    pub session: u64,
    #[n(2)]
    pub boot: u64,
}

/// An open file or directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptHandle {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub caller: Caller,
    #[n(2)]
    pub access: u8,
    #[n(3)]
    pub is_directory: bool,
    /// The request that opened it.
    #[n(4)]
    pub cause: u64,
}

/// An operation that was decided here.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptAct {
    #[n(0)]
    pub item: BatchItem,
    #[n(1)]
    pub files: Vec<FileId>,
    #[n(2)]
    pub names: Vec<(FileId, Name)>,
    #[n(3)]
    pub rights: Option<FileId>,
    #[n(4)]
    pub version: u64,
    #[n(5)]
    pub cause: u64,
    /// Written bytes that are in it.
    #[n(6)]
    pub cuts: Vec<Cut>,
}

/// [`KeptAct`], put down.
#[derive(Encode)]
pub(crate) struct ActToKeep<'a> {
    #[n(0)]
    pub item: &'a BatchItem,
    #[n(1)]
    pub files: &'a [FileId],
    #[n(2)]
    pub names: &'a [(FileId, Name)],
    #[n(3)]
    pub rights: Option<FileId>,
    #[n(4)]
    pub version: u64,
    #[n(5)]
    pub cause: u64,
    #[n(6)]
    pub cuts: &'a [Cut],
}

/// Something was carried out, and its record is gone.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
struct Mark {
    #[n(0)]
    op: u16,
    #[n(1)]
    id: FileId,
}

/// Stands beside a request under way.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Note {
    /// The request of the door, or 0.
    #[n(0)]
    pub cause: u64,
    /// Written bytes that are not needed any more once it is carried out.
    #[n(1)]
    pub cuts: Vec<Cut>,
}

/// A lock of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptLock {
    #[n(0)]
    pub kind: LockKind,
    #[n(1)]
    pub owner: u64,
    #[n(2)]
    pub range: LockRange,
    #[n(3)]
    pub mode: LockMode,
    #[n(4)]
    pub process: u32,
    /// No program holds it, but the server has it as held.
    #[n(5)]
    pub is_idle: Option<bool>,
    /// Through which a `fcntl` lock was asked for.
    #[n(6)]
    pub handle: Option<u64>,
}

impl KeptLock {
    pub fn wish(&self) -> LockWish {
        let Self { kind, owner, range, mode, process, .. } = *self;
        LockWish { kind, owner, range, mode, process }
    }

    pub fn of(wish: &LockWish) -> Self {
        let LockWish { kind, owner, range, mode, process } = *wish;
        Self { kind, owner, range, mode, process, is_idle: None, handle: None }
    }
}

/// A lock that was asked for, and is perhaps held at the server alone.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptWish {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub lock: KeptLock,
}

pub(crate) fn put<T: Encode<()>>(keep: &Keep, kind: Kind, key: u64, what: &T) -> Option<Kept> {
    if !keep.is_on() {
        return None;
    }
    let kept = keep.put(kind, key, &[&tieline_wire::encode(what)]);
    if kept.is_none() {
        tracing::warn!(kind = kind.0, "no room to keep what would outlive this process");
    }
    kept
}

pub fn put_mark(keep: &Keep, cause: u64, op: u16, id: FileId) -> Option<Kept> {
    put(keep, MARK, cause, &Mark { op, id })
}

/// Written bytes are not needed any more.
pub fn put_cut(keep: &Keep, cut: &Cut) -> Option<Kept> {
    put(keep, CUT, cut.file.0, cut)
}

pub fn put_client(keep: &Keep, client: ClientId) -> Option<Kept> {
    keep.put(CLIENT, 0, &[&client.0])
}

pub fn put_session(keep: &Keep, server: u64, session: &KeptSession) -> Option<Kept> {
    put(keep, SESSION, server, session)
}

pub fn put_orphan(keep: &Keep, id: FileId) -> Option<Kept> {
    keep.put(ORPHAN, id.0, &[])
}

pub fn put_locks(keep: &Keep, id: FileId, locks: &Vec<KeptLock>) -> Option<Kept> {
    put(keep, LOCKS, id.0, locks)
}

/// Nothing is read and written through a handle any more.
pub fn put_lost(keep: &Keep, handle: u64, why: &str) -> Option<Kept> {
    put(keep, LOST, handle, &why)
}

pub fn put_wish(keep: &Keep, id: FileId, wish: &KeptWish) -> Option<Kept> {
    put(keep, WISH, id.0, wish)
}

pub fn put_handle(keep: &Keep, handle: u64, what: impl FnOnce() -> KeptHandle) -> Option<Kept> {
    keep.is_on().then(|| put(keep, HANDLE, handle, &what())).flatten()
}

/// The request that is being served, or 0.
pub fn cause_number() -> u64 {
    cause::current().map_or(0, |cause| cause.number)
}

tokio::task_local! {
    static NOTING: Arc<Noting>;
}

/// A request of this client's own, whose record goes when its outcome is taken care of.
#[derive(Default)]
pub struct Noting {
    pub cuts: Vec<Cut>,
    held: Mutex<Vec<Held>>,
}

impl Noting {
    pub fn of(cuts: Vec<Cut>) -> Arc<Self> {
        Arc::new(Self { cuts, held: Mutex::default() })
    }

    pub async fn within<F: Future>(self: &Arc<Self>, work: F) -> F::Output {
        NOTING.scope(self.clone(), work).await
    }
}

/// What is to be put down beside the request that is sent now. Cuts belong to the commit: whatever
/// else is asked on its way, as for serials, says nothing of the bytes.
pub fn note(op: Op) -> Vec<u8> {
    let cuts = NOTING.try_with(|noting| match op {
        Op::Commit => noting.cuts.clone(),
        _ => Vec::new(),
    });
    let note = match cuts {
        Ok(cuts) => Note { cause: 0, cuts },
        Err(_) => Note { cause: cause_number(), cuts: Vec::new() },
    };
    tieline_wire::encode(&note)
}

pub fn is_noting() -> bool {
    NOTING.try_with(|_| ()).is_ok()
}

/// Keeps the record of a request that was answered as long as it is of use.
pub fn hold(held: Held) {
    let mut left = Some(held);
    let noted = NOTING.try_with(|noting| {
        lock(&noting.held).extend(left.take());
    });
    if noted.is_err()
        && let Some(cause) = cause::current()
        && let Some(held) = left
    {
        cause.hold(held);
    }
}

/// What an earlier process left.
#[derive(Default)]
pub struct Left {
    pub client: Option<(ClientId, Kept)>,
    /// By the server's name in records.
    pub sessions: BTreeMap<u64, (KeptSession, Kept)>,
    pub calls: Vec<Unanswered>,
    pub handles: Vec<(HandleId, KeptHandle, Kept)>,
    /// Handles that are lost, and why.
    pub lost: Vec<(HandleId, String, Kept)>,
    pub orphans: Vec<(FileId, Kept)>,
    pub acts: Vec<(KeptAct, Kept)>,
    /// By cause.
    pub marks: Vec<(u64, u16, FileId, Kept)>,
    pub writes: BTreeMap<FileId, LeftWrites>,
    pub locks: BTreeMap<FileId, (Vec<KeptLock>, Kept)>,
    pub wishes: Vec<(FileId, KeptWish, Kept)>,
    /// Files of which something is not gone on with: it crashed whoever tried.
    pub aside: Vec<(FileId, Vec<u8>)>,
}

/// What was written to one file.
#[derive(Default)]
pub struct LeftWrites {
    pub writes: Vec<LeftWrite>,
    pub cuts: Vec<(Cut, Option<Kept>)>,
}

impl LeftWrites {
    /// What the file held of them.
    pub fn pieces(&self) -> Vec<Piece> {
        let piece = |Laid { space, start, bytes }| match space {
            Space::Placed => Piece { place: Place::At(start), bytes },
            Space::Appended => Piece { place: Place::Appended, bytes },
        };
        writes::lay(self).into_iter().map(piece).collect()
    }
}

impl Left {
    /// Reads what was found, oldest first.
    pub fn read(records: Vec<Record>) -> Self {
        let mut left = Self::default();
        for record in records {
            let (kind, key) = (record.kind, record.key);
            if record.is_aside {
                left.set_aside(record);
                continue;
            }
            let _in_hand = record.kept.in_hand();
            if left.add(record).is_none() {
                tracing::warn!(kind = kind.0, key, "what an earlier process left cannot be read");
            }
        }
        left
    }

    /// Its bytes stay where they are, for whoever looks into the fault.
    fn set_aside(&mut self, record: Record) {
        let (kind, key, length) = (record.kind, record.key, record.bytes().len());
        tracing::error!(
            kind = kind.0,
            key,
            length,
            "the mount's daemon crashed on a record again and again: it is set aside, and what it \
             stood for is lost"
        );
        if [WRITE, CUT, ACT].contains(&kind) {
            self.aside.push((FileId(key), record.bytes()));
        }
        std::mem::forget(record.kept);
    }

    fn add(&mut self, record: Record) -> Option<()> {
        let (key, id) = (record.key, FileId(record.key));
        let bytes = record.bytes();
        match record.kind {
            CLIENT => self.client = Some((ClientId(bytes.try_into().ok()?), record.kept)),
            // Of two records the later one counts.
            SESSION => drop(self.sessions.insert(key, (read(&bytes)?, record.kept))),
            CALL => self.calls.push(Unanswered::read(record)?),
            HANDLE => self.handles.push((HandleId(key), read(&bytes)?, record.kept)),
            LOST => self.lost.push((HandleId(key), read(&bytes)?, record.kept)),
            ORPHAN => self.orphans.push((id, record.kept)),
            ACT => self.acts.push((read(&bytes)?, record.kept)),
            MARK => {
                let Mark { op, id } = read(&bytes)?;
                self.marks.push((key, op, id, record.kept));
            }
            WRITE => {
                let write = LeftWrite::read(bytes, record.kept)?;
                self.writes.entry(id).or_default().writes.push(write);
            }
            CUT => {
                let cut = read(&bytes)?;
                self.writes.entry(id).or_default().cuts.push((cut, Some(record.kept)));
            }
            LOCKS => drop(self.locks.insert(id, (read(&bytes)?, record.kept))),
            WISH => self.wishes.push((id, read(&bytes)?, record.kept)),
            _ => return None,
        }
        Some(())
    }
}

pub fn read<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Option<T> {
    tieline_wire::decode(bytes).ok()
}

/// Numbers that only this process gives out: none before it had a larger generation.
pub fn first_number(keep: &Keep) -> u64 {
    keep.generation() << 32
}

/// A server in records.
pub fn server_name(addresses: &[String]) -> u64 {
    let digest = blake3::hash(addresses.join(" ").as_bytes());
    digest.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation is written by one structure and read by another.
    #[test]
    fn what_is_put_down_of_an_operation_is_read_again() {
        let (id, at) = (FileId(7), tieline_types::Time { seconds: 5, nanos: 6 });
        let (op, message) = (Op::Unlink.number(), b"message".to_vec());
        let item = BatchItem { caller: Caller::root(), at, id, op, message };
        let (files, names) = ([id, FileId(8)], [(FileId(8), "f".parse().unwrap())]);
        let cuts = [Cut { file: id, space: Space::Appended, start: 1, end: 2, upto: 3 }];
        let (rights, version, cause) = (Some(FileId(9)), 10, 11);
        let (item, files, names, cuts) = (&item, &files[..], &names[..], &cuts[..]);
        let put = ActToKeep { item, files, names, rights, version, cause, cuts };
        let found: KeptAct = read(&tieline_wire::encode(&put)).unwrap();
        let (item, files, names) = (item.clone(), files.to_vec(), names.to_vec());
        let cuts = cuts.to_vec();
        assert_eq!(found, KeptAct { item, files, names, rights, version, cause, cuts });
    }

    /// A reservation that was under way when its process died took the bytes of the commit along
    /// that it was asked for.
    #[tokio::test]
    async fn cuts_stand_beside_their_commit_alone() {
        let (file, space) = (FileId(7), Space::Placed);
        let cut = Cut { file, space, start: 0, end: 10, upto: 1 };
        let noting = Noting::of(vec![cut]);
        let noted = |op| noting.within(async move { read::<Note>(&note(op)).unwrap().cuts });
        assert_eq!(noted(Op::Commit).await, [cut]);
        assert!(noted(Op::Reserve).await.is_empty());
        assert!(noted(Op::Batch).await.is_empty());
    }
}
