//! `tieline put`: bytes into the file system. A file that was put is durable at its servers.

use crate::location::Location;
use crate::report;
use crate::shell::{self, Shell, is_not_found};
use crate::verbs::progress::Progress;
use anyhow::{Context, bail};
use bytes::Bytes;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tieline_client::{Access, At, NewFile};
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
    crate::verbs::log_start();
    let location = Location::find(&args.destination)?;
    if args.source.is_dir() && !args.recursive {
        bail!("{} is a directory: add -r to copy it", args.source.display());
    }
    shell::run(&location.clone(), |shell| async move {
        let (parent, name) = target(&shell, &location, &args.source).await?;
        let mut todo = vec![(args.source, parent, name)];
        while let Some((from, parent, name)) = todo.pop() {
            let shown = from.display().to_string();
            let below = put_one(&shell, &from, parent, &name).await;
            todo.extend(below.with_context(|| format!("cannot put {shown}"))?);
        }
        Ok(())
    })
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

async fn put_one(
    shell: &Shell,
    from: &Path,
    parent: FileId,
    name: &Name,
) -> anyhow::Result<Vec<(PathBuf, FileId, Name)>> {
    let metadata = from.symlink_metadata().with_context(|| from.display().to_string())?;
    let mode = Mode::new(metadata.permissions().mode());
    let at = At { parent, name };
    if metadata.is_symlink() {
        let target = std::fs::read_link(from).with_context(|| from.display().to_string())?;
        shell.files.make_symlink(&shell.caller, at, target.as_os_str().as_bytes()).await?;
        return Ok(Vec::new());
    }
    if metadata.is_dir() {
        let directory = directory_at(shell, at, mode).await?;
        let mut below = Vec::new();
        for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
            let entry = entry?;
            below.push((entry.path(), directory, Name::new(entry.file_name().as_bytes())?));
        }
        return Ok(below);
    }
    if !metadata.is_file() {
        eprintln!("tieline: {}: neither file, directory nor link: left out", from.display());
        return Ok(Vec::new());
    }
    put_file(shell, from, at, mode, metadata.len()).await?;
    Ok(Vec::new())
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
    from: &Path,
    at: At<'_>,
    mode: Mode,
    size: u64,
) -> anyhow::Result<()> {
    let mut file = File::open(from).with_context(|| from.display().to_string())?;
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
    handle: tieline_client::HandleId,
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
