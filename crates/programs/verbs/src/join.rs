//! `tieline join`: a machine becomes a server of a federation that invited its site.
//!
//! Everything that can be wrong here is looked at first; then the root MDS gives the server its
//! numbers, which uses the invitation up; then the settings are written and the server is started,
//! as a user without rights. Whatever breaks in between, the same command again goes on from there:
//! a server that is in the map by its address is not asked to join twice.

use crate::operator::{self, Operator};
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::io::{BufRead, IsTerminal, Read};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_auth::gss::{Keys, try_self};
use tieline_auth::{BelievedMap, SERVICE_MDS, SERVICE_OSS, principal_at};
use tieline_base::invitation::Invitation;
use tieline_base::location::Location;
use tieline_base::proving::{KerberosSettings, Proving};
use tieline_base::report::Usage;
use tieline_base::source::Source;
use tieline_blob::DirChunks;
use tieline_format::Record;
use tieline_format::map::FederationMap;
use tieline_machine::beneath::{Directory, Held, is_ours};
use tieline_machine::private;
use tieline_machine::process::ProcessId;
use tieline_machine::users::user_of_machine;
use tieline_serve::run::MAP_FILE;
use tieline_serve::settings::{MdtSettings, OstSettings, Settings};
use tieline_types::MdtIndex;
use tieline_wire::federation::{EditMap, MapEdit, SiteJoin};

const SETTINGS_FILE: &str = "server.toml";
const LOG_FILE: &str = "server.log";
const STATE_DIR: &str = "state";
/// In the state directory, which is the server's own.
const AUDIT_FILE: &str = "audit.jsonl";
/// Longest wait for the server to answer.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Of a word with many long addresses.
const INVITATION_BYTES_MAX: u64 = 16 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A file with what `tieline site invite` printed, which only you can read; `-`: standard input
    #[arg(value_name = "FILE", default_value = "-")]
    invitation: PathBuf,
    /// HOST:PORT where servers and clients of all sites reach this server
    #[arg(long = "address", value_name = "HOST:PORT", required = true)]
    addresses: Vec<String>,
    /// A directory that the site lends as an OST
    #[arg(long = "ost", value_name = "DIR")]
    osts: Vec<PathBuf>,
    /// Hold an MDT too: /FS/SITE is then at home here
    #[arg(long)]
    mdt: bool,
    /// Space of the OSTs' file systems that is never filled
    #[arg(long, default_value = "1 GiB", value_name = "SIZE")]
    reserve: String,
    /// Where the server's settings and its memory go
    #[arg(long, default_value = "/var/lib/tieline", value_name = "DIR")]
    dir: PathBuf,
    /// The server's Kerberos keys
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
    /// Its Kerberos name, if that is not tieline_mds/HOST or tieline_oss/HOST
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Another krb5.conf than the machine's
    #[arg(long, value_name = "FILE")]
    krb5conf: Option<PathBuf>,
    /// The user it runs as, when root calls this
    #[arg(long, default_value = "tieline", value_name = "NAME")]
    user: String,
    /// Join and write the settings, and start nothing
    #[arg(long)]
    no_start: bool,
}

/// Whom the server's files belong to, when root made them.
type Owner = Option<(u32, u32)>;

/// What was said, and the invitation that was read.
struct Joining {
    invitation: Invitation,
    said: Args,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let joining = Joining { invitation: invitation_read(&args.invitation)?, said: args };
    let mut made = Made::default();
    let (owner, lent) = prepare(&joining, &mut made)?;
    let location = joining.location();
    let joined = operator::run(&location, |operator| join(operator, &joining))?;
    made.keep();
    for directory in &lent {
        give(directory.held(), owner).with_context(not_given(directory.shown(), owner))?;
    }
    let dir = lent.first().context("a server has a directory")?;
    let settings = joining.write(dir, &joined, owner)?;
    let shown = settings.display();
    println!("{}", joining.told(&joined.map));
    if joining.said.no_start {
        println!("start it: tieline server --settings {shown}");
        return Ok(());
    }
    let pid = start(dir, &settings, owner)?;
    operator::run(&location, |operator| answers(operator, &joining, pid))?;
    println!("serving since now as pid {pid}; log: {}", joining.said.dir.join(LOG_FILE).display());
    println!("at every start of this machine: tieline server --settings {shown}");
    Ok(())
}

