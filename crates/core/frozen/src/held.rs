//! The list of one repository: fetched when it is first asked, and held.

use crate::list::{AS_OF, LIST, LIST_MAX, Tree};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::map::{Catalog, Repository};
use tieline_repositories::{Repositories, Want};
use tieline_servers::Answerer;
use tieline_servers::read_only::{Asked, Listed, Node, ReadOnlyTree, page};
use tieline_types::{Caller, Digest, ErrorKind, FileId, Name, Version};
use tieline_wire::meta::ExtentPage;
use tieline_wire::{Failure, Request};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// A list that could not be had is looked for again after so long.
const AGAIN: Duration = Duration::from_secs(2);

/// Answers from a frozen list.
pub struct Frozen {
    address: String,
    repositories: Arc<Repositories>,
    held: Mutex<Held>,
}

#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    Tree(Digest, Arc<Tree>),
    Failed(Instant, Failure),
}

impl Frozen {
    /// `None`: the address is no repository's.
    pub fn at(address: &str, repositories: &Arc<Repositories>) -> Option<Arc<dyn Answerer>> {
        let address = address.starts_with(Repository::SCHEME).then(|| address.to_owned())?;
        let (repositories, held) = (repositories.clone(), Mutex::default());
        Some(Arc::new(Self { address, repositories, held }))
    }

    /// The tree that the map means.
    async fn tree(&self, known: &Repository, until: Instant) -> Result<Arc<Tree>, Failure> {
        let Catalog::Frozen(digest) = known.catalog else {
            let detail = format!("{}: it is no frozen list any more", self.address);
            return Err(Failure::new(ErrorKind::WrongServer, detail));
        };
        let mut held = self.held.lock().await;
        match &*held {
            Held::Tree(of, tree) if *of == digest => return Ok(tree.clone()),
            Held::Failed(at, failure) if at.elapsed() < AGAIN => return Err(failure.clone()),
            _ => {}
        }
        let fetched = self.fetch(known, digest, until).await;
        *held = match &fetched {
            Ok(tree) => Held::Tree(digest, tree.clone()),
            Err(failure) => {
                tracing::warn!(%failure, "a repository's list cannot be had");
                Held::Failed(Instant::now(), failure.clone())
            }
        };
        fetched
    }

    async fn fetch(
        &self,
        known: &Repository,
        digest: Digest,
        until: Instant,
    ) -> Result<Arc<Tree>, Failure> {
        let want = Want { key: LIST, offset: 0, length: None, most: LIST_MAX };
        let found = self.repositories.get(&known.name, want, until).await;
        let bytes = found.map_err(|trouble| {
            let detail = format!("list of {} ({trouble})", known.name);
            Failure::new(ErrorKind::StorageFault, detail)
        })?;
        let (name, mdt) = (known.name.clone(), known.mdt);
        let read = tokio::task::spawn_blocking(move || {
            let corrupt = |why: &str| {
                let detail = format!("list of {name} ({why}): have it published anew");
                Failure::new(ErrorKind::Corrupt, detail)
            };
            if !digest.is_of(&bytes) {
                return Err(corrupt("it has not the digest that the federation map names"));
            }
            Tree::read(&bytes, &name, mdt).map_err(|error| corrupt(&error.to_string()))
        });
        let stopped = |_| Failure::new(ErrorKind::Internal, "a read of a repository's list");
        Ok(Arc::new(read.await.map_err(stopped)??))
    }
}

#[async_trait::async_trait]
impl Answerer for Frozen {
    async fn answer(
        &self,
        caller: &Caller,
        request: &Request,
        until: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let current = self.repositories.map().current();
        let gone =
            || Failure::new(ErrorKind::WrongServer, format!("{}: not in the map", self.address));
        let known = current.map.repository_at(&self.address).ok_or_else(gone)?;
        let tree = self.tree(known, until).await?;
        Asked { tree: &*tree, map: &current.map, mdt: known.mdt, caller }.answer(request).await
    }
}

#[async_trait::async_trait]
impl ReadOnlyTree for Tree {
    fn as_of(&self) -> Version {
        AS_OF
    }

    fn files(&self) -> u64 {
        self.nodes.len() as u64
    }

    async fn node(&self, id: FileId) -> Result<Option<Node>, Failure> {
        Ok(self.node(id).map(|known| self.told(known)))
    }

    async fn child(&self, directory: &Node, name: &Name) -> Result<Option<Node>, Failure> {
        let known = self.node(directory.attributes.id);
        let number = known.and_then(|known| known.names.get(name));
        let found = number.and_then(|&number| self.nodes.get(number));
        Ok(found.map(|known| self.told(known)))
    }

    async fn children(
        &self,
        directory: &Node,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Listed, Failure> {
        let known = self.node(directory.attributes.id);
        let names = known.into_iter().flat_map(|known| &known.names);
        let mut rest = names.filter(|(name, _)| after.is_none_or(|after| *name > after));
        let told = |(name, &number): (&Name, &usize)| {
            Some((name.clone(), self.told(self.nodes.get(number)?)))
        };
        let entries = rest.by_ref().take(limit as usize).filter_map(told).collect();
        Ok(Listed { entries, is_end: rest.next().is_none() })
    }

    async fn extents(&self, file: &Node, offset: u64, limit: u32) -> Result<ExtentPage, Failure> {
        let known = self.node(file.attributes.id);
        let extents = known.into_iter().flat_map(|known| &known.extents);
        let mut rest = extents.filter(|extent| extent.end() > offset);
        let extents = rest.by_ref().take(limit as usize).cloned().collect();
        Ok(page(extents, rest.next().is_none(), file.attributes.size))
    }
}
