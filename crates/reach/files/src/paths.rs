//! Ways to files: a path is walked name by name, as the kernel does it for programs.
//!
//! Symlinks are followed; an absolute one leads inside if it begins with a prefix that was said
//! ([`Paths::leading_in`]), as `/FS` and a mountpoint are. Where the server of a directory is not
//! heard, what is mounted in it is found all the same ([`Files::mounted_at`]).
//!
//! The way that was really gone is kept from the root, links resolved. `..` goes back on it, so
//! nobody is asked; and a scope is judged by it: each place on a walk must lead to something that
//! is allowed, whatever the path says. What may be done at its end, [`Who::may`] answers.
//!
//! Knows no protocol of a door; a slash at a path's end says nothing here.
//!
//! Invariants: a walk follows at most [`LINKS_MAX`] links and looks up at most [`STEPS_MAX`] names;
//! nothing outside the scope is looked up.

use crate::{Error, Files, Result, Who};
use std::sync::Arc;
use tieline_types::{Attributes, ErrorKind, FileId, FileKind, Name, NameError, Shown};

/// As Linux: more is a loop.
pub const LINKS_MAX: usize = 40;
/// As Linux: `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;
/// Names that one walk looks up, with those of links: what one path can hold, twice.
pub const STEPS_MAX: usize = 4096;
/// Directories above what is found.
pub const DEPTH_MAX: usize = 1024;

/// Walks for the callers of a door.
#[derive(Clone)]
pub struct Paths {
    files: Arc<dyn Files>,
    /// Absolute prefixes, and the ways from the root that they mean.
    prefixes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What is done with a link at a path's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastLink {
    Followed,
    Kept,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub struct Entry {
    pub attributes: Attributes,
    /// The names from the root to it, without links.
    pub way: Vec<Name>,
    /// The directory it was found in, and its name there; `None` for the root.
    pub at: Option<(FileId, Name)>,
    above: Vec<FileId>,
}

/// Where a walk is.
struct Walk<'a> {
    who: &'a Who,
    /// What is still to be gone, the next name last.
    todo: Vec<Vec<u8>>,
    /// Directories from the root on, each with its name: the last is where we are.
    gone: Vec<(FileId, Name)>,
    /// Of where we are; `None`: not asked.
    here: Option<Attributes>,
    links: usize,
    steps: usize,
}

impl Paths {
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self { files, prefixes: Vec::new() }
    }

    /// Links that begin so lead to `way` from the root, and on from there.
    pub fn leading_in(mut self, prefix: impl Into<Vec<u8>>, way: impl Into<Vec<u8>>) -> Self {
        self.prefixes.push((prefix.into(), way.into()));
        self
    }

    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// What a path from the root leads to.
    pub async fn find(&self, who: &Who, path: &[u8], last: LastLink) -> Result<Entry> {
        self.walk(Walk::new(who, Vec::new(), None, path)?, last).await
    }

    /// What a path from a directory leads to, or from the root if it begins with a slash.
    pub async fn find_from(
        &self,
        who: &Who,
        from: &Entry,
        path: &[u8],
        last: LastLink,
    ) -> Result<Entry> {
        if path.starts_with(b"/") {
            return self.find(who, path, last).await;
        }
        let gone = from.above.iter().copied().chain([from.attributes.id]).skip(1);
        let gone = gone.zip(from.way.iter().cloned()).collect();
        self.walk(Walk::new(who, gone, Some(from.attributes.clone()), path)?, last).await
    }

    /// The directory that holds what a path names, and its name there, whether something has that
    /// name or not.
    pub async fn parent_of(&self, who: &Who, path: &[u8]) -> Result<(Entry, Name)> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let (parent, name) = match path[..end].iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..end]),
            None => (&b""[..], &path[..end]),
        };
        let name = named(name)?;
        let parent = self.find(who, parent, LastLink::Followed).await?;
        check_directory(&parent.attributes)?;
        who.may_pass(&with(&parent.way, &name))?;
        Ok((parent, name))
    }

    async fn walk(&self, mut walk: Walk<'_>, last: LastLink) -> Result<Entry> {
        walk.check()?;
        while let Some(component) = walk.todo.pop() {
            if let Some(here) = &walk.here {
                check_directory(here)?;
            }
            if component == b".." {
                walk.back();
                walk.check()?;
                continue;
            }
            let name = named(&component)?;
            let next = self.step(&mut walk, &name).await?;
            let is_followed = last == LastLink::Followed || !walk.todo.is_empty();
            if next.kind == FileKind::Symlink && is_followed {
                self.follow(&mut walk, next.id).await?;
            } else {
                walk.gone.push((next.id, name));
                walk.here = Some(next);
            }
        }
        let attributes = match walk.here.take() {
            Some(attributes) => attributes,
            None => {
                let id = walk.directory(self.files.root());
                self.files.attributes(&walk.who.caller, id).await?.attributes
            }
        };
        Ok(walk.end(self.files.root(), attributes))
    }

    /// What a name leads to from where the walk is.
    async fn step(&self, walk: &mut Walk<'_>, name: &Name) -> Result<Attributes> {
        walk.steps += 1;
        if walk.steps > STEPS_MAX || walk.gone.len() >= DEPTH_MAX {
            let what = format!("a path of more than {STEPS_MAX} names, or deeper than {DEPTH_MAX}");
            return Err(Error::local(ErrorKind::NameTooLong, what));
        }
        walk.who.may_pass(&with(&walk.way(), name))?;
        let (caller, parent) = (&walk.who.caller, walk.directory(self.files.root()));
        if let Some(root) = self.files.mounted_at(parent, name) {
            return Ok(self.files.attributes(caller, root).await?.attributes);
        }
        let found = self.files.lookup(caller, parent, name).await?;
        found.attributes.ok_or_else(|| Error::local(ErrorKind::NotFound, format!("`{name}`")))
    }

    async fn follow(&self, walk: &mut Walk<'_>, link: FileId) -> Result<()> {
        walk.links += 1;
        if walk.links > LINKS_MAX {
            let what = format!("more than {LINKS_MAX} links on the way");
            return Err(Error::local(ErrorKind::SymlinkLoop, what));
        }
        let target = self.files.read_symlink(&walk.who.caller, link).await?;
        if target.is_empty() {
            return Err(Error::local(ErrorKind::NotFound, "a link that leads nowhere"));
        }
        if !target.starts_with(b"/") {
            walk.todo.extend(components(&target)?);
            return Ok(());
        }
        walk.todo.extend(components(&self.inside(&target)?)?);
        (walk.gone, walk.here) = (Vec::new(), None);
        walk.check()
    }

    /// The path from the root that an absolute target means.
    fn inside(&self, target: &[u8]) -> Result<Vec<u8>> {
        let ways = self.prefixes.iter().filter_map(|(prefix, way)| {
            let rest = target.strip_prefix(prefix.as_slice())?;
            let is_whole = rest.is_empty() || rest.starts_with(b"/") || prefix.ends_with(b"/");
            is_whole.then(|| [way.as_slice(), b"/", rest].concat())
        });
        ways.into_iter().next().ok_or_else(|| {
            let what = format!("a link leads out of the file system, to {}", Shown(target));
            Error::local(ErrorKind::NotSupported, what)
        })
    }
}

