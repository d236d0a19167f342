//! A lease that many clients hold is taken back, over a distance: all of them have listed one
//! directory, and then somebody makes a name there.
//!
//! The clients are real ones (the client room, with connections of their own) in one process in
//! the clients' namespace ([`hold`]); a mount each would measure this machine. Whoever makes the
//! name is a mount: once beside the server, so that its time is that of the recall alone, and once
//! as far from it as the others. After each turn every client is asked for the new name.

use crate::Settings;
use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::line;
use crate::sweep::Axis;
use anyhow::{Context, Result, bail, ensure};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_base::dialing;
use tieline_base::location::Location;
use tieline_bytes::Near;
use tieline_client::{Parts, Volume};
use tieline_files::Files;
use tieline_lab::{Federation, can_emulate_lines};
use tieline_machine::users::own_caller;
use tieline_types::{FileId, MdtIndex, Name};
use tieline_verbs::shell;
use tokio::task::JoinSet;

const HOLDERS: Axis = Axis {
    over: "clients that hold, at 50 ms",
    values: &["1", "10", "100"],
    usual: "100",
    is_even: false,
};
const DIRECTORY: &str = "shared";
const ROUND_TRIP: &str = "50ms";
/// The goal of the recall: a round trip and 50 ms.
const GOAL_MS: f64 = 100.0;
/// The same for who is a round trip away himself.
const GOAL_FAR_MS: f64 = 150.0;
const PAGE: usize = 1000;
const CLOSING: Duration = Duration::from_secs(10);
/// Asked again right after it was told, whoever holds a lease asks nobody.
const KNOWN: Duration = Duration::from_millis(20);

/// Measures it; nothing where lines cannot be emulated.
pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    if !can_emulate_lines() {
        return Ok(Vec::new());
    }
    let words = ["--sites", "uf", "--rtt", ROUND_TRIP, "--rate", line::RATE];
    let federation = Federation::start(&settings.over_a_line(&words))?;
    let measured = measure_in(settings, &federation);
    federation.down()?;
    measured
}

fn measure_in(settings: &Settings, federation: &Federation) -> Result<Vec<Figure>> {
    let far = federation.mount().join(DIRECTORY);
    std::fs::create_dir(&far)?;
    let near = mount_near(federation)?.join(DIRECTORY);
    let numbers = Cell::new(0);
    let mut figures = Vec::new();
    for (what, changed, goal) in [
        ("asked for beside the server", &near, GOAL_MS),
        ("asked for as far away", &far, GOAL_FAR_MS),
    ] {
        let turn = |holders: &mut Holders| -> Result<f64> {
            numbers.set(numbers.get() + 1);
            let name = format!("d{}", numbers.get());
            // Who changes it knows the directory, too.
            std::fs::read_dir(changed)?.for_each(drop);
            let start = Instant::now();
            std::fs::create_dir(changed.join(&name))?;
            let taken = start.elapsed().as_secs_f64() * 1e3;
            holders.see(&name)?;
            Ok(taken)
        };
        // One by itself says what the many cost, charts or not.
        for count in HOLDERS.values {
            let mut holders = Holders::start(settings, federation, count)?;
            let line = holders.round_trip_ms()?;
            let figure = take_turns(
                format!("recall at {ROUND_TRIP} from clients: {count}, {what}"),
                Unit::Milliseconds,
                settings.turns,
                Box::new(|| turn(&mut holders)),
                vec![("round trip of the line", Box::new(|| Ok(line)))],
            )?;
            holders.end()?;
            let figure = figure.with_goal(Goal::Value(goal));
            figures.push(HOLDERS.place(figure, "recall-by-clients", what, count));
        }
    }
    Ok(figures)
}

/// A mount in the servers' own namespace.
fn mount_near(federation: &Federation) -> Result<PathBuf> {
    let mount = federation.local("near");
    std::fs::create_dir(&mount)?;
    let (dir, path) = (federation.dir(), mount.as_os_str());
    let words = ["dev".as_ref(), "mount".as_ref(), path, "--dir".as_ref(), dir.as_os_str()];
    federation.tieline(&[&words[..], &["--site".as_ref(), "uf".as_ref()]].concat())?;
    Ok(mount)
}

