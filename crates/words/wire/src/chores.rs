//! Messages about what goes on in the background of an MDT.

use minicbor::{Decode, Encode};
use tieline_types::{AtMost, MdtIndex, Time};

/// Lists the background work of the MDT, for an operator.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListChores {}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListChoresReply {
    /// Whose they are.
    #[n(0)]
    pub mdt: MdtIndex,
    /// The server's time, for how long ago something was.
    #[n(1)]
    pub now: Time,
    #[n(2)]
    #[cbor(with = "AtMost::<256>")]
    pub chores: Vec<Chore>,
}

/// One piece of background work, as it is now.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Chore {
    /// For programs: `freed-chunks`.
    #[n(0)]
    pub name: String,
    #[n(1)]
    pub state: ChoreState,
    /// What a waiting one waits for.
    #[n(2)]
    pub waits_for: Option<String>,
    /// The last one, also when it goes well again.
    #[n(3)]
    pub failure: Option<ChoreFailure>,
    /// Since the MDT was started.
    #[n(4)]
    pub done: u64,
    /// If that is known.
    #[n(5)]
    pub left: Option<u64>,
    /// What both count, for people: `chunks`.
    #[n(6)]
    pub unit: String,
    /// When it last ended a round.
    #[n(7)]
    pub ended: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChoreFailure {
    #[n(0)]
    pub at: Time,
    /// One lower-case clause for people.
    #[n(1)]
    pub detail: String,
}

/// How a chore is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum ChoreState {
    /// Its last round went well, and the next is due later.
    #[n(1)]
    Resting,
    #[n(2)]
    Working,
    /// Something else must be well before it can go on.
    #[n(3)]
    Waiting,
    /// Its last round failed, or left something undone; it is tried again.
    #[n(4)]
    Failed,
}
