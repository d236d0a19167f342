//! Keys of an MDT's store: one letter for the kind, then big-endian numbers and raw names, so that
//! they sort.
//!
//! | kind | key | value |
//! |---|---|---|
//! | `a` answer | session, request number | [`super::Answer`] |
//! | `b` bundles of what is below | 1, directory | [`super::Bundles`] |
//! | `b` bundle | 2, directory, number | [`super::Bundle`] |
//! | `d` deletion | time of deleting in ms, file | [`super::DeletedAt`] |
//! | `e` entry | directory, name | [`super::Entry`] |
//! | `f` freed chunk | time of freeing in ms, chunk | [`super::Freed`] |
//! | `h` ticket that was shown | session, number of the proof | [`super::Shown`] |
//! | `i` inode | file | [`super::Inode`] |
//! | `k` chunk | chunk | [`super::Chunk`] |
//! | `l` lost name | directory, file, name | [`super::LostName`] |
//! | `m` chunk that lacks copies | 1, chunk | [`super::Lacking`] |
//! | `m` file whose chunks may lack copies | 2, file | [`super::Lacking`] |
//! | `n` | — | [`super::Superblock`] |
//! | `o` orphan | file, session | [`super::Orphan`] |
//! | `p` principal | its text | [`super::MappedTo`] |
//! | `q` change of usage | 1, start, number within it | [`super::UsageChange`] |
//! | `q` usage | 2, kind of payer, id, pool or nothing | [`super::UsageTotal`] |
//! | `q` limits | 3, kind of payer, id, pool or nothing | [`super::QuotaLimits`] |
//! | `q` grace | 4, kind of payer | [`super::QuotaGrace`] |
//! | `q` share | 5, MDT, kind of payer, id, pool or nothing | [`super::QuotaShare`] |
//! | `s` session | session | [`super::Session`] |
//! | `t` extent | file, offset | [`super::StoredExtent`] |
//! | `u` deleted file | directory, file | [`super::Deleted`] |
//! | `v` copy on tape | 1, file | [`super::Archived`] |
//! | `v` wish to archive or restore | 2, file | [`super::Wished`] |
//! | `v` copy on tape to be removed | 3, file, version | [`super::TapeRemoval`] |
//! | `w` table of identities | 0 | [`super::Identities`] |
//! | `w` identity | 1 for a user, 2 for a group; its number | [`super::Identity`] |
//! | `x` xattr | file, name | [`super::XattrValue`] |
//! | `y` file to be looked at, of an exposed pool | 1, pool, file | [`super::ExposeNote`] |
//! | `y` exposed file or directory | 2, pool, file | [`super::Exposed`] |
//! | `y` name that is exposed | 3, pool, directory, name | [`super::ExposedEntry`] |
//! | `y` how far a pool's exposure is | 4, pool | [`super::ExposedPool`] |
//! | `y` steps that were last begun there | 5, pool | [`super::ExposeSteps`] |
//!
//! Retired letters: `r` (trails: in which order files of a directory were opened).

use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{
    FileId, Grant, GrantedId, IdentityKind, MdtIndex, Name, PoolName, RequestNumber, SessionId,
    Version, XattrName,
};

/// What is kept of programs, in the second byte of such a key.
const BUNDLES: u8 = 1;
const BUNDLE: u8 = 2;

/// What lacks copies, in the second byte of such a key.
const LACKING_CHUNK: u8 = 1;
const LACKING_FILE: u8 = 2;
/// The same of identities.
const IDENTITY_TABLE: u8 = 0;
const IDENTITY_USER: u8 = 1;
const IDENTITY_GROUP: u8 = 2;

/// What a quota's record says, in the second byte of such a key.
const USAGE_CHANGE: u8 = 1;
const USAGE: u8 = 2;
const LIMITS: u8 = 3;
const GRACE: u8 = 4;
const SHARE: u8 = 5;

/// What is said of an exposed pool, in the second byte of such a key.
const EXPOSE_NOTE: u8 = 1;
const EXPOSED: u8 = 2;
const EXPOSED_ENTRY: u8 = 3;
const EXPOSED_POOL: u8 = 4;
const EXPOSE_STEPS: u8 = 5;

/// What is on tape, in the second byte of such a key.
const TAPE_COPY: u8 = 1;
const TAPE_WISH: u8 = 2;
const TAPE_REMOVAL: u8 = 3;

/// A key's bytes.
pub type Key = Vec<u8>;

/// The only way numbers get into keys: big-endian, so that bytes sort as numbers do.
struct KeyWriter(Key);

