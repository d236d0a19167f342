//! The servers that a client would talk to: can they be reached, and what time is it there?

use super::{Findings, kerberos};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_auth::gss::Keys;
use tieline_auth::{Guard, MapCell, MapVerifier};
use tieline_base::contact::Contact;
use tieline_base::dialing::real_world;
use tieline_base::proving::Proving;
use tieline_base::report;
use tieline_base::source::Source;
use tieline_net::CallError;
use tieline_types::{ErrorKind, FsName};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for one server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Beyond this, times of files puzzle people; beyond the next, Kerberos refuses.
const CLOCK_DOUBTFUL: Duration = Duration::from_secs(1);
const CLOCK_BROKEN: Duration = Duration::from_secs(300);

pub async fn look(source: &Source, proving: &Proving, findings: &mut Findings) {
    let key = tieline_base::location::site_key(&source.fs);
    let key = key.and_then(|key| tieline_base::keys::key_open(&key).ok());
    look_with(source, key, proving, findings).await;
}

/// The same, believing what this key signed.
pub async fn look_with(
    source: &Source,
    key: Option<MapVerifier>,
    proving: &Proving,
    findings: &mut Findings,
) {
    let guard = proving.guard();
    let ends = (&guard, Some(proving.keys()));
    let Some(cell) = ask(&source.fs, source.addresses.clone(), key, ends, findings).await else {
        return;
    };
    kerberos::look(&proving.keys(), &cell, findings).await;
    guard.follow(&cell);
    let current = cell.current();
    let mdts = current.map.mdts.iter().map(|mdt| (mdt.mdt.label(), &mdt.addresses));
    let osts = current.map.osts.iter().map(|ost| (ost.ost.label(), &ost.addresses));
    // One server may have several targets.
    let mut targets: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (label, addresses) in mdts.chain(osts) {
        for address in addresses {
            targets.entry(address).or_default().push(label.clone());
        }
    }
    for (address, labels) in targets {
        let label = labels.join(" ");
        if reach(&label, address, findings).await && current.map.security.is_some() {
            meet(&label, (&source.fs, address), &guard, findings).await;
        }
    }
}

/// Both ends prove themselves: a ticket says nothing yet of the keys that the server has.
async fn meet(
    label: &str,
    (fs, address): (&FsName, &str),
    guard: &Arc<Guard>,
    findings: &mut Findings,
) {
    let (world, dialer, rule) = real_world(guard);
    let contact = Contact {
        world,
        dialer,
        fs: fs.clone(),
        addresses: vec![address.to_owned()],
        rule,
        description: format!("tieline doctor (pid {})", std::process::id()),
        patience: PATIENCE,
    };
    let Err(error) = contact.fetch().await else { return };
    let (told, why) = match (report::unproven(&error), refused(&error)) {
        (Some(unproven), _) => ("no proof", unproven.detail.clone()),
        (None, Some(why)) => ("refuses us", why),
        (None, None) => ("refuses us", report::chain(error.as_ref())),
    };
    let (why, fix) = kerberos::parts(&why);
    findings.broken(&format!("{label} {address}"), format!("{told}: {why}"), fix);
}

