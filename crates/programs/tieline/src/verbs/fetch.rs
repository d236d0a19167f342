//! `tieline cat` and `tieline get`: bytes out of the file system.

use crate::location::Location;
use crate::shell::{self, Shell};
use crate::verbs::list::listed;
use crate::verbs::progress::Progress;
use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tieline_client::Access;
use tieline_types::{Attributes, FileKind};

/// Bytes asked for at once: the window ahead does the rest.
const PIECE: u32 = 4 << 20;

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
    crate::verbs::log_start();
    let (first, all) = crate::verbs::locations(&args.files)?;
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
    crate::verbs::log_start();
    let location = Location::find(&args.source)?;
    let name = location.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
    let to = match args.destination.is_dir() && !name.is_empty() {
        true => args.destination.join(OsStr::from_bytes(&name)),
        false => args.destination,
    };
    shell::run(&location.clone(), |shell| async move {
        let entry = shell.resolve(&location.path, true).await?;
        if entry.attributes.is_directory() && !args.recursive {
            bail!("{} is a directory: add -r to copy it", location.text);
        }
        let mut todo = vec![(entry.attributes, to)];
        while let Some((attributes, to)) = todo.pop() {
            todo.extend(get_one(&shell, &attributes, &to).await?);
        }
        Ok(())
    })
}

/// Copies one file; of a directory, makes it and says what is in it.
async fn get_one(
    shell: &Shell,
    attributes: &Attributes,
    to: &Path,
) -> anyhow::Result<Vec<(Attributes, PathBuf)>> {
    let shown = to.display();
    match attributes.kind {
        FileKind::Regular => {
            let mut file =
                std::fs::File::create(to).with_context(|| format!("cannot create {shown}"))?;
            let mut progress = Progress::new(shown.to_string(), attributes.size);
            copy(shell, attributes, &mut file, &mut progress)
                .await
                .with_context(|| format!("cannot copy to {shown}"))?;
            progress.end();
            Ok(Vec::new())
        }
        FileKind::Directory => {
            if !to.is_dir() {
                std::fs::create_dir(to).with_context(|| format!("cannot make {shown}"))?;
            }
            let mut below = Vec::new();
            for entry in listed(shell, attributes.id).await? {
                let attributes = match entry.known {
                    Some(known) => known.attributes,
                    None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
                };
                below.push((attributes, to.join(OsStr::from_bytes(entry.name.as_bytes()))));
            }
            Ok(below)
        }
        FileKind::Symlink => {
            let target = shell.files.read_symlink(&shell.caller, attributes.id).await?;
            std::os::unix::fs::symlink(OsStr::from_bytes(&target), to)
                .with_context(|| format!("cannot make link {shown}"))?;
            Ok(Vec::new())
        }
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            eprintln!("tieline: {shown}: neither file, directory nor link: left out");
            Ok(Vec::new())
        }
    }
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
