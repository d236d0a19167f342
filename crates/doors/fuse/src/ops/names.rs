//! Names: found, made, moved and removed.

use super::Outcome;
use crate::abi::Malformed;
use crate::abi::incoming::{
    BatchForgetIn, ForgetOne, Header, LinkIn, MkdirIn, MknodIn, Reader, Rename2In, RenameIn,
};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing;
use crate::answer::{Answer, Body, Entry};
use crate::call::Call;
use crate::errno::Refusal;
use crate::places::Place;
use crate::session::Session;
use rustix::io::Errno;
use std::sync::Arc;
use tieline_files::{At, Belief, Found, Known, NewNode};
use tieline_types::{Caller, ErrorKind, FileId, FileKind, Mode, Name, RenameMode};

fn name(from: &mut Reader<'_>) -> Result<Name, Refusal> {
    Ok(Name::new(from.text()?)?)
}

pub async fn lookup(call: &Call) -> Outcome {
    let name = name(&mut call.arguments())?;
    let (vain, process, parent) = (&call.session.kernel.vain, call.header.pid, call.id());
    if vain.was(process, parent, &name) {
        return Err(Errno::TIMEDOUT.into());
    }
    let found = call.fs().lookup(&call.caller(), parent, &name).await;
    if found.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) {
        vain.note(process, parent, name.clone());
    }
    let Found { attributes, entry, belief } = found?;
    let entry = call.session.trusted_name(parent, entry);
    let Some(attributes) = attributes else {
        let had_directory = displaced(call, &name);
        return absent(call.session.kernel.nodes.believed_absence(had_directory, entry));
    };
    let entry = Entry { attributes: call.shown(attributes), name: entry, belief };
    let mut answer = placed(call, entry, &name);
    answer.body = noted(call, name, answer.body);
    Ok(answer)
}

/// Remembers where a directory is.
fn placed(call: &Call, entry: Entry, name: &Name) -> Answer {
    let (id, kind) = (entry.attributes.id, entry.attributes.kind);
    let answer = Answer::entry(&call.session.kernel.nodes, entry, None);
    if kind == FileKind::Directory {
        place(call, id, name.clone(), Arc::new(call.caller()));
    } else {
        let _ = displaced(call, name);
    }
    answer
}

/// A directory stands at a name in the one that the call is about.
pub fn place(call: &Call, directory: FileId, name: Name, caller: Arc<Caller>) {
    let place = Place { parent: call.id(), name, caller };
    if let Some((other, place)) = call.session.kernel.nodes.place(directory, place) {
        call.session.moves.follow(other, place);
    }
}

/// No directory stands there, whatever did before. Says whether one did.
fn displaced(call: &Call, name: &Name) -> bool {
    let places = &call.session.kernel.nodes.places;
    let before =
        places.at(call.id(), name).and_then(|directory| Some((directory, places.of(directory)?)));
    let had_directory = before.is_some();
    if let Some((directory, place)) = before {
        call.session.moves.follow(directory, place);
    }
    had_directory
}

/// Remembers when the name is answered, for recalls that come right after.
fn noted(call: &Call, name: Name, body: Body) -> Body {
    let Body::Believed(belief, build) = body else { return body };
    let (kernel, parent) = (Arc::clone(&call.session.kernel), call.id());
    let build = move |valid| {
        kernel.recent.note(parent, &name);
        build(valid)
    };
    Body::Believed(belief, Box::new(build))
}

/// That there is no such name may be believed too; if not, it is told as an error.
fn absent(belief: Belief) -> Outcome {
    if belief.units.is_empty() {
        return Err(Errno::NOENT.into());
    }
    Ok(Answer::believed(belief, Box::new(outgoing::entry_absent)))
}

/// Answer to whatever made a name in the directory that the request is about.
pub fn made(call: &Call, known: Known) -> Answer {
    Answer::entry(&call.session.kernel.nodes, made_entry(call, known), None)
}

/// The name is as good as the attributes if they rest on the same directory's lease.
pub fn made_entry(call: &Call, known: Known) -> Entry {
    let Known { attributes, belief } = known;
    let attributes = call.shown(attributes);
    let parent = call.id();
    let covers = belief.units.iter().any(|&(unit, _)| unit == parent);
    let name = if covers { belief.clone() } else { Belief::default() };
    let name = call.session.trusted_name(parent, name);
    Entry { attributes, name, belief }
}

