//! `tieline doctor`: looks for what keeps a server or a mount from working, each finding with what
//! to do about it.
//!
//! * [`here`]: settings and mounts of this machine, if none are named.
//! * [`kerberos`]: tickets and keys.
//! * [`leases`]: clients that do not answer a running server.
//! * [`machine`]: clock, kernel, limits, `/dev/fuse`.
//! * [`server`]: a settings file and what it names: directories, ports, the database, the map.
//! * [`servers`]: those that a mount would talk to: reachable, and what time it is there.
//!
//! Invariants: nothing is changed; every wait is short; what fails says how to mend it.

mod exposed;
mod here;
mod kerberos;
mod leases;
mod machine;
mod server;
mod servers;

use anyhow::bail;
use serde_json::json;
use std::path::PathBuf;
use tieline_base::proving::Proving;
use tieline_base::source::Source;
use tieline_types::Shown;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A server's settings, and everything they name
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// What would be mounted: HOST[:PORT][,HOST2]:/FS
    #[arg(long, value_name = "SOURCE")]
    mount: Option<Source>,
    /// With the keys of a machine or role, as it would be mounted; else with your tickets
    #[arg(long, value_name = "FILE", requires = "mount")]
    keytab: Option<PathBuf>,
    #[arg(long)]
    json: bool,
    /// Only what is named, not the machine
    #[arg(long, hide = true)]
    part: bool,
    /// A mount of this machine
    #[arg(long, hide = true, value_name = "MOUNTPOINT")]
    at: Option<PathBuf>,
}

/// How one thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Well,
    /// It works, and could be better.
    Doubtful,
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub check: String,
    pub state: State,
    pub what: String,
    /// What to do, unless all is well.
    pub fix: Option<String>,
}

/// What was found, in order.
#[derive(Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    pub fn well(&mut self, check: &str, what: impl Into<String>) {
        self.add(check, State::Well, what.into(), None);
    }

    pub fn doubtful(&mut self, check: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Doubtful, what.into(), Some(fix.into()));
    }

    pub fn broken(&mut self, check: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Broken, what.into(), Some(fix.into()));
    }

    fn add(&mut self, check: &str, state: State, what: String, fix: Option<String>) {
        self.0.push(Finding { check: check.to_owned(), state, what, fix });
    }

    fn broken_count(&self) -> usize {
        self.0.iter().filter(|finding| finding.state == State::Broken).count()
    }

    fn json(&self) -> serde_json::Value {
        let one = |finding: &Finding| {
            json!({
                "check": finding.check,
                "state": finding.state.word(),
                "what": finding.what,
                "fix": finding.fix,
            })
        };
        self.0.iter().map(one).collect()
    }

    fn print(&self) {
        for Finding { check, state, what, fix } in &self.0 {
            println!("{:<5} {check}: {}", state.word(), Shown(what.as_bytes()));
            if let Some(fix) = fix {
                println!("      fix: {}", Shown(fix.as_bytes()));
            }
        }
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Doubtful => "warn",
            Self::Broken => "fail",
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    crate::log_start();
    let mut findings = Findings::default();
    if !args.part {
        machine::look(&mut findings);
        // A server needs no FUSE.
        let is_client = args.mount.is_some() || args.settings.is_none();
        machine::look_at_fuse(&mut findings, is_client);
        if args.mount.is_none() && args.settings.is_none() {
            here::look(&mut findings);
        }
    }
    args.at.as_deref().map_or(Ok(()), here::prepare)?;
    if let Some(Ok(plan)) = args.settings.as_deref().map(tieline_serve::settings::Settings::load) {
        plan.kerberos.prepare();
    }
    let runtime = crate::runtime::of_verb()?;
    if let Some(settings) = &args.settings {
        runtime.block_on(server::look(settings, &mut findings));
    }
    if let Some(source) = &args.mount {
        let proving = Proving { keytab: args.keytab.clone(), ..Proving::default() };
        // Without the keys that were named, a user's own tickets would say nothing of them.
        if args.keytab.as_deref().is_none_or(|path| kerberos::look_at_keytab(path, &mut findings)) {
            runtime.block_on(servers::look(source, &proving, &mut findings));
        } else {
            runtime.block_on(servers::reach_all(&source.addresses, &mut findings));
        }
    }
    if let Some(mountpoint) = &args.at {
        runtime.block_on(here::look_at_mount(mountpoint, &mut findings))?;
    }
    if args.json {
        println!("{}", findings.json());
    } else {
        findings.print();
    }
    match findings.broken_count() {
        0 => Ok(()),
        count => bail!("{count} checks failed"),
    }
}
