//! The model: random POSIX operations on the mount and on a local directory must do the same.
//!
//! Each step is applied to both; results, errnos and, at the end, the whole trees are compared,
//! the mount's also as a second client sees it. proptest shrinks a failure to few steps and prints
//! them.

use anyhow::{Context, Result, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Result as IoResult, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_lab::{tree, with_federation};

/// A path of one to three short names, so that steps meet.
type Place = String;

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: Place,
        offset: u64,
        length: usize,
        fill: u8,
    },
    Append {
        at: Place,
        length: usize,
        fill: u8,
    },
    Create {
        at: Place,
    },
    Read {
        at: Place,
    },
    ReadPart {
        at: Place,
        offset: u64,
        length: usize,
    },
    Truncate {
        at: Place,
        length: u64,
    },
    Mkdir {
        at: Place,
    },
    Rmdir {
        at: Place,
    },
    Unlink {
        at: Place,
    },
    Rename {
        from: Place,
        to: Place,
    },
    Link {
        from: Place,
        to: Place,
    },
    Symlink {
        target: Place,
        at: Place,
    },
    Chmod {
        at: Place,
        mode: u32,
    },
    Touch {
        at: Place,
        seconds: i64,
    },
    List {
        at: Place,
    },
    Stat {
        at: Place,
    },
    /// Keeps the file open for `ReadHeld` and `WriteHeld`, whatever happens to its name.
    Hold {
        at: Place,
    },
    ReadHeld,
    WriteHeld {
        offset: u64,
        length: usize,
        fill: u8,
    },
    SyncHeld,
}

fn place() -> impl Strategy<Value = Place> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    prop::collection::vec(name, 1..=3).prop_map(|names| names.join("/"))
}

/// Around the ends of blocks (4 KiB), inline extents (16 KiB) and chunks (4 MiB); mostly small.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..20_000,
        2 => prop::sample::select(vec![0, 4095, 4096, 16_383, 16_384, 65_536]),
        1 => (4_u64 << 20) - 5000..(4 << 20) + 5000,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0_usize..5000, 2 => 15_000_usize..20_000, 1 => 100_000_usize..300_000]
}

fn step() -> impl Strategy<Value = Step> {
    let write = (place(), offset(), length(), any::<u8>())
        .prop_map(|(at, offset, length, fill)| Step::Write { at, offset, length, fill });
    let append = (place(), length(), any::<u8>()).prop_map(|(at, length, fill)| Step::Append {
        at,
        length,
        fill,
    });
    let part = (place(), offset(), length()).prop_map(|(at, offset, length)| Step::ReadPart {
        at,
        offset,
        length,
    });
    let held = (offset(), length(), any::<u8>())
        .prop_map(|(offset, length, fill)| Step::WriteHeld { offset, length, fill });
    let modes = prop::sample::select(vec![0o700, 0o744, 0o755, 0o1777]);
    prop_oneof![
        6 => write,
        3 => append,
        2 => place().prop_map(|at| Step::Create { at }),
        4 => place().prop_map(|at| Step::Read { at }),
        2 => part,
        3 => (place(), offset()).prop_map(|(at, length)| Step::Truncate { at, length }),
        6 => place().prop_map(|at| Step::Mkdir { at }),
        2 => place().prop_map(|at| Step::Rmdir { at }),
        3 => place().prop_map(|at| Step::Unlink { at }),
        5 => (place(), place()).prop_map(|(from, to)| Step::Rename { from, to }),
        3 => (place(), place()).prop_map(|(from, to)| Step::Link { from, to }),
        2 => (place(), place()).prop_map(|(target, at)| Step::Symlink { target, at }),
        2 => (place(), modes).prop_map(|(at, mode)| Step::Chmod { at, mode }),
        2 => (place(), 0_i64..2_000_000_000).prop_map(|(at, seconds)| Step::Touch { at, seconds }),
        2 => place().prop_map(|at| Step::List { at }),
        2 => place().prop_map(|at| Step::Stat { at }),
        2 => place().prop_map(|at| Step::Hold { at }),
        2 => Just(Step::ReadHeld),
        2 => held,
        1 => Just(Step::SyncHeld),
    ]
}

/// One side: a directory, and the file that is held open.
struct Side {
    root: PathBuf,
    held: Option<File>,
}

impl Side {
    fn new(root: PathBuf) -> Result<Self> {
        fs::create_dir(&root)?;
        Ok(Self { root, held: None })
    }

    fn at(&self, place: &str) -> PathBuf {
        self.root.join(place)
    }

    /// What a program would see of this step.
    fn apply(&mut self, step: &Step) -> String {
        match self.result_of(step) {
            Ok(seen) => seen,
            Err(error) => format!("errno {:?}", error.raw_os_error()),
        }
    }

