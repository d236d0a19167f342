//! Reads and writes of bulk data over an emulated line, beside iperf3 over the same line.
//!
//! One federation stands at the other end of a line of 1 Gbit/s, whose round trip changes while it
//! stands. Each workload runs in a mount of its own, so that nothing is warm but the servers; what
//! went over the line is counted by the line.

use crate::Settings;
use crate::chart::Point;
use crate::figure::{Figure, Goal, Unit, take_turns};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_lab::{Federation, can_emulate_lines};

const RATE: &str = "1gbit";
/// What such a line carries of a file, in MB/s.
const LINK: f64 = 117.7;
/// Round trips, near to far, and the same in milliseconds.
const DISTANCES: [(&str, f64); 3] = [("200us", 0.2), ("12ms", 12.0), ("50ms", 50.0)];
/// As many seconds as a gibibyte takes, about.
const IPERF_SECONDS: &str = "8";
/// Files of the storm, and what each holds.
const STORM: usize = 64;
const STORM_FILE: usize = 16 << 20;
/// How a directory is read: left alone, and pinned.
const MODES: [&str; 5] = ["auto", "normal", "readbuf", "readahead", "stream"];
/// What analyses read, as [`TREE`] makes it: files, kinds, and what they are called.
const TREES: [(&str, &str, &str); 3] = [
    ("tree.root", "plain", "uproot"),
    ("packed.root", "packed", "uproot, compressed tree"),
    ("ntuple.root", "ntuple", "uproot, RNTuple"),
];
/// Fields of each.
const FIELDS: u32 = 20;

/// Each prints the seconds that it took.
const SEQUENTIAL: &str = include_str!("reads/sequential.py");
const SKIP: &str = include_str!("reads/skip.py");
const BRANCHES: &str = include_str!("reads/branches.py");
const STORMS: &str = include_str!("reads/storm.py");
const TREE: &str = include_str!("reads/tree.py");

/// Measures all of it; nothing where lines cannot be emulated.
pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    if !can_emulate_lines() {
        return Ok(Vec::new());
    }
    let words = ["--sites", "uf", "--rtt", DISTANCES[0].0, "--rate", RATE];
    let federation = Federation::start(&settings.over_a_line(&words))?;
    let measured = Field::new(settings, &federation).and_then(|field| field.measure());
    federation.down()?;
    measured
}

struct Field<'f> {
    settings: &'f Settings,
    federation: &'f Federation,
    python: PathBuf,
    /// Network namespaces: of the servers, and of clients.
    servers: String,
    clients: String,
}

/// What a workload took, and what went over the line for it.
struct Taken {
    numbers: Vec<f64>,
    bytes: f64,
}

/// What is read in parts of a file: megabytes that are asked for, goals in seconds for the first
/// file and the next, and bytes on the line for the next, times what was asked for.
struct Asked {
    what: String,
    asked: f64,
    goals: (f64, f64),
    times: f64,
}

impl<'f> Field<'f> {
    fn new(settings: &'f Settings, federation: &'f Federation) -> Result<Self> {
        let python = std::env::var_os("TIELINE_PYTHON").unwrap_or_else(|| "python3".into());
        let state = std::fs::read_to_string(federation.dir().join("dev.json"))?;
        let state: serde_json::Value = serde_json::from_str(&state)?;
        let made = state["network"]["made"].as_array().context("namespaces were made")?.clone();
        let ending = |end: &str| -> Result<String> {
            let mut names = made.iter().filter_map(|name| name.as_str());
            let found = names.find(|name| name.ends_with(end)).map(str::to_owned);
            found.with_context(|| format!("no namespace ends with {end}"))
        };
        let (servers, clients) = (ending("-uf")?, ending("-cl")?);
        let field = Self { settings, federation, python: python.into(), servers, clients };
        field.fill()?;
        Ok(field)
    }

    /// What is read: written while the servers are near.
    fn fill(&self) -> Result<()> {
        let mount = self.federation.mount();
        let size = self.settings.size;
        for mode in MODES {
            let folder = mount.join(mode);
            std::fs::create_dir(&folder)?;
            if mode != "auto" {
                let value = format!("setfattr -n user.tieline.readmode -v {mode} {mode}");
                self.federation.shell(&value)?;
            }
        }
        let noise = format!("head -c {size} /dev/urandom > large; sync large");
        self.federation.shell(&noise)?;
        for mode in MODES {
            self.federation.shell(&format!("cp large {mode}/large"))?;
        }
        self.federation.shell("cp auto/large auto/next-large")?;
        for (name, kind, _) in TREES {
            self.run(TREE, &mount.join("auto").join(name), &[kind])?;
            self.federation.shell(&format!("cp auto/{name} auto/next-{name}"))?;
            for mode in MODES.into_iter().filter(|mode| *mode != "auto") {
                self.federation.shell(&format!("cp auto/{name} {mode}/{name}"))?;
            }
        }
        let script = format!(
            "mkdir storm; for i in $(seq 0 {}); do head -c {STORM_FILE} large > storm/f$i; done",
            STORM - 1
        );
        self.federation.shell(&format!("{script}; sync -f ."))?;
        Ok(())
    }

