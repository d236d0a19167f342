//! The engine on a real cluster that fails over: three nodes of PostgreSQL, Patroni and etcd on
//! this machine, in strict synchronous mode. Not part of `make test`, for it takes minutes:
//! `cargo xtask patroni` (docs/testing.md).
//!
//! Writers go on all the time. The primary's node is killed and comes back, then the next primary's
//! stands still and goes on; what was acknowledged must be there in the end, and the pauses are
//! printed.

use super::scratch::{USER, fast_folder, find_programs, user_id};
use super::*;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tempfile::TempDir;

/// Where `pip install --target` put Patroni.
const PLACE: &str = "TIELINE_PATRONI";
const NODES: usize = 3;
const WRITERS: usize = 8;
/// Patroni's `ttl`, the smallest it takes: a primary that is not heard from is followed then.
const TTL: u64 = 20;
/// For a failover, and what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

struct Cluster {
    nodes: Vec<Node>,
    _folder: TempDir,
}

struct Node {
    name: String,
    folder: PathBuf,
    words: Words,
    /// etcd and Patroni; the database is Patroni's.
    running: Vec<Child>,
}

/// What a node is started with.
#[derive(Clone)]
struct Words {
    user: u32,
    patroni: PathBuf,
    etcd: Vec<String>,
    /// Of its database, and of Patroni's REST interface.
    database: u16,
    rest: u16,
}

