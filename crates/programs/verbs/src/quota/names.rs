//! Whose quotas these are: limits are those of identities of the file system.
//!
//! Names are looked up in the table of identities. Where nothing is proven, and where there is no
//! identity yet, numbers are uids and gids, and names those of this machine.

use crate::shell::Shell;
use std::process::Command;
use std::time::Duration;
use tieline_base::report::Usage;
use tieline_identities::IdentityTable;
use tieline_people::judges::{table_of, taken_for};
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{Caller, IdentityKind, MdtIndex};
use tokio::time::timeout;

/// How long one MDT may take to say who is who.
const PATIENCE: Duration = Duration::from_secs(4);

/// See the module.
pub struct Names {
    table: IdentityTable,
    /// Who is not in the table is a user of this machine.
    is_local: bool,
}

impl Names {
    pub async fn of(shell: &Shell) -> Self {
        // Numbers do without: a file system whose root is out of reach is asked by them.
        let asked = timeout(PATIENCE, table_of(shell.volume.servers(), None)).await;
        let told = asked.ok().and_then(Result::ok).flatten();
        let has_none = told.as_ref().is_some_and(IdentityTable::is_empty);
        let is_local = has_none || shell.map.current().map.security.is_none();
        Self { table: told.unwrap_or_default(), is_local }
    }

    /// The number of a user, group or project.
    pub fn number(&self, kind: PayerKind, text: &str) -> Result<u32, Usage> {
        if let Ok(number) = text.parse() {
            return Ok(number);
        }
        let Some((identity, database)) = kinds(kind) else {
            return Err(Usage(format!("-p {text}: projects are numbers")));
        };
        if text == "root" {
            return Ok(0);
        }
        let named = text.parse().ok().and_then(|name| self.table.named(identity, &name));
        let local = || {
            let line = look_up(database, text).filter(|_| self.is_local)?;
            line.split(':').nth(2)?.parse().ok()
        };
        let found = named.map(|known| known.number).or_else(local);
        found.ok_or_else(|| {
            let place =
                if self.is_local { "here" } else { "of the file system (`tieline id list`)" };
            Usage(format!("`{text}` is no {} {place}: give its number", kind.name()))
        })
    }

    pub fn name(&self, payer: &Payer) -> String {
        let Some((identity, database)) = kinds(payer.kind) else { return payer.id.to_string() };
        if let Some(known) = self.table.identity(identity, payer.id) {
            return known.name.to_string();
        }
        let is_root = payer.id == 0;
        let line = look_up(database, &payer.id.to_string()).filter(|_| self.is_local || is_root);
        let name = line.and_then(|line| line.split(':').next().map(str::to_owned));
        name.unwrap_or_else(|| payer.id.to_string())
    }
}

/// Whom the servers take us for: an MDS that answers, the root's first.
pub async fn own(shell: &Shell) -> Caller {
    let mdts: Vec<MdtIndex> = shell.map.current().map.mdts.iter().map(|known| known.mdt).collect();
    for mdt in mdts {
        let asked = taken_for(shell.volume.servers(), mdt, &shell.caller);
        if let Ok(Ok(told)) = timeout(PATIENCE, asked).await {
            return told.caller;
        }
    }
    shell.caller.clone()
}

fn kinds(kind: PayerKind) -> Option<(IdentityKind, &'static str)> {
    match kind {
        PayerKind::User => Some((IdentityKind::User, "passwd")),
        PayerKind::Group => Some((IdentityKind::Group, "group")),
        PayerKind::Project => None,
    }
}

fn look_up(database: &str, key: &str) -> Option<String> {
    let output = Command::new("getent").args([database, "--", key]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Identity;

    fn names(is_local: bool) -> Names {
        let identity = |kind, number, name: &str| Identity {
            kind,
            number,
            name: name.parse().unwrap(),
            groups: vec![],
            roles: vec![],
        };
        let mut table = IdentityTable::default();
        let identities = vec![
            identity(IdentityKind::User, 5001, "daemon"),
            identity(IdentityKind::Group, 6001, "cms"),
        ];
        table.adopt(1, identities, vec![]);
        Names { table, is_local }
    }

    #[test]
    fn names_are_those_of_identities() {
        let payer = |kind, id| Payer { kind, id, pool: None };
        for is_local in [true, false] {
            let names = names(is_local);
            assert_eq!(names.number(PayerKind::User, "daemon").unwrap(), 5001);
            assert_eq!(names.number(PayerKind::Group, "cms").unwrap(), 6001);
            assert_eq!(names.number(PayerKind::User, "root").unwrap(), 0);
            assert_eq!(names.number(PayerKind::User, "17").unwrap(), 17);
            assert_eq!(names.name(&payer(PayerKind::User, 5001)), "daemon");
            assert_eq!(names.name(&payer(PayerKind::Project, 5001)), "5001");
            assert!(names.number(PayerKind::Project, "cms").is_err());
        }
        let group = |is_local| names(is_local).number(PayerKind::Group, "daemon");
        assert!(group(true).is_ok(), "a group of every machine");
        assert!(group(false).is_err_and(|Usage(why)| why.contains("tieline id list")));
        assert_eq!(names(false).name(&payer(PayerKind::User, 1)), "1");
    }
}
