//! A door as doors are built, on the client's own caches: it speaks for two users by what each of
//! them sent once, at both MDSs, and reads and writes for them.

use super::doors::{Doors, scope};
use super::hostile::REALM;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tieline_base::contact::Contact;
use tieline_base::dialing::real_world;
use tieline_base::proving::Proving;
use tieline_client::{Parts, Settings, Volume};
use tieline_files::{Access, At, Files, NewFile, Paths, Who};
use tieline_servers::{Delegations, SpokenFor, Wish};
use tieline_types::{Caller, ErrorKind, FileId, Mode, Scope};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

const PATIENCE: Duration = Duration::from_secs(20);

struct Door {
    volume: Arc<Volume>,
    delegations: Arc<Delegations>,
}

impl Door {
    async fn new(doors: &Doors<'_, '_>) -> Result<Self> {
        let scene = doors.scene;
        let keys = &doors.door;
        let proving = Proving {
            keytab: keys.keytab.clone(),
            principal: keys.principal.clone(),
            config: Some(scene.kdc().join("krb5.conf")),
            ..Proving::default()
        };
        let guard = proving.guard();
        let (world, dialer, rule) = real_world(&guard);
        let contact = Contact {
            world: world.clone(),
            dialer: dialer.clone(),
            fs: "extenci".parse()?,
            addresses: vec![scene.mds.clone()],
            rule,
            description: "door".to_owned(),
            patience: PATIENCE,
        };
        let (map, _) = contact.believe(None).await?;
        guard.follow(&map);
        let delegations = Delegations::new(&world);
        let (root, near) = (FileId(1), Default::default());
        let parts = Parts { world, dialer, map, root, rule, near, spool: None };
        let volume = Volume::new(parts, Settings { wait: PATIENCE, ..Settings::default() });
        volume.servers().set_credentials(delegations.clone());
        Ok(Self { volume, delegations })
    }

    async fn speak(
        &self,
        doors: &Doors<'_, '_>,
        user: &str,
        (scope, life): (Option<Scope>, Option<Duration>),
    ) -> Result<SpokenFor> {
        let wish = Wish { evidence: doors.ticket(user)?, scope, life };
        Ok(self.delegations.speak(self.volume.servers(), wish).await?)
    }

    async fn find(&self, caller: &Caller, parent: FileId, name: &str) -> Result<FileId> {
        let found = self.volume.lookup(caller, parent, &name.parse()?).await?;
        Ok(found.attributes.with_context(|| format!("{name} is there"))?.id)
    }

    async fn write(
        &self,
        caller: &Caller,
        (parent, name): (FileId, &str),
        data: &Bytes,
    ) -> Result<FileId> {
        let access = Access { write: true, ..Access::default() };
        let (mode, umask) = (Mode::new(0o600), Mode::new(0));
        let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
        let at = At { parent, name: &name.parse()? };
        let (known, opened) = self.volume.create(caller, at, new).await?;
        self.volume.write(opened.handle, 0, data.clone()).await?;
        self.volume.sync(opened.handle, false).await?;
        self.volume.release(opened.handle).await;
        Ok(known.attributes.id)
    }

    async fn read(&self, caller: &Caller, id: FileId, length: u32) -> Result<Vec<u8>> {
        let access = Access { read: true, ..Access::default() };
        let opened = self.volume.open(caller, id, access).await?;
        let pieces = self.volume.read(opened.handle, 0, length).await?;
        self.volume.release(opened.handle).await;
        Ok(pieces.concat())
    }
}

fn kind<T>(outcome: Result<T>) -> Result<ErrorKind> {
    match outcome {
        Ok(_) => bail!("it is let in"),
        Err(error) => {
            let error = error.downcast_ref::<tieline_files::Error>();
            Ok(error.context("an error of the client")?.kind())
        }
    }
}

pub async fn works(doors: &Doors<'_, '_>) -> Result<()> {
    doors
        .scene
        .federation
        .shell("chmod 777 fnal && mkdir -m 777 fnal/far && sync fnal fnal/far")?;
    let door = Door::new(doors).await?;
    let outcome = serves(doors, &door).await;
    let outcome = match outcome {
        Ok(()) => speaks_a_protocol(doors, &door).await,
        failed => failed,
    };
    door.volume.close(PATIENCE).await;
    outcome
}

