//! Federations with a KDC of their own: who gets in, what shows on the line, rules that change.

use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_auth::ScratchKdc;
use tieline_auth::gss::principals;
use tieline_lab::federation::{Federation, Plan, with_plan};
use tieline_lab::program::{self, DEADLINE, Run};
use tieline_types::{Flavor, Grant, SessionId, Version};
use tieline_wire::{FrameHeader, FrameKind, Welcome};

/// What no file here holds by accident.
const MARK: &str = "dimuon-mass-91.1876-event-bytes";

/// Hears loopback while a program runs, and counts packets with a text in them.
const LISTEN: &str = r#"
import select, socket, subprocess, sys, time
mark = sys.argv[1].encode()
ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
ear.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
ear.bind(("lo", 0))
work = subprocess.Popen(sys.argv[2:])
heard, quiet = 0, None
while quiet is None or time.monotonic() < quiet:
    if quiet is None and work.poll() is not None:
        quiet = time.monotonic() + 0.5
    if select.select([ear], [], [], 0.1)[0]:
        heard += mark in ear.recv(1 << 17)
sys.exit(print(heard) or work.returncode)
"#;

fn with_sec(words: &[&str], test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    if !tieline_lab::has_kdc() {
        return Ok(());
    }
    with_plan(&Plan::proven(words), test)
}

fn config(federation: &Federation) -> PathBuf {
    federation.dir().join("kdc/krb5.conf")
}

fn cache(federation: &Federation, user: &str) -> String {
    format!("FILE:{}", federation.local(&format!("cache-{user}")).display())
}

fn kinit(federation: &Federation, user: &str) -> Result<()> {
    let password = federation.local("password");
    std::fs::write(&password, format!("{user}\n"))?;
    let mut command = Command::new("kinit");
    command.args(["-c", &cache(federation, user), user]).env("KRB5_CONFIG", config(federation));
    command.stdin(Stdio::from(std::fs::File::open(&password)?));
    ensure!(program::wait(&mut program::start(&mut command)?, DEADLINE)?.success(), "kinit");
    Ok(())
}

/// `tieline` with somebody's tickets, by URL.
fn tieline_as(federation: &Federation, user: &str, words: &[&str]) -> Result<Run> {
    let mut command = Command::new(program::tieline()?);
    command.args(words).env("KRB5_CONFIG", config(federation));
    command.env("KRB5CCNAME", cache(federation, user));
    program::finish(&mut command, DEADLINE)
}

fn url(federation: &Federation) -> Result<String> {
    let address = federation.process("mds-uf")?["address"].as_str().map(str::to_owned);
    Ok(format!("tieline://{}/extenci", address.context("an MDS has an address")?))
}

#[test]
fn only_who_has_a_ticket_gets_in_and_the_mount_works() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        federation
            .shell("mkdir d && head -c 9000000 /dev/urandom > d/f && cp d/f d/g && cmp d/f d/g")?;
        federation.shell("head -c 9000000 /dev/zero > fnal/far && sync fnal/far && rm fnal/far")?;
        let url = url(federation)?;
        let stranger = tieline_as(federation, "nobody", &["ls", &url])?;
        ensure!(!stranger.status.success(), "a stranger is let in: {}", stranger.stdout);
        ensure!(stranger.stderr.contains("kinit"), "{}", stranger.stderr);
        kinit(federation, "daemon")?;
        let known = tieline_as(federation, "daemon", &["ls", &url])?;
        ensure!(known.stdout.contains('d'), "{}{}", known.stdout, known.stderr);
        // Whoever runs the command: it is `daemon` whom the servers see.
        federation.shell("mkdir -m 700 own && mkdir -m 777 all")?;
        let denied = tieline_as(federation, "daemon", &["ls", &format!("{url}/own")])?;
        ensure!(!denied.status.success(), "root by a user's ticket: {}", denied.stdout);
        kinit(federation, "ann")?;
        let ann = tieline_as(federation, "ann", &["ls", &url])?;
        ensure!(!ann.status.success() && ann.stderr.contains("stranger"), "{}", ann.stderr);
        let rules = federation.tieline(&["flavor", "list", "extenci"]);
        let rules = rules.or_else(|_| {
            let mount = federation.mount().to_string_lossy().into_owned();
            federation.tieline(&["flavor", "list", &mount])
        })?;
        ensure!(rules.contains("extenci.srpc.flavor.default.cli2mdt=krb5p"), "{rules}");
        Ok(())
    })
}

