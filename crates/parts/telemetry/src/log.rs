//! Log set-up: lines for people, JSON on request. The filter comes from `TIELINE_LOG` (`info` by
//! default).
//!
//! Invariant: an event is one line, whatever texts of others stand in it.

use std::io::{self, Write};
use tieline_types::Shown;
use tracing_subscriber::EnvFilter;

/// Bytes of a line for people; what is longer is cut. Whoever is asked can say much.
const LINE_MAX: usize = 16 << 10;

/// Sends log lines to standard error.
pub fn start(is_json: bool) {
    start_from("info", is_json);
}

/// The same, unless `TIELINE_LOG` says otherwise only lines of that level and above.
pub fn start_from(level: &str, is_json: bool) {
    let filter = EnvFilter::try_from_env("TIELINE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    // A second call, as in tests, changes nothing.
    let _ = if is_json {
        // Its texts are escaped already.
        lines.with_writer(io::stderr).json().flatten_event(true).try_init()
    } else {
        lines.with_writer(|| Lines(io::stderr())).with_target(false).with_ansi(false).try_init()
    };
}

/// Takes an event at a time, and writes it in one line.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(one_line(event).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn one_line(event: &[u8]) -> String {
    let event = event.strip_suffix(b"\n").unwrap_or(event);
    match event.split_at_checked(LINE_MAX) {
        Some((head, rest)) => format!("{} (and {} bytes more)\n", Shown(head), rest.len()),
        None => format!("{}\n", Shown(event)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(log: impl FnOnce()) -> String {
        use std::sync::{Arc, Mutex, PoisonError};

        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<u8>>>);

        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt()
            .with_writer(move || Lines(writer.clone()))
            .with_target(false)
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(lines, log);
        let kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(kept).unwrap()
    }

    /// Promise 176: No text that somebody else sends begins a line of a log.
    #[test]
    fn nobody_makes_a_second_line_of_a_text() {
        let forged = "laptop\n2026-11-28T05:00:00Z  INFO session opened: \x1b[2Jroot";
        let log = logged(|| {
            tracing::info!(what = forged, shown = %forged, "session opened: {forged}");
            tracing::info!("next");
        });
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(log.contains("session opened: laptop\\0122026"), "{log}");
        assert!(!log.contains('\x1b'), "{log}");
    }

    #[test]
    fn a_line_has_an_end() {
        let log = logged(|| tracing::info!("{}", "x".repeat(10 * LINE_MAX)));
        assert!(log.len() < LINE_MAX + 100 && log.ends_with(" bytes more)\n"), "{}", log.len());
    }
}
