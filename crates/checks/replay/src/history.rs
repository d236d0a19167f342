//! A program on a tree of which something may have been learned before.

use crate::line::{FAR, lock};
use crate::machine::{Machine, Run};
use crate::server::Server;
use crate::shapes::stranger;
use crate::trace::Trace;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Clients tell what they saw within this.
const TOLD: Duration = Duration::from_secs(5);

/// Who used the tree before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum History {
    Never,
    Once,
    Twice,
    Thrice,
    /// By four others, and then a file was changed.
    Changed,
    /// By ten different programs.
    Ten,
    /// By the same program, and then by ten different ones.
    OnceAndTen,
    /// By this very client.
    Again,
}

pub const HISTORIES: [History; 8] = [
    History::Never,
    History::Once,
    History::Twice,
    History::Thrice,
    History::Changed,
    History::Ten,
    History::OnceAndTen,
    History::Again,
];

/// A world of its own, whose time passes when nobody has anything to do.
fn in_virtual_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build()?.block_on(work)
}

/// One fresh client; and the same once more.
fn client(server: &Arc<Mutex<Server>>, trace: &Trace, again: bool) -> Result<(Run, Option<Run>)> {
    in_virtual_time(async {
        let machine = Machine::mount(FAR, server)?;
        let run = machine.run(trace).await?;
        tokio::time::sleep(TOLD).await;
        let again = if again { Some(machine.run(trace).await?) } else { None };
        Ok((run, again))
    })
}

/// What a program comes to after some histories, which are given in their order. `others` use the
/// same tree.
pub fn runs(
    trace: &Trace,
    others: &[Trace],
    histories: &[History],
) -> Result<BTreeMap<History, Run>> {
    let mut found = BTreeMap::new();
    let wanted = |one: History| histories.contains(&one);
    let last = histories.iter().copied().filter(|one| *one <= History::Changed).max();
    let server = Arc::new(Mutex::new(Server::new(&trace.tree)));
    for history in [History::Never, History::Once, History::Twice, History::Thrice] {
        if last.is_none_or(|last| history > last) {
            break;
        }
        let again = history == History::Never && wanted(History::Again);
        let (run, again) = client(&server, trace, again)?;
        found.insert(history, run);
        found.extend(again.map(|run| (History::Again, run)));
    }
    if wanted(History::Changed) {
        change_one(&server, trace);
        found.insert(History::Changed, client(&server, trace, false)?.0);
    }
    for history in [History::Ten, History::OnceAndTen].into_iter().filter(|one| wanted(*one)) {
        let server = Arc::new(Mutex::new(Server::new(&trace.tree)));
        if history == History::OnceAndTen {
            client(&server, trace, false)?;
        }
        let strangers = (0..10).map(|seed| stranger(&trace.tree, seed));
        let known = others.iter().filter(|other| other.name != trace.name).cloned();
        for other in known.chain(strangers).take(10) {
            client(&server, &other, false)?;
        }
        found.insert(history, client(&server, trace, false)?.0);
    }
    Ok(found)
}

/// The file in the middle of what is read.
fn change_one(server: &Arc<Mutex<Server>>, trace: &Trace) {
    use crate::trace::Call;
    let read: Vec<usize> = trace
        .calls()
        .filter_map(|call| if let Call::Read(at, _) = call { Some(*at) } else { None })
        .collect();
    if let Some(&middle) = read.get(read.len() / 2) {
        lock(server).tree.nodes[middle].version += 1;
    }
}
