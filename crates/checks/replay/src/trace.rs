//! What programs asked for, as `corpus/record.py` writes it.

use crate::shapes::shapes;
use crate::tree::{Kind, ROOT, Tree};
use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_types::Name;

/// One call of a program, about what has that number in the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Attributes by path.
    Stat(usize),
    /// The same of a name that is not in a directory.
    Missing(usize, Name),
    /// Opened, and so many bytes read.
    Read(usize, u64),
    /// Names of a directory, with attributes.
    List(usize),
    ReadLink(usize),
}

/// A program: its processes with their calls.
#[derive(Clone, Debug)]
pub struct Trace {
    pub name: String,
    pub tree: Arc<Tree>,
    /// How many processes run at once.
    pub lanes: usize,
    /// Between two calls of a process.
    pub pause: Duration,
    pub processes: Vec<Vec<Call>>,
}

impl Trace {
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.processes.iter().flatten()
    }

    /// Two programs at once: each in a tree of its own, side by side.
    pub fn both(name: &str, one: &Self, other: &Self) -> Self {
        let mut tree = Tree::default();
        let mut processes = vec![];
        for (part, trace) in ["one", "other"].iter().zip([one, other]) {
            let Ok(part) = part.parse() else { continue };
            let added = tree.graft(&part, &trace.tree);
            let calls = trace.calls().map(|call| call.moved(added)).collect();
            processes.push(calls);
        }
        let pause = one.pause.max(other.pause);
        Self { name: name.to_owned(), tree: Arc::new(tree), lanes: 2, pause, processes }
    }
}

impl Call {
    fn moved(&self, added: usize) -> Self {
        match self {
            Self::Stat(at) => Self::Stat(at + added),
            Self::Missing(at, name) => Self::Missing(at + added, name.clone()),
            Self::Read(at, bytes) => Self::Read(at + added, *bytes),
            Self::List(at) => Self::List(at + added),
            Self::ReadLink(at) => Self::ReadLink(at + added),
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    GzDecoder::new(file).read_to_string(&mut text)?;
    Ok(text)
}

/// Traces by their trees: which programs were recorded on which.
const RECORDED: &[(&str, &[&str])] = &[
    ("physics", &["import_physics", "import_other", "find_xargs"]),
    ("tools", &["import_tools", "pip_install"]),
    ("plots", &["import_plots"]),
    ("project", &["cmake_configure", "ninja_build", "make_build"]),
    ("work", &["git_status", "git_log", "git_grep", "git_checkout"]),
    ("texmf", &["latex"]),
    ("area", &["toolbox", "list_area"]),
    ("macros", &["macros"]),
];

/// All that was recorded, and two programs at once.
pub fn corpus() -> Result<Vec<Trace>> {
    let mut all = vec![];
    for (tree, names) in RECORDED {
        let tree = Arc::new(read_tree(&folder().join(format!("trees/{tree}.tree.gz")))?);
        for name in *names {
            let path = folder().join(format!("traces/{name}.trace.gz"));
            all.push(read_trace(name, &path, &tree)?);
        }
    }
    let named = |wanted: &str| all.iter().find(|one: &&Trace| one.name == wanted);
    if let (Some(one), Some(other)) = (named("import_tools"), named("git_status")) {
        let both = Trace::both("import_and_git", one, other);
        all.push(both);
    }
    Ok(all)
}

/// All programs: those that were recorded, and those of stated shapes.
pub fn all() -> Result<Vec<Trace>> {
    let mut all = corpus()?;
    all.extend(shapes(1)?);
    Ok(all)
}

fn read_tree(path: &Path) -> Result<Tree> {
    let (mut tree, mut folders) = (Tree::default(), BTreeMap::from([(String::new(), ROOT)]));
    let (mut at, mut prefix) = (ROOT, String::new());
    for line in text(path)?.lines() {
        if let Some(folder) = line.strip_prefix('/') {
            at = *folders.get(folder).with_context(|| format!("directory {folder}"))?;
            prefix = folder.to_owned();
            continue;
        }
        let (name, size) = line.split_once(' ').unwrap_or((line, ""));
        let kind = match size {
            "" => Kind::Directory,
            "@" => Kind::Symlink,
            size => Kind::File { size: size.parse()? },
        };
        let number = tree.add(at, &name.parse()?, kind);
        if kind == Kind::Directory {
            let way = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            folders.insert(way, number);
        }
    }
    Ok(tree)
}

fn read_trace(name: &str, path: &Path, tree: &Arc<Tree>) -> Result<Trace> {
    let text = text(path)?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [_, lanes, pause] = head[..] else { bail!("{name} is no trace") };
    let mut processes: Vec<Vec<Call>> = vec![];
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let call = match words[..] {
            ["p"] => {
                processes.push(vec![]);
                continue;
            }
            ["s", at] => Call::Stat(at.parse()?),
            ["x", at, name] => Call::Missing(at.parse()?, name.parse()?),
            ["o", at, bytes] => Call::Read(at.parse()?, bytes.parse()?),
            ["l", at] => Call::List(at.parse()?),
            ["k", at] => Call::ReadLink(at.parse()?),
            _ => bail!("{name}: what is {line}?"),
        };
        processes.last_mut().context("a call of no process")?.push(call);
    }
    Ok(Trace {
        name: name.to_owned(),
        tree: tree.clone(),
        lanes: lanes.parse()?,
        pause: Duration::from_micros(pause.parse()?),
        processes,
    })
}
