//! The volume against a small world in memory: one MDS, two OSTs, simple and honest.

mod data;
mod declared;
mod deferred;
mod door;
mod fake;
mod idle;
mod journal;
mod kept;
mod leases;
mod locks;
mod model;
mod names;
mod near;
mod pins;
mod room;
mod shared;
mod spool;
mod trees;