/// A process that frees what its threads free too ends by SIGABRT, one in a hundred.
#[test]
fn verbs_end_whatever_their_threads_do() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        let mount = federation.mount().to_string_lossy().into_owned();
        for _ in 0..300 {
            federation.tieline(&["setstripe", "-p", "uf", &mount])?;
        }
        Ok(())
    })
}

#[test]
fn rules_change_while_files_are_written_and_nothing_fails() -> Result<()> {
    with_sec(&["--sec", "krb5n"], |federation| {
        let script = "for i in $(seq 40); do head -c 3000000 /dev/urandom > f$i && cmp f$i f$i \
                      && mkdir d$i || exit 1; done; cat f* | wc -c";
        let mut work = Command::new("sh");
        work.args(["-ec", script]).current_dir(federation.mount()).stdout(Stdio::null());
        let mut work = program::start(&mut work)?;
        let mount = federation.mount().to_string_lossy().into_owned();
        for rule in ["default=krb5p", "default=krb5i", "127.0.0.0/8.cli2ost=krb5a", "default=krb5p"]
        {
            let rule = format!("extenci.srpc.flavor.{rule}");
            federation.tieline(&["flavor", "set", "--fs", &mount, &rule])?;
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        ensure!(program::wait(&mut work, DEADLINE)?.success(), "a write failed");
        let logs = federation.logs()?;
        ensure!(logs.contains("flavor=\"krb5p\"") && logs.contains("flavor=\"krb5a\""), "{logs}");
        Ok(())
    })
}

/// The rule closes the connection over which it is changed, often before the answer is read.
#[test]
fn a_rule_is_taken_away_once_over_its_own_connection() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        let mount = federation.mount().to_string_lossy().into_owned();
        let rule = "extenci.srpc.flavor.127.0.0.1/32.cli2mdt";
        for _ in 0..15 {
            let set = format!("{rule}=krb5i");
            federation.tieline(&["flavor", "set", "--fs", &mount, &set])?;
            federation.tieline(&["flavor", "unset", "--fs", &mount, rule])?;
        }
        Ok(())
    })
}

