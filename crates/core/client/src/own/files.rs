//! Attributes of files, and bytes that become part of them, where their directory is held alone.

use crate::commit::Change;
use crate::file::{File, State};
use crate::shared::{Shared, lock};
use crate::writer::{How, is_small, seal_all};
use crate::{AttributeChange, Known};
use std::sync::Arc;
use tieline_owed::act::Act;
use tieline_ranges::known::Extents;
use tieline_ranges::overlay::SealId;
use tieline_types::rules::{Rights, WRITE};
use tieline_types::{
    Attributes, Caller, Content, Extent, FileId, FileKind, Mode, SetTime, Time, Version,
};
use tieline_wire::meta::{Commit, SetAttributes};

/// Extents that one own change may meet: the MDS does it in one step.
const EXTENTS_MAX: usize = 64;

impl Shared {
    /// Changes attributes. What was written before is committed, or leaves them alone later.
    pub(crate) fn set_attributes_own(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        is_handle: bool,
        change: &AttributeChange,
    ) -> Option<Known> {
        self.journal.of(id.mdt())?;
        match self.file_known(id) {
            None if change.size.is_some() => None,
            None => self.change_own(caller, (id, None), is_handle, change),
            Some(file) => {
                if file.is_dirty() {
                    // What is too large for this goes later, if it may.
                    let _ = self.launder_own(&file);
                }
                let _gate = file.gate.try_lock().ok()?;
                file.with(|state| {
                    let is_ahead = state.is_dirty();
                    if is_ahead && !state.sets_before_bytes(caller, change) {
                        return None;
                    }
                    let is_given = change.uid.is_some() || change.gid.is_some();
                    if is_ahead && is_given && self.promises.has_limits() {
                        // Root may give away more than its new owner may have; bytes that come
                        // later would meet his limits.
                        return None;
                    }
                    if change.size.is_some() && !can_cut(state) {
                        return None;
                    }
                    let written = state.mtime.filter(|_| is_ahead).map(SetTime::At);
                    let change = AttributeChange { mtime: change.mtime.or(written), ..*change };
                    let before = state.version;
                    let known = self.change_own(caller, (id, Some(before)), is_handle, &change)?;
                    if is_ahead {
                        state.was_set_before_bytes(&change, known.attributes.mtime);
                    }
                    if let Some(size) = change.size {
                        state.extents.truncate(size);
                    }
                    state.left(before, &known.attributes);
                    Some(known)
                })
                .inspect(|_| {
                    let cut = change.size.map(|size| size..u64::MAX);
                    self.spool_changed(&file, cut.into_iter().collect());
                })
            }
        }
    }

    fn change_own(
        &self,
        caller: &Caller,
        (id, version): (FileId, Option<Version>),
        is_handle: bool,
        change: &AttributeChange,
    ) -> Option<Known> {
        let (left, now) = (self.journal.version(), self.now_of(id));
        let parent = self.cache.lock().unit_of(id)?;
        self.act(&[id, parent], |tables, journal| {
            let (file, unit) = tables.own_file(id)?;
            let is_known = version.is_none_or(|version| version == file.version);
            if !is_known || unit != parent || !may_change(caller, &file, is_handle, change) {
                return None;
            }
            let AttributeChange { mode, uid, gid, size, atime, mtime } = *change;
            let is_given = uid.is_some() || gid.is_some();
            if is_given && !caller.is_root() && self.promises.has_limits() {
                return None;
            }
            let is_handle = is_handle || size.is_some();
            let is_access = None;
            let request =
                SetAttributes { id, mode, uid, gid, size, atime, mtime, is_handle, is_access };
            let after = after_change(caller, file, change, (left, now));
            let changes_rights = mode.is_some() || uid.is_some() || gid.is_some();
            if uid.is_some() || gid.is_some() || size.is_some() {
                // A capability among them ends.
                tables.forget_xattrs(id);
            }
            let before = journal.last_setting(caller, &[id, unit]);
            let both = before.and_then(|before| joined(before, &request));
            let (is_joined, request) = (both.is_some(), both.unwrap_or(request));
            let act = Act::new(caller, now, id, after.version, request.into()).also(Some(unit));
            let is_directory = after.is_directory();
            let act = if is_directory && changes_rights { act.rights(id) } else { act };
            if is_joined {
                journal.push_instead(act);
            } else {
                journal.push(act);
            }
            Some(tables.put_attributes(journal.last(), unit, after))
        })
    }

