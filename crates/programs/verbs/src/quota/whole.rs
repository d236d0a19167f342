//! What all MDTs together know of quotas.
//!
//! The MDT of the root keeps the limits, and has heard what others use of them. Each MDT is asked
//! for its own; who does not answer is named, and what the root's has heard last is counted.

use crate::shell::Shell;
use anyhow::bail;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::Error;
use tieline_types::quota::{Payer, PayerKind, Used};
use tieline_types::{ErrorKind, FileId, MdtIndex};
use tieline_wire::quotas::{GetQuota, ListQuotas, Quota};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Quotas that are fetched at once.
const PAGE: u32 = 512;
/// How long one MDT may take to answer, if others can speak for it.
const PATIENCE: Duration = Duration::from_secs(6);

/// One payer's quota.
pub struct Whole {
    /// As the MDT that keeps the limits tells it, or another while that one is away.
    pub quota: Quota,
    /// What each MDT uses.
    pub parts: Vec<Part>,
}

pub struct Part {
    pub mdt: MdtIndex,
    pub used: Used,
    pub promised: u64,
    /// It said so itself, and just now.
    pub is_current: bool,
}

impl Whole {
    pub fn used(&self) -> Used {
        self.parts.iter().fold(Used::default(), |sum, part| Used {
            bytes: sum.bytes.saturating_add(part.used.bytes),
            inodes: sum.inodes.saturating_add(part.used.inodes),
        })
    }

    pub fn promised(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.promised))
    }
}

/// A file of the MDT that keeps the limits.
pub fn home() -> FileId {
    FileId::root_of(MdtIndex(0))
}

/// An MDT for people: `MDT0001 (fnal)`.
pub fn name_of(shell: &Shell, mdt: MdtIndex) -> String {
    let current = shell.map.current();
    match current.map.mdt(mdt) {
        Some(known) => format!("{} ({})", mdt.label(), known.home),
        None => mdt.label(),
    }
}

/// What these use and may use, in their order.
pub async fn of(shell: &Arc<Shell>, payers: Vec<Payer>) -> anyhow::Result<Vec<Whole>> {
    let (wholes, silent) = of_within(shell, payers, PATIENCE).await?;
    tell_silent(shell, &silent);
    Ok(wholes)
}

/// The same, and which MDTs did not answer in time.
pub async fn of_within(
    shell: &Arc<Shell>,
    payers: Vec<Payer>,
    patience: Duration,
) -> anyhow::Result<(Vec<Whole>, Vec<MdtIndex>)> {
    let order: BTreeMap<Payer, usize> = payers.iter().cloned().zip(0..).collect();
    let ask = |shell: Arc<Shell>, id| {
        let payers = payers.clone();
        async move {
            let mut quotas = vec![];
            for payer in payers {
                let message = GetQuota { payer, is_default: None };
                quotas.push(shell.volume.ask_of_mdt(&shell.caller, id, message).await?);
            }
            Ok(quotas)
        }
    };
    let (mut wholes, silent) = ask_all(shell, patience, ask).await?;
    wholes.sort_by_key(|whole| order.get(&whole.quota.payer).copied());
    Ok((wholes, silent))
}

/// The limits of who has none of their own, as the MDT that keeps them tells it.
pub async fn of_default(shell: &Arc<Shell>, payer: Payer) -> anyhow::Result<Whole> {
    let message = GetQuota { payer, is_default: Some(true) };
    let quota = shell.volume.ask_of_mdt(&shell.caller, home(), message).await?;
    Ok(Whole { quota, parts: vec![] })
}

/// Everybody who uses anything or has limits.
pub async fn of_everybody(shell: &Arc<Shell>, kinds: Vec<PayerKind>) -> anyhow::Result<Vec<Whole>> {
    let ask = |shell: Arc<Shell>, id| {
        let kinds = kinds.clone();
        async move {
            let mut quotas: Vec<Quota> = vec![];
            for kind in kinds {
                let mut after = None;
                loop {
                    let message = ListQuotas { kind, after, limit: PAGE };
                    let page = shell.volume.ask_of_mdt(&shell.caller, id, message).await?;
                    after = page.quotas.last().map(|quota| quota.payer.clone());
                    quotas.extend(page.quotas);
                    if page.is_end || after.is_none() {
                        break;
                    }
                }
            }
            Ok(quotas)
        }
    };
    let (wholes, silent) = ask_all(shell, PATIENCE, ask).await?;
    tell_silent(shell, &silent);
    Ok(wholes)
}

fn tell_silent(shell: &Shell, silent: &[MdtIndex]) {
    for &mdt in silent {
        let shown = name_of(shell, mdt);
        eprintln!("{shown} does not answer: what it used when it was last heard is counted");
    }
}

