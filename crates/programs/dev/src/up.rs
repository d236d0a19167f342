//! `tieline dev up` and `dev mount`.

use crate::doors::DoorPlan;
use crate::kdc::{self, Kdc};
use crate::netns::{self, Distances, Network};
use crate::plan::{self, KerberosPlan, Plan, Ports, ServerPlan, SitePlan};
use crate::state::{Database, Held, Process, State};
use crate::{Up, control, down, processes, user, wan};
use anyhow::{Context, bail};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_auth::MapSigner;
use tieline_base::proving::{self, flavor_check};
use tieline_base::report::Usage;
use tieline_format::Record;
use tieline_kv::{PostgresServer, PostgresStore};
use tieline_machine::process::ProcessId;
use tieline_machine::table;
use tieline_types::{Flavor, MachineTrust, SiteName};
use tieline_wan::{Distance, Quality};

/// In a namespace of its own a site may use the same ports as every other.
/// In a federation's folder: bytes that its mounts could not store.
const SPOOL: &str = "spool";
/// Where its mounts keep what they read from far.
const CACHES: &str = "caches";
const MDS_PORT: u16 = 7640;
const OSS_PORT: u16 = 7642;
/// Where the first mount's `/metrics` are, with `--netns`.
const MOUNT_PORT: u16 = 7800;
/// Below those that the kernel gives to outgoing connections, which would take the port of a server
/// that is down for a moment.
const PORTS: std::ops::Range<u16> = 10_000..30_000;
const PORT_TRIES: usize = 1_000;
/// Longest wait for the space of the file system to be known.
const SPACE_PATIENCE: Duration = Duration::from_secs(10);

pub fn run(up: &Up) -> anyhow::Result<()> {
    let sec = up.sec.as_deref().map(flavor_check).transpose()?;
    let has_kerberos = up.kerberos || sec.is_some_and(|sec| sec > Flavor::Null);
    if up.machine.is_some() && !has_kerberos {
        return Err(Usage("--machine: needs --kerberos, or --sec".into()).into());
    }
    if up.doors && !has_kerberos {
        return Err(Usage("--doors: needs --kerberos, or --sec: who comes is proved".into()).into());
    }
    plan::check_sites(&up.sites)?;
    check_engine(&up.engine)?;
    let distances = distances(up)?;
    if up.netns {
        Network::check()?;
    }
    let dir = up.dir.path()?;
    let mut made = Vec::new();
    make(&dir, &mut made)?;
    let state = State {
        fs: plan::FS.to_owned(),
        key: String::new(),
        mds: Vec::new(),
        network: up.netns.then(|| Network::new(&dir)),
        made,
        processes: Vec::new(),
        database: None,
        kdc: None,
        door: None,
    };
    let mut held = Held::begin(&dir, state)?;
    match bring_up(&mut held, up, distances, has_kerberos) {
        Ok(()) => {
            warn_of_config(&held.state);
            control::print(&held.state, up.json)
        }
        Err(error) => {
            if let Err(trouble) = down::take_down(held) {
                eprintln!("tieline: {}", tieline_base::report::chain(trouble.as_ref()));
            }
            Err(error)
        }
    }
}

/// Verbs and tickets of whoever started us go by what his environment says.
fn warn_of_config(state: &State) {
    let (Some(kdc), Some(other)) = (&state.kdc, std::env::var_os(proving::CONFIG)) else { return };
    let (own, other) = (kdc.config.display(), Path::new(&other));
    if other != kdc.config {
        eprintln!(
            "tieline: {} is {} here, where this realm is not: `export {0}={own}` before `kinit` \
             and verbs",
            proving::CONFIG,
            other.display()
        );
    }
}

/// What is asked of the lines.
fn distances(up: &Up) -> anyhow::Result<Distances> {
    if !up.line.is_any() && up.between_sites.is_none() {
        return Ok(Distances::default());
    }
    if !up.netns {
        return Err(Usage("--rtt and the like need --netns: lines join namespaces".into()).into());
    }
    let mut clients = up.line.quality();
    let sites = up.between_sites.map(|between| {
        // Two such lines lie between two sites, and one of them before the clients.
        let half = Distance(between.0 / 2);
        Quality { rtt: half, ..Quality::default() }
    });
    if let Some(sites) = &sites {
        let rest = clients.rtt.0.checked_sub(sites.rtt.0);
        let rest = rest.ok_or_else(|| Usage("--rtt: at least half of --between-sites".into()))?;
        clients.rtt = Distance(rest);
    }
    Ok(Distances { clients: Some(clients), sites })
}

