//! Reads: what a range is made of, and its bytes.
//!
//! A range is pieces of what was written here, inline bytes, holes and ranges of chunks. Chunk
//! ranges that are not in memory are fetched all at once ([`tieline_bytes`]), and with them what
//! the reader is expected to want next ([`tieline_foresight`]).
//!
//! Invariants: what was written here is read here; extents are used only while the file's version
//! is believed, or just fetched; a chunk that is gone makes the extents be fetched anew, once.

use crate::asking::Asking;
use crate::door::Giving;
use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::{Error, HandleId, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::door::Edition;
use tieline_believed::{Stamp, Under, access};
use tieline_bytes::Segment;
use tieline_bytes::Whose;
use tieline_foresight::ahead::Width;
use tieline_foresight::ahead::{Advice, Frame};
use tieline_foresight::mode::ReadMode;
use tieline_foresight::past::anew::PIECE_MAX;
use tieline_foresight::past::{Foretold, Step};
use tieline_ranges::known::Piece;
use tieline_servers::turns::{FIRST, Reader};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Attributes, Caller, Content, ErrorKind, Extent, FileId, Version};
use tieline_wire::meta::{AttributesReply, ExtentPage, GetAttributes, GetExtents, LeaseGrant};
use tokio::time::Instant;

/// What one page of extents holds at most.
pub(crate) const EXTENTS_PAGE: u32 = 1024;
/// Fetches in a row that others may give up under a reader.
const LEFT_MAX: usize = 64;
/// Wider fetches with damage in them that may be on their way over a range.
pub(crate) const DAMAGED_MAX: usize = 2;
/// Until those who were told so are gone, too.
const LEFT_PAUSE: Duration = Duration::from_millis(1);
/// A kernel asks again so soon.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
/// As many requests as a kernel's read ahead is made of, and some.
const IN_VAIN_MAX: usize = 16;
/// Views of a range that others may overtake before its read ends.
const VIEWS_MAX: usize = 64;
/// Reads of a range whose bytes others overtake before the door has them.
pub(crate) const TRIES_MAX: usize = 64;
/// How often a file may go to tape again under its reader.
const BACK_MAX: usize = 16;
/// Pages for one read: far more than the largest read can need.
const PAGES_MAX: usize = 4096;
/// OSTs whose ways are counted for one file.
const STRIPE_MAX: usize = 16;
/// The first window ahead of a reader; over distance it must last for a round trip.
const WINDOW_FIRST: u64 = 512 << 10;
const WINDOW_FIRST_FAR: u64 = 1 << 20;
/// At least so much for those who read on and on.
const WINDOW_LEAST: u64 = 8 << 20;
/// So far beyond what is fetched is a reader told where bytes are, if he has read as much: a page
/// of extents takes a round trip, in which a cache of this machine gives more than a window.
const EXTENTS_AHEAD: u64 = 256 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A part of a read.
enum Part {
    Bytes(Bytes),
    Zeroes(u64),
    Chunk(Vec<Segment>),
}

impl FileHandle {
    /// Did a read of this place just end in vain? A kernel whose read ahead fails asks once more at
    /// once, for its first page: whoever waited once does not wait twice.
    fn was_in_vain(&self, range: &Range<u64>) -> bool {
        let mut last = lock(&self.in_vain);
        last.retain(|(at, _)| at.elapsed() < ASKED_AGAIN);
        let found = last.iter().position(|(_, vain)| vain.contains(&range.start));
        found.and_then(|at| last.remove(at)).is_some()
    }

    fn is_in_vain(&self, range: Range<u64>) {
        let mut last = lock(&self.in_vain);
        if last.len() >= IN_VAIN_MAX {
            last.pop_front();
        }
        last.push_back((Instant::now(), range));
    }
}

