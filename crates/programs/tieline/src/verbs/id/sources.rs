//! Where identities come from: passwd(5) and group(5), grid-mapfiles, and LDIF.
//!
//! Only text is read: a directory is asked with `ldapsearch -LLL`, a database with `getent`.

use crate::report::Usage;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tieline_types::identity::NOBODY;
use tieline_types::{IdentityKind, IdentityName};
use tieline_wire::identity::{IdentityEdit, NewIdentity, NewMapping};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Passwd,
    GridMapfile,
    Ldap,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "passwd" => Ok(Self::Passwd),
            "grid-mapfile" => Ok(Self::GridMapfile),
            "ldap" => Ok(Self::Ldap),
            _ => Err("passwd, grid-mapfile or ldap".to_owned()),
        }
    }
}

/// Users and groups as a source has them, by name.
#[derive(Default)]
struct Found {
    /// Number, and number of the first group.
    users: BTreeMap<String, (Option<u32>, Option<u32>)>,
    groups: BTreeMap<String, u32>,
    /// Group and member.
    members: BTreeSet<(String, String)>,
    /// Principal and user.
    principals: Vec<(String, String)>,
}

pub fn read(
    format: Format,
    file: &Path,
    groups: Option<&Path>,
    least: u32,
) -> anyhow::Result<Vec<IdentityEdit>> {
    let text = |path: &Path| {
        let bytes = std::fs::read(path);
        let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let main = text(file)?;
    let mut found = Found::default();
    match format {
        Format::Passwd => {
            found.read_passwd(&main);
            if let Some(groups) = groups {
                found.read_groups(&text(groups)?);
            }
        }
        Format::GridMapfile => found.read_grid_mapfile(&main),
        Format::Ldap => found.read_ldif(&main),
    }
    found.edits(least)
}

impl Found {
    fn read_passwd(&mut self, text: &str) {
        for line in text.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields.as_slice() else { continue };
            if let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) {
                self.users.insert((*name).to_owned(), (Some(uid), Some(gid)));
            }
        }
    }

    fn read_groups(&mut self, text: &str) {
        for line in text.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members, ..] = fields.as_slice() else { continue };
            let Ok(gid) = gid.parse() else { continue };
            self.groups.insert((*name).to_owned(), gid);
            let members = members.split(',').map(str::trim).filter(|member| !member.is_empty());
            self.members.extend(members.map(|member| ((*name).to_owned(), member.to_owned())));
        }
    }

    /// `"/DC=org/CN=Ann" ann,other`: the first is who it is; `.pool` names an account of a pool.
    fn read_grid_mapfile(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let Some((subject, names)) =
                line.strip_prefix('"').and_then(|rest| rest.split_once('"'))
            else {
                continue;
            };
            let name = names.split(',').next().unwrap_or_default().trim().trim_start_matches('.');
            if !name.is_empty() {
                self.users.entry(name.to_owned()).or_default();
                self.principals.push((subject.to_owned(), name.to_owned()));
            }
        }
    }

    fn read_ldif(&mut self, text: &str) {
        for entry in entries(text) {
            let one = |key: &str| entry.get(key).and_then(|values| values.first());
            let is = |class: &str| {
                let classes = entry.get("objectclass").into_iter().flatten();
                classes.clone().any(|value| value.eq_ignore_ascii_case(class))
            };
            let gid = one("gidnumber").and_then(|text| text.parse().ok());
            if is("posixGroup") {
                let (Some(name), Some(gid)) = (one("cn"), gid) else { continue };
                self.groups.insert(name.clone(), gid);
                let members = entry.get("memberuid").into_iter().flatten();
                self.members.extend(members.map(|member| (name.clone(), member.clone())));
            } else if let (Some(name), Some(uid)) =
                (one("uid"), one("uidnumber").and_then(|text| text.parse().ok()))
            {
                self.users.insert(name.clone(), (Some(uid), gid));
                let keys = ["krbprincipalname", "userprincipalname"];
                let names = keys.iter().filter_map(|key| entry.get(*key)).flatten();
                self.principals.extend(names.map(|principal| (principal.clone(), name.clone())));
            }
        }
    }

    /// Groups first: users name them.
    fn edits(mut self, least: u32) -> anyhow::Result<Vec<IdentityEdit>> {
        let is_meant = |uid: Option<u32>| uid.is_none_or(|uid| uid >= least && uid != NOBODY);
        self.users.retain(|_, (uid, _)| is_meant(*uid));
        self.groups.retain(|_, gid| *gid != 0 && *gid != NOBODY);
        let mut names: BTreeMap<u32, String> =
            self.groups.iter().map(|(name, gid)| (*gid, name.clone())).collect();
        for gid in self.users.values().filter_map(|(_, gid)| *gid) {
            // A first group without a name gets one, for files will have its number.
            if gid != 0 && gid != NOBODY {
                names.entry(gid).or_insert_with(|| format!("g{gid}"));
            }
        }
        let parsed = |name: &str| {
            let parsed = name.parse::<IdentityName>();
            parsed.map_err(|error| Usage(format!("`{name}`: {error}")))
        };
        let mut edits = vec![];
        for (gid, name) in &names {
            let (kind, number) = (IdentityKind::Group, Some(*gid));
            let new = NewIdentity { kind, name: parsed(name)?, number, groups: None };
            edits.push(IdentityEdit::Put(new));
        }
        for (name, (uid, gid)) in &self.users {
            let first = gid.and_then(|gid| names.get(&gid)).cloned();
            let others = self.members.iter().filter(|(_, member)| member == name);
            let mut groups: Vec<IdentityName> = vec![];
            for group in first.into_iter().chain(others.map(|(group, _)| group.clone())) {
                let group = parsed(&group)?;
                let is_there = names.values().any(|known| known == group.as_str());
                if is_there && !groups.contains(&group) {
                    groups.push(group);
                }
            }
            let (kind, groups) = (IdentityKind::User, uid.map(|_| groups));
            let new = NewIdentity { kind, name: parsed(name)?, number: *uid, groups };
            edits.push(IdentityEdit::Put(new));
        }
        for (principal, name) in self.principals {
            if self.users.contains_key(&name) {
                let to = NewMapping::Named(name);
                edits.push(IdentityEdit::Map { principal, to });
            }
        }
        Ok(edits)
    }
}

