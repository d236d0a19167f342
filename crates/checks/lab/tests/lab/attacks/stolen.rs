//! What a stolen server's key, and a site admin, can do elsewhere, and what they cannot
//! (docs/security.md, section 8).

use super::capabilities::{Opened, oss_of, read};
use super::exposing;
use super::hostile::{Guise, Line, REALM, Scene, refused, user};
use super::paths::adopted;
use anyhow::{Context, Result, bail, ensure};
use tieline_auth::gss::Keys;
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{
    Caller, FileId, FlavorRule, Grant, GrantedId, IdentityKind, MdtIndex, ObjectName, OstIndex,
    Place, Role, Strangers, Version,
};
use tieline_wire::PeerRole;
use tieline_wire::capability::{CapabilityNews, RenewCapabilityKey};
use tieline_wire::chores::ListChores;
use tieline_wire::data::{DeleteChunks, ListObjects, ObjectOwner, OstStatus, PutChunk, StatObject};
use tieline_wire::federation::{Drain, EditMap, MapEdit};
use tieline_wire::identity::{EditIdentities, IdentityEdit, ListIdentities, NewIdentity};
use tieline_wire::ledger::{CheckMdt, DumpMdt, ListDeleted, Undelete};
use tieline_wire::meta::{GetAttributes, Open, SetAttributes};
use tieline_wire::mirrors::FetchChunk;
use tieline_wire::quotas::{QuotaNews, QuotaShares, SetProject, SetQuota};

/// At the top of the tree of the other site.
const DELETE_FAR: &str = "cd fnal && echo gone > gone && chmod 600 gone && sync gone && rm gone \
                          && sync .";

/// The keys of the servers at the other site.
pub fn keys(scene: &Scene<'_>, role: &str) -> Keys {
    Keys {
        keytab: Some(scene.kdc().join(format!("{role}-fnal.keytab"))),
        cache: Some(format!("FILE:{}", scene.federation.local(&format!("own-{role}")).display())),
        principal: Some(format!("tieline_{role}/fnal.extenci.org@{REALM}")),
    }
}

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let script = "mkdir here && head -c 5000000 /dev/urandom > here/private \
                  && chmod 600 here/private && sync here/private";
    scene.federation.shell(script)?;
    let mds = scene.dial(&scene.mds, &Guise::of(&scene.machine, 40));
    let here = "here".parse()?;
    let lookup = tieline_wire::meta::Lookup { parent: FileId(1), name: here };
    let here = mds.ask(&Caller::root(), lookup).await?.attributes.context("it is there")?.id;
    let private = open_in(&mds, here, "private").await?;
    oss_key(scene, &private).await.context("a data server's key")?;
    mds_key(scene, &private).await.context("a metadata server's key")?;
    machine_root(scene, &mds, &private).await.context("root of a machine")
}

/// A site admin's tickets: his site's MDT and OSTs are his to look after, others' are not, nor are
/// users, keys and limits. Run last: from the first identity on only the table counts.
pub async fn site_admin(scene: &Scene<'_>) -> Result<()> {
    let federation = scene.federation;
    federation.shell("echo far > fnal/private && chmod 600 fnal/private && sync fnal/private")?;
    let mount = federation.mount().to_string_lossy().into_owned();
    let id = |words: &[&str]| federation.tieline(&[&["id", "--fs", &mount], words].concat());
    id(&["add", "ann", "--number", "5001"])?;
    id(&["role", "ann", "site-admin:fnal"])?;
    // Other servers have it within five seconds.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let guise = Guise::of(&scene.user("ann")?, 44);
    let far = federation.process("mds-fnal")?["address"].as_str().context("an address")?.to_owned();
    let (own, root) = (scene.dial(&far, &guise), scene.dial(&scene.mds, &guise));
    at_his_site(scene, &own, &root).await.context("at his site")?;
    exposing::by_site_admin(scene, &root).await.context("exposing")?;
    elsewhere(&root).await.context("elsewhere")?;
    id(&["remove", "ann"]).map(drop)
}

