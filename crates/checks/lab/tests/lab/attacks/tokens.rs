//! A door speaks for whoever sent it a token of an issuer that the map names: within the token's
//! scope and time, and by what the map says of the issuer now.

use super::doors::{Doors, of_proof, reading, scope, show, word};
use super::hostile::{Guise, refused};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use tieline_lab::program::{DEADLINE, finish};
use tieline_types::{Caller, Mode, Uid};
use tieline_wire::identity::{Delegation, Evidence, Prove};
use tieline_wire::meta::SetAttributes;

const ISSUER: &str = "https://iam.lab.example/";
const AUDIENCE: &str = "https://door.extenci.org";
const HERS: u64 = 1080;

struct Issuer<'d, 's, 'f> {
    doors: &'d Doors<'s, 'f>,
}

impl Issuer<'_, '_, '_> {
    fn script(&self, first: &str, rest: &[&str]) -> Result<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/https_door");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(folder.join("check.py")).arg(first).arg(self.folder()).args(rest);
        finish(&mut command, DEADLINE)?.succeed("check.py")
    }

    fn folder(&self) -> std::path::PathBuf {
        self.doors.scene.federation.local("issuer")
    }

    fn token(&self, subject: &str, scope: &str) -> Result<Evidence> {
        let token = self.script("token", &[AUDIENCE, subject, scope])?;
        Ok(Evidence::Token(token.trim().as_bytes().to_vec()))
    }

    fn verb(&self, words: &[&str]) -> Result<()> {
        let federation = self.doors.scene.federation;
        let mount = federation.mount().to_string_lossy().into_owned();
        federation.tieline(&[&["issuer", "--fs", &mount], words].concat()).map(drop)
    }

    fn add(&self, more: &[&str]) -> Result<()> {
        let keys = self.folder().join("jwks.json");
        let keys = keys.to_string_lossy();
        let words = ["add", ISSUER, "--keys", &keys, "--audience", AUDIENCE];
        self.verb(&[&words[..], more].concat())
    }
}

pub async fn attack(doors: &Doors<'_, '_>) -> Result<()> {
    let issuer = Issuer { doors };
    issuer.script("keys", &[])?;
    let line = doors.dial();
    let data = issuer.token("6f1e", "storage.read:/data")?;
    let unknown = refused("unknown", show(&line, HERS, data.clone(), (None, None)).await)?;
    ensure!(unknown.contains("is not in the federation map"), "{unknown}");
    issuer.add(&["--user", "sub:6f1e=ann", "--user", "sub:c=chief", "--user", "sub:r=root"])?;

    let told = show(&line, HERS, data.clone(), (None, None)).await.context("hers")?;
    ensure!(
        told.caller.uid == Uid(5001) && told.scope == Some(scope(&["read:/data"])?),
        "{told:?}"
    );
    ensure!(told.seconds.is_some_and(|left| (1..=600).contains(&left)), "{told:?}");
    line.ask(&of_proof(HERS), reading(doors.hers)).await.context("hers")?;
    refused("his", line.ask(&of_proof(HERS), reading(doors.his)).await)?;
    let beside = refused("beside", line.ask(&of_proof(HERS), reading(doors.beside)).await)?;
    ensure!(beside.contains("the scope of this delegation (read:/data)"), "{beside}");
    let changed =
        SetAttributes { mode: Some(Mode::new(0o666)), ..super::doors::unchanged(doors.hers) };
    refused("changed", line.ask(&of_proof(HERS), changed).await)?;

    // It is as good again, for no more than it says, and for less if the door asks for less.
    let wider = Some(scope(&["read:/", "modify:/"])?);
    let told = show(&line, HERS + 1, data.clone(), (wider, Some(60))).await.context("again")?;
    ensure!(told.scope == Some(scope(&["read:/data"])?) && told.seconds <= Some(60), "{told:?}");
    let none = Some(scope(&["read:/data2"])?);
    let told = show(&line, HERS + 2, data.clone(), (none, None)).await.context("for less")?;
    ensure!(told.scope == Some(scope(&[])?), "{told:?}");
    refused("for nothing", line.ask(&of_proof(HERS + 2), reading(doors.hers)).await)?;

    bad(&issuer, &data).await.context("what is no good token")?;
    lasting(&issuer, &data).await.context("as long as the map says so")
}

