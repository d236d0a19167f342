//! Samples with changes.

use proptest::collection::vec;
use proptest::prelude::*;

/// A change to bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    /// Bytes from one place again at another.
    Repeat(usize, usize, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |index: usize, bytes: &Vec<u8>| index % (bytes.len() + 1);
        match self {
            Self::Set(index, byte) => {
                let index = at(*index, bytes);
                bytes.splice(index..bytes.len().min(index + 1), [*byte]);
            }
            Self::Flip(index, bit) => {
                let index = at(*index, bytes);
                if let Some(byte) = bytes.get_mut(index) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Self::Cut(index) => bytes.truncate(at(*index, bytes)),
            Self::Insert(index, more) => {
                let index = at(*index, bytes);
                bytes.splice(index..index, more.iter().copied());
            }
            Self::Repeat(from, length, to) => {
                let (from, to) = (at(*from, bytes), at(*to, bytes));
                let end = bytes.len().min(from + length);
                let piece = bytes[from..end].to_vec();
                bytes.splice(to..to, piece);
            }
        }
    }
}

/// One of `samples` with some changes.
pub fn mutated<T: Clone + std::fmt::Debug + 'static>(
    samples: Vec<(T, Vec<u8>)>,
) -> impl Strategy<Value = (T, Vec<u8>)> {
    // Heads of CBOR items that announce much, end nothing, or mean something else.
    let head = prop::sample::select(vec![
        0x00u8, 0x1b, 0x20, 0x3b, 0x40, 0x5b, 0x5f, 0x7b, 0x7f, 0x80, 0x9a, 0x9b, 0x9f, 0xa0, 0xbb,
        0xbf, 0xc0, 0xdb, 0xf4, 0xf6, 0xf7, 0xf9, 0xfb, 0xff,
    ]);
    let index = || any::<usize>();
    let mutation = prop_oneof![
        (index(), any::<u8>()).prop_map(|(index, byte)| Mutation::Set(index, byte)),
        (index(), head).prop_map(|(index, byte)| Mutation::Set(index, byte)),
        (index(), any::<u8>()).prop_map(|(index, bit)| Mutation::Flip(index, bit)),
        index().prop_map(Mutation::Cut),
        (index(), vec(any::<u8>(), 1..12)).prop_map(|(index, more)| Mutation::Insert(index, more)),
        (index(), 1..40usize, index()).prop_map(|(from, n, to)| Mutation::Repeat(from, n, to)),
    ];
    (prop::sample::select(samples), vec(mutation, 1..5)).prop_map(|((tag, mut bytes), changes)| {
        for change in &changes {
            change.apply(&mut bytes);
        }
        (tag, bytes)
    })
}
