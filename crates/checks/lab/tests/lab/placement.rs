//! Where bytes go: pools, layouts and `setstripe`, seen with `getstripe --json`; and the verbs that
//! need no mount.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tieline_lab::{Federation, with_federation};

/// What `getstripe --json` says of one path.
fn getstripe(lab: &Federation, path: &Path) -> Result<Value> {
    let path = path.to_str().context("a path in UTF-8")?;
    let all = lab.json(&["getstripe", "-d", path])?;
    Ok(all.get(0).context("one answer")?.clone())
}

/// (offset, OST, site) of each chunk of a file, in order.
fn chunks(lab: &Federation, path: &Path) -> Result<Vec<(u64, u64, String)>> {
    let file = getstripe(lab, path)?;
    let extents = file["extents"].as_array().context("extents")?;
    extents
        .iter()
        .filter(|extent| extent.get("chunk").is_some())
        .map(|extent| {
            let place = &extent["chunk"]["places"][0];
            let offset = extent["offset"].as_u64().context("offset")?;
            let ost = place["ost"].as_u64().context("ost")?;
            Ok((offset, ost, place["site"].as_str().context("site")?.to_owned()))
        })
        .collect()
}

/// The OSTs of a federation, from `df --json`.
fn osts(lab: &Federation) -> Result<Vec<(u64, String)>> {
    let mount = lab.mount().to_str().context("path")?.to_owned();
    let space = lab.json(&["df", mount.as_str()])?;
    let all = space["osts"].as_array().with_context(|| format!("osts in {space:#}"))?;
    all.iter()
        .map(|ost| {
            let index = ost["ost"].as_u64().context("ost")?;
            Ok((index, ost["site"].as_str().context("site")?.to_owned()))
        })
        .collect()
}

fn write(path: &Path, length: usize) -> Result<()> {
    let file = fs::File::create(path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; length], 0)?;
    Ok(file.sync_all()?)
}

#[test]
fn chunks_go_round_all_osts() -> Result<()> {
    with_federation(|lab| {
        let folder = lab.mount().join("wide");
        fs::create_dir(&folder)?;
        let shown = folder.to_str().context("path")?;
        let osts = osts(lab)?;
        // Of a pool, and of all.
        for (pool, name) in [("uf", "narrow"), ("none", "wide")] {
            lab.tieline(&["setstripe", "-c", "-1", "-S", "1M", "-p", pool, shown])?;
            write(&folder.join(name), 8 << 20)?;
            let chunks = chunks(lab, &folder.join(name))?;
            ensure!(chunks.len() == 8, "{chunks:?}");
            let wanted = osts.iter().filter(|(_, site)| pool == "none" || site == pool);
            let wanted: BTreeSet<_> = wanted.map(|(ost, _)| *ost).collect();
            let round: Vec<_> = chunks.iter().map(|(_, ost, _)| *ost).collect();
            ensure!(round.iter().copied().collect::<BTreeSet<_>>() == wanted, "{round:?}");
            for (index, ost) in round.iter().enumerate() {
                ensure!(Some(ost) == round.get(index % wanted.len()), "{round:?} is no round");
                ensure!(chunks.get(index).map(|chunk| chunk.0) == Some((index as u64) << 20));
            }
        }
        Ok(())
    })
}

#[test]
fn a_tree_keeps_its_data_at_its_site() -> Result<()> {
    with_federation(|lab| {
        write(&lab.mount().join("fnal/f"), 9 << 20)?;
        fs::create_dir_all(lab.mount().join("fnal/a/b"))?;
        write(&lab.mount().join("fnal/a/b/f"), 100_000)?;
        for file in ["fnal/f", "fnal/a/b/f"] {
            let chunks = chunks(lab, &lab.mount().join(file))?;
            ensure!(!chunks.is_empty(), "{file} has no chunks");
            ensure!(chunks.iter().all(|(_, _, site)| site == "fnal"), "{file}: {chunks:?}");
        }
        Ok(())
    })
}

