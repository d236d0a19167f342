//! Every metric: name, meaning, unit (in the name's end), labels. Names are stable once released.
//!
//! A room takes what it counts with from here; nothing else registers metrics.

use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use std::sync::LazyLock;

/// All metrics of this process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

macro_rules! metrics {
    ($( $field:ident: $kind:ident = $name:literal [$($label:literal),*] $help:literal; )*) => {
        pub struct Metrics {
            registry: Registry,
            $( #[doc = $help] pub $field: $kind, )*
        }

        /// Name, labels and meaning of every metric, for the reference page.
        pub const TABLE: &[(&str, &[&str], &str)] = &[$(($name, &[$($label),*], $help)),*];

        impl Metrics {
            fn new() -> Self {
                let registry = Registry::new();
                $( let $field = <$kind as Make>::make($name, $help, &[$($label),*]);
                   register(&registry, $field.clone()); )*
                Self { registry, $($field),* }
            }
        }
    };
}

metrics! {
    requests: IntCounterVec = "tieline_requests_total" ["op", "kind"]
        "Requests answered by this server, by call and outcome (`ok` or the error kind).";
    request_seconds: HistogramVec = "tieline_request_seconds" ["op"]
        "Time from receiving a request to handing its reply to the connection.";
    sessions: IntGauge = "tieline_sessions" [] "Sessions that are connected now.";
    bulk_sent_bytes: IntCounter = "tieline_bulk_sent_bytes_total" [] "Bulk bytes sent.";
    bulk_received_bytes: IntCounter = "tieline_bulk_received_bytes_total" [] "Bulk bytes received.";
    recalls: IntCounterVec = "tieline_lease_recalls_total" ["outcome"]
        "Leases recalled by this MDS: answered, contended, expired, outside.";
    lease_suspensions: IntCounter = "tieline_lease_suspensions_total" []
        "Times that a session let a recall of this MDS run out and got no leases for a while.";
    sessions_suspended: IntGauge = "tieline_sessions_suspended" []
        "Sessions that get no leases now: they, or others of their hosts, let recalls run out.";
    leases: IntGauge = "tieline_leases" [] "Lease units held by sessions of this MDS.";
    conflicts: IntCounter = "tieline_transaction_conflicts_total" []
        "Transactions that were run again because another got in between.";
    commit_groups: IntCounter = "tieline_commit_groups_total" [] "Durable group commits.";
    commits: IntCounter = "tieline_commits_total" [] "Transactions in durable group commits.";
    checkpoints: IntCounter = "tieline_checkpoints_total" []
        "Times that an embedded store took up what was in its write-ahead log.";
    checkpoint_pairs: IntCounter = "tieline_checkpoint_pairs_total" [] "Pairs it took up.";
    checkpoint_waits: IntCounter = "tieline_checkpoint_waits_total" []
        "Group commits that waited for it, since the log was full.";
    chunks_freed: IntCounter = "tieline_chunks_freed_total" [] "Chunks deleted at OSTs.";
    strays_deleted: IntCounter = "tieline_strays_deleted_total" []
        "Objects deleted that no commit ever named.";
    log_bytes: IntCounter = "tieline_log_bytes_total" [] "Bytes written to the change log.";
    audit_failures: IntCounter = "tieline_audit_failures_total" []
        "Times that the audit log could not be written, or begun anew.";
    audit_lost: IntCounter = "tieline_audit_lost_total" []
        "Lines of the audit log that are lost: too many waited to be written.";
    ost_free_bytes: IntGaugeVec = "tieline_ost_free_bytes" ["ost"] "Bytes a writer may still use.";
    ost_total_bytes: IntGaugeVec = "tieline_ost_total_bytes" ["ost"] "Bytes the backend has.";
    corrupt_blocks: IntCounterVec = "tieline_corrupt_blocks_total" ["where"]
        "Blocks whose checksum was wrong, by who found it: client, oss (arriving), disk (stored).";
    copies_bad: IntCounterVec = "tieline_copies_bad_total" ["ost"]
        "Copies of chunks that this MDS had checked and found damaged or gone, by OST.";
    copies_made: IntCounterVec = "tieline_copies_made_total" ["ost"]
        "Copies of chunks that this MDS has had made (again), by OST.";
    copies_lacking: IntGauge = "tieline_copies_lacking" []
        "Chunks of this MDT that lack a copy, as of the last look at all of them.";
    tape_files: IntCounterVec = "tieline_tape_files_total" ["deed"]
        "Files of this MDT that were put on tape, gotten from there, or removed there.";
    client_tape_waits: IntCounter = "tieline_client_tape_waits_total" []
        "Reads and opens of this client that waited for a file to come back from tape.";
    chore_failed: IntGaugeVec = "tieline_chore_failed" ["mdt", "chore"]
        "1 if the last round of a piece of an MDT's background work failed or left something \
undone, else 0; `tieline chores` tells more.";
    fetched_bytes: IntCounter = "tieline_oss_fetched_bytes_total" []
        "Bytes of chunks that this OSS fetched from others to make copies.";
    exposed_files: IntCounterVec = "tieline_exposed_files_total" ["pool"]
        "Files that this OSS gave their names where a pool is exposed, by pool.";
    exposed_bytes: IntCounterVec = "tieline_exposed_bytes_total" ["pool"]
        "Bytes of chunks that it put together to such files.";
    exposed_failures: IntCounterVec = "tieline_exposed_failures_total" ["pool"]
        "Names where a pool is exposed that could not be made, moved or taken away.";
    exposed_waiting: IntGaugeVec = "tieline_exposed_waiting" ["mdt", "pool"]
        "Files and directories of an exposed pool that were changed and not yet followed there.";
    exposed_taken: IntCounterVec = "tieline_exposed_taken_total" ["pool"]
        "Files that this MDS had taken away where a pool is exposed, before their bytes changed.";
    capability_refusals: IntCounterVec = "tieline_capability_refusals_total" ["reason"]
        "Requests that this OSS refused for want of a capability that is good for them, by reason: \
missing, malformed, unknown_key, forged, expired, foreign, revoked, other_file, not_granted.";
    round_trips: IntCounterVec = "tieline_round_trips_total" ["server"]
        "Requests this client sent and had answered, by kind of server (mds, oss).";
    client_read_bytes: IntCounter = "tieline_client_read_bytes_total" []
        "Bytes handed to programs by this client.";
    client_written_bytes: IntCounter = "tieline_client_written_bytes_total" []
        "Bytes taken from programs by this client.";
    client_fetched_bytes: IntCounter = "tieline_client_fetched_bytes_total" []
        "Bytes of chunks this client fetched from OSSs.";
    client_ost_failures: IntCounterVec = "tieline_client_ost_failures_total" ["ost"]
        "Requests of this client that an OST failed, or was too slow for.";
    client_unread_bytes: IntCounter = "tieline_client_unread_bytes_total" []
        "Bytes of chunks this client fetched ahead and nobody read.";
    client_sent_bytes: IntCounter = "tieline_client_sent_bytes_total" []
        "Bytes of chunks this client sent to OSSs.";
    client_ahead: IntCounterVec = "tieline_client_ahead_total" ["what"]
        "What this client brought before somebody asked for it: directories.";
    client_ahead_bytes: IntCounterVec = "tieline_client_ahead_bytes_total" ["outcome"]
        "Bytes of small files that this client brought before somebody opened them: brought, and \
those of them that were used.";
    client_inodes: IntGauge = "tieline_client_inodes" [] "Files this client remembers.";
    client_dirty_bytes: IntGauge = "tieline_client_dirty_bytes" []
        "Bytes taken from programs and not yet at an OSS.";
    client_timeouts: IntCounter = "tieline_client_timeouts_total" []
        "Calls that ended with an errno because a server did not answer in time.";
    cache_served_bytes: IntCounterVec = "tieline_cache_served_bytes_total" ["cache"]
        "Bytes of chunks that came from a cache or directly from storage: node, site, direct.";
    cache_missed_bytes: IntCounterVec = "tieline_cache_missed_bytes_total" ["cache"]
        "Bytes of chunks that were looked for in a cache and were not there.";
    cache_kept_bytes: IntCounterVec = "tieline_cache_kept_bytes_total" ["cache"]
        "Bytes of chunks put into a cache by this process.";
    cache_evicted_bytes: IntCounterVec = "tieline_cache_evicted_bytes_total" ["cache"]
        "Bytes of chunks evicted from a cache by this process to make room.";
    cache_poisoned: IntCounterVec = "tieline_cache_poisoned_total" ["cache"]
        "Chunks found here whose bytes did not have their digest; none was served.";
    cache_damaged: IntCounterVec = "tieline_cache_damaged_total" ["cache"]
        "Chunks found here with a block that did not match its check; none was served.";
    cache_errors: IntCounterVec = "tieline_cache_errors_total" ["cache"]
        "Failures of a cache's storage: full, faulty, hanging.";
    cache_bytes: IntGaugeVec = "tieline_cache_bytes" ["cache"]
        "Bytes in a cache, as of the last look: node; site, where this process cleans it.";
    cache_limit_bytes: IntGaugeVec = "tieline_cache_limit_bytes" ["cache"]
        "Bytes that a cache may hold.";
    door_connections: IntGaugeVec = "tieline_door_connections" ["protocol"]
        "Connections of clients to this door, by protocol: root.";
    door_requests: IntCounterVec = "tieline_door_requests_total" ["protocol", "op", "outcome"]
        "Requests that this door answered, by what was asked and what came of it (`ok`, or the \
protocol's number of the error).";
    door_sent_bytes: IntCounterVec = "tieline_door_sent_bytes_total" ["protocol"]
        "Bytes that this door sent to its clients.";
    fuse_requests: IntCounterVec = "tieline_fuse_requests_total" ["op"]
        "Requests from the kernel.";
    fuse_interrupts: IntCounter = "tieline_fuse_interrupts_total" []
        "Calls that were given up because their process was interrupted.";
    fuse_invalidations: IntCounterVec = "tieline_fuse_invalidations_total" ["what"]
        "Notifications to the kernel: entry, attributes, data, epoch.";
}

impl Metrics {
    /// Prometheus' text format, version 0.0.4.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

trait Make {
    fn make(name: &str, help: &str, labels: &[&str]) -> Self;
}

// Names and labels above are constants; a wrong one fails in every test that touches a metric.
const WRONG: &str = "metric in the table is malformed";

impl Make for IntCounter {
    fn make(name: &str, help: &str, _: &[&str]) -> Self {
        Self::new(name, help).expect(WRONG)
    }
}

impl Make for IntGauge {
    fn make(name: &str, help: &str, _: &[&str]) -> Self {
        Self::new(name, help).expect(WRONG)
    }
}

impl Make for IntCounterVec {
    fn make(name: &str, help: &str, labels: &[&str]) -> Self {
        Self::new(Opts::new(name, help), labels).expect(WRONG)
    }
}

impl Make for IntGaugeVec {
    fn make(name: &str, help: &str, labels: &[&str]) -> Self {
        Self::new(Opts::new(name, help), labels).expect(WRONG)
    }
}

impl Make for HistogramVec {
    fn make(name: &str, help: &str, labels: &[&str]) -> Self {
        // From a cached answer (10 µs) to a server's reboot.
        let buckets = vec![1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 5e-1, 1.0, 5.0, 30.0];
        Self::new(HistogramOpts::new(name, help).buckets(buckets), labels).expect(WRONG)
    }
}

fn register<C: prometheus::core::Collector + 'static>(registry: &Registry, metric: C) {
    registry.register(Box::new(metric)).expect(WRONG);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_registers_and_renders() {
        METRICS.recalls.with_label_values(&["answered"]).inc();
        assert!(METRICS.render().contains("tieline_lease_recalls_total{outcome=\"answered\"} 1"));
        assert!(TABLE.iter().all(|(name, ..)| name.starts_with("tieline_")));
    }
}
