//! Every workload runs, in a directory that plays the mount, and leaves nothing behind.

use std::process::Command;

#[test]
fn everything_is_measured_beside_its_references() {
    let (local, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plot = local.path().join("plot.svg");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tieline-bench"));
    bench.args(["--json", "--size", "8 MiB", "--files", "10", "--reads", "10", "--turns", "2"]);
    bench.arg("--mount").arg(mount.path()).arg("--local").arg(local.path());
    let output = bench.arg("--plot").arg(&plot).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = figures.as_array().unwrap();
    assert!(figures.len() > 20);
    for figure in figures {
        assert!(figure["value"]["median"].as_f64().unwrap() > 0.0, "{figure}");
        for reference in figure["references"].as_array().unwrap() {
            assert!(reference["ratio"].as_f64().unwrap() > 0.0, "{figure}");
        }
    }
    std::fs::remove_file(plot).unwrap();
    for directory in [local, mount] {
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
