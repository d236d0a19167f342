//! A site joins a federation that runs: one command for those who invite, one for who comes.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::NamedTempFile;
use tieline_auth::ScratchKdc;
use tieline_lab::program::DEADLINE;
use tieline_lab::{Federation, can_mount, is_root, program, tickets, with_federation};

/// A server that `tieline join` started, ended with this.
struct Joined(i64);

impl Joined {
    /// From what the command printed: `… as pid 123; …`.
    fn from_words(words: &str) -> Result<Self> {
        let (_, rest) = words.split_once("as pid ").context("it says its pid")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Ok(Self(digits.parse()?))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
            let gone = program::until("the server ends", Duration::from_secs(10), || {
                !program::is_running(self.0)
            });
            if gone.is_err() {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn free_address() -> Result<String> {
    Ok(format!("127.0.0.1:{}", program::free_port()?))
}

fn invite(federation: &Federation, site: &str) -> Result<String> {
    let mount = federation.mount().to_str().context("a plain path")?;
    let printed = federation.tieline(&["site", "invite", "--fs", mount, site])?;
    Ok(printed.trim().to_owned())
}

/// An invitation as it is kept: for its owner alone.
fn letter(invitation: &str) -> Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    std::fs::write(&file, format!("{invitation}\n"))?;
    Ok(file)
}

fn join_words<'a>(
    letter: &'a NamedTempFile,
    address: &'a str,
    dir: &'a Path,
    ost: &'a Path,
) -> Result<Vec<&'a str>> {
    let [dir, ost] = [dir, ost].map(Path::to_str);
    let (dir, ost) = (dir.context("a plain path")?, ost.context("a plain path")?);
    let letter = letter.path().to_str().context("a plain path")?;
    let mut words = vec!["join", letter, "--address", address, "--dir", dir, "--ost", ost];
    words.extend(["--mdt", "--reserve", "64 MiB"]);
    if is_root() {
        words.extend(["--user", "nobody"]);
    }
    Ok(words)
}

#[test]
fn an_invited_site_joins_with_one_command() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|federation| {
        let (invitation, address) = (invite(federation, "psc")?, free_address()?);
        let letter = letter(&invitation)?;
        // Somebody else's folders on the way to it must let the server through.
        let folder = tempfile::tempdir()?;
        std::fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        let (dir, ost) = (folder.path().join("state"), folder.path().join("lent"));
        let words = join_words(&letter, &address, &dir, &ost)?;
        // What a mount knows of the root, it knows without the site.
        let known = || std::fs::read_dir(federation.mount()).map(Iterator::count);
        let count = known()?;
        assert!(!federation.mount().join("psc").exists());
        let printed = said_beside_the_command(&invitation, &words)?;
        let joined = Joined::from_words(&printed)?;
        assert!(printed.contains("psc has joined /extenci with MDT0002 at /extenci/psc"));

        let mount = federation.mount().to_str().context("a plain path")?;
        // It has no rights of its own.
        if is_root() {
            let owner = std::fs::metadata(format!("/proc/{}", joined.0))?.uid();
            assert_ne!(owner, 0);
        }
        // Its tree is at home there, and so are the bytes of new files in it.
        let at_home = federation.mount().join("psc");
        let is_seen = || at_home.exists() && known().is_ok_and(|now| now == count + 1);
        program::until("the mount shows the site", DEADLINE, is_seen)?;
        let is_there = || std::fs::create_dir(at_home.join("data")).is_ok();
        program::until("the mount knows the site", DEADLINE, is_there)?;
        let file = at_home.join("data/events");
        std::fs::write(&file, vec![7; 1 << 20])?;
        std::fs::File::open(&file)?.sync_all()?;
        let path = file.to_str().context("a plain path")?;
        let stripes = federation.tieline(&["getstripe", path])?;
        let is_home = |line: &str| line.split_whitespace().next() == Some("4");
        assert!(stripes.lines().any(is_home), "{stripes}");
        let sites = federation.tieline(&["site", "list", mount])?;
        assert!(sites.lines().any(|line| line.starts_with("psc") && line.contains("OST0004")));

        // The invitation is used up, and says so before anything is started.
        let (again, lent) = (folder.path().join("again"), folder.path().join("lent too"));
        let other = free_address()?;
        let refused = federation.try_tieline(&join_words(&letter, &other, &again, &lent)?)?;
        assert!(!refused.status.success());
        assert!(refused.stderr.contains("this invitation was used"), "{}", refused.stderr);
        std::fs::remove_file(&file)?;
        drop(joined);
        Ok(())
    })
}

