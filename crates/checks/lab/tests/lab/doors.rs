//! A door of two hundred lines (`tieline_testdoor`), in a process of its own, for two users: ways
//! through links and a junction, scopes, many ranges, checks, and uploads that show when they are
//! whole.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tieline_base::contact::Contact;
use tieline_base::dialing::real_world;
use tieline_base::location::Location;
use tieline_bytes::Near;
use tieline_client::{Parts, Settings, Volume};
use tieline_files::{Paths, Who};
use tieline_lab::program::until;
use tieline_lab::{Federation, with_federation};
use tieline_testdoor::Door;
use tieline_types::checksum::crc32c;
use tieline_types::{Allowed, Caller, Doing, FileId, Gid, MdtIndex, Name, Scope, Uid};

const MOUNT: &str = "TIELINE_LAB_DOOR";
const SOCKET: &str = "TIELINE_LAB_DOOR_SOCKET";
const ANN: u32 = 12_001;
const BOB: u32 = 12_002;

/// The door, when this program is started anew for it.
#[test]
fn the_door_of_other_tests() -> Result<()> {
    let Some(mount) = std::env::var_os(MOUNT) else { return Ok(()) };
    let location = Location::find(&mount).map_err(|usage| anyhow::anyhow!("{usage}"))?;
    let socket = std::env::var_os(SOCKET).context("a socket")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let volume = volume(&location).await?;
        let conventional = format!("/{}", location.source.fs);
        let paths = Paths::new(volume).leading_in(conventional, "");
        let listener = tokio::net::UnixListener::bind(socket)?;
        Ok(Door::new(paths, users()?).serve(listener).await?)
    })
}

async fn volume(location: &Location) -> Result<std::sync::Arc<Volume>> {
    let guard = location.proving.guard();
    let (world, dialer, rule) = real_world(&guard);
    let contact = Contact {
        world: world.clone(),
        dialer: dialer.clone(),
        fs: location.source.fs.clone(),
        addresses: location.source.addresses.clone(),
        rule,
        description: "a door".to_owned(),
        patience: Duration::from_secs(30),
    };
    let (map, _) = contact.believe(None).await?;
    guard.follow(&map);
    let (root, near) = (FileId::root_of(MdtIndex(0)), Near::default());
    let parts = Parts { world, dialer, map, root, rule, near, spool: None };
    Ok(Volume::new(parts, Settings { description: "a door".to_owned(), ..Settings::default() }))
}

/// Ann is served as herself; Bob only below two directories, one of them to be read.
fn users() -> Result<BTreeMap<String, Who>> {
    let caller = |id| Caller { uid: Uid(id), gid: Gid(id), ..Caller::default() };
    let allowed = |path: &str, doing| -> Result<Allowed> {
        let path = path.split('/').map(str::parse).collect::<Result<Vec<Name>, _>>()?;
        Ok(Allowed { path, doing })
    };
    let scope = Scope::new(vec![
        allowed("fnal/bob", Doing::Read)?,
        allowed("fnal/bob", Doing::Modify)?,
        allowed("data", Doing::Read)?,
    ])?;
    let ann = Who::himself(caller(ANN));
    Ok([("ann".to_owned(), ann), ("bob".to_owned(), Who::within(caller(BOB), scope))].into())
}

/// The door's process. Dropped, it is killed.
struct Process {
    child: Child,
    socket: PathBuf,
}

impl Process {
    fn start(federation: &Federation, name: &str) -> Result<Self> {
        let socket = federation.local(name);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["doors::the_door_of_other_tests", "--exact", "--nocapture"]);
        command.env(MOUNT, federation.mount()).env(SOCKET, &socket).stdout(Stdio::null());
        let process = Self { child: command.spawn()?, socket };
        until("the door is open", Duration::from_secs(30), || {
            UnixStream::connect(&process.socket).is_ok()
        })?;
        Ok(process)
    }

    fn login(&self, name: &str) -> Result<Visitor> {
        let socket = BufReader::new(UnixStream::connect(&self.socket)?);
        socket.get_ref().set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut visitor = Visitor { socket };
        visitor.text(&format!("LOGIN {name}"))?;
        Ok(visitor)
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who speaks with it.
struct Visitor {
    socket: BufReader<UnixStream>,
}

impl Visitor {
    fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.socket.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    fn hear(&mut self) -> Result<Result<Vec<u8>, String>> {
        let mut head = String::new();
        self.socket.read_line(&mut head)?;
        let Some(length) = head.strip_prefix("OK ") else { return Ok(Err(head)) };
        let mut body = vec![0; length.trim().parse()?];
        self.socket.read_exact(&mut body)?;
        Ok(Ok(body))
    }

    fn bytes(&mut self, line: &str) -> Result<Vec<u8>> {
        self.say(line)?;
        self.hear()?.map_err(|refusal| anyhow::anyhow!("{line}: {refusal}"))
    }

    fn text(&mut self, line: &str) -> Result<String> {
        Ok(String::from_utf8(self.bytes(line)?)?)
    }

    /// It must be refused for that.
    fn refused(&mut self, line: &str, kind: &str) -> Result<()> {
        self.say(line)?;
        match self.hear()? {
            Err(refusal) if refusal.starts_with(&format!("NO {kind} ")) => Ok(()),
            other => bail!("{line}: {other:?}, and not {kind}"),
        }
    }

    /// Begins an upload and sends some of its bytes.
    fn begin(&mut self, line: &str, bytes: &[u8]) -> Result<()> {
        self.say(line)?;
        let mut go = String::new();
        self.socket.read_line(&mut go)?;
        ensure!(go == "GO\n", "{line}: {go}");
        Ok(self.socket.get_mut().write_all(bytes)?)
    }

    fn put(&mut self, path: &str, bytes: &[u8], replaces: &str) -> Result<String> {
        self.begin(&format!("PUT {path} {} {replaces}", bytes.len()), bytes)?;
        let told = self.hear()?.map_err(|refusal| anyhow::anyhow!("PUT {path}: {refusal}"))?;
        Ok(String::from_utf8(told)?)
    }
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 257) as u8).collect()
}

