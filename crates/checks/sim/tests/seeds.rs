//! Plays seeds under crashes and silences: every run twice, every history checked.

use std::process::Command;

#[test]
fn worlds_replay_and_their_histories_hold() {
    let mut sim = Command::new(env!("CARGO_BIN_EXE_tieline-sim"));
    let output = sim.args(["--seeds", "12"]).env("RUST_LOG", "off").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 12, "{said}");
}
