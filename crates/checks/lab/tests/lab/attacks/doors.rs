//! A door speaks for users by what they sent it, with a real KDC: for nobody else, for no longer,
//! and for no more (docs/security.md, section 9).

use super::capabilities::{Opened, oss_of, read_as};
use super::hostile::{Guise, Line, REALM, Scene, refused, user};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tieline_auth::gss::{GssInitiator, Keys};
use tieline_auth::{Mechanism, ScratchKdc};
use tieline_net::CallError;
use tieline_types::{
    Allowed, Caller, Content, FileId, GrantedId, Mode, Place, RenameMode, Scope, SetTime, Uid,
    Version, checksum,
};
use tieline_wire::PeerRole;
use tieline_wire::capability::GetCapability;
use tieline_wire::data::{ObjectOwner, PutChunk, SyncFile};
use tieline_wire::federation::{EditMap, MapEdit};
use tieline_wire::identity::{Delegation, Evidence, Prove, ProveReply};
use tieline_wire::ledger::DumpMdt;
use tieline_wire::meta::*;

const ANN: u32 = 5001;
const BOB: u32 = 5002;
/// What doors and others call themselves.
const DOOR: u8 = 70;
const OTHER: u8 = 71;
/// The door's numbers of its users.
const HER: u64 = 1002;
const HIS: u64 = 1003;
/// New maps are everywhere by then.
const TOLD: Duration = Duration::from_secs(20);

/// A door, another one, and what lies there for two users.
pub struct Doors<'s, 'f> {
    pub scene: &'s Scene<'f>,
    pub door: Keys,
    other: Keys,
    pub data: FileId,
    pub data2: FileId,
    pub hers: FileId,
    pub beside: FileId,
    pub his: FileId,
}

fn named(kind: &str, host: &str) -> String {
    format!("{kind}/{host}.extenci.org@{REALM}")
}

pub fn of_proof(proof: u64) -> Caller {
    Caller { proof: Some(proof), ..user(7) }
}

pub fn scope(of: &[&str]) -> Result<Scope> {
    let allowed = of.iter().map(|text| Ok(text.parse::<Allowed>()?));
    Ok(Scope::new(allowed.collect::<Result<_>>()?)?)
}

/// What a stock client sends to a service.
fn sent(keys: &Keys, service: &str) -> Result<Vec<u8>> {
    let mut initiator = GssInitiator::new(keys.clone(), service.to_owned());
    initiator.step(None, &[0; 32])?.token.context("a first token")
}

pub fn word(name: &str) -> Evidence {
    Evidence::Word { principal: format!("{name}@{REALM}") }
}

/// A door says for whom it speaks.
pub async fn show(
    line: &Line,
    proof: u64,
    evidence: Evidence,
    (scope, seconds): (Option<Scope>, Option<u32>),
) -> Result<ProveReply, CallError> {
    let delegation = Some(Delegation { evidence: Some(evidence), scope, seconds });
    line.ask(&Caller::root(), Prove { proof, token: None, delegation }).await
}

async fn find(line: &Line, parent: FileId, name: &str) -> Result<FileId> {
    let found = line.ask(&Caller::root(), Lookup { parent, name: name.parse()? }).await?;
    Ok(found.attributes.with_context(|| format!("{name} is there"))?.id)
}

pub fn unchanged(id: FileId) -> SetAttributes {
    SetAttributes {
        id,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        is_handle: false,
        is_access: None,
    }
}

pub fn reading(id: FileId) -> Open {
    Open { id, is_read: true, is_write: false, writes: None }
}

