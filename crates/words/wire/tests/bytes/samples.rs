//! A value of every message, with every field set to something that shows.

mod capabilities;
mod chunks;
mod exposed;
mod kept;
mod limits;
mod maps;
mod names;
mod people;
mod tape;
mod trees;

use self::chunks::{adopted_calls, chunk_calls, copy_calls, mirror_calls};
use self::kept::{chores, ledger_calls};
use self::maps::map_calls;
use self::names::{creations, removals};
use crate::golden::Sample;
use std::fmt::Debug;
use std::panic::RefUnwindSafe;
use tieline_types::acl::{AccessList, DefaultList, Named, Who};
use tieline_types::quota::{Grace, Limits, Payer, PayerKind, Share, Used};
use tieline_types::*;
use tieline_wire::capability::{self, Holder};
use tieline_wire::data::{self, ObjectOwner, OstState};
use tieline_wire::federation::{self, MapEdit};
use tieline_wire::identity::{self, IdentityEdit};
use tieline_wire::locks;
use tieline_wire::meta::{self, ExclusiveUnit, ExtentPage, LeaseGrant, PoolChoice};
use tieline_wire::mirrors;
use tieline_wire::notice::Recall;
use tieline_wire::quotas;
use tieline_wire::ranges;
use tieline_wire::{
    BodyError, Call, CredentialKind, Envelope, Failure, Flavor, FrameHeader, FrameKind, Hello,
    Notice, NoticeAnswer, Offer, Op, PeerRole, Refusal, Request, ServerTime, Welcome,
};

pub fn all() -> Vec<Sample> {
    let mut samples: Vec<Sample> = Op::ALL.iter().flat_map(|&op| call(op)).collect();
    samples.extend(FrameKind::ALL.into_iter().map(frame));
    samples.extend(others());
    samples.extend(capabilities::alone());
    samples
}

/// The bytes of all samples of requests, with their calls' numbers.
pub fn requests() -> Vec<(u16, Vec<u8>)> {
    bodies("request-")
}

pub fn replies() -> Vec<(u16, Vec<u8>)> {
    bodies("reply-")
}

fn bodies(prefix: &str) -> Vec<(u16, Vec<u8>)> {
    let of = |op: Op| {
        let samples = call(op).into_iter().filter(|sample| sample.name.starts_with(prefix));
        samples.map(move |sample| (op.number(), sample.bytes))
    };
    Op::ALL.iter().flat_map(|&op| of(op)).collect()
}

fn message<T>(name: &str, value: T) -> Sample
where
    T: minicbor::Encode<()> + for<'b> minicbor::Decode<'b, ()>,
    T: PartialEq + Debug + RefUnwindSafe + 'static,
{
    let bytes = tieline_wire::encode(&value);
    Sample::new(name, value, bytes, |bytes: &[u8]| tieline_wire::decode::<T>(bytes))
}

fn request(variant: &str, request: impl Into<Request>) -> Sample {
    let request = request.into();
    let op = request.op();
    let envelope = Envelope { caller: caller(), answered_below: RequestNumber(1000) };
    let bytes = request.encode(&envelope);
    let decode = move |bytes: &[u8]| Request::decode(op.number(), bytes);
    let name = format!("request-{}{variant}", op.name());
    Sample::new(name, (envelope, request), bytes, decode)
}

/// A request and its reply.
fn pair<C: Call>(call: C, reply: C::Reply) -> Vec<Sample>
where
    C::Reply: PartialEq + Debug + RefUnwindSafe + 'static,
{
    vec![request("", call), reply_of::<C>("", reply)]
}

fn reply_of<C: Call>(variant: &str, reply: C::Reply) -> Sample
where
    C::Reply: PartialEq + Debug + RefUnwindSafe + 'static,
{
    let name = format!("reply-{}{variant}", C::OP.name());
    let bytes = tieline_wire::encode(&reply);
    let decode = |bytes: &[u8]| -> Result<C::Reply, BodyError> {
        C::OP.check_reply(bytes)?;
        tieline_wire::decode(bytes)
    };
    Sample::new(name, reply, bytes, decode)
}

