//! The overlay by itself.
