//! What a request is answered with, before it is written.
//!
//! An answer that the kernel will cache carries the [`Belief`] it rests on: how long it may be
//! believed is decided when it is written, inside `CoherentCache::settle`, so that no recall can
//! pass it. An answer that the kernel does not take (the mount is gone) is undone: [`Undo`] says
//! how.

use crate::abi::outgoing::{self, Validity, Writer};
use crate::nodes::Nodes;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use tieline_files::Belief;
use tieline_types::HandleId;
use tieline_types::{Attributes, FileId};

/// Writes the body, given how long it may be believed.
pub type Build = Box<dyn FnOnce(Duration) -> Vec<u8> + Send>;

pub enum Body {
    Bytes(Vec<u8>),
    /// A file's bytes, handed on as they came.
    Pieces(Vec<Bytes>),
    Believed(Belief, Build),
}

/// What the kernel would have to give back.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Undo {
    pub nodes: Vec<FileId>,
    pub file: Option<HandleId>,
    pub directory: Option<HandleId>,
}

pub struct Answer {
    pub body: Body,
    /// Whose attributes it tells.
    pub told: Vec<FileId>,
    pub undo: Undo,
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { body: Body::Bytes(bytes), told: Vec::new(), undo: Undo::default() }
    }
}

impl Answer {
    /// Done; there is nothing to say.
    pub fn done() -> Self {
        Vec::new().into()
    }

    pub fn pieces(pieces: Vec<Bytes>) -> Self {
        Self { body: Body::Pieces(pieces), told: Vec::new(), undo: Undo::default() }
    }

    pub fn believed(belief: Belief, build: Build) -> Self {
        let body = Body::Believed(belief, build);
        Self { body, told: Vec::new(), undo: Undo::default() }
    }

    /// Attributes of a file that the kernel asked about by its node.
    pub fn attributes(nodes: &Nodes, attributes: Attributes, belief: Belief) -> Self {
        let (told, shown) = (vec![attributes.id], nodes.shown(attributes.id));
        let build = move |valid| outgoing::attr(&attributes, shown, valid);
        Self { told, ..Self::believed(belief, Box::new(build)) }
    }

    /// A name that now leads to a file, and perhaps an open handle on it.
    ///
    /// The kernel is told of the node once more: counted here, given back by [`Undo`].
    pub fn entry(nodes: &Nodes, entry: Entry, opened: Option<(HandleId, u32)>) -> Self {
        let id = entry.attributes.id;
        let number = nodes.number_of(id);
        nodes.remember(&entry.attributes);
        let (belief, trust) = Trust::join(entry.name, entry.belief);
        let trust = nodes.trust(&entry.attributes, trust);
        let build: Build = Box::new(move |valid| {
            let mut out = Writer::default();
            outgoing::entry_write(&mut out, number, &entry.attributes, trust.validity(valid));
            if let Some((handle, flags)) = opened {
                outgoing::open_write(&mut out, handle.0, flags);
            }
            out.finish()
        });
        let file = opened.map(|(handle, _)| handle);
        let undo = Undo { nodes: vec![id], file, directory: None };
        Self { body: Body::Believed(belief, build), told: vec![id], undo }
    }
}

/// A file under a name.
pub struct Entry {
    pub attributes: Attributes,
    /// Of the name.
    pub name: Belief,
    /// Of the attributes.
    pub belief: Belief,
}

/// Which parts of an answer rest on anything at all: what does not is good once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust {
    name: bool,
    attributes: bool,
}

impl Trust {
    /// One belief for both: overtaken as soon as either is, so each is believed for the shorter
    /// time.
    pub fn join(name: Belief, attributes: Belief) -> (Belief, Self) {
        let trust = Self::of(&name, &attributes);
        let mut units: BTreeSet<(FileId, u64)> = name.units.into_iter().collect();
        units.extend(attributes.units);
        (Belief { units: units.into_iter().collect() }, trust)
    }

    pub fn of(name: &Belief, attributes: &Belief) -> Self {
        Self { name: !name.units.is_empty(), attributes: !attributes.units.is_empty() }
    }

    pub fn without_name(self) -> Self {
        Self { name: false, ..self }
    }

    pub fn validity(self, valid: Duration) -> Validity {
        let of = |trusted: bool| if trusted { valid } else { Duration::ZERO };
        Validity { entry: of(self.name), attributes: of(self.attributes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_on_nothing_is_good_once() {
        let unit = |id| Belief { units: vec![(FileId(id), 3)] };
        let hour = Duration::from_secs(3600);
        let (both, trust) = Trust::join(unit(1), unit(2));
        assert_eq!(both.units, [(FileId(1), 3), (FileId(2), 3)]);
        assert_eq!(trust.validity(hour), Validity { entry: hour, attributes: hour });
        let (name, trust) = Trust::join(unit(1), Belief::default());
        assert_eq!(name, unit(1));
        assert_eq!(trust.validity(hour), Validity { entry: hour, attributes: Duration::ZERO });
    }
}