    /// Commits small things that were written, if all of the file that waits is such.
    pub(crate) fn launder_own(self: &Arc<Self>, file: &Arc<File>) -> Option<()> {
        self.journal.of(file.id.mdt())?;
        let _gate = file.gate.try_lock().ok()?;
        let mut places = Vec::new();
        let done = file.with(|state| {
            let is_own = self.own_version(file.id) == Some(state.version);
            if !is_small(state) || !is_own || state.forfeits {
                return None;
            }
            let sealed = seal_all(state, How::Flush);
            debug_assert!(sealed.is_empty(), "small files go with their commit");
            let arrivals = state.overlay.arrivals(EXTENTS_MAX + 1, state.overlay.last_seal());
            if arrivals.is_empty() {
                return None;
            }
            let place = |(id, extent): &(SealId, Extent)| (*id, extent.offset..extent.end());
            places = arrivals.iter().map(place).collect::<Vec<_>>();
            let extents: Vec<Extent> = arrivals.into_iter().map(|(_, extent)| extent).collect();
            let (caller, clears_setid) = (state.writer.clone(), state.clears_setid);
            // Nobody else appends to it.
            let cuts = state.kept.all(file.id);
            let change = Change { extents, clears_setid, cuts, ..Change::default() };
            self.commit_own(file.id, state, &caller, &change)?;
            for (id, range) in &places {
                state.overlay.committed(*id, range.clone());
            }
            state.set_size(state.size);
            state.rest().then_some(())
        });
        if done.is_some() {
            self.spool_changed(file, places.into_iter().map(|(_, range)| range).collect());
            lock(&self.dirty).remove(&file.id);
            if file.is_dirty() {
                self.mark_dirty(file);
            }
        }
        done
    }

    /// The version of a file that is ours to change.
    fn own_version(&self, id: FileId) -> Option<Version> {
        let mut tables = self.cache.lock();
        Some(tables.own_file(id)?.0.version)
    }

    /// Makes extents part of a file. The caller holds its gate and its state.
    pub(crate) fn commit_own(
        &self,
        id: FileId,
        state: &mut State,
        caller: &Caller,
        change: &Change,
    ) -> Option<()> {
        let (extents, clears_setid) = (&change.extents, change.clears_setid);
        if change.append_from.is_some_and(|from| from != state.size) {
            return None;
        }
        // Chunks are named under the session: if that is lost their bytes must be here still.
        let has_chunks = extents.iter().any(|one| matches!(one.content, Content::Chunk(_)));
        if has_chunks || extents.len() > EXTENTS_MAX || state.extents.count() > EXTENTS_MAX {
            return None;
        }
        // What was promised is used at the MDS.
        if state.promise.is_some() {
            return None;
        }
        let (left, now) = (self.journal.version(), self.now_of(id));
        let before = state.version;
        let parent = self.cache.lock().unit_of(id)?;
        let size_min = change.reaches();
        let written = state.mtime.unwrap_or(now);
        let (mut after, stored) =
            (state.extents.clone(), |all: &Extents| all.stored(state.size.max(size_min)));
        extents.iter().for_each(|extent| after.commit(extent));
        let stored = stored(&after);
        let known = self.act(&[id, parent], |tables, journal| {
            let (file, unit) = tables.own_file(id)?;
            if file.version != before || unit != parent || file.kind != FileKind::Regular {
                return None;
            }
            let request = Commit {
                id,
                extents: extents.to_vec(),
                size_min,
                mtime: SetTime::At(written),
                clears_setid,
                append_from: None,
                closes: None,
                is_promised: None,
            };
            // A capability among them ends.
            tables.forget_xattrs(id);
            let number = journal.next();
            let act = Act::new(caller, now, id, left, request.into()).also(Some(unit));
            journal.push(act.cuts(change.cuts.clone()));
            let cleared = || file.mode.without_setid(caller.may_setgid(file.gid));
            let mode = if clears_setid { cleared() } else { file.mode };
            let size = file.size.max(size_min);
            let stored = stored.unwrap_or(file.stored);
            let (mtime, ctime) = Time::after_write((file.mtime, file.ctime), written);
            let (version, content) = (left, None);
            let attributes =
                Attributes { mode, size, stored, mtime, ctime, version, content, ..file };
            Some(tables.put_attributes(number, unit, attributes))
        })?;
        state.extents = after;
        state.left(before, &known.attributes);
        Some(())
    }
}

