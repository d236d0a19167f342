//! Repositories in CVMFS's format: made from a tree, and answered from.
//!
//! * [`repository`]: a repository where it is made: its storage, its keys, its revisions.
//! * [`tree`]: what is published: a directory here, or whatever else can be listed and read.
//! * [`signed`]: the answerer over what was published, by us or by others.
//! * Between them the format: [`hash`] names objects, [`seal`] splits signed texts, [`manifest`]
//!   and [`whitelist`] are what those say, [`keys`] and [`trust`] sign and verify them, [`row`] and
//!   [`catalog`] are the names, [`xattrs`] their attributes.
//!
//! Knows no socket, no client, and no server of ours.
//!
//! Invariants: nothing is answered from bytes that were not verified from the master key down;
//! whoever reads while a revision is published sees the former one whole, or all of the new one.

pub mod catalog;
pub mod hash;
mod history;
pub mod keys;
pub mod manifest;
mod objects;
mod plan;
mod publish;
pub mod repository;
pub mod row;
pub mod seal;
pub mod signed;
pub mod tree;
pub mod trust;
pub mod whitelist;
pub mod xattrs;
