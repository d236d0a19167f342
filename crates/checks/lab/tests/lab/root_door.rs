//! root:// by stock clients (xrdfs, xrdcp, uproot over Debian's bindings), and by one of our own
//! that says what no client should (`client.py`), all before one door.

use super::lies::{forge, objects};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tieline_auth::gss::{GssInitiator, Keys};
use tieline_auth::{Mechanism, ScratchKdc};
use tieline_lab::program::{self, DEADLINE, Run, until};
use tieline_lab::{Federation, Plan, tickets};

const REALM: &str = "EXTENCI.ORG";
const DOOR: &str = "tieline_door/door.extenci.org@EXTENCI.ORG";
const SERVICE: &str = "xrootd/door.extenci.org@EXTENCI.ORG";
const ANN: u32 = 5001;
const BOB: u32 = 5002;
const CMS: u32 = 6001;
const PATIENCE: Duration = Duration::from_secs(30);
/// Where Debian has the bindings of XRootD's client.
const BINDINGS: &str = "/usr/lib/python3/dist-packages";

/// Are there stock clients?
fn has_clients() -> bool {
    let is_there = |path: &str| Path::new(path).exists();
    let found = is_there("/usr/bin/xrdcp") && is_there(&format!("{BINDINGS}/pyxrootd"));
    if !found {
        tieline_lab::skip("xrootd-client and python3-xrootd are not installed");
    }
    found
}

/// A federation with users, and a door before it.
struct Scene<'f> {
    federation: &'f Federation,
    door: Door,
}

/// The door's process. Dropped, it is killed.
struct Door {
    child: Child,
    port: u16,
    admin: u16,
    log: PathBuf,
}

impl Door {
    fn start(federation: &Federation) -> Result<Self> {
        Self::start_at(federation, program::free_port()?)
    }

    fn start_at(federation: &Federation, port: u16) -> Result<Self> {
        let admin = program::free_port()?;
        let (settings, log) = (federation.local("door.toml"), federation.local("door.log"));
        let state = federation.status()?;
        let key = state["key"].as_str().context("the federation's key")?;
        let address = federation.process("mds-uf")?["address"].clone();
        let kdc = federation.dir().join("kdc");
        std::fs::write(
            &settings,
            format!(
                "fs = 'extenci'\nroot = [{address}]\nmap_key = '{key}'\nuser = 'root'\n\
                 admin = '127.0.0.1:{admin}'\n[kerberos]\nkeytab = '{kdc}/door.keytab'\n\
                 config = '{kdc}/krb5.conf'\n[xrootd]\nlisten = '127.0.0.1:{port}'\n\
                 memory = '16 MiB'\nsite = 'uf'\n",
                kdc = kdc.display()
            ),
        )?;
        let mut command = Command::new(program::tieline()?);
        command.args(["door", "serve", "--settings"]).arg(&settings);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
        let door = Self { child: program::start(&mut command)?, port, admin, log };
        until("the door is open", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(door)
    }

    fn metrics(&self) -> Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.admin))?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: door\r\n\r\n")?;
        let mut told = String::new();
        socket.read_to_string(&mut told)?;
        Ok(told)
    }

    /// Ends it in good order; says what it warned of.
    fn stop(mut self) -> Result<String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = program::wait(&mut self.child, PATIENCE)?;
        ensure!(status.success(), "the door ended with {status}");
        let log = std::fs::read_to_string(&self.log)?;
        let is_bad = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        Ok(log.lines().filter(is_bad).collect::<Vec<_>>().join("\n"))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        program::kill_group(&self.child);
        let _ = self.child.wait();
    }
}

