//! Decoders of bytes that others send or keep, as functions of bytes. Each must give back, whatever
//! it is fed: an error, or what it encodes to again.
//!
//! Two feed them. `cargo xtask fuzz TARGET` builds `fuzz/` with libFuzzer, which learns from the
//! branches that are taken; what it finds worth keeping is kept in `corpus/` ([`corpus`]). The
//! plain run (`tieline-decoders`, a stage of every `make test`) changes what is kept by dice for
//! some seconds ([`invent`]).
//!
//! Invariant: a feed never panics, nor takes longer or more memory than its input explains.

pub mod capability;
pub mod catalog;
pub mod corpus;
pub mod flavor;
pub mod frame;
pub mod http;
pub mod invent;
pub mod ledger;
pub mod list;
pub mod machine;
pub mod map;
pub mod object;
pub mod proof;
pub mod record;
pub mod reply;
pub mod request;
pub mod root;
pub mod s3;
pub mod signed;
pub mod token;
pub mod uris;
pub mod webdav;

/// A decoder's name, and what feeds it.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("capability", capability::feed),
    ("catalog", catalog::feed),
    ("flavor", flavor::feed),
    ("frame", frame::feed),
    ("http", http::feed),
    ("ledger", ledger::feed),
    ("list", list::feed),
    ("machine", machine::feed),
    ("map", map::feed),
    ("object", object::feed),
    ("proof", proof::feed),
    ("record", record::feed),
    ("reply", reply::feed),
    ("request", request::feed),
    ("root", root::feed),
    ("s3", s3::feed),
    ("token", token::feed),
    ("webdav", webdav::feed),
    ("signed", signed::feed),
    ("uris", uris::feed),
];
