//! Quotas, and the calls about them.

use super::*;

fn payer() -> Payer {
    Payer { kind: PayerKind::Project, id: 7, pool: Some("uf".parse().unwrap()) }
}

fn quota() -> quotas::Quota {
    quotas::Quota {
        payer: payer(),
        used: Used { bytes: 5 << 30, inodes: 1234 },
        promised: 1 << 25,
        limits: Limits {
            bytes_soft: 4 << 30,
            bytes_hard: 6 << 30,
            inodes_soft: 9,
            inodes_hard: 10,
        },
        bytes_over: Some(time(5)),
        inodes_over: None,
        grace: Grace { bytes_seconds: 604_800, inodes_seconds: 3600 },
        now: time(9),
        elsewhere: Some(vec![quotas::UsedElsewhere {
            mdt: MdtIndex(1),
            used: used(),
            promised: 4096,
            share: share(8 << 20),
        }]),
        is_default: None,
    }
}

fn used() -> Used {
    Used { bytes: 1 << 20, inodes: 3 }
}

fn share(bytes: u64) -> Share {
    Share { bytes, inodes: 1000 }
}

fn news() -> quotas::QuotaNewsReply {
    let quota = quota();
    let limits = quotas::LimitsNews {
        payer: payer(),
        limits: quota.limits,
        bytes_over: quota.bytes_over,
        inodes_over: None,
        is_short: true,
        is_default: None,
        is_free: None,
    };
    let grace = quotas::KindGrace { kind: PayerKind::Group, grace: quota.grace };
    let default = quotas::LimitsNews { is_default: Some(true), ..limits.clone() };
    let free = quotas::LimitsNews { is_free: Some(true), ..limits.clone() };
    quotas::QuotaNewsReply {
        epoch: 3 << 16,
        known: 8,
        limits: vec![limits, default, free],
        is_end: true,
        graces: vec![grace],
        now: None,
    }
}

pub fn calls(op: Op) -> Vec<Sample> {
    match op {
        Op::GetQuota => {
            let default = quotas::GetQuota { payer: payer(), is_default: Some(true) };
            let mut samples = pair(quotas::GetQuota { payer: payer(), is_default: None }, quota());
            samples.push(request("-default", default));
            samples
        }
        Op::SetQuota => {
            let set = quotas::SetQuota {
                payer: payer(),
                bytes_soft: Some(4 << 30),
                bytes_hard: Some(6 << 30),
                inodes_soft: None,
                inodes_hard: Some(0),
                bytes_grace: None,
                inodes_grace: Some(3600),
                is_default: Some(true),
            };
            pair(set, quotas::SetQuotaReply { quota: quota(), absent: Some(vec![MdtIndex(1)]) })
        }
        Op::ListQuotas => {
            let list =
                quotas::ListQuotas { kind: PayerKind::User, after: Some(payer()), limit: 512 };
            pair(list, quotas::ListQuotasReply { quotas: vec![quota()], is_end: true })
        }
        Op::SetProject => {
            let set = quotas::SetProject { ids: vec![file(), directory()], project: 7 };
            pair(set, quotas::SetProjectReply { changed: 2 })
        }
        Op::QuotaShares => {
            let held = quotas::ShareHeld {
                payer: payer(),
                share: share(2 << 20),
                used: used(),
                promised: 4096,
                needed: share(4 << 20),
                wanted: share(8 << 20),
            };
            let (mdt, boot, number) = (MdtIndex(1), 5, 17);
            let shares = vec![held];
            let call = quotas::QuotaShares { mdt, boot, number, known: 8, shares };
            let given =
                quotas::ShareGiven { payer: payer(), share: share(6 << 20), is_asked: true };
            pair(call, quotas::QuotaSharesReply { shares: vec![given] })
        }
        Op::QuotaNews => {
            let (mdt, epoch) = (MdtIndex(1), 3 << 16);
            pair(quotas::QuotaNews { mdt, epoch, known: 7, wait_ms: 3000 }, news())
        }
        Op::ReclaimShares => pair(
            quotas::ReclaimShares { mdt: MdtIndex(1) },
            quotas::ReclaimSharesReply { payers: 12 },
        ),
        _ => {
            let (wanted, needed, payers) = (1 << 25, 4096, Some(vec![payer()]));
            let promise = quotas::Promise { id: file(), wanted, needed, payers };
            let reason = Some("user 10: hard limit of 6 GiB bytes".to_owned());
            pair(promise, quotas::PromiseReply { promised: Some(1 << 20), reason })
        }
    }
}
