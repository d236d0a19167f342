//! `tieline import --in-place`: a tree of files that is there already becomes part of the file
//! system, where it lies.
//!
//! The OSS lists the tree, a directory at a time; names, owners, modes, times and attributes are
//! made here, and extents that lie in the files themselves. Bytes are read only for checksums, in a
//! process of its own when all is there ([`sums`]). What a file has beside its bytes: [`dress`].
//!
//! Invariants: nothing in the source is changed; what somebody wrote at the destination is never
//! replaced; running it again changes only what changed.

mod compare;
mod dress;
mod sums;

use self::sums::Sums;
use crate::checksum::kind::kept_by_xrootd;
use crate::list::listed;
use crate::ost;
use crate::owners::Owners;
use crate::progress::Ticker;
use crate::shell::{self, Shell, is_not_found};
use anyhow::{Context, bail};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tieline_base::location::Location;
use tieline_blob::{nanoseconds, object_path};
use tieline_client::adopt::{ADOPTED_AT_ONCE, Source};
use tieline_files::{Access, At, AttributeChange, NewFile};
use tieline_types::{
    Attributes, Content, Extent, FileId, FileKind, Mode, Name, ObjectName, OstIndex, Place,
    SetTime, Shown,
};
use tieline_wire::data::{AdoptedEntry, ListAdoptedReply};
use tokio::task::JoinSet;

/// Entries of a directory that are listed at once.
const PAGE: u32 = 1024;
/// Files that are made at once: enough to share an MDS's commits.
const AT_ONCE: usize = 32;
/// Of a file that is made, until it has the source's.
const BARE: u32 = 0o600;
const XRD_ADLER32: &[u8] = b"user.XrdCks.adler32";

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Leave the files where they are: DIR, as its OSS knows it, appears at PATH
    #[arg(long, required_unless_present = "checksums", conflicts_with = "checksums")]
    in_place: bool,
    /// Compute the checksums that adopted files below PATH still lack, and wait for it
    #[arg(long)]
    checksums: bool,
    /// Read files that size and time call unchanged, and adopt anew those with other bytes
    #[arg(long, requires = "in_place")]
    compare: bool,
    /// The OST whose `adopt` directory holds DIR; by default the first that says so
    #[arg(long, value_name = "OST")]
    ost: Option<String>,
    /// File with lines `alice = 1001`, `:cms = :physics`, `* = nobody`
    #[arg(long, value_name = "FILE")]
    owners: Option<PathBuf>,
    /// Wait for the checksums too
    #[arg(long)]
    wait: bool,
    #[arg(long)]
    json: bool,
    /// DIR PATH, or with --checksums PATH alone
    #[arg(required = true, num_args = 1..=2, value_name = "DIR> <PATH")]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    match (args.checksums, args.paths.as_slice()) {
        (true, [path]) => checksums(path, args.json),
        (false, [directory, path]) => import(&args, directory, path),
        (true, _) => Err(tieline_base::report::usage("--checksums takes one PATH")),
        (false, _) => {
            Err(tieline_base::report::usage("say DIR and PATH: what, and where it shall appear"))
        }
    }
}

fn import(args: &Args, directory: &OsString, path: &OsString) -> anyhow::Result<()> {
    let location = Location::find(path)?;
    let owners = args.owners.as_deref().map(Owners::load).transpose()?.unwrap_or_default();
    let named = args.ost.as_ref().map(|ost| ost::parse_all(std::slice::from_ref(ost)));
    let named = named.transpose()?.map(|named| named.indices).unwrap_or_default();
    // As the OSS sees it, if this is its machine.
    let real = std::fs::canonicalize(directory).map_or(directory.clone(), PathBuf::into_os_string);
    let report = shell::run(&location.clone(), |shell| async move {
        let (ost, top) = find_tree(&shell, &named, real.as_bytes()).await?;
        let into = destination(&shell, &location).await?;
        let (compares, narrowed, replaced) = (args.compare, Mutex::default(), Mutex::default());
        let import = Import { shell, ost, owners, compares, narrowed, replaced };
        Arc::new(import).tree(top, into).await
    })?;
    let pid = match report.unsummed > 0 && !args.wait {
        true => Some(sums::start(path)?),
        false => None,
    };
    if !args.json {
        report.print(pid);
    }
    let sums = match report.unsummed > 0 && args.wait {
        true => Some(sums::compute(path)?),
        false => None,
    };
    if args.json {
        let mut document = report.json(pid);
        document["checksums"] = json!(sums.as_ref().map(Sums::json));
        println!("{document}");
    } else if let Some(sums) = &sums {
        sums.print();
    }
    match report.failed.len() {
        0 => sums.map_or(Ok(()), |sums| sums.judge()),
        count => bail!("{count} of the files could not be adopted"),
    }
}

