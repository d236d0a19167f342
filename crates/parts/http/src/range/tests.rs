//! Ranges as clients write them.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, with one in them")]

use super::*;
use proptest::prelude::*;

#[test]
fn ranges_are_read_as_rfc_9110_says() {
    let asked = Ranges::parse("bytes=0-9, 100- ,-5").unwrap();
    let expected = [Asked::Between { first: 0, last: 9 }, Asked::From(100), Asked::Last(5)];
    assert_eq!(asked.asked(), expected);
    assert_eq!(asked.to_string(), "bytes=0-9,100-,-5");
    assert_eq!(Ranges::parse("Bytes=1-1").unwrap().to_string(), "bytes=1-1");
    assert_eq!(Ranges::parse("lines=1-2"), Err(RangeError::Unit));
    for bad in [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=9-1",
        "bytes=a-b",
        "bytes=+1-2",
        "bytes=1-2x",
        "bytes=1-2;3-4",
        "bytes=0x1-2",
        "bytes=1--2",
    ] {
        assert_eq!(Ranges::parse(bad), Err(RangeError::Syntax), "{bad}");
    }
    let many = |count| format!("bytes={}", vec!["1-2"; count].join(","));
    assert!(Ranges::parse(&many(RANGES_MAX)).is_ok());
    assert_eq!(Ranges::parse(&many(RANGES_MAX + 1)), Err(RangeError::Many));
    assert_eq!(Ranges::parse("bytes=0-99999999999999999999999").unwrap().resolve(7), [0..7]);
}

#[test]
fn what_there_is_of_them() {
    let resolve = |value: &str, length| Ranges::parse(value).unwrap().resolve(length);
    assert_eq!(resolve("bytes=0-9", 5), [0..5]);
    assert_eq!(resolve("bytes=-9", 5), [0..5]);
    assert_eq!(resolve("bytes=-0", 5), []);
    assert_eq!(resolve("bytes=5-", 5), []);
    assert_eq!(resolve("bytes=4-", 5), [4..5]);
    assert_eq!(resolve("bytes=0-0,-1", 0), []);
    assert_eq!(resolve("bytes=50-59,0-9,90-200", 100), [50..60, 0..10, 90..100], "as asked");
    assert_eq!(resolve("bytes=10-19,0-9", 100), [10..20, 0..10], "those that touch are not joined");
    assert_eq!(resolve("bytes=50-59,0-,3-4", 100), [0..100], "each byte once");
    assert_eq!(resolve("bytes=0-,0-,0-", 10), [0..10]);
}

#[test]
fn what_an_answer_has() {
    let parsed = |value: &str| ContentRange::parse(value);
    let some = |range, length| Some(ContentRange { range, length });
    assert_eq!(parsed("bytes 0-9/100"), some(Some(0..10), Some(100)));
    assert_eq!(parsed("bytes 0-9/*"), some(Some(0..10), None));
    assert_eq!(parsed("Bytes  5-5/6 "), some(Some(5..6), Some(6)));
    assert_eq!(parsed("bytes */7"), some(None, Some(7)));
    for bad in [
        "",
        "bytes",
        "bytes 0-9",
        "bytes */*",
        "bytes 9-0/100",
        "bytes 0-9/9",
        "byte 0-9/10",
        "bytes 0-18446744073709551615/*",
        "bytes -1-2/3",
        "bytes 1/2",
        "bytesx0-1/2",
        "é",
    ] {
        assert_eq!(parsed(bad), None, "{bad}");
    }
}

#[test]
fn ranges_of_our_own() {
    assert_eq!(Ranges::one(3..9).unwrap().to_string(), "bytes=3-8");
    assert_eq!(Ranges::one(3..3), None);
    assert_eq!(Ranges::several([]), None);
    assert_eq!(Ranges::several([0..1, 2..2]), None);
}

proptest! {
    #[test]
    fn any_text_is_read_or_not(value in "bytes[= ][0-9,*/ -]{0,40}") {
        if let Ok(ranges) = Ranges::parse(&value) {
            prop_assert_eq!(&Ranges::parse(&ranges.to_string()).unwrap(), &ranges);
        }
        if let Some(content) = ContentRange::parse(&value) {
            prop_assert_eq!(ContentRange::parse(&content.to_string()), Some(content));
        }
    }

    #[test]
    fn every_byte_that_is_asked_for_comes_once(
        asked in proptest::collection::vec((0..50_u64, 0..50_u64), 1..8), length in 0..60_u64
    ) {
        let asked: Vec<_> = asked.into_iter().map(|(at, more)| match (at, more) {
            (at, 0) => Asked::From(at),
            (at, 1) => Asked::Last(at),
            (at, more) => Asked::Between { first: at, last: at + more },
        }).collect();
        let ranges = Ranges::of(asked.clone()).unwrap();
        let mut sent = vec![0; 60];
        for range in ranges.resolve(length) {
            prop_assert!(!range.is_empty() && range.end <= length);
            range.for_each(|at| sent[at as usize] += 1);
        }
        for (at, count) in sent.into_iter().enumerate() {
            let is_asked = asked.iter().filter_map(|one| one.resolve(length))
                .any(|range| range.contains(&(at as u64)));
            prop_assert_eq!(count, i32::from(is_asked));
        }
    }
}
