//! How many files this process may have open: what its hard limit allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes all that may be had; before anything asks how much that is.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_be_had_is_taken() {
        raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
