//! What `tieline explain` says, beside what happens.

use super::{ANN, BOB, Machine, id, people};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use tieline_lab::federation::Federation;
use tieline_lab::program::{self, DEADLINE, finish};
use tieline_lab::tickets::{config, with_kdc};

/// What `explain` says is what a program meets: links, lists of who may, ids of this machine, and
/// limits that are used up.
#[test]
fn explanations_are_true() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let (ann, bob) = (machine.kinit("ann", ANN)?, machine.kinit("bob", BOB)?);
        machine.by(
            ANN,
            &ann,
            &format!(
                "cd $MOUNT/all; umask 77; echo x > list; setfacl -m u:{BOB}:r list; mkdir inner
                 echo y > inner/f; ln -s inner/f link; ln -s list way"
            ),
        )?;
        let explained = |op: &str, path: &str| -> Result<Value> {
            let tieline = program::tieline()?.display();
            let script = format!("{tieline} explain --json --op {op} $MOUNT/{path}");
            Ok(serde_json::from_str(&machine.try_as(BOB, &bob, &script)?.stdout)?)
        };
        machine.by(BOB, &bob, "cat $MOUNT/all/way; touch $MOUNT/all/one")?;
        let way = explained("read", "all/way")?;
        ensure!(way["allowed"] == true, "{way}");
        machine.denied(BOB, &bob, "cat $MOUNT/all/link")?;
        let link = explained("read", "all/link")?;
        ensure!(link["allowed"] == false && link["who"]["name"] == "bob", "{link}");
        ensure!(explained("create", "all/two")?["allowed"] == true);
        // A name that is taken, and one that a sticky directory keeps: also for the kernel.
        let taken = explained("create", "all/one")?;
        ensure!(taken["allowed"] == false && taken.to_string().contains("EEXIST"), "{taken}");
        machine.by(ANN, &ann, "cd $MOUNT/all; mkdir -m 1777 sticky; echo x > sticky/hers")?;
        machine.by(BOB, &bob, "echo x > $MOUNT/all/sticky/his")?;
        let kept = machine.try_as(BOB, &bob, "rm -f $MOUNT/all/sticky/hers")?;
        ensure!(kept.stderr.contains("not permitted"), "{}", kept.stderr);
        for (path, op, is_allowed) in [
            ("all/sticky/hers", "delete", false),
            ("all/sticky/hers", "rename", false),
            ("all/sticky/his", "delete", true),
        ] {
            let said = explained(op, path)?;
            let verdicts = said["verdicts"].as_array().context("verdicts")?;
            for by in ["kernel", "server"] {
                let last = verdicts.iter().rfind(|one| one["by"] == by).context("no verdict")?;
                ensure!(last["allowed"] == is_allowed, "{op} {path}: {said}");
            }
        }
        let mount = federation.mount().to_string_lossy().into_owned();
        federation.tieline(&["setquota", "-u", "bob", "-I", "1", &mount])?;
        let full = machine.try_as(BOB, &bob, "touch $MOUNT/all/two")?;
        ensure!(full.stderr.contains("quota"), "{}", full.stderr);
        let full = explained("create", "all/two")?;
        let verdicts = full["verdicts"].as_array().context("verdicts")?;
        ensure!(verdicts.iter().any(|one| one["by"] == "quota"), "{full}");
        ensure!(full["allowed"] == false, "{full}");
        // Aliases; and what only the owner may.
        for (op, is_allowed) in [("list", false), ("append", false), ("unlink", true)] {
            let said = explained(op, "all/inner")?;
            ensure!(said["allowed"] == is_allowed, "{op}: {said}");
        }
        // Of what is not there: that it is not, and whether he may create it.
        for (path, may) in [("all/none", "allows"), ("hers/none", "DENIES")] {
            let script = format!("{} explain $MOUNT/{path}", program::tieline()?.display());
            let run = machine.try_as(BOB, &bob, &script)?;
            let said = run.stdout;
            let create = format!("server, to create it {may} /extenci/");
            let is_told = said.contains("there is no such name") && said.contains(&create);
            ensure!(run.status.code() == Some(1) && is_told, "{said}{}", run.stderr);
            ensure!(!said.contains("was listed") && said.ends_with("denied\n"), "{said}");
        }
        ensure!(explained("delete", "all/none")?["allowed"] == false);
        ensure!(explained("chmod", "all/one")?["allowed"] == true);
        ensure!(explained("chmod", "all/list")?["allowed"] == false);
        // A stranger is told nothing of others' denials.
        let other = machine.try_as(ANN, "FILE:/nonexistent", "cat $MOUNT/all/list")?;
        ensure!(!other.status.success());
        let script = format!("{} explain --json $MOUNT/all/list", program::tieline()?.display());
        let stranger = machine.kinit("daemon", BOB)?;
        let said = machine.try_as(BOB, &stranger, &script)?;
        let said: Value = serde_json::from_str(&said.stdout).context(said.stderr)?;
        ensure!(said["who"].is_null() && said["allowed"] == false, "{said}");
        let denials = said["denials"].as_array().context("denials")?;
        ensure!(denials.iter().all(|denial| denial["uid"] == BOB), "{said}");
        root_is_explained(&machine, &ann)?;
        storage_is_explained(federation, &explained)?;
        // Who was denied has ended his session: its leases would keep others waiting.
        let denied = explained("append", "all/inner")?;
        ensure!(denied["allowed"] == false, "{denied}");
        let log = federation.dir().join("logs/mds-uf.log");
        program::until("the session is ended", DEADLINE, || {
            let told = std::fs::read_to_string(&log).unwrap_or_default();
            let opened = told.rsplit("session opened: tieline (pid").next().unwrap_or_default();
            let session = opened.split_whitespace().find(|word| word.starts_with("session="));
            session.is_some_and(|session| opened.contains(&format!("session ended {session}\n")))
        })
    })
}

