//! `tieline image build`: from packages to an image, in one reading.

use crate::about::{self, About};
use crate::root::{self, Recipe};
use crate::tools::{self, Need, Runner};
use crate::work::Work;
use crate::{disk, overlay, places, secrets};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What all files in the root carry as their time, so that two builds are alike, unless
/// SOURCE_DATE_EPOCH says another: 2026-01-01.
const EPOCH: u64 = 1_767_225_600;
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// How much is in an image.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The kernel, systemd, Kerberos, FUSE and this program
    Client,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
        }
    }
}

/// What is made of the root.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// No disk: the root as a tar, which is made in any case
    Tar,
    /// A disk as it is, with holes
    Raw,
    /// A disk as QEMU has it, packed with zstd
    Qcow2,
}

#[derive(clap::Args, Debug)]
pub struct Build {
    /// How much is in it
    #[arg(long, value_enum, default_value = "client")]
    pub level: Level,
    /// What to make of it
    #[arg(long, value_enum, value_delimiter = ',', default_value = "raw,qcow2")]
    pub format: Vec<Format>,
    /// The image's folder; by default ~/.local/share/tieline/images/LEVEL
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Keep the Debian part in this folder, and take it from there if it is the same recipe's. What
    /// is kept gets no updates: remove it for those
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Another mirror of Debian: its URL, or a line of sources.list; as often as needed
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// More packages
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub package: Vec<String>,
    /// The program to put in, by default this one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
}

pub fn run(args: &Build) -> anyhow::Result<()> {
    let begun = Instant::now();
    if !rustix::process::geteuid().is_root() {
        bail!("an image's files belong to root and to its users: run this as root");
    }
    check(args)?;
    let place = places::image(args.output.as_deref(), args.level.name())?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program: give --program")?,
    };
    let recipe = Recipe {
        mirrors: args.mirror.clone(),
        packages: checked_names(&args.package)?,
        epoch: epoch()?,
    };
    let work = Work::begin(&place)?;
    let base = root::tar(&recipe, args.keep.as_deref(), &work)?;
    let out = work.path().join("image");
    fs::create_dir(&out)?;
    make(args, &recipe, &base, &program, &work, &out)?;
    work.publish("image", &place, about::is_image)?;
    println!("{} in {} s:", place.display(), begun.elapsed().as_secs());
    for name in [about::ROOT, about::RAW, about::QCOW2] {
        if place.join(name).exists() {
            println!("  {name:<10} {}", disk::shown_size(&place.join(name))?);
        }
    }
    Ok(())
}

/// Everything that the image's folder holds.
fn make(
    args: &Build,
    recipe: &Recipe,
    base: &Path,
    program: &Path,
    work: &Work,
    out: &Path,
) -> anyhow::Result<()> {
    let runner = Runner { log: work.path().join("log") };
    let tree = work.path().join("tree");
    root::unpack(base, &tree, &runner)?;
    let version = overlay::add(&tree, program, &runner)?;
    secrets::search(&tree)?;
    let packages = overlay::packages(&tree)?;
    fs::write(out.join(about::PACKAGES), &packages)?;
    let boot = disk::Boot::find(&tree)?;
    fs::copy(&boot.kernel, out.join(about::KERNEL))?;
    root::pack(&tree, &out.join(about::ROOT), recipe.epoch, &runner)?;
    let raw = out.join(about::RAW);
    if has_disk(args) {
        println!("making the disk");
        disk::make(&tree, &raw, work.path(), &runner)?;
    }
    if args.format.contains(&Format::Qcow2) {
        println!("making the qcow2, and comparing it with the raw disk");
        disk::to_qcow2(&raw, &out.join(about::QCOW2), &runner)?;
    }
    if !args.format.contains(&Format::Raw) && raw.exists() {
        fs::remove_file(&raw)?;
    }
    let mut files = std::collections::BTreeMap::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, about::digest(&entry.path())?);
    }
    let about = About {
        format: About::FORMAT,
        level: args.level.name().to_owned(),
        tieline: version,
        suite: root::SUITE.to_owned(),
        kernel: boot.version,
        packages: packages.lines().count(),
        epoch: recipe.epoch,
        files,
    };
    about.write(out)
}

fn has_disk(args: &Build) -> bool {
    args.format.iter().any(|&format| format != Format::Tar)
}

/// Before anything is begun.
fn check(args: &Build) -> anyhow::Result<()> {
    let mut needs: Vec<Need> = vec![tools::TAR, tools::DPKG_QUERY];
    needs.extend(root::NEEDS);
    needs.extend(overlay::NEEDS);
    if has_disk(args) {
        needs.extend(disk::NEEDS);
    }
    if args.format.contains(&Format::Qcow2) {
        needs.push(tools::QEMU_IMG);
    }
    tools::check(&needs)
}

/// Names of packages as Debian has them: nothing that mmdebstrap would take for an option.
fn checked_names(names: &[String]) -> anyhow::Result<Vec<String>> {
    let is_name = |name: &str| {
        let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        name.starts_with(letters) && name.chars().all(|c| letters(c) || "+-.:=~_".contains(c))
    };
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => {
            Err(tieline_base::report::usage(format!("--package: `{name}` is no package")))
        }
        None => Ok(names.to_vec()),
    }
}

fn epoch() -> anyhow::Result<u64> {
    match std::env::var(EPOCH_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{EPOCH_VARIABLE}={text}: seconds")),
        Err(_) => Ok(EPOCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_names_and_nothing_else() {
        let names = |list: &[&str]| {
            checked_names(&list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
        };
        assert!(names(&["vim-tiny", "g++", "libc6:amd64", "root=1.2~b"]).is_ok());
        for wrong in ["", "--mode=fakeroot", "a b", "A", "a,b", "../x"] {
            assert!(names(&[wrong]).is_err(), "{wrong}");
        }
    }
}
