//! Ten thousand connections that say nothing.

use super::hostile::{Guise, Scene};
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const CROWD: usize = 10_000;
const AT_ONCE: usize = 64;
/// Descriptors of the test beside the crowd's.
const SPARE: u64 = 500;

/// While they stand, and more come, an old client works and new ones come in. The rate is the
/// benchmark's affair.
pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = CROWD as u64 + SPARE;
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        tieline_lab::skip(format_args!("the crowd needs {wanted} open files"));
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?;
    // Whoever is pushed out says so.
    scene.federation.expect_log("closed: no hello came");
    let mut crowd = Vec::with_capacity(CROWD);
    for round in 0..4 {
        crowd.extend(gather(scene, CROWD / 4).await?);
        let guise = Guise::of(&scene.machine, 210 + round);
        let line = scene.dial(&scene.mds, &guise);
        line.knock().await.with_context(|| format!("round {round}: a newcomer"))?;
        let script = format!("head -c 3000000 /dev/urandom > f{round} && cmp f{round} f{round}");
        scene.federation.shell(&script)?;
    }
    ensure!(crowd.len() >= CROWD, "{} connections stood", crowd.len());
    Ok(())
}

/// Half of them to the MDS, half to the OSS; some say half a hello.
async fn gather(scene: &Scene<'_>, count: usize) -> Result<Vec<TcpStream>> {
    let mut coming: JoinSet<std::io::Result<TcpStream>> = JoinSet::new();
    let mut there = Vec::new();
    for number in 0..count {
        let address = if number % 2 == 0 { &scene.mds } else { &scene.oss };
        let address = address.clone();
        coming.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            if number % 5 == 0 {
                // Half a frame: the server waits for its rest.
                let _ = stream.try_write(b"TLN1\x01\x00");
            }
            Ok(stream)
        });
        if coming.len() >= AT_ONCE
            && let Some(come) = coming.join_next().await
        {
            there.push(come??);
        }
    }
    while let Some(come) = coming.join_next().await {
        there.push(come??);
    }
    Ok(there)
}
