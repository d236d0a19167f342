//! Decoders of bytes that others send or keep, as functions of bytes. Each must give back, whatever
//! it is fed: an error, or what it encodes to again.
//!
//! Two feed them. `cargo xtask fuzz TARGET` builds `fuzz/` with libFuzzer, which learns from the
//! branches that are taken; what it finds worth keeping is kept in `corpus/` ([`corpus`]). The
//! plain run (`tieline-decoders`, a stage of every `make test`) changes what is kept by dice for
//! some seconds ([`invent`]).
//!
//! Invariant: a feed never panics, nor takes longer or more memory than its input explains.

pub mod acl;
pub mod cache;
pub mod capability;
pub mod catalog;
pub mod corpus;
pub mod der;
pub mod flavor;
pub mod frame;
pub mod http;
pub mod inner;
pub mod invent;
pub mod ledger;
pub mod left;
pub mod list;
pub mod machine;
pub mod map;
pub mod object;
pub mod packed;
pub mod proof;
pub mod record;
pub mod reply;
pub mod request;
pub mod root;
pub mod s3;
mod samples;
pub mod sealed;
pub mod signed;
pub mod stream;
pub mod token;
pub mod trespass;
pub mod uris;
pub mod webdav;

/// A decoder's name, and what feeds it.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("acl", acl::feed),
    ("cache", cache::feed),
    ("capability", capability::feed),
    ("catalog", catalog::feed),
    ("der", der::feed),
    ("flavor", flavor::feed),
    ("frame", frame::feed),
    ("http", http::feed),
    ("inner", inner::feed),
    ("ledger", ledger::feed),
    ("left", left::feed),
    ("list", list::feed),
    ("machine", machine::feed),
    ("map", map::feed),
    ("object", object::feed),
    ("packed", packed::feed),
    ("proof", proof::feed),
    ("record", record::feed),
    ("reply", reply::feed),
    ("request", request::feed),
    ("root", root::feed),
    ("s3", s3::feed),
    ("sealed", sealed::feed),
    ("signed", signed::feed),
    ("stream", stream::feed),
    ("token", token::feed),
    ("trespass", trespass::feed),
    ("uris", uris::feed),
    ("webdav", webdav::feed),
];

/// Drives what reads from memory: it never waits, but states how long it would.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without a thread");
    }
    RUNTIME.with(|runtime| runtime.block_on(work))
}
