//! `tieline server`: opens what the settings name, serves, and stops when told.
//!
//! One server per state directory: a lock file says so, and who holds it. An OST's directory is
//! prepared once, and that is remembered in the state directory: an unmounted file system is never
//! taken for a new OST; one that is not there is waited for while the others are served.
//!
//! Invariants: the lock is held before anything is opened; SIGTERM and SIGINT end in good order.

use crate::audit::Audit;
use crate::maps::MapKeeper;
use crate::published;
use crate::room::{Disks, free_bytes};
use crate::settings::{Engine, Found, HttpPlan, MdtPlan, Plan, Settings, SettingsError};
use crate::{MdtParts, Parts, Running};
use anyhow::{Context, bail};
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_admin::Subject;
use tieline_auth::{MapCell, MapVerifier, Rule, Serves};
use tieline_base::contact::Contact;
use tieline_base::dialing::dialer;
use tieline_base::keys::{settle_signer, signer_of};
use tieline_format::Record;
use tieline_format::map::SignedMap;
use tieline_hsm::Scripts;
use tieline_kv::{
    Check, EmbeddedStore, MemoryStore, Opening, PostgresServer, PostgresSettings, PostgresStore,
    Store,
};
use tieline_ledger::Identity;
use tieline_ledger::log::{Log, LogSettings};
use tieline_machine::becoming::become_user;
use tieline_machine::private::write_whole;
use tieline_meta::check_store;
use tieline_net::Dialer;
use tieline_telemetry::health::Health;
use tieline_types::{ByteSize, FsName, MdtIndex, Time, Uid};
use tieline_world::World;
use tokio::signal::unix::{SignalKind, signal};

/// The signed map, in the state directory.
pub const MAP_FILE: &str = "map";
const IDENTITIES_FILE: &str = "identities";
pub const LOCK_FILE: &str = "lock";
/// By what a database knows this server.
const OWNER_FILE: &str = "owner";
/// How much of an MDT's store stays in memory.
const STORE_CACHE: ByteSize = ByteSize(256 << 20);
/// A server that was just killed may hold its lock for as long as the kernel takes to bury it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_LOOK_AGAIN: Duration = Duration::from_millis(20);
/// One try to fetch the first map; tries go on until it is there.
const FETCH_PATIENCE: Duration = Duration::from_secs(10);
/// How often a server that has no map yet says so.
const FETCH_PAUSE: Duration = Duration::from_secs(2);

/// Runs a server until it is told to stop.
pub fn run(settings: &Path, is_json: bool) -> anyhow::Result<()> {
    let plan = Settings::load(settings)?;
    tieline_telemetry::log::start(is_json || plan.is_log_json);
    let found = plan.look();
    found.check().map_err(|source| SettingsError::Wrong { path: settings.to_owned(), source })?;
    for doubt in &found.doubts {
        tracing::warn!("{doubt}");
    }
    become_user(plan.user.as_deref())?;
    tieline_machine::descriptors::raise();
    tieline_machine::memory::prepare();
    plan.kerberos.prepare();
    plan.kerberos.check()?;
    tieline_machine::runtime::of_daemon()?.block_on(serve(plan))
}

async fn serve(plan: Plan) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // What rotates logs sends it, and the audit log is begun anew without it.
    let _hangup = signal(SignalKind::hangup())?;
    let name = name(&plan);
    let _lock = lock(&plan.state)?;
    let health = Health::default();
    let subject = Subject {
        health: health.clone(),
        role: format!("{name} of /{}", plan.fs),
        details: Box::new(|| serde_json::Value::Null),
    };
    let world = World::real_with(plan.congestion);
    let admin = tieline_admin::serve(&world, &plan.admin, subject).await?;
    tracing::info!(server = %name, fs = %plan.fs, admin = %admin.address(), "starting");
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    tokio::pin!(stop);
    let started = tokio::select! {
        biased;
        reason = &mut stop => {
            tracing::info!(reason, "stopped before it served");
            return Ok(());
        }
        started = start(plan, world, name, health.clone()) => started?,
    };
    let failed = tokio::select! {
        biased;
        reason = stop => {
            tracing::info!(reason, "stopping");
            None
        }
        reason = started.failed() => Some(reason),
    };
    if let Some(reason) = &failed {
        health.degrade("store", reason);
    }
    health.set_ready(false);
    started.stop().await;
    match failed {
        None => tracing::info!("stopped"),
        Some(reason) => bail!(
            "the metadata store ended: {reason}: mend its disk (or database), then start the server"
        ),
    }
    Ok(())
}