/// A copy shares the chunks of what it was copied from; a capability for it names some of them.
#[test]
fn many_read_a_copy_at_many_places_at_once() -> Result<()> {
    // More pieces than one capability names, read at places far from each other.
    let script = r"
import os, sys, threading
written, read = sys.argv[1:]
PIECES, LENGTH, APART = 640, 20_000, 65_536
file = os.open(written + '/from', os.O_WRONLY | os.O_CREAT)
for number in range(PIECES):
    os.pwrite(file, b'%5d' % number * (LENGTH // 5), number * APART)
    os.fdatasync(file)
file = os.open(written + '/from', os.O_RDONLY)
copy = os.open(written + '/to', os.O_WRONLY | os.O_CREAT)
for number in range(PIECES):
    assert os.copy_file_range(file, copy, LENGTH, number * APART, number * APART) == LENGTH
wrong, start = [], threading.Barrier(32)
file = os.open(read + '/to', os.O_RDONLY)
def piece(number):
    start.wait()
    try:
        if os.pread(file, LENGTH, number * APART) != b'%5d' % number * (LENGTH // 5):
            wrong.append(f'{number} differs')
    except OSError as error:
        wrong.append(f'{number}: {error}')
threads = [threading.Thread(target=piece, args=[n]) for n in range(0, PIECES, PIECES // 32)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(', '.join(wrong) or 0)
";
    with_sec(&["--kerberos"], |federation| {
        let other = federation.mount_again()?;
        let (mount, other) = (federation.mount(), other.as_path());
        let [mount, other] = [mount, other].map(|path| path.to_string_lossy().into_owned());
        program::call("python3", &["-c", script, &mount, &other]).map(drop)
    })
}

/// How many packets had the mark in them while it was written and read back by another mount.
fn heard(federation: &Federation) -> Result<u64> {
    let other = federation.mount_again()?;
    let (here, there) = (federation.mount().join("marked"), other.join("marked"));
    let script = format!(
        "yes {MARK} | head -c 2000000 > {here} && sync {here} && cmp {here} {there} \
         && ls -l {there}",
        here = here.display(),
        there = there.display()
    );
    let said = program::call("python3", &["-c", LISTEN, MARK, "sh", "-ec", &script])?;
    let count = said.trim().lines().last().context("the ear says a number")?;
    Ok(count.parse()?)
}

#[test]
fn no_event_bytes_cross_in_clear_under_krb5p() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_sec(&["--sec", "krb5p"], |federation| {
        let heard = heard(federation)?;
        ensure!(heard == 0, "{heard} packets in clear");
        Ok(())
    })?;
    // The ear hears: under krb5i they do.
    with_sec(&["--sec", "krb5i"], |federation| {
        ensure!(heard(federation)? > 0, "the ear is deaf");
        Ok(())
    })
}

#[test]
fn a_server_is_found_by_another_name_once_it_has_a_key_for_it() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        kinit(federation, "daemon")?;
        let alias = url(federation)?.replace("127.0.0.1", "localhost");
        let unknown = tieline_as(federation, "daemon", &["ls", &alias])?;
        ensure!(!unknown.status.success(), "by a name that nobody has: {}", unknown.stdout);
        let (why, fix) = ("tieline_mds/localhost", "addprinc");
        ensure!(unknown.stderr.contains(why) && unknown.stderr.contains(fix), "{}", unknown.stderr);
        let dir = federation.dir().join("kdc");
        let keytab = dir.join("mds-uf.keytab");
        let (name, keytab) = ("tieline_mds/localhost", keytab.display());
        let kdc = ScratchKdc::again(&dir, "EXTENCI.ORG", 0);
        kdc.admin(&format!("addprinc -randkey {name}\nktadd -k {keytab} {name}\n"))?;
        let known = tieline_as(federation, "daemon", &["ls", &alias])?;
        ensure!(known.status.success(), "{}", known.stderr);
        Ok(())
    })
}

/// Nothing in a ticket tells its owner that the service has another key since.
#[test]
fn a_service_with_a_new_key_is_dialed_with_new_tickets() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        federation.shell("echo events > run7 && sync run7")?;
        kinit(federation, "daemon")?;
        let url = url(federation)?;
        let read = || tieline_as(federation, "daemon", &["cat", &format!("{url}/run7")]);
        ensure!(read()?.stdout == "events\n");
        let tickets = || std::fs::read(cache(federation, "daemon").trim_start_matches("FILE:"));
        let before = tickets()?;
        let dir = federation.dir().join("kdc");
        let kdc = ScratchKdc::again(&dir, "EXTENCI.ORG", 0);
        // Who still comes with the old one is refused, and told why.
        federation.expect_log("key version");
        for name in ["mds-uf", "oss-uf"] {
            let keytab = dir.join(format!("{name}.keytab"));
            let names = principals(&keytab)?;
            let script: Vec<String> =
                names.iter().map(|name| format!("cpw -randkey {name}\n")).collect();
            kdc.admin(&script.concat())?;
            let owner = std::fs::metadata(&keytab)?;
            let new = kdc.keytab("new.keytab", &names)?;
            std::os::unix::fs::chown(&new, Some(owner.uid()), Some(owner.gid()))?;
            std::fs::rename(new, keytab)?;
            federation.kill_and_restart(name)?;
        }
        // The mount keeps its tickets in its own memory; a user's cache is his.
        federation.shell("cat run7 && echo more >> run7 && sync run7 && rm run7")?;
        federation.shell("echo events > run7 && sync run7")?;
        let again = read()?;
        ensure!(again.stdout == "events\n", "{}{}", again.stdout, again.stderr);
        ensure!(tickets()? == before, "somebody wrote into the user's cache");
        Ok(())
    })
}

/// Promise 183: A server's Kerberos keys are replaced while it serves: it takes tickets of the old
/// one until that is taken out of its keytab, and none after that.
#[test]
fn a_servers_keys_are_replaced_while_it_serves() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        federation.shell("echo events > run7 && sync run7")?;
        kinit(federation, "daemon")?;
        let address = url(federation)?;
        let read = || tieline_as(federation, "daemon", &["cat", &format!("{address}/run7")]);
        ensure!(read()?.stdout == "events\n");
        federation.expect_log("key version");
        let dir = federation.dir().join("kdc");
        let kdc = ScratchKdc::again(&dir, "EXTENCI.ORG", 0);
        let each_key = |verb: &str, end: &str| -> Result<()> {
            for name in ["mds-uf", "oss-uf"] {
                let keytab = dir.join(format!("{name}.keytab"));
                let line = |name| format!("{verb} -k {} {name}{end}\n", keytab.display());
                let script: Vec<String> = principals(&keytab)?.iter().map(line).collect();
                kdc.admin(&script.concat())?;
            }
            Ok(())
        };
        // The keytab has the new key beside the old one.
        each_key("ktadd", "")?;
        ensure!(read()?.stdout == "events\n", "by a ticket of before");
        kinit(federation, "daemon")?;
        let new = read()?;
        ensure!(new.stdout == "events\n", "by a new ticket: {}", new.stderr);
        federation.shell("echo more >> run7 && sync run7")?;
        each_key("ktremove", " old")?;
        ensure!(read()?.stdout == "events\nmore\n", "the new key is enough");
        federation.shell("echo last >> run7 && sync run7")?;
        let fresh = federation.mount_again()?;
        ensure!(std::fs::read_to_string(fresh.join("run7"))?.ends_with("last\n"));
        federation.unmount(&fresh)
    })
}

