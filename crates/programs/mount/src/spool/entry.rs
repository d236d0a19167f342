//! One file's bytes in a spool: `ID.data`, sparse, at their places in the file; `ID.appended`, in
//! the order in which they were appended; `ID.record`, what is no file's bytes; and `ID.json`, the
//! manifest, which says what they are of.
//!
//! Invariant: only what the manifest names counts.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tieline_base::registry;
use tieline_base::source::Source;
use tieline_machine::beneath::Directory;
use tieline_owed::spool::{self as client, Claim, Lost, Place};
use tieline_types::{FileId, Shown, Time, Version};

/// Of manifests. A newer program's are left alone.
const FORMAT: u32 = 1;
/// Entries of one file.
const SAME_MAX: u32 = 1000;
const PRIVATE: u32 = 0o600;

/// What is the same for all files of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    /// As in [`Source`].
    pub source: String,
    pub mountpoint: PathBuf,
    /// The first public key that the federation had, as digits.
    pub mapkey: String,
}

impl About {
    fn is_of(&self, mount: &registry::Entry) -> bool {
        let scope = mount.caches.scope.rsplit_once('-').map_or("", |(_, key)| key);
        mount.mapkey == self.mapkey || (!scope.is_empty() && self.mapkey.starts_with(scope))
    }
}

/// What an entry is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    #[serde(flatten)]
    pub about: About,
    /// The file's id, as `tieline path2fid` prints it.
    pub file: String,
    /// From the root of the file system, when it was seen last; empty if it was not.
    pub path: String,
    /// Seconds since 1970: of the last bytes.
    pub at: u64,
    /// Who wrote.
    pub uid: u32,
    pub gid: u32,
    pub why: String,
    /// What they were written over.
    pub base: Option<Base>,
    /// Of `ID.data`, which are the places in the file.
    #[serde(default)]
    pub placed: Vec<Part>,
    /// Of `ID.appended`.
    #[serde(default)]
    pub appended: Vec<Part>,
    /// Of `ID.record`.
    #[serde(default)]
    pub records: Vec<Part>,
    /// `umount` has named it.
    #[serde(default)]
    pub is_named: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Base {
    pub version: Option<u64>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    pub size: u64,
}

impl From<client::Base> for Base {
    fn from(base: client::Base) -> Self {
        let mtime = base.mtime.map(|mtime| (mtime.seconds, mtime.nanos));
        Self { version: base.version.map(|version| version.0), mtime, size: base.size }
    }
}

impl Base {
    /// Is the file as it was then?
    pub fn is_of(&self, version: Version, mtime: Time, size: u64) -> bool {
        let is_version = self.version.is_some_and(|known| known == version.0);
        let is_mtime = self.mtime == Some((mtime.seconds, mtime.nanos));
        is_version || (is_mtime && self.size == size)
    }
}

/// Bytes in a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    pub offset: u64,
    pub length: u64,
    /// `answered`, `open` or `waiting`.
    pub claim: String,
}

impl Part {
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

fn word(claim: Claim) -> &'static str {
    match claim {
        Claim::Answered => "answered",
        Claim::Open => "open",
        Claim::Waiting => "waiting",
    }
}

impl Manifest {
    pub fn new(about: &About, lost: &Lost) -> Self {
        Self {
            format: FORMAT,
            about: about.clone(),
            file: lost.file.to_string(),
            path: String::new(),
            at: 0,
            uid: lost.writer.uid.0,
            gid: lost.writer.gid.0,
            why: String::new(),
            base: None,
            placed: Vec::new(),
            appended: Vec::new(),
            records: Vec::new(),
            is_named: false,
        }
    }

    /// All bytes that it names.
    pub fn bytes(&self) -> u64 {
        self.kinds().into_iter().flatten().map(|part| part.length).sum()
    }

    fn kinds(&self) -> [&Vec<Part>; 3] {
        [&self.placed, &self.appended, &self.records]
    }

    fn kinds_mut(&mut self) -> [&mut Vec<Part>; 3] {
        [&mut self.placed, &mut self.appended, &mut self.records]
    }

    pub fn forget(&mut self, claim: Claim) {
        for parts in self.kinds_mut() {
            parts.retain(|part| part.claim != word(claim));
        }
    }

