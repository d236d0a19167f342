//! Users of the server's own machine, by nsswitch; root is none.

use super::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tieline_machine::users::{groups_of_user, user_of_machine};
use tieline_types::{Caller, Gid, Uid};
use tokio::time::Instant;

/// How long what was looked up is believed.
const FRESH: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 10_000;

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

fn look_up(name: &str) -> Option<Caller> {
    let (uid, gid) = user_of_machine(name)?;
    let groups = groups_of_user(name, gid);
    let groups = groups.into_iter().filter(|&of| of != gid).take(Caller::GROUPS_MAX).map(Gid);
    Some(Caller { uid: Uid(uid), gid: Gid(gid), groups: groups.collect(), proof: None })
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