async fn at_his_site(scene: &Scene<'_>, own: &Line, root: &Line) -> Result<()> {
    let her = user(5001);
    own.ask(&her, DumpMdt { cursor: None, since: None }).await.context("dump")?;
    let check = CheckMdt { job: None, received: 0, is_repair: false, reads_bytes: false };
    own.ask(&her, check).await.context("check")?;
    let map = scene.map();
    let is_far = |ost: &&tieline_format::map::Ost| ost.site.as_str() == "fnal";
    let ost = map.osts.iter().find(is_far).context("an OST there")?.ost;
    for edit in [MapEdit::OstDeactivate(ost), MapEdit::OstActivate(ost)] {
        root.ask(&her, EditMap { edit }).await.context("switch an OST")?;
    }
    let parent = FileId::root_of(MdtIndex(1));
    let lookup = tieline_wire::meta::Lookup { parent, name: "private".parse()? };
    let id = own.ask(&her, lookup).await?.attributes.context("it is there")?.id;
    own.ask(&her, SetProject { ids: vec![id], project: 3 }).await.context("set a project")?;
    let check = CheckMdt { job: None, received: 0, is_repair: true, reads_bytes: false };
    own.ask(&her, check).await.context("repair")?;
    // What its mode keeps from her, the MDS does not open or change for her.
    let why = refused("a file", own.ask(&her, open(id)).await)?;
    ensure!(why.contains("(denial "), "{why}");
    let mode = Some(tieline_types::Mode::new(0o666));
    let give = SetAttributes { mode, ..nothing(id) };
    let why = refused("its mode", own.ask(&her, give).await)?;
    ensure!(why.contains("(denial "), "{why}");
    undelete(scene, own, &her, parent).await?;
    let oss = scene.dial(&oss_of(scene, ost)?, &Guise::of(&scene.user("ann")?, 45));
    let chunks = vec![GrantedId { mdt: MdtIndex(1), grant: Grant(1), serial: 1 }];
    refused("deleting", oss.ask(&her, DeleteChunks { ost, chunks }).await)?;
    let chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(1), serial: 2 };
    let owner = ObjectOwner { file: id, offset: 0, version: Version(1), path: vec![] };
    let (digest, from, capability) = (None, vec![], None);
    let fetch = FetchChunk { ost, chunk, length: 5000, digest, from, owner, capability };
    refused("copying", oss.ask(&her, fetch).await)?;
    Ok(())
}

/// What others deleted there she brings back, and may read it no more than before.
async fn undelete(scene: &Scene<'_>, own: &Line, her: &Caller, root: FileId) -> Result<()> {
    scene.federation.shell(DELETE_FAR)?;
    let list =
        ListDeleted { directory: root, after: None, limit: 10, is_lost: None, after_name: None };
    let deleted = own.ask(her, list).await?.files;
    let id = deleted.first().context("something was deleted")?.id;
    let name = "back".parse()?;
    own.ask(her, Undelete { id, from: root, parent: root, name, lost: None })
        .await
        .context("undelete")?;
    refused("what came back", own.ask(her, open(id)).await)?;
    Ok(())
}

async fn elsewhere(root: &Line) -> Result<()> {
    let her = user(5001);
    refused("dump", root.ask(&her, DumpMdt { cursor: None, since: None }).await)?;
    let check = CheckMdt { job: None, received: 0, is_repair: true, reads_bytes: false };
    refused("repair", root.ask(&her, check).await)?;
    refused("chores", root.ask(&her, ListChores {}).await)?;
    refused("another key", root.ask(&her, RenewCapabilityKey {}).await)?;
    let top = FileId::root_of(MdtIndex(0));
    let list =
        ListDeleted { directory: top, after: None, limit: 10, is_lost: None, after_name: None };
    let seen = root.ask(&her, list).await.map(|reply| reply.files.len()).unwrap_or(0);
    ensure!(seen == 0, "what others deleted elsewhere");
    let ids = vec![top];
    refused("a project", root.ask(&her, SetProject { ids, project: 3 }).await)?;
    let payer = Payer { kind: PayerKind::User, id: 5001, pool: None };
    let limits = SetQuota {
        payer,
        bytes_soft: None,
        bytes_hard: Some(1 << 50),
        inodes_soft: None,
        inodes_hard: None,
        bytes_grace: None,
        inodes_grace: None,
        is_default: None,
    };
    refused("limits", root.ask(&her, limits).await)?;
    let role = IdentityEdit::Role { user: "ann".parse()?, role: Role::FsAdmin, is_given: true };
    refused("a role", root.ask(&her, EditIdentities { edits: vec![role] }).await)?;
    let rule = FlavorRule::parse("extenci.srpc.flavor.default=null")?.1;
    let principal = format!("host/client.extenci.org@{REALM}");
    for edit in [
        MapEdit::OstDeactivate(OstIndex(0)),
        MapEdit::PoolNew("hers".parse()?),
        MapEdit::FlavorSet(rule),
        MapEdit::MachineSet { principal, trust: None },
        MapEdit::StrangersSet(Strangers::Squash),
        MapEdit::KeyRotate,
    ] {
        let why = refused("the map", root.ask(&her, EditMap { edit }).await)?;
        ensure!(why.contains("(denial "), "{why}");
    }
    Ok(())
}

