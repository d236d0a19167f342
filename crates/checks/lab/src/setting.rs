//! Where a test of two clients runs: in which site's tree, how far from it, and whether
//! connections are proven.
//!
//! `make test` runs each such test once, in the setting that is worst for it;
//! `cargo xtask lab --matrix` runs it in all eight.

use crate::federation::{Federation, Plan, with_plan};
use crate::{can_emulate_lines, has_kdc};
use anyhow::{Context, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// Set by `cargo xtask lab --matrix`.
const MATRIX: &str = "TIELINE_MATRIX";

/// Whose metadata server holds the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// MDT0000, at whose root the file system is mounted.
    Root,
    /// MDT0001, at a junction below it.
    Junction,
}

/// How far the servers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    Near,
    /// 50 ms there and back.
    Far,
}

/// What proves who is who.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    Null,
    Kerberos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    pub tree: Tree,
    pub line: Line,
    pub proof: Proof,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tree, line, proof } = self;
        write!(f, "tree: {tree:?}, line: {line:?}, proof: {proof:?}")
    }
}

/// Two clients of one federation, and a directory of their own in the setting's tree.
pub struct Pair<'a> {
    pub lab: &'a Federation,
    pub setting: Setting,
    /// The directory as each of them has it.
    pub here: PathBuf,
    pub there: PathBuf,
}

impl Setting {
    pub const NEAR: Self = Self { tree: Tree::Root, line: Line::Near, proof: Proof::Null };
    /// Every message costs most, and each needs a right.
    pub const FAR: Self = Self { tree: Tree::Junction, line: Line::Far, proof: Proof::Kerberos };

    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        let proofs = [Proof::Null, Proof::Kerberos].into_iter();
        let lines = proofs.flat_map(|proof| [Line::Near, Line::Far].map(|line| (line, proof)));
        lines.flat_map(|(line, proof)| {
            [Tree::Root, Tree::Junction].map(|tree| Self { tree, line, proof })
        })
    }

    /// Runs `test` here, or, if the whole matrix is wanted, in every setting. `words` are more
    /// arguments for `dev up`.
    pub fn run(self, words: &[&str], test: impl Fn(&Pair<'_>) -> Result<()>) -> Result<()> {
        if std::env::var_os(MATRIX).is_none() {
            return self.run_once(words, test);
        }
        for setting in Self::all() {
            eprintln!("{setting}");
            setting.run_once(words, &test)?;
        }
        Ok(())
    }

    /// Runs `test` here, whatever else is wanted.
    pub fn run_once(self, words: &[&str], test: impl Fn(&Pair<'_>) -> Result<()>) -> Result<()> {
        let (is_far, is_proven) = (self.line == Line::Far, self.proof == Proof::Kerberos);
        if is_far && !can_emulate_lines() || is_proven && !has_kdc() {
            return Ok(());
        }
        let mut all = words.to_vec();
        if is_far {
            all.extend(["--netns", "--rtt", "50ms"]);
        }
        let plan = if is_proven {
            all.push("--kerberos");
            Plan::proven(&all)
        } else {
            Plan::of(&all)
        };
        let outcome = with_plan(&plan, |lab| {
            let there = lab.mount_again()?;
            let place = |mount: &Path| match self.tree {
                Tree::Root => mount.join("pair"),
                Tree::Junction => mount.join("fnal/pair"),
            };
            let (here, there) = (place(lab.mount()), place(&there));
            std::fs::create_dir(&here)?;
            test(&Pair { lab, setting: self, here, there })
        });
        outcome.with_context(|| format!("in the setting {self}"))
    }
}
