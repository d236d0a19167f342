//! Files that were there before us: adopted where they are, read, changed behind us, given back.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::{Federation, program};

/// A tree to be adopted, on the disk that the test's other files are on.
struct Source(tempfile::TempDir);

impl Source {
    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tieline-lab-source-").tempdir()?;
        let root = folder.path();
        fs::create_dir_all(root.join("run/deep/empty"))?;
        fs::write(root.join("run/large"), pattern(70 << 20))?;
        fs::write(root.join("run/small"), "small\n")?;
        fs::write(root.join("run/none"), "")?;
        fs::write(root.join("run/deep/name with space \u{e4}%"), pattern(10_000))?;
        symlink("../small", root.join("run/deep/link"))?;
        fs::set_permissions(root.join("run/small"), fs::Permissions::from_mode(0o640))?;
        fs::set_permissions(root.join("run/deep"), fs::Permissions::from_mode(0o2750))?;
        if tieline_lab::is_root() {
            std::os::unix::fs::chown(root.join("run/small"), Some(5001), Some(5002))?;
        }
        program::shell(root, "touch -d '2020-02-02 02:02:02.123456789' run/large run/deep run")?;
        Ok(Self(folder))
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn plan(&self) -> Plan {
        let root = self.0.path().display().to_string();
        Plan { arguments: vec!["--adopt".to_owned(), root], ..Plan::default() }
    }
}

/// Bytes that tell where they are.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn import(lab: &Federation, source: &Path, more: &[&str]) -> Result<Value> {
    let (source, to) = (source.display().to_string(), lab.mount().join("in").display().to_string());
    lab.json(&[&["import", "--in-place", &source, &to], more].concat())
}

fn count(report: &Value, what: &str) -> u64 {
    report[what].as_u64().unwrap_or(u64::MAX)
}

#[test]
fn a_tree_is_adopted_without_moving_a_byte() -> Result<()> {
    let source = Source::new()?;
    with_plan(&source.plan(), |lab| {
        let objects = || program::shell(&lab.dir(), "find sites -path '*objects*' -type f | wc -l");
        let before = objects()?;
        let report = import(lab, &source.path("run"), &[])?;
        ensure!(count(&report, "adopted") == 4 && count(&report, "directories") == 2, "{report}");
        ensure!(objects()? == before, "bytes were moved");
        // The whole tree is the same: names, kinds, bytes, links, modes, owners and times.
        let compare = format!(
            "diff -r --no-dereference in {source} && list() {{ (cd $1 && find . -printf \
             '%p %y %m %U %G %T@ %l\\n' | sort); }} && [ \"$(list in)\" = \"$(list {source})\" ]",
            source = source.path("run").display()
        );
        lab.shell(&compare)?;
        let stripe = lab.json(&["getstripe".as_ref(), lab.mount().join("in/large").as_os_str()])?;
        let place = &stripe[0]["extents"][1]["chunk"]["places"][0];
        ensure!(place["adopted"] == true && place["offset"] == 64 << 20, "{place}");
        // Once more: nothing to do.
        let report = import(lab, &source.path("run"), &[])?;
        ensure!(count(&report, "unchanged") == 5 && count(&report, "adopted") == 0, "{report}");
        // A fresh client reads the same, and an overwrite leaves the source alone.
        let far = lab.mount_again()?;
        ensure!(fs::read(far.join("in/large"))? == pattern(70 << 20));
        program::shell(
            &far,
            "printf x | dd of=in/large bs=1 seek=5 conv=notrunc status=none && rm in/small",
        )?;
        ensure!(fs::read(source.path("run/large"))? == pattern(70 << 20), "the source changed");
        ensure!(source.path("run/small").exists(), "deleting it here deleted it there");
        let mut changed = pattern(70 << 20);
        changed[5] = b'x';
        ensure!(fs::read(lab.mount().join("in/large"))? == changed);
        Ok(())
    })
}

