//! URLs and paths, as people and servers write them.

use super::*;
use proptest::prelude::*;

fn parsed(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn parts_are_told_apart() {
    let url = parsed("HTTPS://Se.Example.org:8443/a/b?x=1&y=%20#there");
    assert_eq!(url.origin.scheme, Scheme::Https);
    assert_eq!((url.origin.host.as_str(), url.origin.port), ("se.example.org", 8443));
    assert_eq!(url.target(), "/a/b?x=1&y=%20");
    assert_eq!(url.origin.authority(), "se.example.org:8443");
    assert_eq!(parsed("http://host").target(), "/");
    assert_eq!(parsed("http://host?x").target(), "/?x");
    assert_eq!(parsed("http://host:80/").origin.authority(), "host");
    let six = parsed("http://[2001:DB8::1]:8080/x");
    assert_eq!((six.origin.host.as_str(), six.origin.port), ("2001:db8::1", 8080));
    assert_eq!(six.origin.address(), "[2001:db8::1]:8080");
    assert_eq!(parsed("https://[::1]/").origin.authority(), "[::1]");
}

#[test]
fn what_means_two_things_is_refused() {
    for (text, error) in [
        ("ftp://host/", UrlError::Scheme),
        ("host/path", UrlError::Scheme),
        ("http://", UrlError::Host),
        ("http:///path", UrlError::Host),
        ("http://user:secret@host/", UrlError::Credentials),
        ("http://good\u{0}evil/", UrlError::Host),
        ("http://a b/", UrlError::Host),
        ("http://[::1/", UrlError::Host),
        ("http://[::g]/", UrlError::Host),
        ("http://[::1]x/", UrlError::Port),
        ("http://host:0/", UrlError::Port),
        ("http://host:+80/", UrlError::Port),
        ("http://host:65536/", UrlError::Port),
        ("http://::1/", UrlError::Host),
        ("http://host/%4", UrlError::Escape),
        ("http://host/%+1", UrlError::Escape),
        ("http://host/?q=%zz", UrlError::Escape),
        ("http://host/a\r\nHost: evil", UrlError::Control),
    ] {
        assert_eq!(Url::parse(text), Err(error), "{text:?}");
    }
    assert_eq!(Url::parse(&format!("http://h/{}", "a".repeat(URL_MAX))), Err(UrlError::Long));
    // As short as it may be, and too long when it is escaped.
    assert_eq!(Url::parse(&format!("http://h/{}", " ".repeat(URL_MAX / 2))), Err(UrlError::Long));
}

#[test]
fn what_others_write_is_escaped() {
    assert_eq!(parsed("http://h/a b/é?q={1}").target(), "/a%20b/%C3%A9?q=%7B1%7D");
    assert_eq!(parsed("http://h/a%20b+c=d&e").target(), "/a%20b+c=d&e");
    let url = parsed("http://h/top/").below(["a/b", "c d", "é%", "x=1&y"]);
    assert_eq!(url.target(), "/top/a%2Fb/c%20d/%C3%A9%25/x%3D1%26y");
    let url = url.with_query(&[("a", "1 +"), ("b&", "=")]);
    assert_eq!(url.query(), Some("a=1%20%2B&b%26=%3D"));
    assert_eq!(
        query_pairs(url.query().unwrap()).unwrap(),
        [("a".to_owned(), "1 +".to_owned()), ("b&".to_owned(), "=".to_owned())]
    );
    assert_eq!(query_pairs("authz=a+b&&x").unwrap()[0].1, "a+b", "a plus sign stays");
}

#[test]
fn references_lead_where_rfc_3986_says() {
    let base = parsed("http://a/b/c/d?q");
    for (reference, target) in [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g/"),
        ("//g:81/x", "http://g:81/x"),
        ("?y", "http://a/b/c/d?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d?q"),
        ("", "http://a/b/c/d?q"),
        (".", "http://a/b/c/"),
        ("..", "http://a/b/"),
        ("../g", "http://a/b/g"),
        ("../../g", "http://a/g"),
        ("../../../g", "http://a/g"),
        ("./g/.", "http://a/b/c/g/"),
        ("g/./h", "http://a/b/c/g/h"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("https://x/y", "https://x/y"),
        ("g?at=12:30", "http://a/b/c/g?at=12:30"),
    ] {
        assert_eq!(base.join(reference).unwrap().to_text(), target, "{reference}");
    }
    assert_eq!(base.join("mailto:me"), Err(UrlError::Scheme));
    assert_eq!(base.join("file:///etc/passwd"), Err(UrlError::Scheme));
}

#[test]
fn a_query_is_in_no_message() {
    let url = parsed("https://h/f?authz=Bearer%20secret");
    assert_eq!(url.to_string(), "https://h/f?...");
    assert!(!format!("{url:?} {url}").contains("secret"));
}

#[test]
fn a_path_is_decoded_once() {
    let path = Path::decode("//a//b%20c/%252e/").unwrap();
    assert_eq!(path.names, [&b"a"[..], b"b c", b"%2e"]);
    assert!(path.ends_in_slash);
    assert_eq!(path.encode(), "/a/b%20c/%252e/");
    assert_eq!(Path::decode("/").unwrap().encode(), "/");
    assert_eq!(Path::decode("/a/./b").unwrap().encode(), "/a/b");
    assert_eq!(Path::decode("/%ff").unwrap().names, [[0xff]], "names are bytes");
    for (raw, error) in [
        ("/a/../b", UrlError::Upwards),
        ("/a/%2e%2E/b", UrlError::Upwards),
        ("/a%2f..%2fb", UrlError::Upwards),
        ("/a%00", UrlError::Control),
        ("/a%", UrlError::Escape),
    ] {
        assert_eq!(Path::decode(raw), Err(error), "{raw}");
    }
}

proptest! {
    #[test]
    fn urls_survive_any_text(start in "(http://h|https?://[a-z0-9:\\[\\]@]{0,9})", rest in ".{0,60}") {
        if let Ok(url) = Url::parse(&format!("{start}{rest}")) {
            prop_assert_eq!(&Url::parse(&url.to_text()).unwrap(), &url);
            prop_assert!(url.target().bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(url.target().starts_with('/'));
            prop_assert!(url.target().parse::<hyper::Uri>().is_ok());
            if let Ok(next) = url.join(&rest) {
                prop_assert_eq!(Url::parse(&next.to_text()).unwrap(), next);
            }
        }
    }

    #[test]
    fn names_come_through(
        names in proptest::collection::vec(proptest::collection::vec(1_u8.., 1..20), 0..5)
    ) {
        let is_name = |name: &Vec<u8>| !name.contains(&b'/') && !matches!(&name[..], b"." | b"..");
        prop_assume!(names.iter().all(is_name));
        let path = Path { names: names.clone(), ends_in_slash: names.is_empty() };
        prop_assert_eq!(Path::decode(&path.encode()).unwrap(), path);
        let url = Url::parse("http://h/").unwrap().below(&names);
        prop_assert_eq!(Path::decode(url.path()).unwrap().names, names);
    }
}
