//! Who is who: principals, identities, roles, and what is kept of denials.

mod explanations;
mod kept;
mod places;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_auth::ScratchKdc;
use tieline_lab::federation::{Federation, Plan, with_plan};
use tieline_lab::program::{self, DEADLINE, Run, finish};
use tieline_lab::tickets::{config, kinit, kinit_into, tieline_as, url, with_flavor, with_kdc};

fn id(federation: &Federation, words: &[&str]) -> Result<String> {
    let mount = federation.mount().to_string_lossy().into_owned();
    federation.tieline(&[&["id", "--fs", &mount], words].concat())
}

fn fails(run: &Run, with: &str) -> Result<()> {
    ensure!(!run.status.success(), "it was allowed: {}", run.stdout);
    ensure!(run.stderr.contains(with), "not for `{with}`: {}", run.stderr);
    Ok(())
}

/// Lines of the audit logs of all servers.
fn audited(federation: &Federation) -> Result<Vec<Value>> {
    let mut lines = vec![];
    for entry in std::fs::read_dir(federation.dir().join("logs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            for line in std::fs::read_to_string(&path)?.lines() {
                lines.push(serde_json::from_str(line)?);
            }
        }
    }
    Ok(lines)
}

#[test]
fn principals_are_identities_and_files_carry_their_numbers() -> Result<()> {
    with_kdc(|federation| {
        let url = url(federation)?;
        federation.shell("mkdir -m 777 all fnal/all && mkdir -m 750 cms && chgrp 6001 cms")?;
        kinit(federation, "ann")?;
        kinit(federation, "bob")?;
        fails(&tieline_as(federation, "ann", &["ls", &url])?, "denial")?;

        id(federation, &["add", "cms", "--group", "--number", "6001"])?;
        id(federation, &["add", "ann", "--number", "5001", "--groups", "cms"])?;
        // Who administers sees that nothing is hidden, also where there is no mapping yet.
        let mount = federation.mount().to_string_lossy().into_owned();
        let test = ["id", "--fs", &mount, "test", "dora@PSC.EDU"];
        fails(&federation.try_tieline(&test)?, "is a stranger: nothing maps it")?;
        let listed = tieline_as(federation, "ann", &["ls", &format!("{url}/cms")])?;
        ensure!(listed.status.success(), "{}", listed.stderr);
        // The number is what stands on disk, at the other site's MDS too.
        let local = federation.local("small");
        std::fs::write(&local, "hello")?;
        let local = local.to_string_lossy().into_owned();
        for name in ["all/hers", "fnal/all/hers"] {
            let put = tieline_as(federation, "ann", &["put", &local, &format!("{url}/{name}")])?;
            ensure!(put.status.success(), "{}", put.stderr);
            let metadata = std::fs::metadata(federation.mount().join(name))?;
            ensure!((metadata.uid(), metadata.gid()) == (5001, 6001), "{metadata:?}");
        }
        // Another principal of the same person; one who is mapped to nobody stays out.
        fails(&tieline_as(federation, "bob", &["ls", &url])?, "bob@EXTENCI.ORG is a stranger")?;
        id(federation, &["map", "bob@EXTENCI.ORG", "ann"])?;
        let listed = tieline_as(federation, "bob", &["ls", &format!("{url}/cms")])?;
        ensure!(listed.status.success(), "{}", listed.stderr);
        // It is hers now, and not taken by chance.
        id(federation, &["add", "carl"])?;
        let taking = ["id", "--fs", &mount, "map", "bob@EXTENCI.ORG", "carl"];
        fails(
            &federation.try_tieline(&taking)?,
            "bob@EXTENCI.ORG is mapped to ann already: `tieline id map --move`",
        )?;
        id(federation, &["map", "--move", "bob@EXTENCI.ORG", "carl"])?;
        let tested = id(federation, &["test", "bob@EXTENCI.ORG"])?;
        ensure!(tested.contains("is carl"), "{tested}");
        id(federation, &["map", "bob@EXTENCI.ORG", "--nobody"])?;
        fails(&tieline_as(federation, "bob", &["ls", &url])?, "is nobody")?;
        id(federation, &["map", "*@UFL.EDU", "*"])?;
        let tested = id(federation, &["test", "ann@UFL.EDU"])?;
        ensure!(tested.contains("ann (number 5001)"), "{tested}");
        // Why, and by what.
        federation.shell("mkdir -m 700 own")?;
        let explain = |path: &str, op: &str| {
            let path = format!("{url}/{path}");
            let run = tieline_as(federation, "ann", &["explain", &path, "--op", op, "--json"])?;
            let said: Value = serde_json::from_str(&run.stdout).context(run.stderr.clone())?;
            ensure!(run.status.success() == (said["allowed"] == true), "{said}");
            Ok(said)
        };
        let may = explain("all/hers", "write")?;
        ensure!(may["allowed"] == true && may["who"]["number"] == 5001, "{may}");
        ensure!(may["who"]["principal"] == "ann@EXTENCI.ORG", "{may}");
        ensure!(may["flavors"]["MDT0000"] == "krb5p" && may["flavors"]["OST0000"] == "krb5i");
        let denied = explain("own/f", "create")?;
        ensure!(denied["allowed"] == false && denied.to_string().contains("0700"), "{denied}");
        federation.shell("touch listed; chmod 600 listed; setfacl -m u:5001:rw,m::r listed")?;
        ensure!(explain("listed", "read")?["allowed"] == true);
        let denied = explain("listed", "write")?.to_string();
        ensure!(denied.contains("user:5001:rw-, mask::r--"), "{denied}");
        let listed: Value = serde_json::from_str(&id(federation, &["list", "--json"])?)?;
        ensure!(listed["users"][0]["number"] == 5001, "{listed}");
        Ok(())
    })
}

