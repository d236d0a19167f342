//! A value of every record, with every field set to something that shows; every shape of key; an
//! object's tail.

use crate::golden::Sample;
use std::fmt::Debug;
use std::panic::RefUnwindSafe;
use tieline_format::ledger::{self, Frame, FrameStart, LedgerError};
use tieline_format::map::{self, FederationMap, Junction, Mdt, Ost, Pool, Security, SignedMap};
use tieline_format::mdt::{self, StoredContent, key};
use tieline_format::object::{ObjectError, ObjectFooter, ObjectTrailer};
use tieline_format::{Record, RecordError};
use tieline_types::acl::{AccessList, DefaultList, Named, Who};
use tieline_types::quota::{Grace, Limits, Payer, PayerKind, Share, Used};
use tieline_types::tape::WishFailure;
use tieline_types::tree::Tree;
use tieline_types::*;

pub fn all() -> Vec<Sample> {
    let mut samples = records();
    samples.extend(keys());
    samples.extend([object(), object_with_tree()]);
    samples.extend(frames());
    samples
}

/// A frame of each kind.
pub fn frames() -> Vec<Sample> {
    let head = ledger::Head {
        fs: "extenci".parse().unwrap(),
        mdt: MdtIndex(1),
        kind: ledger::HeadKind::Segment,
        sequence: 12,
        after: Version(1 << 20),
        version: Version(1 << 21),
        time: time(3),
        features: 0,
    };
    let put = ledger::Write { key: key::inode(file()), value: Some(vec![1, 0, 0x80]) };
    let delete = ledger::Write { key: key::superblock(), value: None };
    let group = ledger::Group {
        after: Version(1 << 21),
        version: Version((1 << 21) + 3),
        writes: vec![put.clone(), delete],
    };
    let frames = [
        ("head", Frame::Head(head)),
        ("pairs", Frame::Pairs(vec![put])),
        ("group", Frame::Group(group)),
        ("end", Frame::End(ledger::End { frames: 4, pairs: 17, sum: 0xffff_fff0 })),
    ];
    let sample = |(name, frame): (&str, Frame)| {
        let bytes = frame.to_bytes();
        Sample::new(format!("frame-{name}-v1"), frame, bytes, decode_frame)
    };
    frames.into_iter().map(sample).collect()
}

/// Reads one frame that fills `bytes`.
pub fn decode_frame(bytes: &[u8]) -> Result<Frame, LedgerError> {
    let (start, cbor) = bytes.split_first_chunk().ok_or(LedgerError::NoStream)?;
    FrameStart::decode(*start)?.frame(cbor)
}

/// A record's sample; one record may have several, told apart by `variant`.
fn record<R>(variant: &str, value: R) -> Sample
where
    R: Record + PartialEq + Debug + RefUnwindSafe + 'static,
{
    let name = format!("{}-v{}{variant}", R::NAME.replace(' ', "-"), R::VERSION);
    let bytes = value.to_bytes();
    Sample::new(name, value, bytes, |bytes: &[u8]| R::from_bytes(bytes))
}