fn checksums(path: &OsString, is_json: bool) -> anyhow::Result<()> {
    let sums = sums::compute(path)?;
    match is_json {
        true => println!("{}", sums.json()),
        false => sums.print(),
    }
    sums.judge()
}

/// The OST that adopts the directory, and the directory's own first page.
async fn find_tree(
    shell: &Shell,
    named: &[OstIndex],
    directory: &[u8],
) -> anyhow::Result<(OstIndex, ListAdoptedReply)> {
    let map = shell.files.map();
    let all = map.osts.iter().map(|ost| ost.ost);
    let candidates: Vec<OstIndex> = if named.is_empty() { all.collect() } else { named.to_vec() };
    let mut reasons = Vec::new();
    for ost in candidates {
        match shell.volume.list_adopted(ost, directory, None, PAGE).await {
            Ok(page) => return Ok((ost, page)),
            Err(error) => reasons.push(tieline_base::report::chain(&error)),
        }
    }
    reasons.dedup();
    let shown = Shown(directory);
    bail!("no OST adopts {shown}: {}", reasons.join("; "))
}

/// The directory that shall hold the tree; made if only it is missing. Nothing is made for who may
/// not adopt.
async fn destination(shell: &Shell, location: &Location) -> anyhow::Result<Attributes> {
    let may_adopt = async |id: FileId| {
        let asked = shell.volume.check_may_adopt(&shell.caller, id).await;
        asked.context("nothing was imported: files are adopted, and given to their owners, by root")
    };
    match shell.resolve(&location.path, true).await {
        Ok(entry) if entry.attributes.is_directory() => {
            may_adopt(entry.attributes.id).await?;
            Ok(entry.attributes)
        }
        Ok(_) => bail!("{} is not a directory", location.text),
        Err(error) if is_not_found(&error) => {
            let (parent, name) = shell.resolve_parent(&location.path).await?;
            may_adopt(parent.id).await?;
            let at = At { parent: parent.id, name: &name };
            let mode = Mode::new(0o755);
            let made = shell.files.make_directory(&shell.caller, at, mode, Mode::new(0)).await?;
            Ok(made.attributes)
        }
        Err(error) => Err(error),
    }
}

struct Import {
    shell: Arc<Shell>,
    ost: OstIndex,
    owners: Owners,
    compares: bool,
    /// Files whose access list could not be kept.
    narrowed: Mutex<Vec<String>>,
    /// Files that had other bytes, with the same size and time.
    replaced: Mutex<Vec<String>>,
}

/// What became of one entry.
enum Outcome {
    Adopted {
        bytes: u64,
        has_sums: bool,
    },
    Again {
        bytes: u64,
        has_sums: bool,
    },
    Unchanged {
        has_sums: bool,
    },
    Link,
    Directory(Box<Attributes>),
    /// Why not.
    LeftOut(String),
}

/// What was done.
#[derive(Default)]
struct Report {
    adopted: u64,
    again: u64,
    unchanged: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    /// Files whose checksums are to be computed: also of earlier imports, whose job was cut off.
    unsummed: u64,
    left_out: Vec<String>,
    /// Adopted before, and not in the source any more.
    gone: Vec<String>,
    failed: Vec<String>,
    /// Their groups got less than the source's list says.
    narrowed: Vec<String>,
    /// Adopted anew, with the size and time they had.
    replaced: Vec<String>,
}