/// An invitation has a secret, which other users of this machine would see among the words of a
/// command.
fn invitation_read(from: &Path) -> anyhow::Result<Invitation> {
    let shown = from.to_string_lossy();
    if shown.parse::<Invitation>().is_ok() {
        let text = "other users of this machine can see an invitation that is written behind \
                    `join`: write `-` there, and paste it where that asks for it; or name a file \
                    with it that only you can read";
        return Err(Usage(text.into()).into());
    }
    let text = match &*shown {
        "-" => {
            if std::io::stdin().is_terminal() {
                eprint!("Invitation: ");
            }
            let mut line = String::new();
            let limited = std::io::stdin().lock().take(INVITATION_BYTES_MAX).read_line(&mut line);
            limited.context("cannot read the invitation from standard input")?;
            line
        }
        _ => private::read(from).map_err(anyhow::Error::msg)?,
    };
    Ok(text.parse()?)
}

/// Looks at everything that is ours before anybody is asked. The directories that the server is to
/// have, its own first: what was looked at is what it gets.
fn prepare(joining: &Joining, made: &mut Made) -> anyhow::Result<(Owner, Vec<Directory>)> {
    if joining.said.osts.is_empty() && !joining.said.mdt {
        return Err(Usage("name an --ost DIR, or --mdt, or both".into()).into());
    }
    let settings = joining.said.dir.join(SETTINGS_FILE);
    if settings.exists() {
        bail!(
            "{0} is there: start that server (tieline server --settings {0}), or give another \
             --dir",
            settings.display()
        );
    }
    for path in [&joining.said.dir].into_iter().chain(&joining.said.osts) {
        if !path.is_absolute() {
            return Err(Usage(format!("`{}` is not an absolute path", path.display())).into());
        }
    }
    let listen = joining.listen()?;
    TcpListener::bind(&listen).with_context(|| format!("cannot listen at {listen}"))?;
    let owner = joining.owner()?;
    joining.keytab_check(owner)?;
    let all = [&joining.said.dir].into_iter().chain(&joining.said.osts);
    let lent = all.map(|path| made.directory(path, owner)).collect::<anyhow::Result<_>>()?;
    Ok((owner, lent))
}

/// Directories that were made before anybody let us join; they go if nobody does.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// The directory at a path, made with those on the way that are missing.
    fn directory(&mut self, path: &Path, owner: Owner) -> anyhow::Result<Directory> {
        let cannot = || format!("cannot make {}", path.display());
        let there = path.ancestors().find(|above| above.exists()).with_context(cannot)?;
        let mut at = Directory::open_own(there).with_context(|| there.display().to_string())?;
        let missing = path.strip_prefix(there)?;
        if missing.as_os_str().is_empty() {
            // Whose it is changes when we are let in.
            check_foreign(&at, owner)?;
        }
        for name in missing {
            at = at.enter_or_make(name).with_context(cannot)?;
            self.0.push(at.shown().to_owned());
            check_foreign(&at, owner)?;
            // The server must come through those on the way, too.
            give(at.held(), owner).with_context(not_given(at.shown(), owner))?;
        }
        Ok(at)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // One that somebody put something into stays.
        self.0.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
    }
}

/// A directory that others made, or may write in, has what they put there.
fn check_foreign(directory: &Directory, owner: Owner) -> anyhow::Result<()> {
    let (found, shown) = (directory.held().metadata()?, directory.shown().display());
    if !is_ours(found.uid()) && owner.is_none_or(|(uid, _)| uid != found.uid()) {
        bail!("{shown} belongs to uid {}: chown it, or name another", found.uid());
    }
    if found.mode() & 0o002 != 0 {
        bail!("everybody may write in {shown}: chmod o-w it, or name another");
    }
    Ok(())
}

