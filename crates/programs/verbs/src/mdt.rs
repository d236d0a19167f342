//! `tieline mdt`: dumps of an MDT at work; checking, restoring and rebuilding what was lost.

use crate::operator;
use crate::progress::Ticker;
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tieline_base::location::Location;
use tieline_format::ledger::{Frame, HeadKind, Sum, preamble};
use tieline_ledger::Identity;
use tieline_ledger::restore::{Asked, Checked, Restored, restore, verify_all};
use tieline_ledger::stream::Frames;
use tieline_machine::becoming::become_user;
use tieline_serve::run::{open_empty_store, open_log};
use tieline_serve::settings::{Engine, Plan, Settings};
use tieline_types::{MdtIndex, Time, Version};
use tieline_wire::capability::RenewCapabilityKey;
use tieline_wire::ledger::DumpMdt;
use tieline_world::World;

mod rebuild;

#[derive(clap::Subcommand, Debug)]
pub enum MdtVerb {
    /// Write a consistent dump of an MDT, while it serves, to standard output
    Dump {
        /// Which MDT
        #[arg(long)]
        mdt: u16,
        /// Only what was committed after this version (from the change log)
        #[arg(long, value_name = "VERSION")]
        since: Option<u64>,
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
    },
    /// Have an MDT let clients at bytes by another key from now on: what the old one signed ends
    RenewKey {
        /// Which MDT
        #[arg(long)]
        mdt: u16,
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
    },
    /// Check dumps, and directories of change logs: every byte of them is read
    Verify {
        #[arg(long)]
        json: bool,
        /// Dumps, segments, or directories; `-` for standard input
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Fill the empty store of a server that does not run from dumps and change logs
    Restore {
        /// The server's settings
        #[arg(long, value_name = "FILE")]
        settings: PathBuf,
        /// Where the log has a hole, restore what is before it
        #[arg(long)]
        up_to_hole: bool,
        /// One JSON value
        #[arg(long)]
        json: bool,
        /// Dumps, segments, or directories of a change log, in any order; `-` and pipes are read to
        /// their end first
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Fill the empty store of a server that does not run with what the objects know
    Rebuild {
        /// Ask all OSTs of the federation: their servers must run
        #[arg(long, required = true)]
        from_osts: bool,
        /// OSTs that are gone for good, such as OST0003: what only they had is lost, and files
        /// that show gaps are named
        #[arg(long, value_name = "OST", value_delimiter = ',')]
        without: Vec<String>,
        /// One JSON value
        #[arg(long)]
        json: bool,
        /// The server's settings
        #[arg(long, value_name = "FILE")]
        settings: PathBuf,
    },
}

pub fn run(verb: MdtVerb) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        MdtVerb::Dump { mdt, since, fs } => dump(MdtIndex(mdt), since.map(Version), fs),
        MdtVerb::RenewKey { mdt, fs } => renew_key(MdtIndex(mdt), fs),
        MdtVerb::Verify { json, paths } => verify(&paths, json),
        MdtVerb::Restore { settings, up_to_hole, json, paths } => {
            restore_store(&settings, &paths, up_to_hole, json)
        }
        MdtVerb::Rebuild { settings, without, json, .. } => {
            rebuild::rebuild_store(&settings, &without, json)
        }
    }
}

/// The parts are checked on the way: what is written is whole, and the end says so.
fn dump(mdt: MdtIndex, since: Option<Version>, fs: Option<OsString>) -> anyhow::Result<()> {
    let location = Location::find_fs(fs.as_deref(), None)?;
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    // Who reads a dump has never seen enough of half of it, as `head` has of a listing.
    let cut = |error: std::io::Error| anyhow!("the dump is not complete: {error}");
    operator::run(&location, |operator| async move {
        let line = operator.dial(mdt)?;
        let news = Ticker::new(format!("dumping {}", mdt.label()), "bytes");
        let (mut cursor, mut is_begun) = (None, false);
        let mut sum = Sum::default();
        loop {
            let ask = DumpMdt { cursor: cursor.take(), since };
            let (reply, frames) = line.call(ask).await.context("the dump is not complete")?;
            let shown = Path::new("what the server sent");
            let mut parts = Frames::at_frame(&frames[..], shown, 0);
            while let Some((frame, check)) = parts.read()? {
                sum.add(&frame, check);
            }
            // What is refused leaves nothing that looks like a dump.
            if !std::mem::replace(&mut is_begun, true) {
                out.write_all(&preamble()).map_err(cut)?;
            }
            out.write_all(&frames).map_err(cut)?;
            news.add(frames.len() as u64);
            cursor = reply.cursor;
            if cursor.is_none() {
                break;
            }
        }
        out.write_all(&Frame::End(sum.end()).to_bytes()).map_err(cut)?;
        out.flush().map_err(cut)?;
        line.close().await;
        Ok(())
    })
}

