//! Writing: from programs, from the page cache, and from file to file.

use super::Outcome;
use super::files::forget_privileges;
use crate::abi::WRITE_IN_BYTES;
use crate::abi::bits;
use crate::abi::incoming::{CopyFileRangeIn, WriteIn};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing;
use crate::call::Call;
use crate::kernel::Forget;
use rustix::io::Errno;
use std::sync::Arc;
use tieline_files::{CopyEnd, Writing};
use tieline_types::HandleId;

pub async fn write(call: &Call) -> Outcome {
    let arguments = WriteIn::read(&mut call.arguments())?;
    let end = WRITE_IN_BYTES.checked_add(arguments.size as usize).ok_or(Errno::INVAL)?;
    if call.body.len() < end {
        return Err(Errno::INVAL.into());
    }
    let data = call.body.slice(WRITE_IN_BYTES..end);
    let handle = HandleId(arguments.handle);
    if !is_direct(&arguments) {
        call.session.kernel.nodes.give_pages(call.id());
    }
    call.fs().write_as(handle, arguments.offset, writing(call, &arguments), data).await?;
    if is_direct(&arguments) {
        forget_written(call, &arguments).await;
    }
    forget_privileges(call, call.id());
    if let Some(is_data_only) = durability(&arguments) {
        call.fs().sync(handle, is_data_only).await?;
    }
    Ok(outgoing::count(arguments.size).into())
}

/// As the program has the file now: `O_APPEND` comes and goes. A page of a mapping has its place,
/// whatever handle the kernel took for it.
fn writing(call: &Call, arguments: &WriteIn) -> Writing {
    let appends = arguments.flags as i32 & libc::O_APPEND != 0;
    let ends_setid = arguments.write_flags & bits::write::KILL_SUIDGID != 0;
    Writing {
        appends: Some(appends && !is_from_mapping(arguments)),
        ends_setid: call.session.kernel.features.says_setid.then_some(ends_setid),
    }
}

/// Is the write to be durable when it returns, and of its metadata only what finds the bytes? What
/// the kernel has in its own cache it syncs itself; what is written past that it leaves to us. It
/// does not say which of the two a write is: the second sync finds nothing to do.
fn durability(arguments: &WriteIn) -> Option<bool> {
    let flags = arguments.flags as i32;
    let is_wanted = flags & libc::O_DSYNC != 0 && !is_from_mapping(arguments);
    is_wanted.then_some(flags & libc::O_SYNC != libc::O_SYNC)
}

/// Past the kernel's cache: `O_DIRECT`.
fn is_direct(arguments: &WriteIn) -> bool {
    arguments.flags as i32 & libc::O_DIRECT != 0 && !is_from_mapping(arguments)
}

/// After a write past its cache the kernel drops the pages that lie there, but not when it ends the
/// write asynchronously (`fuse_aio_complete` in Linux' fs/fuse/file.c).
async fn forget_written(call: &Call, arguments: &WriteIn) {
    let (kernel, id) = (Arc::clone(&call.session.kernel), call.id());
    if !kernel.nodes.has_pages(id) || arguments.size == 0 {
        return;
    }
    let part = Forget::Part(id, arguments.offset, arguments.size.into());
    // It may wait for a read, whose answer is not to wait for this thread.
    let forgotten = tokio::task::spawn_blocking(move || kernel.forget(&part));
    if forgotten.await.is_err() {
        tracing::error!(file = %id, "pages were not forgotten");
    }
}

fn is_from_mapping(arguments: &WriteIn) -> bool {
    arguments.write_flags & bits::write::CACHE != 0
}

pub async fn copy_range(call: &Call) -> Outcome {
    let arguments = CopyFileRangeIn::read(&mut call.arguments())?;
    let end = |handle, offset| CopyEnd { handle: HandleId(handle), offset };
    let from = end(arguments.from_handle, arguments.from_offset);
    let to = end(arguments.to_handle, arguments.to_offset);
    let target = call.session.kernel.nodes.id_of(arguments.to_node);
    if call.opcode == Opcode::CopyFileRange64 {
        let copied = call.fs().copy_range(from, to, arguments.length).await?;
        forget_privileges(call, target);
        return Ok(outgoing::position(copied).into());
    }
    // Its answer has 32 bits. Whole chunks are shared, others copied: keep to a multiple of any
    // chunk size.
    const LENGTH_MAX: u64 = 1 << 30;
    let copied = call.fs().copy_range(from, to, arguments.length.min(LENGTH_MAX)).await?;
    forget_privileges(call, target);
    let copied = u32::try_from(copied).map_err(|_| Errno::IO)?;
    Ok(outgoing::count(copied).into())
}
