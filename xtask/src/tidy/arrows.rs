//! Arrows point down only: programs → doors → core → reach → parts → words.
//!
//! The folder is the rule: `crates/FLOOR/ROOM`. Sideways is allowed in words, parts, reach and
//! programs, where cargo itself refuses cycles; what lies in `checks` may look at everything; xtask
//! is outside. Tests of a core room may plug it into another one, as programs do.

use super::Findings;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// From the ground up. A room depends on lower floors only.
const FLOORS: &[&str] = &["words", "parts", "reach", "core", "doors", "programs", "checks"];
/// Where a room may depend on its neighbours.
const SIDEWAYS: &[&str] = &["words", "parts", "reach", "programs", "checks"];
/// Where its tests may.
const SIDEWAYS_IN_TESTS: &[&str] = &["core"];
/// All that a door may see, beside the words.
const SEEN_BY_DOORS: &[&str] = &[
    "core/client",
    "reach/people",
    "parts/auth",
    "parts/http",
    "parts/keep",
    "parts/world",
    "parts/telemetry",
];
/// What a room does not know, although its floor would allow it.
const UNKNOWN: &[(&str, &str)] = &[
    ("core/meta", "parts/net"),
    ("core/meta", "parts/blob"),
    ("core/tend", "parts/net"),
    ("core/tend", "parts/blob"),
    ("core/data", "parts/net"),
    ("core/data", "parts/kv"),
    ("core/client", "parts/kv"),
    ("core/client", "parts/blob"),
    ("core/client", "reach/people"),
    ("core/meta", "reach/people"),
    ("core/data", "reach/people"),
    ("programs/serve", "programs/mount"),
    ("programs/mount", "programs/serve"),
    ("programs/dev", "programs/verbs"),
];
/// The words have no I/O, no async, no clock.
const NOT_FOR_WORDS: &[&str] = &["tokio", "async-trait", "hyper", "redb", "rustix", "tracing"];

/// One crate: where it lies and what it depends on.
struct Room {
    /// `floor/room`.
    place: String,
    dependencies: Vec<Dependency>,
}

#[derive(PartialEq, Eq, Debug)]
struct Dependency {
    name: String,
    is_for_tests: bool,
}

pub fn look(root: &Path, findings: &mut Findings) -> Result<()> {
    let mut rooms = BTreeMap::new();
    for floor in std::fs::read_dir(root.join("crates"))? {
        let floor = floor?;
        let name = floor.file_name().to_string_lossy().into_owned();
        if !FLOORS.contains(&name.as_str()) {
            findings.failures.push(format!("crates/{name} is not a floor: {FLOORS:?}"));
            continue;
        }
        for room in std::fs::read_dir(floor.path())? {
            let path = room?.path();
            match read(&path, &name) {
                Ok((package, room)) => drop(rooms.insert(package, room)),
                Err(error) => findings.failures.push(format!("{}: {error:#}", path.display())),
            }
        }
    }
    judge(&rooms, findings);
    Ok(())
}

fn read(folder: &Path, floor: &str) -> Result<(String, Room)> {
    let text = std::fs::read_to_string(folder.join("Cargo.toml"))
        .context("every folder of a floor holds a Cargo.toml")?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let package = manifest
        .get("package")
        .and_then(|package| package.get("name"))
        .and_then(|name| name.as_str())
        .context("Cargo.toml without package.name")?;
    let name = folder.file_name().context("a folder has a name")?.to_string_lossy();
    Ok((
        package.to_owned(),
        Room { place: format!("{floor}/{name}"), dependencies: dependencies(&manifest) },
    ))
}

/// Of every kind, those for one platform only included.
fn dependencies(manifest: &toml::Table) -> Vec<Dependency> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            let is_for_tests = key == "dev-dependencies";
            found.extend(table.keys().map(|name| Dependency { name: name.clone(), is_for_tests }));
        } else if key == "target" {
            found
                .extend(table.values().filter_map(|value| value.as_table()).flat_map(dependencies));
        }
    }
    found
}