async fn join(operator: Operator, joining: &Joining) -> anyhow::Result<Arc<BelievedMap>> {
    let root = operator.map.mdt(MdtIndex(0)).context("the federation map has no root MDT")?;
    if operator.map.security.is_some() && joining.said.keytab.is_none() {
        bail!(
            "this federation uses Kerberos: give --keytab with the keys of tieline_mds/HOST (with \
             an MDT) or tieline_oss/HOST"
        );
    }
    if !joining.is_member(&operator.map) {
        joining.check(&operator.map)?;
        if let (Some(security), Some(keytab)) = (&operator.map.security, &joining.said.keytab) {
            prove_keys(joining, &security.realm, keytab).await?;
        }
        let join = SiteJoin {
            secret: joining.invitation.secret,
            addresses: joining.said.addresses.clone(),
            osts: u16::try_from(joining.said.osts.len())?,
            has_mdt: joining.said.mdt,
            principal: joining.said.principal.clone(),
        };
        let line = operator.dial(MdtIndex(0))?;
        let answer = line.call(EditMap { edit: MapEdit::SiteJoin(join) }).await;
        line.close().await;
        answer.with_context(|| format!("{} did not let us join", root.addresses.join(", ")))?;
    }
    let newest = operator.fetch(&root.addresses).await?;
    if !joining.is_member(&newest.map) {
        bail!("the federation map does not name this server yet: run the same command again");
    }
    Ok(newest)
}

/// The name that others will dial the server by: its keys must prove it, or nobody could use what
/// the invitation is spent for.
async fn prove_keys(joining: &Joining, realm: &str, keytab: &Path) -> anyhow::Result<()> {
    let service = if joining.said.mdt { SERVICE_MDS } else { SERVICE_OSS };
    let name = joining.said.principal.clone().unwrap_or_else(|| {
        let address = joining.said.addresses.first().map_or("", String::as_str);
        format!("{service}/{}@{realm}", tieline_auth::host(address))
    });
    let answering = Keys { keytab: Some(keytab.to_owned()), ..Keys::default() };
    let cache = Some("MEMORY:tieline-join".to_owned());
    let dialing = Keys { cache, principal: Some(name.clone()), ..answering.clone() };
    let shown = name.clone();
    let tried = tokio::task::spawn_blocking(move || try_self(&dialing, &answering, &name)).await?;
    tried.with_context(|| {
        format!(
            "the server will be dialed as {shown}, and {} does not prove that: put its keys there \
             (`addprinc -randkey`, `ktadd -k`), or say another --principal",
            keytab.display()
        )
    })
}

impl Joining {
    fn location(&self) -> Location {
        Location {
            source: Source {
                addresses: self.invitation.addresses.clone(),
                fs: self.invitation.fs.clone(),
                directory: String::new(),
            },
            path: Vec::new(),
            typed: Vec::new(),
            netns: None,
            mapkey: Some(self.invitation.key.clone()),
            mountpoint: None,
            idmap: None,
            proving: Proving {
                sec: None,
                keytab: self.said.keytab.clone(),
                principal: self.said.principal.clone(),
                config: self.said.krb5conf.clone(),
                service: None,
                is_proven: None,
            },
            text: format!("/{}", self.invitation.fs),
        }
    }

    /// The port of the first address, on all of the machine's own.
    fn listen(&self) -> Result<String, Usage> {
        let address = self.said.addresses.first().map_or("", String::as_str);
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let Some(port) = port.filter(|port| *port > 0) else {
            return Err(Usage(format!("--address `{address}`: write HOST:PORT")));
        };
        let all = if address.starts_with('[') { "[::]" } else { "0.0.0.0" };
        Ok(format!("{all}:{port}"))
    }