/// A directory that is done but for its own attributes: what is made in it changes them.
struct Finished {
    found: Attributes,
    path: Vec<u8>,
    entry: AdoptedEntry,
}

impl Import {
    async fn tree(
        self: &Arc<Self>,
        top: ListAdoptedReply,
        into: Attributes,
    ) -> anyhow::Result<Report> {
        let mut report = Report::default();
        let mut todo = vec![(top.directory.clone(), into.id)];
        let (path, entry) = (top.directory, top.own);
        let mut finished = vec![Finished { found: into, path, entry }];
        let news = Ticker::new("importing", "entries");
        while let Some((directory, id)) = todo.pop() {
            let mut after = None;
            let mut there = BTreeSet::new();
            loop {
                let volume = &self.shell.volume;
                let page = volume.list_adopted(self.ost, &directory, after.take(), PAGE).await?;
                let last = page.entries.last().map(|entry| entry.name.clone());
                there.extend(page.entries.iter().map(|entry| entry.name.clone()));
                news.add(page.entries.len() as u64);
                for (path, entry, outcome) in self.page(&directory, id, page.entries).await {
                    if let Some(found) = report.take(&path, outcome) {
                        todo.push((path.clone(), found.id));
                        finished.push(Finished { found, path, entry });
                    }
                }
                if page.is_end || last.is_none() {
                    break;
                }
                after = last;
            }
            self.name_gone(&mut report, (id, directory), &there).await?;
        }
        // Deepest first, so that no parent is touched after its own turn.
        for Finished { found, path, entry } in finished.iter().rev() {
            self.dress(found, path, entry).await?;
        }
        let take = |list: &Mutex<Vec<String>>| {
            std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
        };
        (report.narrowed, report.replaced) = (take(&self.narrowed), take(&self.replaced));
        Ok(report)
    }

