//! Namespace operations, leases and placement of one MDT.
