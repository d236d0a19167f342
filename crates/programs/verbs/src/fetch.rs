//! `tieline cat` and `tieline get`: bytes out of the file system.
//!
//! Invariants: a local file is replaced in one step, when all bytes are here; nothing is written
//! through a link that is in the destination ([`tieline_machine::beneath`]).

use crate::list::listed;
use crate::progress::Progress;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use tieline_base::location::Location;
use tieline_files::Access;
use tieline_machine::beneath::{Directory, taken};
use tieline_machine::descriptors;
use tieline_types::{Attributes, FileKind};

/// Bytes asked for at once: the window ahead does the rest.
const PIECE: u32 = 4 << 20;
/// Of a new file, less the umask; a file that is replaced had one.
const MODE: u32 = 0o666;

#[derive(clap::Args, Debug)]
pub struct CatArgs {
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    files: Vec<OsString>,
}

#[derive(clap::Args, Debug)]
pub struct GetArgs {
    /// Directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    source: OsString,
    /// Local file, or directory to put it in
    destination: PathBuf,
}

pub fn cat(args: CatArgs) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.files)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        for location in &all {
            let entry = shell.resolve(&location.path, true).await?;
            let mut progress = Progress::new("", 0);
            copy(&shell, &entry.attributes, &mut out, &mut progress)
                .await
                .with_context(|| format!("cannot read {}", location.text))?;
        }
        out.flush().map_err(Into::into)
    })
}

pub fn get(args: GetArgs) -> anyhow::Result<()> {
    crate::log_start();
    // One for each directory that the walk is in.
    descriptors::raise();
    let location = Location::find(&args.source)?;
    let name = location.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
    let to = args.destination;
    shell::run(&location.clone(), |shell| async move {
        let entry = shell.resolve(&location.path, true).await?;
        if entry.attributes.is_directory() && !args.recursive {
            bail!("{} is a directory: add -r to copy it", location.text);
        }
        let cannot = || format!("cannot write {}", to.display());
        let mut todo = match to.is_dir() {
            true if name.is_empty() => {
                let directory = Directory::open(&to).with_context(cannot)?;
                content(&shell, &entry.attributes, directory).await?
            }
            true => {
                let directory = Directory::open(&to).with_context(cannot)?;
                vec![(entry.attributes, Arc::new(directory), OsStr::from_bytes(&name).to_owned())]
            }
            false => {
                let (directory, name) = Directory::of(&to).with_context(cannot)?;
                vec![(entry.attributes, Arc::new(directory), name)]
            }
        };
        while let Some((attributes, at, name)) = todo.pop() {
            todo.extend(get_one(&shell, &attributes, &at, &name).await?);
        }
        Ok(())
    })
}

/// What is left to be copied, and where to. Only directories that the walk is in are held.
type Left = Vec<(Attributes, Arc<Directory>, OsString)>;

/// Copies one file; of a directory, makes it and says what is in it.
async fn get_one(
    shell: &Shell,
    attributes: &Attributes,
    at: &Directory,
    name: &OsStr,
) -> anyhow::Result<Left> {
    let path = at.path(name);
    let shown = path.display();
    match attributes.kind {
        FileKind::Regular => {
            get_file(shell, attributes, at, name).await?;
            Ok(Vec::new())
        }
        FileKind::Directory => {
            let made = at.enter_or_make(name).with_context(|| format!("cannot make {shown}"))?;
            content(shell, attributes, made).await
        }
        FileKind::Symlink => {
            let target = shell.files.read_symlink(&shell.caller, attributes.id).await?;
            let target = OsStr::from_bytes(&target);
            let cannot = || format!("cannot make link {shown}");
            match at.look(name).with_context(cannot)? {
                Some(there) if there.target().ok().as_deref() == Some(target) => {}
                Some(there) => return Err(taken(&there)).with_context(cannot),
                None => drop(at.make_symlink(target, name).with_context(cannot)?),
            }
            Ok(Vec::new())
        }
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            eprintln!("tieline: {shown}: neither file, directory nor link: left out");
            Ok(Vec::new())
        }
    }
}

async fn content(shell: &Shell, attributes: &Attributes, to: Directory) -> anyhow::Result<Left> {
    let (to, mut below) = (Arc::new(to), Vec::new());
    for entry in listed(shell, attributes.id).await? {
        let attributes = match entry.known {
            Some(known) => known.attributes,
            None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
        };
        below.push((attributes, to.clone(), OsStr::from_bytes(entry.name.as_bytes()).to_owned()));
    }
    Ok(below)
}

async fn get_file(
    shell: &Shell,
    attributes: &Attributes,
    at: &Directory,
    name: &OsStr,
) -> anyhow::Result<()> {
    let path = at.path(name);
    let shown = path.display();
    let cannot_create = || format!("cannot create {shown}");
    let mode = match at.look(name).with_context(cannot_create)? {
        None => MODE,
        Some(there) => {
            let found = there.metadata().with_context(cannot_create)?;
            if !found.is_file() {
                return Err(taken(&there)).with_context(cannot_create);
            }
            found.mode() & 0o777
        }
    };
    let draft = at.draft(mode).with_context(cannot_create)?;
    let mut progress = Progress::new(shown.to_string(), attributes.size);
    copy(shell, attributes, &mut draft.file(), &mut progress)
        .await
        .with_context(|| format!("cannot copy to {shown}"))?;
    progress.end();
    draft.replace(name).with_context(cannot_create)
}

/// A whole file's bytes, in order.
pub async fn copy(
    shell: &Shell,
    attributes: &Attributes,
    out: &mut dyn Write,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let access = Access { read: true, ..Access::default() };
    let opened = shell.files.open(&shell.caller, attributes.id, access).await?;
    let mut offset = 0;
    let end = loop {
        let pieces = match shell.files.read(opened.handle, offset, PIECE).await {
            Ok(pieces) => pieces,
            Err(error) => break Err(error.into()),
        };
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if length == 0 {
            break Ok(());
        }
        if let Err(error) = pieces.iter().try_for_each(|piece| out.write_all(piece)) {
            break Err(error.into());
        }
        offset += length;
        progress.add(length);
    };
    shell.files.release(opened.handle).await;
    end
}
