//! Random operations against a tree too simple to be wrong: same outcomes, same trees, same bytes.

use crate::fixture::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tieline_types::ErrorKind::{
    self, Exists, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted,
    Stale,
};
use tieline_types::{Content, Extent, FileId, RenameMode};
use tieline_wire::meta::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Directories and files are named by when they were made; what was never made is the root.
type Index = usize;

#[derive(Clone, Debug)]
enum Step {
    Create(Index, usize),
    MakeDirectory(Index, usize),
    /// The last says whether it replaces.
    Link(Index, Index, usize, bool),
    Unlink(Index, usize),
    RemoveDirectory(Index, usize),
    Rename(Index, usize, Index, usize, u8),
    Inline(Index, u64, u8),
    Chunk(Index, u64, u64),
    Hole(Index, u64, u64),
    Truncate(Index, u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let node = || 0..12usize;
    let name = || 0..NAMES.len();
    prop_oneof![
        3 => (node(), name()).prop_map(|(dir, name)| Step::Create(dir, name)),
        3 => (node(), name()).prop_map(|(dir, name)| Step::MakeDirectory(dir, name)),
        3 => (node(), node(), name(), any::<bool>())
            .prop_map(|(file, dir, name, replaces)| Step::Link(file, dir, name, replaces)),
        1 => (node(), name()).prop_map(|(dir, name)| Step::Unlink(dir, name)),
        1 => (node(), name()).prop_map(|(dir, name)| Step::RemoveDirectory(dir, name)),
        4 => (node(), name(), node(), name(), 0..3u8)
            .prop_map(|(from, a, to, b, mode)| Step::Rename(from, a, to, b, mode)),
        2 => (node(), 0..60u64, 1..20u8).prop_map(|(file, at, n)| Step::Inline(file, at, n)),
        2 => (node(), 0..60u64, 1..40u64).prop_map(|(file, at, n)| Step::Chunk(file, at, n)),
        1 => (node(), 0..60u64, 1..40u64).prop_map(|(file, at, n)| Step::Hole(file, at, n)),
        1 => (node(), 0..90u64).prop_map(|(file, size)| Step::Truncate(file, size)),
    ]
}

#[derive(Clone, Default)]
struct Node {
    is_directory: bool,
    is_whiteout: bool,
    entries: BTreeMap<usize, Index>,
    bytes: Vec<u8>,
    names: usize,
}

struct Model {
    nodes: Vec<Node>,
}

type Outcome = Result<(), ErrorKind>;

impl Model {
    fn new() -> Self {
        Self { nodes: vec![Node { is_directory: true, names: 1, ..Node::default() }] }
    }

    fn live(&self, index: Index) -> Result<&Node, ErrorKind> {
        let node = &self.nodes[index];
        if node.names == 0 { Err(Stale) } else { Ok(node) }
    }

    fn directory(&self, index: Index) -> Result<&Node, ErrorKind> {
        let node = self.live(index)?;
        if node.is_directory { Ok(node) } else { Err(NotDirectory) }
    }

    fn file(&mut self, index: Index) -> Result<&mut Node, ErrorKind> {
        match self.live(index)? {
            Node { is_directory: true, .. } => Err(IsDirectory),
            Node { is_whiteout: true, .. } => Err(InvalidArgument),
            _ => Ok(&mut self.nodes[index]),
        }
    }

    fn add(&mut self, dir: Index, name: usize, is_directory: bool) -> Outcome {
        if self.directory(dir)?.entries.contains_key(&name) {
            return Err(Exists);
        }
        self.nodes.push(Node { is_directory, names: 1, ..Node::default() });
        let index = self.nodes.len() - 1;
        self.nodes[dir].entries.insert(name, index);
        Ok(())
    }

    fn link(&mut self, file: Index, dir: Index, name: usize, replaces: bool) -> Outcome {
        self.live(file)?;
        let there = self.directory(dir)?.entries.get(&name).copied();
        match there {
            Some(_) if !replaces => return Err(Exists),
            Some(there) if self.nodes[there].is_directory => return Err(IsDirectory),
            _ => {}
        }
        if self.nodes[file].is_directory {
            return Err(NotPermitted);
        }
        if let Some(there) = there.filter(|&there| there != file) {
            self.nodes[there].names -= 1;
        }
        if there == Some(file) {
            return Ok(());
        }
        self.nodes[file].names += 1;
        self.nodes[dir].entries.insert(name, file);
        Ok(())
    }

    fn remove(&mut self, dir: Index, name: usize, wants_directory: bool) -> Outcome {
        let index = *self.directory(dir)?.entries.get(&name).ok_or(NotFound)?;
        let node = &self.nodes[index];
        match (wants_directory, node.is_directory) {
            (true, false) => return Err(NotDirectory),
            (false, true) => return Err(IsDirectory),
            (true, true) if !node.entries.is_empty() => return Err(NotEmpty),
            _ => {}
        }
        self.nodes[index].names -= 1;
        self.nodes[dir].entries.remove(&name);
        Ok(())
    }

