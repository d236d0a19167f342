//! A client that wants others to wait for it where it has no right: it never answers a notice, but
//! goes on being heard.

use super::hostile::{Guise, Hears, Line, Scene, refused, user};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use tieline_types::{Caller, FileId, LockKind, LockMode, LockRange, Mode};
use tieline_wire::locks::{AssertLocks, AssertedLock, Lock, LockOutcome, TestLock};
use tieline_wire::meta::{
    GetAttributes, GetExtents, LeaseGrant, ListXattrs, Lookup, MakeDirectory, Open, ReadDirectory,
    Reserve,
};

/// What the liar calls itself.
const LIAR: u8 = 61;
/// What honest work takes at most where nobody is waited for: a lease is 20 s.
const AT_ONCE: Duration = Duration::from_secs(6);

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let script = "mkdir -m 777 registered && cd registered \
                  && mkdir -m 700 private && mkdir -m 755 private/below \
                  && echo bytes > private/below/file && chmod 666 private/below/file \
                  && for f in hidden removed shown; do echo $f > $f; done \
                  && chmod 600 hidden removed && chmod 644 shown && sync *";
    scene.federation.shell(script)?;
    let outcomes = [
        ("an open that was refused", refused_open(scene).await),
        ("a lease by an id that was guessed", guessed_lease(scene).await),
        ("a directory that is seen from outside", from_outside(scene).await),
        ("locks that were never held", asserted_locks(scene).await),
        ("locks of who may only read", reader_locks(scene).await),
        ("files that are said to be written", claimed_writes(scene).await),
        ("files that are said to be open", claimed_opens(scene).await),
        ("recalls that run out", run_out(scene).await),
    ];
    // Whatever came of one, the others were tried.
    let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

fn deaf(scene: &Scene<'_>, number: u8) -> Line {
    let guise = Guise::of(&scene.machine, LIAR + number);
    scene.dial(&scene.mds, &Guise { hears: Hears::Never, ..guise })
}

async fn find(mds: &Line, path: &str) -> Result<FileId> {
    let mut at = FileId(1);
    for name in path.split('/') {
        let found = mds.ask(&Caller::root(), Lookup { parent: at, name: name.parse()? }).await?;
        at = found.attributes.with_context(|| format!("{path} is there"))?.id;
    }
    Ok(at)
}

/// An id, told by an honest client: the liar would count.
async fn id(scene: &Scene<'_>, path: &str) -> Result<FileId> {
    let honest = scene.dial(&scene.mds, &Guise::of(&scene.machine, LIAR));
    find(&honest, format!("registered/{path}").trim_end_matches('/')).await
}

fn at_once(scene: &Scene<'_>, script: &str) -> Result<()> {
    let begun = Instant::now();
    scene.federation.shell(&format!("cd registered && {script}"))?;
    let took = begun.elapsed();
    ensure!(took < AT_ONCE, "`{script}` took {took:?}");
    Ok(())
}

/// Who may not open a file is not taken for one who has it open, nor for one who writes it.
async fn refused_open(scene: &Scene<'_>) -> Result<()> {
    let (hidden, removed) = (id(scene, "hidden").await?, id(scene, "removed").await?);
    let mds = deaf(scene, 1);
    for id in [hidden, removed] {
        for (is_read, is_write) in [(true, false), (false, true), (false, false)] {
            let open = Open { id, is_read, is_write, writes: is_write.then_some(true) };
            refused("opening", mds.ask(&user(1), open).await)?;
        }
    }
    at_once(scene, "rm removed && stat hidden && echo more >> hidden")
}