impl State {
    /// An own change left the file so.
    fn left(&mut self, before: Version, attributes: &Attributes) {
        if self.version == before {
            self.version = attributes.version;
        }
        self.door.changed_here(before, attributes.version);
        self.size = attributes.size;
    }
}

/// Is all that a change of the size could meet known, and little?
fn can_cut(state: &State) -> bool {
    state.extents.unknown(0..state.size).is_none() && state.extents.count() <= EXTENTS_MAX
}

/// Would the MDS surely allow the change?
fn may_change(
    caller: &Caller,
    file: &Attributes,
    is_handle: bool,
    change: &AttributeChange,
) -> bool {
    let rights = Rights::of(file);
    let (is_root, is_owner) = (caller.is_root(), rights.is_owner(caller));
    let may_size = change.size.is_none_or(|size| {
        let is_possible = file.kind == FileKind::Regular && size <= Extent::FILE_SIZE_MAX;
        is_possible && (is_handle || rights.allow(caller, WRITE))
    });
    let may_uid = change.uid.is_none_or(|uid| is_root || (is_owner && uid == file.uid));
    let may_gid = change
        .gid
        .is_none_or(|gid| is_owner && (gid == file.gid || is_root || caller.is_member(gid)));
    let may_mode = change.mode.is_none() || is_owner;
    let times = [change.atime, change.mtime];
    let is_now = times.iter().flatten().all(|time| *time == SetTime::Now);
    let is_time = |time: &SetTime| match time {
        SetTime::Now => true,
        SetTime::At(time) => time.nanos < 1_000_000_000,
    };
    let may_times =
        times == [None, None] || is_owner || is_handle || (is_now && rights.allow(caller, WRITE));
    let is_change = change.mode.is_some()
        || change.uid.is_some()
        || change.gid.is_some()
        || change.size.is_some()
        || times != [None, None];
    let are_times = times.iter().flatten().all(is_time);
    is_change && may_size && may_uid && may_gid && may_mode && may_times && are_times
}

/// Two changes in one that leaves the same behind, if there is such: what is given away loses its
/// setuid, so a mode must not come before that, and *now* is when it is said. (`tar` sets each
/// file's owner, mode and times, one after the other.)
fn joined(first: SetAttributes, then: &SetAttributes) -> Option<SetAttributes> {
    let gives = then.uid.is_some() || then.gid.is_some();
    let is_now = [first.atime, first.mtime].contains(&Some(SetTime::Now));
    let has_more = [&first, then].iter().any(|one| one.size.is_some() || one.is_access.is_some());
    let is_alike = first.is_handle == then.is_handle;
    let differs = has_more || is_now || (first.mode.is_some() && gives);
    (is_alike && !differs).then(|| SetAttributes {
        mode: then.mode.or(first.mode),
        uid: then.uid.or(first.uid),
        gid: then.gid.or(first.gid),
        atime: then.atime.or(first.atime),
        mtime: then.mtime.or(first.mtime),
        ..first
    })
}

