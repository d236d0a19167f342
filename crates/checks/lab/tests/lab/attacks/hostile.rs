//! A client without manners: speaks the protocol by itself, as whom it likes, through whom it
//! likes.

use super::relay::{Meddling, Plan as RelayPlan, Relay, Way};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::gss::Keys;
use tieline_auth::{
    Guard, GuardParts, Kerberos, MapCell, MapSigner, MapVerifier, Prover, ScratchKdc, Serves,
};
use tieline_format::Record;
use tieline_format::map::{FederationMap, Service, SignedMap};
use tieline_lab::federation::Federation;
use tieline_net::session::SessionDialer;
use tieline_net::{CallError, Channel, Dialer, NoticeSink, SessionSettings};
use tieline_types::{
    Caller, ClientId, FileId, Flavor, FlavorRule, FlavorRules, Gid, SessionId, Uid, Version,
};
use tieline_wire::federation::GetMap;
use tieline_wire::{Call, CredentialKind, Hello, Notice, NoticeAnswer, PeerRole, Welcome};
use tieline_world::{Bulk, World};

pub const PATIENCE: Duration = Duration::from_secs(3);
pub const REALM: &str = "EXTENCI.ORG";

/// A federation under attack.
pub struct Scene<'f> {
    pub federation: &'f Federation,
    pub mds: String,
    pub oss: String,
    pub machine: Keys,
    /// The tree that the first OST may adopt.
    pub adopted: PathBuf,
    map: Mutex<Option<FederationMap>>,
}

/// What a hello says, and with which keys.
#[derive(Clone)]
pub struct Guise {
    pub keys: Option<Keys>,
    pub client: ClientId,
    pub role: PeerRole,
    pub session: Option<SessionId>,
    /// Under which name to look for whom we dial; what it proves must be the same.
    pub principal: Option<String>,
    /// Takes no less than the map's rules, as honest clients do. Else it would agree to anything.
    pub is_strict: bool,
    pub fs: &'static str,
    pub hears: Hears,
}

/// What somebody does with notices.
#[derive(Clone, Debug, Default)]
pub enum Hears {
    /// Says at once that it holds nothing any more.
    #[default]
    Answers,
    /// Never answers, and is heard.
    Never,
    /// Says the first time that these files are open, and then nothing any more.
    Claims(Vec<FileId>),
}

impl Guise {
    pub fn of(keys: &Keys, client: u8) -> Self {
        let keys = Some(keys.clone());
        let client = ClientId([client; 16]);
        let (role, session, principal) = (PeerRole::Client, None, None);
        let hears = Hears::default();
        Self { keys, client, role, session, principal, is_strict: false, fs: "extenci", hears }
    }
}

/// A channel, and what the server said in its welcome.
pub struct Line {
    pub channel: Arc<dyn Channel>,
    pub patience: Duration,
    ear: Arc<Ear>,
}

#[derive(Default)]
struct Ear {
    welcomes: Mutex<Vec<Welcome>>,
    hears: Hears,
    has_heard: AtomicBool,
}

#[async_trait::async_trait]
impl NoticeSink for Ear {
    async fn notice(&self, _notice: Notice) -> NoticeAnswer {
        match &self.hears {
            Hears::Answers => NoticeAnswer::default(),
            Hears::Never => std::future::pending().await,
            Hears::Claims(open) if !self.has_heard.swap(true, Ordering::Relaxed) => {
                NoticeAnswer { open: open.clone(), ..NoticeAnswer::default() }
            }
            Hears::Claims(_) => std::future::pending().await,
        }
    }

    fn connected(&self, welcome: &Welcome) {
        self.welcomes.lock().expect("nobody panics with it").push(welcome.clone());
    }

    fn disconnected(&self) {}

    fn renewed(&self, _sent: tokio::time::Instant) {}
}

/// Leases of who just goes are in honest clients' way for a while: that is another test's affair.
impl Drop for Line {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let channel = self.channel.clone();
            runtime.spawn(async move { channel.close(Duration::from_secs(1)).await });
        }
    }
}

