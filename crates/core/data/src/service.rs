//! Dispatches chunk requests to targets, and syncs in the background.
//!
//! Every failure says which OST, which chunk and why; what a person at the site should look at is
//! logged here, once.

use crate::TargetParts;
use crate::copies::WHOLE_AT_ONCE;
use crate::exposing::Exposing;
use crate::rights::{Rights, Shown};
use crate::target::{Realm, Target};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_blob::{Foreign, Listed, Slice};
use tieline_types::{ClientId, ErrorKind, MdtIndex, ObjectName, OstIndex};
use tieline_wire::data::{
    ChecksumAdopted, DeleteChunks, DeleteChunksReply, Fill, FillReply, ForeignName, GrantRoom,
    ListAdopted, ListObjects, ListObjectsReply, OstState, OstStatus, OstStatusReply, PutChunk,
    PutChunkReply, ReadObject, ReadObjectReply, StatObject, SyncFile, SyncFileReply,
};
use tieline_wire::mirrors::VerifyObject;
use tieline_wire::{Call, Failure, Request, encode};
use tieline_world::Bulk;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Nothing stays volatile for much longer than this.
const SYNC_INTERVAL: Duration = Duration::from_secs(4);
/// How soon a store is counted that could not be read.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// As the messages say: at most so many bytes in one read, so many chunks in one deletion or
/// listing.
const READ_BYTES_MAX: u32 = 64 << 20;
const CHUNKS_MAX: usize = 4096;

/// The OSTs of one OSS. All methods may be called from many tasks.
pub struct ChunkService {
    targets: BTreeMap<OstIndex, Arc<Target>>,
    /// Room for whole chunks in memory.
    pub(crate) whole: Semaphore,
    pub(crate) exposing: Exposing,
}

type Answer = Result<(Vec<u8>, Bulk), Failure>;

impl ChunkService {
    /// `boot`: another number each time that the server is started.
    pub fn new(targets: BTreeMap<OstIndex, TargetParts>, boot: u64) -> Arc<Self> {
        let targets = targets.into_iter().map(|(ost, parts)| (ost, Target::new(ost, parts)));
        let whole = Semaphore::new(WHOLE_AT_ONCE);
        Arc::new(Self { targets: targets.collect(), whole, exposing: Exposing::new(boot) })
    }

    /// Answers one chunk request: the encoded reply, and the bytes beside it.
    pub async fn call(
        &self,
        client: ClientId,
        request: Request,
        bulk: Bytes,
        rights: Rights<'_>,
    ) -> Answer {
        let shown = rights.check(&request)?;
        self.check_site(&request, rights, &shown)?;
        match request {
            Request::PutChunk(message) => self.put(client, message, bulk).await,
            Request::GrantRoom(message) => {
                let granted = self.target(message.ost)?.grant(client, message).await?;
                reply::<GrantRoom>(&granted)
            }
            Request::ReadObject(message) => self.read(message, (rights, shown)).await,
            Request::SyncFile(message) => self.sync(message).await,
            Request::DeleteChunks(message) => self.delete(message).await,
            Request::OstStatus(_) => {
                reply::<OstStatus>(&OstStatusReply { osts: self.states().await })
            }
            Request::Fill(message) => fill(&message),
            Request::StatObject(message) => {
                reply::<StatObject>(&self.target(message.ost)?.stat(message.chunk).await?)
            }
            Request::ListObjects(message) => self.list(message).await,
            Request::VerifyObject(message) => {
                if let ObjectName::Chunk(chunk) = message.object {
                    let found = self.target(message.ost)?.stat(chunk).await?;
                    rights.check_read(&shown, "VerifyObject", (chunk, found.owner.file))?;
                }
                reply::<VerifyObject>(&self.verify(message).await?)
            }
            Request::ListAdopted(message) => {
                reply::<ListAdopted>(&self.target(message.ost)?.adopted.list(message).await?)
            }
            Request::ChecksumAdopted(message) => {
                let target = self.target(message.ost)?;
                reply::<ChecksumAdopted>(&target.adopted.checksum(message).await?)
            }
            other => {
                let detail = format!("{} is not a call of an OSS", other.op().name());
                Err(Failure::new(ErrorKind::Protocol, detail))
            }
        }
    }

