//! Who principals are.
//!
//! * [`table`]: users, by the table of identities, and what numbers their files carry; [`edits`]:
//!   how it is changed; [`pages`]: how a copy comes to be.
//! * [`machines`]: machines and roles, which may say which of their users asks, as far as the
//!   federation map believes them.
//!
//! Values only: questions and edits are pure. Knows no store, no server, and nobody who asks.

mod edits;
pub mod machines;
mod pages;
mod table;

pub use edits::EditError;
pub use pages::{Pages, Step};
pub use table::{IdentityTable, Resolved, Unknown};
