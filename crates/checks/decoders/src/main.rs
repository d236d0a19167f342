//! `tieline-decoders feed SECONDS SEED [TARGET]`: feeds what is kept, then inventions, for so long
//! each, and shows what made a decoder panic. `search SECONDS SEED TARGET` goes on after a finding,
//! and tells each kind once. For libFuzzer (`cargo xtask fuzz`): `seeds TARGET FOLDER` writes what
//! is kept as files, `keep TARGET FOLDER` keeps what lies there.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};
use tieline_decoders::invent::{Dice, LENGTH_MAX};
use tieline_decoders::{TARGETS, Target, corpus};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["feed", seconds, seed] => {
            let each = Duration::from_secs(seconds.parse()?);
            let seed = seed.parse()?;
            TARGETS.iter().copied().try_for_each(|target| feed(target, each, seed))
        }
        [verb @ ("feed" | "search"), seconds, seed, name] => {
            let target = TARGETS.iter().copied().find(|(target, _)| *target == name);
            let target = target.with_context(|| format!("no target is {name}"))?;
            let work = if verb == "feed" { feed } else { search };
            work(target, Duration::from_secs(seconds.parse()?), seed.parse()?)
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
            let (path, hex) = (corpus::path(name), hex(bytes));
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

/// Goes on after a finding, and tells each kind of them once, by the call it begins with: the one
/// of the shortest input.
fn search((name, feed): Target, each: Duration, seed: u64) -> Result<()> {
    let kept = corpus::kept(name)?;
    std::panic::set_hook(Box::new(|_| {}));
    let mut found: BTreeMap<String, (Vec<u8>, String)> = BTreeMap::new();
    let mut try_one = |bytes: &[u8]| {
        let Err(panic) = catch_unwind(|| feed(bytes)) else { return };
        let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        let call = said.split(':').next().unwrap_or_default().to_owned();
        let shortest = found.entry(call).or_insert_with(|| (bytes.to_vec(), said.clone()));
        if bytes.len() < shortest.0.len() {
            *shortest = (bytes.to_vec(), said);
        }
    };
    kept.iter().for_each(|bytes| try_one(bytes));
    let (mut dice, begun, mut count) = (Dice(seed), Instant::now(), kept.len());
    while begun.elapsed() < each {
        try_one(&dice.invent(&kept));
        count += 1;
    }
    found.values().for_each(|(bytes, said)| println!("{}\t{said}", hex(bytes)));
    println!("{name}: {count} inputs, seed {seed}");
    anyhow::ensure!(found.is_empty(), "{} kinds of findings", found.len());
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
