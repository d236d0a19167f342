//! What a client does by itself in directories that it holds alone: seen by others at once, sent
//! within a second, and not lost with a server.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tieline_lab::{Federation, with_federation};

const FILES: usize = 300;

fn content(number: usize) -> Vec<u8> {
    format!("file {number} ").repeat(number % 40).into_bytes()
}

/// Makes files in a new directory, and changes some of them again.
fn work(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    for number in 0..FILES {
        let path = folder.join(number.to_string());
        fs::write(&path, content(number))?;
        match number % 5 {
            0 => fs::rename(&path, folder.join(format!("moved-{number}")))?,
            1 => fs::remove_file(&path)?,
            _ => {}
        }
    }
    fs::create_dir(folder.join("below"))?;
    fs::write(folder.join("below/deep"), "deep")?;
    Ok(())
}

fn check(folder: &Path) -> Result<()> {
    for number in 0..FILES {
        let plain = folder.join(number.to_string());
        let path = match number % 5 {
            0 => folder.join(format!("moved-{number}")),
            1 => {
                ensure!(!plain.exists(), "{plain:?} was removed");
                continue;
            }
            _ => plain,
        };
        let read = fs::read(&path).with_context(|| format!("{path:?}"))?;
        ensure!(read == content(number), "{path:?} changed");
    }
    ensure!(fs::read_to_string(folder.join("below/deep"))? == "deep");
    ensure!(fs::read_dir(folder)?.count() == FILES - FILES / 5 + 1, "names of {folder:?}");
    Ok(())
}

fn sync(lab: &Federation, path: &Path) -> Result<()> {
    lab.tieline(&[OsStr::new("sync"), path.as_os_str()])?;
    Ok(())
}

#[test]
fn others_see_it_at_once() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        for round in 0..3 {
            let (here, there) = match round % 2 {
                0 => (lab.mount(), far.as_path()),
                _ => (far.as_path(), lab.mount()),
            };
            let name = format!("work-{round}");
            work(&here.join(&name))?;
            check(&there.join(&name))?;
            // And the other way round, in the same directory.
            fs::write(there.join(&name).join("answer"), "yes")?;
            ensure!(fs::read_to_string(here.join(&name).join("answer"))? == "yes");
        }
        Ok(())
    })
}

#[test]
fn a_server_dies_before_it_was_told() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        for round in 0..3 {
            let name = format!("work-{round}");
            work(&lab.mount().join(&name))?;
            lab.kill_and_restart("mds-uf")?;
            check(&far.join(&name)).with_context(|| format!("there, round {round}"))?;
            check(&lab.mount().join(&name)).with_context(|| format!("here, round {round}"))?;
        }
        Ok(())
    })
}

/// Promise 32: What was done is at the servers within a second, also if nobody asks for it.
#[test]
fn what_was_done_is_sent_soon() -> Result<()> {
    with_federation(|lab| {
        work(&lab.mount().join("work"))?;
        std::thread::sleep(Duration::from_secs(1));
        lab.kill_client("mount-0")?;
        check(&lab.mount_again()?.join("work"))
    })
}

/// Promise 33: When `tieline sync` or fsync of a directory has ended, what was done before it
/// survives the death of any server process and of the mount.
#[test]
fn a_sync_waits_for_the_servers() -> Result<()> {
    with_federation(|lab| {
        work(&lab.mount().join("one"))?;
        sync(lab, lab.mount())?;
        work(&lab.mount().join("two"))?;
        File::open(lab.mount().join("two"))?.sync_all()?;
        let mut file = File::create(lab.mount().join("two/synced"))?;
        file.write_all(b"synced")?;
        file.sync_all()?;
        lab.kill_client("mount-0")?;
        let far = lab.mount_again()?;
        check(&far.join("one"))?;
        ensure!(fs::read_to_string(far.join("two/synced"))? == "synced");
        fs::remove_file(far.join("two/synced"))?;
        check(&far.join("two"))
    })
}
