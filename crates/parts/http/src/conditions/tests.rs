//! Tags and conditions.

use super::*;
use hyper::header::HeaderValue;
use proptest::prelude::*;

fn version(tag: &str, seconds: u64) -> Version {
    Version { tag: ETag::parse(tag), modified: Some(Duration::from_millis(seconds * 1000 + 300)) }
}

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
        .collect()
}

#[test]
fn tags_are_read() {
    let weak = ETag::parse(" W/\"a,b\" ").unwrap();
    assert!(weak.is_weak && weak.opaque() == "a,b");
    assert_eq!(weak.to_string(), "W/\"a,b\"");
    for bad in ["", "a", "\"a", "a\"", "\"a\"b", "w/\"a\"", "\"a b\"", "\"\"\""] {
        assert_eq!(ETag::parse(bad), None, "{bad}");
    }
    assert!(ETag::strong("1-2").is_some() && ETag::strong("\"").is_none());
    let tags = Tags::parse("\"a\", W/\"b\",\"c,d\" ,, ").unwrap();
    let Tags::These(tags) = tags else { panic!() };
    assert_eq!(tags.iter().map(ETag::opaque).collect::<Vec<_>>(), ["a", "b", "c,d"]);
    assert_eq!(Tags::parse("*"), Some(Tags::Any));
    for bad in ["", ",", "*, \"a\"", "\"a\" \"b\"", "\"a\", b"] {
        assert_eq!(Tags::parse(bad), None, "{bad}");
    }
    assert!(Tags::parse(&"\"a\",".repeat(TAGS_MAX)).is_some());
    assert_eq!(Tags::parse(&"\"a\",".repeat(TAGS_MAX + 1)), None);
}

#[test]
fn conditions_are_judged_in_their_order() {
    let present = version("\"v1\"", 1000);
    let at = |seconds| format_date(Duration::from_secs(seconds));
    let (before, same, later) = (at(999), at(1000), at(1001));
    let judged =
        |pairs: &[(HeaderName, &str)], is_read| judge(&headers(pairs), is_read, Some(&present));
    for (pairs, read, write) in [
        (&[][..], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MATCH, "\"v1\"")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MATCH, "W/\"v1\"")], Verdict::Failed, Verdict::Failed),
        (&[(IF_MATCH, "\"v0\", \"v1\"")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MATCH, "\"v0\""), (IF_MATCH, "\"v1\"")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MATCH, "nonsense")], Verdict::Failed, Verdict::Failed),
        (&[(IF_MATCH, "*")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_NONE_MATCH, "W/\"v1\"")], Verdict::NotModified, Verdict::Failed),
        (&[(IF_NONE_MATCH, "*")], Verdict::NotModified, Verdict::Failed),
        (&[(IF_NONE_MATCH, "\"v2\"")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_NONE_MATCH, "nonsense")], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_UNMODIFIED_SINCE, &before)], Verdict::Failed, Verdict::Failed),
        (&[(IF_UNMODIFIED_SINCE, &same)], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MODIFIED_SINCE, &same)], Verdict::NotModified, Verdict::Proceed),
        (&[(IF_MODIFIED_SINCE, &later)], Verdict::NotModified, Verdict::Proceed),
        (&[(IF_MODIFIED_SINCE, &before)], Verdict::Proceed, Verdict::Proceed),
        (&[(IF_MODIFIED_SINCE, "nonsense")], Verdict::Proceed, Verdict::Proceed),
        // A tag says more than a date.
        (
            &[(IF_MATCH, "\"v1\""), (IF_UNMODIFIED_SINCE, &before)],
            Verdict::Proceed,
            Verdict::Proceed,
        ),
        (
            &[(IF_NONE_MATCH, "\"v2\""), (IF_MODIFIED_SINCE, &same)],
            Verdict::Proceed,
            Verdict::Proceed,
        ),
    ] {
        assert_eq!((judged(pairs, true), judged(pairs, false)), (read, write), "{pairs:?}");
    }
}

#[test]
fn of_what_is_not_there() {
    let judged = |name, value| judge(&headers(&[(name, value)]), false, None);
    assert_eq!(judged(IF_NONE_MATCH, "*"), Verdict::Proceed, "a new name");
    assert_eq!(judged(IF_MATCH, "*"), Verdict::Failed);
    assert_eq!(judged(IF_MATCH, "\"v1\""), Verdict::Failed);
}

#[test]
fn a_range_of_another_version_is_all() {
    let present = version("\"v1\"", 1000);
    let allowed = |value: &str| is_range_allowed(&headers(&[(IF_RANGE, value)]), &present);
    assert!(is_range_allowed(&HeaderMap::new(), &present));
    assert!(allowed("\"v1\"") && !allowed("W/\"v1\"") && !allowed("\"v2\""));
    assert!(allowed(&format_date(Duration::from_secs(1000))));
    assert!(!allowed(&format_date(Duration::from_secs(1001))), "exactly this date");
    assert!(!allowed("nonsense"));
}

#[test]
fn dates_go_both_ways() {
    let text = format_date(Duration::from_secs(784_111_777));
    assert_eq!(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(parse_date(&text), Some(Duration::from_secs(784_111_777)));
    assert_eq!(parse_date("Sunday, 06-Nov-94 08:49:37 GMT"), parse_date(&text));
    assert!(format_date(Duration::MAX).ends_with("9999 23:59:59 GMT"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_not(text in "[W/\"a,* é]{0,30}") {
        if let Some(tag) = ETag::parse(&text) {
            prop_assert_eq!(ETag::parse(&tag.to_string()), Some(tag));
        }
        if let Some(Tags::These(tags)) = Tags::parse(&text) {
            let written: Vec<_> = tags.iter().map(ToString::to_string).collect();
            prop_assert_eq!(Tags::parse(&written.join(", ")), Some(Tags::These(tags)));
        }
    }
}
