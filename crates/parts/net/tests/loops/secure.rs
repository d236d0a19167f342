//! Connections that are proven and protected, with the mechanism for tests.

use crate::house::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{Guard, GuardParts, MapCell, MapSigner, Prover, SeededProver, Serves};
use tieline_format::map::{FederationMap, Mdt, Security};
use tieline_net::{CallError, Server, ServerSettings, Session, SessionSettings};
use tieline_types::{
    ErrorKind, FileId, Flavor, FlavorRule, FlavorRules, Grant, MdtIndex, SessionId, Version,
};
use tieline_wire::meta::GetAttributes;
use tieline_wire::{CredentialKind, FrameHeader, FrameKind, Hello, Offer, Refusal, Welcome};
use tieline_world::{Bulk, LocalTransport, Transport, World};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

const SERVER: &str = "tieline_mds/mds@EXTENCI.ORG";
/// The same server for Kerberos, by another way.
const ELSEWHERE: &str = "mds:2";
const USER: &str = "ann@EXTENCI.ORG";

fn prover(own: &str, secret: u64) -> Option<Box<dyn Prover>> {
    Some(Box::new(SeededProver { secret, own: own.to_owned(), nonce: 1.into() }))
}

fn guard(prover: Option<Box<dyn Prover>>, floor: Flavor) -> Arc<Guard> {
    guard_of(prover, (floor, floor))
}

fn guard_of(prover: Option<Box<dyn Prover>>, (floor, first): (Flavor, Flavor)) -> Arc<Guard> {
    let (serves, services) = (Serves { mdt: true, ost: false }, vec!["tieline_mds".to_owned()]);
    let realm = Some("EXTENCI.ORG".to_owned());
    let (is_eager, service) = (false, None);
    Guard::new(GuardParts { prover, floor, first, serves, is_eager, realm, services, service })
}

/// Two ends with a proof each; the server wants `floor`.
struct Pair {
    world: World,
    transport: Arc<LocalTransport>,
    _server: Server,
    ear: Arc<Ear>,
}

impl Pair {
    async fn new(guard: Arc<Guard>) -> Self {
        let (world, transport) = World::local(7);
        let desk = Desk::new(&Arc::default(), true);
        let listener = transport.listen(ADDRESS).await.unwrap();
        let settings = ServerSettings { unknown_max: 4, ..ServerSettings::default() };
        let server = Server::start(listener, desk, guard, settings);
        Self { world, transport, _server: server, ear: Arc::default() }
    }

    fn dial(&self, guard: Arc<Guard>) -> Arc<Session> {
        self.dial_at(ADDRESS, guard)
    }

    fn dial_at(&self, address: &str, guard: Arc<Guard>) -> Arc<Session> {
        let (settings, addresses) = (SessionSettings::default(), [address.to_owned()]);
        Session::start(self.world.clone(), settings, guard, &addresses, hello(), self.ear.clone())
    }
}

