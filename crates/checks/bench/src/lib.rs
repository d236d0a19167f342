//! Benchmarks: every figure stands beside a reference that was measured in the same run.
//!
//! A machine that does other things, a disk that is slow today: absolute numbers say little. So
//! each workload runs in turns with what it is compared to (a plain file, raw TCP, the local file
//! system), several times, and the ratio is the median of the ratios of the turns.
//!
//! * [`figure`]: takes turns, keeps the samples, prints them; [`plot`]: draws their ratios;
//!   [`chart`]: draws them over what was varied.
//! * [`store`]: the directory backend against plain files.
//! * [`metadata`]: the metadata engines against each other and against plain synced writes.
//! * [`wire`]: raw loopback TCP, the ceiling of this machine's network.
//! * [`mount`]: a mounted federation against the local file system and raw TCP, with [`files`]
//!   (large ones), [`small`] ones, two clients that share one ([`sharing`]), other people's
//!   [`programs`], and what processes [`cost`]; [`scale`]: a server with millions of files.
//! * [`flavors`]: what protection costs; [`connections`]: what making one does; [`crowd`]: what is
//!   left while ten thousand say nothing; [`caches`]: what a site's cache saves; [`scram`]: a
//!   build's walk over a distance; [`reads`]: bulk data over one; [`recall`]: what many clients
//!   hold is taken back.
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
pub mod store;
pub mod wire;

use std::path::PathBuf;
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
    /// Files in a store, for the part that must be asked for.
    pub scale: usize,
    /// Random reads, and writes, per turn.
    pub reads: usize,
    pub turns: usize,
    /// Twentieths of the paper's unit, for a build's walk.
    pub parts: usize,
    /// The flavor of what goes over a line; `None`: the default ones.
    pub sec: Option<String>,
}

impl Settings {
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
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

/// Measures everything that `settings` allow.
pub fn run(settings: &Settings) -> anyhow::Result<Vec<figure::Figure>> {
    let mut figures = Vec::new();
    if settings.wants("wire") {
        figures.push(wire::measure(settings)?);
    }
    if settings.wants("store") {
        figures.extend(store::measure(settings)?);
    }
    if settings.wants("metadata") {
        figures.extend(metadata::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "scale") {
        figures.extend(scale::measure(settings.scale)?);
    }
    if settings.only.iter().any(|part| part == "reads") {
        figures.extend(reads::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "flavors") {
        figures.extend(flavors::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "connections") {
        figures.extend(connections::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "crowd") {
        figures.extend(crowd::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "scram") {
        figures.extend(scram::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "recall") {
        figures.extend(recall::measure(settings)?);
    }
    if settings.only.iter().any(|part| part == "caches") {
        figures.extend(caches::measure(settings)?);
    }
    if !mount::is_wanted(settings) {
        return Ok(figures);
    }
    match &settings.mount {
        Some(mount) => figures.extend(mount::measure(settings, mount, None)?),
        None => {
            let federation = Federation::start(&Plan::default())?;
            let measured = mount::measure(settings, federation.mount(), Some(&federation));
            federation.down()?;
            figures.extend(measured?);
        }
    }
    Ok(figures)
}
