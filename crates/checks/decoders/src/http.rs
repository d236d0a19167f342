//! What strangers write over HTTP, by its kind (1 byte): URLs and paths, ranges, bodies of several
//! parts, tags, digests, dates, and the certificates of clients.

use bytes::Bytes;
use tieline_http::conditions::{ETag, Tags, format_date, parse_date};
use tieline_http::digest::{Digest, parse_want_digest, parse_want_repr_digest};
use tieline_http::multipart::{Event, PartReader};
use tieline_http::range::{ContentRange, RANGES_MAX, Ranges};
use tieline_http::tls;
use tieline_http::url::{Path, Url, query_pairs};

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 9 {
        6 => return parts(rest),
        7 => {
            if let Some(subject) = tls::subject(rest) {
                assert!(subject.starts_with('/') && subject.is_ascii());
            }
            return;
        }
        _ => {}
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match kind % 9 {
        0 => url(text),
        1 => path(text),
        2 => ranges(text),
        3 => {
            if let Some(content) = ContentRange::parse(text) {
                assert_eq!(ContentRange::parse(&content.to_string()), Some(content));
            }
        }
        4 => tags(text),
        5 => digests(text),
        _ => {
            if let Some(date) = parse_date(text) {
                assert_eq!(parse_date(&format_date(date)), Some(date));
            }
        }
    }
}

/// Two URLs: one, and what is found there.
fn url(text: &str) {
    let (base, reference) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(base) = Url::parse(base) else { return };
    for url in [Some(base.clone()), base.join(reference).ok()].into_iter().flatten() {
        assert_eq!(Url::parse(&url.to_text()).unwrap(), url);
        assert!(url.target().starts_with('/'));
        assert!(url.target().bytes().all(|byte| byte.is_ascii_graphic()));
        let _ = url.query().map(query_pairs);
    }
}

fn path(text: &str) {
    if let Ok(path) = Path::decode(text) {
        assert_eq!(Path::decode(&path.encode()).unwrap().names, path.names);
        let is_name = |name: &Vec<u8>| !name.contains(&b'/') && !name.contains(&0);
        assert!(path.names.iter().all(is_name));
        assert!(path.names.iter().all(|name| !matches!(&name[..], b"" | b"." | b"..")));
    }
    let _ = query_pairs(text);
}

fn ranges(text: &str) {
    let Ok(ranges) = Ranges::parse(text) else { return };
    assert!(ranges.asked().len() <= RANGES_MAX);
    assert_eq!(Ranges::parse(&ranges.to_string()).unwrap(), ranges);
    for length in [0, 1, 1000, u64::MAX] {
        let mut resolved = ranges.resolve(length);
        assert!(resolved.iter().all(|range| range.start < range.end && range.end <= length));
        resolved.sort_by_key(|range| range.start);
        assert!(resolved.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
}

fn tags(text: &str) {
    if let Some(tag) = ETag::parse(text) {
        assert_eq!(ETag::parse(&tag.to_string()), Some(tag));
    }
    let _ = Tags::parse(text);
}

fn digests(text: &str) {
    for digest in Digest::parse_digest(text) {
        assert_eq!(Digest::parse_digest(&digest.to_digest()), [digest]);
    }
    for digest in Digest::parse_repr_digest(text) {
        assert_eq!(Digest::parse_repr_digest(&digest.to_repr_digest()), [digest]);
    }
    let _ = (parse_want_digest(text), parse_want_repr_digest(text));
}

/// The first byte says in which pieces it comes: it is read the same way in any.
fn parts(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let whole = read_parts(&[bytes]);
    let pieces: Vec<_> = bytes.chunks(usize::from(*step).max(1)).collect();
    assert_eq!(read_parts(&pieces), whole);
}

/// Each part's range and bytes, and whether the end was reached.
fn read_parts(pieces: &[&[u8]]) -> (Vec<(u64, u64, Vec<u8>)>, bool) {
    let kind = "multipart/byteranges; boundary=B";
    let (mut reader, mut parts) = (PartReader::new(kind).unwrap(), Vec::new());
    for piece in pieces {
        reader.feed(Bytes::copy_from_slice(piece));
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(Event::Part { range, .. })) => {
                    parts.push((range.start, range.end, Vec::new()));
                }
                Ok(Some(Event::Data { offset, bytes })) => {
                    let (start, end, data) = parts.last_mut().unwrap();
                    assert_eq!(offset, *start + data.len() as u64);
                    data.extend_from_slice(&bytes);
                    assert!(*start + data.len() as u64 <= *end);
                }
                Err(_) => return (parts, false),
            }
        }
    }
    (parts, reader.end().is_ok())
}
