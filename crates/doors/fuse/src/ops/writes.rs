//! Writing: from programs, from the page cache, and from file to file.

use super::Outcome;
use super::files::forget_privileges;
use crate::abi::WRITE_IN_BYTES;
use crate::abi::bits;
use crate::abi::incoming::{CopyFileRangeIn, WriteIn};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing;
use crate::call::Call;
use rustix::io::Errno;
use tieline_client::{CopyEnd, HandleId, Writing};

pub async fn write(call: &Call) -> Outcome {
    let arguments = WriteIn::read(&mut call.arguments())?;
    let end = WRITE_IN_BYTES.checked_add(arguments.size as usize).ok_or(Errno::INVAL)?;
    if call.body.len() < end {
        return Err(Errno::INVAL.into());
    }
    let data = call.body.slice(WRITE_IN_BYTES..end);
    let handle = HandleId(arguments.handle);
    call.session.kernel.nodes.give_pages(call.id());
    call.fs().write_as(handle, arguments.offset, writing(call, &arguments), data).await?;
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
