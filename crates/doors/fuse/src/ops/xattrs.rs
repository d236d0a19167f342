//! Extended attributes.
//!
//! `security.…` is root's to set. The kernel heeds `security.capability` as it heeds setuid: where
//! the mount has `suid` only. POSIX ACLs come and go under their own names (`system.…`) in Linux's
//! form, and the kernel keeps what it was told as long as the file's attributes.

use super::Outcome;
use crate::abi::incoming::{GetxattrIn, SetxattrIn};
use crate::abi::outgoing;
use crate::answer::Answer;
use crate::call::Call;
use crate::errno::Refusal;
use rustix::io::Errno;
use tieline_types::XattrName;
use tieline_wire::meta::XattrMode;

fn checked(name: &[u8]) -> Result<XattrName, Refusal> {
    // Linux has ERANGE for names that are too long here.
    XattrName::new(name).map_err(|_| Errno::RANGE.into())
}

pub async fn getxattr(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let room = GetxattrIn::read(&mut from)?.size;
    let name = checked(from.text()?)?;
    sized(call.fs().xattr(&call.caller(), call.id(), &name).await?, room)
}

pub async fn listxattr(call: &Call) -> Outcome {
    let room = GetxattrIn::read(&mut call.arguments())?.size;
    let mut list = Vec::new();
    for name in call.fs().xattrs(&call.caller(), call.id()).await? {
        list.extend_from_slice(name.as_bytes());
        list.push(0);
    }
    sized(list, room)
}

/// Without room the size is asked for.
fn sized(value: Vec<u8>, room: u32) -> Outcome {
    let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    match room {
        0 => Ok(outgoing::count(size).into()),
        room if size > room => Err(Errno::RANGE.into()),
        _ => Ok(value.into()),
    }
}

pub async fn setxattr(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let arguments = SetxattrIn::read(&mut from)?;
    let name = checked(from.text()?)?;
    let value = from.take(arguments.size as usize)?;
    let mode = match i32::try_from(arguments.flags) {
        Ok(0) => XattrMode::Either,
        Ok(libc::XATTR_CREATE) => XattrMode::Create,
        Ok(libc::XATTR_REPLACE) => XattrMode::Replace,
        _ => return Err(Errno::INVAL.into()),
    };
    call.fs().set_xattr(&call.caller(), call.id(), &name, value, mode).await?;
    Ok(Answer::done())
}

pub async fn removexattr(call: &Call) -> Outcome {
    let name = checked(call.arguments().text()?)?;
    call.fs().remove_xattr(&call.caller(), call.id(), &name).await?;
    Ok(Answer::done())
}
