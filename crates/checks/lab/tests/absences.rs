//! Lines that are cut and servers that are away: what is known is told at once, the rest waits or
//! fails as the mount says, and all is well again by itself.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tieline_lab::federation::with_plan;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::{Federation, Plan, can_emulate_lines};

/// Longer than a mount needs to see that a line is cut, and than the leases of these tests.
const NOTICED: Duration = Duration::from_secs(15);
/// What is told at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

fn far(test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let arguments = ["--netns", "--rtt", "10ms", "--between-sites", "10ms", "--lease", "5s"];
    let arguments = arguments.map(str::to_owned).to_vec();
    with_plan(&Plan { arguments, ..Plan::default() }, test)
}

fn dev(federation: &Federation, words: &[&str]) -> Result<String> {
    let dir = federation.dir();
    let mut all = vec![OsStr::new("dev")];
    all.extend(words.iter().map(OsStr::new));
    all.extend([OsStr::new("--dir"), dir.as_os_str()]);
    federation.tieline(&all)
}

/// A client at a site.
fn mount_at(federation: &Federation, name: &str, more: &[&str]) -> Result<PathBuf> {
    let mount = federation.local(name);
    std::fs::create_dir_all(&mount)?;
    let path = mount.to_string_lossy().into_owned();
    dev(federation, &[&["mount", &path][..], more].concat())?;
    Ok(mount)
}

fn namespace(federation: &Federation, part: &str) -> Result<String> {
    let status = federation.status()?;
    let all = status["namespaces"].as_array().context("namespaces")?;
    let end = format!("-{part}");
    let names = all.iter().filter_map(|name| name.as_str());
    names.map(str::to_owned).find(|name| name.ends_with(&end)).context("no such namespace")
}

/// Runs a script; how long it took.
fn timed(folder: &Path, script: &str) -> Result<Duration> {
    let start = Instant::now();
    program::shell(folder, script)?;
    Ok(start.elapsed())
}

fn begin(folder: &Path, script: &str) -> Result<Child> {
    let mut command = Command::new("bash");
    program::start(command.args(["-ec", script]).current_dir(folder))
}

/// Promise 45: While a client is cut off, what it knows is told at once: names, listings,
/// attributes, df and cached bytes; changes wait, and can be killed.
///
/// Promise 47: What others changed during a cut is seen from the first contact on.
#[test]
fn what_is_known_is_told_during_a_cut() -> Result<()> {
    far(|federation| {
        let mount = federation.mount();
        federation.shell("mkdir d; echo one > d/a; ln -s a d/l; sync d/a")?;
        let near = mount_at(federation, "near", &["--site", "uf"])?;
        federation.shell("ls -l d; cat d/a; df . > /dev/null; stat d/none || true")?;
        dev(federation, &["wan", "cut", "--link", "clients"])?;
        // What changes meanwhile is not known here, and what is known is told.
        program::shell(&near, "echo two > d/a; touch d/b; sync d/a")?;
        std::thread::sleep(NOTICED);
        for script in ["ls -l d > /dev/null", "grep -q one d/a", "df . > /dev/null", "readlink d/l"]
        {
            let took = timed(mount, script)?;
            ensure!(took < AT_ONCE, "`{script}` took {took:?} while the line was cut");
        }
        // A change waits, and can be killed.
        let mut change = begin(mount, "echo three > d/c")?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(change.try_wait()?.is_none(), "a change went through a cut line");
        let start = Instant::now();
        program::kill_group(&change);
        program::wait(&mut change, DEADLINE)?;
        ensure!(start.elapsed() < AT_ONCE, "killing took {:?}", start.elapsed());
        dev(federation, &["wan", "heal"])?;
        // From the first contact on nothing of before is believed.
        program::until("the change is seen", Duration::from_secs(8), || {
            program::shell(mount, "grep -q two d/a && test -e d/b").is_ok()
        })
    })
}

#[test]
fn umount_does_not_wait_for_a_cut_line() -> Result<()> {
    far(|federation| {
        let other = mount_at(federation, "other", &[])?;
        program::shell(&other, "ls > /dev/null; echo x > a; sync a")?;
        dev(federation, &["wan", "cut"])?;
        std::thread::sleep(NOTICED);
        let start = Instant::now();
        program::call("umount", &[&other])?;
        let took = start.elapsed();
        dev(federation, &["wan", "heal"])?;
        ensure!(took < AT_ONCE, "umount took {took:?} while the line was cut");
        Ok(())
    })
}

/// Promise 46: A cut that is shorter than the mount's wait costs time only; a longer one is
/// an error, and when it is over the mount works again by itself.
#[test]
fn a_cut_longer_than_the_wait_is_an_error() -> Result<()> {
    far(|federation| {
        federation.shell("mkdir d; echo x > d/a; sync d/a")?;
        let short = mount_at(federation, "short", &["-o", "wait=3s"])?;
        federation.expect_log("did not answer within");
        dev(federation, &["wan", "cut"])?;
        let start = Instant::now();
        let failed = program::shell(&short, "cat d/a").is_err();
        let took = start.elapsed();
        dev(federation, &["wan", "heal"])?;
        ensure!(failed, "a read through a cut line succeeded");
        ensure!(took < Duration::from_secs(8), "the error took {took:?}");
        program::until("the mount works again", Duration::from_secs(8), || {
            program::shell(&short, "grep -q x d/a").is_ok()
        })
    })
}

