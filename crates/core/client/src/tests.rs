//! The volume against a small world in memory: one MDS, two OSTs, simple and honest.

mod data;
mod declared;
mod deferred;
mod door;
mod doors;
mod fake;
mod idle;
mod journal;
mod kept;
mod leases;
mod locks;
mod model;
mod names;
mod near;
mod opens;
mod pins;
mod room;
mod shared;
mod spool;
mod trees;

// What its tests speak of.
use crate::*;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_bytes::{DirectAccess, Near, NodeCache, SiteCache, SiteClaim, SiteLook};
use tieline_files::{CoherentCache, Files, Resume};
use tieline_owed::cause;
use tieline_types::{
    Attributes, Caller, ErrorKind, FileId, FileKind, Gid, LockKind, LockMode, LockRange, Mode,
    Name, OstIndex, RenameMode, Uid, XattrMode, XattrName,
};
