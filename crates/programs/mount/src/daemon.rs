//! The process behind a mount: from first contact to the last commit.
//!
//! Invariants: the parent hears exactly once how the start went; everything written is committed
//! before the process ends, or the log says what was not.

use crate::callers::{Shown, people_of};
use crate::held::Held;
use crate::options::Options;
use crate::spool::entry::About;
use crate::spool::{self, DiskSpool};
use crate::{READY, remount};
use anyhow::{Context, anyhow, bail};
use rustix::fs::{AtFlags, StatxFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_admin::Subject;
use tieline_auth::{MapCell, MapVerifier};
use tieline_base::contact::Contact;
use tieline_base::dialing::world_with;
use tieline_base::keys::key_open;
use tieline_base::registry::{self, Ending, Entry, Registered};
use tieline_base::repositories::{self, Believed};
use tieline_base::source::Source;
use tieline_bytes::Near;
use tieline_client::{AccessTimes, Operator, Parts, Settings, Volume};
use tieline_files::{Files, Resume};
use tieline_format::Record as _;
use tieline_format::map::SignedMap;
use tieline_fuse::{Beginning, Mount, MountOptions};
use tieline_keep::{Keep, Kept, Kind, Record, Stage};
use tieline_machine::process::ProcessId;
use tieline_machine::table;
use tieline_owed::spool::Spool;
use tieline_telemetry::health::Health;
use tieline_types::{Caller, FileId, MdtIndex, Name};
use tieline_world::World;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// First contact: a person, or the start of a machine, waits.
const CONTACT_PATIENCE: Duration = Duration::from_secs(30);
/// How long, and how often, the kernel is told of the root.
const ROOT_PATIENCE: Duration = Duration::from_secs(5);
const ROOT_TRIES: usize = 5;
/// Whoever waits for them is told so often how far they are.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Signals to end that come so soon after one another are one.
const SAME_SIGNAL: Duration = Duration::from_secs(3);

/// Signs of life, at most so far apart, and looks at memory that is not used any more.
const BEATS_APART: Duration = Duration::from_secs(5);
const TRIMS_APART: Duration = Duration::from_secs(5);
/// The record that says what is mounted, and the one that says whether the servers believed this
/// machine about its users.
const MOUNT: Kind = Kind(80);
const BELIEVED: Kind = Kind(81);

/// What to mount where.
pub struct Task {
    pub source: Source,
    pub mountpoint: PathBuf,
    pub options: Options,
    /// As they were said.
    pub words: Vec<String>,
    /// Somebody waits at our standard output.
    pub is_daemon: bool,
    pub is_log_json: bool,
}

impl Task {
    fn settings(&self) -> Settings {
        let options = &self.options;
        let access_times =
            if options.notes_access { AccessTimes::Relative } else { AccessTimes::Never };
        let (wait, offline, journal) = (options.wait, options.offline, options.has_journal);
        let (description, read_mode) = (self.description(), options.read_mode);
        let usual = Settings::default();
        let inodes_max = options.inodes_max.unwrap_or(usual.inodes_max);
        let short_positions = options.has_short_numbers;
        let more =
            Settings { warms: true, read_mode, offline, inodes_max, short_positions, ..usual };
        Settings { wait, journal, access_times, description, ..more }
    }

    /// Caches, and storage that is read directly; and what of it cannot be used yet.
    async fn near(
        &self,
        world: &World,
        map: &MapCell,
        is_new: bool,
    ) -> anyhow::Result<(Near, Vec<String>)> {
        let sec = self.options.proving.sec.as_deref();
        let origin = map.current().origin();
        self.options.near.open(world, map, (&self.source.fs, &origin), sec, is_new).await
    }

    /// The directory of this mount's spool.
    fn spool_directory(&self) -> Option<PathBuf> {
        let place = self.options.spool.as_deref()?;
        Some(spool::own_directory(place, self.source.fs.as_str(), &self.mountpoint))
    }

    /// Where bytes go that cannot be stored.
    fn spool(&self, map: &MapCell) -> Option<Arc<dyn Spool>> {
        let (source, mountpoint) = (self.source.to_string(), self.mountpoint.clone());
        let about = About { source, mountpoint, mapkey: map.current().origin().to_hex() };
        Some(DiskSpool::new(self.spool_directory()?, self.options.spool_size, about))
    }

    /// For servers' logs.
    fn description(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("mount {} on {host} (pid {})", self.mountpoint.display(), std::process::id())
    }
}

/// Mounts, and stays until it is unmounted. `held` is the descriptor through which a holder
/// speaks.
pub fn run(task: Task, held: Option<i32>) -> anyhow::Result<()> {
    tieline_telemetry::log::start(task.is_log_json);
    let mut held = held.map(Held::begin).transpose()?;
    let keep = held.as_ref().map_or_else(Keep::none, |held| held.keep.clone());
    // Whoever started the first of them has heard.
    let is_daemon = task.is_daemon && held.as_ref().is_none_or(|held| held.taken.is_none());
    if is_daemon && held.is_none() {
        // Away from the terminal of whoever mounts.
        let _ = rustix::process::setsid();
    }
    if let Some(namespace) = &task.options.netns {
        tieline_machine::namespace::enter(namespace)?;
    }
    tieline_machine::memory::prepare();
    task.options.proving.prepare();
    let runtime = tieline_machine::runtime::of_daemon()?;
    let watchdog = task.options.watchdog;
    let result = runtime.block_on(async {
        // From now on they are heard, if only later.
        let mut signals = Signals::new()?;
        tokio::spawn(live(keep.clone(), watchdog));
        // A mount that programs use already is served first, and then ends in good order.
        let is_new = held.as_ref().is_none_or(|held| held.taken.is_none());
        let started = tokio::select! {
            biased;
            started = Mounted::start(task, held.as_mut()) => started,
            () = signals.any(), if is_new => Err(anyhow!("told to end before it was mounted")),
        };
        match started {
            Ok(mounted) => {
                keep.set_stage(Stage::Serving);
                let entry = mounted.entry.clone();
                held.as_ref().map(|held| held.guard(entry)).transpose()?;
                if is_daemon {
                    let warnings = mounted.warnings.iter().map(|why| format!("{why}\n"));
                    tell_parent(&format!("{}{READY}", warnings.collect::<String>()))?;
                }
                let outcome = mounted.stay(signals).await;
                keep.set_stage(Stage::Over);
                outcome
            }
            Err(error) => Err(error),
        }
    });
    if let (Err(error), true) = (&result, is_daemon) {
        let error = tieline_base::report::chain(error.as_ref());
        tracing::error!(%error, "mount failed");
        let _ = tell_parent(&error);
    }
    // Calls that hang in the kernel or in DNS must not keep a process that has nothing left to do.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Shows that this process lives, and gives memory back.
async fn live(keep: Keep, watchdog: Option<Duration>) {
    if !keep.is_on() {
        return;
    }
    let span = watchdog.map_or(BEATS_APART, |watchdog| (watchdog / 8).min(BEATS_APART));
    let mut trimmed = tokio::time::Instant::now();
    loop {
        keep.beat();
        if trimmed.elapsed() >= TRIMS_APART {
            keep.trim();
            trimmed = tokio::time::Instant::now();
        }
        tokio::time::sleep(span).await;
    }
}

/// Signals that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        unblock()?;
        Ok(Self { terminate, interrupt })
    }

    async fn any(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// One that comes well after the first. Whoever ends a whole group of processes has the holder
    /// pass on what the daemon was sent, too.
    async fn again(&mut self) {
        let begun = tokio::time::Instant::now();
        loop {
            self.any().await;
            if begun.elapsed() >= SAME_SIGNAL {
                return;
            }
        }
    }
}

/// A holder takes its signals as messages, and its child inherits that they are blocked; which is
/// good until they are listened to. They come to this thread.
fn unblock() -> std::io::Result<()> {
    // SAFETY: the set is initialised by the first call before it is used, and lives in this frame.
    let failure = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut())
    };
    if failure == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(failure)) }
}