#[test]
fn small_files_live_in_the_metadata_unless_told_otherwise() -> Result<()> {
    with_federation(|lab| {
        let at = |name: &str| lab.mount().join(name);
        write(&at("small"), 16 << 10)?;
        write(&at("larger"), (16 << 10) + 1)?;
        ensure!(chunks(lab, &at("small"))?.is_empty());
        ensure!(!chunks(lab, &at("larger"))?.is_empty());
        fs::create_dir(at("raid0"))?;
        lab.tieline(&["setstripe", "-L", "raid0", at("raid0").to_str().context("path")?])?;
        write(&at("raid0/small"), 100)?;
        ensure!(!chunks(lab, &at("raid0/small"))?.is_empty());
        Ok(())
    })
}

#[test]
fn pools_are_made_used_and_destroyed() -> Result<()> {
    with_federation(|lab| {
        let (ost, _) = osts(lab)?.last().cloned().context("an OST")?;
        let member = format!("extenci-OST{ost:04x}");
        let mount = lab.mount().to_str().context("path")?;
        // Verbs without a path find the file system by the only mount there is; tests run
        // beside each other, so this one says which.
        let fs_of = ["--fs", mount];
        let pool = |words: &[&str]| lab.tieline(&[&["pool"], words, &fs_of].concat());
        pool(&["new", "extenci.chosen"])?;
        pool(&["add", "extenci.chosen", &member])?;
        ensure!(pool(&["list", "extenci.chosen"])?.contains(&member));
        let folder = lab.mount().join("chosen");
        fs::create_dir(&folder)?;
        let shown = folder.to_str().context("path")?;
        lab.tieline(&["setstripe", "-p", "chosen", "-c", "-1", shown])?;
        for number in 0..4 {
            let path = folder.join(number.to_string());
            write(&path, 6 << 20)?;
            let chunks = chunks(lab, &path)?;
            ensure!(chunks.iter().all(|chunk| chunk.1 == ost), "{chunks:?} are not at {ost}");
        }
        // A layout is inherited, and may be taken back.
        fs::create_dir(folder.join("below"))?;
        ensure!(getstripe(lab, &folder.join("below"))?["layout"]["pool"] == "chosen");
        lab.tieline(&["setstripe", "-d", shown])?;
        ensure!(getstripe(lab, &folder)?["layout"]["pool"] != "chosen");
        pool(&["remove", "extenci.chosen", &member])?;
        pool(&["destroy", "extenci.chosen"])?;
        ensure!(!pool(&["list", "extenci"])?.contains("chosen"));
        Ok(())
    })
}

#[test]
fn an_ost_that_is_not_active_takes_no_new_chunks() -> Result<()> {
    with_federation(|lab| {
        let mount = lab.mount().to_str().context("path")?;
        let (ost, _) = osts(lab)?.first().cloned().context("an OST")?;
        let name = format!("extenci-OST{ost:04x}");
        let folder = lab.mount().join("wide");
        fs::create_dir(&folder)?;
        let shown = folder.to_str().context("path")?;
        lab.tieline(&["setstripe", "-c", "-1", "-S", "1M", "-p", "none", shown])?;
        write(&folder.join("before"), 8 << 20)?;
        ensure!(chunks(lab, &folder.join("before"))?.iter().any(|chunk| chunk.1 == ost));
        lab.tieline(&["ost", "deactivate", &name, "--fs", mount])?;
        write(&folder.join("after"), 8 << 20)?;
        let after = chunks(lab, &folder.join("after"))?;
        ensure!(after.iter().all(|chunk| chunk.1 != ost), "{after:?}");
        // What lies there is still read, also by a client that has nothing cached.
        ensure!(fs::read(lab.mount_again()?.join("wide/before"))? == vec![1; 8 << 20]);
        lab.tieline(&["ost", "activate", &name, "--fs", mount])?;
        write(&folder.join("again"), 8 << 20)?;
        ensure!(chunks(lab, &folder.join("again"))?.iter().any(|chunk| chunk.1 == ost));
        Ok(())
    })
}

