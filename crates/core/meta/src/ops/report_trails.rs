//! ReportTrails: how programs went through directories, for whoever comes after.
//!
//! How it joins what was known, `tieline_foresight` says. Nothing rests on trails: they cost
//! readers a little bandwidth when they are wrong. So no version, no time and no lease is touched,
//! and directories that are held alone are not asked for.
//!
//! Invariant: a trail names at most [`TRAIL_MAX`] files, of one MDT.

use crate::error::{Error, Result};
use crate::permission::{self, SEARCH};
use crate::view::{View, decode};
use tieline_foresight::walks::merge;
use tieline_format::mdt::{self, Inode, key};
use tieline_types::{FileId, FileKind};
use tieline_wire::trees::{ReportTrails, ReportTrailsReply, TRAIL_MAX, Trail};

pub async fn run(view: &mut View<'_>, request: &ReportTrails) -> Result<ReportTrailsReply> {
    if request.trails.len() > TRAIL_MAX {
        return Err(Error::Invalid { what: "trails of more than 256 directories are reported" });
    }
    let mut kept = 0;
    let (mut known, mine) = (vec![], view.scene.mdt);
    for one in request.trails.iter().filter(|one| one.directory.mdt() == mine) {
        let id = one.directory;
        let mut values = view.read(&[key::inode(id), key::trail(id)]).await?.into_iter();
        let Some(inode) = values.next().flatten() else { continue };
        let inode: Inode = decode(&inode, || id.to_string())?;
        let may_walk = inode.kind == FileKind::Directory
            && permission::is_allowed(&inode, view.scene.caller, SEARCH);
        if may_walk {
            let old = values.next().flatten();
            let old: Option<mdt::Trail> =
                old.map(|old| decode(&old, || id.to_string())).transpose()?;
            known.push((id, old.unwrap_or_default(), &one.trail));
        }
    }
    for (id, old, new) in known {
        let merged = merged(&old, new);
        if merged != old {
            view.put(key::trail(id), &merged);
            kept += 1;
        }
    }
    Ok(ReportTrailsReply { kept })
}

fn merged(old: &mdt::Trail, new: &Trail) -> mdt::Trail {
    let mdt::Trail { files, next } = old.clone();
    let Trail { files, next } = merge(&Trail { files, next }, new);
    mdt::Trail { files, next }
}

/// What is known of a directory.
pub async fn trail(view: &mut View<'_>, id: FileId) -> Result<Option<Trail>> {
    let trail: Option<mdt::Trail> = view.record(key::trail(id)).await?;
    Ok(trail.map(|mdt::Trail { files, next }| Trail { files, next }))
}