/// Asks all MDTs at once, and joins what they say; and which said nothing.
async fn ask_all<F>(
    shell: &Arc<Shell>,
    patience: Duration,
    ask: impl Fn(Arc<Shell>, FileId) -> F,
) -> anyhow::Result<(Vec<Whole>, Vec<MdtIndex>)>
where
    F: Future<Output = Result<Vec<Quota>, Error>> + Send + 'static,
{
    let mdts: Vec<MdtIndex> = shell.map.current().map.mdts.iter().map(|known| known.mdt).collect();
    let mut asking = JoinSet::new();
    for &mdt in &mdts {
        let asked = ask(shell.clone(), FileId::root_of(mdt));
        asking.spawn(async move { (mdt, timeout(patience, asked).await) });
    }
    let mut told: BTreeMap<MdtIndex, Vec<Quota>> = BTreeMap::new();
    let mut silent: Option<Error> = None;
    while let Some(answer) = asking.join_next().await {
        match answer? {
            (mdt, Ok(Ok(quotas))) => drop(told.insert(mdt, quotas)),
            (mdt, Ok(Err(error))) if !is_silence(mdt, &error) => return Err(error.into()),
            (_, Ok(Err(error))) => silent = Some(error),
            (_, Err(_)) => {}
        }
    }
    let unheard = mdts.iter().filter(|mdt| !told.contains_key(mdt)).copied().collect();
    match (told.is_empty(), silent) {
        (true, Some(error)) => Err(error.into()),
        (true, None) => bail!("no metadata server answers"),
        (false, _) => Ok((joined(&mdts, told), unheard)),
    }
}

/// A site whose keys are stale says nothing either: the others do.
fn is_silence(mdt: MdtIndex, error: &Error) -> bool {
    use ErrorKind::{Disconnected, Timeout, Unauthenticated, Unreachable};
    match error.kind() {
        Timeout | Unreachable | Disconnected => true,
        Unauthenticated => mdt != home().mdt(),
        _ => false,
    }
}

fn joined(mdts: &[MdtIndex], told: BTreeMap<MdtIndex, Vec<Quota>>) -> Vec<Whole> {
    let mut wholes: BTreeMap<Payer, Whole> = BTreeMap::new();
    // In the order of MDTs: the root's comes first.
    for (mdt, quotas) in told {
        for quota in quotas {
            let (used, promised) = (quota.used, quota.promised);
            let whole = wholes.entry(quota.payer.clone());
            let whole = whole.or_insert_with(|| Whole { quota, parts: vec![] });
            whole.parts.push(Part { mdt, used, promised, is_current: true });
        }
    }
    for whole in wholes.values_mut() {
        let Whole { quota, parts } = whole;
        let is_known = |mdt: MdtIndex| parts.iter().any(|part| part.mdt == mdt);
        let others = quota.elsewhere.iter().flatten().filter(|other| mdts.contains(&other.mdt));
        let silent = others.filter(|other| !is_known(other.mdt)).map(|other| Part {
            mdt: other.mdt,
            used: other.used,
            promised: other.promised,
            is_current: false,
        });
        let silent: Vec<Part> = silent.collect();
        parts.extend(silent);
        parts.sort_by_key(|part| part.mdt);
    }
    wholes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Time;
    use tieline_types::quota::{Grace, Limits, Share};
    use tieline_wire::quotas::UsedElsewhere;

    fn quota(bytes: u64, elsewhere: &[(u16, u64)]) -> Quota {
        let there = elsewhere.iter().map(|&(mdt, bytes)| UsedElsewhere {
            mdt: MdtIndex(mdt),
            used: Used { bytes, inodes: 1 },
            promised: 0,
            share: Share::default(),
        });
        Quota {
            payer: Payer { kind: PayerKind::User, id: 10, pool: None },
            used: Used { bytes, inodes: 1 },
            promised: 5,
            limits: Limits::default(),
            bytes_over: None,
            inodes_over: None,
            grace: Grace::default(),
            now: Time { seconds: 0, nanos: 0 },
            elsewhere: Some(there.collect()),
            is_default: None,
        }
    }

    #[test]
    fn who_is_silent_counts_with_what_was_heard_last() {
        let mdts = [MdtIndex(0), MdtIndex(1), MdtIndex(2)];
        let root = quota(100, &[(1, 1), (2, 30)]);
        let told = BTreeMap::from([(mdts[0], vec![root]), (mdts[1], vec![quota(20, &[])])]);
        let wholes = joined(&mdts, told);
        let parts: Vec<_> = wholes[0].parts.iter().map(|part| part.is_current).collect();
        assert_eq!((wholes[0].used().bytes, wholes[0].promised()), (150, 10));
        assert_eq!((wholes[0].used().inodes, parts), (3, vec![true, true, false]));
    }
}