#[test]
fn checksums_are_taken_over_or_computed_and_watched() -> Result<()> {
    let source = Source::new()?;
    // As XRootD's servers keep it: name, time of the file, length, value; numbers big-endian.
    let small = fs::metadata(source.path("run/small"))?;
    let mut kept = [&b"adler32\0"[..], &[0; 8], &small.mtime().to_be_bytes(), &[0; 80]].concat();
    kept[31] = 4;
    kept[32..36].copy_from_slice(&0x0881_0230_u32.to_be_bytes());
    let hex: String = kept.iter().map(|byte| format!("{byte:02x}")).collect();
    // Another one, as wrong.
    kept[..8].copy_from_slice(b"crc32c\0\0");
    let other: String = kept.iter().map(|byte| format!("{byte:02x}")).collect();
    let set = format!(
        "setfattr -n user.XrdCks.adler32 -v 0x{hex} run/small && \
         setfattr -n user.XrdCks.crc32c -v 0x{other} run/small && touch -r run/none run/none"
    );
    program::shell(&source.path(""), &set)?;
    with_plan(&source.plan(), |lab| {
        let wrong = import(lab, &source.path("run"), &["--wait"]).err();
        let wrong = wrong.context("the kept checksum was wrong on purpose, and nobody said so")?;
        ensure!(format!("{wrong:#}").contains("08810230 kept"), "{wrong:#}");
        ensure!(format!("{wrong:#}").contains("user.XrdCks.crc32c"), "{wrong:#}");
        lab.expect_log("the checksum that was kept with an adopted file is not that of its bytes");
        let chunk = |name: &str| -> Result<Value> {
            let path = lab.mount().join("in").join(name);
            let stripe = lab.json(&["getstripe".as_ref(), path.as_os_str()])?;
            Ok(stripe[0]["extents"][0]["chunk"].clone())
        };
        // The computed one has replaced it: nothing is left to compute, and nothing is wrong.
        let path = lab.mount().join("in");
        let sums = lab.json(&["import".as_ref(), "--checksums".as_ref(), path.as_os_str()])?;
        ensure!(count(&sums, "files") == 0, "{sums}");
        let large = chunk("large")?;
        ensure!(large["block_checks"]["kept"] == "metadata", "{large}");
        ensure!(large["digest"].is_string() && large["adler32"].is_string(), "{large}");
        // Damaged at rest: same size, same time. The checks know.
        program::shell(
            &source.path("run"),
            "touch -r large ../stamp && printf z | dd of=large bs=1 seek=100 conv=notrunc \
             status=none && touch -r ../stamp large",
        )?;
        lab.expect_log("checksum");
        let far = lab.mount_again()?;
        let error = fs::read(far.join("in/large")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EIO), "{error}");
        // Whoever looks after the bytes finds it too: not by size and time, but by reading.
        ensure!(findings(lab, &[])?.is_empty(), "size and time are the same");
        let wrong = [("wrong-chunk".to_owned(), "in/large".to_owned())];
        ensure!(findings(lab, &["--read"])? == wrong);
        lab.expect_log("does not match its checksum");
        let verify = |name: &str| {
            let path = lab.mount().join("in").join(name);
            lab.try_tieline(&[
                "mirror".as_ref(),
                "verify".as_ref(),
                "-v".as_ref(),
                path.as_os_str(),
            ])
        };
        let bad = verify("large")?;
        ensure!(!bad.status.success() && bad.stdout.contains("  bad: chunk"), "{bad:?}");
        ensure!(bad.stdout.contains("  good: chunk"), "the second chunk is well: {bad:?}");
        ensure!(verify("deep/name with space \u{e4}%")?.status.success());
        // Or somebody put another in its place, and it is to be so: only reading tells.
        ensure!(count(&import(lab, &source.path("run"), &[])?, "unchanged") == 5);
        let report = import(lab, &source.path("run"), &["--compare", "--wait"])?;
        ensure!(report["other_bytes"] == serde_json::json!(["run/large"]), "{report}");
        ensure!(count(&report, "adopted_again") == 1, "{report}");
        let mut changed = pattern(70 << 20);
        changed[100] = b'z';
        ensure!(fs::read(far.join("in/large"))? == changed);
        ensure!(fs::read(lab.mount().join("in/large"))? == changed);
        let report = import(lab, &source.path("run"), &["--compare"])?;
        ensure!(count(&report, "unchanged") == 5, "{report}");
        Ok(())
    })
}

