//! The OSSs of a chunk's places: verified ranges, from whichever place has them.
//!
//! Of several places the nearest is asked, as measured ([`crate::costs`]); one that is slow gets
//! company, one that fails is replaced at once. Who asks a server next is decided by its
//! [`tieline_servers::turns`]. Over distance a range is several requests, so that it comes by
//! several connections at once.
//!
//! Invariant: bytes that do not match their checks, or the digest that the metadata has, are never
//! handed on; they are counted, named in the log, reported to the MDS, and the next place is asked.
//! Where all are damaged, blocks that are good in any of them are put together
//! ([`crate::patched`]).

use crate::capabilities::Capabilities;
use crate::costs::{Costs, Load};
use crate::proven::{are_of, hashed};
use crate::race::Race;
use crate::source::{Fault, Outcome, Piece, Proof, Source, Wish, lost};
use crate::{Whose, lock};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_servers::{Error, Result, Servers};
use tieline_telemetry::metrics::METRICS;
use tieline_types::checksum::{BLOCK, crc32c, first_mismatch};
use tieline_types::{
    Caller, ChunkRef, ErrorKind, GrantedId, MdtIndex, ObjectName, OstIndex, OstPlace, Place,
};
use tieline_wire::capability::{CapabilityGrant, GetCapability};
use tieline_wire::data::{ReadObject, ReadObjectReply};
use tieline_wire::mirrors::ReportPlace;
use tieline_world::Bulk;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// What MDSs are asked and told on the way to bytes, by who knows what comes before it.
#[async_trait::async_trait]
pub trait Metadata: Send + Sync {
    /// What is to be shown to OSSs; `None`: this federation proves nothing.
    async fn capability(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        wish: GetCapability,
        patience: Duration,
    ) -> Result<Option<CapabilityGrant>>;

    /// A copy is bad, or gone.
    async fn report(&self, report: ReportPlace, patience: Duration) -> Result<()>;
}

/// One request for an exact range; larger ranges are several.
pub(crate) const REQUEST_MAX: u64 = 4 << 20;
/// One request to a far server: a connection that was idle takes six round trips for 1 MiB, eight
/// take four for an eighth each.
pub(crate) const REQUEST_FAR: u64 = 128 << 10;
/// A chunk from afar that is no longer comes whole, and is kept for a while.
pub(crate) const SMALL: u64 = 128 << 10;
/// A bad place is reported again only after so long.
const REPORTED_KEPT: Duration = Duration::from_secs(30);
const REPORTED_MAX: usize = 1024;
const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// An error that comes by itself says more.
const GRACE: Duration = Duration::from_millis(300);
/// A place that is only asked to be measured may take so long.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);
/// An OST that failed is asked last for so long.
const TROUBLE_KEPT: Duration = Duration::from_secs(30);

/// The OSTs as one client reaches them.
pub struct Osts {
    pub(crate) servers: Arc<Servers>,
    pub(crate) capabilities: Arc<Capabilities>,
    metadata: Weak<dyn Metadata>,
    pub costs: Costs,
    /// OSTs that failed, and when.
    troubles: Mutex<BTreeMap<OstIndex, Instant>>,
    /// Bad places that the MDS was told of.
    reported: Mutex<BTreeMap<(GrantedId, OstIndex), Instant>>,
}

#[async_trait::async_trait]
impl Source for Arc<Osts> {
    fn name(&self) -> &'static str {
        "osts"
    }

    /// Several ranges come at once.
    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let Wish { chunk, ranges, whose, .. } = wish;
        let until = wish.until.unwrap_or_else(|| self.until(chunk, whose));
        if let [range] = ranges.as_slice() {
            let (offset, bytes) = self.fetch(chunk, range.clone(), whose, until).await?;
            return Ok(vec![Piece::new(offset, bytes, shown(chunk))]);
        }
        let mut fetches = JoinSet::new();
        for range in ranges.iter().cloned() {
            let (osts, chunk, whose) = (self.clone(), chunk.clone(), whose.clone());
            fetches.spawn(async move { osts.fetch(&chunk, range, &whose, until).await });
        }
        let mut fetched = Vec::new();
        while let Some(joined) = fetches.join_next().await {
            let (offset, bytes) = joined.unwrap_or_else(|_| Err(lost()))?;
            fetched.push(Piece::new(offset, bytes, shown(chunk)));
        }
        Ok(fetched)
    }
}

