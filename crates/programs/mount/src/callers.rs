//! Who the callers of a mount are: which rules of `tieline_people` it goes by, as its options and
//! the federation have it.
//!
//! Invariant: programs that use a mount wait a moment at most for what a daemon that follows
//! another can do without.

use crate::one::{OneUser, Who};
use crate::options::Options;
use anyhow::bail;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::Guard;
use tieline_base::report::Usage;
use tieline_client::{FileSystem, Volume};
use tieline_machine::users::own_caller;
use tieline_people::idmap::{self, Idmap, Means};
use tieline_people::programs::jobs;
use tieline_people::tickets::Tickets;
use tieline_people::{People, Users, judges};
use tokio::time::timeout;

/// How long a mount that goes on waits for what it can do without.
const MOMENT: Duration = Duration::from_secs(3);

/// Who callers are, where that is another question than what their numbers are; and how owners are
/// shown.
pub type Shown = (Option<Arc<dyn People>>, Means);

/// These, and whether the servers believe this machine about its users, as an earlier daemon knew
/// `before`, if there was one.
pub async fn people_of(
    options: &Options,
    files: &Arc<Volume>,
    guard: Arc<Guard>,
    before: Option<Option<bool>>,
) -> anyhow::Result<(Shown, bool)> {
    let is_proven = files.map().security.is_some();
    let one = options.one_user.as_ref().map(Who::find).transpose()?;
    if !is_proven && one.is_none() && matches!(options.idmap, Means::Auto | Means::Same) {
        return Ok(((None, Means::Same), true));
    }
    let (servers, first) = (files.servers(), files.root().mdt());
    let is_new = before.is_none();
    let believed = match before.flatten() {
        Some(was_believed) => was_believed,
        None => match judges::are_believed(servers, first).await {
            Some(told) => told,
            None if is_new => bail!("no MDS says whether it believes this machine"),
            None => false,
        },
    };
    let source = match &options.idmap {
        // Whom the servers believe, they take as he is.
        Means::Auto if believed => Means::Same,
        source => source.clone(),
    };
    // Of a mount that goes on all is known again with the first contact.
    let here = own_caller();
    let own = judges::owner(servers, first, &here);
    let own = if is_new { own.await } else { timeout(MOMENT, own).await.ok().flatten() };
    let idmap = match source {
        Means::Same if believed => Idmap::same(),
        _ => {
            let own = own.map(|identity| (identity, here));
            Idmap::start(source.clone(), servers, own, is_new).await.map_err(as_asked)?
        }
    };
    jobs::make_place_for_jobs();
    let users = Users::new(servers, first, idmap, Arc::new(Tickets::new(guard, reader)));
    if !is_new && believed {
        users.was_believed();
    }
    let people: Arc<dyn People> = match one {
        Some(one) => Arc::new(OneUser::new(users, one)),
        None => Arc::new(users),
    };
    Ok(((Some(people), source), believed))
}

/// A file that says nothing was named by who mounts.
fn as_asked(error: idmap::Error) -> anyhow::Error {
    match error {
        idmap::Error::File(error) => Usage(error.to_string()).into(),
        idmap::Error::Servers(error) => error.into(),
        idmap::Error::Silent => error.into(),
    }
}

/// This program again, as it was when it was started.
fn reader() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["auth", "token"]);
    command
}