#[test]
fn administrators_have_roles_and_denials_are_on_record() -> Result<()> {
    with_kdc(|federation| {
        let url = url(federation)?;
        let source = federation.local("passwd");
        std::fs::write(&source, "ann:x:5001:6001::/:\nbob:x:5002:6001::/:\n")?;
        let source = source.to_string_lossy().into_owned();
        id(federation, &["import", "--from", "passwd", &source])?;
        kinit(federation, "ann")?;
        let as_ann = |words: &[&str]| tieline_as(federation, "ann", words);
        let add = ["id", "--fs", &url, "add", "eve"];
        let denied = as_ann(&add)?;
        fails(&denied, "fs-admin may")?;
        id(federation, &["role", "ann", "fs-admin"])?;
        let done = as_ann(&add)?;
        ensure!(done.status.success(), "{}", done.stderr);
        id(federation, &["role", "ann", "fs-admin", "--take"])?;
        fails(&as_ann(&add)?, "fs-admin may")?;
        // Whoever is nobody stays so, unless strangers are squashed.
        id(federation, &["remove", "bob"])?;
        kinit(federation, "bob")?;
        // MDT0001 hears of both some seconds later.
        let as_bob = || tieline_as(federation, "bob", &["ls", &url]);
        let is_stranger = || as_bob().is_ok_and(|run| fails(&run, "stranger").is_ok());
        program::until("all MDTs have forgotten bob", DEADLINE, is_stranger)?;
        id(federation, &["strangers", "squash"])?;
        let is_squashed = || as_bob().is_ok_and(|run| run.status.success());
        program::until("all MDTs squash strangers", DEADLINE, is_squashed)?;

        let number = denied.stderr.split("(denial ").nth(1).and_then(|rest| rest.get(..8));
        let number = number.context("a denial has an id")?;
        ensure!(federation.logs()?.contains(number), "{number} is not in a log");
        let lines = audited(federation)?;
        let of = |event: &str| lines.iter().filter(|line| line["event"] == *event).count();
        let line = lines.iter().find(|line| line["id"] == *number);
        let line = line.with_context(|| format!("{number} is on no record"))?;
        let from = line["address"].as_str().unwrap_or_default();
        ensure!(line["op"].is_string() && from.starts_with("127.0.0.1:"), "{line}");
        ensure!(line["machine"] == "ann@EXTENCI.ORG", "{line}");
        ensure!(of("authentication") > 0 && of("administration") > 2, "{lines:?}");
        Ok(())
    })
}

/// What `dev up --kerberos` brings without more words: root administers, and users show tickets.
#[test]
fn users_of_a_new_federation_show_tickets() -> Result<()> {
    if !tieline_lab::needs_root() || !tieline_lab::has_kdc() {
        return Ok(());
    }
    let arguments = vec!["--kerberos".to_owned()];
    with_plan(&Plan { arguments, ..Plan::default() }, |federation| {
        let machine = Machine::of(federation, federation.mount().to_owned())?;
        federation.shell("mkdir -m 777 all && echo hello > all/f && cp all/f all/g")?;
        id(federation, &["add", "ann", "--number", "5001"])?;
        let ann = machine.kinit("ann", ANN)?;
        machine.denied(ANN, "FILE:/nonexistent", "cat $MOUNT/all/f")?;
        ensure!(machine.by(ANN, &ann, "cat $MOUNT/all/f; : > $MOUNT/all/hers")? == "hello\n");
        ensure!(std::fs::metadata(federation.mount().join("all/hers"))?.uid() == (1 << 31) + 5001);
        Ok(())
    })
}

