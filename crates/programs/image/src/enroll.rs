//! `tieline image enroll`: what one machine gets at its first boot, kept in a folder of its own.
//!
//! The realm's kadmin makes its principal and its keytab; the map says what is believed of it, if
//! `--trust` asks for that. Enrolling again makes new keys: what was given out before ends.
//!
//! Invariants: only its owner reads a machine's folder; what makes a machine startable is written
//! last.

use crate::machine::{self, Machine};
use crate::{krb5conf, places, tools};
use anyhow::{Context, bail, ensure};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_base::keys;
use tieline_base::location::Location;
use tieline_base::proving;
use tieline_base::report::usage;
use tieline_machine::beneath;
use tieline_types::MachineTrust;

/// Where a machine's keys are, in the machine.
const KEYTAB_THERE: &str = "/etc/krb5.keytab";
const SYSTEM_CONF: &str = "/etc/krb5.conf";
/// Beside the krb5.conf of a realm of `tieline dev`.
const DEV_KDC_CONF: &str = "kdc.conf";
const KDC_PROFILE: &str = "KRB5_KDC_PROFILE";
const CONF_MAX: u64 = 1 << 20;

#[derive(clap::Args, Debug)]
pub struct Enroll {
    /// What the machine is called
    pub name: String,
    /// The file system it mounts: a path below a mount, or tieline://HOST[:PORT]/FS; by default the
    /// one that is mounted here
    #[arg(long)]
    pub fs: Option<OsString>,
    /// Where it mounts it; by default /FS
    #[arg(long, value_name = "PATH")]
    pub mountpoint: Option<PathBuf>,
    /// More options of its mount
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Option<String>,
    /// Its principal; by default host/NAME.DOMAIN@REALM, where DOMAIN is the realm in small letters
    #[arg(long)]
    pub principal: Option<String>,
    /// What servers believe of it (`tieline id machine`): root, users or all; not changed by
    /// default
    #[arg(long, value_name = "RULE")]
    pub trust: Option<MachineTrust>,
    /// How kadmin is called, such as `kadmin -p ann/admin`; by default `kadmin`, or `kadmin.local`
    /// for a realm of `tieline dev`
    #[arg(long, value_name = "COMMAND")]
    pub kadmin: Option<String>,
    /// The realm's krb5.conf; by default that of the mount, or of this machine
    #[arg(long, value_name = "FILE")]
    pub krb5conf: Option<PathBuf>,
    /// The federation has no realm: no principal and no keytab
    #[arg(long, conflicts_with_all = ["principal", "kadmin", "krb5conf", "trust"])]
    pub no_keytab: bool,
    /// The folder of all machines; by default ~/.local/share/tieline/machines
    #[arg(long, value_name = "DIR")]
    pub machines: Option<PathBuf>,
}

/// A realm, as its krb5.conf says.
struct Realm {
    conf: PathBuf,
    text: String,
    name: String,
    principal: String,
}

pub fn run(args: &Enroll) -> anyhow::Result<()> {
    machine::check_name(&args.name).map_err(|error| usage(error.to_string()))?;
    let location = Location::find_fs(args.fs.as_deref(), None)?;
    let realm = if args.no_keytab { None } else { Some(realm(args, &location)?) };
    let machine = describe(args, &location, realm.as_ref())?;
    let folder = places::machines(args.machines.as_deref())?.join(&args.name);
    let given = folder.join("given");
    fs::create_dir_all(&given)
        .and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o700)))
        .with_context(|| format!("cannot make {}", folder.display()))?;
    // Not startable while it is changed.
    let text = given.join(machine::MACHINE);
    if text.exists() {
        fs::remove_file(&text).with_context(|| format!("cannot change {}", text.display()))?;
    }
    if let Some(realm) = &realm {
        let kadmin = kadmin(args, realm)?;
        keytab(&kadmin, realm, &given.join(machine::KEYTAB))?;
        write(&given.join(machine::KRB5_CONF), krb5conf::portable(&realm.text).as_bytes())?;
        if let Some(trust) = args.trust {
            believe(&location, realm, trust)?;
        }
    }
    write(&text, machine.text()?.as_bytes())?;
    let who = realm.map_or_else(|| "without a keytab".to_owned(), |realm| realm.principal);
    println!(
        "{} is {who}, and will mount {} at {}",
        args.name,
        machine.source,
        machine.mountpoint.display()
    );
    println!("start it with: tieline vm start {}", args.name);
    Ok(())
}

fn describe(args: &Enroll, location: &Location, realm: Option<&Realm>) -> anyhow::Result<Machine> {
    let fs = &location.source.fs;
    let mut options = Vec::new();
    let mapkey = location.mapkey.as_deref().with_context(|| {
        format!("the key of /{fs} is not known here: put it into /etc/tieline/{fs}.key")
    })?;
    options.push(format!("mapkey={}", keys::key_open(mapkey).map_err(usage)?.to_hex()));
    if let Some(realm) = realm {
        options.push(format!("keytab={KEYTAB_THERE},principal={}", realm.principal));
    }
    options.extend(args.options.clone());
    let domain = realm.map(|realm| realm.name.to_ascii_lowercase());
    let machine = Machine {
        name: args.name.clone(),
        hostname: match domain {
            Some(domain) => format!("{}.{domain}", args.name),
            None => args.name.clone(),
        },
        source: location.source.whole().to_string(),
        mountpoint: args.mountpoint.clone().unwrap_or_else(|| format!("/{fs}").into()),
        options: options.join(","),
    };
    machine.check().map_err(|error| usage(error.to_string()))?;
    Ok(machine)
}

