//! How a change treats what is there already: under a name, as an extended attribute.

use minicbor::{Decode, Encode};

/// How a rename treats a target that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum RenameMode {
    #[n(1)]
    Replace,
    #[n(2)]
    NoReplace,
    #[n(3)]
    Exchange,
    /// As `Replace`, and the old name then leads to a whiteout: a device of characters 0/0, by
    /// which an overlay says that there is nothing.
    #[n(4)]
    ReplaceLeaving,
    /// As `NoReplace`, and leaves a whiteout.
    #[n(5)]
    NoReplaceLeaving,
}

impl RenameMode {
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::ReplaceLeaving | Self::NoReplaceLeaving)
    }

    /// May what has the new name go?
    pub fn replaces(self) -> bool {
        matches!(self, Self::Replace | Self::ReplaceLeaving)
    }
}

/// How setting an attribute treats one that is there (`XATTR_CREATE`, `XATTR_REPLACE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum XattrMode {
    #[n(1)]
    Either,
    #[n(2)]
    Create,
    #[n(3)]
    Replace,
}