/// The file after a change that is allowed: as the MDS will do it.
fn after_change(
    caller: &Caller,
    mut file: Attributes,
    change: &AttributeChange,
    (left, now): (Version, Time),
) -> Attributes {
    if change.uid.is_some() || change.gid.is_some() {
        if file.kind != FileKind::Directory {
            file.mode = file.mode.without_setid(caller.may_setgid(file.gid));
        }
        file.uid = change.uid.unwrap_or(file.uid);
        file.gid = change.gid.unwrap_or(file.gid);
    }
    if let Some(mode) = change.mode {
        let may_setgid = caller.may_setgid(file.gid);
        file.mode = if may_setgid { mode } else { mode.without(Mode::SETGID) };
    }
    let resolve = |time| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    file.atime = change.atime.map_or(file.atime, resolve);
    file.mtime = change.mtime.map_or(file.mtime, resolve);
    if let Some(size) = change.size {
        file.size = size;
        file.mtime = now;
        (file.version, file.content) = (left, None);
        if !caller.is_root() {
            file.mode = file.mode.without_setid(caller.may_setgid(file.gid));
        }
    }
    file.ctime = now;
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tieline_types::{Gid, Uid};

    const NOW: Time = Time { seconds: 2_000, nanos: 0 };

    fn time() -> impl Strategy<Value = Option<SetTime>> {
        let given = (0..3i64).prop_map(|seconds| SetTime::At(Time { seconds, nanos: 7 }));
        prop_oneof![3 => Just(None), 1 => Just(Some(SetTime::Now)), 3 => given.prop_map(Some)]
    }

    fn change() -> impl Strategy<Value = AttributeChange> {
        let maybe = |values: std::ops::Range<u32>| prop::option::of(values);
        let size = prop_oneof![8 => Just(None), 1 => (0..9u64).prop_map(Some)];
        let mode = prop::option::of(0..0o7777u32);
        (mode, maybe(1..3), maybe(1..4), size, time(), time()).prop_map(
            |(mode, uid, gid, size, atime, mtime)| AttributeChange {
                mode: mode.map(Mode::new),
                uid: uid.map(Uid),
                gid: gid.map(Gid),
                size,
                atime,
                mtime,
            },
        )
    }

    fn message(id: FileId, change: &AttributeChange) -> SetAttributes {
        let AttributeChange { mode, uid, gid, size, atime, mtime } = *change;
        let (is_handle, is_access) = (false, None);
        SetAttributes { id, mode, uid, gid, size, atime, mtime, is_handle, is_access }
    }

    proptest! {
        /// Whoever does both does the same as who does one after the other.
        #[test]
        fn two_changes_in_one_leave_the_same(
            mode in 0..0o7777u32,
            is_root in any::<bool>(),
            (first, then) in (change(), change()),
        ) {
            let id = FileId(9);
            let mut file = Attributes::new(id, FileKind::Regular, Mode::new(mode), Time::default());
            (file.uid, file.gid) = (Uid(1), Gid(1));
            let owner = Caller { uid: Uid(1), gid: Gid(2), ..Caller::stranger() };
            let caller = if is_root { Caller::root() } else { owner };
            let may = |file: &Attributes, change| may_change(&caller, file, false, change);
            prop_assume!(may(&file, &first));
            let version = file.version;
            let between = after_change(&caller, file.clone(), &first, (version, Time::default()));
            prop_assume!(may(&between, &then));
            let after = after_change(&caller, between, &then, (version, NOW));
            if let Some(both) = joined(message(id, &first), &message(id, &then)) {
                let SetAttributes { mode, uid, gid, size, atime, mtime, .. } = both;
                let both = AttributeChange { mode, uid, gid, size, atime, mtime };
                prop_assert!(may(&file, &both));
                prop_assert_eq!(after_change(&caller, file, &both, (version, NOW)), after);
            } else {
                let is_tars = first.mode.is_none() && then.size.is_none() && first.size.is_none();
                let is_now = [first.atime, first.mtime].contains(&Some(SetTime::Now));
                prop_assert!(!is_tars || is_now, "what can be one is one");
            }
        }
    }
}
