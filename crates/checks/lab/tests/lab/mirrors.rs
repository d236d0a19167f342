//! Copies of chunks: made in parallel, read when one is lost, repaired when one is damaged, made
//! later when one was out of reach.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, shell, with_federation};

/// Three chunks.
const LENGTH: usize = 9_000_000;

/// Starts a server again that was killed.
fn start(lab: &Federation, server: &str) -> Result<()> {
    let dir = lab.dir();
    lab.tieline(&["dev", "start", server, "--dir", dir.to_str().context("path")?]).map(drop)
}

fn bytes(seed: u32) -> Vec<u8> {
    (0..LENGTH as u32).map(|at| (at.wrapping_mul(at | seed) >> 9) as u8).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// A directory whose new files have one copy at each site.
fn mirrored(lab: &Federation) -> Result<PathBuf> {
    let folder = lab.mount().join("mirrored");
    fs::create_dir(&folder)?;
    let shown = folder.to_str().context("path")?;
    lab.tieline(&["setstripe", "-N", "-p", "uf", "-N", "-p", "fnal", shown])?;
    Ok(folder)
}

/// One place of a file, as `getstripe --json` tells it.
#[derive(Clone, Debug)]
struct Place {
    offset: u64,
    ost: u64,
    site: String,
    object: String,
    is_stale: bool,
}

fn places(lab: &Federation, path: &Path) -> Result<Vec<Place>> {
    let file = lab.json(&["getstripe", path.to_str().context("path")?])?;
    let extents = file[0]["extents"].as_array().context("extents")?.clone();
    let mut all = Vec::new();
    for extent in &extents {
        for place in extent["chunk"]["places"].as_array().context("places")? {
            let text = |key: &str| Some(place[key].as_str()?.to_owned());
            all.push(Place {
                offset: extent["offset"].as_u64().context("offset")?,
                ost: place["ost"].as_u64().context("ost")?,
                site: text("site").context("site")?,
                object: text("object").context("object")?,
                is_stale: place["stale"].as_bool().context("stale")?,
            });
        }
    }
    Ok(all)
}

/// Waits until every chunk has a good copy at both sites.
fn wait_whole(lab: &Federation, path: &Path) -> Result<()> {
    wait(|| {
        let places = places(lab, path)?;
        let at = |site: &str| places.iter().filter(|place| place.site == site).count();
        let is_whole = places.iter().all(|place| !place.is_stale);
        // How many chunks there are depends on when the writer's bytes were sent.
        let is_twice = at("uf") >= 3 && at("uf") == at("fnal");
        Ok((is_whole && is_twice, format!("{places:#?}")))
    })
}

fn wait(mut look: impl FnMut() -> Result<(bool, String)>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let (is_true, seen) = look()?;
        if is_true {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "it does not come: {seen}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until both copies of each of a file's three chunks are good, and known to be: a repair is
/// on the disk before it is in the MDT.
fn wait_in_order(lab: &Federation, shown: &str) -> Result<()> {
    wait(|| {
        let found = lab.try_tieline(&["mirror", "verify", "--json", shown])?;
        let said: Value = serde_json::from_str(&found.stdout)?;
        let is_good = said[0]["good"].as_u64().is_some_and(|good| good >= 6);
        Ok((found.status.success() && is_good, format!("{found:?}")))
    })
}

/// The file of an object below its OST's directory.
fn object(lab: &Federation, place: &Place) -> Result<PathBuf> {
    let ost = lab.dir().join(format!("sites/{}/ost{:04x}/objects", place.site, place.ost));
    let found = shell(&ost, &format!("find . -name '{}'", place.object))?;
    Ok(ost.join(found.trim()))
}

fn byte_at(path: &Path, offset: u64) -> Result<u8> {
    let mut byte = [0];
    File::open(path)?.read_exact_at(&mut byte, offset)?;
    Ok(byte[0])
}

fn damage(path: &Path, offset: u64) -> Result<()> {
    let byte = byte_at(path, offset)? ^ 1;
    Ok(fs::OpenOptions::new().write(true).open(path)?.write_all_at(&[byte], offset)?)
}

/// Promise 27: A file with several mirrors is read, with the right bytes, when all but one of
/// the servers that hold its copies are gone.
#[test]
fn reading_goes_on_without_either_server() -> Result<()> {
    with_federation(|lab| {
        let path = mirrored(lab)?.join("f");
        write(&path, &bytes(1))?;
        wait_whole(lab, &path)?;
        for server in ["oss-uf", "oss-fnal"] {
            // Nothing of the file is in this mount's memory, but it knows both servers.
            let far = lab.mount_again()?.join("mirrored/f");
            let first = fs::read(&far)?;
            ensure!(first == bytes(1), "both are there, and the bytes are wrong");
            lab.signal(server, Signal::KILL)?;
            let begun = Instant::now();
            let cold = lab.mount_again()?.join("mirrored/f");
            ensure!(fs::read(&cold)? == bytes(1), "wrong bytes without {server}");
            ensure!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            start(lab, server)?;
        }
        Ok(())
    })
}

/// Promise 28: What is written while the server of one mirror is gone is copied there when it is
/// back.
#[test]
fn a_copy_that_could_not_be_made_is_made_later() -> Result<()> {
    with_federation(|lab| {
        let path = mirrored(lab)?.join("f");
        lab.signal("oss-fnal", Signal::KILL)?;
        let begun = Instant::now();
        write(&path, &bytes(2))?;
        ensure!(begun.elapsed() < Duration::from_secs(10), "fsync took {:?}", begun.elapsed());
        let before = places(lab, &path)?;
        let stale: Vec<_> = before.iter().filter(|place| place.is_stale).collect();
        ensure!(!stale.is_empty() && stale.iter().all(|place| place.site == "fnal"), "{before:#?}");
        let shown = path.to_str().context("path")?;
        let refusal = lab.try_tieline(&["mirror", "resync", shown])?;
        ensure!(refusal.status.code() == Some(1), "{refusal:?}");
        ensure!(refusal.stderr.contains("fnal"), "{}", refusal.stderr);
        start(lab, "oss-fnal")?;
        wait_whole(lab, &path)?;
        lab.signal("oss-uf", Signal::KILL)?;
        ensure!(fs::read(lab.mount_again()?.join("mirrored/f"))? == bytes(2));
        start(lab, "oss-uf")
    })
}

/// Promise 29: A damaged copy is found, read from another mirror, and made whole again.
#[test]
fn a_damaged_copy_is_repaired() -> Result<()> {
    with_federation(|lab| {
        let path = mirrored(lab)?.join("f");
        let shown = path.to_str().context("path")?;
        write(&path, &bytes(3))?;
        wait_whole(lab, &path)?;
        // Found by who looks for it.
        let victim = places(lab, &path)?.into_iter().find(|place| place.site == "fnal");
        let victim = victim.context("a copy at fnal")?;
        let file = object(lab, &victim)?;
        let good = byte_at(&file, 50_000)?;
        damage(&file, 50_000)?;
        lab.expect_log("does not match");
        lab.expect_log("damaged");
        let found = lab.try_tieline(&["mirror", "verify", "--json", shown])?;
        ensure!(found.status.code() == Some(1), "{found:?}");
        let said: Value = serde_json::from_str(&found.stdout)?;
        let trouble = &said[0]["troubles"][0];
        ensure!(trouble["state"] == "bad" && trouble["ost"] == victim.ost, "{said:#}");
        wait(|| Ok((byte_at(&object(lab, &victim)?, 50_000)? == good, "not repaired".into())))?;
        wait_in_order(lab, shown)?;
        // Found by who reads: every copy at one site has a damaged block. Not each is read there.
        let victims: Vec<Place> =
            places(lab, &path)?.into_iter().filter(|place| place.site == "uf").collect();
        for victim in &victims {
            damage(&object(lab, victim)?, 70_000)?;
        }
        let damaged = || -> Result<usize> {
            let is_bad = |victim: &&Place| -> Result<bool> {
                let good = bytes(3)[victim.offset as usize + 70_000];
                Ok(byte_at(&object(lab, victim)?, 70_000)? != good)
            };
            let bad: Vec<bool> =
                victims.iter().map(|victim| is_bad(&victim)).collect::<Result<_>>()?;
            Ok(bad.into_iter().filter(|&is_bad| is_bad).count())
        };
        let mut sites = BTreeSet::new();
        wait(|| {
            ensure!(fs::read(lab.mount_again()?.join("mirrored/f"))? == bytes(3), "wrong bytes");
            let places = places(lab, &path)?;
            sites.extend(places.iter().filter(|place| place.is_stale).map(|p| p.site.clone()));
            let left = damaged()?;
            Ok((left < victims.len(), format!("{left} are not repaired")))
        })?;
        ensure!(sites.iter().all(|site| site == "uf"), "{sites:?}");
        wait_in_order(lab, shown)?;
        ensure!(damaged()? == 0, "{victims:?}");
        let admin = lab.process("mds-uf")?["admin"].as_str().context("admin")?.to_owned();
        let metrics = shell(Path::new("/"), &format!("curl -s http://{admin}/metrics"))?;
        ensure!(metrics.contains("tieline_copies_bad_total{ost=\"OST"), "{metrics}");
        ensure!(metrics.contains("tieline_copies_made_total{ost=\"OST"), "{metrics}");
        // A whole object is gone.
        fs::remove_file(object(lab, &victim)?)?;
        let found = lab.try_tieline(&["mirror", "verify", shown])?;
        ensure!(found.stdout.contains("bad: chunk"), "{found:?}");
        wait(|| Ok((object(lab, &victim)?.is_file(), "the object is not back".into())))?;
        wait_in_order(lab, shown)
    })
}

#[test]
fn a_file_is_given_another_mirror() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("plain");
        let shown = path.to_str().context("path")?;
        write(&path, &bytes(4))?;
        let before = places(lab, &path)?;
        ensure!(before.len() >= 3 && before.iter().all(|place| place.site == "uf"), "{before:?}");
        let said = lab.json(&["mirror", "extend", "-N", "1", "-p", "fnal", shown])?;
        ensure!(said[0]["chunks"] == before.len() && said[0]["lacking"] == 0, "{said:#}");
        let after = places(lab, &path)?;
        let kept = after.iter().filter(|place| before.iter().any(|p| p.object == place.object));
        let is_whole = after.iter().all(|place| !place.is_stale);
        ensure!(kept.count() == 2 * before.len() && is_whole, "{after:?}");
        let text = lab.tieline(&["getstripe", shown])?;
        ensure!(text.contains("lcm_mirror_count:  2"), "{text}");
        lab.signal("oss-uf", Signal::KILL)?;
        ensure!(fs::read(lab.mount_again()?.join("plain"))? == bytes(4));
        start(lab, "oss-uf")?;
        // What is appended has two copies as well.
        fs::OpenOptions::new().append(true).open(&path)?.write_all(&bytes(5))?;
        lab.tieline(&["mirror", "resync", shown])?;
        let after = places(lab, &path)?;
        let at = |site: &str| after.iter().filter(|place| place.site == site).count();
        ensure!(at("uf") == at("fnal") && at("uf") >= 6, "{after:?}");
        // More mirrors than there are OSTs.
        let refusal = lab.try_tieline(&["mirror", "extend", "-N", "2", "-p", "uf", shown])?;
        ensure!(refusal.status.code() == Some(1), "{refusal:?}");
        ensure!(refusal.stderr.contains("active OSTs"), "{}", refusal.stderr);
        Ok(())
    })
}

