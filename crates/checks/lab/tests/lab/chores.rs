//! What goes on in the background is seen, with what is in its way.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tieline_lab::{Federation, program, with_federation};

const PATIENCE: Duration = Duration::from_secs(90);

fn mount(lab: &Federation) -> Result<&str> {
    lab.mount().to_str().context("a plain path")
}

/// What `tieline chores` tells of one.
fn chore(lab: &Federation, mdt: u64, name: &str) -> Result<Value> {
    let told = lab.json(&["chores", mount(lab)?])?;
    let all = told["chores"].as_array().with_context(|| format!("{told:#}"))?;
    let found = all.iter().find(|one| one["mdt"] == mdt && one["chore"] == name);
    found.cloned().with_context(|| format!("no {name} of MDT {mdt}: {told:#}"))
}

/// Waits until that of it is so.
fn until(lab: &Federation, (mdt, name): (u64, &str), is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let what = format!("{name} of MDT {mdt}");
    let mut last = None;
    let came = program::until(&what, PATIENCE, || {
        last = chore(lab, mdt, name).ok();
        last.as_ref().is_some_and(&is_so)
    });
    came.with_context(|| format!("{last:#?}"))
}

fn dev(lab: &Federation, words: &[&str]) -> Result<String> {
    let dir = lab.dir();
    lab.tieline(&[words, &["--dir", dir.to_str().context("a plain path")?]].concat())
}

/// Has an MDS keep what is deleted for a second only.
fn keep_briefly(lab: &Federation, site: &str) -> Result<()> {
    let path = lab.dir().join("sites").join(site).join("mds.toml");
    let text = fs::read_to_string(&path)?;
    let kept = |line: &str| match line.starts_with("freed_keep") {
        true => "freed_keep = \"1 s\"\n".to_owned(),
        false => format!("{line}\n"),
    };
    fs::write(&path, text.lines().map(kept).collect::<String>())?;
    lab.kill_and_restart(&format!("mds-{site}"))
}

#[test]
fn chores_are_listed_and_one_that_fails_says_why() -> Result<()> {
    with_federation(|lab| {
        keep_briefly(lab, "uf")?;
        for mdt in [0, 1] {
            until(lab, (mdt, "file-count"), |told| !told["ended"].is_null())?;
            for name in ["sessions", "deleted-files", "strays", "copies", "usage", "check"] {
                let told = chore(lab, mdt, name)?;
                ensure!(told["state"] != "failed" && told["failure"].is_null(), "{told:#}");
            }
        }
        let admin = lab.process("mds-uf")?["admin"].as_str().context("an address")?.to_owned();
        let gauge = |value: u8| -> Result<bool> {
            let all = program::shell(Path::new("/"), &format!("curl -s http://{admin}/metrics"))?;
            let labels = "chore=\"freed-chunks\",mdt=\"MDT0000\"";
            Ok(all.contains(&format!("tieline_chore_failed{{{labels}}} {value}\n")))
        };
        ensure!(gauge(0)?, "it is there from the start");
        // On every OST.
        for number in 0..8 {
            fs::write(lab.mount().join(number.to_string()), vec![7; 100_000])?;
        }
        lab.tieline(&["sync", mount(lab)?])?;
        dev(lab, &["dev", "kill", "oss-uf"])?;
        for number in 0..8 {
            fs::remove_file(lab.mount().join(number.to_string()))?;
        }
        until(lab, (0, "freed-chunks"), |told| {
            told["state"] == "failed" && told["left"].as_u64() > Some(0)
        })?;
        let told = chore(lab, 0, "freed-chunks")?;
        let why = told["failure"].as_str().unwrap_or_default();
        ensure!(why.contains("chunks at OST000") && why.contains("stay for now"), "{told:#}");
        program::until("it is in the metrics", PATIENCE, || gauge(1).is_ok_and(|is| is))?;
        let people = lab.tieline(&["chores", "--mdt", "0", mount(lab)?])?;
        let row = people.lines().find(|line| line.contains("freed-chunks")).context("a row")?;
        ensure!(row.contains("stay for now") && !people.contains("MDT0001"), "{people}");
        dev(lab, &["dev", "start", "oss-uf"])?;
        until(lab, (0, "freed-chunks"), |told| {
            told["state"] == "resting" && told["left"] == 0 && told["done"].as_u64() >= Some(8)
        })?;
        let told = chore(lab, 0, "freed-chunks")?;
        ensure!(told["failure"].is_string(), "the last failure is remembered: {told:#}");
        ensure!(gauge(0)?, "it goes well again");
        Ok(())
    })
}

#[test]
fn a_server_that_is_away_keeps_no_other_from_being_listed() -> Result<()> {
    with_federation(|lab| {
        dev(lab, &["dev", "kill", "mds-fnal"])?;
        let run = lab.try_tieline(&["chores", mount(lab)?])?;
        let (out, error) = (&run.stdout, &run.stderr);
        ensure!(run.status.code() == Some(1), "{run:?}");
        ensure!(out.contains("MDT0000  freed-chunks") && !out.contains("MDT0001"), "{out}");
        ensure!(error.contains("MDT0001 does not list its background work"), "{error}");
        dev(lab, &["dev", "start", "mds-fnal"]).map(drop)
    })
}