async fn start(plan: Plan, world: World, name: String, health: Health) -> anyhow::Result<Running> {
    let serves = Serves { mdt: plan.mdt.is_some(), ost: !plan.osts.is_empty() };
    let guard = plan.kerberos.guard(serves);
    let (dialer, rule) = dialer(&world, &guard);
    let cell = first_map(&plan, &world, &dialer, &name, rule).await?;
    let mut found = Found::default();
    plan.look_at_map(&cell.current().map, &mut found);
    found.check()?;
    let osts = crate::osts::open(&plan.state, &plan.fs, plan.osts, &world).await?;
    let lasting = plan.mdt.as_ref().filter(|mdt| !matches!(mdt.engine, Engine::Memory));
    let mark = lasting.map(|mdt| mdt_mark(&plan.state, mdt.index));
    let engine = plan.mdt.as_ref().map_or(Engine::Memory, |mdt| mdt.engine.clone());
    let mdt = match plan.mdt {
        Some(mdt) => Some(open_mdt(mdt, &plan.fs, (&plan.state, &name), &world).await?),
        None => None,
    };
    let published = match plan.http {
        Some(HttpPlan { listen, repositories }) => {
            Some(published::serve(&world, &listen, repositories).await?)
        }
        None => None,
    };
    let listener = world.transport.listen(&plan.listen).await;
    let listener = listener.with_context(|| format!("cannot listen at {}", plan.listen))?;
    let address = listener.address()?;
    let map_file = plan.state.join(MAP_FILE);
    let key = cell.current().key.clone();
    let signer = match &plan.signer {
        Some(named) => Some(signer_of(&key, named, &plan.state).with_context(|| lost(&key))?),
        None => None,
    };
    settle_signer(&key, &plan.state)
        .with_context(|| format!("cannot keep the key in {}", plan.state.display()))?;
    let audit = Audit::new(name.clone(), world.clone(), plan.audit.as_deref());
    let audit = audit.with_context(|| {
        let path = plan.audit.as_deref().unwrap_or(Path::new("")).display();
        format!("audit: {path} cannot be opened")
    })?;
    let parts = Parts {
        name: name.clone(),
        fs: plan.fs,
        rule,
        guard,
        world,
        dialer,
        map: MapKeeper::new(cell, signer, Some(map_file)),
        mdt,
        osts,
        scripts: Some(Scripts::new(plan.hsm.scripts, plan.hsm.spool)),
        health,
        operator: Uid(rustix::process::geteuid().as_raw()),
        identities: Some(plan.state.join(IDENTITIES_FILE)),
        audit: Arc::new(audit),
    };
    let running = crate::start(parts, listener).await;
    let running = running.map_err(|error| advise(error.into(), &engine))?;
    if let Some(mark) = mark.filter(|mark| !mark.exists()) {
        write_whole(&mark, b"its store was made\n")
            .with_context(|| format!("cannot write {}", mark.display()))?;
    }
    tracing::info!(server = %name, %address, "ready");
    Ok(running.beside(published))
}

/// Nobody can change the map by the key that this server has.
pub(crate) fn lost(key: &MapVerifier) -> String {
    format!(
        "the map is signed by the key {}, whose secret is neither in map_secret nor in the state \
         directory: docs/keys.md says what to do when it is lost",
        key.to_hex()
    )
}

/// `mds-uf`, `oss-uf`, or `mds-oss-uf`.
fn name(plan: &Plan) -> String {
    let mds = if plan.mdt.is_some() { "mds-" } else { "" };
    let oss = if plan.osts.is_empty() { "" } else { "oss-" };
    format!("{mds}{oss}{}", plan.site)
}

