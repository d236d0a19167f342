//! What `stat` tells, and what changes it.

use super::Outcome;
use crate::abi::bits::set;
use crate::abi::incoming::SetattrIn;
use crate::answer::Answer;
use crate::call::Call;
use crate::nodes::Told;
use crate::people::learned;
use rustix::io::Errno;
use tieline_client::{AttributeChange, HandleId, Known};
use tieline_types::{Gid, Mode, SetTime, Time, Uid};

pub async fn getattr(call: &Call) -> Outcome {
    let before = call.session.kernel.nodes.told(call.id());
    let known = call.fs().attributes(&call.caller(), call.id()).await?;
    Ok(told(call, known, before))
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
