//! Whose adopted files are: a file of lines that give users and groups of the source others here.
//!
//! `alice = 1001` is about a user, `:cms = :physics` about a group, `*` and `:*` about all that are
//! not named. Without a line, numbers stay as they are.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use tieline_types::{Gid, Uid};

/// Numbers of the source, and numbers here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    users: Table,
    groups: Table,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Table {
    named: BTreeMap<u32, u32>,
    others: Option<u32>,
}

impl Table {
    fn of(&self, number: u32) -> u32 {
        self.named.get(&number).copied().or(self.others).unwrap_or(number)
    }
}

impl Owners {
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read owners {}", path.display()))?;
        Self::parse(&text, &mut look_up).with_context(|| format!("owners {}", path.display()))
    }

    /// `look_up` tells the number of a name in a database: `passwd` or `group`.
    fn parse(
        text: &str,
        look_up: &mut dyn FnMut(&str, &str) -> Option<u32>,
    ) -> anyhow::Result<Self> {
        let mut owners = Self::default();
        let mut wrongs = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Err(wrong) = owners.take(line, look_up) {
                wrongs.push(format!("line {}: {wrong}", place + 1));
            }
        }
        if !wrongs.is_empty() {
            bail!("{}", wrongs.join("; "));
        }
        Ok(owners)
    }

    fn take(
        &mut self,
        line: &str,
        look_up: &mut dyn FnMut(&str, &str) -> Option<u32>,
    ) -> Result<(), String> {
        let (from, to) = line
            .split_once('=')
            .map(|(from, to)| (from.trim(), to.trim()))
            .filter(|(from, to)| !from.is_empty() && !to.is_empty())
            .ok_or_else(|| format!("`{line}` is not `NAME = NAME`"))?;
        let (table, database, from) = match from.strip_prefix(':') {
            Some(group) => (&mut self.groups, "group", group),
            None => (&mut self.users, "passwd", from),
        };
        let to = to.strip_prefix(':').unwrap_or(to);
        let mut number = |name: &str| {
            let known = name.parse().ok().or_else(|| look_up(database, name));
            known.ok_or_else(|| format!("no `{name}` in {database} here: write its number"))
        };
        let to = number(to)?;
        match from {
            "*" => table.others = Some(to),
            from => drop(table.named.insert(number(from)?, to)),
        }
        Ok(())
    }

    pub fn user(&self, uid: Uid) -> Uid {
        Uid(self.users.of(uid.0))
    }

    pub fn group(&self, gid: Gid) -> Gid {
        Gid(self.groups.of(gid.0))
    }
}

/// Asks whatever this machine knows users from.
fn look_up(database: &str, name: &str) -> Option<u32> {
    let mut getent = Command::new("getent");
    getent.arg(database).arg(name).stdin(Stdio::null()).stderr(Stdio::null());
    let output = getent.output().ok()?;
    String::from_utf8_lossy(&output.stdout).split(':').nth(2)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Owners> {
        Owners::parse(text, &mut |database, name| match (database, name) {
            ("passwd", "alice") => Some(5001),
            ("passwd", "nobody") => Some(65534),
            ("group", "cms") => Some(77),
            _ => None,
        })
    }

    #[test]
    fn users_and_groups_are_mapped_apart() {
        let text = "# owners\nalice = 1001\n :cms=:78 # physics\n9 = alice\n* = nobody\n";
        let owners = parse(text).unwrap();
        assert_eq!([5001, 9, 12].map(|uid| owners.user(Uid(uid)).0), [1001, 5001, 65534]);
        assert_eq!([77, 5001].map(|gid| owners.group(Gid(gid)).0), [78, 5001]);
        assert_eq!(Owners::default().user(Uid(12)).0, 12, "numbers stay");
    }

    #[test]
    fn everything_wrong_is_told_with_its_line() {
        let error = parse("alice\nbob = 3\n\n:cms = :nope\n").unwrap_err().to_string();
        for part in ["line 1: `alice` is not", "line 2: no `bob`", "line 4: no `nope` in group"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
