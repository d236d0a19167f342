//! Open files, except writing.
//!
//! Rights were found at open and belong to the handle. FLUSH reaches the client at every close, for
//! that is where late errors are told: FOPEN_NOFLUSH is never given.

use super::{Outcome, names};
use crate::abi::bits::{self, opened};
use crate::abi::incoming::{
    CreateIn, FallocateIn, FlushIn, FsyncIn, LseekIn, OpenIn, ReadIn, ReleaseIn,
};
use crate::abi::outgoing;
use crate::answer::{Answer, Undo};
use crate::call::Call;
use crate::cuts::Answered;
use crate::kernel::Forget;
use bytes::Bytes;
use rustix::io::Errno;
use tieline_files::{Access, Allocation, AllocationMode, At, Known, NewFile, Opened, SeekTarget};
use tieline_types::HandleId;
use tieline_types::{FileId, LockKind, Mode, Name};

/// `__FMODE_EXEC` of include/linux/fs.h, which open flags of programs being started carry.
const FMODE_EXEC: i32 = 0x20;

pub async fn open(call: &Call) -> Outcome {
    let arguments = OpenIn::read(&mut call.arguments())?;
    let flags = arguments.flags as i32;
    let access = access_of(flags);
    let opened = call.fs().open(&call.caller(), call.id(), access).await?;
    call.session.kernel.nodes.see(&opened.attributes);
    let undo = Undo { file: Some(opened.handle), ..Undo::default() };
    let flags = reply_flags(call, flags, &opened);
    Ok(Answer { undo, ..outgoing::open(opened.handle.0, flags).into() })
}

pub async fn create(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let arguments = CreateIn::read(&mut from)?;
    let name = Name::new(from.text()?)?;
    let at = At { parent: call.id(), name: &name };
    let new = new_file(&arguments);
    let (known, opened) = call.fs().create(&call.caller_now(), at, new).await?;
    created(call, arguments.flags as i32, known, opened)
}

/// The request is as for a creation; its name means nothing.
pub async fn tmpfile(call: &Call) -> Outcome {
    let arguments = CreateIn::read(&mut call.arguments())?;
    let (parent, new) = (call.id(), new_file(&arguments));
    let (known, opened) = call.fs().create_nameless(&call.caller_now(), parent, new).await?;
    created(call, arguments.flags as i32, known, opened)
}

fn new_file(arguments: &CreateIn) -> NewFile {
    let flags = arguments.flags as i32;
    NewFile {
        mode: Mode::new(arguments.mode),
        umask: Mode::new(arguments.umask),
        is_exclusive: flags & libc::O_EXCL != 0,
        access: access_of(flags),
        layout: None,
    }
}

fn created(call: &Call, flags: i32, known: Known, opened: Opened) -> Outcome {
    let handle = (opened.handle, reply_flags(call, flags, &opened));
    let entry = names::made_entry(call, known);
    Ok(Answer::entry(&call.session.kernel.nodes, entry, Some(handle)))
}

fn access_of(flags: i32) -> Access {
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        _ => (true, true),
    };
    let has = |bit| flags & bit != 0;
    let (append, truncate) = (has(libc::O_APPEND), has(libc::O_TRUNC));
    // Linux says so of what it executes; whether that is allowed it has found itself.
    let runs = read && !write && has(FMODE_EXEC);
    Access { read, write, append, truncate, unnoted: has(libc::O_NOATIME), runs }
}

/// How the kernel is to treat the file.
fn reply_flags(call: &Call, flags: i32, opened: &Opened) -> u32 {
    // Appended bytes may land elsewhere than the kernel thinks, so they must not enter its page
    // cache. Each write(2) is one request either way.
    let is_past_cache = flags & (libc::O_DIRECT | libc::O_APPEND) != 0;
    // Where that would forbid mmap, the cache costs less than programs that fail.
    let is_exact = opened.is_direct && call.session.kernel.features.maps_direct;
    let is_direct = is_past_cache || is_exact;
    if !is_direct {
        call.session.kernel.cuts.opened_cached(opened.handle);
    }
    let keeps = if opened.keeps_cache { opened::KEEP_CACHE } else { 0 };
    keeps | if is_direct { opened::DIRECT_IO } else { 0 }
}

