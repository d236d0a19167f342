//! The programs of all tests, built once and run by ourselves: rooms beside each other, since some
//! wait, and what one says stays together.

use crate::run::Heard;
use crate::steps;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Instant;

/// Tests of the lab wait for lines, leases and clocks most of the time.
const LAB_TESTS_PER_PROCESSOR: usize = 3;
/// A machine's processor is translated there.
const LAB_ALONE: &str = "image::";

/// What is built for the tests.
pub struct Tests {
    /// Programs that are no tests, which some of these run.
    programs: BTreeMap<String, PathBuf>,
    units: Vec<TestProgram>,
    lab: TestProgram,
}

struct TestProgram {
    name: String,
    program: PathBuf,
    /// Its package's folder, where cargo would run it.
    folder: PathBuf,
}

impl Tests {
    /// One build of everything, so that no library is built twice with other features.
    pub fn build() -> Result<Self> {
        let mut command = steps::cargo_command();
        command.args(["test", "--workspace", "--no-run"]);
        command.arg("--message-format=json-render-diagnostics");
        let said = steps::read(&mut command)?;
        let (mut units, mut programs) = (Vec::new(), BTreeMap::new());
        for line in said.lines() {
            let message: Value = serde_json::from_str(line)?;
            let Some(built) = TestProgram::of(&message) else { continue };
            if message["profile"]["test"] == true {
                units.push(built);
            } else {
                programs.insert(built.name, built.program);
            }
        }
        let lab = units.iter().position(|test| test.name == "lab").context("there is no lab")?;
        let lab = units.remove(lab);
        Ok(Self { programs, units, lab })
    }

    pub fn program(&self, name: &str) -> Result<&Path> {
        let program = self.programs.get(name);
        program.map(PathBuf::as_path).with_context(|| format!("no test had {name} built"))
    }

    /// All but the lab. Every one runs, whatever became of others.
    pub fn run_units(&self, heard: &Heard) -> Result<()> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..processors() {
                scope.spawn(|| {
                    while let Some(test) = self.units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let begun = Instant::now();
                        let outcome = test.run(heard);
                        heard.slow.add(&format!("{} (all its tests)", test.name), begun.elapsed());
                        if let Err(error) = outcome {
                            let mut failed = failed.lock().expect("nobody panics with it");
                            failed.push(format!("{}: {error:#}", test.name));
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().expect("nobody panics with it");
        if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
    }

    /// Real processes and real mounts.
    pub fn run_lab(&self, heard: &Heard) -> Result<()> {
        let mut command = self.lab_command(heard)?;
        command.arg(format!("--test-threads={}", processors() * LAB_TESTS_PER_PROCESSOR));
        hear(command.args(["--skip", LAB_ALONE]), heard)
    }

    /// Tests of the lab that need all processors to themselves.
    pub fn run_lab_alone(&self, heard: &Heard) -> Result<()> {
        let mut command = self.lab_command(heard)?;
        command.args(["--test-threads=1", LAB_ALONE]);
        hear(&mut command, heard)
    }

    fn lab_command(&self, heard: &Heard) -> Result<Command> {
        let mut command = self.lab.command();
        command.env("TIELINE_TIMES", heard.slow.file());
        command.env("TIELINE_BIN", self.program("tieline")?);
        Ok(command)
    }
}

impl TestProgram {
    /// The one that a message of cargo tells of, if it does.
    fn of(message: &Value) -> Option<Self> {
        let program = PathBuf::from(message["executable"].as_str()?);
        let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        let target = message["target"]["name"].as_str()?.to_owned();
        Some(Self { name: target, program, folder })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Runs it, and shows what it said when it is over.
    fn run(&self, heard: &Heard) -> Result<()> {
        let output = self.command().stdin(Stdio::null()).output()?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let result = said.lines().find(|line| line.starts_with("test result"));
            eprintln!("{}: {}", self.name, result.unwrap_or("no result"));
            return Ok(());
        }
        heard.failures.note(&said);
        eprintln!("{}:\n{said}", self.name);
        bail!("{}", output.status)
    }
}

/// Runs a program of tests, shows what it says as it comes, and notes why tests failed.
fn hear(command: &mut Command, heard: &Heard) -> Result<()> {
    let mut said = String::new();
    let outcome = steps::hear(command, |line| {
        println!("{line}");
        said += line;
        said.push('\n');
    });
    heard.failures.note(&said);
    outcome
}

fn processors() -> usize {
    available_parallelism().map_or(2, usize::from)
}