/// What `fsck` finds at the MDT of the adopted files, and where.
fn findings(lab: &Federation, more: &[&str]) -> Result<Vec<(String, String)>> {
    let mount = lab.mount().to_string_lossy();
    let run = lab.try_tieline(&[&["fsck", "--json", "--mdt", "0", &mount], more].concat())?;
    let told: Value = serde_json::from_str(&run.stdout).with_context(|| format!("{run:?}"))?;
    let found = told["findings"].as_array().context("a list")?.iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> = found.map(|one| (text(&one["what"]), text(&one["path"]))).collect();
    found.dedup();
    Ok(found)
}

#[test]
fn a_file_changed_behind_us_is_refused_with_the_reason_and_adopted_again() -> Result<()> {
    let source = Source::new()?;
    with_plan(&source.plan(), |lab| {
        import(lab, &source.path("run"), &["--wait"]).ok();
        fs::write(source.path("run/large"), "another content")?;
        lab.expect_log("was changed behind Tieline");
        let far = lab.mount_again()?;
        let error = fs::read(far.join("in/large")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EIO), "{error}");
        let said = lab.try_tieline(&["cat".as_ref(), lab.mount().join("in/large").as_os_str()])?;
        for part in ["run/large was changed behind Tieline", "15 bytes", "re-import"] {
            ensure!(said.stderr.contains(part), "{}", said.stderr);
        }
        // The others are read, and the reason is in the server's log.
        ensure!(fs::read_to_string(far.join("in/small"))? == "small\n");
        ensure!(lab.logs()?.contains("OST0000: adopted file run/large was changed"));
        let changed = |name: &str| ("adopted-changed".to_owned(), format!("in/{name}"));
        ensure!(findings(lab, &[])? == [changed("large")]);
        lab.expect_log("does not match its checksum");
        let path = lab.mount().join("in/large");
        let bad = lab.try_tieline(&["mirror".as_ref(), "verify".as_ref(), path.as_os_str()])?;
        ensure!(!bad.status.success() && bad.stdout.contains("was changed behind"), "{bad:?}");
        let report = import(lab, &source.path("run"), &[])?;
        ensure!(count(&report, "adopted_again") == 1, "{report}");
        ensure!(fs::read_to_string(far.join("in/large"))? == "another content");
        // What is gone from the source is named, also below a directory that is gone; what somebody
        // wrote there is his.
        fs::write(lab.mount().join("in/own"), "own")?;
        fs::write(lab.mount().join("in/deep/own"), pattern(1 << 20))?;
        fs::remove_file(source.path("run/small"))?;
        fs::remove_dir_all(source.path("run/deep"))?;
        let report = import(lab, &source.path("run"), &[])?;
        let gone = serde_json::json!(["run/small", "run/deep/name with space \u{e4}%"]);
        ensure!(report["gone"] == gone, "{report}");
        let mut found = findings(lab, &["--read"])?;
        found.sort();
        ensure!(found == [changed("deep/name with space \u{e4}%"), changed("small")], "{found:?}");
        // The job that computes checksums is cut off, and begun again by the next import.
        program::shell(&source.path("run"), "truncate -s 16G huge")?;
        let report = import(lab, &source.path("run"), &[])?;
        let kill = |report: &Value| {
            let pid = report["checksums_by"].as_u64().context("no checksums are computed")?;
            program::shell(Path::new("/"), &format!("kill -9 {pid}"))
        };
        kill(&report)?;
        let report = import(lab, &source.path("run"), &[])?;
        ensure!(count(&report, "adopted") == 0, "{report}");
        ensure!((1..=2).contains(&count(&report, "without_checksums")), "{report}");
        kill(&report)?;
        Ok(())
    })
}

