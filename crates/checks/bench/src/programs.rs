//! Other people's programs: SQLite, tar, and a compiler.

use crate::files::per_second;
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Small durable transactions; prints their rate.
const TRANSACTIONS: &str = r#"
import sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("pragma synchronous=full")
base.execute("create table t (k integer primary key, v text)")
count = int(sys.argv[2])
start = time.monotonic()
for k in range(count):
    base.execute("insert into t (v) values (?)", ("x" * 100,))
print(count / (time.monotonic() - start))
"#;

/// SQLite in WAL mode with `synchronous=full`: transactions per second.
pub fn transactions(directory: &Path, count: usize) -> Result<f64> {
    let folder = tempfile::tempdir_in(directory)?;
    let python = std::env::var_os("TIELINE_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.args(["-c", TRANSACTIONS]).arg(folder.path().join("base")).arg(count.to_string());
    let output = command.output().context("SQLite is measured with python3")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// A source tree that was made up: packed, and ready to be built by `make`.
pub struct Source {
    folder: tempfile::TempDir,
    files: usize,
}

const DIRECTORIES: usize = 20;
const UNITS: usize = 5;
/// Files that are unpacked and not compiled, per directory.
const OTHERS: usize = 45;

impl Source {
    /// Makes it below `local`.
    pub fn new(local: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(local)?;
        let root = folder.path().join("tree");
        let mut objects = String::new();
        for directory in 0..DIRECTORIES {
            let path = root.join(format!("part{directory:02}"));
            std::fs::create_dir_all(&path)?;
            std::fs::write(path.join("part.h"), format!("#define PART {directory}\n"))?;
            for unit in 0..UNITS {
                let text = format!(
                    "#include <stdio.h>\n#include \"part.h\"\nint f{directory}_{unit}(void) {{ \
                     return printf(\"%d\\n\", PART + {unit}); }}\n"
                );
                std::fs::write(path.join(format!("unit{unit}.c")), text)?;
                let _ = write!(objects, " part{directory:02}/unit{unit}.o");
            }
            for other in 0..OTHERS {
                let text = format!("part {directory}, page {other}\n").repeat(100);
                std::fs::write(path.join(format!("page{other}.txt")), text)?;
            }
        }
        let makefile = format!("all.a:{objects}\n\tar -rcs $@ $^\n");
        std::fs::write(root.join("Makefile"), makefile)?;
        run(folder.path(), "tar", &["-cf", "tree.tar", "tree"])?;
        std::fs::remove_dir_all(&root)?;
        Ok(Self { folder, files: DIRECTORIES * (1 + UNITS + OTHERS) + 1 })
    }

    /// Unpacks and builds it; files and compilations per second.
    pub fn unpack_and_build(&self, directory: &Path) -> Result<(f64, f64)> {
        let place = tempfile::tempdir_in(directory)?;
        let archive: PathBuf = self.folder.path().join("tree.tar");
        let start = Instant::now();
        run(place.path(), "tar", &["-xf", &archive.to_string_lossy()])?;
        let unpacked = per_second(self.files, start);
        let start = Instant::now();
        run(&place.path().join("tree"), "make", &["-s", "-j2"])?;
        Ok((unpacked, per_second(DIRECTORIES * UNITS, start)))
    }
}

/// Runs a program in a folder; it must succeed. What it printed.
pub(crate) fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