/// Limits are set for identities, by who has the role, and everybody sees his own.
#[test]
fn quotas_are_those_of_identities_and_roles_count_for_them() -> Result<()> {
    with_kdc(|federation| {
        let url = url(federation)?;
        // A user of this machine has the name, and another number.
        id(federation, &["add", "daemon", "--number", "5001"])?;
        id(federation, &["add", "bob", "--number", "5002"])?;
        federation.shell("mkdir -m 777 all && echo lost > all/f && rm all/f")?;
        kinit(federation, "daemon")?;
        kinit(federation, "bob")?;
        let mount = federation.mount().to_string_lossy().into_owned();
        federation.tieline(&["setquota", "-u", "daemon", "-B", "10M", &mount])?;
        let own = || tieline_as(federation, "daemon", &["quota", "--json", &url]);
        // MDT0001 may still have the table as it was.
        let is_told = || own().is_ok_and(|run| run.status.success());
        program::until("all MDTs know daemon", DEADLINE, is_told)?;
        let own = own()?;
        let own: Value = serde_json::from_str(&own.succeed("quota")?)?;
        let user = own[0].clone();
        ensure!(user["id"] == 5001 && user["name"] == "daemon", "{own}");
        ensure!(user["bytes"]["hard"] == 10 << 20, "{own}");
        let others = ["quota", "-u", "bob", &url];
        fails(&tieline_as(federation, "daemon", &others)?, "denial")?;

        let as_bob = |words: &[&str]| tieline_as(federation, "bob", words);
        let all = format!("{url}/all");
        let acts: [&[&str]; 4] = [
            &["setquota", "-u", "daemon", "-B", "20M", &url],
            &["repquota", "-u", &url],
            &["project", "set", &all, "77"],
            &["undelete", &format!("{url}/all/f")],
        ];
        fails(&as_bob(acts[0])?, "denial")?;
        fails(&as_bob(acts[1])?, "denial")?;
        fails(&as_bob(acts[2])?, "denial")?;
        fails(&as_bob(acts[3])?, "")?;
        // His site's, but not everybody's.
        id(federation, &["role", "bob", "site-admin:uf"])?;
        fails(&as_bob(acts[0])?, "denial")?;
        as_bob(acts[2])?.succeed("project")?;
        fails(&as_bob(&["fsck", &url])?, "MDT0001 cannot be checked (`--mdt N` checks one alone")?;
        as_bob(&["fsck", "--mdt", "0", &url])?.succeed("a check of his site's MDT")?;
        fails(&as_bob(&["quota", "-u", "bob", "--pool", "nosuch", &url])?, "no pool nosuch")?;
        id(federation, &["role", "bob", "site-admin:uf", "--take"])?;
        id(federation, &["role", "bob", "fs-admin"])?;
        // Here as well.
        let is_admin = || as_bob(acts[1]).is_ok_and(|run| run.status.success());
        program::until("all MDTs know of his role", DEADLINE, is_admin)?;
        for act in acts {
            as_bob(act)?.succeed(&act.join(" "))?;
        }
        ensure!(federation.shell("cat all/f")? == "lost\n");
        let lines = audited(federation)?;
        for what in ["setquota user 5001 -B 20 MiB", "into project 77", "undelete file"] {
            let is_it = |line: &&Value| {
                line["event"] == "administration"
                    && line["principal"] == "bob@EXTENCI.ORG"
                    && line["what"].as_str().is_some_and(|told| told.contains(what))
            };
            ensure!(lines.iter().any(|line| is_it(&line)), "{what} is on no record: {lines:?}");
        }
        Ok(())
    })
}

const ANN: u32 = 1501;
const BOB: u32 = 1502;
const CMS: u32 = 1500;

/// A mount by the keytab of a machine whose users are not believed, with users of its own.
struct Machine<'a> {
    federation: &'a Federation,
    mount: PathBuf,
}

impl<'a> Machine<'a> {
    fn new(federation: &'a Federation) -> Result<Self> {
        let mount = federation.local("machine");
        std::fs::create_dir(&mount)?;
        let machine = Self::of(federation, mount)?;
        machine.mount()?;
        Ok(machine)
    }

