//! `tieline export`: plain files in a local directory, as they are in the file system.
//!
//! An adopted file that lies on this machine becomes a hard link to itself, or where that cannot be
//! (another file system, other attributes) a clone that shares its blocks. Everything else is
//! copied through the client, which checks every block. Links and clones are checked against the
//! checksums that the MDS keeps, where it keeps them.
//!
//! What is there already with the same size and time is taken for the same: an export can be run
//! again.
//!
//! Invariants: nothing that is there is replaced; a file has its own name only when it is whole;
//! nothing is written beside the destination, nor read beside an adopted tree, whatever links users
//! put there meanwhile ([`tieline_machine::beneath`]).

use crate::list::listed;
use crate::progress::Progress;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use rustix::fs::{FileType, Timespec, Timestamps};
use rustix::io::Errno;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_base::location::Location;
use tieline_blob::file_path;
use tieline_files::{Access, SeekTarget};
use tieline_machine::beneath::{Directory, Held, taken};
use tieline_machine::descriptors;
use tieline_types::HandleId;
use tieline_types::acl::{ACCESS_NAME, DEFAULT_NAME, group_alone};
use tieline_types::{Attributes, Content, ErrorKind, FileId, FileKind, ObjectName, OstIndex, Time};

/// Bytes asked for at once.
const PIECE: u64 = 4 << 20;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy, although a link or a clone would do
    #[arg(long)]
    copy: bool,
    /// Believe links and clones without reading them
    #[arg(long)]
    no_verify: bool,
    #[arg(long)]
    json: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    path: OsString,
    /// Local directory; made if it is not there
    directory: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    // One for each directory that the walk is in.
    descriptors::raise();
    let location = Location::find(&args.path)?;
    let report = shell::run(&location.clone(), |shell| async move {
        let entry = shell.resolve(&location.path, true).await?;
        // Not before there is something to export.
        let shown = args.directory.display();
        std::fs::create_dir_all(&args.directory).with_context(|| format!("cannot make {shown}"))?;
        let root = Directory::open(&args.directory);
        let root = Arc::new(root.with_context(|| format!("cannot open {shown}"))?);
        let mut export = Export {
            shell: &shell,
            args,
            root,
            trees: BTreeMap::new(),
            names: BTreeMap::new(),
            report: Report::default(),
            unkept: RefCell::default(),
        };
        export.all(entry.attributes, &location).await?;
        Ok((export.report, export.args.json))
    });
    let (report, is_json) = report?;
    report.tell(is_json);
    match report.failed.len() {
        0 => Ok(()),
        count => bail!("{count} of the files could not be exported, or not whole"),
    }
}

struct Export<'s> {
    shell: &'s Shell,
    args: Args,
    /// The directory that is filled.
    root: Arc<Directory>,
    /// Adopted trees on this machine, if they are there.
    trees: BTreeMap<OstIndex, Option<Arc<Directory>>>,
    /// Files with several names, and their first.
    names: BTreeMap<FileId, First>,
    report: Report,
    /// Attributes that the directory's file system does not take.
    unkept: RefCell<Vec<String>>,
}

#[derive(Default)]
struct Report {
    linked: u64,
    cloned: u64,
    copied: u64,
    bytes: u64,
    directories: u64,
    links: u64,
    specials: u64,
    /// What was there and is the same.
    unchanged: u64,
    left_out: Vec<String>,
    failed: Vec<String>,
}

/// A file that has a name here: where, and which it is.
struct First {
    path: PathBuf,
    identity: (u64, u64),
}

/// What is left to be done. Only directories that the walk is in are held.
enum Step {
    Make(Attributes, Arc<Directory>, OsString),
    /// After all that is in it: what is made in a directory changes its times.
    Finish(Attributes, Arc<Directory>),
}