impl Line {
    pub fn welcome(&self) -> Result<Welcome> {
        self.ear
            .welcomes
            .lock()
            .expect("nobody panics with it")
            .last()
            .cloned()
            .context("no welcome")
    }

    pub async fn ask<C: Call>(&self, caller: &Caller, message: C) -> Result<C::Reply, CallError> {
        Ok(self.ask_bulk(caller, message, Bytes::new()).await?.0)
    }

    pub async fn ask_bulk<C: Call>(
        &self,
        caller: &Caller,
        message: C,
        bulk: Bytes,
    ) -> Result<(C::Reply, Bytes), CallError> {
        let patience = Some(self.patience);
        tieline_net::call(&*self.channel, caller, message, Bulk::from(bulk), patience).await
    }

    /// Any question that everybody may ask.
    pub async fn knock(&self) -> Result<(), CallError> {
        self.ask(&Caller::root(), GetMap {}).await.map(drop)
    }
}

pub fn user(uid: u32) -> Caller {
    Caller { uid: Uid(uid), gid: Gid(uid), ..Caller::default() }
}

impl<'f> Scene<'f> {
    pub async fn new(federation: &'f Federation, adopted: PathBuf) -> Result<Self> {
        let address = |name: &str| -> Result<String> {
            let process = federation.process(name)?;
            Ok(process["address"].as_str().context("a server has an address")?.to_owned())
        };
        let kdc = federation.dir().join("kdc");
        let machine = Keys {
            keytab: Some(kdc.join("client.keytab")),
            cache: Some(format!("FILE:{}", federation.local("tickets").display())),
            principal: Some(format!("host/client.extenci.org@{REALM}")),
        };
        let scene = Self {
            federation,
            mds: address("mds-uf")?,
            oss: address("oss-uf")?,
            machine,
            adopted,
            map: Mutex::default(),
        };
        let line = scene.dial(&scene.mds, &Guise::of(&scene.machine, 200));
        let reply = line.ask(&Caller::root(), GetMap {}).await?;
        let key = MapVerifier::from_hex(reply.key.as_deref().context("a key")?)?;
        let signed = SignedMap::from_bytes(&reply.signed)?;
        let map = MapCell::new(key, signed)?.current().map.clone();
        *scene.map.lock().expect("nobody panics with it") = Some(map);
        Ok(scene)
    }

    pub fn map(&self) -> FederationMap {
        let map = self.map.lock().expect("nobody panics with it");
        map.clone().expect("it is fetched first")
    }

    /// The Kerberos name of a data server.
    pub fn oss_name(&self) -> String {
        self.name_of(&self.oss)
    }

    pub fn mds_name(&self) -> String {
        self.name_of(&self.mds)
    }

    fn name_of(&self, address: &str) -> String {
        let services = self.map().security.map(|security| security.services).unwrap_or_default();
        let named = services.into_iter().find(|service| service.address == address);
        named.map(|service| service.principal).expect("dev names all servers")
    }

    pub fn kdc(&self) -> PathBuf {
        self.federation.dir().join("kdc")
    }

    /// Somebody with tickets of his own.
    pub fn user(&self, name: &str) -> Result<Keys> {
        let cache = format!("FILE:{}", self.federation.local(&format!("tickets-{name}")).display());
        let kdc = ScratchKdc::again(&self.kdc(), REALM, 0);
        kdc.kinit(name, name, &cache)?;
        Ok(Keys { cache: Some(cache), ..Keys::default() })
    }

