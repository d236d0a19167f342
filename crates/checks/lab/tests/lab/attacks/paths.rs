//! Paths out of what an OST may adopt, and names that are paths.

use super::capabilities::read_as;
use super::hostile::{Guise, Line, Scene, refused};
use anyhow::{Context, Result, ensure};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use tieline_types::{Caller, FileId, ObjectName, OstIndex, OstPlace, Time};
use tieline_wire::Call;
use tieline_wire::data::ListAdopted;
use tieline_wire::meta::{Batch, BatchItem, RemoveDirectory};

/// The first OST, which adopts.
const ADOPTER: OstIndex = OstIndex(0);
/// Two letters that no other part of a message holds.
const NAME: &str = "QZ";

/// A folder with a tree to be adopted, ways out of it, and what nobody may have.
pub fn make(folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("below"))?;
    std::fs::write(tree.join("inside"), "inside")?;
    std::fs::write(folder.join("secret"), "secret")?;
    symlink("..", tree.join("out"))?;
    symlink("../secret", tree.join("link"))?;
    Ok(tree)
}

/// Root of a machine that is believed may name adopted files by their paths: none leads out.
pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let oss = scene.dial(&scene.oss, &Guise::of(&scene.machine, 70));
    let root = Caller::root();
    let tree = scene.adopted.clone();
    let secret = tree.parent().context("a tree lies in a folder")?.join("secret");
    let inside = read_as(&oss, &root, &adopted("inside", &tree.join("inside"))?, None).await?;
    ensure!(inside.starts_with(b"inside"), "{inside:?}");
    // A link in the place of what was adopted is the site's own change, and told as such.
    scene.federation.expect_log("a symlink stands on the way to it");
    let absolute = secret.to_string_lossy().into_owned();
    for path in ["../secret", "out/secret", "link", "below/../../secret", "./../secret", &absolute]
    {
        let why = read_as(&oss, &root, &adopted(path, &secret)?, None).await;
        let why = refused(path, why)?;
        ensure!(why.contains("OST0000"), "{path}: refused for another reason: {why}");
    }
    for directory in ["..", "out", "/", "out/.."] {
        let (ost, directory) = (ADOPTER, directory.as_bytes().to_vec());
        let list = ListAdopted { ost, directory, after: None, limit: 10 };
        let why = refused("listing outside", oss.ask(&root, list).await)?;
        ensure!(why.contains("OST0000"), "refused for another reason: {why}");
    }
    names(&scene.dial(&scene.mds, &Guise::of(&scene.machine, 71))).await
}

/// With the size and time that the file has: only the path is wrong.
pub fn adopted(path: &str, is: &Path) -> Result<OstPlace> {
    let metadata = std::fs::metadata(is)?;
    let mtime_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
    let object = ObjectName::External { path: path.into(), size: metadata.len(), mtime_ns };
    Ok(OstPlace { ost: ADOPTER, object, offset: 0, length: metadata.len(), is_stale: false })
}

/// No name that a client sends is a path: our own types cannot even say one.
async fn names(mds: &Line) -> Result<()> {
    for name in [NAME, "..", "a/", "/a", "a\0"] {
        let remove = RemoveDirectory { parent: FileId(1), name: NAME.parse()? };
        let mut message = tieline_wire::encode(&remove);
        let at = message.windows(2).position(|two| two == NAME.as_bytes()).context("its name")?;
        message[at..at + 2].copy_from_slice(name.as_bytes());
        let at = Time { seconds: 1_700_000_000, nanos: 0 };
        let (caller, id) = (Caller::root(), FileId(1));
        let item = BatchItem { caller, at, id, op: RemoveDirectory::OP.number(), message };
        let batch = Batch { items: vec![item] };
        let reply = mds.ask(&Caller::root(), batch).await?;
        let outcome = reply.outcomes.into_iter().next().context("an outcome")?;
        let said = outcome.failure.map(|failure| failure.to_string()).unwrap_or_default();
        // There is nothing of a name that is one: then there is nothing to be done.
        let is_name = !said.contains("cannot be read");
        ensure!(is_name == (name == NAME), "{name:?}: {said}");
    }
    Ok(())
}
