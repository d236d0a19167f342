//! The attack table: everything that must get nobody in, against running servers with a real KDC.
//!
//! The same for krb5i and krb5p. What krb5a and krb5n let through is shown too: docs/security.md
//! says it.

mod capabilities;
mod connections;
mod crowd;
mod doors;
mod exposing;
mod flood;
mod frames;
mod honest_door;
mod hostile;
mod paths;
mod registrations;
mod relay;
mod renewal;
mod says;
mod spoofed;
mod stolen;
mod tokens;
mod told;
mod users;
mod weak;

use anyhow::{Context, Result};
use hostile::Scene;
use std::time::Duration;
use tieline_lab::alone::alone;
use tieline_lab::federation::{Federation, Plan, with_plan};

/// A federation of a flavor, and a client without manners. For a process of its own: `KRB5_CONFIG`
/// is the whole process's.
fn with_scene(sec: &str, attack: impl AsyncFnOnce(&Scene<'_>) -> Result<()>) -> Result<()> {
    if !tieline_lab::has_kdc() {
        return Ok(());
    }
    // Else the servers of the next federation would look for the KDC of the last.
    // SAFETY: no other test runs in this process, and this one has no other threads yet.
    unsafe { std::env::remove_var("KRB5_CONFIG") };
    let folder = tempfile::Builder::new().prefix("tieline-lab-adopted-").tempdir()?;
    let adopted = paths::make(folder.path())?;
    let words = ["--sec", sec, "--adopt", adopted.to_str().context("a path")?];
    with_plan(&Plan::proven(&words), |federation: &Federation| {
        let config = federation.dir().join("kdc/krb5.conf");
        // SAFETY: as before.
        unsafe { std::env::set_var("KRB5_CONFIG", config) };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let scene = Scene::new(federation, adopted.clone()).await?;
            attack(&scene).await?;
            // The last lines say goodbye.
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(())
        })
    })
}

fn table(sec: &str) -> Result<()> {
    with_scene(sec, async |scene| {
        connections::attack(scene).await.context("connections")?;
        frames::attack(scene).await.context("frames")?;
        capabilities::attack(scene).await.context("capabilities")?;
        paths::attack(scene).await.context("paths that lead out")?;
        stolen::attack(scene).await.context("stolen keys")?;
        users::attack(scene).await.context("clients that lie")?;
        registrations::attack(scene).await.context("clients that want to be waited for")?;
        spoofed::attack(scene).await.context("users who are said to ask")?;
        weak::data_is_forged(scene, false).await.context("data that is forged")?;
        stolen::site_admin(scene).await.context("a site's admin")?;
        // Honest work goes on as before, also that of servers for each other.
        scene.federation.shell("cat open > again && cmp open again && sync again")?;
        let again = scene.federation.mount().join("again");
        let again = again.to_string_lossy();
        scene.federation.tieline(&["mirror", "extend", "-N", "1", "-p", "fnal", &again])?;
        scene.federation.tieline(&["mirror", "resync", &again])?;
        scene.federation.tieline(&["mirror", "verify", &again]).map(drop)
    })
}

#[test]
fn nobody_gets_in_under_krb5i() -> Result<()> {
    alone(|| table("krb5i"))
}

#[test]
fn nobody_gets_in_under_krb5p() -> Result<()> {
    alone(|| table("krb5p"))
}

/// Promise 165: What a client was refused holds up nobody: not the owner's rm, nor his changes
/// below a directory that the client may not search.
///
/// Promise 166: A client that does not answer holds up others once; then it is given nothing that
/// others would have to wait for, for 20 s, and each time for twice as long, up to ten minutes.
///
/// Promise 167: An exclusive lock of fcntl is for who may write the file, a shared one for who may
/// read it, whatever a client says.
///
/// Promise 168: Locks of before a restart of the metadata server are theirs who held them, and
/// nobody else gets one by saying so.
#[test]
fn nobody_is_waited_for_who_has_no_right() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| registrations::attack(scene).await))
}

