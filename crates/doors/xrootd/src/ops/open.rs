//! Opening a file to be read.

use super::{Asked, Outcome};
use crate::handles::{OPEN_ALL_MAX, OpenFile};
use crate::refusal::{Code, Refusal};
use crate::request::Path;
use bytes::BufMut;
use tieline_files::{Access, Held};
use tieline_types::FileKind;

impl Asked {
    pub(super) async fn open(&self, path: &Path, wants_stat: bool) -> Outcome {
        let place = self.session.shared.files.clone().try_acquire_owned();
        let full = |_| {
            let what = format!("{OPEN_ALL_MAX} files are open at this door: try again later");
            Refusal::new(Code::Overloaded, what)
        };
        let _place = place.map_err(full)?;
        let (held, shown) = self.held(path).await?;
        let attributes = held.attributes.clone();
        let handle = self.session.handles.add(OpenFile { held, path: shown, _place })?;
        let mut told = Vec::new();
        told.put_u32(handle);
        if wants_stat {
            // How the file is packed: it is not.
            told.put_u64(0);
            told.put_slice(self.line(&attributes).as_bytes());
            told.put_u8(0);
        }
        Ok(told.into())
    }

    /// A file that is open to be read, and its path for people.
    pub(super) async fn held(&self, path: &Path) -> Result<(Held, String), Refusal> {
        let entry = self.find(path).await?;
        let shown = path.shown();
        match entry.attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => {
                let what = format!("{shown}: is a directory");
                return Err(Refusal::new(Code::IsDirectory, what));
            }
            _ => return Err(Refusal::new(Code::NotFile, format!("{shown}: is no file"))),
        }
        let access = Access { read: true, ..Access::default() };
        let held = Held::open(self.files().clone(), &self.guest.who, &entry, access).await;
        Ok((held.map_err(|error| self.refused(&shown, &error))?, shown))
    }
}