impl KeyWriter {
    fn new(kind: u8) -> Self {
        let mut key = Vec::with_capacity(32);
        key.push(kind);
        Self(key)
    }

    fn u16(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn chunk(self, chunk: GrantedId) -> Self {
        self.u16(chunk.mdt.0).u64(chunk.grant.0).u64(chunk.serial)
    }
}

pub fn superblock() -> Key {
    KeyWriter::new(b'n').0
}

pub fn inode(id: FileId) -> Key {
    KeyWriter::new(b'i').u64(id.0).0
}

pub fn entry(directory: FileId, name: &Name) -> Key {
    KeyWriter::new(b'e').u64(directory.0).raw(name.as_bytes()).0
}

/// Precedes every entry of the directory.
pub fn entries(directory: FileId) -> Key {
    KeyWriter::new(b'e').u64(directory.0).0
}

pub fn extent(file: FileId, offset: u64) -> Key {
    KeyWriter::new(b't').u64(file.0).u64(offset).0
}

/// Precedes every extent of the file.
pub fn extents(file: FileId) -> Key {
    KeyWriter::new(b't').u64(file.0).0
}

pub fn chunk(chunk: GrantedId) -> Key {
    KeyWriter::new(b'k').chunk(chunk).0
}

pub fn freed(at_ms: u64, chunk: GrantedId) -> Key {
    KeyWriter::new(b'f').u64(at_ms).chunk(chunk).0
}

/// Precedes every chunk freed at `at_ms` or later.
pub fn freed_from(at_ms: u64) -> Key {
    KeyWriter::new(b'f').u64(at_ms).0
}

/// A chunk with a copy missing.
pub fn lacking_chunk(chunk: GrantedId) -> Key {
    KeyWriter::new(b'm').raw(&[LACKING_CHUNK]).chunk(chunk).0
}

/// Precedes every chunk with a copy missing.
pub fn lacking_chunks() -> Key {
    KeyWriter::new(b'm').raw(&[LACKING_CHUNK]).0
}

/// What holds of all identities.
pub fn identities() -> Key {
    KeyWriter::new(b'w').raw(&[IDENTITY_TABLE]).0
}

/// Precedes every identity.
pub fn identities_each() -> Key {
    KeyWriter::new(b'w').raw(&[IDENTITY_USER]).0
}

pub fn identity(kind: IdentityKind, number: u32) -> Key {
    let kind = match kind {
        IdentityKind::User => IDENTITY_USER,
        IdentityKind::Group => IDENTITY_GROUP,
    };
    KeyWriter::new(b'w').raw(&[kind]).u32(number).0
}

pub fn principal(text: &str) -> Key {
    KeyWriter::new(b'p').raw(text.as_bytes()).0
}

/// Precedes every principal.
pub fn principals() -> Key {
    KeyWriter::new(b'p').0
}

/// A file whose chunks are to be looked through for missing copies.
pub fn lacking_file(file: FileId) -> Key {
    KeyWriter::new(b'm').raw(&[LACKING_FILE]).u64(file.0).0
}

/// Precedes every file that is to be looked through.
pub fn lacking_files() -> Key {
    KeyWriter::new(b'm').raw(&[LACKING_FILE]).0
}

pub fn xattr(file: FileId, name: &XattrName) -> Key {
    KeyWriter::new(b'x').u64(file.0).raw(name.as_bytes()).0
}

/// Precedes every attribute of the file.
pub fn xattrs(file: FileId) -> Key {
    KeyWriter::new(b'x').u64(file.0).0
}

pub fn session(session: SessionId) -> Key {
    KeyWriter::new(b's').u64(session.0).0
}

/// Precedes every session.
pub fn sessions() -> Key {
    KeyWriter::new(b's').0
}

pub fn answer(session: SessionId, number: RequestNumber) -> Key {
    KeyWriter::new(b'a').u64(session.0).u64(number.0).0
}

pub fn shown(session: SessionId, number: u64) -> Key {
    KeyWriter::new(b'h').u64(session.0).u64(number).0
}

pub fn orphan(file: FileId, session: SessionId) -> Key {
    KeyWriter::new(b'o').u64(file.0).u64(session.0).0
}

/// Precedes every session that keeps the nameless file.
pub fn orphans_of(file: FileId) -> Key {
    KeyWriter::new(b'o').u64(file.0).0
}

/// Precedes every orphan.
pub fn orphans() -> Key {
    KeyWriter::new(b'o').0
}

pub fn deleted(directory: FileId, file: FileId) -> Key {
    KeyWriter::new(b'u').u64(directory.0).u64(file.0).0
}

/// Precedes every file that was deleted from the directory.
pub fn deleted_from(directory: FileId) -> Key {
    KeyWriter::new(b'u').u64(directory.0).0
}

/// A name that a file lost while it had others.
pub fn lost_name(directory: FileId, file: FileId, name: &Name) -> Key {
    [&KeyWriter::new(b'l').u64(directory.0).u64(file.0).0[..], name.as_bytes()].concat()
}

/// Precedes every name that was lost in the directory.
pub fn lost_names_in(directory: FileId) -> Key {
    KeyWriter::new(b'l').u64(directory.0).0
}

/// Precedes every lost name.
pub fn lost_names() -> Key {
    KeyWriter::new(b'l').0
}

pub fn deletion(at_ms: u64, file: FileId) -> Key {
    KeyWriter::new(b'd').u64(at_ms).u64(file.0).0
}

/// Precedes every deletion at `at_ms` or later.
pub fn deletions_from(at_ms: u64) -> Key {
    KeyWriter::new(b'd').u64(at_ms).0
}

/// Which programs were in the tree below a directory.
pub fn bundles(root: FileId) -> Key {
    KeyWriter::new(b'b').raw(&[BUNDLES]).u64(root.0).0
}

/// What one of them opened.
pub fn bundle(root: FileId, number: u32) -> Key {
    KeyWriter::new(b'b').raw(&[BUNDLE]).u64(root.0).u32(number).0
}

/// What tape has of a file.
pub fn tape_copy(file: FileId) -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_COPY]).u64(file.0).0
}

