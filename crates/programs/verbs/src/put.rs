//! `tieline put`: bytes into the file system. A file that was put is durable at its servers.
//!
//! Invariant: what is read lies in the tree that was named, whatever links users put into it
//! meanwhile ([`tieline_machine::beneath`]).

use crate::progress::Progress;
use crate::shell::{self, Shell, is_not_found};
use anyhow::{Context, bail};
use bytes::Bytes;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_base::location::Location;
use tieline_base::report;
use tieline_files::{Access, At, NewFile};
use tieline_machine::beneath::{Directory, Held};
use tieline_machine::descriptors;
use tieline_types::{ErrorKind, FileId, Mode, Name, Retry};

/// Bytes read at once from the local file.
const PIECE: usize = 4 << 20;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Local file
    source: PathBuf,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path: a file, or a directory to put it in
    destination: OsString,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(&args.destination)?;
    if args.source.is_dir() && !args.recursive {
        bail!("{} is a directory: add -r to copy it", args.source.display());
    }
    // One for each directory that the walk is in.
    descriptors::raise();
    shell::run(&location.clone(), |shell| async move {
        let (parent, name) = target(&shell, &location, &args.source).await?;
        let source = Held::named_itself(&args.source);
        let source = source.with_context(|| format!("cannot read {}", args.source.display()))?;
        let mut todo = put_one(&shell, source, &args.source, At { parent, name: &name }).await?;
        while let Some(Left { directory, name: local, parent }) = todo.pop() {
            let from = directory.path(&local);
            let cannot = || format!("cannot read {}", from.display());
            // Gone meanwhile is an error: it was there to be copied.
            let held = directory.look(&local).with_context(cannot)?.with_context(cannot)?;
            let name = Name::new(local.as_bytes())?;
            todo.extend(put_one(&shell, held, &from, At { parent, name: &name }).await?);
        }
        Ok(())
    })
}

/// What is left to be copied: from where, and into which directory.
struct Left {
    directory: Arc<Directory>,
    name: OsString,
    parent: FileId,
}

/// The directory and name that the source shall have.
async fn target(
    shell: &Shell,
    location: &Location,
    source: &Path,
) -> anyhow::Result<(FileId, Name)> {
    match shell.resolve(&location.path, true).await {
        Ok(entry) if entry.attributes.is_directory() => {
            let name = source.canonicalize()?;
            let name = name.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
            Ok((entry.attributes.id, Name::new(name)?))
        }
        Ok(_) => {
            let (parent, name) = shell.resolve_parent(&location.path).await?;
            Ok((parent.id, name))
        }
        Err(error) if is_not_found(&error) => {
            let (parent, name) = shell.resolve_parent(&location.path).await?;
            Ok((parent.id, name))
        }
        Err(error) => Err(error),
    }
}

async fn put_one(shell: &Shell, held: Held, from: &Path, at: At<'_>) -> anyhow::Result<Vec<Left>> {
    let put = async {
        let metadata = held.metadata()?;
        let mode = Mode::new(metadata.mode());
        if metadata.is_symlink() {
            let target = held.target()?;
            shell.files.make_symlink(&shell.caller, at, target.as_bytes()).await?;
            return Ok(Vec::new());
        }
        if metadata.is_dir() {
            let parent = directory_at(shell, at, mode).await?;
            let directory = Arc::new(Directory::of_held(held, from.to_owned())?);
            let left = |name| Left { directory: directory.clone(), name, parent };
            return Ok(directory.names()?.into_iter().map(left).collect());
        }
        if !metadata.is_file() {
            eprintln!("tieline: {}: neither file, directory nor link: left out", from.display());
            return Ok(Vec::new());
        }
        put_file(shell, (held.open()?, from), at, mode, metadata.len()).await?;
        anyhow::Ok(Vec::new())
    };
    put.await.with_context(|| format!("cannot put {}", from.display()))
}

async fn directory_at(shell: &Shell, at: At<'_>, mode: Mode) -> anyhow::Result<FileId> {
    match shell.files.make_directory(&shell.caller, at, mode, Mode::new(0)).await {
        Ok(known) => Ok(known.attributes.id),
        Err(error) if error.kind() == ErrorKind::Exists => {
            let found = shell.files.lookup(&shell.caller, at.parent, at.name).await?;
            found.attributes.map(|attributes| attributes.id).context("it is gone again")
        }
        Err(error) => Err(error.into()),
    }
}

async fn put_file(
    shell: &Shell,
    (mut file, from): (File, &Path),
    at: At<'_>,
    mode: Mode,
    size: u64,
) -> anyhow::Result<()> {
    let access = Access { write: true, truncate: true, ..Access::default() };
    let mut new = NewFile { mode, umask: Mode::new(0), is_exclusive: true, access, layout: None };
    let mut created = shell.files.create(&shell.caller, at, new.clone()).await;
    let is_new = created.is_ok();
    if created.as_ref().is_err_and(|error| error.kind() == ErrorKind::Exists) {
        new.is_exclusive = false;
        created = shell.files.create(&shell.caller, at, new).await;
    }
    let (_, opened) = created?;
    let mut progress = Progress::new(from.display().to_string(), size);
    let result = pour(shell, &mut file, opened.handle, &mut progress).await;
    shell.files.release(opened.handle).await;
    progress.end();
    let Err(error) = result else { return Ok(()) };
    // A server that is away could not be told either.
    let can_remove = report::kind(&error).is_none_or(|kind| kind.retry() == Retry::Never);
    if is_new && can_remove && shell.files.unlink(&shell.caller, at).await.is_ok() {
        return Err(error);
    }
    Err(error.context("not all of it is there now"))
}

async fn pour(
    shell: &Shell,
    file: &mut File,
    handle: tieline_types::HandleId,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let length = file.by_ref().take(PIECE as u64).read_to_end(&mut piece)? as u64;
        if length == 0 {
            break;
        }
        shell.files.write(handle, offset, Bytes::from(piece)).await?;
        offset += length;
        progress.add(length);
    }
    shell.files.sync(handle, false).await?;
    shell.files.flush(handle).await?;
    Ok(())
}