async fn bad(issuer: &Issuer<'_, '_, '_>, good: &Evidence) -> Result<()> {
    let doors = issuer.doors;
    let line = doors.dial();
    let Evidence::Token(token) = good.clone() else { return Ok(()) };
    for at in [5, token.len() / 2, token.len() - 3] {
        let mut changed = token.clone();
        changed[at] = if changed[at] == b'x' { b'y' } else { b'x' };
        let shown = show(&line, HERS + 3, Evidence::Token(changed), (None, None)).await;
        refused("a changed token", shown)?;
    }
    let chief = show(&line, HERS + 3, issuer.token("c", "storage.read:/")?, (None, None)).await;
    // Whoever has a role comes without it.
    let chief = chief.context("an administrator is a user")?;
    ensure!(chief.caller.uid == Uid(5004), "{chief:?}");
    let edit = tieline_wire::identity::EditIdentities { edits: vec![] };
    refused("an administrator by a token", line.ask(&of_proof(HERS + 3), edit).await)?;
    for (subject, reason) in [("eve", "is nobody here"), ("r", "")] {
        let shown = issuer.token(subject, "storage.read:/")?;
        let why = refused(subject, show(&line, HERS + 4, shown, (None, None)).await)?;
        ensure!(why.contains(reason), "{subject}: {why}");
    }
    for scope in ["openid", "storage.read:/data/../data2", "storage.read:/data%2f..%2fdata2"] {
        let shown = issuer.token("6f1e", scope)?;
        refused(scope, show(&line, HERS + 4, shown, (None, None)).await)?;
    }
    // Who is no door has none of it, nor has a door two kinds of evidence.
    let machine = doors.scene.dial(&doors.scene.mds, &Guise::of(&doors.scene.machine, 78));
    refused("no door", show(&machine, HERS, good.clone(), (None, None)).await)?;
    let delegation = Some(Delegation { evidence: Some(good.clone()), ..Delegation::default() });
    let both = Prove { proof: HERS + 4, token: Some(vec![0x60]), delegation };
    refused("two kinds", line.ask(&Caller::root(), both).await)?;
    refused("her word", show(&line, HERS + 4, word("ann"), (None, None)).await).map(drop)
}

/// A change of the map counts at once, and a restart changes nothing.
async fn lasting(issuer: &Issuer<'_, '_, '_>, data: &Evidence) -> Result<()> {
    let doors = issuer.doors;
    let guise = Guise::of(&doors.door, 79);
    let line = doors.scene.dial(&doors.scene.mds, &guise);
    show(&line, HERS, data.clone(), (None, None)).await?;
    let session = Some(line.welcome()?.session);
    doors.scene.federation.kill_and_restart("mds-uf")?;
    let line = doors.scene.dial(&doors.scene.mds, &Guise { session, ..guise });
    line.ask(&of_proof(HERS), reading(doors.hers)).await.context("after a restart")?;
    refused("beside", line.ask(&of_proof(HERS), reading(doors.beside)).await)?;
    issuer.add(&["--user", "sub:6f1e=bob"])?;
    let why = refused("another now", line.ask(&of_proof(HERS), reading(doors.hers)).await)?;
    ensure!(why.contains("no more"), "{why}");
    issuer.add(&["--user", "sub:6f1e=ann"])?;
    line.ask(&of_proof(HERS), reading(doors.hers)).await.context("she again")?;
    issuer.verb(&["remove", ISSUER])?;
    let why = refused("removed", line.ask(&of_proof(HERS), reading(doors.hers)).await)?;
    ensure!(why.contains("issues no tokens"), "{why}");
    refused("removed", show(&line, HERS + 5, data.clone(), (None, None)).await).map(drop)
}
