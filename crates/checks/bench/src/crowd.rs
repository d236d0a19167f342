//! What honest clients keep while ten thousand connections that say nothing stand at a server.
//!
//! Such a crowd stands at the MDS, and another one at the OSS; a fifth of each begins a hello. A
//! server closes who says nothing for ten seconds, and the oldest of more than a few hundred. So
//! the crowd comes anew all the time: in a minute, or in the ten seconds. What that costs the crowd
//! itself is paid by the same processors.

use crate::connections::Server;
use crate::figure::{Figure, Goal, Unit, Workload, take_turns};
use crate::files::{Playground, read_file};
use crate::{Settings, sharing};
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, Plan};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

pub const CROWD: usize = 10_000;
const AT_ONCE: usize = 64;
/// In how many steps all of it comes anew.
const STEPS: u32 = 1000;
/// In how many seconds: one that stays, and one that does not give up.
const PATIENT: u64 = 60;
const PRESSING: u64 = 10;
/// Descriptors of the crowd's process beside the crowd's.
const SPARE: usize = 100;
const GOAL: f64 = 0.9;
const HAND_OVERS: u64 = 1000;
const FILES: usize = 500;
const NEWCOMERS: usize = 300;
/// That a crowd came is not what it costs to have it.
const SETTLE: Duration = Duration::from_secs(1);

pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    let federation = Federation::start(&Plan::proven(&["--kerberos"]))?;
    let measured = Square::new(settings, &federation).and_then(|square| square.measure());
    federation.down()?;
    measured
}

/// Where people work, and where the crowd comes.
struct Square<'f> {
    settings: &'f Settings,
    federation: &'f Federation,
    directory: Playground,
    other: PathBuf,
    servers: [Server; 2],
}

impl<'f> Square<'f> {
    fn new(settings: &'f Settings, federation: &'f Federation) -> Result<Self> {
        let directory = Playground::new(federation.mount())?;
        directory.write_large(settings.size)?;
        let below = directory.path().strip_prefix(federation.mount())?.to_owned();
        let other = federation.mount_again()?.join(below);
        let server = |name| Server::of(federation, name, &settings.program);
        let servers = [server("mds-uf")?, server("oss-uf")?];
        Ok(Self { settings, federation, directory, other, servers })
    }

    fn measure(&self) -> Result<Vec<Figure>> {
        let (mds, oss) = (&self.servers[0], &self.servers[1]);
        let (rate, megabytes) = (Unit::PerSecond, Unit::MegabytesPerSecond);
        let hand_overs = || self.hand_overs();
        let read = || self.read();
        let patient = |what: &str, unit, work: &dyn Fn() -> Result<f64>| -> Result<Figure> {
            Ok(self.compare((what, PATIENT), unit, work)?.with_goal(Goal::Ratio(GOAL)))
        };
        Ok(vec![
            patient("hand-overs between clients", rate, &hand_overs)?,
            patient("files made and synced", rate, &|| self.make_files())?,
            patient("sequential read, cold", megabytes, &read)?,
            patient("new connections to the MDS", rate, &|| mds.rate(NEWCOMERS))?,
            patient("new connections to the OSS", rate, &|| oss.rate(NEWCOMERS))?,
            self.compare(("hand-overs between clients", PRESSING), rate, &hand_overs)?,
            self.compare(("sequential read, cold", PRESSING), megabytes, &read)?,
        ])
    }