    /// Names the files below a directory that were adopted from below `path`, and of which the
    /// source has no more than `there`: they cannot be read.
    async fn name_gone(
        &self,
        report: &mut Report,
        (directory, path): (FileId, Vec<u8>),
        there: &BTreeSet<Vec<u8>>,
    ) -> anyhow::Result<()> {
        let nothing = BTreeSet::new();
        let mut todo = vec![(directory, path, there)];
        while let Some((directory, path, there)) = todo.pop() {
            let entries = listed(&self.shell, directory).await?;
            for entry in entries.iter().filter(|entry| !there.contains(entry.name.as_bytes())) {
                let below = below(&path, entry.name.as_bytes());
                match entry.kind {
                    FileKind::Directory => todo.push((entry.id, below, &nothing)),
                    FileKind::Regular => {
                        let adopted = self.adopted_from(entry.id).await?;
                        if adopted.is_some_and(|adopted| adopted.source.path == object_path(&below))
                        {
                            report.gone.push(Shown(&below).to_string());
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Where our OST has the first bytes of a file, if it has adopted them, and what is known.
    async fn adopted_from(&self, id: FileId) -> anyhow::Result<Option<Adopted>> {
        let page = self.shell.files.extents(&self.shell.caller, id, 0).await?;
        let covered = page.covered;
        let has_sums = !page.extents.iter().any(|extent| sums::is_missing(&extent.content));
        let place = page.extents.into_iter().next().and_then(|extent| match extent.content {
            Content::Chunk(chunk) => chunk.at_osts().next(),
            _ => None,
        });
        Ok(match place.map(|place| (place.ost, place.object)) {
            Some((ost, ObjectName::External { path, size, mtime_ns })) if ost == self.ost => {
                let source = Source { ost, path, size, mtime_ns };
                Some(Adopted { source, covered, has_sums })
            }
            _ => None,
        })
    }

    /// Some entries at once.
    async fn page(
        self: &Arc<Self>,
        directory: &[u8],
        parent: FileId,
        entries: Vec<AdoptedEntry>,
    ) -> Vec<(Vec<u8>, AdoptedEntry, anyhow::Result<Outcome>)> {
        let mut done = Vec::new();
        let mut running = JoinSet::new();
        for entry in entries {
            if running.len() >= AT_ONCE {
                done.extend(running.join_next().await.and_then(Result::ok));
            }
            let path = below(directory, &entry.name);
            let this = self.clone();
            running.spawn(async move {
                let outcome = this.one(&path, parent, &entry).await;
                (path, entry, outcome)
            });
        }
        while let Some(one) = running.join_next().await {
            done.extend(one.ok());
        }
        done.sort_by(|a, b| a.0.cmp(&b.0));
        done
    }

    async fn one(
        &self,
        path: &[u8],
        parent: FileId,
        entry: &AdoptedEntry,
    ) -> anyhow::Result<Outcome> {
        let name = Name::new(entry.name.as_slice())?;
        let at = At { parent, name: &name };
        let found = self.shell.files.lookup(&self.shell.caller, parent, &name).await?.attributes;
        match entry.kind {
            FileKind::Regular => self.file(path, at, entry, found).await,
            FileKind::Directory => self.directory(at, found).await,
            FileKind::Symlink => self.link(path, at, entry, found).await,
            _ => Ok(Outcome::LeftOut("neither file, directory nor link".to_owned())),
        }
    }

    async fn directory(&self, at: At<'_>, found: Option<Attributes>) -> anyhow::Result<Outcome> {
        if let Some(found) = found {
            return Ok(match found.is_directory() {
                true => Outcome::Directory(found.into()),
                false => taken(),
            });
        }
        let files = &self.shell.files;
        let mode = Mode::new(0o700);
        let made = files.make_directory(&self.shell.caller, at, mode, Mode::new(0)).await?;
        Ok(Outcome::Directory(made.attributes.into()))
    }

    async fn link(
        &self,
        path: &[u8],
        at: At<'_>,
        entry: &AdoptedEntry,
        found: Option<Attributes>,
    ) -> anyhow::Result<Outcome> {
        let (files, caller) = (&self.shell.files, &self.shell.caller);
        let target = entry.target.clone().unwrap_or_default();
        if let Some(found) = found {
            let is_same = found.kind == FileKind::Symlink
                && files.read_symlink(caller, found.id).await? == target;
            return Ok(if is_same { Outcome::Unchanged { has_sums: true } } else { taken() });
        }
        let made = files.make_symlink(caller, at, &target).await?;
        self.dress(&made.attributes, path, entry).await?;
        Ok(Outcome::Link)
    }

    async fn file(
        &self,
        path: &[u8],
        at: At<'_>,
        entry: &AdoptedEntry,
        found: Option<Attributes>,
    ) -> anyhow::Result<Outcome> {
        let source = Source {
            ost: self.ost,
            path: object_path(path),
            size: entry.size,
            mtime_ns: nanoseconds(entry.mtime),
        };
        let standing = match &found {
            Some(found) => self.standing(found, &source, entry).await?,
            None => Standing::Empty,
        };
        let standing = match (standing, &found) {
            (Standing::Unchanged { .. }, Some(found)) if self.has_other_bytes(found).await? => {
                let shown = Shown(path).to_string();
                self.replaced.lock().unwrap_or_else(PoisonError::into_inner).push(shown);
                Standing::Older
            }
            (standing, _) => standing,
        };
        match standing {
            Standing::Unchanged { has_sums } => return Ok(Outcome::Unchanged { has_sums }),
            Standing::Written => {
                let why = "was written to here since it was adopted: remove it, or keep it";
                return Ok(Outcome::LeftOut(why.to_owned()));
            }
            Standing::Other => return Ok(taken()),
            Standing::Empty | Standing::Older => {}
        }
        let (files, caller) = (&self.shell.files, &self.shell.caller);
        let found = match found {
            Some(found) => found,
            None => self.create(at).await?,
        };
        let id = found.id;
        if standing == Standing::Older {
            // In one step: an empty file with another time is somebody's.
            let mtime = Some(SetTime::At(entry.mtime));
            let change = AttributeChange { size: Some(0), mtime, ..AttributeChange::default() };
            files.set_attributes(caller, id, None, change).await?;
        }
        let adler32 = xrd_adler32(entry);
        // First, so that a file with bytes is a whole one, whatever stops us.
        self.dress(&found, path, entry).await?;
        self.shell.volume.adopt(caller, id, &source, adler32).await?;
        let mtime = Some(SetTime::At(entry.mtime));
        let change = AttributeChange { mtime, ..AttributeChange::default() };
        files.set_attributes(caller, id, None, change).await?;
        let has_sums = entry.size == 0;
        Ok(match standing {
            Standing::Older => Outcome::Again { bytes: entry.size, has_sums },
            _ => Outcome::Adopted { bytes: entry.size, has_sums },
        })
    }

    async fn has_other_bytes(&self, found: &Attributes) -> anyhow::Result<bool> {
        Ok(self.compares && compare::has_other_bytes(&self.shell, found).await?)
    }

    async fn create(&self, at: At<'_>) -> anyhow::Result<Attributes> {
        let files = &self.shell.files;
        let access = Access { write: true, ..Access::default() };
        let mode = Mode::new(BARE);
        let new = NewFile { mode, umask: Mode::new(0), is_exclusive: true, access, layout: None };
        let (_, opened) = files.create(&self.shell.caller, at, new).await?;
        files.release(opened.handle).await;
        Ok(opened.attributes)
    }

    /// What a file that is there is to the source.
    async fn standing(
        &self,
        found: &Attributes,
        source: &Source,
        entry: &AdoptedEntry,
    ) -> anyhow::Result<Standing> {
        if found.kind != FileKind::Regular {
            return Ok(Standing::Other);
        }
        if found.size == 0 && found.stored == 0 {
            let is_dressed = found.mtime == entry.mtime;
            return Ok(match is_dressed {
                true if entry.size == 0 => Standing::Unchanged { has_sums: true },
                _ if is_dressed || self.is_bare(found) => Standing::Empty,
                _ => Standing::Other,
            });
        }
        let is_whole = found.size == source.size && found.stored == source.size;
        Ok(match self.adopted_from(found.id).await? {
            Some(adopted) if adopted.source == *source && is_whole => {
                let mut has_sums = adopted.has_sums;
                if has_sums && adopted.covered < found.size {
                    has_sums = sums::unsummed(&self.shell, found).await?.is_empty();
                }
                Standing::Unchanged { has_sums }
            }
            Some(adopted) if adopted.source.path == source.path => {
                match self.is_as_adopted(found, &adopted.source).await? {
                    true => Standing::Older,
                    false => Standing::Written,
                }
            }
            _ => Standing::Other,
        })
    }

    /// Is it an empty file as an import makes it, before it has the source's attributes?
    fn is_bare(&self, found: &Attributes) -> bool {
        let is_new = found.mtime == found.btime && found.uid == self.shell.caller.uid;
        is_new && found.mode == Mode::new(BARE)
    }

    /// Has a file the bytes that were adopted, and nothing else? A cut-off adoption has the first
    /// of them.
    async fn is_as_adopted(&self, found: &Attributes, source: &Source) -> anyhow::Result<bool> {
        let mut at = 0;
        while at < found.size {
            let page = self.shell.files.extents(&self.shell.caller, found.id, at).await?;
            for extent in &page.extents {
                if !is_adopted(extent, source) || extent.offset != at {
                    return Ok(false);
                }
                at += extent.length;
            }
            if page.extents.is_empty() {
                return Ok(false);
            }
        }
        Ok(at == source.size || at.is_multiple_of(ADOPTED_AT_ONCE))
    }
}

/// Is it a chunk of the source, whole and where the source has it?
fn is_adopted(extent: &Extent, source: &Source) -> bool {
    let Content::Chunk(chunk) = &extent.content else { return false };
    let object = source.object();
    let is_of_source = |place: &Place| place.object == object && place.offset == extent.offset;
    chunk.skip == 0 && chunk.length == extent.length && chunk.places.iter().any(is_of_source)
}

/// What a file of ours was adopted from.
struct Adopted {
    source: Source,
    /// How far its extents were looked at, and whether all of these have their checksums.
    covered: u64,
    has_sums: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Nothing is there, or a file that an import was about to fill.
    Empty,
    Unchanged {
        has_sums: bool,
    },
    /// The same file, adopted when it was another.
    Older,
    /// The same file, and somebody wrote to it since.
    Written,
    /// Somebody's.
    Other,
}

/// A path below the OST's tree.
fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.is_empty() {
        true => name.to_vec(),
        false => [directory, b"/", name].concat(),
    }
}

fn taken() -> Outcome {
    Outcome::LeftOut("something else has that name".to_owned())
}

/// The Adler-32 that XRootD's servers keep beside a file, if it is of the file as it is now.
fn xrd_adler32(entry: &AdoptedEntry) -> Option<u32> {
    let kept = entry.xattrs.iter().find(|xattr| xattr.name.as_bytes() == XRD_ADLER32)?;
    let kept = kept_by_xrootd("adler32", kept.value.as_slice(), entry.mtime.seconds)?;
    kept.try_into().ok().map(u32::from_be_bytes)
}

impl Report {
    /// Counts an outcome; a directory is to be looked into.
    fn take(&mut self, path: &[u8], outcome: anyhow::Result<Outcome>) -> Option<Attributes> {
        let shown = || Shown(path).to_string();
        match outcome {
            Ok(Outcome::Adopted { bytes, has_sums }) => {
                self.adopted += 1;
                self.bytes += bytes;
                self.unsummed += u64::from(!has_sums);
            }
            Ok(Outcome::Again { bytes, has_sums }) => {
                self.again += 1;
                self.bytes += bytes;
                self.unsummed += u64::from(!has_sums);
            }
            Ok(Outcome::Unchanged { has_sums }) => {
                self.unchanged += 1;
                self.unsummed += u64::from(!has_sums);
            }
            Ok(Outcome::Link) => self.links += 1,
            Ok(Outcome::Directory(found)) => {
                self.directories += 1;
                return Some(*found);
            }
            Ok(Outcome::LeftOut(why)) => self.left_out.push(format!("{}: {why}", shown())),
            Err(error) => {
                let why = tieline_base::report::chain(error.as_ref());
                self.failed.push(format!("{}: {why}", shown()));
            }
        }
        None
    }

    fn json(&self, pid: Option<u32>) -> serde_json::Value {
        json!({
            "adopted": self.adopted,
            "adopted_again": self.again,
            "unchanged": self.unchanged,
            "directories": self.directories,
            "links": self.links,
            "bytes": self.bytes,
            "left_out": self.left_out,
            "gone": self.gone,
            "failed": self.failed,
            "narrowed": self.narrowed,
            "other_bytes": self.replaced,
            "without_checksums": self.unsummed,
            "checksums_by": pid,
        })
    }

    fn print(&self, pid: Option<u32>) {
        for line in self.left_out.iter() {
            eprintln!("tieline: left out: {line}");
        }
        for path in self.gone.iter() {
            eprintln!(
                "tieline: {path}: is gone from the source, so that the adopted file cannot be \
                 read: put it back, or remove the file"
            );
        }
        for path in self.replaced.iter() {
            eprintln!(
                "tieline: {path}: had other bytes than when it was adopted, with the same size \
                 and time: they count now"
            );
        }
        for line in self.failed.iter().chain(&self.narrowed) {
            eprintln!("tieline: {line}");
        }
        let bytes = tieline_types::ByteSize(self.bytes);
        println!(
            "adopted {} files ({bytes}) in place, {} of them anew; {} unchanged, {} directories, \
             {} links, {} left out, {} gone",
            self.adopted + self.again,
            self.again,
            self.unchanged,
            self.directories,
            self.links,
            self.left_out.len(),
            self.gone.len(),
        );
        if let Some(pid) = pid {
            let count = self.unsummed;
            println!("checksums of {count} files are computed in the background (pid {pid})");
        }
    }
}