impl<'s, 'f> Doors<'s, 'f> {
    async fn new(scene: &'s Scene<'f>) -> Result<Self> {
        let kdc = ScratchKdc::again(&scene.kdc(), REALM, 0);
        let keys = |host: &str| -> Result<Keys> {
            let principal = named("tieline_door", host);
            let keytab = kdc.keytab(&format!("{host}.keytab"), std::slice::from_ref(&principal))?;
            let cache = Some(format!("FILE:{}", scene.federation.local(host).display()));
            Ok(Keys { keytab: Some(keytab), cache, principal: Some(principal) })
        };
        // Every MDS opens what users send to doors: it has their services' keys.
        let services = [named("HTTP", "door"), named("HTTP", "other")];
        for site in ["uf", "fnal"] {
            kdc.keytab(&format!("mds-{site}.keytab"), &services)?;
        }
        for name in ["bob", "carl", "chief"] {
            kdc.user(name, name)?;
        }
        let mount = scene.federation.mount().to_string_lossy().into_owned();
        let id =
            |words: &[&str]| scene.federation.tieline(&[&["id", "--fs", &mount], words].concat());
        for (name, number) in
            [("ann", "5001"), ("bob", "5002"), ("carl", "5003"), ("chief", "5004")]
        {
            id(&["add", name, "--number", number])?;
        }
        id(&["role", "chief", "fs-admin"])?;
        scene.federation.shell(
            "mkdir -m 777 data data2 && head -c 5000000 /dev/urandom > data/hers \
             && cp data/hers data2/beside && cp data/hers data/his && chmod 600 data/* data2/* \
             && sync data/hers data2/beside data/his",
        )?;
        let root = scene.dial(&scene.mds, &Guise::of(&scene.machine, 72));
        let (data, data2) =
            (find(&root, FileId(1), "data").await?, find(&root, FileId(1), "data2").await?);
        let (hers, his) = (find(&root, data, "hers").await?, find(&root, data, "his").await?);
        let beside = find(&root, data2, "beside").await?;
        for (id, owner) in [(hers, ANN), (beside, ANN), (his, BOB)] {
            let owned = SetAttributes { uid: Some(Uid(owner)), ..unchanged(id) };
            root.ask(&Caller::root(), owned).await?;
        }
        let (door, other) = (keys("door")?, keys("other")?);
        Ok(Self { scene, door, other, data, data2, hers, beside, his })
    }

    fn verb(&self, words: &[&str]) -> Result<String> {
        let mount = self.scene.federation.mount().to_string_lossy().into_owned();
        self.scene.federation.tieline(&[&["door", "--fs", &mount], words].concat())
    }

    fn add(&self, host: &str, more: &[&str]) -> Result<()> {
        let (door, service) = (named("tieline_door", host), named("HTTP", host));
        self.verb(&[&["add", &door, "--tickets-for", &service], more].concat()).map(drop)
    }

    pub fn dial(&self) -> Line {
        self.scene.dial(&self.scene.mds, &Guise::of(&self.door, DOOR))
    }

    pub fn ticket(&self, user: &str) -> Result<Evidence> {
        Ok(Evidence::Ticket(sent(&self.scene.user(user)?, &named("HTTP", "door"))?))
    }

    /// A file as the MDS tells of it, and what its bytes are had by.
    async fn open(&self, line: &Line, caller: &Caller, id: FileId) -> Result<Opened> {
        let opened = line.ask(caller, reading(id)).await?;
        let extent = opened.extents.extents.into_iter().next().context("it has an extent")?;
        let Content::Chunk(chunk) = extent.content else { bail!("it has chunks") };
        let place = chunk.places.first().and_then(Place::at_ost).context("a place")?;
        let capability = opened.capability.context("an open brings a capability")?.signed;
        Ok(Opened { file: id, place, capability })
    }

