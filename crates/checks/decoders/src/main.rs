//! `tieline-decoders feed SECONDS SEED [TARGET]`: feeds what is kept, then inventions, for so long
//! each, and shows what made a decoder panic. For libFuzzer (`cargo xtask fuzz`): `seeds TARGET
//! FOLDER` writes what is kept as files, `keep TARGET FOLDER` keeps what lies there.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};
use tieline_decoders::invent::{Dice, LENGTH_MAX};
use tieline_decoders::{SEARCHES, TARGETS, Target, corpus};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["feed", seconds, seed] => {
            let each = Duration::from_secs(seconds.parse()?);
            let seed = seed.parse()?;
            TARGETS.iter().copied().try_for_each(|target| feed(target, each, seed))
        }
        ["feed", seconds, seed, name] => {
            let target =
                TARGETS.iter().chain(SEARCHES).copied().find(|(target, _)| *target == name);
            let target = target.with_context(|| format!("no decoder is {name}"))?;
            feed(target, Duration::from_secs(seconds.parse()?), seed.parse()?)
        }
        ["seeds", target, folder] => seeds(target, Path::new(folder)),
        ["keep", target, folder] => keep(target, Path::new(folder)),
        _ => bail!("usage: tieline-decoders feed SECONDS SEED [TARGET]"),
    }
}

fn feed((name, feed): Target, each: Duration, seed: u64) -> Result<()> {
    let kept = corpus::kept(name)?;
    let try_one = |bytes: &[u8]| {
        catch_unwind(|| feed(bytes)).ok().with_context(|| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let path = corpus::path(name);
            format!("`{name}` panicked (seed {seed}). As a line of {}: {hex}", path.display())
        })
    };
    kept.iter().try_for_each(|bytes| try_one(bytes))?;
    let (mut dice, begun, mut count) = (Dice(seed), Instant::now(), 0_u64);
    while begun.elapsed() < each {
        try_one(&dice.invent(&kept))?;
        count += 1;
    }
    println!("{name}: {} kept and {count} invented, seed {seed}", kept.len());
    Ok(())
}

fn seeds(target: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (number, bytes) in corpus::kept(target)?.into_iter().enumerate() {
        fs::write(folder.join(format!("kept-{number}")), bytes)?;
    }
    Ok(())
}

/// What golden files have already is not kept twice.
fn keep(target: &str, folder: &Path) -> Result<()> {
    let mut inputs = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let bytes = fs::read(entry?.path())?;
        if !bytes.is_empty() && bytes.len() <= LENGTH_MAX {
            inputs.insert(bytes);
        }
    }
    for golden in corpus::goldens(target)? {
        inputs.remove(&golden);
    }
    corpus::keep(target, &inputs)?;
    let path = corpus::path(target);
    println!("{target}: of {} inputs those in {} are kept", inputs.len(), path.display());
    Ok(())
}
