//! Mounts that somebody made with nothing but tickets: they are nobody's rights. What a process may
//! is what its own ticket says, on any mount; and what it is told when it has none.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::federation::{Federation, with_plan};
use tieline_lab::program::{self, DEADLINE, Run, finish};
use tieline_lab::tickets::{config, url, with_kdc};
use tieline_lab::{Plan, has_kdc};

const ANN: u32 = 1501;
const BOB: u32 = 1502;
/// As identities.
const HERS: u32 = 5001;
const HIS: u32 = 5002;
const NONE: &str = "FILE:/nonexistent";
/// One look for a ticket takes 10 s at most, and a program that looks again soon does not wait.
const SILENCE_MAX: Duration = Duration::from_secs(25);

struct Scene<'f> {
    federation: &'f Federation,
    mount: PathBuf,
    /// Keeps a tree of files in which users may mount, if this machine's own is not that.
    laptop: Option<Child>,
}

impl<'f> Scene<'f> {
    fn new(federation: &'f Federation) -> Result<Self> {
        for (path, mode) in [("..", 0o711), ("", 0o711), ("kdc", 0o755), ("kdc/krb5.conf", 0o644)] {
            let path = federation.dir().join(path);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        for (user, number) in [("ann", HERS), ("bob", HIS)] {
            let shown = federation.mount().to_string_lossy().into_owned();
            let number = number.to_string();
            federation.tieline(&["id", "--fs", &shown, "add", user, "--number", &number])?;
        }
        federation.shell("mkdir -m 777 all")?;
        let mount = federation.local("mounted");
        std::fs::create_dir(&mount)?;
        chown(&mount, Some(ANN), Some(ANN))?;
        let people = format!("ann:x:{ANN}:{ANN}::/:\nbob:x:{BOB}:{BOB}::/:\n");
        std::fs::write(federation.local("people"), people)?;
        Ok(Self { federation, mount, laptop: None })
    }

    /// From now on all commands run where `/dev/fuse` is everybody's, and ann has a name.
    fn move_to_laptop(&mut self) -> Result<()> {
        let place = self.federation.local("laptop");
        std::fs::create_dir(&place)?;
        let script = format!(
            "cd {}; mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
             (cat /etc/passwd; echo ann:x:{ANN}:{ANN}::/:/bin/sh) > passwd
             mount --bind passwd /etc/passwd; touch up; exec sleep 600",
            place.display()
        );
        let keeper = program::start(Command::new("unshare").args(["-m", "sh", "-ec", &script]))?;
        self.laptop = Some(keeper);
        program::until("a laptop", DEADLINE, || place.join("up").exists())
    }

    /// A program, where the mount is.
    fn there(&self, program: &str) -> Command {
        let Some(keeper) = &self.laptop else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", keeper.id())).arg("--").arg(program);
        command
    }

    /// A folder of a user's own.
    fn home(&self, uid: u32) -> Result<PathBuf> {
        let home = self.federation.local(&format!("home-{uid}"));
        std::fs::create_dir_all(&home)?;
        chown(&home, Some(uid), Some(uid))?;
        Ok(home)
    }

    /// A command by a user of this machine, with these tickets.
    fn command(&self, uid: u32, cache: &str, words: &[&str]) -> Command {
        let mut command = self.there("setpriv");
        let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        command.args([&uid, &gid, "--clear-groups"]).args(words);
        command.current_dir("/").env("KRB5CCNAME", cache).env("MOUNT", &self.mount);
        command.env("KRB5_CONFIG", config(self.federation));
        command
    }

    fn try_as(&self, uid: u32, cache: &str, script: &str) -> Result<Run> {
        let mut command = self.command(uid, cache, &["sh", "-ec", script]);
        command.env("TIELINE", program::tieline()?);
        finish(&mut command, DEADLINE)
    }

    fn by(&self, uid: u32, cache: &str, script: &str) -> Result<String> {
        self.try_as(uid, cache, script)?.succeed(script)
    }

    fn denied(&self, uid: u32, cache: &str, script: &str) -> Result<()> {
        let run = self.try_as(uid, cache, script)?;
        ensure!(!run.status.success(), "{uid}: {script} was allowed: {}", run.stdout);
        ensure!(run.stderr.contains("ermission denied"), "{uid}: {script}: {}", run.stderr);
        Ok(())
    }

    /// Gets tickets, by the user's own hands; passwords are names.
    fn kinit(&self, uid: u32, user: &str, words: &str) -> Result<String> {
        let cache = format!("FILE:{}/cache-{user}", self.home(uid)?.display());
        self.by(uid, &cache, &format!("echo {user} | kinit {words} {user}"))?;
        Ok(cache)
    }

    /// Mounts as a user, who has these tickets and no keytab.
    fn mount(&self, uid: u32, cache: &str) -> Result<()> {
        let source = url(self.federation)?.replace("tieline://", "").replacen('/', ":/", 1);
        let options = format!(
            "krb5conf={},idmap={}",
            config(self.federation).display(),
            self.federation.local("people").display()
        );
        let (mount, tieline) = (self.mount.display().to_string(), program::tieline()?);
        let tieline = tieline.to_str().context("a plain path")?;
        let words = [tieline, "mount", &source, &mount, "-o", &options];
        let mut command = self.command(uid, cache, &words);
        command.env("XDG_RUNTIME_DIR", self.home(uid)?).env("HOME", self.home(uid)?);
        finish(&mut command, DEADLINE)?.succeed("tieline mount").map(drop)
    }

    fn owner(&self, name: &str) -> Result<u32> {
        Ok(std::fs::metadata(self.federation.mount().join(name))?.uid())
    }

    fn explained(&self, uid: u32, cache: &str, path: &str) -> Result<Value> {
        let said = self.try_as(uid, cache, &format!("$TIELINE explain --json $MOUNT/{path}"))?;
        serde_json::from_str(&said.stdout).with_context(|| said.stderr.clone())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let _ = self.there("umount").arg(&self.mount).stderr(Stdio::null()).status();
        if let Some(keeper) = &mut self.laptop {
            program::kill_group(keeper);
            let _ = keeper.wait();
        }
    }
}

/// What was denied, as a program's user is told.
fn whys(said: &Value) -> String {
    let denials = said["denials"].as_array().into_iter().flatten();
    denials.filter_map(|denial| denial["why"].as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn who_mounts_with_a_ticket_gives_it_to_nobody() -> Result<()> {
    if !tieline_lab::is_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        let scene = Scene::new(federation)?;
        let hers = scene.kinit(ANN, "ann", "")?;
        let his = scene.kinit(BOB, "bob", "")?;
        scene.mount(0, &hers)?;
        scene.by(ANN, &hers, "cd $MOUNT/all; umask 77; echo secret > hers; cat hers")?;
        scene.denied(BOB, &his, "cat $MOUNT/all/hers")?;
        scene.by(BOB, &his, "echo x > $MOUNT/all/his")?;
        ensure!((scene.owner("all/hers")?, scene.owner("all/his")?) == (HERS, HIS));
        for uid in [BOB, ANN, 0] {
            scene.denied(uid, NONE, "ls $MOUNT/all")?;
            scene.denied(uid, NONE, "cat $MOUNT/all/hers")?;
            scene.denied(uid, NONE, "echo > $MOUNT/all/new")?;
        }
        // Who mounted is she where he has her ticket, and only there.
        scene.by(0, &hers, "cat $MOUNT/all/hers; echo > $MOUNT/all/roots")?;
        ensure!(scene.owner("all/roots")? == HERS);

        // It is said what was missing, and where.
        let said = scene.explained(BOB, NONE, "all/hers")?;
        ensure!(said["allowed"] == false && said["why"].to_string().contains("kinit"), "{said}");
        ensure!(whys(&said).contains(NONE) && whys(&said).contains("kinit"), "{said}");
        squashed(&scene, &hers)?;
        expires(&scene)?;
        silent(&scene)?;
        hanging(&scene)?;

        // Her own kdestroy stops what is new, and nothing that is open.
        let script = "cd $MOUNT/all; exec 3<hers 4>>hers; kdestroy; cat <&3; echo more >&4; \
                      if cat hers; then exit 9; fi; if ls .; then exit 8; fi";
        ensure!(scene.by(ANN, &hers, script)? == "secret\n");
        scene.denied(0, &hers, "cat $MOUNT/all/hers")?;
        scene.kinit(ANN, "ann", "")?;
        ensure!(scene.by(ANN, &hers, "cat $MOUNT/all/hers")? == "secret\nmore\n");
        Ok(())
    })
}

/// Where strangers are let in as nobody, they are nobody here too.
fn squashed(scene: &Scene<'_>, hers: &str) -> Result<()> {
    let shown = scene.federation.mount().to_string_lossy().into_owned();
    let strangers =
        |rule: &str| scene.federation.tieline(&["id", "--fs", &shown, "strangers", rule]);
    strangers("squash")?;
    let touched = || scene.try_as(BOB, NONE, "echo > $MOUNT/all/nobodys");
    let is_squashed = || touched().is_ok_and(|run| run.status.success());
    program::until("strangers are squashed", DEADLINE, is_squashed)?;
    ensure!(scene.owner("all/nobodys")? == 65_534);
    scene.denied(BOB, NONE, "cat $MOUNT/all/hers")?;
    scene.denied(ANN, NONE, "cat $MOUNT/all/hers")?;
    scene.by(ANN, hers, "cat $MOUNT/all/hers")?;
    strangers("deny")?;
    let is_denied = || touched().is_ok_and(|run| !run.status.success());
    program::until("strangers are denied", DEADLINE, is_denied)
}

/// A ticket is over when `klist` says so, not minutes later.
fn expires(scene: &Scene<'_>) -> Result<()> {
    let cache = scene.kinit(BOB, "bob", "-l 15s")?;
    scene.by(BOB, &cache, "cat $MOUNT/all/his")?;
    let is_over = || scene.denied(BOB, &cache, "cat $MOUNT/all/his").is_ok();
    program::until("the ticket is over", Duration::from_secs(60), is_over)?;
    let said = scene.explained(BOB, &cache, "all/his")?;
    let why = whys(&said);
    let ended = why.contains("your ticket expired at 20") && why.contains("kinit");
    ensure!(ended && why.contains("bob@EXTENCI.ORG"), "{said}");
    Ok(())
}

/// A KDC that says nothing makes nobody a stranger, and keeps nobody waiting for long.
fn silent(scene: &Scene<'_>) -> Result<()> {
    let cache = scene.kinit(BOB, "bob", "")?;
    let config = config(scene.federation);
    let honest = std::fs::read_to_string(&config)?;
    let deaf = TcpListener::bind("127.0.0.1:0")?;
    let _mute = UdpSocket::bind(deaf.local_addr()?)?;
    let port = honest.split_once("kdc = 127.0.0.1:").context("it names its KDC")?.1;
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let away = format!("kdc = 127.0.0.1:{}", deaf.local_addr()?.port());
    std::fs::write(&config, honest.replace(&format!("kdc = 127.0.0.1:{port}"), &away))?;
    let begun = Instant::now();
    let run = scene.try_as(BOB, &cache, "ls -l $MOUNT/all")?;
    let took = begun.elapsed();
    std::fs::write(&config, honest)?;
    ensure!(!run.status.success() && run.stderr.contains("No route to host"), "{}", run.stderr);
    ensure!(took < SILENCE_MAX, "it took {took:?}");
    let is_back = || scene.by(BOB, &cache, "cat $MOUNT/all/his").is_ok();
    program::until("the KDC is asked again", DEADLINE, is_back)?;
    let why = whys(&scene.explained(BOB, &cache, "all")?);
    ensure!(why.contains("KDC"), "{why}");
    Ok(())
}

/// Where a cache lies is its user's choice. One that hangs when it is opened is waited for less
/// long than a KDC, and makes nobody a stranger either.
fn hanging(scene: &Scene<'_>) -> Result<()> {
    let folder = scene.federation.local("hanging");
    std::fs::create_dir(&folder)?;
    std::os::unix::fs::chown(&folder, Some(BOB), None)?;
    scene.by(BOB, NONE, &format!("mkfifo {}/pipe", folder.display()))?;
    let cache = format!("FILE:{}/pipe", folder.display());
    let begun = Instant::now();
    let run = scene.try_as(BOB, &cache, "cat $MOUNT/all/his")?;
    let took = begun.elapsed();
    ensure!(!run.status.success() && run.stderr.contains("No route to host"), "{}", run.stderr);
    ensure!((4.5..8.0).contains(&took.as_secs_f64()), "it took {took:?}");
    Ok(())
}

/// A laptop: a user mounts for herself, and her tickets are all there is.
/// The machine is believed, but who is nobody to the file system is refused, before anything is
/// done for him here: what he did would be refused later, and others' work was lost with it.
#[test]
fn who_is_nobody_is_refused_at_once_and_takes_nobodys_work_along() -> Result<()> {
    if !has_kdc() {
        return Ok(());
    }
    let arguments = ["--kerberos", "--machine", "all"].map(str::to_owned).to_vec();
    with_plan(&Plan { arguments, ..Plan::default() }, |federation| {
        federation.shell("mkdir d; chmod 1777 d; sync d")?;
        // Until it is held alone.
        std::thread::sleep(Duration::from_millis(1500));
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let words = federation.shell(&format!(
            "echo before > d/before; {nobody} sh -c 'echo x > d/his' 2>&1 || true
             {nobody} mkdir d/hers 2>&1 || true; mkdir d/e; echo after > d/e/f"
        ))?;
        ensure!(words.matches("ermission denied").count() == 2, "{words}");
        std::thread::sleep(Duration::from_secs(3));
        let there = federation.shell("ls d; cat d/before d/e/f")?;
        ensure!(there == "before\ne\nbefore\nafter\n", "{there}");
        Ok(())
    })
}

#[test]
fn a_users_own_mount_goes_by_her_tickets() -> Result<()> {
    if !tieline_lab::is_root() || !Path::new("/usr/bin/fusermount3").exists() {
        return Ok(());
    }
    with_kdc(|federation| {
        let mut scene = Scene::new(federation)?;
        scene.move_to_laptop()?;
        let hers = scene.kinit(ANN, "ann", "-r 1h")?;
        scene.mount(ANN, &hers)?;
        scene.by(ANN, &hers, "cd $MOUNT/all; umask 77; echo secret > hers; cat hers; kinit -R")?;
        scene.by(ANN, &hers, "cat $MOUNT/all/hers; mkdir $MOUNT/all/d; rmdir $MOUNT/all/d")?;
        ensure!(scene.owner("all/hers")? == HERS);
        scene.denied(ANN, NONE, "cat $MOUNT/all/hers")?;
        let script = "cd $MOUNT/all; exec 3<hers 4>>hers; kdestroy; cat <&3; echo more >&4; \
                      if cat hers; then exit 9; fi";
        ensure!(scene.by(ANN, &hers, script)? == "secret\n");
        scene.kinit(ANN, "ann", "")?;
        ensure!(scene.by(ANN, &hers, "cat $MOUNT/all/hers")? == "secret\nmore\n");
        // What another's ticket gives is another's, also on her mount.
        let other = scene.kinit(ANN, "bob", "")?;
        scene.denied(ANN, &other, "cat $MOUNT/all/hers")?;
        // A file system of her own processes' sees a cache that this machine does not.
        private(&scene, &hers)
    })
}

/// A private /tmp: a cache has the name that it has there.
fn private(scene: &Scene<'_>, hers: &str) -> Result<()> {
    let file = hers.trim_start_matches("FILE:");
    let script = format!(
        "mount -t tmpfs tmpfs /mnt; cp {file} /mnt/cc; chown {ANN} /mnt/cc; chmod 600 /mnt/cc; \
         exec setpriv --reuid={ANN} --regid={ANN} --clear-groups env KRB5CCNAME=FILE:/mnt/cc \
         sh -ec 'cat $MOUNT/all/hers; kdestroy; if cat $MOUNT/all/hers; then exit 9; fi'"
    );
    let mut command = scene.there("unshare");
    command.args(["-m", "sh", "-ec", &script]).current_dir("/").env("MOUNT", &scene.mount);
    command.env("KRB5_CONFIG", config(scene.federation));
    let said = finish(&mut command, DEADLINE)?.succeed("a private tree")?;
    ensure!(said == "secret\nmore\n", "{said}");
    Ok(())
}