impl Shared {
    pub(crate) async fn read(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Bytes>> {
        let open = self.handles.usable(handle)?;
        if !open.access.read {
            return Err(Error::local(ErrorKind::BadHandle, "handle is not open for reading"));
        }
        if !open.access.unnoted {
            self.accessed(&open.caller, open.file.id, true);
        }
        let range = offset..offset.saturating_add(length.into());
        let giving = Giving::new(&open.file, range.clone());
        let mut tries = 0;
        loop {
            let (bytes, basis) = self.read_through(&open, handle, range.clone()).await?;
            tries += 1;
            if self.give(&giving, basis, tries == TRIES_MAX).await {
                let total: usize = bytes.iter().map(Bytes::len).sum();
                METRICS.client_read_bytes.inc_by(total as u64);
                return Ok(bytes);
            }
        }
    }

    /// Reads as the pattern of the handle's reads suggests; says what the bytes rest on.
    async fn read_through(
        self: &Arc<Self>,
        open: &Arc<FileHandle>,
        handle: HandleId,
        range: Range<u64>,
    ) -> Result<(Vec<Bytes>, Basis)> {
        if open.was_in_vain(&range) {
            return Err(Error::local(ErrorKind::Timeout, "these bytes did not come in time"));
        }
        let asking = Asking::new(&open.file, range.clone());
        self.come_to_bytes(&open.caller, &open.file).await;
        drop(asking);
        let frame = self.frame(&open.file);
        let (mode, piece, is_announced) = {
            let pattern = lock(&open.pattern);
            (pattern.mode, pattern.piece(&range), pattern.announced_with(&range).is_some())
        };
        let foretold = match mode {
            ReadMode::Auto if !is_announced => self.foretell(open, &range, (frame, piece)),
            _ => Foretold::default(),
        };
        // What is read in pieces is no stream before it is longer than those.
        let run = if piece.is_some() { foretold.run.max(PIECE_MAX) } else { foretold.run };
        let frame = Frame { run, ..frame };
        let advice = lock(&open.pattern).observe(range.clone(), frame);
        let _observed = Observed { open, range: range.clone() };
        let reading = Reading { open, handle, advice, foretold };
        match self.read_for(&reading, range.clone()).await {
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Cancelled) => {
                // As for a reader of whom nothing is known.
                let width = reading.advice.width;
                self.read_on(&open.caller, &open.file, range, width).await
            }
            // What is damaged may lie beside what is asked for.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.read_exactly(open, range).await
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                open.is_in_vain(range);
                Err(error)
            }
            other => other,
        }
    }

    /// Nothing but the range, past what is on its way with damage in it.
    async fn read_exactly(
        self: &Arc<Self>,
        open: &FileHandle,
        range: Range<u64>,
    ) -> Result<(Vec<Bytes>, Basis)> {
        let mut exact = self.read_on(&open.caller, &open.file, range.clone(), Width::Exact).await;
        for _ in 0..DAMAGED_MAX {
            if !exact.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
                break;
            }
            exact = self.read_on(&open.caller, &open.file, range.clone(), Width::Exact).await;
        }
        exact
    }

    /// What is asked for, and what is expected to be: all of it is on its way before anything is
    /// waited for.
    async fn read_for(
        self: &Arc<Self>,
        reading: &Reading<'_>,
        range: Range<u64>,
    ) -> Result<(Vec<Bytes>, Basis)> {
        let Reading { open, handle, advice, foretold } = reading;
        let reader = Reader::Handle(*handle);
        let now = if advice.before < FIRST { Reader::First(*handle) } else { reader };
        let asking = Asking::new(&open.file, range.clone());
        let how = (advice.width, now);
        let (begun, basis) = self.begin(&open.caller, &open.file, &[range], how).await?;
        drop(asking);
        let width = if advice.is_announced { Width::Guess } else { Width::Ahead };
        for ahead in &advice.ahead {
            self.read_ahead(open, ahead.clone(), (width, reader));
            self.look_ahead(open, ahead.end..ahead.end + advice.before.min(EXTENTS_AHEAD));
        }
        for run in &foretold.ranges {
            self.read_ahead(open, run.clone(), (Width::Guess, Reader::File(open.file.id)));
        }
        let parts = begun.into_iter().flatten().collect();
        Ok((collect(parts).await?, basis))
    }

    /// What will be read after this, by what was read before.
    fn foretell(
        &self,
        open: &FileHandle,
        range: &Range<u64>,
        (frame, piece): (Frame, Option<u64>),
    ) -> Foretold {
        let (version, size) = open.file.with(|state| (state.version, state.size));
        let range = range.start..range.end.min(size);
        if range.is_empty() || open.access.write {
            return Foretold::default();
        }
        let (file, directory) = (open.file.id, open.directory);
        let window = frame.window_max / 2;
        let step = Step { file, version, directory, range, piece, window };
        lock(&self.past).note(&step)
    }

    /// How far ahead of a reader of this file to fetch: what the ways to its OSTs hold, several
    /// times, so that a reader who halts a moment does not halt them. Far servers have theirs halt
    /// for two round trips and more whenever a packet is lost.
    pub(crate) fn frame(&self, file: &File) -> Frame {
        let stripe = file.with(|state| state.stripe.clone());
        let mut servers = BTreeMap::new();
        for ost in stripe.into_iter().take(STRIPE_MAX) {
            if let Ok(server) = self.servers.oss(ost) {
                servers.insert(server.number, server);
            }
        }
        let is_far = servers.values().any(|server| server.ways.is_far());
        let room: u64 = servers.values().map(|server| server.room()).sum();
        let most = self.settings.window_max.min(self.settings.read_bytes_max as u64 / 4);
        let times = if is_far { 4 } else { 2 };
        let window_max = (times * room).clamp(WINDOW_LEAST.min(most), most);
        let window_first = if is_far { WINDOW_FIRST_FAR } else { WINDOW_FIRST };
        Frame { window_first: window_first.min(window_max), window_max, run: 0 }
    }

    pub(crate) async fn read_file(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        range: Range<u64>,
        width: Width,
    ) -> Result<Vec<Bytes>> {
        self.read_on(caller, file, range, width).await.map(|(bytes, _)| bytes)
    }

    async fn read_on(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        range: Range<u64>,
        width: Width,
    ) -> Result<(Vec<Bytes>, Basis)> {
        let how = (width, Reader::Own);
        let (mut read, basis) = self.read_all_on(caller, file, &[range], how).await?;
        Ok((read.pop().unwrap_or_default(), basis))
    }

    /// The bytes of several ranges, all as the file was at one time.
    pub(crate) async fn read_all_on(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        ranges: &[Range<u64>],
        how: (Width, Reader),
    ) -> Result<(Vec<Vec<Bytes>>, Basis)> {
        let mut once = self.read_once(caller, file, ranges, how).await;
        for _ in 0..LEFT_MAX {
            if !once.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
                break;
            }
            // It was fetched ahead for somebody who left just now, and so may what is behind it.
            tokio::time::sleep(LEFT_PAUSE).await;
            once = self.read_once(caller, file, ranges, how).await;
        }
        match once {
            Err(error) if error.kind() == ErrorKind::Gone => {
                // Our extents are older than the chunk's end.
                file.with(|state| state.version = Version(0));
                self.read_once(caller, file, ranges, how).await
            }
            other => other,
        }
    }

    async fn read_once(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        ranges: &[Range<u64>],
        how: (Width, Reader),
    ) -> Result<(Vec<Vec<Bytes>>, Basis)> {
        let (begun, basis) = self.begin(caller, file, ranges, how).await?;
        let mut read = Vec::with_capacity(begun.len());
        for parts in begun {
            read.push(collect(parts).await?);
        }
        Ok((read, basis))
    }

    /// Starts whatever is missing of ranges.
    async fn begin(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        ranges: &[Range<u64>],
        (width, reader): (Width, Reader),
    ) -> Result<(Vec<Vec<Part>>, Basis)> {
        let (mut plans, mut basis) = self.plan(caller, file, ranges).await?;
        for _ in 0..BACK_MAX {
            if !plans.iter().flatten().any(Planned::is_nearline) {
                break;
            }
            self.bring_back_for(caller, file, ranges).await?;
            (plans, basis) = self.plan(caller, file, ranges).await?;
        }
        let whose = Whose {
            file: file.id,
            caller: caller.clone(),
            offset: 0,
            reader,
            is_wanted: Arc::default(),
        };
        let start = |plan: Vec<Planned>| {
            plan.into_iter().map(|piece| self.start(piece, width, &whose)).collect()
        };
        Ok((plans.into_iter().map(start).collect(), basis))
    }

    /// What ranges are made of. Whatever is learned between a view and the plan may forget what was
    /// seen: then the view is taken again.
    async fn plan(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Vec<Planned>>, Basis)> {
        for _ in 0..VIEWS_MAX {
            self.view_committed(caller, file, ranges).await?;
            let (plans, basis) = file.with(|state| {
                let basis = (state.door.edition(), self.is_sure(file.id, state));
                let plans = ranges.iter().map(|range| plan(state, range.clone()));
                (plans.collect::<Option<_>>(), basis)
            });
            let Some(plans) = plans else { continue };
            return Ok((plans, basis));
        }
        Err(Error::local(ErrorKind::Conflict, format!("extents of {} that change", file.id)))
    }

    fn start(self: &Arc<Self>, piece: Planned, width: Width, whose: &Whose) -> Part {
        match piece {
            Planned::Own(bytes) => Part::Bytes(bytes),
            Planned::Committed(Piece { range, extent: None }) => {
                Part::Zeroes(range.end - range.start)
            }
            Planned::Committed(Piece { extent: Some(extent), .. }) => match extent.content {
                Content::Inline(bytes) => Part::Bytes(bytes.into()),
                Content::Hole => Part::Zeroes(extent.length),
                Content::Chunk(chunk) => {
                    let range = chunk.skip..chunk.skip + extent.length;
                    let whose = Whose { offset: extent.offset, ..whose.clone() };
                    Part::Chunk(self.chunks.start(&chunk, range, width, &whose))
                }
            },
        }
    }

    /// Makes sure that the committed extents of `range` and the file's size are known and believed,
    /// or just fetched.
    pub(crate) async fn view(&self, caller: &Caller, file: &File, range: Range<u64>) -> Result<()> {
        let is_fresh = self.is_believed(file);
        self.view_as(caller, file, range, is_fresh).await
    }

    /// The same of what is committed, as long as we are told of each commit before it: what others
    /// have written beyond that they commit soon ([`crate::background`]).
    pub(crate) async fn view_committed(
        &self,
        caller: &Caller,
        file: &File,
        ranges: &[Range<u64>],
    ) -> Result<()> {
        let mut is_fresh =
            self.is_believed(file) || file.with(|state| self.is_sure(file.id, state));
        for range in ranges {
            self.view_as(caller, file, range.clone(), is_fresh).await?;
            // What was just fetched is good for all.
            is_fresh = true;
        }
        Ok(())
    }

    async fn view_as(
        &self,
        caller: &Caller,
        file: &File,
        range: Range<u64>,
        mut is_fresh: bool,
    ) -> Result<()> {
        if range.is_empty() && !is_fresh && !self.may_read(caller, file) {
            // Who may write alone is told how long the file is, and of no extents.
            return self.fetch_size(caller, file).await;
        }
        // An own change that is answered meanwhile may forget what a page just told, or know better
        // than the page: the same place is asked for again then.
        for _ in 0..PAGES_MAX {
            let missing = file.with(|state| {
                let end = range.end.min(state.size);
                state.extents.unknown(range.start.min(end)..end)
            });
            let offset = match (is_fresh, missing) {
                (true, None) => return Ok(()),
                (_, Some(offset)) => offset,
                (false, None) => range.start,
            };
            is_fresh |= self.fetch_extents(caller, file, offset).await?;
        }
        Err(Error::local(ErrorKind::Conflict, format!("extents of {} that change", file.id)))
    }

    /// Is what is known of a file's bytes what is committed, and are we told before that changes?
    /// Then the door's bytes are right until we are.
    pub(crate) fn is_sure(&self, id: FileId, state: &State) -> bool {
        let mut tables = self.cache.lock();
        let known = tables.attributes(id);
        let is_believed = known.is_some_and(|known| known.attributes.version == state.version);
        (is_believed || state.is_heard_of(id, &tables)) && !state.door.is_behind(state.version)
    }

    /// Are the file's version and size surely what we have?
    pub(crate) fn is_believed(&self, file: &File) -> bool {
        file.with(|state| {
            let known = self.cache.lock().attributes(file.id);
            known.is_some_and(|known| {
                let is_behind = state.door.is_behind(state.version);
                let is_same = known.attributes.version == state.version && !is_behind;
                if is_same && known.attributes.size != state.size {
                    state.set_size(known.attributes.size);
                }
                is_same
            })
        })
    }

    fn may_read(&self, caller: &Caller, file: &File) -> bool {
        self.cache.lock().allows(caller, file.id, access::READ)
    }

    async fn fetch_size(&self, caller: &Caller, file: &File) -> Result<()> {
        let told = self.ask(caller, file.id, GetAttributes { id: file.id }).await?;
        let AttributesReply { attributes, lease } = told.reply;
        self.learn_told(file, told.stamp, &lease, attributes, None);
        Ok(())
    }

    /// Fetches a page, which must tell of `offset`; says whether it was news.
    pub(crate) async fn fetch_extents(
        &self,
        caller: &Caller,
        file: &File,
        offset: u64,
    ) -> Result<bool> {
        let message = GetExtents { id: file.id, offset, limit: EXTENTS_PAGE };
        let told = self.ask(caller, file.id, message).await?;
        let reply = told.reply;
        if reply.page.covered <= offset && offset < reply.attributes.size {
            let what = format!("a page of extents of {} that does not go on at {offset}", file.id);
            return Err(Error::local(ErrorKind::Protocol, what));
        }
        let page = Some((offset, &reply.page));
        Ok(self.learn_told(file, told.stamp, &reply.lease, reply.attributes, page))
    }

    /// Learns what was told of a file, and of its extents from an offset on; says whether that was
    /// news.
    fn learn_told(
        &self,
        file: &File,
        stamp: Stamp,
        lease: &LeaseGrant,
        attributes: Attributes,
        page: Option<(u64, &ExtentPage)>,
    ) -> bool {
        let as_of = lease.as_of;
        let (known, heard) = {
            let mut tables = self.cache.lock();
            let known = tables.admit(stamp, lease);
            (known, tables.units.covering(stamp, lease))
        };
        let is_news = file.with(|state| {
            if state.version == Version(0) {
                // Nothing of before counts, whatever its age.
                state.as_of = as_of;
            }
            let is_news = match page {
                Some((offset, page)) => state.learn_page(as_of, &attributes, offset, page),
                None => state.learn(as_of, &attributes),
            };
            if is_news {
                state.heard_under = heard;
            }
            is_news
        });
        let mut tables = self.cache.lock();
        tables.learn_attributes(known, lease, Under::Granted, attributes);
        is_news
    }

    /// Starts what a reader is expected to want, unless too much is on its way.
    pub(crate) fn read_ahead(
        self: &Arc<Self>,
        open: &Arc<FileHandle>,
        range: Range<u64>,
        (width, reader): (Width, Reader),
    ) {
        if range.is_empty() || self.chunks.memory.flying() > self.settings.read_bytes_max / 2 {
            return;
        }
        let (pieces, unknown) = open.file.with(|state| {
            let range = range.start.min(state.size)..range.end.min(state.size);
            match state.extents.unknown(range.clone()) {
                Some(end) => {
                    let end = end.max(range.start);
                    (state.extents.plan(range.start..end), end..range.end)
                }
                None => (state.extents.plan(range), 0..0),
            }
        });
        if !unknown.is_empty() {
            self.read_ahead_later(open, unknown, Some((width, reader)));
        }
        for extent in pieces.into_iter().filter_map(|piece| piece.extent) {
            if let Extent { length, content: Content::Chunk(chunk), offset } = extent
                // Nobody asked for that yet.
                && !chunk.is_nearline()
            {
                let (file, caller) = (open.file.id, open.caller.clone());
                let whose = Whose { file, caller, offset, reader, is_wanted: Arc::default() };
                self.chunks.start(&chunk, chunk.skip..chunk.skip + length, width, &whose);
            }
        }
    }
}

