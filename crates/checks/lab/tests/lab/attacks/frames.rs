//! Frames of an honest connection: changed, repeated, exchanged, left out, cut.

use super::capabilities;
use super::hostile::{Guise, Line, Scene};
use super::relay::{Meddling, Relay, Way};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::time::Duration;
use tieline_net::CallError;
use tieline_types::{Caller, FileId};
use tieline_wire::data::ReadObject;
use tieline_wire::meta::GetLayout;
use tokio::task::JoinSet;

/// Connections under way at once, and how long each waits for an answer that must not come.
const AT_ONCE: usize = 32;
const SOON: Duration = Duration::from_secs(1);
const ROOT: FileId = FileId(1);

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    scene.federation.expect_log("closed: tampered with");
    scene.federation.expect_log("closed: not our protocol");
    data(scene).await.context("data")?;
    let (to_server, to_client) = lengths(scene).await?;
    every_byte(scene, Way::ToServer, 1, to_server).await?;
    let noticed = tampered(scene)?;
    ensure!(noticed * 10 >= to_server * 8, "only {noticed} of {to_server} were noticed");
    // The first is the welcome, the second says what time it is, the third is the reply.
    every_byte(scene, Way::ToClient, 2, to_client).await?;
    repeated(scene).await?;
    let meddlings = [
        ("exchanged", Meddling::Exchange(0)),
        ("left out", Meddling::Drop(0)),
        ("cut", Meddling::Cut { frame: 1, bytes: to_server / 2 }),
        ("cut in the prefix", Meddling::Cut { frame: 0, bytes: 7 }),
    ];
    for (what, meddling) in meddlings {
        let (_relay, mut line) = scene.dial_through(false, (Way::ToServer, meddling), true).await?;
        line.patience = SOON;
        let caller = Caller::root();
        let (first, second) = tokio::join!(root(&line, &caller), root(&line, &caller));
        ensure!(first.is_err() && second.is_err(), "a frame that was {what} is answered");
    }
    Ok(())
}

/// What an OSS sends: heads and tags as requests are tried below, and bits of the bytes in between.
async fn data(scene: &Scene<'_>) -> Result<()> {
    const BLOCK: usize = 4096;
    const TAG: usize = 16;
    scene.federation.shell("head -c 5000000 /dev/urandom > bulk && sync bulk")?;
    let guise = Guise::of(&scene.machine, 202);
    let mds = scene.dial(&scene.mds, &guise);
    let file = capabilities::open(&mds, &Caller::root(), "bulk").await?;
    let address = capabilities::oss_of(scene, file.place.ost)?;
    let read = async |meddling| -> Result<(Relay, bool)> {
        let (relay, mut line) = scene.dial_to(&guise, &address, (Way::ToClient, meddling)).await?;
        line.patience = SOON;
        let message = ReadObject {
            ost: file.place.ost,
            object: file.place.object.clone(),
            offset: 0,
            length: BLOCK as u32,
            capability: Some(file.capability.clone()),
            hashed: None,
        };
        let answer = line.ask_bulk(&Caller::root(), message, Bytes::new()).await;
        Ok((relay, answer.is_ok()))
    };
    let (relay, is_read) = read(Meddling::Nothing).await?;
    ensure!(is_read, "unchanged bytes are not read");
    let length = {
        let heard = relay.heard.lock().expect("nobody panics with it");
        heard.to_client.get(3).context("a reply was heard")?.len()
    };
    let (bulk, tag) = (length - TAG - BLOCK, length - TAG);
    let bytes =
        (0..bulk).step_by(31).chain((bulk..tag).step_by(769)).chain((tag..length).step_by(5));
    for byte in bytes {
        let (_relay, is_read) = read(Meddling::Flip { frame: 2, byte }).await?;
        ensure!(!is_read, "byte {byte} of {length} was changed, and nobody noticed");
    }
    Ok(())
}

/// Lengths of a request's frame and of its reply's.
async fn lengths(scene: &Scene<'_>) -> Result<(usize, usize)> {
    let (relay, line) = scene.dial_through(false, (Way::ToServer, Meddling::Nothing), true).await?;
    root(&line, &Caller::root()).await?;
    let heard = relay.heard.lock().expect("nobody panics with it");
    // Behind the question what time it is.
    let request = heard.sealed.get(1).context("a request was heard")?.len();
    // Offer, welcome, time, reply.
    let reply = heard.to_client.get(3).context("a reply was heard")?.len();
    Ok((request, reply))
}

/// A question whose answer grants nothing.
async fn root(line: &Line, caller: &Caller) -> Result<(), CallError> {
    line.ask(caller, GetLayout { id: ROOT }).await.map(drop)
}

/// One bit of every byte, each on a connection of its own: none is answered.
async fn every_byte(scene: &Scene<'_>, way: Way, frame: usize, length: usize) -> Result<()> {
    let mut under_way: JoinSet<Result<(usize, bool)>> = JoinSet::new();
    let mut next = 0;
    while next < length || !under_way.is_empty() {
        if next < length && under_way.len() < AT_ONCE {
            let meddling = Meddling::Flip { frame, byte: next };
            let (relay, mut line): (Relay, Line) =
                scene.dial_through(false, (way, meddling), true).await?;
            line.patience = SOON;
            let byte = next;
            under_way.spawn(async move {
                let answer = root(&line, &Caller::root()).await;
                drop(relay);
                Ok((byte, answer.is_ok()))
            });
            next += 1;
            continue;
        }
        if let Some(ended) = under_way.join_next().await {
            let (byte, is_answered) = ended??;
            ensure!(!is_answered, "{way:?}: byte {byte} was changed, and nobody noticed");
        }
    }
    Ok(())
}

/// A repeated request is not carried out twice: the connection ends with it.
async fn repeated(scene: &Scene<'_>) -> Result<()> {
    let before = tampered(scene)?;
    let (_relay, line) =
        scene.dial_through(false, (Way::ToServer, Meddling::Repeat(0)), true).await?;
    // The first of both is as good as ever.
    let _ = root(&line, &Caller::root()).await;
    for _ in 0..100 {
        if tampered(scene)? > before {
            // And the session is the client's still, on another connection.
            let line = scene.dial(&scene.mds, &Guise::of(&scene.machine, 201));
            root(&line, &Caller::root()).await?;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("a repeated frame was not noticed")
}

fn tampered(scene: &Scene<'_>) -> Result<usize> {
    let logs = scene.federation.logs()?;
    Ok(logs.lines().filter(|line| line.contains("closed: tampered with")).count())
}
