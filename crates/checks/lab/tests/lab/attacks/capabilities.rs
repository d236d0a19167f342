//! Capabilities that are missing, forged, somebody else's, for something else, old, taken back.

use super::hostile::{Guise, Line, Scene, refused, user};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tieline_auth::capability::Issuer;
use tieline_net::CallError;
use tieline_types::{
    Caller, Content, FileId, Grant, GrantedId, ObjectName, OstIndex, OstPlace, Place, Version,
    checksum,
};
use tieline_wire::capability::{
    Capability, GetCapability, RenewCapabilityKey, Scope, SignedCapability,
};
use tieline_wire::data::*;
use tieline_wire::meta::{Lookup, Open};
use tieline_wire::mirrors::FetchChunk;

/// What the thief calls himself.
const THIEF: u8 = 20;
/// What takes rights away reaches data servers within this.
const TAKEN_BACK: Duration = Duration::from_secs(10);

/// A file as an MDS tells of it.
pub struct Opened {
    pub file: FileId,
    pub place: OstPlace,
    pub capability: Vec<u8>,
}

pub async fn open(line: &Line, caller: &Caller, name: &str) -> Result<Opened> {
    let name = name.parse()?;
    let found = line.ask(caller, Lookup { parent: FileId(1), name }).await?;
    let id = found.attributes.context("the file is there")?.id;
    let opened =
        line.ask(caller, Open { id, is_read: true, is_write: false, writes: None }).await?;
    let extent = opened.extents.extents.into_iter().next().context("it has an extent")?;
    let Content::Chunk(chunk) = extent.content else { bail!("it has chunks") };
    let place = chunk.places.first().and_then(Place::at_ost).context("its chunk has a place")?;
    let capability = opened.capability.context("an open brings a capability")?.signed;
    Ok(Opened { file: id, place, capability })
}

/// Where an OST is served.
pub fn oss_of(scene: &Scene<'_>, ost: OstIndex) -> Result<String> {
    let map = scene.map();
    let place = map.ost(ost).context("the OST is in the map")?;
    place.addresses.first().cloned().context("it has an address")
}

pub async fn read(line: &Line, place: &OstPlace, shown: Option<&[u8]>) -> Result<Bytes, CallError> {
    read_as(line, &user(1), place, shown).await
}

pub async fn read_as(
    line: &Line,
    caller: &Caller,
    place: &OstPlace,
    shown: Option<&[u8]>,
) -> Result<Bytes, CallError> {
    let message = ReadObject {
        ost: place.ost,
        object: place.object.clone(),
        offset: 0,
        length: 100_000,
        capability: shown.map(<[u8]>::to_vec),
        hashed: None,
    };
    Ok(line.ask_bulk(caller, message, Bytes::new()).await?.1)
}

/// Two files, one of them for root only.
fn make_files(scene: &Scene<'_>) -> Result<()> {
    let script = "for f in open secret; do head -c 5000000 /dev/urandom > $f; done; \
                  chmod 644 open; chmod 600 secret; sync open secret";
    scene.federation.shell(script).map(drop)
}

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    make_files(scene)?;
    let thief = Guise::of(&scene.machine, THIEF);
    let mds = scene.dial(&scene.mds, &thief);
    let own = open(&mds, &user(1), "open").await?;
    // Where it lies anybody may guess; here root tells.
    let secret = open(&mds, &Caller::root(), "secret").await?;
    let oss = scene.dial(&oss_of(scene, own.place.ost)?, &thief);
    ensure!(read(&oss, &own.place, Some(&own.capability)).await?.len() >= 100_000);
    refused("no capability", read(&oss, &own.place, None).await)?;
    forged(&oss, &own).await?;
    foreign(scene, &own).await?;
    other_file(scene, &thief, &own, &secret).await?;
    other_rights(&mds, &oss, &own).await?;
    denied_at_the_mds(&mds, secret.file).await?;
    other_calls(scene, &own, &secret).await?;
    others_room(scene, own.place.ost).await?;
    for reason in ["missing", "forged", "foreign", "other_file", "not_granted"] {
        let mut counted = 0;
        for server in ["oss-uf", "oss-fnal"] {
            let metric = "tieline_capability_refusals_total";
            counted += scene.counted(server, metric, &format!("\"{reason}\"")).await?;
        }
        ensure!(counted > 0, "{reason} is not counted");
    }
    ensure!(scene.federation.logs()?.contains("denied"), "nothing is logged");
    Ok(())
}

