//! Proofs: what shows a reader that a range is of the chunk whose digest its MDS keeps.
//!
//! A proof is made from the values of the chunk's tree ([`tieline_types::tree`]), which an object
//! brings along in its trailer. Objects of before there were proofs, and adopted files, have none:
//! theirs are computed at the first ask, in one pass over the bytes. Trees that were used lately
//! are kept in memory.
//!
//! Knows no digest: a proof made from false bytes proves nothing, and its reader sees that.
//!
//! Invariants: at most [`BYTES_MAX`] bytes of trees are kept for an OST; one tree of an OST is
//! computed at a time.

use crate::ChunkService;
use crate::copies::{bad_blocks, with_bytes};
use crate::target::{Target, lock};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tieline_blob::BlockRange;
use tieline_format::object::ObjectTrailer;
use tieline_types::tree::{GROUP, Tree, Values};
use tieline_types::{ErrorKind, GrantedId, Layout, ObjectName, checksum};
use tieline_wire::Failure;
use tieline_wire::data::{Hashed, ReadObject, ReadObjectReply};
use tieline_world::Bulk;

/// Trees of 8 GiB of usual chunks.
const BYTES_MAX: usize = 32 << 20;
/// Smaller data is hashed where it is, and so quickly that nobody waits for it.
const ASIDE_FROM: usize = 256 << 10;

/// The trees of one OST.
#[derive(Default)]
pub(crate) struct Trees {
    known: Mutex<Known>,
    /// Held while one is computed.
    computing: tokio::sync::Mutex<()>,
}

/// An object, and where in it the tree's bytes begin.
type Key = (ObjectName, u64);

#[derive(Default)]
struct Known {
    trees: BTreeMap<Key, (Arc<Tree>, u64)>,
    /// Time of last use, counted in uses.
    ages: BTreeMap<u64, Key>,
    uses: u64,
    bytes: usize,
}

/// What is read so that a range can be proven, and what of it is sent.
struct Widened {
    /// From the start of what is hashed on.
    own: Range<u64>,
    /// Whole groups.
    read: Range<u64>,
}

/// Bytes of an object with their checks.
struct Found {
    bulk: Bulk,
    checks: Vec<u32>,
}

impl Trees {
    fn get(&self, key: &Key) -> Option<Arc<Tree>> {
        let mut known = lock(&self.known);
        known.uses += 1;
        let now = known.uses;
        let (tree, used) = known.trees.get_mut(key)?;
        let (tree, before) = (tree.clone(), std::mem::replace(used, now));
        known.ages.remove(&before);
        known.ages.insert(now, key.clone());
        Some(tree)
    }

    fn keep(&self, key: Key, tree: Tree) -> Arc<Tree> {
        let tree = Arc::new(tree);
        let mut known = lock(&self.known);
        known.remove(&key);
        known.uses += 1;
        let now = known.uses;
        known.bytes += tree.weight();
        known.ages.insert(now, key.clone());
        known.trees.insert(key, (tree.clone(), now));
        while known.bytes > BYTES_MAX
            && let Some((_, oldest)) = known.ages.first_key_value()
        {
            let oldest = oldest.clone();
            known.remove(&oldest);
        }
        tree
    }

    /// The object is another now, or none.
    pub fn forget(&self, chunk: GrantedId) {
        lock(&self.known).remove(&(ObjectName::Chunk(chunk), 0));
    }
}

impl Known {
    fn remove(&mut self, key: &Key) {
        if let Some((tree, used)) = self.trees.remove(key) {
            self.ages.remove(&used);
            self.bytes -= tree.weight();
        }
    }
}

impl Widened {
    fn new(message: &ReadObject, hashed: Hashed) -> Option<Self> {
        let at = message.offset.checked_sub(hashed.offset)?;
        let own = BlockRange::widen(at, message.length, hashed.length);
        let own = own.offset..own.offset + u64::from(own.length);
        let end = own.end.next_multiple_of(GROUP).min(hashed.length);
        let read = own.start / GROUP * GROUP..end;
        (!own.is_empty()).then_some(Self { own, read })
    }

