//! Bytes that were answered for and cannot be stored: `umount` names them, they lie on the client's
//! disk, and come back into their files.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tieline_lab::federation::with_plan;
use tieline_lab::program::{self, DEADLINE, Run};
use tieline_lab::{Federation, Plan, can_emulate_lines, needs_root, with_federation};

/// A client of its own, with a spool of its own.
struct Client<'a> {
    lab: &'a Federation,
    options: String,
    mount: PathBuf,
    spool: PathBuf,
}

impl<'a> Client<'a> {
    fn new(lab: &'a Federation, more: &str) -> Result<Self> {
        let (mount, spool) = (lab.local("own"), lab.local("spool"));
        std::fs::create_dir_all(&mount)?;
        let log = lab.local("own.log");
        let options = format!("spool={},log={}{more}", spool.display(), log.display());
        Ok(Self { lab, options, mount, spool })
    }

    fn mount(&self, wait: &str) -> Result<()> {
        let status = self.lab.status()?;
        let source = status["source"].as_str().context("a source")?;
        let options = format!("{},wait={wait}", self.options);
        self.lab.tieline(&["mount", source, &self.shown(), "-o", &options]).map(drop)
    }

    fn shown(&self) -> String {
        self.mount.to_string_lossy().into_owned()
    }

    /// What is in its spool.
    fn spooled(&self) -> Result<Vec<Value>> {
        if !self.spool.exists() {
            return Ok(Vec::new());
        }
        let all = self.lab.json(&["spool", "list", &self.spool.to_string_lossy()])?;
        Ok(all.as_array().context("a list")?.clone())
    }

    fn spool(&self, words: &[&str]) -> Result<Run> {
        self.lab.try_tieline(&[&["spool"], words].concat())
    }

    /// Ends it: what could not be stored is named, with the path of its bytes, which are these.
    fn end_with(&self, names: &[&str], bytes: &[u8]) -> Result<Vec<PathBuf>> {
        let run = self.lab.try_tieline(&["umount", &self.shown()])?;
        ensure!(run.status.code() == Some(1), "{run:?}");
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        ensure!(!mounts.contains(&self.shown()), "it is mounted still");
        let entries = self.spooled()?;
        ensure!(entries.len() == names.len(), "{entries:?} {}", run.stderr);
        let mut at = Vec::new();
        for name in names {
            let path = self.mount.join(name).to_string_lossy().into_owned();
            let entry = entries.iter().find(|entry| entry["path"] == *path);
            let entry = entry.with_context(|| format!("{path} in {entries:?}"))?;
            let data = entry["entry"].as_str().context("a path")?;
            let named = |line: &str| line.starts_with(&path) && line.contains(data);
            ensure!(run.stderr.lines().any(named), "{path}, {data}: {}", run.stderr);
            ensure!(std::fs::read(data)? == bytes, "{data}");
            at.push(PathBuf::from(data));
        }
        Ok(at)
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.lab.local("own.log")).unwrap_or_default());
        }
    }
}

