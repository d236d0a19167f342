//! What weaker flavors let through, as docs/security.md says.

use super::capabilities::{open, oss_of};
use super::hostile::{Guise, Line, Scene};
use super::relay::{Meddling, Plan, Relay, Way};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use tieline_types::checksum::{crc32c, first_mismatch};
use tieline_types::{Caller, FileId};
use tieline_wire::data::ReadObject;
use tieline_wire::meta::{GetAttributes, Lookup};
use tieline_wire::{FrameHeader, FrameKind, Request};

/// The generator of CRC-32C, x^32 first, as its bits lie in bytes: laid over bytes it changes five
/// of them, and no CRC-32C.
fn invisible() -> [u8; 5] {
    let bits = std::iter::once(1).chain((0..32).map(|bit| (0x1EDC_6F41_u32 >> (31 - bit)) & 1));
    let mut bytes = [0; 5];
    for (at, bit) in bits.enumerate() {
        bytes[at / 8] |= (bit as u8) << (at % 8);
    }
    bytes
}

/// A relay changes what was read so that the checksums in the message still fit.
pub async fn data_is_forged(scene: &Scene<'_>, passes: bool) -> Result<()> {
    let pattern = invisible();
    let before = [9_u8; 64];
    let mut after = before;
    after.iter_mut().skip(7).zip(pattern).for_each(|(byte, change)| *byte ^= change);
    ensure!(crc32c(&before) == crc32c(&after) && before != after, "no change at all");

    scene.federation.shell("head -c 4000000 /dev/zero | tr '\\0' e > events && sync events")?;
    let guise = Guise::of(&scene.machine, 30);
    let mds = scene.dial(&scene.mds, &guise);
    let file = open(&mds, &Caller::root(), "events").await?;
    let change = move |mut frame: Vec<u8>| {
        let number = |at: usize| {
            u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]) as usize
        };
        let (head, bulk) = (number(4), number(8));
        if bulk > 100 {
            let at = 16 + head + 16 + 50;
            frame.iter_mut().skip(at).zip(pattern).for_each(|(byte, change)| *byte ^= change);
        }
        frame
    };
    let server = oss_of(scene, file.place.ost)?;
    let principal = {
        let services = scene.map().security.map(|security| security.services).unwrap_or_default();
        services.into_iter().find(|known| known.address == server).map(|known| known.principal)
    };
    let relay = Relay::start(Plan {
        server,
        way: Way::ToClient,
        meddling: Meddling::Change(Arc::new(change)),
        connections: 1,
        is_bulk_sealed: !passes,
    })
    .await?;
    let line = scene.dial(&relay.address.to_string(), &Guise { principal, ..guise });
    let message = ReadObject {
        ost: file.place.ost,
        object: file.place.object.clone(),
        offset: 0,
        length: 4096,
        capability: Some(file.capability.clone()),
        hashed: None,
    };
    let answer = line.ask_bulk(&Caller::root(), message, Bytes::new()).await;
    let wanted = [b'e'; 4096];
    match (passes, answer) {
        (true, Ok((reply, bytes))) => {
            ensure!(first_mismatch(&bytes, &reply.checks).is_none(), "the checksums show it");
            ensure!(bytes.get(..4096) != Some(&wanted[..]), "nothing was changed");
            Ok(())
        }
        (false, Err(_)) => Ok(()),
        (_, answer) => anyhow::bail!("{passes}: {:?}", answer.map(|(_, bytes)| bytes.len())),
    }
}

/// A relay changes a request: the connection's first frame asks what time it is.
pub async fn requests_are_changed(scene: &Scene<'_>) -> Result<()> {
    scene.federation.shell("mkdir other")?;
    let line = scene.dial(&scene.mds, &Guise::of(&scene.machine, 31));
    let other = "other".parse()?;
    let found = line.ask(&Caller::root(), Lookup { parent: FileId(1), name: other }).await?;
    let other = found.attributes.context("it was made")?.id;
    let change = move |frame: Vec<u8>| changed_request(&frame, other).unwrap_or(frame);
    let meddling = Meddling::ChangeOpen(Arc::new(change));
    let (_relay, line): (_, Line) =
        scene.dial_through(false, (Way::ToServer, meddling), false).await?;
    let root = GetAttributes { id: FileId(1) };
    let told = line.ask(&Caller::root(), root).await?;
    ensure!(told.attributes.id == other, "nobody changed it");
    Ok(())
}

fn changed_request(frame: &[u8], other: FileId) -> Option<Vec<u8>> {
    let header = FrameHeader::decode(frame.first_chunk()?).ok()?;
    if header.kind != FrameKind::Request {
        return None;
    }
    let (envelope, request) = Request::decode(header.op, frame.get(FrameHeader::LENGTH..)?).ok()?;
    let Request::GetAttributes(_) = request else { return None };
    let body = Request::from(GetAttributes { id: other }).encode(&envelope);
    let header = FrameHeader { body_length: body.len() as u32, ..header };
    Some([&header.encode(&body)[..], &body].concat())
}