    /// Work with a crowd that comes anew in so many seconds, by turns with the same without.
    fn compare(
        &self,
        (what, seconds): (&str, u64),
        unit: Unit,
        work: &dyn Fn() -> Result<f64>,
    ) -> Result<Figure> {
        let name = format!("{CROWD} at MDS and OSS, anew in {seconds} s: {what}");
        eprintln!("measuring: {name}");
        // What is needed once was done before it counts.
        work()?;
        // Whoever rests gives memory back, and is slower afterwards: without a crowd there is a
        // rest as long as a crowd takes to come.
        let rest = Cell::new(Duration::ZERO);
        let crowded = || -> Result<f64> {
            let start = Instant::now();
            let crowds = self.gather(seconds)?;
            std::thread::sleep(SETTLE);
            rest.set(start.elapsed());
            let rate = work();
            crowds.into_iter().try_for_each(Crowd::leave)?;
            rate
        };
        let alone = || {
            std::thread::sleep(rest.get());
            work()
        };
        let references: Vec<(_, Workload<'_>)> = vec![("no crowd", Box::new(alone))];
        take_turns(name, unit, self.settings.turns, Box::new(crowded), references)
    }

    fn gather(&self, seconds: u64) -> Result<Vec<Crowd>> {
        let program = &self.settings.program;
        let servers = self.servers.iter();
        servers.map(|server| Crowd::at(program, server.address(), seconds)).collect()
    }

    fn hand_overs(&self) -> Result<f64> {
        Ok(1e3 / sharing::hand_over(self.directory.path(), &self.other, HAND_OVERS)?)
    }

    /// Each asks the MDS, and its disk.
    fn make_files(&self) -> Result<f64> {
        let folder = tempfile::tempdir_in(self.directory.path())?;
        let start = Instant::now();
        for at in 0..FILES {
            let mut file = std::fs::File::create_new(folder.path().join(at.to_string()))?;
            file.write_all(b"content")?;
            file.sync_all()?;
        }
        Ok(crate::files::per_second(FILES, start))
    }

    /// By a client that has not seen the file, and comes now.
    fn read(&self) -> Result<f64> {
        let mount = self.federation.mount_again()?;
        let below = self.directory.path().strip_prefix(self.federation.mount())?;
        let rate = read_file(&mount.join(below).join("large"));
        self.federation.unmount(&mount)?;
        rate
    }
}

/// A process that holds a crowd.
struct Crowd(Child);

impl Crowd {
    fn at(program: &Path, address: &str, seconds: u64) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["crowd", address, &CROWD.to_string(), &seconds.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut crowd = Self(command.spawn().context("the crowd cannot be started")?);
        let out = crowd.0.stdout.take().context("it prints")?;
        let mut said = String::new();
        BufReader::new(out).read_line(&mut said)?;
        ensure!(said.trim() == "there", "the crowd did not come: {said}");
        Ok(crowd)
    }

    fn leave(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        ensure!(self.0.wait()?.success(), "the crowd failed");
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // One that left is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the process does: says when all are there, and stays until its input ends.
pub fn stand(address: &str, count: usize, seconds: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (count + SPARE) as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })
        .context("a crowd needs as many open files")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut crowd = VecDeque::new();
        while crowd.len() < count {
            crowd.extend(come(address, AT_ONCE.min(count - crowd.len()), crowd.len()).await?);
        }
        println!("there");
        std::io::stdout().flush()?;
        let mut gone = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        let mut pace = tokio::time::interval(Duration::from_secs(seconds) / STEPS);
        let at_once = count.div_ceil(STEPS as usize);
        loop {
            tokio::select! {
                biased;
                _ = &mut gone => return Ok(()),
                _ = pace.tick() => {}
            }
            crowd.drain(..at_once);
            let number = crowd.len();
            crowd.extend(come(address, at_once, number).await?);
        }
    })
}

async fn come(address: &str, count: usize, number: usize) -> Result<Vec<TcpStream>> {
    let mut coming: JoinSet<std::io::Result<TcpStream>> = JoinSet::new();
    for number in number..number + count {
        let address = address.to_owned();
        coming.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            if number.is_multiple_of(5) {
                // Half a frame: the server waits for its rest.
                let _ = stream.try_write(b"TLN1\x01\x00");
            }
            Ok(stream)
        });
    }
    Ok(coming.join_all().await.into_iter().collect::<std::io::Result<_>>()?)
}
