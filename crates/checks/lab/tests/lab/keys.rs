//! Keys are replaced while servers and mounts run: who knew the one of before follows, and what it
//! signs after that is worth nothing.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tieline_auth::{MapSigner, MapVerifier};
use tieline_format::Record;
use tieline_format::map::{FederationMap, Handover, SignedMap};
use tieline_lab::nodes::Clients;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::{Federation, can_mount, with_federation};
use tieline_types::Version;

const REPLACED: &str = "another key by now";

fn shown(path: &Path) -> Result<&str> {
    path.to_str().context("a plain path")
}

/// The key that signs the map, as servers tell it.
fn key_now(lab: &Federation) -> Result<String> {
    let map = lab.json(&["map", "show", shown(lab.mount())?])?;
    Ok(map["key"].as_str().context("a key")?.to_owned())
}

fn rotate(lab: &Federation) -> Result<String> {
    let said = lab.tieline(&["map", "rotate-key", shown(lab.mount())?])?;
    Ok(said.trim().to_owned())
}

fn settings(lab: &Federation, site: &str, role: &str) -> PathBuf {
    lab.dir().join(format!("sites/{site}/{role}.toml"))
}

fn setting(settings: &Path, name: &str) -> Result<PathBuf> {
    let text: toml::Table = fs::read_to_string(settings)?.parse()?;
    let value = text.get(name).and_then(|value| value.as_str());
    Ok(value.with_context(|| format!("{} has no {name}", settings.display()))?.into())
}

/// The key that the federation began with, whose secret a thief has.
fn first_signer(lab: &Federation) -> Result<MapSigner> {
    let path = setting(&settings(lab, "uf", "mds"), "map_secret")?;
    let digits = fs::read_to_string(path)?;
    let mut secret = [0; 32];
    for (place, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16)?;
    }
    Ok(MapSigner::new(secret))
}

/// Names a tree in the map, and waits until a mount shows it: so it has that map.
fn follows(lab: &Federation, mounts: &[&Path], name: &str) -> Result<()> {
    let (from, to) = (lab.local(&format!("{name}-tree")), lab.local(&format!("{name}-frozen")));
    fs::create_dir(&from)?;
    fs::write(from.join("f"), name)?;
    let repository = format!("{name}.example.org");
    let said = lab.tieline(&["repo", "freeze", &repository, shown(&from)?, shown(&to)?])?;
    let list = said.split_whitespace().last().context("a digest")?;
    let (source, fs_at) = (format!("file://{}", shown(&to)?), shown(lab.mount())?);
    let words = ["repo", "add", &repository, &source, "--list", list, "--at", name, "--fs", fs_at];
    lab.tieline(&words)?;
    for mount in mounts {
        program::until("the mount has the newest map", DEADLINE, || mount.join(name).exists())?;
    }
    Ok(())
}

/// Promise 181: When the key that signs the map is replaced, servers, mounts and commands that know
/// the one of before go on with the new one by themselves.
#[test]
fn the_maps_key_is_replaced_and_everybody_follows() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        lab.expect_log(REPLACED);
        let (clients, first) = (Clients::new(lab), key_now(lab)?);
        fs::write(lab.mount().join("f"), "before")?;
        let second = rotate(lab)?;
        ensure!(second.len() == 64 && second != first && key_now(lab)? == second);
        ensure!(rotate_is_refused_elsewhere(lab)?);
        follows(lab, &[lab.mount()], "one")?;
        // Who has only the key of before is led to that of today, at any server, also at one that
        // slept, and over two changes.
        lab.signal("oss-fnal", Signal::STOP)?;
        let third = rotate(lab)?;
        lab.signal("oss-fnal", Signal::CONT)?;
        let old = clients.mount(&format!("mapkey={first}"))?;
        ensure!(fs::read_to_string(old.join("f"))? == "before");
        ensure!(clients.log(&old)?.contains(&third), "it does not say the key of today");
        let new = clients.mount(&format!("mapkey={third}"))?;
        fs::write(new.join("g"), "after")?;
        follows(lab, &[lab.mount(), &old, &new], "two")?;
        for server in ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"] {
            lab.kill_and_restart(server)?;
        }
        let fourth = rotate(lab)?;
        ensure!(![first, second, third].contains(&fourth));
        follows(lab, &[lab.mount(), &old, &new], "three")?;
        ensure!(fs::read_to_string(lab.mount().join("g"))? == "after");
        let words = ["doctor", "--part", "--at", shown(&old)?];
        let said = lab.try_tieline(&words)?.stdout;
        ensure!(said.contains(&fourth) && said.contains("mapkey"), "{said}");
        clients.unmount(&old)?;
        clients.unmount(&new)
    })
}

fn rotate_is_refused_elsewhere(lab: &Federation) -> Result<bool> {
    let map = lab.json(&["map", "show", shown(lab.mount())?])?;
    let elsewhere = map["mdts"][1]["addresses"][0].as_str().context("a second MDT")?.to_owned();
    let url = format!("tieline://{elsewhere}/extenci");
    // Any server leads to the one with the key.
    let rotated = lab.try_tieline(&["map", "rotate-key", &url])?;
    Ok(rotated.status.success() && rotated.stdout.trim() == key_now(lab)?)
}

