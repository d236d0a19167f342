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
//! Invariants: nothing that is there is replaced; a file has its own name only when it is whole.

use crate::location::Location;
use crate::shell::{self, Shell};
use crate::verbs::list::listed;
use crate::verbs::progress::Progress;
use anyhow::{Context, bail};
use rustix::fs::{
    AtFlags, FileType, Gid as FsGid, Mode, Timespec, Timestamps, Uid as FsUid, XattrFlags,
};
use rustix::io::Errno;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tieline_blob::file_path;
use tieline_client::{Access, HandleId, SeekTarget};
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
    crate::verbs::log_start();
    let location = Location::find(&args.path)?;
    let report = shell::run(&location.clone(), |shell| async move {
        let entry = shell.resolve(&location.path, true).await?;
        // Not before there is something to export.
        std::fs::create_dir_all(&args.directory)
            .with_context(|| format!("cannot make {}", args.directory.display()))?;
        let mut export = Export {
            shell: &shell,
            args,
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
    /// Where adopted trees are on this machine, if they are.
    trees: BTreeMap<OstIndex, Option<PathBuf>>,
    /// Files with several names, and where the first is.
    names: BTreeMap<FileId, PathBuf>,
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

/// A file of ours that lies whole on this machine.
struct Local {
    path: PathBuf,
}

impl Export<'_> {
    async fn all(&mut self, top: Attributes, location: &Location) -> anyhow::Result<()> {
        let name = location.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        // A directory's content, but a file by its name.
        let to = match top.is_directory() || name.is_empty() {
            true => self.args.directory.clone(),
            false => self.args.directory.join(OsStr::from_bytes(name)),
        };
        let mut finished = Vec::new();
        let mut todo = vec![(top, to)];
        while let Some((attributes, to)) = todo.pop() {
            match self.one(&attributes, &to).await {
                Ok(below) => todo.extend(below),
                Err(error) => {
                    let why = crate::report::chain(error.as_ref());
                    self.report.failed.push(format!("{}: {why}", to.display()));
                    continue;
                }
            }
            if attributes.is_directory() {
                finished.push((attributes, to));
            }
        }
        // Deepest first: what is made in a directory changes its times.
        for (attributes, path) in finished.iter().rev() {
            self.dress(attributes, path, path).await?;
        }
        self.report.failed.append(&mut self.unkept.borrow_mut());
        Ok(())
    }

    /// Exports one file; of a directory, makes it and says what is in it.
    async fn one(
        &mut self,
        attributes: &Attributes,
        to: &Path,
    ) -> anyhow::Result<Vec<(Attributes, PathBuf)>> {
        match attributes.kind {
            FileKind::Directory => return self.directory(attributes, to).await,
            FileKind::Regular => self.file(attributes, to).await?,
            FileKind::Symlink => {
                let shell = self.shell;
                let target = shell.files.read_symlink(&shell.caller, attributes.id).await?;
                let target = OsStr::from_bytes(&target);
                if std::fs::read_link(to).is_ok_and(|there| there == target) {
                    self.report.unchanged += 1;
                    return Ok(Vec::new());
                }
                std::os::unix::fs::symlink(target, to)?;
                self.dress(attributes, to, to).await?;
                self.report.links += 1;
            }
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                self.special(attributes, to).await?;
            }
        }
        Ok(Vec::new())
    }

    async fn directory(
        &mut self,
        attributes: &Attributes,
        to: &Path,
    ) -> anyhow::Result<Vec<(Attributes, PathBuf)>> {
        if !to.is_dir() {
            // Nobody else's until it has its own mode and list.
            std::fs::DirBuilder::new().mode(0o700).create(to)?;
        }
        self.report.directories += 1;
        let mut below = Vec::new();
        for entry in listed(self.shell, attributes.id).await? {
            let attributes = match entry.known {
                Some(known) => known.attributes,
                None => self.shell.files.attributes(&self.shell.caller, entry.id).await?.attributes,
            };
            below.push((attributes, to.join(OsStr::from_bytes(entry.name.as_bytes()))));
        }
        Ok(below)
    }

    /// A pipe, socket or device.
    async fn special(&mut self, attributes: &Attributes, to: &Path) -> anyhow::Result<()> {
        let kind = match attributes.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            _ => FileType::BlockDevice,
        };
        if let Ok(there) = to.symlink_metadata() {
            if FileType::from_raw_mode(there.mode()) != kind {
                bail!("something else has that name already");
            }
            self.report.unchanged += 1;
            return Ok(());
        }
        let device = attributes.device.into();
        match rustix::fs::mknodat(rustix::fs::CWD, to, kind, Mode::RUSR, device) {
            Err(errno @ (Errno::PERM | Errno::NOTSUP)) => {
                self.report.left_out.push(format!("{}: {errno}", to.display()));
                return Ok(());
            }
            made => made?,
        }
        self.report.specials += 1;
        self.dress(attributes, to, to).await
    }

    async fn file(&mut self, attributes: &Attributes, to: &Path) -> anyhow::Result<()> {
        if let Ok(there) = to.symlink_metadata() {
            let time = (there.mtime(), there.mtime_nsec());
            let wanted = (attributes.mtime.seconds, i64::from(attributes.mtime.nanos));
            if !there.is_file() || there.len() != attributes.size || time != wanted {
                bail!("something else has that name already: move it away");
            }
            self.report.unchanged += 1;
            if attributes.links > 1 {
                self.names.insert(attributes.id, to.to_owned());
            }
            return Ok(());
        }
        if let Some(first) = self.names.get(&attributes.id) {
            std::fs::hard_link(first, to)?;
            return Ok(());
        }
        let local = match self.args.copy {
            true => None,
            false => self.local(attributes).await?,
        };
        match local {
            Some(local) if self.link(attributes, &local, to).await? => self.report.linked += 1,
            Some(local) if self.clone(attributes, &local, to).await? => self.report.cloned += 1,
            _ => self.copy(attributes, to).await?,
        }
        self.report.bytes += attributes.size;
        if attributes.links > 1 {
            self.names.insert(attributes.id, to.to_owned());
        }
        Ok(())
    }

    /// The adopted file that holds all of a file's bytes, if it lies on this machine and is what it
    /// was.
    async fn local(&mut self, attributes: &Attributes) -> anyhow::Result<Option<Local>> {
        let mut whole: Option<(OstIndex, ObjectName)> = None;
        let mut at = 0;
        while at < attributes.size {
            let page = self.shell.files.extents(&self.shell.caller, attributes.id, at).await?;
            for extent in &page.extents {
                let Content::Chunk(chunk) = &extent.content else { return Ok(None) };
                let place = chunk.places.iter().find(|place| {
                    let is_there = place.offset + chunk.skip == extent.offset && !place.is_stale;
                    let is_external = matches!(place.object, ObjectName::External { .. });
                    is_there && is_external && extent.offset == at
                });
                let Some(place) = place else { return Ok(None) };
                let found = (place.ost, place.object.clone());
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
        let path = root.join(OsStr::from_bytes(&file_path(&path)));
        let Ok(there) = path.symlink_metadata() else { return Ok(None) };
        let time = there.mtime().saturating_mul(1_000_000_000).saturating_add(there.mtime_nsec());
        let is_same = there.is_file() && there.len() == size && time == mtime_ns;
        Ok((is_same && size == attributes.size).then_some(Local { path }))
    }

    async fn tree(&mut self, ost: OstIndex) -> Option<PathBuf> {
        if let Some(known) = self.trees.get(&ost) {
            return known.clone();
        }
        let listed = self.shell.volume.list_adopted(ost, b"", None, 1).await.ok();
        let root = listed.map(|listed| PathBuf::from(OsStr::from_bytes(&listed.root)));
        let root = root.filter(|root| root.is_dir());
        self.trees.insert(ost, root.clone());
        root
    }

    /// A hard link, where the file's own attributes are those it has here: the link shares them.
    async fn link(
        &self,
        attributes: &Attributes,
        local: &Local,
        to: &Path,
    ) -> anyhow::Result<bool> {
        let there = local.path.symlink_metadata()?;
        let is_same = there.permissions().mode() & 0o7777 == attributes.mode.bits()
            && (there.uid(), there.gid()) == (attributes.uid.0, attributes.gid.0)
            && (there.mtime(), there.mtime_nsec())
                == (attributes.mtime.seconds, i64::from(attributes.mtime.nanos))
            && local_list(&local.path, ACCESS_NAME) == list_of(attributes, ACCESS_NAME);
        if !is_same || std::fs::hard_link(&local.path, to).is_err() {
            return Ok(false);
        }
        self.verify_or_remove(attributes, to).await.map(|()| true)
    }

    /// A file of its own that shares the blocks, where the file system can do that.
    async fn clone(
        &self,
        attributes: &Attributes,
        local: &Local,
        to: &Path,
    ) -> anyhow::Result<bool> {
        let draft = Draft::create(to)?;
        let source = File::open(&local.path)?;
        if rustix::fs::ioctl_ficlone(&draft.file, &source).is_err() {
            return Ok(false);
        }
        self.verify(attributes, &draft.path).await?;
        self.dress(attributes, &draft.path, to).await?;
        draft.publish(to)?;
        Ok(true)
    }

    async fn copy(&mut self, attributes: &Attributes, to: &Path) -> anyhow::Result<()> {
        let shell = self.shell;
        let draft = Draft::create(to)?;
        let access = Access { read: true, ..Access::default() };
        let opened = shell.files.open(&shell.caller, attributes.id, access).await?;
        let mut progress = Progress::new(to.display().to_string(), attributes.size);
        let copied = pour(shell, opened.handle, attributes.size, &draft.file, &mut progress).await;
        shell.files.release(opened.handle).await;
        progress.end();
        copied?;
        self.dress(attributes, &draft.path, to).await?;
        draft.publish(to)?;
        self.report.copied += 1;
        Ok(())
    }

    async fn verify_or_remove(&self, attributes: &Attributes, to: &Path) -> anyhow::Result<()> {
        let verified = self.verify(attributes, to).await;
        if verified.is_err() {
            // Only the name: the file is the adopted one.
            let _ = std::fs::remove_file(to);
        }
        verified
    }

    /// Are a local file's bytes those that the MDS keeps checksums of?
    async fn verify(&self, attributes: &Attributes, path: &Path) -> anyhow::Result<()> {
        if self.args.no_verify {
            return Ok(());
        }
        let file = File::open(path)?;
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
        path: &Path,
        shown: &Path,
    ) -> anyhow::Result<()> {
        let shell = self.shell;
        if rustix::process::geteuid().is_root() {
            let owner = FsUid::from_raw(attributes.uid.0);
            let group = FsGid::from_raw(attributes.gid.0);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(rustix::fs::CWD, path, Some(owner), Some(group), flags)?;
        }
        if attributes.kind != FileKind::Symlink {
            for name in shell.files.xattrs(&shell.caller, attributes.id).await? {
                if !name.as_bytes().starts_with(b"user.") {
                    continue;
                }
                let value = shell.files.xattr(&shell.caller, attributes.id, &name).await?;
                let set = rustix::fs::setxattr(path, name.as_bytes(), &value, XattrFlags::empty());
                if let Err(errno) = set
                    && errno != Errno::OPNOTSUPP
                {
                    let line =
                        format!("{}: attribute {name} is not kept: {errno}", shown.display());
                    self.unkept.borrow_mut().push(line);
                }
            }
            let mode = std::fs::Permissions::from_mode(self.lists(attributes, path, shown)?);
            std::fs::set_permissions(path, mode)?;
        }
        let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
        let (last_access, last_modification) = (spec(attributes.atime), spec(attributes.mtime));
        let times = Timestamps { last_access, last_modification };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// The file's access lists and no others, such as a directory hands down. Says the mode that
    /// goes with them: where a list is not kept, the group has what the list let it have.
    fn lists(&self, attributes: &Attributes, path: &Path, shown: &Path) -> anyhow::Result<u32> {
        let mut mode = attributes.mode.bits();
        for name in [ACCESS_NAME, DEFAULT_NAME] {
            let Some(list) = list_of(attributes, name) else {
                match rustix::fs::removexattr(path, name) {
                    Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                    Err(errno) => return Err(errno.into()),
                }
            };
            let Err(errno) = rustix::fs::setxattr(path, name, &list, XattrFlags::empty()) else {
                continue;
            };
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

/// A list of a file of ours, as its attribute.
fn list_of(attributes: &Attributes, name: &[u8]) -> Option<Vec<u8>> {
    let acls = attributes.acls.as_deref()?;
    match name {
        ACCESS_NAME => Some(acls.access.as_ref()?.to_bytes(attributes.mode)),
        _ => Some(acls.default.as_ref()?.to_bytes()),
    }
}

fn local_list(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let length = rustix::fs::lgetxattr(path, name, list.as_mut_slice()).ok()?;
    list.truncate(length);
    Some(list)
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

/// A file that is not whole yet. Removed unless it is published.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn create(to: &Path) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(to.file_name().unwrap_or_default());
        name.push(format!(".tieline-{}", std::process::id()));
        // The name may be as long as names can be.
        let bytes = name.as_bytes();
        let name = match bytes.len() > 255 {
            true => OsStr::from_bytes(&bytes[bytes.len() - 255..]).to_owned(),
            false => name,
        };
        let path = to.with_file_name(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path })
    }

    /// Gives it its name, unless somebody has it.
    fn publish(self, to: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags};
        match rustix::fs::renameat_with(CWD, &self.path, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems only know the plain rename.
            Err(rustix::io::Errno::INVAL) => std::fs::rename(&self.path, to),
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone under this name once it is published.
        let _ = std::fs::remove_file(&self.path);
    }
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