pub async fn mknod(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let arguments = MknodIn::read(&mut from)?;
    let name = name(&mut from)?;
    let kind = FileKind::from_mode_bits(arguments.mode).ok_or(Errno::INVAL)?;
    let node = NewNode {
        kind,
        mode: Mode::new(arguments.mode),
        umask: Mode::new(arguments.umask),
        device: arguments.device,
    };
    let at = At { parent: call.id(), name: &name };
    Ok(made(call, call.fs().make_node(&call.caller_now(), at, node).await?))
}

pub async fn mkdir(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let arguments = MkdirIn::read(&mut from)?;
    let name = name(&mut from)?;
    let (mode, umask) = (Mode::new(arguments.mode), Mode::new(arguments.umask));
    let at = At { parent: call.id(), name: &name };
    let known = call.fs().make_directory(&call.caller(), at, mode, umask).await?;
    Ok(placed(call, made_entry(call, known), &name))
}

pub async fn symlink(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let name = name(&mut from)?;
    let target = from.text()?;
    let at = At { parent: call.id(), name: &name };
    Ok(made(call, call.fs().make_symlink(&call.caller(), at, target).await?))
}

pub async fn readlink(call: &Call) -> Outcome {
    Ok(call.fs().read_symlink(&call.caller(), call.id()).await?.into())
}

pub async fn link(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let id = call.session.kernel.nodes.id_of(LinkIn::read(&mut from)?.node);
    let name = name(&mut from)?;
    let at = At { parent: call.id(), name: &name };
    Ok(made(call, call.fs().link(&call.caller(), id, at).await?))
}

pub async fn unlink(call: &Call) -> Outcome {
    let name = name(&mut call.arguments())?;
    call.fs().unlink(&call.caller(), At { parent: call.id(), name: &name }).await?;
    Ok(Answer::done())
}

pub async fn rmdir(call: &Call) -> Outcome {
    let name = name(&mut call.arguments())?;
    call.fs().remove_directory(&call.caller(), At { parent: call.id(), name: &name }).await?;
    Ok(Answer::done())
}

pub async fn rename(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let to_parent = RenameIn::read(&mut from)?.to_parent;
    rename_as(call, from, to_parent, RenameMode::Replace).await
}

pub async fn rename2(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let arguments = Rename2In::read(&mut from)?;
    const NO_REPLACE_LEAVING: u32 = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
    let mode = match arguments.flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        libc::RENAME_WHITEOUT => RenameMode::ReplaceLeaving,
        NO_REPLACE_LEAVING => RenameMode::NoReplaceLeaving,
        _ => return Err(Errno::INVAL.into()),
    };
    rename_as(call, from, arguments.to_parent, mode).await
}

async fn rename_as(
    call: &Call,
    mut names: Reader<'_>,
    to_parent: u64,
    mode: RenameMode,
) -> Outcome {
    let (old, new) = (name(&mut names)?, name(&mut names)?);
    let from = At { parent: call.id(), name: &old };
    let to = At { parent: call.session.kernel.nodes.id_of(to_parent), name: &new };
    call.fs().rename(&call.caller(), from, to, mode).await?;
    let (from, to) = ((from.parent, &old), (to.parent, &new));
    let places = &call.session.kernel.nodes.places;
    places.renamed(from, to, mode == RenameMode::Exchange);
    Ok(Answer::done())
}

/// The kernel dropped nodes. It wants no reply.
pub fn forget(
    session: &Session,
    header: &Header,
    opcode: Opcode,
    arguments: &[u8],
) -> Result<(), Malformed> {
    let mut from = Reader::new(arguments);
    let drop =
        |node, lookups| session.kernel.nodes.forget(session.kernel.nodes.id_of(node), lookups);
    if opcode == Opcode::Forget {
        drop(header.node, from.u64()?);
        return Ok(());
    }
    let count = BatchForgetIn::read(&mut from)?.count;
    for _ in 0..count {
        let one = ForgetOne::read(&mut from)?;
        drop(one.node, one.lookups);
    }
    Ok(())
}

/// `..` of a directory; its own id where that cannot be told.
pub async fn parent_of(call: &Call, directory: FileId) -> FileId {
    call.fs().parent(&call.caller(), directory).await.unwrap_or(directory)
}
