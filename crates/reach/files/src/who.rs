//! For whom a door asks, and within which bounds.
//!
//! A [`Scope`] narrows what a caller may do here to some ways from the root, as they are once all
//! links are followed ([`crate::Entry::way`]). What the caller may do at all, servers decide.

use crate::{Error, Result};
use std::sync::Arc;
use tieline_types::{Caller, Doing, ErrorKind, Name, Scope};

/// Somebody whom a door serves.
#[derive(Clone, Debug)]
pub struct Who {
    pub caller: Caller,
    /// What those who act for him may do; `None`: it is himself.
    pub scope: Option<Arc<Scope>>,
}

impl Who {
    pub fn himself(caller: Caller) -> Self {
        Self { caller, scope: None }
    }

    pub fn within(caller: Caller, scope: Scope) -> Self {
        Self { caller, scope: Some(Arc::new(scope)) }
    }

    /// May this be done to what lies at that way from the root? To be asked before anything is done
    /// to what [`crate::Paths`] found.
    pub fn may(&self, way: &[Name], doing: Doing) -> Result<()> {
        let is_allowed = self.scope.as_ref().is_none_or(|scope| scope.allows(way, doing));
        if is_allowed { Ok(()) } else { Err(refused(way, word(doing))) }
    }

    /// May it be looked at? So may what is above all that is allowed: its attributes, no names.
    pub fn may_pass(&self, way: &[Name]) -> Result<()> {
        let leads_on = self.scope.as_ref().is_none_or(|scope| scope.leads_on(way));
        if leads_on { Ok(()) } else { Err(refused(way, "to be looked at")) }
    }
}

fn word(doing: Doing) -> &'static str {
    match doing {
        Doing::Read => "to be read",
        Doing::Create => "to be created",
        Doing::Modify => "to be changed",
    }
}

fn refused(way: &[Name], what: &str) -> Error {
    let way: String = way.iter().map(|name| format!("/{name}")).collect();
    let way = if way.is_empty() { "/" } else { &way };
    let what = format!("the scope of whoever asks does not allow {way} {what}");
    Error::local(ErrorKind::PermissionDenied, what)
}