/// The command gets the invitation by its standard input: nobody sees it in `ps`. What it printed.
fn said_beside_the_command(invitation: &str, words: &[&str]) -> Result<String> {
    let (_, secret) = invitation.rsplit_once('.').context("an invitation has a secret")?;
    let written = [&["join", invitation], &words[2..]].concat();
    let refused = program::finish(Command::new(program::tieline()?).args(written), DEADLINE)?;
    ensure!(!refused.status.success() && refused.stderr.contains("can see"), "{refused:?}");
    ensure!(!refused.stderr.contains(secret), "{refused:?}");
    let words = [&["join", "-"], &words[2..]].concat();
    let mut command = Command::new(program::tieline()?);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program::start(&mut command)?;
    let line = std::fs::read(format!("/proc/{}/cmdline", child.id()))?;
    ensure!(!String::from_utf8_lossy(&line).contains(secret), "{}", line.escape_ascii());
    writeln!(child.stdin.take().context("a pipe")?, "{invitation}")?;
    // The server that it starts has its own output.
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn who_was_not_invited_changes_nothing() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|federation| {
        let mount = federation.mount().to_str().context("a plain path")?;
        let before = federation.tieline(&["map", "show", mount])?;
        let invitation = invite(federation, "psc")?;
        let forged: String = format!("{}{}", &invitation[..invitation.len() - 64], "0".repeat(64));
        let (letter, forged) = (self::letter(&invitation)?, self::letter(&forged)?);
        let folder = tempfile::tempdir()?;
        let (dir, ost) = (folder.path().join("new/state"), folder.path().join("lent"));
        let address = free_address()?;
        let refused = federation.try_tieline(&join_words(&forged, &address, &dir, &ost)?)?;
        assert!(!refused.status.success());
        // Nothing is left of it, and what was there before stays.
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
        std::fs::create_dir(&ost)?;
        let owner = std::fs::metadata(&ost)?.uid();
        let refused = federation.try_tieline(&join_words(&forged, &address, &dir, &ost)?)?;
        assert!(!refused.status.success());
        assert!(!folder.path().join("new").exists());
        assert_eq!(std::fs::metadata(&ost)?.uid(), owner);
        // What is wrong with one's own words is found while the invitation is good.
        let renamed = self::letter(&invitation.replacen("/psc@", "/bnl@", 1))?;
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken)?;
        std::fs::write(taken.join("tieline-ost"), "version = 1\n")?;
        let usual = join_words(&letter, &address, &dir, &ost)?;
        let wrongs = [
            (join_words(&renamed, &address, &dir, &ost)?, "is for site psc"),
            (join_words(&letter, &address, &dir, &taken)?, "objects of an OST"),
            ([&usual[..], &["--reserve", "much"]].concat(), "reserve"),
            ([&usual[..], &["--ost", ost.to_str().context("a path")?]].concat(), "ost[1].path"),
        ];
        for (words, why) in wrongs {
            let words: Vec<&str> = match why {
                // Said once.
                "reserve" => words.into_iter().filter(|word| *word != "64 MiB").collect(),
                _ => words,
            };
            let refused = federation.try_tieline(&words)?;
            assert!(!refused.status.success() && refused.stderr.contains(why), "{refused:?}");
        }
        let withdrawn = self::letter(&invite(federation, "bnl")?)?;
        federation.tieline(&["site", "uninvite", "--fs", mount, "bnl"])?;
        let refused = federation.try_tieline(&join_words(&withdrawn, &address, &dir, &ost)?)?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("this invitation was used, is over"), "{refused:?}");
        let targets = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        let after = federation.tieline(&["map", "show", mount])?;
        assert_eq!(targets(&before), targets(&after));
        std::fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        drop(Joined::from_words(&federation.tieline(&usual)?)?);
        Ok(())
    })
}

