//! Tickets with a short life: connections are proven anew before they end, and work goes on, also
//! over a server's restart.

use super::hostile::{REALM, Scene};
use anyhow::{Result, ensure};
use tieline_auth::ScratchKdc;

/// A ticket's life, and work that takes longer.
const LIFE: &str = "8 seconds";
const WORK: &str = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \
                    head -c 2000000 /dev/urandom > r$i && sync r$i && cmp r$i r$i && sleep 1 \
                    || exit 1; done";

pub async fn goes_on(scene: &Scene<'_>) -> Result<()> {
    let kdc = ScratchKdc::again(&scene.kdc(), REALM, 0);
    for name in ["tieline_mds/uf", "tieline_oss/uf", "tieline_mds/fnal", "tieline_oss/fnal"] {
        kdc.admin(&format!("modprinc -maxlife \"{LIFE}\" {name}.extenci.org\n"))?;
    }
    kdc.admin(&format!("modprinc -maxlife \"{LIFE}\" tieline_mds/127.0.0.1\n"))?;
    let resumed = |federation: &tieline_lab::Federation| -> Result<usize> {
        let logs = federation.logs()?;
        Ok(logs.lines().filter(|line| line.contains("is_resumed=true")).count())
    };
    let before = resumed(scene.federation)?;
    scene.federation.expect_log("the ticket ended while it was used");
    // Only who comes now has the short ones.
    let mount = scene.federation.mount_again()?;
    let work = tokio::task::spawn_blocking(move || tieline_lab::program::shell(&mount, WORK));
    let restart = async {
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        scene.federation.kill_and_restart("oss-uf")
    };
    let (work, restart) = tokio::join!(work, restart);
    restart?;
    work??;
    let renewed = resumed(scene.federation)? - before;
    ensure!(renewed >= 1, "no connection was proven anew");
    Ok(())
}
