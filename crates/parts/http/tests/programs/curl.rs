//! Our server, asked by curl.

use crate::authority::Authority;
use crate::{by, noise};
use bytes::Bytes;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tieline_http::conditions::{ETag, Version};
use tieline_http::digest::{Algorithm, Hashing, parse_want_digest};
use tieline_http::header::{HeaderName, HeaderValue, LOCATION};
use tieline_http::server::content::{self, About};
use tieline_http::server::{Request, Response, Server, Settings};
use tieline_http::tls::{ClientCertificates, ServerTls};
use tieline_http::{Method, StatusCode};
use tieline_world::World;

/// A server of one file, which takes uploads and says their length and Adler-32.
async fn serve(world: &World, file: Vec<u8>, tls: Option<ServerTls>) -> Server {
    let file = Bytes::from(file);
    let handler = by(move |request: Request| {
        let file = file.clone();
        async move {
            match (&request.method, request.path.encode().as_str()) {
                (&Method::GET, "/file") => answer_file(&request, file),
                (&Method::GET, "/moved") => {
                    Response::new(StatusCode::FOUND).with_text(LOCATION, "/file?x=1")
                }
                (&Method::PUT, "/elsewhere") => Response::new(StatusCode::TEMPORARY_REDIRECT)
                    .with_text(LOCATION, "/a%20name%2Fof%20it"),
                (&Method::GET, "/me") => {
                    let shown = request.certificate.as_ref().and_then(|one| one.subject.clone());
                    Response::text(StatusCode::OK, shown.as_deref().unwrap_or("nobody"))
                }
                (&Method::PUT, path) => take(path.to_owned(), request).await,
                _ => Response::text(StatusCode::NOT_FOUND, "not here"),
            }
        }
    });
    Server::start(world, "127.0.0.1:0", tls, Settings::default(), handler).await.unwrap()
}

fn answer_file(request: &Request, file: Bytes) -> Response {
    let version = Version { tag: ETag::strong("v1"), modified: None };
    let kind = HeaderValue::from_static("application/octet-stream");
    let about = About { length: file.len() as u64, kind, version };
    let wanted = request.headers.get("want-digest").and_then(|value| value.to_str().ok());
    let mut hashing = Hashing::new(&wanted.map(parse_want_digest).unwrap_or_default());
    hashing.update(&file);
    let digests: Vec<_> = hashing.finish().iter().map(|digest| digest.to_digest()).collect();
    let response = content::answer(request, &about, Arc::new(file));
    match digests.is_empty() {
        true => response,
        false => response.with_text(HeaderName::from_static("digest"), &digests.join(",")),
    }
}

async fn take(path: String, request: Request) -> Response {
    let mut hashing = Hashing::new(&[Algorithm::Adler32]);
    let mut body = match request.body.open(20 << 20) {
        Ok(body) => body,
        Err(error) => return error.into(),
    };
    loop {
        match body.next().await {
            Ok(Some(piece)) => hashing.update(&piece),
            Ok(None) => break,
            Err(error) => return error.into(),
        }
    }
    let (length, digest) = (hashing.length(), hashing.finish().remove(0));
    Response::text(StatusCode::CREATED, &format!("{path} {length} {}", digest.to_digest()))
}

/// What curl writes of a URL.
async fn curl(arguments: &[&str], at: &str, input: Option<PathBuf>) -> Vec<u8> {
    let mut command = tokio::process::Command::new("curl");
    command.args(["--silent", "--show-error", "--http1.1", "--noproxy", "*", "--max-time", "60"]);
    command.args(arguments).arg(at);
    if let Some(input) = input {
        command.stdin(fs::File::open(input).unwrap());
    }
    let output = command.output().await.expect("curl is needed here");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} {at}: {}: {text}", output.status);
    output.stdout
}

async fn curl_text(arguments: &[&str], at: &str) -> String {
    String::from_utf8(curl(arguments, at, None).await).unwrap()
}

