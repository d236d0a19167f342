//! A server's settings, and everything they name.

use super::kerberos::{self, Own};
use super::{Findings, exposed, leases, servers};
use std::fs::TryLockError;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tieline_auth::{MapCell, Serves};
use tieline_format::Record;
use tieline_format::map::SignedMap;
use tieline_kv::PostgresStore;
use tieline_machine::beneath::{open_plain, read_plain};
use tieline_serve::room::free_bytes;
use tieline_serve::run::{LOCK_FILE, MAP_FILE, mdt_mark};
use tieline_serve::settings::{Engine, Found, OstPlan, Plan, Settings, SettingsError};
use tieline_types::ByteSize;

/// Less than this in a state directory without a store, and it will soon have no room.
const STATE_FREE_MIN: u64 = 1 << 30;
const MDT_RESERVE_FIX: &str =
    "make room there, move the store to a larger disk (mdt.store), or lower `mdt.reserve`";
const OST_RESERVE_FIX: &str = "make room there, or lower `ost.reserve`";
/// Fewer free inodes than this are few chunks.
const INODES_FREE_MIN: u64 = 10_000;

/// How many places of a store are read, and how much of each: a glance, also at a large one.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 64 << 10;

pub async fn look(path: &Path, findings: &mut Findings) {
    let plan = match Settings::load(path) {
        Ok(plan) => plan,
        Err(SettingsError::Wrong { source, .. }) => {
            for wrong in source.0 {
                let (key, wrong) = key_of(&wrong);
                let fix = format!("change `{key}` in {}", path.display());
                findings.broken(&format!("settings {key}"), wrong, fix);
            }
            return;
        }
        Err(error) => {
            let fix = "docs/operations.md lists every key; `--settings` names the file";
            findings.broken("settings", tieline_base::report::chain(&error), fix);
            return;
        }
    };
    let found = plan.look();
    findings.well("settings", path.display().to_string());
    for wrong in &found.wrongs {
        let (key, wrong) = key_of(wrong);
        // What is looked at below.
        if matches!(key, "listen" | "admin" | "state") || key.ends_with("].path") {
            continue;
        }
        let fix = format!("change `{key}` in {}, or what it names", path.display());
        findings.broken(&format!("settings {key}"), wrong, fix);
    }
    for doubt in &found.doubts {
        let (key, doubt) = key_of(doubt);
        let fix = format!("look at `{key}` in {}", path.display());
        findings.doubtful(&format!("settings {key}"), doubt, fix);
    }
    let is_running = look_at_state(&plan, &found, findings);
    for (key, address) in [("listen", &plan.listen), ("admin", &plan.admin)] {
        look_at_port(key, address, is_running, findings);
    }
    if is_running && plan.mdt.is_some() {
        leases::look(&plan.admin, findings);
    }
    look_at_engine(&plan, findings).await;
    for (place, ost) in plan.osts.iter().enumerate() {
        match found.of(&format!("ost[{place}].path")) {
            Some(wrong) => {
                let fix =
                    "make it, mount its file system, or give it to the user the server runs as";
                findings.broken(&ost.index.label(), wrong, fix);
            }
            None => look_at_ost(&plan, ost, findings),
        }
    }
    look_at_map(&plan, findings).await;
}

/// The key that a complaint begins with, and the rest.
fn key_of(wrong: &str) -> (&str, &str) {
    wrong.split_once(": ").unwrap_or(("settings", wrong))
}