    fn measure(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (distance, at) in DISTANCES {
            eprintln!("measuring: reads at {distance}");
            self.wan(&["rtt", distance])?;
            let (chart, over) = ("sequential-read-by-distance", "RTT (ms)");
            let point = Point { chart, series: "mount, cold".to_owned(), over, at, label: None };
            figures.push(self.sequential(distance)?.at(point));
        }
        figures.push(self.write()?);
        for mode in MODES {
            eprintln!("measuring: reads, mode {mode}");
            figures.extend(self.skip(mode)?);
            for (name, _, called) in TREES {
                figures.extend(self.branches(mode, (name, called), 2)?);
                figures.extend(self.branches(mode, (name, called), FIELDS)?);
            }
        }
        figures.extend(self.storm()?);
        self.wan(&["loss", "1e-4"])?;
        figures.push(self.sequential("50ms, loss 1e-4")?);
        Ok(figures)
    }

    fn sequential(&self, distance: &str) -> Result<Figure> {
        let size = self.settings.size as f64 / 1e6;
        let read =
            || -> Result<f64> { Ok(size / self.cold(SEQUENTIAL, "auto/large", &[])?.numbers[0]) };
        let figure = take_turns(
            format!("sequential read, cold, {distance}"),
            Unit::MegabytesPerSecond,
            self.settings.turns,
            Box::new(read),
            vec![("iperf3", Box::new(|| self.iperf(true)))],
        )?;
        // Where packets are lost one stream of iperf3 is no measure.
        let is_lossy = distance.contains("loss");
        let goal = if is_lossy { Goal::Value(0.85 * LINK) } else { Goal::Ratio(0.95) };
        Ok(figure.with_goal(goal))
    }

    fn write(&self) -> Result<Figure> {
        let size = self.settings.size;
        let from = self.federation.local("noise");
        self.federation.shell(&format!("head -c {size} /dev/urandom > {}", from.display()))?;
        let work = || -> Result<f64> {
            let mount = self.federation.mount_again()?;
            let to = mount.join("written");
            let start = std::time::Instant::now();
            let script = format!("dd if={} of={} bs=1M conv=fsync", from.display(), to.display());
            self.federation.shell(&script)?;
            let seconds = start.elapsed().as_secs_f64();
            std::fs::remove_file(to)?;
            self.federation.unmount(&mount)?;
            Ok(size as f64 / 1e6 / seconds)
        };
        let figure = take_turns(
            "sequential write, fsync, 50ms",
            Unit::MegabytesPerSecond,
            self.settings.turns,
            Box::new(work),
            vec![("iperf3", Box::new(|| self.iperf(false)))],
        )?;
        Ok(figure.with_goal(Goal::Ratio(0.9)))
    }

    fn skip(&self, mode: &'static str) -> Result<Vec<Figure>> {
        let asked = self.settings.size as f64 / 10.0 / 1e6;
        let set =
            Asked { what: "1 MiB of every 10".to_owned(), asked, goals: (1.8, 1.4), times: 1.1 };
        self.twice(mode, &set, SKIP, "large", &[])
    }

    fn branches(
        &self,
        mode: &'static str,
        (name, called): (&str, &str),
        count: u32,
    ) -> Result<Vec<Figure>> {
        let path = self.federation.mount().join(mode).join(name);
        // All fields are equally long.
        let asked = path.metadata()?.len() as f64 / 1e6 * f64::from(count) / f64::from(FIELDS);
        let (what, goals) = match count {
            FIELDS => (format!("{called}, all branches"), (1.3 * asked / LINK, 1.3 * asked / LINK)),
            _ => (format!("{called}, {count} of {FIELDS} branches"), (0.9, 0.6)),
        };
        let set = Asked { what, asked, goals, times: 1.15 };
        self.twice(mode, &set, BRANCHES, name, &[&count.to_string()])
    }