    pub fn answered(&mut self) {
        let open = self.kinds_mut().into_iter().flatten();
        let open = open.filter(|part| part.claim == word(Claim::Open));
        open.for_each(|part| part.claim = word(Claim::Answered).to_owned());
    }

    /// In this range the file has newer bytes.
    pub fn written_over(&mut self, range: Range<u64>) {
        let mut left = Vec::new();
        for part in self.placed.drain(..) {
            let all = part.range();
            for kept in [all.start..all.end.min(range.start), all.start.max(range.end)..all.end] {
                if !kept.is_empty() {
                    let (offset, length) = (kept.start, kept.end - kept.start);
                    left.push(Part { offset, length, claim: part.claim.clone() });
                }
            }
        }
        self.placed = left;
    }

    fn place(&mut self, range: Range<u64>, claim: Claim) {
        self.written_over(range.clone());
        let (offset, length, claim) = (range.start, range.end - range.start, word(claim).into());
        self.placed.push(Part { offset, length, claim });
        self.placed.sort_by_key(|part| part.offset);
        let mut joined: Vec<Part> = Vec::new();
        for part in self.placed.drain(..) {
            match joined.last_mut() {
                Some(last) if last.range().end == part.offset && last.claim == part.claim => {
                    last.length += part.length;
                }
                _ => joined.push(part),
            }
        }
        self.placed = joined;
    }

    pub fn id(&self) -> anyhow::Result<FileId> {
        let digits = self.file.trim_start_matches("0x");
        let id = u64::from_str_radix(digits, 16).map(FileId);
        id.with_context(|| format!("`{}` is no file's id", self.file))
    }

    /// Where the file was, below its mount if it was there.
    pub fn shown(&self) -> String {
        if self.path.is_empty() {
            return format!("file {} of {}", self.file, self.about.mountpoint.display());
        }
        let source: Option<Source> = self.about.source.parse().ok();
        let directory = source.map_or_else(String::new, |source| source.directory);
        let path = self.path.trim_start_matches('/');
        let below = match directory.trim_matches('/') {
            "" => Some(path),
            above => path.strip_prefix(above).and_then(|rest| rest.strip_prefix('/')),
        };
        match below {
            Some(below) => self.about.mountpoint.join(below).display().to_string(),
            None => format!("/{path}"),
        }
    }

    /// Is the mount that it is of there still?
    pub fn mount(&self) -> Option<registry::Entry> {
        registry::all().into_iter().find(|entry| self.about.is_of(entry) && entry.ending.is_none())
    }
}

/// A manifest and its files.
#[derive(Clone, Debug)]
pub struct Entry {
    pub directory: Arc<Directory>,
    pub name: String,
    pub manifest: Manifest,
}

impl Entry {
    /// One that is not there yet.
    pub fn unused(directory: &Arc<Directory>, manifest: Manifest) -> anyhow::Result<Self> {
        for number in 1..=SAME_MAX {
            let name = match number {
                1 => manifest.file.clone(),
                number => format!("{}-{number}", manifest.file),
            };
            let entry = Self { directory: directory.clone(), name, manifest: manifest.clone() };
            if ["json", "data", "appended", "record"].iter().all(|kind| !entry.file(kind).exists())
            {
                return Ok(entry);
            }
        }
        let shown = directory.shown().display();
        bail!("{shown} has {SAME_MAX} entries of file {}", manifest.file)
    }