fn prepare(federation: &Federation) -> Result<()> {
    federation.shell(&format!(
        "mkdir -m 777 data; mkdir -m 700 private fnal/bob; chown {ANN} private
         chown {BOB}:{BOB} fnal/bob; mkdir -m 777 fnal/far; echo far > fnal/far/file
         echo near > data/near; echo secret > private/file; chown {ANN} private/file
         ln -s ../fnal/./far data/far; ln -s /extenci/data/near data/again
         ln -s /etc/passwd data/out; ln -s ../../private/file fnal/bob/leak
         ln -s loop data/loop; sync"
    ))?;
    Ok(())
}

fn with_door(test: impl FnOnce(&Federation, &Process) -> Result<()>) -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|federation| {
        prepare(federation)?;
        let process = Process::start(federation, "door")?;
        test(federation, &process)
    })
}

#[test]
fn ways_lead_through_links_and_junctions_as_far_as_a_user_may_go() -> Result<()> {
    with_door(|_, process| {
        let (mut ann, mut bob) = (process.login("ann")?, process.login("bob")?);
        for (path, way) in [
            ("/data/far/file", "/fnal/far/file"),
            ("/data/far/../far/file", "/fnal/far/file"),
            ("data/again", "/data/near"),
            ("/fnal/bob/../../data/near", "/data/near"),
        ] {
            let told = ann.text(&format!("STAT {path}"));
            // Into Bob's own directory nobody else goes.
            if path.contains("bob") {
                ensure!(told.is_ok_and(|told| told.starts_with(way)), "{path}");
                continue;
            }
            let told = told?;
            ensure!(told.starts_with(&format!("{way} Regular 644 0 ")), "{path}: {told}");
        }
        ensure!(ann.bytes("GET /data/far/file")? == b"far\n");
        ensure!(ann.bytes("GET /private/file")? == b"secret\n");
        ann.refused("STAT /data/out", "NotSupported")?;
        ann.refused("STAT /data/loop", "SymlinkLoop")?;
        ann.refused("STAT /data/none", "NotFound")?;
        ann.refused("STAT /data/near/x", "NotDirectory")?;
        ann.refused("LS /fnal/bob", "PermissionDenied")?;
        ann.refused("PUT /fnal/bob/new 3", "PermissionDenied")?;
        // Bob's scope: what leads to it is seen, nothing beside it, whatever links say.
        ensure!(bob.text("STAT /fnal")?.starts_with("/fnal Directory"));
        bob.refused("LS /fnal", "PermissionDenied")?;
        bob.refused("LS /", "PermissionDenied")?;
        ensure!(bob.text("LS /data")?.contains("near\n"));
        ensure!(bob.text("LS /fnal/bob")? == "leak\n");
        bob.refused("GET /fnal/far/file", "PermissionDenied")?;
        bob.refused("GET /data/far/file", "PermissionDenied")?;
        bob.refused("GET /fnal/bob/leak", "PermissionDenied")?;
        bob.refused("PUT /data/new 3", "PermissionDenied")?;
        bob.refused("RM /data/near", "PermissionDenied")?;
        bob.text("MKDIR /fnal/bob/sub")?;
        bob.put("/fnal/bob/sub/mine", b"own", "")?;
        ensure!(bob.bytes("GET /fnal/bob/sub/mine")? == b"own");
        ensure!(bob.text("STAT /fnal/bob/sub/mine")?.contains(&format!(" {BOB} 3")));
        bob.text("RM /fnal/bob/sub/mine")?;
        bob.refused("STAT /fnal/bob/sub/mine", "NotFound")
    })
}