impl Shared {
    /// Learns what a reader will come to is made of, unless somebody does already.
    fn look_ahead(self: &Arc<Self>, open: &Arc<FileHandle>, range: Range<u64>) {
        let missing = open.file.with(|state| {
            let end = range.end.min(state.size);
            state.extents.unknown(range.start.min(end)..end).map(|from| from..end)
        });
        if let (Some(missing), Ok(_)) = (missing, open.looking.try_lock()) {
            self.read_ahead_later(open, missing, None);
        }
    }

    /// The same, and then reads ahead, if that is wanted.
    fn read_ahead_later(
        self: &Arc<Self>,
        open: &Arc<FileHandle>,
        range: Range<u64>,
        how: Option<(Width, Reader)>,
    ) {
        let (shared, open) = (self.clone(), open.clone());
        tokio::spawn(async move {
            let _one = open.looking.lock().await;
            let wanted = std::slice::from_ref(&range);
            let seen = shared.view_committed(&open.caller, &open.file, wanted).await;
            let is_known = open.file.with(|state| state.extents.unknown(range.clone()).is_none());
            // Where it failed, whoever reads it will hear why.
            if let (Ok(()), true, Some(how)) = (seen, is_known, how) {
                shared.read_ahead(&open, range, how);
            }
        });
    }
}