/// Promise 170: Who may write a file and not read or run it is told no byte of it, nor where its
/// bytes are.
///
/// Promise 172: Below a directory that somebody may not search he is told of nothing by the ids
/// that he names: no name, no target, no attribute and no byte of what is not his own.
#[test]
fn nobody_is_told_more_than_he_may_know() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| told::attack(scene).await))
}

/// Promise 171: A program's setuid, setgid and capabilities end when somebody other than root
/// changes its bytes, whatever his client says.
#[test]
fn nobody_is_believed_what_he_says() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| says::attack(scene).await))
}

/// Promise 195: The key of another site's metadata server has no bytes of others read by way of an
/// exposed directory or of tape, and no names of others changed or listed there.
#[test]
fn nothing_of_others_is_exposed_by_the_key_of_another_site() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| exposing::attack(scene).await))
}

#[test]
fn a_connection_takes_three_round_trips() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| connections::three_round_trips(scene).await))
}

#[test]
fn nobody_is_a_server_by_his_word_whatever_the_rule_for_servers() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| connections::unproven_role(scene).await))
}

#[test]
fn capabilities_end_and_are_taken_back() -> Result<()> {
    alone(|| {
        with_scene("krb5i", async |scene| capabilities::ends(scene).await)?;
        with_scene("krb5p", async |scene| capabilities::ends(scene).await)
    })
}

#[test]
fn a_door_speaks_for_those_who_came_and_for_nobody_else_under_krb5i() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| doors::attack(scene).await))
}

#[test]
fn a_door_speaks_for_those_who_came_and_for_nobody_else_under_krb5p() -> Result<()> {
    alone(|| with_scene("krb5p", async |scene| doors::attack(scene).await))
}

#[test]
fn half_open_connections_keep_nobody_from_working() -> Result<()> {
    alone(|| {
        with_scene("krb5i", async |scene| crowd::attack(scene).await)?;
        with_scene("krb5p", async |scene| crowd::attack(scene).await)
    })
}

/// Promise 175: A client that floods a metadata server or a data server takes a bounded part of its
/// memory, and others go on working beside it.
#[test]
fn a_flood_of_one_principal_takes_little_memory_and_holds_nobody_up() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| flood::attack(scene).await))
}

/// Measures, and asks for a machine without other work: docs/security.md, section 8.
#[test]
#[ignore = "measures"]
fn rates_beside_a_flood() -> Result<()> {
    alone(|| with_scene("krb5i", async |scene| flood::rates(scene).await))
}

#[test]
fn requests_that_say_more_than_they_may_take_little_memory() -> Result<()> {
    alone(|| with_plan(&Plan::default(), flood::without_bounds))
}

/// Promise 191: A client that reads none of the replies it asks for takes a bounded part of a
/// server's memory, and others go on working beside it.
#[test]
fn replies_that_nobody_reads_take_little_memory_and_hold_nobody_up() -> Result<()> {
    alone(|| with_plan(&Plan::default(), flood::unread))
}

/// Promise 192: One party cannot open sessions without end: it is told what to do, and who is there
/// works on.
#[test]
fn sessions_of_one_party_come_to_an_end() -> Result<()> {
    alone(|| with_plan(&Plan::default(), flood::sessions))
}

/// Promise 213: One client of a party cannot take all the connections that its party may have:
/// other clients of it come in.
#[test]
fn connections_of_one_client_come_to_an_end() -> Result<()> {
    alone(|| with_plan(&Plan::default(), flood::connections))
}

#[test]
fn work_goes_on_when_tickets_end_and_servers_restart() -> Result<()> {
    alone(|| with_scene("krb5p", async |scene| renewal::goes_on(scene).await))
}

#[test]
fn krb5a_lets_forged_data_through_and_krb5i_does_not() -> Result<()> {
    alone(|| {
        with_scene("krb5a", async |scene| weak::data_is_forged(scene, true).await)?;
        with_scene("krb5i", async |scene| weak::data_is_forged(scene, false).await)
    })
}

#[test]
fn krb5n_lets_requests_be_changed_after_its_first() -> Result<()> {
    alone(|| with_scene("krb5n", async |scene| weak::requests_are_changed(scene).await))
}
