//! Reads and writes of bulk data over an emulated line, beside iperf3 over the same line.
//!
//! One federation stands at the other end of a line of 1 Gbit/s, whose round trip changes while it
//! stands. Each workload runs in a mount of its own, so that nothing is warm but the servers; what
//! went over the line is counted by the line. What is read in pieces, and how, says [`pieces`].

mod pieces;

use crate::Settings;
use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::line::{self, LINK, Line};
use crate::sweep::{Axis, Gathered, RTT};
use anyhow::{Context, Result, ensure};
use pieces::{SETS, TREES};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tieline_lab::{Federation, can_emulate_lines};

/// How files are read: left alone, and pinned.
const MODES: Axis = Axis {
    over: "read mode, at 50 ms",
    values: &["auto", "normal", "readbuf", "readahead", "stream"],
    usual: "auto",
    is_even: true,
};
/// Shares of packets that are lost.
const LOSSES: Axis = Axis {
    over: "loss, at 50 ms",
    values: &["0", "1e-5", "1e-4", "1e-3"],
    usual: "1e-4",
    is_even: true,
};
/// Processes of the storm, each with a file of its own, and what a file holds.
const STORM: Axis =
    Axis { over: "processes, at 50 ms", values: &["16", "64", "128"], usual: "64", is_even: false };
const STORM_FILE: usize = 16 << 20;
/// The one that is left when nobody may choose.
const CUBIC: &str = "cubic";
/// A read that is slow goes on for so many seconds: its rate shows by then.
const SECONDS_MAX: &str = "20";
/// As long as it takes.
const TO_THE_END: &str = "inf";

/// Each prints the seconds that it took.
const SEQUENTIAL: &str = include_str!("reads/sequential.py");
const STORMS: &str = include_str!("reads/storm.py");
const TREE: &str = include_str!("reads/tree.py");

/// Measures all of it; nothing where lines cannot be emulated.
pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let words = ["--sites", "uf", "--rtt", "0.2ms", "--rate", line::RATE];
    let federation = Federation::start(&settings.over_a_line(&words))?;
    let measured = Field::new(settings, &federation).map(|field| field.measure(to));
    federation.down()?;
    measured
}

struct Field<'f> {
    settings: &'f Settings,
    federation: &'f Federation,
    line: Line<'f>,
    python: PathBuf,
}

/// What a workload took, and what went over the line for it.
struct Taken {
    numbers: Vec<f64>,
    bytes: f64,
}

/// A sweep by its name.
type Sweep<'f> = (&'static str, fn(&Field<'f>, &'static str) -> Result<Vec<Figure>>);

impl<'f> Field<'f> {
    fn new(settings: &'f Settings, federation: &'f Federation) -> Result<Self> {
        let python = std::env::var_os("TIELINE_PYTHON").unwrap_or_else(|| "python3".into());
        let line = Line::of(federation)?;
        let field = Self { settings, federation, line, python: python.into() };
        field.fill()?;
        Ok(field)
    }

    /// What is read: written while the servers are near.
    fn fill(&self) -> Result<()> {
        eprintln!("measuring: writing what is read");
        let size = self.settings.size;
        self.federation.shell(&format!(
            "mkdir data storm; cd data; head -c {size} /dev/urandom > large; sync large"
        ))?;
        // `cp` and `cat` would share the chunks.
        let copy = |from: &str| {
            self.federation
                .shell(&format!("cd data; dd if={from} of=next-{from} bs=1M status=none"))
        };
        copy("large")?;
        for kind in TREES {
            let name = format!("{kind}.root");
            self.run(TREE, &self.federation.mount().join("data").join(&name), &[kind])?;
            copy(&name)?;
        }
        for index in 0..self.storm_max() {
            self.federation.shell(&format!("head -c {STORM_FILE} data/large > storm/f{index}"))?;
        }
        self.federation.shell("sync -f .")?;
        Ok(())
    }

    fn storm_max(&self) -> usize {
        let sizes = STORM.values(self.settings).into_iter().filter_map(|size| size.parse().ok());
        sizes.max().unwrap_or(0)
    }

