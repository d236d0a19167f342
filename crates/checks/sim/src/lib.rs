//! One seed, one world: servers and clients of a whole federation in one thread, under a simulated
//! network and clock.
//!
//! * [`outside`]: the simulated clock, dice and transport (turmoil behind `world`'s traits).
//! * [`history`]: what clients did and saw, and the checks on it.
//! * [`federation`]: the hosts of a two-site federation.
//! * [`scenario`]: what happens in one run: clients' work, crashes, cuts; decided by the seed.
//!
//! Invariant: a seed decides everything. Every run can be played again, in a process of its own;
//! tests play it twice and compare what it left behind.

pub mod federation;
pub mod history;
pub mod outside;
pub mod scenario;