/// No wildcard: a new call does not compile without its samples.
fn call(op: Op) -> Vec<Sample> {
    match op {
        Op::Lookup | Op::LookupParent | Op::ReadDirectory | Op::ReadSymlink => lookups(op),
        Op::GetAttributes | Op::SetAttributes => attribute_calls(op),
        Op::Create | Op::MakeDirectory | Op::MakeSymlink | Op::MakeNode | Op::Link => creations(op),
        Op::Unlink | Op::RemoveDirectory | Op::Rename => removals(op),
        Op::Open | Op::GetExtents | Op::Commit | Op::Place | Op::Release => file_calls(op),
        Op::GetXattr | Op::ListXattrs | Op::SetXattr | Op::RemoveXattr => xattr_calls(op),
        Op::GetLayout | Op::SetLayout => layout_calls(op),
        Op::Usage => pair(meta::Usage {}, usage()),
        Op::ReportPlace | Op::ExtendMirrors | Op::ResyncFile | Op::SplitMirror => mirror_calls(op),
        Op::FetchChunk | Op::VerifyObject => copy_calls(op),
        Op::AskTape | Op::GetTape | Op::GiveUpBytes | Op::DriveTape => tape::calls(op),
        Op::ListDeleted | Op::Undelete | Op::DumpMdt | Op::CheckMdt => ledger_calls(op),
        Op::ListChores => chores(),
        Op::RenewCapabilityKey => {
            pair(capability::RenewCapabilityKey {}, capability::RenewCapabilityKeyReply {})
        }
        Op::ReadTree | Op::ReportBundle | Op::ReadBundle | Op::ReadFiles => trees::calls(op),
        Op::Batch | Op::Reserve => batch_calls(op),
        Op::Lock | Op::TestLock | Op::CancelLock | Op::AssertLocks => lock_calls(op),
        Op::CopyRange | Op::Compact => range_calls(op),
        Op::GetMap | Op::EditMap => map_calls(op),
        Op::Drain => {
            pair(federation::Drain { for_ms: 900_000 }, federation::DrainReply { told: 3 })
        }
        Op::EditIdentities | Op::ListIdentities | Op::Prove => people::calls(op),
        Op::GetCapability | Op::CapabilityNews => capabilities::calls(op),
        Op::GetQuota
        | Op::SetQuota
        | Op::ListQuotas
        | Op::SetProject
        | Op::Promise
        | Op::QuotaShares
        | Op::QuotaNews
        | Op::ReclaimShares => limits::calls(op),
        Op::PutChunk
        | Op::ReadObject
        | Op::SyncFile
        | Op::DeleteChunks
        | Op::OstStatus
        | Op::StatObject
        | Op::Fill
        | Op::ListObjects
        | Op::GrantRoom => chunk_calls(op),
        Op::StageFile | Op::ArrangeExposed | Op::ListExposed => exposed::calls(op),
        Op::RecordSums | Op::ListAdopted | Op::ChecksumAdopted => adopted_calls(op),
    }
}

fn lookups(op: Op) -> Vec<Sample> {
    match op {
        Op::LookupParent => {
            let (parent, others) = (directory(), None);
            let reply = meta::LookupParentReply { parent, name: Some(name("run7")), others };
            let others = Some(vec![meta::NameAt { parent, name: name("run7.old") }]);
            let several = meta::LookupParentReply { others, ..reply.clone() };
            let mut samples = pair(meta::LookupParent { id: file() }, reply);
            samples.push(message("reply-LookupParent-others", several));
            samples
        }
        Op::ReadDirectory => {
            let call = meta::ReadDirectory {
                id: directory(),
                after: Some(name("run6")),
                limit: 4096,
                is_plus: true,
            };
            let plain = meta::DirectoryEntry {
                name: name("run7.root"),
                id: file(),
                kind: FileKind::Regular,
                attributes: Some(attributes()),
                target: None,
            };
            let link = meta::DirectoryEntry {
                name: Name::new(*b"latest\xff").unwrap(),
                id: FileId::new(MdtIndex(1), 9),
                kind: FileKind::Symlink,
                attributes: None,
                target: Some(b"run7.root".to_vec()),
            };
            let entries = vec![plain, link];
            pair(call, meta::ReadDirectoryReply { entries, is_end: true, lease: lease() })
        }
        Op::ReadSymlink => {
            let reply = meta::ReadSymlinkReply { target: b"../run7.root".to_vec() };
            pair(meta::ReadSymlink { id: file() }, reply)
        }
        _ => pair(meta::Lookup { parent: directory(), name: name("run7.root") }, entry()),
    }
}

