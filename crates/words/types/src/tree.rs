//! The tree below a BLAKE3 digest: what shows that a range belongs to a digest, without the rest.
//!
//! A BLAKE3 is the root of a binary tree over its bytes. Whoever has all of them keeps the values
//! of the tree's groups ([`GROUP`] bytes each) and makes a *proof* of a range from them: the values
//! of the largest subtrees that lie outside, in order. Whoever has the range and the proof computes
//! the root, and compares it with the digest that he believes. Ranges begin and end on blocks
//! ([`BLOCK`]), or where the bytes end: in a group that lies in the range only in part, the values
//! of what lies outside are computed from those bytes ([`Tree::beside`]).
//!
//! Invariant: no proof makes [`is_proven`] say yes to bytes that the digest is not of.

use crate::checksum::BLOCK;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use minicbor::bytes::ByteSlice;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use std::ops::Range;
use std::sync::Arc;

/// Bytes whose value is kept: 1/512 of the bytes is what that takes.
pub const GROUP: u64 = 16 << 10;
/// Bytes of a value.
pub const VALUE: usize = 32;
/// Bytes of the largest proof: two values for each level of a tree as high as trees can be.
pub const PROOF_MAX: usize = 2 * 54 * VALUE;

/// The values of all groups of some bytes, one behind the other: what is kept of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Values(Arc<[u8]>);

impl Values {
    /// Bytes that they take.
    pub fn weight(&self) -> usize {
        self.0.len()
    }
}

impl<C> Encode<C> for Values {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Values {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let values: &ByteSlice = d.decode_with(ctx)?;
        Ok(Self(Arc::from(&values[..])))
    }
}

/// The inner values over some bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    length: u64,
    /// Of groups, then of pairs of those, and so on up to one.
    levels: Vec<Vec<ChainingValue>>,
}

impl Tree {
    pub fn of(bytes: &[u8]) -> Self {
        Self::new(bytes.len() as u64, groups(0, bytes))
    }

    /// Over `length` bytes. `None`: the values are those of another length.
    pub fn from_values(length: u64, values: &Values) -> Option<Self> {
        let (groups, rest) = values.0.as_chunks::<VALUE>();
        let is_all = rest.is_empty() && groups.len() as u64 == length.div_ceil(GROUP);
        is_all.then(|| Self::new(length, groups.to_vec()))
    }

    /// From the values of all groups of `length` bytes.
    pub fn new(length: u64, groups: Vec<ChainingValue>) -> Self {
        let mut levels = vec![groups];
        while let Some(last) = levels.last().filter(|last| last.len() > 1) {
            let merged = last.chunks(2).map(|pair| match pair {
                [left, right] => merge_subtrees_non_root(left, right, Mode::Hash),
                alone => alone.first().copied().unwrap_or_default(),
            });
            let next = merged.collect();
            levels.push(next);
        }
        Self { length, levels }
    }

    /// To be kept.
    pub fn to_values(&self) -> Values {
        Values(self.levels.first().map(|groups| groups.concat()).unwrap_or_default().into())
    }

    /// Bytes that it takes in memory, roughly.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.levels.iter().map(|level| level.len() * VALUE).sum::<usize>()
    }

    /// The bytes before and behind a range that are needed for its proof: less than a group each.
    pub fn beside(&self, range: &Range<u64>) -> [Range<u64>; 2] {
        let end = range.end.next_multiple_of(GROUP).min(self.length);
        [range.start / GROUP * GROUP..range.start, range.end..end.max(range.end)]
    }

    /// What shows that the bytes in `range` are the digest's. `beside`: the bytes that are asked
    /// for by [`Tree::beside`]. `None`: no such range can be proven, or these are not those bytes.
    pub fn proof(&self, range: &Range<u64>, beside: [&[u8]; 2]) -> Option<Vec<u8>> {
        let lengths = self.beside(range).map(|part| part.end - part.start);
        if !is_provable(range, self.length) || beside.map(|part| part.len() as u64) != lengths {
            return None;
        }
        let mut proof = Vec::new();
        self.prove(0..self.length, range, (beside, &mut proof))?;
        Some(proof)
    }

    fn prove(
        &self,
        node: Range<u64>,
        range: &Range<u64>,
        (beside, proof): ([&[u8]; 2], &mut Vec<u8>),
    ) -> Option<()> {
        if is_within(&node, range) {
            return Some(());
        }
        if is_apart(&node, range) {
            proof.extend(self.value(&node, range, beside)?);
            return Some(());
        }
        let [left, right] = halves(&node);
        self.prove(left, range, (beside, proof))?;
        self.prove(right, range, (beside, proof))
    }

    /// The value of a subtree outside a range.
    fn value(
        &self,
        node: &Range<u64>,
        range: &Range<u64>,
        [before, behind]: [&[u8]; 2],
    ) -> Option<ChainingValue> {
        let is_of_groups = |at: u64| at.is_multiple_of(GROUP) || at == self.length;
        if is_of_groups(node.start) && is_of_groups(node.end) {
            let groups = (node.end - node.start).div_ceil(GROUP);
            let level = groups.next_power_of_two().trailing_zeros();
            let values = self.levels.get(level as usize)?;
            return values.get((node.start / GROUP) as usize >> level).copied();
        }
        let (bytes, start) = match node.start < range.start {
            true => (before, range.start / GROUP * GROUP),
            false => (behind, range.end),
        };
        let from = node.start.checked_sub(start)? as usize;
        let bytes = bytes.get(from..from + (node.end - node.start) as usize)?;
        Some(subtree(node.start, bytes))
    }
}