    fn owner(&self) -> anyhow::Result<Owner> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let found = user_of_machine(&self.said.user);
        let user = &self.said.user;
        let ids = found.with_context(|| {
            format!(
                "there is no user `{user}` here for the server to run as: make it \
                 (useradd --system {user}), or give --user"
            )
        })?;
        Ok(Some(ids))
    }

    /// The server must be able to read its keys, and nobody else.
    fn keytab_check(&self, owner: Owner) -> anyhow::Result<()> {
        let Some(keytab) = &self.said.keytab else { return Ok(()) };
        let shown = keytab.display();
        let found = std::fs::metadata(keytab).with_context(|| format!("cannot read {shown}"))?;
        if let Some((uid, _)) = owner.filter(|(uid, _)| found.uid() != *uid) {
            let user = &self.said.user;
            bail!(
                "{shown} does not belong to `{user}` (uid {uid}), as whom the server runs: \
                 chown {user} {shown}"
            );
        }
        Ok(())
    }

    /// Does the map say that our site has a server at our address?
    fn is_member(&self, map: &FederationMap) -> bool {
        let (site, own) = (&self.invitation.site, &self.said.addresses);
        map.mdts.iter().any(|mdt| mdt.home == *site && mdt.addresses == *own)
            || map.osts.iter().any(|ost| ost.site == *site && ost.addresses == *own)
    }

    fn mdt_of(&self, map: &FederationMap) -> Option<MdtIndex> {
        map.mdts.iter().find(|mdt| mdt.addresses == self.said.addresses).map(|mdt| mdt.mdt)
    }

    /// Our OSTs' numbers, in the order of their directories.
    fn osts_of(&self, map: &FederationMap) -> Vec<u16> {
        let own = map.osts.iter().filter(|ost| ost.addresses == self.said.addresses);
        own.map(|ost| ost.ost.0).collect()
    }

    /// What would be found wrong only when the invitation is used up.
    fn check(&self, map: &FederationMap) -> anyhow::Result<()> {
        let digest = tieline_federation::digest(&self.invitation.secret);
        let known = map.invitations.iter().flatten().find(|known| known.digest == digest);
        let said = &self.invitation.site;
        if let Some(known) = known.filter(|known| known.site != *said) {
            let site = &known.site;
            bail!(
                "this invitation is for site {site}, and says {said}: write it as `tieline site \
                 invite` printed it, or have {said} invited"
            );
        }
        if let Some(path) = self.said.osts.iter().find(|path| DirChunks::is_ost(path)) {
            let shown = path.display();
            bail!("{shown} holds the objects of an OST: lend an empty directory (--ost DIR)");
        }
        // Whatever numbers it gets.
        let mdt = self.said.mdt.then_some(MdtIndex(1));
        let osts = (0..u16::try_from(self.said.osts.len())?).collect();
        self.settings_with(map, mdt, osts)?.validate()?;
        Ok(())
    }

    fn settings(&self, map: &FederationMap) -> anyhow::Result<Settings> {
        let osts = self.osts_of(map);
        if osts.len() != self.said.osts.len() {
            let count = osts.len();
            bail!("this server joined with {count} OSTs: name as many directories as then");
        }
        self.settings_with(map, self.mdt_of(map), osts)
    }

    fn settings_with(
        &self,
        map: &FederationMap,
        mdt: Option<MdtIndex>,
        osts: Vec<u16>,
    ) -> anyhow::Result<Settings> {
        let ost = |(index, path): (u16, &PathBuf)| OstSettings {
            reserve: self.said.reserve.clone(),
            ..OstSettings::of(index, path.clone())
        };
        // As others dial it; the keytab's first key may be another service's.
        let named = self.said.addresses.first().and_then(|at| principal_at(map, at));
        let kerberos = self.said.keytab.clone().map(|keytab| KerberosSettings {
            keytab,
            principal: named.or_else(|| self.said.principal.clone()),
            services: Vec::new(),
            sec: None,
            realm: map.security.as_ref().map(|security| security.realm.clone()),
            config: self.said.krb5conf.clone(),
        });
        let root = map.mdt(MdtIndex(0)).map(|root| root.addresses.clone());
        let state = self.said.dir.join(STATE_DIR);
        Ok(Settings {
            audit: Some(state.join(AUDIT_FILE)),
            congestion: "auto".to_owned(),
            fs: self.invitation.fs.to_string(),
            site: self.invitation.site.to_string(),
            user: rustix::process::geteuid().is_root().then(|| self.said.user.clone()),
            state,
            listen: self.listen()?,
            admin: "127.0.0.1:0".to_owned(),
            log: "text".to_owned(),
            map_key: self.invitation.key.clone(),
            map_secret: None,
            root: root.unwrap_or_default(),
            kerberos,
            hsm: None,
            mdt: mdt.map(|mdt| MdtSettings::of(mdt.0)),
            ost: osts.into_iter().zip(&self.said.osts).map(ost).collect(),
            http: None,
        })
    }

    /// Leaves everything that the server starts from; the settings last, since they say that all
    /// is there.
    fn write(
        &self,
        dir: &Directory,
        joined: &BelievedMap,
        owner: Owner,
    ) -> anyhow::Result<PathBuf> {
        let map_key = joined.key.to_hex();
        let settings = Settings { map_key, ..self.settings(&joined.map)? };
        settings.validate()?;
        // The server's user may write here, and root does: beneath, through no link of his.
        let state = dir.enter_or_make(OsStr::new(STATE_DIR));
        let state = state.with_context(|| format!("cannot make {}", settings.state.display()))?;
        give(state.held(), owner).with_context(not_given(state.shown(), owner))?;
        file_write(&state, MAP_FILE, &joined.signed.to_bytes(), owner)?;
        file_write(dir, SETTINGS_FILE, toml::to_string(&settings)?.as_bytes(), owner)?;
        Ok(self.said.dir.join(SETTINGS_FILE))
    }

    fn told(&self, map: &FederationMap) -> String {
        let osts = self.osts_of(map).into_iter().map(|ost| tieline_types::OstIndex(ost).label());
        let mdt = self.mdt_of(map).map(|mdt| {
            format!("{} at /{}/{}", mdt.label(), self.invitation.fs, self.invitation.site)
        });
        let all: Vec<String> = mdt.into_iter().chain(osts).collect();
        let Invitation { fs, site, .. } = &self.invitation;
        format!("{site} has joined /{fs} with {}", all.join(", "))
    }
}

