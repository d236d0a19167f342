//! A server's OSTs, as it opens them at its start: in directories, in buckets, or not there yet.
//!
//! What was made for this server has a file of its own in the state directory: nothing is made a
//! second time where something is gone.

use crate::settings::{Objects, OstPlan};
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tieline_blob::{AdoptedTree, ChunkStore, DirChunks, Identity, LateChunks};
use tieline_data::TargetParts;
use tieline_machine::private::write_whole;
use tieline_s3::S3Chunks;
use tieline_types::{FsName, OstIndex};
use tieline_world::World;

/// Opens them, and prepares those that are new.
pub(crate) async fn open(
    state: &Path,
    fs: &FsName,
    plans: Vec<OstPlan>,
    world: &World,
) -> anyhow::Result<BTreeMap<OstIndex, TargetParts>> {
    let mut osts = BTreeMap::new();
    for plan in plans {
        let identity = Identity { fs: fs.clone(), ost: plan.index };
        let made = state.join(format!("{}.made", plan.index.label().to_lowercase()));
        let store = match &plan.objects {
            Objects::Directory(path) => open_directory(path, identity, &made, world)?,
            Objects::Bucket(bucket) => open_bucket(bucket, identity, &made, world).await?,
        };
        let adopted = plan.adopt.map(|root| Arc::new(AdoptedTree::new(root)));
        if let Some(root) = adopted.as_ref().map(|tree| tree.root()).filter(|root| !root.is_dir()) {
            let ost = plan.index.label();
            let root = root.display();
            tracing::warn!(ost, %root, "the adopted tree is not there: is it mounted?");
        }
        osts.insert(plan.index, TargetParts { store, limits: plan.limits, adopted });
    }
    Ok(osts)
}

fn open_directory(
    path: &Path,
    identity: Identity,
    made: &Path,
    world: &World,
) -> anyhow::Result<Arc<dyn ChunkStore>> {
    if !made.exists() {
        DirChunks::format(path, &identity, &*world.dice)?;
        write_made(made, path.as_os_str().as_encoded_bytes())?;
    }
    let (ost, path) = (identity.ost.label(), path.to_owned());
    let open = move || DirChunks::open(&path, &identity).map(|store| Arc::new(store) as _);
    let opened = open();
    opened_or_late(opened, &ost, move || {
        let look = tokio::task::spawn_blocking(open.clone());
        async { look.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) }
    })
}

/// What was made for this server is known again by the uuid in `made`.
async fn open_bucket(
    bucket: &tieline_s3::Settings,
    identity: Identity,
    made: &Path,
    world: &World,
) -> anyhow::Result<Arc<dyn ChunkStore>> {
    if !made.exists() {
        let uuid = S3Chunks::format(bucket, &identity, world).await?;
        write_made(made, uuid.as_bytes())?;
    }
    let uuid =
        std::fs::read_to_string(made).with_context(|| format!("cannot read {}", made.display()))?;
    let (ost, bucket, world) = (identity.ost.label(), bucket.clone(), world.clone());
    let open = move || {
        let (bucket, identity, world) = (bucket.clone(), identity.clone(), world.clone());
        let uuid = uuid.trim().to_owned();
        async move {
            let store = S3Chunks::open(&bucket, &identity, &uuid, &world).await?;
            Ok(Arc::new(store) as Arc<dyn ChunkStore>)
        }
    };
    let opened = open().await;
    opened_or_late(opened, &ost, open)
}

fn write_made(made: &Path, whose: &[u8]) -> anyhow::Result<()> {
    write_whole(made, whose).with_context(|| format!("cannot write {}", made.display()))
}

/// An OST's objects: also if they are not there now, since others should not suffer for that.
fn opened_or_late<F>(
    opened: Result<Arc<dyn ChunkStore>, tieline_blob::Error>,
    ost: &str,
    again: impl Fn() -> F + Send + Sync + 'static,
) -> anyhow::Result<Arc<dyn ChunkStore>>
where
    F: Future<Output = Result<Arc<dyn ChunkStore>, tieline_blob::Error>> + Send + 'static,
{
    match opened {
        Ok(store) => Ok(store),
        Err(why @ (tieline_blob::Error::Missing { .. } | tieline_blob::Error::Failed { .. })) => {
            let reason = tieline_base::report::chain(&why);
            tracing::error!(ost, %reason, "not served until it is there; the rest is served");
            Ok(Arc::new(LateChunks::new(&why, again)))
        }
        Err(error) => Err(error.into()),
    }
}
