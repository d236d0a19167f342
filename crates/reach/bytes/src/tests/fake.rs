//! OSSs in memory, behind a dialer; no MDS anywhere.

use crate::{Chunks, Metadata, Near, Room, Whose};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner, Rule};
use tieline_format::map::{FederationMap, Ost};
use tieline_net::{CallError, Channel, Dialer, Incoming, NoticeSink, Outgoing, Standing};
use tieline_servers::{Greeting, Hearer, Result, Servers};
use tieline_types::tree::proof_of;
use tieline_types::*;
use tieline_wire::capability::{CapabilityGrant, GetCapability};
use tieline_wire::data::{ReadObject, ReadObjectReply};
use tieline_wire::mirrors::ReportPlace;
use tieline_wire::{Failure, Flavor, Hello, NoticeAnswer, Op, PeerRole, Request, Welcome};
use tieline_world::World;
use tokio::time::Instant;

pub const FILE: FileId = FileId(7);
pub const NEAR: OstIndex = OstIndex(0);
pub const FAR: OstIndex = OstIndex(1);

#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<(OstIndex, GrantedId), Bytes>,
    /// A byte of what these give is wrong.
    pub damaged: BTreeMap<OstIndex, u64>,
    /// These prove nothing of what they give.
    pub proofless: BTreeSet<OstIndex>,
    /// These say nothing.
    pub silent: BTreeSet<OstIndex>,
    /// These take so long.
    pub slow: BTreeMap<OstIndex, Duration>,
    pub asked: Vec<ReadObject>,
    pub reports: Vec<ReportPlace>,
}

/// Two OSSs with one OST each.
#[derive(Default)]
pub struct Fake(Mutex<State>);

/// A client, and what it must have to live.
pub struct Client {
    pub chunks: Arc<Chunks>,
    pub servers: Arc<Servers>,
    _metadata: Arc<dyn Metadata>,
}

impl Fake {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn client(self: &Arc<Self>, near: Near) -> Client {
        let signer = MapSigner::new([7; 32]);
        let map = MapCell::new(signer.verifier(), signer.sign(&map())).unwrap();
        let world = World { clock: World::local(1).0.clock, ..World::real() };
        let greeting = Greeting {
            role: PeerRole::Client,
            client: ClientId([1; 16]),
            fs: map.current().map.fs.clone(),
            rule: Rule { flavor: Flavor::Null },
            description: String::new(),
            is_visitor: false,
            wait: None,
        };
        let hearer: Weak<dyn Hearer> = Weak::<Nobody>::new();
        let wait = Duration::from_secs(60);
        let dialer = Arc::new(FakeDialer(self.clone()));
        let (fills, records) = (false, None);
        let servers = Servers::new(tieline_servers::Parts {
            world,
            dialer,
            map,
            greeting,
            wait,
            fills,
            hearer,
            records,
        });
        let room = Room { bytes_max: 64 << 20, spent_max: 64 << 20, lingering_max: 1 << 20 };
        let metadata: Arc<dyn Metadata> = self.clone();
        let chunks = Chunks::new(room, &near, &servers, &Arc::downgrade(&metadata));
        Client { chunks, servers, _metadata: metadata }
    }

    /// An OST gives other bytes from now on, with checks and proofs that are made of these.
    pub fn lie(&self, ost: OstIndex) {
        let mut state = self.lock();
        let own = state.objects.iter_mut().filter(|((at, _), _)| *at == ost);
        own.for_each(|(_, bytes)| *bytes = bytes.iter().map(|byte| byte ^ 0x55).collect());
    }

    /// A chunk of that many bytes, with copies at both OSTs.
    pub fn chunk(&self, length: usize) -> (ChunkRef, Bytes) {
        let bytes: Bytes = (0..length).map(|at| (at * 31 + at / 257) as u8).collect();
        let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 2 };
        let place = |ost| OstPlace {
            ost,
            object: ObjectName::Chunk(chunk),
            offset: 0,
            length: length as u64,
            is_stale: false,
        };
        self.lock().objects.extend([NEAR, FAR].map(|ost| ((ost, chunk), bytes.clone())));
        let digest = Some(Digest::of(&bytes));
        let (places, length) = ([NEAR, FAR].map(|ost| place(ost).into()).to_vec(), length as u64);
        let chunk = chunk.into();
        (ChunkRef { chunk, skip: 0, length, places, digest, checks: None, adler32: None }, bytes)
    }
}

pub fn whose() -> Whose {
    Whose::own(FILE, &Caller::root())
}