fn file_write(at: &Directory, name: &str, bytes: &[u8], owner: Owner) -> anyhow::Result<()> {
    let name = OsStr::new(name);
    at.write_whole(name, bytes, 0o600, owner)
        .with_context(|| format!("cannot write {}", at.path(name).display()))
}

fn give(held: &Held, owner: Owner) -> std::io::Result<()> {
    owner.map_or(Ok(()), |(uid, gid)| held.owner_set(uid, gid))
}

fn not_given(path: &Path, owner: Owner) -> impl Fn() -> String {
    let uid = owner.map_or(0, |(uid, _)| uid);
    move || format!("cannot give {} to uid {uid}", path.display())
}

fn start(dir: &Directory, settings: &Path, owner: Owner) -> anyhow::Result<u32> {
    let log = dir.log(OsStr::new(LOG_FILE)).and_then(|log| {
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&log, Some(uid), Some(gid))?;
        }
        Ok(log)
    });
    let log =
        log.with_context(|| format!("cannot open {}", dir.path(LOG_FILE.as_ref()).display()))?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["server", "--settings"]).arg(settings);
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if let Some((uid, gid)) = owner {
        command.uid(uid).gid(gid);
    }
    Ok(command.spawn().context("cannot start the server")?.id())
}

/// Waits until the new server answers at its own address.
async fn answers(operator: Operator, joining: &Joining, pid: u32) -> anyhow::Result<()> {
    let (log, deadline) = (joining.said.dir.join(LOG_FILE), Instant::now() + READY_PATIENCE);
    loop {
        if ProcessId::of(pid).is_none() {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let last = text.lines().next_back().unwrap_or("it said nothing").to_owned();
            bail!("the server ended at once: {last} (whole log: {})", log.display());
        }
        match operator.fetch(&joining.said.addresses).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                let at = joining.said.addresses.join(", ");
                return Err(error.context(format!(
                    "the server runs (pid {pid}), but does not answer at {at}: is that this \
                     machine's address, and the port open?"
                )));
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}