#[test]
fn verbs_work_without_a_mount() -> Result<()> {
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let url = |path: &str| format!("tieline://{address}/extenci/{path}");
        let (local, back) = (lab.local("local"), lab.local("back"));
        let bytes: Vec<u8> = (0..9_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        fs::write(&local, &bytes)?;
        let (from, to) = (local.to_str().context("path")?, back.to_str().context("path")?);
        lab.tieline(&["put", from, &url("f")])?;
        ensure!(fs::read(lab.mount().join("f"))? == bytes, "the mount sees what was put");
        lab.tieline(&["get", &url("f"), to])?;
        ensure!(fs::read(&back)? == bytes);
        fs::create_dir(lab.mount().join("d"))?;
        fs::write(lab.mount().join("d/text"), "said\n")?;
        ensure!(lab.tieline(&["cat", &url("d/text")])? == "said\n");
        let names = lab.tieline(&["ls", &url("")])?;
        let names: BTreeSet<_> = names.split_whitespace().collect();
        ensure!(names == BTreeSet::from(["d", "f", "fnal"]), "{names:?}");
        let found = lab.tieline(&["find", &url(""), "-name", "te*"])?;
        ensure!(found.trim().ends_with("d/text") && found.lines().count() == 1, "{found}");
        let stat = lab.json(&["stat", &url("f")])?;
        ensure!(stat.to_string().contains("9000000"), "{stat}");
        // The same sum as zlib's, and as the attribute tells.
        let sum = lab.tieline(&["checksum", &url("f")])?;
        let zlib = lab.shell(
            "python3 -c 'import zlib; print(\"%08x\" % zlib.adler32(open(\"f\", \"rb\").read()))'",
        )?;
        ensure!(sum.split_whitespace().next() == Some(zlib.trim()), "{sum} for {zlib}");
        // What is not there says so, and exits with 1.
        let run = lab.try_tieline(&["cat", &url("nothing")])?;
        ensure!(run.status.code() == Some(1), "{run:?}");
        ensure!(run.stderr.to_lowercase().contains("no such file"), "{}", run.stderr);
        Ok(())
    })
}

/// Has the OSTs of `uf` begin anew with another setting for each.
fn limit(lab: &Federation, setting: &str) -> Result<()> {
    let path = lab.dir().join("sites/uf/oss.toml");
    let text = fs::read_to_string(&path)?;
    let kept =
        text.lines().filter(|line| !line.starts_with("limit =") && !line.starts_with("mdts ="));
    let lines: Vec<String> = kept
        .map(|line| match line.starts_with("read_only =") {
            true => format!("{line}\n{setting}"),
            false => line.to_owned(),
        })
        .collect();
    fs::write(&path, lines.join("\n"))?;
    let dir = lab.dir().to_string_lossy().into_owned();
    lab.tieline(&["dev", "restart", "oss-uf", "--dir", &dir])?;
    // The MDSs ask every five seconds.
    std::thread::sleep(std::time::Duration::from_secs(11));
    Ok(())
}

fn free(lab: &Federation, site: &str) -> Result<u64> {
    let mount = lab.mount().to_str().context("path")?.to_owned();
    let space = lab.json(&["df", mount.as_str()])?;
    let osts = space["osts"].as_array().with_context(|| format!("osts in {space:#}"))?;
    let osts = osts.iter().filter(|ost| ost["site"] == site);
    Ok(osts.map(|ost| ost["bytes"]["free"].as_u64().unwrap_or(0)).sum())
}