fn open(id: FileId) -> Open {
    Open { id, is_read: true, is_write: false, writes: None }
}

async fn open_in(mds: &Line, parent: FileId, name: &str) -> Result<Opened> {
    let lookup = tieline_wire::meta::Lookup { parent, name: name.parse()? };
    let id = mds.ask(&Caller::root(), lookup).await?.attributes.context("it is there")?.id;
    let opened =
        mds.ask(&Caller::root(), Open { id, is_read: true, is_write: false, writes: None }).await?;
    let extent = opened.extents.extents.into_iter().next().context("it has an extent")?;
    let tieline_types::Content::Chunk(chunk) = extent.content else { bail!("it has chunks") };
    let place = chunk.places.first().and_then(Place::at_ost).context("its chunk has a place")?;
    let capability = opened.capability.context("a capability")?.signed;
    Ok(Opened { file: id, place, capability })
}

/// It may look at what lies at other sites' data servers, and neither read nor change it.
async fn oss_key(scene: &Scene<'_>, private: &Opened) -> Result<()> {
    let guise = Guise { role: PeerRole::Oss, ..Guise::of(&keys(scene, "oss"), 41) };
    let line = scene.dial(&oss_of(scene, private.place.ost)?, &guise);
    let (ost, caller) = (private.place.ost, Caller::root());
    let ObjectName::Chunk(chunk) = private.place.object else { bail!("a chunk of its own") };
    line.ask(&caller, OstStatus {}).await?;
    line.ask(&caller, StatObject { ost, chunk }).await?;
    let listed = line.ask(&caller, ListObjects { ost, after: None, limit: 4096 }).await?;
    ensure!(listed.chunks.contains(&chunk), "names of objects: {listed:?}");
    refused("reading", read(&line, &private.place, None).await)?;
    refused("with a client's", read(&line, &private.place, Some(&private.capability)).await)?;
    server_calls(&line, private, ost).await?;
    let mds = scene.dial(&scene.mds, &guise);
    // Public keys are no secret; names and files are not its affair.
    let news = mds.ask(&caller, CapabilityNews { mdt: private.file.mdt() }).await?;
    ensure!(!news.keys.is_empty());
    mds.knock().await.context("the map")?;
    mds.ask(&caller, ListIdentities { have: 0, from: 0 }).await.context("the identities")?;
    for caller in [Caller::root(), user(7)] {
        refused("names", mds.ask(&caller, GetAttributes { id: FileId(1) }).await)?;
        refused("a file", mds.ask(&caller, open(private.file)).await)?;
    }
    shares(&mds, &[0, 1]).await?;
    administers(&mds).await?;
    as_client(scene, "oss", private).await
}

/// What only administrators do is not for servers, whomever they say to ask for.
pub async fn administers(mds: &Line) -> Result<()> {
    for caller in [Caller::root(), user(7)] {
        for edit in [MapEdit::OstDeactivate(OstIndex(0)), MapEdit::KeyRotate] {
            refused("the map", mds.ask(&caller, EditMap { edit }).await)?;
        }
        refused("its keys", mds.ask(&caller, RenewCapabilityKey {}).await)?;
        let (kind, name) = (IdentityKind::User, "mallory".parse()?);
        let mallory = NewIdentity { kind, name, number: Some(7001), groups: None };
        let edits = vec![IdentityEdit::Put(mallory)];
        refused("identities", mds.ask(&caller, EditIdentities { edits }).await)?;
        let dump = DumpMdt { cursor: None, since: None };
        refused("a dump", mds.ask(&caller, dump).await)?;
        let check = CheckMdt { job: None, received: 0, is_repair: true, reads_bytes: false };
        refused("a repair", mds.ask(&caller, check).await)?;
        refused("an absence", mds.ask(&caller, Drain { for_ms: 1000 }).await)?;
    }
    Ok(())
}

/// Nor is its key a client's: it is a stranger then, and no root.
async fn as_client(scene: &Scene<'_>, role: &str, private: &Opened) -> Result<()> {
    let client = if role == "oss" { 43 } else { 44 };
    let mds = scene.dial(&scene.mds, &Guise::of(&keys(scene, role), client));
    administers(&mds).await?;
    for caller in [Caller::root(), user(7)] {
        let open = Open { id: private.file, is_read: true, is_write: false, writes: None };
        refused("opening", mds.ask(&caller, open).await)?;
        let give =
            SetAttributes { mode: Some(tieline_types::Mode::new(0o666)), ..nothing(private.file) };
        refused("taking", mds.ask(&caller, give).await)?;
        refused("names", mds.ask(&caller, GetAttributes { id: FileId(1) }).await)?;
    }
    let oss =
        scene.dial(&oss_of(scene, private.place.ost)?, &Guise::of(&keys(scene, role), client));
    refused("reading", read(&oss, &private.place, None).await)?;
    Ok(())
}

