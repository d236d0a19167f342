//! What is told to whom: a client that asks for all that it has heard of, and for what it guesses.

use super::hostile::{Guise, Line, Scene, refused, user};
use anyhow::{Context, Result, ensure};
use tieline_types::{Caller, Extent, FileId, Mode};
use tieline_wire::meta::{Create, GetExtents, Lookup, Open, ReadDirectory};

/// By what the user database here knows `daemon`.
const DAEMON: u32 = 1;
/// How an honest program is she.
const AS_DAEMON: &str = "setpriv --reuid=1 --regid=1 --clear-groups";

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let hers = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 70));
    bytes(scene, &hers).await.context("bytes")?;
    names(scene, &hers).await.context("what can be listed and not searched")
}

pub async fn find(line: &Line, parent: FileId, name: &str) -> Result<FileId> {
    let found = line.ask(&user(DAEMON), Lookup { parent, name: name.parse()? }).await?;
    Ok(found.attributes.context("it is there")?.id)
}

/// Who may write alone: an in-tray, small enough to lie in the metadata.
async fn bytes(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "chmod 755 . && mkdir -m 777 told && cd told && echo private > in-tray \
                  && chmod 622 in-tray && sync in-tray";
    scene.federation.shell(script)?;
    let caller = user(DAEMON);
    let parent = find(hers, FileId(1), "told").await?;
    let id = find(hers, parent, "in-tray").await?;
    for writes in [None, Some(true)] {
        let open = Open { id, is_read: false, is_write: true, writes };
        let opened = hers.ask(&caller, open).await.context("she may write")?;
        ensure!(opened.extents.extents.is_empty(), "an open to write tells bytes");
    }
    let page = GetExtents { id, offset: 0, limit: 10 };
    refused("extents of what may only be written", hers.ask(&caller, page).await)?;
    let there = Create {
        parent,
        name: "in-tray".parse()?,
        mode: Mode::new(0o644),
        umask: Mode::new(0),
        is_exclusive: false,
        layout: None,
        is_nameless: None,
    };
    let created = hers.ask(&caller, there).await?;
    let extents: Vec<Extent> = created.open.extents.extents;
    ensure!(!created.is_new && extents.is_empty(), "what was there is told to who would make it");
    // Honest programs write it all the same, in both ways, and ask how long it is.
    let honest = format!(
        "cd told && {AS_DAEMON} sh -c 'echo one >> in-tray' \
         && printf 'private\\none\\n' | cmp - in-tray \
         && {AS_DAEMON} dd if=/dev/zero of=in-tray bs=1 seek=3 count=2 \
            conv=notrunc status=none \
         && {AS_DAEMON} perl -e 'open(my $f, q(>>), q(in-tray)) or die; \
            sysseek($f, 0, 4) == 12 or die qq(hole: $!); \
            sysseek($f, 2, 3) == 2 or die qq(data: $!)' \
         && test $(stat -c %s in-tray) = 12 && ! {AS_DAEMON} cat in-tray 2> /dev/null"
    );
    scene.federation.shell(&honest).context("honest work")?;
    Ok(())
}

/// A directory of mode 744 tells names and no more.
async fn names(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "cd told && mkdir listed && ln -s /secret/place listed/link && chmod 744 listed \
                  && sync listed";
    scene.federation.shell(script)?;
    let parent = find(hers, FileId(1), "told").await?;
    let id = find(hers, parent, "listed").await?;
    let list = ReadDirectory { id, after: None, limit: 10, is_plus: true };
    let told = hers.ask(&user(DAEMON), list.clone()).await?;
    let entry = told.entries.first().context("its name is told")?;
    ensure!(entry.attributes.is_none() && entry.target.is_none(), "{entry:?}");
    let root = scene.dial(&scene.mds, &Guise::of(&scene.machine, 71));
    let told = root.ask(&Caller::root(), list).await?;
    ensure!(told.entries.first().is_some_and(|entry| entry.target.is_some()));
    let script = format!("cd told && {AS_DAEMON} ls listed && ! {AS_DAEMON} stat listed/link");
    scene.federation.shell(&script).map(drop)
}