    /// The machine of a mount, whose users find the KDC.
    fn of(federation: &'a Federation, mount: PathBuf) -> Result<Self> {
        for (path, mode) in [("..", 0o711), ("", 0o711), ("kdc", 0o755), ("kdc/krb5.conf", 0o644)] {
            let path = federation.dir().join(path);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        Ok(Self { federation, mount })
    }

    fn mount(&self) -> Result<()> {
        let Self { federation, mount } = self;
        let passwd = federation.local("people");
        let people = format!("ann:x:{ANN}:{CMS}::/:\nbob:x:{BOB}:{CMS}::/:\ncms:x:{CMS}:\n");
        std::fs::write(&passwd, people)?;
        let kdc = federation.dir().join("kdc");
        let options = format!(
            "keytab={kdc}/client.keytab,krb5conf={kdc}/krb5.conf,idmap={passwd}",
            kdc = kdc.display(),
            passwd = passwd.display()
        );
        let source = url(federation)?.replace("tieline://", "").replacen('/', ":/", 1);
        let mount_text = mount.to_string_lossy().into_owned();
        federation.tieline(&["mount", &source, &mount_text, "-o", &options]).map(drop)
    }

    /// Tickets of `user` in a cache that belongs to `uid`.
    fn kinit(&self, user: &str, uid: u32) -> Result<String> {
        let home = self.federation.local(&format!("home-{uid}"));
        std::fs::create_dir_all(&home)?;
        std::os::unix::fs::chown(&home, Some(uid), Some(CMS))?;
        let cache = home.join(format!("cache-{user}"));
        kinit_into(self.federation, user, &cache)?;
        std::os::unix::fs::chown(&cache, Some(uid), Some(CMS))?;
        Ok(format!("FILE:{}", cache.display()))
    }

    /// A script in the mount, as a user with tickets.
    fn try_as(&self, uid: u32, cache: &str, script: &str) -> Result<Run> {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={CMS}"));
        command.args([&uid, &gid, "--clear-groups", "sh", "-ec", script]);
        command.current_dir("/").env("KRB5CCNAME", cache).env("MOUNT", &self.mount);
        command.env("KRB5_CONFIG", config(self.federation));
        finish(&mut command, DEADLINE)
    }

    fn by(&self, uid: u32, cache: &str, script: &str) -> Result<String> {
        self.try_as(uid, cache, script)?.succeed(script)
    }

    fn denied(&self, uid: u32, cache: &str, script: &str) -> Result<()> {
        let run = self.try_as(uid, cache, script)?;
        ensure!(!run.status.success(), "{script} was allowed: {}", run.stdout);
        ensure!(run.stderr.contains("ermission denied"), "{script}: {}", run.stderr);
        Ok(())
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if self.mount != self.federation.mount() {
            let _ = self.federation.unmount(&self.mount);
        }
    }
}

fn people(federation: &Federation) -> Result<()> {
    id(federation, &["add", "cms", "--group", "--number", "6001"])?;
    id(federation, &["add", "ann", "--number", "5001", "--groups", "cms"])?;
    id(federation, &["add", "bob", "--number", "5002", "--groups", "cms"])?;
    federation.shell("mkdir -m 777 all fnal/all && mkdir -m 750 hers && chown 5001:6001 hers")?;
    id(federation, &["machine", "host/client.extenci.org@EXTENCI.ORG", "root"])?;
    Ok(())
}

#[test]
fn users_of_a_machine_are_who_their_tickets_say() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    for flavor in ["krb5i", "krb5p"] {
        with_flavor(&["--sec", flavor], tickets_tell_users_apart).context(flavor)?;
    }
    Ok(())
}

fn tickets_tell_users_apart(federation: &Federation) -> Result<()> {
    people(federation)?;
    let machine = Machine::new(federation)?;
    let ann = machine.kinit("ann", ANN)?;
    machine.by(
        ANN,
        &ann,
        "cd $MOUNT/hers; umask 77; echo hello > f; cat f; touch ../fnal/all/g",
    )?;
    // Shown by name here, stored by number; unmapped owners come back as they went.
    let shown = machine.by(ANN, &ann, "stat -c %u:%g $MOUNT/hers/f $MOUNT/fnal/all/g")?;
    ensure!(shown == format!("{ANN}:{CMS}\n{ANN}:{CMS}\n"), "{shown}");
    let stored = std::fs::metadata(federation.mount().join("hers/f"))?;
    ensure!((stored.uid(), stored.gid()) == (5001, 6001), "{stored:?}");
    std::fs::write(federation.mount().join("all/odd"), "")?;
    std::os::unix::fs::chown(federation.mount().join("all/odd"), Some(7777), Some(8888))?;
    let odd = machine.mount.join("all/odd");
    let shown = std::fs::metadata(&odd)?;
    ensure!((shown.uid(), shown.gid()) == ((1 << 31) + 7777, (1 << 31) + 8888), "{shown:?}");
    std::os::unix::fs::chown(&odd, Some((1 << 31) + 7778), None)?;
    let stored = std::fs::metadata(federation.mount().join("all/odd"))?;
    ensure!(stored.uid() == 7778, "{stored:?}");

    // What may be executed and not read is executed, and not read.
    let only_run = "cp /bin/true $MOUNT/fnal/all/run && chmod 711 $MOUNT/fnal/all/run";
    machine.by(ANN, &ann, only_run)?;
    let bobs = machine.kinit("bob", BOB)?;
    machine.by(BOB, &bobs, "$MOUNT/fnal/all/run")?;
    machine.denied(BOB, &bobs, "cat $MOUNT/fnal/all/run")?;
    machine.by(ANN, &ann, "chmod 700 $MOUNT/fnal/all/run")?;
    machine.denied(BOB, &bobs, "$MOUNT/fnal/all/run")?;

    // No ticket; another's cache; another's ticket under the same uid.
    machine.denied(ANN, "FILE:/nonexistent", "cat $MOUNT/hers/f")?;
    machine.denied(BOB, &ann, "ls $MOUNT/all")?;
    // Nor of any use is a cache on the mount that needs it: nobody waits for that.
    machine.by(ANN, &ann, "cp ${KRB5CCNAME#FILE:} $MOUNT/all/cache")?;
    let (here, began) = (machine.mount.join("all/cache"), std::time::Instant::now());
    machine.denied(ANN, &format!("FILE:{}", here.display()), "cat $MOUNT/hers/f")?;
    ensure!(began.elapsed().as_secs() < 4, "it is waited for: {:?}", began.elapsed());
    let other = machine.kinit("bob", ANN)?;
    machine.denied(ANN, &other, "cat $MOUNT/hers/f")?;
    why(&machine, &other)?;
    machine.by(ANN, &other, ": > $MOUNT/all/his")?;
    let stored = std::fs::metadata(federation.mount().join("all/his"))?;
    ensure!(stored.uid() == 5002, "{stored:?}");
    machine.by(ANN, &ann, "cat $MOUNT/hers/f")?;

    // Who is taken out of the table reads nothing any more, also of what the mount holds.
    let ours = "cd $MOUNT/fnal/all; mkdir ours; chmod 770 ours; echo ours > ours/f";
    machine.by(ANN, &ann, &format!("umask 7; {ours}"))?;
    machine.by(BOB, &bobs, "cat $MOUNT/fnal/all/ours/f")?;
    id(federation, &["remove", "bob"])?;
    let is_out = || machine.denied(BOB, &bobs, "cat $MOUNT/fnal/all/ours/f").is_ok();
    program::until("bob is a stranger", DEADLINE, is_out)?;
    machine.by(ANN, &ann, "cat $MOUNT/fnal/all/ours/f")?;
    Ok(())
}