/// What bytes are made of: of which edition, and whether we are told before that changes.
pub(crate) type Basis = (Edition, bool);

/// A read, and what goes with it.
struct Reading<'a> {
    open: &'a Arc<FileHandle>,
    handle: HandleId,
    advice: Advice,
    foretold: Foretold,
}

/// A read that is under way: however it ends, its pattern hears.
struct Observed<'a> {
    open: &'a FileHandle,
    range: Range<u64>,
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        lock(&self.open.pattern).answered(&self.range);
    }
}

/// Waits for all parts.
async fn collect(parts: Vec<Part>) -> Result<Vec<Bytes>> {
    let mut bytes = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Bytes(own) => bytes.push(own),
            Part::Zeroes(length) => push_zeroes(&mut bytes, length),
            Part::Chunk(segments) => {
                for segment in segments {
                    bytes.push(match segment {
                        Segment::Here(here) => here,
                        Segment::Coming(flight, range) => flight.bytes(range).await?,
                    });
                }
            }
        }
    }
    Ok(bytes)
}

/// A piece of a read as it was planned.
enum Planned {
    Own(Bytes),
    Committed(Piece),
}

impl Planned {
    /// Does tape alone have it?
    fn is_nearline(&self) -> bool {
        let Self::Committed(Piece { extent: Some(extent), .. }) = self else { return false };
        matches!(&extent.content, Content::Chunk(chunk) if chunk.is_nearline())
    }
}