impl<'a> Walk<'a> {
    fn new(
        who: &'a Who,
        gone: Vec<(FileId, Name)>,
        here: Option<Attributes>,
        path: &[u8],
    ) -> Result<Self> {
        Ok(Self { who, todo: components(path)?, gone, here, links: 0, steps: 0 })
    }

    /// The directory it is in.
    fn directory(&self, root: FileId) -> FileId {
        self.gone.last().map_or(root, |(id, _)| *id)
    }

    fn way(&self) -> Vec<Name> {
        self.gone.iter().map(|(_, name)| name.clone()).collect()
    }

    fn check(&self) -> Result<()> {
        self.who.may_pass(&self.way())
    }

    fn back(&mut self) {
        // The root's parent is the root.
        if self.gone.pop().is_some() {
            self.here = None;
        }
    }

    fn end(self, root: FileId, attributes: Attributes) -> Entry {
        let way = self.way();
        let above = [root].into_iter().chain(self.gone.into_iter().map(|(id, _)| id));
        let above: Vec<FileId> = above.take(way.len()).collect();
        let at = above.last().copied().zip(way.last().cloned());
        Entry { attributes, way, at, above }
    }
}

impl Entry {
    pub fn id(&self) -> FileId {
        self.attributes.id
    }

    /// The way to what has a name in it.
    pub fn way_of(&self, name: &Name) -> Vec<Name> {
        with(&self.way, name)
    }
}

fn with(way: &[Name], name: &Name) -> Vec<Name> {
    way.iter().chain([name]).cloned().collect()
}

fn check_directory(attributes: &Attributes) -> Result<()> {
    if attributes.is_directory() {
        return Ok(());
    }
    Err(Error::local(ErrorKind::NotDirectory, format!("file {}", attributes.id)))
}

fn named(component: &[u8]) -> Result<Name> {
    Name::new(component).map_err(|why| {
        let kind = match why {
            NameError::TooLong { .. } => ErrorKind::NameTooLong,
            _ => ErrorKind::InvalidArgument,
        };
        Error::local(kind, format!("`{}`: {why}", Shown(component)))
    })
}

/// The names of a path, the first one last.
fn components(path: &[u8]) -> Result<Vec<Vec<u8>>> {
    if path.len() > PATH_BYTES_MAX {
        let what = format!("a path of {} bytes, {PATH_BYTES_MAX} are the most", path.len());
        return Err(Error::local(ErrorKind::NameTooLong, what));
    }
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    Ok(parts.rev().map(<[u8]>::to_vec).collect())
}
