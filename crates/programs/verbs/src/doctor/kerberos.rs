//! Kerberos, as a server or a mount would use it: can we prove ourselves, and to whom?
//!
//! What goes wrong is made into one line with what to do ([`tieline_auth::Trouble`]).

use super::Findings;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tieline_auth::gss::{Keys, own_principal, principals, try_self, try_ticket};
use tieline_auth::{MapCell, Trouble, principal_at};
use tieline_format::map::FederationMap;
use tieline_types::{MdtIndex, OstIndex};
use tokio::time::timeout;

const CHECK: &str = "kerberos";
/// A KDC that does not answer takes its time.
const PATIENCE: Duration = Duration::from_secs(15);

/// Gets a ticket for every server of the map, if it has any proofs.
pub async fn look(keys: &Keys, cell: &MapCell, findings: &mut Findings) {
    let current = cell.current();
    if current.map.security.is_none() {
        return;
    }
    let mdts = current.map.mdts.iter().flat_map(|mdt| &mdt.addresses);
    let osts = current.map.osts.iter().flat_map(|ost| &ost.addresses);
    let mut names: Vec<String> =
        mdts.chain(osts).filter_map(|address| principal_at(&current.map, address)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (keys, target) = (keys.clone(), name.clone());
        let tried = within(move || try_ticket(&keys, &target)).await;
        judge(&format!("a ticket for {name}"), tried, findings);
    }
}

/// Says so if no KDC answers for a server's name, and whether it is so. What else is wrong with
/// tickets matters only where the server answers.
pub async fn look_for_kdc(keys: &Keys, name: String, findings: &mut Findings) -> bool {
    let (keys, target) = (keys.clone(), name.clone());
    let tried = within(move || try_ticket(&keys, &target)).await;
    let is_away = matches!(tried, Err(Trouble::NoKdc { .. }));
    if is_away {
        judge(&format!("a ticket for {name}"), tried, findings);
    }
    is_away
}

/// Is there a key in a keytab that somebody wants to mount with?
pub fn look_at_keytab(path: &Path, findings: &mut Findings) -> bool {
    let shown = path.display().to_string();
    let names = principals(path).and_then(|names| match names.as_slice() {
        [] => Err(Trouble::KeytabLacks { path: shown.clone(), principal: String::new() }),
        names => Ok(names.join(", ")),
    });
    match names {
        Ok(names) => {
            findings.well("keytab", format!("{shown} has keys of {names}"));
            true
        }
        Err(trouble) => {
            let (why, fix) = parts(&trouble.to_string());
            findings.broken("keytab", why, fix);
            false
        }
    }
}

/// Are a server's keys those of a name by which others will ask for it, as the map has it?
pub fn look_at_names(keytab: &Path, map: &FederationMap, own: &Own, findings: &mut Findings) {
    let mdts = map.mdts.iter().filter(|mdt| own.mdt == Some(mdt.mdt));
    let osts = map.osts.iter().filter(|ost| own.osts.contains(&ost.ost));
    let addresses = mdts.flat_map(|mdt| &mdt.addresses);
    let addresses = addresses.chain(osts.flat_map(|ost| &ost.addresses));
    let asked: BTreeSet<String> = addresses.filter_map(|at| principal_at(map, at)).collect();
    // What is wrong with the keytab itself was told.
    let Ok(kept) = principals(keytab) else { return };
    if asked.is_empty() || kept.iter().any(|name| asked.contains(name)) {
        return;
    }
    let asked = asked.into_iter().collect::<Vec<_>>().join(" or ");
    let (shown, kept) = (keytab.display(), kept.join(", "));
    findings.broken(
        CHECK,
        format!("clients ask for {asked}, as the map says, and {shown} has keys of {kept} only"),
        format!("`ktadd -k {shown}` with that name, or correct the address in the map"),
    );
}

/// What a server holds.
pub struct Own {
    pub mdt: Option<MdtIndex>,
    pub osts: Vec<OstIndex>,
}

/// A server's own keys: does the KDC know us by them, and would we understand who asks for us, by
/// whatever name? Each in the keytab may be old by itself.
pub async fn look_at_server(dialing: &Keys, answering: &Keys, findings: &mut Findings) {
    let keys = dialing.clone();
    let name = match within(move || own_principal(&keys)).await {
        Ok(name) => name,
        Err(trouble) => return judge("keys of our own", Err(trouble), findings),
    };
    let mut names = vec![name.clone()];
    if let Some(keytab) = answering.keytab.clone() {
        match within(move || principals(&keytab)).await {
            Ok(all) => names.extend(all.into_iter().filter(|other| *other != name)),
            Err(trouble) => judge("the names in its keytab", Err(trouble), findings),
        }
    }
    for target in names {
        let what = match target == name {
            true => format!("a ticket of {name} for itself, opened with its keytab"),
            false => format!("a ticket for {target}, opened with its keytab"),
        };
        let (dialing, answering) = (dialing.clone(), answering.clone());
        let tried = within(move || try_self(&dialing, &answering, &target)).await;
        judge(&what, tried, findings);
    }
}

/// What the library does may block.
async fn within<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let late = Trouble::NoKdc { target: String::new() };
    match timeout(PATIENCE, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(Trouble::Other { text: error.to_string() }),
        Err(_) => Err(late),
    }
}

fn judge(what: &str, tried: Result<(), Trouble>, findings: &mut Findings) {
    match tried {
        Ok(()) => findings.well(CHECK, what),
        Err(trouble) => {
            let (why, fix) = parts(&trouble.to_string());
            findings.broken(CHECK, format!("not {what}: {why}"), fix);
        }
    }
}

/// What is wrong, and what to do: troubles are told as one line of both.
pub fn parts(line: &str) -> (String, String) {
    match line.rsplit_once(": ") {
        Some((why, fix)) => (why.to_owned(), fix.to_owned()),
        None => (line.to_owned(), "look at krb5.conf and at the server's log".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn troubles_become_findings_with_their_fix() {
        let name = || "tieline_mds/mds.uf.example@EXTENCI.ORG".to_owned();
        let troubles = [
            (Trouble::ClockSkew, "clocks differ", "NTP"),
            (Trouble::KeyVersion { target: name() }, "another key version", "ktadd"),
            (Trouble::NoEnctype { target: name() }, "no enctype", "aes256-cts"),
            (Trouble::WrongRealm { target: name() }, "no way to the realm", "krb5.conf"),
            (Trouble::NoKdc { target: name() }, "no KDC answers", "kdc ="),
        ];
        for (trouble, why, fix) in troubles {
            let mut findings = Findings::default();
            judge("a ticket", Err(trouble), &mut findings);
            let found = &findings.0[0];
            assert_eq!(found.state, State::Broken);
            assert!(found.what.contains(why), "{}", found.what);
            assert!(found.fix.as_ref().is_some_and(|said| said.contains(fix)), "{:?}", found.fix);
        }
    }
}
