//! A door that dies in the middle of an upload: nothing of it ever shows, and when its session is
//! over nothing is left of it, neither a file nor its use of a quota nor a chunk.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline_files::{At, Files, LastLink, NewUpload, Paths, Upload, Who};
use tieline_sim::federation::Federation;
use tieline_types::quota::{Payer, PayerKind, Used};
use tieline_types::{Caller, Gid, Mode, Uid};
use tieline_wire::quotas::GetQuota;
use turmoil::Builder;

const USER: u32 = 7;
/// Two chunks and a half.
const BYTES: usize = 10 << 20;
/// For how long MDSs keep the session of a client that is silent, unless it waits longer.
const OVER: Duration = Duration::from_secs(10 * 60);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn new() -> NewUpload {
    NewUpload { mode: Mode::new(0o644), umask: Mode::default(), layout: None, replaces: false }
}

/// Uploads for ever.
async fn upload(federation: Arc<Federation>, is_begun: Arc<AtomicBool>) -> Outcome {
    let volume = federation.client(1);
    let root = Caller::root();
    let at = At { parent: volume.root(), name: &"home".parse()? };
    volume.make_directory(&root, at, Mode::new(0o777), Mode::default()).await?;
    let who = Who::himself(Caller { uid: Uid(USER), gid: Gid(USER), ..Caller::default() });
    let paths = Paths::new(volume.clone());
    let home = paths.find(&who, b"/home", LastLink::Followed).await?;
    let name = "new".parse()?;
    let mut upload = Upload::begin(volume.clone(), &who, (&home, &name), new()).await?;
    upload.write(Bytes::from(vec![7; BYTES])).await?;
    // What waits for more goes on its own after a second.
    while used(&volume).await?.bytes == 0 || federation.objects().await == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_begun.store(true, Ordering::Relaxed);
    std::future::pending().await
}

async fn used(volume: &tieline_client::Volume) -> Result<Used, Box<dyn std::error::Error>> {
    let payer = Payer { kind: PayerKind::User, id: USER, pool: None };
    let message = GetQuota { payer, is_default: None };
    Ok(volume.ask_of_mdt(&Caller::root(), volume.root(), message).await?.used)
}

async fn watch(federation: Arc<Federation>) -> Outcome {
    let volume = federation.client(2);
    let died = tokio::time::Instant::now();
    loop {
        let paths = Paths::new(volume.clone());
        let who = Who::himself(Caller::root());
        let found = paths.find(&who, b"/home/new", LastLink::Followed).await;
        assert!(found.is_err(), "it shows");
        let used = used(&volume).await?;
        if used == Used::default() && federation.objects().await == 0 {
            break;
        }
        assert!(died.elapsed() < 2 * OVER, "{used:?} and {} objects", federation.objects().await);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(died.elapsed() > OVER / 2, "it might have come back");
    volume.close(Duration::from_secs(5)).await;
    Ok(())
}

#[test]
fn a_door_that_dies_leaves_nothing() {
    // With a journal and without.
    for seed in [1, 2] {
        let mut sim = Builder::new()
            .rng_seed(seed)
            .simulation_duration(Duration::from_secs(1800))
            .tick_duration(Duration::from_millis(1))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(25))
            .tcp_capacity(4096)
            .build();
        let federation = Arc::new(Federation::new(seed));
        federation.add_servers(&mut sim);
        let is_begun = Arc::new(AtomicBool::new(false));
        let (inside, flag) = (federation.clone(), is_begun.clone());
        sim.host("door", move || {
            let (federation, is_begun) = (inside.clone(), flag.clone());
            async move { upload(federation, is_begun).await }
        });
        while !is_begun.load(Ordering::Relaxed) {
            sim.step().unwrap();
            assert!(sim.elapsed() < Duration::from_secs(60), "the upload does not begin");
        }
        sim.crash("door");
        let inside = federation.clone();
        sim.client("watch", async move { watch(inside).await });
        sim.run().unwrap();
    }
}
