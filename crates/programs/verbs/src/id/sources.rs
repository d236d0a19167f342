//! Where identities come from: passwd(5) and group(5), grid-mapfiles, and LDIF.
//!
//! Only text is read: a directory is asked with `ldapsearch -LLL`, a database with `getent`.

use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use tieline_identities::IdentityTable;
use tieline_types::identity::NOBODY;
use tieline_types::{IdentityKind, IdentityName};
use tieline_wire::identity::{IdentityEdit, NewIdentity, NewMapping};

/// Of a line that is not understood.
const LINE_SHOWN: usize = 60;
/// In the place of a file.
const STANDARD_INPUT: &str = "-";

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

/// What a source changes in a table.
#[derive(Default)]
pub struct Import {
    pub edits: Vec<IdentityEdit>,
    /// What is left out and why, and what is not taken over as it stands.
    pub notes: Vec<String>,
}

/// By name: number, and number of the first group.
type Users = BTreeMap<String, (Option<u32>, Option<u32>)>;

/// Users and groups as a source has them, by name.
#[derive(Default)]
struct Found {
    users: Users,
    groups: BTreeMap<String, u32>,
    /// Group and member.
    members: BTreeSet<(String, String)>,
    /// Principal and user.
    principals: Vec<(String, String)>,
    notes: Vec<String>,
}

