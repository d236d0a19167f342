//! The volume against a small world in memory: one MDS, two OSTs, simple and honest.

mod data;
mod fake;
mod journal;
mod kept;
mod leases;
mod model;
mod names;
mod shared;