impl Osts {
    pub(crate) fn new(
        servers: Arc<Servers>,
        capabilities: Arc<Capabilities>,
        metadata: Weak<dyn Metadata>,
    ) -> Self {
        Self {
            servers,
            capabilities,
            metadata,
            costs: Costs::default(),
            troubles: Mutex::default(),
            reported: Mutex::default(),
        }
    }

    /// Asks the places of a chunk: the best first, the next at once when that fails, and beside it
    /// when that is slow; nobody is waited for beyond `until`. Who gave damage, or has lost what
    /// others have, is reported.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        range: Range<u64>,
        whose: &Whose,
        until: Instant,
    ) -> Outcome {
        let bytes = range.end - range.start;
        let mut places = self.places_in_order(chunk, bytes);
        // Before a turn is taken: an MDS that is away keeps no other reader from the OSS.
        if let Some(place) = places.first() {
            let wanted = (chunk.chunk, &place.object);
            let proof = self.capabilities.to_read(whose, wanted, false).await;
            let what = |error| format!("right to read chunk {} ({error})", chunk.chunk);
            proof.map_err(|error: Error| Fault { kind: error.kind(), what: what(error) })?;
        }
        self.probe(chunk, places.get(1..).unwrap_or_default(), whose);
        // Whoever else is asked is asked because this one is slow.
        let mut turn = None;
        for _ in 0..places.len() {
            let Some(first) = places.first().map(|place| place.ost) else { break };
            let Ok(server) = self.servers.oss(first) else { break };
            let waited = server.turn(whose.reader, bytes, &whose.is_wanted);
            let waited = timeout_at(until, waited).await.map_err(|_| slow())?;
            turn = Some((waited.ok_or_else(unwanted)?, server));
            // It may have died while we stood in its line.
            if !self.is_in_trouble(first) {
                break;
            }
            places = self.places_in_order(chunk, bytes);
            if places.first().is_some_and(|place| place.ost == first) {
                break;
            }
            turn = None;
        }
        let ask = |place: &OstPlace| {
            let (place, range) = (place.clone(), range.clone());
            async move { (self.fetch_measured(chunk, &place, range, (whose, until)).await, place) }
        };
        let mut next = places.iter();
        let mut race = Race::default();
        let mut asking = next.next();
        let mut faults: Vec<(OstPlace, Fault)> = Vec::new();
        while let Some(place) = asking.take() {
            race.add(ask(place));
            loop {
                let patience = match next.len() {
                    0 => until.saturating_duration_since(Instant::now()) + GRACE,
                    _ => self.costs.patience(place.ost),
                };
                match tokio::time::timeout(patience, race.next()).await {
                    Ok(Some((Ok(found), _))) => {
                        if let Some((turn, server)) = turn.take() {
                            drop(turn);
                            server.pace.came(bytes, server.turns.under_way() == 0);
                        }
                        self.report_faults(chunk, &faults);
                        return Ok(found);
                    }
                    Ok(Some((Err(error), place))) => {
                        let fault = self.place_failed(chunk, &place, &error);
                        faults.push((place, fault));
                        asking = next.next();
                    }
                    Ok(None) => break,
                    Err(_) if next.len() > 0 => {
                        self.mark_trouble(place.ost);
                        asking = next.next();
                    }
                    Err(_) => {
                        let what = format!("chunk {} at {}", chunk.chunk, place.ost.label());
                        let fault = Fault { kind: ErrorKind::Timeout, what };
                        faults.push((place.clone(), fault));
                        break;
                    }
                }
                if asking.is_some() || race.is_empty() {
                    break;
                }
            }
        }
        let is_damage = |fault: &Fault| fault.kind == ErrorKind::Corrupt;
        let damaged =
            faults.iter().filter(|(_, fault)| is_damage(fault)).cloned().collect::<Vec<_>>();
        self.report_faults(chunk, &damaged);
        if !damaged.is_empty()
            && let Some(found) = self.fetch_patched(chunk, &range, (whose, until)).await
        {
            return Ok(found);
        }
        // A freed chunk and a bad one say more than a server that is away.
        let rank = |kind| match kind {
            ErrorKind::Corrupt => 2,
            ErrorKind::Gone => 1,
            _ => 0,
        };
        let worst = faults.into_iter().map(|(_, fault)| fault).max_by_key(|fault| rank(fault.kind));
        let nowhere = || Fault { kind: ErrorKind::Gone, what: format!("chunk {}", chunk.chunk) };
        Err(worst.unwrap_or_else(nowhere))
    }

    /// Waits until so many bytes of a chunk may be asked for.
    pub(crate) async fn has_turn(
        &self,
        chunk: &ChunkRef,
        bytes: u64,
        whose: &Whose,
        until: Instant,
    ) -> Result<(), Fault> {
        let places = self.places_in_order(chunk, bytes);
        let server = places.first().and_then(|place| self.servers.oss(place.ost).ok());
        let Some(server) = server else { return Ok(()) };
        let waited = server.turn(whose.reader, bytes, &whose.is_wanted);
        let turn = timeout_at(until, waited).await.map_err(|_| slow())?;
        turn.map(drop).ok_or_else(unwanted)
    }

    /// Places that are up to date: those in trouble last, the nearest first, and among equals each
    /// chunk another.
    pub fn places_in_order(&self, chunk: &ChunkRef, bytes: u64) -> Vec<OstPlace> {
        let mut places: Vec<_> = chunk.at_osts().filter(|place| !place.is_stale).collect();
        if places.len() > 1 {
            let turn = (chunk.chunk.spread() % places.len() as u64) as usize;
            places.rotate_left(turn);
            let cost =
                |place: &OstPlace| (self.is_in_trouble(place.ost), self.cost(place.ost, bytes));
            places.sort_by_cached_key(cost);
        }
        places
    }

    /// What it costs to have so many bytes from there now, for comparing.
    fn cost(&self, ost: OstIndex, bytes: u64) -> u32 {
        let server = self.servers.oss(ost).ok();
        let load = server.map_or_else(Load::default, |server| Load {
            round_trip: server.ways.round_trip(),
            bytes: server.turns.queued() + bytes,
        });
        self.costs.of(ost, load)
    }

    /// Asks places whose cost is not known, or not any more, for a little of the chunk, beside
    /// whoever reads it.
    fn probe(self: &Arc<Self>, chunk: &ChunkRef, others: &[OstPlace], whose: &Whose) {
        for place in others.iter().filter(|place| self.costs.begin_probe(place.ost)) {
            let (osts, chunk) = (self.clone(), chunk.clone());
            let (place, whose) = (place.clone(), whose.clone());
            tokio::spawn(async move {
                let little = 0..chunk.length.min(REQUEST_FAR);
                let until = Instant::now() + PROBE_PATIENCE;
                let asked = osts.fetch_measured(&chunk, &place, little, (&whose, until));
                match tokio::time::timeout_at(until + GRACE, asked).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        let fault = osts.place_failed(&chunk, &place, &error);
                        osts.report_faults(&chunk, &[(place, fault)]);
                    }
                    Err(_) => osts.mark_trouble(place.ost),
                }
            });
        }
    }

    /// Asks a place, and learns from it what that costs.
    async fn fetch_measured(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        place: &OstPlace,
        range: Range<u64>,
        (whose, until): (&Whose, Instant),
    ) -> Result<(u64, Bytes)> {
        let (asked, own) = (Instant::now(), range.end - range.start);
        let load = self.servers.oss(place.ost).map(|server| Load {
            round_trip: server.ways.round_trip(),
            bytes: server.turns.under_way().max(own),
        });
        let found = self.fetch_from(chunk, place, range, (whose, until)).await?;
        self.costs.learn(place.ost, asked.elapsed(), load.unwrap_or_default());
        Ok(found)
    }

    /// Is the nearest place of the chunk far?
    pub(crate) fn is_far(&self, chunk: &ChunkRef) -> bool {
        let is_near = |place: &Place| {
            let server = place.ost().and_then(|ost| self.servers.oss(ost).ok());
            !place.is_stale && server.is_some_and(|oss| !oss.ways.is_far())
        };
        !chunk.places.iter().any(is_near)
    }

    fn place_failed(&self, chunk: &ChunkRef, place: &OstPlace, error: &Error) -> Fault {
        let (kind, ost, id) = (error.kind(), place.ost.label(), chunk.chunk);
        if kind == ErrorKind::Corrupt && matches!(place.object, ObjectName::External { .. }) {
            tracing::warn!(
                %ost, chunk = %id,
                "adopted file does not match its checksum: it is damaged where it lies, or was \
                 changed with the same size and time (`tieline import --in-place --compare`)"
            );
        } else if kind == ErrorKind::Corrupt {
            tracing::warn!(%ost, chunk = %id, "chunk does not match its checksum");
        } else if kind != ErrorKind::Gone {
            tracing::info!(%ost, chunk = %id, %error, "chunk cannot be read here");
            self.mark_trouble(place.ost);
        }
        let what = match error {
            Error::Corrupt { what } => what.clone(),
            error => format!("chunk {id} at {ost} ({error})"),
        };
        Fault { kind, what }
    }

    /// Tells the MDS which places are bad, so that they are made whole again.
    fn report_faults(self: &Arc<Self>, chunk: &ChunkRef, faults: &[(OstPlace, Fault)]) {
        let Some(chunk) = chunk.chunk.granted() else { return };
        for (place, fault) in faults {
            if matches!(fault.kind, ErrorKind::Corrupt | ErrorKind::Gone)
                && self.is_news(chunk, place.ost)
            {
                let (osts, what) = (self.clone(), fault.what.clone());
                let report = ReportPlace { chunk, ost: place.ost, what };
                tokio::spawn(async move { osts.report(report).await });
            }
        }
    }

    /// Tells the MDS of a bad place.
    pub async fn report(&self, report: ReportPlace) {
        let (ost, chunk) = (report.ost.label(), report.chunk);
        let Some(metadata) = self.metadata.upgrade() else { return };
        if let Err(error) = metadata.report(report, REPORT_PATIENCE).await {
            tracing::info!(%ost, %chunk, %error, "a bad place is not reported yet");
        }
    }

    /// Was the place not reported lately?
    fn is_news(&self, chunk: GrantedId, ost: OstIndex) -> bool {
        let mut reported = lock(&self.reported);
        let now = Instant::now();
        if reported.len() >= REPORTED_MAX {
            reported.retain(|_, since| since.elapsed() < REPORTED_KEPT);
        }
        let known = reported.get(&(chunk, ost)).is_some_and(|at| at.elapsed() < REPORTED_KEPT);
        if known || reported.len() >= REPORTED_MAX {
            return false;
        }
        reported.insert((chunk, ost), now);
        true
    }

    /// Asks one place, with what proves our right.
    pub(crate) async fn ask_place(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        place: &OstPlace,
        range: &Range<u64>,
        (whose, until): (&Whose, Instant),
    ) -> Result<(ReadObjectReply, Bytes)> {
        let mut is_refused = false;
        loop {
            let wanted = (chunk.chunk, &place.object);
            let capability = self.capabilities.to_read(whose, wanted, is_refused).await?;
            let may_ask_again = capability.is_some() && !is_refused;
            let message = ReadObject {
                ost: place.ost,
                object: place.object.clone(),
                offset: place.offset + range.start,
                length: u32::try_from(range.end - range.start).unwrap_or(u32::MAX),
                capability,
                hashed: hashed(chunk, place),
            };
            let left = until.saturating_duration_since(Instant::now());
            let patience = left.min(self.servers.wait_for_osts([place.ost]));
            let asked = self.servers.ask_oss_for(
                place.ost,
                message,
                (Bulk::Empty, range.end - range.start),
                patience,
            );
            match asked.await {
                Err(error) if error.kind() == ErrorKind::PermissionDenied && may_ask_again => {
                    is_refused = true;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) async fn fetch_from(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        place: &OstPlace,
        range: Range<u64>,
        (whose, until): (&Whose, Instant),
    ) -> Result<(u64, Bytes)> {
        let (reply, bulk) = self.ask_place(chunk, place, &range, (whose, until)).await?;
        METRICS.client_fetched_bytes.inc_by(bulk.len() as u64);
        let corrupt = || {
            let (id, file, ost) = (chunk.chunk, whose.file, place.ost.label());
            Error::Corrupt { what: format!("chunk {id} of file {file} at {ost}") }
        };
        let is_aligned = reply.offset.is_multiple_of(BLOCK as u64);
        if !is_aligned || first_mismatch(&bulk, &reply.checks).is_some() {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            return Err(corrupt());
        }
        let own = place.offset..place.offset + chunk.length;
        let found = (reply.offset..reply.offset + bulk.len() as u64, &bulk);
        let (offset, bytes) = clip(found, &own).ok_or_else(corrupt)?;
        let holds_all = offset <= range.start && offset + bytes.len() as u64 >= range.end;
        if !holds_all || !matches_own_checks(chunk, offset, &bytes) {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            return Err(corrupt());
        }
        if !are_of(chunk, (offset, &bytes), reply.proof).await {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            // Its checks fit what it sent: it says nothing that may be believed.
            self.mark_trouble(place.ost);
            return Err(corrupt());
        }
        Ok((offset, bytes))
    }

    /// Until when somebody who wants bytes of a chunk now waits for them.
    pub(crate) fn until(&self, chunk: &ChunkRef, whose: &Whose) -> Instant {
        let osts = chunk.places.iter().filter_map(Place::ost);
        let wait = self.servers.wait_for_osts(osts).max(self.servers.wait_for(whose.file.mdt()));
        Instant::now() + wait
    }

    pub(crate) fn is_in_trouble(&self, ost: OstIndex) -> bool {
        let troubles = lock(&self.troubles);
        troubles.get(&ost).is_some_and(|since| since.elapsed() < TROUBLE_KEPT)
    }

    pub fn mark_trouble(&self, ost: OstIndex) {
        METRICS.client_ost_failures.with_label_values(&[&ost.label()]).inc();
        lock(&self.troubles).insert(ost, Instant::now());
    }
}

/// What shows that bytes from an OST are those of the metadata.
fn shown(chunk: &ChunkRef) -> Proof {
    chunk.digest().map_or(Proof::Checks, |_| Proof::Judged)
}

/// Of what was to be fetched ahead.
fn unwanted() -> Fault {
    Fault { kind: ErrorKind::Cancelled, what: "fetch of what nobody waits for".to_owned() }
}

fn slow() -> Fault {
    Fault { kind: ErrorKind::Timeout, what: "turn to ask for bytes".to_owned() }
}

/// `missing` in aligned pieces that cover it, within a chunk of `length` bytes.
///
/// Only the ends are widened; a neighbour that is here already may be fetched twice, never thrice.
pub(crate) fn pieces(missing: Range<u64>, length: u64, piece: u64) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    let mut at = missing.start / piece * piece;
    while at < missing.end {
        all.push(at..(at + piece).min(length.max(missing.end)));
        at += piece;
    }
    all
}

/// `missing` in requests that no OSS refuses for their size.
pub(crate) fn steps(missing: Range<u64>, request: u64) -> Vec<Range<u64>> {
    let starts = (missing.start..missing.end).step_by(request as usize);
    starts.map(|at| at..(at + request).min(missing.end)).collect()
}

/// The part of found bytes that lies in `own`, counted from its start.
fn clip((found, bytes): (Range<u64>, &Bytes), own: &Range<u64>) -> Option<(u64, Bytes)> {
    let (from, to) = (found.start.max(own.start), found.end.min(own.end));
    let slice = from.checked_sub(found.start)? as usize..to.checked_sub(found.start)? as usize;
    (slice.start <= slice.end).then(|| (from - own.start, bytes.slice(slice)))
}

/// Checks that the MDS keeps, for objects that do not carry their own.
fn matches_own_checks(chunk: &ChunkRef, offset: u64, bytes: &Bytes) -> bool {
    let Some(checks) = &chunk.checks else { return true };
    let block = BLOCK as u64;
    let mut at = offset.div_ceil(block) * block;
    while at < offset + bytes.len() as u64 {
        let from = (at - offset) as usize;
        let to = (from + BLOCK).min(bytes.len());
        let is_whole = to - from == BLOCK || offset + to as u64 == chunk.length;
        let known = checks.get((at / block) as usize);
        if is_whole && known.is_some_and(|&check| crc32c(&bytes[from..to]) != check) {
            return false;
        }
        at += block;
    }
    true
}
