//! `tieline id`: who is who to the file system.
//!
//! The table of identities is kept by the MDS of the root, where all edits go; what is believed of
//! machines, and what becomes of strangers, are rules of the federation map.

use crate::operator::{self, Line};
use crate::shell;
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_format::map::FederationMap;
use tieline_identities::{IdentityTable, Pages, Step};
use tieline_types::{
    Identity, IdentityKind, IdentityName, MachineTrust, MappedTo, MdtIndex, Role, Strangers,
};
use tieline_wire::federation::MapEdit;
use tieline_wire::identity::{EditIdentities, IdentityEdit, NewIdentity, NewMapping};

mod judged;
mod mapped;
mod sources;

pub use judged::judged;

/// Edits that are sent together; the server takes no more than 1,000.
const TOGETHER: usize = 500;
/// Of what an import leaves out.
const NOTES_SHOWN: usize = 40;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long, global = true)]
    fs: Option<OsString>,
    #[command(subcommand)]
    verb: IdVerb,
}

#[derive(clap::Subcommand, Debug)]
enum IdVerb {
    /// Make a user, or a group; of one that is there, change what is said
    Add {
        name: String,
        /// A group
        #[arg(long, conflicts_with_all = ["groups", "principal"])]
        group: bool,
        /// What its files carry; by default the next free number
        #[arg(long)]
        number: Option<u32>,
        /// Of a user: its groups, that of its new files first
        #[arg(long, value_delimiter = ',')]
        groups: Option<Vec<String>>,
        /// A Kerberos principal that is this user; may be given several times
        #[arg(long)]
        principal: Vec<String>,
    },
    /// Say who a principal is, or all of a realm (`*@UFL.EDU`, `*/admin@UFL.EDU`, `job/*@UFL.EDU`)
    Map {
        principal: String,
        /// A user; `*` in it stands for what `*` is in the principal
        #[arg(required_unless_present = "nobody")]
        user: Option<String>,
        /// Nobody at all, whatever is said of its realm
        #[arg(long, conflicts_with = "user")]
        nobody: bool,
        /// Also if it is another's now
        #[arg(long = "move")]
        moves: bool,
    },
    /// Show users, groups, principals and rules
    List {
        #[arg(long)]
        json: bool,
    },
    /// Forget a user, a group, or (with `@`) what a principal is mapped to
    Remove {
        name: String,
        #[arg(long)]
        group: bool,
    },
    /// Take over users and groups
    Import {
        #[arg(long, value_name = "passwd|grid-mapfile|ldap")]
        from: sources::Format,
        /// The file: passwd(5), a grid-mapfile, or LDIF; `-` is standard input
        file: PathBuf,
        /// Beside passwd: group(5)
        #[arg(long)]
        groups: Option<PathBuf>,
        /// Users below this number are left out
        #[arg(long, default_value_t = 1000)]
        least: u32,
        /// Only show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Show who a principal is, and by what
    Test {
        principal: String,
        #[arg(long)]
        json: bool,
    },
    /// Give a user a role, or take it: fs-admin, site-admin:SITE, pool-admin:POOL
    Role {
        user: String,
        role: String,
        #[arg(long)]
        take: bool,
    },
    /// Say what is believed of a machine: squash (as of any other), root, users, all
    Machine { principal: String, trust: String },
    /// Say what becomes of strangers: deny or squash
    Strangers { rule: String },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_fs(args.fs.as_deref(), None)?;
    match args.verb {
        IdVerb::Add { name, group, number, groups, principal } => {
            let edits = add(&name, group, number, groups, &principal)?;
            if !principal.is_empty() {
                let to = NewMapping::Named(name);
                with_table(&location, |table, rules| {
                    let mut all = principal.iter();
                    all.try_for_each(|one| mapped::check_name(&table, &rules, one, &to))
                })?;
            }
            edit(&location, edits)
        }
        IdVerb::Map { principal, user, nobody: _, moves } => {
            let to = user.map_or(NewMapping::Nobody, NewMapping::Named);
            let edits = with_table(&location, |table, rules| {
                mapped::mapping(&table, &rules, (&principal, to), moves)
            })?;
            edit(&location, edits)
        }
        IdVerb::List { json } => with_table(&location, |table, rules| list(&table, &rules, json)),
        IdVerb::Remove { name, .. } if name.contains(['@', '/']) => {
            edit(&location, vec![IdentityEdit::Unmap(name)])
        }
        IdVerb::Remove { name, group } => {
            let kind = if group { IdentityKind::Group } else { IdentityKind::User };
            edit(&location, vec![IdentityEdit::Remove { kind, name: named(&name)? }])
        }
        IdVerb::Import { from, file, groups, least, dry_run } => {
            let table = with_table(&location, |table, _| Ok(table))?;
            let import = sources::read(from, &file, groups.as_deref(), least, table)?;
            for note in import.notes.iter().take(NOTES_SHOWN) {
                eprintln!("tieline: {note}");
            }
            let more = import.notes.len().saturating_sub(NOTES_SHOWN);
            if more > 0 {
                eprintln!("tieline: and {more} more like these");
            }
            let count = import.edits.len();
            if count == 0 {
                let file = file.display();
                bail!(
                    "nothing of {file} is taken over: is it what --from says, with users from \
                     --least {least} on?"
                );
            }
            if dry_run {
                let mut out = io::stdout();
                import.edits.iter().try_for_each(|edit| writeln!(out, "{}", edit))?;
            } else {
                edit(&location, import.edits)?;
                let from = file.display();
                println!("{count} entries taken over from {from}");
            }
            Ok(())
        }
        IdVerb::Test { principal, json } => {
            with_table(&location, |table, rules| test(&table, &rules, &principal, json))
        }
        IdVerb::Role { user, role, take } => {
            let role: Role = role.parse().map_err(|error| Usage(format!("{error}")))?;
            let user = named(&user)?;
            if !take {
                let role = role.clone();
                let known =
                    |operator: operator::Operator| async move { check_role(&operator.map, &role) };
                operator::run(&location, known)?;
            }
            edit(&location, vec![IdentityEdit::Role { user, role, is_given: !take }])
        }
        IdVerb::Machine { principal, trust } => {
            let trust: MachineTrust = trust.parse().map_err(Usage)?;
            if !trust.believes_root() {
                with_table(&location, |table, rules| keeps_someone(&table, &rules, &principal))?;
            }
            let trust = Some(trust).filter(|&trust| trust != MachineTrust::Squash);
            edit_map(&location, MapEdit::MachineSet { principal, trust })
        }
        IdVerb::Strangers { rule } => {
            let rule: Strangers = rule.parse().map_err(Usage)?;
            edit_map(&location, MapEdit::StrangersSet(rule))
        }
    }
}

fn named(text: &str) -> Result<IdentityName, Usage> {
    text.parse().map_err(|error| Usage(format!("`{text}`: {error}")))
}

/// A role at a site, or over a pool, that there is.
fn check_role(map: &FederationMap, role: &Role) -> anyhow::Result<()> {
    match role {
        Role::SiteAdmin(site) => {
            let sites: BTreeSet<&str> = map.osts.iter().map(|ost| ost.site.as_str()).collect();
            let sites: Vec<&str> = sites.into_iter().collect();
            let is_there = sites.contains(&site.as_str());
            ensure!(is_there, "there is no site {site}: {} are", sites.join(", "));
        }
        Role::PoolAdmin(pool) => {
            let pools: Vec<&str> = map.pools.iter().map(|pool| pool.name.as_str()).collect();
            let is_there = pools.contains(&pool.as_str());
            ensure!(is_there, "there is no pool {pool}: {} are", pools.join(", "));
        }
        Role::FsAdmin => {}
    }
    Ok(())
}

/// Somebody must be left who may change it back.
fn keeps_someone(table: &IdentityTable, rules: &Rules, principal: &str) -> anyhow::Result<()> {
    let (own, others): (Vec<_>, Vec<_>) =
        rules.machines.iter().partition(|(machine, _)| machine == principal);
    let has_root = |machines: &[&(String, MachineTrust)]| {
        machines.iter().any(|(_, trust)| trust.believes_root())
    };
    let is_last = has_root(&own) && !has_root(&others);
    let has_admin = table.identities().any(|one| one.roles.contains(&Role::FsAdmin));
    ensure!(
        !is_last || has_admin,
        "nobody would be administrator any more: root of {principal} is the last. Let another \
         machine's root, or a user, be it first (`tieline id role USER fs-admin`)"
    );
    Ok(())
}

fn add(
    name: &str,
    is_group: bool,
    number: Option<u32>,
    groups: Option<Vec<String>>,
    principals: &[String],
) -> Result<Vec<IdentityEdit>, Usage> {
    let kind = if is_group { IdentityKind::Group } else { IdentityKind::User };
    let groups = groups.map(|groups| groups.iter().map(|group| named(group)).collect());
    let groups = groups.transpose()?;
    let mut edits =
        vec![IdentityEdit::Put(NewIdentity { kind, name: named(name)?, number, groups })];
    let to = NewMapping::Named(name.to_owned());
    edits.extend(
        principals
            .iter()
            .map(|principal| IdentityEdit::Map { principal: principal.clone(), to: to.clone() }),
    );
    Ok(edits)
}

fn edit(location: &Location, edits: Vec<IdentityEdit>) -> anyhow::Result<()> {
    operator::run(location, |operator| async move {
        let line = operator.dial(MdtIndex(0))?;
        for some in edits.chunks(TOGETHER) {
            line.call(EditIdentities { edits: some.to_vec() }).await?;
        }
        line.close().await;
        Ok(())
    })
}

fn edit_map(location: &Location, change: MapEdit) -> anyhow::Result<()> {
    shell::run(
        location,
        |shell| async move { Ok(shell.files.edit_map(&shell.caller, change).await?) },
    )
}

/// What the map says of identities.
struct Rules {
    realm: Option<String>,
    strangers: Strangers,
    machines: Vec<(String, MachineTrust)>,
}

fn with_table<T>(
    location: &Location,
    show: impl FnOnce(IdentityTable, Rules) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (table, rules) = operator::run(location, |operator| async move {
        let security = operator.map.security.as_ref();
        let machines = security.and_then(|security| security.machines.clone()).unwrap_or_default();
        let machines = machines.into_iter().map(|machine| (machine.principal, machine.trust));
        let rules = Rules {
            realm: security.map(|security| security.realm.clone()),
            strangers: security.map(|security| security.strangers()).unwrap_or_default(),
            machines: machines.collect(),
        };
        let line = operator.dial(MdtIndex(0))?;
        let table = fetch(&line).await?;
        line.close().await;
        Ok((table, rules))
    })?;
    show(table, rules)
}

/// The whole table, as far as we may know it.
async fn fetch(line: &Line) -> anyhow::Result<IdentityTable> {
    let mut pages = Pages::newer_than(None);
    loop {
        let (page, _) = line.call(pages.wanted()).await?;
        match pages.take(page) {
            Step::More(more) => pages = more,
            Step::Whole(table) => return Ok(table),
            Step::Same => return Ok(IdentityTable::default()),
        }
    }
}

fn list(table: &IdentityTable, rules: &Rules, is_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let group_name = |number: u32| {
        let found = table.identity(IdentityKind::Group, number);
        found.map_or_else(|| number.to_string(), |group| group.name.to_string())
    };
    let (users, groups): (Vec<&Identity>, Vec<&Identity>) =
        table.identities().partition(|identity| identity.kind == IdentityKind::User);
    if is_json {
        let user = |user: &&Identity| {
            let principals = table.mappings().filter(|m| m.to == MappedTo::User(user.number));
            json!({
                "name": user.name, "number": user.number,
                "groups": user.groups.iter().map(|&group| group_name(group)).collect::<Vec<_>>(),
                "roles": user.roles.iter().map(Role::to_string).collect::<Vec<_>>(),
                "principals": principals.map(|m| m.principal).collect::<Vec<_>>(),
            })
        };
        let groups = groups.iter().map(|one| json!({ "name": one.name, "number": one.number }));
        let rule = |mapping: tieline_types::Mapping| match mapping.to {
            MappedTo::User(_) => None,
            MappedTo::Named(to) => Some(json!({ "principal": mapping.principal, "user": to })),
            MappedTo::Nobody => Some(json!({ "principal": mapping.principal, "user": null })),
        };
        let machines = rules.machines.iter();
        let machines = machines.map(|(name, trust)| (name.clone(), json!(trust.name())));
        let value = json!({
            "version": table.version(),
            "users": users.iter().map(user).collect::<Vec<_>>(),
            "groups": groups.collect::<Vec<_>>(),
            "mappings": table.mappings().filter_map(rule).collect::<Vec<_>>(),
            "machines": Value::Object(machines.collect()),
            "strangers": rules.strangers.name(),
        });
        writeln!(out, "{value}")?;
        return Ok(());
    }
    for user in users {
        let groups: Vec<String> = user.groups.iter().map(|&group| group_name(group)).collect();
        let roles: String = user.roles.iter().map(|role| format!(" [{role}]")).collect();
        writeln!(out, "user {} {} {}{roles}", user.number, user.name, groups.join(","))?;
    }
    for group in groups {
        writeln!(out, "group {} {}", group.number, group.name)?;
    }
    for mapping in table.mappings() {
        writeln!(out, "map {} -> {}", mapping.principal, table.named_to(&mapping.to))?;
    }
    for (principal, trust) in &rules.machines {
        writeln!(out, "machine {principal} {}", trust.name())?;
    }
    writeln!(out, "strangers {}", rules.strangers.name())?;
    Ok(())
}

/// A principal as `kinit` completes its name.
pub fn completed(principal: &str, realm: &str) -> String {
    match principal.contains('@') || principal.starts_with('/') {
        true => principal.to_owned(),
        false => format!("{principal}@{realm}"),
    }
}

fn test(
    table: &IdentityTable,
    rules: &Rules,
    principal: &str,
    is_json: bool,
) -> anyhow::Result<()> {
    let realm = rules.realm.as_deref().context("this federation has no realm")?;
    let principal = &completed(principal, realm);
    let found = judged(table, principal, realm);
    if is_json {
        let value = match &found {
            Ok(who) => json!({
                "principal": principal, "user": who.name, "number": who.caller.uid.0,
                "gid": who.caller.gid.0,
                "groups": who.caller.groups.iter().map(|gid| gid.0).collect::<Vec<_>>(),
                "roles": who.roles.iter().map(Role::to_string).collect::<Vec<_>>(),
                "by": who.how,
            }),
            Err(why) => json!({
                "principal": principal, "user": null, "why": why,
                "strangers": rules.strangers.name(),
            }),
        };
        println!("{value}");
        return Ok(());
    }
    match found {
        Ok(who) => {
            println!("{principal} is {} (number {}), by {}", who.name, who.caller.uid, who.how);
            Ok(())
        }
        Err(_) if table.is_empty() => bail!(
            "{principal}: there are no identities yet, so the users of the MDS's machine count"
        ),
        Err(why) => bail!(
            "{why}; strangers: {} (`tieline id map` or `id add` changes who it is)",
            rules.strangers.name()
        ),
    }
}
