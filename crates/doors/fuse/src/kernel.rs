//! The other end: the descriptors that lead to the kernel, what it can do, and what it knows.

use crate::abi::bits::{INTERRUPT_UNIQUE, notify as code};
use crate::abi::outgoing;
use crate::cuts::Cuts;
use crate::init::Features;
use crate::nodes::{Doubted, Nodes};
use crate::recent::Recent;
use crate::vain::InVain;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, Name};
use tokio::time::Instant;

/// Whoever reads a file's end again and again holds up for so many times only what it is to forget.
const ENDS_MAX: usize = 3;

pub struct Kernel {
    pub features: Features,
    pub nodes: Nodes,
    pub recent: Recent,
    pub vain: InVain,
    pub cuts: Cuts,
    devices: Vec<OwnedFd>,
}

/// Something for the kernel to forget. In the order in which a lane takes them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Forget {
    /// All names are to be asked for again.
    Names,
    Attributes(FileId),
    /// Bytes and attributes.
    Data(FileId),
    /// Bytes of a part, which is not empty, and attributes.
    Part(FileId, u64, u64),
    Name {
        parent: FileId,
        name: Name,
        /// It may be right still: what stands on it stays.
        is_doubted: bool,
    },
}

impl Kernel {
    pub fn new(nodes: Nodes, features: Features, devices: Vec<OwnedFd>) -> Self {
        let (recent, vain, cuts) = Default::default();
        Self { features, nodes, recent, vain, cuts, devices }
    }

    /// How many descriptors there are: at least one.
    pub fn devices(&self) -> usize {
        self.devices.len().max(1)
    }

    pub fn device(&self, index: usize) -> Option<&OwnedFd> {
        self.devices.get(index)
    }

    /// Tells the kernel, where it has anything of it. Names wait for their directory's lock there,
    /// data for pages that are being read or written; the others wait for nothing.
    pub fn forget(&self, what: &Forget) {
        let file = match what {
            Forget::Attributes(id) => Some((*id, false)),
            Forget::Data(id) | Forget::Part(id, ..) => Some((*id, true)),
            Forget::Names | Forget::Name { .. } => None,
        };
        let Some((id, with_pages)) = file else { return self.tell(what) };
        let Some(doubted) = self.doubt(id, with_pages) else { return };
        self.tell(what);
        if !matches!(what, Forget::Part(..)) {
            self.nodes.forgotten(id, doubted);
        }
    }

    /// Doubts what it has of a file, but not while it is being told of the end that a read waits
    /// for: it would drop that, and the read would end where the file did before.
    fn doubt(&self, id: FileId, with_pages: bool) -> Option<Doubted> {
        for _ in 0..ENDS_MAX {
            match self.nodes.doubt_after_end(id, with_pages) {
                Ok(doubted) => return doubted,
                Err(until) => std::thread::sleep(until.saturating_duration_since(Instant::now())),
            }
        }
        self.nodes.doubt(id, with_pages)
    }

    /// Gives the kernel bytes of a file, which is as long as they reach from then on, at least.
    /// Waits for the page that they lie in. Says whether it took them.
    pub fn store(&self, id: FileId, offset: u64, bytes: &[u8]) -> bool {
        METRICS.fuse_invalidations.with_label_values(&["store"]).inc();
        let body = outgoing::store(self.nodes.node_of(id), offset, bytes);
        let sent = self.send(code::STORE, &body);
        if let Err(error) = &sent {
            // It has the end that it knew then.
            tracing::debug!(%error, file = %id, "the kernel did not take a file's end");
        }
        sent.is_ok()
    }

    fn tell(&self, what: &Forget) {
        let (code, label, body) = self.notification(what);
        METRICS.fuse_invalidations.with_label_values(&[label]).inc();
        match self.send(code, &body) {
            // The kernel knew nothing of it, or the mount is gone: nothing is cached either way.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN) => {}
            Err(Errno::CONNABORTED | Errno::PERM) => {}
            Err(error) => tracing::error!(%error, ?what, "the kernel did not forget"),
        }
    }

    fn notification(&self, what: &Forget) -> (i32, &'static str, Vec<u8>) {
        let inode = |id, part| outgoing::inval_inode(self.nodes.node_of(id), part);
        match what {
            Forget::Names => (code::INC_EPOCH, "epoch", Vec::new()),
            Forget::Attributes(id) => (code::INVAL_INODE, "attributes", inode(*id, None)),
            Forget::Data(id) => (code::INVAL_INODE, "data", inode(*id, Some((0, 0)))),
            &Forget::Part(id, offset, length) => {
                (code::INVAL_INODE, "part", inode(id, Some((offset, length))))
            }
            Forget::Name { parent, name, is_doubted } => {
                let parent = self.nodes.node_of(*parent);
                let expires = *is_doubted && self.features.expires;
                let body = outgoing::inval_entry(parent, name.as_bytes(), expires);
                (code::INVAL_ENTRY, "entry", body)
            }
        }
    }

    /// Does the kernel wait for an answer to a request that was read from this descriptor? Answers
    /// an interruption of it, of which there need be none: the kernel looks for the request, and
    /// nothing more comes of it.
    pub fn awaits(&self, device: usize, unique: u64) -> bool {
        let Some(to) = self.device(device) else { return false };
        let answer = outgoing::header(0, 0, unique | INTERRUPT_UNIQUE);
        rustix::io::write(to, &answer).is_ok()
    }

    fn send(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        let to = self.device(0).ok_or(Errno::NODEV)?;
        let header = outgoing::header(body.len(), code, 0);
        rustix::io::writev(to, &[IoSlice::new(&header), IoSlice::new(body)]).map(drop)
    }
}