fn why(outcome: Result<String, CallError>) -> (ErrorKind, String) {
    match outcome {
        Err(CallError::Handshake { source, .. } | CallError::Unproven { source, .. }) => {
            (source.kind, source.detail)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_and_bulk_pass_under_every_flavor() {
    for floor in Flavor::ALL {
        let pair = Pair::new(guard(prover(SERVER, 1), floor)).await;
        let session = pair.dial(guard(prover(USER, 1), Flavor::Null));
        assert_eq!(ask(&*session, 2).await.unwrap(), "no file 0x2");
        let bulk = Bulk::from(bytes::Bytes::from(vec![9; 3 << 20]));
        exchange(&*session, put(1), bulk).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_proves_nothing_or_wrongly_is_told_why() {
    let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Krb5i)).await;
    let (kind, detail) = why(ask(&*pair.dial(guard(None, Flavor::Null)), 2).await);
    assert_eq!(kind, ErrorKind::Unauthenticated);
    assert!(detail.contains("needs Kerberos"), "{detail}");
    let foreign = pair.dial(guard(prover(USER, 2), Flavor::Null));
    assert_eq!(why(ask(&*foreign, 2).await).0, ErrorKind::Unauthenticated);
}

#[tokio::test(start_paused = true)]
async fn a_server_with_another_name_or_without_keys_is_refused() {
    let other = Pair::new(guard(prover("tieline_mds/other@EXTENCI.ORG", 1), Flavor::Krb5i)).await;
    let session = other.dial(guard(prover(USER, 1), Flavor::Krb5i));
    assert!(why(ask(&*session, 2).await).1.contains("other@EXTENCI.ORG"));
    // It agrees to everything, and proves nothing.
    let open = Pair::new(guard(None, Flavor::Null)).await;
    let session = open.dial(guard(prover(USER, 1), Flavor::Krb5n));
    assert_eq!(why(ask(&*session, 2).await).0, ErrorKind::Unauthenticated);
}

/// Somebody on the way, who knows the protocol: reads the three frames of every handshake, sends
/// them on as `change` leaves them, and passes all else on as it is.
async fn meddle(pair: &Pair, change: fn(&mut Vec<u8>, usize)) {
    let mut listener = pair.transport.listen(ELSEWHERE).await.unwrap();
    let transport = pair.transport.clone();
    tokio::spawn(async move {
        while let Ok(near) = listener.accept().await {
            let far = transport.connect(ADDRESS, PATIENCE).await.unwrap();
            tokio::spawn(meddle_once(near, far, change));
        }
    });
}

async fn meddle_once(
    near: tieline_world::Connection,
    far: tieline_world::Connection,
    change: fn(&mut Vec<u8>, usize),
) {
    let (mut near_in, mut near_out) = (near.reader, near.writer);
    let (mut far_in, mut far_out) = (far.reader, far.writer);
    let hello = pass_frame(&mut near_in, &mut far_out, change, 0).await;
    let token = pass_frame(&mut near_in, &mut far_out, change, 1).await;
    let offer = pass_frame(&mut far_in, &mut near_out, change, 2).await;
    if hello.and(token).and(offer).is_none() {
        return;
    }
    let up = async {
        let _ = tokio::io::copy(&mut near_in, &mut far_out).await;
    };
    let down = async {
        let _ = tokio::io::copy(&mut far_in, &mut near_out).await;
    };
    tokio::join!(up, down);
}

async fn pass_frame(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    change: fn(&mut Vec<u8>, usize),
    which: usize,
) -> Option<()> {
    let mut raw = [0; FrameHeader::LENGTH];
    from.read_exact(&mut raw).await.ok()?;
    let header = FrameHeader::decode(&raw).ok()?;
    let mut body = vec![0; header.body_length as usize];
    from.read_exact(&mut body).await.ok()?;
    let mut bulk = vec![0; header.bulk_length as usize];
    from.read_exact(&mut bulk).await.ok()?;
    change(&mut body, which);
    let header = FrameHeader { body_length: body.len() as u32, ..header };
    let frame = [&header.encode(&body)[..], &body, &bulk].concat();
    to.write_all(&frame).await.ok()?;
    to.flush().await.ok()
}

async fn ask_past(change: fn(&mut Vec<u8>, usize)) -> Result<String, CallError> {
    let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Krb5i)).await;
    meddle(&pair, change).await;
    let session = pair.dial_at(ELSEWHERE, guard(prover(USER, 1), Flavor::Krb5n));
    ask(&*session, 2).await
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_changed_on_the_way_leads_nowhere() {
    assert_eq!(ask_past(|_, _| {}).await.unwrap(), "no file 0x2");
    let weaker_hello = |body: &mut Vec<u8>, which| {
        if which == 0 {
            let hello: Hello = tieline_wire::decode(body).unwrap();
            *body = tieline_wire::encode(&Hello { flavor: Flavor::Null, ..hello });
        }
    };
    assert_eq!(why(ask_past(weaker_hello).await).0, ErrorKind::Unauthenticated);
    let no_credential = |body: &mut Vec<u8>, which| {
        if which == 0 {
            let hello: Hello = tieline_wire::decode(body).unwrap();
            *body = tieline_wire::encode(&Hello { credential: CredentialKind::None, ..hello });
        }
    };
    assert!(ask_past(no_credential).await.is_err());
    for flavor in [Flavor::Null, Flavor::Krb5n, Flavor::Krb5a, Flavor::Krb5p] {
        static OTHER: Mutex<Flavor> = Mutex::new(Flavor::Null);
        *OTHER.lock().unwrap() = flavor;
        let other_offer = |body: &mut Vec<u8>, which| {
            if which == 2 {
                *body = tieline_wire::encode(&Offer { flavor: *OTHER.lock().unwrap() });
            }
        };
        assert!(ask_past(other_offer).await.is_err(), "{flavor:?}");
    }
}

/// Somebody on the way, who passes on what is said until he is given an answer of his own: then he
/// cuts what stands, and says it to whoever comes.
async fn lie(pair: &Pair) -> watch::Sender<Option<Vec<u8>>> {
    let (lies, lie) = watch::channel(None);
    let mut listener = pair.transport.listen(ELSEWHERE).await.unwrap();
    let transport = pair.transport.clone();
    tokio::spawn(async move {
        while let Ok(near) = listener.accept().await {
            tokio::spawn(lie_once(near, transport.clone(), lie.clone()));
        }
    });
    lies
}

async fn lie_once(
    near: tieline_world::Connection,
    transport: Arc<LocalTransport>,
    mut lie: watch::Receiver<Option<Vec<u8>>>,
) {
    let (mut near_in, mut near_out) = (near.reader, near.writer);
    let said = lie.borrow_and_update().clone();
    if let Some(said) = said {
        let _ = near_out.write_all(&said).await;
        let _ = near_out.flush().await;
        // Until the other end has heard enough.
        let _ = near_in.read_to_end(&mut Vec::new()).await;
        return;
    }
    let far = transport.connect(ADDRESS, PATIENCE).await.unwrap();
    let (mut far_in, mut far_out) = (far.reader, far.writer);
    let pass = async {
        let up = tokio::io::copy(&mut near_in, &mut far_out);
        tokio::join!(up, tokio::io::copy(&mut far_in, &mut near_out))
    };
    tokio::select! {
        biased;
        _ = lie.changed() => {}
        _ = pass => {}
    }
}

fn framed(kind: FrameKind, body: Vec<u8>, bulk: &[u8]) -> Vec<u8> {
    let (body_length, bulk_length) = (body.len() as u32, bulk.len() as u32);
    let header = FrameHeader { body_length, bulk_length, ..FrameHeader::new(kind) };
    [&header.encode(&body)[..], &body, bulk].concat()
}

fn refusal(kind: ErrorKind) -> Vec<u8> {
    let detail = "said on the way".to_owned();
    let refusal = Refusal { kind, detail, version_oldest: 1, version_newest: 1 };
    framed(FrameKind::Refused, tieline_wire::encode(&refusal), b"")
}

/// A welcome to whoever comes, by who proves nothing.
fn bare_welcome() -> Vec<u8> {
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
    framed(FrameKind::Welcome, tieline_wire::encode(&welcome), b"")
}

#[tokio::test(start_paused = true)]
async fn who_wants_a_proof_at_first_is_not_content_with_a_welcome() {
    let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Null)).await;
    let lies = lie(&pair).await;
    let newcomer = || guard_of(prover(USER, 1), (Flavor::Null, Flavor::Krb5n));
    assert_eq!(ask(&*pair.dial_at(ELSEWHERE, newcomer()), 2).await.unwrap(), "no file 0x2");
    lies.send(Some(bare_welcome())).unwrap();
    let (kind, detail) = why(ask(&*pair.dial_at(ELSEWHERE, newcomer()), 2).await);
    assert_eq!(kind, ErrorKind::Unauthenticated);
    assert!(detail.contains("flavor null was offered"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_proven_ends_neither_a_session_nor_its_calls() {
    let offer = tieline_wire::encode(&Offer { flavor: Flavor::Krb5i });
    let lies = [
        refusal(ErrorKind::SessionLost),
        refusal(ErrorKind::Unauthenticated),
        refusal(ErrorKind::VersionMismatch),
        bare_welcome(),
        framed(FrameKind::Token, offer.clone(), b"no token"),
        framed(FrameKind::Token, offer, &[0; 65 << 10]),
    ];
    for (at, said) in lies.into_iter().enumerate() {
        let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Krb5i)).await;
        let lies = lie(&pair).await;
        let client = || guard(prover(USER, 1), Flavor::Krb5i);
        let session = pair.dial_at(ELSEWHERE, client());
        ask(&*session, 2).await.unwrap();
        lies.send(Some(said)).unwrap();
        let asking = {
            let session = session.clone();
            tokio::spawn(async move { ask(&*session, 4).await })
        };
        let brief = Some(Duration::from_secs(3));
        let request = || GetAttributes { id: FileId(6) };
        let late = exchange_within(&*session, request(), Bulk::Empty, brief).await;
        assert!(matches!(late, Err(CallError::Timeout { why: Some(_), .. })), "{late:?}");
        assert!(!asking.is_finished());
        // Who has no session yet hears at once what is said: it may be his keytab or his clock.
        let newcomer = pair.dial_at(ELSEWHERE, client());
        let told = exchange_within(&*newcomer, request(), Bulk::Empty, brief).await;
        // That a session is over means nothing to him: he tries again.
        let is_told = matches!(told, Err(CallError::Handshake { .. }));
        assert_eq!(is_told, at > 0, "{told:?}");
        lies.send(None).unwrap();
        assert_eq!(asking.await.unwrap().unwrap(), "no file 0x4");
        let log = pair.ear.log.lock().unwrap().clone();
        assert!(log.iter().any(|line| line.contains("resumed")), "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_nothing_has_to_be_proven_a_refusal_in_clear_counts() {
    let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Null)).await;
    let lies = lie(&pair).await;
    let client = guard(prover(USER, 1), Flavor::Null);
    assert!(client.ask(), "it offers its proof all the same");
    let session = pair.dial_at(ELSEWHERE, client);
    ask(&*session, 2).await.unwrap();
    lies.send(Some(refusal(ErrorKind::VersionMismatch))).unwrap();
    assert_eq!(why(ask(&*session, 4).await).0, ErrorKind::VersionMismatch);
}

/// How long a word is on its way to somebody far.
const WAY: Duration = Duration::from_millis(25);

/// Makes [`ELSEWHERE`] far: what is said there arrives [`WAY`] later, however much it is.
async fn be_far(pair: &Pair) {
    let mut listener = pair.transport.listen(ELSEWHERE).await.unwrap();
    let transport = pair.transport.clone();
    tokio::spawn(async move {
        while let Ok(near) = listener.accept().await {
            let far = transport.connect(ADDRESS, PATIENCE).await.unwrap();
            tokio::spawn(pass_later(near.reader, far.writer));
            tokio::spawn(pass_later(far.reader, near.writer));
        }
    });
}

async fn pass_later(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
) {
    let (send, mut under_way) = tokio::sync::mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            send.send((Instant::now() + WAY, buffer[..length].to_vec())).unwrap();
        }
    };
    let write = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(due).await;
            to.write_all(&bytes).await.unwrap();
            to.flush().await.unwrap();
        }
    };
    tokio::join!(read, write);
}