pub fn read(
    format: Format,
    file: &Path,
    groups: Option<&Path>,
    least: u32,
    table: IdentityTable,
) -> anyhow::Result<Import> {
    let text = |path: &Path| {
        let bytes = match path.as_os_str() == STANDARD_INPUT {
            true => {
                let mut bytes = Vec::new();
                std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
            }
            false => std::fs::read(path),
        };
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
    Ok(found.import(least, table))
}

/// Lines that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

impl Found {
    fn not_understood(&mut self, number: usize, line: &str, wanted: &str) {
        // A file that was taken for another may have anything in it.
        let line: String = line.chars().take(LINE_SHOWN).flat_map(char::escape_debug).collect();
        self.notes.push(format!("left out: line {number}, `{line}`: not of the form {wanted}"));
    }

    /// The first of a name is who is meant, as getpwnam(3) has it.
    fn user(&mut self, name: &str, numbers: (Option<u32>, Option<u32>)) {
        let first = *self.users.entry(name.to_owned()).or_insert(numbers);
        if first != numbers {
            self.notes.push(format!("left out: another user `{name}`: the first one is meant"));
        }
    }

    fn group(&mut self, name: &str, gid: u32) {
        let first = *self.groups.entry(name.to_owned()).or_insert(gid);
        if first != gid {
            self.notes.push(format!("left out: another group `{name}`: the first one is meant"));
        }
    }

    fn read_passwd(&mut self, text: &str) {
        for (number, line) in lines(text) {
            let fields: Vec<&str> = line.split(':').collect();
            let numbers = match fields.as_slice() {
                [name, _, uid, gid, ..] => Some((*name, uid.parse().ok(), gid.parse().ok())),
                _ => None,
            };
            match numbers {
                Some((name, Some(uid), Some(gid))) => {
                    self.user(name, (Some(uid), Some(gid)));
                }
                _ => self.not_understood(number, line, "NAME:x:UID:GID:…"),
            }
        }
    }

    fn read_groups(&mut self, text: &str) {
        for (number, line) in lines(text) {
            let fields: Vec<&str> = line.split(':').collect();
            let parts = match fields.as_slice() {
                [name, _, gid, members, ..] => gid.parse().ok().map(|gid| (name, gid, members)),
                _ => None,
            };
            let Some((name, gid, members)) = parts else {
                self.not_understood(number, line, "NAME:x:GID:MEMBERS");
                continue;
            };
            self.group(name, gid);
            let members = members.split(',').map(str::trim).filter(|member| !member.is_empty());
            self.members.extend(members.map(|member| ((*name).to_owned(), member.to_owned())));
        }
    }

    /// `"/DC=org/CN=Ann" ann,other`: the first is who it is; `.pool` names an account of a pool.
    fn read_grid_mapfile(&mut self, text: &str) {
        for (number, line) in lines(text) {
            let parts = match line.strip_prefix('"') {
                Some(rest) => rest.split_once('"'),
                // Without blanks no quotes are needed.
                None => line.split_once(char::is_whitespace).filter(|_| line.starts_with('/')),
            };
            let name = parts.and_then(|(_, names)| names.split(',').next()).map(str::trim);
            let (Some((subject, _)), Some(name)) = (parts, name.filter(|name| !name.is_empty()))
            else {
                self.not_understood(number, line, "\"SUBJECT\" USER");
                continue;
            };
            let user = match name.strip_prefix('.') {
                Some(pool) => {
                    self.notes.push(format!(
                        "line {number}, `{name}`: the accounts of this pool: all of them are the \
                         one user `{pool}`"
                    ));
                    pool
                }
                None => name,
            };
            self.users.entry(user.to_owned()).or_default();
            self.principals.push((subject.to_owned(), user.to_owned()));
        }
    }

    /// Users and groups of RFC 2307 and 2307bis, and of Active Directory.
    fn read_ldif(&mut self, text: &str) {
        let mut named = Named::default();
        for entry in entries(text) {
            let one = |key: &str| entry.get(key).and_then(|values| values.first());
            let all = |key: &str| entry.get(key).into_iter().flatten();
            let is = |class: &str| all("objectclass").any(|has| has.eq_ignore_ascii_case(class));
            let at = one("dn").map(|dn| normal(dn)).unwrap_or_default();
            let gid = one("gidnumber").and_then(|text| text.parse().ok());
            let user = one("uid").or(one("samaccountname"));
            if is("posixGroup") || is("group") {
                let (Some(name), Some(gid)) = (one("cn"), gid) else { continue };
                self.group(name, gid);
                self.members.extend(all("memberuid").map(|user| (name.clone(), user.clone())));
                let members = all("member").chain(all("uniquemember")).cloned().collect();
                named.groups.insert(at, (name.clone(), members));
            } else if let (Some(name), Some(uid)) =
                (user, one("uidnumber").and_then(|text| text.parse().ok()))
            {
                self.user(name, (Some(uid), gid));
                named.users.insert(at, name.clone());
                let principals = all("krbprincipalname").cloned();
                let principals = principals.chain(all("userprincipalname").map(|name| upper(name)));
                self.principals.extend(principals.map(|principal| (principal, name.clone())));
            }
        }
        for (group, user) in named.members(&mut self.notes) {
            self.members.insert((group, user));
        }
    }

    /// Takes users away that a table does not take, whatever their groups.
    fn take_refused(&mut self, table: &IdentityTable) -> Users {
        let (mut tried, mut trial) = (Import::default(), table.clone());
        let (taken, refused) = std::mem::take(&mut self.users).into_iter().partition(
            |(name, (uid, _)): &(String, (Option<u32>, Option<u32>))| {
                let before = tried.edits.len();
                tried.put(&mut trial, IdentityKind::User, name, *uid, None);
                tried.edits.len() > before
            },
        );
        self.users = taken;
        self.notes.append(&mut tried.notes);
        refused
    }

    /// What a table does not take is left out. Groups come first: users name them. System accounts
    /// stay away, and groups of systems that none of the users is in.
    fn import(mut self, least: u32, mut table: IdentityTable) -> Import {
        let is_number = |number: u32| number != 0 && number != NOBODY;
        let is_meant = |uid: Option<u32>| uid.is_none_or(|uid| uid >= least && is_number(uid));
        let (meant, mut others) =
            std::mem::take(&mut self.users).into_iter().partition(|(_, (uid, _))| is_meant(*uid));
        self.users = meant;
        others.extend(self.take_refused(&table));
        let firsts = self.users.values().filter_map(|(_, gid)| *gid);
        let firsts: BTreeSet<u32> = firsts.filter(|gid| is_number(*gid)).collect();
        let used = self.members.iter().filter(|(_, member)| self.users.contains_key(member));
        let used: BTreeSet<&String> = used.map(|(group, _)| group).collect();
        // Those of nobody but users that are left out are not wanted either.
        let theirs: BTreeSet<u32> = others.values().filter_map(|(_, gid)| *gid).collect();
        let is_of = |name: &String, users: &Users| {
            let mut members = self.members.iter().filter(|(group, _)| group == name);
            members.any(|(_, member)| users.contains_key(member))
        };
        self.groups.retain(|name, gid| {
            let is_used = firsts.contains(gid) || used.contains(name);
            let is_theirs = theirs.contains(gid) || is_of(name, &others);
            is_number(*gid) && (is_used || *gid >= least && !is_theirs)
        });
        let mut names: BTreeMap<u32, String> = BTreeMap::new();
        for (name, gid) in &self.groups {
            let first = names.entry(*gid).or_insert_with(|| name.clone());
            if first != name {
                let why = format!("number {gid} is that of group `{first}`");
                self.notes.push(format!("left out: group `{name}`: {why}"));
            }
        }
        for gid in firsts {
            // A first group without a name has the one that its number has, or gets one: files will
            // have its number.
            let known = || table.identity(IdentityKind::Group, gid).map(|one| one.name.to_string());
            names.entry(gid).or_insert_with(|| known().unwrap_or_else(|| format!("g{gid}")));
        }
        let mut import = Import { notes: self.notes, ..Import::default() };
        for (gid, name) in &names {
            import.put(&mut table, IdentityKind::Group, name, Some(*gid), None);
        }
        for (name, (uid, gid)) in &self.users {
            let first = gid.and_then(|gid| names.get(&gid));
            let others = self.members.iter().filter(|(_, member)| member == name);
            let mut groups: Vec<IdentityName> = vec![];
            for group in first.into_iter().chain(others.map(|(group, _)| group)) {
                let group = group.parse::<IdentityName>().ok();
                let known = group.filter(|group| table.named(IdentityKind::Group, group).is_some());
                groups.extend(known.filter(|group| !groups.contains(group)));
            }
            let before = uid.map(|_| groups_of(&table, name)).unwrap_or_default();
            let kept = before.into_iter().filter(|group| !groups.contains(group));
            groups.extend(kept.collect::<Vec<_>>());
            let groups = uid.map(|_| groups);
            import.put(&mut table, IdentityKind::User, name, *uid, groups);
        }
        for (principal, user) in self.principals {
            let is_there =
                user.parse().is_ok_and(|user| table.named(IdentityKind::User, &user).is_some());
            if is_there {
                let what = format!("principal {principal}");
                let to = NewMapping::Named(user);
                import.add(&mut table, what, IdentityEdit::Map { principal, to });
            }
        }
        import
    }
}

/// The groups that a user of the table has, by name.
fn groups_of(table: &IdentityTable, user: &str) -> Vec<IdentityName> {
    let user = user.parse().ok().and_then(|name| table.named(IdentityKind::User, &name));
    let groups = user.into_iter().flat_map(|user| &user.groups);
    groups.filter_map(|&gid| Some(table.identity(IdentityKind::Group, gid)?.name.clone())).collect()
}

impl Import {
    fn put(
        &mut self,
        table: &mut IdentityTable,
        kind: IdentityKind,
        name: &str,
        number: Option<u32>,
        groups: Option<Vec<IdentityName>>,
    ) {
        let what = format!("{} `{name}`", kind.name());
        match name.parse() {
            Ok(name) => {
                let new = NewIdentity { kind, name, number, groups };
                self.add(table, what, IdentityEdit::Put(new));
            }
            Err(error) => self.notes.push(format!("left out: {what}: {error}")),
        }
    }

    fn add(&mut self, table: &mut IdentityTable, what: String, edit: IdentityEdit) {
        match table.apply(&edit) {
            Ok(()) => self.edits.push(edit),
            Err(error) => self.notes.push(format!("left out: {what}: {error}")),
        }
    }
}

/// Entries that groups name their members by: those of RFC 2307bis, FreeIPA and Active Directory.
#[derive(Default)]
struct Named {
    users: BTreeMap<String, String>,
    /// With their members, as they are written.
    groups: BTreeMap<String, (String, Vec<String>)>,
}

impl Named {
    /// Groups and their users, those of groups within them too. `notes`: members that are nobody.
    fn members(&self, notes: &mut Vec<String>) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        for (name, direct) in self.groups.values() {
            let (mut seen, mut left) = (BTreeSet::new(), direct.iter().collect::<Vec<_>>());
            while let Some(member) = left.pop() {
                let at = normal(member);
                if let Some((_, within)) = self.groups.get(&at) {
                    if seen.insert(at) {
                        left.extend(within);
                    }
                } else if let Some(user) = self.users.get(&at) {
                    found.insert((name.clone(), user.clone()));
                } else if direct.contains(member) {
                    notes.push(format!(
                        "left out: member `{member}` of group `{name}`: no user here"
                    ));
                }
            }
        }
        found
    }
}