#[test]
fn what_was_written_to_adopted_files_stays() -> Result<()> {
    let source = Source::new()?;
    with_plan(&source.plan(), |lab| {
        let (run, files) = (source.path("run"), source.path("run/files"));
        fs::create_dir(&files)?;
        for name in ["appended", "cut", "emptied", "middle", "small", "untouched"] {
            fs::write(files.join(name), pattern(300_000))?;
        }
        fs::write(files.join("small"), "small\n")?;
        // With the checksums, before anything changes: who computes them later finds other files.
        import(lab, &run, &["--wait"])?;
        let here = lab.mount().join("in/files");
        program::shell(
            &here,
            "echo more >> appended; echo more >> small; truncate -s 1000 cut; : > emptied; \
             printf MINE | dd of=middle bs=1 seek=150000 conv=notrunc status=none; sync -f .",
        )?;
        let sums = || program::shell(&here, "sha256sum appended cut emptied middle small");
        let written = sums()?;
        // Also where the source is another by now.
        for change in ["true", "touch files/*", "for f in files/*; do echo of the site >> $f; done"]
        {
            program::shell(&run, change)?;
            let report = import(lab, &run, &["--wait"])?;
            ensure!(sums()? == written, "after {change}: {report}");
            let named = |name: &str| {
                let left_out = report["left_out"].as_array().into_iter().flatten();
                left_out.flat_map(Value::as_str).any(|line| line.contains(name))
            };
            ensure!(named("run/files/appended") && named("run/files/cut"), "{report}");
            ensure!(fs::read(here.join("untouched"))? == fs::read(files.join("untouched"))?);
        }
        Ok(())
    })
}

#[test]
fn owners_are_mapped_and_what_is_not_ours_is_left_alone() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    let source = Source::new()?;
    with_plan(&source.plan(), |lab| {
        let owners = lab.local("owners");
        fs::write(&owners, "5001 = 1001\n:5002 = 1002\n* = nobody # the rest\n")?;
        fs::create_dir(lab.mount().join("in"))?;
        fs::write(lab.mount().join("in/none"), "somebody wrote this here")?;
        // Access lists come along, under the same map; what the destination hands down does not.
        program::shell(
            &source.path("run"),
            "echo listed > listed && chown 5003:1003 listed && chmod 600 listed && \
             setfacl -m g::---,u:5001:rw,m::rw listed && mkdir listing && \
             setfacl -m u:5001:rx,d:g:5002:rwx listing",
        )?;
        lab.shell("setfacl -m d:u:1003:rwx in")?;
        let report = import(lab, &source.path("run"), &["--owners", &owners.to_string_lossy()])?;
        ensure!(
            report["left_out"][0].as_str().is_some_and(|l| l.starts_with("run/none")),
            "{report}"
        );
        let small = fs::metadata(lab.mount().join("in/small"))?;
        ensure!((small.uid(), small.gid(), small.mode() & 0o7777) == (1001, 1002, 0o640));
        ensure!(fs::metadata(lab.mount().join("in/large"))?.uid() == 65534);
        ensure!(fs::read_to_string(lab.mount().join("in/none"))? == "somebody wrote this here");
        // Outside the adopted tree there is nothing to adopt.
        let outside = import(lab, Path::new("/etc"), &[]).unwrap_err().to_string();
        ensure!(outside.contains("not below the adopted tree"), "{outside}");
        let lists = |path: &str| lab.shell(&format!("getfacl -cn in/{path}"));
        let listed = lists("listed")?;
        for entry in ["user:1001:rw-", "group::---", "mask::rw-", "other::---"] {
            ensure!(listed.contains(entry), "{listed}");
        }
        let listing = lists("listing")?;
        ensure!(listing.contains("user:1001:r-x"), "{listing}");
        ensure!(listing.contains("default:group:1002:rwx"), "{listing}");
        for plain in ["small", "deep", "."] {
            ensure!(!lists(plain)?.contains("1003"), "{plain}: {}", lists(plain)?);
        }
        let by = |uid: u32, gid: u32, words: &str| {
            let who = format!("setpriv --reuid={uid} --regid={gid} --clear-groups");
            lab.shell(&format!("{who} {words}"))
        };
        ensure!(by(1001, 1001, "cat in/listed")? == "listed\n");
        ensure!(by(1004, 1003, "cat in/listed").is_err(), "its group may read it here");
        // They leave with the files, too.
        let out = lab.local("out");
        let from = lab.mount().join("in");
        lab.tieline(&["export".as_ref(), from.as_os_str(), out.as_os_str()])?;
        let left = |path: &str| program::shell(&out, &format!("getfacl -cn {path}"));
        ensure!(left("listed")? == listed && left("listing")? == listing, "{}", left("listed")?);
        // Nobody but root may adopt, and nothing is begun for others.
        lab.shell("chmod 777 .")?;
        let all = || lab.shell("ls -lanR --time-style=full-iso .");
        let (before, address) = (all()?, lab.process("mds-uf")?["address"].clone());
        let to = format!("tieline://{}/extenci/denied", address.as_str().context("an address")?);
        let (tieline, run) = (program::tieline()?.display(), source.path("run"));
        let denied = by(1001, 1001, &format!("{tieline} import --in-place {} {to}", run.display()));
        let denied = format!("{:#}", denied.err().context("a user adopted files")?);
        ensure!(denied.contains("nothing was imported"), "{denied}");
        ensure!(all()? == before, "something was made");
        Ok(())
    })
}