fn dev(lab: &Federation, words: &[&str]) -> Result<String> {
    let dir = lab.dir();
    let mut all = vec![OsStr::new("dev")];
    all.extend(words.iter().map(OsStr::new));
    all.extend([OsStr::new("--dir"), dir.as_os_str()]);
    lab.tieline(&all)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Files are closed while their OSS stands still; then it is dead, or others have filled its disks.
///
/// Promise 75: Bytes that a program was answered for and that cannot be stored are kept on the
/// client's disk: umount names each such file, the reason and the place of its bytes, and ends with
/// 1.
///
/// Promise 76: What was kept so comes back into its file with `tieline spool put`, unless others
/// may have written there since.
///
/// Promise 77: umount waits no longer than the mount's wait, and keeps what no server has taken by
/// then.
#[test]
fn what_no_server_takes_is_named_kept_and_put_back() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        for part in ["connection lost", "goes to another OST", "did not answer", "sync"] {
            lab.expect_log(part);
        }
        let client = Client::new(lab, "")?;
        client.mount("6s")?;
        let bytes: Vec<u8> = (0..786_432_u32).flat_map(|at| at.to_le_bytes()).collect();
        let from = lab.local("from");
        std::fs::write(&from, &bytes)?;
        program::shell(&client.mount, "mkdir d; echo warm > d/w; sync d/w")?;
        program::shell(&client.mount, &format!("cp '{}' d/warm; sync d/warm", from.display()))?;

        // The server is away until the mount has ended.
        lab.signal("oss-uf", Signal::STOP)?;
        let copy = format!("cp '{}' d/a; cp '{0}' d/b", from.display());
        let copied = program::shell(&client.mount, &copy);
        let begun = Instant::now();
        let ended = copied.and_then(|_| client.end_with(&["d/a", "d/b"], &bytes));
        let took = begun.elapsed();
        lab.signal("oss-uf", Signal::CONT)?;
        let kept = ended?;
        ensure!(took < Duration::from_secs(20), "umount took {took:?}");
        let (a, b) = (text(&kept[0]), text(&kept[1]));

        client.mount("60s")?;
        // Named once.
        let put = client.spool(&["put", a])?;
        ensure!(put.status.success(), "{put:?}");
        for mount in [&client.mount, lab.mount()] {
            program::shell(mount, &format!("cmp d/a '{}'", from.display()))?;
        }
        // Others have written there since.
        std::fs::write(lab.mount().join("d/b"), "mine")?;
        let refused = client.spool(&["put", b])?;
        ensure!(refused.status.code() == Some(1) && refused.stderr.contains("--to"), "{refused:?}");
        let to = client.mount.join("d/b.again");
        ensure!(client.spool(&["put", b, "--to", text(&to)])?.status.success());
        program::shell(&client.mount, &format!("cmp d/b.again '{}'", from.display()))?;
        ensure!(std::fs::read(client.mount.join("d/b"))? == b"mine");
        ensure!(client.spooled()?.is_empty());
        let run = lab.try_tieline(&["umount", &client.shown()])?;
        ensure!(run.status.success(), "nothing is left to be named: {run:?}");

        // Told to end at once: nothing is waited for.
        client.mount("60s")?;
        program::shell(&client.mount, "mkdir e; echo x > e/w; sync e/w")?;
        lab.signal("mds-uf", Signal::STOP)?;
        let told = told_to_end(&client);
        lab.signal("mds-uf", Signal::CONT)?;
        told?;
        let entries = client.spooled()?;
        let path = client.mount.join("e/late").to_string_lossy().into_owned();
        let late = entries.iter().find(|entry| entry["path"] == *path);
        let late = late.with_context(|| format!("{entries:?}"))?;
        ensure!(late["bytes"] == 6 && entries.len() == 2, "{entries:?}");
        let entry = late["entry"].as_str().context("an entry")?;
        ensure!(std::fs::read(entry)? == b"hello\n");
        // Its creation is told, too, which nobody puts back.
        let change = entries.iter().find(|entry| entry["path"] != *path).context("a change")?;
        let change = change["entry"].as_str().context("an entry")?;
        ensure!(std::fs::read_to_string(change)?.contains("Create /e/late"));
        ensure!(client.spool(&["drop", entry])?.status.code() == Some(1), "nobody said yes");
        ensure!(client.spool(&["drop", entry, change, "--yes"])?.status.success());
        ensure!(client.spooled()?.is_empty());
        Ok(())
    })
}

fn told_to_end(client: &Client<'_>) -> Result<()> {
    std::fs::write(client.mount.join("e/late"), "hello\n")?;
    let mounts = std::fs::read_dir("/run/tieline/mounts")?;
    let entries = mounts.flatten().filter_map(|file| std::fs::read(file.path()).ok());
    let mut entries = entries.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    let own = entries.find(|entry| entry["mountpoint"] == client.shown()).context("a mount")?;
    let pid = own["process"]["pid"].as_i64().context("a holder")?;
    let holder = Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")?;
    kill_process(holder, Signal::TERM)?;
    // Sooner, it would be the same one.
    std::thread::sleep(Duration::from_secs(5));
    kill_process(holder, Signal::TERM)?;
    let begun = Instant::now();
    program::until("it has ended", DEADLINE, || !program::is_running(pid))?;
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(20), "the end took {took:?}");
    Ok(())
}