/// Asks for the map, and the time; with which keys, if there are any.
pub async fn ask(
    fs: &FsName,
    addresses: Vec<String>,
    key: Option<MapVerifier>,
    (guard, keys): (&Arc<Guard>, Option<Keys>),
    findings: &mut Findings,
) -> Option<MapCell> {
    let (world, dialer, rule) = real_world(guard);
    let shown = addresses.join(", ");
    let contact = Contact {
        world: world.clone(),
        dialer,
        fs: fs.clone(),
        addresses,
        rule,
        description: format!("tieline doctor (pid {})", std::process::id()),
        patience: PATIENCE,
    };
    let sent = (world.clock.wall(), Instant::now());
    let reply = match contact.fetch().await {
        Ok(reply) => reply,
        Err(error) => {
            unheard(&error, &contact.addresses, (guard, keys), findings).await;
            return None;
        }
    };
    if let Some(there) = reply.now_ms.map(Duration::from_millis) {
        // The reply left at some time between; the middle is wrong by half of it at most.
        let took = sent.1.elapsed();
        judge_clock(&shown, there.abs_diff(sent.0 + took / 2), took, findings);
    }
    match contact.judge(reply, key.clone()) {
        Ok((cell, today)) => {
            if key.is_some_and(|key| key != today) {
                let what = "the key that is written here was replaced since";
                let fix = format!("write {} in its place: mapkey=, map_key", today.to_hex());
                findings.doubtful("federation key", what, fix);
            }
            let version = cell.current().map.version;
            findings.well("federation map", format!("version {version} from {shown}"));
            Some(cell)
        }
        Err(error) => {
            let fix = "compare the key with the federation's: `tieline map show` at its root MDS";
            findings.broken("federation map", report::chain(error.as_ref()), fix);
            None
        }
    }
}

/// Why no server told the map. Whoever is asked for with a ticket waits for the KDC: then a server
/// that can be reached has no part in it.
async fn unheard(
    error: &anyhow::Error,
    addresses: &[String],
    (guard, keys): (&Arc<Guard>, Option<Keys>),
    findings: &mut Findings,
) {
    let shown = addresses.join(", ");
    let name = addresses.first().map(|address| guard.principal_of(address));
    let is_late = report::kind(error) == Some(ErrorKind::Timeout);
    if is_late
        && let Some((keys, name)) = keys.zip(name)
        && kerberos::look_for_kdc(&keys, name, findings).await
    {
        reach_all(addresses, findings).await;
    } else if let Some(unproven) = report::unproven(error) {
        let (why, fix) = kerberos::parts(&unproven.detail);
        findings.broken("servers", format!("no proof between us and {shown}: {why}"), fix);
    } else if let Some(why) = refused(error) {
        let (why, fix) = kerberos::parts(&why);
        findings.broken("servers", format!("{shown} refuses us: {why}"), fix);
    } else {
        let fix = "is the server running, and its TCP port open from here (7640 by default)?";
        findings.broken("servers", report::chain(error.as_ref()), fix);
    }
}

/// Why a server does not take what we prove, if that is what went wrong.
fn refused(error: &anyhow::Error) -> Option<String> {
    let calls = error.chain().filter_map(|cause| cause.downcast_ref::<CallError>());
    let mut refusals = calls.filter_map(|call| match call {
        CallError::Handshake { source, .. } => Some(source),
        _ => None,
    });
    let refusal = refusals.find(|refusal| refusal.kind == ErrorKind::Unauthenticated)?;
    Some(refusal.detail.clone())
}

fn judge_clock(server: &str, off: Duration, took: Duration, findings: &mut Findings) {
    let what = format!("{:.1} s from that of {server}", off.as_secs_f64());
    let fix = "set both by NTP: `chronyc tracking` on each shows how they are";
    match off.saturating_sub(took / 2) {
        off if off > CLOCK_BROKEN => findings.broken("clock", what, fix),
        off if off > CLOCK_DOUBTFUL => findings.doubtful("clock", what, fix),
        _ => findings.well("clock", what),
    }
}

/// Can they be reached at all?
pub async fn reach_all(addresses: &[String], findings: &mut Findings) {
    for address in addresses {
        reach("server", address, findings).await;
    }
}

async fn reach(label: &str, address: &str, findings: &mut Findings) -> bool {
    let start = Instant::now();
    let check = format!("{label} {address}");
    let fix = "start it (if it ended, its log says why), or open its TCP port on the way \
               (firewalls of both sites)";
    match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => {
            let took = start.elapsed().as_secs_f64() * 1000.0;
            findings.well(&check, format!("reachable in {took:.1} ms"));
            return true;
        }
        Ok(Err(error)) => findings.broken(&check, error.to_string(), fix),
        Err(_) => findings.broken(&check, format!("no answer in {} s", PATIENCE.as_secs()), fix),
    }
    false
}
