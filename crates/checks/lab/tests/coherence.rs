//! Two clients have the same files open, and one writes: what the other is told and what it reads
//! belong together, while much else happens on both mounts.

use anyhow::{Result, anyhow, ensure};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tieline_lab::setting::{Line, Pair, Setting};

const PAGE: usize = 4096;
const PAGES: usize = 3;

/// A file that both have open.
struct Shared {
    name: String,
    writer: File,
    reader: File,
    /// The last version whose write(2) has returned.
    written: AtomicU64,
    /// One writes at a time, and one reads.
    turn: Mutex<u64>,
    reading: Mutex<()>,
}

impl Shared {
    fn new(pair: &Pair<'_>, number: usize) -> Result<Self> {
        let name = format!("f{number}");
        let (here, there) = (pair.here.join(&name), pair.there.join(&name));
        fs::write(&here, bytes(0))?;
        let reader = File::open(&there)?;
        let writer = OpenOptions::new().read(true).write(true).open(&here)?;
        // Most have no name any more, taken away here or there.
        match number % 3 {
            0 => fs::remove_file(&here)?,
            1 => fs::remove_file(&there)?,
            _ => {}
        }
        let (written, turn, reading) = Default::default();
        Ok(Self { name, writer, reader, written, turn, reading })
    }

    /// Writes over it in place, and closes nothing.
    fn write(&self) -> Result<()> {
        let Ok(mut turn) = self.turn.try_lock() else { return Ok(()) };
        *turn += 1;
        self.writer.write_all_at(&bytes(*turn), 0)?;
        self.written.store(*turn, Ordering::SeqCst);
        Ok(())
    }

    /// Looks, and reads what it was told of: some page, and then all of them.
    fn read(&self, turn: u64) -> Result<()> {
        let Ok(_reading) = self.reading.try_lock() else { return Ok(()) };
        let least = self.written.load(Ordering::SeqCst);
        self.reader.metadata()?;
        let mut page = [0; PAGE];
        for at in [turn as usize % PAGES, 0, 1, 2] {
            self.reader.read_exact_at(&mut page, (at * PAGE) as u64)?;
            let found = u64::from_le_bytes(page[..8].try_into()?);
            ensure!(found >= least, "{}: page {at} is of {found} after {least}", self.name);
            ensure!(page[8..] == bytes(found)[8..PAGE], "{}: a torn page", self.name);
        }
        Ok(())
    }
}

fn bytes(version: u64) -> Vec<u8> {
    let mut page = vec![version as u8; PAGE];
    page[..8].copy_from_slice(&version.to_le_bytes());
    page.repeat(PAGES)
}

/// Files that come and go beside.
fn work(folder: &Path, who: u64, turn: u64) -> Result<()> {
    let name = |one: u64| folder.join(format!("w{who}-{}", one % 7));
    match turn % 4 {
        0 => fs::write(name(turn), vec![1; 20_000])?,
        1 => drop(fs::rename(name(turn - 1), name(turn))),
        2 => drop(fs::read_dir(folder)?.count()),
        _ => drop(fs::remove_file(name(turn - 2))),
    }
    Ok(())
}

/// Promise 80: Whoever was told of a version of a file, by whatever call, reads the bytes of that
/// version or newer ones from then on.
#[test]
fn what_was_told_is_read() -> Result<()> {
    const TIME: Duration = Duration::from_secs(10);
    Setting::FAR.run(&[], |pair| {
        let count = if pair.setting.line == Line::Far { 45 } else { 135 };
        let files: Vec<Shared> =
            (0..count).map(|number| Shared::new(pair, number)).collect::<Result<_>>()?;
        let (begun, failed) = (Instant::now(), AtomicBool::new(false));
        let goes_on = || begun.elapsed() < TIME && !failed.load(Ordering::Relaxed);
        // One thread's life: its step over and over, at another place each time.
        let live = |who: u64, step: &(dyn Fn(u64) -> Result<()> + Sync)| -> Result<()> {
            let mut turn = who * 7919;
            while goes_on() {
                turn += 1;
                step(turn).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        let (live, files) = (&live, &files);
        let file =
            |turn: u64| &files[(turn.wrapping_mul(2_654_435_761) >> 7) as usize % files.len()];
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for who in 0..16 {
                threads.push(scope.spawn(move || match who {
                    0..4 => live(who, &|turn| {
                        std::thread::sleep(Duration::from_millis(3));
                        file(turn).write()
                    }),
                    4..12 => live(who, &|turn| file(turn).read(turn)),
                    12..14 => live(who, &|turn| work(&pair.here, who, turn)),
                    _ => live(who, &|turn| work(&pair.there, who, turn)),
                }));
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|one| one.map_err(|_| anyhow!("a thread panicked"))?).collect::<Result<()>>()
        })?;
        // Nothing old stays for good.
        files.iter().try_for_each(|one| one.read(0))
    })
}