/// Precedes every copy on tape.
pub fn tape_copies() -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_COPY]).0
}

/// A file that is to be archived or restored.
pub fn tape_wish(file: FileId) -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_WISH]).u64(file.0).0
}

/// Precedes every such wish.
pub fn tape_wishes() -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_WISH]).0
}

/// What tape has of a file as it was at a version, and nobody needs.
pub fn tape_removal(file: FileId, content: Version) -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_REMOVAL]).u64(file.0).u64(content.0).0
}

/// Precedes all that is to be removed from tape.
pub fn tape_removals() -> Key {
    KeyWriter::new(b'v').raw(&[TAPE_REMOVAL]).0
}

/// The file in the key of a copy, a wish or a removal.
pub fn tape_file(key: &[u8]) -> Option<FileId> {
    number(key, 2).map(FileId)
}

/// What the `number`th change since start `boot` did to usage.
pub fn usage_change(boot: u64, number: u64) -> Key {
    KeyWriter::new(b'q').raw(&[USAGE_CHANGE]).u64(boot).u64(number).0
}

/// Precedes every change of usage.
pub fn usage_changes() -> Key {
    KeyWriter::new(b'q').raw(&[USAGE_CHANGE]).0
}

fn payer_key(what: u8, payer: &Payer) -> Key {
    let pool = payer.pool.as_ref().map_or("", |pool| pool.as_str());
    let key = KeyWriter::new(b'q').raw(&[what, payer.kind.number()]);
    key.raw(&payer.id.to_be_bytes()).raw(pool.as_bytes()).0
}

pub fn usage(payer: &Payer) -> Key {
    payer_key(USAGE, payer)
}

/// Precedes all that is used.
pub fn usages() -> Key {
    KeyWriter::new(b'q').raw(&[USAGE]).0
}

pub fn limits(payer: &Payer) -> Key {
    payer_key(LIMITS, payer)
}

/// Precedes all limits.
pub fn all_limits() -> Key {
    KeyWriter::new(b'q').raw(&[LIMITS]).0
}

pub fn grace(kind: PayerKind) -> Key {
    KeyWriter::new(b'q').raw(&[GRACE, kind.number()]).0
}

/// What an MDT may use of a payer's limits.
pub fn share(mdt: MdtIndex, payer: &Payer) -> Key {
    let key = KeyWriter::new(b'q').raw(&[SHARE]).u16(mdt.0);
    let pool = payer.pool.as_ref().map_or("", |pool| pool.as_str());
    key.raw(&[payer.kind.number()]).u32(payer.id).raw(pool.as_bytes()).0
}

/// Precedes all shares.
pub fn shares() -> Key {
    KeyWriter::new(b'q').raw(&[SHARE]).0
}

