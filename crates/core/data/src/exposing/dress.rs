//! Whose a file is on this machine, and what its mode lets others do.
//!
//! What lies in an exposed directory is a copy: nobody is let write to it. Whom this machine does
//! not know becomes nobody, who may what everybody may.
//!
//! Invariant: nobody may more there than by the file's own owner, group and mode.

use tieline_exposed::Dress as Worn;
use tieline_types::{Gid, Uid};
use tieline_wire::exposed::{Dress, Step};

/// Who is nobody on every machine.
const NOBODY: u32 = 65534;
/// Reading, and going through.
const KEPT: u32 = 0o555;

/// Who users and groups of the file system are on this machine.
#[async_trait::async_trait]
pub trait Owners: Send + Sync {
    /// `None`: nobody here is this user, or this group.
    async fn local(&self, uid: Uid, gid: Gid) -> (Option<u32>, Option<u32>);

    /// May files be given to others here?
    fn may_give(&self) -> bool;
}

/// How what a step makes is dressed.
pub async fn worn(step: &Step, owners: &dyn Owners) -> Option<Worn> {
    let dress = match step {
        Step::MakeDirectory { dress, .. }
        | Step::Place { dress, .. }
        | Step::Dress { dress, .. } => dress,
        _ => return None,
    };
    let local = owners.local(dress.uid, dress.gid).await;
    Some(narrowed(dress, local, owners.may_give()))
}

fn narrowed(dress: &Dress, (uid, gid): (Option<u32>, Option<u32>), may_give: bool) -> Worn {
    let mode = dress.mode.bits() & KEPT;
    let others = mode & 0o5;
    let mut own = mode & 0o500;
    let mut group = mode & 0o050;
    if uid.is_none() {
        own = others << 6;
    }
    if gid.is_none() || !may_give {
        group = others << 3;
    }
    if !may_give {
        // It stays the server's, who must go on with it.
        own = if dress.is_directory { 0o700 } else { 0o400 };
    }
    let owner = (uid.unwrap_or(NOBODY), gid.unwrap_or(NOBODY));
    let mode = own | group | others;
    Worn { owner: may_give.then_some(owner), mode, mtime: dress.mtime }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Mode, Time};

    /// Promise 142: What lies in an exposed directory is its owner's by the site's users, and lets
    /// nobody do more than the file does.
    #[test]
    fn nobody_may_more_than_by_the_file() {
        let dress = |mode| Dress {
            uid: Uid(5001),
            gid: Gid(6001),
            mode: Mode::new(mode),
            mtime: Time::default(),
            is_directory: false,
        };
        let worn = |mode, local, may_give| {
            let worn = narrowed(&dress(mode), local, may_give);
            (worn.owner, worn.mode)
        };
        let (both, nobody) = ((Some(7), Some(8)), (None, None));
        assert_eq!(worn(0o6755, both, true), (Some((7, 8)), 0o555));
        assert_eq!(worn(0o640, both, true), (Some((7, 8)), 0o440));
        assert_eq!(worn(0o640, nobody, true), (Some((NOBODY, NOBODY)), 0));
        assert_eq!(worn(0o644, nobody, true), (Some((NOBODY, NOBODY)), 0o444));
        assert_eq!(worn(0o604, (Some(7), None), true), (Some((7, NOBODY)), 0o444));
        assert_eq!(worn(0o640, (None, Some(8)), true), (Some((NOBODY, 8)), 0o040));
        assert_eq!(worn(0o644, both, false), (None, 0o444));
        assert_eq!(worn(0o600, both, false), (None, 0o400));
        let directory = Dress { is_directory: true, ..dress(0o750) };
        let directory = narrowed(&directory, both, false);
        assert_eq!((directory.owner, directory.mode), (None, 0o700));
        for mode in 0..0o1000 {
            for local in [both, nobody, (Some(7), None), (None, Some(8))] {
                let worn = narrowed(&dress(mode), local, true).mode;
                assert_eq!(worn & 0o222, 0);
                assert_eq!(worn & 0o007, mode & 0o005, "of others");
                assert_eq!(worn & !(mode & 0o555) & !((mode & 5) * 0o111), 0, "{mode:o}");
            }
        }
    }
}
