//! What protection costs: the same work under each flavor, in turns with flavor null.
//!
//! Two federations stand side by side, one without a realm and one with; the rules of the second
//! change from turn to turn. First both are near, then both are over a long line. Beside them is
//! what GSSAPI's own message functions do on one core, and how fast sealed bytes could be at all
//! ([`limit`]). The chart is the paper's figure 4.

mod limit;

use crate::chart::Point;
use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::files::{Playground, read_file};
use crate::sweep::Gathered;
use crate::{Settings, cost, line, sharing};
use anyhow::{Context, Result, ensure};
use limit::{Cipher, Spent};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tieline_lab::{Federation, Plan, can_emulate_lines};

/// A flavor, and what of null's rate it is to keep: in bytes per second, per second of processor
/// time, and in metadata operations.
struct Aim {
    flavor: &'static str,
    rate: f64,
    per_cpu: f64,
    metadata: Option<f64>,
}

const AIMS: [Aim; 4] = [
    Aim { flavor: "krb5n", rate: 0.97, per_cpu: 0.95, metadata: None },
    Aim { flavor: "krb5a", rate: 0.97, per_cpu: 0.95, metadata: None },
    Aim { flavor: "krb5i", rate: 0.95, per_cpu: 1.0 / 1.10, metadata: None },
    Aim { flavor: "krb5p", rate: 0.88, per_cpu: 1.0 / 1.35, metadata: Some(0.9) },
];
/// Those that seal bulk.
const SEALED: [&str; 2] = ["krb5i", "krb5p"];
/// Of the large file: what was written over is kept on the disk for a while, and much is.
const SHARE: u64 = 2;
/// What sealed bytes are to reach of the rate that is possible.
const OF_LIMIT: f64 = 0.9;
/// Connections are made anew when a rule changes.
const SETTLE: Duration = Duration::from_secs(1);
const HAND_OVERS: u64 = 100;
const SERVERS: [&str; 4] = ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"];

/// The far client's line.
const LINE: [&str; 4] = ["--rtt", "50ms", "--rate", line::RATE];
const WRAP: &str = include_str!("flavors/wrap.py");

pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    let size = settings.size / SHARE;
    let near = |sec| Plan::proven(&["--sec", sec]);
    side_by_side(&near("null"), &near("krb5n"), |plain, secured| {
        to.keep_if_measured("gss_wrap", wrapped(secured.federation).map(|figure| vec![figure]));
        for aim in &AIMS {
            eprintln!("measuring: {}", aim.flavor);
            let measured = measure_near(aim, size, settings.turns, plain, secured);
            to.keep_if_measured(aim.flavor, measured);
        }
    })?;
    if !can_emulate_lines() {
        return Ok(());
    }
    let far =
        |sec: &str| Settings { sec: Some(sec.to_owned()), ..settings.clone() }.over_a_line(&LINE);
    side_by_side(&far("null"), &far("krb5n"), |plain, secured| {
        for flavor in ["null"].into_iter().chain(AIMS.iter().map(|aim| aim.flavor)) {
            eprintln!("measuring: {flavor}, far");
            let measured = measure_far(flavor, size, plain, secured);
            to.keep_if_measured(&format!("{flavor}, far"), measured);
        }
    })
}

/// Of all that only how near sealed bytes come to what is possible.
pub fn measure_protection(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    let size = settings.size / SHARE;
    let near = |sec| Plan::proven(&["--sec", sec]);
    side_by_side(&near("null"), &near(SEALED[0]), |plain, secured| {
        for flavor in SEALED {
            eprintln!("measuring: {flavor}");
            let ruled = secured.rule(flavor);
            let of = || of_limits(flavor, size, settings.turns, (plain, secured));
            to.keep_if_measured(flavor, ruled.and_then(|()| of()));
        }
    })
}

/// Two federations, of which the second has a realm.
fn side_by_side(
    plain: &Plan,
    secured: &Plan,
    work: impl FnOnce(&Ground<'_>, &Ground<'_>),
) -> Result<()> {
    let plain = Federation::start(plain)?;
    let secured = Federation::start(secured)?;
    work(&Ground::new(&plain)?, &Ground::new(&secured)?);
    secured.down()?;
    plain.down()
}

/// Where a flavor stands in the chart; null is the first.
fn point(flavor: &'static str, series: &str) -> Point {
    let place = AIMS.iter().position(|aim| aim.flavor == flavor).map_or(0, |place| place + 1);
    let (chart, series, over) = ("rate-by-flavor", series.to_owned(), "flavor");
    Point { chart, series, over, at: place as f64, label: Some(flavor) }
}

/// Where measuring is done.
struct Ground<'f> {
    federation: &'f Federation,
    directory: Playground,
    /// A second client.
    other: PathBuf,
}

