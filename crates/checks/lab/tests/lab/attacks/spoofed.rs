//! Root of a machine says to be its users: without their tickets he is nobody.

use super::hostile::{Guise, Line, REALM, Scene, refused, user};
use anyhow::{Context, Result, ensure};
use tieline_auth::ScratchKdc;
use tieline_auth::gss::Keys;
use tieline_types::{Caller, FileId, Time};
use tieline_wire::Call;
use tieline_wire::meta::{Batch, BatchItem, GetAttributes, Lookup, Open, SetAttributes};

/// By what the user database here knows `daemon`.
const DAEMON: u32 = 1;

/// A machine of the realm that no rule names, as any site may bring.
pub fn machine(scene: &Scene<'_>) -> Result<Keys> {
    let name = format!("host/evil.extenci.org@{REALM}");
    let kdc = ScratchKdc::again(&scene.kdc(), REALM, 0);
    let keytab = kdc.keytab("evil.keytab", std::slice::from_ref(&name))?;
    let cache = Some(format!("FILE:{}", scene.federation.local("tickets-evil").display()));
    Ok(Keys { keytab: Some(keytab), cache, principal: Some(name) })
}

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let script = "echo secret > hers && chown 1 hers && chmod 600 hers && chmod 755 . && sync hers";
    scene.federation.shell(script)?;
    let honest = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 50));
    let lookup = Lookup { parent: FileId(1), name: "hers".parse()? };
    let found = honest.ask(&Caller::root(), lookup.clone()).await?;
    let id = found.attributes.context("it is there")?.id;
    let open = Open { id, is_read: true, is_write: false, writes: None };
    honest.ask(&user(DAEMON), open.clone()).await.context("with her ticket")?;
    refused("a stranger, over hers", honest.ask(&Caller::stranger(), open.clone()).await)?;
    as_others(scene, &honest).await.context("with her ticket, as others")?;

    let evil = scene.dial(&scene.mds, &Guise::of(&machine(scene)?, 51));
    evil.knock().await?;
    // Her number, that of others, and hers with the number of a proof that somebody else made.
    for proof in [None, Some(Caller::STRANGER), Some(2), Some(u64::MAX)] {
        for uid in [DAEMON, 2, 1001] {
            let caller = Caller { proof, ..user(uid) };
            let why = refused("a user without a ticket", evil.ask(&caller, open.clone()).await)?;
            ensure!(proof.is_some() || why.contains("shown no ticket"), "{why}");
            let look = GetAttributes { id: FileId(1) };
            refused("even to look", evil.ask(&caller, look).await)?;
        }
    }
    // Its own root is nobody, and may what everybody may, whatever ids he states beside it.
    let known = Caller { proof: Some(Caller::MACHINE_ROOT), ..user(DAEMON) };
    for root in [Caller::root(), known] {
        evil.ask(&root, lookup.clone()).await.context("what everybody sees")?;
        refused("root", evil.ask(&root, open.clone()).await)?;
        refused("root, to take it", evil.ask(&root, taking(id)).await)?;
    }
    super::stolen::administers(&evil).await?;
    batched(&evil, id).await
}

/// A user's tickets make nobody else of him, whatever number he states: no other user, and no root.
async fn as_others(scene: &Scene<'_>, daemon: &Line) -> Result<()> {
    let script = "echo root > his && chmod 600 his && echo bin > its && chown 2 its \
                  && chmod 600 its && sync his its";
    scene.federation.shell(script)?;
    for name in ["his", "its"] {
        let lookup = Lookup { parent: FileId(1), name: name.parse()? };
        let found = daemon.ask(&user(DAEMON), lookup).await?;
        let id = found.attributes.context("it is there")?.id;
        for caller in [Caller::root(), user(2), user(DAEMON)] {
            let open = Open { id, is_read: true, is_write: false, writes: None };
            refused("another's file", daemon.ask(&caller, open).await)?;
            refused("its mode", daemon.ask(&caller, taking(id)).await)?;
        }
    }
    super::stolen::administers(daemon).await
}

fn taking(id: FileId) -> SetAttributes {
    SetAttributes {
        id,
        mode: Some(tieline_types::Mode::new(0o666)),
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        is_handle: false,
        is_access: None,
    }
}

/// What is told later has a caller of its own in each item.
async fn batched(evil: &Line, id: FileId) -> Result<()> {
    let known = Caller { proof: Some(Caller::MACHINE_ROOT), ..user(DAEMON) };
    for caller in [user(DAEMON), Caller::root(), known] {
        let at = Time { seconds: 1_700_000_000, nanos: 0 };
        let (op, message) = (SetAttributes::OP.number(), tieline_wire::encode(&taking(id)));
        let batch = Batch { items: vec![BatchItem { caller, at, id, op, message }] };
        match evil.ask(&Caller::root(), batch).await {
            Err(_) => {}
            Ok(reply) => {
                let outcome = reply.outcomes.first().context("an outcome")?;
                let failure = outcome.failure.as_ref();
                let failure = failure.context("an item passes for somebody else's")?;
                ensure!(failure.detail.contains("(denial "), "it is on no record: {failure}");
            }
        }
    }
    Ok(())
}
