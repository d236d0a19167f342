//! Where a file's bytes are to be had: at once, after a tape was fetched, not now, never.
//!
//! In the words of SRM and dCache. A file is as its worst chunk. That tape has what OSTs have, too,
//! no place says: the file's attributes do.

use crate::{Content, Extent, OnTape, Origin, OstIndex, Place};
use std::fmt;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Residency {
    /// It can be read now.
    Online,
    /// It must be fetched from tape first.
    Nearline,
    /// It can be read now, and tape has it, too.
    OnlineAndNearline,
    /// Those who have it do not answer now.
    Unavailable,
    /// Nobody has some of it.
    Lost,
}

/// Of an OST, as far as who asks knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Answers,
    Silent,
    /// The map does not name it.
    Unknown,
}

impl Residency {
    /// Of what extents hold; holes and inline bytes are as near as what says so.
    pub fn of<'e>(
        extents: impl IntoIterator<Item = &'e Extent>,
        standing: impl Fn(OstIndex) -> Standing,
    ) -> Self {
        let chunks = extents.into_iter().filter_map(|extent| match &extent.content {
            Content::Chunk(chunk) => Some(chunk),
            Content::Inline(_) | Content::Hole => None,
        });
        let all = chunks.map(|chunk| Self::of_places(&chunk.places, &standing));
        all.fold(Self::Online, Self::and)
    }

    fn of_places(places: &[Place], standing: &impl Fn(OstIndex) -> Standing) -> Self {
        let is_tape = |place: &&Place| matches!(place.origin, Origin::Tape(_));
        let worst =
            if places.iter().any(|place| is_tape(&place)) { Self::Nearline } else { Self::Lost };
        let good = places.iter().filter(|place| !place.is_stale && !is_tape(place));
        let stand = good.map(|place| place.ost().map_or(Standing::Answers, standing));
        stand.fold(worst, |found, stand| match (found, stand) {
            (Self::Nearline, Standing::Silent) => Self::Nearline,
            (Self::Online, _) | (_, Standing::Answers) => Self::Online,
            (Self::Unavailable, _) | (_, Standing::Silent) => Self::Unavailable,
            (found, Standing::Unknown) => found,
        })
    }

    /// With what the file's attributes say of tape.
    pub fn with_tape(self, tape: Option<OnTape>) -> Self {
        match (self, tape) {
            (Self::Online, Some(OnTape::Archived)) => Self::OnlineAndNearline,
            (found, _) => found,
        }
    }

    /// Of what consists of this and that.
    pub fn and(self, other: Self) -> Self {
        let both = [self, other];
        let worst = [Self::Lost, Self::Unavailable, Self::Nearline, Self::Online];
        let found = worst.into_iter().find(|one| both.contains(one));
        found.unwrap_or(Self::OnlineAndNearline)
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "ONLINE",
            Self::Nearline => "NEARLINE",
            Self::OnlineAndNearline => "ONLINE_AND_NEARLINE",
            Self::Unavailable => "UNAVAILABLE",
            Self::Lost => "LOST",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkId, ChunkRef, Grant, GrantedId, MdtIndex, ObjectName, Origin, SiteName};

    fn chunk(places: &[(Origin, bool)]) -> Extent {
        let place = |(origin, is_stale): &(Origin, bool)| Place {
            origin: origin.clone(),
            object: ObjectName::Key("o".to_owned()),
            offset: 0,
            length: Some(7),
            is_stale: *is_stale,
            encoding: None,
        };
        let granted = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 1 };
        let chunk = ChunkRef {
            chunk: ChunkId::Granted(granted),
            length: 7,
            skip: 0,
            places: places.iter().map(place).collect(),
            digest: None,
            adler32: None,
            checks: None,
        };
        Extent { offset: 0, length: 7, content: Content::Chunk(chunk) }
    }

    fn of(places: &[(Origin, bool)]) -> Residency {
        Residency::of(&[chunk(places)], |ost| match ost.0 {
            1 => Standing::Answers,
            2 => Standing::Silent,
            _ => Standing::Unknown,
        })
    }

    #[test]
    fn a_chunk_is_where_its_best_place_is() {
        let ost = |number| Origin::Ost(OstIndex(number));
        assert_eq!(of(&[(ost(2), false), (ost(1), false)]), Residency::Online);
        assert_eq!(of(&[(ost(2), false), (ost(1), true)]), Residency::Unavailable);
        assert_eq!(of(&[(ost(3), false), (ost(1), true)]), Residency::Lost);
        assert_eq!(of(&[]), Residency::Lost);
        let cache = Origin::Cache("uf".parse::<SiteName>().unwrap());
        assert_eq!(of(&[(ost(2), false), (cache, false)]), Residency::Online);
        let tape = Origin::Tape("uf".parse().unwrap());
        assert_eq!(of(&[(tape.clone(), false)]), Residency::Nearline);
        assert_eq!(of(&[(tape.clone(), false), (ost(1), true)]), Residency::Nearline);
        assert_eq!(of(&[(tape, false), (ost(1), false)]), Residency::Online);
    }

    #[test]
    fn a_file_is_as_its_worst_chunk() {
        use Residency::*;
        let nothing: &[Extent] = &[];
        assert_eq!(Residency::of(nothing, |_| Standing::Unknown), Online);
        assert_eq!(Online.and(Unavailable).and(Online), Unavailable);
        assert_eq!(Unavailable.and(Lost), Lost);
        assert_eq!(OnlineAndNearline.and(OnlineAndNearline), OnlineAndNearline);
        assert_eq!(OnlineAndNearline.and(Online), Online);
        assert_eq!(OnlineAndNearline.and(Nearline), Nearline);
    }
}