fn renew_key(mdt: MdtIndex, fs: Option<OsString>) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(fs.as_deref())?;
    operator::run(&location, |operator| async move {
        let line = operator.dial(mdt)?;
        let answer = line.call(RenewCapabilityKey {}).await;
        line.close().await;
        answer?;
        println!("{} has another key; data servers hear of it within seconds", mdt.label());
        Ok(())
    })
}

fn verify(paths: &[PathBuf], is_json: bool) -> anyhow::Result<()> {
    let mut all: Vec<Checked> = Vec::new();
    let news = Ticker::new("verifying", "files");
    for path in paths {
        news.add(all.len() as u64);
        if path.as_os_str() == "-" {
            let frames = Frames::new(std::io::stdin().lock(), path);
            all.push((
                path.clone(),
                frames.and_then(|mut frames| {
                    tieline_ledger::stream::read_through(&mut frames, |_, _| ())
                }),
            ));
            continue;
        }
        match verify_all(path) {
            Ok(found) if found.is_empty() => {
                bail!("{}: no dump and no segment of a log is in it", path.display())
            }
            Ok(found) => all.extend(found),
            Err(error) => all.push((path.clone(), Err(error))),
        }
    }
    drop(news);
    let bad = all.iter().filter(|(_, checked)| checked.is_err()).count();
    if is_json {
        println!("{}", Value::Array(all.iter().map(checked_json).collect()));
    } else {
        all.iter().for_each(print_checked);
    }
    match bad {
        0 => Ok(()),
        bad => bail!("{bad} of {} files are not in order: take another dump", all.len()),
    }
}

fn print_checked((path, checked): &Checked) {
    let summary = match checked {
        Ok(summary) => summary,
        Err(error) => return println!("{}", tieline_base::report::chain(error)),
    };
    println!("{}: in order, {} frames, {} pairs", path.display(), summary.frames, summary.pairs);
    for (head, last) in &summary.parts {
        let (mdt, time) = (head.mdt.label(), head.time);
        match head.kind {
            HeadKind::Dump => {
                println!("  {mdt} of /{}: dump at version {}, {time}", head.fs, head.version);
            }
            HeadKind::Segment => println!(
                "  {mdt} of /{}: log segment {}, versions {} to {last}, begun {time}",
                head.fs, head.sequence, head.version
            ),
        }
    }
    if let Some(at) = summary.torn_at {
        println!("  cut off at byte {at}: what follows there never was acknowledged");
    }
}

fn checked_json((path, checked): &Checked) -> Value {
    let path = path.display().to_string();
    let summary = match checked {
        Ok(summary) => summary,
        Err(error) => return json!({ "path": path, "error": tieline_base::report::chain(error) }),
    };
    let parts = summary.parts.iter().map(|(head, last)| {
        json!({
            "fs": head.fs, "mdt": head.mdt.0, "sequence": head.sequence,
            "kind": if head.kind == HeadKind::Dump { "dump" } else { "segment" },
            "after": head.after.0, "version": head.version.0, "last": last.0,
            "time": head.time.seconds,
        })
    });
    json!({
        "path": path, "frames": summary.frames, "pairs": summary.pairs,
        "torn_at": summary.torn_at, "parts": parts.collect::<Vec<_>>(),
    })
}

/// The plan of a server with an MDT that does not run; the lock keeps it so. Whatever is made
/// belongs to the server's user.
fn stopped(settings: &Path) -> anyhow::Result<(Plan, Identity, File)> {
    let plan = Settings::load(settings)?;
    let Some(mdt) = &plan.mdt else { bail!("{} names no MDT", settings.display()) };
    let identity = Identity { fs: plan.fs.clone(), mdt: mdt.index };
    if plan.user.is_some() {
        become_user(plan.user.as_deref())?;
    }
    let lock = tieline_serve::run::lock(&plan.state)?;
    Ok((plan, identity, lock))
}

