//! What the ways to a file's chunks cost now, for people who ask.
//!
//! Measured when it is asked: a few small requests for the round trip, then some of the chunk's own
//! bytes for the rate. What is found is what readers of this client go by from then on.

use crate::costs::Load;
use crate::{Osts, Whose};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_servers::{Error, Result};
use tieline_types::checksum::BLOCK;
use tieline_types::{ChunkRef, ErrorKind, OstPlace};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Small requests, of which the shortest counts.
const PROBES: usize = 3;
/// Bytes that are read to know a rate, and in which steps: as many as fill most ways twice.
const SAMPLE: u64 = 16 << 20;
const STEP: u64 = 256 << 10;

/// One way to a chunk.
#[derive(Clone, Debug)]
pub struct PathCost {
    /// The server as it calls itself, and where it was reached.
    pub server: String,
    pub round_trip: Duration,
    /// Bytes per second.
    pub rate: u64,
}

impl Osts {
    /// What it costs to read a chunk from one of its places.
    pub async fn path_cost(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        place: &OstPlace,
        whose: &Whose,
    ) -> Result<PathCost> {
        let server = self.servers.oss(place.ost)?;
        let small = 0..chunk.length.min(BLOCK as u64);
        let mut shortest = Duration::MAX;
        for _ in 0..PROBES {
            let asked = Instant::now();
            let until = self.until(chunk, whose);
            self.fetch_from(chunk, place, small.clone(), (whose, until)).await?;
            shortest = shortest.min(asked.elapsed());
        }
        server.ways.warm();
        // Twice: the first time the ways find out what they can take.
        let first = self.sample(chunk, place, whose).await?;
        let second = self.sample(chunk, place, whose).await?;
        let (bytes, took) = if second.1 < first.1 { second } else { first };
        // The last byte comes a round trip after it was asked for, whatever the rate.
        let moving = took.saturating_sub(shortest).max(Duration::from_micros(1));
        let rate = (bytes as f64 / moving.as_secs_f64()) as u64;
        let load = Load { round_trip: Some(shortest), bytes };
        self.costs.learn(place.ost, took, load);
        let round_trip = server.ways.round_trip().unwrap_or(shortest).min(shortest);
        let name = server.ways.first().map_or_else(String::new, |channel| channel.server());
        Ok(PathCost { server: name, round_trip, rate })
    }

    /// Reads so much of a chunk, all at once; bytes and time.
    async fn sample(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        place: &OstPlace,
        whose: &Whose,
    ) -> Result<(u64, Duration)> {
        let end = chunk.length.min(SAMPLE);
        let (started, until) = (Instant::now(), self.until(chunk, whose));
        let mut asked = JoinSet::new();
        for start in (0..end).step_by(STEP as usize) {
            let range: Range<u64> = start..(start + STEP).min(end);
            let (osts, chunk, place) = (self.clone(), chunk.clone(), place.clone());
            let whose = whose.clone();
            asked.spawn(
                async move { osts.fetch_from(&chunk, &place, range, (&whose, until)).await },
            );
        }
        let stopped = |_| Error::local(ErrorKind::Internal, "a measure");
        while let Some(ended) = asked.join_next().await {
            ended.map_err(stopped)??;
        }
        Ok((end, started.elapsed()))
    }
}
