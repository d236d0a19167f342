//! What `stat` tells, and what changes it.

use super::Outcome;
use crate::abi::bits::{get, set};
use crate::abi::incoming::{GetattrIn, SetattrIn};
use crate::answer::Answer;
use crate::call::Call;
use crate::kernel::Forget;
use crate::nodes::Told;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::{AttributeChange, Known};
use tieline_people::learned;
use tieline_types::HandleId;
use tieline_types::{Gid, Mode, SetTime, Time, Uid};

/// How long an answer waits for the file's last byte.
const END_PATIENCE: Duration = Duration::from_secs(1);

pub async fn getattr(call: &Call) -> Outcome {
    let before = call.session.kernel.nodes.told(call.id());
    let known = call.fs().attributes(&call.caller(), call.id()).await?;
    if let Some(handle) = handle_of(call)
        && !call.session.kernel.nodes.end_told(call.id(), before, known.attributes.size)
    {
        // Slow servers must not hold up who asks for attributes.
        let _ = tokio::time::timeout(END_PATIENCE, tell_end(call, handle, &known)).await;
    }
    Ok(told(call, known, before))
}

/// The open file that is asked about, if it is read through the kernel's cache.
fn handle_of(call: &Call) -> Option<HandleId> {
    let arguments = GetattrIn::read(&mut call.arguments()).ok()?;
    let handle = HandleId(arguments.handle);
    let is_by_handle = arguments.flags & get::HANDLE != 0;
    (is_by_handle && call.session.kernel.cuts.is_cached(handle)).then_some(handle)
}

/// The kernel may have been told to forget the file since it asked. Then it drops the answer, and a
/// read that asked for the file's end would end where that was before. It takes the end from a byte
/// there.
async fn tell_end(call: &Call, handle: HandleId, known: &Known) -> Option<()> {
    let (id, last) = (call.id(), known.attributes.size.checked_sub(1)?);
    let byte = call.fs().read(handle, last, 1).await.ok()?.concat();
    let kernel = Arc::clone(&call.session.kernel);
    kernel.nodes.give_pages(id);
    // It may wait for a read of that page, whose answer is not to wait for this thread.
    let told = tokio::task::spawn_blocking(move || {
        if kernel.store(id, last, &byte) {
            kernel.nodes.end_taken(id, last + 1);
        }
        // The page is to come whole, and as it will be then.
        kernel.forget(&Forget::Part(id, last, 1));
    });
    told.await.ok()
}

pub async fn setattr(call: &Call) -> Outcome {
    let arguments = SetattrIn::read(&mut call.arguments())?;
    let before = call.session.kernel.nodes.told(call.id());
    let change = owned(call, change_of(&arguments)).await?;
    let is_by_handle = arguments.valid & set::HANDLE != 0;
    let handle = is_by_handle.then_some(HandleId(arguments.handle));
    let known = call.fs().set_attributes(&call.caller_now(), call.id(), handle, change).await?;
    Ok(told(call, known, before))
}

fn told(call: &Call, known: Known, before: Option<Told>) -> Answer {
    let nodes = &call.session.kernel.nodes;
    nodes.tell(&known.attributes, before);
    Answer::attributes(nodes, call.shown(known.attributes), known.belief)
}

/// With owners as the file system has them.
async fn owned(call: &Call, change: AttributeChange) -> Result<AttributeChange, Errno> {
    let Some(people) = &call.session.people else { return Ok(change) };
    let stored = || -> Result<_, Errno> {
        let uid = change.uid.map(|uid| people.stored_uid(uid).ok_or(Errno::INVAL)).transpose()?;
        let gid = change.gid.map(|gid| people.stored_gid(gid).ok_or(Errno::INVAL)).transpose()?;
        Ok((uid, gid))
    };
    let (uid, gid) = learned(&**people, stored).await?;
    Ok(AttributeChange { uid, gid, ..change })
}

fn change_of(arguments: &SetattrIn) -> AttributeChange {
    let has = |bit| arguments.valid & bit != 0;
    let time = |given, now, seconds: u64, nanos| match (has(given), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Time { seconds: seconds as i64, nanos })),
        (false, false) => None,
    };
    AttributeChange {
        mode: has(set::MODE).then(|| Mode::new(arguments.mode)),
        uid: has(set::UID).then_some(Uid(arguments.uid)),
        gid: has(set::GID).then_some(Gid(arguments.gid)),
        size: has(set::SIZE).then_some(arguments.size),
        atime: time(set::ATIME, set::ATIME_NOW, arguments.atime, arguments.atime_nanos),
        mtime: time(set::MTIME, set::MTIME_NOW, arguments.mtime, arguments.mtime_nanos),
    }
}
