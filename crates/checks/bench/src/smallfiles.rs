//! Recorded programs on a mount at a distance: on a tree that nobody has used, that another client
//! used, that three did, that ten other programs were on, also after the first, and the same client
//! again.
//!
//! The programs are those of `tieline_replay`, where line and time are a model. Here the kernel,
//! the servers and the line are real ones. Each turn has a tree of its own, and fresh clients.
//!
//! * [`played`]: a tree on a file system, and a program on it.

pub mod played;

use crate::Settings;
use crate::figure::{Figure, Goal, Unit};
use crate::line::{self, Line};
use crate::sweep::Gathered;
use anyhow::{Context, Result, ensure};
use played::{Played, make, play};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_lab::Federation;
use tieline_replay::shapes::stranger;
use tieline_replay::trace::{Trace, all};

const NEAR: &str = "0.2";
const FAR: &str = "50";
/// Played unless others are named.
const USUAL: [&str; 4] = ["bursts", "import_physics", "git_status", "ninja_build"];
/// Clients tell what they saw within this.
const TOLD: Duration = Duration::from_secs(5);
const STRANGERS: u64 = 10;

/// Who used the tree before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum History {
    Never,
    Once,
    Thrice,
    Ten,
    /// Once by another, and by ten other programs since.
    OnceAndTen,
    /// By this very client.
    Again,
    /// By this very client, which was unmounted since.
    Back,
}

impl History {
    fn text(self) -> &'static str {
        match self {
            Self::Never => "never used",
            Self::Once => "used once by another",
            Self::Thrice => "used by three others",
            Self::Ten => "used by ten other programs",
            Self::OnceAndTen => "used once by another, then by ten other programs",
            Self::Again => "again",
            Self::Back => "again, mounted anew",
        }
    }

    /// What it may take at most, where that was said, beside what it takes on the local disk.
    fn goal(self, program: &str, local: f64) -> Option<f64> {
        let is_build = ["ninja_build", "make_build", "cmake_configure"].contains(&program);
        let is_import = program.starts_with("import_");
        Some(match self {
            Self::Once | Self::OnceAndTen if program == "bursts" => 2.6,
            Self::Never if program == "bursts" => 8.0,
            Self::Once | Self::OnceAndTen if is_import => local + 2.0,
            Self::Never if is_import => local + 5.0,
            Self::Again if is_import => local + 0.2,
            Self::Once | Self::OnceAndTen if is_build => 1.5 * local + 3.0,
            Self::Never if is_build => 1.5 * local + 10.0,
            Self::Back => local + 0.5,
            _ => return None,
        })
    }
}

pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    let all = all()?;
    let names: Vec<&str> = match &settings.programs[..] {
        [] => USUAL.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    for name in &names {
        ensure!(all.iter().any(|one| one.name == *name), "no program is called {name}");
    }
    let federation = Federation::start(&settings.over_a_line(&["--rate", line::RATE]))?;
    let line = Line::of(&federation)?;
    for trace in all.iter().filter(|one| names.contains(&one.name.as_str())) {
        eprintln!("measuring: {}", trace.name);
        let is_beside =
            |other: &&Trace| Arc::ptr_eq(&other.tree, &trace.tree) && other.name != trace.name;
        let others = all.iter().filter(is_beside).collect();
        let program = Program { federation: &federation, line: &line, trace, others };
        to.keep_if_measured(&trace.name, program.measure(settings));
    }
    federation.down()
}

struct Program<'p> {
    federation: &'p Federation,
    line: &'p Line<'p>,
    trace: &'p Trace,
    /// Others on the same tree.
    others: Vec<&'p Trace>,
}

impl Program<'_> {
    fn measure(&self, settings: &Settings) -> Result<Vec<Figure>> {
        let folder = tempfile::tempdir_in(&settings.local)?;
        make(&self.trace.tree, folder.path())?;
        play(self.trace, folder.path())?;
        let (mut local, mut far) = (vec![], BTreeMap::<History, Vec<f64>>::new());
        for turn in 0..settings.turns.max(1) {
            local.push(play(self.trace, folder.path())?.took.as_secs_f64());
            let used = self.fresh(&format!("{}-{turn}", self.trace.name))?;
            for (history, played) in self.one_after_the_other(&used)? {
                let took = played.took.as_secs_f64();
                eprintln!("{}: {took:.2} s, {} calls waited", history.text(), played.waits);
                far.entry(history).or_default().push(took);
            }
        }
        let of_local = local.iter().copied().fold(f64::INFINITY, f64::min);
        let figure = |(history, took): (History, Vec<f64>)| {
            let name = format!("{}, {FAR} ms, {}", self.trace.name, history.text());
            let figure =
                Figure::of_turns(name, Unit::Seconds, took, vec![("local", local.clone())]);
            match history.goal(&self.trace.name, of_local) {
                Some(goal) => figure.with_goal(Goal::Value(goal)),
                None => figure,
            }
        };
        Ok(far.into_iter().map(figure).collect())
    }

    /// A tree that nobody has used, by its place below a mount.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        self.line.set_rtt(NEAR)?;
        let tree = self.federation.mount().join(name);
        std::fs::create_dir(&tree)?;
        make(&self.trace.tree, &tree)?;
        self.federation.tieline(&["sync".as_ref(), tree.as_os_str()])?;
        self.line.set_rtt(FAR)?;
        Ok(name.into())
    }

    fn one_after_the_other(&self, tree: &Path) -> Result<Vec<(History, Played)>> {
        let first = self.federation.mount_again()?;
        let mut found = vec![(History::Never, self.play_at(&first, tree)?)];
        std::thread::sleep(TOLD);
        found.push((History::Again, self.play_at(&first, tree)?));
        for history in [Some(History::Once), None, Some(History::Thrice)] {
            let other = self.federation.mount_again()?;
            let played = self.play_at(&other, tree)?;
            found.extend(history.map(|history| (history, played)));
            std::thread::sleep(TOLD);
            self.federation.unmount(&other)?;
        }
        self.federation.unmount(&first)?;
        self.federation.mount_back(&first)?;
        found.push((History::Back, self.play_at(&first, tree)?));
        self.federation.unmount(&first)?;
        let strange = self.fresh(&format!("{}-strange", tree.display()))?;
        for history in [History::Ten, History::OnceAndTen] {
            self.use_otherwise(&strange)?;
            let other = self.federation.mount_again()?;
            found.push((history, self.play_at(&other, &strange)?));
            self.federation.unmount(&other)?;
        }
        Ok(found)
    }

    fn play_at(&self, mount: &Path, tree: &Path) -> Result<Played> {
        play(self.trace, &mount.join(tree)).with_context(|| mount.display().to_string())
    }

    /// Ten others use the tree, near by.
    fn use_otherwise(&self, tree: &Path) -> Result<()> {
        self.line.set_rtt(NEAR)?;
        let strangers: Vec<Trace> =
            (0..STRANGERS).map(|seed| stranger(&self.trace.tree, seed)).collect();
        let mut mounts = vec![];
        for other in self.others.iter().copied().chain(&strangers).take(STRANGERS as usize) {
            let mount = self.federation.mount_again()?;
            play(other, &mount.join(tree))?;
            mounts.push(mount);
        }
        std::thread::sleep(TOLD);
        mounts.iter().try_for_each(|mount| self.federation.unmount(mount))?;
        self.line.set_rtt(FAR)
    }
}
