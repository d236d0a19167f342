//! Quotas as the whole MDT keeps them: with its store, its clients and the other MDTs.
//!
//! What is known, and what follows from it, are tables of their own ([`crate::quotas`]).
//!
//! * `serve`: the calls of clients.
//! * `home`: where limits are kept; `follow`, `news`: the others.
//! * `add_up`: adding up what transactions noted.

mod add_up;
mod follow;
mod home;
mod news;
mod serve;
