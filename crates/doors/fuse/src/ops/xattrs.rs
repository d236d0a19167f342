//! Extended attributes.
//!
//! `security.…` is root's to set. The kernel heeds `security.capability` as it heeds setuid: where
//! the mount has `suid` only. POSIX ACLs come and go under their own names (`system.…`) in Linux's
//! form, and the kernel keeps what it was told as long as the file's attributes.

use super::Outcome;
use crate::abi::incoming::{GetxattrIn, SetxattrIn};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing;
use crate::answer::Answer;
use crate::call::{Call, WHO};
use crate::denials::NAME;
use crate::errno::Refusal;
use rustix::io::Errno;
use tieline_people::learned;
use tieline_types::{Gid, Uid, XattrName};
use tieline_wire::meta::XattrMode;

fn checked(name: &[u8]) -> Result<XattrName, Refusal> {
    // A name space alone is none, as for the file systems in the kernel.
    if matches!(name, b"user." | b"trusted." | b"security.") {
        return Err(Errno::INVAL.into());
    }
    // Linux has ERANGE for names that are too long here.
    XattrName::new(name).map_err(|_| Errno::RANGE.into())
}

pub async fn getxattr(call: &Call) -> Outcome {
    let mut from = call.arguments();
    let room = GetxattrIn::read(&mut from)?.size;
    let name = checked(from.text()?)?;
    // A list that is overtaken the kernel does not keep.
    call.session.kernel.nodes.give_attributes(&[call.id()]);
    let value = call.fs().xattr(&call.caller(), call.id(), &name).await?;
    let Some(people) = call.session.people.as_deref().filter(|_| is_access_list(&name)) else {
        return sized(value, room);
    };
    let user = |id| Some(people.shown(Uid(id), Gid(0)).0.0);
    let group = |id| Some(people.shown(Uid(0), Gid(id)).1.0);
    sized(translated(value, user, group)?, room)
}

/// The answer to who asks what was denied to him, or as whom he is served.
pub async fn about_caller(call: &Call) -> Option<Outcome> {
    if call.opcode != Opcode::Getxattr {
        return None;
    }
    let mut from = call.arguments();
    let room = GetxattrIn::read(&mut from).ok()?.size;
    let name = from.text().ok()?;
    if name == NAME.as_bytes() {
        return Some(sized(call.session.denials.tell(call.header.uid).into_bytes(), room));
    }
    if name != WHO.as_bytes() {
        return None;
    }
    let told = call.described().await;
    Some(told.and_then(|told| sized(told.into_bytes(), room)))
}

/// The two lists that name users and groups.
fn is_access_list(name: &XattrName) -> bool {
    matches!(name.as_bytes(), b"system.posix_acl_access" | b"system.posix_acl_default")
}

/// A list in Linux's form, with other numbers of the users and groups that it names: four bytes of
/// version, then entries of tag (2), permissions (2) and number (4).
fn translated(
    mut list: Vec<u8>,
    user: impl Fn(u32) -> Option<u32>,
    group: impl Fn(u32) -> Option<u32>,
) -> Result<Vec<u8>, Errno> {
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    for entry in list.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
        let [tag, more, _, _, id @ ..] = entry else { continue };
        let Ok(number) = <[u8; 4]>::try_from(&*id).map(u32::from_le_bytes) else { continue };
        let other = match u16::from_le_bytes([*tag, *more]) {
            USER => user(number),
            GROUP => group(number),
            _ => continue,
        };
        id.copy_from_slice(&other.ok_or(Errno::INVAL)?.to_le_bytes());
    }
    Ok(list)
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
    let mut value = std::borrow::Cow::Borrowed(value);
    if let Some(people) = call.session.people.as_deref().filter(|_| is_access_list(&name)) {
        let user = |id| people.stored_uid(Uid(id)).map(|uid| uid.0);
        let group = |id| people.stored_gid(Gid(id)).map(|gid| gid.0);
        value = learned(people, || translated(value.to_vec(), user, group)).await?.into();
    }
    call.fs().set_xattr(&call.caller(), call.id(), &name, &value, mode).await?;
    Ok(Answer::done())
}

pub async fn removexattr(call: &Call) -> Outcome {
    let name = checked(call.arguments().text()?)?;
    call.fs().remove_xattr(&call.caller(), call.id(), &name).await?;
    Ok(Answer::done())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_people_by_other_numbers() {
        let entry =
            |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()].concat();
        let list = |user, group| {
            let none = entry(1, u32::MAX);
            [&2_u32.to_le_bytes()[..], &none, &entry(2, user), &entry(8, group)].concat()
        };
        let more = |id: u32| id.checked_add(100);
        assert_eq!(translated(list(5, 6), more, Some), Ok(list(105, 6)));
        assert_eq!(translated(list(5, 6), Some, |_| None), Err(Errno::INVAL));
        assert_eq!(translated(vec![1, 2], more, more), Ok(vec![1, 2]));
    }
}