/// The same users before a door with a protocol of its own, which knows nothing of how they were
/// proved.
async fn speaks_a_protocol(doors: &Doors<'_, '_>, door: &Door) -> Result<()> {
    let both = ["read:/data", "modify:/data"];
    let ann = door.speak(doors, "ann", (Some(scope(&both)?), None)).await?;
    let bob = door.speak(doors, "bob", (Some(scope(&["read:/data2"])?), None)).await?;
    let who = |user: &SpokenFor| Who {
        caller: user.caller.clone(),
        scope: user.scope.clone().map(Arc::new),
    };
    let users = [("ann".to_owned(), who(&ann)), ("bob".to_owned(), who(&bob))];
    let paths = Paths::new(door.volume.clone());
    let serves = tieline_testdoor::Door::new(paths, users.into_iter().collect());
    let socket = doors.scene.federation.local("test-door");
    let listener = tokio::net::UnixListener::bind(&socket)?;
    let serving = tokio::spawn(serves.serve(listener));
    let outcome = async {
        let (mut hers, mut his) =
            (Line::login(&socket, "ann").await?, Line::login(&socket, "bob").await?);
        for replaces in ["", " replace"] {
            let told = hers.ask(&format!("PUT /data/sent 5{replaces}"), b"bytes").await?;
            ensure!(told.starts_with("OK"), "{told}");
        }
        ensure!(hers.ask("READV /data/sent 0-2 3-5", b"").await?.ends_with("byes"));
        let refused = async |line: &mut Line, asked: &str| {
            let told = line.ask(asked, b"").await?;
            ensure!(told.starts_with("NO PermissionDenied"), "{asked}: {told}");
            Ok(())
        };
        for asked in ["STAT /data/sent", "GET /data2/../data/sent", "PUT /data2/new 5"] {
            refused(&mut his, asked).await?;
        }
        for asked in ["STAT /data2", "LS /"] {
            refused(&mut hers, asked).await?;
        }
        let stranger = Line::login(&socket, "eve").await;
        ensure!(stranger.is_err(), "somebody else is let in");
        Ok(())
    };
    let outcome = outcome.await;
    serving.abort();
    outcome
}

/// A visitor of the test door.
struct Line(BufReader<UnixStream>);

impl Line {
    async fn login(socket: &Path, name: &str) -> Result<Self> {
        let mut line = Self(BufReader::new(UnixStream::connect(socket).await?));
        let told = line.ask(&format!("LOGIN {name}"), b"").await?;
        ensure!(told.starts_with("OK"), "{told}");
        Ok(line)
    }

    /// The answer's head and bytes. An upload's bytes follow when they may.
    async fn ask(&mut self, words: &str, bytes: &[u8]) -> Result<String> {
        self.0.write_all(format!("{words}\n").as_bytes()).await?;
        let mut head = String::new();
        self.0.read_line(&mut head).await?;
        if head == "GO\n" {
            self.0.write_all(bytes).await?;
            head.clear();
            self.0.read_line(&mut head).await?;
        }
        let length = head.strip_prefix("OK ").and_then(|length| length.trim().parse().ok());
        let mut rest = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut rest).await?;
        Ok(head + &String::from_utf8_lossy(&rest))
    }
}

async fn serves(doors: &Doors<'_, '_>, door: &Door) -> Result<()> {
    let both = ["read:/data", "modify:/data", "read:/fnal", "modify:/fnal"];
    let ann = door.speak(doors, "ann", (Some(scope(&both)?), None)).await.context("ann")?;
    ensure!(ann.principal.as_deref() == Some(&*format!("ann@{REALM}")), "{ann:?}");
    ensure!(ann.answer.is_some(), "she is told nothing of who is there");
    let bob = door.speak(doors, "bob", (None, None)).await.context("bob")?;
    let data: Bytes = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into();
    // One ticket is good at both MDSs, and once at each.
    let fnal = door.volume.lookup(&ann.caller, FileId(1), &"fnal".parse()?).await?;
    let fnal = fnal.attributes.context("fnal is there")?.id;
    let far = door.find(&ann.caller, fnal, "far").await?;
    for (place, name) in [(doors.data, "made"), (far, "made")] {
        let id = door.write(&ann.caller, (place, name), &data).await.context("she writes")?;
        ensure!(door.read(&ann.caller, id, 5_000_000).await? == data, "other bytes");
        // He is who he is, and no more.
        let his = kind(door.read(&bob.caller, id, 10).await)?;
        ensure!(his == ErrorKind::PermissionDenied, "{his:?}");
    }
    ensure!(door.read(&bob.caller, doors.his, 100).await?.len() == 100);
    door.write(&bob.caller, (doors.data2, "made"), &data).await.context("he writes")?;
    let beside = kind(door.write(&ann.caller, (doors.data2, "hers"), &data).await)?;
    ensure!(beside == ErrorKind::PermissionDenied, "beside: {beside:?}");
    // Others see what was written.
    doors.scene.federation.shell("cmp data/made fnal/far/made && cmp data/made data2/made")?;

    let reader = door.speak(doors, "ann", (Some(scope(&["read:/data"])?), None)).await?;
    door.read(&reader.caller, doors.hers, 100).await.context("she reads")?;
    let written = kind(door.write(&reader.caller, (doors.data, "new"), &data).await)?;
    ensure!(written == ErrorKind::PermissionDenied, "written: {written:?}");
    let maker = door.speak(doors, "ann", (Some(scope(&["create:/data"])?), None)).await?;
    door.write(&maker.caller, (doors.data, "upload"), &data).await.context("she makes a file")?;
    let again = kind(door.write(&maker.caller, (doors.data, "made"), &data).await)?;
    ensure!(matches!(again, ErrorKind::Exists | ErrorKind::PermissionDenied), "{again:?}");

    let life = Duration::from_secs(3);
    let short = door.speak(doors, "bob", (None, Some(life))).await?;
    door.read(&short.caller, doors.his, 100).await.context("in its time")?;
    tokio::time::sleep(life).await;
    let late = kind(door.write(&short.caller, (doors.data, "late"), &data).await)?;
    ensure!(late == ErrorKind::Unauthenticated, "late: {late:?}");
    Ok(())
}