/// Says whether a server works with the state directory.
fn look_at_state(plan: &Plan, found: &Found, findings: &mut Findings) -> bool {
    let shown = plan.state.display();
    let is_there = plan.state.is_dir();
    match found.of("state") {
        Some(wrong) => {
            let fix = format!("give {shown} to the user the server runs as");
            findings.broken("state", wrong, fix);
        }
        None if !is_there => findings.well("state", format!("{shown} will be made")),
        None => {}
    }
    if !is_there {
        return false;
    }
    if store_folder(plan) != Some(plan.state.as_path()) {
        look_at_room("state", &plan.state, STATE_FREE_MIN, "make room there", findings);
    }
    let lock = open_plain(&plan.state.join(LOCK_FILE));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

fn look_at_port(key: &str, address: &str, is_running: bool, findings: &mut Findings) {
    match TcpListener::bind(address) {
        Ok(_) => findings.well(key, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_running => {
            findings.well(key, format!("{address} is in use by the running server"));
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => findings.broken(
            key,
            format!("{address} is taken by another program"),
            format!("`ss -ltnp` shows which; end it, or set another `{key}`"),
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => findings.broken(
            key,
            format!("{address} may not be used: {error}"),
            format!("ports below 1024 are root's: set another `{key}`"),
        ),
        Err(error) => findings.broken(
            key,
            format!("{address} cannot be listened at: {error}"),
            format!("set `{key}` to an address of this machine, such as 0.0.0.0:7640"),
        ),
    }
}

/// Where the store lies, if it is a file: its own setting says how much is to stay free there.
fn store_folder(plan: &Plan) -> Option<&Path> {
    match &plan.mdt.as_ref()?.engine {
        Engine::Embedded(path) => Some(folder_of(path)),
        Engine::Memory | Engine::Postgres { .. } => None,
    }
}

fn folder_of(store: &Path) -> &Path {
    store.parent().unwrap_or(Path::new("/"))
}

async fn look_at_engine(plan: &Plan, findings: &mut Findings) {
    let Some(mdt) = &plan.mdt else { return };
    match &mdt.engine {
        Engine::Memory => findings.doubtful(
            "metadata",
            "in memory: nothing survives a restart",
            "remove `engine` from [mdt], unless this is a test",
        ),
        Engine::Embedded(path) => {
            let folder = folder_of(path);
            if folder.is_dir() {
                look_at_room("metadata", folder, mdt.reserve, MDT_RESERVE_FIX, findings);
            }
            look_at_store(path, &mdt_mark(&plan.state, mdt.index), findings);
        }
        Engine::Postgres { server, .. } => match PostgresStore::look(server).await {
            Ok(version) => findings.well("metadata", format!("PostgreSQL {version} at {server}")),
            Err(error) => findings.broken(
                "metadata",
                tieline_base::report::chain(&error),
                format!("`psql` with the words of mdt.engine tells more; is {server} running?"),
            ),
        },
    }
}

/// Does the disk still give what the store wrote to it?
fn look_at_store(path: &Path, mark: &Path, findings: &mut Findings) {
    let shown = path.display();
    if !path.exists() {
        if mark.exists() {
            let what = format!("{shown} is not there, and was before");
            let fix = "is its disk mounted? a lost store comes back with `tieline mdt restore`";
            findings.broken("metadata", what, fix);
        }
        return;
    }
    match read_samples(path) {
        Ok(()) => findings.well("metadata", format!("{shown} can be read")),
        Err(error) => findings.broken(
            "metadata",
            format!("{shown}: {error}"),
            "its disk fails if this is an I/O error (`dmesg` tells more): mend it, or copy the \
             store to another; a lost store comes back from its change log (docs/operations.md)",
        ),
    }
}

/// Some of a file, from its disk where nobody has changed it since.
fn read_samples(path: &Path) -> io::Result<()> {
    let file = open_plain(path)?;
    let step = (file.metadata()?.len() / SAMPLES).max(SAMPLE_BYTES);
    let mut sample = vec![0; SAMPLE_BYTES as usize];
    for place in 0..SAMPLES {
        let (at, length) = (place * step, std::num::NonZeroU64::new(SAMPLE_BYTES));
        // Without it what the kernel remembers is read.
        let _ = rustix::fs::fadvise(&file, at, length, rustix::fs::Advice::DontNeed);
        if file.read_at(&mut sample, at)? == 0 {
            break;
        }
    }
    Ok(())
}

fn look_at_ost(plan: &Plan, ost: &OstPlan, findings: &mut Findings) {
    let label = ost.index.label();
    // A bucket says how it is by the server that serves it.
    let Some(path) = ost.directory() else { return };
    let shown = path.display();
    let made = plan.state.join(format!("{}.made", label.to_lowercase()));
    if !path.is_dir() {
        let fix = format!("mount its file system, or make {shown}");
        findings.broken(&label, format!("{shown} is no directory"), fix);
        return;
    }
    if made.exists() && !path.join("objects").is_dir() {
        let what = format!("{shown} is empty, and was not before");
        findings.broken(&label, what, "is its file system mounted? then look where it went");
        return;
    }
    if !ost.limits.is_read_only && !is_writable(path) {
        let fix = format!("give {shown} to the user the server runs as, or set read_only");
        findings.broken(&label, format!("{shown} cannot be written"), fix);
    }
    look_at_room(&label, path, ost.limits.reserve, OST_RESERVE_FIX, findings);
    if let Some(adopt) = ost.adopt.as_ref().filter(|adopt| !adopt.is_dir()) {
        let what = format!("adopt: {} is no directory", adopt.display());
        findings.broken(&label, what, "mount its file system, or correct `adopt`");
    }
}

/// Free bytes and inodes of a directory's file system.
fn look_at_room(check: &str, path: &Path, wanted: u64, fix: &str, findings: &mut Findings) {
    let volume = match rustix::fs::statvfs(path) {
        Ok(volume) => volume,
        Err(error) => {
            let what = format!("{}: {error}", path.display());
            return findings.broken(check, what, "is its file system well? `dmesg` may know");
        }
    };
    let free = free_bytes(&volume);
    // Some file systems have no fixed number of them.
    let inodes = match volume.f_files {
        0 => String::new(),
        _ => format!(" and {} inodes", volume.f_favail),
    };
    let shown = format!("{}{inodes} free in {}", ByteSize(free), path.display());
    if free <= wanted {
        let wanted = ByteSize(wanted);
        let what = format!("{shown}, less than the {wanted} to be kept");
        findings.broken(check, what, fix);
    } else if volume.f_files > 0 && volume.f_favail < INODES_FREE_MIN {
        let what = format!("{shown}: each chunk takes an inode");
        let fix = "remove small files, or make the file system anew with more (`mkfs -N`)";
        match volume.f_favail {
            0 => findings.broken(check, what, fix),
            _ => findings.doubtful(check, what, fix),
        }
    } else {
        findings.well(check, shown);
    }
}

async fn look_at_map(plan: &Plan, findings: &mut Findings) {
    if let Some((dialing, answering)) = plan.kerberos.keys() {
        kerberos::look_at_server(&dialing, &answering, findings).await;
    }
    let is_there = plan.state.join(MAP_FILE).is_file();
    if plan.root.is_empty() && !is_there {
        findings.broken(
            "federation map",
            "there is none, and no `root` to fetch it from",
            "at the root MDS, `tieline map sign`; elsewhere, set `root`",
        );
    }
    let mut cell = read_plain(&plan.state.join(MAP_FILE))
        .ok()
        .and_then(|bytes| SignedMap::from_bytes(&bytes).ok())
        .and_then(|signed| MapCell::new(plan.verifier.clone(), signed).ok());
    if !plan.root.is_empty() {
        let key = Some(plan.verifier.clone());
        let guard = plan.kerberos.guard(Serves::default());
        let ends = (&guard, plan.kerberos.keys().map(|(dialing, _)| dialing));
        let found = servers::ask(&plan.fs, plan.root.clone(), key, ends, findings).await;
        if found.is_none() && is_there {
            findings.doubtful(
                "federation map",
                "the root MDS cannot be asked; the map of before serves",
                "look at the root MDS when it matters: pools and OSTs cannot be changed",
            );
        }
        cell = found.or(cell);
    }
    if let Some(cell) = &cell {
        exposed::look(plan, &cell.current().map, findings);
    }
    let keytab = plan.kerberos.keys().and_then(|(_, answering)| answering.keytab);
    if let Some((keytab, cell)) = keytab.zip(cell) {
        let mdt = plan.mdt.as_ref().map(|mdt| mdt.index);
        let own = Own { mdt, osts: plan.osts.iter().map(|ost| ost.index).collect() };
        kerberos::look_at_names(&keytab, &cell.current().map, &own, findings);
    }
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}