/// TCP's own is the first of three: its end is not waited for in this world.
#[tokio::test(start_paused = true)]
async fn the_first_answer_of_a_new_connection_takes_three_round_trips() {
    for floor in Flavor::ALL {
        let pair = Pair::new(guard(prover(SERVER, 1), floor)).await;
        be_far(&pair).await;
        let start = Instant::now();
        let session = pair.dial_at(ELSEWHERE, guard(prover(USER, 1), floor));
        ask(&*session, 2).await.unwrap();
        let took = start.elapsed();
        assert!((4 * WAY..5 * WAY).contains(&took), "{floor:?}: {took:?}");
    }
}

fn cell(flavor: Flavor, version: u64) -> (MapCell, tieline_format::map::SignedMap) {
    let mut flavors = FlavorRules::default();
    let rule = format!("extenci.srpc.flavor.default={}", flavor.name());
    flavors.set(FlavorRule::parse(&rule).unwrap().1);
    let map = FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(version),
        mdts: vec![Mdt {
            mdt: MdtIndex(0),
            home: "uf".parse().unwrap(),
            addresses: vec![ADDRESS.to_owned()],
        }],
        junctions: vec![],
        osts: vec![],
        pools: vec![],
        security: Some(Security {
            realm: "EXTENCI.ORG".into(),
            flavors,
            services: vec![],
            machines: None,
            strangers: None,
            doors: None,
            issuers: None,
        }),
        invitations: None,
        repositories: None,
    };
    let signer = MapSigner::new([7; 32]);
    let signed = signer.sign(&map);
    (MapCell::new(signer.verifier(), signed.clone()).unwrap(), signed)
}

