//! Batch: what a client did by itself under exclusive leases, in its order, in one transaction.
//!
//! Each item is run as the operation it names, for its caller; files are told to have been changed
//! at its time, while what is freed, kept and counted goes by our own clock. What it makes gets the
//! id that the client chose. An item that fails has written nothing, is told apart, and does
//! not stop the others. One that was carried out before (under a session that was lost, or before a
//! part was committed and the server died) is recognised by its ids and changes nothing.

use super::{
    commit, create, link, make_directory, make_node, make_symlink, remove_directory, rename,
    set_attributes, unlink,
};
use crate::delegation;
use crate::error::{Error, Result};
use crate::view::View;
use crate::walked;
use tieline_format::mdt::{Entry, key};
use tieline_kv::Range;
use tieline_types::{Attributes, ErrorKind, FileId, Name};
use tieline_wire::meta::{Batch, BatchItem, BatchOutcome, BatchReply, LeaseGrant};
use tieline_wire::{Op, Request};

pub async fn run<'a>(view: &mut View<'a>, request: &'a Batch) -> Result<BatchReply> {
    let own = view.scene;
    let done = view.outcomes.len();
    for (index, item) in request.items.iter().enumerate().skip(done) {
        view.scene.caller = &item.caller;
        view.scene.delegation = own.of_items.get(index).and_then(Option::as_deref);
        view.scene.chosen = Some(item.id);
        let outcome = match at_its_time(view, item).await {
            Ok(attributes) => BatchOutcome {
                version: attributes.as_ref().map(|file| file.version),
                stored: attributes.as_ref().map(|file| file.stored),
                failure: None,
            },
            Err(error) if error.is_conflict() || error.kind() == ErrorKind::StorageFault => {
                return Err(error);
            }
            // More room may be had, and then all of it is done anew.
            Err(error @ Error::Quota { .. }) if !own.refuses => return Err(error),
            Err(error) => {
                let failure = Some(error.into_failure(own.mdt));
                BatchOutcome { failure, ..BatchOutcome::default() }
            }
        };
        if view.is_partial {
            // Its next part, and the items behind it, come in a transaction of their own.
            break;
        }
        view.outcomes.push(outcome);
    }
    view.scene = own;
    let lease = LeaseGrant { as_of: view.version(), ..LeaseGrant::default() };
    Ok(BatchReply { outcomes: view.outcomes.clone(), lease })
}

async fn at_its_time(view: &mut View<'_>, item: &BatchItem) -> Result<Option<Attributes>> {
    if item.at.nanos >= 1_000_000_000 || item.at.seconds < 0 {
        return Err(Error::Invalid { what: "an item of a batch has no time that clocks tell" });
    }
    view.scene.at = item.at.min(view.scene.latest());
    one(view, item).await
}

/// Does the item make a file?
pub fn makes_file(item: &BatchItem) -> bool {
    let makers = [Op::Create, Op::MakeDirectory, Op::MakeSymlink, Op::MakeNode];
    makers.iter().any(|op| op.number() == item.op)
}

async fn one(view: &mut View<'_>, item: &BatchItem) -> Result<Option<Attributes>> {
    let unreadable = |_| Error::Invalid { what: "an item of a batch cannot be read" };
    let message = Request::decode_message(item.op, &item.message).map_err(unreadable)?;
    view.scene.check_mine(item.id)?;
    delegation::check(view, &message).await?;
    if is_done(view, item, &message).await? {
        // Anybody may say so of any file.
        match walked::reach(view, item.id).await {
            Err(Error::Denied { .. }) => return Ok(None),
            reached => reached?,
        }
        let inode = view.find_inode(item.id).await?;
        return Ok(inode.map(|inode| view.attributes(item.id, &inode)));
    }
    // What would give a file a name by which it is found.
    match &message {
        Request::Link(link) => walked::reach(view, link.id).await?,
        Request::Rename(moved) if moved.from_parent != moved.to_parent => {
            walked::reach(view, moved.from_parent).await?;
            walked::reach(view, moved.to_parent).await?;
        }
        _ => {}
    }
    let attributes = match message {
        Request::Create(r) => Some(create::run(view, &r).await?.open.attributes),
        Request::MakeDirectory(r) => make_directory::run(view, &r).await?.attributes,
        Request::MakeSymlink(r) => make_symlink::run(view, &r).await?.attributes,
        Request::MakeNode(r) => make_node::run(view, &r).await?.attributes,
        Request::Link(r) => link::run(view, &r).await?.attributes,
        Request::Unlink(r) => unlink::run(view, &r).await?.attributes,
        Request::RemoveDirectory(r) => remove_directory::run(view, &r).await?.attributes,
        Request::Rename(r) => rename::run(view, &r).await?.attributes,
        Request::SetAttributes(r) => Some(set_attributes::run(view, &r).await?.attributes),
        Request::Commit(r) => Some(commit::run(view, &r).await?.attributes),
        _ => return Err(Error::Invalid { what: "a batch holds a call that none may hold" }),
    };
    if let Some(made) = attributes.as_ref().filter(|_| makes_file(item)) {
        view.scene.walked_to(made.id, made.kind);
    }
    Ok(attributes)
}

/// Was the item carried out before?
async fn is_done(view: &mut View<'_>, item: &BatchItem, message: &Request) -> Result<bool> {
    Ok(match message {
        _ if makes_file(item) => {
            view.find_inode(item.id).await?.is_some() || is_left(view, item.id).await?
        }
        Request::Link(r) => entry(view, r.parent, &r.name).await? == Some(item.id),
        Request::Unlink(r) => entry(view, r.parent, &r.name).await? != Some(item.id),
        Request::RemoveDirectory(r) => entry(view, r.parent, &r.name).await? != Some(item.id),
        Request::Rename(r) => {
            entry(view, r.from_parent, &r.from_name).await? != Some(item.id)
                && entry(view, r.to_parent, &r.to_name).await? == Some(item.id)
        }
        _ => false,
    })
}

/// Is something left of a file that had this id? Whoever made another one of it would have its
/// bytes.
async fn is_left(view: &mut View<'_>, id: FileId) -> Result<bool> {
    if id.serial() >= view.scene.unused_from {
        return Ok(false);
    }
    let extents = Range::new(key::extents(id), key::after(&key::extents(id)));
    let xattrs = Range::new(key::xattrs(id), key::after(&key::xattrs(id)));
    let is_without = view.scan(extents, 1).await?.is_empty();
    Ok(!is_without || !view.scan(xattrs, 1).await?.is_empty())
}

async fn entry(view: &mut View<'_>, parent: FileId, name: &Name) -> Result<Option<FileId>> {
    let entry: Option<Entry> = view.record(key::entry(parent, name)).await?;
    Ok(entry.map(|entry| entry.id))
}