impl<'f> Ground<'f> {
    fn new(federation: &'f Federation) -> Result<Self> {
        let directory = Playground::new(federation.mount())?;
        let path = directory.path().as_os_str();
        federation.tieline(&["setstripe".as_ref(), "-c".as_ref(), "2".as_ref(), path])?;
        Ok(Self { federation, directory, other: federation.mount_again()? })
    }

    fn rule(&self, flavor: &str) -> Result<()> {
        let mount = self.federation.mount().to_str().context("a plain path")?;
        let rule = |pair: &str| format!("extenci.srpc.flavor.default{pair}={flavor}");
        let rules = [rule(""), rule(".cli2mdt"), rule(".cli2ost")];
        let words = ["flavor", "set", "--fs", mount];
        let words: Vec<&str> = words.into_iter().chain(rules.iter().map(String::as_str)).collect();
        self.federation.tieline(&words)?;
        std::thread::sleep(SETTLE);
        Ok(())
    }

    fn below(&self, mount: &Path) -> Result<PathBuf> {
        Ok(mount.join(self.directory.path().strip_prefix(self.federation.mount())?))
    }

    fn write(&self, size: u64) -> Result<f64> {
        self.directory.write_large(size)
    }

    /// By a client that has not seen the file.
    fn read(&self) -> Result<f64> {
        let mount = self.federation.mount_again()?;
        let rate = read_file(&self.below(&mount)?.join("large"))?;
        self.federation.unmount(&mount)?;
        Ok(rate)
    }

    /// All that is at work, and this.
    fn processes(&self) -> Result<Vec<i64>> {
        let mut processes = vec![i64::from(std::process::id())];
        for name in SERVERS.into_iter().chain(["mount-0"]) {
            processes.push(cost::pid(self.federation, name)?);
        }
        Ok(processes)
    }

    fn timed_write(&self, size: u64) -> Result<(&'static str, Spent)> {
        let processes = self.processes()?;
        let plain = self.timed(&processes, || self.write(size).map(drop))?;
        Ok(("sequential write, fsync", plain))
    }

    /// By a client that has not seen the file, whose mount is not counted.
    fn timed_read(&self) -> Result<(&'static str, Spent)> {
        let mount = self.federation.mount_again()?;
        let mut processes = self.processes()?;
        processes.push(cost::pid_of_mount(self.federation, &mount)?);
        let large = self.below(&mount)?.join("large");
        let plain = self.timed(&processes, || read_file(&large).map(drop))?;
        self.federation.unmount(&mount)?;
        Ok(("sequential read, cold", plain))
    }

    fn timed(&self, processes: &[i64], work: impl FnOnce() -> Result<()>) -> Result<Spent> {
        let crossed_before = self.crossed()?;
        let (before, begun) = (cost::seconds_of(processes)?, Instant::now());
        work()?;
        let wall = begun.elapsed().as_secs_f64();
        let processors = cost::seconds_of(processes)? - before;
        Ok(Spent { wall, processors, crossed: (self.crossed()? - crossed_before) as f64 })
    }

    /// Bytes of bulk that servers sent and received so far.
    fn crossed(&self) -> Result<u64> {
        let mut bytes = 0;
        for name in SERVERS {
            let server = self.federation.process(name)?;
            for way in ["tieline_bulk_sent_bytes_total", "tieline_bulk_received_bytes_total"] {
                bytes += self.federation.counted(&server, way, "")?;
            }
        }
        Ok(bytes)
    }

    /// MB written and read back for each second on a processor, of servers, clients and the reader.
    fn per_cpu(&self, size: u64) -> Result<f64> {
        let reader = self.federation.mount_again()?;
        let mut processes = self.processes()?;
        processes.push(cost::pid_of_mount(self.federation, &reader)?);
        let before = cost::seconds_of(&processes)?;
        self.write(size)?;
        read_file(&self.below(&reader)?.join("large"))?;
        let spent = cost::seconds_of(&processes)? - before;
        self.federation.unmount(&reader)?;
        Ok(2.0 * size as f64 / 1e6 / spent.max(0.01))
    }

    /// Files handed from one client to the other and back, per second: each takes a few requests
    /// to the MDS and a recall.
    fn hand_overs(&self) -> Result<f64> {
        let path = self.directory.path();
        Ok(1e3 / sharing::hand_over(path, &self.below(&self.other)?, HAND_OVERS)?)
    }
}