/// Whose share it is, and in whose limits.
pub fn share_parts(key: &[u8]) -> Option<(MdtIndex, Payer)> {
    let mdt = u16::from_be_bytes(*key.get(2..)?.first_chunk()?);
    Some((MdtIndex(mdt), payer_at(key, 4)?))
}

/// The payer in a key of usage or limits.
pub fn payer(key: &[u8]) -> Option<Payer> {
    payer_at(key, 2)
}

fn payer_at(key: &[u8], at: usize) -> Option<Payer> {
    let kind = PayerKind::from_number(*key.get(at)?)?;
    let id = u32::from_be_bytes(*key.get(at + 1..)?.first_chunk()?);
    let pool = match key.get(at + 5..)? {
        [] => None,
        name => Some(std::str::from_utf8(name).ok()?.parse().ok()?),
    };
    Some(Payer { kind, id, pool })
}

fn of_pool(what: u8, pool: &PoolName) -> KeyWriter {
    // No name of a pool has a zero byte: none precedes the keys of another.
    KeyWriter::new(b'y').raw(&[what]).raw(pool.as_str().as_bytes()).raw(&[0])
}

/// A file of an exposed pool that was changed.
pub fn expose_note(pool: &PoolName, file: FileId) -> Key {
    of_pool(EXPOSE_NOTE, pool).u64(file.0).0
}

/// Precedes all files of the pool that were changed.
pub fn expose_notes(pool: &PoolName) -> Key {
    of_pool(EXPOSE_NOTE, pool).0
}

/// A file or directory that lies where the pool is exposed.
pub fn exposed(pool: &PoolName, file: FileId) -> Key {
    of_pool(EXPOSED, pool).u64(file.0).0
}

/// Precedes all that lies where the pool is exposed.
pub fn exposed_all(pool: &PoolName) -> Key {
    of_pool(EXPOSED, pool).0
}

/// What has a name there.
pub fn exposed_entry(pool: &PoolName, directory: FileId, name: &Name) -> Key {
    of_pool(EXPOSED_ENTRY, pool).u64(directory.0).raw(name.as_bytes()).0
}

/// Precedes all names in a directory there.
pub fn exposed_entries_of(pool: &PoolName, directory: FileId) -> Key {
    of_pool(EXPOSED_ENTRY, pool).u64(directory.0).0
}

/// Precedes all names there.
pub fn exposed_entries(pool: &PoolName) -> Key {
    of_pool(EXPOSED_ENTRY, pool).0
}

/// How far the pool's exposure is.
pub fn exposed_pool(pool: &PoolName) -> Key {
    of_pool(EXPOSED_POOL, pool).0
}

/// Precedes what is said of how far exposures are.
pub fn exposed_pools() -> Key {
    KeyWriter::new(b'y').raw(&[EXPOSED_POOL]).0
}

/// The steps that were last begun where the pool is exposed.
pub fn expose_steps(pool: &PoolName) -> Key {
    of_pool(EXPOSE_STEPS, pool).0
}

/// The pool in such a key.
pub fn exposed_pool_name(key: &[u8]) -> Option<PoolName> {
    let name = key.get(2..)?.split(|&byte| byte == 0).next()?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// The file at the end of a key of a note, or of what is exposed.
pub fn exposed_file(key: &[u8]) -> Option<FileId> {
    number(key, key.len().checked_sub(8)?).map(FileId)
}

/// Precedes all keys of a kind.
pub fn kind(letter: u8) -> Key {
    KeyWriter::new(letter).0
}

/// The first key after all that start with `prefix`.
pub fn after(prefix: &[u8]) -> Key {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // Only 0xff bytes: no kind starts so.
    vec![0xff; prefix.len() + 1]
}

/// The name in an entry's key.
pub fn entry_name(key: &[u8]) -> Option<Name> {
    Name::new(key.get(9..)?).ok()
}

/// The name in an attribute's key.
pub fn xattr_name(key: &[u8]) -> Option<XattrName> {
    XattrName::new(key.get(9..)?).ok()
}

/// The offset in an extent's key.
pub fn extent_offset(key: &[u8]) -> Option<u64> {
    number(key, 9)
}

/// The session in a session's key.
pub fn session_id(key: &[u8]) -> Option<SessionId> {
    number(key, 1).map(SessionId)
}

/// File and session of an orphan's key.
pub fn orphan_parts(key: &[u8]) -> Option<(FileId, SessionId)> {
    Some((FileId(number(key, 1)?), SessionId(number(key, 9)?)))
}

/// Time and chunk of a freed chunk's key.
pub fn freed_parts(key: &[u8]) -> Option<(u64, GrantedId)> {
    Some((number(key, 1)?, chunk_at(key, 9)?))
}

/// The chunk in the key of one that lacks copies.
pub fn lacking_chunk_id(key: &[u8]) -> Option<GrantedId> {
    chunk_at(key, 2)
}

/// The file in the key of one whose chunks may lack copies.
pub fn lacking_file_id(key: &[u8]) -> Option<FileId> {
    number(key, 2).map(FileId)
}

fn chunk_at(key: &[u8], at: usize) -> Option<GrantedId> {
    let mdt = u16::from_be_bytes(*key.get(at..)?.first_chunk()?);
    let (grant, serial) = (number(key, at + 2)?, number(key, at + 10)?);
    Some(GrantedId { mdt: MdtIndex(mdt), grant: Grant(grant), serial })
}

/// The text in a principal's key.
pub fn principal_text(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(1..)?).ok()
}

