//! What protection costs: the same work under each flavor, in turns with flavor null.
//!
//! Two federations stand side by side, one without a realm and one with; the rules of the second
//! change from turn to turn. Near clients only: everything is on this machine.

use crate::figure::{Figure, Goal, Unit, take_turns};
use crate::files::{Playground, read_file};
use crate::{Settings, cost, sharing};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_lab::{Federation, Plan};

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
/// Connections are made anew when a rule changes.
const SETTLE: Duration = Duration::from_secs(1);
const HAND_OVERS: u64 = 100;
const SERVERS: [&str; 4] = ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"];

pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    let plain = Federation::start(&Plan::default())?;
    let arguments = vec!["--sec".to_owned(), "krb5n".to_owned()];
    let secured = Federation::start(&Plan { arguments, ..Plan::default() })?;
    let measured = measure_in(settings, &Ground::new(&plain)?, &Ground::new(&secured)?);
    secured.down()?;
    plain.down()?;
    measured
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

    /// MB written and read back for each second on a processor, of servers, clients and the reader.
    fn per_cpu(&self, size: u64) -> Result<f64> {
        let reader = self.federation.mount_again()?;
        let mut processes = vec![i64::from(std::process::id())];
        for name in SERVERS.into_iter().chain(["mount-0"]) {
            processes.push(cost::pid(self.federation, name)?);
        }
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

fn measure_in(settings: &Settings, plain: &Ground, secured: &Ground) -> Result<Vec<Figure>> {
    let (size, turns) = (settings.size, settings.turns);
    let mut figures = Vec::new();
    for Aim { flavor, rate, per_cpu, metadata } in AIMS {
        eprintln!("measuring: {flavor}");
        secured.rule(flavor)?;
        let mut compare = |what: &str, unit, goal, work: &dyn Fn(&Ground) -> Result<f64>| {
            // What is needed once was done before it counts.
            work(plain)?;
            work(secured)?;
            let figure = take_turns(
                format!("{flavor}: {what}"),
                unit,
                turns,
                Box::new(|| work(secured)),
                vec![("null", Box::new(|| work(plain)))],
            )?;
            figures.push(match goal {
                Some(goal) => figure.with_goal(Goal::Ratio(goal)),
                None => figure,
            });
            anyhow::Ok(())
        };
        let megabytes = Unit::MegabytesPerSecond;
        compare("sequential write, fsync", megabytes, Some(rate), &|on| on.write(size))?;
        compare("sequential read, cold", megabytes, Some(rate), &|on| on.read())?;
        let what = "MB written and read per second of processor";
        compare(what, megabytes, Some(per_cpu), &|on| on.per_cpu(size))?;
        compare("hand-overs between clients", Unit::PerSecond, metadata, &|on| on.hand_overs())?;
    }
    Ok(figures)
}
