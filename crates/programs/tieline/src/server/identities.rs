//! On whose behalf a request is made, once connections are proven.
//!
//! A machine (`host/NAME`, `tieline_role/NAME`) and a server of the federation say which of their
//! users asks, as kernels do for their mounts. A user's own principal, `ann@REALM`, is the user
//! `ann` of this server's machine, with the groups that `getent group` knows, whatever the request
//! says. Everybody else is a stranger: of another realm, or of no such name.
//!
//! Invariants: nobody is root by a user's ticket; a stranger's request is refused with the reason
//! before any room sees it; what is looked up is believed for [`FRESH`], and at most
//! [`KNOWN_MAX`] names are kept.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_auth::{Guard, MapCell};
use tieline_types::{Caller, ErrorKind, Gid, Uid};
use tieline_wire::Failure;
use tokio::time::Instant;

const FRESH: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 10_000;
/// What may state its users' ids.
const MACHINES: [&str; 2] = ["host", "tieline_role"];
/// Room for an entry of the user database; the largest are those of directories.
const ENTRY: usize = 64 << 10;

/// See the module.
pub struct Identities {
    guard: Arc<Guard>,
    map: MapCell,
    /// For people: `mds-uf`.
    server: String,
    known: Mutex<BTreeMap<String, (Instant, Option<Caller>)>>,
}

/// What a principal is.
#[derive(Debug, PartialEq, Eq)]
enum Who<'a> {
    /// Believed in what it states.
    Machine,
    User(&'a str),
    OtherRealm,
}

impl Identities {
    pub fn new(guard: Arc<Guard>, map: MapCell, server: String) -> Self {
        Self { guard, map, server, known: Mutex::default() }
    }

    /// Who asks, or why he may not.
    pub async fn caller(&self, principal: Option<&str>, stated: Caller) -> Result<Caller, Failure> {
        // Under flavor null there is nothing but the client's word.
        let Some(principal) = principal else { return Ok(stated) };
        if self.guard.is_server(principal) {
            return Ok(stated);
        }
        let current = self.map.current();
        let realm = current.map.security.as_ref().map(|security| security.realm.as_str());
        match who(principal, realm.unwrap_or_default()) {
            Who::Machine => Ok(stated),
            Who::User(name) => self.user(principal, name).await,
            Who::OtherRealm => Err(stranger(format!(
                "{principal} is a stranger to {}: only principals of {} are known",
                self.server,
                realm.unwrap_or("its realm")
            ))),
        }
    }

    async fn user(&self, principal: &str, name: &str) -> Result<Caller, Failure> {
        let known = self.known(name);
        let found = match known {
            Some(found) => found,
            None => {
                let asked = name.to_owned();
                // A directory may be asked, which takes its time.
                let looked = tokio::task::spawn_blocking(move || look_up(&asked)).await;
                let found = looked.unwrap_or_default();
                self.remember(name, found.clone());
                found
            }
        };
        found.ok_or_else(|| {
            stranger(format!(
                "{principal} is a stranger to {}: its machine has no user `{name}`, or it is root",
                self.server
            ))
        })
    }

    fn known(&self, name: &str) -> Option<Option<Caller>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, found)| found.clone())
    }

    fn remember(&self, name: &str, found: Option<Caller>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < KNOWN_MAX {
            known.insert(name.to_owned(), (Instant::now(), found));
        }
    }
}

fn who<'a>(principal: &'a str, own_realm: &str) -> Who<'a> {
    match principal.rsplit_once('@') {
        Some((name, realm)) if realm == own_realm => match name.split_once('/') {
            Some((service, _)) if MACHINES.contains(&service) => Who::Machine,
            // `ann/admin` is nobody else than ann nowhere: it has its own name, and is no user.
            _ => Who::User(name),
        },
        _ => Who::OtherRealm,
    }
}

fn stranger(detail: String) -> Failure {
    tracing::info!(detail, "denied");
    Failure::new(ErrorKind::NotPermitted, detail)
}

/// A user of this machine; root is none.
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

/// The uid and gid of a user of this machine who is not root.
pub fn user_of_machine(name: &str) -> Option<(u32, u32)> {
    ids_of(&CString::new(name).ok()?).filter(|(uid, _)| *uid != 0)
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
    fn principals_are_machines_users_or_strangers() {
        let of = |principal| who(principal, "EXTENCI.ORG");
        assert_eq!(of("host/wn17.uf.example@EXTENCI.ORG"), Who::Machine);
        assert_eq!(of("ann@EXTENCI.ORG"), Who::User("ann"));
        assert_eq!(of("ann/admin@EXTENCI.ORG"), Who::User("ann/admin"));
        assert_eq!(of("host/wn17.uf.example@PSC.EDU"), Who::OtherRealm);
        assert_eq!(of("ann@PSC.EDU"), Who::OtherRealm);
        assert_eq!(of("ann"), Who::OtherRealm);
    }

    #[test]
    fn users_are_those_of_the_machine_and_root_is_none() {
        assert_eq!(look_up("daemon").map(|caller| caller.uid.0 > 0), Some(true));
        assert_eq!(look_up("root"), None);
        assert_eq!(look_up("ann/admin"), None);
    }
}
