//! `tieline dev status`, `kill`, `start`, `restart`.

use crate::state::{self, Held, Process, State};
use crate::{health, processes};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use tieline_base::report::Usage;
use tieline_machine::process::signal_by_name;

pub fn status(dir: &Path, is_json: bool) -> anyhow::Result<()> {
    print(&state::read(dir)?, is_json)
}

/// Says what runs.
pub fn print(state: &State, is_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let processes: Vec<Value> = state.processes.iter().map(describe).collect();
    if is_json {
        let mounts = state.processes.iter().filter_map(|process| process.mountpoint.as_ref());
        let value = json!({
            "fs": state.fs,
            "key": state.key,
            "source": format!("{}:/{}", state.mds.join(","), state.fs),
            "mounts": mounts.collect::<Vec<_>>(),
            "namespaces": state.network.as_ref().map(|network| &network.made),
            "door": state.door,
            "processes": processes,
        });
        writeln!(out, "{value:#}")?;
        return Ok(());
    }
    writeln!(out, "/{} from {}", state.fs, state.mds.join(", "))?;
    for process in &processes {
        let text = |key: &str| process[key].as_str().unwrap_or("-").to_owned();
        let place = if process["mountpoint"].is_null() { "address" } else { "mountpoint" };
        writeln!(
            out,
            "  {:<14} {:<10} pid {:<8} {}",
            text("name"),
            text("state"),
            process["pid"].to_string(),
            text(place)
        )?;
        for trouble in process["health"]["degraded"].as_array().into_iter().flatten() {
            let part = |key: &str| trouble[key].as_str().unwrap_or_default();
            writeln!(out, "    {}: {}", part("part"), part("reason"))?;
        }
    }
    if let Some(door) = &state.door {
        writeln!(out, "  {} (authority: {})", door.https, door.authority.display())?;
        writeln!(out, "  {}", door.root)?;
    }
    Ok(())
}

fn describe(process: &Process) -> Value {
    let health = match process.is_alive() {
        true => health::ask(&process.admin, process.netns.as_deref()),
        false => None,
    };
    let state = match (&health, process.is_alive()) {
        _ if process.takes_orders() == Some(true) => "ready",
        (_, false) => "down",
        (None, true) => "starting",
        (Some(health), true) if !health.is_ready => "starting",
        (Some(health), true) if health.is_degraded() => "degraded",
        (Some(_), true) => "ready",
    };
    json!({
        "name": process.name,
        "state": state,
        "pid": process.running().map(|id| id.pid),
        "daemon": process.working().map(|id| id.pid),
        "started": process.process.map(|id| id.started),
        "address": process.address,
        "admin": process.admin,
        "mountpoint": process.mountpoint,
        "netns": process.netns,
        "log": process.log,
        "argv": process.argv,
        "health": health.map(|health| health.report),
    })
}

pub fn kill(dir: &Path, name: Option<&str>, signal: &str, restart: bool) -> anyhow::Result<()> {
    let number = signal_by_name(signal);
    let number = number.ok_or_else(|| Usage(format!("no signal is called `{signal}`")))?;
    let mut held = Held::open(dir)?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => any(&held.state)?,
    };
    let process = held.process_mut(&name)?;
    processes::signal(process, number)?;
    println!("{name}: sent {signal}");
    if restart {
        // A mount that is held starts its daemon again itself.
        match process.mountpoint.is_some() && process.is_alive() {
            true => processes::wait_ready(process)?,
            false => processes::start(process)?,
        }
        println!("{name}: ready again");
    }
    held.save()
}

pub fn start(dir: &Path, name: &str) -> anyhow::Result<()> {
    let mut held = Held::open(dir)?;
    let process = held.process_mut(name)?;
    if process.is_alive() {
        bail!("{name} runs already");
    }
    let started = processes::start(process);
    held.save()?;
    started
}

pub fn restart(dir: &Path, name: &str) -> anyhow::Result<()> {
    let mut held = Held::open(dir)?;
    let process = held.process_mut(name)?;
    processes::end(process)?;
    let started = processes::start(process);
    held.save()?;
    started
}

/// Any process that runs.
fn any(state: &State) -> anyhow::Result<String> {
    let running: Vec<&Process> = state.processes.iter().filter(|p| p.is_alive()).collect();
    let random = tieline_world::World::real().random();
    let place = (random % running.len().max(1) as u64) as usize;
    running.get(place).map(|process| process.name.clone()).context("nothing runs")
}
