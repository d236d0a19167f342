//! `tieline mdt`: dumps of an MDT at work; checking, restoring and rebuilding what was lost.

use crate::location::Location;
use crate::operator;
use crate::server::run::{first_map, open_store, server_dialer};
use crate::server::settings::{Plan, Settings};
use crate::verbs::show;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tieline_auth::Serves;
use tieline_format::ledger::{Frame, HeadKind, Sum, preamble};
use tieline_meta::ledger::Identity;
use tieline_meta::ledger::rebuild::{FoundObject, rebuild};
use tieline_meta::ledger::restore::{Checked, restore, verify_all};
use tieline_meta::ledger::stream::Frames;
use tieline_net::CallError;
use tieline_types::{Caller, ChunkId, ErrorKind, Grant, MdtIndex, Time, Version};
use tieline_wire::data::{ListObjects, StatObject};
use tieline_wire::ledger::DumpMdt;
use tieline_world::{Bulk, World};

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
        /// The server's settings
        #[arg(long, value_name = "FILE")]
        settings: PathBuf,
    },
}

pub fn run(verb: MdtVerb) -> anyhow::Result<()> {
    crate::verbs::log_start();
    match verb {
        MdtVerb::Dump { mdt, since, fs } => dump(MdtIndex(mdt), since.map(Version), fs),
        MdtVerb::Verify { json, paths } => verify(&paths, json),
        MdtVerb::Restore { settings, up_to_hole, paths } => {
            restore_store(&settings, &paths, up_to_hole)
        }
        MdtVerb::Rebuild { settings, .. } => rebuild_store(&settings),
    }
}

/// The parts are checked on the way: what is written is whole, and the end says so.
fn dump(mdt: MdtIndex, since: Option<Version>, fs: Option<OsString>) -> anyhow::Result<()> {
    let location = Location::find_fs(fs.as_deref(), None)?;
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    out.write_all(&preamble())?;
    operator::run(&location, |operator| async move {
        let line = operator.dial(mdt)?;
        let mut cursor = None;
        let mut sum = Sum::default();
        loop {
            let ask = DumpMdt { cursor: cursor.take(), since };
            let (reply, frames) = line.call(ask).await.context("the dump is not complete")?;
            let shown = Path::new("what the server sent");
            let mut parts = Frames::at_frame(&frames[..], shown, 0);
            while let Some((frame, check)) = parts.read()? {
                sum.add(&frame, check);
            }
            out.write_all(&frames)?;
            cursor = reply.cursor;
            if cursor.is_none() {
                break;
            }
        }
        out.write_all(&Frame::End(sum.end()).to_bytes())?;
        out.flush()?;
        line.close().await;
        Ok(())
    })
}

