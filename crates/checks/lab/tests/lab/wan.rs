//! A federation that is far away: it does its work, waits while the line is cut, and goes on.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tieline_lab::federation::with_plan;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::{Federation, Plan, can_emulate_lines};

fn far(arguments: &[&str]) -> Plan {
    let mut all = vec!["--netns".to_owned()];
    all.extend(arguments.iter().map(|word| (*word).to_owned()));
    Plan { arguments: all, ..Plan::default() }
}

/// `tieline dev wan`.
fn wan(federation: &Federation, words: &[&str]) -> Result<String> {
    let dir = federation.dir();
    let mut all = vec![OsStr::new("dev"), OsStr::new("wan")];
    all.extend(words.iter().map(OsStr::new));
    all.extend([OsStr::new("--dir"), dir.as_os_str()]);
    federation.tieline(&all)
}

fn timed(folder: &Path, script: &str) -> Result<Duration> {
    let start = Instant::now();
    program::shell(folder, script)?;
    Ok(start.elapsed())
}

#[test]
fn work_is_done_at_a_distance() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    with_plan(&far(&["--rtt", "50ms", "--rate", "100mbit"]), |federation| {
        let mount = federation.mount();
        federation.shell("mkdir d; echo far > d/a; mv d/a d/b; cat d/b | grep -q far")?;
        // 12 MB at 100 Mbit/s are a second; the line carries headers, too.
        let took = timed(mount, "head -c 12000000 /dev/urandom > big; sync big")?;
        let range = Duration::from_millis(900)..Duration::from_secs(10);
        ensure!(range.contains(&took), "12 MB at 100 Mbit/s took {took:?}");
        wan(federation, &["rate", "unlimited"])?;
        let other = federation.mount_again()?;
        let took = timed(&other, "cmp big ../mount/big && cat fnal/none 2>/dev/null || true")?;
        ensure!(took > Duration::from_millis(50), "a cold read over 50 ms took {took:?}");
        let told = wan(federation, &["show", "--json"])?;
        let told: serde_json::Value = serde_json::from_str(&told)?;
        let sent = told[0]["to_servers"]["bytes"].as_u64().context("bytes are counted")?;
        ensure!(sent > 12_000_000, "{sent} bytes went to servers");
        Ok(())
    })
}

#[test]
fn a_cut_costs_time_and_nothing_else() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    with_plan(&far(&["--rtt", "20ms"]), |federation| {
        federation.shell("echo before > a")?;
        for way in [&["cut"][..], &["cut", "--one-way", "to-servers"]] {
            wan(federation, way)?;
            let mut writer = Command::new("bash");
            writer.args(["-ec", "echo during > b; mv b c; sync c; cat c"]);
            let mut writer = program::start(writer.current_dir(federation.mount()))?;
            std::thread::sleep(Duration::from_millis(1_500));
            ensure!(writer.try_wait()?.is_none(), "a write went through a cut line");
            wan(federation, &["heal"])?;
            let healed = Instant::now();
            ensure!(program::wait(&mut writer, DEADLINE)?.success(), "the writer failed");
            ensure!(healed.elapsed() < Duration::from_secs(10), "{:?}", healed.elapsed());
            federation.shell("grep -q during c; grep -q before a; rm c")?;
        }
        Ok(())
    })
}

/// Reads files of a tree of 30 directories here and there, each kind of program others.
fn jump_through(tree: &Path, program: usize) -> Result<Duration> {
    let start = Instant::now();
    for step in 0..150 {
        let file = (step * 97 + program * 31) % 600;
        let path = tree.join(format!("p{}/d{}/f{}", file / 60, file / 20 % 3, file % 20));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        ensure!(bytes.len() == 2000 + 60 * file, "size of {path:?}");
    }
    Ok(start.elapsed())
}