/// Ids are numbers given out in turn: whoever counts them makes nobody wait below what he may not
/// search.
async fn guessed_lease(scene: &Scene<'_>) -> Result<()> {
    let (private, below) = (id(scene, "private").await?, id(scene, "private/below").await?);
    let file = id(scene, "private/below/file").await?;
    let (mds, caller) = (deaf(scene, 2), user(1));
    let mut leases: Vec<(&str, Option<LeaseGrant>)> = vec![];
    for (id, what) in [(private, "private"), (below, "below"), (file, "file")] {
        let told = mds.ask(&caller, GetAttributes { id }).await;
        leases.push((what, told.ok().map(|told| told.lease)));
        let told = mds.ask(&caller, ListXattrs { id }).await;
        leases.push((what, told.ok().map(|told| told.lease)));
    }
    let found = mds.ask(&caller, Lookup { parent: below, name: "file".parse()? }).await;
    leases.push(("a name", found.ok().map(|found| found.lease)));
    let list = ReadDirectory { id: below, after: None, limit: 99, is_plus: true };
    leases.push(("a list", mds.ask(&caller, list).await.ok().map(|list| list.lease)));
    let open = Open { id: file, is_read: true, is_write: false, writes: None };
    leases.push(("an open", mds.ask(&caller, open).await.ok().map(|open| open.lease)));
    let extents = GetExtents { id: file, offset: 0, limit: 9 };
    leases.push(("its bytes", mds.ask(&caller, extents).await.ok().map(|told| told.lease)));
    let given: Vec<_> = leases
        .iter()
        .filter(|(_, lease)| lease.as_ref().is_some_and(|lease| !lease.units.is_empty()))
        .collect();
    let worked = at_once(scene, "touch private/a private/below/a && mkdir private/below/b");
    ensure!(given.is_empty(), "leases were given: {given:?}, and then {worked:?}");
    worked
}

/// `ls -l` of a directory tells of those in it that one may not enter. Who heard of them so is told
/// when they change, and not waited for as one who is in them.
async fn from_outside(scene: &Scene<'_>) -> Result<()> {
    let mds = deaf(scene, 3);
    let all = find(&mds, "registered").await?;
    mds.ask(&user(1), Lookup { parent: all, name: "private".parse()? }).await?;
    at_once(scene, "touch private/c")?;
    // It was not ended for that, and honest clients see what is new.
    mds.ask(&user(1), GetAttributes { id: FileId(1) }).await?;
    Ok(())
}

/// Locks are asserted after a start, by who was there before it. Whoever says so of any file holds
/// nothing.
async fn asserted_locks(scene: &Scene<'_>) -> Result<()> {
    let ids = [id(scene, "shown").await?, id(scene, "hidden").await?];
    let mds = deaf(scene, 4);
    let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
    let of = |kind| ids.map(|id| AssertedLock { id, kind, owner: 1, range, mode });
    let locks = [of(LockKind::Flock), of(LockKind::Posix)].concat();
    let all: Vec<u32> = (0..).take(locks.len()).collect();
    let asserted = AssertLocks { locks, is_last: true, heard: None };
    let lost = mds.ask(&user(1), asserted).await?.lost;
    ensure!(lost == all, "of {all:?} only {lost:?} are not held");
    at_once(scene, "flock -n shown true && flock -n hidden true")
}

/// As on Linux: who may not write a file takes no exclusive `fcntl` lock of it, and who may not
/// open it learns of none.
async fn reader_locks(scene: &Scene<'_>) -> Result<()> {
    let (shown, hidden) = (id(scene, "shown").await?, id(scene, "hidden").await?);
    let mds = deaf(scene, 5);
    let (kind, range) = (LockKind::Posix, LockRange::WHOLE);
    let lock = |id, mode| {
        let (owner, mode, wait, idles) = (1, Some(mode), None, None);
        Lock { id, kind, owner, range, mode, wait, idles }
    };
    refused("locking", mds.ask(&user(1), lock(shown, LockMode::Exclusive)).await)?;
    refused("locking", mds.ask(&user(1), lock(hidden, LockMode::Shared)).await)?;
    let test = TestLock { id: hidden, kind, owner: 1, range, mode: LockMode::Shared };
    refused("looking for locks", mds.ask(&user(1), test).await)?;
    let shared = mds.ask(&user(1), lock(shown, LockMode::Shared)).await?.outcome;
    ensure!(shared == LockOutcome::Granted, "who may read locks to read: {shared:?}");
    Ok(())
}

