//! `tieline fsck`: has MDTs checked, and repaired on request, while they are in use.
//!
//! The check runs at the MDS; this asks how it goes on, and prints what it finds.
//!
//! Exit codes, as fsck(8): 0 nothing wrong, 1 all was repaired, 4 something is left, 8 the check
//! itself failed, 32 it was interrupted: the MDS is told, so that the next one need not wait.

use crate::operator::{self, Operator};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tieline_base::location::Location;
use tieline_base::report;
use tieline_base::show;
use tieline_types::{ErrorKind, MdtIndex, Shown};
use tieline_wire::ledger::{CheckMdt, Finding, Outcome};

/// For administrators of sites.
const ALONE: &str = " (`--mdt N` checks one alone, as the administrator of its site may)";
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const LEFT: i32 = 4;
const FAILED: i32 = 8;
const INTERRUPTED: i32 = 32;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
    /// Read every byte of every object too
    #[arg(long)]
    read: bool,
    /// One JSON value
    #[arg(long)]
    json: bool,
    /// Only this MDT
    #[arg(long)]
    mdt: Option<u16>,
    /// Path below a mount, or tieline://HOST[:PORT]/FS: all MDTs of that file system
    path: Option<OsString>,
}

#[derive(Default)]
struct Counted {
    found: u64,
    repaired: u64,
    looked_at: u64,
    findings: Vec<Value>,
    is_interrupted: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(args.path.as_deref())?;
    let is_json = args.json;
    let outcome = operator::run(&location, |operator| async move {
        let mdts: Vec<MdtIndex> = match args.mdt {
            Some(mdt) => vec![MdtIndex(mdt)],
            None => operator.map.mdts.iter().map(|mdt| mdt.mdt).collect(),
        };
        let mut counted = Counted::default();
        for mdt in mdts {
            check(&operator, mdt, &args, &mut counted).await?;
            if counted.is_interrupted {
                break;
            }
        }
        Ok(counted)
    });
    let counted = match outcome {
        Ok(counted) => counted,
        Err(error) => {
            report::failed(&error);
            crate::parting::leave(FAILED);
        }
    };
    let left = counted.found - counted.repaired;
    if is_json {
        let value = json!({
            "found": counted.found, "repaired": counted.repaired, "left": left,
            "looked_at": counted.looked_at, "findings": counted.findings,
        });
        println!("{value}");
    } else {
        println!(
            "{} found, {} repaired, {left} left; {} records and objects looked at",
            counted.found, counted.repaired, counted.looked_at
        );
    }
    std::io::stdout().flush()?;
    if counted.is_interrupted {
        eprintln!("tieline: interrupted: not everything was looked at");
        crate::parting::leave(INTERRUPTED);
    }
    match (counted.found, left) {
        (0, _) => Ok(()),
        (_, 0) => crate::parting::leave(1),
        _ => crate::parting::leave(LEFT),
    }
}

async fn check(
    operator: &Operator,
    mdt: MdtIndex,
    args: &Args,
    counted: &mut Counted,
) -> anyhow::Result<()> {
    let line = operator.dial(mdt)?;
    let prefix = operator.map.junction_of(mdt).map(|junction| junction.name.as_bytes());
    let prefix = prefix.map_or(vec![], |name| [name, b"/"].concat());
    let (mut job, mut received, mut looked_at) = (None, 0, 0);
    let mut shown = Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let mut interruption = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let message = CheckMdt { job, received, is_repair: args.repair, reads_bytes: args.read };
        let failed = |error: anyhow::Error| {
            let is_refused = report::kind(&error) == Some(ErrorKind::NotPermitted);
            // Whoever may check some of them did not say so.
            let others = is_refused && args.mdt.is_none() && operator.map.mdts.len() > 1;
            let hint = if others { ALONE } else { "" };
            error.context(format!("{} cannot be checked{hint}", mdt.label()))
        };
        let mut asking = std::pin::pin!(line.call(message.clone()));
        let reply = tokio::select! {
            biased;
            _ = &mut interruption => {
                counted.is_interrupted = true;
                // It comes soon, and tells which check is to be given up.
                asking.await
            }
            reply = &mut asking => reply,
        };
        let (reply, _) = reply.map_err(failed)?;
        job = Some(reply.job);
        received += reply.findings.len() as u64;
        looked_at = looked_at.max(reply.looked_at);
        for finding in reply.findings {
            counted.found += 1;
            counted.repaired += u64::from(finding.outcome == Outcome::Repaired);
            tell(mdt, &prefix, finding, args.json, counted);
        }
        if is_terminal && shown.elapsed() >= PROGRESS_EVERY {
            shown = Instant::now();
            let label = mdt.label();
            let phase = Shown(reply.phase.as_bytes());
            eprint!("\r\x1b[K{label}: {phase}, {looked_at} looked at");
        }
        if reply.is_end {
            break;
        }
        if counted.is_interrupted {
            let received = CheckMdt::GIVE_UP;
            line.call(CheckMdt { job, received, ..message }).await.map_err(failed)?;
            break;
        }
    }
    if is_terminal {
        eprint!("\r\x1b[K");
    }
    counted.looked_at += looked_at;
    line.close().await;
    Ok(())
}

fn tell(mdt: MdtIndex, prefix: &[u8], finding: Finding, is_json: bool, counted: &mut Counted) {
    let path = finding.path;
    let path = if path.is_empty() { path } else { [prefix, &path].concat() };
    let outcome = match finding.outcome {
        Outcome::Left => "left",
        Outcome::Repaired => "repaired",
        Outcome::Lost => "lost",
    };
    if is_json {
        let value = json!({
            "mdt": mdt.0, "what": finding.what,
            "file": finding.file.map(|id| id.to_string()), "detail": finding.detail,
            "outcome": outcome,
        });
        counted.findings.push(show::with_bytes(value, "path", &path));
    } else {
        let at = if path.is_empty() { mdt.label() } else { Shown(&path).to_string() };
        let detail = Shown(finding.detail.as_bytes());
        println!("{at}: {}: {detail} ({outcome})", finding.what);
    }
}