/// Directory and file of a deleted file's key.
pub fn deleted_parts(key: &[u8]) -> Option<(FileId, FileId)> {
    Some((FileId(number(key, 1)?), FileId(number(key, 9)?)))
}

/// File and name of a lost name's key.
pub fn lost_name_parts(key: &[u8]) -> Option<(FileId, Name)> {
    Some((FileId(number(key, 9)?), Name::new(key.get(17..)?).ok()?))
}

/// Time and file of a deletion's key.
pub fn deletion_parts(key: &[u8]) -> Option<(u64, FileId)> {
    Some((number(key, 1)?, FileId(number(key, 9)?)))
}

/// The file in the key of an inode, an entry (its directory), an extent or an attribute.
pub fn file_id(key: &[u8]) -> Option<FileId> {
    number(key, 1).map(FileId)
}

/// The chunk in a chunk's key.
pub fn chunk_id(key: &[u8]) -> Option<GrantedId> {
    chunk_at(key, 1)
}

fn number(key: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*key.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_meaning_does() {
        let file = FileId(7);
        assert!(extent(file, 255) < extent(file, 256));
        assert!(entries(file) < entry(file, &"a".parse().unwrap()));
        assert!(entry(file, &"zz".parse().unwrap()) < after(&entries(file)));
        assert!(after(&entries(file)) <= entry(FileId(8), &"a".parse().unwrap()));
        assert_eq!(after(&[1, 0xff]), vec![2]);
    }

    #[test]
    fn keys_give_back_their_parts() {
        let shared = GrantedId { mdt: MdtIndex(2), grant: Grant(3), serial: 4 };
        assert_eq!(freed_parts(&freed(99, shared)), Some((99, shared)));
        assert_eq!(lacking_chunk_id(&lacking_chunk(shared)), Some(shared));
        assert_eq!(lacking_file_id(&lacking_file(FileId(7))), Some(FileId(7)));
        assert_eq!(extent_offset(&extent(FileId(1), 4096)), Some(4096));
        let name: Name = "x".parse().unwrap();
        assert_eq!(entry_name(&entry(FileId(1), &name)), Some(name));
        assert_eq!(entry_name(b"e"), None);
        let lost = lost_name(FileId(1), FileId(2), &"x".parse().unwrap());
        assert_eq!(lost_name_parts(&lost), Some((FileId(2), "x".parse().unwrap())));
        assert_eq!(lost_name_parts(&lost[..17]), None);
        let pool = Some("uf".parse().unwrap());
        let whose = Payer { kind: PayerKind::Group, id: 8, pool };
        assert_eq!(payer(&limits(&whose)), Some(whose.clone()));
        assert_eq!(share_parts(&share(MdtIndex(3), &whose)), Some((MdtIndex(3), whose)));
        assert_eq!(share_parts(&shares()), None);
        assert_eq!(tape_file(&tape_removal(FileId(9), Version(4))), Some(FileId(9)));
        assert_eq!(tape_file(&tape_wish(FileId(9))), Some(FileId(9)));
        assert_eq!(chunk_id(&chunk(shared)), Some(shared));
        assert_eq!(deleted_parts(&deleted(FileId(1), FileId(2))), Some((FileId(1), FileId(2))));
        assert_eq!(deletion_parts(&deletion(5, FileId(2))), Some((5, FileId(2))));
        assert_eq!(file_id(&extent(FileId(3), 4)), Some(FileId(3)));
        assert_eq!(orphan_parts(&orphan(FileId(5), SessionId(6))), Some((FileId(5), SessionId(6))));
    }
}
