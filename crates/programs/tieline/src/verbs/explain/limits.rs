//! What stands in the way of who may write: a mount that is read-only, and quotas that are used up.

use super::{Step, Verdict, Wish};
use crate::shell::Shell;
use crate::verbs::quota::{rows, whole};
use std::path::Path;
use std::sync::Arc;
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{ByteSize, Caller, Mode};

/// A mount that takes no changes.
pub fn read_only(mountpoint: &Path) -> Option<Verdict> {
    let flags = rustix::fs::statvfs(mountpoint).ok()?.f_flag;
    let path = mountpoint.display().to_string();
    let rule = "it is mounted read-only (`-o ro`)".to_owned();
    flags.contains(rustix::fs::StatVfsMountFlags::RDONLY).then_some(Verdict {
        by: "mount",
        path,
        is_allowed: false,
        rule,
    })
}

/// Limits that are reached, of those who would pay. Nobody is told of whom he may not ask.
pub async fn quotas(shell: &Arc<Shell>, step: &Step, caller: &Caller, wish: Wish) -> Vec<Verdict> {
    let at = &step.attributes;
    let (uid, gid) = match wish {
        Wish::Write => (at.uid, at.gid),
        Wish::Create if at.mode.has(Mode::SETGID) => (caller.uid, at.gid),
        Wish::Create => (caller.uid, caller.gid),
        Wish::Read | Wish::Execute | Wish::Delete => return vec![],
    };
    let payers = [
        (PayerKind::User, uid.0),
        (PayerKind::Group, gid.0),
        (PayerKind::Project, at.project.unwrap_or(0)),
    ];
    let mut verdicts = vec![];
    for (kind, id) in payers.into_iter().filter(|(_, id)| *id != 0) {
        let asked = whole::of(shell, vec![Payer { kind, id, pool: None }]).await;
        for whole in asked.unwrap_or_default() {
            let [bytes, files] = rows(&whole);
            // A new file is empty, and bytes make none.
            let is_new = wish == Wish::Create;
            let (what, row) = if is_new { ("files", files) } else { ("bytes", bytes) };
            if !row.is_full() {
                continue;
            }
            let shown = |amount: u64| match is_new {
                true => amount.to_string(),
                false => ByteSize(amount).to_string(),
            };
            let rule = match row.hard {
                0 => format!("its grace is over: {} used", shown(row.used)),
                hard => format!("{} of {} used", shown(row.used), shown(hard)),
            };
            verdicts.push(Verdict {
                by: "quota",
                path: step.path.clone(),
                is_allowed: false,
                rule: format!("{what} of {} {id}: {rule}", kind.name()),
            });
        }
    }
    verdicts
}
