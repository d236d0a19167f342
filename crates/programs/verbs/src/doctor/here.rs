//! What there is on this machine without being told: settings in [`SETTINGS`], and mounts.
//!
//! Each is looked at by a process of its own, since each may have its own krb5.conf and network
//! namespace.

use super::{Finding, Findings, State, servers};
use anyhow::{Context, anyhow};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_base::registry::{self, CachesAt};
use tieline_base::source::Source;

/// Where settings of servers are, unless somebody put them elsewhere.
const SETTINGS: &str = "/etc/tieline";

pub fn look(findings: &mut Findings) {
    let settings = settings_in(Path::new(SETTINGS));
    let mounts = registry::all();
    if settings.is_empty() && mounts.is_empty() {
        let what =
            format!("no settings in {SETTINGS}, no mounts; --settings and --mount name others");
        findings.well("servers and mounts", what);
    }
    for path in settings {
        look_at("--settings", &path, findings);
    }
    for entry in mounts {
        look_at("--at", &entry.mountpoint, findings);
    }
}

/// Files with a server's settings: others, such as the text of a map, have no `state`.
pub fn settings_in(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files.map(|file| file.path());
    let is_settings = |path: &PathBuf| {
        path.extension() == Some("toml".as_ref())
            && match std::fs::read_to_string(path) {
                Ok(text) => text.parse::<toml::Table>().map_or(true, |t| t.contains_key("state")),
                // That it cannot be read is worth saying.
                Err(_) => true,
            }
    };
    let mut settings: Vec<PathBuf> = files.filter(is_settings).collect();
    settings.sort();
    settings
}

/// Has another process look, and takes what it found.
fn look_at(flag: &str, path: &Path, findings: &mut Findings) {
    let label = path.display().to_string();
    match ask(flag, path) {
        Ok(found) => {
            for Finding { check, state, what, fix } in found {
                findings.add(&format!("{label} {check}"), state, what, fix);
            }
        }
        Err(error) => {
            let fix = format!("`tieline doctor {flag} {label}` says more");
            findings.broken(&label, tieline_base::report::chain(error.as_ref()), fix);
        }
    }
}

fn ask(flag: &str, path: &Path) -> anyhow::Result<Vec<Finding>> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["doctor", "--part", "--json", flag]).arg(path).stdin(Stdio::null());
    let output = command.output().context("cannot look")?;
    let said: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim()))?;
    Ok(said.as_array().into_iter().flatten().filter_map(finding).collect())
}

fn finding(said: &Value) -> Option<Finding> {
    let text = |key: &str| said[key].as_str().map(str::to_owned);
    let states = [State::Well, State::Doubtful, State::Broken];
    let state = states.into_iter().find(|state| said["state"] == state.word())?;
    Some(Finding { check: text("check")?, state, what: text("what")?, fix: text("fix") })
}

/// Enters the network namespace of a mount's daemon, and reads its krb5.conf. Before this process
/// has threads.
pub fn prepare(mountpoint: &Path) -> anyhow::Result<()> {
    let entry = entry(mountpoint)?;
    entry.proving.prepare_verb();
    entry.netns.as_deref().map_or(Ok(()), tieline_machine::namespace::enter)
}

/// The servers of a mount, as its daemon reaches them.
pub async fn look_at_mount(mountpoint: &Path, findings: &mut Findings) -> anyhow::Result<()> {
    let entry = entry(mountpoint)?;
    let pid = entry.daemon.as_ref().map_or(entry.process.pid, |daemon| daemon.pid);
    findings.well("mount", format!("of {}, served by pid {pid}", entry.source));
    look_at_cache(&entry.caches, findings);
    let source: Source = entry.source.parse()?;
    // What is written down counts at the next mount.
    let written = written_key(&entry, &source).unwrap_or_else(|| entry.mapkey.clone());
    let key = tieline_base::keys::key_open(&written).ok();
    servers::look_with(&source, key, &entry.proving, findings).await;
    Ok(())
}

/// The federation's key as it was given to a mount.
fn written_key(entry: &registry::Entry, source: &Source) -> Option<String> {
    let words = entry.options.iter().flatten().flat_map(|list| list.split(','));
    let said = words.filter_map(|word| word.strip_prefix("mapkey=")).next_back();
    said.map(str::to_owned).or_else(|| tieline_base::location::site_key(&source.fs))
}

fn look_at_cache(at: &CachesAt, findings: &mut Findings) {
    let Some(site) = &at.site else { return };
    let what = site.display().to_string();
    match tieline_cache::exposure(site).filter(|_| !at.is_shared) {
        Some(why) => {
            let fix = format!("`chmod 700 {what}`, or mount with -o at-rest=trusted");
            findings.doubtful("site cache", why, fix);
        }
        None => findings.well("site cache", what),
    }
}

fn entry(mountpoint: &Path) -> anyhow::Result<registry::Entry> {
    registry::at(mountpoint)
        .with_context(|| format!("nothing is mounted at {}", mountpoint.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("uf.toml", "fs = \"extenci\"\nstate = \"/srv\"\n");
        write("map.toml", "fs = \"extenci\"\nversion = 1\n");
        write("broken.toml", "fs =");
        write("extenci.key", "state");
        let found = settings_in(folder.path());
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["broken.toml", "uf.toml"]);
        assert!(settings_in(Path::new("/nowhere/at/all")).is_empty());
    }

    #[test]
    fn what_a_part_found_is_taken_over() {
        let mut findings = Findings::default();
        findings.doubtful("clock", "off", "set it");
        let again: Vec<Finding> =
            findings.json().as_array().unwrap().iter().filter_map(finding).collect();
        assert_eq!(again, findings.0);
    }
}
