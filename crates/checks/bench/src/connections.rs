//! What it costs to connect with a service ticket at hand: processor time of both ends, and what
//! somebody waits for from the first packet to the first answer.
//!
//! Beside it stand a connection of bare TCP with one byte there and back, and what GSSAPI needs for
//! one context with the same ticket, both ends in one process. A child of this program dials, so
//! that its environment names the realm; it says goodbye each time, and that is counted too.

use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::{Settings, cost};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_auth::gss::Keys;
use tieline_auth::{Guard, GuardParts, Kerberos, MapCell, MapVerifier, Rule, Serves};
use tieline_format::Record;
use tieline_format::map::SignedMap;
use tieline_lab::{Federation, Plan};
use tieline_net::session::SessionDialer;
use tieline_net::{Channel, Dialer, SessionSettings};
use tieline_servers::{Deaf, Greeting};
use tieline_types::{Caller, ClientId, Flavor, SessionId, Version};
use tieline_wire::federation::{GetMap, MapReply};
use tieline_wire::{Hello, PeerRole};
use tieline_world::{Bulk, World};

const REALM: &str = "EXTENCI.ORG";
const MACHINE: &str = "host/client.extenci.org@EXTENCI.ORG";
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections per turn.
const COUNT: usize = 500;
/// So many stand at once.
const ROUND: usize = 50;
/// On a processor, both ends together.
const GOAL_MS: f64 = 2.0;
const BARE: &str = include_str!("connections/bare.py");

/// Milliseconds for one connection.
#[derive(Clone, Copy)]
struct Taken {
    busy: f64,
    waited: f64,
}

pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    let federation = Federation::start(&Plan::proven(&["--kerberos"]))?;
    let measured = measure_in(settings, &federation);
    federation.down()?;
    measured
}

fn measure_in(settings: &Settings, federation: &Federation) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let ways = [
        ("oss-uf", "the OSS", false),
        ("mds-uf", "the MDS, its session resumed", true),
        ("mds-uf", "the MDS, a new session", false),
    ];
    for (name, what, is_resumed) in ways {
        eprintln!("measuring: connections to {what}");
        let server = Server::of(federation, name, &settings.program)?;
        let work = |which: fn(Taken) -> f64| {
            let server = &server;
            move || server.dial(COUNT, is_resumed).map(which)
        };
        let gss = |which: fn(Taken) -> f64| move || bare(federation, MDS_NAME, COUNT).map(which);
        let tcp = |which: fn(Taken) -> f64| move || plain(COUNT).map(which);
        let mut add = |how: &str, which: fn(Taken) -> f64, goal: Option<Goal>| -> Result<()> {
            let figure = take_turns(
                format!("connecting to {what}: {how}"),
                Unit::Milliseconds,
                settings.turns,
                Box::new(work(which)),
                vec![("GSSAPI alone", Box::new(gss(which))), ("TCP", Box::new(tcp(which)))],
            )?;
            figures.push(Figure { goal, ..figure });
            Ok(())
        };
        add("processor time, both ends", |taken| taken.busy, Some(Goal::Value(GOAL_MS)))?;
        add("time until the first answer", |taken| taken.waited, None)?;
    }
    Ok(figures)
}

/// A server that is dialed, and with what.
pub struct Server {
    program: PathBuf,
    address: String,
    /// Where the map is asked for.
    mds: String,
    pid: i64,
    kdc: PathBuf,
    keytab: PathBuf,
    cache: String,
}

impl Server {
    pub fn of(federation: &Federation, name: &str, program: &Path) -> Result<Self> {
        let address = |name: &str| -> Result<String> {
            let process = federation.process(name)?;
            Ok(process["address"].as_str().context("a server has an address")?.to_owned())
        };
        let kdc = federation.dir().join("kdc");
        Ok(Self {
            program: program.to_owned(),
            address: address(name)?,
            mds: address("mds-uf")?,
            pid: cost::pid(federation, name)?,
            keytab: kdc.join("client.keytab"),
            kdc,
            cache: format!("FILE:{}", federation.local("tickets-dial").display()),
        })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects so often, one after the other.
    fn dial(&self, count: usize, is_resumed: bool) -> Result<Taken> {
        let mut command = Command::new(&self.program);
        command.args(["dial", &self.address, &self.mds, &self.cache, &count.to_string()]);
        command.arg(self.pid.to_string()).arg(&self.keytab);
        command.args(is_resumed.then_some("--resumed"));
        command.env("KRB5_CONFIG", self.kdc.join("krb5.conf"));
        let [busy, waited] = numbers(&mut command)?;
        Ok(Taken { busy, waited })
    }

    /// New connections per second.
    pub fn rate(&self, count: usize) -> Result<f64> {
        Ok(1e3 / self.dial(count, false)?.waited)
    }
}

/// The two numbers that a program prints.
fn numbers(command: &mut Command) -> Result<[f64; 2]> {
    let output = command.output().context("it cannot be run")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout)?;
    let numbers = said.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    numbers.try_into().map_err(|_| anyhow::anyhow!("not two numbers: {said}"))
}

/// Whom a child dials, with what, and how.
#[derive(clap::Args)]
pub struct Dialing {
    address: String,
    /// Where the map is asked for.
    mds: String,
    cache: String,
    count: usize,
    /// The server's process.
    pid: i64,
    keytab: PathBuf,
    /// Each connection goes on with the session of the one before.
    #[arg(long)]
    resumed: bool,
}

