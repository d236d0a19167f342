//! Advisory locks, of `fcntl` and of `flock`.
//!
//! The kernel keeps none itself: it asks here, and tells of owners who close with FLUSH (a process)
//! and RELEASE (an open file). Its numbers for owners are good within the mount.

use super::Outcome;
use crate::abi::bits;
use crate::abi::incoming::LockIn;
use crate::abi::outgoing;
use crate::answer::Answer;
use crate::call::Call;
use rustix::io::Errno;
use tieline_types::{HandleId, LockWish};
use tieline_types::{LockKind, LockMode, LockRange};

pub async fn setlk(call: &Call, waits: bool) -> Outcome {
    let arguments = LockIn::read(&mut call.arguments())?;
    let handle = HandleId(arguments.handle);
    match wish(&arguments)? {
        (wish, true) => call.fs().lock(handle, wish, waits).await?,
        (wish, false) => call.fs().unlock(handle, wish).await?,
    }
    Ok(Answer::done())
}

pub async fn getlk(call: &Call) -> Outcome {
    let arguments = LockIn::read(&mut call.arguments())?;
    let (wish, _) = wish(&arguments)?;
    let found = call.fs().test_lock(HandleId(arguments.handle), wish).await?;
    let answer = match found {
        Some(found) => {
            let kind = match found.mode {
                LockMode::Shared => libc::F_RDLCK,
                LockMode::Exclusive => libc::F_WRLCK,
            };
            let last = found.range.end.saturating_sub(1);
            outgoing::lock(found.range.start, last, kind as u32, found.process)
        }
        None => outgoing::lock(arguments.start, arguments.last, libc::F_UNLCK as u32, 0),
    };
    Ok(answer.into())
}

/// What is wanted, and whether it is a lock (or the end of one).
fn wish(arguments: &LockIn) -> Result<(LockWish, bool), Errno> {
    let is_flock = arguments.flags & bits::LOCK_FLOCK != 0;
    let end = arguments.last.saturating_add(1).min(LockRange::WHOLE.end);
    let (kind, range) = if is_flock {
        (LockKind::Flock, LockRange::WHOLE)
    } else {
        (LockKind::Posix, LockRange { start: arguments.start, end })
    };
    let (mode, is_lock) = match arguments.kind as i32 {
        libc::F_RDLCK => (LockMode::Shared, true),
        libc::F_WRLCK => (LockMode::Exclusive, true),
        libc::F_UNLCK => (LockMode::Shared, false),
        _ => return Err(Errno::INVAL),
    };
    let (owner, process) = (arguments.owner, arguments.process);
    Ok((LockWish { kind, owner, range, mode, process }, is_lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(kind: i32, flags: u32, start: u64, last: u64) -> LockIn {
        let (handle, owner, process, _padding) = (1, 2, 3, 0);
        LockIn { handle, owner, start, last, kind: kind as u32, process, flags, _padding }
    }

    #[test]
    fn ranges_end_before_their_end() {
        let end = i64::MAX as u64;
        let (whole, is_lock) = wish(&arguments(libc::F_WRLCK, 0, 0, end)).unwrap();
        assert_eq!((whole.range, whole.mode), (LockRange::WHOLE, LockMode::Exclusive));
        assert!(is_lock && whole.kind == LockKind::Posix);
        let (byte, is_lock) = wish(&arguments(libc::F_UNLCK, 0, 7, 7)).unwrap();
        assert_eq!((byte.range, is_lock), (LockRange { start: 7, end: 8 }, false));
        let (flock, _) = wish(&arguments(libc::F_RDLCK, bits::LOCK_FLOCK, 5, 6)).unwrap();
        assert_eq!((flock.range, flock.kind), (LockRange::WHOLE, LockKind::Flock));
        assert!(wish(&arguments(9, 0, 0, 0)).is_err());
    }
}
