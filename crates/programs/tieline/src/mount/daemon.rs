//! The process behind a mount: from first contact to the last commit.
//!
//! Invariants: the parent hears exactly once how the start went; everything written is committed
//! before the process ends, or the log says what was not.

use crate::contact::Contact;
use crate::mount::options::Options;
use crate::mount::registry::{Entry, Registered};
use crate::mount::{READY, table};
use crate::process::ProcessId;
use crate::server::settings::key_open;
use crate::shell::real_world;
use crate::source::Source;
use anyhow::{Context, anyhow, bail};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tieline_admin::Subject;
use tieline_client::{AccessTimes, FileSystem, Parts, Settings, Volume};
use tieline_fuse::{Mount, MountOptions};
use tieline_telemetry::health::Health;
use tieline_types::{Caller, FileId, MdtIndex, Name};
use tieline_world::Transport;
use tokio::signal::unix::{SignalKind, signal};

/// First contact: a person, or the start of a machine, waits.
const CONTACT_PATIENCE: Duration = Duration::from_secs(30);
/// How long the last commits may take. `umount` waits as long.
const DRAIN_PATIENCE: Duration = Duration::from_secs(290);

/// What to mount where.
pub struct Task {
    pub source: Source,
    pub mountpoint: PathBuf,
    pub options: Options,
    /// Somebody waits at our standard output.
    pub is_daemon: bool,
    pub is_log_json: bool,
}

/// Mounts, and stays until it is unmounted.
pub fn run(task: Task) -> anyhow::Result<()> {
    tieline_telemetry::log::start(task.is_log_json);
    let is_daemon = task.is_daemon;
    if is_daemon {
        // Away from the terminal of whoever mounts.
        let _ = rustix::process::setsid();
    }
    if let Some(namespace) = &task.options.netns {
        crate::namespace::enter(namespace)?;
    }
    crate::memory::prepare();
    task.options.proving.prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.spawn(crate::memory::give_back());
    let result = runtime.block_on(async {
        match Mounted::start(task).await {
            Ok(mounted) => {
                if is_daemon {
                    tell_parent(READY)?;
                }
                mounted.stay().await
            }
            Err(error) => Err(error),
        }
    });
    if let (Err(error), true) = (&result, is_daemon) {
        let error = crate::report::chain(error.as_ref());
        tracing::error!(%error, "mount failed");
        let _ = tell_parent(&error);
    }
    // Calls that hang in the kernel or in DNS must not keep a process that has nothing left to do.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
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
    files: Arc<dyn FileSystem>,
    health: Health,
    _admin: Option<tieline_admin::Handle>,
    _registered: Registered,
}

impl Mounted {
    async fn start(task: Task) -> anyhow::Result<Self> {
        let (source, options) = (&task.source, &task.options);
        let guard = options.proving.guard();
        let (world, dialer, rule) = real_world(&guard);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let pid = std::process::id();
        let description = format!("mount {} on {host} (pid {pid})", task.mountpoint.display());
        let mapkey = options.mapkey.clone().or_else(|| crate::location::site_key(&source.fs));
        let key = mapkey.as_deref().map(key_open).transpose();
        let contact = Contact {
            world: world.clone(),
            dialer: dialer.clone(),
            fs: source.fs.clone(),
            addresses: source.addresses.clone(),
            rule,
            description: description.clone(),
            patience: CONTACT_PATIENCE,
        };
        let (map, key) = contact.believe(key.map_err(|e| anyhow!("mapkey: {e}"))?).await?;
        guard.follow(&map);
        let is_noting = options.notes_access && !options.is_read_only;
        let access_times = if is_noting { AccessTimes::Relative } else { AccessTimes::Never };
        let (wait, journal) = (options.wait, options.has_journal);
        let settings = Settings { wait, journal, access_times, description, ..Settings::default() };
        let top = FileId::root_of(MdtIndex(0));
        let parts = |root| Parts {
            world: world.clone(),
            dialer: dialer.clone(),
            map: map.clone(),
            root,
            rule,
        };
        let files = Volume::new(parts(top), settings.clone());
        let files = match source.directory.as_str() {
            "" => files,
            directory => {
                let root = descend(&files, top, directory).await;
                files.close(Duration::from_secs(1)).await;
                Volume::new(parts(root?), settings)
            }
        };
        // Asked once before anybody else does: an unreachable server is an error here, not a mount
        // that hangs.
        let caller = Caller::root();
        let look = files.attributes(&caller, files.root());
        let looked = tokio::time::timeout(CONTACT_PATIENCE, look).await;
        looked.map_err(|_| anyhow!("the MDS of the root does not answer"))??;
        Self::attach(task, files, world.transport, key.to_hex()).await
    }

    async fn attach(
        task: Task,
        files: Arc<Volume>,
        transport: Arc<dyn Transport>,
        mapkey: String,
    ) -> anyhow::Result<Self> {
        let options = &task.options;
        let health = Health::default();
        let admin = match &options.admin {
            Some(address) => {
                let subject = Subject {
                    health: health.clone(),
                    role: format!("mount of {}", task.source),
                    details: Box::new(|| serde_json::Value::Null),
                };
                Some(tieline_admin::serve(&*transport, address, subject).await?)
            }
            None => None,
        };
        let mount_options = MountOptions {
            is_read_only: options.is_read_only,
            // Users' mounts are for themselves, unless fuse.conf says otherwise.
            allows_others: rustix::process::geteuid().is_root(),
            allows_suid: !options.no_suid,
            allows_devices: !options.no_dev,
            is_noatime: !options.notes_access,
            ..MountOptions::new(&task.mountpoint, task.source.to_string())
        };
        let files: Arc<dyn FileSystem> = files;
        let runtime = tokio::runtime::Handle::current();
        let mount = Mount::start(files.clone(), &mount_options, runtime)
            .with_context(|| format!("cannot mount at {}", task.mountpoint.display()))?;
        let entry = Entry {
            mountpoint: task.mountpoint.clone(),
            source: task.source.to_string(),
            process: ProcessId::own(),
            netns: options.netns.clone(),
            mapkey,
            admin: admin.as_ref().map(|admin| admin.address().to_string()),
            proving: options.proving.clone(),
        };
        let registered = entry.register()?;
        if let Some(pidfile) = &options.pidfile {
            std::fs::write(pidfile, format!("{}\n", std::process::id()))
                .with_context(|| format!("cannot write {}", pidfile.display()))?;
        }
        health.set_ready(true);
        tracing::info!(
            source = %task.source, mountpoint = %task.mountpoint.display(), "mounted"
        );
        Ok(Self { task, mount, files, health, _admin: admin, _registered: registered })
    }

    /// Until it is unmounted, or a signal asks for that.
    async fn stay(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let reason = tokio::select! {
            biased;
            () = self.mount.wait() => "unmounted",
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(reason, "ending");
        self.health.set_ready(false);
        if let Err(error) = self.mount.unmount().await {
            let error = crate::report::chain(&error);
            tracing::error!(%error, "the mount stays in the tree");
        }
        self.files.close(DRAIN_PATIENCE).await;
        if let Some(pidfile) = &self.task.options.pidfile {
            let _ = std::fs::remove_file(pidfile);
        }
        if table::is_mounted(&self.task.mountpoint) {
            bail!("{} is still mounted", self.task.mountpoint.display());
        }
        tracing::info!("ended");
        Ok(())
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
