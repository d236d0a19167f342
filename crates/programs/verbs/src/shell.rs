//! A file system without a mount, for the operator's verbs: what a location's path leads to
//! ([`tieline_files::Paths`]), everything else is the client room.

use crate::known;
use crate::parting;
use crate::runtime;
use anyhow::{Context, anyhow, bail};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{Guard, MapCell, MapVerifier};
use tieline_base::contact::Contact;
use tieline_base::dialing::real_world;
use tieline_base::keys::key_open;
use tieline_base::location::Location;
use tieline_base::repositories;
use tieline_bytes::Near;
use tieline_client::{Operator, Parts, Settings, Volume};
use tieline_files::{Entry, Files, LastLink, Paths, Who};
use tieline_machine::users::own_caller;
use tieline_types::{Attributes, Caller, FileId, MdtIndex, Name, Shown};

/// A person waits.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The same for the first word of servers that a mount here talks with all the time.
const PATIENCE_MOUNTED: Duration = Duration::from_secs(10);
/// And of servers that it says are away: they may be back just now.
const PATIENCE_AWAY: Duration = Duration::from_secs(2);
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// A session with a federation, for one command.
pub struct Shell {
    pub files: Arc<dyn Operator>,
    /// The same, for what only operators ask.
    pub volume: Arc<Volume>,
    pub caller: Caller,
    /// The federation's, as it was given or believed.
    pub key: MapVerifier,
    pub map: MapCell,
    location: Location,
    paths: Paths,
}

/// Runs a command against the file system of `location`.
pub fn run<T, F: Future<Output = anyhow::Result<T>>>(
    location: &Location,
    command: impl FnOnce(Arc<Shell>) -> F,
) -> anyhow::Result<T> {
    let away = known::away(location);
    if let Some(site) = away.as_deref().filter(|_| !location.path.is_empty()) {
        return Err(known::refused(location, site));
    }
    runtime::reach(location, async {
        let shell = opened(location, away.as_deref()).await?;
        let result = command(shell.clone()).await;
        closed(&shell).await;
        result
    })
}

/// Boxed, as the next: once for all verbs.
fn opened<'l>(
    location: &'l Location,
    away: Option<&'l str>,
) -> Boxed<'l, anyhow::Result<Arc<Shell>>> {
    Box::pin(async move {
        parting::listen()?;
        let shell = Arc::new(Shell::open(location.clone(), away).await?);
        parting::opened(shell.volume.clone());
        Ok(shell)
    })
}

fn closed(shell: &Shell) -> Boxed<'_, ()> {
    Box::pin(async {
        if !parting::closes() {
            parting::wait_for_end().await;
        }
        shell.volume.close(CLOSE_PATIENCE).await;
    })
}

type Boxed<'l, T> = Pin<Box<dyn Future<Output = T> + 'l>>;

/// How to get at a location's servers for the first time.
pub fn contact(location: &Location, guard: &Arc<Guard>) -> Contact {
    let (world, dialer, rule) = real_world(guard);
    Contact {
        world,
        dialer,
        fs: location.source.fs.clone(),
        addresses: location.source.addresses.clone(),
        rule,
        description: format!("tieline (pid {})", std::process::id()),
        patience: if location.mountpoint.is_some() { PATIENCE_MOUNTED } else { PATIENCE },
    }
}

/// The map of a location's servers, which its guard follows from now on. `away`: the site whose
/// servers a mount there says are away.
pub async fn first_map(
    location: &Location,
    guard: &Arc<Guard>,
    away: Option<&str>,
) -> anyhow::Result<(Contact, MapCell, MapVerifier)> {
    if location.source.repository().is_some() {
        bail!("{} is mounted alone, and read-only: use the mount itself", location.source);
    }
    let mut contact = contact(location, guard);
    let key = location.mapkey.as_deref().map(key_open).transpose();
    let key = key.map_err(|error| anyhow!("mapkey: {error}"))?;
    if away.is_some() {
        contact.patience = PATIENCE_AWAY;
    }
    let believed = contact.believe(key).await;
    let (map, key) = match away {
        Some(site) => believed.with_context(|| known::refused(location, site))?,
        None => believed?,
    };
    guard.follow(&map);
    Ok((contact, map, key))
}

impl Shell {
    async fn open(location: Location, away: Option<&str>) -> anyhow::Result<Self> {
        let guard = location.proving.guard();
        let (contact, map, key) = first_map(&location, &guard, away).await?;
        let Contact { world, dialer, rule, description, .. } = contact;
        let root = FileId::root_of(MdtIndex(0));
        let settings = Settings { wait: PATIENCE, description, ..Settings::default() };
        let (dialer, published) = repositories::beside(dialer, &map, &world);
        let near = Near { further: vec![published], ..Near::default() };
        let parts = Parts { world, dialer, map: map.clone(), root, rule, near, spool: None };
        let volume = Volume::new(parts, settings);
        let paths = paths(&location, volume.clone());
        let files = volume.clone();
        Ok(Self { files, volume, caller: own_caller(), key, map, location, paths })
    }

    /// What the location's path leads to, following a symlink at its end or not.
    pub async fn resolve(&self, path: &[u8], follows_last: bool) -> anyhow::Result<Entry> {
        let last = if follows_last { LastLink::Followed } else { LastLink::Kept };
        let whole = [self.location.source.directory.as_bytes(), b"/", path].concat();
        let found = self.paths.find(&Who::himself(self.caller.clone()), &whole, last).await;
        found.with_context(|| format!("/{} in {}", Shown(path), self.location.source))
    }

    /// The directory that would hold a new entry at `path`, and the entry's name.
    pub async fn resolve_parent(&self, path: &[u8]) -> anyhow::Result<(Attributes, Name)> {
        let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let name =
            Name::new(name).with_context(|| format!("`{}` cannot be created", Shown(path)))?;
        let parent = self.resolve(parent, true).await?;
        Ok((parent.attributes, name))
    }
}

/// Absolute links lead inside as they do for who sees the mount, or the federation's conventional
/// place.
fn paths(location: &Location, files: Arc<dyn Files>) -> Paths {
    let mut paths = Paths::new(files);
    if let Some(mountpoint) = &location.mountpoint {
        let directory = location.source.directory.as_bytes();
        paths = paths.leading_in(mountpoint.as_os_str().as_bytes(), directory);
    }
    paths.leading_in(format!("/{}", location.source.fs), "")
}

/// Was a path refused because nothing has that name?
pub fn is_not_found(error: &anyhow::Error) -> bool {
    tieline_base::report::kind(error) == Some(tieline_types::ErrorKind::NotFound)
}
