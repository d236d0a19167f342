//! The closed list of what can go wrong: numbered, append-only, on the wire.
//!
//! Each kind says whether the request may be tried again and what is known of its effect. Doors
//! translate kinds to their protocol's codes, each in one file and exhaustively.

use minicbor::{Decode, Encode};

/// May the caller try again?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// The same request would fail the same way.
    Never,
    /// Send the same request, with the same number, again.
    SameRequest,
    /// Connect again first (perhaps elsewhere, after a look at the federation map).
    AfterReconnect,
}

/// What is known of the effect of a failed mutation?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    NotApplied,
    Applied,
    Unknown,
}

macro_rules! error_kinds {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident $text:literal $retry:ident $effect:ident;
    )*) => {
        /// What went wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
        #[cbor(index_only)]
        pub enum ErrorKind {
            $( $(#[$doc])* #[n($number)] $name, )*
        }

        impl ErrorKind {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The number on the wire.
            pub fn number(self) -> u16 {
                match self { $(Self::$name => $number),* }
            }

            /// One lower-case clause.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            pub fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry),* }
            }

            pub fn effect(self) -> Effect {
                match self { $(Self::$name => Effect::$effect),* }
            }
        }
    };
}

error_kinds! {
    // What POSIX knows.
    1 NotFound "no such file or directory" Never NotApplied;
    2 Exists "file exists" Never NotApplied;
    3 NotDirectory "not a directory" Never NotApplied;
    4 IsDirectory "is a directory" Never NotApplied;
    5 NotEmpty "directory not empty" Never NotApplied;
    6 PermissionDenied "permission denied" Never NotApplied;
    7 NotPermitted "operation not permitted" Never NotApplied;
    8 NameTooLong "name too long" Never NotApplied;
    9 InvalidArgument "invalid argument" Never NotApplied;
    10 TooManyLinks "too many links" Never NotApplied;
    11 CrossDevice "not on the same metadata target" Never NotApplied;
    12 NoSpace "no space left" Never NotApplied;
    13 QuotaExceeded "quota exceeded" Never NotApplied;
    14 ReadOnly "read-only" Never NotApplied;
    15 FileTooLarge "file too large" Never NotApplied;
    16 Busy "busy" Never NotApplied;
    17 NoAttribute "no such attribute" Never NotApplied;
    18 OutOfRange "result too large for the buffer" Never NotApplied;
    19 NotSupported "not supported" Never NotApplied;
    /// The file id names nothing any more.
    20 Stale "stale file handle" Never NotApplied;
    21 SymlinkLoop "too many levels of symbolic links" Never NotApplied;
    22 WouldBlock "would block" Never NotApplied;
    23 BadHandle "bad file handle" Never NotApplied;
    24 NoDevice "no such device or address" Never NotApplied;
    /// Waiting for this lock would be waiting for oneself.
    25 Deadlock "lock would wait for itself" Never NotApplied;
    26 NoLocks "no room for more locks" Never NotApplied;
    // What distance adds.
    40 Timeout "no answer in time" SameRequest Unknown;
    41 Unreachable "server unreachable" AfterReconnect Unknown;
    42 Disconnected "connection lost" AfterReconnect Unknown;
    /// Two transactions met and this one may simply be run again.
    43 Conflict "conflicting transaction" SameRequest NotApplied;
    44 Overloaded "server is busy" SameRequest NotApplied;
    45 Corrupt "checksum mismatch" Never NotApplied;
    /// The chunk was freed: fetch the extents again.
    46 Gone "chunk no longer exists" Never NotApplied;
    47 StorageFault "storage failed" Never Unknown;
    48 Protocol "protocol violation" Never Unknown;
    49 VersionMismatch "no common protocol version" Never NotApplied;
    50 Unauthenticated "not authenticated" Never NotApplied;
    51 Cancelled "cancelled" Never Unknown;
    /// The server does not know the session any more: unanswered requests are refused, not
    /// repeated.
    52 SessionLost "session expired" AfterReconnect Unknown;
    53 Internal "internal error" Never Unknown;
    /// This server does not hold that MDT or OST: look at the newest federation map.
    54 WrongServer "not served here" AfterReconnect NotApplied;
    55 OstInactive "object storage target is not active" Never NotApplied;
    /// A lock was taken from its holder, who was silent: what he writes there is refused until he
    /// knows.
    56 LockLost "lock was lost" Never NotApplied;
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_survive_the_wire() {
        let mut seen = std::collections::BTreeSet::new();
        for &kind in ErrorKind::ALL {
            assert!(seen.insert(kind.number()), "{kind:?} repeats a number");
            let bytes = minicbor::to_vec(kind).unwrap();
            assert_eq!(minicbor::decode::<ErrorKind>(&bytes).unwrap(), kind);
            assert_eq!(minicbor::decode::<u16>(&bytes).unwrap(), kind.number());
        }
    }
}