/// A distinguished name, to be compared: case and blanks between its parts do not count (RFC 4514).
fn normal(name: &str) -> String {
    let parts = name.split(',').map(|part| part.trim().to_lowercase());
    parts.collect::<Vec<_>>().join(",")
}

/// A name as Active Directory has it, as the principal: realms are written large.
fn upper(name: &str) -> String {
    match name.rsplit_once('@') {
        Some((user, realm)) => format!("{user}@{}", realm.to_uppercase()),
        None => name.to_owned(),
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

    /// What is done with an empty table, and what is left out.
    fn done(found: Found) -> (Vec<String>, Vec<String>) {
        let import = found.import(1000, IdentityTable::default());
        (import.edits.iter().map(ToString::to_string).collect(), import.notes)
    }

    #[test]
    fn passwd_and_group_are_taken_over() {
        let mut found = Found::default();
        found.read_passwd(
            "root:x:0:0::/root:/bin/sh\nann:x:1001:100::/:\nbob:x:1002:1002::/:\n\nbroken\n\
             nobody:x:65534:65534::/:\ntwin:x:1002:100::/:\nHOST$:x:1009:100::/:\n",
        );
        found.read_groups(
            "users:x:100:\ncms:x:300:ann, bob,eve\nroot:x:0:ann\n_ssh:x:101:\nlp:x:7:\n\
             _own:x:102:ann\n",
        );
        let wanted = [
            "group 100 users",
            "group 300 cms",
            "group 1002 g1002",
            "user 1001 ann users,cms",
            "user 1002 bob g1002,cms",
        ];
        let (edits, notes) = done(found);
        assert_eq!(edits, wanted);
        let wanted =
            ["line 5, `broken`", "user `HOST$`", "user `twin`: number 1002", "group `_own`"];
        assert_eq!(notes.len(), wanted.len(), "{notes:?}");
        for (notes, wanted) in notes.iter().zip(wanted) {
            assert!(notes.starts_with(&format!("left out: {wanted}")), "{notes}");
        }
    }

    #[test]
    fn no_group_is_made_for_users_that_are_left_out() {
        let mut found = Found::default();
        found.read_passwd("ann:x:1001:1001::/:\nHOST$:x:1009:1009::/:\ndaemon:x:2:1500::/:\n");
        found.read_groups(
            "ann:x:1001:\nHOST:x:1009:\nhosts:x:2000:HOST$\nnew:x:3000:\nall:x:4000:ann,HOST$\n\
             daemons:x:1500:\n",
        );
        let (edits, notes) = done(found);
        let wanted =
            ["group 1001 ann", "group 3000 new", "group 4000 all", "user 1001 ann ann,all"];
        assert_eq!(edits, wanted);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("left out: user `HOST$`"), "{notes:?}");
    }

    #[test]
    fn what_the_table_has_stays() {
        let passwd = "ann:x:1001:100::/:\nbob:x:1002:100::/:\n";
        let mut found = Found::default();
        found.read_passwd(passwd);
        found.read_groups("users:x:100:\n");
        let first = found.import(1000, IdentityTable::default());
        let table = IdentityTable::default().edited(&first.edits).unwrap();
        // Without the groups' names: the table knows the number.
        let mut found = Found::default();
        found.read_passwd(passwd);
        let again = found.import(1000, table.clone());
        assert_eq!((table.edited(&again.edits).unwrap(), again.notes), (table.clone(), vec![]));
        // Another site's numbers.
        let mut found = Found::default();
        found.read_passwd("ann:x:2001:100::/:\ncarl:x:1002:100::/:\ndora:x:1003:100::/:\n");
        let other = found.import(1000, table);
        assert_eq!(
            other.edits.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["group 100 users", "user 1003 dora users"]
        );
        assert_eq!(other.notes.len(), 2);
    }

    #[test]
    fn an_import_takes_no_group_away() {
        let mut found = Found::default();
        found.read_passwd("ann:x:1001:100::/:\n");
        found.read_groups("users:x:100:\ncms:x:300:ann\n");
        let first = found.import(1000, IdentityTable::default());
        let table = IdentityTable::default().edited(&first.edits).unwrap();
        let mut found = Found::default();
        found.read_passwd("ann:x:1001:200::/:\n");
        found.read_groups("phys:x:200:\n");
        let edits = found.import(1000, table).edits;
        let edits: Vec<String> = edits.iter().map(ToString::to_string).collect();
        assert_eq!(edits, ["group 200 phys", "user 1001 ann phys,users,cms"]);
    }

    #[test]
    fn grid_mapfiles_name_users() {
        let mut found = Found::default();
        found.read_grid_mapfile(
            "# who\n\"/DC=org/CN=Ann Smith 7\" ann\n\"/DC=org/CN=Job\" .cmspool,x\nodd\n\
             /DC=org/CN=dave dave\n",
        );
        let wanted = [
            "user ann",
            "user cmspool",
            "user dave",
            "map /DC=org/CN=Ann Smith 7 -> ann",
            "map /DC=org/CN=Job -> cmspool",
            "map /DC=org/CN=dave -> dave",
        ];
        let (edits, notes) = done(found);
        assert_eq!(edits, wanted);
        assert!(notes[0].contains("pool") && notes[1].starts_with("left out: line 4, `odd`"));
    }

    #[test]
    fn ldif_is_read_with_folded_and_encoded_lines() {
        let mut found = Found::default();
        found.read_ldif(
            "dn: uid=ann,dc=x\nobjectClass: posixAccount\nuid: ann\nuidNumber: 10\n 01\n\
             gidNumber: 300\nkrbPrincipalName:: YW5uQEVYVEVOQ0kuT1JH\n\n\
             dn: cn=cms\nobjectClass: posixGroup\ncn: cms\ngidNumber: 300\nmemberUid: ann\n",
        );
        let wanted = ["group 300 cms", "user 1001 ann cms", "map ann@EXTENCI.ORG -> ann"];
        assert_eq!(done(found), (wanted.map(str::to_owned).to_vec(), vec![]));
    }

    #[test]
    fn members_are_named_by_their_entries_too() {
        let mut found = Found::default();
        found.read_ldif(
            "dn: uid=ann,ou=People,dc=x\nobjectClass: posixAccount\nuid: ann\nuidNumber: 1001\n\n\
             dn: CN=Bob B,CN=Users,DC=x\nobjectClass: user\nsAMAccountName: bob\nuidNumber: 1002\n\
             userPrincipalName: bob@x.org\n\n\
             dn: cn=cms,dc=x\nobjectClass: posixGroup\ncn: cms\ngidNumber: 3000\n\
             member: UID=ann, OU=People,dc=x\nmember: uid=gone,dc=x\n\n\
             dn: cn=all,dc=x\nobjectClass: group\ncn: all\ngidNumber: 4000\n\
             uniqueMember: cn=CMS,dc=x\nmember: cn=bob b,cn=users,dc=x\nmember: cn=all,dc=x\n",
        );
        let wanted = [
            "group 3000 cms",
            "group 4000 all",
            "user 1001 ann all,cms",
            "user 1002 bob all",
            "map bob@X.ORG -> bob",
        ];
        let (edits, notes) = done(found);
        assert_eq!(edits, wanted);
        assert_eq!(notes, ["left out: member `uid=gone,dc=x` of group `cms`: no user here"]);
    }
}