#[test]
fn what_was_adopted_leaves_as_plain_files() -> Result<()> {
    let source = Source::new()?;
    with_plan(&source.plan(), |lab| {
        import(lab, &source.path("run"), &["--wait"])?;
        lab.shell(
            "cd in && head -c 300000 /dev/urandom > own && truncate -s 5M own && \
             ln own own2 && setfattr -n user.k -v v own",
        )?;
        let out = source.path("out");
        let (from, to) = (lab.mount().join("in"), out.clone());
        let report = lab.json(&["export".as_ref(), from.as_os_str(), to.as_os_str()])?;
        ensure!(count(&report, "linked") == 3, "{report}");
        let compare = format!(
            "diff -r --no-dereference {from} {out} && list() {{ (cd $1 && find . -printf \
             '%p %y %m %U %G %T@ %l %n\\n' | sort); }} && [ \"$(list {from} | grep own)\" = \
             \"$(list {out} | grep own)\" ] && getfattr --only-values -n user.k {out}/own",
            from = from.display(),
            out = out.display()
        );
        ensure!(program::shell(Path::new("/"), &compare)? == "v");
        let ino = |path: PathBuf| fs::metadata(path).map(|there| there.ino());
        ensure!(ino(out.join("large"))? == ino(source.path("run/large"))?, "not a hard link");
        // On another file system, a copy; and nothing that is there is replaced.
        let copies = lab.local("copies");
        lab.shell("mkfifo in/pipe")?;
        let copy = ["export".as_ref(), "--copy".as_ref(), from.as_os_str(), copies.as_os_str()];
        let report = lab.json(&copy)?;
        ensure!(count(&report, "linked") == 0 && count(&report, "copied") == 5, "{report}");
        ensure!(fs::read(copies.join("large"))? == pattern(70 << 20));
        ensure!(fs::symlink_metadata(copies.join("pipe"))?.file_type().is_fifo());
        // It can be run again; what is something else by now stays.
        let again = lab.json(&copy)?;
        ensure!(count(&again, "copied") == 0 && count(&again, "unchanged") >= 6, "{again}");
        fs::write(copies.join("large"), "somebody's own")?;
        ensure!(!lab.try_tieline(&copy)?.status.success(), "it replaced what was there");
        ensure!(fs::read(copies.join("large"))? == b"somebody's own");
        Ok(())
    })
}