/// Root of a machine is squashed by what the map says of machines, not as a stranger.
fn root_is_explained(machine: &Machine<'_>, ann: &str) -> Result<()> {
    let federation = machine.federation;
    // Root of this machine is no administrator then.
    id(federation, &["role", "ann", "fs-admin"])?;
    let (tieline, name) = (program::tieline()?.display(), "host/client.extenci.org@EXTENCI.ORG");
    let trust = |rule: &str| {
        machine.by(ANN, ann, &format!("{tieline} id --fs $MOUNT machine {name} {rule}"))
    };
    federation.shell("mkdir -m 755 closed")?;
    for rule in ["squash", "users"] {
        trust(rule)?;
        let all = machine.mount.join("all").join(rule);
        let is_squashed = || {
            let made = std::fs::write(&all, rule).and_then(|()| std::fs::metadata(&all));
            made.is_ok_and(|made| made.uid() == 65534)
        };
        program::until(&format!("root is squashed by `{rule}`"), DEADLINE, is_squashed)?;
        for (path, op, is_allowed) in [
            ("all/new", "create", true),
            ("closed/new", "create", false),
            (&format!("all/{rule}"), "write", true),
            ("all/list", "read", false),
        ] {
            let path = machine.mount.join(path);
            let shown = path.to_string_lossy();
            let mut command = Command::new(program::tieline()?);
            command.args(["explain", "--json", "--op", op, &*shown]).current_dir("/");
            command.env("KRB5_CONFIG", config(federation));
            let said: Value = serde_json::from_str(&finish(&mut command, DEADLINE)?.stdout)?;
            ensure!(said["allowed"] == is_allowed && said["who"]["number"] == 65534, "{said}");
            let done = match op {
                "create" => std::fs::create_dir(&path).and_then(|()| std::fs::remove_dir(&path)),
                "write" => std::fs::write(&path, "more"),
                _ => std::fs::read(&path).map(drop),
            };
            ensure!(done.is_ok() == is_allowed, "{rule}, {op} {shown}: {done:?}, but {said}");
        }
    }
    trust("root").map(drop)
}

/// That nobody takes what somebody may write.
fn storage_is_explained(
    federation: &Federation,
    explained: &dyn Fn(&str, &str) -> Result<Value>,
) -> Result<()> {
    let may = explained("write", "all/one")?;
    ensure!(may["allowed"] == true, "{may}");
    let path = federation.dir().join("sites/uf/oss.toml");
    let told = std::fs::read_to_string(&path)?;
    let dir = federation.dir().to_string_lossy().into_owned();
    let cases = [
        ("realms = [\"PSC.EDU\"]", "serves clients of PSC.EDU only"),
        ("limit = \"0 B\"", "that its site gives are used"),
        ("read_only = true", "read-only"),
    ];
    federation.expect_log("nothing fits below");
    for (line, why) in cases {
        let settings = told.replace("read_only = false\n", "");
        let settings = settings.replace("[[ost]]\n", &format!("[[ost]]\n{line}\n"));
        std::fs::write(&path, settings)?;
        federation.tieline(&["dev", "restart", "oss-uf", "--dir", &dir])?;
        let is_told = || {
            let said = explained("write", "all/one").map(|said| said.to_string());
            said.is_ok_and(|said| said.contains(why) && said.contains("\"allowed\":false"))
        };
        program::until(&format!("told: {why}"), DEADLINE, is_told)?;
    }
    Ok(())
}
