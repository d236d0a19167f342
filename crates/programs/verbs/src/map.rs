//! `tieline map`: shows the federation map; makes keys and a first map for a new federation.

use crate::operator;
use crate::shell;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tieline_base::federation::{MapText, SecurityText};
use tieline_base::keys::{keygen, secret_open};
use tieline_base::location::Location;
use tieline_format::Record;
use tieline_format::map::{Catalog, FederationMap, SignedMap};
use tieline_types::MdtIndex;
use tieline_wire::federation::{EditMap, MapEdit};

#[derive(clap::Subcommand, Debug)]
pub enum Map {
    /// Show the newest map
    Show {
        #[arg(long)]
        json: bool,
        /// As `map sign` reads it
        #[arg(long, conflicts_with = "json")]
        toml: bool,
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        path: Option<OsString>,
    },
    /// Make a federation's key pair: DIR/FS.secret (keep it) and DIR/FS.key (give it to everybody)
    Keygen {
        /// File system
        fs: tieline_types::FsName,
        /// Directory for both files
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Have the server with the secret key make another, which signs the map from now on; whoever
    /// knows the one of before is led to it
    RotateKey {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        path: Option<OsString>,
    },
    /// Sign a map written as TOML, for the root MDS's state directory
    Sign {
        /// The federation's secret key
        #[arg(long)]
        secret: PathBuf,
        /// Where the signed map goes: `map` in the state directory of the server with the secret
        /// key
        #[arg(long)]
        out: PathBuf,
        /// The map as text
        text: PathBuf,
    },
}

pub fn run(verb: Map) -> anyhow::Result<()> {
    match verb {
        Map::Show { json, toml, path } => show(path, json, toml),
        Map::Keygen { fs, dir } => {
            let (public, _) = keygen(&dir, fs.as_str())?;
            println!("{public}");
            Ok(())
        }
        Map::RotateKey { path } => rotate_key(path),
        Map::Sign { secret, out, text } => sign(&secret, &out, &text),
    }
}

fn rotate_key(path: Option<OsString>) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(path.as_deref())?;
    operator::run(&location, |operator| async move {
        let root = operator.map.mdt(MdtIndex(0)).context("the federation map has no root MDT")?;
        let line = operator.dial(MdtIndex(0))?;
        let answer = line.call(EditMap { edit: MapEdit::KeyRotate }).await;
        line.close().await;
        answer?;
        let newest = operator.fetch(&root.addresses).await?;
        println!("{}", newest.key.to_hex());
        let (fs, version) = (&newest.map.fs, newest.map.version);
        eprintln!(
            "That key signs the map of /{fs} from version {version} on. Whoever has the one of \
             before follows by himself; write the new one where that is written: map_key of \
             servers and doors, mapkey= of mounts, /etc/tieline/{fs}.key. Its secret is \
             map.secret in the state directory at {}: keep a copy where you kept the old one, and \
             destroy that",
            root.addresses.join(", ")
        );
        Ok(())
    })
}

fn sign(secret: &Path, out: &Path, text: &Path) -> anyhow::Result<()> {
    let signer = secret_open(secret).map_err(anyhow::Error::msg)?;
    let shown = text.display();
    let words = std::fs::read_to_string(text).with_context(|| format!("cannot read {shown}"))?;
    let map: MapText = toml::from_str(&words).with_context(|| format!("{shown}"))?;
    let map = map.build().with_context(|| format!("{shown} makes no sense"))?;
    let signed = match std::fs::read(out) {
        Err(_) => signer.sign(&map),
        Ok(bytes) => {
            let before = SignedMap::from_bytes(&bytes).ok();
            let opened =
                before.and_then(|signed| Some((signer.verifier().open(&signed).ok()?, signed)));
            match opened {
                Some((before, signed)) if before.version < map.version => {
                    signer.sign_after(&map, &signed)
                }
                Some((before, _)) => bail!(
                    "{} holds version {}: write a higher version into {shown}",
                    out.display(),
                    before.version
                ),
                None => bail!(
                    "{} is there and was not signed by this key: after `tieline map rotate-key` \
                     the key is map.secret beside it; if it is lost, docs/keys.md says what to do",
                    out.display()
                ),
            }
        }
    };
    tieline_machine::private::write_whole(out, &signed.to_bytes())
        .with_context(|| format!("cannot write {}", out.display()))
}