    fn length(&self) -> u32 {
        (self.read.end - self.read.start) as u32
    }
}

impl ChunkService {
    /// A range of an object of ours with its proof.
    pub(crate) async fn read_proven(
        &self,
        target: &Arc<Target>,
        (chunk, hashed): (GrantedId, Hashed),
        message: &ReadObject,
        is_allowed: impl Fn(tieline_types::FileId) -> Result<(), Failure>,
    ) -> Result<(ReadObjectReply, Bulk), Failure> {
        let widened = widened(target, message, hashed)?;
        let slice = target.read(chunk, widened.read.start, widened.length()).await?;
        is_allowed(slice.file)?;
        let object_length = slice.object_length;
        if hashed != (Hashed { offset: 0, length: object_length }) {
            let reason = format!("its object has {object_length} bytes, not {}", hashed.length);
            return Err(target.fault(chunk, ErrorKind::Corrupt, &reason));
        }
        let key = (ObjectName::Chunk(chunk), 0);
        let tree = match target.trees.get(&key) {
            Some(tree) => tree,
            None => self.tree_of(target, key, (chunk, object_length), slice.tree).await?,
        };
        let found = Found { bulk: slice.bulk, checks: slice.checks };
        let fault = |why: &str| target.fault(chunk, ErrorKind::StorageFault, why);
        let (found, proof) = proven(found, &widened, &tree).await.map_err(|why| fault(&why))?;
        let (offset, checks, proof) = (widened.own.start, found.checks, Some(proof));
        Ok((ReadObjectReply { offset, checks, object_length, proof }, found.bulk))
    }

    async fn tree_of(
        &self,
        target: &Arc<Target>,
        key: Key,
        (chunk, length): (GrantedId, u64),
        values: Option<Values>,
    ) -> Result<Arc<Tree>, Failure> {
        if let Some(tree) = values.and_then(|values| Tree::from_values(length, &values)) {
            return Ok(target.trees.keep(key, tree));
        }
        let _one = target.trees.computing.lock().await;
        if let Some(tree) = target.trees.get(&key) {
            return Ok(tree);
        }
        let _room = self.whole.acquire().await;
        let slice = target.read(chunk, 0, length as u32).await?;
        let checks = slice.checks;
        let compute =
            move |bytes: Bytes| bad_blocks(&bytes, &checks).is_empty().then(|| Tree::of(&bytes));
        let tree = with_bytes(target, chunk, slice.bulk, compute).await?;
        let damaged = || target.fault(chunk, ErrorKind::Corrupt, "it is damaged");
        Ok(target.trees.keep(key, tree.ok_or_else(damaged)?))
    }

    /// The same of an adopted file.
    pub(crate) async fn read_adopted_proven(
        &self,
        target: &Arc<Target>,
        hashed: Hashed,
        message: &ReadObject,
    ) -> Result<(ReadObjectReply, Bulk), Failure> {
        let widened = widened(target, message, hashed)?;
        let (object, start) = (message.object.clone(), hashed.offset + widened.read.start);
        let read = target.adopted.read(object.clone(), start, widened.length()).await?;
        let (reply, bytes) = read;
        let object_length = reply.object_length;
        let largest = u64::from(Layout::CHUNK_SIZE_MAX);
        let expected = largest.min(object_length.saturating_sub(hashed.offset));
        if !hashed.offset.is_multiple_of(largest) || hashed.length != expected {
            return Err(target.refuse(format!("proof of {} bytes of a file", hashed.length)));
        }
        let key = (object.clone(), hashed.offset);
        let tree = match target.trees.get(&key) {
            Some(tree) => tree,
            None => {
                let _one = target.trees.computing.lock().await;
                match target.trees.get(&key) {
                    Some(tree) => tree,
                    None => {
                        let _room = self.whole.acquire().await;
                        let tree = target.adopted.tree_of(object, hashed).await?;
                        target.trees.keep(key, tree)
                    }
                }
            }
        };
        let found = Found { bulk: bytes.into(), checks: reply.checks };
        let fault = |why| Failure::new(ErrorKind::StorageFault, why);
        let (found, proof) = proven(found, &widened, &tree).await.map_err(fault)?;
        let offset = hashed.offset + widened.own.start;
        let (checks, proof) = (found.checks, Some(proof));
        Ok((ReadObjectReply { offset, checks, object_length, proof }, found.bulk))
    }
}