/// Files are closed while the client is cut off; then their pool is destroyed, their OST taken out
/// of use, their owner's quota lowered.
///
/// Promise 78: Bytes that could not be stored are told by fsync of their file or directory and by
/// `tieline sync`.
#[test]
fn whatever_was_taken_away_meanwhile() -> Result<()> {
    if !needs_root() || !can_emulate_lines() {
        return Ok(());
    }
    let words = ["--netns", "--rtt", "10ms"];
    with_plan(&Plan::of(&words), |lab| {
        lab.expect_log("connection lost");
        let clients = {
            let status = lab.status()?;
            let all = status["namespaces"].as_array().context("namespaces")?.clone();
            let mut names = all.iter().filter_map(|name| name.as_str());
            names.find(|name| name.ends_with("-cl")).context("clients")?.to_owned()
        };
        let near = lab.local("near");
        std::fs::create_dir(&near)?;
        dev(lab, &["mount", text(&near), "--site", "uf"])?;
        let fs = ["--fs", text(&near)];
        for (pool, ost) in [("extenci.gone", "OST0000"), ("extenci.idle", "OST0001")] {
            lab.tieline(&[&["pool", "new"], &fs[..], &[pool]].concat())?;
            lab.tieline(&[&["pool", "add"], &fs[..], &[pool, ost]].concat())?;
        }
        let client = Client::new(lab, &format!(",netns={clients}"))?;
        client.mount("40s")?;
        let bytes = vec![7; 1 << 20];
        let from = lab.local("from");
        std::fs::write(&from, &bytes)?;
        program::shell(&client.mount, "mkdir gone idle; mkdir -m 777 quota; sync -f .")?;
        for pool in ["gone", "idle"] {
            let folder = client.mount.join(pool);
            lab.tieline(&["setstripe", "-p", pool, text(&folder)])?;
        }
        for folder in ["gone", "idle", "quota"] {
            // A directory that is new is held alone.
            let warm = format!("mkdir -m 777 {folder}/d; cp '{}' {folder}/d/w", from.display());
            program::shell(&client.mount, &format!("{warm}; sync {folder}/d/w"))?;
        }
        program::shell(&client.mount, "chown 1001 quota/d/w; sync quota/d/w")?;
        dev(lab, &["wan", "cut"])?;
        let copied = program::shell(
            &client.mount,
            &format!(
                "cp '{0}' gone/d/f; cp '{0}' idle/d/f; setpriv --reuid 1001 --regid 1001 \
                 --clear-groups sh -c 'cat > quota/d/f' < '{0}'",
                from.display()
            ),
        );
        let taken = copied.and_then(|_| {
            let (gone, first) = ("extenci.gone", "OST0000");
            lab.tieline(&[&["pool", "remove"], &fs[..], &[gone, first]].concat())?;
            lab.tieline(&[&["pool", "destroy"], &fs[..], &[gone]].concat())?;
            lab.tieline(&[&["ost", "deactivate"], &fs[..], &["OST0001"]].concat())?;
            lab.tieline(&["setquota", "-u", "1001", "-B", "1M", text(&near)])
        });
        dev(lab, &["wan", "heal"])?;
        taken?;
        program::until("all is known", DEADLINE, || {
            client.spooled().is_ok_and(|all| all.len() == 3)
        })?;
        let synced = lab.try_tieline(&["sync", &client.shown()])?;
        ensure!(synced.status.code() == Some(1), "{synced:?}");
        let kept = client.end_with(&["gone/d/f", "idle/d/f", "quota/d/f"], &bytes)?;
        lab.tieline(&[&["ost", "activate"], &fs[..], &["OST0001"]].concat())?;
        lab.tieline(&["setquota", "-u", "1001", "-B", "1G", text(&near)])?;
        client.mount("40s")?;
        let mut words = vec!["put"];
        words.extend(kept.iter().map(|path| text(path)));
        let put = client.spool(&words)?;
        ensure!(put.status.code() == Some(1) && put.stderr.contains("gone/d/f"), "{put:?}");
        // That one's layout names a pool that is no more.
        let (gone, to) = (text(&kept[0]), client.mount.join("quota/again"));
        ensure!(client.spool(&["put", gone, "--to", text(&to)])?.status.success());
        for name in ["idle/d/f", "quota/d/f", "quota/again"] {
            let same = format!("cmp {name} '{}'", from.display());
            program::shell(&near, &same).with_context(|| put.stderr.clone())?;
        }
        ensure!(client.spooled()?.is_empty());
        lab.umount(&client.mount)
    })
}
