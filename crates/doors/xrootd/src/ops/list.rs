//! What is in a directory: names, or names with attributes.
//!
//! Invariant: however large a directory is, no more than a page of names and a frame of text is in
//! memory.

use super::{Asked, Outcome};
use crate::refusal::Refusal;
use crate::request::Path;
use crate::stat;
use tieline_files::{Error, Listed};
use tieline_types::{Attributes, Doing, ErrorKind, HandleId};

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
        let listed = self.listed(handle, &shown, Wanted { stat, checksums }).await;
        self.files().release_directory(handle).await;
        listed
    }

    async fn listed(&self, handle: HandleId, path: &str, wanted: Wanted) -> Outcome {
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
                let Some(more) = self.told_of(&one, wanted).await? else { continue };
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
    async fn told_of(&self, one: &Listed, wanted: Wanted) -> Result<Option<String>, Refusal> {
        if !wanted.stat {
            return Ok(Some(String::new()));
        }
        let attributes = match &one.known {
            Some(known) => Ok(known.attributes.clone()),
            // Another MDT has them.
            None => {
                let known = self.files().attributes(self.guest.visitor.caller(), one.id).await;
                known.map(|known| known.attributes)
            }
        };
        let line = match attributes {
            Ok(attributes) => self.told(&attributes, wanted),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {
                return Ok(None);
            }
            Err(_) => UNKNOWN.to_owned(),
        };
        Ok(Some(line + "\n"))
    }

    fn told(&self, of: &Attributes, wanted: Wanted) -> String {
        let line = stat::line(of, self.guest.visitor.caller());
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
