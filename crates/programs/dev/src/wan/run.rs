//! `tieline dev wan run`: two namespaces, a line between them, and a command at the clients' end.
//!
//! Namespaces carry the process id in their names; those of a process that is no more are taken
//! away by the next one.

use super::line::{Asked, End, Line};
use crate::netns::{self, Network};
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use tieline_machine::process::ProcessId;
use tieline_wan::Script;
use tokio::signal::unix::{SignalKind, signal};

const PREFIX: &str = "tlw-";
const DEVICE: &str = "eth0";
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    line: Asked,
    /// Orders with times, counted from the command's start: `cut@5s heal@15s`
    #[arg(long)]
    script: Option<Script>,
    /// What runs at the clients' end
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    Network::check()?;
    remove_dead();
    let place = Place::make()?;
    let status = with_line(args, &place);
    drop(place);
    let status = status?;
    if !status.success() {
        // As shells tell it.
        std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
    }
    Ok(())
}

/// The two namespaces and the folder; dropped, they go.
struct Place {
    clients: String,
    servers: String,
    dir: PathBuf,
}

impl Place {
    fn make() -> anyhow::Result<Self> {
        let ProcessId { pid, started } = ProcessId::own();
        let name = |end: &str| format!("{PREFIX}{pid}-{started}-{end}");
        let dir = std::env::temp_dir().join(name("wan"));
        let place = Self { clients: name("clients"), servers: name("servers"), dir };
        std::fs::create_dir(&place.dir)
            .with_context(|| format!("cannot make {}", place.dir.display()))?;
        for (end, number) in [(&place.clients, netns::CLIENTS), (&place.servers, 1)] {
            netns::ip(&["netns", "add", end])?;
            netns::ip(&["-n", end, "link", "set", "lo", "up"])?;
            netns::add_tun(end, DEVICE)?;
            for address in netns::addresses(number) {
                // All of the numbering lies on the line: no router is between.
                let (address, width) = if address.contains(':') {
                    (format!("{address}/32"), "-6")
                } else {
                    (format!("{address}/16"), "-4")
                };
                netns::ip(&[width, "-n", end, "address", "add", &address, "dev", DEVICE])?;
            }
            netns::ip(&["-n", end, "link", "set", DEVICE, "up"])?;
        }
        Ok(place)
    }

    fn line(&self, asked: &Asked) -> Line {
        let end = |name: &str| End {
            netns: tieline_machine::namespace::path(name),
            device: DEVICE.to_owned(),
        };
        Line {
            name: "clients".to_owned(),
            clients: end(&self.clients),
            servers: end(&self.servers),
            quality: asked.quality(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.clients, &self.servers, &self.dir);
    }
}

fn remove(clients: &str, servers: &str, dir: &Path) {
    let _ = netns::ip(&["netns", "delete", clients]);
    let _ = netns::ip(&["netns", "delete", servers]);
    let _ = std::fs::remove_dir_all(dir);
}

/// What killed runs left behind.
fn remove_dead() {
    for entry in
        std::fs::read_dir(tieline_machine::namespace::NAMED).into_iter().flatten().flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(run) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix("-clients"))
        else {
            continue;
        };
        let Some((pid, started)) = run.split_once('-') else { continue };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse()) else { continue };
        if !(ProcessId { pid, started }).is_alive() {
            let dir = std::env::temp_dir().join(format!("{PREFIX}{run}-wan"));
            remove(&name, &format!("{PREFIX}{run}-servers"), &dir);
        }
    }
}

fn with_line(args: &Args, place: &Place) -> anyhow::Result<ExitStatus> {
    let (line, seed, socket) = (place.line(&args.line), args.line.seed, super::socket(&place.dir));
    let path = socket.clone();
    let relay = std::thread::spawn(move || super::relay::play(&[line], seed, &path));
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if relay.is_finished() || Instant::now() > deadline {
            let ended = relay.is_finished().then(|| relay.join().ok()).flatten();
            ended.transpose()?;
            bail!("the line does not come up");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if let Some(script) = &args.script {
        tieline_wan::ask(&socket, &format!("script {}", script.text()))?;
    }
    let mut child = start(args, place)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    end_with_command(pid.context("a process has a number")?)?;
    Ok(child.wait()?)
}

fn start(args: &Args, place: &Place) -> anyhow::Result<std::process::Child> {
    let (program, rest) = args.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    command.env("TIELINE_WAN_DIR", &place.dir);
    command.env("TIELINE_WAN_CLIENTS", &place.clients);
    command.env("TIELINE_WAN_SERVERS", &place.servers);
    for (name, number) in [("CLIENT", netns::CLIENTS), ("SERVER", 1)] {
        let [v4, v6] = netns::addresses(number);
        command.env(format!("TIELINE_WAN_{name}_ADDRESS"), v4);
        command.env(format!("TIELINE_WAN_{name}_ADDRESS6"), v6);
    }
    let netns = tieline_machine::namespace::path(&place.clients);
    let started = std::thread::spawn(move || -> anyhow::Result<_> {
        tieline_machine::namespace::enter(&netns)?;
        let shown = command.get_program().to_owned();
        command.spawn().with_context(|| format!("cannot start {}", shown.display()))
    });
    started.join().map_err(|_| anyhow::anyhow!("thread panicked"))?
}

/// Passes on what tells us to end: the command ends, and then we do, in good order.
fn end_with_command(command: Pid) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut end, mut hang_up) = runtime.block_on(async {
        let listen = |kind| signal(kind);
        anyhow::Ok((
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ))
    })?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    biased;
                    // From the keyboard: the command has it, too.
                    _ = interrupt.recv() => {}
                    _ = end.recv() => drop(kill_process(command, Signal::TERM)),
                    _ = hang_up.recv() => drop(kill_process(command, Signal::HUP)),
                }
            }
        });
    });
    Ok(())
}
