//! A mounted federation against the local file system, and its large transfers against raw TCP.

use crate::figure::{Figure, Goal, Unit, Workload, take_turns};
use crate::files::{Playground, read_file};
use crate::small::{PHASES, Pass};
use crate::{Settings, cost, programs, sharing, small, wire};
use anyhow::{Context, Result};
use std::cell::Cell;
use std::path::Path;
use tieline_lab::Federation;

const LOCAL: &str = "local files";
const TCP: &str = "raw TCP";

/// Where measuring is done: a directory in the mount, and one on the local file system.
pub struct Field<'f> {
    settings: &'f Settings,
    far: Playground,
    near: Playground,
    /// Where more clients come from; without it what needs two is left out.
    federation: Option<&'f Federation>,
}

type Part = fn(&Field<'_>) -> Result<Vec<Figure>>;

/// The parts, by the names that `--only` takes.
const PARTS: [(&str, Part); 7] = [
    ("large", |field| field.large()),
    ("random", |field| field.random()),
    ("small", |field| field.small()),
    ("listing", |field| field.listing()),
    ("sharing", |field| field.sharing()),
    ("programs", |field| field.programs()),
    ("cost", |field| field.cost()),
];

/// Is any of it to be measured?
pub fn is_wanted(settings: &Settings) -> bool {
    PARTS.iter().any(|(name, _)| settings.wants(name))
}

pub fn measure(
    settings: &Settings,
    mount: &Path,
    federation: Option<&Federation>,
) -> Result<Vec<Figure>> {
    let (far, near) = (Playground::new(mount)?, Playground::new(&settings.local)?);
    if let Some(federation) = federation {
        let far = far.path().as_os_str();
        federation.tieline(&["setstripe".as_ref(), "-c".as_ref(), "2".as_ref(), far])?;
    }
    let field = Field { settings, far, near, federation };
    let mut figures = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, _)| settings.wants(name)) {
        eprintln!("measuring: {name}");
        figures.extend(part(&field).with_context(|| format!("measuring {name}"))?);
    }
    Ok(figures)
}

