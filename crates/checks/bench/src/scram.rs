//! A build tool that goes through a tree of software: CMS's SCRAM, by the counts of the paper on
//! Kerberized Lustre, in parts of a twentieth.
//!
//! The tree is subsystems of packages of directories, and the trace is made of it by a generator of
//! its own, so that every run asks for the same things in the same order: package by package, stats
//! of names, whole reads of some small files, a few links. One call after the other, and
//! every call waits.
//!
//! * [`make`]: the tree; [`trace`]: what is asked; [`replay`]: asks it.

use crate::Settings;
use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::line::{self, Line};
use crate::sweep::{Axis, Gathered, RTT};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::Federation;

/// Directories of one twentieth, and what is asked there.
const DIRECTORIES: usize = 1000;
const FILES_EACH: usize = 9;
const OPENS: usize = 1200;
const STATS: usize = 1200;
const LSTATS: usize = 1800;
const LINKS: usize = 75;
/// Of all files that are read.
const BYTES: usize = 37_000_000;
/// Directories of a package.
const PACKAGE: usize = 5;
/// Packages of a subsystem.
const SUBSYSTEM: usize = 20;
const SEED: u64 = 0x5c4a_4d20;
/// A call that took longer waited for the line; with `TIELINE_BENCH_WAITS` set each is told.
const A_WAIT: Duration = Duration::from_millis(20);

/// Round trips, as far as continents are apart.
const DISTANCES: Axis = Axis { values: &["0.2", "12", "50", "100"], ..RTT };

/// One call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    Read(PathBuf),
    Stat(PathBuf),
    Lstat(PathBuf),
    Readlink(PathBuf),
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

fn directory(number: usize) -> PathBuf {
    let (package, below) = (number / PACKAGE, number % PACKAGE);
    let subsystem = package / SUBSYSTEM;
    let package = PathBuf::from(format!("sub{subsystem:03}/pkg{:02}", package % SUBSYSTEM));
    match below {
        0 => package,
        1 => package.join("interface"),
        2 => package.join("src"),
        3 => package.join("test"),
        _ => package.join("data"),
    }
}

fn file(number: usize) -> PathBuf {
    directory(number / FILES_EACH).join(format!("file{}.cc", number % FILES_EACH))
}

fn link(number: usize) -> PathBuf {
    directory(number * (DIRECTORIES / LINKS)).join("latest")
}

/// Bytes of a file: from a few hundred to some hundred thousand, many small and few large.
fn size(number: usize) -> usize {
    let mut dice = Dice(SEED ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mean = BYTES / OPENS;
    // The product of two has many small and few large ones, with a fourth as its mean.
    let (one, other) = (dice.below(2000), dice.below(2000));
    200 + mean * 2 * one / 1000 * other / 2000
}

/// Makes the tree of `parts` twentieths below `root`.
pub fn make(root: &Path, parts: usize) -> Result<()> {
    let mut bytes = vec![];
    for number in 0..DIRECTORIES * parts {
        let here = root.join(directory(number));
        fs::create_dir_all(&here)?;
        for file_number in number * FILES_EACH..(number + 1) * FILES_EACH {
            bytes.clear();
            // Text that is neither all the same nor all different.
            let mut line = file_number as u64;
            while bytes.len() < size(file_number) {
                line = line.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                bytes.extend_from_slice(format!("#include <lib{line:x}.h>\n").as_bytes());
            }
            bytes.truncate(size(file_number));
            fs::write(root.join(file(file_number)), &bytes)?;
        }
    }
    for number in 0..LINKS * parts {
        symlink("file0.cc", root.join(link(number)))?;
    }
    Ok(())
}

/// What a build asks of `parts` twentieths: package by package, each directory's names first and
/// then files.
pub fn trace(parts: usize) -> Vec<Step> {
    let mut steps = vec![];
    let mut dice = Dice(SEED);
    let packages = DIRECTORIES * parts / PACKAGE;
    // What is left of each kind is dealt evenly to the packages that are left.
    let mut left = [OPENS * parts, STATS * parts, LSTATS * parts];
    let mut links = 0;
    for package in 0..packages {
        let mut due = left.map(|left| left.div_ceil(packages - package));
        left.iter_mut().zip(due).for_each(|(left, due)| *left -= due);
        let first = package * PACKAGE * FILES_EACH;
        let within = PACKAGE * FILES_EACH;
        let mut opened = first + dice.below(within);
        while due.iter().any(|&due| due > 0) {
            // Names are looked at, and every now and then a file is read.
            for _ in 0..3 {
                if due[1] > 0 {
                    due[1] -= 1;
                    steps.push(Step::Stat(file(first + dice.below(within))));
                }
                if due[2] > 0 {
                    due[2] -= 1;
                    let number = package * PACKAGE + dice.below(PACKAGE);
                    let one = dice.below(FILES_EACH + 1);
                    let path = if one == FILES_EACH {
                        directory(number)
                    } else {
                        file(number * FILES_EACH + one)
                    };
                    steps.push(Step::Lstat(path));
                }
            }
            if due[0] > 0 {
                due[0] -= 1;
                steps.push(Step::Read(file(opened)));
                opened = first + (opened - first + 1 + dice.below(7)) % within;
            }
        }
        while links < (package + 1) * LINKS * parts / packages {
            steps.push(Step::Readlink(link(links)));
            links += 1;
        }
    }
    steps
}

/// Asks all of it, one after the other; gives the bytes that were read, and the calls that waited.
pub fn replay(root: &Path, steps: &[Step]) -> Result<(usize, Vec<(usize, Duration)>)> {
    let (mut bytes, mut waits) = (0, Vec::new());
    for (place, step) in steps.iter().enumerate() {
        let begun = Instant::now();
        match step {
            Step::Read(path) => {
                let path = root.join(path);
                bytes += fs::read(&path).with_context(|| format!("{path:?}"))?.len();
            }
            Step::Stat(path) => fs::metadata(root.join(path)).map(|_| ())?,
            Step::Lstat(path) => fs::symlink_metadata(root.join(path)).map(|_| ())?,
            Step::Readlink(path) => fs::read_link(root.join(path)).map(|_| ())?,
        }
        let took = begun.elapsed();
        if took > A_WAIT {
            waits.push((place, took));
        }
    }
    Ok((bytes, waits))
}

fn timed(root: &Path, steps: &[Step], bytes: usize) -> Result<Duration> {
    let begun = Instant::now();
    let (read, waits) = replay(root, steps)?;
    ensure!(read == bytes, "{read} bytes were read, and not {bytes}");
    let took = begun.elapsed();
    eprintln!("{:.2} s; {} calls waited longer than {A_WAIT:?}", took.as_secs_f64(), waits.len());
    if std::env::var_os("TIELINE_BENCH_WAITS").is_some() {
        waits.iter().for_each(|(place, took)| eprintln!("{place} {took:?} {:?}", steps[*place]));
    }
    Ok(took)
}

/// The replay over a distance: never used before, used once by another client, and again by the
/// same one; beside the local file system.
pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    let plan = settings.over_a_line(&["--rtt", "50ms", "--rate", line::RATE]);
    let federation = Federation::start(&plan)?;
    let measured = measure_in(settings, &federation, to);
    federation.down()?;
    measured
}

