//! What servers, mounts and verbs share: how a federation is named, found and met, what is said of
//! keys and proofs, and how people are told.
//!
//! * [`source`], [`location`], [`contact`]: how a file system is named, found and met for the
//!   first time; [`dialing`]: what that is done with; [`registry`]: the mounts of this machine.
//! * [`repositories`]: what is published as files, beside servers.
//! * [`federation`]: the map as text, with its [`issuers`]; [`keys`]: what signs it and judges it;
//!   [`invitation`]: the word by which a site joins.
//! * [`proving`]: how servers, mounts and verbs prove themselves.
//! * [`report`], [`show`]: how people are told of failures, and how things look; [`settings`]: what
//!   is wrong with a settings file.

pub mod contact;
pub mod dialing;
pub mod federation;
pub mod invitation;
pub mod issuers;
pub mod keys;
pub mod location;
pub mod proving;
pub mod registry;
pub mod report;
pub mod repositories;
pub mod settings;
pub mod show;
pub mod source;
