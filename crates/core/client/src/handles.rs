//! Open files and directories by number.

use crate::ahead::Pattern;
use crate::file::File;
use crate::late::Seen;
use crate::listing::Listing;
use crate::volume::lock;
use crate::{Access, Error, HandleId, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tieline_types::{Caller, ErrorKind};

/// An open file: rights were found at open and belong to it.
pub(crate) struct FileHandle {
    pub file: Arc<File>,
    pub caller: Caller,
    pub access: Access,
    pub pattern: Mutex<Pattern>,
    /// Losses of the file that it need not be told of.
    pub seen: Seen,
}

#[derive(Clone)]
enum Open {
    File(Arc<FileHandle>),
    Directory(Arc<Listing>),
}

#[derive(Default)]
pub(crate) struct Handles {
    table: Mutex<BTreeMap<u64, Open>>,
    last: AtomicU64,
}

impl Handles {
    pub fn add_file(&self, file: FileHandle) -> HandleId {
        self.add(Open::File(Arc::new(file)))
    }

    pub fn add_directory(&self, listing: Listing) -> HandleId {
        self.add(Open::Directory(Arc::new(listing)))
    }

    pub fn file(&self, handle: HandleId) -> Result<Arc<FileHandle>> {
        match lock(&self.table).get(&handle.0) {
            Some(Open::File(file)) => Ok(file.clone()),
            _ => Err(bad(handle)),
        }
    }

    pub fn directory(&self, handle: HandleId) -> Result<Arc<Listing>> {
        match lock(&self.table).get(&handle.0) {
            Some(Open::Directory(listing)) => Ok(listing.clone()),
            _ => Err(bad(handle)),
        }
    }

    /// Closes a handle; gives the file back that it was of.
    pub fn remove(&self, handle: HandleId) -> Option<Arc<FileHandle>> {
        match lock(&self.table).remove(&handle.0)? {
            Open::File(file) => Some(file),
            Open::Directory(_) => None,
        }
    }

    fn add(&self, open: Open) -> HandleId {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.table).insert(number, open);
        HandleId(number)
    }
}

fn bad(handle: HandleId) -> Error {
    Error::local(ErrorKind::BadHandle, format!("handle {}", handle.0))
}