/// Says one thing on standard output, and closes it.
fn tell_parent(what: &str) -> anyhow::Result<()> {
    println!("{what}");
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// A mount at work.
struct Mounted {
    task: Task,
    mount: Mount,
    files: Arc<Volume>,
    health: Health,
    /// Caches that cannot be used yet, and why: for whoever mounts.
    warnings: Vec<String>,
    _admin: Option<tieline_admin::Handle>,
    entry: Entry,
    _registered: Registered,
    _kept: Vec<Kept>,
}

/// What the next process must know before it asks anybody.
struct Known {
    map: MapCell,
    key: MapVerifier,
    root: FileId,
}

impl Known {
    fn put(&self, keep: &Keep) -> Option<Kept> {
        let key = self.key.to_hex();
        let head = [&self.root.0.to_le_bytes()[..], &[key.len() as u8], key.as_bytes()].concat();
        keep.put(MOUNT, 0, &[&head, &self.map.current().signed.to_bytes()])
    }

    /// Puts it down again whenever another key signs the map: the daemon after this one is not to
    /// believe the one of before.
    async fn keep(self, keep: Keep) {
        let (mut news, mut kept) = (self.map.subscribe(), None);
        let mut key = self.map.current().key.clone();
        while news.changed().await.is_ok() {
            let now = self.map.current().key.clone();
            if now != key {
                // The one of before goes when this one is there.
                let put = self.put(&keep);
                drop(std::mem::replace(&mut kept, put));
                key = now;
            }
        }
    }

    fn read(record: &Record) -> anyhow::Result<Self> {
        let damaged = || anyhow!("what an earlier daemon knew cannot be read");
        let bytes = record.bytes();
        let (root, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
        let (&length, rest) = rest.split_first().ok_or_else(damaged)?;
        let (key, map) = rest.split_at_checked(length.into()).ok_or_else(damaged)?;
        let key = MapVerifier::from_hex(std::str::from_utf8(key)?)?;
        let map = MapCell::new(key.clone(), SignedMap::from_bytes(map)?)?;
        Ok(Self { map, key, root: FileId(u64::from_le_bytes(*root)) })
    }
}

impl Mounted {
    async fn start(task: Task, held: Option<&mut Held>) -> anyhow::Result<Self> {
        let is_taken = held.as_ref().is_some_and(|held| held.taken.is_some());
        if !is_taken {
            return Self::begin(task, held).await;
        }
        let held = held.context("a mount is taken from a holder")?;
        let records = std::mem::take(&mut held.records);
        let (own, records): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| [MOUNT, BELIEVED].contains(&record.kind));
        let known = own.iter().rfind(|record| record.kind == MOUNT);
        let known = Known::read(known.context("an earlier daemon knew nothing")?)?;
        let believed = own.iter().rfind(|record| record.kind == BELIEVED);
        let was_believed = believed.map(|record| record.bytes() == [1]);
        let guard = task.options.proving.guard();
        let (world, dialer, rule) = world_with(&guard, task.options.congestion);
        guard.follow(&known.map);
        let settings = task.settings();
        let admin_world = world.clone();
        let (map, root) = (known.map.clone(), known.root);
        let origin = map.current().origin();
        let (dialer, published) = repositories::beside(dialer, &map, &world);
        let (mut near, _) = task.near(&world, &map, false).await?;
        near.further.push(published);
        let spool = task.spool(&map);
        let parts = Parts { world, dialer, map, root, rule, near, spool };
        let files = Volume::new_kept(parts, settings, held.keep.clone(), records);
        files.recover().await;
        let kept = known.put(&held.keep);
        drop(own);
        let key = known.key.clone();
        tokio::spawn(known.keep(held.keep.clone()));
        let taken = held.taken.take().context("a mount is taken from a holder")?;
        let beginning = Beginning::Taken(taken);
        // Programs wait for this daemon, whether servers can be reached or not.
        let before = Some(was_believed);
        let (people, believed) = people_of(&task.options, &files, guard, before).await?;
        let kept = kept.into_iter().chain(put_believed(&held.keep, believed)).collect();
        let beginning = (beginning, people);
        Self::attach(task, files, admin_world, ((key, origin), kept), beginning).await
    }

    async fn begin(task: Task, held: Option<&mut Held>) -> anyhow::Result<Self> {
        let (source, options) = (&task.source, &task.options);
        let guard = options.proving.guard();
        let (world, dialer, rule) = world_with(&guard, options.congestion);
        let mapkey =
            options.mapkey.clone().or_else(|| tieline_base::location::site_key(&source.fs));
        let key = mapkey.as_deref().map(key_open).transpose();
        let contact = Contact {
            world: world.clone(),
            dialer: dialer.clone(),
            fs: source.fs.clone(),
            addresses: source.addresses.clone(),
            rule,
            description: task.description(),
            patience: CONTACT_PATIENCE,
        };
        let (map, key) = match source.repository() {
            Some(name) => {
                let (list, keys) = (options.list.as_deref(), &options.pubkeys[..]);
                repositories::alone(source, &name, &options.from, Believed { list, keys })?
            }
            None => contact.believe(key.map_err(|e| anyhow!("mapkey: {e}"))?).await?,
        };
        let (dialer, published) = repositories::beside(dialer, &map, &world);
        guard.follow(&map);
        options.near.check_osts(&map.current().map)?;
        let settings = task.settings();
        let keep = held.as_ref().map_or_else(Keep::none, |held| held.keep.clone());
        let top = FileId::root_of(MdtIndex(0));
        let (mut near, warnings) = task.near(&world, &map, true).await?;
        near.further.push(published);
        let parts = |root, near| Parts {
            world: world.clone(),
            dialer: dialer.clone(),
            map: map.clone(),
            root,
            rule,
            near,
            spool: task.spool(&map),
        };
        let root = match source.directory.as_str() {
            "" => top,
            directory => {
                let files = Volume::new(parts(top, Near::default()), settings.clone());
                let root = descend(&files, top, directory).await;
                files.close(Duration::from_secs(1)).await;
                root?
            }
        };
        let files = Volume::new_kept(parts(root, near), settings, keep.clone(), Vec::new());
        let opened = files.clone();
        let begun = async move {
            // Asked once before anybody else does: an unreachable server is an error here, not a
            // mount that hangs.
            let caller = Caller::root();
            let look = files.attributes(&caller, files.root());
            let looked = tokio::time::timeout(CONTACT_PATIENCE, look).await;
            looked.map_err(|_| anyhow!("the MDS of the root does not answer"))??;
            let known = Known { map: map.clone(), key: key.clone(), root };
            let kept = known.put(&keep);
            tokio::spawn(known.keep(keep.clone()));
            let beginning = Beginning::Mounted(held.map(|held| held.hand_over()));
            let (people, believed) = people_of(&task.options, &files, guard, None).await?;
            let kept = kept.into_iter().chain(put_believed(&keep, believed)).collect();
            let beginning = (beginning, people);
            let keys = (key, map.current().origin());
            let mounted = Self::attach(task, files, world, (keys, kept), beginning).await?;
            anyhow::Ok(Self { warnings, ..mounted })
        };
        let begun = begun.await;
        if begun.is_err() {
            // Else its session stays as long as one of a client that is cut off.
            opened.close(Duration::from_secs(1)).await;
        }
        begun
    }

    async fn attach(
        task: Task,
        files: Arc<Volume>,
        world: World,
        ((key, origin), kept): ((MapVerifier, MapVerifier), Vec<Kept>),
        (beginning, (people, idmap)): (Beginning, Shown),
    ) -> anyhow::Result<Self> {
        let options = &task.options;
        let (health, mut admin_handle) = (Health::default(), None);
        let is_taken = matches!(beginning, Beginning::Taken(_));
        let role = format!("mount of {}", task.source);
        let admin = match &options.admin {
            Some(address) => {
                let subject = subject(&role, &health);
                match tieline_admin::serve(&world, address, subject).await {
                    Ok(handle) => Some(admin_handle.insert(handle).address().to_string()),
                    // What is left of the daemon before has the port until this one serves.
                    Err(error) if is_taken => {
                        let error = tieline_base::report::chain(&error);
                        tracing::warn!(%error, "trying again until it works");
                        tokio::spawn(serve_later(world, address.clone(), role, health.clone()));
                        Some(address.clone())
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            None => None,
        };
        let mount_options = MountOptions {
            is_read_only: options.is_read_only,
            // Users' mounts are for themselves, unless fuse.conf says otherwise.
            allows_others: rustix::process::geteuid().is_root(),
            allows_suid: !options.no_suid,
            allows_devices: !options.no_dev,
            allows_exec: !options.no_exec,
            is_noatime: !options.notes_access,
            minor_max: options.fuse_minor_max.unwrap_or(u32::MAX),
            has_short_numbers: options.has_short_numbers,
            maps_ids: options.one_user.is_some(),
            scout: Some(scout),
            people,
            ..MountOptions::new(&task.mountpoint, task.source.to_string())
        };
        let volume = files.clone();
        volume.set_read_only(options.is_read_only);
        let runtime = tokio::runtime::Handle::current();
        let mount = Mount::start_as(files.clone(), &mount_options, runtime, beginning)
            .with_context(|| format!("cannot mount at {}", task.mountpoint.display()))?;
        if !is_taken {
            tell_root(&task.mountpoint).await;
        }
        tokio::spawn(remount::watch(task.mountpoint.clone(), volume));
        let entry = Entry {
            mountpoint: task.mountpoint.clone(),
            source: task.source.to_string(),
            process: if kept.is_empty() { ProcessId::own() } else { ProcessId::parent() },
            daemon: Some(ProcessId::own()),
            mountns: registry::own_mountns(),
            netns: options.netns.clone(),
            mapkey: key.to_hex(),
            admin,
            proving: options.proving.named(&files.map()),
            caches: options.near.places(&task.source.fs, &origin),
            idmap: Some(idmap.text()),
            options: Some(task.words.clone()),
            spool: task.spool_directory(),
            wait: Some(options.wait.as_secs()),
            ending: None,
        };
        let registered = entry.register()?;
        if let Some(pidfile) = &options.pidfile {
            let text = format!("{}\n", entry.process.pid);
            tieline_machine::beneath::write_whole(pidfile, text.as_bytes(), 0o644)
                .with_context(|| format!("cannot write {}", pidfile.display()))?;
        }
        health.set_ready(true);
        tracing::info!(
            source = %task.source, mountpoint = %task.mountpoint.display(),
            "{}", if is_taken { "serves the mount again" } else { "mounted" }
        );
        let (_admin, _registered, _kept) = (admin_handle, registered, kept);
        let warnings = Vec::new();
        Ok(Self { task, mount, files, health, entry, warnings, _admin, _registered, _kept })
    }

    /// Until it is unmounted, or a signal asks for that.
    async fn stay(self, mut signals: Signals) -> anyhow::Result<()> {
        let reason = tokio::select! {
            biased;
            () = self.mount.wait() => "unmounted",
            _ = signals.terminate.recv() => "SIGTERM",
            _ = signals.interrupt.recv() => "SIGINT",
        };
        tracing::info!(reason, "ending");
        self.health.set_ready(false);
        if let Err(error) = self.mount.unmount().await {
            let error = tieline_base::report::chain(&error);
            tracing::error!(%error, "the mount stays in the tree");
        }
        self.end(&mut signals).await?;
        if let Some(pidfile) = &self.task.options.pidfile {
            let _ = std::fs::remove_file(pidfile);
        }
        if table::is_mounted(&self.task.mountpoint) {
            bail!("{} is still mounted", self.task.mountpoint.display());
        }
        let spooled = self.entry.spool.as_deref().map_or_else(Vec::new, spool::unnamed);
        tracing::info!(spooled = spooled.len(), "ended");
        if !spooled.is_empty() && !self.task.is_daemon {
            bail!("{} files could not be stored: `tieline spool list` names them", spooled.len());
        }
        Ok(())
    }
}

impl Mounted {
    /// Sends what is left. SIGQUIT says that nobody wants it; another signal to end, that nobody
    /// can wait: then it goes into the spool.
    async fn end(&self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut unwanted = signal(SignalKind::quit())?;
        tokio::select! {
            biased;
            () = self.files.close(self.task.options.wait) => {}
            () = self.tell_ending() => {}
            () = signals.again() => {
                tracing::warn!("told to end at once: what is not sent goes into the spool");
                self.files.spool_unsent().await;
            }
            _ = unwanted.recv() => {
                let left = Ending::from(self.files.unsent());
                tracing::error!(%left, "told to end at once: that is lost");
                self.files.drop_unsent().await;
            }
        }
        Ok(())
    }

    /// Has others see how far we are, for as long as it is polled.
    async fn tell_ending(&self) {
        let mut told = None;
        loop {
            let ending = Ending::from(self.files.unsent());
            if told.as_ref() != Some(&ending) {
                let entry = Entry { ending: Some(ending.clone()), ..self.entry.clone() };
                // The entry of before is the one that goes with us.
                match entry.register() {
                    Ok(registered) => std::mem::forget(registered),
                    Err(error) => tracing::info!("the mount's end is not told: {error:#}"),
                }
                told = Some(ending);
            }
            tokio::time::sleep(TELL_EVERY).await;
        }
    }
}

fn subject(role: &str, health: &Health) -> Subject {
    let details = Box::new(|| serde_json::Value::Null);
    Subject { health: health.clone(), role: role.to_owned(), details }
}

/// Tells health and metrics as soon as the port is free, until the process ends.
async fn serve_later(world: World, address: String, role: String, health: Health) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let served = tieline_admin::serve(&world, &address, subject(&role, &health)).await;
        if let Ok(_handle) = served {
            return std::future::pending().await;
        }
    }
}

/// What the daemon after this one goes by.
fn put_believed(keep: &Keep, is_believed: bool) -> Option<Kept> {
    keep.put(BELIEVED, 0, &[&[u8::from(is_believed)]])
}

/// Has the kernel ask for the root's attributes before anybody uses the mount. Until it heard them
/// once it takes the root for a directory that nobody may enter, and drops an answer that crosses a
/// notification: somebody's first step would be denied.
async fn tell_root(mountpoint: &Path) {
    let (path, (told, heard)) = (mountpoint.to_owned(), tokio::sync::oneshot::channel());
    // A thread of its own: it waits for an answer of this very process, and may be left waiting.
    std::thread::spawn(move || {
        for _ in 0..ROOT_TRIES {
            // Whether the answer was kept, only what the kernel says without asking tells.
            let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::MODE);
            let _ = std::fs::symlink_metadata(&path);
            let kept = rustix::fs::statx(rustix::fs::CWD, &path, flags, wanted);
            if kept.is_ok_and(|kept| kept.stx_mode & 0o7777 != 0) {
                break;
            }
        }
        // Nobody may wait for it any more.
        let _ = told.send(());
    });
    if tokio::time::timeout(ROOT_PATIENCE, heard).await.is_err() {
        tracing::warn!("the kernel does not get the root's attributes in time");
    }
}

/// The directory below the root that is mounted.
async fn descend(files: &Volume, top: FileId, directory: &str) -> anyhow::Result<FileId> {
    let map = files.map();
    let mut at = top;
    for part in directory.split('/').filter(|part| !part.is_empty()) {
        let name: Name = part.parse()?;
        // The map knows: a site that is cut off from the root can be mounted all the same.
        if let Some(junction) = map.junctions_in(at).find(|junction| junction.name == name) {
            at = FileId::root_of(junction.mdt);
            continue;
        }
        let found = files.lookup(&Caller::root(), at, &name).await?;
        let attributes = found.attributes.with_context(|| format!("no directory `{directory}`"))?;
        if !attributes.is_directory() {
            bail!("`{directory}` is not a directory");
        }
        at = attributes.id;
    }
    Ok(at)
}

/// This program again, as it was when it was started.
fn scout(mountpoint: &Path) -> std::io::Result<std::process::Command> {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(["mount", "--scout"]).arg(mountpoint).current_dir("/");
    Ok(command)
}