fn attribute_calls(op: Op) -> Vec<Sample> {
    if op == Op::GetAttributes {
        return pair(meta::GetAttributes { id: file() }, attributes_reply());
    }
    let call = meta::SetAttributes {
        id: file(),
        mode: Some(Mode::new(0o640)),
        uid: Some(Uid(501)),
        gid: Some(Gid(20)),
        size: Some(1 << 40),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Time { seconds: -1, nanos: 999_999_999 })),
        is_handle: true,
        is_access: Some(false),
    };
    pair(call, attributes_reply())
}

fn file_calls(op: Op) -> Vec<Sample> {
    let id = file();
    match op {
        Op::GetExtents => {
            let reply = |page| {
                let (attributes, lease) = (attributes(), lease());
                meta::GetExtentsReply { page, attributes, lease }
            };
            let call = meta::GetExtents { id, offset: 1 << 30, limit: 1024 };
            let published = ExtentPage { extents: published(), covered: 70_000_000 };
            let mut samples = pair(call.clone(), reply(page()));
            let mut of_repository = pair(call, reply(published)).pop().unwrap();
            of_repository.name.push_str("-published");
            samples.push(of_repository);
            samples
        }
        Op::Commit => {
            let call = meta::Commit {
                id,
                extents: extents(),
                size_min: 70_000_000,
                mtime: SetTime::At(time(7)),
                clears_setid: true,
                append_from: None,
                closes: None,
                is_promised: None,
            };
            let append = meta::Commit { append_from: Some(69_999_000), ..call.clone() };
            let last = meta::Commit { closes: Some(true), ..append.clone() };
            let promised = meta::Commit { is_promised: Some(true), ..call.clone() };
            let mut samples = pair(call, attributes_reply());
            samples.push(request("-append", append));
            samples.push(request("-last", last));
            samples.push(request("-promised", promised));
            samples
        }
        Op::Place => {
            let reply = meta::PlaceReply { stripe: vec![OstIndex(3), OstIndex(0x1234)] };
            let call = meta::Place { id, exclude: vec![OstIndex(2)], wish: None };
            let wished = meta::Place { wish: Some(vec![OstIndex(4)]), ..call.clone() };
            let mut samples = pair(call, reply);
            samples.push(request("-wish", wished));
            samples
        }
        Op::Release => {
            let reply = meta::ChangeReply { attributes: None, lease: LeaseGrant::default() };
            pair(meta::Release { id }, reply)
        }
        _ => {
            let open = meta::Open { id, is_read: true, is_write: true, writes: None };
            let mut samples = pair(open.clone(), open_reply());
            samples.push(request("-writes", meta::Open { writes: Some(true), ..open }));
            samples
        }
    }
}