    /// `None`: it is not there any more.
    pub fn read(directory: &Arc<Directory>, name: &str) -> anyhow::Result<Option<Self>> {
        let file = format!("{name}.json");
        let shown = || directory.path(file.as_ref()).display().to_string();
        let text = match std::fs::read(Path::new(&directory.held().way()).join(&file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(shown)?,
        };
        let manifest: Manifest = serde_json::from_slice(&text).with_context(shown)?;
        if manifest.format != FORMAT {
            bail!("{} is of another version of this program", shown());
        }
        let (directory, name) = (directory.clone(), name.to_owned());
        Ok(Some(Self { directory, name, manifest }))
    }

    /// The way to one of its files, for as long as the directory is held.
    pub(super) fn file(&self, kind: &str) -> PathBuf {
        Path::new(&self.directory.held().way()).join(format!("{}.{kind}", self.name))
    }

    /// The same, for people.
    fn called(&self, kind: &str) -> PathBuf {
        self.directory.path(format!("{}.{kind}", self.name).as_ref())
    }

    /// Opens one of its files, to be read.
    pub fn open(&self, kind: &str) -> anyhow::Result<File> {
        let file = File::open(self.file(kind));
        file.with_context(|| self.called(kind).display().to_string())
    }

    /// Where the bytes are, for people.
    pub fn shown(&self) -> PathBuf {
        let Manifest { placed, appended, .. } = &self.manifest;
        self.called(match (placed.is_empty(), appended.is_empty()) {
            (false, _) => "data",
            (true, false) => "appended",
            (true, true) => "record",
        })
    }

    /// Writes bytes beside what is there.
    pub fn lay(&mut self, lost: &Lost) -> anyhow::Result<()> {
        for piece in &lost.pieces {
            let length = piece.bytes.len() as u64;
            let end = |parts: &[Part]| parts.last().map_or(0, |last| last.range().end);
            let (kind, offset) = match piece.place {
                Place::At(offset) => ("data", offset),
                Place::Appended => ("appended", end(&self.manifest.appended)),
                Place::Record => ("record", end(&self.manifest.records)),
            };
            let mut options = File::options();
            options.create(true).truncate(false).write(true).mode(PRIVATE);
            let file = options.open(self.file(kind));
            let written = file.and_then(|file| file.write_all_at(&piece.bytes, offset));
            written.with_context(|| format!("cannot write {}", self.called(kind).display()))?;
            let part = Part { offset, length, claim: word(lost.claim).to_owned() };
            match piece.place {
                Place::At(_) => self.manifest.place(part.range(), lost.claim),
                Place::Appended => self.manifest.appended.push(part),
                Place::Record => self.manifest.records.push(part),
            }
        }
        let manifest = &mut self.manifest;
        if !lost.path.is_empty() {
            manifest.path = Shown(&lost.path).to_string();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (manifest.at, manifest.why) = (now.as_secs(), lost.why.clone());
        manifest.base = manifest.base.take().or(lost.base.map(Base::from));
        manifest.is_named = false;
        Ok(())
    }

    fn temporary(&self) -> PathBuf {
        self.file("json.new")
    }

    /// Writes the manifest, not yet under its name.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let mut options = File::options();
        options.create(true).truncate(true).write(true).mode(PRIVATE);
        let file = options.open(self.temporary());
        let mut text = serde_json::to_vec_pretty(&self.manifest)?;
        text.push(b'\n');
        let written = file.and_then(|file| file.write_all_at(&text, 0));
        written.with_context(|| format!("cannot write {}", self.called("json").display()))
    }

    /// Has the bytes on the disk.
    pub fn sync(&self) -> io::Result<()> {
        for kind in ["data", "appended", "record"] {
            match File::open(self.file(kind)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => file?.sync_all()?,
            }
        }
        Ok(())
    }

    /// Gives the manifest its name.
    pub fn publish(&self, syncs: bool) -> anyhow::Result<()> {
        if syncs {
            File::open(self.temporary())?.sync_all()?;
        }
        std::fs::rename(self.temporary(), self.file("json"))?;
        Ok(())
    }

    /// The manifest first: bytes alone are nobody's.
    pub fn remove(&self) -> anyhow::Result<()> {
        for kind in ["json", "json.new", "data", "appended", "record"] {
            match std::fs::remove_file(self.file(kind)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                gone => gone.with_context(|| self.called(kind).display().to_string())?,
            }
        }
        Ok(self.directory.sync()?)
    }
}

/// All entries of a spool, oldest first. What cannot be read is left out.
pub fn all_in(directory: &Arc<Directory>) -> Vec<Entry> {
    let found = directory.names().unwrap_or_default();
    let mut all: Vec<Entry> = found
        .into_iter()
        .filter_map(|file| {
            let name = file.into_string().ok()?;
            Entry::read(directory, name.strip_suffix(".json")?).ok()?
        })
        .collect();
    all.sort_by(|a, b| (a.manifest.at, &a.name).cmp(&(b.manifest.at, &b.name)));
    all
}

/// The same of a directory that may be another's, or not there: then there are none.
pub fn all_at(directory: &Path) -> Vec<Entry> {
    super::opened(directory).map_or_else(|_| Vec::new(), |directory| all_in(&directory))
}