async fn forged(oss: &Line, own: &Opened) -> Result<()> {
    for at in (0..own.capability.len()).step_by(3) {
        let mut changed = own.capability.clone();
        changed[at] ^= 0x10;
        refused("a changed capability", read(oss, &own.place, Some(&changed)).await)?;
    }
    let signed: SignedCapability = tieline_wire::decode(&own.capability)?;
    let capability: Capability = tieline_wire::decode(&signed.capability)?;
    let scope = Scope::File { file: own.file, is_read: true, is_write: true, objects: vec![] };
    let better = Capability { expires_ms: u64::MAX, scope: scope.clone(), ..capability.clone() };
    let better = SignedCapability { capability: tieline_wire::encode(&better), ..signed };
    let better = tieline_wire::encode(&better);
    let why = refused("a better one", read(oss, &own.place, Some(&better)).await)?;
    ensure!(why.contains("signature"), "{why}");
    // Signed well, with a key of the forger's own under the number of the MDS's or another.
    for number in [capability.key, capability.key ^ 1] {
        let dice = move |bytes: &mut [u8]| match bytes.len() {
            8 => bytes.copy_from_slice(&number.to_le_bytes()),
            _ => bytes.fill(9),
        };
        let issuer = Issuer::new(capability.mdt, Duration::from_secs(300), Box::new(dice));
        let for_whom = (capability.session, capability.holder);
        let serial = issuer.serial(Some(own.file));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let signed = issuer.issue(serial, now.as_millis() as u64, for_whom, scope.clone()).signed;
        let why = refused("one of our own", read(oss, &own.place, Some(&signed)).await)?;
        // An unknown key may be a new one: the server asks the MDS for it until nobody waits.
        ensure!(number != capability.key || why.contains("signature"), "{why}");
    }
    Ok(())
}

/// Read on the line, or taken from another session.
async fn foreign(scene: &Scene<'_>, own: &Opened) -> Result<()> {
    let address = oss_of(scene, own.place.ost)?;
    let other_session = scene.dial(&address, &Guise::of(&scene.machine, THIEF + 1));
    let why =
        refused("another session", read(&other_session, &own.place, Some(&own.capability)).await)?;
    ensure!(why.contains("somebody else"), "{why}");
    let somebody = scene.user("daemon")?;
    let other_principal = scene.dial(&address, &Guise::of(&somebody, THIEF));
    refused("somebody else", read(&other_principal, &own.place, Some(&own.capability)).await)?;
    Ok(())
}

async fn other_file(scene: &Scene<'_>, thief: &Guise, own: &Opened, secret: &Opened) -> Result<()> {
    let oss = scene.dial(&oss_of(scene, secret.place.ost)?, thief);
    let why = refused("another file", read(&oss, &secret.place, Some(&own.capability)).await)?;
    ensure!(why.contains("another file"), "{why}");
    for path in ["../../../../etc/passwd", "/etc/passwd", "a/../../mds/store", ""] {
        let object = ObjectName::External { path: path.into(), size: 1, mtime_ns: 0 };
        let place = OstPlace { object, ..own.place.clone() };
        let oss = scene.dial(&oss_of(scene, own.place.ost)?, thief);
        refused(path, read(&oss, &place, Some(&own.capability)).await)?;
    }
    Ok(())
}

fn put(own: &Opened, chunk: GrantedId, file: FileId, shown: &[u8], data: &Bytes) -> PutChunk {
    PutChunk {
        ost: own.place.ost,
        chunk,
        owner: ObjectOwner { file, offset: 0, version: Version(1), path: b"x".to_vec() },
        checks: checksum::block_checks(data),
        capability: Some(shown.to_vec()),
        room: None,
    }
}