/// A site says how much of its OSTs is used, and by whose MDSs, whatever they wish.
#[test]
fn a_site_limits_its_own_osts() -> Result<()> {
    with_federation(|lab| {
        let spooled = "cannot be stored";
        for said in ["chunk goes to another OST", "a call failed", "could not be written", spooled]
        {
            lab.expect_log(said);
        }
        let here = lab.mount().to_owned();
        write(&here.join("before"), 6 << 20)?;
        limit(lab, "limit = \"16 MiB\"")?;
        let left = free(lab, "uf")?;
        ensure!(left == (2 * 16 - 6) << 20, "{left} bytes are free");
        let full = write(&here.join("large"), 40 << 20);
        let full = full.err().context("more than the site gives was written")?;
        let code = full.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        ensure!(code == Some(28), "not ENOSPC: {full:#}");
        ensure!(fs::read(here.join("before"))?.len() == 6 << 20);
        // MDT0000's chunks are kept out, MDT0001's are not.
        limit(lab, "mdts = [1]")?;
        let again = lab.mount_again()?;
        ensure!(fs::read(again.join("before")).is_err(), "a chunk of MDT0000 was read");
        ensure!(write(&here.join("kept-out"), 1 << 20).is_err(), "MDT0000 wrote");
        let far = here.join("fnal/guest");
        fs::create_dir(&far)?;
        lab.tieline(&["setstripe", "-p", "uf", far.to_str().context("path")?])?;
        write(&far.join("f"), 1 << 20)?;
        ensure!(chunks(lab, &far.join("f"))?.iter().all(|chunk| chunk.2 == "uf"));
        Ok(())
    })
}

/// Bytes that differ from place to place.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

#[test]
fn a_file_is_migrated_while_others_read_and_write_it() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("moves");
        let shown = path.to_str().context("path")?;
        let mut wanted = bytes(24 << 20);
        fs::write(&path, &wanted)?;
        fs::hard_link(&path, lab.mount().join("other name"))?;
        lab.shell(
            "chmod 640 moves; setfattr -n user.k -v v moves; touch -d 2020-01-02 moves; sync .",
        )?;
        let look = || lab.shell("stat -c '%i %a %h %s %Y %Z' moves; getfattr -d moves");
        let before = look()?;
        let read = || fs::read(lab.mount_again()?.join("moves")).context("read");
        // Somebody writes here and there all the while.
        let said = std::thread::scope(|scope| {
            let migrating = scope.spawn(|| {
                lab.try_tieline(&["migrate", "-c", "2", "-S", "1M", "-p", "fnal", "--json", shown])
            });
            let writer = fs::OpenOptions::new().write(true).open(&path)?;
            for round in 0..20_u64 {
                let (at, piece) = (round * 1_200_007, [round as u8; 7001]);
                std::os::unix::fs::FileExt::write_all_at(&writer, &piece, at)?;
                writer.sync_data()?;
                wanted[at as usize..][..piece.len()].copy_from_slice(&piece);
            }
            drop(writer);
            migrating.join().expect("no panic")
        })?;
        ensure!(matches!(said.status.code(), Some(0 | 1)), "{said:?}");
        ensure!(
            read()? == wanted,
            "what was written meanwhile is there, and nothing else is changed"
        );
        let rest = lab.json(&["migrate", shown])?;
        ensure!(rest[0]["bytes_left"] == 0, "{rest:#}");
        ensure!(read()? == wanted, "and after the rest was moved");
        let all = chunks(lab, &path)?;
        ensure!(all.iter().all(|(_, _, site)| site == "fnal"), "{all:?}");
        ensure!(all.iter().map(|(at, ..)| *at).eq((0..24).map(|mib| mib << 20)), "{all:?}");
        ensure!(all.iter().map(|(_, ost, _)| *ost).collect::<BTreeSet<_>>().len() == 2, "{all:?}");
        let again = lab.json(&["migrate", "-p", "fnal", shown])?;
        ensure!(again[0]["bytes_moved"] == 0, "all of it is there: {again:#}");
        // Nothing but where its bytes lie is another; the writer's times apart.
        lab.shell("touch -d 2020-01-02 moves; sync .")?;
        let (before, after) = (before.split_whitespace(), look()?);
        let is_ctime = |at: &usize| *at == 5;
        let fields = before.zip(after.split_whitespace()).enumerate();
        let changed: Vec<_> = fields.filter(|(at, (a, b))| !is_ctime(at) && a != b).collect();
        ensure!(changed.is_empty(), "{changed:?}");
        // Two copies, and back to one; small chunks; into the metadata and out of it.
        lab.tieline(&["migrate", "-N", "2", "-p", "none", "--chunk-size", "64K", shown])?;
        lab.tieline(&["mirror", "resync", shown])?;
        lab.tieline(&["mirror", "verify", shown])?;
        ensure!(chunks(lab, &path)?.len() == 24 << 4 && read()? == wanted);
        lab.tieline(&["migrate", "-N", "1", "-c", "1", "-p", "uf", "--chunk-size", "4M", shown])?;
        ensure!(chunks(lab, &path)?.len() == 6 && read()? == wanted);
        let small = lab.mount().join("small");
        let shown = small.to_str().context("path")?;
        fs::write(&small, bytes(5000))?;
        for (layout, count) in [("raid0", 1), ("mdt", 0)] {
            lab.tieline(&["migrate", "-L", layout, shown])?;
            ensure!(chunks(lab, &small)?.len() == count, "{layout}");
            ensure!(fs::read(lab.mount_again()?.join("small"))? == bytes(5000), "{layout}");
        }
        let refused =
            lab.try_tieline(&["migrate", "-c", "1", lab.mount().to_str().context("path")?])?;
        ensure!(refused.status.code() == Some(1) && refused.stderr.contains("no regular file"));
        Ok(())
    })
}