#[test]
fn ranges_pages_and_streams_are_the_files_bytes() -> Result<()> {
    with_door(|federation, process| {
        let bytes = noise(9 << 20);
        std::fs::write(federation.mount().join("data/large"), &bytes)?;
        federation.shell("sync data/large")?;
        let mut bob = process.login("bob")?;
        let ranges: Vec<_> = (0..500).map(|at| at * 17_777..at * 17_777 + 100 + at).collect();
        let words: String =
            ranges.iter().map(|one| format!(" {}-{}", one.start, one.end)).collect();
        let got = bob.bytes(&format!("READV /data/large{words}"))?;
        ensure!(
            got == ranges.iter().flat_map(|one| bytes[one.clone()].to_vec()).collect::<Vec<_>>()
        );
        let checks = bob.text("PAGES /data/large 1000-70000")?;
        let pages = [&bytes[1000..4096]].into_iter().chain(bytes[4096..70_000].chunks(4096));
        let expected: Vec<_> = pages.map(|page| format!("{:08x}", crc32c(page))).collect();
        ensure!(checks == expected.join(" "));
        ensure!(bob.bytes("GET /data/large")? == bytes);
        ensure!(bob.bytes("GET /data/large 5000000-5000777")? == bytes[5_000_000..5_000_777]);
        ensure!(bob.text("RESIDENCY /data/large")? == "ONLINE");
        let many = (0..1025).fold("READV /data/large".to_owned(), |all, _| all + " 0-1");
        bob.refused(&many, "InvalidArgument")
    })
}

#[test]
fn an_upload_shows_when_it_is_whole() -> Result<()> {
    with_door(|federation, process| {
        let mut ann = process.login("ann")?;
        let (bytes, path) = (noise(5 << 20), federation.mount().join("data/new"));
        let half = bytes.len() / 2;
        ann.begin(&format!("PUT /data/new {}", bytes.len()), &bytes[..half])?;
        let names = federation.shell("ls -A data")?;
        ensure!(names == "again\nfar\nloop\nnear\nout\n", "{names}");
        let socket = ann.socket.get_mut();
        socket.write_all(&bytes[half..])?;
        let told = ann.hear()?.map_err(anyhow::Error::msg)?;
        ensure!(std::fs::read(&path)? == bytes);
        ensure!(ann.bytes("ETAG /data/new")? == told);
        // Which bytes a file has says nothing of its name, mode and times.
        federation.shell("chmod 600 data/new; touch data/new; mv data/new data/newer")?;
        ensure!(ann.bytes("ETAG /data/newer")? == told);
        federation.shell("printf x >> data/newer; mv data/newer data/new")?;
        let grown = ann.bytes("ETAG /data/new")?;
        ensure!(grown != told);
        // Another takes its place in one step; who had it open reads on.
        let mut open = std::fs::File::open(&path)?;
        ann.refused("PUT /data/new 3", "Exists")?;
        let other = ann.put("/data/new", b"other", "replace")?;
        ensure!(other.as_bytes() != grown && std::fs::read(&path)? == b"other");
        let mut old = Vec::new();
        open.read_to_end(&mut old)?;
        ensure!(old.len() == bytes.len() + 1 && old.starts_with(&bytes));
        // A connection that ends in the middle leaves what was there.
        let mut gone = process.login("ann")?;
        gone.begin("PUT /data/new 1000000 replace", &bytes[..500_000])?;
        drop(gone);
        ensure!(std::fs::read(&path)? == b"other");
        // A directory is not replaced, but a link to one is.
        ann.refused("PUT /fnal/far 3 replace", "IsDirectory")?;
        ann.put("/data/far", b"now", "replace")?;
        ensure!(federation.shell("cat data/far fnal/far/file")? == "nowfar\n");
        Ok(())
    })
}

/// A door that is killed in the middle of an upload: nothing shows, and the next one goes on.
#[test]
fn an_upload_of_a_door_that_died_never_shows() -> Result<()> {
    with_door(|federation, process| {
        let second = Process::start(federation, "door-2")?;
        let mut ann = second.login("ann")?;
        let bytes = noise(12 << 20);
        ann.begin(&format!("PUT /data/lost {}", bytes.len() + 1), &bytes)?;
        second.kill()?;
        let mut again = process.login("ann")?;
        again.refused("STAT /data/lost", "NotFound")?;
        let names = federation.shell("ls -A data")?;
        ensure!(!names.contains("lost"), "{names}");
        again.put("/data/lost", b"found", "")?;
        ensure!(read(&federation.mount().join("data/lost"))? == "found");
        Ok(())
    })
}

fn read(path: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(path)?)
}