/// What a program was denied is explained afterwards, with the id that the server's log has.
fn why(machine: &Machine<'_>, other: &str) -> Result<()> {
    let program = tieline_lab::program::tieline()?.display().to_string();
    machine.denied(ANN, other, "mkdir $MOUNT/hers/d")?;
    let explain = format!("{program} explain --json --op create $MOUNT/hers/d");
    let said = machine.try_as(ANN, other, &explain)?;
    let said: Value = serde_json::from_str(&said.stdout).context(said.stderr)?;
    ensure!(said["who"]["number"] == 5002 && said["allowed"] == false, "{said}");
    let denials = said["denials"].as_array().context("denials")?;
    let denial = denials.iter().find(|denial| denial["op"] == "mkdir");
    let denial = denial.with_context(|| format!("it is not told: {said}"))?;
    let id = denial["id"].as_str().with_context(|| format!("it has no id: {said}"))?;
    ensure!(machine.federation.logs()?.contains(id), "{id} is in no log");
    let reason = denial["why"].as_str().unwrap_or_default();
    ensure!(reason.contains("bob") && reason.contains("/extenci/hers"), "{denial}");
    ensure!(!reason.contains("0x") && denial["path"] == "/extenci/hers", "{denial}");
    let lines = audited(machine.federation)?;
    let line = lines.iter().find(|line| line["id"] == *id).context("it is on no record")?;
    ensure!(line["principal"] == "bob@EXTENCI.ORG" && line["name"] == "d", "{line}");
    ensure!(line["machine"] == "host/client.extenci.org@EXTENCI.ORG", "{line}");
    ensure!(line["op"] == "MakeDirectory" && line["file"].is_string(), "{line}");
    // Somebody else is told nothing of it.
    let others = machine.try_as(BOB, other, &explain)?;
    ensure!(!others.stdout.contains(id), "{}", others.stdout);
    // An administrator hears what the kernel here makes of her.
    let path = machine.mount.join("hers/f").to_string_lossy().into_owned();
    let hers = ["explain", "--as", "ann", "--op", "write", "--json", &path];
    let said: Value = serde_json::from_str(&machine.federation.tieline(&hers)?)?;
    let verdicts = said["verdicts"].as_array().context("verdicts")?;
    let is_by_kernel = |verdict: &&Value| {
        let rule = verdict["rule"].as_str().unwrap_or_default();
        verdict["by"] == "kernel" && rule.contains(&format!("its owner ({ANN})"))
    };
    ensure!(verdicts.iter().any(|verdict| is_by_kernel(&verdict)), "{said}");
    Ok(())
}

#[test]
fn a_destroyed_ticket_stops_what_is_new_and_a_renewed_one_works_at_once() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let ann = machine.kinit("ann", ANN)?;
        machine.by(ANN, &ann, "echo hello > $MOUNT/hers/f; ls $MOUNT/hers")?;
        let script = "cd $MOUNT/hers; exec 3<f 4>>f; kdestroy; cat <&3; echo more >&4; \
                      if cat f; then exit 9; fi; if ls .; then exit 8; fi; \
                      if stat g; then exit 7; fi";
        let said = machine.by(ANN, &ann, script)?;
        ensure!(said == "hello\n", "{said}");
        machine.denied(ANN, &ann, "cat $MOUNT/hers/f")?;
        let again = machine.kinit("ann", ANN)?;
        ensure!(machine.by(ANN, &again, "cat $MOUNT/hers/f")? == "hello\nmore\n");
        // What is open goes on also where a server is started anew after that.
        let (flag, go) = (federation.local("flag"), federation.local("go"));
        std::fs::create_dir(&flag)?;
        std::os::unix::fs::chown(&flag, Some(ANN), Some(CMS))?;
        let script = format!(
            "exec 3<$MOUNT/hers/f 4<>$MOUNT/hers/f; kdestroy; touch {}/up; \
             while [ ! -e {} ]; do sleep 0.1; done; \
             python3 -c 'import os; print(os.fstat(3).st_size, len(os.read(3, 100)))
os.ftruncate(4, 11); os.pwrite(4, b\"later\\n\", 11); os.fsync(4); print(os.fstat(4).st_size)'",
            flag.display(),
            go.display()
        );
        let said = std::thread::scope(|scope| {
            let job = scope.spawn(|| machine.by(ANN, &again, &script));
            let up = program::until("the file is open", DEADLINE, || flag.join("up").exists());
            let changed = up.and_then(|()| federation.shell("echo far >> hers/f; sync hers/f"));
            let restarted = changed.and_then(|_| federation.kill_and_restart("mds-uf"));
            std::fs::write(&go, "")?;
            restarted?;
            job.join().map_err(|_| anyhow::anyhow!("the job's thread died"))?
        })?;
        ensure!(said == "15 15\n17\n", "{said}");
        let again = machine.kinit("ann", ANN)?;
        // Servers that are started anew are shown the ticket again.
        federation.kill_and_restart("mds-uf")?;
        machine.by(ANN, &again, "echo third >> $MOUNT/hers/f; cat $MOUNT/hers/f")?;
        // A job's tickets are its own.
        let program = tieline_lab::program::tieline()?;
        let job = format!(
            "{} auth run -- sh -ec 'test $KRB5CCNAME != {again}; kdestroy -c {again}; \
             cat $MOUNT/hers/f'",
            program.display()
        );
        machine.by(ANN, &again, &job)?;
        Ok(())
    })
}

