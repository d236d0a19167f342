//! How this program tells people that something went wrong.
//!
//! A failure is one line: what was tried, then each cause behind a colon; what to do next may
//! follow on a second. Exit codes: 0 done, 1 failed, 2 wrongly asked.

use std::error::Error;
use tieline_net::CallError;
use tieline_types::ErrorKind;
use tieline_wire::Refusal;

/// Done wrongly by whoever typed it: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// For verbs that parse parts of their words themselves.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// An error and its causes in one line. A cause that only repeats what stands before it is left
/// out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Prints a failure and says how the process ends.
pub fn failed(error: &anyhow::Error) -> i32 {
    eprintln!("tieline: {}", chain(error.as_ref()));
    if let Some(hint) = kind(error).and_then(hint).filter(|_| unproven(error).is_none()) {
        eprintln!("  {hint}");
    }
    let is_usage = error.chain().any(|cause| cause.is::<Usage>());
    if is_usage { 2 } else { 1 }
}

/// The kind of the failure, if a server or the client room named it.
pub fn kind(error: &anyhow::Error) -> Option<ErrorKind> {
    error.chain().find_map(|cause| {
        let of_client = cause.downcast_ref::<tieline_files::Error>().map(|error| error.kind());
        of_client.or_else(|| cause.downcast_ref::<CallError>().map(CallError::kind))
    })
}

/// Why there is no proof between us and a server, if it is that. It says itself what to do.
pub fn unproven(error: &anyhow::Error) -> Option<&Refusal> {
    error.chain().find_map(|cause| {
        let call = match cause.downcast_ref::<tieline_files::Error>() {
            Some(tieline_files::Error::Call(call)) => Some(call),
            _ => cause.downcast_ref::<CallError>(),
        };
        match call {
            Some(CallError::Unproven { source, .. }) => Some(source),
            _ => None,
        }
    })
}

/// What to do next.
fn hint(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Disconnected => {
            "is the server running, and its port reachable from here? `/health` at its admin \
             address tells how it is"
        }
        ErrorKind::NoSpace => "`tieline df` shows which OSTs and pools are full",
        ErrorKind::OstInactive => "`tieline ost list` shows which OSTs take chunks",
        ErrorKind::WrongServer => "`tieline map show` tells which server holds what",
        ErrorKind::Corrupt => {
            "no place of the chunk has good bytes: `tieline getstripe` names them"
        }
        ErrorKind::Overloaded => "the server has more to do than it can: try again later",
        ErrorKind::VersionMismatch => "one end is older than the other: upgrade it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_in_one_line_without_repetition() {
        let cause = std::io::Error::other("disk is on fire");
        let error = anyhow::Error::new(cause).context("cannot read map").context("cannot start");
        assert_eq!(chain(error.as_ref()), "cannot start: cannot read map: disk is on fire");
    }

    #[test]
    fn failures_of_servers_have_a_kind_and_a_next_step() {
        let patience = std::time::Duration::from_secs(3);
        let error = CallError::Timeout { server: "mds-uf".into(), patience, why: None };
        let error = anyhow::Error::new(error).context("cannot look");
        assert_eq!(kind(&error), Some(ErrorKind::Timeout));
        assert!(kind(&error).and_then(hint).is_some());
        assert_eq!(kind(&anyhow::anyhow!("no server was asked")), None);
    }

    #[test]
    fn a_kdc_that_is_away_is_not_the_servers_fault() {
        let detail = "no KDC answers (mds/x@R): look at `kdc =` in krb5.conf".to_owned();
        let told = || CallError::Unproven {
            server: "mds:1".into(),
            source: Refusal {
                kind: ErrorKind::Timeout,
                detail: detail.clone(),
                version_oldest: 1,
                version_newest: 1,
            },
        };
        let first = anyhow::Error::new(told()).context("cannot fetch the map");
        let later = anyhow::Error::new(tieline_files::Error::from(told())).context("cannot look");
        for error in [first, later] {
            assert_eq!(unproven(&error).map(|source| &source.detail), Some(&detail));
            let line = chain(error.as_ref());
            assert!(line.contains("no connection to mds:1") && line.ends_with(&detail), "{line}");
        }
    }
}
