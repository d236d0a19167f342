//! The hosts of a two-site federation.
