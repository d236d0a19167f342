//! Every test of the lab, in one program: what it links is linked once, and whoever waits keeps
//! nobody else from the processor.
//!
//! One file is what one thing promises; [`tieline_lab`] says what a test is given.

mod absences;
mod acls;
mod adoption;
mod attacks;
mod attributes;
mod bulk;
mod bytes;
mod caches;
mod chores;
mod clocks;
mod coherence;
mod disks;
mod doors;
mod engines;
mod exposed;
mod faults;
mod heal;
mod holder;
mod https_door;
mod identities;
mod idmapped;
mod image;
mod joining;
mod journal;
mod kerberos;
mod large_directories;
mod ledger;
mod lies;
mod locks;
mod mirrors;
mod model;
mod mount_command;
mod mounters;
mod narrow_programs;
mod ordinary;
mod overlay;
mod placement;
mod posix;
mod published;
mod quotas;
mod readme;
mod realms;
mod repositories;
mod room;
mod root_door;
mod s3;
mod spool;
mod standing;
mod storage;
mod tape;
mod two_mounts;
mod verbs;
mod wan;
