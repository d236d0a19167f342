//! A file system without a mount, for the operator's verbs: paths are walked here, everything else
//! is the client room.
//!
//! Invariants: a walk follows at most [`LINKS_MAX`] symlinks; links that lead out of the file
//! system are an error that says so.

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
use tieline_client::{Error, FileSystem, Near, Parts, Settings, Volume};
use tieline_machine::users::own_caller;
use tieline_types::{Attributes, Caller, FileId, FileKind, MdtIndex, Name, Shown};

/// As the kernel: more is a loop.
const LINKS_MAX: usize = 40;
/// A person waits.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The same for the first word of servers that a mount here talks with all the time.
const PATIENCE_MOUNTED: Duration = Duration::from_secs(10);
/// And of servers that it says are away: they may be back just now.
const PATIENCE_AWAY: Duration = Duration::from_secs(2);
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// A session with a federation, for one command.
pub struct Shell {
    pub files: Arc<dyn FileSystem>,
    /// The same, for what only operators ask.
    pub volume: Arc<Volume>,
    pub caller: Caller,
    /// The federation's, as it was given or believed.
    pub key: MapVerifier,
    pub map: MapCell,
    location: Location,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub struct Entry {
    pub attributes: Attributes,
    /// The directory it was found in, and its name there; `None` for the root.
    pub at: Option<(FileId, Name)>,
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
        shell.files.close(CLOSE_PATIENCE).await;
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
        let files = volume.clone();
        Ok(Self { files, volume, caller: own_caller(), key, map, location })
    }

    /// What the location's path leads to, following a symlink at its end or not.
    pub async fn resolve(&self, path: &[u8], follows_last: bool) -> anyhow::Result<Entry> {
        let directory = self.location.source.directory.as_bytes();
        let whole = [directory, b"/", path].concat();
        self.walk(&whole, follows_last)
            .await
            .with_context(|| format!("/{} in {}", Shown(path), self.location.source))
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

    async fn walk(&self, path: &[u8], follows_last: bool) -> anyhow::Result<Entry> {
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut entry = self.start(&mut todo).await?;
        let mut links = 0;
        while let Some(component) = todo.pop() {
            if component == b".." {
                let parent = self.files.parent(&self.caller, entry.attributes.id).await?;
                let known = self.files.attributes(&self.caller, parent).await?;
                entry = Entry { attributes: known.attributes, at: None };
                continue;
            }
            let name = Name::new(component)?;
            let parent = entry.attributes.id;
            let next = self.lookup(parent, &name).await?;
            let is_followed = follows_last || !todo.is_empty();
            if next.attributes.kind == FileKind::Symlink && is_followed {
                links += 1;
                if links > LINKS_MAX {
                    bail!("too many levels of symbolic links");
                }
                let target = self.files.read_symlink(&self.caller, next.attributes.id).await?;
                if target.starts_with(b"/") {
                    todo.extend(components(&self.inside(&target)?));
                    entry = self.root().await?;
                } else {
                    todo.extend(components(&target));
                }
                continue;
            }
            entry = next;
        }
        Ok(entry)
    }

    async fn lookup(&self, parent: FileId, name: &Name) -> anyhow::Result<Entry> {
        // The map knows junctions: a site that is cut off from the root is reached all the same.
        if let Some(junction) = self.files.map().junctions_in(parent).find(|j| j.name == *name) {
            let root = FileId::root_of(junction.mdt);
            let known = self.files.attributes(&self.caller, root).await?;
            let at = Some((parent, name.clone()));
            return Ok(Entry { attributes: known.attributes, at });
        }
        let found = self.files.lookup(&self.caller, parent, name).await?;
        let Some(attributes) = found.attributes else {
            let kind = tieline_types::ErrorKind::NotFound;
            return Err(Error::local(kind, format!("`{name}`")).into());
        };
        Ok(Entry { attributes, at: Some((parent, name.clone())) })
    }

    /// The root, or what the map says that a path's first components lead to.
    async fn start(&self, todo: &mut Vec<Vec<u8>>) -> anyhow::Result<Entry> {
        let first = todo.last().and_then(|component| Name::new(component.as_slice()).ok());
        let map = self.files.map();
        let mut junctions = map.junctions_in(self.files.root());
        match first.filter(|first| junctions.any(|junction| junction.name == *first)) {
            Some(name) => {
                todo.pop();
                self.lookup(self.files.root(), &name).await
            }
            None => self.root().await,
        }
    }

    async fn root(&self) -> anyhow::Result<Entry> {
        let known = self.files.attributes(&self.caller, self.files.root()).await?;
        Ok(Entry { attributes: known.attributes, at: None })
    }

    /// The path within the file system that an absolute link target means.
    fn inside(&self, target: &[u8]) -> anyhow::Result<Vec<u8>> {
        let directory = self.location.source.directory.as_bytes();
        let mount = self.location.mountpoint.as_ref().map(|path| path.as_os_str().as_bytes());
        if let Some(rest) = mount.and_then(|mount| target.strip_prefix(mount))
            && (rest.is_empty() || rest.starts_with(b"/"))
        {
            return Ok([directory, rest].concat());
        }
        let conventional = format!("/{}", self.location.source.fs);
        match target.strip_prefix(conventional.as_bytes()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => Ok(rest.to_vec()),
            _ => bail!("a link leads out of the file system, to {}", Shown(target)),
        }
    }
}

/// Was a path refused because nothing has that name?
pub fn is_not_found(error: &anyhow::Error) -> bool {
    tieline_base::report::kind(error) == Some(tieline_types::ErrorKind::NotFound)
}

/// The components of a path, the first one last.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}
