//! `tieline project`: which project a directory tree is of, for quotas.
//!
//! What is made in a directory is of its project; what is there already is changed by walking it.
//! The words of `lfs project` do the same: `-p ID -s [-r]`, `-C [-r]`, `-d`, and `-c [-r] [-p ID]`,
//! which names what is not of the project.

use crate::list;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_base::show;
use tieline_types::{Attributes, FileId};
use tieline_wire::quotas::SetProject;

/// Files in one call.
const BATCH: usize = 256;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The project's number
    #[arg(short = 'p', value_name = "ID")]
    project: Option<u32>,
    /// What is made in it from now on is of the project too (it always is)
    #[arg(short = 's')]
    inherits: bool,
    /// All that is below it
    #[arg(short = 'r')]
    recursive: bool,
    /// Take it out of its project
    #[arg(short = 'C')]
    clear: bool,
    /// Name what is not of the project: the directory's own, unless -p says which
    #[arg(short = 'c', conflicts_with_all = ["clear", "inherits"])]
    check: bool,
    /// Show the project
    #[arg(short = 'd')]
    show: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    path: Option<OsString>,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Put a directory and all below it into a project
    Set { path: OsString, id: u32 },
    /// Show the project of files
    Show { path: OsString },
    /// Take a directory and all below it out of its project
    Clear { path: OsString },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.verb {
        Some(Verb::Set { path, id }) => set(&path, id, true),
        Some(Verb::Clear { path }) => set(&path, 0, true),
        Some(Verb::Show { path }) => tell(&path),
        None => {
            let path = args.path.ok_or_else(|| Usage("which directory?".into()))?;
            if args.check {
                return check(&path, args.project, args.recursive);
            }
            match (args.clear, args.project) {
                (true, None) => set(&path, 0, args.recursive),
                (false, Some(id)) => set(&path, id, args.recursive),
                (false, None) => tell(&path),
                (true, Some(_)) => Err(Usage("either -C or -p".into()).into()),
            }
        }
    }
}

fn tell(path: &OsString) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(path)?;
    let (shown, inner) = (location.typed.clone(), location.path.clone());
    shell::run(&location, |shell| async move {
        let found = shell.resolve(&inner, true).await?.attributes;
        let project = format!("{:>10} ", found.project.unwrap_or(0));
        let line = [project.as_bytes(), &show::printed(&shown), b"\n"].concat();
        Ok(io::stdout().write_all(&line)?)
    })
}

/// Names what is of another project; exit code 1 if there is any.
fn check(path: &OsString, project: Option<u32>, is_tree: bool) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(path)?;
    let (stem, inner) = (location.stem(), location.path.clone());
    let others = shell::run(&location, |shell| async move {
        let top = shell.resolve(&inner, true).await?.attributes;
        let wanted = project.unwrap_or(top.project.unwrap_or(0));
        let mut out = io::stdout().lock();
        let mut others = 0;
        let mut left = vec![(stem, top, 0)];
        while let Some((path, attributes, depth)) = left.pop() {
            let found = attributes.project.unwrap_or(0);
            if found != wanted {
                others += 1;
                let line = format!(" - project {found}, not {wanted}\n");
                out.write_all(&[&show::printed(&path)[..], line.as_bytes()].concat())?;
            }
            if !attributes.is_directory() || !(is_tree || depth == 0) {
                continue;
            }
            for one in list::listed(&shell, attributes.id).await? {
                // What is mounted there keeps its own quotas.
                let Some(known) = one.known.filter(|_| one.id.mdt() == attributes.id.mdt()) else {
                    continue;
                };
                left.push((show::below(&path, &one.name), known.attributes, depth + 1));
            }
        }
        Ok(others)
    })?;
    match others {
        0 => Ok(()),
        count => bail!("{count} are of another project: `tieline project set` puts that right"),
    }
}

fn set(path: &OsString, project: u32, is_tree: bool) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(path)?;
    let (shown, inner) = (location.text.clone(), location.path.clone());
    shell::run(&location, |shell| async move {
        let found = shell.resolve(&inner, true).await?.attributes;
        set_below(&shell, found, project, is_tree)
            .await
            .with_context(|| format!("cannot set the project of {shown}"))
    })
}

/// Directories first, so that what is made meanwhile is of the project.
async fn set_below(
    shell: &Shell,
    top: Attributes,
    project: u32,
    is_tree: bool,
) -> anyhow::Result<()> {
    put(shell, &[top.id], project).await?;
    let mut left = vec![top];
    while let Some(directory) = left.pop().filter(|_| is_tree) {
        if !directory.is_directory() {
            continue;
        }
        let mut ids = Vec::new();
        for one in list::listed(shell, directory.id).await? {
            // What is mounted there keeps its own quotas.
            let Some(known) = one.known.filter(|_| one.id.mdt() == directory.id.mdt()) else {
                continue;
            };
            ids.push(one.id);
            left.push(known.attributes);
        }
        for ids in ids.chunks(BATCH) {
            put(shell, ids, project).await?;
        }
    }
    Ok(())
}

async fn put(shell: &Shell, ids: &[FileId], project: u32) -> anyhow::Result<()> {
    let Some(&first) = ids.first() else { return Ok(()) };
    let message = SetProject { ids: ids.to_vec(), project };
    shell.volume.ask_of_mdt(&shell.caller, first, message).await?;
    Ok(())
}