/// Promise 182: What a replaced key signs is believed by nobody who followed its successor.
#[test]
fn what_the_old_key_signs_is_worth_nothing() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        for said in [REPLACED, "newer federation map cannot be had"] {
            lab.expect_log(said);
        }
        let first = first_signer(lab)?;
        let state = setting(&settings(lab, "uf", "oss"), "state")?.join("map");
        rotate(lab)?;
        follows(lab, &[lab.mount()], "one")?;
        let newest = SignedMap::from_bytes(&fs::read(&state)?)?;
        let map = first.verifier().open(&newest)?;
        let forged = FederationMap { version: Version(map.version.0 + 50), ..map };
        // Signed by the old key: with the true handover it is no map, and without it nobody who
        // knows the new key takes it. A server whose disk the thief has tells it to everybody.
        lab.tieline(&["dev", "kill", "oss-uf", "--dir", shown(&lab.dir())?])?;
        let refuses = |signed: &SignedMap| -> Result<bool> {
            fs::write(&state, signed.to_bytes())?;
            let settings = settings(lab, "uf", "oss");
            let checked =
                lab.try_tieline(&["server", "--check", "--settings", shown(&settings)?])?;
            let said = format!("{}{}", checked.stdout, checked.stderr);
            Ok(!checked.status.success() && said.contains("not signed by this federation's key"))
        };
        ensure!(refuses(&first.sign_after(&forged, &newest))?, "by the old key, after a handover");
        let thief = MapSigner::new([66; 32]);
        ensure!(refuses(&handed_to(&thief, &first.verifier(), &forged)?)?, "a forged handover");
        fs::write(&state, first.sign(&forged).to_bytes())?;
        lab.tieline(&["dev", "restart", "oss-uf", "--dir", shown(&lab.dir())?])?;
        follows(lab, &[lab.mount()], "two")?;
        let version = |value: &Value| value["version"].as_u64();
        let told = lab.json(&["map", "show", shown(lab.mount())?])?;
        ensure!(version(&told) < Some(forged.version.0), "{told}");
        fs::write(lab.mount().join("f"), vec![7; 1 << 20])?;
        // Its own map is put right, and it is one of the federation again.
        lab.tieline(&["dev", "kill", "oss-uf", "--dir", shown(&lab.dir())?])?;
        fs::write(&state, newest.to_bytes())?;
        lab.tieline(&["dev", "restart", "oss-uf", "--dir", shown(&lab.dir())?])?;
        fs::write(lab.mount().join("g"), vec![7; 1 << 20])?;
        fs::File::open(lab.mount().join("g"))?.sync_all()?;
        Ok(())
    })
}

/// As docs/keys.md has it: nobody is led to the new key, so it is given to everybody.
#[test]
fn a_lost_key_is_replaced_by_hand() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        lab.expect_log("federation map");
        fs::write(lab.mount().join("f"), "before")?;
        lab.tieline(&["sync", shown(lab.mount())?])?;
        let old = key_now(lab)?;
        let text = lab.tieline(&["map", "show", "--toml", shown(lab.mount())?])?;
        let mut text: toml::Table = text.parse()?;
        let version = text["version"].as_integer().context("a version")?;
        text.insert("version".to_owned(), (version + 1).into());
        let (written, folder) = (lab.local("map.toml"), lab.local("new"));
        fs::write(&written, toml::to_string(&text)?)?;
        fs::create_dir(&folder)?;
        let made = lab.tieline(&["map", "keygen", "extenci", "--dir", shown(&folder)?])?;
        let (new, secret) = (made.trim(), folder.join("extenci.secret"));
        let dir = lab.dir();
        let servers = [("uf", "mds"), ("uf", "oss"), ("fnal", "mds"), ("fnal", "oss")];
        for (site, role) in servers {
            lab.tieline(&["dev", "kill", &format!("{role}-{site}"), "--dir", shown(&dir)?])?;
        }
        let root = setting(&settings(lab, "uf", "mds"), "state")?.join("map");
        fs::rename(&root, root.with_extension("old"))?;
        let words = ["map", "sign", "--secret", shown(&secret)?, "--out", shown(&root)?];
        lab.tieline(&[&words[..], &[shown(&written)?]].concat())?;
        let before = setting(&settings(lab, "uf", "mds"), "map_secret")?;
        for (site, role) in servers {
            let path = settings(lab, site, role);
            let text = fs::read_to_string(&path)?.replace(&old, new);
            fs::write(&path, text.replace(shown(&before)?, shown(&secret)?))?;
            let map = setting(&path, "state")?.join("map");
            if map != root {
                fs::write(&map, fs::read(&root)?)?;
            }
            lab.tieline(&["dev", "restart", &format!("{role}-{site}"), "--dir", shown(&dir)?])?;
        }
        let clients = Clients::new(lab);
        let mount = clients.mount(&format!("mapkey={new}"))?;
        ensure!(fs::read_to_string(mount.join("f"))? == "before");
        fs::write(mount.join("g"), "after")?;
        let source = lab.status()?["source"].as_str().context("a source")?.to_owned();
        let (options, elsewhere) = (format!("mapkey={old}"), clients.folder()?);
        let refused = lab.try_tieline(&["mount", &source, shown(&elsewhere)?, "-o", &options])?;
        ensure!(refused.stderr.contains("not signed by this federation's key"), "{refused:?}");
        clients.unmount(&mount)
    })
}

/// A map of a thief who says that the federation's key handed over to his.
fn handed_to(thief: &MapSigner, key: &MapVerifier, map: &FederationMap) -> Result<SignedMap> {
    let mut said = thief.hand_over(&thief.verifier());
    let digits = key.to_hex();
    for (place, byte) in said.from.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16)?;
    }
    let handovers: Vec<Handover> = vec![said];
    Ok(SignedMap { handovers: Some(handovers), ..thief.sign(map) })
}