/// What a child does: connects and asks one question, so often. Prints milliseconds for one
/// connection: on a processor, of both ends, and from dialing to the answer.
pub fn dial(dialing: &Dialing) -> Result<()> {
    let ends = [i64::from(std::process::id()), dialing.pid];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (busy, waited) = runtime.block_on(async {
        let guard = guard(dialing);
        // Brings the map, with every server's name, then the ticket.
        let mut session = None;
        for address in [&dialing.mds, &dialing.address] {
            let first = connect(&guard, address, None).await?;
            session = first.channel.standing().map(|standing| standing.session);
            first.channel.close(PATIENCE).await;
        }
        let session = session.filter(|_| dialing.resumed);
        let (mut busy, mut waited) = (0.0, Duration::ZERO);
        for round in 0..dialing.count.div_ceil(ROUND) {
            let mut lines = Vec::new();
            let before = cost::seconds_of(&ends)?;
            for _ in 0..ROUND.min(dialing.count - round * ROUND) {
                let line = connect(&guard, &dialing.address, session).await?;
                waited += line.waited;
                // One that goes on with a session takes it from the one before.
                lines.extend(session.is_none().then_some(line.channel));
            }
            busy += cost::seconds_of(&ends)? - before;
            for line in lines {
                line.close(PATIENCE).await;
            }
        }
        anyhow::Ok((busy, waited.as_secs_f64()))
    })?;
    let each = |seconds: f64| seconds * 1e3 / dialing.count as f64;
    println!("{} {}", each(busy), each(waited));
    Ok(())
}

fn guard(dialing: &Dialing) -> Arc<Guard> {
    let dialing = Keys {
        keytab: Some(dialing.keytab.clone()),
        cache: Some(dialing.cache.clone()),
        principal: Some(MACHINE.to_owned()),
    };
    let keys = Kerberos { dialing, answering: Keys::default() };
    Guard::new(GuardParts {
        prover: Some(Box::new(keys)),
        floor: Flavor::Null,
        first: Flavor::Null,
        serves: Serves::default(),
        is_eager: true,
        realm: Some(REALM.to_owned()),
        services: vec![],
        service: None,
    })
}

struct Line {
    channel: Arc<dyn Channel>,
    waited: Duration,
}

async fn connect(guard: &Arc<Guard>, address: &str, session: Option<SessionId>) -> Result<Line> {
    let (world, settings) = (World::real(), SessionSettings::default());
    let dialer = SessionDialer { world, settings, guard: guard.clone() };
    let greeting = Greeting {
        role: PeerRole::Client,
        client: ClientId([0xbe; 16]),
        fs: "extenci".parse().context("a name")?,
        rule: Rule { flavor: Flavor::Null },
        description: "bench".to_owned(),
        is_visitor: false,
        wait: None,
    };
    let hello = Hello { session, ..greeting.hello(Version(0)) };
    let start = Instant::now();
    let channel = dialer.dial(&[address.to_owned()], hello, Arc::new(Deaf));
    let root = Caller::root();
    let asked = tieline_net::call(&*channel, &root, GetMap {}, Bulk::Empty, Some(PATIENCE));
    let (reply, _) = asked.await?;
    let waited = start.elapsed();
    follow(guard, &reply)?;
    Ok(Line { channel, waited })
}

/// Which name and which flavor is whose: the first connection cannot know.
fn follow(guard: &Guard, reply: &MapReply) -> Result<()> {
    if guard.changes().is_none() {
        let key = MapVerifier::from_hex(reply.key.as_deref().context("a key")?)?;
        guard.follow(&MapCell::new(key, SignedMap::from_bytes(&reply.signed)?)?);
    }
    Ok(())
}

/// Contexts of GSSAPI, and nothing else.
fn bare(federation: &Federation, name: &str, count: usize) -> Result<Taken> {
    let kdc = federation.dir().join("kdc");
    let mut cache = OsString::from("FILE:");
    cache.push(federation.local("tickets-bare"));
    let mut command = Command::new("python3");
    command.args(["-c", BARE, name, &count.to_string()]);
    command.env("KRB5_CONFIG", kdc.join("krb5.conf")).env("KRB5CCNAME", cache);
    command.env("KRB5_CLIENT_KTNAME", kdc.join("client.keytab"));
    command.env("KRB5_KTNAME", kdc.join("mds-uf.keytab"));
    let [busy, waited] = numbers(&mut command)?;
    Ok(Taken { busy, waited })
}

const MDS_NAME: &str = "tieline_mds/uf.extenci.org@EXTENCI.ORG";

/// Connections of TCP, with a byte there and one back; both ends are this process.
fn plain(count: usize) -> Result<Taken> {
    let own = [i64::from(std::process::id())];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // Short as it is, it is done more often.
    let count = count * 20;
    let answering = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..count {
            let (mut stream, _) = listener.accept()?;
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let (before, start) = (cost::seconds_of(&own)?, Instant::now());
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
    }
    let (waited, busy) = (start.elapsed().as_secs_f64(), cost::seconds_of(&own)? - before);
    answering.join().ok().context("the answering thread failed")??;
    let each = |seconds: f64| seconds * 1e3 / count as f64;
    Ok(Taken { busy: each(busy), waited: each(waited) })
}
