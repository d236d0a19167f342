//! Which of a reply's lease units the asking session may hold.
//!
//! Whoever holds a lease makes others wait. So a session is given a directory for a caller who may
//! search it, and came there as programs come: through directories that the session holds, or that
//! the caller may search as well. Who is told of a directory with the one above it, as by `ls -l`,
//! and may not search it, holds it from outside. A file without a name is its keepers'.
//!
//! A session that serves many users holds what the most entitled of them may: what one of them was
//! given, the next is not judged for.
//!
//! What is read here nobody is told, so nobody is asked about it first.

use crate::error::Result;
use crate::leases::{Entitled, Standing};
use crate::mdt::Mdt;
use crate::permission::{self, SEARCH};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::mdt::{Inode, Orphan, key};
use tieline_types::{Caller, FileId, FileKind, SessionId};

/// Directories above each other: nobody means more.
const DEPTH_MAX: usize = 1024;

impl Mdt {
    /// Those of `units` that the session may hold, judged by the state that the view reads.
    pub(crate) async fn entitled(
        &self,
        view: &mut View<'_>,
        units: &[FileId],
    ) -> Result<Vec<Entitled>> {
        let (session, caller) = (view.scene.session, view.scene.caller);
        let inside = self.leases.inside(session, units);
        let (told, ways) = (units.iter().copied().collect(), BTreeMap::new());
        let mut judge = Judge { mdt: self, view, session, caller, told, ways };
        let mut entitled = Vec::with_capacity(units.len());
        for &unit in units {
            let standing = match inside.contains(&unit) {
                true => Some(Standing::Inside),
                false => judge.standing(unit).await?,
            };
            entitled.extend(standing.map(|standing| (unit, standing)));
        }
        Ok(entitled)
    }
}

struct Judge<'j, 'v> {
    mdt: &'j Mdt,
    view: &'j mut View<'v>,
    session: SessionId,
    caller: &'j Caller,
    /// All units that the reply tells of.
    told: BTreeSet<FileId>,
    /// Of directories: may the caller go through them?
    ways: BTreeMap<FileId, bool>,
}

impl Judge<'_, '_> {
    async fn standing(&mut self, unit: FileId) -> Result<Option<Standing>> {
        let Some(inode) = self.view.peek(unit).await? else { return Ok(None) };
        if inode.kind != FileKind::Directory {
            return self.is_keeper(unit).await.map(|is| is.then_some(Standing::Inside));
        }
        if !self.comes_to(unit, &inode).await? {
            return Ok(None);
        }
        if permission::is_allowed(&inode, self.caller, SEARCH) {
            return Ok(Some(Standing::Inside));
        }
        let is_beside = above(unit, &inode).is_some_and(|parent| self.told.contains(&parent));
        Ok(is_beside.then_some(Standing::Outside))
    }

    async fn is_keeper(&mut self, file: FileId) -> Result<bool> {
        let kept = self.view.record::<Orphan>(key::orphan(file, self.session)).await?;
        Ok(kept.is_some())
    }

    /// Is every directory above one the caller may go through, as far as the session holds none?
    async fn comes_to(&mut self, unit: FileId, inode: &Inode) -> Result<bool> {
        let Some(mut at) = above(unit, inode) else { return Ok(unit.is_root()) };
        let mut passed = vec![];
        let may = loop {
            if let Some(&may) = self.ways.get(&at) {
                break may;
            }
            passed.push(at);
            if !self.mdt.leases.inside(self.session, &[at]).is_empty() {
                break true;
            }
            let found = self.view.peek(at).await?.filter(|_| passed.len() <= DEPTH_MAX);
            let Some(inode) = found else { break false };
            if !permission::is_allowed(&inode, self.caller, SEARCH) {
                break false;
            }
            match above(at, &inode) {
                Some(parent) => at = parent,
                None => break at.is_root(),
            }
        };
        self.ways.extend(passed.into_iter().map(|passed| (passed, may)));
        Ok(may)
    }
}

fn above(directory: FileId, inode: &Inode) -> Option<FileId> {
    let name = inode.names.first().filter(|_| !directory.is_root());
    name.map(|name| name.parent)
}
