//! What every door stands on: caches, leases, read-ahead, write-back, replay.