impl Field<'_> {
    fn large(&self) -> Result<Vec<Figure>> {
        let (far, near) = (&self.far, &self.near);
        let (size, turns, unit) =
            (self.settings.size, self.settings.turns, Unit::MegabytesPerSecond);
        let tcp = || -> Workload<'_> { Box::new(|| wire::send(size)) };
        let write = take_turns(
            "sequential write, fsync",
            unit,
            turns,
            Box::new(|| far.write_large(size)),
            vec![(LOCAL, Box::new(|| near.write_large(size))), (TCP, tcp())],
        )?;
        let cold = take_turns(
            "sequential read, cold",
            unit,
            turns,
            Box::new(|| self.read_cold()),
            vec![("warm local files", Box::new(|| near.read_large(false))), (TCP, tcp())],
        )?;
        let warm = |name, readers| {
            let read = move |ground: &Playground| ground.read_large_together(readers);
            // Once before, so that all are warm.
            read(far)?;
            let local: Workload<'_> = Box::new(move || read(near));
            take_turns(name, unit, turns, Box::new(move || read(far)), vec![(LOCAL, local)])
        };
        Ok(vec![
            write.with_goal(Goal::Ratio(0.8)),
            cold.with_goal(Goal::Ratio(0.22)),
            warm("sequential read, warm", 1)?.with_goal(Goal::Ratio(0.65)),
            warm("sequential read, warm, 2 readers", 2)?.with_goal(Goal::Ratio(0.8)),
        ])
    }

    /// Through a client that has not seen the file; without a federation, past the kernel's cache.
    fn read_cold(&self) -> Result<f64> {
        let Some(federation) = self.federation else { return self.far.read_large(true) };
        let mount = federation.mount_again()?;
        let below = self.far.path().strip_prefix(federation.mount())?;
        let rate = read_file(&mount.join(below).join("large"))?;
        federation.unmount(&mount)?;
        Ok(rate)
    }

    fn random(&self) -> Result<Vec<Figure>> {
        if !self.far.large().exists() {
            self.far.write_large(self.settings.size)?;
            self.near.write_large(self.settings.size)?;
        }
        let count = self.settings.reads;
        let mut figures = Vec::new();
        for (name, length) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10)] {
            let read = |ground: &Playground, seed| ground.read_randomly(length, count, seed);
            let write = |ground: &Playground, seed| ground.write_randomly(length, count, seed);
            figures.push(self.seeded(format!("random {name} reads"), &read)?);
            figures.push(self.seeded(format!("random {name} writes, fsync"), &write)?);
        }
        Ok(figures)
    }

    /// Other places in each turn, the same ones in both directories.
    fn seeded(
        &self,
        name: String,
        work: &dyn Fn(&Playground, u64) -> Result<f64>,
    ) -> Result<Figure> {
        let (far, near) = (Cell::new(0), Cell::new(0));
        let run = |ground: &Playground, seed: &Cell<u64>| {
            seed.set(seed.get() + 1);
            work(ground, seed.get())
        };
        take_turns(
            name,
            Unit::PerSecond,
            self.settings.turns,
            Box::new(|| run(&self.far, &far)),
            vec![(LOCAL, Box::new(|| run(&self.near, &near)))],
        )
    }

    fn small(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (processes, create) in [(1, 3000.0), (8, 6000.0)] {
            let passes = self.passes(processes)?;
            for (place, phase) in PHASES.iter().enumerate() {
                let what = match *phase {
                    "stat" => "stat, first after a write",
                    "again" => "stat, cached",
                    "list" => "list and stat (files)",
                    "open" => "open, read, close, warm",
                    other => other,
                };
                let figure = pass_figure(format!("{what}, {processes} at once"), &passes, place)?;
                figures.push(match (*phase, processes) {
                    ("create", _) => figure.with_goal(Goal::Value(create)),
                    ("again", 1) => figure.with_goal(Goal::Ratio(0.6)),
                    ("open", 1) => figure.with_goal(Goal::Ratio(0.035)),
                    _ => figure,
                });
            }
        }
        Ok(figures)
    }

    /// Passes over small files, side by side.
    fn passes(&self, processes: usize) -> Result<Vec<(Pass, Pass)>> {
        let Settings { program, files, .. } = self.settings;
        let pass = |ground: &Playground| small::pass(program, ground.path(), *files, processes);
        let turns = 0..self.settings.turns.max(1);
        turns.map(|_| Ok((pass(&self.far)?, pass(&self.near)?))).collect()
    }

    /// A large directory, by a client that has not seen it.
    fn listing(&self) -> Result<Vec<Figure>> {
        let Some(federation) = self.federation else { return Ok(Vec::new()) };
        let count = 10 * self.settings.files;
        let (far, near) = (self.far.path().join("listed"), self.near.path().join("listed"));
        for directory in [&far, &near] {
            std::fs::create_dir(directory)?;
            small::work("create", directory, 0..count)?;
        }
        let below = far.strip_prefix(federation.mount())?;
        let list = |directory: &Path| -> Result<f64> {
            let start = std::time::Instant::now();
            small::work("list", directory, 0..count)?;
            Ok(start.elapsed().as_secs_f64())
        };
        let cold = || -> Result<f64> {
            let mount = federation.mount_again()?;
            let seconds = list(&mount.join(below))?;
            federation.unmount(&mount)?;
            Ok(seconds)
        };
        let figure = take_turns(
            format!("readdir and stat of {count} files, cold"),
            Unit::Seconds,
            self.settings.turns,
            Box::new(cold),
            vec![("warm local files", Box::new(|| list(&near)))],
        )?;
        for directory in [&far, &near] {
            std::fs::remove_dir_all(directory)?;
        }
        Ok(vec![figure.with_goal(Goal::Value(1.2))])
    }

    fn sharing(&self) -> Result<Vec<Figure>> {
        let Some(federation) = self.federation else { return Ok(Vec::new()) };
        let mount = federation.mount_again()?;
        let other = mount.join(self.far.path().strip_prefix(federation.mount())?);
        let (here, near) = (self.far.path(), self.near.path());
        let count = 200;
        let figure = take_turns(
            "hand-over of one file between two clients",
            Unit::Milliseconds,
            self.settings.turns,
            Box::new(|| sharing::hand_over(here, &other, count)),
            vec![(LOCAL, Box::new(|| sharing::hand_over(near, near, count)))],
        )?;
        federation.unmount(&mount)?;
        Ok(vec![figure.with_goal(Goal::Value(2.0))])
    }

    fn programs(&self) -> Result<Vec<Figure>> {
        let (far, near) = (self.far.path(), self.near.path());
        let (turns, unit) = (self.settings.turns, Unit::PerSecond);
        let count = 500;
        let database = take_turns(
            "SQLite transactions, WAL, synchronous=full",
            unit,
            turns,
            Box::new(|| programs::transactions(far, count)),
            vec![(LOCAL, Box::new(|| programs::transactions(near, count)))],
        )?;
        let source = programs::Source::new(&self.settings.local)?;
        let mut rates = Vec::new();
        for _ in 0..turns.max(1) {
            rates.push((source.unpack_and_build(far)?, source.unpack_and_build(near)?));
        }
        let pick = |name, pick: fn(&(f64, f64)) -> f64| {
            let (mut far, mut near) = (rates.iter(), rates.iter());
            take_turns(
                name,
                unit,
                rates.len(),
                Box::new(move || Ok(far.next().map_or(0.0, |rates| pick(&rates.0)))),
                vec![(LOCAL, Box::new(move || Ok(near.next().map_or(0.0, |r| pick(&r.1)))))],
            )
        };
        Ok(vec![
            database.with_goal(Goal::Ratio(0.3)),
            pick("files of a source tree unpacked", |rates| rates.0)?,
            pick("units of a source tree compiled", |rates| rates.1)?,
        ])
    }

    fn cost(&self) -> Result<Vec<Figure>> {
        let Some(federation) = self.federation else { return Ok(Vec::new()) };
        let mut figures = cost::idle(federation)?;
        let count = 10 * self.settings.files;
        figures.extend(cost::per_file(federation, self.far.path(), count)?);
        Ok(figures)
    }
}

/// One phase of the passes, in turns.
fn pass_figure(name: String, passes: &[(Pass, Pass)], place: usize) -> Result<Figure> {
    let (mut far, mut near) = (passes.iter(), passes.iter());
    take_turns(
        name,
        Unit::PerSecond,
        passes.len(),
        Box::new(move || Ok(far.next().map_or(0.0, |pass| pass.0[place]))),
        vec![(LOCAL, Box::new(move || Ok(near.next().map_or(0.0, |pass| pass.1[place]))))],
    )
}
