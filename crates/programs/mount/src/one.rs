//! A mount of one user (`-o idmapped=USER`), which may be mounted again with other ids
//! (`MOUNT_ATTR_IDMAP`: podman's `idmap`, Kubernetes' `hostUsers: false`).
//!
//! Of such a file system the kernel says of no request who asks, but for those that make something.
//! It checks the caller's rights itself, by the owner and mode that it was told. Whatever passes is
//! asked of the servers for the one user whom the administrator named, by that user's ticket where
//! they want one.
//!
//! Invariants: no request is decided for a uid that neither the kernel nor the administrator gave;
//! what is made for another uid than the one user's is refused.

use anyhow::{Context, ensure};
use std::str::FromStr;
use tieline_base::report::Usage;
use tieline_fuse::UID_UNSAID;
use tieline_machine::users::{groups_of_user, user_of_machine};
use tieline_people::{Asking, People, Unknown, Users};
use tieline_types::{Caller, ErrorKind, Gid, Uid};

/// A user of this machine: a name, or `UID:GID`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    Named(String),
    Numbers(u32, u32),
}

impl FromStr for Who {
    type Err = Usage;

    fn from_str(text: &str) -> Result<Self, Usage> {
        let wrong = || Usage(format!("-o idmapped={text}: a user, or UID:GID; not root"));
        let Some((uid, gid)) = text.split_once(':') else {
            let is_name = !text.is_empty() && text != "root" && text.parse::<u32>().is_err();
            return if is_name { Ok(Self::Named(text.to_owned())) } else { Err(wrong()) };
        };
        let number = |text: &str| text.parse().ok().filter(|&id| id != UID_UNSAID);
        let uid = number(uid).filter(|&uid| uid != 0);
        Ok(Self::Numbers(uid.ok_or_else(wrong)?, number(gid).ok_or_else(wrong)?))
    }
}

impl Who {
    /// As this machine knows the user.
    pub fn find(&self) -> anyhow::Result<Caller> {
        let is_root = rustix::process::geteuid().is_root();
        ensure!(is_root, "-o idmapped= is for root, who alone can mount with other ids");
        let (uid, gid, groups) = match self {
            Self::Numbers(uid, gid) => (*uid, *gid, Vec::new()),
            Self::Named(name) => {
                let (uid, gid) = user_of_machine(name).with_context(|| {
                    format!("-o idmapped={name}: this machine has no such user, or it is root")
                })?;
                (uid, gid, groups_of_user(name, gid))
            }
        };
        let others = groups.into_iter().filter(|&of| of != gid).take(Caller::GROUPS_MAX);
        Ok(Caller { uid: Uid(uid), gid: Gid(gid), groups: others.map(Gid).collect(), proof: None })
    }
}

/// See the module.
pub struct OneUser {
    users: Users,
    here: Caller,
}

impl OneUser {
    pub fn new(users: Users, here: Caller) -> Self {
        Self { users, here }
    }

    /// Whoever is asked for, if it is the one.
    fn checked(&self, stated: &Caller) -> Result<Asking, Unknown> {
        allow(&self.here, stated)?;
        // Any process may be another's than the one user's, and is not looked at for its ticket.
        Ok(Asking { process: 0, stated: self.here.clone() })
    }
}

fn allow(here: &Caller, stated: &Caller) -> Result<(), Unknown> {
    if [Uid(UID_UNSAID), here.uid].contains(&stated.uid) {
        return Ok(());
    }
    let why = format!(
        "this mount is for uid {} alone (-o idmapped=), and makes nothing for uid {}",
        here.uid.0, stated.uid.0
    );
    Err(Unknown { kind: ErrorKind::NotPermitted, why })
}

#[async_trait::async_trait]
impl People for OneUser {
    async fn caller(&self, asking: Asking) -> Result<Caller, Unknown> {
        self.users.caller(self.checked(&asking.stated)?).await
    }

    async fn described(&self, asking: Asking) -> Result<String, Unknown> {
        self.users.described(self.checked(&asking.stated)?).await
    }

    fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid) {
        self.users.shown(uid, gid)
    }

    fn stored_uid(&self, uid: Uid) -> Option<Uid> {
        self.users.stored_uid(uid)
    }

    fn stored_gid(&self, gid: Gid) -> Option<Gid> {
        self.users.stored_gid(gid)
    }

    async fn learn(&self) {
        self.users.learn().await;
    }

    fn are_personal(&self) -> bool {
        self.users.are_personal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_user_and_not_root() {
        let who = |text: &str| text.parse::<Who>().unwrap();
        assert_eq!(who("ann"), Who::Named("ann".to_owned()));
        assert_eq!(who("5001:6001"), Who::Numbers(5001, 6001));
        for wrong in ["", "root", "0:0", "5001", "0", "5001:", "4294967295:1", "a:b"] {
            assert!(wrong.parse::<Who>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_done_for_a_uid_that_was_given_and_is_another() {
        let caller = |uid| Caller { uid: Uid(uid), gid: Gid(1), groups: vec![], proof: None };
        let kind = |uid| allow(&caller(5001), &caller(uid)).err().map(|unknown| unknown.kind);
        assert_eq!((kind(UID_UNSAID), kind(5001)), (None, None));
        for other in [0, 1, 5002, 65534] {
            assert_eq!(kind(other), Some(ErrorKind::NotPermitted));
        }
    }
}