async fn other_rights(mds: &Line, oss: &Line, own: &Opened) -> Result<()> {
    let data = Bytes::from_static(&[7; 5000]);
    let mdt = own.file.mdt();
    let mine = GrantedId { mdt, grant: mds.welcome()?.grant, serial: 1 << 40 };
    let ask = async |chunk, file, shown: &[u8]| {
        let message = put(own, chunk, file, shown, &data);
        oss.ask_bulk(&user(1), message, data.clone()).await
    };
    let why = refused("writing by reading", ask(mine, own.file, &own.capability).await)?;
    ensure!(why.contains("may be written"), "{why}");
    // With the right to write: only own chunks, only for that file, and nothing is replaced.
    let wish = GetCapability {
        id: Some(own.file),
        is_read: false,
        is_write: true,
        offset: None,
        holder: None,
    };
    let reply = mds.ask(&Caller::root(), wish).await?;
    let writing = reply.grant.context("root may write")?.signed;
    let ObjectName::Chunk(theirs) = own.place.object else { bail!("a chunk of its own") };
    refused("replacing a chunk", ask(theirs, own.file, &writing).await)?;
    let others = GrantedId { grant: Grant(mine.grant.0 + 1), ..mine };
    refused("another's grant", ask(others, own.file, &writing).await)?;
    refused("another file", ask(mine, FileId(own.file.0 + 1), &writing).await)?;
    refused("reading by writing", read(oss, &own.place, Some(&writing)).await)?;
    ask(mine, own.file, &writing).await.context("what is allowed")?;
    Ok(())
}

async fn denied_at_the_mds(mds: &Line, secret: FileId) -> Result<()> {
    for (is_read, is_write) in [(true, false), (false, true), (true, true)] {
        let wish =
            GetCapability { id: Some(secret), is_read, is_write, offset: None, holder: None };
        refused("a capability for a secret", mds.ask(&user(1), wish).await)?;
    }
    let open = Open { id: secret, is_read: true, is_write: false, writes: None };
    refused("opening a secret", mds.ask(&user(1), open).await)?;
    Ok(())
}

/// Numbers of clients are in every hello: who has one takes nobody else's room by it.
async fn others_room(scene: &Scene<'_>, ost: OstIndex) -> Result<()> {
    let address = oss_of(scene, ost)?;
    let own = scene.dial(&address, &Guise::of(&scene.machine, THIEF + 2));
    let thief = scene.dial(&address, &Guise::of(&scene.user("daemon")?, THIEF + 2));
    let ask = |held, wanted| GrantRoom { ost, held, wanted };
    let given = own.ask(&Caller::root(), ask(None, 1 << 20)).await?.granted;
    ensure!(given > 0, "there is room");
    thief.ask(&user(1), ask(Some(0), 0)).await.context("giving back what is another's")?;
    let left = own.ask(&Caller::root(), ask(None, 0)).await?.granted;
    ensure!(left == given, "{left} of {given} are left");
    own.ask(&Caller::root(), ask(Some(0), 0)).await?;
    Ok(())
}

/// What is for servers only.
async fn other_calls(scene: &Scene<'_>, own: &Opened, secret: &Opened) -> Result<()> {
    let ObjectName::Chunk(chunk) = secret.place.object else { bail!("a chunk of its own") };
    let ost = secret.place.ost;
    let oss = scene.dial(&oss_of(scene, ost)?, &Guise::of(&scene.machine, THIEF));
    let caller = Caller::root();
    let delete = DeleteChunks { ost, chunks: vec![chunk] };
    refused("deleting", oss.ask(&caller, delete).await)?;
    refused("looking", oss.ask(&caller, StatObject { ost, chunk }).await)?;
    refused("listing", oss.ask(&caller, ListObjects { ost, after: None, limit: 10 }).await)?;
    let sync = SyncFile { ost, file: secret.file, capability: Some(own.capability.clone()) };
    refused("syncing another file", oss.ask(&caller, sync).await)?;
    let owner =
        ObjectOwner { file: secret.file, offset: 0, version: Version(1), path: b"x".to_vec() };
    let (length, from) = (5000, vec![secret.place.clone()]);
    let capability = None;
    let fetch = FetchChunk { ost, chunk, length, digest: None, from, owner, capability };
    refused("copying", oss.ask(&caller, fetch).await)?;
    let directory = b"/".to_vec();
    let list = ListAdopted { ost, directory, after: None, limit: 10 };
    refused("listing what lies there", oss.ask(&user(1), list).await)?;
    Ok(())
}