fn nothing(id: FileId) -> SetAttributes {
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

async fn server_calls(line: &Line, private: &Opened, ost: OstIndex) -> Result<()> {
    let ObjectName::Chunk(chunk) = private.place.object else { bail!("a chunk of its own") };
    let caller = Caller::root();
    let delete = DeleteChunks { ost, chunks: vec![chunk] };
    refused("deleting", line.ask(&caller, delete).await)?;
    let owner = ObjectOwner { file: private.file, offset: 0, version: Version(1), path: vec![] };
    let fetch = FetchChunk {
        ost,
        chunk,
        length: 5000,
        digest: None,
        from: vec![private.place.clone()],
        owner: owner.clone(),
        capability: None,
    };
    refused("replacing", line.ask(&caller, fetch).await)?;
    let put = PutChunk { ost, chunk, owner, checks: vec![], capability: None, room: None };
    refused("putting", line.ask(&caller, put).await)?;
    Ok(())
}

/// It rules the files of its own MDT, and no others.
async fn mds_key(scene: &Scene<'_>, private: &Opened) -> Result<()> {
    let guise = Guise { role: PeerRole::Mds, ..Guise::of(&keys(scene, "mds"), 42) };
    let line = scene.dial(&oss_of(scene, private.place.ost)?, &guise);
    refused("reading", read(&line, &private.place, None).await)?;
    server_calls(&line, private, private.place.ost).await?;
    copies_through(&line, private).await?;
    let inside = adopted("inside", &scene.adopted.join("inside"))?;
    read(&scene.dial(&scene.oss, &guise), &inside, None).await.context("adopted files")?;
    let mds = scene.dial(&scene.mds, &guise);
    for caller in [Caller::root(), user(7)] {
        let open = Open { id: private.file, is_read: true, is_write: false, writes: None };
        refused("a file", mds.ask(&caller, open).await)?;
        refused("names", mds.ask(&caller, GetAttributes { id: FileId(1) }).await)?;
    }
    administers(&mds).await?;
    as_client(scene, "mds", private).await?;
    shares(&mds, &[0, 2, 7]).await
}

/// A chunk of its own MDT, to be made of another's: the data server would read it for itself.
async fn copies_through(line: &Line, private: &Opened) -> Result<()> {
    let chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(1), serial: 1 << 41 };
    let file = FileId::new(MdtIndex(1), 1 << 41);
    let fetch = FetchChunk {
        ost: private.place.ost,
        chunk,
        length: private.place.length,
        digest: None,
        from: vec![private.place.clone()],
        owner: ObjectOwner { file, offset: 0, version: Version(1), path: vec![] },
        capability: None,
    };
    let why = refused("copying another's", line.ask(&Caller::root(), fetch).await)?;
    ensure!(why.contains("only the MDS of a chunk"), "{why}");
    Ok(())
}

/// What an MDT may use of limits is between it and the one that keeps them.
async fn shares(line: &Line, of: &[u16]) -> Result<()> {
    for mdt in of.iter().copied().map(MdtIndex) {
        let news = QuotaNews { mdt, epoch: 0, known: 0, wait_ms: 0 };
        refused("limits", line.ask(&Caller::root(), news).await)?;
        let (boot, number, known, shares) = (u64::MAX, 1, 0, vec![]);
        let held = QuotaShares { mdt, boot, number, known, shares };
        refused("shares of limits", line.ask(&Caller::root(), held).await)?;
    }
    Ok(())
}

/// A machine is believed about its users and its root: that reads what it likes and administers,
/// but is no server.
async fn machine_root(scene: &Scene<'_>, mds: &Line, private: &Opened) -> Result<()> {
    let guise = Guise::of(&scene.machine, 40);
    let line = scene.dial(&oss_of(scene, private.place.ost)?, &guise);
    read(&line, &private.place, Some(&private.capability)).await.context("as root")?;
    server_calls(&line, private, private.place.ost).await?;
    let open = Open { id: private.file, is_read: true, is_write: false, writes: None };
    refused("another user", mds.ask(&user(3), open).await)?;
    // What stands in the map already: who may say so may say more.
    let edit = MapEdit::OstActivate(OstIndex(0));
    mds.ask(&Caller::root(), EditMap { edit }).await.context("as an administrator")?;
    shares(mds, &[0, 1]).await?;
    Ok(())
}