/// A flavor by turns with null: bytes, and what they and metadata cost.
fn measure_near(
    aim: &Aim,
    size: u64,
    turns: usize,
    plain: &Ground<'_>,
    secured: &Ground<'_>,
) -> Result<Vec<Figure>> {
    let Aim { flavor, rate, per_cpu, metadata } = *aim;
    secured.rule(flavor)?;
    let compare =
        |what: &str, null, unit, goal: Option<f64>, work: &dyn Fn(&Ground<'_>) -> Result<f64>| {
            // What is needed once was done before it counts.
            work(plain)?;
            work(secured)?;
            let figure = take_turns(
                format!("{flavor}: {what}"),
                unit,
                turns,
                Box::new(|| work(secured)),
                vec![(null, Box::new(|| work(plain)))],
            )?;
            anyhow::Ok(match goal {
                Some(goal) => figure.with_goal(Goal::Ratio(goal)),
                None => figure,
            })
        };
    let megabytes = Unit::MegabytesPerSecond;
    let (writes, reads) = ("sequential write, fsync", "sequential read, cold");
    let wrote = compare(writes, "null, write, near", megabytes, Some(rate), &|on| on.write(size))?;
    let read = compare(reads, "null, read, near", megabytes, Some(rate), &|on| on.read())?;
    let what = "MB written and read per second of processor";
    let cost = compare(what, "null", megabytes, Some(per_cpu), &|on| on.per_cpu(size))?;
    let what = "hand-overs between clients";
    let handed = compare(what, "null", Unit::PerSecond, metadata, &|on| on.hand_overs())?;
    let (write, read) = (point(flavor, "write, near"), read.at(point(flavor, "read, near")));
    let mut figures = vec![wrote.at(write), read, cost, handed];
    if SEALED.contains(&flavor) {
        figures.extend(of_limits(flavor, size, turns, (plain, secured))?);
    }
    Ok(figures)
}

/// Cold reads and writes of a flavor that seals bulk, by what is possible.
fn of_limits(
    flavor: &str,
    size: u64,
    turns: usize,
    grounds: (&Ground<'_>, &Ground<'_>),
) -> Result<Vec<Figure>> {
    let cipher = Cipher::measure(flavor == "krb5p")?;
    let works: [Timed; 2] = [|on, size| on.timed_write(size), |on, _| on.timed_read()];
    works.map(|work| of_limit(flavor, cipher, (size, turns), work, grounds)).into_iter().collect()
}

/// Some work on a file of that size, and what it took.
type Timed = fn(&Ground<'_>, u64) -> Result<(&'static str, Spent)>;

/// A flavor's rate by turns with the one that is possible, by what null takes in the same turn.
fn of_limit(
    flavor: &str,
    cipher: Cipher,
    (size, turns): (u64, usize),
    work: Timed,
    (plain, secured): (&Ground<'_>, &Ground<'_>),
) -> Result<Figure> {
    let processors = std::thread::available_parallelism()?.get() as f64;
    let rate = |seconds: f64| size as f64 / 1e6 / seconds;
    let (what, _) = work(plain, size)?;
    let figure = take_turns(
        format!("{flavor}: {what}, by the limit"),
        Unit::MegabytesPerSecond,
        turns,
        Box::new(|| {
            let Spent { wall, processors, .. } = work(secured, size)?.1;
            eprintln!("  {flavor}: {what}: took {wall:.3} s, {processors:.2} s of processors");
            Ok(rate(wall))
        }),
        vec![(
            "the limit",
            Box::new(|| {
                let (least, terms) = cipher.least(work(plain, size)?.1, processors);
                eprintln!("  {flavor}: {what}: {terms}");
                Ok(rate(least))
            }),
        )],
    )?;
    Ok(figure.with_goal(Goal::Ratio(OF_LIMIT)))
}

/// The rates alone, once each.
fn measure_far(
    flavor: &'static str,
    size: u64,
    plain: &Ground<'_>,
    secured: &Ground<'_>,
) -> Result<Vec<Figure>> {
    let ground = if flavor == "null" { plain } else { secured };
    if flavor != "null" {
        ground.rule(flavor)?;
    }
    let figure = |what: &str, series: &str, rate| {
        let figure = Figure::single(format!("{flavor}: {what}"), Unit::MegabytesPerSecond, rate);
        figure.at(point(flavor, series))
    };
    Ok(vec![
        figure("sequential write, far", "write, far", ground.write(size)?),
        figure("sequential read, far", "read, far", ground.read()?),
    ])
}

/// What `gss_wrap` and `gss_unwrap` pass on one core, with privacy.
fn wrapped(federation: &Federation) -> Result<Figure> {
    let kdc = federation.dir().join("kdc");
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("python3");
    command.args(["-c", WRAP, "tieline_mds/uf.extenci.org@EXTENCI.ORG"]);
    command.env("KRB5_CONFIG", kdc.join("krb5.conf"));
    command.env("KRB5_CLIENT_KTNAME", kdc.join("client.keytab"));
    command.env("KRB5_KTNAME", kdc.join("mds-uf.keytab"));
    command.env("KRB5CCNAME", format!("FILE:{}", folder.path().join("tickets").display()));
    let output = command.output().context("python3 cannot be run")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rate = String::from_utf8(output.stdout)?.trim().parse().context("a rate")?;
    let figure = Figure::single("gss_wrap and gss_unwrap", Unit::MegabytesPerSecond, rate);
    Ok(figure.at(point("krb5p", "gss_wrap and gss_unwrap")))
}