impl<'f> Scene<'f> {
    fn new(federation: &'f Federation) -> Result<Self> {
        let kdc = ScratchKdc::again(&federation.dir().join("kdc"), REALM, 0);
        kdc.keytab("door.keytab", &[DOOR.to_owned()])?;
        // The service's key is the MDSs', and not the door's.
        for site in ["uf", "fnal"] {
            kdc.keytab(&format!("mds-{site}.keytab"), &[SERVICE.to_owned()])?;
        }
        kdc.user("eve", "eve")?;
        let mount = federation.mount().to_string_lossy().into_owned();
        let id = |words: &[&str]| federation.tieline(&[&["id", "--fs", &mount], words].concat());
        id(&["add", "users", "--group", "--number", "6000"])?;
        id(&["add", "cms", "--group", "--number", &CMS.to_string()])?;
        id(&["add", "ann", "--number", &ANN.to_string(), "--groups", "users,cms"])?;
        id(&["add", "bob", "--number", &BOB.to_string(), "--groups", "users"])?;
        federation.tieline(&["door", "--fs", &mount, "add", DOOR, "--tickets-for", SERVICE])?;
        for user in ["ann", "bob", "eve"] {
            tickets::kinit(federation, user)?;
        }
        Self::prepare(federation)?;
        Ok(Self { federation, door: Door::start(federation)? })
    }

    /// Files of the site itself and of another one, and some that are not everybody's.
    fn prepare(federation: &Federation) -> Result<()> {
        federation.shell(&format!(
            "umask 022; mkdir data private shared listed fnal/far
             head -c 9000123 /dev/urandom > data/large; cp data/large fnal/far/large
             echo small > data/small; : > data/empty; ln -s ../fnal/far data/far
             ln -s none data/dangling; printf x > \"data/with space & ümlaut\"
             for i in $(seq 1500); do : > listed/$i; done
             echo secret > private/file; chown -R {BOB}:6000 private; chmod 700 private
             echo ours > shared/file; chown -R {BOB}:{CMS} shared; chmod 750 shared
             chmod 640 shared/file
             for who in 5001 5003; do echo list > data/list-$who; chmod 600 data/list-$who
             setfacl -m u:$who:r data/list-$who; done; sync"
        ))?;
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("root://127.0.0.1:{}/{path}", self.door.port)
    }

    /// A program with somebody's tickets; `None`: with nobody's.
    fn command(&self, program: &str, user: Option<&str>) -> Command {
        let mut command = Command::new(program);
        let cache = user.map(|user| tickets::cache(self.federation, user));
        let cache = cache.unwrap_or_else(|| self.federation.local("no-tickets"));
        command.env("KRB5CCNAME", format!("FILE:{}", cache.display()));
        command.env("KRB5_CONFIG", tickets::config(self.federation));
        command
    }

    fn run(&self, user: Option<&str>, words: &[&str]) -> Result<Run> {
        let (program, words) = words.split_first().context("a program")?;
        program::finish(self.command(program, user).args(words), DEADLINE)
    }

    /// `xrdfs` as Ann.
    fn xrdfs(&self, words: &[&str]) -> Result<String> {
        let url = self.url("");
        let run = self.run(Some("ann"), &[&["xrdfs", &url], words].concat())?;
        run.succeed(&format!("xrdfs {words:?}"))
    }

    /// It must be refused so; gives what was said.
    fn refused(&self, user: Option<&str>, words: &[&str], number: u32) -> Result<String> {
        let run = self.run(user, words)?;
        let said = format!("{}{}", run.stdout, run.stderr);
        let is_refused = !run.status.success() && said.contains(&format!("[{number}]"));
        ensure!(is_refused, "{words:?} by {user:?}: {said}");
        Ok(said)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.federation.mount().join(path)
    }

