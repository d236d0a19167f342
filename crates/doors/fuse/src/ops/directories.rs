//! Directories listed, with or without their entries' attributes.
//!
//! The kernel's positions are the client's plus two, for `.` and `..` come first. What does not fit
//! into a reply is asked for again from where the last entry that did left off.

use super::{Outcome, names};
use crate::abi::incoming::{FsyncIn, HandleIn, ReadIn};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing::{self, Dirent, NodeNumber, Writer};
use crate::answer::{Answer, Body, Trust, Undo};
use crate::call::Call;
use crate::nodes::Nodes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::{Belief, Listed};
use tieline_types::HandleId;
use tieline_types::{Attributes, FileKind, Name};

/// `.` and `..`.
const DOTS: u64 = 2;

pub async fn opendir(call: &Call) -> Outcome {
    let handle = call.fs().open_directory(&call.caller(), call.id()).await?;
    let undo = Undo { directory: Some(handle), ..Undo::default() };
    // The kernel does not cache listings: the client does, under leases.
    Ok(Answer { undo, ..outgoing::open(handle.0, 0).into() })
}

pub async fn releasedir(call: &Call) -> Outcome {
    let handle = HandleIn::read(&mut call.arguments())?.handle;
    call.fs().release_directory(HandleId(handle)).await;
    Ok(Answer::done())
}

pub async fn fsyncdir(call: &Call) -> Outcome {
    let handle = FsyncIn::read(&mut call.arguments())?.handle;
    call.fs().sync_directory(HandleId(handle)).await?;
    Ok(Answer::done())
}

pub async fn readdir(call: &Call) -> Outcome {
    let arguments = ReadIn::read(&mut call.arguments())?;
    let is_plus = call.opcode == Opcode::Readdirplus;
    let nodes = &call.session.kernel.nodes;
    let mut page = Page::new(arguments.size as usize, is_plus);
    if arguments.offset < DOTS {
        let own = call.id();
        let dots: [(&[u8], _); 2] = [(b".", own), (b"..", names::parent_of(call, own).await)];
        for (next, (name, id)) in (1..).zip(dots).skip(arguments.offset as usize) {
            page.dot(Dirent { ino: nodes.shown(id), next, kind: FileKind::Directory, name });
        }
    }
    let from = arguments.offset.saturating_sub(DOTS);
    let limit = page.entries_max();
    let handle = HandleId(arguments.handle);
    for mut listed in call.fs().read_directory(handle, from, limit, is_plus).await? {
        if let Some(known) = &mut listed.known {
            tieline_people::show(call.session.people.as_deref(), &mut known.attributes);
        }
        listed.entry = call.session.trusted_name(call.id(), listed.entry);
        if !page.add(nodes, listed) {
            break;
        }
    }
    Ok(page.answer(call))
}

/// A reply being filled.
struct Page {
    room: usize,
    is_plus: bool,
    lines: Vec<Line>,
    units: BTreeSet<(tieline_types::FileId, u64)>,
}

struct Line {
    dirent: Vec<u8>,
    /// What the kernel is told of the file, with a plus.
    attributes: Option<(Attributes, Trust)>,
    /// The name of a directory of which it is told.
    directory: Option<Name>,
}

impl Page {
    fn new(room: usize, is_plus: bool) -> Self {
        Self { room, is_plus, lines: Vec::new(), units: BTreeSet::new() }
    }

    /// As many entries as may fit if their names are short.
    fn entries_max(&self) -> usize {
        const SHORT_NAME: &[u8] = b"run7.root";
        (self.room / self.bytes(SHORT_NAME)).max(1)
    }

    fn bytes(&self, name: &[u8]) -> usize {
        if self.is_plus { outgoing::direntplus_bytes(name) } else { outgoing::dirent_bytes(name) }
    }

    fn dot(&mut self, entry: Dirent<'_>) -> bool {
        self.push(entry, None, None)
    }

    fn add(&mut self, nodes: &Nodes, listed: Listed) -> bool {
        let ino = nodes.shown(listed.id);
        let Listed { name, kind, known, entry, next, .. } = listed;
        let dirent = Dirent { ino, next: next.saturating_add(DOTS), kind, name: name.as_bytes() };
        let Some(known) = known.filter(|_| self.is_plus) else {
            return self.push(dirent, None, None);
        };
        let trust = Trust::of(&entry, &known.belief);
        let directory = Some(&name).filter(|_| kind == FileKind::Directory).cloned();
        let trust = nodes.trust(&known.attributes, trust);
        if !self.push(dirent, Some((known.attributes, trust)), directory) {
            return false;
        }
        self.units.extend(entry.units);
        self.units.extend(known.belief.units);
        true
    }

    /// Says whether it fitted.
    fn push(
        &mut self,
        entry: Dirent<'_>,
        attributes: Option<(Attributes, Trust)>,
        directory: Option<Name>,
    ) -> bool {
        let Some(room) = self.room.checked_sub(self.bytes(entry.name)) else { return false };
        self.room = room;
        let mut dirent = Writer::default();
        outgoing::dirent_write(&mut dirent, entry);
        self.lines.push(Line { dirent: dirent.finish(), attributes, directory });
        true
    }

    /// One belief for the whole page, which mostly rests on one directory's lease anyway.
    fn answer(self, call: &Call) -> Answer {
        let nodes = &call.session.kernel.nodes;
        let told = self.lines.iter().filter_map(|line| line.attributes.as_ref());
        let told: Vec<_> = told.map(|(attributes, _)| attributes.id).collect();
        let numbers: Vec<_> = told.iter().map(|&id| nodes.number_of(id)).collect();
        let mut caller = None;
        for line in &self.lines {
            let Some((attributes, _)) = &line.attributes else { continue };
            nodes.remember(attributes);
            if let Some(name) = &line.directory {
                let caller = caller.get_or_insert_with(|| Arc::new(call.caller())).clone();
                names::place(call, attributes.id, name.clone(), caller);
            }
        }
        let Self { is_plus, lines, units, .. } = self;
        let build = move |valid| page_write(is_plus, &lines, &numbers, valid);
        let belief = Belief { units: units.into_iter().collect() };
        let undo = Undo { nodes: told.clone(), ..Undo::default() };
        Answer { body: Body::Believed(belief, Box::new(build)), told, undo }
    }
}

/// `numbers` are those of the lines that have attributes.
fn page_write(is_plus: bool, lines: &[Line], numbers: &[NodeNumber], valid: Duration) -> Vec<u8> {
    let mut out = Writer::default();
    let mut numbers = numbers.iter();
    for Line { dirent, attributes, .. } in lines {
        match attributes {
            Some((attributes, trust)) => {
                let number = numbers.next().copied().unwrap_or_default();
                outgoing::entry_write(&mut out, number, attributes, trust.validity(valid));
            }
            None if is_plus => outgoing::entry_unknown_write(&mut out),
            None => {}
        }
        out.bytes(dirent);
    }
    out.finish()
}