fn lock_calls(op: Op) -> Vec<Sample> {
    let id = file();
    let (kind, owner, mode) = (LockKind::Posix, 0xfeed_0123_4567, LockMode::Exclusive);
    let range = LockRange { start: 120, end: 1 << 63 };
    match op {
        Op::TestLock => {
            let found = Some(locks::LockFound { range, mode, owner: Some(owner) });
            let call = locks::TestLock { id, kind, owner, range, mode };
            pair(call, locks::TestLockReply { found })
        }
        Op::CancelLock => {
            let reply = locks::CancelLockReply { was_waiting: true };
            pair(locks::CancelLock { id, ticket: 77 }, reply)
        }
        Op::AssertLocks => {
            let lock = locks::AssertedLock { id, kind: LockKind::Flock, owner, range, mode };
            let call = locks::AssertLocks { locks: vec![lock], is_last: true, heard: None };
            let mut samples = pair(call, locks::AssertLocksReply { lost: vec![0] });
            let (locks, is_last, heard) = (vec![], false, Some(3));
            samples.push(request("-heard", locks::AssertLocks { locks, is_last, heard }));
            samples
        }
        _ => {
            let wait = Some(locks::LockWait { ticket: 77, patience_ms: 5000 });
            let mode = Some(mode);
            let call = locks::Lock { id, kind, owner, range, mode, wait, idles: None };
            let unlock = locks::Lock { mode: None, wait: None, ..call.clone() };
            let reply = locks::LockReply { outcome: locks::LockOutcome::Queued, idles: None };
            let mut samples = pair(call.clone(), reply);
            samples.push(request("-unlock", unlock));
            samples.push(request("-idles", locks::Lock { wait: None, idles: Some(true), ..call }));
            let (outcome, idles) = (locks::LockOutcome::Granted, Some(true));
            samples.push(message("reply-Lock-idles", locks::LockReply { outcome, idles }));
            samples
        }
    }
}

fn range_calls(op: Op) -> Vec<Sample> {
    if op == Op::CopyRange {
        let call = ranges::CopyRange {
            from: file(),
            from_offset: 4096,
            to: directory(),
            to_offset: 1 << 40,
            length: 1 << 30,
            mtime: SetTime::Now,
            clears_setid: true,
        };
        let (attributes, lease) = (attributes(), lease());
        return pair(call, ranges::CopyRangeReply { copied: 1 << 20, attributes, lease });
    }
    let digest = Digest::blake3([0xd1; 32]);
    let chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(2), serial: 3 }.into();
    let seen = |offset, content| ranges::SeenExtent { offset, length: 4096, content };
    let was = vec![
        seen(0, ranges::SeenContent::Inline(digest)),
        seen(4096, ranges::SeenContent::Chunk { chunk, skip: 8192 }),
    ];
    let call = ranges::Compact { id: file(), was, extents: extents() };
    pair(call, ranges::CompactReply { is_done: true })
}

fn xattr_calls(op: Op) -> Vec<Sample> {
    let (id, name) = (file(), XattrName::new(*b"user.checksum").unwrap());
    let value = b"adler32:01234567".to_vec();
    match op {
        Op::GetXattr => pair(meta::GetXattr { id, name }, meta::GetXattrReply { value }),
        Op::ListXattrs => {
            let xattrs = vec![meta::Xattr { name, value }];
            pair(meta::ListXattrs { id }, meta::ListXattrsReply { xattrs, lease: lease() })
        }
        Op::SetXattr => {
            let set = |mode| {
                let (name, value) = (name.clone(), value.clone());
                meta::SetXattr { id, name, value, mode }
            };
            let mut samples = pair(set(XattrMode::Either), attributes_reply());
            samples.push(request("-create", set(XattrMode::Create)));
            samples.push(request("-replace", set(XattrMode::Replace)));
            samples
        }
        _ => pair(meta::RemoveXattr { id, name }, attributes_reply()),
    }
}

fn layout_calls(op: Op) -> Vec<Sample> {
    let id = directory();
    if op == Op::GetLayout {
        let stripe = vec![OstIndex(3)];
        let reply = meta::GetLayoutReply { layout: layout(), is_own: true, stripe };
        return pair(meta::GetLayout { id }, reply);
    }
    let change = meta::LayoutChange {
        stripe_count: Some(StripeCount::All),
        stripe_size: Some(1 << 20),
        pool: Some(PoolChoice::Pool("fnal".parse().unwrap())),
        mirrors: Some(2),
        sync: Some(1),
        inline_limit: Some(0),
        chunk_size: Some(64 << 10),
        mirror_pools: None,
        osts: None,
        moves: None,
    };
    let each = meta::LayoutChange {
        mirrors: Some(2),
        mirror_pools: Some(vec![Some("uf".parse().unwrap()), None]),
        ..Default::default()
    };
    let any = meta::LayoutChange { pool: Some(PoolChoice::Any), ..Default::default() };
    let mut samples = pair(meta::SetLayout { id, layout: Some(change) }, attributes_reply());
    let osts = Some(vec![OstIndex(3), OstIndex(1)]);
    let listed = meta::LayoutChange { osts, ..Default::default() };
    samples.push(request("-osts", meta::SetLayout { id, layout: Some(listed) }));
    let moved = meta::LayoutChange { moves: Some(true), ..Default::default() };
    samples.push(request("-moves", meta::SetLayout { id, layout: Some(moved) }));
    samples.push(request("-any-pool", meta::SetLayout { id, layout: Some(any) }));
    samples.push(request("-mirror-pools", meta::SetLayout { id, layout: Some(each) }));
    samples.push(request("-inherit", meta::SetLayout { id, layout: None }));
    samples
}