/// What `range` is made of, up to the file's end here: own bytes over committed ones. `None`: not
/// all of it is known.
fn plan(state: &State, range: Range<u64>) -> Option<Vec<Planned>> {
    let end = range.end.min(state.size_here());
    let mut pieces = Vec::new();
    let mut at = range.start;
    for (offset, bytes) in state.overlay.read(range.start..end.max(range.start)) {
        plan_committed(state, at..offset, &mut pieces)?;
        at = offset + bytes.len() as u64;
        pieces.push(Planned::Own(bytes));
    }
    plan_committed(state, at..end, &mut pieces)?;
    Some(pieces)
}

fn plan_committed(state: &State, range: Range<u64>, pieces: &mut Vec<Planned>) -> Option<()> {
    if range.is_empty() {
        return Some(());
    }
    let known_end = range.end.min(state.size).max(range.start);
    if state.extents.unknown(range.start..known_end).is_some() {
        // Nothing is not the same as a hole.
        return None;
    }
    let known = state.extents.plan(range.start..known_end);
    pieces.extend(known.into_iter().map(Planned::Committed));
    if known_end < range.end {
        // Between the committed end and what was written beyond it.
        let hole = Piece { range: known_end..range.end, extent: None };
        pieces.push(Planned::Committed(hole));
    }
    Some(())
}

fn push_zeroes(bytes: &mut Vec<Bytes>, length: u64) {
    let mut left = length;
    while left > 0 {
        let some = left.min(ZEROES.len() as u64);
        bytes.push(Bytes::from_static(&ZEROES).slice(..some as usize));
        left -= some;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever forgets extents between a view and its plan does not make them holes.
    #[test]
    fn what_is_not_known_is_no_hole() {
        let mut state = State::default();
        state.set_size(10);
        assert!(plan(&state, 0..10).is_none());
        let content = Content::Inline(b"abcde".to_vec());
        let extents = vec![Extent { offset: 0, length: 5, content }];
        state.extents.learn(0, &extents, 10);
        assert_eq!(plan(&state, 0..20).map(|pieces| pieces.len()), Some(2));
        // Others have made it longer meanwhile.
        state.size = 12;
        assert!(plan(&state, 0..20).is_none());
        assert!(plan(&state, 0..10).is_some() && plan(&state, 20..30).is_some());
        state.overlay.write(10, Bytes::from_static(b"zz"));
        assert_eq!(plan(&state, 0..20).map(|pieces| pieces.len()), Some(3));
    }
}
