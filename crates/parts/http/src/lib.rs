//! HTTP/1.1 over the world's transport: a client and a server on hyper and rustls.
//!
//! For doors that speak WebDAV, for repositories, for stores behind S3, and for chunks that lie
//! behind HTTP. What these share is here: connections and their limits, TLS, bodies that stream,
//! ranges, preconditions, digests. What their requests mean is not.
//!
//! * [`client`]: [`Client`](client::Client) asks: pool, redirects, judged ranges
//!   ([`RangedBody`](client::RangedBody)).
//! * [`server`]: [`Server`](server::Server) answers by a [`Handler`](server::Handler);
//!   [`server::content`] answers ranges and preconditions for whatever can be read at an offset.
//! * [`body`]: what is sent ([`Body`](body::Body)) and what comes ([`Received`](body::Received)).
//! * [`tls`]: whom we believe, and who we are.
//! * Words, without I/O: [`url`], [`range`], [`multipart`], [`conditions`], [`digest`].
//!
//! Does not know: HTTP/2, cookies, content codings, authentication (its headers pass as they are),
//! proxies for https, files, chunks. Certificates that are proxies (RFC 3820), lists of revoked
//! ones and signing policies are for a door that needs them.
//!
//! Invariants: a body is whole or ends with an error; every wait and every buffer has a limit;
//! credentials do not leave their origin; what stands in a query is in no message.
//!
//! | limit | client | server |
//! |---|---|---|
//! | connections | 16 per host, 64 in all: others wait | 1024 in all: wait; 256 per peer: refused |
//! | connect, TLS handshake | 10 s, 10 s | –, 10 s |
//! | head: bytes, lines, time | 64 KiB, 128, 60 s after the request | 64 KiB, 128, 15 s |
//! | between requests | 30 s | 60 s |
//! | body: time without progress | 60 s for 1 KiB | the same, both ways |
//! | body: size | said by who reads it | said by the handler |
//! | ranges, tags, parts | 1024 | 1024 |
//! | redirects | 8 | – |
//! | all of it | said by the caller | as set, for a connection |
//!
//! RFCs: 9110 and 9112 (HTTP), 3986 (URLs), 9530 and 3230 (digests), 9525 (names in certificates).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

pub mod body;
pub mod client;
pub mod conditions;
pub mod digest;
mod error;
pub mod multipart;
pub mod range;
pub mod server;
mod stream;
pub mod tls;
#[cfg(test)]
mod trial;
pub mod url;

pub use error::{Error, Phase};
pub use hyper::header;
pub use hyper::{HeaderMap, Method, StatusCode};
pub use stream::Pace;
