//! What is kept of each decoder is taken, as each run of the tests begins with it.

use std::process::Command;

#[test]
fn every_decoder_takes_what_is_kept() {
    let mut feed = Command::new(env!("CARGO_BIN_EXE_tieline-decoders"));
    let output = feed.args(["feed", "0", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(lines, tieline_decoders::TARGETS.len(), "{said}");
}