/// What a ticket of somebody in very many groups has: this much that no server reads.
const TICKET_EXTRA: usize = 36_000;

/// Has the KDC write more into all tickets that passwords get from now on.
fn enlarge_tickets(federation: &Federation) -> Result<ScratchKdc> {
    let state = std::fs::read_to_string(federation.dir().join("dev.json"))?;
    let state: Value = serde_json::from_str(&state)?;
    let pid = state["kdc"]["processes"][0]["pid"].as_i64().context("a KDC has a pid")?;
    program::call("kill", &[pid.to_string()])?;
    program::until("the KDC ends", DEADLINE, || !program::is_running(pid))?;
    with_indicators(&federation.dir().join("kdc"), 'a'..='x')
}

/// A KDC that writes 1,500 bytes more for each of these into a ticket.
fn with_indicators(dir: &Path, letters: RangeInclusive<char>) -> Result<ScratchKdc> {
    let conf = std::fs::read_to_string(dir.join("kdc.conf"))?;
    // Its lines end at 2,048 bytes.
    let line = |letter| format!("    spake_preauth_indicator = {letter}{}\n", "x".repeat(1499));
    let lines: String = letters.map(line).collect();
    let groups = "[libdefaults]\n  spake_preauth_groups = edwards25519\n\n";
    let conf = conf.replacen("    max_life", &(lines + "    max_life"), 1);
    std::fs::write(dir.join("kdc.conf"), groups.to_owned() + &conf)?;
    let told = std::fs::read_to_string(dir.join("krb5.conf"))?;
    let port = told.lines().find_map(|line| line.trim().strip_prefix("kdc = 127.0.0.1:"));
    let mut kdc = ScratchKdc::again(dir, "EXTENCI.ORG", port.context("its port")?.parse()?);
    kdc.serve()?;
    kdc.admin("modprinc +requires_preauth ann\n")?;
    Ok(kdc)
}

#[test]
fn a_large_ticket_is_as_good_as_any() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let kdc = enlarge_tickets(federation)?;
        // Over her own connection, and shown over that of the machine.
        kinit(federation, "ann")?;
        let url = url(federation)?;
        let listed = tieline_as(federation, "ann", &["ls", &format!("{url}/hers")])?;
        ensure!(listed.status.success(), "{}", listed.stderr);
        let cache = machine.kinit("ann", ANN)?;
        machine.by(ANN, &cache, "echo hello > $MOUNT/hers/f; cat $MOUNT/hers/f")?;
        let length = std::fs::metadata(cache.trim_start_matches("FILE:"))?.len();
        ensure!(length > TICKET_EXTRA as u64, "her tickets have {length} bytes only");
        // One that no connection takes is told as that.
        drop(kdc);
        let _kdc = with_indicators(&federation.dir().join("kdc"), 'A'..='Z')?;
        kinit(federation, "ann")?;
        let refused = tieline_as(federation, "ann", &["ls", &format!("{url}/hers")])?.stderr;
        ensure!(refused.contains("65536 are the most") && refused.contains("groups"), "{refused}");
        Ok(())
    })
}

impl Machine<'_> {
    /// Tickets of ann, got by her own hands into a cache of any kind (`None`: her default).
    fn kinit_as(&self, cache: Option<&str>, words: &str) -> Result<()> {
        let cache = cache.map(|cache| format!("-c {cache}")).unwrap_or_default();
        self.by(ANN, "", &format!("unset KRB5CCNAME; echo ann | kinit {words} {cache} ann"))
            .map(drop)
    }
}

/// A KCM daemon of one test.
struct Kcm(std::process::Child);

