//! What an adopted file has beside its bytes: owner, mode, times, attributes and access lists.
//!
//! Invariant: nobody may do here what the source does not let him. Where a file has a list, its
//! mode's group bits are the list's mask: without the list they are more than its group has.

use super::Import;
use std::sync::PoisonError;
use tieline_files::AttributeChange;
use tieline_types::acl::{ACCESS_NAME, DEFAULT_NAME, Who, group_alone, renamed};
use tieline_types::{
    Attributes, ErrorKind, FileId, FileKind, Mode, SetTime, Shown, XattrMode, XattrName,
};
use tieline_wire::data::AdoptedEntry;

impl Import {
    /// Makes a file what the source's is. `found`: as it is here.
    pub(super) async fn dress(
        &self,
        found: &Attributes,
        path: &[u8],
        entry: &AdoptedEntry,
    ) -> anyhow::Result<()> {
        let (files, caller, id) = (&self.shell.files, &self.shell.caller, found.id);
        for xattr in entry.xattrs.iter().filter(|xattr| !is_list(&xattr.name)) {
            let set =
                files.set_xattr(caller, id, &xattr.name, &xattr.value, XattrMode::Either).await;
            match set {
                // What we compute ourselves is not taken over.
                Err(error) if error.kind() == ErrorKind::NotSupported => {}
                Err(error) if error.kind() == ErrorKind::NotPermitted => {}
                other => other?,
            }
        }
        let change = AttributeChange {
            uid: Some(self.owners.user(entry.uid)),
            gid: Some(self.owners.group(entry.gid)),
            mtime: Some(SetTime::At(entry.mtime)),
            ..AttributeChange::default()
        };
        files.set_attributes(caller, id, None, change).await?;
        if entry.kind != FileKind::Symlink {
            let mode = self.lists(found, path, entry).await?;
            // After the owner, whose change takes setuid away.
            let mode = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
            files.set_attributes(caller, id, None, mode).await?;
        }
        Ok(())
    }

    /// Gives a file the source's lists and no others, such as its directory here hands down. Says
    /// the mode that goes with them.
    async fn lists(
        &self,
        found: &Attributes,
        path: &[u8],
        entry: &AdoptedEntry,
    ) -> anyhow::Result<Mode> {
        let mut mode = entry.mode;
        for name in [ACCESS_NAME, DEFAULT_NAME] {
            let name = XattrName::new(name.to_vec())?;
            let list = entry.xattrs.iter().find(|xattr| xattr.name == name);
            let Some(list) = list else {
                if has_list(found, &name) {
                    self.set_list(found.id, &name, &[]).await?;
                }
                continue;
            };
            let here = renamed(&list.value, |who| match who {
                Who::User(uid) => Who::User(self.owners.user(uid)),
                Who::Group(gid) => Who::Group(self.owners.group(gid)),
            });
            let why = match here {
                Ok(here) => match self.set_list(found.id, &name, &here).await {
                    Ok(()) => continue,
                    Err(error) if error.kind() == ErrorKind::NotSupported => error.to_string(),
                    Err(error) => return Err(error.into()),
                },
                Err(error) => error.to_string(),
            };
            if has_list(found, &name) {
                self.set_list(found.id, &name, &[]).await?;
            }
            if name.as_bytes() == ACCESS_NAME {
                let group = u32::from(group_alone(&list.value)) << 3;
                mode = Mode::new(mode.bits() & (!0o070 | group));
            }
            let path = Shown(path);
            let line = format!("{path}: its access list `{name}` is not kept: {why}");
            self.narrowed.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
        Ok(mode)
    }

    async fn set_list(
        &self,
        id: FileId,
        name: &XattrName,
        list: &[u8],
    ) -> tieline_files::Result<()> {
        let mode = XattrMode::Either;
        self.shell.files.set_xattr(&self.shell.caller, id, name, list, mode).await
    }
}

fn is_list(name: &XattrName) -> bool {
    [ACCESS_NAME, DEFAULT_NAME].contains(&name.as_bytes())
}

fn has_list(found: &Attributes, name: &XattrName) -> bool {
    let acls = found.acls.as_deref();
    acls.is_some_and(|acls| match name.as_bytes() {
        ACCESS_NAME => acls.access.is_some(),
        _ => acls.default.is_some(),
    })
}
