//! What each test took, for a run that lists the slowest: a line for each in `$TIELINE_TIMES`, with
//! seconds, seconds of processors, and the test's name.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

/// Of `/proc/PID/stat`, in each second (USER_HZ).
const TICKS: f64 = 100.0;

/// A test's federation was there for so long.
pub fn note(took: Duration, busy: Duration) {
    let Some(path) = std::env::var_os("TIELINE_TIMES") else { return };
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("{:.3} {:.3} {name}\n", took.as_secs_f64(), busy.as_secs_f64());
    // One write, so that lines of tests that end together stay whole.
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("no time of this test is kept: {error}");
    }
}

/// Seconds of processors that these processes took, with those of their children that have ended.
pub fn busy(pids: &[i64]) -> Duration {
    let ticks = pids.iter().filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Counted from behind the name, which may hold anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields = rest.split(' ').skip(11).take(4);
        Some(fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>())
    });
    Duration::from_secs_f64(ticks.sum::<f64>() / TICKS)
}