impl Kcm {
    /// Its socket's place is built in: it is started where `/run` is a folder of the test. The
    /// libraries of all who use the KDC hear of that by their settings.
    fn start(federation: &Federation) -> Result<Option<Self>> {
        const DAEMON: &str = "/usr/sbin/kcm";
        if !std::path::Path::new(DAEMON).exists() {
            tieline_lab::skip("KCM: heimdal-kcm is not installed");
            return Ok(None);
        }
        let run = federation.local("run");
        std::fs::create_dir(&run)?;
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755))?;
        let script = format!("mount --bind {} /run && exec {DAEMON} -c /dev/null", run.display());
        let daemon = program::start(Command::new("unshare").args(["-m", "sh", "-ec", &script]))?;
        let daemon = Self(daemon);
        let socket = run.join(".heim_org.h5l.kcm-socket");
        program::until("a socket of KCM", DEADLINE, || socket.exists())?;
        let (config, section) = (config(federation), "[libdefaults]\n");
        let honest = std::fs::read_to_string(&config)?;
        let named = format!("{section}  kcm_socket = {}\n", socket.display());
        let changed = honest.replacen(section, &named, 1);
        ensure!(changed != honest, "the settings have another form: {honest}");
        std::fs::write(&config, changed)?;
        Ok(Some(daemon))
    }
}

impl Drop for Kcm {
    fn drop(&mut self) {
        program::kill_group(&self.0);
        let _ = self.0.wait();
    }
}

/// For how long a mount believes that a cache that is no file still holds what it held, and some
/// more.
const BELIEVED: std::time::Duration = std::time::Duration::from_millis(1500);

/// Caches that are no files: by KRB5CCNAME, and as the default of a uid.
#[test]
fn tickets_are_found_in_caches_of_every_kind() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let home = federation.local(&format!("home-{ANN}"));
        std::fs::create_dir_all(&home)?;
        std::os::unix::fs::chown(&home, Some(ANN), Some(CMS))?;
        let home = home.display();
        federation.shell("echo hello > hers/f && chown 5001 hers/f && chmod 600 hers/f")?;
        let read = "unset KRB5CCNAME; cat $MOUNT/hers/f";
        let unset = |script: &str| script.replacen("unset KRB5CCNAME; ", "", 1);
        // Keyrings need the kernel's leave, KCM its daemon: what is not here is left out.
        let keyring = format!("KEYRING:persistent:{ANN}");
        let mut kinds = vec![format!("DIR:{home}/several"), format!("FILE:{home}/one")];
        match machine.kinit_as(Some(&keyring), "") {
            Ok(()) => kinds.push(keyring),
            Err(_) => tieline_lab::skip("keyrings cannot be used here"),
        }
        let kcm = Kcm::start(federation)?;
        if kcm.is_some() {
            kinds.extend(["KCM:".to_owned(), format!("KCM:{ANN}")]);
        }
        let config = config(federation);
        let honest = std::fs::read_to_string(&config)?;
        let default = honest.lines().find(|line| line.contains("default_ccache_name"));
        let default = default.context("a default cache")?.to_owned();
        for kind in kinds {
            machine.by(ANN, &kind, "kdestroy -q || true")?;
            machine.denied(ANN, &kind, &unset(read))?;
            machine.kinit_as(Some(&kind), "").context(kind.clone())?;
            ensure!(machine.by(ANN, &kind, &unset(read))? == "hello\n", "{kind} by its name");
            // Nobody else finds them there.
            machine.denied(BOB, &kind, "ls $MOUNT/all")?;
            machine.denied(ANN, "", read)?;
            machine.by(ANN, &kind, "kdestroy -q")?;
            std::thread::sleep(BELIEVED);
            machine.denied(ANN, &kind, &unset(read)).context(kind.clone())?;
            machine.kinit_as(Some(&kind), "").context(kind.clone())?;
            let changed = honest.replace(&default, &format!("default_ccache_name = {kind}"));
            std::fs::write(&config, changed)?;
            std::thread::sleep(std::time::Duration::from_secs(6));
            ensure!(machine.by(ANN, "", read)? == "hello\n", "{kind} as the default");
            // A job takes what it finds there along.
            let program = tieline_lab::program::tieline()?.display().to_string();
            let job = format!("unset KRB5CCNAME; {program} auth run -- {}", "cat $MOUNT/hers/f");
            ensure!(machine.by(ANN, "", &job)? == "hello\n", "{kind} of a job");
            machine.by(ANN, "", "unset KRB5CCNAME; kdestroy -q")?;
            std::thread::sleep(BELIEVED);
            machine.denied(ANN, "", read)?;
            std::fs::write(&config, &honest)?;
            std::thread::sleep(std::time::Duration::from_secs(6));
        }
        Ok(())
    })
}