/// Decodes `bytes` as each kind of record.
pub fn decode_all(bytes: &[u8]) -> Vec<Result<(), RecordError>> {
    fn decode<R: Record + PartialEq + Debug>(bytes: &[u8]) -> Result<(), RecordError> {
        let record = R::from_bytes(bytes)?;
        // What decodes survives being written again.
        assert_eq!(R::from_bytes(&record.to_bytes()).unwrap(), record);
        Ok(())
    }
    vec![
        decode::<mdt::Superblock>(bytes),
        decode::<mdt::Inode>(bytes),
        decode::<mdt::Entry>(bytes),
        decode::<mdt::StoredExtent>(bytes),
        decode::<mdt::Chunk>(bytes),
        decode::<mdt::Freed>(bytes),
        decode::<mdt::Archived>(bytes),
        decode::<mdt::Wished>(bytes),
        decode::<mdt::TapeRemoval>(bytes),
        decode::<mdt::XattrValue>(bytes),
        decode::<mdt::ExposeNote>(bytes),
        decode::<mdt::Exposed>(bytes),
        decode::<mdt::ExposedEntry>(bytes),
        decode::<mdt::ExposedPool>(bytes),
        decode::<mdt::ExposeSteps>(bytes),
        decode::<mdt::Session>(bytes),
        decode::<mdt::Shown>(bytes),
        decode::<mdt::Answer>(bytes),
        decode::<mdt::Orphan>(bytes),
        decode::<mdt::Deleted>(bytes),
        decode::<mdt::DeletedAt>(bytes),
        decode::<mdt::LostName>(bytes),
        decode::<mdt::Identities>(bytes),
        decode::<mdt::Identity>(bytes),
        decode::<mdt::MappedTo>(bytes),
        decode::<FederationMap>(bytes),
        decode::<SignedMap>(bytes),
    ]
}

