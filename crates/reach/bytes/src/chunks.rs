//! All sources of one client, in the order in which they are asked.

use crate::direct::Direct;
use crate::memory::{Memory, Room, Segment};
use crate::near::{Near, NodeCache};
use crate::node::{Choice, Node};
use crate::osts::{Metadata, Osts, REQUEST_FAR, REQUEST_MAX, SMALL, pieces, steps};
use crate::site::Site;
use crate::source::{Outcome, Piece, Proof, Source, Wish};
use crate::stack::{Stack, missing};
use crate::whole::Whole;
use crate::{Capabilities, Whose};
use std::ops::Range;
use std::sync::{Arc, Weak};
use tieline_foresight::ahead::{PIECE, Width};
use tieline_servers::Servers;
use tieline_types::{ChunkRef, Content, Extent};

/// What is fetched at once of what is pinned: whole blocks.
const STORED: u64 = 4 << 20;

pub struct Chunks {
    pub memory: Arc<Memory>,
    pub osts: Arc<Osts>,
    pub capabilities: Arc<Capabilities>,
    node: Option<Arc<dyn NodeCache>>,
    whole: Option<Arc<Whole>>,
    stack: Stack,
}

impl Chunks {
    pub fn new(
        room: Room,
        near: &Near,
        servers: &Arc<Servers>,
        metadata: &Weak<dyn Metadata>,
    ) -> Arc<Self> {
        let capabilities = Arc::new(Capabilities::new(servers.clone(), metadata.clone()));
        let (own, rights) = (servers.clone(), capabilities.clone());
        let osts = Arc::new(Osts::new(own, rights, metadata.clone()));
        let further = near.further.clone();
        let of_site = |cache| source(Site { cache, osts: osts.clone(), further: further.clone() });
        let shared = [
            near.direct.clone().map(|storage| source(Direct(storage))),
            near.site.clone().map(of_site),
        ];
        let shared: Vec<_> = shared.into_iter().flatten().chain(further.clone()).collect();
        let is_private = near.is_private.clone();
        let whole =
            (!shared.is_empty()).then(|| Arc::new(Whole::new(Stack::new(shared), is_private)));
        let choice = near.is_node_for_far.then(|| {
            let (osts, is_private) = (osts.clone(), near.is_private.clone());
            Choice { osts, is_private }
        });
        // The nearest first.
        let sources = [
            near.node.clone().map(|cache| source(Node { cache, choice })),
            whole.clone().map(|whole| whole as Arc<dyn Source>),
            Some(source(osts.clone())),
        ];
        Arc::new(Self {
            memory: Arc::new(Memory::new(room)),
            osts,
            capabilities,
            node: near.node.clone(),
            whole,
            stack: Stack::new(sources.into_iter().flatten().collect()),
        })
    }

    /// The ranges to be fetched start now; their bytes are waited for later.
    pub fn start(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        range: Range<u64>,
        width: Width,
        whose: &Whose,
    ) -> Vec<Segment> {
        let length = chunk.length;
        let is_far = self.osts.is_far(chunk);
        // A cache of this node answers long requests as soon as short ones.
        let is_here = self.node.as_ref().is_some_and(|node| node.is_full(chunk));
        let request = if is_far && !is_here { REQUEST_FAR } else { REQUEST_MAX };
        let is_small = is_far && length <= SMALL;
        if is_small {
            self.memory.linger(chunk.chunk);
        }
        let widen = |missing: Range<u64>| match width {
            _ if is_small => pieces(missing, length, SMALL),
            Width::Exact | Width::Guess => steps(missing, request),
            Width::Pieces | Width::Ahead => pieces(missing, length, request.min(PIECE)),
        };
        let is_read = matches!(width, Width::Exact | Width::Pieces);
        let (segments, tasks) = self.memory.find(chunk.chunk, range, is_read, widen);
        for task in tasks {
            let (chunks, chunk, whose) = (self.clone(), chunk.clone(), whose.clone());
            tokio::spawn(async move {
                let whose = Whose { is_wanted: task.is_wanted().clone(), ..whose };
                let outcome = chunks.fetch(&chunk, task.range.clone(), &whose).await;
                chunks.memory.land(chunk.chunk, task, outcome);
            });
        }
        segments
    }

    /// Parts of a file that are far start now, for whoever reads them soon.
    pub fn bring_far(self: &Arc<Self>, extents: &[Extent], parts: &[Range<u64>], whose: &Whose) {
        for (extent, chunk) in at_hand(extents).filter(|(_, chunk)| self.osts.is_far(chunk)) {
            let whose = Whose { offset: extent.offset, ..whose.clone() };
            for part in parts {
                let from = part.start.max(extent.offset);
                let to = part.end.min(extent.offset + extent.length);
                if from < to {
                    let at = |offset: u64| chunk.skip + offset - extent.offset;
                    self.start(chunk, at(from)..at(to), Width::Ahead, &whose);
                }
            }
        }
    }

    /// A small file starts now, for whoever opens it soon.
    pub fn bring_small(self: &Arc<Self>, extents: &[Extent], whose: &Whose) {
        for (extent, chunk) in at_hand(extents) {
            let whose = Whose { offset: extent.offset, ..whose.clone() };
            let range = chunk.skip..chunk.skip + extent.length;
            self.memory.linger(chunk.chunk);
            self.start(chunk, range, Width::Ahead, &whose);
        }
    }

    /// A range of a chunk from wherever it is nearest, without regard for what is in memory.
    pub async fn fetch(&self, chunk: &ChunkRef, range: Range<u64>, whose: &Whose) -> Outcome {
        self.stack.fetch(chunk, range, whose).await
    }

    /// Brings all of a chunk into the node's cache, where it is when this returns.
    pub async fn store_whole(&self, chunk: &ChunkRef, whose: &Whose) -> Result<(), String> {
        let Some(node) = &self.node else { return Err("there is no cache".to_owned()) };
        if node.holds(chunk).await {
            return Ok(());
        }
        let (all, own) = (0..chunk.length, chunk.clone());
        let whose = whose.clone();
        let mut wish = Wish { chunk: own, ranges: vec![all.clone()], whose, until: None };
        let whole = match &self.whole {
            Some(whole) => whole.bring(&wish).await.map_err(|fault| fault.what)?,
            None => Vec::new(),
        };
        if let Some(piece) = whole.into_iter().next() {
            return node.store(chunk, 0, piece.bytes).await;
        }
        let here = node.find(chunk, all.clone()).await;
        let here: Vec<_> =
            here.into_iter().map(|(at, bytes)| Piece::new(at, bytes, Proof::Judged)).collect();
        for range in missing(&all, &here) {
            for start in (range.start..range.end).step_by(STORED as usize) {
                let step = start..(start + STORED).min(range.end);
                wish.ranges = vec![step];
                for piece in self.osts.bring(&wish).await.map_err(|fault| fault.what)? {
                    node.store(chunk, piece.offset, piece.bytes).await?;
                }
            }
        }
        Ok(())
    }
}

fn source(one: impl Source + 'static) -> Arc<dyn Source> {
    Arc::new(one)
}

/// Those that lie in chunks which need not be brought back from tape.
fn at_hand(extents: &[Extent]) -> impl Iterator<Item = (&Extent, &ChunkRef)> {
    extents.iter().filter_map(|extent| match &extent.content {
        Content::Chunk(chunk) if extent.validate().is_ok() && !chunk.is_nearline() => {
            Some((extent, chunk))
        }
        _ => None,
    })
}
