//! Why tests failed, said once more where a reader looks: at the end of a run, which prints
//! thousands of lines before.

use std::sync::Mutex;

/// Of one test. What follows is the log of all its processes.
const LINES_MAX: usize = 16;
/// A line may be a whole log.
const LENGTH_MAX: usize = 1000;

/// What the tests that failed said first.
#[derive(Default)]
pub struct Failures(Mutex<Vec<String>>);

impl Failures {
    /// Notes what is in all that a program of tests printed.
    pub fn note(&self, said: &str) {
        self.0.lock().expect("nobody panics with it").extend(reasons(said));
    }

    pub fn print(&self) {
        let known = self.0.lock().expect("nobody panics with it");
        if !known.is_empty() {
            eprintln!("\nWhy tests failed:\n{}", known.join("\n"));
        }
    }
}

/// Of each test, under its name, the lines from its error up to the backtrace.
fn reasons(said: &str) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    let mut left = 0;
    for line in said.lines() {
        let begun = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some(name) = begun {
            reasons.push(format!("---- {name}"));
            left = 0;
        } else if line.starts_with("Error: ") || is_panic(line) {
            left = LINES_MAX;
        } else if line.starts_with("Stack backtrace:") || line.starts_with("stack backtrace:") {
            left = 0;
        }
        if left > 0 && begun.is_none() && !line.trim().is_empty() {
            left -= 1;
            let line: String = line.chars().take(LENGTH_MAX).collect();
            if let Some(reason) = reasons.last_mut() {
                *reason += &format!("\n{line}");
            }
        }
    }
    reasons
}

fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains(" panicked at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_under_the_names_of_their_tests() {
        let said = "running 3 tests\ntest a::one ... FAILED\n\nfailures:\n\n\
                    ---- a::one stdout ----\nsome log\nError: it waited\n\nCaused by:\n    \
                    nobody came\n\nStack backtrace:\n   0: main\n\n\
                    ---- b::other stdout ----\n\nthread 'b::other' panicked at b.rs:7:9:\nno\n";
        let found = reasons(said);
        assert_eq!(found[0], "---- a::one\nError: it waited\nCaused by:\n    nobody came");
        assert!(found[1].ends_with("panicked at b.rs:7:9:\nno"), "{found:?}");
        assert_eq!(found.len(), 2);
    }
}
