//! Programs of stated shapes, on a tree of a stated shape. The same seed makes the same.

use crate::trace::{Call, Trace};
use crate::tree::{Kind, ROOT, Tree};
use anyhow::Result;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Directories of the tree, ten in a package, and files of each.
const DIRECTORIES: usize = 1000;
const FILES: usize = 9;
/// Sizes are log-normal.
const MEDIAN: f64 = 4096.0;
const SIGMA: f64 = 1.4;
/// Of a thousand files so many are libraries, of 1 to 5 MiB.
const LIBRARIES: u64 = 7;
const PAUSE: Duration = Duration::from_micros(50);
/// Calls of a program that reads here and there.
const READS: usize = 400;

/// SplitMix64.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The tree, its directories, and a file of each in which the symlinks are.
pub struct Ground {
    pub tree: Arc<Tree>,
    pub directories: Vec<usize>,
}

impl Ground {
    pub fn new(seed: u64) -> Result<Self> {
        let (mut tree, mut dice, mut directories) = (Tree::default(), Dice::new(seed), vec![]);
        for number in 0..DIRECTORIES {
            let package = format!("p{:03}", number / 10).parse()?;
            let known = tree.nodes[ROOT].names.get(&package).copied();
            let package = known.unwrap_or_else(|| tree.add(ROOT, &package, Kind::Directory));
            let name = format!("d{:02}", number % 10).parse()?;
            let directory = tree.add(package, &name, Kind::Directory);
            for file in 0..FILES {
                let is_library = dice.draw() % 1000 < LIBRARIES;
                let size = match is_library {
                    true => (1 << 20) + dice.draw() % (4 << 20),
                    false => (MEDIAN * (SIGMA * dice.normal()).exp()) as u64,
                };
                tree.add(directory, &format!("f{file}").parse()?, Kind::File { size });
            }
            tree.add(directory, &"link".parse()?, Kind::Symlink);
            directories.push(directory);
        }
        Ok(Self { tree: Arc::new(tree), directories })
    }

    fn files_of(&self, directory: usize) -> Vec<usize> {
        let all = self.tree.nodes[directory].names.values().copied();
        all.filter(|at| matches!(self.tree.nodes[*at].kind, Kind::File { .. })).collect()
    }

    fn link_of(&self, directory: usize) -> Option<usize> {
        let mut all = self.tree.nodes[directory].names.values().copied();
        all.find(|at| self.tree.nodes[*at].kind == Kind::Symlink)
    }

    fn trace(&self, name: &str, calls: Vec<Call>) -> Trace {
        let (tree, processes) = (self.tree.clone(), vec![calls]);
        Trace { name: name.to_owned(), tree, lanes: 1, pause: PAUSE, processes }
    }

    fn whole(&self, at: usize) -> Call {
        Call::Read(at, self.tree.size(at))
    }

