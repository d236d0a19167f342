//! Who let recalls run out, and is given no leases for a while.
//!
//! The first time for as long as a lease lasts, each time twice as long as before, and never longer
//! than [`LONGEST`]. Who was well for so long after it begins anew.
//!
//! A session is held to it, and its host: sessions that come from there later, and from
//! [`HOST_TIMES`] on all of them. So one that sleeps among many of a farm costs the others nothing,
//! and many that were opened first are no way around it.
//!
//! Invariant: the table is bounded, and what is over goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::SessionId;
use tokio::time::Instant;

/// The longest time, and so long it is remembered beyond.
const LONGEST: Duration = Duration::from_secs(600);
/// How many of a host's sessions let recalls run out before all of them are held to it.
const HOST_TIMES: u32 = 4;
/// Hosts that are remembered.
const HOSTS_MAX: usize = 4096;

pub struct Suspended {
    lease: Duration,
    sessions: BTreeMap<SessionId, Known>,
    hosts: BTreeMap<Arc<str>, Record>,
}

/// A session that is open.
struct Known {
    host: Arc<str>,
    came: Instant,
    record: Option<Record>,
}

/// Of a session, or a host.
#[derive(Clone, Copy)]
struct Record {
    times: u32,
    since: Instant,
    until: Instant,
}

impl Record {
    /// Once more, now.
    fn more(before: Option<Self>, lease: Duration) -> Self {
        let now = Instant::now();
        let before = before.filter(|before| !before.is_over(now));
        let times = before.map_or(0, |before| before.times) + 1;
        let span = lease.saturating_mul(1 << (times - 1).min(16)).min(LONGEST);
        let since = before.map_or(now, |before| before.since);
        Self { times, since, until: now + span }
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.until + LONGEST
    }
}

impl Suspended {
    pub fn new(lease: Duration) -> Self {
        Self { lease, sessions: BTreeMap::new(), hosts: BTreeMap::new() }
    }

    /// A session begins, or is back.
    pub fn came(&mut self, session: SessionId, host: &str) {
        let host: Arc<str> = host.into();
        let came = Instant::now();
        let known = self.sessions.entry(session);
        known.or_insert(Known { host: host.clone(), came, record: None }).host = host.clone();
    }

    pub fn end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// A session did not answer in time. Says for how long it is given nothing, if that is news:
    /// what else it does not answer meanwhile it got before.
    pub fn ran_out(&mut self, session: SessionId) -> Option<Duration> {
        let now = Instant::now();
        let known = self.sessions.get_mut(&session)?;
        if known.record.is_some_and(|record| now < record.until) {
            return None;
        }
        let record = Record::more(known.record, self.lease);
        known.record = Some(record);
        let host = known.host.clone();
        let of_host = Record::more(self.hosts.get(&host).copied(), self.lease);
        self.hosts.insert(host, of_host);
        self.shrink(now);
        Some(record.until - now)
    }

    /// Until when a session is given no leases, if it is not.
    pub fn until(&self, session: SessionId) -> Option<Instant> {
        let known = self.sessions.get(&session)?;
        let of_host = self.hosts.get(&known.host);
        let of_host = of_host.filter(|host| host.times >= HOST_TIMES || known.came >= host.since);
        let until = known.record.iter().chain(of_host).map(|record| record.until).max()?;
        (Instant::now() < until).then_some(until)
    }

    /// Sessions that are given no leases now.
    pub fn count(&self) -> usize {
        self.sessions.keys().filter(|session| self.until(**session).is_some()).count()
    }

    fn shrink(&mut self, now: Instant) {
        if self.hosts.len() <= HOSTS_MAX {
            return;
        }
        self.hosts.retain(|_, record| !record.is_over(now));
        while self.hosts.len() > HOSTS_MAX {
            let first = self.hosts.iter().min_by_key(|(_, record)| record.until);
            let Some(first) = first.map(|(host, _)| host.clone()) else { return };
            self.hosts.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const LEASE: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_millis(1);

    fn left(table: &Suspended, session: u64) -> u64 {
        let until = table.until(SessionId(session));
        until.map_or(0, |until| (until - Instant::now()).as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_doubles_up_to_ten_minutes_and_is_forgotten() {
        let (mut table, session) = (Suspended::new(LEASE), SessionId(1));
        table.came(session, "a");
        for seconds in [20, 40, 80, 160, 320, 600, 600] {
            assert_eq!(left(&table, 1), 0);
            assert_eq!(table.ran_out(session), Some(Duration::from_secs(seconds)));
            assert_eq!(table.ran_out(session), None, "all at once are one time");
            assert_eq!((left(&table, 1), table.count()), (seconds, 1));
            advance(Duration::from_secs(seconds)).await;
        }
        advance(LONGEST).await;
        assert_eq!(table.ran_out(session), Some(LEASE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_held_to_it_by_those_who_come_later_or_if_it_happens_often() {
        let mut table = Suspended::new(LEASE);
        for session in 1..=5 {
            table.came(SessionId(session), "a");
        }
        table.came(SessionId(6), "b");
        advance(MOMENT).await;
        table.ran_out(SessionId(1));
        // Who was there works on; who comes instead of one that is gone waits as it did.
        table.end(SessionId(1));
        table.came(SessionId(7), "a");
        assert_eq!([2, 7].map(|session| left(&table, session)), [0, 20]);
        for session in 2..=4 {
            table.ran_out(SessionId(session));
        }
        assert_eq!([5, 6, 7].map(|session| left(&table, session)), [160, 0, 160]);
        advance(Duration::from_secs(160)).await;
        assert_eq!([5, 7].map(|session| left(&table, session)), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_are_bounded() {
        let mut table = Suspended::new(LEASE);
        for session in 0..HOSTS_MAX as u64 + 10 {
            table.came(SessionId(session), &format!("host{session}"));
            table.ran_out(SessionId(session));
            table.end(SessionId(session));
        }
        assert_eq!((table.hosts.len(), table.sessions.len()), (HOSTS_MAX, 0));
    }
}