/// A store that is filled: what is not filled to its end leaves no file where there was none.
struct NewStore(Option<PathBuf>);

impl NewStore {
    fn of(engine: &Engine) -> Self {
        Self(match engine {
            Engine::Embedded(path) if !path.exists() => Some(path.clone()),
            _ => None,
        })
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewStore {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        let mut beside = path.clone().into_os_string();
        beside.push("-wal");
        for path in [path.as_os_str(), &beside] {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn now() -> Time {
    let wall = World::real().clock.wall();
    Time { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
}

/// What is restored from: everything is judged before anything is written, so that a pipe is put
/// into a file first.
struct Source {
    path: PathBuf,
    is_copy: bool,
}

impl Source {
    fn take((path, pipe): (&Path, Option<File>), state: &Path, at: usize) -> anyhow::Result<Self> {
        let Some(mut pipe) = pipe else {
            return Ok(Self { path: path.to_owned(), is_copy: false });
        };
        let copy = state.join(format!("restore-{}-{at}.part", std::process::id()));
        let failed = || format!("cannot put {} into {}", path.display(), copy.display());
        let mut options = File::options();
        let mut out =
            options.write(true).create_new(true).mode(0o600).open(&copy).with_context(failed)?;
        let source = Self { path: copy.clone(), is_copy: true };
        std::io::copy(&mut pipe, &mut out).with_context(failed)?;
        Ok(source)
    }
}

/// Opens what is no file and no directory, as whoever asks: the server's user may not.
fn pipe(path: &Path) -> anyhow::Result<Option<File>> {
    if path == Path::new("-") {
        return Ok(Some(File::from(std::io::stdin().as_fd().try_clone_to_owned()?)));
    }
    let is_pipe = path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
    let open = || File::open(path).with_context(|| format!("cannot open {}", path.display()));
    is_pipe.then(open).transpose()
}

impl Drop for Source {
    fn drop(&mut self) {
        if self.is_copy {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn restore_store(
    settings: &Path,
    paths: &[PathBuf],
    up_to_hole: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let pipes: Vec<Option<File>> = paths.iter().map(|path| pipe(path)).collect::<Result<_, _>>()?;
    let (plan, identity, _lock) = stopped(settings)?;
    let Some(mdt) = &plan.mdt else { return Ok(()) };
    let sources = paths.iter().zip(pipes).enumerate();
    let sources: Vec<Source> = sources
        .map(|(at, (path, pipe))| Source::take((path, pipe), &plan.state, at))
        .collect::<anyhow::Result<_>>()?;
    let paths: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
    let runtime = crate::runtime::of_verb()?;
    runtime.block_on(async {
        let world = World::real();
        let at = (plan.state.as_path(), "tieline mdt restore");
        let log = mdt.log.clone().map(|settings| open_log(identity.clone(), settings, &world));
        let log = log.transpose()?;
        // Removed after the store is closed.
        let new = NewStore::of(&mdt.engine);
        let store = open_empty_store(&mdt.engine, at, &world).await?;
        let news = Ticker::new(format!("restoring {}", identity.mdt.label()), "");
        let asked = Asked { paths: &paths, up_to_hole, log: log.as_deref(), now: now() };
        let restored = restore(&*store, &identity, asked).await?;
        drop(news);
        new.keep();
        tell_restored(&restored, identity.mdt, is_json);
        anyhow::Ok(())
    })
}

fn tell_restored(restored: &Restored, mdt: MdtIndex, is_json: bool) {
    if is_json {
        let document = json!({
            "mdt": mdt.0, "notes": restored.notes, "groups": restored.groups,
            "dump": restored.dump.as_ref().map(|dump| dump.display().to_string()),
            "dump_version": restored.dump_version.0, "version": restored.version.0,
        });
        println!("{document}");
        return;
    }
    for note in &restored.notes {
        eprintln!("note: {note}");
    }
    match &restored.dump {
        Some(dump) => println!("dump {} at version {}", dump.display(), restored.dump_version),
        None => println!("no dump: the log begins with the store"),
    }
    println!(
        "{} groups of commits from the log; {} is restored up to version {}",
        restored.groups,
        mdt.label(),
        restored.version
    );
    println!("start the server; then `tieline fsck` compares it with the objects");
}
