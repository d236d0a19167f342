//! A mounted federation against the local file system, and its large transfers against raw TCP.

use crate::Settings;
use crate::figure::{Figure, Unit, Workload, take_turns};
use crate::files::{Playground, SmallFiles};
use crate::wire;
use anyhow::Result;
use std::path::Path;

const LOCAL: &str = "local files";
const TCP: &str = "raw TCP";

pub fn measure(settings: &Settings, mount: &Path) -> Result<Vec<Figure>> {
    let (far, near) = (Playground::new(mount)?, Playground::new(&settings.local)?);
    let mut figures = measure_large(settings, &far, &near)?;
    for (name, length) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10)] {
        figures.push(measure_random(settings, &far, &near, name, length)?);
    }
    figures.extend(measure_small(settings, &far, &near)?);
    Ok(figures)
}

fn measure_large(settings: &Settings, far: &Playground, near: &Playground) -> Result<Vec<Figure>> {
    let (size, turns, unit) = (settings.size, settings.turns, Unit::MegabytesPerSecond);
    let tcp = || -> Workload<'_> { Box::new(|| wire::send(size)) };
    let write = take_turns(
        "mount: sequential write, fsync",
        unit,
        turns,
        Box::new(|| far.write_large(size)),
        vec![(LOCAL, Box::new(|| near.write_large(size))), (TCP, tcp())],
    )?;
    let read = |name, is_cold| {
        take_turns(
            name,
            unit,
            turns,
            Box::new(move || far.read_large(is_cold)),
            vec![(LOCAL, Box::new(move || near.read_large(is_cold))), (TCP, tcp())],
        )
    };
    let cold = read("mount: sequential read, page cache dropped", true)?;
    let warm = read("mount: sequential read, warm", false)?;
    Ok(vec![write, cold, warm])
}

fn measure_random(
    settings: &Settings,
    far: &Playground,
    near: &Playground,
    name: &str,
    length: usize,
) -> Result<Figure> {
    // Other places in each turn, the same ones in both directories.
    let (mut far_seed, mut near_seed) = (0, 0);
    let count = settings.reads;
    take_turns(
        format!("mount: random {name} reads"),
        Unit::PerSecond,
        settings.turns,
        Box::new(move || {
            far_seed += 1;
            far.read_randomly(length, count, far_seed)
        }),
        vec![(
            LOCAL,
            Box::new(move || {
                near_seed += 1;
                near.read_randomly(length, count, near_seed)
            }),
        )],
    )
}

/// One of the four figures that a pass over small files gives.
type Pick = fn(&SmallFiles) -> f64;

fn measure_small(settings: &Settings, far: &Playground, near: &Playground) -> Result<Vec<Figure>> {
    let picks: [(&str, Pick); 4] = [
        ("create 1 KiB", |pass| pass.create),
        ("stat", |pass| pass.stat),
        ("open", |pass| pass.open),
        ("unlink", |pass| pass.unlink),
    ];
    let mut passes = Vec::new();
    for _ in 0..settings.turns.max(1) {
        let pass = (far.small_files(settings.files)?, near.small_files(settings.files)?);
        passes.push(pass);
    }
    let figure = |(name, pick): (&str, Pick)| {
        let (mut far, mut near) = (passes.iter(), passes.iter());
        take_turns(
            format!("mount: {name}"),
            Unit::PerSecond,
            passes.len(),
            Box::new(move || Ok(far.next().map_or(0.0, |pass| pick(&pass.0)))),
            vec![(LOCAL, Box::new(move || Ok(near.next().map_or(0.0, |pass| pick(&pass.1)))))],
        )
    };
    picks.into_iter().map(figure).collect()
}