fn map() -> FederationMap {
    let ost = |ost: OstIndex| Ost {
        ost,
        site: "uf".parse().unwrap(),
        addresses: vec![format!("oss{}:1", ost.0)],
        is_active: true,
    };
    FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(1),
        mdts: vec![],
        junctions: vec![],
        osts: vec![ost(NEAR), ost(FAR)],
        pools: vec![],
        security: None,
        invitations: None,
        repositories: None,
    }
}

#[async_trait::async_trait]
impl Metadata for Fake {
    async fn capability(
        &self,
        _: &Caller,
        _: MdtIndex,
        _: GetCapability,
        _: Duration,
    ) -> Result<Option<CapabilityGrant>> {
        panic!("this federation proves nothing")
    }

    async fn report(&self, report: ReportPlace, _: Duration) -> Result<()> {
        self.lock().reports.push(report);
        Ok(())
    }
}

struct Nobody;

#[async_trait::async_trait]
impl Hearer for Nobody {
    async fn recalled(&self, _: tieline_wire::notice::Recall) -> NoticeAnswer {
        NoticeAnswer::default()
    }

    async fn free_locks(&self, _: FileId) {}

    fn welcomed(&self, _: ServerNumber, _: &Welcome) {}

    fn welcomed_by_oss(&self, _: ServerNumber, _: &Welcome) {}

    fn disconnected(&self, _: ServerNumber) {}

    fn renewed(&self, _: ServerNumber, _: Instant) {}

    fn map_changed(&self, _: &FederationMap, _: &FederationMap) {}

    fn is_away(&self, _: ServerNumber) -> bool {
        false
    }
}

struct FakeDialer(Arc<Fake>);

impl Dialer for FakeDialer {
    fn dial(&self, _: &[String], _: Hello, _: Arc<dyn NoticeSink>) -> Arc<dyn Channel> {
        Arc::new(FakeChannel(self.0.clone()))
    }
}

struct FakeChannel(Arc<Fake>);

#[async_trait::async_trait]
impl Channel for FakeChannel {
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError> {
        let Request::ReadObject(read) = outgoing.request else { panic!("only reads are asked") };
        let slow = {
            let mut state = self.0.lock();
            state.asked.push(read.clone());
            state.slow.get(&read.ost).copied()
        };
        // A real server is elsewhere.
        tokio::task::yield_now().await;
        tokio::time::sleep(slow.unwrap_or_default()).await;
        if self.0.lock().silent.contains(&read.ost) {
            let patience = outgoing.patience.unwrap();
            tokio::time::sleep(patience).await;
            return Err(CallError::Timeout { server: "oss".to_owned(), patience, why: None });
        }
        let (body, bulk) = self.0.lock().read(&read)?;
        Ok(Incoming { op: Op::ReadObject, body, bulk, held: None })
    }

    fn standing(&self) -> Option<Standing> {
        None
    }

    fn round_trips(&self) -> u64 {
        0
    }

    fn warm(&self) {}

    fn round_trip(&self) -> Option<Duration> {
        Some(Duration::from_micros(100))
    }

    async fn close(&self, _: Duration) {}
}

impl State {
    fn read(&self, read: &ReadObject) -> Result<(Bytes, Bytes), CallError> {
        let ObjectName::Chunk(chunk) = read.object else { panic!("only chunks") };
        let gone = || CallError::Refused(Failure::new(ErrorKind::Gone, "fake"));
        let whole = self.objects.get(&(read.ost, chunk)).ok_or_else(gone)?;
        let block = checksum::BLOCK as u64;
        let offset = read.offset / block * block;
        let end = (read.offset + u64::from(read.length)).div_ceil(block) * block;
        let mut bytes = whole[offset as usize..(end as usize).min(whole.len())].to_vec();
        let checks = checksum::block_checks(&bytes);
        let damage = self.damaged.get(&read.ost).and_then(|at| at.checked_sub(offset));
        if let Some(byte) = damage.and_then(|at| bytes.get_mut(at as usize)) {
            *byte ^= 1;
        }
        let object_length = whole.len() as u64;
        let range = offset..offset + bytes.len() as u64;
        let proves = !self.proofless.contains(&read.ost);
        let proof = read.hashed.filter(|_| proves).and_then(|_| proof_of(whole, &range));
        let reply = ReadObjectReply { offset, checks, object_length, proof };
        Ok((tieline_wire::encode(&reply).into(), bytes.into()))
    }
}