fn realm(args: &Enroll, location: &Location) -> anyhow::Result<Realm> {
    let of_process = std::env::var_os(proving::CONFIG).map(PathBuf::from);
    let conf = args.krb5conf.clone().or_else(|| location.proving.config.clone()).or(of_process);
    let conf = conf.unwrap_or_else(|| SYSTEM_CONF.into());
    let text = read_conf(&conf).with_context(|| {
        let without = "for a federation without a realm say --no-keytab";
        format!("cannot read {}: name it with --krb5conf, or {without}", conf.display())
    })?;
    let of_principal = args.principal.as_deref().and_then(|name| name.split_once('@'));
    let name = match of_principal {
        Some((_, realm)) => Some(realm.to_owned()),
        None => default_realm(&text),
    };
    let name = name.with_context(|| {
        format!("{} has no default_realm: give --principal NAME@REALM", conf.display())
    })?;
    let domain = name.to_ascii_lowercase();
    let principal = match &args.principal {
        Some(principal) if principal.contains('@') => principal.clone(),
        Some(principal) => format!("{principal}@{name}"),
        None => format!("host/{}.{domain}@{name}", args.name),
    };
    // It becomes a word of kadmin's, and of mount's options.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@/._-".contains(c);
    if !principal.chars().all(is_plain) || principal.starts_with('-') {
        return Err(usage(format!("--principal: `{principal}` is no machine's principal")));
    }
    Ok(Realm { conf, text, name, principal })
}

fn read_conf(path: &Path) -> anyhow::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(CONF_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn default_realm(text: &str) -> Option<String> {
    let words = text.lines().filter_map(|line| line.split_once('='));
    let mut named = words.filter(|(key, _)| key.trim() == "default_realm");
    named.next().map(|(_, value)| value.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The words before `-q`, and a KDC's own settings for a realm of `tieline dev`.
struct Kadmin {
    words: Vec<String>,
    profile: Option<PathBuf>,
}

fn kadmin(args: &Enroll, realm: &Realm) -> anyhow::Result<Kadmin> {
    if let Some(words) = &args.kadmin {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        ensure!(!words.is_empty(), "--kadmin names no program");
        return Ok(Kadmin { words, profile: None });
    }
    let profile = realm.conf.with_file_name(DEV_KDC_CONF);
    let (need, profile) = match profile.exists() {
        true => (tools::KADMIN_LOCAL, Some(profile)),
        false => (tools::KADMIN, None),
    };
    tools::check(&[need])?;
    let program = need.find().context("kadmin is gone")?;
    Ok(Kadmin { words: vec![program.display().to_string()], profile })
}

impl Kadmin {
    /// One question. It may ask for a password: its input is ours.
    fn ask(&self, realm: &Realm, query: &str) -> anyhow::Result<String> {
        let (program, words) = self.words.split_first().context("--kadmin names no program")?;
        let mut command = Command::new(program);
        command.args(words).args(["-r", &realm.name, "-q", query]);
        command.env(proving::CONFIG, &realm.conf).stdin(Stdio::inherit());
        if let Some(profile) = &self.profile {
            command.env(KDC_PROFILE, profile);
        }
        tools::with_us(&mut command);
        let output = command.output().with_context(|| format!("cannot run {program}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !output.status.success() {
            bail!("{program}: {said}");
        }
        Ok(said)
    }
}

/// Makes the principal if it is not there, and gives it new keys in a new file.
fn keytab(kadmin: &Kadmin, realm: &Realm, path: &Path) -> anyhow::Result<()> {
    let principal = &realm.principal;
    let new = path.with_extension("new");
    if new.exists() {
        fs::remove_file(&new)?;
    }
    // That it is there already is said as an error, and is none.
    let said = kadmin.ask(realm, &format!("addprinc -randkey {principal}"))?;
    let more = kadmin.ask(realm, &format!("ktadd -k {} {principal}", new.display()))?;
    // kadmin ends well whatever became of a question.
    if !new.exists() {
        bail!("kadmin wrote no keytab for {principal}: {said} {more}");
    }
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

fn believe(location: &Location, realm: &Realm, trust: MachineTrust) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["id", "machine", &realm.principal, trust.name(), "--fs"]);
    command.arg(std::os::unix::ffi::OsStrExt::from_bytes(&location.typed[..]) as &std::ffi::OsStr);
    command.env(proving::CONFIG, &realm.conf).stdin(Stdio::null());
    tools::with_us(&mut command);
    let output = command.output().context("cannot run `tieline id`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cannot tell /{} of the machine (`tieline id machine`): {}",
        location.source.fs,
        said.trim()
    );
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    beneath::write_whole(path, bytes, 0o600)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_realm_is_the_default_one() {
        let text = "[libdefaults]\n  default_realm = EXTENCI.ORG \n";
        assert_eq!(default_realm(text).as_deref(), Some("EXTENCI.ORG"));
        assert_eq!(default_realm("[libdefaults]\ndefault_realm =\n"), None);
    }
}
