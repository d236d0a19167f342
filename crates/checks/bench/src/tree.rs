//! A tree of sources over a distance: unpacked by `tar`, and looked through by `git status`, beside
//! the local file system.
//!
//! The tree is one that is made up (a build's, [`scram`]), or comes in an archive that is given.
//! Git's own folder is made beside it, in one pack, and copied as it is: so the first `git status`
//! there finds an index of another place and reads every file. What counts are those after it, of
//! a client that has seen nothing (cold), and again (warm).

use crate::Settings;
use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::line::{self, Line};
use crate::programs::run;
use crate::scram;
use crate::sweep::{Gathered, RTT};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tieline_lab::{Federation, can_emulate_lines};

/// The goals speak of a kernel's tree, so they hold for what is given only.
const STATUS_GOAL: f64 = 5.0;
const UNPACK_GOAL: (f64, f64) = (3.0, 5.0);
/// Nobody in particular, who commits. Objects are packed when that is asked for, and need not
/// outlive a power failure.
const GIT: [&str; 4] =
    ["user.name=bench", "user.email=bench@localhost", "gc.auto=0", "core.fsync=none"];

/// Measures it; nothing where lines cannot be emulated.
pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let local = tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(&settings.local)?;
    let sources = Sources::new(settings, local.path())?;
    let words = ["--sites", "uf", "--rtt", "50ms", "--rate", line::RATE];
    let federation = Federation::start(&settings.over_a_line(&words))?;
    let measured = Line::of(&federation).map(|line| {
        for rtt in RTT.values(settings) {
            eprintln!("measuring: a tree of sources at {rtt} ms");
            let measured = line.set_rtt(rtt).and_then(|()| sources.measure(&federation, rtt));
            to.keep_if_measured(&format!("tree at {rtt} ms"), measured);
        }
    });
    federation.down()?;
    measured
}

struct Sources {
    archive: PathBuf,
    /// Unpacked, with git's folder if there is git.
    local: PathBuf,
    /// A place for unpacking again.
    again: PathBuf,
    has_git: bool,
    is_given: bool,
}

impl Sources {
    fn new(settings: &Settings, folder: &Path) -> Result<Self> {
        let (local, again) = (folder.join("tree"), folder.join("again"));
        std::fs::create_dir(&local)?;
        let archive = match &settings.tar {
            Some(archive) => archive.canonicalize()?,
            None => {
                let made = folder.join("made");
                scram::make(&made, 1)?;
                run(&made, "tar", &["-cf", "../made.tar", "."])?;
                std::fs::remove_dir_all(&made)?;
                folder.join("made.tar")
            }
        };
        let has_git = Command::new("git").arg("--version").output().is_ok();
        let is_given = settings.tar.is_some();
        let sources = Self { archive, local, again, has_git, is_given };
        sources.unpack(&sources.local)?;
        if has_git {
            let commit = [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "all"]];
            for words in commit.into_iter().chain([&["repack", "-adq"][..]]) {
                let settings = GIT.iter().flat_map(|setting| ["-c", setting]);
                let words: Vec<_> = settings.chain(words.iter().copied()).collect();
                run(&sources.local, "git", &words)?;
            }
        } else {
            eprintln!("`git status` is not measured: there is no git");
        }
        Ok(sources)
    }

    fn measure(&self, federation: &Federation, rtt: &'static str) -> Result<Vec<Figure>> {
        let name = format!("tree-{rtt}");
        let tree = federation.mount().join(&name);
        let far = || -> Result<f64> {
            std::fs::create_dir(&tree)?;
            self.unpack(&tree)
        };
        let near = || -> Result<f64> {
            std::fs::create_dir(&self.again)?;
            let seconds = self.unpack(&self.again)?;
            std::fs::remove_dir_all(&self.again)?;
            Ok(seconds)
        };
        let unpacked = take_turns(
            format!("tar x of sources, {rtt} ms"),
            Unit::Seconds,
            1,
            Box::new(far),
            vec![("local", Box::new(near))],
        )?;
        let (times, more) = UNPACK_GOAL;
        let local = unpacked.references.first().map_or(0.0, |local| local.value.median);
        let unpacked = self.with_goal(unpacked, times * local + more);
        let mut figures = vec![RTT.place(unpacked, "tar-by-distance", "tar x", rtt)];
        if !self.has_git {
            return Ok(figures);
        }
        let git = self.local.join(".git");
        run(&tree, "cp", &["-a", &git.to_string_lossy(), "."])?;
        status(&tree)?;
        federation.tieline(&["sync".as_ref(), tree.as_os_str()])?;
        let mount = federation.mount_again()?;
        // What `git` writes down of a first look is there for the second.
        status(&self.local)?;
        for series in ["cold", "warm"] {
            let figure = take_turns(
                format!("git status, {rtt} ms, {series}"),
                Unit::Seconds,
                1,
                Box::new(|| status(&mount.join(&name))),
                vec![("local", Box::new(|| status(&self.local)))],
            )?;
            // How it is when it is cold no goal says.
            let figure = match series {
                "warm" => self.with_goal(figure, STATUS_GOAL),
                _ => figure,
            };
            figures.push(RTT.place(figure, "git-status-by-distance", series, rtt));
        }
        federation.unmount(&mount)?;
        Ok(figures)
    }

    fn with_goal(&self, figure: Figure, seconds: f64) -> Figure {
        if self.is_given { figure.with_goal(Goal::Value(seconds)) } else { figure }
    }

    fn unpack(&self, folder: &Path) -> Result<f64> {
        // What others left to the disk is not to be waited for.
        rustix::fs::sync();
        let start = Instant::now();
        run(folder, "tar", &["-xf", &self.archive.to_string_lossy()])?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Seconds; nothing has changed, and git sees that.
fn status(tree: &Path) -> Result<f64> {
    let start = Instant::now();
    let changed = run(tree, "git", &["status", "--porcelain"])?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(changed.is_empty(), "{} has changed: {changed}", tree.display());
    Ok(seconds)
}
