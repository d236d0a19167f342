//! `tieline ls`.

use crate::known;
use crate::shell::{self, Shell};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use tieline_base::location::Location;
use tieline_base::show;
use tieline_client::Listed;
use tieline_types::{Attributes, ErrorKind, FileId, FileKind};

/// Entries that are asked for at once.
const PAGE: usize = 1024;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Mode, links, owner, group, size and time too
    #[arg(short)]
    long: bool,
    /// Directories below, too
    #[arg(short = 'R')]
    recursive: bool,
    /// Directories themselves, not what is in them
    #[arg(short)]
    directory: bool,
    /// One JSON list of all entries
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.paths)?;
    if known::away(&first).is_some() {
        let mut listing = Listing { args, out: io::stdout().lock(), json: Vec::new(), parts: 0 };
        for location in &all {
            listing.show_known(location, all.len() > 1)?;
        }
        return listing.end();
    }
    shell::run(&first, |shell| async move {
        let mut listing = Listing { args, out: io::stdout().lock(), json: Vec::new(), parts: 0 };
        for location in &all {
            listing.show(&shell, location, all.len() > 1).await?;
        }
        listing.end()
    })
}

struct Listing<W> {
    args: Args,
    out: W,
    json: Vec<Value>,
    /// Directories shown so far.
    parts: usize,
}

impl<W: Write> Listing<W> {
    async fn show(&mut self, shell: &Shell, at: &Location, titled: bool) -> anyhow::Result<()> {
        let entry = shell.resolve(&at.path, !self.args.directory).await?;
        if !entry.attributes.is_directory() || self.args.directory {
            return self.line(&at.typed, &at.typed, &entry.attributes, None);
        }
        let mut todo = vec![(at.stem(), entry.attributes)];
        while let Some((path, directory)) = todo.pop() {
            if titled || self.args.recursive {
                self.title(&path)?;
            }
            let mut below = Vec::new();
            for listed in listed(shell, directory.id).await? {
                let (path, attributes, target) = self.complete(shell, &path, listed).await?;
                if self.args.recursive && attributes.is_directory() {
                    below.push((path.clone(), attributes.clone()));
                }
                self.line(&path, show::name_of(&path), &attributes, target)?;
            }
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// The same as the mount knows it.
    fn show_known(&mut self, at: &Location, titled: bool) -> anyhow::Result<()> {
        let Some(place) = known::path(at) else { return Ok(()) };
        let attributes = known::attributes(&place, !self.args.directory)?;
        if !attributes.is_directory() || self.args.directory {
            return self.line(&at.typed, &at.typed, &attributes, None);
        }
        let mut todo = vec![(at.stem(), place)];
        while let Some((path, place)) = todo.pop() {
            if titled || self.args.recursive {
                self.title(&path)?;
            }
            let mut below = Vec::new();
            for entry in known::names(&place)? {
                let name = entry.file_name().unwrap_or_default().as_bytes();
                let attributes = known::attributes(&entry, false)?;
                let path = [&path[..], name].join(&b'/');
                let target = (attributes.kind == FileKind::Symlink)
                    .then(|| entry.read_link().ok())
                    .flatten()
                    .map(|target| target.into_os_string().into_vec());
                self.line(&path, name, &attributes, target)?;
                if self.args.recursive && attributes.is_directory() {
                    below.push((path, entry));
                }
            }
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        if self.args.json {
            writeln!(self.out, "{}", Value::Array(self.json))?;
        }
        Ok(())
    }

    fn title(&mut self, path: &[u8]) -> anyhow::Result<()> {
        if !self.args.json {
            let gap = if self.parts > 0 { "\n" } else { "" };
            let line = [gap.as_bytes(), &show::printed(path), b":\n"].concat();
            self.out.write_all(&line)?;
        }
        self.parts += 1;
        Ok(())
    }

    async fn complete(
        &self,
        shell: &Shell,
        directory: &[u8],
        listed: Listed,
    ) -> anyhow::Result<(Vec<u8>, Attributes, Option<Vec<u8>>)> {
        let attributes = match listed.known {
            Some(known) => known.attributes,
            None => shell.files.attributes(&shell.caller, listed.id).await?.attributes,
        };
        let wants_target = self.args.long || self.args.json;
        let target = if attributes.kind == FileKind::Symlink && wants_target {
            Some(shell.files.read_symlink(&shell.caller, attributes.id).await?.to_vec())
        } else {
            None
        };
        Ok((show::below(directory, &listed.name), attributes, target))
    }

    fn line(
        &mut self,
        path: &[u8],
        name: &[u8],
        attributes: &Attributes,
        target: Option<Vec<u8>>,
    ) -> anyhow::Result<()> {
        if self.args.json {
            let mut value = show::attributes_json(path, attributes);
            if let Some(target) = target {
                value = show::with_bytes(value, "target", &target);
            }
            self.json.push(value);
            return Ok(());
        }
        if self.args.long {
            write!(
                self.out,
                "{} {:>3} {:>6} {:>6} {:>12} {} ",
                show::mode(attributes),
                attributes.links,
                attributes.uid,
                attributes.gid,
                attributes.size,
                attributes.mtime,
            )?;
        }
        let mut line = show::printed(name).into_owned();
        if let Some(target) = target.filter(|_| self.args.long) {
            line = [&line[..], b" -> ", &show::printed(&target)].concat();
        }
        line.push(b'\n');
        Ok(self.out.write_all(&line)?)
    }
}

/// All entries of a directory, by name.
pub async fn listed(shell: &Shell, directory: FileId) -> anyhow::Result<Vec<Listed>> {
    let handle = shell.files.open_directory(&shell.caller, directory).await?;
    let mut all: Vec<Listed> = Vec::new();
    let end = loop {
        let from = all.last().map_or(0, |last| last.next);
        match shell.files.read_directory(handle, from, PAGE, true).await {
            Ok(page) if page.is_empty() => break Ok(()),
            Ok(page) => all.extend(page),
            Err(error) => break Err(error),
        }
    };
    shell.files.release_directory(handle).await;
    end?;
    // Of directories in which another client works alone only names are told.
    for one in all.iter_mut().filter(|one| one.known.is_none()) {
        if one.id.mdt() == directory.mdt() {
            match shell.files.attributes(&shell.caller, one.id).await {
                Ok(known) => one.known = Some(known),
                // Gone meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::Stale => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}