/// What a program opened is known after ten others used the tree and the MDS was started anew, also
/// if its mount ended as soon as it did.
#[test]
fn a_program_that_ran_before_waits_a_few_times_at_a_distance() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    with_plan(&far(&["--rtt", "1ms"]), |federation| {
        let script = "for p in $(seq 0 9); do for d in 0 1 2; do mkdir -p tree/p$p/d$d; \
                      for f in $(seq 0 19); do \
                      head -c $((2000 + 60 * (p * 60 + d * 20 + f))) /dev/zero > tree/p$p/d$d/f$f; \
                      done; done; done";
        federation.shell(script)?;
        federation.tieline(&[OsStr::new("sync"), federation.mount().join("tree").as_os_str()])?;
        let run = |program: usize, rtt: &str| {
            wan(federation, &["rtt", rtt])?;
            let mount = federation.mount_again()?;
            let took = jump_through(&mount.join("tree"), program)?;
            federation.unmount(&mount)?;
            anyhow::Ok(took)
        };
        let unknown = run(0, "50ms")?;
        (1..=10).try_for_each(|other| run(other, "1ms").map(drop))?;
        federation.kill_and_restart("mds-uf")?;
        let known = run(0, "50ms")?;
        eprintln!("150 files took {unknown:?}, and {known:?} when they were known");
        ensure!(4 * known < 3 * unknown, "150 files took {unknown:?}, and {known:?} when known");
        Ok(())
    })
}

/// A cut within `wait`, also of one way, and steps of latency and rate: nobody who works meanwhile
/// sees more than a delay.
#[test]
fn a_line_that_changes_under_load_is_no_error() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    with_plan(&far(&["--rtt", "10ms", "--rate", "1gbit", "--lease", "5s"]), |federation| {
        // A chunk whose OSS is silent for long may go elsewhere.
        federation.expect_log("chunk goes to another OST");
        federation.shell("mkdir r w; head -c 40000000 /dev/urandom > r/big; sync r/big")?;
        let other = federation.mount_again()?;
        let sum = federation.shell("md5sum < r/big")?;
        let read = format!(
            "for n in $(seq 1000); do test -e w/end && exit 0; echo 3 > /proc/sys/vm/drop_caches; \
             test \"$(md5sum < r/big)\" = \"{}\"; done",
            sum.trim()
        );
        let write = "for n in $(seq 100000); do test -e w/end && exit 0; \
                     head -c 300000 /dev/zero > w/f$((n % 20)); sync w/f$((n % 20)); done";
        let list = "for n in $(seq 100000); do test -e w/end && exit 0; ls -l r > /dev/null; \
                    ls w > /dev/null; done";
        let begin = |folder: &Path, script: &str| {
            let mut command = Command::new("bash");
            program::start(command.args(["-ec", script]).current_dir(folder))
        };
        let mut workers = [
            ("reader", begin(&other, &read)?),
            ("writer", begin(federation.mount(), write)?),
            ("lister", begin(&other, list)?),
        ];
        let script = "cut@1s heal@5s cut to-servers@7s heal@9s cut to-clients@10s heal@12s \
                      rtt=80ms@13s rate=20mbit@14s rtt=2ms@16s rate=1gbit@17s";
        wan(federation, &["script", script])?;
        std::thread::sleep(Duration::from_secs(18));
        for (who, worker) in &mut workers {
            ensure!(worker.try_wait()?.is_none(), "the {who} saw an error");
        }
        federation.shell("touch w/end")?;
        for (who, worker) in &mut workers {
            ensure!(program::wait(worker, DEADLINE)?.success(), "the {who} saw an error");
        }
        Ok(())
    })
}

#[test]
fn the_line_is_back_after_its_relay_was_killed() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    with_plan(&far(&["--rtt", "5ms", "--between-sites", "10ms", "--ip", "6"]), |federation| {
        federation.shell("echo x > fnal/a")?;
        federation.kill_and_restart("wan")?;
        federation.shell("grep -q x fnal/a; echo y > fnal/b")?;
        let told = wan(federation, &["show", "--json"])?;
        ensure!(told.contains("\"fnal\"") && told.contains("\"clients\""), "{told}");
        Ok(())
    })
}

#[test]
fn a_command_has_a_line_of_its_own() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let script = "test -e $TIELINE_WAN_DIR/wan.sock; test -e /run/netns/$TIELINE_WAN_SERVERS";
    let mut command = Command::new(program::tieline()?);
    command.args(["dev", "wan", "run", "--rtt", "50ms", "--", "bash", "-ec", script]);
    program::finish(&mut command, DEADLINE)?.succeed("dev wan run")?;
    let mut command = Command::new(program::tieline()?);
    command.args(["dev", "wan", "run", "--", "false"]);
    ensure!(!program::finish(&mut command, DEADLINE)?.status.success());
    Ok(())
}
