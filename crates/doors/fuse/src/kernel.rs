//! The other end: the descriptors that lead to the kernel, what it can do, and what it knows.

use crate::abi::bits::{INTERRUPT_UNIQUE, notify as code};
use crate::abi::outgoing;
use crate::init::Features;
use crate::nodes::Nodes;
use crate::recent::Recent;
use crate::vain::InVain;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, Name};

pub struct Kernel {
    pub features: Features,
    pub nodes: Nodes,
    pub recent: Recent,
    pub vain: InVain,
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
    Name {
        parent: FileId,
        name: Name,
        /// It may be right still: what stands on it stays.
        is_doubted: bool,
    },
}

impl Kernel {
    pub fn new(nodes: Nodes, features: Features, devices: Vec<OwnedFd>) -> Self {
        Self { features, nodes, recent: Recent::default(), vain: InVain::default(), devices }
    }

    /// How many descriptors there are: at least one.
    pub fn devices(&self) -> usize {
        self.devices.len().max(1)
    }

    pub fn device(&self, index: usize) -> Option<&OwnedFd> {
        self.devices.get(index)
    }

    /// Tells the kernel. Names wait for their directory's lock there, data for pages that are being
    /// read or written; the others wait for nothing.
    pub fn forget(&self, what: &Forget) {
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
        let inode = |id, with_data| outgoing::inval_inode(self.nodes.node_of(id), with_data);
        match what {
            Forget::Names => (code::INC_EPOCH, "epoch", Vec::new()),
            Forget::Attributes(id) => (code::INVAL_INODE, "attributes", inode(*id, false)),
            Forget::Data(id) => (code::INVAL_INODE, "data", inode(*id, true)),
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