/// Who held a directory alone says what he writes there. Of other files it counts for nothing.
async fn claimed_writes(scene: &Scene<'_>) -> Result<()> {
    let all = id(scene, "").await?;
    let ids = vec![id(scene, "shown").await?, id(scene, "private/below/file").await?];
    let guise = Guise::of(&scene.machine, LIAR + 6);
    let mds = scene.dial(&scene.mds, &Guise { hears: Hears::Claims(ids.clone()), ..guise });
    let caller = user(1);
    mds.ask(&caller, Reserve { count: 100 }).await?;
    let (mode, umask) = (Mode::new(0o755), Mode::new(0));
    let make = |parent, name: &str| -> Result<MakeDirectory> {
        Ok(MakeDirectory { parent, name: name.parse()?, mode, umask })
    };
    let own = mds.ask(&caller, make(all, "own")?).await?;
    let own = own.attributes.context("it was made")?.id;
    let alone = mds.ask(&caller, make(own, "below")?).await?.lease.exclusive.unwrap_or_default();
    ensure!(!alone.is_empty(), "it is given its directory alone");
    let honest = scene.dial(&scene.mds, &Guise::of(&scene.machine, LIAR));
    let list = ReadDirectory { id: own, after: None, limit: 9, is_plus: false };
    honest.ask(&Caller::root(), list).await?;
    for id in ids {
        let begun = Instant::now();
        honest.ask(&Caller::root(), GetAttributes { id }).await?;
        let took = begun.elapsed();
        ensure!(took < Duration::from_secs(2), "file {id} was looked at in {took:?}");
    }
    Ok(())
}

/// Who gives a directory back says what he has open there. It counts for what he could have opened.
async fn claimed_opens(scene: &Scene<'_>) -> Result<()> {
    // Where no liar of before holds anything.
    let script = "mkdir -m 755 registered/opens && cd registered/opens && echo a > secret \
                  && chmod 600 secret && sync *";
    scene.federation.shell(script)?;
    let all = id(scene, "opens").await?;
    let secret = id(scene, "opens/secret").await?;
    let guise = Guise::of(&scene.machine, LIAR + 9);
    let hears = Hears::Claims(vec![secret]);
    let mds = scene.dial(&scene.mds, &Guise { hears, ..guise });
    let lease = mds.ask(&user(1), GetAttributes { id: all }).await?.lease;
    ensure!(lease.units == [all], "who may search it is given it: {lease:?}");
    // It answers the first, and is not asked about the second.
    at_once(scene, "cd opens && touch beside && rm -f secret")?;
    let honest = scene.dial(&scene.mds, &Guise::of(&scene.machine, LIAR));
    let left = honest.ask(&Caller::root(), GetAttributes { id: secret }).await;
    ensure!(left.is_err(), "what he may not read is kept for him");
    Ok(())
}

/// Who may search a directory and never answers is waited for: once. Then he is given nothing for a
/// while, also if he comes anew.
async fn run_out(scene: &Scene<'_>) -> Result<()> {
    let all = id(scene, "").await?;
    let look = || GetAttributes { id: all };
    let before = scene.counted("mds-uf", "tieline_lease_suspensions_total", "").await?;
    {
        let mds = deaf(scene, 7);
        let lease = mds.ask(&user(1), look()).await?.lease;
        ensure!(lease.units == [all], "who may search it is given it: {lease:?}");
        scene.federation.shell("cd registered && touch once")?;
    }
    let counted = scene.counted("mds-uf", "tieline_lease_suspensions_total", "").await?;
    ensure!(counted > before, "it is counted");
    let mds = deaf(scene, 8);
    let lease = mds.ask(&user(1), look()).await?.lease;
    ensure!(lease.units.is_empty(), "who comes again is given leases: {lease:?}");
    at_once(scene, "touch twice")
}
