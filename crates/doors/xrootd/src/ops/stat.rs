//! Attributes: of a path, of an open file, of many paths.

use super::{Asked, Outcome};
use crate::refusal::Refusal;
use crate::request::{Named, Path};
use crate::stat;
use tieline_types::Attributes;

impl Asked {
    pub(super) async fn stat(&self, of: &Named) -> Outcome {
        let attributes = self.attributes(of).await?;
        Ok((self.line(&attributes) + "\0").into())
    }

    /// One byte of flags for each path.
    pub(super) async fn stat_many(&self, paths: &[Path]) -> Outcome {
        let mut flags = Vec::with_capacity(paths.len());
        for path in paths {
            let entry = self.find(path).await?;
            flags.push(stat::flags(&entry.attributes, self.guest.visitor.caller()));
        }
        Ok(flags.into())
    }

    pub(super) async fn attributes(&self, of: &Named) -> Result<Attributes, Refusal> {
        match of {
            Named::Path(path) => Ok(self.find(path).await?.attributes),
            Named::Handle(handle) => {
                let file = self.session.handles.get(*handle)?;
                let caller = self.guest.visitor.caller();
                let told = self.files().attributes(caller, file.held.attributes.id).await;
                Ok(told.map_err(|error| self.refused(&file.path, &error))?.attributes)
            }
        }
    }

    pub(super) fn line(&self, of: &Attributes) -> String {
        let (owner, group) = self.session.shared.offer.visitors.names(of.uid, of.gid);
        stat::line(of, self.guest.visitor.caller(), (&owner, &group))
    }
}
