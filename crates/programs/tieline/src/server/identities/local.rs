//! Users of the server's own machine, by nsswitch; root is none.

use super::lock;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Mutex;
use std::time::Duration;
use tieline_types::{Caller, Gid, Uid};
use tokio::time::Instant;

/// How long what was looked up is believed.
const FRESH: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 10_000;
/// Room for an entry of the user database; the largest are those of directories.
const ENTRY: usize = 64 << 10;

/// Those who were looked up.
#[derive(Default)]
pub struct Users(Mutex<BTreeMap<String, (Instant, Option<Caller>)>>);

impl Users {
    pub async fn find(&self, name: &str) -> Option<Caller> {
        if let Some(found) = self.known(name) {
            return found;
        }
        let asked = name.to_owned();
        // A directory may be asked, which takes its time.
        let looked = tokio::task::spawn_blocking(move || look_up(&asked)).await;
        let found = looked.unwrap_or_default();
        self.remember(name, found.clone());
        found
    }

    fn known(&self, name: &str) -> Option<Option<Caller>> {
        let known = lock(&self.0);
        known.get(name).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, found)| found.clone())
    }

    fn remember(&self, name: &str, found: Option<Caller>) {
        let mut known = lock(&self.0);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < KNOWN_MAX {
            known.insert(name.to_owned(), (Instant::now(), found));
        }
    }
}

/// The uid and gid of a user of this machine who is not root.
pub fn user_of_machine(name: &str) -> Option<(u32, u32)> {
    ids_of(&CString::new(name).ok()?).filter(|(uid, _)| *uid != 0)
}

/// The groups of a user of this machine, the first among them.
pub fn groups_of_user(name: &str, gid: u32) -> Vec<u32> {
    CString::new(name).map_or_else(|_| vec![gid], |name| groups_of(&name, gid))
}

fn look_up(name: &str) -> Option<Caller> {
    let name = CString::new(name).ok()?;
    let (uid, gid) = ids_of(&name)?;
    if uid == 0 {
        return None;
    }
    let groups = groups_of(&name, gid);
    let groups = groups.into_iter().filter(|&of| of != gid).take(Caller::GROUPS_MAX).map(Gid);
    Some(Caller { uid: Uid(uid), gid: Gid(gid), groups: groups.collect(), proof: None })
}

fn ids_of(name: &CStr) -> Option<(u32, u32)> {
    // SAFETY: a `passwd` of zeroes is one of null pointers and of ids 0.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut room = vec![0; ENTRY];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some((entry.pw_uid, entry.pw_gid))
}

fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; Caller::GROUPS_MAX];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: `groups` has room for `count` ids; the name ends with a zero byte.
    let status = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    groups.truncate(if status < 0 { 0 } else { usize::try_from(count).unwrap_or(0) });
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_machine_and_root_is_none() {
        assert_eq!(look_up("daemon").map(|caller| caller.uid.0 > 0), Some(true));
        assert_eq!(look_up("root"), None);
        assert_eq!(look_up("ann/admin"), None);
    }
}
