//! Arrays with a bound: a peer says how long one is, and each element takes more memory than it
//! took on the wire.
//!
//! Every array in a message, and in what messages are made of, says how long it may be:
//! `#[cbor(with = "AtMost::<4096>")]`. A longer one is refused before its first element is read.
//! Records on disk are read by the same bounds.

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use std::fmt;

/// Memory that is taken for elements before any came.
const AT_ONCE: usize = 16;

/// The codec of an array that has at most `N` elements. One that is optional may be missing.
pub struct AtMost<const N: usize>;

/// An array as [`AtMost`] counts and reads it.
pub trait Bounded<'b, C>: Sized {
    fn read(d: &mut Decoder<'b>, ctx: &mut C, most: usize) -> Result<Self, decode::Error>;
}

/// How many elements [`AtMost`] is about to write.
pub trait Counted {
    fn count(&self) -> usize;
}

impl<const N: usize> AtMost<N> {
    /// No room of ours makes a longer one: its reader would refuse all of the message.
    pub fn encode<T: Counted + Encode<C>, C, W: encode::Write>(
        array: &T,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        debug_assert!(array.count() <= N, "{} elements of an array of {N}", array.count());
        array.encode(e, ctx)
    }

    pub fn decode<'b, T: Bounded<'b, C>, C>(
        d: &mut Decoder<'b>,
        ctx: &mut C,
    ) -> Result<T, decode::Error> {
        T::read(d, ctx, N)
    }
}

impl<T> Counted for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }
}

impl<T> Counted for Option<Vec<T>> {
    fn count(&self) -> usize {
        self.as_ref().map_or(0, Vec::len)
    }
}

impl<'b, C, T: Decode<'b, C>> Bounded<'b, C> for Vec<T> {
    fn read(d: &mut Decoder<'b>, ctx: &mut C, most: usize) -> Result<Self, decode::Error> {
        let too_many = |count: &dyn fmt::Display| {
            let what = format!("an array has {count} elements where {most} are the most");
            decode::Error::message(what)
        };
        let at = d.position();
        let stated = d.array()?;
        if let Some(count) = stated.filter(|&count| count > most as u64) {
            return Err(too_many(&count).at(at));
        }
        let mut elements = Self::with_capacity(stated.map_or(0, |_| AT_ONCE).min(most));
        loop {
            match stated {
                Some(count) if elements.len() as u64 == count => return Ok(elements),
                None if d.datatype()? == minicbor::data::Type::Break => {
                    d.skip()?;
                    return Ok(elements);
                }
                None if elements.len() == most => return Err(too_many(&"more").at(at)),
                _ => elements.push(d.decode_with(ctx)?),
            }
        }
    }
}

impl<'b, C, T: Decode<'b, C>> Bounded<'b, C> for Option<Vec<T>> {
    fn read(d: &mut Decoder<'b>, ctx: &mut C, most: usize) -> Result<Self, decode::Error> {
        match d.datatype()? {
            minicbor::data::Type::Null => d.skip().map(|()| None),
            _ => Vec::read(d, ctx, most).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Encode, Decode)]
    struct Message {
        #[n(0)]
        #[cbor(with = "AtMost::<3>")]
        some: Vec<u64>,
        #[n(1)]
        #[cbor(with = "AtMost::<2>")]
        more: Option<Vec<String>>,
        #[n(2)]
        last: u8,
    }

    fn read(bytes: &[u8]) -> Result<Message, String> {
        minicbor::decode(bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn arrays_are_written_as_others_and_read_within_their_bounds() {
        for more in [None, Some(vec!["a".to_owned(), "b".to_owned()])] {
            let message = Message { some: vec![1, 2, 3], more, last: 7 };
            assert_eq!(read(&minicbor::to_vec(&message).unwrap()), Ok(message));
        }
        assert_eq!(read(&[0x83, 0x80, 0xf6, 7]), Ok(Message { some: vec![], more: None, last: 7 }));
        let indefinite = [0x83, 0x9f, 1, 2, 3, 0xff, 0x80, 7];
        assert_eq!(read(&indefinite).unwrap().some, [1, 2, 3]);
    }

    #[test]
    fn whatever_is_longer_is_refused_before_it_is_read() {
        let long = read(&[0x83, 0x84, 1, 2, 3, 4, 0xf6, 7]).unwrap_err();
        assert!(long.contains("an array has 4 elements where 3 are the most"), "{long}");
        // What follows is not there.
        let huge = read(&[0x83, 0x9b, 0xff, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert!(huge.contains("where 3 are the most"), "{huge}");
        let endless = read(&[0x83, 0x9f, 1, 2, 3, 4, 0xff, 0xf6, 7]).unwrap_err();
        assert!(endless.contains("has more elements where 3"), "{endless}");
        let optional = read(&[0x83, 0x80, 0x83, 0x60, 0x60, 0x60, 7]).unwrap_err();
        assert!(optional.contains("where 2 are the most"), "{optional}");
    }
}
