//! Real processes and real mounts.
