//! Files that are opened under a lease: nobody waits for a server then, and the MDS knows in time
//! whom a last name must not take them from.

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tieline_lab::nodes::{bytes, number, report};
use tieline_lab::setting::{Line, Pair, Setting};

/// In the metadata, and in a chunk.
const SMALL: usize = 1 << 10;
const LARGE: usize = 30 << 10;

/// How often the second mount has waited for MDSs.
fn trips(pair: &Pair<'_>) -> Result<u64> {
    let mount = pair.there.ancestors().find(|place| place.ends_with("mount-1"));
    number(&report(mount.ok_or_else(|| anyhow!("the second mount"))?)?, &["mds_round_trips"])
}

fn list(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        count += usize::from(entry?.metadata()?.is_file());
    }
    Ok(count)
}

/// Another program reads them whole.
fn read(files: &[PathBuf]) -> Result<()> {
    let read = Command::new("cat").args(files).output()?;
    let wanted: usize = files.iter().enumerate().map(|(number, _)| size(number)).sum();
    ensure!(read.status.success() && read.stdout.len() == wanted, "{:?}", read.stderr);
    Ok(())
}

fn size(number: usize) -> usize {
    if number.is_multiple_of(2) { SMALL } else { LARGE }
}

/// Promise 198: Whoever opens a file to read waits for no metadata server, where the lease of its
/// directory is held, and his rights and where the bytes are came along.
#[test]
fn what_came_along_is_opened_without_a_round_trip() -> Result<()> {
    const FILES: usize = 50;
    Setting::FAR.run(&[], |pair| {
        let name = |number: usize| format!("f{number:02}");
        for number in 0..FILES {
            fs::write(pair.here.join(name(number)), bytes(number as u64, size(number)))?;
        }
        let files: Vec<PathBuf> = (0..FILES).map(|one| pair.there.join(name(one))).collect();
        ensure!(list(&pair.there)? == FILES);
        // What is told of them, and their bytes, come behind the listing and the first opens.
        let before = trips(pair)?;
        read(&files)?;
        let first = trips(pair)? - before;
        std::thread::sleep(Duration::from_secs(1));
        let (before, begun) = (trips(pair)?, Instant::now());
        read(&files)?;
        let (again, took) = (trips(pair)? - before, begun.elapsed());
        eprintln!("{FILES} files: {first} round trips, {again} again, in {took:?}");
        // Leases are renewed meanwhile.
        ensure!(again <= 2, "{again} round trips to MDSs for {FILES} files that are known");
        let is_near = pair.setting.line == Line::Near;
        ensure!(is_near || took < Duration::from_secs(1), "{took:?} for {FILES} known files");
        Ok(())
    })
}

/// Promise 199: What was opened without a server is as usable after its last name was removed
/// elsewhere, also if the lease under which it was opened was given back before.
#[test]
fn what_was_opened_without_a_server_outlives_its_name() -> Result<()> {
    const SIZE: usize = 24 << 20;
    const AT: u64 = 20 << 20;
    Setting::FAR.run(&[], |pair| {
        let sizes = [("small", SMALL), ("large", LARGE), ("long", SIZE)];
        for (number, (name, size)) in sizes.into_iter().enumerate() {
            fs::write(pair.here.join(name), bytes(number as u64, size))?;
        }
        list(&pair.there)?;
        for (name, _) in sizes {
            File::open(pair.there.join(name))?.read_exact_at(&mut [0; 512], 0)?;
        }
        for rest in [Duration::ZERO, Duration::from_secs(3)] {
            std::thread::sleep(Duration::from_secs(1));
            let before = trips(pair)?;
            let opened = sizes.map(|(name, _)| File::open(pair.there.join(name)));
            ensure!(trips(pair)? - before <= 1, "they are opened by asking");
            std::thread::sleep(rest);
            // Takes the lease, and is about none of them.
            fs::write(pair.here.join("beside"), "")?;
            for (name, _) in sizes {
                fs::remove_file(pair.here.join(name))?;
            }
            for (number, ((name, size), file)) in sizes.into_iter().zip(opened).enumerate() {
                let file = file?;
                // Not what the kernel has.
                fadvise(&file, 0, None, Advice::DontNeed)?;
                let from = if size > AT as usize { AT } else { 0 };
                let mut found = vec![0; size - from as usize];
                let read = file.read_exact_at(&mut found, from);
                read.with_context(|| format!("{name}, {rest:?} after it was opened"))?;
                ensure!(found == bytes(number as u64, size)[from as usize..], "{name}");
            }
            fs::remove_file(pair.here.join("beside"))?;
            for (number, (name, size)) in sizes.into_iter().enumerate() {
                fs::write(pair.here.join(name), bytes(number as u64, size))?;
            }
            list(&pair.there)?;
            for (name, _) in sizes {
                File::open(pair.there.join(name))?.read_exact_at(&mut [0; 512], 0)?;
            }
        }
        Ok(())
    })
}