    fn result_of(&mut self, step: &Step) -> IoResult<String> {
        let done = String::from("done");
        match step {
            Step::Write { at, offset, length, fill } => {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(self.at(at))?;
                file.write_all_at(&vec![*fill; *length], *offset)?;
            }
            Step::Append { at, length, fill } => {
                let mut file = OpenOptions::new().append(true).open(self.at(at))?;
                file.write_all(&vec![*fill; *length])?;
            }
            Step::Create { at } => drop(File::create_new(self.at(at))?),
            Step::Read { at } => return Ok(summary(&fs::read(self.at(at))?)),
            Step::ReadPart { at, offset, length } => {
                let file = File::open(self.at(at))?;
                return read_part(&file, *offset, *length);
            }
            Step::Truncate { at, length } => {
                OpenOptions::new().write(true).open(self.at(at))?.set_len(*length)?;
            }
            Step::Mkdir { at } => fs::create_dir(self.at(at))?,
            Step::Rmdir { at } => fs::remove_dir(self.at(at))?,
            Step::Unlink { at } => fs::remove_file(self.at(at))?,
            Step::Rename { from, to } => fs::rename(self.at(from), self.at(to))?,
            Step::Link { from, to } => fs::hard_link(self.at(from), self.at(to))?,
            Step::Symlink { target, at } => symlink(target, self.at(at))?,
            Step::Chmod { at, mode } => {
                fs::set_permissions(self.at(at), fs::Permissions::from_mode(*mode))?;
            }
            Step::Touch { at, seconds } => {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(*seconds as u64);
                File::open(self.at(at))?.set_modified(time)?;
            }
            Step::List { at } => {
                let mut names = fs::read_dir(self.at(at))?
                    .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                    .collect::<IoResult<Vec<_>>>()?;
                names.sort();
                return Ok(names.join(" "));
            }
            Step::Stat { at } => return stat(&fs::symlink_metadata(self.at(at))?),
            Step::Hold { at } => {
                self.held = Some(OpenOptions::new().read(true).write(true).open(self.at(at))?);
            }
            Step::ReadHeld | Step::WriteHeld { .. } | Step::SyncHeld => return self.use_held(step),
        }
        Ok(done)
    }

    fn use_held(&self, step: &Step) -> IoResult<String> {
        let Some(file) = &self.held else { return Ok(String::from("nothing held")) };
        match step {
            Step::WriteHeld { offset, length, fill } => {
                file.write_all_at(&vec![*fill; *length], *offset)?;
            }
            Step::SyncHeld => file.sync_all()?,
            _ => return read_part(file, 0, 1 << 23),
        }
        stat(&file.metadata()?)
    }
}

fn read_part(file: &File, offset: u64, length: usize) -> IoResult<String> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(summary(&bytes[..filled]))
}

/// Length, and runs of equal bytes: short, and exact for what `Write` writes.
fn summary(bytes: &[u8]) -> String {
    let runs: Vec<_> =
        bytes.chunk_by(|a, b| a == b).map(|run| format!("{}x{:02x}", run.len(), run[0])).collect();
    format!("{} bytes: {}", bytes.len(), runs.join(" "))
}

/// What does not depend on where it lies. Directories' sizes are each file system's own affair.
fn stat(metadata: &fs::Metadata) -> IoResult<String> {
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    let links = metadata.nlink();
    Ok(format!("mode {:o} size {size} links {links}", metadata.mode()))
}

/// Plays one history on both sides.
fn play(steps: &[Step], mount: &Path, far: &Path, local: &Path, number: usize) -> Result<()> {
    let name = format!("case-{number}");
    let mut real = Side::new(mount.join(&name))?;
    let mut model = Side::new(local.join(&name))?;
    for (step, at) in steps.iter().zip(1..) {
        let (seen, wanted) = (real.apply(step), model.apply(step));
        ensure!(seen == wanted, "step {at}, {step:?}:\n  mount: {seen}\n  local: {wanted}");
    }
    drop((real.held.take(), model.held.take()));
    let wanted = without_times(&model.root)?;
    ensure!(without_times(&real.root)? == wanted, "the trees differ at the end");
    let far = without_times(&far.join(&name)).context("as another client sees it")?;
    ensure!(far == wanted, "another client sees another tree: {far:#?} for {wanted:#?}");
    fs::remove_dir_all(&real.root).context("removing the tree")?;
    Ok(())
}

/// The tree without times, which differ by when each side was asked.
fn without_times(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let cut = |line: String| match line.split_once(" (") {
        Some((before, after)) => {
            format!("{before}{}", after.split_once(')').map_or("", |(_, rest)| rest))
        }
        None => line,
    };
    Ok(tree::describe(root)?.into_iter().map(|(path, line)| (path, cut(line))).collect())
}

#[test]
fn two_local_directories_do_the_same() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    fs::create_dir(&one)?;
    fs::create_dir(&other)?;
    runner(20)
        .run(&prop::collection::vec(step(), 1..60), |steps| {
            play(&steps, &one, &one, &other, 0)
                .and_then(|()| Ok(fs::remove_dir_all(other.join("case-0"))?))
                .map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|failure| anyhow::anyhow!("{failure}"))
}

/// The same histories in every run, so that a failure repeats. `TIELINE_MODEL_SEED=N` plays others,
/// `PROPTEST_CASES=N` more.
fn runner(cases: u32) -> TestRunner {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let mut seed = [0; 32];
    let own = number("TIELINE_MODEL_SEED").unwrap_or(1).to_le_bytes();
    seed.iter_mut().zip(own).for_each(|(byte, own)| *byte = own);
    let config = Config {
        cases: number("PROPTEST_CASES").unwrap_or(cases),
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Promise 15: Random histories of operations give the same results, errors and trees as on a
/// local disk's file system.
#[test]
fn the_mount_does_what_a_local_directory_does() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        let local = lab.local("model");
        fs::create_dir(&local)?;
        let number = AtomicUsize::new(0);
        runner(60)
            .run(&prop::collection::vec(step(), 1..60), |steps| {
                let number = number.fetch_add(1, Ordering::Relaxed);
                play(&steps, lab.mount(), &far, &local, number)
                    .map_err(|error| TestCaseError::fail(format!("{error:#}")))
            })
            .map_err(|failure| anyhow::anyhow!("{failure}"))
    })
}