    fn is_above(&self, above: Index, below: Index) -> bool {
        let node = &self.nodes[above];
        above == below || node.entries.values().any(|&child| self.is_above(child, below))
    }

    fn rename(&mut self, from: Index, a: usize, to: Index, b: usize, mode: u8) -> Outcome {
        let source = self.directory(from)?.entries.get(&a).copied();
        let target = self.directory(to)?.entries.get(&b).copied();
        let source = source.ok_or(NotFound)?;
        match (mode, target) {
            (1 | 4, Some(_)) => return Err(Exists),
            (2, None) => return Err(NotFound),
            _ => {}
        }
        let is_exchange = mode == 2;
        if from != to && self.nodes[source].is_directory && self.is_above(source, to) {
            return Err(InvalidArgument);
        }
        if let Some(target) = target {
            if from != to && self.nodes[target].is_directory && self.is_above(target, from) {
                return Err(if is_exchange { InvalidArgument } else { NotEmpty });
            }
            if target == source {
                return Ok(());
            }
            let (s, t) = (&self.nodes[source], &self.nodes[target]);
            match (s.is_directory, t.is_directory) {
                _ if is_exchange => {}
                (true, false) => return Err(NotDirectory),
                (false, true) => return Err(IsDirectory),
                (true, true) if !t.entries.is_empty() => return Err(NotEmpty),
                _ => {}
            }
        }
        self.nodes[from].entries.remove(&a);
        self.nodes[to].entries.insert(b, source);
        if mode > 2 {
            self.nodes.push(Node { is_whiteout: true, names: 1, ..Node::default() });
            let whiteout = self.nodes.len() - 1;
            self.nodes[from].entries.insert(a, whiteout);
        }
        match target {
            Some(target) if is_exchange => {
                self.nodes[from].entries.insert(a, target);
            }
            Some(target) => self.nodes[target].names -= 1,
            None => {}
        }
        Ok(())
    }

