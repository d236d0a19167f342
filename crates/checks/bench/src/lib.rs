//! Benchmarks: every figure stands beside a reference that was measured in the same run.
//!
//! A machine that does other things, a disk that is slow today: absolute numbers say little. So
//! each workload runs in turns with what it is compared to (a plain file, raw TCP, the local file
//! system), several times, and the ratio is the median of the ratios of the turns.
//!
//! * [`figure`]: takes turns, keeps the samples, prints them; [`plot`]: draws their ratios;
//!   [`sweep`]: varies something, and [`chart`]: draws them over it; [`line`]: what lies between.
//! * [`store`]: the directory backend against plain files.
//! * [`metadata`]: the metadata engines against each other and against plain synced writes.
//! * [`wire`]: raw loopback TCP, the ceiling of this machine's network.
//! * [`mount`]: a mounted federation against the local file system and raw TCP, with [`files`]
//!   (large ones), [`small`] ones, two clients that share one ([`sharing`]), other people's
//!   [`programs`], and what processes [`cost`]; [`scale`]: a server with millions of files.
//! * [`flavors`]: what protection costs; [`connections`]: what making one does; [`crowd`]: what is
//!   left while ten thousand say nothing; [`caches`]: what a site's cache saves; [`scram`]: a
//!   build's walk over a distance; [`smallfiles`]: recorded programs over one, on trees that others
//!   used or nobody; [`tree`]: sources unpacked and looked through over one;
//!   [`reads`]: bulk data; [`recall`]: what many clients hold is taken back.
//!
//! Nothing here asserts a speed: figures are for people, who know the machine.

pub mod caches;
pub mod chart;
pub mod connections;
pub mod cost;
pub mod crowd;
pub mod figure;
pub mod files;
pub mod flavors;
pub mod line;
pub mod metadata;
pub mod mount;
pub mod plot;
pub mod programs;
pub mod reads;
pub mod recall;
pub mod scale;
pub mod scram;
pub mod sharing;
pub mod small;
pub mod smallfiles;
pub mod store;
pub mod sweep;
pub mod tree;
pub mod wire;

use anyhow::Result;
use std::path::PathBuf;
use sweep::Gathered;
use tieline_lab::{Federation, Plan};

/// What to measure, and how much of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This program, which is also its own workers.
    pub program: PathBuf,
    /// A directory on the local file system, for references and for the store.
    pub local: PathBuf,
    /// A directory in a mounted federation; else one is started.
    pub mount: Option<PathBuf>,
    /// Names of parts; empty for all.
    pub only: Vec<String>,
    /// Bytes of the large file.
    pub size: u64,
    /// Small files per turn.
    pub files: usize,
    /// Files in the store of a server that has very many.
    pub scale: usize,
    /// Random reads, and writes, per turn.
    pub reads: usize,
    pub turns: usize,
    /// Twentieths of the paper's unit, for a build's walk.
    pub parts: usize,
    /// A packed tree of sources; else one is made.
    pub tar: Option<PathBuf>,
    /// Programs of the corpus that are played; empty for the usual ones.
    pub programs: Vec<String>,
    /// The flavor of what goes over a line; `None`: the default ones.
    pub sec: Option<String>,
    /// Where charts are drawn, for which more is measured.
    pub charts: Option<PathBuf>,
}

impl Settings {
    /// Is a part wanted that is measured unless others are named? Who wants charts names them, too.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.is_named(part) || self.only.is_empty() && self.charts.is_none()
    }

    /// Is one wanted that is measured for charts?
    fn is_drawn(&self, part: &str) -> bool {
        self.is_named(part) || self.only.is_empty() && self.charts.is_some()
    }

    fn is_named(&self, part: &str) -> bool {
        self.only.iter().any(|only| only == part)
    }

    /// A federation in namespaces, with the flavor that is asked for.
    pub(crate) fn over_a_line(&self, words: &[&str]) -> Plan {
        let flavor = match self.sec.as_deref() {
            Some(sec) => vec!["--sec", sec],
            None => vec!["--kerberos"],
        };
        Plan::proven(&[&["--netns"], words, &flavor].concat())
    }
}

/// When a part is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Unless others are named.
    Usual,
    /// The same, but not where a mount is given: it has a federation of its own.
    Own,
    /// If it is named, or if charts are drawn and nothing is named.
    Drawn,
    /// If it is named.
    Named,
}

type Part = fn(&Settings, &mut Gathered<'_>) -> Result<()>;

/// The parts, by the names that `--only` takes; those in a mount near by are [`mount`]'s.
const PARTS: [(&str, When, Part); 14] = [
    ("wire", When::Usual, |settings, to| to.keep(vec![wire::measure(settings)?])),
    ("store", When::Usual, |settings, to| to.keep(store::measure(settings)?)),
    ("metadata", When::Usual, |settings, to| to.keep(metadata::measure(settings)?)),
    ("scale", When::Own, |settings, to| to.keep(scale::measure(settings.scale)?)),
    ("scram", When::Drawn, scram::measure),
    ("smallfiles", When::Named, smallfiles::measure),
    ("tree", When::Drawn, tree::measure),
    ("reads", When::Drawn, reads::measure),
    ("recall", When::Drawn, |settings, to| to.keep(recall::measure(settings)?)),
    ("caches", When::Drawn, caches::measure),
    ("flavors", When::Drawn, flavors::measure),
    ("protection", When::Named, flavors::measure_protection),
    ("connections", When::Named, |settings, to| to.keep(connections::measure(settings)?)),
    ("crowd", When::Named, |settings, to| to.keep(crowd::measure(settings)?)),
];

/// Measures everything that `settings` allow. A part that fails is told, and others go on.
pub fn run(settings: &Settings) -> Gathered<'_> {
    let mut gathered = Gathered::new(settings);
    for (name, when, part) in PARTS {
        let is_wanted = match when {
            When::Usual => settings.wants(name),
            When::Own if settings.mount.is_some() => settings.is_named(name),
            When::Own => settings.wants(name),
            When::Drawn => settings.is_drawn(name),
            When::Named => settings.is_named(name),
        };
        if is_wanted {
            let outcome = part(settings, &mut gathered);
            gathered.note(name, outcome);
        }
    }
    if mount::is_wanted(settings) {
        let outcome = near(settings, &mut gathered);
        gathered.note("a mount near by", outcome);
    }
    gathered
}

/// The parts in a mount near by.
fn near(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    if let Some(mount) = &settings.mount {
        return to.keep(mount::measure(settings, mount, None)?);
    }
    let federation = Federation::start(&Plan::default())?;
    let measured = mount::measure(settings, federation.mount(), Some(&federation));
    federation.down()?;
    to.keep(measured?)
}
