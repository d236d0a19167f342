//! Quotas for people and programs: tables as of `lfs quota`, and JSON.
//!
//! Knows nothing of who asks, nor of how they were fetched.

use super::names::Names;
use super::whole::Whole;
use serde_json::{Value, json};
use std::io::{self, Write};
use tieline_types::quota::Payer;
use tieline_types::{ByteSize, Span};

/// One of a quota's two halves.
pub struct Row {
    pub used: u64,
    soft: u64,
    pub hard: u64,
    /// Seconds of grace that are left, while the soft limit is passed.
    left: Option<u64>,
}

impl Row {
    fn is_at_hard(&self) -> bool {
        self.hard > 0 && self.used >= self.hard
    }

    /// Nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.is_at_hard() || self.left == Some(0)
    }
}

pub fn rows(whole: &Whole) -> [Row; 2] {
    let quota = &whole.quota;
    let left = |over: Option<tieline_types::Time>, grace: u64| {
        let over = over?;
        let passed = quota.now.seconds.saturating_sub(over.seconds).max(0) as u64;
        Some(grace.saturating_sub(passed))
    };
    let limits = quota.limits;
    [
        Row {
            used: whole.used().bytes.saturating_add(whole.promised()),
            soft: limits.bytes_soft,
            hard: limits.bytes_hard,
            left: left(quota.bytes_over, quota.grace.bytes_seconds),
        },
        Row {
            used: whole.used().inodes,
            soft: limits.inodes_soft,
            hard: limits.inodes_hard,
            left: left(quota.inodes_over, quota.grace.inodes_seconds),
        },
    ]
}

/// How quotas are shown.
#[derive(Clone, Copy, Default)]
pub struct Shown {
    pub is_human: bool,
    pub is_json: bool,
    /// With a line for each MDT.
    pub has_parts: bool,
    /// Only who is over a limit.
    pub is_over_only: bool,
    /// For how long soft limits may be passed, and nothing else.
    pub is_grace: bool,
}

pub fn print(quotas: &[Whole], names: &Names, shown: &Shown) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let quotas = quotas.iter().filter(|whole| {
        let is_over = |row: &Row| row.left.is_some() || row.is_at_hard();
        !shown.is_over_only || rows(whole).iter().any(is_over)
    });
    let quotas: Vec<&Whole> = quotas.collect();
    if shown.is_json {
        let all: Vec<Value> = quotas.iter().map(|whole| quota_json(whole, names)).collect();
        writeln!(out, "{}", Value::from(all))?;
        return Ok(());
    }
    if shown.is_grace {
        return print_grace(&mut out, &quotas);
    }
    // Nothing is wrong, and nothing is said.
    if shown.is_over_only && quotas.is_empty() {
        return Ok(());
    }
    let size = |bytes: u64| match shown.is_human {
        true => ByteSize(bytes).to_string(),
        false => bytes.div_ceil(1024).to_string(),
    };
    let unit = if shown.is_human { "bytes" } else { "kbytes" };
    writeln!(
        out,
        "{:<20} {unit:>12} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "whose", "soft", "hard", "grace", "files", "soft", "hard", "grace"
    )?;
    for whole in quotas {
        let ([bytes, files], quota) = (rows(whole), &whole.quota);
        // As lfs marks whoever is over a limit.
        let mark = |row: &Row| {
            if row.left.is_some() || row.is_at_hard() { "*" } else { "" }
        };
        let pool = quota.payer.pool.as_ref().map_or(String::new(), |pool| format!(" {pool}"));
        let mark_default = match (quota.is_default, quota.payer.id) {
            (Some(true), 1..) => " (default)",
            _ => "",
        };
        let name = shown_name(&quota.payer, quota.is_default, names);
        let whose = format!("{} {name}{pool}{mark_default}", quota.payer.kind.name());
        writeln!(
            out,
            "{whose:<20} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}",
            format!("{}{}", size(bytes.used), mark(&bytes)),
            size(bytes.soft),
            size(bytes.hard),
            grace_left(bytes.left),
            format!("{}{}", files.used, mark(&files)),
            files.soft,
            files.hard,
            grace_left(files.left),
        )?;
        for part in whole.parts.iter().filter(|_| shown.has_parts) {
            let (mdt, used) = (part.mdt.label(), size(part.used.bytes + part.promised));
            let old = if part.is_current { "" } else { "  (as it was last heard)" };
            writeln!(
                out,
                "{:<20} {used:>12} {:>35} {:>9}{old}",
                format!("  {mdt}"),
                "",
                part.used.inodes
            )?;
        }
    }
    Ok(())
}

/// As lfs shows it, in three units at most: `-` below the soft limit, `none` once it is over.
fn grace_left(left: Option<u64>) -> String {
    let Some(left) = left else { return "-".to_owned() };
    let (days, hours) = (left / 86_400, left / 3600 % 24);
    let (minutes, seconds) = (left / 60 % 60, left % 60);
    let parts = match days {
        0 => [(hours, 'h'), (minutes, 'm'), (seconds, 's')],
        _ => [(days, 'd'), (hours, 'h'), (minutes, 'm')],
    };
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let text: String = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "none".to_owned() } else { text }
}

/// Once for each kind: grace is everybody's of it.
fn print_grace(out: &mut impl Write, quotas: &[&Whole]) -> anyhow::Result<()> {
    let mut told = vec![];
    for Whole { quota, .. } in quotas {
        let kind = quota.payer.kind;
        if told.contains(&kind) {
            continue;
        }
        told.push(kind);
        let shown = |seconds| Span(std::time::Duration::from_secs(seconds));
        let (bytes, files) = (shown(quota.grace.bytes_seconds), shown(quota.grace.inodes_seconds));
        writeln!(out, "{}s: block grace {bytes}, inode grace {files}", kind.name())?;
    }
    Ok(())
}

fn shown_name(payer: &Payer, is_default: Option<bool>, names: &Names) -> String {
    match (is_default, payer.id) {
        (Some(true), 0) => "default".to_owned(),
        _ => names.name(payer),
    }
}

fn quota_json(whole: &Whole, names: &Names) -> Value {
    let ([bytes, files], quota) = (rows(whole), &whole.quota);
    let parts = whole.parts.iter().map(|part| {
        json!({
            "mdt": part.mdt.label(), "bytes": part.used.bytes, "promised": part.promised,
            "inodes": part.used.inodes, "answers": part.is_current,
        })
    });
    json!({
        "kind": quota.payer.kind.name(),
        "id": quota.payer.id,
        "name": shown_name(&quota.payer, quota.is_default, names),
        "default": quota.is_default == Some(true),
        "pool": quota.payer.pool.as_ref().map(|pool| pool.as_str()),
        "bytes": {
            "used": whole.used().bytes, "promised": whole.promised(),
            "soft": bytes.soft, "hard": bytes.hard,
            "grace_left": bytes.left, "grace": quota.grace.bytes_seconds,
        },
        "inodes": {
            "used": files.used, "soft": files.soft, "hard": files.hard,
            "grace_left": files.left, "grace": quota.grace.inodes_seconds,
        },
        "mdts": parts.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_is_told_as_lfs_tells_it() {
        let week = 7 * 86_400;
        let told = [None, Some(0), Some(59), Some(3600), Some(86_399), Some(week - 1), Some(week)];
        let shown = ["-", "none", "59s", "1h", "23h59m59s", "6d23h59m", "7d"];
        assert_eq!(told.map(grace_left), shown);
    }
}
