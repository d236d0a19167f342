//! Records in bytes: what they were at their release, and what a damaged disk may hold instead.
//!
//! * [`samples`]: a value of every record and key.
//! * [`golden`]: files that hold their bytes. `cargo xtask bless` rewrites them; the diff is the
//!   review.
//! * [`hostile`]: bytes that nobody wrote on purpose.

#[path = "../../../wire/tests/bytes/golden.rs"]
mod golden;
mod hostile;
#[path = "../../../wire/tests/bytes/mutation.rs"]
mod mutation;
mod samples;