/// The header of a frame of each kind, with a body of four bytes.
fn frame(kind: FrameKind) -> Sample {
    let is_reply = kind == FrameKind::Reply;
    let header = FrameHeader {
        flags: if is_reply { FrameHeader::FLAG_FAILED } else { 0 },
        op: if is_reply || kind == FrameKind::Request { 101 } else { 0 },
        body_length: 4,
        bulk_length: 0x0102_0304,
        number: RequestNumber(0x1112_1314_1516_1718),
        deadline_ms: 30_000,
        ..FrameHeader::new(kind)
    };
    let decode = |bytes: &[u8]| {
        let (bytes, body) = bytes.split_first_chunk::<{ FrameHeader::LENGTH }>().unwrap();
        FrameHeader::verify(bytes, body)?;
        FrameHeader::decode(bytes)
    };
    let bytes = [&header.encode(b"body")[..], b"body"].concat();
    Sample::new(format!("frame-{kind:?}"), header, bytes, decode)
}

/// What belongs to no call.
pub fn others() -> Vec<Sample> {
    let hello = Hello {
        version_oldest: 1,
        version_newest: 2,
        role: PeerRole::Client,
        client: ClientId([0xab; 16]),
        session: Some(SessionId(77)),
        fs: "extenci".parse().unwrap(),
        credential: CredentialKind::Kerberos,
        flavor: Flavor::Krb5i,
        features: 1 << 63,
        description: "mount /extenci on wn17 (pid 4711)".into(),
        map: Version(7),
        wait_ms: None,
    };
    let welcome = Welcome {
        version: 1,
        session: SessionId(78),
        is_resumed: true,
        grant: Grant(0xabc),
        boot: 3,
        lease_ms: 20_000,
        flavor: Flavor::Krb5p,
        features: 0,
        server: "mds-uf (MDT0000)".into(),
        map: Version(8),
        holder: Some(Holder([0x40; 16])),
        lost_locks: None,
    };
    let (number, kind, owner) = (3, LockKind::Flock, 0x1234);
    let by = "mount /extenci on wn17 (pid 4711)".into();
    let lost = vec![LostLock { number, id: file(), kind, owner, by }];
    let refusal = Refusal {
        kind: ErrorKind::VersionMismatch,
        detail: "this server speaks version 1".into(),
        version_oldest: 1,
        version_newest: 1,
    };
    let recall = Recall {
        names: vec![name("run7.root"), name("run8.root")],
        files: vec![file()],
        ..Recall::of(directory(), Version(12_345))
    };
    let moved = Recall { files: vec![], moves: Some(true), ..recall.clone() };
    let looked_at = Recall::look(directory(), Version(12_345));
    let beside = Recall { beside: Some(vec![FileId(7), FileId(8)]), ..looked_at.clone() };
    let asked = Recall { asks_open: Some(true), files: vec![file()], ..looked_at.clone() };
    let (open, shared) = (vec![file()], Some(vec![FileId(7)]));
    let answer = NoticeAnswer { is_contended: true, open, shared };
    let unit = ExclusiveUnit {
        attributes: attributes(),
        layout: layout(),
        is_empty: true,
        has_limits: None,
    };
    vec![
        message("lease-exclusive", LeaseGrant { exclusive: Some(vec![unit]), ..lease() }),
        message("notice-recall-asks-open", Notice::Recall(asked)),
        message("notice-recall-shared", Notice::Recall(looked_at)),
        message("notice-recall-beside", Notice::Recall(beside)),
        message("attributes-acls", Attributes { acls: Some(Box::new(acls())), ..attributes() }),
        message("attributes-content", Attributes { content: Some(Version(40)), ..attributes() }),
        message("hello-wait", Hello { wait_ms: Some(900_000), ..hello.clone() }),
        message("hello", hello),
        message("welcome-lost-locks", Welcome { lost_locks: Some(lost), ..welcome.clone() }),
        message("welcome", welcome),
        message("offer", Offer { flavor: Flavor::Krb5p }),
        message("refusal", refusal),
        message("failure", Failure::new(ErrorKind::NotFound, "no `run9.root` in 0x1")),
        message("notice-recall", Notice::Recall(recall)),
        message("notice-recall-moves", Notice::Recall(moved)),
        message("notice-map-changed", Notice::MapChanged(Version(9))),
        message("notice-hold", Notice::Hold(900_000)),
        message("notice-free-locks", Notice::FreeLocks(file())),
        message("pong", ServerTime { now: Time { seconds: 1_785_000_000, nanos: 7 } }),
        message("notice-answer", NoticeAnswer { shared: None, ..answer.clone() }),
        message("notice-answer-shared", answer),
    ]
}