impl Cluster {
    fn start(patroni: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("tieline-patroni-").tempdir_in(fast_folder());
        let folder = folder.unwrap();
        let open = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), open(0o755)).unwrap();
        let user = user_id(USER).expect("the user `postgres`, of Debian's package");
        // Taken from the system, and free again when they are used: nobody else takes so many.
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let held: Vec<_> = (0..NODES * 4).map(|_| free()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        let port = |node: usize, which: usize| ports[node * 4 + which];
        drop(held);
        let url = |node, which| format!("http://127.0.0.1:{}", port(node, which));
        let members: Vec<_> = (0..NODES).map(|node| format!("n{node}={}", url(node, 0))).collect();
        let clients: Vec<_> =
            (0..NODES).map(|node| format!("127.0.0.1:{}", port(node, 1))).collect();
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let (name, at) = (format!("n{node}"), folder.path().join(format!("n{node}")));
            std::fs::create_dir(&at).unwrap();
            chown(&at, Some(user), Some(user)).unwrap();
            std::fs::set_permissions(&at, open(0o700)).unwrap();
            let data = at.join("etcd").display().to_string();
            let (peer, client, members) = (url(node, 0), url(node, 1), members.join(","));
            let etcd = [
                ["--name", &name, "--data-dir", &data],
                ["--initial-cluster", &members, "--initial-cluster-state", "new"],
                ["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer],
                ["--listen-client-urls", &client, "--advertise-client-urls", &client],
            ];
            let etcd = etcd.concat().into_iter().map(str::to_owned).collect();
            let (database, rest) = (port(node, 2), port(node, 3));
            let config = config(&name, &at, &clients, (database, rest));
            std::fs::write(at.join("patroni.yml"), config).unwrap();
            let words = Words { user, patroni: patroni.to_owned(), etcd, database, rest };
            let mut node = Node { name, folder: at, words, running: Vec::new() };
            node.start();
            nodes.push(node);
        }
        let cluster = Self { nodes, _folder: folder };
        cluster.wait("a primary with a synchronous standby", |cluster| {
            cluster.primary().is_some() && cluster.has_standby()
        });
        cluster
    }

    fn connection(&self) -> String {
        let hosts = ["127.0.0.1"; NODES].join(",");
        let ports: Vec<_> = self.nodes.iter().map(|node| node.words.database.to_string()).collect();
        format!("host={hosts} port={} user=postgres dbname=postgres", ports.join(","))
    }

    fn primary(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.is("primary"))
    }

    fn has_standby(&self) -> bool {
        self.nodes.iter().any(|node| node.is("synchronous"))
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: not in time\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
        began.elapsed()
    }

    fn logs(&self) -> String {
        let tail = |node: &Node| {
            let log = std::fs::read_to_string(node.folder.join("patroni.log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(8).collect();
            format!("{}:\n{}", node.name, lines.join("\n"))
        };
        self.nodes.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}

fn config(name: &str, at: &Path, etcd: &[String], (database, rest): (u16, u16)) -> String {
    let bin = find_programs().unwrap();
    let (at, bin, etcd) = (at.display(), bin.display(), etcd.join(", "));
    format!(
        "
scope: tieline
name: {name}
restapi: {{listen: '127.0.0.1:{rest}', connect_address: '127.0.0.1:{rest}'}}
etcd3: {{hosts: [{etcd}]}}
bootstrap:
  dcs:
    ttl: {TTL}
    loop_wait: 3
    retry_timeout: 3
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql: {{use_pg_rewind: true, parameters: {{max_connections: 60}}}}
  initdb: [encoding: UTF8, locale: C, data-checksums]
postgresql:
  listen: 127.0.0.1:{database}
  connect_address: 127.0.0.1:{database}
  data_dir: {at}/data
  bin_dir: {bin}
  pgpass: {at}/pgpass
  authentication:
    superuser: {{username: postgres, password: none}}
    replication: {{username: replicator, password: none}}
    rewind: {{username: postgres, password: none}}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.1/32 trust
    - host replication all 127.0.0.1/32 trust
  parameters: {{unix_socket_directories: {at}, shared_buffers: 32MB}}
watchdog: {{mode: 'off'}}
"
    )
}

impl Node {
    fn start(&mut self) {
        let words = self.words.clone();
        let mut etcd = Command::new("etcd");
        etcd.args(&words.etcd);
        let mut patroni = Command::new("/usr/bin/python3");
        patroni.arg(words.patroni.join("bin/patroni")).arg(self.folder.join("patroni.yml"));
        patroni.env("PYTHONPATH", &words.patroni);
        for (mut command, log) in [(etcd, "etcd.log"), (patroni, "patroni.log")] {
            let log = std::fs::File::options()
                .create(true)
                .append(true)
                .open(self.folder.join(log))
                .unwrap();
            command.current_dir(&self.folder).env("LC_ALL", "C").env("HOME", &self.folder);
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
            command.uid(words.user).gid(words.user).process_group(0);
            self.running.push(command.spawn().expect("etcd and python3 of Debian's packages"));
        }
    }

    /// Is it the primary, or its synchronous standby, as Patroni there says?
    fn is(&self, what: &str) -> bool {
        let ask = || {
            let at = ([127, 0, 0, 1], self.words.rest).into();
            let patience = Duration::from_secs(1);
            let mut line = std::net::TcpStream::connect_timeout(&at, patience)?;
            line.set_read_timeout(Some(patience))?;
            write!(line, "GET /{what} HTTP/1.0\r\n\r\n")?;
            let mut said = [0; 12];
            line.read_exact(&mut said)?;
            Ok::<_, std::io::Error>(said.ends_with(b" 200"))
        };
        ask().unwrap_or(false)
    }

    /// All of its processes, the database's among them.
    fn signal(&self, name: &str) {
        let mut all: Vec<u32> = self.running.iter().map(Child::id).collect();
        let postmaster = std::fs::read_to_string(self.folder.join("data/postmaster.pid"));
        let postmaster: Option<u32> =
            postmaster.ok().and_then(|text| text.lines().next()?.parse().ok());
        all.extend(postmaster);
        let mut at = 0;
        while let Some(&parent) = all.get(at) {
            let path = format!("/proc/{parent}/task/{parent}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let new = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            let new: Vec<u32> = new.filter(|pid| !all.contains(pid)).collect();
            all.extend(new);
            at += 1;
        }
        for pid in all {
            let _ =
                Command::new("kill").arg(name).arg(pid.to_string()).stderr(Stdio::null()).status();
        }
    }

    fn kill(&mut self) {
        self.signal("-KILL");
        self.running.drain(..).for_each(|mut child| drop(child.wait()));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What was acknowledged, and the longest time in which nothing was.
struct Acknowledged {
    began: Instant,
    pairs: Mutex<BTreeMap<String, u64>>,
    times: Mutex<Vec<Instant>>,
}

impl Acknowledged {
    fn count(&self) -> usize {
        self.times.lock().unwrap().len()
    }

    fn longest_pause(&self, since: Instant) -> Duration {
        let times = self.times.lock().unwrap();
        let times: Vec<_> = times.iter().copied().filter(|time| *time >= since).collect();
        let pairs = [since].into_iter().chain(times.iter().copied()).zip(times.iter().copied());
        pairs.map(|(one, next)| next.duration_since(one)).max().unwrap_or(since.elapsed())
    }
}

async fn write(
    store: Arc<PostgresStore>,
    writer: usize,
    to: Arc<Acknowledged>,
    stop: Arc<AtomicBool>,
) {
    let own = format!("writer-{writer}");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let new = format!("pair-{writer}-{number:08}");
        let written = async {
            let mut transaction = store.begin().await?;
            let _ = transaction.read(&[own.clone().into_bytes()]).await?;
            for name in [&own, &new] {
                transaction.put(name.clone().into_bytes(), number.to_string().into_bytes());
            }
            transaction.commit().await?.durable.await
        };
        written.await.expect("the store outlives its primary");
        let mut pairs = to.pairs.lock().unwrap();
        pairs.extend([(own.clone(), number), (new, number)]);
        to.times.lock().unwrap().push(Instant::now());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and needs Patroni and etcd: cargo xtask patroni"]
async fn a_primary_that_dies_or_freezes_costs_its_ttl_and_nothing_that_was_acknowledged() {
    let place = std::env::var_os(PLACE).expect("TIELINE_PATRONI: see docs/testing.md");
    let began = Instant::now();
    let mut cluster = Cluster::start(Path::new(&place));
    println!("three nodes are up after {:.1?}", began.elapsed());
    let settings = || {
        let server = cluster.connection().parse().unwrap();
        PostgresSettings::new(server, "store".to_owned(), "a".to_owned(), "mds-a".to_owned())
    };
    let settings = settings();
    let store = Arc::new(PostgresStore::open(settings.clone(), Opening::default()).await.unwrap());
    let acknowledged = Arc::new(Acknowledged {
        began: Instant::now(),
        pairs: Mutex::default(),
        times: Mutex::default(),
    });
    let stop = Arc::new(AtomicBool::new(false));
    let start = |writer| write(store.clone(), writer, acknowledged.clone(), stop.clone());
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(start(writer))).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let rate = acknowledged.count() as f64 / acknowledged.began.elapsed().as_secs_f64();
    println!("{rate:.0} commits a second, {WRITERS} writers");

    for is_frozen in [false, true] {
        let gone = cluster.primary().expect("a primary");
        // No second failure before there is somebody to take over: strict mode waits then.
        let (since, before) = (Instant::now(), acknowledged.count());
        let fault = if is_frozen { "stands still" } else { "is killed" };
        match is_frozen {
            true => cluster.nodes[gone].signal("-STOP"),
            false => cluster.nodes[gone].kill(),
        }
        cluster.wait("another primary", |c| c.primary().is_some_and(|node| node != gone));
        let elected = since.elapsed();
        cluster.wait("commits after it", |_| acknowledged.count() > before + WRITERS * 20);
        let pause = acknowledged.longest_pause(since);
        println!("the primary's node {fault}: another after {elected:.1?}, a pause of {pause:.1?}");
        // Its lease, a silence, a host's time; the rest is a busy machine's.
        assert!(pause < Duration::from_secs(TTL + 40), "{pause:?}\n{}", cluster.logs());
        match is_frozen {
            true => cluster.nodes[gone].signal("-CONT"),
            false => cluster.nodes[gone].start(),
        }
        let back = cluster.wait("it is a standby", |c| c.nodes[gone].is("replica"));
        println!("it is a standby again after {back:.1?}");
        cluster.wait("a synchronous standby", Cluster::has_standby);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    drop(store);
    // As a server that is started again finds it.
    let store = PostgresStore::open(settings, Opening::default()).await.unwrap();
    let mut transaction = store.begin().await.unwrap();
    let (mut lost, pairs) = (0, acknowledged.pairs.lock().unwrap().clone());
    for (name, number) in &pairs {
        let found = transaction.read(&[name.clone().into_bytes()]).await.unwrap().remove(0);
        let found: Option<u64> = found.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
        lost += usize::from(found != Some(*number));
    }
    let count = acknowledged.count();
    println!("{count} commits were acknowledged in {:.0?}, {lost} pairs are lost", began.elapsed());
    assert_eq!(lost, 0);
}