    /// One file right after the mount, and where nothing is pinned the next file of the data set
    /// over connections that stand.
    fn twice(
        &self,
        mode: &'static str,
        set: &Asked,
        script: &str,
        name: &str,
        arguments: &[&str],
    ) -> Result<Vec<Figure>> {
        let Asked { what, asked, goals, times } = set;
        let mount = self.federation.mount_again()?;
        let taken = self.taken(script, &mount.join(mode).join(name), arguments)?;
        let mut figures = vec![
            seconds(format!("{what}, 50ms, {mode}"), taken.numbers[0], goals.0)
                .at(by_mode(mode, what)),
            ratio(format!("{what}, bytes on the line, {mode}"), taken.bytes / asked, 1.5),
        ];
        if mode == "auto" {
            let next = mount.join(mode).join(format!("next-{name}"));
            let taken = self.taken(script, &next, arguments)?;
            figures.push(seconds(format!("{what}, the next file"), taken.numbers[0], goals.1));
            let bytes = format!("{what}, the next file, bytes on the line");
            figures.push(ratio(bytes, taken.bytes / asked, *times));
        }
        self.federation.unmount(&mount)?;
        Ok(figures)
    }

    fn storm(&self) -> Result<Vec<Figure>> {
        let taken = self.cold(STORMS, "storm", &[&STORM.to_string()])?;
        ensure!(taken.numbers.len() == 2, "the storm prints two numbers");
        let figure = |name: &str, value, goal| seconds(name.to_owned(), value, goal);
        Ok(vec![
            figure("open storm, 50ms, open p99", taken.numbers[0], 0.12),
            figure("open storm, 50ms, 1 MiB p90", taken.numbers[1], 0.35),
        ])
    }

    /// Runs a program in a mount of its own.
    fn cold(&self, script: &str, below: &str, arguments: &[&str]) -> Result<Taken> {
        let mount = self.federation.mount_again()?;
        let taken = self.taken(script, &mount.join(below), arguments)?;
        self.federation.unmount(&mount)?;
        Ok(taken)
    }

    fn taken(&self, script: &str, path: &Path, arguments: &[&str]) -> Result<Taken> {
        let before = self.bytes()?;
        let numbers = self.run(script, path, arguments)?;
        Ok(Taken { numbers, bytes: (self.bytes()? - before) / 1e6 })
    }

    fn run(&self, script: &str, path: &Path, arguments: &[&str]) -> Result<Vec<f64>> {
        let mut command = Command::new(&self.python);
        let output = command.arg("-c").arg(script).arg(path).args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout)?;
        said.split_whitespace().map(|word| word.parse().context("a number")).collect()
    }

    fn wan(&self, words: &[&str]) -> Result<String> {
        let dir = self.federation.dir();
        let words = ["dev", "wan"].iter().chain(words).map(|word| std::ffi::OsString::from(*word));
        let all: Vec<_> = words.chain(["--dir".into(), dir.into_os_string()]).collect();
        self.federation.tieline(&all)
    }

    /// What the line has brought to clients so far.
    fn bytes(&self) -> Result<f64> {
        let told: serde_json::Value = serde_json::from_str(&self.wan(&["show", "--json"])?)?;
        told[0]["to_clients"]["bytes"].as_f64().context("bytes are counted")
    }

    /// MB/s of one stream, to the clients or from them.
    fn iperf(&self, to_clients: bool) -> Result<f64> {
        let within = |netns: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", netns, "iperf3"]);
            command
        };
        let mut server = within(&self.servers);
        let server = server.args(["-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = server.spawn().context("iperf3 is needed")?;
        std::thread::sleep(std::time::Duration::from_millis(500));
        let mut client = within(&self.clients);
        client.args(["-c", "10.77.1.2", "-t", IPERF_SECONDS, "-J"]);
        if to_clients {
            client.arg("-R");
        }
        let output = client.output()?;
        let _ = server.wait();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.context("iperf3 tells a rate")? / 8e6)
    }
}

fn by_mode(mode: &'static str, series: &str) -> Point {
    let at = MODES.iter().position(|known| *known == mode).unwrap_or(0) as f64;
    let (chart, series) = ("time-by-read-mode", series.to_owned());
    Point { chart, series, over: "read mode, at 50 ms", at, label: Some(mode) }
}

fn seconds(name: String, value: f64, goal: f64) -> Figure {
    Figure::single(name, Unit::Seconds, value).with_goal(Goal::Value(goal))
}

fn ratio(name: String, value: f64, goal: f64) -> Figure {
    Figure::single(name, Unit::Times, value).with_goal(Goal::Value(goal))
}