#[tokio::test]
async fn files_and_their_ranges() {
    let world = World::real();
    let file = noise(3 << 20);
    let server = serve(&world, file.clone(), None).await;
    let at = |path: &str| format!("http://{}{path}", server.address());
    for (range, expected) in [
        ("0-", &file[..]),
        ("100-199", &file[100..200]),
        ("-5", &file[file.len() - 5..]),
        ("3000000-", &file[3_000_000..]),
    ] {
        assert_eq!(curl(&["-r", range], &at("/file"), None).await, expected, "{range}");
    }
    assert_eq!(curl(&[], &at("/file"), None).await, file);
    // Several: in parts as RFC 9110 writes them.
    let parts = curl(&["-i", "-r", "0-9,100-109"], &at("/file"), None).await;
    let find = |needle: &[u8]| parts.windows(needle.len()).any(|window| window == needle);
    let total = file.len();
    assert!(find(b"206 Partial Content\r\n"));
    for (range, bytes) in [("0-9", &file[..10]), ("100-109", &file[100..110])] {
        let kind = "Content-Type: application/octet-stream";
        let head = format!("{kind}\r\nContent-Range: bytes {range}/{total}\r\n\r\n");
        assert!(find(&[head.as_bytes(), bytes, b"\r\n--part-"].concat()), "{range}");
    }
    // Goes on where it stopped.
    let folder = tempfile::tempdir().unwrap();
    let partial = folder.path().join("partial");
    fs::write(&partial, &file[..1000]).unwrap();
    curl(&["-C", "-", "-o", partial.to_str().unwrap()], &at("/file"), None).await;
    assert_eq!(fs::read(&partial).unwrap(), file);
    let head = curl_text(&["-I"], &at("/file")).await;
    assert!(head.contains(&format!("content-length: {total}\r\n")), "{head}");
    let code = ["-o", "/dev/null", "-w", "%{http_code} %{num_redirects}"];
    for (more, path, said) in [
        (&["-r", "9999999-"][..], "/file", "416 0"),
        (&["-H", "If-None-Match: \"v1\""], "/file", "304 0"),
        (&["-L"], "/moved", "200 1"),
        (&["--path-as-is"], "/a/../file", "400 0"),
        (&["-X", "DELETE"], "/file", "404 0"),
        (&["--http1.0"], "/file", "200 0"),
    ] {
        assert_eq!(curl_text(&[&code[..], more].concat(), &at(path)).await, said, "{path}");
    }
    // One connection for many.
    let moved = at("/moved");
    let words = ["-L", "-o", "/dev/null", "-w", "%{num_connects}\n", "-o", "/dev/null", &moved];
    assert_eq!(curl_text(&words, &moved).await, "1\n0\n");
}

#[tokio::test]
async fn uploads_with_and_without_length() {
    let world = World::real();
    let server = serve(&world, Vec::new(), None).await;
    let at = |path: &str| format!("http://{}{path}", server.address());
    let folder = tempfile::tempdir().unwrap();
    for length in [0, 1, 5 << 20] {
        let bytes = noise(length);
        let path = folder.path().join(length.to_string());
        fs::write(&path, &bytes).unwrap();
        let name = path.to_str().unwrap();
        let mut hashing = Hashing::new(&[Algorithm::Adler32]);
        hashing.update(&bytes);
        let digest = hashing.finish().remove(0).to_digest();
        let expected = format!("/up {length} {digest}\n");
        // curl asks before it sends what is large; with this it always does.
        let asks = ["-H", "Expect: 100-continue", "-T", name];
        for words in [&["-T", name][..], &asks] {
            assert_eq!(curl_text(words, &at("/up")).await, expected, "{words:?}");
        }
        // In chunks, as curl sends what it reads itself.
        for words in [&["-T", "-"][..], &["-H", "Expect: 100-continue", "-T", "-"]] {
            let text = curl(words, &at("/up"), Some(path.clone())).await;
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{words:?}");
        }
        // Sent elsewhere before any of it is sent.
        let text = curl_text(&[&["-L"], &asks[..]].concat(), &at("/elsewhere")).await;
        assert_eq!(text, format!("/a%20name/of%20it {length} {digest}\n"));
    }
    // Larger than is taken: said before it is sent.
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len(21 << 20).unwrap();
    let large = large.to_str().unwrap();
    let words = ["-o", "/dev/null", "-w", "%{http_code} %{size_upload}", "-T", large];
    assert_eq!(curl_text(&words, &at("/up")).await, "413 0");
}

#[tokio::test]
async fn digests_that_are_asked_for() {
    let world = World::real();
    let server = serve(&world, b"123456789".to_vec(), None).await;
    let at = format!("http://{}/file", server.address());
    let head = curl_text(&["-I", "-H", "Want-Digest: ADLER32;q=1,sha;q=0.5"], &at).await;
    assert!(head.contains("digest: adler32=091e01de\r\n"), "{head}");
    let head = curl_text(&["-I", "-H", "Want-Digest: sha"], &at).await;
    assert!(!head.contains("digest:"), "{head}");
}

#[tokio::test]
async fn certificates_of_people() {
    let world = World::real();
    let authority = Authority::new("one");
    let identity = authority.server("host", "DNS:localhost,IP:127.0.0.1").identity();
    let clients = ClientCertificates::Optional(authority.roots());
    let tls = ServerTls::new(&world.clock, identity, clients).unwrap();
    let file = noise(1 << 20);
    let server = serve(&world, file.clone(), Some(tls)).await;
    let at = |path: &str| format!("https://{}{path}", server.address());
    let me = authority.client("me", "/DC=ch/DC=cern/CN=some.body");
    let root = authority.certificate();
    let root = ["--cacert", root.to_str().unwrap()];
    let (certificate, key) = (me.certificate.to_str().unwrap(), me.key.to_str().unwrap());
    let mine = [&root[..], &["--cert", certificate, "--key", key]].concat();
    let old = [&mine[..], &["--tls-max", "1.2"]].concat();
    let subject = "/DC=ch/DC=cern/CN=some.body\n";
    for (words, said) in [(&mine[..], subject), (&old, subject), (&root, "nobody\n")] {
        assert_eq!(curl_text(words, &at("/me")).await, said);
    }
    assert_eq!(curl(&root, &at("/file"), None).await, file);
    // Offered more, it takes what is spoken here.
    let version = ["--http2", "-o", "/dev/null", "-w", "%{http_version}"];
    assert_eq!(curl_text(&[&root[..], &version].concat(), &at("/me")).await, "1.1");
}