fn bring_up(
    held: &mut Held,
    up: &Up,
    distances: Distances,
    has_kerberos: bool,
) -> anyhow::Result<()> {
    let dir = held.dir().to_owned();
    if let Some(network) = &mut held.state.network {
        let made = network.make(&up.sites, distances);
        // What was made before a failure is taken away as well.
        held.save()?;
        made?;
    }
    for folder in ["keys", "logs", "sites"] {
        std::fs::create_dir(dir.join(folder)).with_context(|| format!("cannot make {folder}"))?;
        held.state.made.insert(0, dir.join(folder));
    }
    // Its mounts make these when they need them.
    held.state.made.insert(0, dir.join(SPOOL));
    held.state.made.insert(0, dir.join(CACHES));
    let mut plan = make_plan(&dir, up)?;
    if let Some(site) = plan.sites.first().filter(|_| up.doors) {
        let ports = if up.netns { None } else { Some(door_ports()?) };
        plan.door = Some(DoorPlan::new(&dir, site, ports)?);
    }
    if has_kerberos {
        plan.kerberos = Some(make_realm(held, &plan, up)?);
    }
    held.state.key = plan.key.clone();
    held.state.mds = plan.sites.iter().map(|site| site.mds.address.clone()).collect();
    if let Some(connection) = postgres(&up.engine) {
        let schemas = plan.all_schemas();
        held.state.database = Some(Database { connection: connection.to_owned(), schemas });
    }
    write_map(&plan)?;
    let lines = held.state.network.as_ref().map(|network| network.lines.clone());
    let relay = lines.and_then(|lines| wan::relay::process(&dir, &lines, up.line.seed));
    held.state.processes.extend(relay);
    for server in plan.servers() {
        let process = prepare(held, &server)?;
        held.state.processes.push(process);
    }
    if let Some(door) = &plan.door {
        let process = door.prepare(held, &plan)?;
        held.state.processes.push(process);
        held.state.door = Some(door.state(&dir));
    }
    held.save()?;
    start_servers(held)?;
    let mount = up.mount.clone().unwrap_or_else(|| dir.join("mnt"));
    add_mount(held, &mount, &MountMore::default())?;
    for site in &up.sites {
        let at = match site == &up.sites[0] {
            true => table::mountpoint(&mount),
            false => table::mountpoint(&mount).join(site.as_str()),
        };
        set_pool(&at, site)?;
    }
    Ok(())
}

fn make_plan(dir: &Path, up: &Up) -> anyhow::Result<Plan> {
    let keys = dir.join("keys");
    let (key, secret) = tieline_base::keys::keygen(&keys, plan::FS)?;
    let sites = match up.netns {
        true => sites_in_namespaces(&up.sites, &up.ip),
        false => sites_on_loopback(&up.sites)?,
    };
    // The public key is of this federation and of no other, so two may share a database.
    let mark = key.get(..8).unwrap_or_default();
    let schemas = postgres(&up.engine).map(|_| format!("dev_{mark}"));
    let (dir, engine) = (dir.to_owned(), up.engine.clone());
    let (lease, has_log) = (up.lease, up.log);
    let adopt = up.adopt.as_ref().map(|adopt| adopt.canonicalize()).transpose();
    let adopt = adopt.context("--adopt: no such directory")?;
    let user = user::of_servers(&dir, up)?;
    user::give(&secret, user.as_deref())?;
    user::give(&dir.join("logs"), user.as_deref())?;
    let (kerberos, door) = (None, None);
    Ok(Plan {
        dir,
        sites,
        engine,
        schemas,
        lease,
        has_log,
        adopt,
        user,
        key,
        secret,
        kerberos,
        door,
    })
}

