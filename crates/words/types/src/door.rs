//! Doors: what speaks another protocol to users, and for them to the servers.
//!
//! The federation map says which principals are doors, and how far each is heard: by whose tickets,
//! for whom on its own word, where at most, and for how long. A door has no rights of its own.
//!
//! Invariants: nobody is vouched for whom the map does not name; no delegation is longer than
//! [`Door::SECONDS_MAX`].

use crate::{AtMost, IdentityName, NameError, Scope};
use minicbor::{Decode, Encode};
use std::fmt;
use std::str::FromStr;

/// One door, as the map has it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Door {
    /// As which it connects: `tieline_door/xrd.uf.example@EXTENCI.ORG`.
    #[n(0)]
    pub principal: String,
    /// Services whose tickets, which its users send, it may hand on:
    /// `HTTP/xrd.uf.example@EXTENCI.ORG`.
    #[n(1)]
    #[cbor(with = "AtMost::<{ Door::SERVICES_MAX }>")]
    pub services: Vec<String>,
    /// Whom it may name by its own word.
    #[n(2)]
    #[cbor(with = "AtMost::<{ Door::VOUCHED_MAX }>")]
    pub vouches_for: Vec<Vouched>,
    /// What may be done through it at most; `None`: whatever its users may.
    #[n(3)]
    pub scope: Option<Scope>,
    /// The longest life of a delegation.
    #[n(4)]
    pub seconds_max: Option<u32>,
}

/// Somebody whom a door may name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub enum Vouched {
    /// Every user of the table of identities who has no role.
    #[n(1)]
    Everybody,
    #[n(2)]
    User(#[n(0)] IdentityName),
    /// Who is in this group.
    #[n(3)]
    Group(#[n(0)] IdentityName),
}

/// A door that no map has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DoorError {
    #[error("`{0}` is no principal: SERVICE/HOST@REALM")]
    Principal(String),
    #[error(
        "tickets for `{0}` are shown to others than a door, who could be taken for their users \
         then: give the door a service of its own"
    )]
    Service(String),
    #[error(
        "a door has at most {} services, and names {} users and groups",
        Door::SERVICES_MAX,
        Door::VOUCHED_MAX
    )]
    TooMany,
    #[error("a delegation holds 1 to {} seconds", Door::SECONDS_MAX)]
    Life,
    #[error("the scope is too large")]
    Scope,
}

impl Door {
    pub const SERVICES_MAX: usize = 16;
    pub const VOUCHED_MAX: usize = 256;
    /// What nothing else is said of.
    pub const SECONDS_USUAL: u32 = 3600;
    pub const SECONDS_MAX: u32 = 12 * 3600;
    const PRINCIPAL_MAX: usize = 400;
    /// To these, users and machines prove themselves elsewhere.
    const NOT_ITS: [&str; 4] = ["host", "tieline_mds", "tieline_oss", "tieline_role"];

    /// The longest life of a delegation.
    pub fn seconds(&self) -> u32 {
        self.seconds_max.unwrap_or(Self::SECONDS_USUAL).min(Self::SECONDS_MAX)
    }

    /// May it hand on tickets for this service?
    pub fn hears(&self, service: &str) -> bool {
        Self::may_be_service(service) && self.services.iter().any(|known| known == service)
    }

    /// Could this be the service of a door?
    fn may_be_service(service: &str) -> bool {
        let first = service.split(['/', '@']).next().unwrap_or_default();
        !Self::NOT_ITS.contains(&first)
    }

    pub fn check(&self) -> Result<(), DoorError> {
        for principal in self.services.iter().chain([&self.principal]) {
            let is_service = principal
                .rsplit_once('@')
                .and_then(|(name, realm)| Some((name.split_once('/')?, realm)))
                .is_some_and(|((service, host), realm)| {
                    !service.is_empty() && !host.is_empty() && !realm.is_empty()
                });
            let is_plain = principal.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_service || !is_plain || principal.len() > Self::PRINCIPAL_MAX {
                return Err(DoorError::Principal(principal.clone()));
            }
        }
        if let Some(other) = self.services.iter().find(|service| !Self::may_be_service(service)) {
            return Err(DoorError::Service(other.clone()));
        }
        if self.services.len() > Self::SERVICES_MAX || self.vouches_for.len() > Self::VOUCHED_MAX {
            return Err(DoorError::TooMany);
        }
        if self.seconds_max.is_some_and(|seconds| !(1..=Self::SECONDS_MAX).contains(&seconds)) {
            return Err(DoorError::Life);
        }
        self.scope.as_ref().map_or(Ok(()), Scope::check).map_err(|_| DoorError::Scope)
    }
}

impl fmt::Display for Vouched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("everybody"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
        }
    }
}

/// Why a text says nobody to be vouched for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VouchedError {
    #[error("`{0}` is not user:NAME, group:NAME or everybody")]
    Unknown(String),
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for Vouched {
    type Err = VouchedError;

    fn from_str(text: &str) -> Result<Self, VouchedError> {
        match text.split_once(':') {
            None if text == "everybody" => Ok(Self::Everybody),
            Some(("user", name)) => Ok(Self::User(name.parse()?)),
            Some(("group", name)) => Ok(Self::Group(name.parse()?)),
            _ => Err(VouchedError::Unknown(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(principal: &str, services: &[&str]) -> Door {
        let services = services.iter().map(|&service| service.to_owned()).collect();
        let (vouches_for, scope, seconds_max) = (vec![], None, None);
        Door { principal: principal.to_owned(), services, vouches_for, scope, seconds_max }
    }

    #[test]
    fn a_door_has_services_of_its_own() {
        let good = door("tieline_door/a@R", &["HTTP/a@R", "xrootd/a@R"]);
        assert_eq!(good.check(), Ok(()));
        assert!(good.hears("HTTP/a@R") && !good.hears("HTTP/b@R"));
        for others in ["host/a@R", "tieline_mds/a@R", "tieline_role/x@R"] {
            let wrong = door("tieline_door/a@R", &[others]);
            assert_eq!(wrong.check(), Err(DoorError::Service(others.to_owned())));
            assert!(!wrong.hears(others), "whatever a map says");
        }
        for no_principal in ["", "a", "a@R", "/a@R", "a/@R", "a/b@", "a/b c@R"] {
            assert!(door(no_principal, &[]).check().is_err(), "{no_principal}");
            assert!(door("d/a@R", &[no_principal]).check().is_err(), "{no_principal}");
        }
    }

    #[test]
    fn a_delegation_has_an_end() {
        let door = |seconds_max| Door { seconds_max, ..door("d/a@R", &[]) };
        assert_eq!(door(None).seconds(), 3600);
        assert_eq!(door(Some(u32::MAX)).seconds(), Door::SECONDS_MAX);
        assert_eq!(door(Some(0)).check(), Err(DoorError::Life));
        assert_eq!(door(Some(Door::SECONDS_MAX + 1)).check(), Err(DoorError::Life));
    }

    #[test]
    fn who_is_vouched_for_is_written_as_it_is_read() {
        for text in ["everybody", "user:ann", "group:cms"] {
            assert_eq!(text.parse::<Vouched>().unwrap().to_string(), text);
        }
        assert!("ann".parse::<Vouched>().is_err() && "user:".parse::<Vouched>().is_err());
    }
}
