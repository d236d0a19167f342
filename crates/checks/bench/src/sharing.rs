//! Two clients that take turns on one file: each writes and closes, the other opens and reads.

use anyhow::{Result, ensure};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Milliseconds per hand-over. The two paths lead to the same directory.
pub fn hand_over(one: &Path, other: &Path, count: u64) -> Result<f64> {
    let (one, other) = (one.join("shared"), other.join("shared"));
    std::fs::write(&one, 0_u64.to_le_bytes())?;
    let start = Instant::now();
    for number in 1..=count {
        let (writer, reader) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
        File::options().write(true).open(writer)?.write_all_at(&number.to_le_bytes(), 0)?;
        let mut read = [0; 8];
        File::open(reader)?.read_exact(&mut read)?;
        ensure!(u64::from_le_bytes(read) == number, "the other client read something old");
    }
    let elapsed = start.elapsed();
    std::fs::remove_file(&one)?;
    Ok(elapsed.as_secs_f64() * 1e3 / count as f64)
}
