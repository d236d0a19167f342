//! Two clients have the same files open, and one writes: what the other is told and what it reads
//! belong together, while much else happens on both mounts.

use anyhow::{Result, anyhow, ensure};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tieline_lab::nodes::{number, report};
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
        // Who may map it is taken to be at work as long as it is open.
        let may_map = number.is_multiple_of(2);
        let writer = OpenOptions::new().read(may_map).write(true).open(&here)?;
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
        let outcome = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for who in 0..16 {
                threads.push(scope.spawn(move || match who {
                    0..4 => live(who, &|turn| {
                        std::thread::sleep(Duration::from_millis(3));
                        file(turn).write()
                    }),
                    4..12 => live(who, &|turn| {
                        // Whoever has all he reads here would keep others from the processors.
                        std::thread::sleep(Duration::from_micros(500));
                        file(turn).read(turn)
                    }),
                    12..14 => live(who, &|turn| work(&pair.here, who, turn)),
                    _ => live(who, &|turn| work(&pair.there, who, turn)),
                }));
            }
            let mut joined = threads.into_iter().map(|thread| thread.join());
            joined.try_for_each(|one| one.map_err(|_| anyhow!("a thread panicked"))?)
        });
        // Where an MDS cannot be told in two seconds that somebody writes, or he cannot send what
        // he wrote, or does not hear in four that another looks, nothing is promised.
        let logs = pair.lab.logs()?;
        let beyond = [
            "not sent yet: another looks",
            "written without others being told",
            "a writer does not answer: another looks",
        ];
        let is_beyond = beyond.iter().any(|part| logs.contains(part));
        if outcome.is_err() && is_beyond {
            eprintln!("this machine has too much to do: {outcome:?}");
            return Ok(());
        }
        outcome?;
        // Nothing old stays for good.
        files.iter().try_for_each(|one| one.read(0))
    })
}

/// Who has not written for a while is asked no more when somebody looks. His next write is told of
/// all the same, also if the file has no name any more.
#[test]
fn what_is_written_after_a_rest_is_read() -> Result<()> {
    /// Longer than a writer is taken to be at work.
    const REST: Duration = Duration::from_secs(6);
    Setting::FAR.run(&[], |pair| {
        let files: Vec<Shared> =
            (0..6).map(|number| Shared::new(pair, number)).collect::<Result<_>>()?;
        for _ in 0..2 {
            for file in &files {
                // The first is on its way when the others come.
                (0..3).try_for_each(|_| file.write())?;
                file.read(0)?;
            }
            // He who looks hears that nobody writes.
            std::thread::sleep(REST);
            files.iter().try_for_each(|file| file.read(0))?;
        }
        Ok(())
    })
}

/// A file that grows: a head that says how many blocks there are and how long they are together,
/// and the blocks behind it.
struct Growing {
    path: &'static str,
    /// When each block was written whole, and its end.
    blocks: Mutex<Vec<(Instant, u64)>>,
}

const HEAD: u64 = 16;

fn block(number: u64) -> Vec<u8> {
    vec![(number % 251) as u8 + 1; 1000 + (number as usize * 7919) % 9000]
}

impl Growing {
    fn new(path: &'static str) -> Self {
        Self { path, blocks: Mutex::default() }
    }

    /// Writes a block behind the others, and then the head.
    fn grow(&self, file: &File) -> Result<()> {
        let (number, end) = {
            let blocks = self.blocks.lock().expect("nobody panics here");
            (blocks.len() as u64, blocks.last().map_or(HEAD, |(_, end)| *end))
        };
        let block = block(number);
        file.write_all_at(&block, end)?;
        let end = end + block.len() as u64;
        file.write_all_at(&[number + 1, end].map(u64::to_le_bytes).concat(), 0)?;
        self.blocks.lock().expect("nobody panics here").push((Instant::now(), end));
        Ok(())
    }

    /// Reads the head, and whatever is new since the last time: all that it speaks of is there.
    /// Says how old the first news is that it does not tell yet.
    fn follow(&self, file: &File, seen: &mut u64) -> Result<Duration> {
        let mut head = [0; HEAD as usize];
        let begun = Instant::now();
        let read = file.read_at(&mut head, 0)?;
        let [count, end] =
            [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap()));
        ensure!(read == 0 || read == head.len() && count >= *seen, "{}: {count}", self.path);
        let (late, mut at) = {
            let blocks = self.blocks.lock().expect("nobody panics here");
            let first = blocks.get(count as usize).map(|(written, _)| *written);
            let known = seen.checked_sub(1).and_then(|last| blocks.get(last as usize));
            let late = first.map_or(Duration::ZERO, |first| begun.saturating_duration_since(first));
            (late, known.map_or(HEAD, |(_, end)| *end))
        };
        for number in *seen..count {
            let wanted = block(number);
            let mut found = vec![0; wanted.len()];
            let length = file.read_at(&mut found, at)?;
            let what = format!("{}: block {number} of {count}, at {at} of {end}", self.path);
            ensure!(length == wanted.len(), "{what}: {length} of {} bytes", wanted.len());
            ensure!(found == wanted, "{what}: other bytes");
            at += length as u64;
        }
        *seen = count;
        Ok(late)
    }
}

