//! Bodies of several parts: our own, as other servers write them, and broken ones.

use super::*;
use proptest::prelude::*;

fn read(kind: &str, pieces: &[&[u8]]) -> Result<Vec<Event>, MultipartError> {
    let mut reader = PartReader::new(kind).unwrap();
    let mut events: Vec<Event> = Vec::new();
    for piece in pieces {
        reader.feed(Bytes::copy_from_slice(piece));
        while let Some(event) = reader.next()? {
            // Data as one, however it came.
            match (events.last_mut(), event) {
                (Some(Event::Data { bytes, .. }), Event::Data { bytes: more, .. }) => {
                    *bytes = [&bytes[..], &more[..]].concat().into();
                }
                (_, event) => events.push(event),
            }
        }
    }
    reader.end()?;
    Ok(events)
}

fn written(parts: &[Range<u64>], length: u64) -> Vec<u8> {
    let mut body = Vec::new();
    for (number, range) in parts.iter().enumerate() {
        let said = ContentRange { range: Some(range.clone()), length: Some(length) };
        body.extend(part_head("B", "text/plain", &said, number == 0).bytes());
        body.extend(range.clone().map(|at| at as u8));
    }
    body.extend(closing("B").bytes());
    body
}

fn expected(parts: &[Range<u64>], length: u64) -> Vec<Event> {
    let event = |range: &Range<u64>| {
        let bytes: Vec<u8> = range.clone().map(|at| at as u8).collect();
        [
            Event::Part { range: range.clone(), length: Some(length) },
            Event::Data { offset: range.start, bytes: bytes.into() },
        ]
    };
    parts.iter().flat_map(event).collect()
}

#[test]
fn other_servers_write_it_so() {
    let kind = "multipart/byteranges; boundary=00000000000000000001";
    let body = b"\r\n--00000000000000000001\r\nContent-Type: text/plain\r\n\
        Content-Range: bytes 0-2/10\r\n\r\nabc\r\n--00000000000000000001\r\n\
        content-range: bytes 7-8/10\r\nContent-Type: text/plain\r\n\r\n\r\n\r\n\
        --00000000000000000001--\r\n";
    let events = read(kind, &[body]).unwrap();
    let data = |offset, bytes: &'static [u8]| Event::Data { offset, bytes: bytes.into() };
    let part = |range| Event::Part { range, length: Some(10) };
    assert_eq!(events, [part(0..3), data(0, b"abc"), part(7..9), data(7, b"\r\n")]);
    // Line feeds only, text before and behind, no last line break.
    let body = b"hello\n--B\nContent-Range: bytes 0-0/*\n\nx\n--B--";
    let events = read("Multipart/ByteRanges; charset=x; boundary=\"B\"", &[body]).unwrap();
    assert_eq!(events, [Event::Part { range: 0..1, length: None }, data(0, b"x")]);
}

#[test]
fn broken_ones_are_errors() {
    let kind = "multipart/byteranges; boundary=B";
    let head = b"--B\r\nContent-Range: bytes 0-2/10\r\n\r\n".as_slice();
    for (rest, error) in [
        (&b"ab"[..], MultipartError::Short),
        (b"abc", MultipartError::Short),
        (b"abc\r\n--B", MultipartError::Short),
        (b"abcd\r\n--B--", MultipartError::Boundary),
        (b"abc\r\n--C--\r\n", MultipartError::Boundary),
        (b"abc\r\n--B\r\nContent-Type: x\r\n\r\n", MultipartError::Range),
        (b"abc\r\n--B\r\nContent-Range: bytes 2-1/9\r\n\r\n", MultipartError::Range),
        (b"abc\r\n--B\r\nContent-Range: bytes */9\r\n\r\n", MultipartError::Range),
    ] {
        assert_eq!(read(kind, &[head, rest]), Err(error), "{}", String::from_utf8_lossy(rest));
    }
    assert_eq!(read(kind, &[&[b'x'; LINE_MAX + 1]]), Err(MultipartError::Long));
    assert_eq!(read(kind, &[&b"x\n".repeat(LINES_MAX + 1)]), Err(MultipartError::Long));
    let long = [b"--B\r\n", &b"x: y\r\n".repeat(LINES_MAX + 1)[..]].concat();
    assert_eq!(read(kind, &[&long]), Err(MultipartError::Long));
    let many = b"--B\r\nContent-Range: bytes 0-0/1\r\n\r\nx\r\n".repeat(RANGES_MAX + 1);
    assert_eq!(read(kind, &[&many]), Err(MultipartError::Many));
}

#[test]
fn other_kinds_are_none() {
    for kind in [
        "",
        "text/plain",
        "multipart/byteranges",
        "multipart/mixed; boundary=B",
        "multipart/byteranges; boundary=",
        "multipart/byteranges; boundary=\"\"",
        "multipart/byteranges; boundary=\"a \"",
    ] {
        assert!(PartReader::new(kind).is_none(), "{kind}");
    }
    let long = format!("multipart/byteranges; boundary={}", "b".repeat(BOUNDARY_MAX + 1));
    assert!(PartReader::new(&long).is_none());
}

proptest! {
    #[test]
    fn however_it_is_cut_it_reads_the_same(
        parts in proptest::collection::vec((0..80_u64, 1..20_u64), 1..5), step in 1..40_usize
    ) {
        let parts: Vec<_> = parts.into_iter().map(|(start, count)| start..start + count).collect();
        let body = written(&parts, 100);
        let pieces: Vec<_> = body.chunks(step).collect();
        prop_assert_eq!(read(&content_type("B"), &pieces).unwrap(), expected(&parts, 100));
        for end in 0..body.len() - 4 {
            let cut = read(&content_type("B"), &[&body[..end]]);
            prop_assert_eq!(cut, Err(MultipartError::Short), "cut at {}", end);
        }
    }
}