#[test]
fn an_ost_is_emptied() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("f");
        let shown = path.to_str().context("path")?;
        lab.tieline(&["setstripe", "-i", "0", "-c", "1", shown])?;
        write(&path, 9 << 20)?;
        ensure!(chunks(lab, &path)?.iter().all(|(_, ost, _)| *ost == 0));
        lab.tieline(&["ost", "deactivate", "--fs", shown, "OST0000"])?;
        lab.tieline(&["migrate", shown])?;
        let moved = chunks(lab, &path)?;
        ensure!(!moved.is_empty() && moved.iter().all(|(_, ost, _)| *ost != 0), "{moved:?}");
        ensure!(fs::read(lab.mount_again()?.join("f"))? == vec![1; 9 << 20]);
        lab.tieline(&["ost", "activate", "--fs", shown, "OST0000"]).map(drop)
    })
}

#[test]
fn ids_lead_to_paths_and_emptied_pools_are_told() -> Result<()> {
    with_federation(|lab| {
        lab.shell("mkdir -p a/b fnal/c && echo x > a/b/f && ln a/b/f a/g && echo x > fnal/c/h")?;
        let mount = lab.mount().to_str().context("path")?.to_owned();
        let below = |path: &str| format!("{mount}/{path}");
        let id =
            |path: &str| lab.tieline(&["path2fid", &below(path)]).map(|id| id.trim().to_owned());
        let paths =
            lab.tieline(&["fid2path", &mount, &id("a/b/f")?, &id("fnal/c/h")?, &id("a")?])?;
        let wanted = ["a/b/f", "a/g", "fnal/c/h", "a"].map(below);
        ensure!(paths.lines().eq(wanted.iter()), "{paths}");
        let inode = lab.shell("stat -c %i a/g")?;
        let named = lab.json(&["fid2path", &mount, inode.trim()])?;
        ensure!(named[1]["path"] == below("a/g"), "{named:#}");
        let lost = id("fnal/c/h")?;
        lab.shell("rm fnal/c/h; sync .")?;
        let none = lab.try_tieline(&["fid2path", &mount, &lost])?;
        ensure!(none.status.code() == Some(1) && none.stderr.contains("undelete"), "{none:?}");
        lab.tieline(&["pool", "new", "--fs", &mount, "extenci.p"])?;
        lab.tieline(&["pool", "add", "--fs", &mount, "extenci.p", "OST0000"])?;
        lab.tieline(&["setstripe", "-p", "p", &below("a/b")])?;
        lab.tieline(&["setstripe", "-N", "-p", "p", "-N", "-p", "fnal", &below("a")])?;
        let removed =
            lab.try_tieline(&["pool", "remove", "--fs", &mount, "extenci.p", "OST0000"])?;
        let told = removed.stderr;
        ensure!(told.contains("/a, /a/b among them") && told.contains("setstripe"), "{told}");
        let found = lab.tieline(&["find", &mount, "-type", "d", "-pool", "p"])?;
        ensure!(found.lines().eq([below("a"), below("a/b")].iter()), "{found}");
        Ok(())
    })
}