/// The process that has the clients, as seen from outside: it is told a name, and says when all
/// have seen it.
struct Holders {
    child: Child,
    /// Its end is the end of the clients.
    tell: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Holders {
    /// They hold the directory from the start.
    fn start(settings: &Settings, federation: &Federation, count: &str) -> Result<Self> {
        let mut command = Command::new(&settings.program);
        command.arg("holders").arg(federation.mount()).arg(count);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let tell = child.stdin.take().context("its input is ours")?;
        let said = BufReader::new(child.stdout.take().context("its output is ours")?);
        let mut holders = Self { child, tell: Some(tell), said };
        holders.see("")?;
        Ok(holders)
    }

    /// Has all of them list the directory, in which there is `name`.
    fn see(&mut self, name: &str) -> Result<()> {
        let said = self.ask(name)?;
        ensure!(said == "seen", "not all clients see `{name}`: {said}");
        Ok(())
    }

    fn round_trip_ms(&mut self) -> Result<f64> {
        Ok(self.ask("?")?.parse()?)
    }

    /// They take their leave: what one that is killed held is not free before its lease ends.
    fn end(mut self) -> Result<()> {
        drop(self.tell.take());
        ensure!(self.child.wait()?.success(), "the clients did not end well");
        Ok(())
    }

    fn ask(&mut self, word: &str) -> Result<String> {
        let tell = self.tell.as_mut().context("they are there")?;
        writeln!(tell, "{word}")?;
        tell.flush()?;
        let mut said = String::new();
        self.said.read_line(&mut said)?;
        Ok(said.trim().to_owned())
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        // Only where something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process of the clients: a line in is a name to be seen, or `?` for the line's round trip.
pub fn hold(mount: &Path, count: usize) -> Result<()> {
    let location = Location::find(mount.as_os_str()).map_err(|usage| anyhow::anyhow!("{usage}"))?;
    if let Some(namespace) = &location.netns {
        tieline_machine::namespace::enter(namespace)?;
    }
    location.proving.prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let clients = runtime.block_on(clients(&location, count))?;
    for word in std::io::stdin().lines() {
        match word?.as_str() {
            "?" => println!("{}", connect_ms(&location)?),
            name => match runtime.block_on(see(&clients, name)) {
                Ok(()) => println!("seen"),
                Err(error) => println!("{error:#}"),
            },
        }
    }
    runtime.block_on(async {
        let closing = clients.into_iter().map(|client| async move { client.close(CLOSING).await });
        closing.collect::<JoinSet<_>>().join_all().await;
    });
    Ok(())
}

async fn clients(location: &Location, count: usize) -> Result<Vec<Arc<Volume>>> {
    let guard = location.proving.guard();
    let key = location.mapkey.as_deref().map(tieline_base::keys::key_open).transpose();
    let key = key.map_err(|wrong| anyhow::anyhow!("{wrong}"))?;
    let (map, _) = shell::contact(location, &guard).believe(key).await?;
    guard.follow(&map);
    let clients = (0..count).map(|number| {
        let (world, dialer, rule) = dialing::real_world(&guard);
        let description = format!("holder {number}");
        let settings = tieline_client::Settings { description, ..Default::default() };
        let (root, near) = (FileId::root_of(MdtIndex(0)), Near::default());
        let map = map.clone();
        Volume::new(Parts { world, dialer, map, root, rule, near, spool: None }, settings)
    });
    Ok(clients.collect())
}

/// All list the directory at once and hold it then; each finds the name there.
async fn see(clients: &[Arc<Volume>], name: &str) -> Result<()> {
    let mut listing = JoinSet::new();
    for client in clients {
        let (client, name) = (client.clone(), name.to_owned());
        listing.spawn(async move { see_one(&client, &name).await });
    }
    for outcome in listing.join_all().await {
        outcome?;
    }
    Ok(())
}

async fn see_one(client: &Volume, name: &str) -> Result<()> {
    let caller = own_caller();
    let directory = Name::new(DIRECTORY)?;
    let found = client.lookup(&caller, client.root(), &directory).await?;
    let id = found.attributes.context("the directory is there")?.id;
    let handle = client.open_directory(&caller, id).await?;
    let (mut from, mut is_there) = (0, name.is_empty());
    loop {
        let page = client.read_directory(handle, from, PAGE, true).await?;
        is_there |= page.iter().any(|listed| listed.name.as_bytes() == name.as_bytes());
        let Some(last) = page.last() else { break };
        from = last.next;
    }
    client.release_directory(handle).await;
    ensure!(is_there, "a client lists no `{name}`");
    let begun = Instant::now();
    client.attributes(&caller, id).await?;
    // The first of many to ask may be told before the processor comes to the others.
    if begun.elapsed() > KNOWN {
        bail!("a client does not hold the directory");
    }
    Ok(())
}

/// How long a connection to the server takes: the median of some.
fn connect_ms(location: &Location) -> Result<f64> {
    let address = location.source.addresses.first().context("a server has an address")?;
    let connect = |_| -> Result<f64> {
        let begun = Instant::now();
        TcpStream::connect(address.as_str())?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let mut taken = (0..5).map(connect).collect::<Result<Vec<_>>>()?;
    taken.sort_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied().context("some were made")
}