    fn write(&mut self, file: Index, at: u64, bytes: &[u8]) -> Outcome {
        let node = self.file(file)?;
        let end = at as usize + bytes.len();
        node.bytes.resize(node.bytes.len().max(end), 0);
        node.bytes[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn punch(&mut self, file: Index, at: u64, length: u64) -> Outcome {
        let node = self.file(file)?;
        let end = node.bytes.len().min((at + length) as usize);
        if let Some(hole) = node.bytes.get_mut(at as usize..end) {
            hole.fill(0);
        }
        Ok(())
    }

    fn truncate(&mut self, file: Index, size: u64) -> Outcome {
        self.file(file)?.bytes.resize(size as usize, 0);
        Ok(())
    }
}

/// What stands at a position of a chunk.
fn chunk_byte(serial: u64, position: u64) -> u8 {
    (serial * 31 + position + 1) as u8
}

/// Both worlds, and which file is which.
struct Pair {
    client: Client,
    model: Model,
    ids: Vec<FileId>,
    chunks: u64,
}

impl Pair {
    async fn step(&mut self, step: &Step) {
        let known = |index: &Index| if *index < self.ids.len() { *index } else { 0 };
        let id = |index: &Index| self.ids[known(index)];
        let client = self.client.clone();
        let (told, expected) = match step {
            Step::Create(dir, name) => (
                client.kind_of(create(id(dir), NAMES[*name], 0o644)).await,
                self.model.add(known(dir), *name, false),
            ),
            Step::MakeDirectory(dir, name) => (
                client.kind_of(mkdir(id(dir), NAMES[*name], 0o755)).await,
                self.model.add(known(dir), *name, true),
            ),
            Step::Link(file, dir, name, replaces) => {
                let call = link(id(file), id(dir), NAMES[*name]);
                let call = Link { replaces: replaces.then_some(true), ..call };
                let told = client.kind_of(call).await;
                (told, self.model.link(known(file), known(dir), *name, *replaces))
            }
            Step::Unlink(dir, name) => (
                client.kind_of(unlink(id(dir), NAMES[*name])).await,
                self.model.remove(known(dir), *name, false),
            ),
            Step::RemoveDirectory(dir, name) => (
                client.kind_of(rmdir(id(dir), NAMES[*name])).await,
                self.model.remove(known(dir), *name, true),
            ),
            Step::Rename(from, a, to, b, mode) => {
                use RenameMode::{Exchange, NoReplace, NoReplaceLeaving, Replace, ReplaceLeaving};
                let kinds = [Replace, NoReplace, Exchange, ReplaceLeaving, NoReplaceLeaving];
                let call = rename((id(from), NAMES[*a]), (id(to), NAMES[*b]));
                let call = Rename { mode: kinds[usize::from(*mode)], ..call };
                let told = client.kind_of(call).await;
                (told, self.model.rename(known(from), *a, known(to), *b, *mode))
            }
            Step::Inline(file, at, n) => {
                let bytes: Vec<u8> = (0..*n).map(|i| n * 10 + i).collect();
                let told = client.kind_of(commit(id(file), vec![inline(*at, &bytes)])).await;
                (told, self.model.write(known(file), *at, &bytes))
            }
            Step::Chunk(file, at, n) => {
                let serial = self.chunks + 1;
                let extent = client.chunk(serial, *at, *n);
                let bytes: Vec<u8> = (0..*n).map(|i| chunk_byte(serial, i)).collect();
                let told = client.kind_of(commit(id(file), vec![extent])).await;
                let expected = self.model.write(known(file), *at, &bytes);
                self.chunks = serial;
                (told, expected)
            }
            Step::Hole(file, at, n) => (
                client.kind_of(commit(id(file), vec![hole(*at, *n)])).await,
                self.model.punch(known(file), *at, *n),
            ),
            Step::Truncate(file, size) => (
                client.kind_of(truncate(id(file), *size)).await,
                self.model.truncate(known(file), *size),
            ),
        };
        assert_eq!(told, expected.err(), "{step:?}");
        if self.model.nodes.len() > self.ids.len()
            && let Step::Create(dir, name)
            | Step::MakeDirectory(dir, name)
            | Step::Rename(dir, name, ..) = step
        {
            let parent = self.ids[known(dir)];
            let new = self.client.id(parent, NAMES[*name]).await;
            self.ids.push(new.expect("just made"));
        }
    }

    async fn compare(&self) {
        for (node, &id) in self.model.nodes.iter().zip(&self.ids) {
            if node.names == 0 {
                assert_eq!(self.client.kind_of(GetAttributes { id }).await, Some(Stale));
                continue;
            }
            let attributes = self.client.stat(id).await;
            if node.is_directory {
                self.compare_directory(node, id).await;
                continue;
            }
            assert_eq!(attributes.links as usize, node.names);
            assert_eq!(attributes.size, node.bytes.len() as u64);
            let extents = self.client.extents(id).await;
            assert_eq!(attributes.stored, extents.iter().map(|extent| extent.length).sum::<u64>());
            assert_eq!(render(&extents, node.bytes.len()), node.bytes);
        }
    }

    async fn compare_directory(&self, node: &Node, id: FileId) {
        let children = node.entries.values();
        let subdirectories = children.filter(|&&child| self.model.nodes[child].is_directory);
        let mounted = usize::from(id == ROOT);
        let links = 2 + mounted + subdirectories.count();
        assert_eq!(self.client.stat(id).await.links as usize, links);
        let call = ReadDirectory { id, after: None, limit: 99, is_plus: false };
        let listed = self.client.call(call).await.unwrap().entries;
        let mine = listed.iter().filter(|entry| entry.id.mdt() == ROOT.mdt());
        let listed: Vec<_> = mine.map(|entry| (entry.name.to_string(), entry.id)).collect();
        let expected = node.entries.iter();
        let expected: Vec<_> =
            expected.map(|(name, &child)| (NAMES[*name].to_owned(), self.ids[child])).collect();
        assert_eq!(listed, expected);
    }
}

fn render(extents: &[Extent], size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for extent in extents {
        for i in 0..extent.length {
            bytes[(extent.offset + i) as usize] = match &extent.content {
                Content::Inline(held) => held[i as usize],
                Content::Chunk(chunk) => chunk_byte(chunk.chunk.spread(), chunk.skip + i),
                Content::Hole => unreachable!("only in commits"),
            };
        }
    }
    bytes
}

async fn play(steps: Vec<Step>) {
    let house = House::new().await;
    let client = house.client().await;
    let mut pair = Pair { client, model: Model::new(), ids: vec![ROOT], chunks: 0 };
    for step in &steps {
        pair.step(step).await;
        if matches!(step, Step::Rename(..) | Step::Link(..)) {
            // What it replaced lingers a while: past that it is as gone as in the model.
            tokio::time::advance(std::time::Duration::from_secs(61)).await;
            house.remove_nameless().await;
        }
    }
    pair.compare().await;
    // Every chunk is either referred to or freed, and every record belongs to a live file.
    let live = pair.model.nodes.iter().filter(|node| node.names > 0).count();
    assert_eq!(house.count(b'i').await, live);
    assert_eq!(house.client().await.call(Usage {}).await.unwrap().inodes as usize, live);
    let mut used = std::collections::BTreeSet::new();
    for (node, &id) in pair.model.nodes.iter().zip(&pair.ids) {
        if node.names == 0 || node.is_directory {
            continue;
        }
        for extent in pair.client.extents(id).await {
            if let Content::Chunk(chunk) = extent.content {
                used.insert(chunk.chunk);
            }
        }
    }
    assert_eq!(house.count(b'k').await - house.count(b'f').await, used.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn operations_do_what_the_simple_tree_does(steps in prop::collection::vec(any_step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(steps));
    }
}