/// The federation's own realm, with keys for everybody.
fn make_realm(held: &mut Held, plan: &Plan, up: &Up) -> anyhow::Result<KerberosPlan> {
    let dir = held.dir().join("kdc");
    std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    held.state.made.insert(0, dir.clone());
    let services = if up.host_keys { kdc::SERVICES_HOST } else { kdc::SERVICES };
    let kdc = Kdc::start(&dir, &plan.sites, held.state.network.as_ref(), services)?;
    if let Some(door) = &plan.door {
        door.make_keys(&dir, &plan.sites)?;
        user::give(&dir.join(door.keytab_name()), plan.user.as_deref())?;
    }
    for site in &plan.sites {
        for role in ["mds", "oss"] {
            user::give(&dir.join(kdc::keytab_name(role, site)), plan.user.as_deref())?;
        }
    }
    let config = kdc.config.clone();
    held.state.kdc = Some(kdc);
    held.save()?;
    let flavors = match &up.sec {
        Some(sec) => vec![format!("default={sec}")],
        None => vec!["default=krb5i".to_owned(), "default.cli2mdt=krb5p".to_owned()],
    };
    // Only root can be somebody else by the machine's word. Whoever else runs this needs it for
    // himself: the mount is his.
    let is_root = rustix::process::geteuid().is_root();
    let usual = if is_root { MachineTrust::Root } else { MachineTrust::All };
    let machine = up.machine.unwrap_or(usual);
    Ok(KerberosPlan { dir, config, services, flavors, machine })
}

/// The connection of `postgres=CONNECTION`.
fn postgres(engine: &str) -> Option<&str> {
    engine.strip_prefix("postgres=")
}

/// Said before anything is made.
fn check_engine(engine: &str) -> anyhow::Result<()> {
    match postgres(engine).map(str::parse::<PostgresServer>) {
        Some(Err(error)) => Err(Usage(format!("--engine: {error}")).into()),
        Some(Ok(server)) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(PostgresStore::look(&server)).map(drop).context("--engine")
        }
        None if !["embedded", "memory"].contains(&engine) => Err(Usage(format!(
            "--engine: `{engine}` is neither `embedded`, `memory` nor `postgres=CONNECTION`"
        ))
        .into()),
        _ => Ok(()),
    }
}

fn sites_in_namespaces(sites: &[SiteName], ip: &str) -> Vec<SitePlan> {
    let ports = |place, port: u16| {
        let [v4, v6] = netns::site_addresses(place);
        let announced = ip.chars().map(|version| match version {
            '6' => format!("[{v6}]:{port}"),
            _ => format!("{v4}:{port}"),
        });
        let mut announced = announced.collect::<Vec<_>>().into_iter();
        let (address, more) = (announced.next().unwrap_or_default(), announced.collect::<Vec<_>>());
        let listen = (!more.is_empty()).then(|| format!("[::]:{port}"));
        Ports { address, more, listen, admin: format!("127.0.0.1:{}", port + 1) }
    };
    let sites = sites.iter().enumerate();
    sites
        .map(|(place, site)| SitePlan {
            site: site.clone(),
            mds: ports(place, MDS_PORT),
            oss: ports(place, OSS_PORT),
        })
        .collect()
}

fn sites_on_loopback(sites: &[SiteName]) -> anyhow::Result<Vec<SitePlan>> {
    let mut free = free_ports(sites.len() * 4)?.into_iter();
    let mut ports = || Ports {
        address: free.next().unwrap_or_default(),
        more: Vec::new(),
        listen: None,
        admin: free.next().unwrap_or_default(),
    };
    Ok(sites
        .iter()
        .map(|site| SitePlan { site: site.clone(), mds: ports(), oss: ports() })
        .collect())
}

/// Of a door on loopback: https://, root://, `/metrics`.
fn door_ports() -> anyhow::Result<[String; 3]> {
    let ports = free_ports(3)?;
    ports.try_into().map_err(|_| anyhow::anyhow!("three ports are free"))
}

