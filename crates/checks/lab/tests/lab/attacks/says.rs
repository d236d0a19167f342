//! What a client says and is not believed. docs/security.md has the table of all of it.

use super::hostile::{Guise, Line, Scene, refused, user};
use super::told::find;
use anyhow::{Context, Result, ensure};
use tieline_types::{Caller, Content, Digest, Extent, FileId, Mode, SetTime, Time};
use tieline_wire::federation::{EditMap, MapEdit, SiteJoin};
use tieline_wire::meta::{Commit, GetAttributes, SetAttributes};
use tieline_wire::ranges::{Compact, CopyRange, SeenContent, SeenExtent};

/// By what the user database here knows `daemon`.
const DAEMON: u32 = 1;

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let hers = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 75));
    setuid(scene, &hers).await.context("setuid")?;
    times(scene, &hers).await.context("times")?;
    joins(scene).await.context("who joins")
}

pub fn commit(id: FileId, extents: Vec<Extent>) -> Commit {
    Commit {
        id,
        extents,
        size_min: 0,
        mtime: SetTime::Now,
        clears_setid: false,
        append_from: None,
        closes: None,
        is_promised: None,
    }
}

pub fn inline(bytes: &[u8]) -> Extent {
    let length = bytes.len() as u64;
    Extent { offset: 0, length, content: Content::Inline(bytes.to_vec()) }
}

/// Another's program that anybody may write runs with its owner's rights no more.
async fn setuid(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "chmod 755 . && mkdir -m 777 said && cd said && echo another > source \
                  && for f in commit copy compact; do echo program > $f; chmod 6777 $f; done \
                  && chmod 644 source && sync commit copy compact source";
    scene.federation.shell(script)?;
    let caller = user(DAEMON);
    let parent = find(hers, FileId(1), "said").await?;
    let id = find(hers, parent, "commit").await?;
    let after = hers.ask(&caller, commit(id, vec![inline(b"another\n")])).await?.attributes;
    ensure!(after.mode == Mode::new(0o777), "after a commit: {:?}", after.mode);
    let (from, to) = (find(hers, parent, "source").await?, find(hers, parent, "copy").await?);
    let copy = CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 0,
        length: 8,
        mtime: SetTime::Now,
        clears_setid: false,
    };
    let after = hers.ask(&caller, copy).await?.attributes;
    ensure!(after.mode == Mode::new(0o777), "after a copy: {:?}", after.mode);
    let id = find(hers, parent, "compact").await?;
    let content = SeenContent::Inline(Digest::of(b"program\n"));
    let was = vec![SeenExtent { offset: 0, length: 8, content }];
    let compact = Compact { id, was, extents: vec![inline(b"another\n")] };
    refused("a compaction that changes bytes", hers.ask(&caller, compact).await)?;
    let after = hers.ask(&caller, GetAttributes { id }).await?.attributes;
    ensure!(after.mode == Mode::new(0o6777), "{:?}", after.mode);
    // Who makes a program of his own gives it rights after its bytes, whatever is sent when.
    let script = "cd said && setpriv --reuid=1 --regid=1 --clear-groups sh -c \
                  'cp source own && chmod 4755 own' && sync own && sleep 1 \
                  && test $(stat -c %a own) = 4755";
    scene.federation.shell(script).context("honest work")?;
    Ok(())
}

/// Of another's file who may write it moves times as writing does, and reading no further than now.
async fn times(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    scene.federation.shell("cd said && echo text > times && chmod 666 times && sync times")?;
    let caller = user(DAEMON);
    let parent = find(hers, FileId(1), "said").await?;
    let id = find(hers, parent, "times").await?;
    let before = hers.ask(&caller, GetAttributes { id }).await?.attributes;
    let set = |time: Time, is_access: bool| SetAttributes {
        id,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: Some(SetTime::At(time)),
        mtime: (!is_access).then_some(SetTime::At(time)),
        is_handle: true,
        is_access: is_access.then_some(true),
    };
    let (old, far) = (Time { seconds: 5, nanos: 0 }, Time { seconds: 1 << 40, nanos: 0 });
    for (time, is_access) in [(old, false), (far, false), (far, true)] {
        let after = hers.ask(&caller, set(time, is_access)).await?.attributes;
        ensure!(after.mtime >= before.mtime && after.atime >= before.atime, "{after:?}");
        let latest = before.mtime.seconds + 3600;
        ensure!(after.mtime.seconds < latest && after.atime.seconds < latest, "{after:?}");
    }
    Ok(())
}

/// Who was invited is a server by his own keys, and not by anybody's name.
async fn joins(scene: &Scene<'_>) -> Result<()> {
    let admin = scene.dial(&scene.mds, &Guise::of(&scene.machine, 77));
    let (site, secret, until_ms) = ("uf".parse()?, [7; 32], u64::MAX);
    let digest = *Digest::of(&secret).as_blake3().context("a digest of today")?;
    let invite = MapEdit::SiteInvite { site, digest, until_ms };
    admin.ask(&Caller::root(), EditMap { edit: invite }).await?;
    let line = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 76));
    let join = |principal: &str| SiteJoin {
        secret,
        addresses: vec!["127.0.0.1:9".to_owned()],
        osts: 1,
        has_mdt: false,
        principal: Some(principal.to_owned()),
    };
    for principal in ["bin@EXTENCI.ORG", "host/client.extenci.org@EXTENCI.ORG"] {
        let edit = EditMap { edit: MapEdit::SiteJoin(join(principal)) };
        let why = refused("a server by another's name", line.ask(&Caller::root(), edit).await)?;
        ensure!(why.contains("join with the keytab"), "{why}");
    }
    Ok(())
}