#[tokio::test(start_paused = true)]
async fn rules_change_while_requests_are_under_way_and_none_fails() {
    let (server, client) =
        (guard(prover(SERVER, 1), Flavor::Null), guard(prover(USER, 1), Flavor::Null));
    let ((near, _), (far, _)) = (cell(Flavor::Krb5n, 1), cell(Flavor::Krb5n, 1));
    server.follow(&far);
    client.follow(&near);
    let pair = Pair::new(server).await;
    let session = pair.dial(client);
    let mut asking = tokio::task::JoinSet::new();
    for id in 0..40 {
        let session = session.clone();
        asking.spawn(async move {
            for step in 0..20 {
                ask(&*session, 2 * (100 * id + step)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5 + id)).await;
            }
        });
    }
    for (version, flavor) in
        [(2, Flavor::Krb5p), (3, Flavor::Krb5i), (4, Flavor::Null), (5, Flavor::Krb5a)]
    {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let (_, signed) = cell(flavor, version);
        far.offer(signed.clone()).unwrap();
        tokio::time::sleep(Duration::from_millis(40)).await;
        near.offer(signed).unwrap();
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    let connected =
        pair.ear.log.lock().unwrap().iter().filter(|line| line.contains("resumed")).count();
    assert!(connected >= 3, "connected anew {connected} times");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_says_nothing_pushes_out_itself() {
    let pair = Pair::new(guard(prover(SERVER, 1), Flavor::Krb5i)).await;
    let mut crowd = Vec::new();
    for _ in 0..50 {
        crowd.push(pair.transport.connect(ADDRESS, PATIENCE).await.unwrap());
    }
    let session = pair.dial(guard(prover(USER, 1), Flavor::Krb5i));
    let asked = tokio::time::timeout(Duration::from_secs(1), ask(&*session, 2)).await;
    assert_eq!(asked.unwrap().unwrap(), "no file 0x2");
    drop(crowd);
}