    /// Directory by directory: all names, and every third file whole.
    fn walk_through<'d>(&self, directories: impl Iterator<Item = &'d usize>) -> Vec<Call> {
        let mut calls = vec![];
        for &directory in directories {
            for (place, file) in self.files_of(directory).into_iter().enumerate() {
                calls.push(Call::Stat(file));
                if place % 3 == 0 {
                    calls.push(self.whole(file));
                }
            }
        }
        calls
    }

    /// Through a third of the packages, in their order.
    pub fn walk(&self) -> Trace {
        self.trace("walk", self.walk_through(self.directories.iter().take(DIRECTORIES / 3)))
    }

    pub fn reversed(&self) -> Trace {
        let from_end = self.directories.iter().take(DIRECTORIES / 3).rev();
        self.trace("reversed", self.walk_through(from_end))
    }

    /// Two walks, at two places, call by call.
    pub fn interleaved(&self) -> Trace {
        let (first, second) = self.directories.split_at(DIRECTORIES / 2);
        let first = self.walk_through(first.iter().take(DIRECTORIES / 6));
        let second = self.walk_through(second.iter().take(DIRECTORIES / 6));
        let both = first.into_iter().zip(second).flat_map(|(one, other)| [one, other]);
        self.trace("interleaved", both.collect())
    }

    /// The first paper's counts at a twentieth: bursts of 4 to 12 calls in one directory; three of
    /// five go anywhere, the others back to one of the last forty.
    pub fn bursts(&self, seed: u64) -> Trace {
        let mut dice = Dice::new(seed);
        let mut left = [1200_usize, 1200, 1800, 75];
        let mut last: VecDeque<usize> = VecDeque::new();
        let mut calls = vec![];
        while left.iter().any(|&count| count > 0) {
            let back =
                (dice.below(5) >= 3 && !last.is_empty()).then(|| last[dice.below(last.len())]);
            let directory = back.unwrap_or_else(|| self.directories[dice.below(DIRECTORIES)]);
            last.push_back(directory);
            if last.len() > 40 {
                last.pop_front();
            }
            let files = self.files_of(directory);
            for _ in 0..4 + dice.below(9) {
                let sum: usize = left.iter().sum();
                let mut at = dice.below(sum);
                let kind = left.iter().position(|&count| {
                    let is_it = at < count;
                    at = at.saturating_sub(count);
                    is_it
                });
                let Some(kind) = kind else { break };
                left[kind] -= 1;
                let file = files[dice.below(files.len())];
                calls.push(match (kind, self.link_of(directory)) {
                    (0, _) => self.whole(file),
                    (3, Some(link)) => Call::ReadLink(link),
                    _ => Call::Stat(file),
                });
            }
        }
        self.trace("bursts", calls)
    }

    /// Files anywhere, read whole.
    pub fn uniform(&self, seed: u64) -> Trace {
        let mut dice = Dice::new(seed);
        let files: Vec<usize> = self.tree.files().collect();
        let calls = (0..READS).map(|_| self.whole(files[dice.below(files.len())]));
        self.trace("uniform", calls.collect())
    }

    /// The same, some of them often.
    pub fn zipf(&self, seed: u64) -> Trace {
        let mut dice = Dice::new(seed);
        let mut files: Vec<usize> = self.tree.files().collect();
        for at in (1..files.len()).rev() {
            files.swap(at, dice.below(at + 1));
        }
        let mut calls = vec![];
        for _ in 0..2 * READS {
            // A rank is drawn with a chance that is its inverse.
            let rank = (files.len() as f64).powf(dice.unit()) as usize - 1;
            calls.push(self.whole(files[rank.min(files.len() - 1)]));
        }
        self.trace("zipf", calls)
    }
}

/// All shapes.
pub fn shapes(seed: u64) -> Result<Vec<Trace>> {
    let ground = Ground::new(seed)?;
    Ok(vec![
        ground.walk(),
        ground.bursts(seed),
        ground.uniform(seed + 1),
        ground.zipf(seed + 2),
        ground.reversed(),
        ground.interleaved(),
    ])
}

/// A program of some other kind on the same tree, for histories: bursts of files of directories
/// anywhere.
pub fn stranger(tree: &Arc<Tree>, seed: u64) -> Trace {
    let mut dice = Dice::new(seed);
    let files: Vec<usize> = tree.files().collect();
    let mut calls = vec![];
    while calls.len() < READS && !files.is_empty() {
        let parent = tree.nodes[files[dice.below(files.len())]].parent;
        let names: Vec<usize> = tree.nodes[parent].names.values().copied().collect();
        for _ in 0..1 + dice.below(8) {
            let at = names[dice.below(names.len())];
            calls.push(match tree.nodes[at].kind {
                Kind::File { size } => Call::Read(at, size.min(4 << 20)),
                Kind::Directory | Kind::Symlink => Call::Stat(at),
            });
        }
    }
    let (name, processes) = (format!("stranger{seed}"), vec![calls]);
    Trace { name, tree: tree.clone(), lanes: 1, pause: PAUSE, processes }
}
