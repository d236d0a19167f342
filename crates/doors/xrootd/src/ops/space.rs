//! How much room there is.

use super::{Asked, Outcome};
use crate::refusal::Refusal;
use crate::request::{Named, Path};
use tieline_files::FsSpace;

impl Asked {
    /// As storage elements tell of a space: a person's client shows it.
    pub(super) async fn space(&self, path: &Path) -> Outcome {
        let FsSpace { bytes_total, bytes_free, .. } = self.told_space(path).await?;
        let used = bytes_total.saturating_sub(bytes_free);
        let text = format!(
            "oss.cgroup=public&oss.space={bytes_total}&oss.free={bytes_free}\
             &oss.maxf={bytes_free}&oss.used={used}&oss.quota=-1\0"
        );
        Ok(text.into())
    }

    /// As `statvfs` tells of it: servers to be written to, MiB free, percent used; the same of
    /// those that stage.
    pub(super) async fn space_at(&self, of: &Named) -> Outcome {
        let space = match of {
            Named::Path(path) => self.told_space(path).await?,
            Named::Handle(handle) => {
                let file = self.session.handles.get(*handle)?;
                let told = self.files().statfs(file.held.attributes.id).await;
                told.map_err(|error| self.refused(&self.path_of(*handle), &error))?
            }
        };
        let used = space.bytes_total.saturating_sub(space.bytes_free);
        let percent = (used.saturating_mul(100)).checked_div(space.bytes_total).unwrap_or(0);
        Ok(format!("1 {} {percent} 0 0 0\0", space.bytes_free >> 20).into())
    }

    async fn told_space(&self, path: &Path) -> Result<FsSpace, Refusal> {
        let entry = self.find(path).await?;
        let told = self.files().statfs(entry.id()).await;
        told.map_err(|error| self.refused(&path.shown(), &error))
    }
}