pub async fn read(call: &Call) -> Outcome {
    let arguments = ReadIn::read(&mut call.arguments())?;
    let (handle, offset) = (HandleId(arguments.handle), arguments.offset);
    let kernel = &call.session.kernel;
    let before = kernel.nodes.give_pages(call.id());
    let pieces = call.fs().read(handle, offset, arguments.size).await?;
    let asked = offset..offset.saturating_add(arguments.size.into());
    let length = pieces.iter().map(|piece| piece.len() as u64).sum();
    let after = kernel.nodes.told(call.id());
    if kernel.cuts.refuses(&Answered { handle, asked, length, before, after }) {
        return Err(Errno::AGAIN.into());
    }
    Ok(Answer::pieces(clipped(pieces, arguments.size as usize)))
}

/// The kernel refuses an answer that is longer than it asked for.
fn clipped(mut pieces: Vec<Bytes>, mut room: usize) -> Vec<Bytes> {
    for piece in &mut pieces {
        piece.truncate(room);
        room -= piece.len();
    }
    pieces
}

pub async fn flush(call: &Call) -> Outcome {
    let arguments = FlushIn::read(&mut call.arguments())?;
    let handle = HandleId(arguments.handle);
    let flushed = call.fs().flush(handle).await;
    // A process that closes any descriptor of a file frees all its locks on it.
    call.fs().drop_locks(handle, LockKind::Posix, arguments.lock_owner).await;
    flushed?;
    forget_privileges(call, call.id());
    Ok(Answer::done())
}

/// A write may have ended setuid and setgid of a file, by which the kernel would start it.
pub fn forget_privileges(call: &Call, id: FileId) {
    if call.session.kernel.nodes.is_privileged(id) {
        call.session.kernel.forget(&Forget::Attributes(id));
    }
}

pub async fn fsync(call: &Call) -> Outcome {
    let arguments = FsyncIn::read(&mut call.arguments())?;
    let is_data_only = arguments.flags & bits::FSYNC_DATA_ONLY != 0;
    call.fs().sync(HandleId(arguments.handle), is_data_only).await?;
    Ok(Answer::done())
}

pub async fn release(call: &Call) -> Outcome {
    let arguments = ReleaseIn::read(&mut call.arguments())?;
    let handle = HandleId(arguments.handle);
    if arguments.release_flags & bits::RELEASE_FLOCK_UNLOCK != 0 {
        call.fs().drop_locks(handle, LockKind::Flock, arguments.lock_owner).await;
    }
    call.fs().release(handle).await;
    call.session.kernel.cuts.closed(handle);
    Ok(Answer::done())
}

pub async fn fallocate(call: &Call) -> Outcome {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEPING: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    let arguments = FallocateIn::read(&mut call.arguments())?;
    let mode = match arguments.mode as i32 {
        0 => AllocationMode::Extend,
        libc::FALLOC_FL_KEEP_SIZE => AllocationMode::KeepSize,
        PUNCH => AllocationMode::Punch,
        libc::FALLOC_FL_ZERO_RANGE => AllocationMode::Zero { keeps_size: false },
        ZERO_KEEPING => AllocationMode::Zero { keeps_size: true },
        _ => return Err(Errno::OPNOTSUPP.into()),
    };
    let change = Allocation { offset: arguments.offset, length: arguments.length, mode };
    call.fs().allocate(HandleId(arguments.handle), change).await?;
    forget_privileges(call, call.id());
    Ok(Answer::done())
}

pub async fn lseek(call: &Call) -> Outcome {
    let arguments = LseekIn::read(&mut call.arguments())?;
    let target = match arguments.whence as i32 {
        libc::SEEK_DATA => SeekTarget::Data,
        libc::SEEK_HOLE => SeekTarget::Hole,
        _ => return Err(Errno::INVAL.into()),
    };
    let at = call.fs().seek(HandleId(arguments.handle), arguments.offset, target).await?;
    Ok(outgoing::position(at).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_answered_than_was_asked() {
        let pieces = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defg")];
        let lengths = |room| {
            let clipped = clipped(pieces.clone(), room);
            clipped.iter().map(Bytes::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(10), [3, 4]);
        assert_eq!(lengths(5), [3, 2]);
        assert_eq!(lengths(0), [0, 0]);
    }

    #[test]
    fn access_is_what_the_program_asked() {
        let access = access_of(libc::O_WRONLY | libc::O_APPEND);
        assert_eq!((access.read, access.write, access.append), (false, true, true));
        assert!(access_of(libc::O_RDWR | libc::O_TRUNC).truncate);
        assert!(access_of(libc::O_RDONLY).read);
    }
}
