//! Ways to a connection that nobody should have.

use super::hostile::{Guise, PATIENCE, REALM, Scene, refused};
use super::relay::{Meddling, Way};
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_auth::ScratchKdc;
use tieline_auth::gss::Keys;
use tieline_lab::program::{DEADLINE, until};
use tieline_types::{Caller, Flavor, SessionId};
use tieline_wire::data::OstStatus;
use tieline_wire::{CredentialKind, FrameHeader, FrameKind, Hello, Offer, PeerRole};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    no_ticket(scene).await?;
    other_realm(scene).await?;
    wrong_service(scene).await?;
    other_role(scene).await?;
    other_file_system(scene).await?;
    stolen_session(scene).await?;
    replayed_handshake(scene).await?;
    downgrade(scene).await
}

async fn no_ticket(scene: &Scene<'_>) -> Result<()> {
    for address in [&scene.mds, &scene.oss] {
        let guise = Guise { keys: None, ..Guise::of(&scene.machine, 1) };
        let line = scene.dial(address, &guise);
        refused("no ticket", line.knock().await)?;
    }
    let logs = scene.federation.dir().join("logs");
    for role in ["mds", "oss"] {
        // Who was refused hears of it before it is on record.
        let audit = logs.join(format!("audit-{role}-uf.jsonl"));
        let is_kept = || {
            std::fs::read_to_string(&audit)
                .is_ok_and(|records| records.contains(r#""event":"refusal""#))
        };
        until(&format!("{role} has the refusal on record"), DEADLINE, is_kept)?;
    }
    Ok(())
}

/// A KDC of his own, with our realm's name and our server's: all but the keys.
async fn other_realm(scene: &Scene<'_>) -> Result<()> {
    for (realm, target) in [(REALM, scene.mds_name()), ("PSC.EDU", scene.mds_name())] {
        let dir = scene.federation.local(&format!("kdc-{realm}"));
        let own = ScratchKdc::start(&dir, realm)?;
        let target = target.replace(REALM, realm);
        let machine = format!("host/client.extenci.org@{realm}");
        let keytab = own.keytab("all.keytab", &[machine.clone(), target.clone()])?;
        let honest = std::env::var_os("KRB5_CONFIG").context("it is set")?;
        // SAFETY: nobody else dials now, and the runtime's threads rest.
        unsafe { std::env::set_var("KRB5_CONFIG", own.config()) };
        let cache = Some(format!("FILE:{}", dir.join("tickets").display()));
        let keys = Keys { keytab: Some(keytab), cache, principal: Some(machine) };
        let guise = Guise { principal: Some(target), ..Guise::of(&keys, 2) };
        let outcome = scene.dial(&scene.mds, &guise).knock().await;
        // SAFETY: as before.
        unsafe { std::env::set_var("KRB5_CONFIG", honest) };
        let why = refused("another realm", outcome)?;
        ensure!(
            why.contains("the connection: not authenticated: the "),
            "not by the server: {why}"
        );
    }
    Ok(())
}

async fn wrong_service(scene: &Scene<'_>) -> Result<()> {
    let (mds, oss) = (scene.mds_name(), scene.oss_name());
    let user = scene.user("daemon")?;
    for (address, other) in [(&scene.mds, oss), (&scene.oss, mds)] {
        for keys in [&scene.machine, &user] {
            let guise = Guise { principal: Some(other.clone()), ..Guise::of(keys, 3) };
            let outcome = scene.dial(address, &guise).knock().await;
            let why = refused("a ticket for another service", outcome)?;
            ensure!(why.contains("keytab has no key"), "not by the server: {why}");
        }
    }
    Ok(())
}

/// A machine that says it were a server.
async fn other_role(scene: &Scene<'_>) -> Result<()> {
    for role in [PeerRole::Mds, PeerRole::Oss] {
        let guise = Guise { role, ..Guise::of(&scene.machine, 4) };
        let why = refused("a server's role", scene.dial(&scene.oss, &guise).knock().await)?;
        ensure!(why.contains("no server of this federation"), "{why}");
    }
    Ok(())
}

/// Whoever may be who he is elsewhere: a federation's servers serve its own file system.
async fn other_file_system(scene: &Scene<'_>) -> Result<()> {
    for address in [&scene.mds, &scene.oss] {
        let guise = Guise { fs: "other", ..Guise::of(&scene.machine, 10) };
        let why = refused("another file system", scene.dial(address, &guise).knock().await)?;
        ensure!(why.contains("serves /extenci, not /other"), "{why}");
    }
    Ok(())
}

/// Who says that he is a server, where servers' own rule is null: nobody has to believe that. And
/// honest servers go on.
pub async fn unproven_role(scene: &Scene<'_>) -> Result<()> {
    let mount = scene.federation.mount().to_string_lossy().into_owned();
    for pair in ["mdt2ost", "mdt2mdt"] {
        let rule = format!("extenci.srpc.flavor.default.{pair}=null");
        scene.federation.tieline(&["flavor", "set", "--fs", &mount, &rule])?;
    }
    for (role, address) in [(PeerRole::Mds, &scene.oss), (PeerRole::Oss, &scene.mds)] {
        let guise = Guise { role, keys: None, ..Guise::of(&scene.machine, 9) };
        let outcome = scene.dial(address, &guise).ask(&Caller::root(), OstStatus {}).await;
        let why = refused("a server's role without a proof", outcome)?;
        ensure!(why.contains("needs Kerberos"), "{why}");
    }
    scene.federation.shell("head -c 9000000 /dev/zero > far && sync far")?;
    let far = scene.federation.mount().join("far");
    let far = far.to_string_lossy();
    scene.federation.tieline(&["mirror", "extend", "-N", "1", "-p", "fnal", &far])?;
    scene.federation.tieline(&["mirror", "resync", &far])?;
    scene.federation.tieline(&["mirror", "verify", &far]).map(drop)
}

/// Session and client number of somebody else, read on the line.
async fn stolen_session(scene: &Scene<'_>) -> Result<()> {
    let thief = scene.user("daemon")?;
    for address in [&scene.mds, &scene.oss] {
        let honest = scene.dial(address, &Guise::of(&scene.machine, 5));
        honest.knock().await?;
        let own = honest.welcome()?;
        let guise = Guise { session: Some(own.session), ..Guise::of(&thief, 5) };
        let line = scene.dial(address, &guise);
        line.knock().await?;
        let given = line.welcome()?;
        ensure!(!given.is_resumed && given.session != own.session, "a stolen session goes on");
        ensure!(given.holder != own.holder, "the thief is taken for the other");
        // An invented one neither.
        let session = Some(SessionId(own.session.0 ^ 6));
        let line = scene.dial(address, &Guise { session, ..Guise::of(&thief, 6) });
        line.knock().await?;
        ensure!(!line.welcome()?.is_resumed, "an invented session goes on");
    }
    Ok(())
}

/// Everything that an honest client said, once more.
async fn replayed_handshake(scene: &Scene<'_>) -> Result<()> {
    let (relay, line) = scene.dial_through(false, (Way::ToServer, Meddling::Nothing), true).await?;
    line.knock().await?;
    drop(line);
    let (open, sealed) = {
        let heard = relay.heard.lock().expect("nobody panics with it");
        (heard.open.concat(), heard.sealed.concat())
    };
    let answer = throw(&scene.mds, &[open.clone(), sealed].concat()).await?;
    ensure!(kind_of(&answer) == Some(FrameKind::Refused), "a replay is answered: {answer:?}");
    // Its token behind another hello.
    let (relay, line) = scene.dial_through(false, (Way::ToServer, Meddling::Nothing), true).await?;
    line.knock().await?;
    let token = relay.heard.lock().expect("nobody panics with it").open[1].clone();
    let answer = throw(
        &scene.mds,
        &[changed_hello(&open, |hello| hello.description.push('!')), token].concat(),
    )
    .await?;
    ensure!(kind_of(&answer) == Some(FrameKind::Refused), "a token fits another hello");
    Ok(())
}

fn kind_of(answer: &[u8]) -> Option<FrameKind> {
    let raw = answer.first_chunk::<{ FrameHeader::LENGTH }>()?;
    Some(FrameHeader::decode(raw).ok()?.kind)
}

/// What a server says to raw bytes, until it closes.
async fn throw(address: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    // A server that waits for more has said all.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    Ok(answer)
}

/// The first frame of what was heard, with another hello in it.
fn changed_hello(heard: &[u8], change: fn(&mut Hello)) -> Vec<u8> {
    let raw = heard.first_chunk::<{ FrameHeader::LENGTH }>().expect("a hello was heard");
    let header = FrameHeader::decode(raw).expect("a header");
    let end = FrameHeader::LENGTH + header.body_length as usize;
    let mut hello: Hello = tieline_wire::decode(&heard[FrameHeader::LENGTH..end]).expect("a hello");
    change(&mut hello);
    reframed(header, tieline_wire::encode(&hello))
}

fn reframed(header: FrameHeader, body: Vec<u8>) -> Vec<u8> {
    let header = FrameHeader { body_length: body.len() as u32, ..header };
    [&header.encode(&body)[..], &body].concat()
}

/// Asks for less than the rule, and has less offered by somebody on the way.
async fn downgrade(scene: &Scene<'_>) -> Result<()> {
    let line = scene.dial(&scene.oss, &Guise::of(&scene.machine, 7));
    line.ask(&Caller::root(), OstStatus {}).await?;
    ensure!(line.welcome()?.flavor >= Flavor::Krb5i, "talked down by asking");
    let no_proof = |frame: Vec<u8>| match kind_of(&frame) {
        Some(FrameKind::Hello) => changed_hello(&frame, |hello| {
            hello.credential = CredentialKind::None;
            hello.flavor = Flavor::Null;
        }),
        _ => frame,
    };
    let weaker_hello = |frame: Vec<u8>| match kind_of(&frame) {
        Some(FrameKind::Hello) => changed_hello(&frame, |hello| hello.flavor = Flavor::Krb5n),
        _ => frame,
    };
    let weaker_offer = |frame: Vec<u8>| match kind_of(&frame) {
        Some(FrameKind::Token) => {
            let raw = frame.first_chunk::<{ FrameHeader::LENGTH }>().expect("a header");
            let header = FrameHeader::decode(raw).expect("a header");
            let end = FrameHeader::LENGTH + header.body_length as usize;
            let body = tieline_wire::encode(&Offer { flavor: Flavor::Krb5n });
            [reframed(header, body), frame[end..].to_vec()].concat()
        }
        _ => frame,
    };
    let changes: [(&str, Way, Change); 3] = [
        ("no proof", Way::ToServer, Arc::new(no_proof)),
        ("a weaker hello", Way::ToServer, Arc::new(weaker_hello)),
        ("a weaker offer", Way::ToClient, Arc::new(weaker_offer)),
    ];
    // Neither a client that would agree to it nor one that obeys the map is talked down.
    for is_strict in [false, true] {
        for (what, way, change) in &changes {
            let is_changed = Arc::new(AtomicBool::new(false));
            let (saw, change) = (is_changed.clone(), change.clone());
            let changes = move |frame: Vec<u8>| {
                let changed = change(frame.clone());
                saw.fetch_or(changed != frame, Ordering::Relaxed);
                changed
            };
            let meddling = (*way, Meddling::ChangeOpen(Arc::new(changes)));
            let guise = Guise { is_strict, ..Guise::of(&scene.machine, 8) };
            let (_relay, line) = scene.dial_through_as(&guise, true, meddling, true).await?;
            let why = refused(what, line.ask(&Caller::root(), OstStatus {}).await)?;
            let wanted = match *what {
                "no proof" => "needs Kerberos",
                "a weaker hello" => "another conversation",
                // Nothing opens at either end.
                _ => "did not answer",
            };
            ensure!(why.contains(wanted), "{what}: {why}");
            ensure!(is_changed.load(Ordering::Relaxed), "{what}: nothing was changed");
        }
    }
    Ok(())
}

/// With a ticket at hand three round trips bring the first answer, and nobody else is asked: one of
/// TCP, one that proves both ends and welcomes, one of the request.
pub async fn three_round_trips(scene: &Scene<'_>) -> Result<()> {
    // Brings the tickets.
    for is_oss in [false, true] {
        let (_relay, line) = scene.dial_through(is_oss, NOTHING, true).await?;
        line.knock().await?;
    }
    let honest = std::env::var_os("KRB5_CONFIG").context("it is set")?;
    let dead = scene.federation.local("krb5-dead.conf");
    let told = std::fs::read_to_string(&honest)?;
    let silent = |line: &str| match line.trim_start().starts_with("kdc =") {
        true => "    kdc = 127.0.0.1:1\n".to_owned(),
        false => format!("{line}\n"),
    };
    std::fs::write(&dead, told.lines().map(silent).collect::<String>())?;
    // SAFETY: nobody else dials now, and the runtime's threads rest.
    unsafe { std::env::set_var("KRB5_CONFIG", &dead) };
    let mut outcomes = Vec::new();
    for is_oss in [false, true] {
        let (relay, line) = scene.dial_through(is_oss, NOTHING, true).await?;
        outcomes.push((line.knock().await, relay, line));
    }
    // SAFETY: as before.
    unsafe { std::env::set_var("KRB5_CONFIG", honest) };
    for (outcome, relay, _line) in outcomes {
        outcome?;
        let turns = relay.heard.lock().expect("nobody panics with it").turns.clone();
        let two = [Way::ToServer, Way::ToClient].repeat(2);
        ensure!(turns == two, "after TCP's round trip: {turns:?}");
    }
    Ok(())
}

const NOTHING: (Way, Meddling) = (Way::ToServer, Meddling::Nothing);

type Change = Arc<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>;
