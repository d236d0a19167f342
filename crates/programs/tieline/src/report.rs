//! How this program tells people that something went wrong.
//!
//! A failure is one line: what was tried, then each cause behind a colon; a hint of what to do next may follow on a second.
//! Exit codes: 0 done, 1 failed, 2 wrongly asked.

use std::error::Error;
use std::process::ExitCode;

/// Done wrongly by whoever typed it: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// What to do next, carried with an error to the edge.
#[derive(Debug)]
pub struct Hint(pub String);

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error and its causes in one line. A cause that only repeats what stands before it is left out.
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
pub fn failed(error: &anyhow::Error) -> ExitCode {
    let hint = error.downcast_ref::<Hint>().map(ToString::to_string);
    let text = chain(error.as_ref());
    match &hint {
        // A hint is attached as context, so it stands first in the chain: say it last instead.
        Some(hint) => {
            let cause = text.strip_prefix(hint.as_str()).unwrap_or(&text);
            eprintln!("tieline: {}\n  {hint}", cause.trim_start_matches(": "));
        }
        None => eprintln!("tieline: {text}"),
    }
    let is_usage = error.chain().any(|cause| cause.is::<Usage>());
    ExitCode::from(if is_usage { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_stand_in_one_line_without_repetition() {
        let cause = std::io::Error::other("disk is on fire");
        let error = anyhow::Error::new(cause).context("cannot read map").context("cannot start");
        assert_eq!(chain(error.as_ref()), "cannot start: cannot read map: disk is on fire");
    }

    #[test]
    fn hints_do_not_hide_usage_errors() {
        let error = Err::<(), _>(Usage("no path".into())).context(Hint("name one".into()));
        let error = error.unwrap_err();
        assert!(error.chain().any(|cause| cause.is::<Usage>()));
        assert_eq!(error.downcast_ref::<Hint>().unwrap().0, "name one");
    }
}
