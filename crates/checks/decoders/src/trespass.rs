//! Two clients of an MDT in memory: what one of them asks, four bytes a call, while the other has a
//! directory that is closed to him.
//!
//! The oracle: nothing that is told him holds what modes keep from him (the bytes, names, targets
//! and attributes there are marked), and the owner, who works there afterwards while the other is
//! silent, hardly waits: who sees a directory from outside is waited for a second once, who holds
//! it for a lease's time.

use std::time::Duration;
use tieline_meta::fixture::{self, Client, House, Manner, ROOT, user};
use tieline_types::{
    FileId, LockKind, LockMode, LockRange, Mode, SetTime, Time, XattrMode, XattrName,
};
use tieline_wire::Request;
use tieline_wire::locks::{AssertLocks, AssertedLock, Lock, TestLock};
use tieline_wire::meta::*;
use tieline_wire::quotas::Promise;
use tieline_wire::ranges::CopyRange;
use tieline_wire::trees::{
    BundleList, FilesPage, Packed, ReadBundle, ReadBundleReply, ReadFiles, ReadFilesReply,
    ReadTree, ReadTreeReply, ReportBundle, TreePage,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// In whatever only the owner may know.
const MARK: &[u8] = b"MARKED";
/// The size of what is only known through attributes.
const SIZE: u64 = 0x4d41_524b_4544;
const OWNER: u32 = 1001;
const OTHER: u32 = 1002;
const ATTRIBUTES: &str = "attributes";
/// Calls of one input.
const CALLS_MAX: usize = 24;
/// Ids that are counted up to.
const IDS: u64 = 16;
/// Of the two calls of the owner: a second for each who sees the directory from outside.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Waits take no time here, and are measured.
pub fn feed(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without a thread");
    }
    if let Some(found) = RUNTIME.with(|runtime| runtime.block_on(play(bytes))) {
        panic!("{found}");
    }
}

/// What somebody learned or held up, if he did.
async fn play(bytes: &[u8]) -> Option<String> {
    let house = House::proven().await;
    let root = house.client().await;
    let owner = house.client().await.by(&user(OWNER, OWNER, &[]));
    let other = house.client().await.by(&user(OTHER, OTHER, &[]));
    let secret = furnish(&root, &owner).await;
    for call in bytes.chunks_exact(4).take(CALLS_MAX) {
        let request = call_of(call)?;
        let op = request.op();
        // What he says himself he may hear again.
        let is_his = learned(&request.encode_message()).is_some();
        let told = match other.request(request.clone()).await {
            Ok(body) => unpacked(op, body),
            Err(failure) => failure.detail.into_bytes(),
        };
        if let Some(what) = learned(&told).filter(|&what| !is_his || what == ATTRIBUTES) {
            return Some(format!("{op:?} told {what}: {request:?}"));
        }
    }
    house.clients.set(other.session, Manner::Ignores);
    let begun = Instant::now();
    let made = owner.call(fixture::create(secret, "new", 0o600)).await;
    let _ = owner.call(fixture::unlink(secret, "MARKED-f")).await;
    match (made, begun.elapsed()) {
        (Err(failure), _) => Some(format!("the owner was kept from working: {failure}")),
        (Ok(_), waited) if waited > WAIT_MAX => Some(format!("the owner waited for {waited:?}")),
        (Ok(_), _) => None,
    }
}

/// What everybody sees, and below it what nobody else shall.
async fn furnish(root: &Client, owner: &Client) -> FileId {
    let mine = |id, mode| SetAttributes { uid: Some(owner.caller.uid), ..fixture::chmod(id, mode) };
    let all = root.mkdir(ROOT, "all").await;
    let secret = root.mkdir(ROOT, "secret").await;
    for (id, mode) in [(all, 0o777), (secret, 0o700)] {
        root.call(mine(id, mode)).await.expect("root may");
    }
    let shown = owner.create(all, "shown").await;
    owner.commit(shown, vec![fixture::inline(0, b"for everybody")]).await;
    // Others may write it, and not read.
    let dropped = owner.create(all, "dropped").await;
    owner.commit(dropped, vec![fixture::inline(0, b"MARKED bytes that others write to")]).await;
    owner.call(fixture::chmod(dropped, 0o622)).await.expect("its owner may");
    let file = owner.create(secret, "MARKED-f").await;
    owner.commit(file, vec![fixture::inline(0, b"MARKED bytes")]).await;
    owner.call(fixture::truncate(file, SIZE)).await.expect("its owner may");
    owner.call(fixture::chmod(file, 0o600)).await.expect("its owner may");
    let (mode, name) = (XattrMode::Either, XattrName::new("user.mark").expect("a name"));
    let xattr = SetXattr { id: file, name, value: b"MARKED value".to_vec(), mode };
    owner.call(xattr).await.expect("its owner may");
    owner.call(fixture::symlink(secret, "MARKED-l", "MARKED-target")).await.expect("its owner may");
    let below = owner.mkdir(secret, "MARKED-d").await;
    let other = owner.create(below, "MARKED-g").await;
    // A program of the owner's was everywhere.
    for top in [ROOT, all, secret] {
        let (directories, files) = (vec![all, secret, below], vec![file, shown, dropped, other]);
        let told = owner.call(ReportBundle { root: top, directories, files }).await;
        assert_eq!(told.map(|reply| reply.number), Ok(Some(0)), "the owner may see it all");
    }
    secret
}