    /// How each OST is now.
    pub async fn states(&self) -> Vec<OstState> {
        let mut states = Vec::new();
        for target in self.targets.values() {
            states.push(target.state().await);
        }
        states
    }

    /// The same for the server of these MDTs: what its site keeps from them is not for them.
    pub async fn states_for(&self, mdts: &[MdtIndex]) -> Vec<OstState> {
        let mut states = self.states().await;
        for state in &mut states {
            let takes = |target: &Arc<Target>| target.takes_of(mdts);
            if mdts.is_empty() || self.targets.get(&state.ost).is_none_or(takes) {
                continue;
            }
            let labels: Vec<String> = mdts.iter().map(|mdt| mdt.label()).collect();
            let kept = format!("its site does not let it be used for {}", labels.join(", "));
            (state.trouble, state.bytes_free) = (Some(kept), 0);
            state.is_read_only = Some(true);
        }
        states
    }

    /// Syncs everything from time to time. Never ends: the program spawns it, and drops it at the
    /// end.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(SYNC_INTERVAL).await;
            self.sync_all().await;
        }
    }

    /// What lies here is counted where a site limits it, as soon as its store can be read. Never
    /// ends, as above.
    pub async fn keep_counted(&self) {
        loop {
            for target in self.targets.values() {
                target.count().await;
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// Does the OST's site let it be used for this, and by who asks?
    fn check_site(
        &self,
        request: &Request,
        rights: Rights<'_>,
        shown: &Shown,
    ) -> Result<(), Failure> {
        let (ost, mut mdts) = match request {
            Request::PutChunk(put) => (put.ost, vec![put.chunk.mdt, put.owner.file.mdt()]),
            Request::SyncFile(sync) => (sync.ost, vec![sync.file.mdt()]),
            Request::GrantRoom(grant) => (grant.ost, vec![]),
            Request::ReadObject(ReadObject { ost, object, .. })
            | Request::VerifyObject(VerifyObject { ost, object, .. })
            | Request::ChecksumAdopted(ChecksumAdopted { ost, object, .. }) => match object {
                ObjectName::Chunk(chunk) => (*ost, vec![chunk.mdt]),
                ObjectName::External { .. } | ObjectName::Key(_) => (*ost, vec![]),
            },
            Request::DeleteChunks(delete) => {
                (delete.ost, delete.chunks.iter().map(|chunk| chunk.mdt).collect())
            }
            Request::StatObject(stat) => (stat.ost, vec![stat.chunk.mdt]),
            Request::ListAdopted(list) => (list.ost, vec![]),
            _ => return Ok(()),
        };
        // One whose word does not count here opens nothing with it, whoever's bytes these are.
        mdts.extend(shown.mdt());
        let realm = match rights {
            Rights::All => Realm::Server,
            Rights::Unproven => Realm::Client(None),
            Rights::Shown { realm, .. } => {
                realm.map_or(Realm::Server, |realm| Realm::Client(Some(realm)))
            }
        };
        self.target(ost)?.check_site(&mdts, realm)
    }

    /// Makes everything durable that is not, as before a shutdown. Errors are logged, and kept for
    /// who asks for the file.
    pub async fn sync_all(&self) {
        let mut syncs = JoinSet::new();
        for target in self.targets.values() {
            let target = target.clone();
            syncs.spawn(async move { target.sync_all().await });
        }
        while syncs.join_next().await.is_some() {}
    }

    async fn put(&self, client: ClientId, message: PutChunk, bulk: Bytes) -> Answer {
        self.target(message.ost)?.put(client, message, bulk).await?;
        reply::<PutChunk>(&PutChunkReply {})
    }

    async fn read(&self, message: ReadObject, (rights, shown): (Rights<'_>, Shown)) -> Answer {
        let target = self.target(message.ost)?;
        if message.length > READ_BYTES_MAX {
            let length = message.length;
            return Err(target.refuse(format!("read of {length} bytes exceeds {READ_BYTES_MAX}")));
        }
        let hashed = message.hashed;
        let (reply, bulk) = match (&message.object, hashed) {
            (&ObjectName::Chunk(chunk), Some(hashed)) => {
                let is_allowed = |file| rights.check_read(&shown, "ReadObject", (chunk, file));
                self.read_proven(target, (chunk, hashed), &message, is_allowed).await?
            }
            (&ObjectName::Chunk(chunk), None) => {
                let slice = target.read(chunk, message.offset, message.length).await?;
                rights.check_read(&shown, "ReadObject", (chunk, slice.file))?;
                let Slice { offset, checks, object_length, .. } = slice;
                (ReadObjectReply { offset, checks, object_length, proof: None }, slice.bulk)
            }
            (ObjectName::External { .. } | ObjectName::Key(_), Some(hashed)) => {
                self.read_adopted_proven(target, hashed, &message).await?
            }
            (object @ (ObjectName::External { .. } | ObjectName::Key(_)), None) => {
                let read = target.adopted.read(object.clone(), message.offset, message.length);
                let (reply, bytes) = read.await?;
                (reply, Bulk::from(bytes))
            }
        };
        Ok((encode(&reply), bulk))
    }

    async fn sync(&self, message: SyncFile) -> Answer {
        let synced = self.target(message.ost)?.sync_file(message.file).await?;
        reply::<SyncFile>(&SyncFileReply { synced })
    }

    async fn delete(&self, message: DeleteChunks) -> Answer {
        let target = self.target(message.ost)?;
        let count = message.chunks.len();
        if count > CHUNKS_MAX {
            return Err(target.refuse(format!("deletion of {count} chunks exceeds {CHUNKS_MAX}")));
        }
        reply::<DeleteChunks>(&DeleteChunksReply { deleted: target.delete(&message.chunks).await? })
    }

    async fn list(&self, message: ListObjects) -> Answer {
        let target = self.target(message.ost)?;
        let limit = message.limit as usize;
        if limit == 0 || limit > CHUNKS_MAX {
            return Err(target.refuse(format!("listing of {limit} objects, 1 to {CHUNKS_MAX} fit")));
        }
        let Listed { chunks, foreign } = target.list(message.after, limit).await?;
        let is_end = chunks.len() < limit;
        let name = |Foreign { path, kind }| ForeignName { path, kind };
        let foreign = (!foreign.is_empty()).then(|| foreign.into_iter().map(name).collect());
        reply::<ListObjects>(&ListObjectsReply { chunks, is_end, foreign })
    }

    pub(crate) fn target(&self, ost: OstIndex) -> Result<&Arc<Target>, Failure> {
        self.targets.get(&ost).ok_or_else(|| {
            let here: Vec<String> = self.targets.keys().map(|ost| ost.label()).collect();
            let detail =
                format!("{} is not served here (served: {})", ost.label(), here.join(", "));
            Failure::new(ErrorKind::WrongServer, detail)
        })
    }
}

/// Bytes that mean nothing: any server has them.
pub fn fill(message: &Fill) -> Answer {
    static NOTHING: [u8; Fill::LENGTH_MAX as usize] = [0; Fill::LENGTH_MAX as usize];
    let bytes = NOTHING.get(..message.length as usize).ok_or_else(|| {
        let detail = format!("Fill of {} bytes: {} at most", message.length, Fill::LENGTH_MAX);
        Failure::new(ErrorKind::InvalidArgument, detail)
    })?;
    Ok((encode(&FillReply {}), Bytes::from_static(bytes).into()))
}

fn reply<C: Call>(reply: &C::Reply) -> Answer {
    Ok((encode(reply), Bulk::Empty))
}
