//! ReportBundle: what a program opened in a tree, for whoever runs it after.
//!
//! Which runs are of one program and how they join, `tieline_foresight` says. Nothing rests on
//! bundles: they cost readers a little bandwidth when they are wrong. So no version, no time and no
//! lease is touched, and directories that are held alone are not asked for.
//!
//! Invariants: what the caller may not search and read is not kept; a directory has at most as many
//! bundles as `KEPT_MAX` says.

use super::read_bundle::Judge;
use crate::error::{Error, Result};
use crate::view::View;
use tieline_foresight::bundles::{
    FILES_MIN, KEPT_MAX, are_same, joined, of_run, signs, to_replace,
};
use tieline_format::mdt::{Bundle, BundleHead, Bundles, key};
use tieline_types::FileId;
use tieline_wire::trees::{BUNDLE_MAX, ReportBundle, ReportBundleReply};

/// That a bundle was used is noted so often.
const USE_NOTED_S: i64 = 600;

pub async fn run(view: &mut View<'_>, request: &ReportBundle) -> Result<ReportBundleReply> {
    let ReportBundle { root, directories, files } = request;
    if directories.len() > BUNDLE_MAX || files.len() > BUNDLE_MAX {
        return Err(Error::Invalid { what: "a bundle of more than 4096 files is reported" });
    }
    let mut judge = Judge::default();
    let not_kept = ReportBundleReply { number: None };
    if !judge.may_be_told(view, *root).await? {
        return Ok(not_kept);
    }
    let directories = judge.directories(view, directories).await?;
    let files = judge.files(view, files).await?;
    let files: Vec<FileId> = files.into_iter().map(|file| file.id).collect();
    if files.len() < FILES_MIN {
        return Ok(not_kept);
    }
    let number = keep(view, *root, of_run(&directories, &files)).await?;
    Ok(ReportBundleReply { number: Some(number) })
}

/// Joins a run with what is known of its program. Gives the bundle's number.
async fn keep(view: &mut View<'_>, root: FileId, new: Bundle) -> Result<u32> {
    let known: Option<Bundles> = view.record(key::bundles(root)).await?;
    let mut heads = known.unwrap_or_default().heads;
    let now = view.scene.now;
    let Some((at, old)) = find(view, root, &heads, &new).await? else {
        let by = view.scene.caller.uid;
        let number = match to_replace(&heads, by) {
            Some(at) => heads.remove(at).number,
            None => free_number(&heads),
        };
        heads.insert(0, BundleHead { number, by, used: now, signs: signs(&new) });
        view.put(key::bundle(root, number), &new);
        view.put(key::bundles(root), &Bundles { heads });
        return Ok(number);
    };
    let new = joined(&old, &new);
    let mut head = heads.remove(at);
    let number = head.number;
    if new != old {
        view.put(key::bundle(root, number), &new);
    }
    let told = signs(&new);
    let is_noted = now.seconds.abs_diff(head.used.seconds) < USE_NOTED_S.unsigned_abs();
    if told != head.signs || !is_noted {
        (head.signs, head.used) = (told, now);
        heads.insert(0, head);
        view.put(key::bundles(root), &Bundles { heads });
    }
    Ok(number)
}

/// The bundle of the same program, if it is known, and where among the others it stands.
async fn find(
    view: &mut View<'_>,
    root: FileId,
    heads: &[BundleHead],
    new: &Bundle,
) -> Result<Option<(usize, Bundle)>> {
    for (at, head) in heads.iter().enumerate() {
        let old: Option<Bundle> = view.record(key::bundle(root, head.number)).await?;
        if let Some(old) = old.filter(|old| are_same(old, new)) {
            return Ok(Some((at, old)));
        }
    }
    Ok(None)
}

fn free_number(heads: &[BundleHead]) -> u32 {
    let is_free = |number: &u32| heads.iter().all(|head| head.number != *number);
    (0..KEPT_MAX as u32).find(is_free).unwrap_or(0)
}

/// The bundles of a directory go with it.
pub async fn forget(view: &mut View<'_>, root: FileId) -> Result<()> {
    let known: Option<Bundles> = view.record(key::bundles(root)).await?;
    if let Some(known) = known {
        known.heads.iter().for_each(|head| view.delete(key::bundle(root, head.number)));
        view.delete(key::bundles(root));
    }
    Ok(())
}
