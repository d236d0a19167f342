//! The files of a change log: `MDT0000-0000000000000012.log` and `.dump`, numbered in one sequence.
//!
//! Invariant: what ends in `.new` is not whole, and nobody's.

use crate::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use tieline_types::MdtIndex;

/// The files of one MDT's log, by sequence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Items {
    pub segments: BTreeMap<u64, PathBuf>,
    pub dumps: BTreeMap<u64, PathBuf>,
}

impl Items {
    pub fn list(directory: &Path, mdt: MdtIndex) -> Result<Self, Error> {
        let failed = |source| Error::Io { doing: "list", path: directory.to_owned(), source };
        let mut items = Self::default();
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match parse(name, mdt) {
                Some((sequence, "log")) => drop(items.segments.insert(sequence, path)),
                Some((sequence, "dump")) => drop(items.dumps.insert(sequence, path)),
                _ => {}
            }
        }
        Ok(items)
    }

    /// The next number that none of them has.
    pub fn next(&self) -> u64 {
        let last = self.segments.keys().chain(self.dumps.keys()).max();
        last.map_or(1, |last| last + 1)
    }
}

fn parse(name: &str, mdt: MdtIndex) -> Option<(u64, &str)> {
    let rest = name.strip_prefix(&mdt.label())?.strip_prefix('-')?;
    let (digits, end) = rest.split_once('.')?;
    Some((u64::from_str_radix(digits, 16).ok()?, end))
}

/// Files in a directory whose names say nothing: dumps of an operator's may be among them.
pub fn others(directory: &Path, mdt: MdtIndex) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Io { doing: "list", path: directory.to_owned(), source };
    let mut paths = vec![];
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_whole = path.extension().is_none_or(|end| end != "new" && end != "part");
        if is_whole && parse(name, mdt).is_none() && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Which segment a file is by its name.
pub fn segment_sequence(path: &Path, mdt: MdtIndex) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    parse(name, mdt).filter(|(_, end)| *end == "log").map(|(sequence, _)| sequence)
}

pub fn segment(directory: &Path, mdt: MdtIndex, sequence: u64) -> PathBuf {
    directory.join(format!("{}-{sequence:016x}.log", mdt.label()))
}

pub fn dump(directory: &Path, mdt: MdtIndex, sequence: u64) -> PathBuf {
    directory.join(format!("{}-{sequence:016x}.dump", mdt.label()))
}

/// Makes names in a directory survive the machine.
pub fn sync(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let mdt = MdtIndex(3);
        let path = segment(Path::new("/log"), mdt, 0x12);
        assert_eq!(path, Path::new("/log/MDT0003-0000000000000012.log"));
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(parse(name, mdt), Some((0x12, "log")));
        assert_eq!(parse(name, MdtIndex(4)), None);
        assert_eq!(parse("MDT0003-0012.dump.new", mdt), Some((0x12, "dump.new")));
        assert_eq!(parse("MDT0003-x.log", mdt), None);
    }
}