#[test]
fn the_doctor_names_what_is_wrong_and_the_fix() -> Result<()> {
    if !tieline_lab::can_mount() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let settings = folder.path().join("server.toml");
    let path = settings.display().to_string();
    let write = |text: &str| fs::write(&settings, text);
    let doctor = || -> Result<Vec<Value>> {
        let mut command = std::process::Command::new(program::tieline()?);
        command.args(["doctor", "--json", "--settings", &path]);
        let run = program::finish(&mut command, program::DEADLINE)?;
        ensure!(!run.status.success(), "something is wrong, and it said all is well");
        Ok(serde_json::from_str::<Value>(&run.stdout)?.as_array().context("a list")?.clone())
    };
    let failures = |all: &[Value]| -> Vec<String> {
        let failed = all.iter().filter(|finding| finding["state"] == "fail");
        failed.map(|finding| finding["check"].as_str().unwrap_or_default().to_owned()).collect()
    };
    // Everything that is wrong with the settings, at once, each with its key and a fix.
    write(
        "fs = \"a b\"\nsite = \"uf\"\nstate = \"here\"\nmap_key = \"no\"\n\
         log = \"xml\"\n[mdt]\nindex = 0\nengine = \"oracle\"\n",
    )?;
    let all = doctor()?;
    let wrong =
        ["fs", "state", "log", "map_key", "mdt.engine"].map(|key| format!("settings {key}"));
    ensure!(failures(&all) == wrong, "{all:#?}");
    ensure!(all.iter().all(|f| f["state"] == "ok" || f["fix"].is_string()), "{all:#?}");
    let mut check = std::process::Command::new(program::tieline()?);
    check.args(["server", "--check", "--settings", &path]);
    let said = program::finish(&mut check, program::DEADLINE)?;
    ensure!(said.stderr.contains("5 wrong settings"), "{}", said.stderr);
    // Right settings, and what they name is not there.
    write(&format!(
        "fs = \"x\"\nsite = \"uf\"\nstate = \"{state}\"\nmap_key = \"{key}\"\n\
         listen = \"{listen}\"\nroot = [\"127.0.0.1:1\"]\n[mdt]\nindex = 0\n\
         engine = \"postgres=host=/nowhere user=x\"\n\
         [[ost]]\nindex = 0\npath = \"/nowhere/ost\"\n",
        state = folder.path().join("state").display(),
        key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        listen = taken.local_addr()?,
    ))?;
    let all = doctor()?;
    ensure!(failures(&all) == ["listen", "metadata", "OST0000", "servers"], "{all:#?}");
    Ok(())
}

#[test]
fn the_doctor_finds_a_federation_well() -> Result<()> {
    with_plan(&Plan::default(), |lab| {
        let status = lab.status()?;
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let all = lab.json(&["doctor", "--mount", &format!("{address}:/extenci")])?;
        let all = all.as_array().context("a list")?;
        ensure!(all.iter().all(|finding| finding["state"] != "fail"), "{all:#?} {status:#}");
        let has = |check: &str| {
            all.iter().any(|f| f["check"].as_str().is_some_and(|c| c.starts_with(check)))
        };
        ensure!(
            ["clock", "/dev/fuse", "OST0002 OST0003 127.0.0.1", "MDT0001 127.0.0.1"].map(has)
                == [true; 4],
            "{all:#?}"
        );
        let uf = lab.dir().join("sites/uf/mds.toml").display().to_string();
        let all = lab.json(&["doctor", "--settings", &uf])?;
        ensure!(all.to_string().contains("in use by the running server"), "{all:#}");
        // Without being told: the mounts of this machine (those of other tests among them).
        let run = lab.try_tieline(&["doctor", "--json"])?;
        let all: Value = serde_json::from_str(&run.stdout)?;
        let mount = format!("{} ", lab.mount().display());
        let of_ours = |f: &&Value| f["check"].as_str().is_some_and(|c| c.starts_with(&mount));
        let ours: Vec<_> = all.as_array().context("a list")?.iter().filter(of_ours).collect();
        ensure!(ours.len() > 4 && ours.iter().all(|f| f["state"] != "fail"), "{all:#}");
        Ok(())
    })
}