/// Welcomes everybody and proves nothing, as a server of a federation without Kerberos does.
fn pretend(welcomed: usize) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let welcome = Welcome {
        version: 1,
        session: SessionId(9),
        is_resumed: false,
        grant: Grant(1),
        boot: 1,
        lease_ms: 20_000,
        flavor: Flavor::Null,
        features: 0,
        server: "mds".to_owned(),
        map: Version(0),
        holder: None,
        lost_locks: None,
    };
    let body = tieline_wire::encode(&welcome);
    let body_length = u32::try_from(body.len())?;
    let header = FrameHeader { body_length, ..FrameHeader::new(FrameKind::Welcome) };
    let frame = [&header.encode(&body)[..], &body].concat();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(welcomed) {
            let Ok(mut stream) = stream else { return };
            // Until the other end has heard enough.
            let _ = stream.write_all(&frame).and_then(|()| stream.read_to_end(&mut vec![]));
        }
    });
    Ok(address)
}

#[test]
fn who_names_kerberos_is_not_talked_out_of_it_by_the_first_server() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        let kdc = ScratchKdc::again(&federation.dir().join("kdc"), "EXTENCI.ORG", 0);
        kdc.admin("addprinc -randkey host/127.0.0.1\n")?;
        kinit(federation, "daemon")?;
        let url = format!("tieline://{}/extenci", pretend(1)?);
        let told = tieline_as(federation, "daemon", &["--service", "host", "ls", &url])?;
        let why = "flavor null was offered, and nothing weaker than krb5n is taken";
        ensure!(!told.status.success() && told.stderr.contains(why), "{}", told.stderr);
        let keytab = federation.dir().join("kdc/client.keytab");
        let (keytab, config) = (keytab.display(), config(federation));
        let source = format!("{}:/extenci", pretend(1)?);
        let at = federation.local("talked-down");
        std::fs::create_dir_all(&at)?;
        let options = format!("keytab={keytab},krb5conf={},service=host", config.display());
        let mut mount = Command::new(program::tieline()?);
        mount.args(["mount", "-o", &options, &source]).arg(&at);
        let told = program::finish(&mut mount, DEADLINE)?;
        ensure!(!told.status.success() && told.stderr.contains(why), "{}", told.stderr);
        Ok(())
    })
}

/// Where a KDC has machines' names only.
#[test]
fn servers_with_nothing_but_their_machines_keys_are_found() -> Result<()> {
    with_sec(&["--kerberos", "--host-keys"], |federation| {
        kinit(federation, "daemon")?;
        let url = url(federation)?;
        federation.shell("echo events > run7 && mkdir -m 777 all")?;
        let read = tieline_as(federation, "daemon", &["cat", &format!("{url}/run7")])?;
        ensure!(read.stdout == "events\n", "{}{}", read.stdout, read.stderr);
        let pinned = tieline_as(federation, "daemon", &["--service", "host", "ls", &url])?;
        ensure!(pinned.stdout.contains("run7"), "{}", pinned.stderr);
        let other = tieline_as(federation, "daemon", &["ls", &url, "--service", "tieline_mds"])?;
        let why = "tieline_mds/127.0.0.1";
        ensure!(!other.status.success() && other.stderr.contains(why), "{}", other.stderr);
        let keytab = federation.dir().join("kdc/client.keytab");
        let (keytab, config) = (keytab.display(), config(federation));
        // The federation's own mount found them by itself.
        let options = format!("keytab={keytab},krb5conf={},service=host", config.display());
        federation.with_mount(&options, |mount| {
            ensure!(std::fs::read(mount.join("run7"))? == b"events\n");
            Ok(())
        })?;
        Ok(())
    })
}