pub fn records() -> Vec<Sample> {
    let mut samples = vec![record("", superblock()), record("", inode())];
    let inode_content = mdt::Inode { content: Some(Version(12_300)), ..inode() };
    samples.push(record("-content", inode_content));
    let of_tape = mdt::OfTape { content: Version(12_300), released: Some(4 << 20) };
    samples.push(record("-tape", mdt::Inode { tape: Some(of_tape), ..inode() }));
    samples.extend(tape_records());
    let inode_acls = mdt::Inode { acls: Some(Box::new(acls())), ..inode() };
    samples.push(record("-acls", inode_acls));
    let restored = mdt::Superblock { restored: Some(time(5)), ..superblock() };
    samples.push(record("-restored", restored));
    samples.extend(quota_records());
    samples.push(record("", mdt::Entry { id: file(), kind: FileKind::Symlink }));
    samples.extend(extents());
    samples.push(record("", chunk()));
    let places = vec![place(), adopted()];
    let freed = mdt::Freed { length: 4 << 20, places, file: file(), is_split: None };
    samples.push(record("-split", mdt::Freed { is_split: Some(true), ..freed.clone() }));
    samples.push(record("", freed));
    samples.extend(exposed_records());
    let lacking = mdt::Lacking { since: time(3), file: file(), next: 1 << 30 };
    samples.push(record("", lacking));
    samples.push(record("", mdt::XattrValue { value: b"adler32:01234567".to_vec() }));
    let session = mdt::Session {
        client: ClientId([0xab; 16]),
        grant: Grant(0xabc),
        description: "mount /extenci on wn17 (pid 4711)".into(),
        opened: time(1),
        runs: None,
        wait_ms: None,
        losses: None,
        party: None,
    };
    let party = Some("host/wn17.extenci.org@EXTENCI.ORG".to_owned());
    samples.push(record("-party", mdt::Session { party, ..session.clone() }));
    let (number, kind, owner) = (3, LockKind::Flock, 0x1234);
    let unheard = vec![LostLock { number, id: file(), kind, owner, by: "mount on wn18".into() }];
    let losses = Some(mdt::Losses { last: 3, unheard });
    samples.push(record("-losses", mdt::Session { losses, ..session.clone() }));
    let wait_ms = Some(900_000);
    samples.push(record("-wait", mdt::Session { wait_ms, ..session.clone() }));
    let runs = Some(vec![mdt::SerialRun { first: 32_768, count: 8192 }]);
    samples.push(record("-runs", mdt::Session { runs, ..session.clone() }));
    samples.push(record("", session));
    let shown = mdt::Shown {
        principal: "ann@EXTENCI.ORG".into(),
        at: time(6),
        until: Some(time(7)),
        delegated: None,
    };
    samples.push(record("", shown.clone()));
    let ticket = mdt::DelegatedBy::Ticket { service: "xrootd/xrd.uf.example@EXTENCI.ORG".into() };
    let token = mdt::DelegatedBy::Token {
        issuer: "https://iam.example/".into(),
        subject: "6f1e".into(),
        holder: TokenHolder::Group("/cms".into()),
    };
    for (variant, by) in [
        ("-delegated-own", mdt::DelegatedBy::Own),
        ("-delegated", ticket),
        ("-delegated-word", mdt::DelegatedBy::Word),
        ("-delegated-token", token),
    ] {
        let principal = shown.principal.clone();
        let delegated = Some(mdt::Delegated { principal, by, scope: Some(scope()) });
        let shown = mdt::Shown { principal: String::new(), delegated, ..shown.clone() };
        samples.push(record(variant, shown));
    }
    let answer = mdt::Answer { op: 6, is_failure: true, body: vec![0x82, 2, 0x60] };
    samples.push(record("", answer));
    samples
        .push(record("", mdt::Orphan { since: time(2), name: None, by: None, is_linkable: None }));
    let name = mdt::NameOf { parent: directory(), name: "run7.root".parse().unwrap() };
    let (since, is_linkable) = (time(2), Some(true));
    let named = mdt::Orphan { since, name: Some(name), by: Some(Uid(501)), is_linkable };
    samples.push(record("-named", named));
    let deleted = mdt::Deleted {
        inode: inode(),
        name: "run7.root".parse().unwrap(),
        at: time(4),
        by: Uid(501),
    };
    samples.push(record("", deleted));
    samples.push(record("", mdt::DeletedAt { parent: directory() }));
    let lost = mdt::LostName {
        at: time(4),
        by: Uid(501),
        kind: FileKind::Regular,
        mode: Mode::new(0o640),
        uid: Uid(501),
        gid: Gid(20),
        size: 1 << 40,
        mtime: time(3),
    };
    samples.push(record("", lost));
    samples.push(record("", mdt::Identities { version: 9, ..mdt::Identities::default() }));
    let gone = mdt::Identities { version: 9, last_user: Some(100_007), last_group: Some(100_002) };
    samples.push(record("-gone", gone));
    let ann = mdt::Identity {
        kind: IdentityKind::User,
        number: 5001,
        name: "ann".parse().unwrap(),
        groups: vec![6001, 6002],
        roles: vec![Role::FsAdmin, Role::SiteAdmin("uf".parse().unwrap())],
    };
    let group = mdt::Identity {
        kind: IdentityKind::Group,
        number: 6001,
        name: "cms".parse().unwrap(),
        groups: vec![],
        roles: vec![],
    };
    samples.extend([record("", ann), record("-group", group)]);
    samples.push(record("", mdt::MappedTo::User(5001)));
    samples.push(record("-named", mdt::MappedTo::Named("uf-*".into())));
    samples.push(record("-nobody", mdt::MappedTo::Nobody));
    let map = federation_map();
    let repository = map::Repository {
        name: "sw.example.org".parse().unwrap(),
        mdt: MdtIndex(2),
        sources: vec!["https://stratum1.uf.example/sw".into(), "file:///srv/sw".into()],
        catalog: map::Catalog::Frozen(Digest::blake3([0xd1; 32])),
    };
    let with_repository =
        FederationMap { repositories: Some(vec![repository.clone()]), ..federation_map() };
    samples.push(record("-repository", with_repository));
    let keys = vec![map::PublicKey(vec![0x30, 0x82, 0x01, 0x22].into())];
    let signed = map::Repository { catalog: map::Catalog::Signed(keys), ..repository };
    let with_signed = FederationMap { repositories: Some(vec![signed]), ..federation_map() };
    samples.push(record("-repository-signed", with_signed));
    let signed = SignedMap { map: map.to_bytes(), signature: [0x5e; 64], handovers: None };
    let handover = map::Handover { from: [0xf1; 32], to: [0x70; 32], signature: [0x5f; 64] };
    let handovers = Some(vec![handover]);
    samples.push(record("-handed-over", SignedMap { handovers, ..signed.clone() }));
    let security = Security {
        realm: "EXTENCI.ORG".into(),
        flavors: FlavorRules(vec![
            FlavorRule::parse("extenci.srpc.flavor.default.cli2mdt=krb5p").unwrap().1,
            FlavorRule::parse("extenci.srpc.flavor.2001:db8::/32=krb5i").unwrap().1,
        ]),
        services: vec![map::Service {
            address: "mds.uf.example:7380".into(),
            principal: "host/mds.uf.example@UFL.EDU".into(),
        }],
        machines: None,
        strangers: None,
        doors: None,
        issuers: None,
    };
    let machine = map::Machine {
        principal: "host/wn17.uf.example@UFL.EDU".into(),
        trust: MachineTrust::Root,
    };
    let (machines, strangers) = (Some(vec![machine]), Some(Strangers::Squash));
    let ruled = Security { machines, strangers, ..security.clone() };
    let ruled = FederationMap { security: Some(ruled), ..map.clone() };
    samples.push(record("-machines", ruled));
    let door = Door {
        principal: "tieline_door/xrd.uf.example@EXTENCI.ORG".into(),
        services: vec!["xrootd/xrd.uf.example@EXTENCI.ORG".into()],
        vouches_for: vec![
            Vouched::Everybody,
            Vouched::User("ann".parse().unwrap()),
            Vouched::Group("cms".parse().unwrap()),
        ],
        scope: Some(scope()),
        seconds_max: Some(1800),
    };
    let open = Security { doors: Some(vec![door]), ..security.clone() };
    let open = FederationMap { security: Some(open), ..map.clone() };
    samples.push(record("-doors", open));
    let with_issuer = Security { issuers: Some(vec![issuer()]), ..security.clone() };
    let with_issuer = FederationMap { security: Some(with_issuer), ..map.clone() };
    samples.push(record("-issuers", with_issuer));
    let proven = FederationMap { security: Some(security), ..map.clone() };
    samples.extend([record("", map), record("-security", proven), record("", signed)]);
    samples
}

