//! What happens in one run.
