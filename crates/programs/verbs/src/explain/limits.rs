//! What stands in the way of who may write: a mount that is read-only, quotas that are used up, and
//! storage whose site takes nothing, or nothing from here.

use super::{PATIENCE, Step, Subject, Verdict, Wish, unanswered};
use crate::quota::rows;
use crate::quota::whole::{self, Whole};
use crate::shell::Shell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tieline_base::location::Location;
use tieline_types::quota::{Account, Payer, PayerKind};
use tieline_types::{ByteSize, Gid, Mode};
use tieline_wire::meta::OstUsage;
use tokio::task::JoinSet;

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
pub async fn quotas(
    shell: &Arc<Shell>,
    step: &Step,
    subject: &Subject,
    wish: Wish,
) -> Vec<Verdict> {
    let (at, caller) = (&step.attributes, &subject.caller);
    let (uid, gid) = match wish {
        Wish::Write => (at.uid, at.gid),
        Wish::Create if at.mode.has(Mode::SETGID) => (caller.uid, at.gid),
        Wish::Create => (caller.uid, caller.gid),
        Wish::Read | Wish::Execute | Wish::Delete | Wish::Chmod => return vec![],
    };
    // That of the file, or of files in the directory: it says in which pools they count.
    let layout = shell.files.layout(&shell.caller, at.id).await.ok().map(|found| found.layout);
    let account = Account::new((uid, gid, at.project.unwrap_or(0)), layout.as_ref());
    // The server would put it on record that he asked for others'.
    let may_ask = |payer: &Payer| match payer.kind {
        PayerKind::User => caller.uid.0 == payer.id,
        PayerKind::Group => caller.is_member(Gid(payer.id)),
        PayerKind::Project => true,
    };
    let is_asked = |payer: &Payer| !subject.is_self || caller.is_root() || may_ask(payer);
    let mut asking = JoinSet::new();
    for payer in account.payers().into_iter().filter(|payer| payer.id != 0 && is_asked(payer)) {
        let shell = shell.clone();
        asking.spawn(async move { whole::of_within(&shell, vec![payer], PATIENCE).await });
    }
    let (mut verdicts, mut silent) = (vec![], BTreeSet::new());
    for (wholes, unheard) in asking.join_all().await.into_iter().flatten() {
        silent.extend(unheard);
        verdicts.extend(wholes.iter().filter_map(|whole| used_up(whole, step, wish)));
    }
    verdicts.extend(silent.into_iter().map(|mdt| Verdict {
        by: "quota",
        path: step.path.clone(),
        is_allowed: true,
        rule: format!("{}: what it used before is counted", unanswered(shell, mdt)),
    }));
    verdicts
}

fn used_up(whole: &Whole, step: &Step, wish: Wish) -> Option<Verdict> {
    let Payer { kind, id, pool } = &whole.quota.payer;
    let [bytes, files] = rows(whole);
    // A new file is empty, and bytes make none.
    let is_new = wish == Wish::Create;
    let (what, row) = if is_new { ("files", files) } else { ("bytes", bytes) };
    if !row.is_full() {
        return None;
    }
    let shown = |amount: u64| match is_new {
        true => amount.to_string(),
        false => ByteSize(amount).to_string(),
    };
    let within = pool.as_ref().map_or_else(String::new, |pool| format!(" in pool {pool}"));
    let rule = match row.hard {
        0 => format!("its grace is over: {} used", shown(row.used)),
        hard => format!("{} of {} used", shown(row.used), shown(hard)),
    };
    Some(Verdict {
        by: "quota",
        path: step.path.clone(),
        is_allowed: false,
        rule: format!("{what} of {} {id}{within}: {rule}", kind.name()),
    })
}

/// That no OST takes new bytes of this file, from a client of this realm (`None`: it is not known).
pub async fn storage(shell: &Shell, step: &Step, realm: Option<&str>) -> Option<Verdict> {
    let usages = shell.files.usage().await.ok()?;
    let layout = shell.files.layout(&shell.caller, step.attributes.id).await.ok()?.layout;
    let map = shell.files.map();
    let pool = layout.pool.as_ref().and_then(|pool| map.pool(pool));
    let mut reasons = vec![];
    for usage in &usages {
        if pool.is_none_or(|pool| pool.osts.contains(&usage.ost)) {
            reasons.push(format!("{}: {}", usage.ost.label(), refusal(usage, realm)?));
        }
    }
    let within = layout.pool.map_or_else(String::new, |pool| format!(" of pool {pool}"));
    (!reasons.is_empty()).then(|| Verdict {
        by: "storage",
        path: step.path.clone(),
        is_allowed: false,
        rule: format!("no OST{within} takes new bytes: {}", reasons.join("; ")),
    })
}

/// The realm that data servers see: that of the connection, which on a mount is the machine's.
/// `None`: it is not known.
pub async fn realm(shell: &Shell, location: &Location, subject: &Subject) -> Option<String> {
    if shell.files.map().security.is_none() {
        // Who proves nothing is of a realm that no site names.
        return Some(String::new());
    }
    let proving = &location.proving;
    let named = match location.mountpoint {
        Some(_) => proving.principal.clone(),
        None => subject.principal.clone(),
    };
    let keys = proving.keys();
    let is_known = proving.keytab.is_none() || keys.keytab.is_some();
    let principal = match named {
        Some(principal) => principal,
        None if is_known => {
            let own = tokio::task::spawn_blocking(move || tieline_auth::gss::own_principal(&keys));
            own.await.ok()?.ok()?
        }
        None => return None,
    };
    principal.rsplit_once('@').map(|(_, realm)| realm.to_owned())
}

/// Why an OST takes nothing new; nothing is claimed of one that is not heard of.
fn refusal(usage: &OstUsage, realm: Option<&str>) -> Option<String> {
    if !usage.is_active {
        return Some("deactivated".to_owned());
    }
    let state = usage.state.as_ref()?;
    let is_named = |realms: &Vec<String>| realms.iter().any(|named| Some(named.as_str()) == realm);
    match &state.realms {
        Some(realms) if realm.is_some() && !is_named(realms) => {
            Some(format!("its site serves clients of {} only", realms.join(", ")))
        }
        _ if state.bytes_free == 0 => {
            Some(state.trouble.clone().unwrap_or_else(|| "full".to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::OstIndex;
    use tieline_wire::data::OstState;

    #[test]
    fn what_a_site_does_not_take_is_told() {
        let state = OstState {
            ost: OstIndex(3),
            bytes_total: 9,
            bytes_free: 9,
            objects_total: 9,
            objects_free: 9,
            trouble: None,
            is_read_only: None,
            realms: None,
        };
        let with = |state: OstState| OstUsage {
            ost: OstIndex(3),
            site: "uf".parse().unwrap(),
            is_active: true,
            state: Some(state),
            heard: None,
        };
        assert_eq!(refusal(&with(state.clone()), Some("PSC.EDU")), None);
        let realms = Some(vec!["PSC.EDU".to_owned()]);
        let some = with(OstState { realms, ..state.clone() });
        assert_eq!(refusal(&some, Some("PSC.EDU")), None);
        assert_eq!(refusal(&some, None), None);
        assert!(refusal(&some, Some("")).unwrap().contains("PSC.EDU only"));
        let trouble = Some("its site made it read-only".to_owned());
        let closed = with(OstState { bytes_free: 0, trouble: trouble.clone(), ..state });
        assert_eq!(refusal(&closed, None), trouble);
        assert_eq!(refusal(&OstUsage { state: None, ..closed }, None), None);
    }
}