/// What root starts is not root's; and it goes on over a restart.
#[test]
fn servers_run_as_an_unprivileged_user() -> Result<()> {
    if !tieline_lab::needs_root() || !tieline_lab::has_kdc() {
        return Ok(());
    }
    let plan = Plan { is_open: true, ..Plan::proven(&["--kerberos"]) };
    with_plan(&plan, |federation| {
        federation.shell("head -c 9000000 /dev/urandom > f && cp f fnal/g && cmp f fnal/g")?;
        for name in ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"] {
            federation.kill_and_restart(name)?;
            let pid = federation.process(name)?["pid"].to_string();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            let uids: Vec<&str> = uids.context("a process has ids")?.split_whitespace().collect();
            ensure!(uids.len() == 4 && !uids.contains(&"0"), "{name} runs as {uids:?}");
        }
        federation.shell("cmp f fnal/g && mkdir d && rm f fnal/g")?;
        let audit = federation.dir().join("logs/audit-mds-uf.jsonl");
        ensure!(std::fs::read_to_string(audit)?.contains("authentication"));
        Ok(())
    })
}

/// What `tieline doctor` finds of Kerberos, as somebody with these settings and tickets.
fn doctor(federation: &Federation, config: &Path, words: &[&str]) -> Result<String> {
    // Without the tickets of the last look.
    kinit(federation, "daemon")?;
    let mut command = Command::new(program::tieline()?);
    command.args(["doctor", "--part"]).args(words).env("KRB5_CONFIG", config);
    command.env("KRB5CCNAME", cache(federation, "daemon"));
    Ok(program::finish(&mut command, DEADLINE)?.stdout)
}

/// The finding that has this, and its fix.
fn ensure_told(said: &str, what: &str, fix: &str) -> Result<()> {
    let mut lines = said.lines();
    let is_it = |line: &&str| line.starts_with("fail") && line.contains(what);
    lines.find(is_it).with_context(|| format!("no `{what}`: {said}"))?;
    let told = lines.next().unwrap_or_default();
    ensure!(told.contains("fix: ") && told.contains(fix), "no `{fix}`: {said}");
    Ok(())
}

#[test]
fn the_doctor_tells_what_is_wrong_with_tickets_and_keys() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        let address = url(federation)?.replace("tieline://", "").replace('/', ":/");
        let settings = federation.dir().join("sites/uf/mds.toml");
        let settings = settings.to_str().context("a path")?;
        let honest = config(federation);
        let (mount, server) = (["--mount", &address], ["--settings", settings]);
        for words in [&mount, &server] {
            let said = doctor(federation, &honest, words)?;
            ensure!(said.contains("kerberos: ") && !said.contains("fail"), "{said}");
        }
        let told = std::fs::read_to_string(&honest)?;
        let with = |name: &str, text: &str| -> Result<PathBuf> {
            let path = federation.local(name);
            std::fs::write(&path, text)?;
            Ok(path)
        };
        let kdc_line = told.lines().find(|line| line.trim_start().starts_with("kdc ="));
        let kdc_line = kdc_line.context("the KDC's line")?;
        let silent = with("silent.conf", &told.replace(kdc_line, "    kdc = 127.0.0.1:1"))?;
        ensure_told(&doctor(federation, &silent, &mount)?, "no KDC answers", "kdc =")?;
        let unknown = with("unknown.conf", &told.replace(kdc_line, ""))?;
        ensure_told(&doctor(federation, &unknown, &mount)?, "no way to the realm", "krb5.conf")?;
        let kdc = ScratchKdc::again(&federation.dir().join("kdc"), "EXTENCI.ORG", 0);
        let oss = "tieline_oss/uf.extenci.org";
        kdc.admin(&format!("cpw -randkey -e aes128-cts-hmac-sha1-96:normal {oss}\n"))?;
        ensure_told(&doctor(federation, &honest, &mount)?, "no enctype", "aes256-cts")?;
        // Any name in the keytab may be old, not only that by which the server dials.
        kdc.admin("cpw -randkey tieline_mds/127.0.0.1\n")?;
        let said = doctor(federation, &honest, &server)?;
        ensure!(said.contains("ok    kerberos: a ticket of tieline_mds/uf.extenci.org"), "{said}");
        ensure_told(&said, "tieline_mds/127.0.0.1", "ktadd")?;
        kdc.admin("cpw -randkey tieline_mds/uf.extenci.org\n")?;
        let said = doctor(federation, &honest, &server)?;
        let (broken, fix) = ("fail  kerberos: ", ["ktadd", "klist -k"]);
        ensure!(said.contains(broken) && fix.iter().any(|fix| said.contains(fix)), "{said}");
        Ok(())
    })
}

