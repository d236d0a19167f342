//! Benchmarks: every figure stands beside a reference that was measured in the same run.
//!
//! A machine that does other things, a disk that is slow today: absolute numbers say little. So
//! each workload runs in turns with what it is compared to (a plain file, raw TCP, the local file
//! system), several times, and the ratio is the median of the ratios of the turns.
//!
//! * [`figure`]: takes turns, keeps the samples, prints them.
//! * [`store`]: the directory backend against plain files.
//! * [`wire`]: raw loopback TCP, the ceiling of this machine's network.
//! * [`files`]: reads, writes and small files, in any directory.
//! * [`mount`]: the same in a mounted federation, against the local file system and raw TCP.
//!
//! Nothing here asserts a speed: figures are for people, who know the machine.

pub mod figure;
pub mod files;
pub mod mount;
pub mod store;
pub mod wire;

use std::path::PathBuf;

/// What to measure, and how much of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory on the local file system, for references and for the store.
    pub local: PathBuf,
    /// A directory in a mounted federation.
    pub mount: Option<PathBuf>,
    /// Bytes of the large file.
    pub size: u64,
    /// Small files per turn.
    pub files: usize,
    /// Random reads per turn.
    pub reads: usize,
    pub turns: usize,
}

/// Measures everything that `settings` allow.
pub fn run(settings: &Settings) -> anyhow::Result<Vec<figure::Figure>> {
    let mut figures = vec![wire::measure(settings)?];
    figures.extend(store::measure(settings)?);
    if let Some(mount) = &settings.mount {
        figures.extend(mount::measure(settings, mount)?);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every workload runs, in a directory that plays the mount, and leaves nothing behind.
    #[test]
    fn everything_is_measured_beside_its_references() {
        let (local, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = Settings {
            local: local.path().to_owned(),
            mount: Some(mount.path().to_owned()),
            size: 8 << 20,
            files: 5,
            reads: 10,
            turns: 2,
        };
        let figures = run(&settings).unwrap();
        assert!(figures.len() > 10);
        for figure in &figures {
            assert!(figure.value.median > 0.0, "{}", figure.name);
            assert!(figure.references.iter().all(|reference| reference.ratio > 0.0));
        }
        for directory in [local, mount] {
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
