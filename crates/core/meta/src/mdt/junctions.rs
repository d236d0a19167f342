//! What stands at the names of junctions: it would be hidden by the MDTs that are mounted there.
//!
//! Changes that a client has not sent yet are not waited for: they are refused when they come.

use crate::error::Error;
use crate::mdt::Mdt;
use crate::view::decode;
use tieline_format::map::{FederationMap, Junction};
use tieline_format::mdt::{Entry, key};
use tieline_types::{ErrorKind, FileKind};
use tieline_wire::Failure;

impl Mdt {
    /// Refuses a map with a new junction that hides a name of this MDT.
    pub async fn check_junctions(
        &self,
        before: &FederationMap,
        after: &FederationMap,
    ) -> Result<(), Failure> {
        let is_new = |junction: &&Junction| !before.junctions.contains(junction);
        let new: Vec<&Junction> = after.junctions.iter().filter(is_new).collect();
        let hidden = self.hidden(&new).await;
        let hidden = hidden.map_err(|error| error.into_failure(self.settings.mdt))?;
        let Some((junction, kind)) = hidden.first() else { return Ok(()) };
        let (name, what) = (&junction.name, kind_word(*kind));
        let detail = format!(
            "the {what} `{name}` is there already, and nobody would find it below the new MDT: \
             rename it first (`mv {name} {name}.old`; its files can be moved in later), or bring \
             OSTs only"
        );
        Err(Failure::new(ErrorKind::Exists, detail))
    }

    /// Says at the start what is hidden, whoever made the map.
    pub async fn tell_hidden(&self) {
        let current = self.parts.map.current();
        let all: Vec<&Junction> = current.map.junctions.iter().collect();
        // What cannot be read now is told by who needs it.
        for (junction, _) in self.hidden(&all).await.unwrap_or_default() {
            let (name, mdt) = (&junction.name, junction.mdt.label());
            tracing::warn!(%name, mdt, "hidden by the MDT mounted there; `tieline fsck` says more");
        }
    }

    /// Those junctions in directories of this MDT at whose name something is.
    async fn hidden<'j>(
        &self,
        junctions: &[&'j Junction],
    ) -> Result<Vec<(&'j Junction, FileKind)>, Error> {
        let own = junctions.iter().copied().filter(|one| one.parent.mdt() == self.settings.mdt);
        let own: Vec<&Junction> = own.collect();
        if own.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = own.iter().map(|one| key::entry(one.parent, &one.name)).collect();
        let values = self.parts.store.begin().await?.read(&keys).await?;
        let mut hidden = Vec::new();
        for (junction, value) in own.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let entry: Entry = decode(&value, || junction.name.to_string())?;
            hidden.push((junction, entry.kind));
        }
        Ok(hidden)
    }
}

/// For people.
pub(crate) fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        _ => "file",
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{House, ROOT, map_cell, name};
    use tieline_format::map::Junction;
    use tieline_types::{ErrorKind, MdtIndex};

    #[tokio::test(start_paused = true)]
    async fn a_junction_hides_no_name() {
        let house = House::new().await;
        house.client().await.mkdir(ROOT, "psc").await;
        let before = map_cell().current().map.clone();
        let with = |text: &str| {
            let mut after = before.clone();
            after.junctions.push(Junction { parent: ROOT, name: name(text), mdt: MdtIndex(2) });
            after
        };
        let refused = house.mdt.check_junctions(&before, &with("psc")).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Exists);
        assert!(refused.detail.contains("`mv psc psc.old`"), "{}", refused.detail);
        house.mdt.check_junctions(&before, &with("bnl")).await.unwrap();
        // Whatever is hidden already keeps nobody from other changes.
        house.mdt.check_junctions(&with("psc"), &with("psc")).await.unwrap();
    }
}
