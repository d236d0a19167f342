//! The FUSE door: our own session over /dev/fuse.