#[test]
fn a_mirror_is_split_from_a_file() -> Result<()> {
    with_federation(|lab| {
        let path = mirrored(lab)?.join("f");
        let shown = path.to_str().context("path")?;
        write(&path, &bytes(6))?;
        wait_whole(lab, &path)?;
        let refusal = lab.try_tieline(&["mirror", "split", "-p", "nowhere", shown])?;
        ensure!(refusal.status.code() == Some(1), "{refusal:?}");
        ensure!(refusal.stderr.contains("tieline pool list"), "{}", refusal.stderr);
        // What would stay is damaged, and nobody knew.
        let victim = places(lab, &path)?.into_iter().find(|place| place.site == "uf");
        let victim = victim.context("a copy at uf")?;
        let good = byte_at(&object(lab, &victim)?, 50_000)?;
        damage(&object(lab, &victim)?, 50_000)?;
        lab.expect_log("does not match");
        lab.expect_log("damaged");
        let refusal = lab.try_tieline(&["mirror", "split", "-d", "-p", "fnal", shown])?;
        ensure!(refusal.status.code() == Some(1), "{refusal:?}");
        ensure!(refusal.stderr.contains("tieline mirror resync"), "{}", refusal.stderr);
        ensure!(places(lab, &path)?.iter().any(|place| place.site == "fnal"), "it went");
        wait(|| Ok((byte_at(&object(lab, &victim)?, 50_000)? == good, "not repaired".into())))?;
        wait_whole(lab, &path)?;
        let said = lab.json(&["mirror", "split", "-d", "-p", "fnal", shown])?;
        ensure!(said[0]["mirrors"] == 1 && said[0]["bytes_freed"] == LENGTH, "{said:#}");
        let after = places(lab, &path)?;
        ensure!(after.len() >= 3 && after.iter().all(|place| place.site == "uf"), "{after:?}");
        let text = lab.tieline(&["getstripe", shown])?;
        ensure!(!text.contains("lcm_mirror_count"), "{text}");
        ensure!(fs::read(lab.mount_again()?.join("mirrored/f"))? == bytes(6));
        // What is appended has one copy too.
        fs::OpenOptions::new().append(true).open(&path)?.write_all(&bytes(7))?;
        lab.tieline(&["mirror", "verify", shown])?;
        ensure!(places(lab, &path)?.iter().all(|place| place.site == "uf"));
        let refusal = lab.try_tieline(&["mirror", "split", shown])?;
        ensure!(refusal.stderr.contains("one copy only"), "{refusal:?}");
        // And the way back.
        lab.tieline(&["mirror", "extend", "-p", "fnal", shown])?;
        wait_whole(lab, &path)?;
        lab.tieline(&["mirror", "split", "--mirror-id", "1", shown])?;
        ensure!(places(lab, &path)?.iter().all(|place| place.site == "fnal"));
        ensure!(fs::read(&path)?.len() == 2 * LENGTH);
        Ok(())
    })
}
