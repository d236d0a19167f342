//! Log set-up: lines for people, JSON on request. The filter comes from `TIELINE_LOG` (`info` by
//! default).

use tracing_subscriber::EnvFilter;

/// Sends log lines to standard error.
pub fn start(is_json: bool) {
    start_from("info", is_json);
}

/// The same, unless `TIELINE_LOG` says otherwise only lines of that level and above.
pub fn start_from(level: &str, is_json: bool) {
    let filter = EnvFilter::try_from_env("TIELINE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call, as in tests, changes nothing.
    let _ = if is_json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_target(false).with_ansi(false).try_init()
    };
}