#[test]
fn a_site_hides_no_directory_of_its_name() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|federation| {
        let mount = federation.mount().to_str().context("a plain path")?;
        let there = federation.mount().join("psc");
        std::fs::create_dir(&there)?;
        std::fs::write(there.join("events"), "all of them")?;
        federation.tieline(&["sync", mount])?;
        let invited = federation.try_tieline(&["site", "invite", "--fs", mount, "psc"])?;
        assert!(invited.stderr.contains("/extenci/psc is there already"), "{invited:?}");
        let (letter, address) = (letter(invited.stdout.trim())?, free_address()?);
        let folder = tempfile::tempdir()?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open)?;
        let (dir, ost) = (folder.path().join("state"), folder.path().join("lent"));
        let words = join_words(&letter, &address, &dir, &ost)?;
        let refused = federation.try_tieline(&words)?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("`mv psc psc.old`"), "{}", refused.stderr);
        assert_eq!(std::fs::read_to_string(there.join("events"))?, "all of them");
        // The invitation is still good.
        let old = federation.mount().join("psc.old");
        std::fs::rename(&there, &old)?;
        federation.tieline(&["sync", mount])?;
        let joined = Joined::from_words(&federation.tieline(&words)?)?;
        assert_eq!(std::fs::read_to_string(old.join("events"))?, "all of them");
        std::fs::remove_dir_all(&old)?;
        drop(joined);
        Ok(())
    })
}

#[test]
fn with_a_realm_the_new_server_proves_itself() -> Result<()> {
    if !can_mount() || !tieline_lab::needs_root() {
        return Ok(());
    }
    tickets::with_kdc(|federation| {
        let said = "tieline_mds/psc.extenci.org@EXTENCI.ORG";
        proves_itself(federation, "psc", &[said], Some(said))?;
        // The first key is another service's.
        let names = ["host/127.0.0.1@EXTENCI.ORG", "tieline_mds/127.0.0.1@EXTENCI.ORG"];
        proves_itself(federation, "bnl", &names, None)
    })
}

/// A site joins with the keys of these, and serves.
fn proves_itself(
    federation: &Federation,
    site: &str,
    names: &[&str],
    principal: Option<&str>,
) -> Result<()> {
    // Its administrator types there; nobody dials it by this.
    let kdc = ScratchKdc::again(&federation.dir().join("kdc"), "EXTENCI.ORG", 0);
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let keys = std::fs::read(kdc.keytab(&format!("{site}.keytab"), &names)?)?;
    let folder = tempfile::tempdir()?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open)?;
    let keytab = folder.path().join("keytab");
    std::fs::write(&keytab, keys)?;
    std::fs::set_permissions(&keytab, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;

    let (letter, address) = (letter(&invite(federation, site)?)?, free_address()?);
    let (dir, ost) = (folder.path().join("state"), folder.path().join("lent"));
    let shown = keytab.to_str().context("a plain path")?;
    let settings = tickets::config(federation);
    // As its own user cannot be let into the KDC's folder, it has the settings beside its keys.
    let own_settings = folder.path().join("krb5.conf");
    std::fs::copy(&settings, &own_settings)?;
    let krb5conf = own_settings.to_str().context("a plain path")?;
    let more = vec!["--keytab", shown, "--krb5conf", krb5conf];
    let named = principal.map_or(vec![], |name| vec!["--principal", name]);
    let words = [join_words(&letter, &address, &dir, &ost)?, more, named].concat();
    let refused = federation.try_tieline(&words)?;
    assert!(refused.stderr.contains("chown nobody"), "{}", refused.stderr);
    program::call("chown", &["nobody", shown])?;
    let joined = Joined::from_words(&federation.tieline(&words)?)?;
    let at_home = federation.mount().join(site);
    let is_there = || std::fs::create_dir(at_home.join("data")).is_ok();
    program::until("the mount knows the site", DEADLINE, is_there)?;
    let file = at_home.join("data/events");
    std::fs::write(&file, vec![7; 1 << 20])?;
    std::fs::File::open(&file)?.sync_all()?;
    std::fs::remove_file(&file)?;
    let record = std::fs::read_to_string(dir.join("state/audit.jsonl"))?;
    assert!(record.contains("authentication"), "{record}");
    drop(joined);
    Ok(())
}
