//! People with tickets of a federation's own KDC (`dev up --kerberos`).

use crate::federation::{Federation, Plan, with_plan};
use crate::program::{self, DEADLINE, Run};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a test against a federation with a KDC, if the machine has what that takes.
pub fn with_kdc(test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    with_flavor(&["--kerberos"], test)
}

/// The same with other words for the flavor (`--sec`).
pub fn with_flavor(words: &[&str], test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    if !crate::has_kdc() {
        return Ok(());
    }
    with_plan(&Plan::proven(words), test)
}

pub fn config(federation: &Federation) -> PathBuf {
    federation.dir().join("kdc/krb5.conf")
}

/// Where somebody's tickets are, below the federation's folder.
pub fn cache(federation: &Federation, user: &str) -> PathBuf {
    federation.local(&format!("cache-{user}"))
}

/// Gets a user a ticket; passwords are names.
pub fn kinit(federation: &Federation, user: &str) -> Result<()> {
    kinit_into(federation, user, &cache(federation, user))
}

pub fn kinit_into(federation: &Federation, user: &str, cache: &Path) -> Result<()> {
    let password = federation.local("password");
    std::fs::write(&password, format!("{user}\n"))?;
    let mut command = Command::new("kinit");
    let cache = format!("FILE:{}", cache.display());
    command.args(["-c", &cache, user]).env("KRB5_CONFIG", config(federation));
    command.stdin(Stdio::from(std::fs::File::open(&password)?)).stdout(Stdio::null());
    ensure!(program::wait(&mut program::start(&mut command)?, DEADLINE)?.success(), "kinit");
    Ok(())
}

/// `tieline` with somebody's tickets.
pub fn tieline_as(federation: &Federation, user: &str, words: &[&str]) -> Result<Run> {
    let mut command = Command::new(program::tieline()?);
    command.args(words).env("KRB5_CONFIG", config(federation));
    command.env("KRB5CCNAME", format!("FILE:{}", cache(federation, user).display()));
    program::finish(&mut command, DEADLINE)
}

/// Where verbs find the federation without its mount.
pub fn url(federation: &Federation) -> Result<String> {
    let address = federation.process("mds-uf")?["address"].as_str().map(str::to_owned);
    Ok(format!("tieline://{}/extenci", address.context("an MDS has an address")?))
}