/// What shows that a range of these bytes belongs to their digest, for who has them all at hand.
pub fn proof_of(bytes: &[u8], range: &Range<u64>) -> Option<Vec<u8>> {
    let tree = Tree::of(bytes);
    let part = |part: &Range<u64>| bytes.get(part.start as usize..part.end as usize);
    let [before, behind] = tree.beside(range);
    tree.proof(range, [part(&before)?, part(&behind)?])
}

/// The values of the groups of some bytes of a chunk, from a group's start on.
pub fn groups(offset: u64, bytes: &[u8]) -> Vec<ChainingValue> {
    let groups = bytes.chunks(GROUP as usize).zip((offset..).step_by(GROUP as usize));
    groups.map(|(group, at)| subtree(at, group)).collect()
}

/// Are these the bytes from `offset` of those, `length` in all, whose BLAKE3 is `root`?
pub fn is_proven(
    root: &[u8; VALUE],
    length: u64,
    (offset, bytes): (u64, &[u8]),
    proof: &[u8],
) -> bool {
    let Some(end) = offset.checked_add(bytes.len() as u64) else { return false };
    let (range, (values, rest)) = (offset..end, proof.as_chunks::<VALUE>());
    if !is_provable(&range, length) || !rest.is_empty() {
        return false;
    }
    let all = 0..length;
    let mut values = values.iter();
    let computed = if range == all {
        *blake3::hash(bytes).as_bytes()
    } else {
        let [left, right] = halves(&all).map(|half| computed(half, (&range, bytes), &mut values));
        let (Some(left), Some(right)) = (left, right) else { return false };
        *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
    };
    computed == *root && values.next().is_none()
}

/// The value of a subtree, from the bytes as far as they are in it, and the proof's values.
fn computed(
    node: Range<u64>,
    (range, bytes): (&Range<u64>, &[u8]),
    values: &mut std::slice::Iter<'_, ChainingValue>,
) -> Option<ChainingValue> {
    if is_within(&node, range) {
        let part = (node.start - range.start) as usize..(node.end - range.start) as usize;
        return bytes.get(part).map(|part| subtree(node.start, part));
    }
    if is_apart(&node, range) {
        return values.next().copied();
    }
    let [left, right] = halves(&node);
    let left = computed(left, (range, bytes), values)?;
    let right = computed(right, (range, bytes), values)?;
    Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
}

/// Not empty, within the bytes, and nothing smaller than a block is outside.
fn is_provable(range: &Range<u64>, length: u64) -> bool {
    let is_border = |at: u64| at.is_multiple_of(BLOCK as u64) || at == length;
    range.start < range.end
        && range.end <= length
        && range.start.is_multiple_of(BLOCK as u64)
        && is_border(range.end)
}

fn is_within(node: &Range<u64>, range: &Range<u64>) -> bool {
    range.start <= node.start && node.end <= range.end
}

fn is_apart(node: &Range<u64>, range: &Range<u64>) -> bool {
    node.end <= range.start || range.end <= node.start
}

/// Of what is longer than a block.
fn halves(node: &Range<u64>) -> [Range<u64>; 2] {
    let middle = node.start + left_subtree_len(node.end - node.start);
    [node.start..middle, middle..node.end]
}

fn subtree(offset: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes).finalize_non_root()
}

#[cfg(test)]
mod tests;