pub async fn ends(scene: &Scene<'_>) -> Result<()> {
    make_files(scene)?;
    let thief = Guise::of(&scene.machine, THIEF);
    let mds = scene.dial(&scene.mds, &thief);
    let own = open(&mds, &user(1), "open").await?;
    let oss = scene.dial(&oss_of(scene, own.place.ost)?, &thief);
    read(&oss, &own.place, Some(&own.capability)).await.context("before")?;
    scene.federation.shell("chmod 600 open && sync .")?;
    let why = until_refused(&oss, &own).await?;
    ensure!(why.contains("taken back"), "{why}");
    refused("asking again", open(&mds, &user(1), "open").await.map_err(to_call))?;
    // The owner goes on.
    scene.federation.shell("cat open | wc -c && echo more >> open && sync open")?;
    let secret = open(&mds, &Caller::root(), "secret").await?;
    let oss = scene.dial(&oss_of(scene, secret.place.ost)?, &thief);
    read(&oss, &secret.place, Some(&secret.capability)).await.context("before its end")?;
    mds.channel.close(Duration::from_secs(2)).await;
    let why = until_refused(&oss, &secret).await?;
    ensure!(why.contains("taken back"), "{why}");
    by_an_old_key(scene, &thief).await?;
    expires(scene, &thief).await
}

/// Who has the key that signs capabilities has it until an administrator has another one made;
/// honest clients notice nothing.
async fn by_an_old_key(scene: &Scene<'_>, thief: &Guise) -> Result<()> {
    let mds = scene.dial(&scene.mds, thief);
    let own = open(&mds, &Caller::root(), "secret").await?;
    let oss = scene.dial(&oss_of(scene, own.place.ost)?, thief);
    read(&oss, &own.place, Some(&own.capability)).await.context("by the key of now")?;
    let call = mds.ask(&user(1), RenewCapabilityKey {}).await;
    refused("a new key for who is no administrator", call)?;
    let shown = scene.federation.mount().to_str().context("a path")?;
    scene.federation.tieline(&["mdt", "renew-key", "--mdt", "0", "--fs", shown])?;
    until_refused(&oss, &own).await?;
    scene.federation.shell("head -c 9000000 /dev/urandom > w && sync w && cksum w && rm w")?;
    let again = open(&mds, &Caller::root(), "secret").await?;
    read(&oss, &again.place, Some(&again.capability)).await.context("by the next key")?;
    Ok(())
}

fn to_call(error: anyhow::Error) -> CallError {
    error.downcast().unwrap_or(CallError::Closed { server: "of the test".to_owned() })
}

async fn until_refused(oss: &Line, own: &Opened) -> Result<String> {
    let begun = Instant::now();
    while begun.elapsed() < TAKEN_BACK {
        if let Err(error) = read(oss, &own.place, Some(&own.capability)).await {
            return refused::<()>("taken back", Err(error));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("a capability holds {TAKEN_BACK:?} after it was taken back")
}

/// With a short life: they end, and honest clients get the next in time.
async fn expires(scene: &Scene<'_>, thief: &Guise) -> Result<()> {
    let settings = scene.federation.dir().join("sites/uf/mds.toml");
    let text = std::fs::read_to_string(&settings)?;
    let short = text.replacen("[mdt]\n", "[mdt]\ncapability_life = \"3 s\"\n", 1);
    ensure!(short != text, "the settings have another form");
    std::fs::write(&settings, short)?;
    scene.federation.kill_and_restart("mds-uf")?;
    let work = "for i in 1 2 3 4 5; do head -c 9000000 /dev/urandom > w; sync w; sleep 1; done";
    let mount = scene.federation.mount().to_owned();
    let honest = tokio::task::spawn_blocking(move || tieline_lab::program::shell(&mount, work));
    let mds = scene.dial(&scene.mds, thief);
    let own = open(&mds, &Caller::root(), "secret").await?;
    let oss = scene.dial(&oss_of(scene, own.place.ost)?, thief);
    read(&oss, &own.place, Some(&own.capability)).await.context("in its time")?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let why = refused("old", read(&oss, &own.place, Some(&own.capability)).await)?;
    ensure!(why.contains("expired"), "{why}");
    honest.await?.context("honest work over several lives")?;
    Ok(())
}