/// Makes the state directory ours, or says whose it is.
pub fn lock(state: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(state)
        .with_context(|| format!("cannot make state directory {}", state.display()))?;
    let path = state.join(LOCK_FILE);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_LOOK_AGAIN);
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let (holder, shown) = (holder.trim(), state.display());
                bail!("another server (pid {holder}) works with {shown}: stop it first");
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// The map from the disk, or the first one ever from another server.
pub async fn first_map(
    plan: &Plan,
    world: &World,
    dialer: &Arc<dyn Dialer>,
    name: &str,
    rule: Rule,
) -> anyhow::Result<MapCell> {
    let path = plan.state.join(MAP_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let broken = || format!("federation map {} is not in order", path.display());
            let signed = SignedMap::from_bytes(&bytes).with_context(broken)?;
            return MapCell::new(plan.verifier.clone(), signed).with_context(broken);
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
        Err(error) => {
            return Err(cannot_read(&path, error));
        }
    }
    if plan.root.is_empty() {
        bail!(
            "there is no federation map at {}, and no `root` to fetch it from: at the root MDS, \
             make it with `tieline map sign`; elsewhere, set `root`",
            path.display()
        );
    }
    let contact = Contact {
        world: world.clone(),
        dialer: dialer.clone(),
        fs: plan.fs.clone(),
        addresses: plan.root.clone(),
        rule,
        description: name.to_owned(),
        patience: FETCH_PATIENCE,
    };
    let cell = loop {
        match contact.believe(Some(plan.verifier.clone())).await {
            Ok((cell, _)) => break cell,
            Err(error) if error.is::<tieline_net::CallError>() => {
                let error = tieline_base::report::chain(error.as_ref());
                tracing::warn!(%error, "waiting for the first federation map");
                tokio::time::sleep(FETCH_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    };
    write_whole(&path, &cell.current().signed.to_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(cell)
}

async fn open_mdt(
    plan: MdtPlan,
    fs: &FsName,
    at: (&Path, &str),
    world: &World,
) -> anyhow::Result<MdtParts> {
    let identity = Identity { fs: fs.clone(), mdt: plan.index };
    let disks = disks(&plan);
    let log = plan.log.map(|settings| open_log(identity.clone(), settings, world)).transpose()?;
    let mark = mdt_mark(at.0, plan.index);
    let is_lasting = !matches!(plan.engine, Engine::Memory);
    let made = Some(mark.as_path()).filter(|mark| is_lasting && mark.exists());
    if let (Engine::Embedded(path), Some(mark)) = (&plan.engine, made)
        && !path.exists()
    {
        // Opening it would make it.
        bail!(gone(plan.index, &path.display().to_string(), mark));
    }
    let store = open_store(&plan.engine, &identity, at, world, (log.as_ref(), made)).await;
    let store = store.map_err(|error| advise(error, &plan.engine))?;
    tracing::info!(mdt = %plan.index.label(), store = %store.describe(), "opened");
    let settings = tieline_meta::Settings {
        mdt: plan.index,
        lease: plan.lease,
        freed_keep: plan.freed_keep,
        keeps_deleted: !plan.freed_keep.is_zero(),
        collect_rate: plan.collect_rate,
        stray_keep: plan.stray_keep,
        session_keep_max: plan.session_keep,
        capability_life: plan.capability_life,
        root_owner: plan.root_owner,
        ..tieline_meta::Settings::default()
    };
    Ok(MdtParts { settings, store, log, disks })
}

/// Says that an MDT's store was made: one that is empty later is not begun anew.
pub fn mdt_mark(state: &Path, mdt: MdtIndex) -> PathBuf {
    state.join(format!("{}.made", mdt.label().to_lowercase()))
}

/// What is said of a store that was made and is not there.
fn gone(mdt: MdtIndex, store: &str, mark: &Path) -> String {
    let (mdt, mark) = (mdt.label(), mark.display());
    format!(
        "the store of {mdt} ({store}) is gone or empty, and was not before. Is its disk mounted? \
         If it is lost, bring it back with `tieline mdt restore` or `tieline mdt rebuild`; remove \
         {mark} only to begin with an empty file system"
    )
}

/// What to do about a store that failed; what was refused says so itself.
fn advise(error: anyhow::Error, engine: &Engine) -> anyhow::Error {
    match (error.chain().find_map(|cause| cause.downcast_ref()), engine) {
        (Some(tieline_kv::Error::Full { .. }), Engine::Embedded(path)) => {
            error.context(no_room_to_open(path))
        }
        (Some(tieline_kv::Error::Failed { .. }), _) => error.context(
            "the metadata store cannot be opened; mend its disk (or database), then start the \
             server",
        ),
        _ => error,
    }
}

/// What is said where the disk ends before the store has taken up its log, or noted the start.
fn no_room_to_open(path: &Path) -> String {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let free = match rustix::fs::statvfs(folder) {
        Ok(disk) => ByteSize(free_bytes(&disk)).to_string(),
        Err(error) => format!("unknown ({error})"),
    };
    let path = path.display();
    format!(
        "{path} cannot take up what a start writes, free on its disk: {free}. Nothing is lost. \
         Make room there (mdt.reserve says how much the server keeps free while it runs), enlarge \
         the disk, or move {path} and {path}-wal together to a larger one (mdt.store); then start \
         the server"
    )
}

/// Names the file of the state directory, and what to do where its disk fails.
fn cannot_read(path: &Path, error: std::io::Error) -> anyhow::Error {
    let advice = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::IO) => "; mend its disk, then start the server",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot read {}{advice}", path.display()))
}

/// The directories that a store on this machine is written to. A change log that cannot be written
/// is told of and caught up with: it ends nothing.
fn directories(engine: &Engine) -> Vec<PathBuf> {
    let store = match engine {
        Engine::Embedded(path) => path.parent(),
        Engine::Memory | Engine::Postgres { .. } => None,
    };
    store.map(Path::to_owned).into_iter().collect()
}

fn disks(plan: &MdtPlan) -> Option<Disks> {
    let directories = directories(&plan.engine);
    let is_watched = plan.reserve > 0 && !directories.is_empty();
    is_watched.then_some(Disks { directories, reserve: plan.reserve })
}

/// Takes the directory of a change log.
pub fn open_log(
    identity: Identity,
    settings: LogSettings,
    world: &World,
) -> anyhow::Result<Arc<Log>> {
    let clock = world.clock.clone();
    let now = move || {
        let wall = clock.wall();
        Time { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
    };
    let shown = settings.directory.display().to_string();
    Log::open(identity, settings, Box::new(now))
        .with_context(|| format!("mdt.log_to: change log at {shown} cannot be kept"))
}

/// Opens the store that settings name, unless it is another MDT's or a newer build's, or empty
/// although it was `made`: that is found out before anything is written. A database knows the
/// server by its state directory and its name.
async fn open_store(
    engine: &Engine,
    identity: &Identity,
    at: (&Path, &str),
    world: &World,
    (log, made): (Option<&Arc<Log>>, Option<&Path>),
) -> anyhow::Result<Arc<dyn Store>> {
    let shown = shown(engine);
    let identity = identity.clone();
    let made = made.map(Path::to_owned);
    let judge = move |superblock: Option<Vec<u8>>| {
        let Identity { fs, mdt } = &identity;
        if let Some(mark) = made.as_ref().filter(|_| superblock.is_none()) {
            return Err(gone(*mdt, &shown, mark).into());
        }
        check_store(superblock.as_deref(), &shown, fs, *mdt).map_err(Into::into)
    };
    open_judged(engine, at, world, log, Box::new(judge)).await
}

/// Opens the store that settings name to fill it, unless it has a superblock: one that is full
/// stays as it is, untouched.
pub async fn open_empty_store(
    engine: &Engine,
    at: (&Path, &str),
    world: &World,
) -> anyhow::Result<Arc<dyn Store>> {
    let store = shown(engine);
    let judge = move |superblock: Option<Vec<u8>>| match superblock {
        Some(_) => Err(tieline_ledger::Error::NotEmpty { store: store.clone() }.into()),
        None => Ok(()),
    };
    open_judged(engine, at, world, None, Box::new(judge)).await
}

fn shown(engine: &Engine) -> String {
    match engine {
        Engine::Memory => "memory".to_owned(),
        Engine::Embedded(path) => format!("embedded {}", path.display()),
        Engine::Postgres { schema, .. } => format!("postgres schema {schema}"),
    }
}

async fn open_judged(
    engine: &Engine,
    (state, name): (&Path, &str),
    world: &World,
    log: Option<&Arc<Log>>,
    judge: Check,
) -> anyhow::Result<Arc<dyn Store>> {
    let opening = Opening {
        cache: STORE_CACHE,
        check: Some((tieline_format::mdt::key::superblock(), judge)),
        journal: log.map(Log::writer),
        disks: directories(engine),
    };
    Ok(match engine {
        Engine::Memory => Arc::new(MemoryStore::new()),
        Engine::Embedded(path) => Arc::new(EmbeddedStore::open_with(path, opening)?),
        Engine::Postgres { server, schema } => {
            let owner = owner(state, world)?;
            let host = rustix::system::uname();
            let holder = format!("{name} at {}", host.nodename().to_string_lossy());
            let server = PostgresServer::clone(server);
            let settings = PostgresSettings::new(server, schema.clone(), owner, holder);
            Arc::new(PostgresStore::open(settings, opening).await?)
        }
    })
}

/// By what a database knows this server, also when it is started again: the name of its state
/// directory, which one server at a time works with.
fn owner(state: &Path, world: &World) -> anyhow::Result<String> {
    let path = state.join(OWNER_FILE);
    match std::fs::read_to_string(&path) {
        Ok(owner) if !owner.trim().is_empty() => return Ok(owner.trim().to_owned()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(cannot_read(&path, error));
        }
        _ => {}
    }
    let owner = format!("{:016x}{:016x}", world.random(), world.random());
    write_whole(&path, owner.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(owner)
}