/// A job's tickets are renewed while it runs, and found when it loses its environment.
#[test]
fn a_job_keeps_its_tickets_and_is_known_by_its_control_group() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        federation.shell("echo hello > hers/f && chown 5001 hers/f && chmod 600 hers/f")?;
        let cache = federation.local("short");
        std::fs::create_dir(&cache)?;
        std::os::unix::fs::chown(&cache, Some(ANN), Some(CMS))?;
        let cache = format!("FILE:{}/cache", cache.display());
        machine.kinit_as(Some(&cache), "-l 8s -r 5m")?;
        let program = tieline_lab::program::tieline()?.display().to_string();
        let long = format!("{program} auth run -- sh -ec 'sleep 20; cat $MOUNT/hers/f'");
        ensure!(machine.by(ANN, &cache, &long)? == "hello\n", "the job's tickets were not renewed");
        machine.denied(ANN, &cache, "cat $MOUNT/hers/f")?;
        told_to_end(&machine, &program)?;

        let bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let base = bases
            .into_iter()
            .find(|base| std::fs::exists(format!("{base}/cgroup.procs")).unwrap_or(false));
        let group = base.map(|base| format!("{base}/tieline-lab-{}", std::process::id()));
        let Some(group) = group.filter(|group| std::fs::create_dir(group).is_ok()) else {
            tieline_lab::skip("no control groups can be made here");
            return Ok(());
        };
        let outcome = in_group(&machine, &group, &cache, &program);
        std::fs::remove_dir(&group)?;
        outcome
    })
}

/// A batch system ends a job by a signal to who watches over it: the job hears it, and its tickets
/// go with it.
fn told_to_end(machine: &Machine<'_>, program: &str) -> Result<()> {
    let cache = machine.kinit("ann", ANN)?;
    for signal in ["TERM", "HUP"] {
        let script = format!(
            "{program} auth run -- sh -c 'trap \"echo heard; exit 7\" {signal}; echo $KRB5CCNAME; \
             echo up > $HOME/up; while :; do sleep 0.1; done' &
             while [ ! -s $HOME/up ]; do sleep 0.1; done; kill -{signal} $!
             code=0; wait $! || code=$?; rm $HOME/up; echo $code"
        );
        let home = machine.federation.local(&format!("home-{ANN}"));
        let script = format!("HOME={}; export HOME; {script}", home.display());
        let said = machine.by(ANN, &cache, &script)?;
        let lines: Vec<&str> = said.lines().collect();
        ensure!(lines[1..] == ["heard", "7"], "{signal}: {said}");
        let tickets = lines[0].trim_start_matches("FILE:");
        ensure!(!std::fs::exists(tickets)?, "{signal}: {tickets} is left");
    }
    // Who is killed leaves them to what goes on, and then to his user's next job.
    let script = format!(
        "HOME={}; export HOME
         {program} auth run -- sh -c 'echo $$ $KRB5CCNAME > $HOME/up; exec sleep 60' &
         while [ ! -s $HOME/up ]; do sleep 0.1; done; kill -9 $!; wait $! || true
         read job cache < $HOME/up; rm $HOME/up
         {program} auth run -- test -e ${{cache#FILE:}}; kill $job
         while [ -e ${{cache#FILE:}} ]; do {program} auth run -- true; sleep 0.1; done",
        machine.federation.local(&format!("home-{ANN}")).display()
    );
    machine.by(ANN, &cache, &script).map(drop)
}

/// A batch system gave ann a group; her job forgets its environment.
fn in_group(machine: &Machine<'_>, group: &str, cache: &str, program: &str) -> Result<()> {
    for file in ["", "cgroup.procs"] {
        std::os::unix::fs::chown(format!("{group}/{file}"), Some(ANN), Some(CMS))?;
    }
    machine.kinit_as(Some(cache), "")?;
    let job = "env -u KRB5CCNAME sh -ec 'cat $MOUNT/hers/f'";
    machine.denied(ANN, cache, job)?;
    let script = format!(
        "echo $$ > {group}/cgroup.procs; exec setpriv --reuid={ANN} --regid={CMS} --clear-groups \
         {program} auth run -- {job}"
    );
    let mut command = Command::new("sh");
    command.args(["-ec", &script]).current_dir("/").env("KRB5CCNAME", cache);
    command.env("MOUNT", &machine.mount).env("KRB5_CONFIG", config(machine.federation));
    let said = finish(&mut command, DEADLINE)?.succeed("a job in a group")?;
    ensure!(said == "hello\n", "{said}");
    Ok(())
}

/// An administrator goes on at once with whom he has just added.
#[test]
fn files_are_given_to_whoever_was_just_added() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_plan(&Plan::default(), |federation| {
        let mount = federation.local("named");
        std::fs::create_dir(&mount)?;
        let (at, dir) = (mount.display().to_string(), federation.dir().display().to_string());
        federation.tieline(&["dev", "mount", &at, "--dir", &dir, "-o", "idmap=names"])?;
        let given = || -> Result<()> {
            for user in ["games", "daemon", "bin"] {
                id(federation, &["add", user])?;
                let file = mount.join(user);
                std::fs::write(&file, "")?;
                let file = file.to_string_lossy().into_owned();
                program::call("chown", &[user.to_owned(), file.clone()])?;
                let owner = program::call("stat", &["-c".to_owned(), "%U".to_owned(), file])?;
                ensure!(owner.trim() == user, "{owner}");
            }
            Ok(())
        };
        let given = given();
        federation.unmount(&mount)?;
        given
    })
}