/// Addresses on loopback with ports nobody listens on; kept in the state, so that a restarted
/// server is where it was.
fn free_ports(count: usize) -> anyhow::Result<Vec<String>> {
    let world = tieline_world::World::real();
    // All are held until the last is found, so that none is given twice.
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut last = None;
    for _ in 0..PORT_TRIES {
        if listeners.len() == count {
            break;
        }
        let port = PORTS.start + (world.random() % PORTS.len() as u64) as u16;
        match reserve(port).and_then(|()| TcpListener::bind(("127.0.0.1", port))) {
            Ok(listener) => listeners.push(listener),
            Err(error) => last = Some(error),
        }
    }
    if listeners.len() < count {
        let found = listeners.len();
        let last = last.map_or_else(String::new, |error| error.to_string());
        bail!("{found} of {count} ports are free between {PORTS:?} on 127.0.0.1: {last}");
    }
    listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// Keeps a port from other federations that start now, until this program ends: by then its server
/// listens there. An abstract socket goes with its process, and is of the same network namespace.
fn reserve(port: u16) -> std::io::Result<()> {
    let name = format!("tieline dev port {port}");
    let address = SocketAddr::from_abstract_name(name)?;
    UnixListener::bind_addr(&address).map(std::mem::forget)
}

/// Signs the first map into the root MDS's state directory; everybody else fetches it there.
fn write_map(plan: &Plan) -> anyhow::Result<()> {
    let text = plan.map();
    std::fs::write(plan.dir.join("sites").join("map.toml"), toml::to_string(&text)?)?;
    let signer: MapSigner =
        tieline_base::keys::secret_open(&plan.secret).map_err(anyhow::Error::msg)?;
    let root = plan.servers().into_iter().next().context("a federation has a site")?;
    std::fs::create_dir_all(&root.settings.state)?;
    let path = root.settings.state.join(tieline_serve::run::MAP_FILE);
    std::fs::write(&path, signer.sign(&text.build()?).to_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a server's settings and makes its directories.
fn prepare(held: &Held, server: &ServerPlan) -> anyhow::Result<Process> {
    let settings = &server.settings;
    std::fs::create_dir_all(&settings.state)?;
    for ost in &settings.ost {
        std::fs::create_dir_all(&ost.path)?;
        user::give(&ost.path, settings.user.as_deref())?;
    }
    user::give(&settings.state, settings.user.as_deref())?;
    let role = server.name.split('-').next().unwrap_or_default();
    let path = plan::site_dir(held.dir(), &server.site).join(format!("{role}.toml"));
    // Readable by its owner only: a connection to a database may hold a password.
    tieline_machine::private::write_whole(&path, toml::to_string(settings)?.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let network = held.state.network.as_ref();
    Ok(Process {
        name: server.name.clone(),
        argv: vec!["server".into(), "--settings".into(), path.display().to_string()],
        log: log_path(held.dir(), &server.name),
        address: Some(server.ports.address.clone()),
        admin: server.ports.admin.clone(),
        socket: None,
        mountpoint: None,
        netns: network.map(|network| network.site(&server.site)),
        process: None,
    })
}

/// The line and the root MDS first, since the others fetch their map there; then all others at
/// once.
fn start_servers(held: &mut Held) -> anyhow::Result<()> {
    let root = held.state.processes.iter().position(|process| process.address.is_some());
    for place in 0..held.state.processes.len() {
        let Some(process) = held.state.processes.get_mut(place) else { break };
        processes::spawn(process)?;
        // Written down at once: whatever happens to us, `dev down` finds it.
        held.save()?;
        if let Some(process) = held.state.processes.get(place).filter(|_| Some(place) <= root) {
            processes::wait_ready(process)?;
        }
    }
    held.state.processes.iter().try_for_each(processes::wait_ready)
}

/// What is particular about a mount.
#[derive(Default)]
pub struct MountMore {
    /// The namespace of this site, not that of the clients.
    pub site: Option<SiteName>,
    pub options: Option<String>,
}

/// Mounts the federation at one more place.
fn add_mount(held: &mut Held, mount: &Path, more: &MountMore) -> anyhow::Result<()> {
    make(mount, &mut held.state.made)?;
    let mountpoint = table::mountpoint(mount);
    if table::is_mounted(&mountpoint) {
        bail!("something is mounted at {} already", mountpoint.display());
    }
    forget_ended(&mut held.state.processes, &mountpoint);
    let number = free_number(&held.state.processes);
    let name = mount_name(number);
    let admin = match held.state.network {
        Some(_) => format!("127.0.0.1:{}", MOUNT_PORT + number),
        None => free_ports(1)?.remove(0),
    };
    let network = held.state.network.as_ref();
    let netns = match (network, &more.site) {
        (None, Some(_)) => {
            return Err(Usage("--site: this federation has no namespaces".into()).into());
        }
        (None, None) => None,
        (Some(network), None) => Some(network.clients()),
        (Some(network), Some(site)) => Some(network.site(site)),
    };
    let spool = held.dir().join(SPOOL);
    let (key, spool, caches) = (&held.state.key, spool.display(), held.dir().join(CACHES));
    let mut list = format!("mapkey={key},admin={admin},spool={spool}");
    list += &format!(",cache=auto:{}", caches.display());
    if let Some(netns) = &netns {
        list += &format!(",netns={}", netns.display());
    }
    if let Some(kdc) = &held.state.kdc {
        let (keytab, config) = (kdc.keytab.display(), kdc.config.display());
        list += &format!(",keytab={keytab},principal={},krb5conf={config}", kdc.principal);
    }
    if let Some(options) = &more.options {
        list += &format!(",{options}");
    }
    let source = format!("{}:/{}", held.state.mds.join(","), held.state.fs);
    let argv = ["mount", &source, &mountpoint.to_string_lossy(), "--foreground", "-o", &list];
    let mut process = Process {
        argv: argv.map(str::to_owned).to_vec(),
        log: log_path(held.dir(), &name),
        name,
        address: None,
        admin,
        socket: None,
        mountpoint: Some(mountpoint),
        netns,
        process: None,
    };
    let started = processes::start(&mut process);
    held.state.processes.push(process);
    held.save()?;
    started?;
    wait_for_space(mount);
    Ok(())
}

/// What was mounted there before, and is no more. One that was unmounted may live on, to send what
/// its servers have not got yet: it has its name and its port until then.
fn forget_ended(processes: &mut Vec<Process>, mountpoint: &Path) {
    let is_alive = |process: &Process| process.process.is_some_and(ProcessId::is_alive);
    let is_there = |process: &Process| process.mountpoint.as_deref() == Some(mountpoint);
    processes.retain(|process| !is_there(process) || is_alive(process));
}

fn mount_name(number: u16) -> String {
    format!("mount-{number}")
}

/// The first that no mount's name has.
fn free_number(processes: &[Process]) -> u16 {
    let is_taken = |number| processes.iter().any(|process| process.name == mount_name(number));
    let mut number = 0;
    while is_taken(number) {
        number += 1;
    }
    number
}

/// A metadata server tells of space once it has heard from its data servers: a program that asks
/// right after us should find it told. Ready it is without.
fn wait_for_space(mountpoint: &Path) {
    let deadline = Instant::now() + SPACE_PATIENCE;
    let is_told = || rustix::fs::statvfs(mountpoint).is_ok_and(|space| space.f_blocks > 0);
    while !is_told() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `tieline dev mount`.
pub fn mount_again(dir: &Path, mountpoint: &Path, more: &MountMore) -> anyhow::Result<()> {
    let mut held = Held::open(dir)?;
    let mount = std::path::absolute(mountpoint)?;
    if let Err(error) = add_mount(&mut held, &mount, more) {
        if let Some(mut process) =
            held.state.processes.pop_if(|p| p.mountpoint.is_some() && !p.is_alive())
        {
            let _ = processes::end(&mut process);
            held.save()?;
        }
        return Err(error);
    }
    Ok(())
}

/// New files at a site lie at that site.
fn set_pool(directory: &Path, site: &SiteName) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["setstripe", "-p", site.as_str()]).arg(directory).stdin(Stdio::null());
    // What the mount was told counts, not another realm's.
    command.env_remove(proving::CONFIG);
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("cannot give {} its pool: {}", directory.display(), said.trim());
    }
    Ok(())
}

fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("logs").join(format!("{name}.log"))
}

/// Makes a directory and notes each level that was not there before, deepest first.
fn make(dir: &Path, made: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    // A dead mount is there, though every look at it fails.
    if dir.is_dir() || table::is_mounted(dir) {
        return Ok(());
    }
    let missing = dir.ancestors().take_while(|path| !path.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let place = made.len();
    made.splice(place..place, missing);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_kept_for_one_federation() {
        let port = 9;
        reserve(port).unwrap();
        assert_eq!(reserve(port).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        reserve(port + 1).unwrap();
    }

    #[test]
    fn a_mount_that_still_sends_keeps_its_name_and_its_port() {
        let process = |name: &str, mountpoint: &str, process| Process {
            name: name.to_owned(),
            argv: vec![],
            log: PathBuf::new(),
            address: None,
            admin: String::new(),
            socket: None,
            mountpoint: Some(mountpoint.into()),
            netns: None,
            process,
        };
        let alive = ProcessId::own();
        let ended = ProcessId { started: alive.started + 1, ..alive };
        let mut processes = vec![
            process("mount-0", "/a", Some(alive)),
            process("mount-1", "/a", Some(ended)),
            process("mount-2", "/b", Some(ended)),
        ];
        forget_ended(&mut processes, Path::new("/a"));
        let names: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!((names, free_number(&processes)), (vec!["mount-0", "mount-2"], 1));
    }
}