/// Entries of an LDIF text (RFC 2849): attributes in lower case, and their values.
fn entries(text: &str) -> Vec<BTreeMap<String, Vec<String>>> {
    // A line that begins with a space goes on with the one before.
    let text = text.replace("\r\n", "\n").replace("\n ", "");
    let mut found = vec![];
    for block in text.split("\n\n") {
        let mut entry: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = match value.strip_prefix(':') {
                Some(encoded) => match decoded(encoded.trim()) {
                    Some(value) => value,
                    None => continue,
                },
                None => value.trim().to_owned(),
            };
            entry.entry(key.to_ascii_lowercase()).or_default().push(value);
        }
        if !entry.is_empty() {
            found.push(entry);
        }
    }
    found
}

/// Base64 (RFC 4648).
fn decoded(text: &str) -> Option<String> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, vec![]);
    for digit in text.trim_end_matches('=').bytes() {
        let value = DIGITS.iter().position(|&known| known == digit)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(found: Found) -> Vec<String> {
        let line = |edit: IdentityEdit| match edit {
            IdentityEdit::Put(new) => {
                let groups =
                    new.groups.map(|groups| groups.iter().map(|g| g.to_string()).collect());
                let groups: Option<Vec<String>> = groups;
                let number = new.number.map_or("-".to_owned(), |number| number.to_string());
                let groups = groups.map_or("-".to_owned(), |groups| groups.join(","));
                format!("{} {} {number} {groups}", new.kind.name(), new.name)
            }
            IdentityEdit::Map { principal, to: NewMapping::Named(to) } => {
                format!("{principal} {to}")
            }
            other => format!("{other:?}"),
        };
        found.edits(1000).unwrap().into_iter().map(line).collect()
    }

    #[test]
    fn passwd_and_group_are_taken_over() {
        let mut found = Found::default();
        found.read_passwd(
            "root:x:0:0::/root:/bin/sh\nann:x:1001:100::/:\nbob:x:1002:1002::/:\nbroken\n\
             nobody:x:65534:65534::/:\n",
        );
        found.read_groups("users:x:100:\ncms:x:300:ann, bob,eve\nroot:x:0:ann\n");
        let wanted = [
            "group users 100 -",
            "group cms 300 -",
            "group g1002 1002 -",
            "user ann 1001 users,cms",
            "user bob 1002 g1002,cms",
        ];
        assert_eq!(shown(found), wanted);
    }

    #[test]
    fn grid_mapfiles_name_users() {
        let mut found = Found::default();
        found.read_grid_mapfile(
            "# who\n\"/DC=org/CN=Ann Smith 7\" ann\n\"/DC=org/CN=Job\" .cmspool,x\nodd\n",
        );
        let wanted = [
            "user ann - -",
            "user cmspool - -",
            "/DC=org/CN=Ann Smith 7 ann",
            "/DC=org/CN=Job cmspool",
        ];
        assert_eq!(shown(found), wanted);
    }

    #[test]
    fn ldif_is_read_with_folded_and_encoded_lines() {
        let mut found = Found::default();
        found.read_ldif(
            "dn: uid=ann,dc=x\nobjectClass: posixAccount\nuid: ann\nuidNumber: 10\n 01\n\
             gidNumber: 300\nkrbPrincipalName:: YW5uQEVYVEVOQ0kuT1JH\n\n\
             dn: cn=cms\nobjectClass: posixGroup\ncn: cms\ngidNumber: 300\nmemberUid: ann\n",
        );
        assert_eq!(shown(found), ["group cms 300 -", "user ann 1001 cms", "ann@EXTENCI.ORG ann"]);
    }
}