/// Keys that cannot be read, are none, or are another host's, and a krb5.conf that is none: all are
/// named with their fix, before a server says that it is ready.
#[test]
fn keys_that_will_not_do_are_named() -> Result<()> {
    with_sec(&["--kerberos"], |federation| {
        let address = url(federation)?.replace("tieline://", "").replace('/', ":/");
        let honest = config(federation);
        let folder = federation.local("keys");
        std::fs::create_dir(&folder)?;
        let path = |name: &str| folder.join(name).display().to_string();
        std::fs::write(path("empty"), [5, 2])?;
        std::fs::write(path("text"), "no keytab")?;
        for (name, why, fix) in [
            ("missing", "cannot be read", "correct its path"),
            ("text", "no keytab of version 2", "correct its path"),
            ("empty", "has no key", "klist -k"),
        ] {
            let words = ["--mount", &address, "--keytab", &path(name)];
            ensure_told(&doctor(federation, &honest, &words)?, why, fix)?;
        }
        let usual = std::fs::read_to_string(federation.dir().join("sites/uf/mds.toml"))?;
        let with = |changes: &[(&str, &str)]| -> Result<String> {
            let mut lines: Vec<String> = usual.lines().map(str::to_owned).collect();
            for (key, value) in changes {
                let is_it = |line: &&mut String| line.starts_with(&format!("{key} = "));
                let line = lines.iter_mut().find(is_it).with_context(|| format!("no {key}"))?;
                *line = format!("{key} = \"{value}\"");
            }
            let settings = path("changed.toml");
            std::fs::write(&settings, lines.join("\n"))?;
            Ok(settings)
        };
        // As its servers run here, whoever that is.
        let owner = usual.lines().find_map(|line| line.strip_prefix("user = "));
        let owner = owner.map(|user| user.trim_matches('"').to_owned());
        let give = |path: &str| match owner.as_deref().filter(|_| tieline_lab::is_root()) {
            Some(user) => program::call("chown", &[user, path]).map(drop),
            None => Ok(()),
        };
        let kdc = ScratchKdc::again(&federation.dir().join("kdc"), "EXTENCI.ORG", 0);
        let elsewhere = "tieline_mds/elsewhere.extenci.org@EXTENCI.ORG".to_owned();
        let made = kdc.keytab("elsewhere.keytab", std::slice::from_ref(&elsewhere))?;
        std::fs::write(path("elsewhere"), std::fs::read(made)?)?;
        std::fs::set_permissions(
            path("elsewhere"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )?;
        give(&path("elsewhere"))?;
        let keytab = path("elsewhere");
        let foreign = with(&[("keytab", &keytab), ("principal", &elsewhere)])?;
        let said = doctor(federation, &honest, &["--settings", &foreign])?;
        ensure_told(&said, &format!("has keys of {elsewhere} only"), "ktadd")?;

        let check = |settings: &str| -> Result<Run> {
            let mut command = Command::new(program::tieline()?);
            command.args(["server", "--check", "--settings", settings]);
            program::finish(&mut command, DEADLINE)
        };
        let broken = path("krb5.conf");
        std::fs::write(&broken, "[libdefaults\n default_realm = \n }}\n")?;
        give(&broken)?;
        let run = check(&with(&[("config", &broken)])?)?;
        ensure!(
            !run.status.success() && run.stderr.contains("krb5.conf cannot be used"),
            "{run:?}"
        );
        if !tieline_lab::is_root() || owner.as_deref().is_none_or(|owner| owner == "root") {
            tieline_lab::skip("keys of another user");
            return Ok(());
        }
        program::call("chown", &["root", &keytab])?;
        let unread = with(&[("keytab", &keytab), ("site", "no site")])?;
        let user = owner.unwrap_or_default();
        for words in
            [&["server", "--settings", &unread][..], &["server", "--check", "--settings", &unread]]
        {
            let run = federation.try_tieline(words)?;
            let told = format!("`{user}`, as whom the server runs, cannot read {keytab}");
            ensure!(!run.status.success() && run.stderr.contains(&told), "{run:?}");
            ensure!(run.stderr.contains("site: "), "the others too: {run:?}");
        }
        let said = doctor(federation, &honest, &["--settings", &unread])?;
        ensure_told(&said, "as whom the server runs", "kerberos.keytab")
    })
}
