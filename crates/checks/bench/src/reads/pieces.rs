//! What is read in pieces of a file, as analyses do: one file right after the mount, and the next
//! one of the data set over connections that stand.
//!
//! Beside the time stands that of the line for the bytes that are asked for, and what went over the
//! line for each of them.

use super::{Field, MODES, seconds};
use crate::figure::{Figure, Goal, Unit};
use crate::line::LINK;
use crate::sweep::RTT;
use anyhow::Result;

/// What analyses read, as `tree.py` makes it.
pub const TREES: [&str; 3] = ["plain", "packed", "ntuple"];

/// Each prints the seconds that it took.
const SKIP: &str = include_str!("skip.py");
const BRANCHES: &str = include_str!("branches.py");

/// The line's time, in charts.
const LINK_TIME: &str = "the link's time";
/// Bytes on the line for one that is asked for, at most, of a first file.
const TIMES_FIRST: f64 = 1.5;

/// A way to read pieces.
pub struct Set {
    what: &'static str,
    /// Its picture over distance, if it has one.
    pub chart: Option<&'static str>,
    script: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    /// What is asked for of the file.
    share: f64,
    /// Seconds for the first file and the next; `None`: so many times the line's time for both.
    goals: Option<(f64, f64)>,
    /// Bytes on the line for one that is asked for, at most, of the next file.
    times: f64,
}

const LINK_TIMES: f64 = 1.3;

const fn few(what: &'static str, file: &'static str, chart: Option<&'static str>) -> Set {
    let (script, arguments, goals) = (BRANCHES, &["2"], Some((0.9, 0.6)));
    Set { what, chart, script, file, arguments, share: 0.1, goals, times: 1.15 }
}

const fn all(what: &'static str, file: &'static str, chart: Option<&'static str>) -> Set {
    Set { arguments: &["20"], share: 1.0, goals: None, ..few(what, file, chart) }
}

/// All fields are equally long.
pub const SETS: [Set; 7] = [
    Set {
        script: SKIP,
        arguments: &[],
        goals: Some((1.8, 1.4)),
        times: 1.1,
        ..few("1 MiB of every 10", "large", Some("skip-read-by-distance"))
    },
    few("uproot, 2 of 20 branches", "plain.root", Some("uproot-2-branches-by-distance")),
    all("uproot, all branches", "plain.root", Some("uproot-all-branches-by-distance")),
    few("uproot, compressed tree, 2 of 20 branches", "packed.root", None),
    all("uproot, compressed tree, all branches", "packed.root", None),
    few("uproot, RNTuple, 2 of 20 branches", "ntuple.root", None),
    all("uproot, RNTuple, all branches", "ntuple.root", None),
];

impl Set {
    /// The first file and the next.
    pub fn over_distance(&self, field: &Field<'_>, rtt: &'static str) -> Result<Vec<Figure>> {
        let mount = field.federation.mount_again()?;
        let asked = self.asked(field)?;
        let goals = self.goals.unwrap_or((LINK_TIMES * asked / LINK, LINK_TIMES * asked / LINK));
        let mut figures = Vec::new();
        for (series, before, goal, times) in
            [("cold", "", goals.0, TIMES_FIRST), ("next file", "next-", goals.1, self.times)]
        {
            let path = mount.join("data").join(format!("{before}{}", self.file));
            let taken = field.taken(self.script, &path, self.arguments)?;
            let name = format!("{}, {rtt} ms, {series}", self.what);
            let bytes = ratio(format!("{name}, bytes on the line"), taken.bytes / asked, times);
            let beside = (LINK_TIME, asked / LINK);
            let time = Figure::beside(name, Unit::Seconds, taken.numbers[0], beside);
            let time = time.with_goal(Goal::Value(goal));
            figures.extend(match self.chart {
                None => [time, bytes],
                Some(chart) => [
                    RTT.place(time, chart, series, rtt),
                    RTT.place(bytes, "bytes-by-distance", format!("{}, {series}", self.what), rtt),
                ],
            });
        }
        field.federation.unmount(&mount)?;
        Ok(figures)
    }

    /// The first file alone.
    pub fn by_mode(&self, field: &Field<'_>, mode: &'static str) -> Result<Vec<Figure>> {
        let asked = self.asked(field)?;
        let below = format!("data/{}", self.file);
        let taken = field.cold(self.script, &below, self.arguments)?;
        let goal = self.goals.map_or(LINK_TIMES * asked / LINK, |goals| goals.0);
        let name = format!("{}, 50 ms, {mode}", self.what);
        let bytes = format!("{name}, bytes on the line");
        let bytes = ratio(bytes, taken.bytes / asked, TIMES_FIRST);
        let time = seconds(name, taken.numbers[0], goal);
        let time = MODES.place(time, "time-by-read-mode", self.what, mode);
        Ok(vec![time, MODES.place(bytes, "bytes-by-read-mode", self.what, mode)])
    }

    /// Megabytes.
    fn asked(&self, field: &Field<'_>) -> Result<f64> {
        let path = field.federation.mount().join("data").join(self.file);
        Ok(path.metadata()?.len() as f64 / 1e6 * self.share)
    }
}

fn ratio(name: String, value: f64, goal: f64) -> Figure {
    Figure::single(name, Unit::Times, value).with_goal(Goal::Value(goal))
}