impl Target {
    /// The trailer with what proofs are made from.
    pub(crate) async fn with_tree(&self, trailer: ObjectTrailer, data: &Bytes) -> ObjectTrailer {
        let data = data.clone();
        let compute = move || Tree::of(&data).to_values();
        let tree = match data_is_small(&trailer) {
            true => Some(compute()),
            // One that is not computed now is computed when it is asked for.
            false => tokio::task::spawn_blocking(compute).await.ok(),
        };
        ObjectTrailer { tree, ..trailer }
    }
}

fn data_is_small(trailer: &ObjectTrailer) -> bool {
    trailer.checks.len() * checksum::BLOCK < ASIDE_FROM
}

fn widened(target: &Target, message: &ReadObject, hashed: Hashed) -> Result<Widened, Failure> {
    let length = hashed.length;
    let refuse = || {
        let (at, wanted) = (message.offset, message.length);
        target.refuse(format!("proof of {wanted} bytes at {at} of a chunk of {length}"))
    };
    let is_chunk = length <= Layout::CHUNK_SIZE_MAX.into();
    is_chunk.then(|| Widened::new(message, hashed)).flatten().ok_or_else(refuse)
}

/// What is sent of what was read, and its proof.
async fn proven(found: Found, widened: &Widened, tree: &Tree) -> Result<(Found, Vec<u8>), String> {
    let Widened { own, read } = widened;
    if found.bulk.len() as u64 != read.end - read.start {
        return Err("it is shorter than it was".to_owned());
    }
    let place = |at: u64| (at - read.start) as usize;
    let before = part(&found.bulk, 0..place(own.start)).await;
    let behind = part(&found.bulk, place(own.end)..place(read.end)).await;
    let (before, behind) = match (before, behind) {
        (Ok(before), Ok(behind)) => (before, behind),
        (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
    };
    let proof = tree.proof(own, [&before, &behind]).ok_or("no proof can be made of it")?;
    let blocks = place(own.start) / checksum::BLOCK..place(own.end).div_ceil(checksum::BLOCK);
    let checks = found.checks.get(blocks).unwrap_or_default().to_vec();
    let bulk = cut(&found.bulk, place(own.start)..place(own.end));
    Ok((Found { bulk: bulk.map_err(|error| error.to_string())?, checks }, proof))
}

/// A part of bulk, where it is.
fn cut(bulk: &Bulk, range: Range<usize>) -> std::io::Result<Bulk> {
    Ok(match bulk {
        Bulk::File(file) => Bulk::File(file.part(range.start as u32, range.len() as u32)),
        here => Bulk::from(here.to_bytes()?.slice(range)),
    })
}

/// A part of bulk in memory. Who waits for a disk waits aside.
async fn part(bulk: &Bulk, range: Range<usize>) -> std::io::Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let Bulk::File(file) = bulk else { return Ok(bulk.to_bytes()?.slice(range)) };
    let part = file.part(range.start as u32, range.len() as u32);
    let mut bytes = vec![0; range.len()];
    if part.read_at_once(0, &mut bytes) {
        return Ok(bytes.into());
    }
    let read = tokio::task::spawn_blocking(move || Bulk::File(part).to_bytes());
    read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests;