fn judge(rooms: &BTreeMap<String, Room>, findings: &mut Findings) {
    for room in rooms.values() {
        for Dependency { name, is_for_tests } in &room.dependencies {
            let fault = match rooms.get(name) {
                Some(below) => fault(&room.place, &below.place, *is_for_tests),
                None if room.place.starts_with("words/")
                    && NOT_FOR_WORDS.contains(&name.as_str()) =>
                {
                    Some("words have no I/O, no async, no clock")
                }
                None => None,
            };
            if let Some(fault) = fault {
                findings.failures.push(format!("crates/{} depends on {name}: {fault}", room.place));
            }
        }
    }
}

/// Why `from` may not depend on `to`, if so. Both are `floor/room`.
fn fault(from: &str, to: &str, is_for_tests: bool) -> Option<&'static str> {
    let floor_of = |place: &str| place.split('/').next().unwrap_or_default().to_owned();
    let height = |floor: &str| FLOORS.iter().position(|known| *known == floor);
    let (above, below) = (floor_of(from), floor_of(to));
    let is_sideways = SIDEWAYS.contains(&above.as_str())
        || is_for_tests && SIDEWAYS_IN_TESTS.contains(&above.as_str());
    if UNKNOWN.contains(&(from, to)) {
        Some("ARCHITECTURE.md says it does not know that room")
    } else if height(&above) < height(&below) {
        Some("arrows point down only")
    } else if above == below && !is_sideways {
        Some("rooms of this floor do not see each other")
    } else if above == "doors" && below != "words" && !SEEN_BY_DOORS.contains(&to) {
        Some("a door sees client, people, auth, http, keep, world, telemetry and words only")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(from: &str, to: &str) -> Option<&'static str> {
        super::fault(from, to, false)
    }

    #[test]
    fn arrows_point_down_only() {
        assert_eq!(fault("core/meta", "parts/kv"), None);
        assert_eq!(fault("parts/net", "parts/world"), None);
        assert_eq!(fault("core/client", "reach/servers"), None);
        assert_eq!(fault("reach/bytes", "reach/servers"), None);
        assert!(fault("reach/servers", "core/client").is_some());
        assert_eq!(fault("checks/lab", "programs/tieline"), None);
        assert!(fault("parts/kv", "core/meta").is_some());
        assert!(fault("words/types", "checks/lab").is_some());
    }

    #[test]
    fn reach_lies_between_parts_and_core() {
        assert_eq!(fault("reach/servers", "parts/net"), None);
        assert_eq!(fault("core/client", "reach/servers"), None);
        assert!(fault("reach/servers", "core/client").is_some());
        assert!(fault("parts/net", "reach/servers").is_some());
    }

    #[test]
    fn neighbours_see_each_other_in_reach_and_programs() {
        assert_eq!(fault("reach/bytes", "reach/servers"), None);
        assert_eq!(fault("programs/verbs", "programs/mount"), None);
        assert!(fault("programs/mount", "programs/serve").is_some());
        assert!(fault("doors/fuse", "programs/mount").is_some());
    }

    #[test]
    fn some_neighbours_are_strangers() {
        assert!(fault("core/meta", "core/data").is_some());
        assert!(fault("doors/fuse", "doors/admin").is_some());
        assert!(fault("doors/fuse", "core/meta").is_some());
        assert!(fault("core/client", "parts/blob").is_some());
        assert_eq!(fault("doors/fuse", "core/client"), None);
        assert_eq!(fault("doors/fuse", "reach/people"), None);
        assert!(fault("doors/fuse", "reach/servers").is_some());
        assert!(fault("core/client", "reach/people").is_some());
        assert_eq!(fault("core/client", "parts/net"), None);
    }

    #[test]
    fn tests_of_core_rooms_may_plug_them_together() {
        assert!(fault("core/tend", "core/meta").is_some());
        assert_eq!(super::fault("core/tend", "core/meta", true), None);
        assert!(super::fault("core/meta", "programs/tieline", true).is_some());
        assert!(super::fault("doors/fuse", "doors/admin", true).is_some());
        assert!(super::fault("core/tend", "parts/blob", true).is_some());
    }

    #[test]
    fn dependencies_of_every_kind_count() {
        let manifest = "[dependencies]\na = '1'\n[dev-dependencies]\nb = '1'\n\
            [target.'cfg(unix)'.dependencies]\nc = '1'\n[features]\nd = []\n";
        let found = dependencies(&toml::from_str(manifest).unwrap());
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.is_for_tests)).collect();
        assert_eq!(found, [("a", false), ("b", true), ("c", false)]);
    }
}