    fn measure(&self, to: &mut Gathered<'_>) {
        // Reads are beside iperf3 at every distance, charts or not.
        let near_and_far: [Sweep<'f>; 1] = [("sequential read", Self::sequential)];
        let distances: [Sweep<'f>; 2] =
            [("sequential write", Self::write), ("reads of pieces", Self::pieces)];
        self.sweep(to, &near_and_far, RTT.values.to_vec(), |rtt| self.line.set_rtt(rtt));
        self.sweep(to, &distances, RTT.values(self.settings), |rtt| self.line.set_rtt(rtt));
        // What follows is measured far away.
        let modes: [Sweep<'f>; 3] = [
            ("sequential read by mode", Self::sequential_by_mode),
            ("reads of pieces by mode", Self::pieces_by_mode),
            ("open storm by mode", Self::storm_by_mode),
        ];
        self.sweep(to, &modes, MODES.values.to_vec(), |mode| self.pin(mode));
        to.note("reads: taking back the mode", self.pin(MODES.usual));
        let storm: [Sweep<'f>; 1] = [("open storm", Self::storm)];
        self.sweep(to, &storm, STORM.values(self.settings), |_| Ok(()));
        let losses: [Sweep<'f>; 1] = [("sequential read with losses", Self::lossy)];
        self.sweep(to, &losses, LOSSES.values(self.settings), |loss| self.line.set_loss(loss));
    }

    /// At each value in turn, all of these.
    fn sweep(
        &self,
        to: &mut Gathered<'_>,
        sweeps: &[Sweep<'f>],
        values: Vec<&'static str>,
        set: impl Fn(&str) -> Result<()>,
    ) {
        for value in values {
            for (name, work) in sweeps {
                let name = format!("{name}, {value}");
                eprintln!("measuring: {name}");
                to.keep_if_measured(&name, set(value).and_then(|()| work(self, value)));
            }
        }
    }

    /// Says how what is opened from now on is read.
    fn pin(&self, mode: &str) -> Result<()> {
        let attribute = "user.tieline.readmode";
        // Where nothing was ever pinned there is no attribute to be asked for.
        let script = if mode == MODES.usual {
            format!("setfattr -x {attribute} data storm 2> /dev/null || true")
        } else {
            format!("setfattr -n {attribute} -v {mode} data storm")
        };
        self.federation.shell(&script).map(drop)
    }

    /// MB/s of a cold read.
    fn rate(&self, seconds_max: &str) -> Result<f64> {
        let numbers = self.cold(SEQUENTIAL, "data/large", &[seconds_max])?.numbers;
        let [seconds, bytes] = numbers.as_slice() else {
            anyhow::bail!("a read prints two numbers");
        };
        Ok(bytes / 1e6 / seconds)
    }

    fn sequential(&self, rtt: &'static str) -> Result<Vec<Figure>> {
        let figure = take_turns(
            format!("sequential read, cold, {rtt} ms"),
            Unit::MegabytesPerSecond,
            self.settings.turns,
            Box::new(|| self.rate(TO_THE_END)),
            vec![("iperf3", Box::new(|| self.line.iperf(true)))],
        )?;
        let point = RTT.point("sequential-read-by-distance", "mount, cold", rtt);
        Ok(vec![figure.with_goal(Goal::Ratio(0.95)).at(point)])
    }

    fn write(&self, rtt: &'static str) -> Result<Vec<Figure>> {
        let size = self.settings.size;
        let from = self.federation.local("noise");
        self.federation.shell(&format!("head -c {size} /dev/urandom > {}", from.display()))?;
        let work = || -> Result<f64> {
            let mount = self.federation.mount_again()?;
            let to = mount.join("written");
            let start = Instant::now();
            let script = format!("dd if={} of={} bs=1M conv=fsync", from.display(), to.display());
            self.federation.shell(&script)?;
            let seconds = start.elapsed().as_secs_f64();
            std::fs::remove_file(to)?;
            self.federation.unmount(&mount)?;
            Ok(size as f64 / 1e6 / seconds)
        };
        let figure = take_turns(
            format!("sequential write, fsync, {rtt} ms"),
            Unit::MegabytesPerSecond,
            self.settings.turns,
            Box::new(work),
            vec![("iperf3", Box::new(|| self.line.iperf(false)))],
        )?;
        let figure = figure.with_goal(Goal::Ratio(0.9));
        Ok(vec![RTT.place(figure, "sequential-write-by-distance", "mount, fsync", rtt)])
    }

    /// Where packets are lost: each connection with the congestion control that the product
    /// chooses, and, for a chart, all of them with CUBIC. One stream of iperf3 is no measure there.
    fn lossy(&self, loss: &'static str) -> Result<Vec<Figure>> {
        let mut figures = vec![self.lossy_with(loss, "mount", "iperf3", 0.85)?];
        if self.settings.charts.is_some() {
            if let Err(error) = self.line.pin_congestion(CUBIC) {
                eprintln!("not measured with {CUBIC}: {error:#}");
                return Ok(figures);
            }
            let measured = self.lossy_with(loss, "mount, CUBIC alone", "iperf3, CUBIC", 0.55);
            self.line.unpin_congestion()?;
            figures.push(measured?);
        }
        Ok(figures)
    }

    fn lossy_with(
        &self,
        loss: &'static str,
        series: &'static str,
        reference: &'static str,
        goal: f64,
    ) -> Result<Figure> {
        let figure = take_turns(
            format!("sequential read, cold, 50 ms, loss {loss}, {series}"),
            Unit::MegabytesPerSecond,
            self.settings.turns,
            Box::new(|| self.rate(SECONDS_MAX)),
            vec![(reference, Box::new(|| self.line.iperf(true)))],
        )?;
        let figure = figure.with_goal(Goal::Value(goal * LINK));
        Ok(LOSSES.place(figure, "sequential-read-by-loss", series, loss))
    }

    fn pieces(&self, rtt: &'static str) -> Result<Vec<Figure>> {
        let drawn = SETS.iter().filter(|set| set.chart.is_some() || rtt == RTT.usual);
        let measured: Result<Vec<_>> = drawn.map(|set| set.over_distance(self, rtt)).collect();
        Ok(measured?.concat())
    }

    fn sequential_by_mode(&self, mode: &'static str) -> Result<Vec<Figure>> {
        let name = format!("sequential read, cold, 50 ms, {mode}");
        let rate = Figure::single(name, Unit::MegabytesPerSecond, self.rate(SECONDS_MAX)?);
        Ok(vec![rate.at(MODES.point("rate-by-read-mode", "sequential read", mode))])
    }

    fn pieces_by_mode(&self, mode: &'static str) -> Result<Vec<Figure>> {
        let measured: Result<Vec<_>> = SETS.iter().map(|set| set.by_mode(self, mode)).collect();
        Ok(measured?.concat())
    }

    fn storm_by_mode(&self, mode: &'static str) -> Result<Vec<Figure>> {
        let [_, read] = self.storm_of(STORM.usual)?;
        let name = format!("open storm, 50 ms, 1 MiB p90, {mode}");
        let figure = seconds(name, read, 0.35);
        Ok(vec![MODES.place(figure, "time-by-read-mode", "open storm, 1 MiB p90", mode)])
    }

    fn storm(&self, processes: &'static str) -> Result<Vec<Figure>> {
        let [opened, read] = self.storm_of(processes)?;
        let figure = |what: &str, value, goal| {
            let figure = seconds(format!("{processes} open within 1 s, {what}"), value, goal);
            STORM.place(figure, "open-storm-by-processes", what, processes)
        };
        Ok(vec![figure("open, p99", opened, 0.12), figure("1 MiB, p90", read, 0.35)])
    }

    /// p99 of opens and p90 of reads.
    fn storm_of(&self, processes: &str) -> Result<[f64; 2]> {
        let numbers = self.cold(STORMS, "storm", &[processes])?.numbers;
        numbers.try_into().ok().context("the storm prints two numbers")
    }

    /// Runs a program in a mount of its own.
    fn cold(&self, script: &str, below: &str, arguments: &[&str]) -> Result<Taken> {
        let mount = self.federation.mount_again()?;
        let taken = self.taken(script, &mount.join(below), arguments)?;
        self.federation.unmount(&mount)?;
        Ok(taken)
    }

    fn taken(&self, script: &str, path: &Path, arguments: &[&str]) -> Result<Taken> {
        let before = self.line.bytes()?;
        let numbers = self.run(script, path, arguments)?;
        Ok(Taken { numbers, bytes: (self.line.bytes()? - before) / 1e6 })
    }

    fn run(&self, script: &str, path: &Path, arguments: &[&str]) -> Result<Vec<f64>> {
        let mut command = Command::new(&self.python);
        let output = command.arg("-c").arg(script).arg(path).args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout)?;
        said.split_whitespace().map(|word| word.parse().context("a number")).collect()
    }
}

fn seconds(name: String, value: f64, goal: f64) -> Figure {
    Figure::single(name, Unit::Seconds, value).with_goal(Goal::Value(goal))
}