fn caller() -> Caller {
    Caller { uid: Uid(501), gid: Gid(20), groups: vec![Gid(20), Gid(70_000)], proof: None }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn directory() -> FileId {
    FileId::root_of(MdtIndex(0))
}

fn file() -> FileId {
    FileId::new(MdtIndex(1), 0x1234_5678)
}

fn chunk_id() -> GrantedId {
    GrantedId { mdt: MdtIndex(1), grant: Grant(0xabc), serial: 5 }
}

fn time(nanos: u32) -> Time {
    Time { seconds: 1_700_000_000, nanos }
}

fn lease() -> LeaseGrant {
    LeaseGrant { as_of: Version(12_345), units: vec![directory(), file()], exclusive: None }
}

fn attributes() -> Attributes {
    Attributes {
        id: file(),
        kind: FileKind::Regular,
        mode: Mode::new(0o4755),
        links: 2,
        uid: Uid(501),
        gid: Gid(20),
        size: 70_000_000,
        stored: 69_000_000,
        device: 0,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        btime: Time { seconds: -1, nanos: 4 },
        version: Version(12_344),
        has_xattrs: Some(true),
        acls: None,
        project: None,
        is_written: None,
        content: None,
        tape: None,
    }
}

/// Both access lists, with a user and a group in each.
fn acls() -> Acls {
    let named = vec![
        Named { who: Who::User(Uid(501)), rights: 6 },
        Named { who: Who::Group(Gid(20)), rights: 5 },
    ];
    let default = DefaultList { owner: 7, group: 5, other: 0, mask: Some(7), named: named.clone() };
    Acls { access: Some(AccessList { group: 4, named }), default: Some(default) }
}

fn attributes_reply() -> meta::AttributesReply {
    meta::AttributesReply { attributes: attributes(), lease: lease() }
}

fn entry() -> meta::EntryReply {
    meta::EntryReply {
        attributes: Some(attributes()),
        junction: Some(MdtIndex(2)),
        lease: lease(),
        target: Some(b"run7.root".to_vec()),
    }
}

fn layout() -> Layout {
    Layout {
        stripe_count: StripeCount::Exactly(4),
        stripe_size: 1 << 20,
        pool: Some("uf".parse().unwrap()),
        mirrors: 2,
        sync: 1,
        inline_limit: 4096,
        chunk_size: 256 << 10,
        mirror_pools: None,
    }
}

fn open_reply() -> meta::OpenReply {
    meta::OpenReply {
        has_limits: None,
        attributes: attributes(),
        layout: layout(),
        stripe: vec![OstIndex(3), OstIndex(4)],
        extents: page(),
        lease: lease(),
        capability: Some(capabilities::grant()),
    }
}

fn page() -> ExtentPage {
    ExtentPage { extents: extents(), covered: 70_000_000 }
}

fn external() -> ObjectName {
    ObjectName::External { path: "store/run7.root".into(), size: 1 << 33, mtime_ns: -1 }
}

/// What a repository has: by content, packed, and in a place of unknown length.
fn published() -> Vec<Extent> {
    let sha1 = Digest::new(Algorithm::Sha1, Encoding::Zlib, &[0xa9; 20]).unwrap();
    let origin = Origin::Repository("sw.example.org".parse().unwrap());
    let place = Place {
        origin,
        object: ObjectName::Key("data/a9/a9a9".into()),
        offset: 0,
        length: None,
        is_stale: false,
        encoding: Some(Encoding::Zlib),
    };
    let (origin, object) = (Origin::Cache("fnal".parse().unwrap()), ObjectName::Key("p1".into()));
    let packed = Place { origin, object, offset: 8192, length: Some(100), ..place.clone() };
    let chunk = ChunkRef {
        chunk: ChunkId::Content(sha1),
        length: 4 << 20,
        skip: 100,
        places: vec![place, packed],
        digest: None,
        adler32: None,
        checks: None,
    };
    vec![Extent { offset: 4096, length: 1 << 20, content: Content::Chunk(chunk) }]
}

/// One of each content.
pub fn extents() -> Vec<Extent> {
    let object = ObjectName::Chunk(chunk_id());
    let own = OstPlace { ost: OstIndex(3), object, offset: 0, length: 4 << 20, is_stale: false };
    let adopted = OstPlace { object: external(), offset: 8192, is_stale: true, ..own.clone() };
    let chunk = ChunkRef {
        chunk: chunk_id().into(),
        length: 4 << 20,
        skip: 100,
        places: vec![own.into(), adopted.into()],
        digest: Some(Digest::blake3([0xd1; 32])),
        adler32: Some(0x0123_4567),
        checks: Some(vec![1, 2, 3]),
    };
    vec![
        Extent { offset: 0, length: 5, content: Content::Inline(b"bytes".to_vec()) },
        Extent { offset: 4096, length: 1 << 20, content: Content::Chunk(chunk) },
        Extent { offset: 1 << 30, length: 4096, content: Content::Hole },
    ]
}

fn owner() -> ObjectOwner {
    let path = b"data/run7.root".to_vec();
    ObjectOwner { file: file(), offset: 4 << 20, version: Version(12_344), path }
}

fn ost_state() -> OstState {
    OstState {
        ost: OstIndex(3),
        bytes_total: 1 << 50,
        bytes_free: 1 << 49,
        objects_total: 1 << 32,
        objects_free: 1 << 31,
        trouble: Some("the disk is read-only".into()),
        is_read_only: Some(true),
        realms: Some(vec!["EXTENCI.ORG".into()]),
    }
}

fn batch_calls(op: Op) -> Vec<Sample> {
    if op == Op::Reserve {
        return pair(
            meta::Reserve { count: 8192 },
            meta::ReserveReply { first: 32_768, count: 8192 },
        );
    }
    let unlink = meta::Unlink { parent: directory(), name: name("run6.root"), keep: None };
    let unlink = Request::from(unlink);
    let item = meta::BatchItem {
        caller: caller(),
        at: time(5),
        id: file(),
        op: unlink.op().number(),
        message: unlink.encode_message(),
    };
    let done =
        meta::BatchOutcome { version: Some(Version(12_345)), stored: Some(4096), failure: None };
    let failure = Failure::new(ErrorKind::NotFound, "no name `run6.root` in directory 0x1");
    let failed = meta::BatchOutcome { failure: Some(failure), ..meta::BatchOutcome::default() };
    let reply = meta::BatchReply { outcomes: vec![done, failed], lease: lease() };
    pair(meta::Batch { items: vec![item] }, reply)
}

fn usage() -> meta::UsageReply {
    let ost = meta::OstUsage {
        ost: OstIndex(3),
        site: "fnal".parse().unwrap(),
        is_active: true,
        state: Some(ost_state()),
        heard: Some(time(5)),
    };
    meta::UsageReply { osts: vec![ost], inodes: 180_000 }
}
