//! Extended attributes as catalogs keep them: a version, a count, and each with its two lengths.

/// Name and value of each.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

const VERSION: u8 = 1;
/// Of names, of values, and of how many there are: each has one byte.
pub const LENGTH_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its extended attributes cannot be read")]
pub struct XattrsError;

/// What a catalog has.
pub fn read(bytes: &[u8]) -> Result<Xattrs, XattrsError> {
    let mut rest = bytes;
    let [version, count] = take(&mut rest, 2)? else { return Err(XattrsError) };
    if *version != VERSION {
        return Err(XattrsError);
    }
    let mut all = Vec::new();
    for _ in 0..*count {
        let [name, value] = take(&mut rest, 2)? else { return Err(XattrsError) };
        let (name, value) = (take(&mut rest, (*name).into())?, (*value).into());
        all.push((name.to_vec(), take(&mut rest, value)?.to_vec()));
    }
    if rest.is_empty() { Ok(all) } else { Err(XattrsError) }
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Result<&'b [u8], XattrsError> {
    let (taken, left) = rest.split_at_checked(length).ok_or(XattrsError)?;
    *rest = left;
    Ok(taken)
}

/// What a catalog is to have; `None`: what it cannot have, for length or number.
pub fn write(all: &Xattrs) -> Option<Vec<u8>> {
    let mut sorted = all.clone();
    sorted.sort();
    let mut bytes = vec![VERSION, u8::try_from(sorted.len()).ok()?];
    for (name, value) in sorted {
        bytes.extend([u8::try_from(name.len()).ok()?, u8::try_from(value.len()).ok()?]);
        bytes.extend(name);
        bytes.extend(value);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn they_are_as_the_format_has_them() {
        let all = vec![(b"user.color".to_vec(), b"blue".to_vec())];
        assert_eq!(write(&all).unwrap(), b"\x01\x01\x0a\x04user.colorblue");
        assert_eq!(write(&vec![(vec![b'x'; 256], vec![])]), None);
        for wrong in [&b""[..], b"\x01", b"\x02\x00", b"\x01\x01\x0a\x04user.colorblu", b"\x01\0x"]
        {
            assert_eq!(read(wrong), Err(XattrsError), "{wrong:?}");
        }
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..256)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            mut all in prop::collection::vec((text(), text()), 0..20),
            noise in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            all.sort();
            prop_assert_eq!(read(&write(&all).unwrap()), Ok(all));
            let _ = read(&noise);
        }
    }
}