/// Promise 48: A site that is cut off keeps reading and writing its own tree, also through a
/// mount that is made there meanwhile.
#[test]
fn a_site_stands_alone() -> Result<()> {
    far(|federation| {
        federation.shell("echo at-home > fnal/a; sync fnal/a")?;
        dev(federation, &["wan", "cut", "--link", "fnal"])?;
        // A fresh mount at the site that is cut off.
        let fresh = mount_at(federation, "fresh", &["--site", "fnal"])?;
        program::shell(&fresh, "ls | grep -q fnal; grep -q at-home fnal/a")?;
        program::shell(
            &fresh,
            "mkdir fnal/d; echo new > fnal/d/b; sync fnal/d/b; mv fnal/d/b fnal/c",
        )?;
        dev(federation, &["wan", "heal"])?;
        program::until("the rest is there again", Duration::from_secs(15), || {
            program::shell(&fresh, "echo x > top && rm top").is_ok()
        })?;
        // Who was cut off from it tells what he knew until he is in contact again.
        program::until("others see it", Duration::from_secs(8), || {
            federation.shell("grep -q new fnal/c").is_ok()
        })
    })
}

#[test]
fn another_network_is_no_reason_to_wait() -> Result<()> {
    far(|federation| {
        let (mount, clients) = (federation.mount(), namespace(federation, "cl")?);
        federation.shell("mkdir d; echo x > d/a; sync d/a")?;
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            program::call("ip", &[&["-n", &clients][..], &words].concat()).map(drop)
        };
        ip("address add 10.77.254.3/24 dev eth0")?;
        ip("address del 10.77.254.2/24 dev eth0")?;
        // Taking the address away took the way along.
        let _ = ip("address add 10.77.254.3/24 dev eth0");
        let _ = ip("route add default via 10.77.254.1 dev eth0");
        let took = timed(mount, "echo y > d/b; sync d/b; stat d/b > /dev/null")?;
        ensure!(took < Duration::from_secs(3), "after a change of address: {took:?}");
        Ok(())
    })
}

#[test]
fn a_drained_server_is_waited_for() -> Result<()> {
    far(|federation| {
        let short = mount_at(federation, "short", &["-o", "wait=3s"])?;
        program::shell(&short, "mkdir d; echo x > d/a; sync d/a")?;
        let path = short.to_string_lossy().into_owned();
        let told = federation.tieline(&["server", "drain", "--for", "2m", "--fs", &path, "uf"])?;
        ensure!(told.contains("told to hold"), "{told}");
        std::thread::sleep(Duration::from_millis(300));
        federation.signal("mds-uf", Signal::KILL)?;
        let mut reader = begin(&short, "echo y > d/b; sync d/b")?;
        std::thread::sleep(Duration::from_secs(6));
        ensure!(reader.try_wait()?.is_none(), "nobody waited for a server that is away");
        dev(federation, &["start", "mds-uf"])?;
        ensure!(program::wait(&mut reader, DEADLINE)?.success(), "an error for a drained server");
        Ok(())
    })
}

#[test]
fn clients_behind_one_address_work_and_find_back() -> Result<()> {
    far(|federation| {
        let mount = federation.mount();
        dev(federation, &["wan", "nat", "on", "--link", "clients"])?;
        // Connections of before are nobody's.
        let took = timed(mount, "mkdir d; echo x > d/a; sync d/a; cat d/a > /dev/null")?;
        ensure!(took < Duration::from_secs(20), "behind one address: {took:?}");
        let took = timed(mount, "echo y > d/b; sync d/b; cat d/b > /dev/null")?;
        ensure!(took < AT_ONCE, "behind one address, again: {took:?}");
        dev(federation, &["wan", "nat", "rebind", "--link", "clients"])?;
        let took = timed(mount, "echo z > d/c; sync d/c; cat d/c > /dev/null")?;
        ensure!(took < Duration::from_secs(20), "behind another address: {took:?}");
        Ok(())
    })
}

#[test]
fn of_two_networks_the_one_that_works_is_used() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let arguments = ["--netns", "--rtt", "10ms", "--ip", "64"].map(str::to_owned).to_vec();
    with_plan(&Plan { arguments, ..Plan::default() }, |federation| {
        federation.shell("echo x > a; sync a")?;
        let clients = namespace(federation, "cl")?;
        program::call("ip", &["-6", "-n", &clients, "route", "del", "default"])?;
        let took = timed(federation.mount(), "echo y > b; sync b; cat a > /dev/null")?;
        ensure!(took < Duration::from_secs(15), "by the other network: {took:?}");
        Ok(())
    })
}

#[test]
fn a_pinned_tree_is_there_without_servers() -> Result<()> {
    far(|federation| {
        let near = mount_at(federation, "near", &["--site", "uf"])?;
        program::shell(&near, "mkdir -p t/u; echo one > t/a; ln -s a t/l; sync t/a")?;
        program::shell(&near, "for n in $(seq 50); do echo $n > t/u/$n; done; sync t/u/50")?;
        let tree = federation.mount().join("t").to_string_lossy().into_owned();
        let told = federation.tieline(&["pin", &tree])?;
        ensure!(told.contains("53 files"), "{told}");
        dev(federation, &["wan", "cut"])?;
        std::thread::sleep(NOTICED);
        let script = "cat t/a t/u/* | sort -n | tail -1 | grep -q 50; readlink t/l; ls -lR t";
        let took = timed(federation.mount(), script)?;
        dev(federation, &["wan", "heal"])?;
        ensure!(took < Duration::from_secs(4), "a pinned tree took {took:?}");
        federation.tieline(&["unpin", &tree]).map(drop)
    })
}
