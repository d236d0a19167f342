//! Repositories in CVMFS's format, for tests: made by the program or by a maker that is not ours,
//! and judged by a reader that is not ours either (`published/check.py`, which needs Python and
//! openssl alone).

use crate::{Federation, program};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const NAME: &str = "sw.example.org";

const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/published/check.py");
const FOREIGN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/published/foreign.py");

/// A repository on this machine, and the tree that is published in it.
pub struct Published<'l> {
    lab: &'l Federation,
    pub tree: PathBuf,
    pub storage: PathBuf,
    keys: PathBuf,
}

/// What a catalog can hold: files of no, one and several pieces, names of all kinds, links of both
/// kinds, times, owners, modes, attributes, special files, and two nested catalogs.
const TREE: &str = r#"
    mkdir -p lib/deep nested/inner links large
    printf hello > 'two words'; : > empty; printf x > 'grüße-日本'; printf '#!/bin/sh\n' > run
    chmod 755 run; chmod 600 empty; touch -d '2001-02-03 04:05:06.123456789 UTC' run
    printf deep > lib/deep/file; : > nested/.cvmfscatalog; printf n > nested/n
    : > nested/inner/.cvmfscatalog; seq 1000 > nested/inner/numbers
    printf one > links/one; ln links/one links/other; ln -s ../lib/deep/file links/there
    ln -s nowhere links/dangling; mkfifo links/fifo
    head -c 8388608 /dev/urandom > large/whole
    (head -c 8388608 /dev/urandom; printf z) > large/pieces
    head -c 20000000 /dev/zero > large/zeroes
    setfattr -n user.color -v blue run; setfattr -n user.empty nested"#;

impl<'l> Published<'l> {
    /// A tree, and a repository in which nothing but the first, empty revision is.
    pub fn new(lab: &'l Federation, how: &[&str]) -> Result<Self> {
        let made = Self::beside(lab, "");
        let (keys, storage) = (text(&made.keys)?, text(&made.storage)?);
        let create = ["repo", "create", NAME, "--keys", keys, "--storage", storage];
        lab.tieline(&[&create[..], how].concat())?;
        Ok(made)
    }

    /// The same tree in a repository of another maker.
    pub fn foreign(
        lab: &'l Federation,
        (algorithm, revision): (&str, &str),
        more: &[&str],
    ) -> Result<Self> {
        let made = Self::beside(lab, &format!("-{algorithm}-{revision}"));
        made.fill()?;
        let mut command = Command::new("python3");
        command.args([FOREIGN, text(&made.tree)?, text(&made.storage)?, NAME, text(&made.keys)?]);
        command.args([algorithm, revision]).args(more);
        program::finish(&mut command, program::DEADLINE)?.succeed("foreign.py")?;
        Ok(made)
    }

    fn beside(lab: &'l Federation, end: &str) -> Self {
        let at = |what: &str| lab.local(&format!("{what}{end}"));
        Self { lab, tree: at("tree"), storage: at("srv").join(NAME), keys: at("keys") }
    }

    /// The tree as it is at first.
    pub fn fill(&self) -> Result<()> {
        fs::create_dir_all(&self.tree)?;
        program::shell(&self.tree, TREE)?;
        Ok(())
    }

    /// The next revision, from what lies in a directory or is named by a URL.
    pub fn publish_from(&self, source: &str, how: &[&str]) -> Result<Value> {
        let words = ["repo", "publish", "--json", "--storage", text(&self.storage)?, NAME, source];
        Ok(serde_json::from_str(&self.lab.tieline(&[&words[..], how].concat())?)?)
    }

    pub fn publish(&self) -> Result<Value> {
        self.publish_from(text(&self.tree)?, &[])
    }

    pub fn public_key(&self) -> PathBuf {
        self.keys.join(format!("{NAME}.pub"))
    }

    /// What a reader that is not ours says of it: all signatures, digests and numbers hold, and it
    /// is what the tree is, if one is named.
    pub fn check(&self, tree: Option<&Path>) -> Result<Value> {
        let mut command = Command::new("python3");
        command.args([CHECK, text(&self.storage)?]).arg(self.public_key()).arg(NAME).args(tree);
        let run = program::finish(&mut command, program::DEADLINE)?;
        Ok(serde_json::from_str(&run.succeed("check.py")?)?)
    }

    /// What mounts it alone from where it lies.
    pub fn options(&self) -> String {
        format!("url=file://{},{}", self.storage.display(), self.key_option())
    }

    pub fn key_option(&self) -> String {
        format!("pubkey={}", self.public_key().display())
    }

    /// Stock programs of CVMFS, where somebody named them.
    pub fn check_with_peer(&self) -> Result<()> {
        let Some(folder) = std::env::var_os("CVMFS_PEER_BIN") else {
            eprintln!("NOT RUN: programs of CVMFS itself (CVMFS_PEER_BIN names no folder of them)");
            return Ok(());
        };
        let checker = PathBuf::from(folder).join("cvmfs_swissknife");
        let mut command = Command::new(checker);
        command.args(["check", "-c", "-r", text(&self.storage)?, "-N", NAME, "-k"]);
        command.arg(self.public_key()).args(["-t", "/tmp"]);
        program::finish(&mut command, program::DEADLINE)?.succeed("cvmfs_swissknife check")?;
        Ok(())
    }
}

/// A repository that is mounted alone, as long as this lives.
pub struct Alone<'l> {
    lab: &'l Federation,
    pub path: PathBuf,
    pub log: PathBuf,
}

impl<'l> Alone<'l> {
    pub fn mount(lab: &'l Federation, options: &str) -> Result<Self> {
        let (path, log) = Self::places(lab);
        Self::try_mount(lab, options)?.succeed("tieline mount")?;
        Ok(Self { lab, path, log })
    }

    /// It is not: says why.
    pub fn refused(lab: &Federation, options: &str) -> Result<String> {
        let run = Alone::try_mount(lab, &format!("{options},interactive"))?;
        ensure!(!run.status.success(), "{run:?}");
        Ok(run.stderr)
    }

    fn places(lab: &Federation) -> (PathBuf, PathBuf) {
        (lab.local("alone"), lab.local("published.log"))
    }

    fn try_mount(lab: &Federation, options: &str) -> Result<program::Run> {
        let (path, log) = Self::places(lab);
        fs::create_dir_all(&path)?;
        let options = format!("{options},log={}", log.display());
        lab.try_tieline(&["mount", NAME, text(&path)?, "-o", &options])
    }

    pub fn logged(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let _ = self.lab.umount(&self.path);
    }
}

/// Everything that `find` and `diff` can tell of two trees is the same. `how`: what of a time.
pub fn same(one: &Path, other: &Path, time: &str) -> Result<()> {
    let (left, right) = (one.display(), other.display());
    let but_fifos = "grep -v ' is a fifo while ' && exit 1 || true";
    let diff = format!("diff -r --no-dereference '{left}' '{right}' | {but_fifos}");
    program::shell(one, &diff)?;
    let list = format!("find . ! -type d -printf '%p %y %m %s %l %U:%G {time} %n\\n' | sort");
    let directories = format!("find . -type d -printf '%p %y %m %U:%G {time} %n\\n' | sort");
    let xattrs = "find . -type f -o -type d | sort | xargs -d '\\n' getfattr -h -d 2>/dev/null";
    for told in [&list[..], &directories, xattrs] {
        let (there, here) = (program::shell(one, told)?, program::shell(other, told)?);
        ensure!(there == here, "{one:?}:\n{there}\n{other:?}:\n{here}");
    }
    Ok(())
}

pub fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of the lab is text")
}