fn issuer() -> Issuer {
    let (modulus, exponent) = ([&[0xc1][..], &[0x5a; 255]].concat(), vec![1, 0, 1]);
    let point = PublicKey::P256([&[4][..], &[0xd1; 64]].concat());
    Issuer {
        url: "https://iam.example/".into(),
        audiences: vec!["https://door.uf.example".into()],
        keys: vec![
            IssuerKey { id: Some("rsa1".into()), key: PublicKey::Rsa { modulus, exponent } },
            IssuerKey { id: None, key: point },
        ],
        base: vec!["cms".parse().unwrap()],
        users: vec!["sub:6f1e=ann@EXTENCI.ORG".parse().unwrap()],
    }
}

fn scope() -> Scope {
    let allowed = ["read:/data", "create:/data/new", "modify:/scratch/ann"];
    Scope::new(allowed.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
}

fn superblock() -> mdt::Superblock {
    mdt::Superblock {
        fs: "extenci".parse().unwrap(),
        mdt: MdtIndex(1),
        file_serial: 70_000,
        session_serial: 80,
        features: 0,
        boot: 3,
        version_serial: 1 << 20,
        inodes: 180_000,
        restored: None,
    }
}

fn inode() -> mdt::Inode {
    let layout = Layout {
        stripe_count: StripeCount::Exactly(4),
        stripe_size: 1 << 20,
        pool: Some("uf".parse().unwrap()),
        mirrors: 2,
        sync: 1,
        inline_limit: 4096,
        chunk_size: 256 << 10,
        mirror_pools: None,
    };
    let name_of = |name: &str| mdt::NameOf { parent: directory(), name: name.parse().unwrap() };
    mdt::Inode {
        kind: FileKind::Regular,
        mode: Mode::new(0o4755),
        uid: Uid(501),
        gid: Gid(20),
        links: 2,
        size: 70_000_000,
        stored: 69_000_000,
        device: 0x0103,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        btime: Time { seconds: -1, nanos: 4 },
        version: Version(12_344),
        names: vec![name_of("run7.root"), name_of("copy.root")],
        layout: Some(layout),
        stripe: vec![OstIndex(3), OstIndex(0x1234)],
        target: Some(b"../run7.root".to_vec()),
        entries: 17,
        project: 5,
        xattrs: Some(2),
        acls: None,
        is_uncounted: None,
        content: None,
        tape: None,
    }
}

fn payer() -> Payer {
    Payer { kind: PayerKind::Project, id: 7, pool: Some("uf".parse().unwrap()) }
}

fn quota_records() -> Vec<Sample> {
    let changes = vec![mdt::PayerChange { payer: payer(), bytes: -4096, inodes: 1 }];
    let limits =
        Limits { bytes_soft: 4 << 30, bytes_hard: 6 << 30, inodes_soft: 9, inodes_hard: 10 };
    let (bytes_over, inodes_over) = (Some(time(3)), None);
    let grace = Grace { bytes_seconds: 604_800, inodes_seconds: 3600 };
    let (is_default, is_free) = (None, None);
    let (share, used) = (Share { bytes: 8 << 20, inodes: 9 }, Used { bytes: 1 << 20, inodes: 3 });
    let own = Some(share);
    let quota =
        mdt::QuotaLimits { limits, bytes_over, inodes_over, share: own, is_default, is_free };
    let at = Time { seconds: 1_800_000_000, nanos: 5 };
    let head = mdt::BundleHead { number: 3, by: Uid(1001), used: at, signs: vec![FileId(4711)] };
    let member = mdt::BundleMember { id: FileId(4711), missed: 1 };
    vec![
        record("", mdt::Bundles { heads: vec![head] }),
        record("", mdt::Bundle { directories: vec![member.clone()], files: vec![member] }),
        record("", mdt::UsageChange { changes }),
        record("", mdt::UsageTotal { bytes: 5 << 30, inodes: 1234 }),
        record("", quota.clone()),
        record("-default", mdt::QuotaLimits { is_default: Some(true), ..quota.clone() }),
        record("-free", mdt::QuotaLimits { is_free: Some(true), ..quota }),
        record("", mdt::QuotaGrace { grace }),
        record("", mdt::QuotaShare { share, used, promised: 4096 }),
    ]
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

/// One of each content.
fn extents() -> Vec<Sample> {
    let inline = StoredContent::Inline(b"bytes".to_vec());
    let chunk = StoredContent::Chunk { chunk: chunk_id(), skip: 100 };
    vec![
        record("-inline", mdt::StoredExtent { length: 5, content: inline }),
        record("-chunk", mdt::StoredExtent { length: 1 << 20, content: chunk }),
    ]
}

fn exposed_records() -> Vec<Sample> {
    let names = vec![mdt::NameOf { parent: directory(), name: "run7.root".parse().unwrap() }];
    let exposed = mdt::Exposed {
        content: Version(12_345),
        names,
        uid: Uid(5001),
        gid: Gid(6001),
        mode: Mode::new(0o640),
        mtime: time(4),
        size: 1 << 20,
        is_directory: false,
        is_doubtful: true,
    };
    let pool = mdt::ExposedPool {
        since: Version(8),
        is_unknown: false,
        walked: Some(file()),
        is_marked: true,
    };
    let later = mdt::LaterWrite { key: key::inode(file()), value: Some(vec![1, 0, 0x80]) };
    let gone = mdt::LaterWrite { key: key::superblock(), value: None };
    let group = mdt::StepGroup { steps: 2, done: vec![later], undone: vec![gone] };
    let steps = mdt::ExposeSteps { message: vec![0x80], groups: vec![group] };
    vec![
        record("", mdt::ExposeNote { at: time(3), session: SessionId(77) }),
        record("", exposed),
        record("", mdt::ExposedEntry { id: file() }),
        record("", pool),
        record("", steps),
        record("-exposed", exposed_map()),
    ]
}

fn exposed_map() -> FederationMap {
    let exposure = map::Exposure {
        directory: "/srv/exposed".into(),
        ost: OstIndex(3),
        since: Version(8),
        is_over: Some(true),
    };
    let pools = vec![Pool {
        name: "fast".parse().unwrap(),
        osts: vec![OstIndex(3)],
        exposure: Some(exposure),
        hsm: None,
    }];
    FederationMap { pools, ..federation_map() }
}

fn tape_records() -> Vec<Sample> {
    let pool: PoolName = "uf".parse().unwrap();
    let uris = vec!["osm://osm/?store=sql&group=cms&bfid=3434.0.994".to_owned()];
    let copy = TapeCopy {
        uris: uris.clone(),
        pool: pool.clone(),
        size: 70_000_000,
        digest: Digest::blake3([0xd1; 32]),
        adler32: 0x0123_4567,
        at: time(5),
    };
    let failure = WishFailure {
        kind: ErrorKind::NoSpace,
        detail: "put: exit status 41 (no space left on device)".to_owned(),
        at: time(6),
    };
    let state = WishState { failure: Some(failure), ..WishState::new(TapeWish::Archive, time(4)) };
    let (tries, next_ms) = (3, 1_700_000_120_000);
    let removal = mdt::TapeRemoval { pool: pool.clone(), uris, since: time(7), tries, next_ms };
    let tape = Some(mdt::TapePlace { pool, offset: 8 << 20 });
    vec![
        record("", mdt::Archived { copy, content: Version(12_300) }),
        record("", mdt::Wished { state }),
        record("", removal),
        record("-tape", mdt::Chunk { tape, places: vec![], ..chunk() }),
    ]
}

fn chunk() -> mdt::Chunk {
    mdt::Chunk {
        length: 4 << 20,
        references: 2,
        places: vec![place(), adopted()],
        digest: Some(Digest::blake3([0xd1; 32])),
        adler32: Some(0x0123_4567),
        checks: Some(vec![1, 0xffff_ffff]),
        tape: None,
    }
}

fn federation_map() -> FederationMap {
    let addresses = vec!["mds.uf.example:7380".to_owned(), "[2001:db8::1]:7380".to_owned()];
    let mdt = map::Mdt { mdt: MdtIndex(0), home: "uf".parse().unwrap(), addresses };
    let ost = Ost {
        ost: OstIndex(3),
        site: "fnal".parse().unwrap(),
        addresses: vec!["oss.fnal.example:7381".into()],
        is_active: true,
    };
    let junction =
        Junction { parent: directory(), name: "fnal".parse().unwrap(), mdt: MdtIndex(1) };
    FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(7),
        mdts: vec![mdt, Mdt { mdt: MdtIndex(1), home: "fnal".parse().unwrap(), addresses: vec![] }],
        junctions: vec![junction],
        osts: vec![ost],
        pools: vec![Pool {
            name: "fast".parse().unwrap(),
            osts: vec![OstIndex(3)],
            exposure: None,
            hsm: None,
        }],
        security: None,
        invitations: None,
        repositories: None,
    }
}

/// Every shape of key. A key is compared; what can be read from it is checked where it is written.
pub fn keys() -> Vec<Sample> {
    let name = "run7.root".parse().unwrap();
    let xattr = XattrName::new(*b"user.checksum").unwrap();
    let (file, session) = (file(), SessionId(77));
    let pool: PoolName = "fast".parse().unwrap();
    let keys = [
        ("answer", key::answer(session, RequestNumber(1000))),
        ("entry", key::entry(directory(), &name)),
        ("freed", key::freed(1_700_000_000_000, chunk_id())),
        ("inode", key::inode(file)),
        ("chunk", key::chunk(chunk_id())),
        ("lacking-chunk", key::lacking_chunk(chunk_id())),
        ("lacking-file", key::lacking_file(file)),
        ("usage-change", key::usage_change(3, 77)),
        ("usage", key::usage(&payer())),
        ("limits", key::limits(&payer())),
        ("grace", key::grace(PayerKind::Group)),
        ("share", key::share(MdtIndex(1), &payer())),
        ("expose-note", key::expose_note(&pool, file)),
        ("exposed", key::exposed(&pool, file)),
        ("exposed-entry", key::exposed_entry(&pool, directory(), &name)),
        ("exposed-pool", key::exposed_pool(&pool)),
        ("expose-steps", key::expose_steps(&pool)),
        ("superblock", key::superblock()),
        ("orphan", key::orphan(file, session)),
        ("session", key::session(session)),
        ("extent", key::extent(file, 1 << 30)),
        ("xattr", key::xattr(file, &xattr)),
        ("tape-copy", key::tape_copy(file)),
        ("tape-wish", key::tape_wish(file)),
        ("tape-removal", key::tape_removal(file, Version(12_300))),
        ("deleted", key::deleted(directory(), file)),
        ("identities", key::identities()),
        ("identity", key::identity(IdentityKind::Group, 6001)),
        ("principal", key::principal("ann@EXTENCI.ORG")),
        ("deletion", key::deletion(1_700_000_000_000, file)),
        ("lost-name", key::lost_name(directory(), file, &name)),
    ];
    let sample = |(name, key): (&str, key::Key)| {
        let same = |bytes: &[u8]| Ok::<_, RecordError>(bytes.to_vec());
        Sample::new(format!("key-{name}"), key.clone(), key, same)
    };
    keys.into_iter().map(sample).collect()
}

/// A trailer and footer for some bytes of data.
pub fn object() -> Sample {
    let trailer = ObjectTrailer {
        chunk: chunk_id(),
        file: file(),
        offset: 4 << 20,
        version: Version(12_344),
        path: b"data/run7.root".to_vec(),
        checks: vec![1, 0xffff_ffff],
        tree: None,
    };
    let tail = trailer.to_tail(DATA_LENGTH);
    Sample::new("object-tail-v1", trailer, tail, decode_tail)
}

/// The same of an object that says what proofs are made from.
fn object_with_tree() -> Sample {
    let trailer = ObjectTrailer {
        chunk: chunk_id(),
        file: file(),
        offset: 0,
        version: Version(1),
        path: b"f".to_vec(),
        checks: vec![1, 2],
        tree: Some(Tree::of(&[7; DATA_LENGTH as usize]).to_values()),
    };
    let tail = trailer.to_tail(DATA_LENGTH);
    Sample::new("object-tail-v1-tree", trailer, tail, decode_tail)
}

/// Of the object whose tail is a sample: two blocks, the second of them short.
pub const DATA_LENGTH: u64 = 5000;

/// Reads the tail of an object that is as long as its footer says.
pub fn decode_tail(tail: &[u8]) -> Result<ObjectTrailer, ObjectError> {
    let (cbor, footer) =
        tail.split_last_chunk::<{ ObjectFooter::LENGTH }>().ok_or(ObjectError::NotSealed)?;
    let length = DATA_LENGTH + tail.len() as u64;
    ObjectFooter::decode(footer, length)?.trailer(cbor)
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

fn place() -> OstPlace {
    let object = ObjectName::Chunk(chunk_id());
    OstPlace { ost: OstIndex(3), object, offset: 0, length: 4 << 20, is_stale: false }
}

fn adopted() -> OstPlace {
    let object =
        ObjectName::External { path: "store/run7.root".into(), size: 1 << 33, mtime_ns: -1 };
    OstPlace { object, offset: 8192, is_stale: true, ..place() }
}