    /// What a stock client sends to the door to show Ann.
    fn ticket(&self) -> Result<String> {
        let cache = format!("FILE:{}", tickets::cache(self.federation, "ann").display());
        let keys = Keys { cache: Some(cache), ..Keys::default() };
        let mut initiator = GssInitiator::new(keys, SERVICE.to_owned());
        let token = initiator.step(None, &[0; 32])?.token.context("a first token")?;
        Ok(token.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Promise 120: By root:// a client reads the bytes that a mount shows: by name, in listings, by
/// checksum, whole, by pages and in many ranges.
///
/// Promise 121: Who may read by root:// is decided as on a mount: by the same owner, mode, access
/// list and groups.
///
/// Promise 122: Whoever comes by root:// without a ticket, or with one that names nobody here, is
/// told with error 3010 what to do, and gets nothing.
///
/// Promise 123: Nothing is changed by root://: what would is refused with error 3025.
///
/// Promise 124: Clients of root:// that send nonsense, or do not read what they asked for, keep no
/// other client waiting.
///
/// Promise 125: A stock client that has a file open by root:// reads on when the time is over for
/// which it was let in, and when the door was killed and is started again.
#[test]
fn files_are_read_by_root_as_on_a_mount() -> Result<()> {
    if !tieline_lab::needs_root() || !tieline_lab::has_kdc() || !has_clients() {
        return Ok(());
    }
    tieline_lab::federation::with_plan(&Plan::proven(&["--kerberos"]), |federation| {
        let scene = Scene::new(federation)?;
        stock_clients_read(&scene).context("stock clients")?;
        rights_are_those_of_the_mount(&scene).context("rights")?;
        strangers_are_told(&scene).context("strangers")?;
        nothing_is_changed(&scene).context("changes")?;
        a_door_is_held_to_its_scope(&scene).context("a scope")?;
        events_are_the_same(&scene).context("uproot")?;
        our_own_client(&scene).context("our own client")?;
        let metrics = scene.door.metrics()?;
        for counted in [
            "tieline_door_requests_total{op=\"readv\",outcome=\"ok\",protocol=\"root\"}",
            "tieline_door_requests_total{op=\"open\",outcome=\"3010\",protocol=\"root\"}",
            "tieline_door_sent_bytes_total{protocol=\"root\"}",
        ] {
            ensure!(metrics.contains(counted), "{counted}: {metrics}");
        }
        let scene = a_reader_reads_on(scene).context("a reader reads on")?;
        false_bytes(&scene).context("a data server that lies")?;
        let warned = scene.door.stop()?;
        let is_expected = |line: &str| line.contains("does not match its checksum");
        ensure!(warned.lines().all(is_expected), "{warned}");
        Ok(())
    })
}

/// What a data server invented is an error here, too.
fn false_bytes(scene: &Scene<'_>) -> Result<()> {
    let lab = scene.federation;
    lab.shell("head -c 3000000 /dev/zero | tr '\\0' x > data/false && sync data/false")?;
    lab.expect_log("does not match its checksum");
    let path = scene.path("data/false");
    let (objects, _) = objects(lab, &path, "uf").or_else(|_| objects(lab, &path, "fnal"))?;
    objects.iter().try_for_each(|object| forge(object, true))?;
    let (from, to) = (scene.url("/data/false"), lab.local("false"));
    let words = ["xrdcp", "-f", "--nopbar", &from, &to.to_string_lossy()];
    let run = scene.run(Some("ann"), &words)?;
    ensure!(!run.status.success(), "{run:?}");
    let got = std::fs::read(&to).unwrap_or_default();
    ensure!(got.iter().all(|byte| matches!(byte, b'x' | 0)), "false bytes are given");
    Ok(())
}

fn stock_clients_read(scene: &Scene<'_>) -> Result<()> {
    let listed = scene.xrdfs(&["ls", "-l", "/data"])?;
    for (name, part) in [
        ("large", "-rw-r--r-- root root 9000123 "),
        ("far", "drwxr-xr-x root root "),
        ("empty", "-rw-r--r-- root root 0 "),
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!("/data/{name}")));
        // The client pads its columns.
        let line = line.with_context(|| format!("{name}: {listed}"))?;
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(line.starts_with(part), "{line}");
    }
    let count = scene.xrdfs(&["ls", "/listed"])?.lines().count();
    ensure!(count == 1500, "{count} names");
    let stat = scene.xrdfs(&["stat", "/data/far/large"])?;
    ensure!(stat.contains("9000123") && stat.contains("IsReadable"), "{stat}");
    let sum = program::call("xrdadler32", &[scene.path("data/large")])?;
    let sum = sum.split_whitespace().next().context("a checksum")?.to_owned();
    for path in ["/data/large", "/data/far/large"] {
        let told = scene.xrdfs(&["query", "checksum", path])?;
        ensure!(told.trim() == format!("adler32 {sum}"), "{told}");
    }
    let located = scene.xrdfs(&["locate", "/data/large"])?;
    let here = format!("[::127.0.0.1]:{} Server Read", scene.door.port);
    ensure!(located.trim() == here, "{located}");
    let config = scene.xrdfs(&["query", "config", "chksum"])?;
    ensure!(config.starts_with("0:adler32\n"), "{config}");
    let space = scene.xrdfs(&["query", "space", "/"])?;
    ensure!(space.contains("oss.space=") && space.contains("&oss.quota=-1"), "{space}");
    ensure!(scene.xrdfs(&["cat", "/data/small"])? == "small\n");
    ensure!(scene.xrdfs(&["tail", "-c", "3", "/data/small"])? == "ll\n");
    for name in ["large", "empty", "far/large", "with space & ümlaut"] {
        let (from, to) = (scene.url(&format!("/data/{name}")), scene.federation.local("copy"));
        let to = to.to_string_lossy().into_owned();
        let copied = scene.run(
            Some("ann"),
            &["xrdcp", "-f", "--nopbar", "--cksum", "adler32:source", &from, &to],
        )?;
        copied.succeed("xrdcp")?;
        let same = std::fs::read(&to)? == std::fs::read(scene.path("data").join(name))?;
        ensure!(same, "{name} is another file");
    }
    // One that was cut goes on where it ended: not at a page's beginning.
    let (from, to) = (scene.url("/data/large"), scene.federation.local("cut"));
    let whole = std::fs::read(scene.path("data/large"))?;
    std::fs::write(&to, &whole[..1_000_003])?;
    let words = ["xrdcp", "--continue", "--nopbar", &from, &to.to_string_lossy()];
    scene.run(Some("ann"), &words)?.succeed("xrdcp --continue")?;
    ensure!(std::fs::read(&to)? == whole, "what was cut is another file");
    let tree = scene.federation.local("tree");
    std::fs::create_dir(&tree)?;
    let words = ["xrdcp", "-r", "--nopbar", &scene.url("/data/far"), &tree.to_string_lossy()];
    scene.run(Some("ann"), &words)?.succeed("xrdcp -r")?;
    ensure!(std::fs::read(tree.join("far/large"))? == whole, "a tree is another one");
    grid_tools_read(scene, &whole)
}

/// gfal, which asks for checksums at both ends of a copy.
fn grid_tools_read(scene: &Scene<'_>, whole: &[u8]) -> Result<()> {
    let plugin = "/usr/lib/x86_64-linux-gnu/gfal2-plugins/libgfal_plugin_xrootd.so";
    if !Path::new(plugin).exists() {
        tieline_lab::skip("gfal2-plugin-xrootd is not installed");
        return Ok(());
    }
    let (from, to) = (scene.url("/data/far/large"), scene.federation.local("gfal"));
    let mut command = scene.command("gfal-copy", Some("ann"));
    // Another Python that stands before the distribution's has no gfal2.
    command.env("GFAL_PYTHONBIN", "/usr/bin/python3").args(["-K", "ADLER32", &from]);
    command.arg(format!("file://{}", to.display()));
    program::finish(&mut command, DEADLINE)?.succeed("gfal-copy")?;
    ensure!(std::fs::read(&to)? == whole, "gfal copied another file");
    Ok(())
}

fn rights_are_those_of_the_mount(scene: &Scene<'_>) -> Result<()> {
    let url = scene.url("");
    let cat = |user: &str, path: &str| scene.run(Some(user), &["xrdfs", &url, "cat", path]);
    for (user, path) in [
        ("bob", "/private/file"),
        ("bob", "/shared/file"),
        // By a group that is not her first.
        ("ann", "/shared/file"),
        ("ann", "/data/list-5001"),
    ] {
        cat(user, path)?.succeed(&format!("{user} reads {path}"))?;
    }
    for (user, path) in
        [("ann", "/private/file"), ("ann", "/data/list-5003"), ("bob", "/data/list-5001")]
    {
        let said = scene.refused(Some(user), &["xrdfs", &url, "cat", path], 3010)?;
        ensure!(said.contains(&format!("tieline explain /extenci{path} --as {user}@")), "{said}");
    }
    let listed = scene.xrdfs(&["ls", "-l", "/"])?;
    let line = listed.lines().find(|line| line.ends_with("/private"));
    let line = line.with_context(|| format!("private: {listed}"))?;
    let words: Vec<&str> = line.split_whitespace().take(3).collect();
    ensure!(words == ["drwx------", "bob", "users"], "{line}");
    // Also what somebody else was told just now.
    for words in [["ls", "/private"], ["stat", "/private/file"]] {
        scene.run(Some("bob"), &[&["xrdfs", &url], &words[..]].concat())?.succeed("bob looks")?;
        scene.refused(Some("ann"), &[&["xrdfs", &url], &words[..]].concat(), 3010)?;
    }
    let words = ["xrdfs", &url, "query", "checksum", "/private/file"];
    scene.run(Some("bob"), &words)?.succeed("bob's checksum")?;
    scene.refused(Some("ann"), &words, 3010)?;
    // What is taken away is gone at once.
    scene.federation.shell("chmod 700 shared && sync shared")?;
    scene.refused(Some("ann"), &["xrdfs", &url, "cat", "/shared/file"], 3010)?;
    Ok(())
}

fn strangers_are_told(scene: &Scene<'_>) -> Result<()> {
    let (url, file) = (scene.url(""), scene.url("/data/small"));
    let none = scene.federation.local("nothing").to_string_lossy().into_owned();
    for words in [
        vec!["xrdfs", &url, "ls", "/data"],
        vec!["xrdfs", &url, "stat", "/data/small"],
        vec!["xrdfs", &url, "query", "checksum", "/data/small"],
        vec!["xrdcp", "--nopbar", &file, &none],
    ] {
        let said = scene.refused(None, &words, 3010)?;
        ensure!(said.contains("kinit"), "{said}");
        let said = scene.refused(Some("eve"), &words, 3010)?;
        ensure!(said.contains("eve@EXTENCI.ORG") && said.contains("tieline id add"), "{said}");
    }
    ensure!(!Path::new(&none).exists(), "a stranger has a file");
    scene.federation.expect_log("is a stranger to");
    Ok(())
}

/// What the map holds the door to holds for all who come by it, whoever they are.
fn a_door_is_held_to_its_scope(scene: &Scene<'_>) -> Result<()> {
    let mount = scene.federation.mount().to_string_lossy().into_owned();
    let add = ["door", "--fs", &mount, "add", DOOR, "--tickets-for", SERVICE];
    scene.federation.tieline(&[&add[..], &["--scope", "read:/data"]].concat())?;
    let url = scene.url("");
    ensure!(scene.xrdfs(&["cat", "/data/small"])? == "small\n");
    for words in [["ls", "/"], ["stat", "/listed"], ["cat", "/data/far/large"]] {
        scene.refused(Some("ann"), &[&["xrdfs", &url], &words[..]].concat(), 3010)?;
    }
    scene.federation.tieline(&add)?;
    scene.xrdfs(&["ls", "/"]).map(drop)
}

fn nothing_is_changed(scene: &Scene<'_>) -> Result<()> {
    let (url, new) = (scene.url(""), scene.url("/data/new"));
    let before = scene.federation.shell("ls -lR data")?;
    let local = scene.path("data/small").to_string_lossy().into_owned();
    for words in [
        vec!["xrdfs", &url, "rm", "/data/small"],
        vec!["xrdfs", &url, "mkdir", "/data/new"],
        vec!["xrdfs", &url, "rmdir", "/data/far"],
        vec!["xrdfs", &url, "mv", "/data/small", "/data/new"],
        vec!["xrdfs", &url, "chmod", "/data/small", "rwxrwxrwx"],
        vec!["xrdfs", &url, "truncate", "/data/small", "0"],
        vec!["xrdcp", "--nopbar", &local, &new],
    ] {
        let said = scene.refused(Some("ann"), &words, 3025)?;
        ensure!(said.contains("tieline mount"), "{said}");
    }
    ensure!(scene.federation.shell("ls -lR data")? == before, "something changed");
    Ok(())
}

/// What uproot reads over root:// is what it reads on the mount.
fn events_are_the_same(scene: &Scene<'_>) -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    // Debian's bindings, and nothing else of what lies there.
    let bindings = scene.federation.local("bindings");
    std::fs::create_dir(&bindings)?;
    for name in ["XRootD", "pyxrootd"] {
        std::os::unix::fs::symlink(Path::new(BINDINGS).join(name), bindings.join(name))?;
    }
    let file = scene.path("data/events.root");
    let (file, url) = (file.to_string_lossy().into_owned(), scene.url("/data/events.root"));
    let writes = r#"
import sys, awkward, numpy, uproot
file, url = sys.argv[1:]
noise = numpy.random.default_rng(7)
def some():
    hits = noise.integers(0, 9, 20000)
    values = awkward.unflatten(noise.normal(size=hits.sum()).astype("f4"), hits)
    return {"pt": noise.normal(size=20000), "n": hits, "hits": values}
with uproot.recreate(file) as made:
    made["events"] = some()
    for _ in range(5):
        made["events"].extend(some())
"#;
    let reads = r#"
import sys, awkward, uproot, uproot.source.xrootd
file, url = sys.argv[1:]
handler = uproot.source.xrootd.XRootDSource
with uproot.open(file) as there, uproot.open(url, handler=handler) as far:
    there, far = there["events"].arrays(), far["events"].arrays()
assert len(far) == 120000 and awkward.array_equal(there, far)
print("same")
"#;
    for (what, program) in [("writes", writes), ("reads", reads)] {
        let mut command = self::Command::new(&python);
        let tickets = scene.command("true", Some("ann"));
        command.envs(tickets.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PYTHONPATH", &bindings).args(["-c", program, &file, &url]);
        let said = program::finish(&mut command, DEADLINE)?.succeed(what)?;
        ensure!(what == "writes" || said == "same\n", "{said}");
        scene.federation.shell("sync data/events.root")?;
    }
    Ok(())
}

/// Reads on and on; told so by lines, since somebody waits for the first.
const READS_ON: &str = r#"
import sys, time
from XRootD import client
url, file, seconds = sys.argv[1:]
wanted, begun = open(file, "rb").read(), time.monotonic()
far = client.File()
status, _ = far.open(url)
assert status.ok, status
while time.monotonic() - begun < float(seconds):
    status, data = far.read(1000, 5000)
    assert status.ok and data == wanted[1000:6000], status
    print("read", flush=True)
    time.sleep(0.2)
"#;

/// For three seconds each, a door lets somebody in: within five he shows himself again. Then the
/// door is killed.
fn a_reader_reads_on<'f>(scene: Scene<'f>) -> Result<Scene<'f>> {
    let federation = scene.federation;
    let mount = federation.mount().to_string_lossy().into_owned();
    let life = |life: &str| {
        let words = ["door", "--fs", &mount, "add", DOOR, "--tickets-for", SERVICE, "--life", life];
        federation.tieline(&words)
    };
    life("3s")?;
    let file = scene.path("data/large");
    let mut command = scene.command("/usr/bin/python3", Some("ann"));
    let url = scene.url("/data/large");
    command.args(["-c", READS_ON, &url, &file.to_string_lossy(), "11"]);
    // How soon it comes again; stock settings wait for two minutes.
    command.envs([("XRD_CONNECTIONWINDOW", "1"), ("XRD_CONNECTIONRETRY", "30")]);
    command.env("XRD_STREAMERRORWINDOW", "60");
    let said = federation.local("reads-on");
    command.stdout(std::fs::File::create(&said)?);
    let mut reader = program::start(&mut command)?;
    until("it reads", PATIENCE, || std::fs::read(&said).is_ok_and(|said| !said.is_empty()))?;
    std::thread::sleep(Duration::from_secs(5));
    let Scene { federation, mut door } = scene;
    let port = door.port;
    door.child.kill()?;
    door.child.wait()?;
    let door = Door::start_at(federation, port)?;
    let status = program::wait(&mut reader, DEADLINE)?;
    ensure!(status.success(), "it reads no more: {status}");
    life("1h")?;
    Ok(Scene { federation, door })
}

fn our_own_client(scene: &Scene<'_>) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/root_door/client.py");
    let file = scene.path("data/large");
    let length = std::fs::metadata(&file)?.len().to_string();
    let mut command = Command::new("python3");
    let port = scene.door.port.to_string();
    command.arg(script).arg(&port).arg(&file).args([&length, "/data/large"]);
    for _ in 0..4 {
        command.arg(scene.ticket()?);
    }
    let said = program::finish(&mut command, DEADLINE)?.succeed("client.py")?;
    ensure!(said == "done\n", "{said}");
    Ok(())
}
