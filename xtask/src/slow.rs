//! What takes longest by itself. Tests of the lab write a line each (`TIELINE_TIMES`): seconds,
//! seconds of processors, name.

use anyhow::Result;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

const SHOWN: usize = 15;

pub struct Slow {
    known: Mutex<Vec<Taken>>,
    folder: tempfile::TempDir,
}

struct Taken {
    seconds: f64,
    /// Of processors, where it is known.
    busy: Option<f64>,
    name: String,
}

impl Slow {
    pub fn new() -> Result<Self> {
        Ok(Self { known: Mutex::default(), folder: tempfile::tempdir()? })
    }

    /// Where tests of the lab write.
    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("times")
    }

    pub fn add(&self, name: &str, took: Duration) {
        let taken = Taken { seconds: took.as_secs_f64(), busy: None, name: name.to_owned() };
        self.known.lock().expect("nobody panics with it").push(taken);
    }

    pub fn print(&self) {
        let mut known = std::mem::take(&mut *self.known.lock().expect("nobody panics with it"));
        known.extend(read(&self.file()));
        if known.is_empty() {
            return;
        }
        known.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        eprintln!("\nWhat took longest, and how much of that it slept:");
        for Taken { seconds, busy, name } in known.iter().take(SHOWN) {
            let slept = busy.map_or(String::new(), |busy| format!("{:6.1} s", seconds - busy));
            eprintln!("{seconds:>7.1} s  {slept:>8}  {name}");
        }
    }
}

fn read(file: &Path) -> Vec<Taken> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let seconds = words.next()?.parse().ok()?;
        let busy = words.next()?.parse().ok();
        Some(Taken { seconds, busy, name: words.next()?.to_owned() })
    };
    text.lines().filter_map(line).collect()
}
