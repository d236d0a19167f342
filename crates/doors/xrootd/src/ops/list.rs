//! What is in a directory: names, or names with attributes.
//!
//! Invariant: however large a directory is, no more than a page of names and a frame of text is in
//! memory.

use super::{Asked, Outcome};
use crate::request::Path;
use crate::stat;
use tieline_files::{Entry, Error, LastLink, Listed};
use tieline_types::{Attributes, Doing, ErrorKind, FileKind, HandleId};

/// Names that are asked for at once.
const PAGE: usize = 1000;
/// Text that is sent at once.
const TEXT: usize = 64 << 10;
/// By which clients know that attributes follow.
const HAS_ATTRIBUTES: &str = ".\n0 0 0 0\n";
/// Of what cannot be looked at.
const UNKNOWN: &str = "0 0 0 0";

/// What is told with each name.
#[derive(Clone, Copy)]
struct Wanted {
    stat: bool,
    checksums: bool,
}

impl Asked {
    pub(super) async fn list(&self, path: &Path, stat: bool, checksums: bool) -> Outcome {
        let entry = self.find(path).await?;
        let shown = path.shown();
        let refused = |error: Error| self.refused(&shown, &error);
        self.guest.who.may(&entry.way, Doing::Read).map_err(refused)?;
        let caller = self.guest.visitor.caller();
        let handle = self.files().open_directory(caller, entry.id()).await.map_err(refused)?;
        let listed = self.listed((&entry, handle), &shown, Wanted { stat, checksums }).await;
        self.files().release_directory(handle).await;
        listed
    }

    async fn listed(
        &self,
        (directory, handle): (&Entry, HandleId),
        path: &str,
        wanted: Wanted,
    ) -> Outcome {
        let mut text = if wanted.stat { HAS_ATTRIBUTES.as_bytes().to_vec() } else { Vec::new() };
        let mut from = 0;
        loop {
            let page = self.files().read_directory(handle, from, PAGE, wanted.stat).await;
            let page = page.map_err(|error| self.refused(path, &error))?;
            let Some(last) = page.last() else { break };
            from = last.next;
            for one in page {
                // A line of its own is all that a name has.
                if one.name.as_bytes().contains(&b'\n') {
                    continue;
                }
                let Some(more) = self.told_of(directory, &one, wanted).await else { continue };
                // The last piece must have something: its end is written otherwise.
                if text.len() >= TEXT {
                    self.partly(&text).await?;
                    text.clear();
                }
                text.extend_from_slice(one.name.as_bytes());
                text.push(b'\n');
                text.extend_from_slice(more.as_bytes());
            }
        }
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
        Ok(text.into())
    }

    /// What follows a name; `None`: it went meanwhile.
    async fn told_of(&self, directory: &Entry, one: &Listed, wanted: Wanted) -> Option<String> {
        if !wanted.stat {
            return Some(String::new());
        }
        let line = match self.looked_at(directory, one).await {
            Ok(attributes) => self.told(&attributes, wanted),
            Err(error) if error.kind() == ErrorKind::Stale => return None,
            Err(_) => UNKNOWN.to_owned(),
        };
        Some(line + "\n")
    }

    /// What a client finds there that asks for the name: links are followed.
    async fn looked_at(&self, directory: &Entry, one: &Listed) -> Result<Attributes, Error> {
        if one.kind == FileKind::Symlink {
            let paths = &self.session.shared.offer.paths;
            let (who, name) = (&self.guest.who, one.name.as_bytes());
            let found = paths.find_from(who, directory, name, LastLink::Followed).await?;
            return Ok(found.attributes);
        }
        if let Some(known) = &one.known {
            return Ok(known.attributes.clone());
        }
        // Another MDT has them.
        let known = self.files().attributes(self.guest.visitor.caller(), one.id).await;
        Ok(known?.attributes)
    }

    fn told(&self, of: &Attributes, wanted: Wanted) -> String {
        let line = self.line(of);
        if !wanted.checksums {
            return line;
        }
        // Nobody who lists waits until all are computed.
        let known = self.session.shared.checksums.known(of.content_version());
        match known.filter(|_| stat::is_readable(of, self.guest.visitor.caller())) {
            Some(sum) => format!("{line} [ adler32:{sum:08x} ]"),
            None => format!("{line} [ none ]"),
        }
    }
}