/// A second, some round trips, and what a busy machine takes; who waited until the writer rested
/// waited for six.
const NEWS: Duration = Duration::from_secs(3);

/// Promise 81: Who keeps a file open that another client writes reads what is written there within
/// a second, without a look at the file in between.
///
/// Promise 82: Whoever reads newer bytes of a file reads all that the same client wrote before
/// them, and the file's end as it was then or later.
#[test]
fn a_file_that_grows_is_followed() -> Result<()> {
    Setting::FAR.run(&[], |pair| {
        // One that is open before anybody writes it, and one that is written by then.
        let files = [Growing::new("before"), Growing::new("while")];
        for one in &files {
            fs::write(pair.here.join(one.path), "")?;
        }
        let open_there = |one: &Growing| File::open(pair.there.join(one.path));
        let open_here =
            |one: &Growing| OpenOptions::new().write(true).open(pair.here.join(one.path));
        let before = open_there(&files[0])?;
        let writers = [open_here(&files[0])?, open_here(&files[1])?];
        for (one, writer) in files.iter().zip(&writers) {
            one.grow(writer)?;
        }
        let readers = [before, open_there(&files[1])?];
        let is_over = AtomicBool::new(false);
        let told = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| -> Result<()> {
            let following = files.iter().zip(&readers).zip(&told).map(|((one, reader), told)| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<_> {
                    let (mut seen, mut ages) = (0, Vec::new());
                    while !is_over.load(Ordering::Relaxed) {
                        ages.push(one.follow(reader, &mut seen)?);
                        told.store(seen, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    ages.sort();
                    Ok((seen, ages))
                })
            });
            let following: Vec<_> = following.collect();
            let begun = Instant::now();
            let mut grown = Ok(());
            while grown.is_ok() && begun.elapsed() < Duration::from_secs(6) {
                grown = files.iter().zip(&writers).try_for_each(|(one, file)| one.grow(file));
                std::thread::sleep(Duration::from_millis(10));
            }
            // The last news comes as well.
            let last = |one: &Growing| one.blocks.lock().expect("nobody panics here").len() as u64;
            let is_told =
                |(one, told): (&Growing, &AtomicU64)| told.load(Ordering::SeqCst) == last(one);
            let begun = Instant::now();
            while begun.elapsed() < 5 * NEWS && !files.iter().zip(&told).all(is_told) {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_over.store(true, Ordering::Relaxed);
            grown?;
            for (one, follower) in files.iter().zip(following) {
                let (seen, ages) = follower.join().map_err(|_| anyhow!("panicked"))??;
                let last = one.blocks.lock().expect("nobody panics here").len() as u64;
                ensure!(seen == last, "{}: {seen} blocks seen of {last}", one.path);
                // Of ten looks one may have met with a machine that stood still.
                let late = ages.get(ages.len() * 9 / 10).copied().unwrap_or_default();
                eprintln!("{}: news {late:?} late, {:?} at most", one.path, ages.last());
                ensure!(late < NEWS, "{}: news {late:?} late", one.path);
            }
            Ok(())
        })
    })
}

/// Who reads beside one that writes all the time asks for each read once at most, and does not have
/// the other commit for it.
#[test]
fn small_reads_beside_a_writer_cost_a_round_trip_each() -> Result<()> {
    const READS: u64 = 64;
    Setting::FAR.run(&[], |pair| {
        const SIZE: u64 = 4 << 20;
        let path = pair.here.join("file");
        fs::write(&path, vec![7; SIZE as usize])?;
        let writer = OpenOptions::new().write(true).open(&path)?;
        writer.write_all_at(&[8; PAGE], 0)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let writing = scope.spawn(|| -> Result<()> {
                let mut turn = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    turn += 1;
                    let page = turn.wrapping_mul(2_654_435_761) % (SIZE / PAGE as u64);
                    writer.write_all_at(&[turn as u8; PAGE], page * PAGE as u64)?;
                    std::thread::sleep(Duration::from_micros(3300));
                }
                Ok(())
            });
            let reader = File::open(pair.there.join("file"))?;
            let mount = pair.there.ancestors().find(|place| place.ends_with("mount-1"));
            let mount = mount.ok_or_else(|| anyhow!("the second mount"))?;
            let asked = || -> Result<u64> { number(&report(mount)?, &["mds_round_trips"]) };
            let (before, begun) = (asked()?, Instant::now());
            for turn in 0..READS {
                let mut some = [0; 8];
                reader.read_exact_at(&mut some, turn * 7919 * 64 % SIZE / 8 * 8)?;
            }
            let (trips, took) = (asked()? - before, begun.elapsed());
            eprintln!("{READS} reads: {trips} round trips to MDSs, {took:?}");
            is_over.store(true, Ordering::Relaxed);
            writing.join().map_err(|_| anyhow!("panicked"))??;
            // Leases are renewed meanwhile.
            ensure!(trips <= READS + 8, "{trips} round trips to MDSs for {READS} reads");
            Ok(())
        })
    })
}