fn verify(paths: &[PathBuf], is_json: bool) -> anyhow::Result<()> {
    let mut all: Vec<Checked> = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let frames = Frames::new(std::io::stdin().lock(), path);
            all.push((
                path.clone(),
                frames.and_then(|mut frames| {
                    tieline_meta::ledger::stream::read_through(&mut frames, |_, _| ())
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
        Err(error) => return println!("{}", crate::report::chain(error)),
    };
    println!("{}: in order, {} frames, {} pairs", path.display(), summary.frames, summary.pairs);
    for (head, last) in &summary.parts {
        let (mdt, time) = (head.mdt.label(), show::time(head.time));
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
        Err(error) => return json!({ "path": path, "error": crate::report::chain(error) }),
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

/// The plan of a server with an MDT that does not run; the lock keeps it so.
fn stopped(settings: &Path) -> anyhow::Result<(Plan, Identity, std::fs::File)> {
    let plan = Settings::load(settings)?;
    let Some(mdt) = &plan.mdt else { bail!("{} names no MDT", settings.display()) };
    let identity = Identity { fs: plan.fs.clone(), mdt: mdt.index };
    let lock = crate::server::run::lock(&plan.state)?;
    Ok((plan, identity, lock))
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
    fn take(path: &Path, state: &Path, number: usize) -> anyhow::Result<Self> {
        let is_input = path == Path::new("-");
        let is_pipe = || path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
        if !is_input && !is_pipe() {
            return Ok(Self { path: path.to_owned(), is_copy: false });
        }
        let copy = state.join(format!("restore-{}-{number}.part", std::process::id()));
        let failed = || format!("cannot put {} into {}", path.display(), copy.display());
        let mut options = std::fs::OpenOptions::new();
        let mut out =
            options.write(true).create_new(true).mode(0o600).open(&copy).with_context(failed)?;
        let source = Self { path: copy.clone(), is_copy: true };
        let poured = match is_input {
            true => std::io::copy(&mut std::io::stdin().lock(), &mut out),
            false => {
                std::fs::File::open(path).and_then(|mut pipe| std::io::copy(&mut pipe, &mut out))
            }
        };
        poured.with_context(failed)?;
        Ok(source)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if self.is_copy {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn restore_store(settings: &Path, paths: &[PathBuf], up_to_hole: bool) -> anyhow::Result<()> {
    let (plan, identity, _lock) = stopped(settings)?;
    let Some(mdt) = &plan.mdt else { return Ok(()) };
    let sources = paths.iter().enumerate();
    let sources: Vec<Source> = sources
        .map(|(number, path)| Source::take(path, &plan.state, number))
        .collect::<anyhow::Result<_>>()?;
    let paths: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let world = World::real();
        let at = (plan.state.as_path(), "tieline mdt restore");
        let store = open_store(&mdt.engine, &identity, at, &world, (None, None)).await?;
        let restored = restore(&*store, &paths, &identity, up_to_hole, now()).await?;
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
            identity.mdt.label(),
            restored.version
        );
        println!("start the server; then `tieline fsck` compares it with the objects");
        anyhow::Ok(())
    })
}

fn rebuild_store(settings: &Path) -> anyhow::Result<()> {
    let (plan, identity, _lock) = stopped(settings)?;
    plan.kerberos.prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let world = World::real();
        let guard = plan.kerberos.guard(Serves { mdt: true, ost: false });
        let (dialer, rule) = server_dialer(&world, guard.clone());
        let cell = first_map(&plan, &world, &dialer, "tieline mdt rebuild", rule).await?;
        guard.follow(&cell);
        let map = cell.current().map.clone();
        let prefix = map.junction_of(identity.mdt).map(|junction| junction.name.clone());
        let mut found = Vec::new();
        for ost in &map.osts {
            let contact = crate::contact::Contact {
                world: world.clone(),
                dialer: dialer.clone(),
                fs: plan.fs.clone(),
                addresses: ost.addresses.clone(),
                rule,
                description: "tieline mdt rebuild".to_owned(),
                patience: crate::shell::PATIENCE,
            };
            let label = ost.ost.label();
            let objects = objects(&contact, ost.ost, identity.mdt).await;
            let objects = objects.with_context(|| {
                format!("{label} cannot be asked: without it files would lose bytes in silence")
            })?;
            println!("{label}: {} objects of {}", objects.len(), identity.mdt.label());
            found.extend(objects);
        }
        let Some(mdt) = &plan.mdt else { return Ok(()) };
        let at = (plan.state.as_path(), "tieline mdt rebuild");
        let store = open_store(&mdt.engine, &identity, at, &world, (None, None)).await?;
        let prefix = prefix.map_or(vec![], |name| name.as_bytes().to_vec());
        let rebuilt = rebuild(&*store, &identity, &prefix, found, now()).await?;
        for note in &rebuilt.notes {
            println!("uncertain: {note}");
        }
        println!(
            "{} files ({} bytes) and {} directories are back; {} objects were superseded",
            rebuilt.files, rebuilt.bytes, rebuilt.directories, rebuilt.superseded
        );
        println!(
            "they are root's with mode 0600 (directories 0700): nothing knows owners, modes, \
             times, links, attributes, symlinks, empty files, and files small enough to lie in the \
             metadata; what was deleted or cut off lately may be back"
        );
        anyhow::Ok(())
    })
}

/// What an OST holds of an MDT.
async fn objects(
    contact: &crate::contact::Contact,
    ost: tieline_types::OstIndex,
    mdt: MdtIndex,
) -> anyhow::Result<Vec<FoundObject>> {
    let channel = contact.channel();
    let caller = Caller::root();
    let patience = Some(contact.patience);
    let mut after = mdt.0.checked_sub(1).map(|before| ChunkId {
        mdt: MdtIndex(before),
        grant: Grant(u64::MAX),
        serial: u64::MAX,
    });
    let mut found = Vec::new();
    loop {
        let ask = ListObjects { ost, after, limit: 4096 };
        let (page, _) = tieline_net::call(&*channel, &caller, ask, Bulk::Empty, patience).await?;
        for &chunk in page.chunks.iter().filter(|chunk| chunk.mdt == mdt) {
            let ask = StatObject { ost, chunk };
            match tieline_net::call(&*channel, &caller, ask, Bulk::Empty, patience).await {
                Ok((stat, _)) => {
                    let (length, owner) = (stat.length, stat.owner);
                    found.push(FoundObject { ost, chunk, length, owner });
                }
                Err(CallError::Refused(failure))
                    if matches!(failure.kind, ErrorKind::Gone | ErrorKind::Corrupt) =>
                {
                    println!("uncertain: object {chunk}: {failure}");
                }
                Err(error) => return Err(error.into()),
            }
        }
        after = page.chunks.last().copied();
        if page.is_end || after.is_none_or(|last| last.mdt > mdt) {
            return Ok(found);
        }
    }
}