    /// Its data server, once that has heard who is a door.
    async fn oss(&self, opened: &Opened) -> Result<Line> {
        let address = oss_of(self.scene, opened.place.ost)?;
        let begun = Instant::now();
        loop {
            let line = self.scene.dial(&address, &Guise::of(&self.door, DOOR));
            let shown = Some(opened.capability.as_slice());
            match read_as(&line, &Caller::root(), &opened.place, shown).await {
                Ok(_) => return Ok(line),
                Err(error) if begun.elapsed() > TOLD => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let doors = Doors::new(scene).await?;
    before_it_is_one(&doors).await.context("who is no door")?;
    doors.add("door", &[])?;
    doors.add("other", &[])?;
    two_users(&doors).await.context("two users")?;
    nobody_else(&doors).await.context("a third")?;
    other_tickets(&doors).await.context("tickets of others")?;
    widened(&doors).await.context("a wider scope")?;
    reading_does_not_write(&doors).await.context("writing with a right to read")?;
    expired(&doors).await.context("what is over")?;
    restarted(&doors).await.context("after a restart")?;
    vouched(&doors).await.context("a door's word")?;
    super::tokens::attack(&doors).await.context("tokens")?;
    super::honest_door::works(&doors).await.context("an honest door")?;
    of_a_machine(&doors).await.context("a machine that is a door")?;
    removed(&doors).await.context("a door that is none any more")
}

/// Clients of other kinds delegate nothing.
async fn before_it_is_one(doors: &Doors<'_, '_>) -> Result<()> {
    let scene = doors.scene;
    for (keys, client) in [(&doors.door, DOOR), (&scene.machine, 73), (&scene.user("ann")?, 74)] {
        let line = scene.dial(&scene.mds, &Guise::of(keys, client));
        for evidence in [doors.ticket("ann")?, word("ann")] {
            let why = refused("no door", show(&line, HER, evidence, (None, None)).await)?;
            ensure!(why.contains("is no door"), "{why}");
        }
        let own = Some(Delegation::default());
        let prove = Prove { proof: HER, token: Some(vec![0x60]), delegation: own };
        refused("no door", line.ask(&Caller::root(), prove).await)?;
    }
    Ok(())
}

async fn two_users(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    let narrow = Some(scope(&["read:/data"])?);
    let told = show(&line, HER, doors.ticket("ann")?, (narrow.clone(), None)).await?;
    ensure!(told.caller.uid == Uid(ANN) && told.scope == narrow, "{told:?}");
    ensure!(told.seconds.is_some_and(|seconds| seconds <= 3600), "{told:?}");
    let told = show(&line, HIS, doors.ticket("bob")?, (None, Some(600))).await?;
    ensure!(told.caller.uid == Uid(BOB) && told.seconds <= Some(600), "{told:?}");
    // Each his own, at the MDS and at the OSS.
    for (proof, own, others) in [(HER, doors.hers, doors.his), (HIS, doors.his, doors.hers)] {
        let caller = of_proof(proof);
        let opened = doors.open(&line, &caller, own).await.context("his own")?;
        let oss = doors.oss(&opened).await.context("its bytes")?;
        refused("another's", line.ask(&caller, reading(others)).await)?;
        let wish = GetCapability {
            id: Some(others),
            is_read: true,
            is_write: false,
            offset: None,
            holder: None,
        };
        refused("another's bytes", line.ask(&caller, wish).await)?;
        let bare = read_as(&oss, &Caller::root(), &opened.place, None).await;
        let why = refused("nothing shown", bare)?;
        ensure!(why.contains("no capability"), "{why}");
    }
    let logs = doors.scene.federation.logs()?;
    ensure!(logs.contains("delegation"), "it is in no log");
    Ok(())
}

/// Nobody whom no evidence shows: by numbers, by words, by others' proofs.
async fn nobody_else(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    let look = GetAttributes { id: FileId(1) };
    let callers = [
        Caller::root(),
        Caller::stranger(),
        user(ANN),
        user(5003),
        of_proof(Caller::MACHINE_ROOT),
        of_proof(999),
    ];
    for caller in &callers {
        refused("without evidence", line.ask(caller, look.clone()).await)?;
        refused("its file", line.ask(caller, reading(doors.hers)).await)?;
        let item = BatchItem {
            caller: caller.clone(),
            at: Default::default(),
            id: doors.hers,
            op: tieline_wire::Op::SetAttributes.number(),
            message: tieline_wire::encode(&SetAttributes {
                mode: Some(Mode::new(0o666)),
                ..unchanged(doors.hers)
            }),
        };
        match line.ask(&Caller::root(), Batch { items: vec![item] }).await {
            Err(_) => {}
            Ok(reply) => ensure!(reply.outcomes.iter().all(|one| one.failure.is_some())),
        }
    }
    for name in ["carl", "ann", "root", "chief", "host/client.extenci.org", "nobody", ""] {
        let why = refused(name, show(&line, 1010, word(name), (None, None)).await)?;
        ensure!(why.contains("vouches for nobody") || why.contains("is no user"), "{name}: {why}");
        refused(name, line.ask(&of_proof(1010), look.clone()).await)?;
    }
    // It lends nobody what others wrote there, and decides nothing by itself.
    let own = GetCapability { id: None, is_read: true, is_write: true, offset: None, holder: None };
    let given = line.ask(&Caller::root(), own).await?;
    ensure!(given.grant.is_none(), "a capability for all that it writes");
    refused("names of its own", line.ask(&Caller::root(), Reserve { count: 8 }).await)?;
    // Another session of it knows none of these, and neither does another door.
    show(&line, HER, doors.ticket("ann")?, (None, None)).await?;
    line.ask(&of_proof(HER), reading(doors.hers)).await.context("over its own")?;
    for (keys, client) in [(&doors.door, 75), (&doors.other, OTHER)] {
        let line = doors.scene.dial(&doors.scene.mds, &Guise::of(keys, client));
        refused("another session's", line.ask(&of_proof(HER), reading(doors.hers)).await)?;
    }
    // Its key is no server's.
    for role in [PeerRole::Mds, PeerRole::Oss] {
        let guise = Guise { role, ..Guise::of(&doors.door, 78) };
        refused("as a server", doors.scene.dial(&doors.scene.oss, &guise).knock().await)?;
    }
    // An administrator who comes by a door is a user there.
    show(&line, 1011, doors.ticket("chief")?, (None, None)).await?;
    let chief = of_proof(1011);
    let edit = MapEdit::OstActivate(tieline_types::OstIndex(0));
    refused("the map", line.ask(&chief, EditMap { edit }).await)?;
    refused("a dump", line.ask(&chief, DumpMdt { cursor: None, since: None }).await)?;
    refused("another's", line.ask(&chief, reading(doors.hers)).await)?;
    Ok(())
}

async fn other_tickets(doors: &Doors<'_, '_>) -> Result<()> {
    let scene = doors.scene;
    let (line, ann) = (doors.dial(), scene.user("ann")?);
    let other = scene.dial(&scene.mds, &Guise::of(&doors.other, OTHER));
    let not_its = |what: &str, why: String| {
        ensure!(why.contains("no service of that door"), "{what}: {why}");
        Ok(())
    };
    let theirs = show(&other, HER, doors.ticket("ann")?, (None, None)).await;
    not_its("another door's ticket", refused("another door's ticket", theirs)?)?;
    for service in [scene.mds_name(), scene.oss_name(), named("HTTP", "other")] {
        let evidence = Evidence::Ticket(sent(&ann, &service)?);
        let why = refused(&service, show(&line, 1020, evidence, (None, None)).await)?;
        not_its(&service, why)?;
    }
    // One ticket counts once; where its answer was lost it is answered again.
    let evidence = doors.ticket("ann")?;
    let first = show(&line, 1021, evidence.clone(), (None, Some(300))).await?;
    let again = show(&line, 1021, evidence.clone(), (None, Some(3000))).await?;
    ensure!(again.seconds <= first.seconds, "it is longer: {again:?}");
    let why = refused("repeated", show(&line, 1022, evidence, (None, None)).await)?;
    ensure!(why.contains("was shown here before"), "{why}");
    let Evidence::Ticket(mut changed) = doors.ticket("ann")? else { bail!("a ticket") };
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let changed = Evidence::Ticket(changed);
    refused("changed", show(&line, 1023, changed, (None, None)).await)?;
    let machine = Evidence::Ticket(sent(&scene.machine, &named("HTTP", "door"))?);
    let why = refused("a machine", show(&line, 1024, machine, (None, None)).await)?;
    ensure!(why.contains("is no user"), "{why}");
    for number in [Caller::STRANGER, Caller::MACHINE_ROOT] {
        refused("its number", show(&line, number, doors.ticket("ann")?, (None, None)).await)?;
    }
    Ok(())
}

/// The path beside, `..`, links of both kinds, and what is moved there.
async fn widened(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    let both = Some(scope(&["read:/data", "modify:/data"])?);
    show(&line, 1030, doors.ticket("ann")?, (both, None)).await?;
    let her = of_proof(1030);
    let (data, data2) = (doors.data, doors.data2);
    let out = |what: &str, why: String| {
        ensure!(why.contains("the scope of this delegation"), "{what}: {why}");
        ensure!(why.contains("(denial "), "{what} is on no record: {why}");
        Ok(())
    };
    let lookup =
        |parent, name: &str| Ok::<_, anyhow::Error>(Lookup { parent, name: name.parse()? });
    line.ask(&her, lookup(FileId(1), "data")?).await.context("on the way")?;
    let above = line.ask(&her, LookupParent { id: data }).await?;
    let beside = line.ask(&her, lookup(above.parent, "data2")?).await;
    let why = refused("beside", beside)?;
    ensure!(why.contains("does not hold looking at /data2"), "{why}");
    out("by its id", refused("by its id", line.ask(&her, reading(doors.beside)).await)?)?;
    let list = ReadDirectory { id: data2, after: None, limit: 10, is_plus: false };
    out("its names", refused("its names", line.ask(&her, list).await)?)?;
    let link = |id, name: &str| {
        Ok::<_, anyhow::Error>(Link {
            id,
            parent: data,
            name: name.parse()?,
            replaces: None,
            keep: None,
        })
    };
    out("linked", refused("linked", line.ask(&her, link(doors.beside, "mine")?).await)?)?;
    let rename = |from_parent, from: &str, to_parent, to: &str| {
        Ok::<_, anyhow::Error>(Rename {
            from_parent,
            from_name: from.parse()?,
            to_parent,
            to_name: to.parse()?,
            mode: RenameMode::Replace,
            keep: None,
        })
    };
    let moved = line.ask(&her, rename(data2, "beside", data, "mine")?).await;
    out("moved in", refused("moved in", moved)?)?;
    let moved = line.ask(&her, rename(data, "hers", data2, "out")?).await;
    out("moved out", refused("moved out", moved)?)?;
    // Somebody else's link brings nothing in.
    doors.scene.federation.shell("ln data2/beside data/bait && sync data")?;
    let why = refused("by its other name", line.ask(&her, reading(doors.beside)).await)?;
    out("by its other name", why)?;
    doors.scene.federation.shell("rm data/bait && sync data")?;
    let target = b"../data2/beside".to_vec();
    let symlink = MakeSymlink { parent: data, name: "sym".parse()?, target };
    line.ask(&her, symlink).await.context("a link is hers to make")?;
    refused("through it", line.ask(&her, lookup(data2, "beside")?).await)?;
    // The door's own scope holds whatever it asks for.
    doors.add("other", &["--scope", "read:/data"])?;
    let other = doors.scene.dial(&doors.scene.mds, &Guise::of(&doors.other, OTHER));
    let evidence = Evidence::Ticket(sent(&doors.scene.user("ann")?, &named("HTTP", "other"))?);
    let wide = Some(scope(&["modify:/", "read:/"])?);
    let told = show(&other, HER, evidence, (wide, None)).await?;
    ensure!(told.scope == Some(scope(&["read:/data"])?), "{told:?}");
    refused("beside", other.ask(&of_proof(HER), lookup(FileId(1), "data2")?).await)?;
    Ok(())
}

/// At the MDS, by what it asks; at the OSS, with what it was given for reading.
async fn reading_does_not_write(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    let (her, narrow) = (of_proof(HER), Some(scope(&["read:/data"])?));
    show(&line, HER, doors.ticket("ann")?, (narrow, None)).await?;
    show(&line, HIS, doors.ticket("bob")?, (None, None)).await?;
    let opened = doors.open(&line, &her, doors.hers).await?;
    let oss = doors.oss(&opened).await?;
    let data = Bytes::from_static(&[7; 5000]);
    let (mdt, grant) = (doors.hers.mdt(), line.welcome()?.grant);
    let put = |capability: &[u8], serial| PutChunk {
        ost: opened.place.ost,
        chunk: GrantedId { mdt, grant, serial },
        owner: ObjectOwner {
            file: doors.hers,
            offset: 0,
            version: Version(1),
            path: b"x".to_vec(),
        },
        checks: checksum::block_checks(&data),
        capability: Some(capability.to_vec()),
        room: None,
    };
    let written =
        oss.ask_bulk(&Caller::root(), put(&opened.capability, 1 << 40), data.clone()).await;
    let why = refused("put with a right to read", written)?;
    ensure!(why.contains("may be written"), "{why}");
    let wish = |is_write| GetCapability {
        id: Some(doors.hers),
        is_read: false,
        is_write,
        offset: None,
        holder: None,
    };
    let why = refused("a right to write", line.ask(&her, wish(true)).await)?;
    ensure!(why.contains("(read:/data) does not hold changing"), "{why}");
    let cut = SetAttributes { size: Some(0), is_handle: true, ..unchanged(doors.hers) };
    refused("cut", line.ask(&her, cut).await)?;
    let commit = Commit {
        id: doors.hers,
        extents: vec![],
        size_min: 6_000_000,
        mtime: SetTime::Now,
        clears_setid: false,
        append_from: None,
        closes: None,
        is_promised: None,
    };
    refused("commit", line.ask(&her, commit).await)?;
    // What one user of the door may write is not what another reads, nor writes.
    let narrow = Some(scope(&["modify:/data"])?);
    show(&line, 1040, doors.ticket("ann")?, (narrow, None)).await?;
    let granted = line.ask(&of_proof(1040), wish(true)).await?.grant.context("she may write")?;
    let message = put(&granted.signed, 1 << 40);
    oss.ask_bulk(&Caller::root(), message, data.clone()).await.context("what is allowed")?;
    let own = tieline_types::OstPlace {
        object: tieline_types::ObjectName::Chunk(GrantedId { mdt, grant, serial: 1 << 40 }),
        ..opened.place.clone()
    };
    let why = refused(
        "read by writing",
        read_as(&oss, &Caller::root(), &own, Some(&granted.signed)).await,
    )?;
    ensure!(why.contains("may be read"), "{why}");
    let his = doors.open(&line, &of_proof(HIS), doors.his).await?;
    let why =
        refused("as another", read_as(&oss, &Caller::root(), &own, Some(&his.capability)).await)?;
    ensure!(why.contains("another file"), "{why}");
    let sync =
        SyncFile { ost: own.ost, file: doors.hers, capability: Some(his.capability.clone()) };
    refused("syncing another's", oss.ask(&Caller::root(), sync).await)?;
    Ok(())
}

async fn expired(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    let seconds = 4;
    show(&line, 1050, doors.ticket("ann")?, (None, Some(seconds))).await?;
    let her = of_proof(1050);
    let opened = doors.open(&line, &her, doors.hers).await?;
    let oss = doors.oss(&opened).await.context("in its time")?;
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let why = refused("at the MDS", line.ask(&her, GetAttributes { id: doors.hers }).await)?;
    ensure!(why.contains("log in again"), "{why}");
    refused("what it had open", line.ask(&her, reading(doors.hers)).await)?;
    let late = read_as(&oss, &Caller::root(), &opened.place, Some(&opened.capability)).await;
    let why = refused("at the OSS", late)?;
    ensure!(why.contains("expired"), "{why}");
    Ok(())
}

/// A server that is started anew knows for whom a door speaks, and within what.
async fn restarted(doors: &Doors<'_, '_>) -> Result<()> {
    let guise = Guise::of(&doors.door, 76);
    let line = doors.scene.dial(&doors.scene.mds, &guise);
    let narrow = Some(scope(&["read:/data"])?);
    show(&line, HER, doors.ticket("ann")?, (narrow, None)).await?;
    let session = Some(line.welcome()?.session);
    doors.scene.federation.kill_and_restart("mds-uf")?;
    let line = doors.scene.dial(&doors.scene.mds, &Guise { session, ..guise });
    line.ask(&of_proof(HER), reading(doors.hers)).await.context("as before")?;
    let why = refused("beside", line.ask(&of_proof(HER), reading(doors.beside)).await)?;
    ensure!(why.contains("the scope of this delegation (read:/data)"), "{why}");
    Ok(())
}

/// Only of whom the map says so, and nobody who has more than a user's rights.
async fn vouched(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    doors.add("door", &["--vouch-for", "user:carl", "--vouch-for", "user:chief"])?;
    let told = show(&line, 1060, word("carl"), (None, None)).await?;
    ensure!(told.caller.uid == Uid(5003), "{told:?}");
    line.ask(&of_proof(1060), GetAttributes { id: FileId(1) }).await.context("carl")?;
    for (name, reason) in [
        ("bob", "does not vouch for"),
        ("chief", "who has a role"),
        ("root", "is no identity"),
        ("host/client.extenci.org", "is no user"),
    ] {
        let why = refused(name, show(&line, 1061, word(name), (None, None)).await)?;
        ensure!(why.contains(reason), "{name}: {why}");
    }
    let listed = doors.verb(&["list"])?;
    ensure!(listed.contains("vouches for user:carl user:chief"), "{listed}");
    // Taken back, it is over at once.
    doors.add("door", &[])?;
    refused("taken back", line.ask(&of_proof(1060), GetAttributes { id: FileId(1) }).await)?;
    Ok(())
}

/// What is believed of a machine is nothing to a door that goes by its name.
async fn of_a_machine(doors: &Doors<'_, '_>) -> Result<()> {
    let scene = doors.scene;
    let machine = named("host", "trusted");
    let kdc = ScratchKdc::again(&scene.kdc(), REALM, 0);
    let keytab = kdc.keytab("trusted.keytab", std::slice::from_ref(&machine))?;
    let cache = Some(format!("FILE:{}", scene.federation.local("trusted").display()));
    let keys = Keys { keytab: Some(keytab), cache, principal: Some(machine.clone()) };
    let mount = scene.federation.mount().to_string_lossy().into_owned();
    scene.federation.tieline(&["id", "--fs", &mount, "machine", &machine, "all"])?;
    let line = scene.dial(&scene.mds, &Guise::of(&keys, 77));
    line.ask(&user(ANN), reading(doors.hers)).await.context("as a machine")?;
    doors.verb(&["add", &machine, "--tickets-for", &named("HTTP", "door")])?;
    for caller in [Caller::root(), user(ANN), of_proof(Caller::MACHINE_ROOT)] {
        refused("as a door", line.ask(&caller, reading(doors.hers)).await)?;
    }
    show(&line, HER, doors.ticket("ann")?, (None, None)).await?;
    line.ask(&of_proof(HER), reading(doors.hers)).await.context("for her")?;
    doors.verb(&["remove", &machine])?;
    let why = refused("for her no more", line.ask(&of_proof(HER), reading(doors.hers)).await)?;
    ensure!(why.contains("show it again"), "{why}");
    Ok(())
}

async fn removed(doors: &Doors<'_, '_>) -> Result<()> {
    let line = doors.dial();
    show(&line, 1070, doors.ticket("ann")?, (None, None)).await?;
    line.ask(&of_proof(1070), reading(doors.hers)).await.context("as a door")?;
    doors.verb(&["remove", &named("tieline_door", "door")])?;
    refused("no door any more", line.ask(&of_proof(1070), reading(doors.hers)).await)?;
    let evidence = doors.ticket("ann")?;
    refused("no door any more", show(&line, 1071, evidence, (None, None)).await)?;
    Ok(())
}