impl Export<'_> {
    async fn all(&mut self, top: Attributes, location: &Location) -> anyhow::Result<()> {
        let name = location.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let root = self.root.clone();
        // A directory's content, but a file by its name.
        let mut todo = match top.is_directory() || name.is_empty() {
            true => self.content(&top, root).await?,
            false => vec![Step::Make(top, root, OsStr::from_bytes(name).to_owned())],
        };
        while let Some(step) = todo.pop() {
            let (to, done) = match &step {
                Step::Make(attributes, at, name) => {
                    (at.path(name), self.one(attributes, at, name).await)
                }
                Step::Finish(attributes, directory) => {
                    let dressed = self.dress(attributes, directory.held(), directory.shown()).await;
                    (directory.shown().to_owned(), dressed.map(|()| Vec::new()))
                }
            };
            match done {
                Ok(more) => todo.extend(more),
                Err(error) => {
                    let why = tieline_base::report::chain(error.as_ref());
                    self.report.failed.push(format!("{}: {why}", to.display()));
                }
            }
        }
        self.report.failed.append(&mut self.unkept.borrow_mut());
        Ok(())
    }

    /// Exports one file; of a directory, makes it and says what is left.
    async fn one(
        &mut self,
        attributes: &Attributes,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<Vec<Step>> {
        match attributes.kind {
            FileKind::Directory => {
                let directory = at.enter_or_make(name)?;
                return self.content(attributes, Arc::new(directory)).await;
            }
            FileKind::Regular => self.file(attributes, at, name).await?,
            FileKind::Symlink => self.symlink(attributes, at, name).await?,
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                self.special(attributes, at, name).await?;
            }
        }
        Ok(Vec::new())
    }

    async fn content(
        &mut self,
        attributes: &Attributes,
        to: Arc<Directory>,
    ) -> anyhow::Result<Vec<Step>> {
        self.report.directories += 1;
        let mut steps = vec![Step::Finish(attributes.clone(), to.clone())];
        for entry in listed(self.shell, attributes.id).await? {
            let attributes = match entry.known {
                Some(known) => known.attributes,
                None => self.shell.files.attributes(&self.shell.caller, entry.id).await?.attributes,
            };
            let name = OsStr::from_bytes(entry.name.as_bytes()).to_owned();
            steps.push(Step::Make(attributes, to.clone(), name));
        }
        Ok(steps)
    }

    async fn symlink(
        &mut self,
        attributes: &Attributes,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<()> {
        let shell = self.shell;
        let target = shell.files.read_symlink(&shell.caller, attributes.id).await?;
        let target = OsStr::from_bytes(&target);
        if let Some(there) = at.look(name)? {
            if there.target().ok().as_deref() != Some(target) {
                bail!("something else has that name already: move it away");
            }
            self.report.unchanged += 1;
            return Ok(());
        }
        let made = at.make_symlink(target, name)?;
        self.dress(attributes, &made, &at.path(name)).await?;
        self.report.links += 1;
        Ok(())
    }

    /// A pipe, socket or device.
    async fn special(
        &mut self,
        attributes: &Attributes,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<()> {
        let kind = match attributes.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            _ => FileType::BlockDevice,
        };
        if let Some(there) = at.look(name)? {
            if FileType::from_raw_mode(there.metadata()?.mode()) != kind {
                bail!("something else has that name already: move it away");
            }
            self.report.unchanged += 1;
            return Ok(());
        }
        let made = match at.make_special(kind, attributes.device.into(), name) {
            Err(errno @ (Errno::PERM | Errno::NOTSUP)) => {
                self.report.left_out.push(format!("{}: {errno}", at.path(name).display()));
                return Ok(());
            }
            made => made?,
        };
        self.report.specials += 1;
        self.dress(attributes, &made, &at.path(name)).await
    }

    async fn file(
        &mut self,
        attributes: &Attributes,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<()> {
        if let Some(there) = at.look(name)? {
            let found = there.metadata()?;
            let is_same = found.is_file() && found.len() == attributes.size;
            if !is_same || time_of(&found) != time_wanted(attributes) {
                return Err(taken(&there));
            }
            self.report.unchanged += 1;
            self.remember(attributes, at.path(name), &found);
            return Ok(());
        }
        if let Some(first) = self.names.get(&attributes.id) {
            let below = first.path.strip_prefix(self.root.shown())?;
            let held = self.root.find(below)?;
            if identity(&held.metadata()?) != first.identity {
                bail!("its other name, {}, is another file's by now", first.path.display());
            }
            at.link(&held, name)?;
            return Ok(());
        }
        let local = match self.args.copy {
            true => None,
            false => self.local(attributes).await?,
        };
        match local {
            Some(local) if self.link(attributes, &local, at, name).await? => {
                self.report.linked += 1;
            }
            Some(local) if self.clone(attributes, &local, at, name).await? => {
                self.report.cloned += 1;
            }
            _ => self.copy(attributes, at, name).await?,
        }
        self.report.bytes += attributes.size;
        if attributes.links > 1
            && let Some(made) = at.look(name)?
        {
            self.remember(attributes, at.path(name), &made.metadata()?);
        }
        Ok(())
    }

    /// Of a file with several names: the next ones become links to this.
    fn remember(&mut self, attributes: &Attributes, path: PathBuf, found: &Metadata) {
        if attributes.links > 1 {
            self.names.insert(attributes.id, First { path, identity: identity(found) });
        }
    }

    /// The adopted file that holds all of a file's bytes, if it lies on this machine and is what it
    /// was.
    async fn local(&mut self, attributes: &Attributes) -> anyhow::Result<Option<Held>> {
        let mut whole: Option<(OstIndex, ObjectName)> = None;
        let mut at = 0;
        while at < attributes.size {
            let page = self.shell.files.extents(&self.shell.caller, attributes.id, at).await?;
            for extent in &page.extents {
                let Content::Chunk(chunk) = &extent.content else { return Ok(None) };
                let place = chunk.at_osts().find(|place| {
                    let is_there = place.offset + chunk.skip == extent.offset && !place.is_stale;
                    let is_external = matches!(place.object, ObjectName::External { .. });
                    is_there && is_external && extent.offset == at
                });
                let Some(place) = place else { return Ok(None) };
                let found = (place.ost, place.object);
                if whole.get_or_insert_with(|| found.clone()) != &found {
                    return Ok(None);
                }
                at = extent.end();
            }
            if page.extents.is_empty() {
                return Ok(None);
            }
        }
        let Some((ost, ObjectName::External { path, size, mtime_ns })) = whole else {
            return Ok(None);
        };
        let Some(root) = self.tree(ost).await else { return Ok(None) };
        let path = PathBuf::from(OsString::from_vec(file_path(&path)));
        let Ok(held) = root.find(&path) else { return Ok(None) };
        let there = held.metadata()?;
        let (seconds, nanos) = time_of(&there);
        let time = seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        let is_same = there.is_file() && there.len() == size && time == mtime_ns;
        Ok((is_same && size == attributes.size).then_some(held))
    }

    async fn tree(&mut self, ost: OstIndex) -> Option<Arc<Directory>> {
        if let Some(known) = self.trees.get(&ost) {
            return known.clone();
        }
        let listed = self.shell.volume.list_adopted(ost, b"", None, 1).await.ok();
        let root = listed.map(|listed| PathBuf::from(OsStr::from_bytes(&listed.root)));
        let root = root.and_then(|root| Directory::open(&root).ok()).map(Arc::new);
        self.trees.insert(ost, root.clone());
        root
    }

    /// A hard link, where the file's own attributes are those it has here: the link shares them.
    async fn link(
        &self,
        attributes: &Attributes,
        local: &Held,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<bool> {
        let there = local.metadata()?;
        let is_same = there.mode() & 0o7777 == attributes.mode.bits()
            && (there.uid(), there.gid()) == (attributes.uid.0, attributes.gid.0)
            && time_of(&there) == time_wanted(attributes)
            && local.xattr(ACCESS_NAME) == list_of(attributes, ACCESS_NAME);
        if !is_same || at.link(local, name).is_err() {
            return Ok(false);
        }
        let verified = self.verify(attributes, local).await;
        if verified.is_err() {
            // Only the name: the file is the adopted one.
            let _ = at.remove(name);
        }
        verified.map(|()| true)
    }

    /// A file of its own that shares the blocks, where the file system can do that.
    async fn clone(
        &self,
        attributes: &Attributes,
        local: &Held,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<bool> {
        let draft = at.draft(0o600)?;
        let source = local.open()?;
        if rustix::fs::ioctl_ficlone(draft.file(), &source).is_err() {
            return Ok(false);
        }
        self.verify(attributes, draft.held()).await?;
        self.dress(attributes, draft.held(), &at.path(name)).await?;
        draft.publish(name)?;
        Ok(true)
    }

    async fn copy(
        &mut self,
        attributes: &Attributes,
        at: &Directory,
        name: &OsStr,
    ) -> anyhow::Result<()> {
        let shell = self.shell;
        let draft = at.draft(0o600)?;
        let access = Access { read: true, ..Access::default() };
        let opened = shell.files.open(&shell.caller, attributes.id, access).await?;
        let shown = at.path(name);
        let mut progress = Progress::new(shown.display().to_string(), attributes.size);
        let copied = pour(shell, opened.handle, attributes.size, draft.file(), &mut progress).await;
        shell.files.release(opened.handle).await;
        progress.end();
        copied?;
        self.dress(attributes, draft.held(), &shown).await?;
        draft.publish(name)?;
        self.report.copied += 1;
        Ok(())
    }

    /// Are a local file's bytes those that the MDS keeps checksums of?
    async fn verify(&self, attributes: &Attributes, local: &Held) -> anyhow::Result<()> {
        if self.args.no_verify {
            return Ok(());
        }
        let file = local.open()?;
        let mut at = 0;
        while at < attributes.size {
            let page = self.shell.files.extents(&self.shell.caller, attributes.id, at).await?;
            for extent in &page.extents {
                let Content::Chunk(chunk) = &extent.content else { continue };
                let Some(checks) = chunk.checks.as_ref().filter(|_| chunk.skip == 0) else {
                    continue;
                };
                let mut bytes = vec![0; extent.length as usize];
                file.read_exact_at(&mut bytes, extent.offset)?;
                let blocks = bytes.len().div_ceil(tieline_types::checksum::BLOCK);
                // The last block of a part of a chunk is not the chunk's.
                let is_whole = extent.length == chunk.length;
                let known = checks.get(..blocks).filter(|_| is_whole);
                if known
                    .is_some_and(|c| tieline_types::checksum::first_mismatch(&bytes, c).is_some())
                {
                    bail!("its bytes are not those that were adopted");
                }
            }
            if page.covered <= at {
                break;
            }
            at = page.covered;
        }
        Ok(())
    }

    /// Mode, times, attributes, and owner if we may. `shown`: the name it will have.
    async fn dress(
        &self,
        attributes: &Attributes,
        held: &Held,
        shown: &Path,
    ) -> anyhow::Result<()> {
        let shell = self.shell;
        if rustix::process::geteuid().is_root() {
            held.owner_set(attributes.uid.0, attributes.gid.0)?;
        }
        if attributes.kind != FileKind::Symlink {
            for name in shell.files.xattrs(&shell.caller, attributes.id).await? {
                if !name.as_bytes().starts_with(b"user.") {
                    continue;
                }
                let value = shell.files.xattr(&shell.caller, attributes.id, &name).await?;
                if let Err(errno) = held.xattr_set(name.as_bytes(), &value)
                    && errno != Errno::OPNOTSUPP
                {
                    let line =
                        format!("{}: attribute {name} is not kept: {errno}", shown.display());
                    self.unkept.borrow_mut().push(line);
                }
            }
            held.mode_set(self.lists(attributes, held, shown)?)?;
        }
        let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
        let (last_access, last_modification) = (spec(attributes.atime), spec(attributes.mtime));
        held.times_set(&Timestamps { last_access, last_modification })?;
        Ok(())
    }

    /// The file's access lists and no others, such as a directory hands down. Says the mode that
    /// goes with them: where a list is not kept, the group has what the list let it have.
    fn lists(&self, attributes: &Attributes, held: &Held, shown: &Path) -> anyhow::Result<u32> {
        let mut mode = attributes.mode.bits();
        for name in [ACCESS_NAME, DEFAULT_NAME] {
            let Some(list) = list_of(attributes, name) else {
                match held.xattr_remove(name) {
                    Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                    Err(errno) => return Err(errno.into()),
                }
            };
            let Err(errno) = held.xattr_set(name, &list) else { continue };
            if name == ACCESS_NAME {
                mode = mode & !0o070 | u32::from(group_alone(&list)) << 3;
            }
            let (shown, name) = (shown.display(), String::from_utf8_lossy(name));
            let line = format!("{shown}: access list {name} is not kept: {errno}");
            self.unkept.borrow_mut().push(line);
        }
        Ok(mode)
    }
}

fn time_of(found: &Metadata) -> (i64, i64) {
    (found.mtime(), found.mtime_nsec())
}

fn time_wanted(attributes: &Attributes) -> (i64, i64) {
    (attributes.mtime.seconds, attributes.mtime.nanos.into())
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// A list of a file of ours, as its attribute.
fn list_of(attributes: &Attributes, name: &[u8]) -> Option<Vec<u8>> {
    let acls = attributes.acls.as_deref()?;
    match name {
        ACCESS_NAME => Some(acls.access.as_ref()?.to_bytes(attributes.mode)),
        _ => Some(acls.default.as_ref()?.to_bytes()),
    }
}

/// The bytes of a file; its holes stay holes.
async fn pour(
    shell: &Shell,
    handle: HandleId,
    size: u64,
    out: &File,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    out.set_len(size)?;
    let mut at = 0;
    while at < size {
        let data = match shell.files.seek(handle, at, SeekTarget::Data).await {
            // Nothing but a hole is left.
            Err(error) if error.kind() == ErrorKind::NoDevice => break,
            data => data?,
        };
        let hole = shell.files.seek(handle, data, SeekTarget::Hole).await?.min(size);
        at = data;
        while at < hole {
            let length = (hole - at).min(PIECE) as u32;
            let mut done = 0;
            for piece in shell.files.read(handle, at, length).await? {
                out.write_all_at(&piece, at + done)?;
                done += piece.len() as u64;
            }
            if done == 0 {
                bail!("it was cut while it was read");
            }
            at += done;
            progress.add(done);
        }
    }
    out.sync_all()?;
    Ok(())
}

impl Report {
    fn tell(&self, is_json: bool) {
        let Self { linked, cloned, copied, bytes, directories, links, .. } = self;
        let Self { specials, unchanged, left_out, failed, .. } = self;
        if is_json {
            println!(
                "{}",
                json!({
                    "linked": linked,
                    "cloned": cloned,
                    "copied": copied,
                    "bytes": bytes,
                    "directories": directories,
                    "links": links,
                    "specials": specials,
                    "unchanged": unchanged,
                    "left_out": left_out,
                    "failed": failed,
                })
            );
            return;
        }
        left_out.iter().for_each(|line| eprintln!("tieline: left out: {line}"));
        failed.iter().for_each(|line| eprintln!("tieline: {line}"));
        let bytes = tieline_types::ByteSize(*bytes);
        println!(
            "exported {} files ({bytes}): {linked} hard links, {cloned} clones, {copied} copies; \
             {directories} directories, {links} links, {specials} special files, {unchanged} were \
             there, {} left out",
            linked + cloned + copied,
            left_out.len(),
        );
    }
}