fn show(path: Option<OsString>, is_json: bool, is_toml: bool) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(path.as_deref())?;
    shell::run(&location, |shell| async move {
        let believed = shell.map.current();
        let (map, key) = (&believed.map, believed.key.to_hex());
        let mut out = io::stdout().lock();
        if is_json {
            let mut value = map_json(map);
            value["key"] = key.into();
            writeln!(out, "{value}")?;
        } else if is_toml {
            write!(out, "{}", toml::to_string(&MapText::of(map))?)?;
        } else {
            map_text(&mut out, map)?;
            writeln!(out, "  signed by {key}")?;
        }
        Ok(())
    })
}

fn map_json(map: &FederationMap) -> Value {
    let path = |mdt| map.junction_of(mdt).map(|junction| junction.name.to_string());
    json!({
        "fs": map.fs,
        "version": map.version.0,
        "mdts": map.mdts.iter().map(|mdt| json!({
            "mdt": mdt.mdt.0, "site": mdt.home, "addresses": mdt.addresses,
            "junction": path(mdt.mdt),
            "parent": map.junction_of(mdt.mdt).map(|junction| junction.parent.0),
        })).collect::<Vec<_>>(),
        "osts": map.osts.iter().map(|ost| json!({
            "ost": ost.ost.0, "site": ost.site, "addresses": ost.addresses,
            "active": ost.is_active,
        })).collect::<Vec<_>>(),
        "repositories": map.repositories().map(|known| {
            let (list, keys) = match &known.catalog {
                Catalog::Frozen(list) => (Some(list.to_string()), vec![]),
                Catalog::Signed(keys) => (None, keys.iter().map(|key| key.to_string()).collect()),
            };
            json!({
                "name": known.name.as_str(), "mdt": known.mdt.0, "sources": known.sources,
                "list": list, "keys": keys, "junction": path(known.mdt),
            })
        }).collect::<Vec<_>>(),
        "pools": map.pools.iter().map(|pool| json!({
            "name": pool.name, "osts": pool.osts.iter().map(|ost| ost.0).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "security": map.security.as_ref().map(SecurityText::of),
    })
}

fn map_text(out: &mut dyn Write, map: &FederationMap) -> io::Result<()> {
    writeln!(out, "/{}, map version {}", map.fs, map.version)?;
    for mdt in &map.mdts {
        let place = match map.junction_of(mdt.mdt) {
            Some(junction) => format!("at {} in {}", junction.name, junction.parent.mdt().label()),
            None => "root".to_owned(),
        };
        let addresses = mdt.addresses.join(", ");
        writeln!(out, "  {}  {:<12} {addresses}  ({place})", mdt.mdt.label(), mdt.home.as_str())?;
    }
    for ost in &map.osts {
        let addresses = ost.addresses.join(", ");
        let state = if ost.is_active { "" } else { "  (inactive)" };
        writeln!(out, "  {}  {:<12} {addresses}{state}", ost.ost.label(), ost.site.as_str())?;
    }
    for known in map.repositories() {
        let at = map.junction_of(known.mdt).map(|at| format!("  (at {})", at.name));
        let (label, sources) = (known.mdt.label(), known.sources.join(", "));
        writeln!(
            out,
            "  {label}  {:<12} {sources}{}",
            known.name.as_str(),
            at.unwrap_or_default()
        )?;
    }
    for pool in &map.pools {
        let osts: Vec<String> = pool.osts.iter().map(|ost| ost.label()).collect();
        writeln!(out, "  pool {}: {}", pool.name, osts.join(" "))?;
    }
    for door in map.security.iter().flat_map(|security| security.doors.iter().flatten()) {
        writeln!(out, "  door {}", crate::door::line(door))?;
    }
    for issuer in map.security.iter().flat_map(|security| security.issuers()) {
        writeln!(out, "  issuer {}", crate::issuer::line(issuer))?;
    }
    Ok(())
}
