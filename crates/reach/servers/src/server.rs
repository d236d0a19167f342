//! One server and our ways to it.

use crate::clock::ServerClock;
use crate::pace::Pace;
use crate::turns::{Reader, Turn, Turns};
use crate::ways::{Chosen, Ways};
use crate::{Error, Result, lock};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use tieline_keep::Kept;
use tieline_net::{Incoming, read_reply};
use tieline_types::{ErrorKind, Grant, GrantedId, MdtIndex, ServerNumber};
use tieline_wire::Call;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bytes of chunks on their way to one OSS: enough for 1 Gbit/s over 250 ms.
pub(crate) const PUT_BYTES_PER_OSS: usize = 32 << 20;
/// They are counted in units of so many, and a small chunk as so many of these.
pub const PUT_GRAIN: usize = 4 << 10;
pub const PUT_GRAINS_MIN: usize = 16;
pub const PUT_GRAINS_MAX: usize = PUT_BYTES_PER_OSS / PUT_GRAIN;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServerKind {
    Mds,
    Oss,
}

impl ServerKind {
    pub fn label(self) -> &'static str {
        match self {
            Self::Mds => "mds",
            Self::Oss => "oss",
        }
    }
}

/// One server and our ways to it.
pub struct Server {
    pub number: ServerNumber,
    pub(crate) kind: ServerKind,
    pub ways: Ways,
    pub turns: Turns,
    pub pace: Pace,
    pub(crate) clock: Arc<ServerClock>,
    /// The grant that chunk ids are counted under, and the last serial.
    pub(crate) serial: Mutex<(Grant, u64)>,
    pub(crate) serial_first: u64,
    pub puts: Arc<Semaphore>,
    /// What its last welcome says that it can do.
    pub(crate) features: AtomicU64,
    pub(crate) addresses: Vec<String>,
    pub(crate) session: Mutex<Option<Kept>>,
    /// When the absence that it announced is over.
    pub(crate) held_until: Mutex<Option<Instant>>,
}

impl Server {
    /// A connection for a request that moves about `weight` bytes.
    pub(crate) fn channel(&self, weight: u64) -> Result<Chosen> {
        let none = || Error::local(ErrorKind::Unreachable, "server without a channel");
        self.ways.choose(weight).ok_or_else(none)
    }

    /// The reply in what a server answered, to this process or to one before.
    pub fn read<C: Call>(&self, incoming: &Incoming) -> Result<C::Reply> {
        Ok(read_reply::<C>(&*self.channel(0)?.channel, incoming)?)
    }

    /// How many bytes are to be under way from it.
    pub fn room(&self) -> u64 {
        // Each of many connections needs something to do, whatever rate they come to together.
        let is_one_way = self.ways.is_far() && !self.ways.are_many();
        self.pace.room(self.ways.round_trip(), is_one_way)
    }

    /// Waits until so many bytes may be asked for.
    pub async fn turn(
        &self,
        reader: Reader,
        weight: u64,
        is_wanted: &Arc<AtomicBool>,
    ) -> Option<Turn> {
        self.turns.wait(reader, weight, is_wanted, self.room()).await
    }

    /// What chunk ids carry now; `None` before the first welcome.
    pub fn grant(&self) -> Option<Grant> {
        Some(self.ways.first()?.standing()?.grant)
    }

    /// Is any of its connections up, as far as we know?
    pub fn is_connected(&self) -> bool {
        let mut standings = self.ways.channels().filter_map(|channel| channel.standing());
        standings.any(|standing| standing.is_connected)
    }

    /// A chunk id that was never used. Serials count from 1 under each grant, and from a larger
    /// number in a process that goes on with it.
    pub fn chunk_id(&self, mdt: MdtIndex) -> Option<GrantedId> {
        let grant = self.grant()?;
        let mut last = lock(&self.serial);
        if last.0 != grant {
            *last = (grant, self.serial_first);
        }
        last.1 += 1;
        Some(GrantedId { mdt, grant, serial: last.1 })
    }
}