fn measure_in(settings: &Settings, federation: &Federation, to: &mut Gathered<'_>) -> Result<()> {
    let parts = settings.parts;
    let steps = trace(parts);
    let local = tempfile::tempdir_in(&settings.local)?;
    make(local.path(), parts)?;
    let (bytes, _) = replay(local.path(), &steps)?;
    let walk = Walk { federation, steps, local: local.path(), bytes, parts };
    let line = Line::of(federation)?;
    for distance in DISTANCES.values(settings) {
        eprintln!("measuring: scram at {distance} ms");
        let measured = line.set_rtt(distance).and_then(|()| walk.measure(distance));
        to.keep_if_measured(&format!("scram at {distance} ms"), measured);
    }
    Ok(())
}

/// What is replayed.
struct Walk<'w> {
    federation: &'w Federation,
    steps: Vec<Step>,
    local: &'w Path,
    bytes: usize,
    parts: usize,
}

impl Walk<'_> {
    /// In a tree that nobody has used.
    fn measure(&self, distance: &'static str) -> Result<Vec<Figure>> {
        let name = format!("scram-{distance}");
        let tree = self.federation.mount().join(&name);
        let begun = Instant::now();
        make(&tree, self.parts)?;
        let (files, took) = (self.parts * 9000, begun.elapsed().as_secs_f64());
        eprintln!("tree of {files} files made in {took:.1} s");
        self.federation.tieline(&["sync".as_ref(), tree.as_os_str()])?;

        let scale = self.parts as f64;
        // Every client is cold once.
        let first = self.federation.mount_again()?;
        let once = |what: &'static str, mount: &Path, goal| {
            self.once(distance, what, &mount.join(&name), goal)
        };
        let unused = once("never used before", &first, 15.0 * scale)?;
        // What was opened is reported after a while.
        std::thread::sleep(Duration::from_secs(5));
        let second = self.federation.mount_again()?;
        let goal = if self.parts == 1 { 2.6 } else { 20.0 };
        let used = once("used by another client", &second, goal)?;
        let again = once("the same client again", &second, 0.12 * scale)?;
        for mount in [first, second] {
            self.federation.unmount(&mount)?;
        }
        Ok(vec![unused, used, again])
    }

    fn once(
        &self,
        distance: &'static str,
        what: &'static str,
        tree: &Path,
        goal: f64,
    ) -> Result<Figure> {
        let timed = |tree| Ok(timed(tree, &self.steps, self.bytes)?.as_secs_f64());
        let figure = take_turns(
            format!("scram, {distance} ms, {what}"),
            Unit::Seconds,
            1,
            Box::new(|| timed(tree)),
            vec![("local", Box::new(|| timed(self.local)))],
        )?;
        let figure = figure.with_goal(Goal::Value(goal));
        Ok(DISTANCES.place(figure, "scram-by-distance", what, distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_has_the_papers_counts() {
        let steps = trace(1);
        let count = |is_it: fn(&Step) -> bool| steps.iter().filter(|step| is_it(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Read(_))), OPENS);
        assert_eq!(count(|step| matches!(step, Step::Stat(_))), STATS);
        assert_eq!(count(|step| matches!(step, Step::Lstat(_))), LSTATS);
        assert_eq!(count(|step| matches!(step, Step::Readlink(_))), LINKS);
        assert_eq!(trace(1), steps, "the same every time");
        let read = steps.iter().filter_map(|step| match step {
            Step::Read(path) => Some(path),
            _ => None,
        });
        let sizes: std::collections::BTreeMap<PathBuf, usize> =
            (0..DIRECTORIES * FILES_EACH).map(|number| (file(number), size(number))).collect();
        let bytes: usize = read.map(|path| sizes[path]).sum();
        assert!((BYTES * 8 / 10..BYTES * 12 / 10).contains(&bytes), "{bytes} bytes");
    }
}