    pub fn dial(&self, address: &str, guise: &Guise) -> Line {
        let prover = guise.keys.clone().map(|dialing| {
            let answering = Keys::default();
            Box::new(Kerberos { dialing, answering }) as Box<dyn Prover>
        });
        let guard = Guard::new(GuardParts {
            prover,
            floor: Flavor::Null,
            first: Flavor::Null,
            serves: Serves::default(),
            is_eager: true,
            realm: Some(REALM.to_owned()),
            services: vec![],
            service: None,
        });
        if let Some(cell) = self.cell(address, guise) {
            guard.follow(&cell);
        }
        // A connection that was meddled with is not made again soon.
        let pause = Duration::from_secs(60);
        let settings =
            SessionSettings { retry_first: pause, retry_longest: pause, ..Default::default() };
        let dialer = SessionDialer { world: World::real(), settings, guard };
        let ear = Arc::new(Ear { hears: guise.hears.clone(), ..Ear::default() });
        let hello = Hello {
            version_oldest: 1,
            version_newest: 1,
            role: guise.role,
            client: guise.client,
            session: guise.session,
            fs: guise.fs.parse().expect("a name"),
            credential: CredentialKind::None,
            flavor: Flavor::Null,
            features: 0,
            description: "hostile".to_owned(),
            map: Version(0),
            wait_ms: None,
        };
        let channel = dialer.dial(&[address.to_owned()], hello, ear.clone());
        Line { channel, patience: PATIENCE, ear }
    }

    /// The federation's map with one more name, signed by ourselves: nobody else believes it.
    fn cell(&self, address: &str, guise: &Guise) -> Option<MapCell> {
        let mut map = self.map.lock().expect("nobody panics with it").clone()?;
        let security = map.security.as_mut()?;
        if !guise.is_strict {
            let anything = FlavorRule::parse("extenci.srpc.flavor.default=null").ok()?.1;
            security.flavors = FlavorRules::default();
            security.flavors.set(anything);
        }
        if let Some(principal) = &guise.principal {
            security.services.retain(|service| service.address != address);
            let service = Service { address: address.to_owned(), principal: principal.clone() };
            security.services.push(service);
        }
        let signer = MapSigner::new([9; 32]);
        MapCell::new(signer.verifier(), signer.sign(&map)).ok()
    }

    /// A line to the MDS or the OSS through somebody on the way.
    pub async fn dial_through(
        &self,
        is_oss: bool,
        meddling: (Way, Meddling),
        is_bulk_sealed: bool,
    ) -> Result<(Relay, Line)> {
        let guise = Guise::of(&self.machine, 201);
        self.dial_through_as(&guise, is_oss, meddling, is_bulk_sealed).await
    }

    pub async fn dial_through_as(
        &self,
        guise: &Guise,
        is_oss: bool,
        (way, meddling): (Way, Meddling),
        is_bulk_sealed: bool,
    ) -> Result<(Relay, Line)> {
        let (server, name) = match is_oss {
            true => (self.oss.clone(), self.oss_name()),
            false => (self.mds.clone(), self.mds_name()),
        };
        let plan = RelayPlan { server, way, meddling, connections: 1, is_bulk_sealed };
        let relay = Relay::start(plan).await?;
        let guise = Guise { principal: Some(name), ..guise.clone() };
        let line = self.dial(&relay.address.to_string(), &guise);
        Ok((relay, line))
    }

    /// A line to any server through somebody on the way.
    pub async fn dial_to(
        &self,
        guise: &Guise,
        address: &str,
        (way, meddling): (Way, Meddling),
    ) -> Result<(Relay, Line)> {
        let server = address.to_owned();
        let plan = RelayPlan { server, way, meddling, connections: 1, is_bulk_sealed: true };
        let relay = Relay::start(plan).await?;
        let principal = Some(self.name_of(address));
        let line = self.dial(&relay.address.to_string(), &Guise { principal, ..guise.clone() });
        Ok((relay, line))
    }

    /// How often a server's metric was counted, with a label.
    pub async fn counted(&self, server: &str, metric: &str, label: &str) -> Result<u64> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let process = self.federation.process(server)?;
        let admin = process["admin"].as_str().context("an admin address")?.to_owned();
        let mut stream = tokio::net::TcpStream::connect(&admin).await?;
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        let found = said.lines().find(|line| line.starts_with(metric) && line.contains(label));
        Ok(found.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0))
    }
}

/// Nobody got in: the reason it was told.
pub fn refused<T>(what: &str, outcome: Result<T, CallError>) -> Result<String> {
    match outcome {
        Ok(_) => bail!("{what}: it was let in"),
        Err(error) => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                text += &format!(": {inner}");
                source = inner.source();
            }
            ensure!(!text.is_empty(), "{what}: no reason");
            Ok(text)
        }
    }
}