fn learned(told: &[u8]) -> Option<&'static str> {
    let holds = |mark: &[u8]| told.windows(mark.len()).any(|part| part == mark);
    match (holds(MARK), holds(&SIZE.to_be_bytes())) {
        (_, true) => Some(ATTRIBUTES),
        (true, _) => Some("what is marked"),
        _ => None,
    }
}

/// A reply's bytes, with what is packed in it.
fn unpacked(op: tieline_wire::Op, body: Vec<u8>) -> Vec<u8> {
    let page = match op {
        tieline_wire::Op::ReadTree => tieline_wire::decode::<ReadTreeReply>(&body)
            .ok()
            .and_then(|reply| opened::<TreePage>(&reply.page)),
        tieline_wire::Op::ReadFiles => tieline_wire::decode::<ReadFilesReply>(&body)
            .ok()
            .and_then(|reply| opened::<FilesPage>(&reply.page)),
        tieline_wire::Op::ReadBundle => tieline_wire::decode::<ReadBundleReply>(&body)
            .ok()
            .and_then(|reply| opened::<BundleList>(&reply.list)),
        _ => None,
    };
    [body, page.unwrap_or_default()].concat()
}

fn opened<T>(page: &Packed) -> Option<Vec<u8>>
where
    T: for<'b> minicbor::Decode<'b, ()> + minicbor::Encode<()>,
{
    page.open::<T>().ok().map(|page| tieline_wire::encode(&page))
}

/// The call that four bytes stand for.
fn call_of(call: &[u8]) -> Option<Request> {
    let &[kind, first, second, flags] = call else { return None };
    let id = FileId(1 + u64::from(first) % IDS);
    let to = FileId(1 + u64::from(second) % IDS);
    let there = ["secret", "MARKED-f", "MARKED-d", "MARKED-l", "shown", "dropped", "new", "x"];
    let there = there[usize::from(second) % there.len()];
    // He makes none that look like another's.
    let text = ["shown", "new", "x", "secret"][usize::from(second) % 4];
    let bit = |at: u8| flags >> at & 1 == 1;
    let range = LockRange { start: 0, end: 10 };
    let (kind_of, owner, mode) = (LockKind::Posix, 1, LockMode::Exclusive);
    let xattr = || XattrName::new("user.mark").expect("a name");
    Some(match kind % 29 {
        0 => Lookup { parent: id, name: fixture::name(there) }.into(),
        1 => LookupParent { id }.into(),
        2 => GetAttributes { id }.into(),
        3 => ReadDirectory { id, after: None, limit: 100, is_plus: bit(0) }.into(),
        4 => ReadSymlink { id }.into(),
        5 => {
            let writes = bit(2).then_some(true);
            Open { id, is_read: bit(0), is_write: bit(1), writes }.into()
        }
        6 => GetExtents { id, offset: 0, limit: 10 }.into(),
        7 => GetXattr { id, name: xattr() }.into(),
        8 => ListXattrs { id }.into(),
        9 => GetLayout { id }.into(),
        10 => Lock { id, kind: kind_of, owner, range, mode: Some(mode), wait: None, idles: None }
            .into(),
        11 => TestLock { id, kind: kind_of, owner, range, mode }.into(),
        12 => {
            let one = AssertedLock { id, kind: kind_of, owner, range, mode };
            AssertLocks { locks: vec![one], is_last: bit(0), heard: None }.into()
        }
        13 => ReadTree {
            roots: vec![id],
            depth: 3,
            entries: 100,
            bytes: 1 << 20,
            contents_max: 1 << 50,
            after: None,
            holder: None,
        }
        .into(),
        14 => {
            let ids = (1..=IDS).map(FileId).collect();
            ReadFiles { ids, bytes: 1 << 20, contents_max: 1 << 50, holder: None }.into()
        }
        15 => fixture::link(id, to, "linked").into(),
        16 => fixture::rename((id, there), (to, "renamed")).into(),
        17 => fixture::unlink(id, there).into(),
        18 => Create { is_exclusive: bit(0), ..fixture::create(id, text, 0o644) }.into(),
        19 => fixture::mkdir(id, text, 0o755).into(),
        20 => {
            let time = Some(SetTime::At(Time { seconds: 5, nanos: 0 }));
            SetAttributes {
                is_handle: bit(0),
                is_access: bit(1).then_some(true),
                atime: time,
                mode: bit(2).then_some(Mode::new(0o777)),
                size: bit(3).then_some(5),
                ..fixture::setattr(id)
            }
            .into()
        }
        21 => fixture::commit(id, vec![fixture::inline(0, b"other")]).into(),
        22 => Place { id, exclude: vec![], wish: None }.into(),
        23 => Promise { id, wanted: 1 << 20, needed: 1, payers: None }.into(),
        24 => Release { id }.into(),
        25 => CopyRange {
            from: id,
            from_offset: 0,
            to,
            to_offset: 0,
            length: 100,
            mtime: SetTime::Now,
            clears_setid: bit(0),
        }
        .into(),
        26 => ReadBundle { root: id, number: 0 }.into(),
        27 => {
            let all: Vec<FileId> = (1..=IDS).map(FileId).collect();
            ReportBundle { root: id, directories: all.clone(), files: all }.into()
        }
        _ => RemoveXattr { id, name: xattr() }.into(),
    })
}

/// Each call once, and what a walk begins with.
pub fn samples() -> Vec<Vec<u8>> {
    let ids = 0..IDS as u8;
    let every = (0..29).flat_map(|kind| ids.clone().map(move |id| vec![kind, id, 1, 0b11]));
    every.collect()
}
