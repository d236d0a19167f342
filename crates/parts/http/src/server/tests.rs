//! The server against our own client, and against clients that stall, lie and flood.

use super::*;
use crate::body::Body;
use crate::client::{Request as Ask, Settings as ClientSettings, WholeFile};
use crate::conditions::ETag;
use crate::range::{Asked, Ranges};
use crate::stream::Pace;
use crate::trial::{By, Trial, ask, read_head, url};
use bytes::Bytes;
use content::{About, Content};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_world::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;

/// 1,000 bytes that tell where they are.
fn bytes() -> Bytes {
    (0..1000_u32).map(|at| (at % 251) as u8).collect()
}

fn about() -> About {
    About {
        length: 1000,
        kind: HeaderValue::from_static("application/x-root"),
        version: crate::conditions::Version {
            tag: ETag::strong("v1"),
            modified: Some(Duration::from_secs(784_111_777)),
        },
    }
}

async fn file(request: Request) -> Response {
    content::answer(&request, &about(), Arc::new(bytes()))
}

async fn get(trial: &Trial, host: &str, head: &str) -> (u16, String, Vec<u8>) {
    let mut connection = trial.connect(host).await;
    let text = format!("GET /f HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{head}\r\n");
    connection.writer.write_all(text.as_bytes()).await.unwrap();
    let head = read_head(&mut connection).await;
    let mut body = Vec::new();
    connection.reader.read_to_end(&mut body).await.unwrap();
    (head[9..12].parse().unwrap(), head.to_ascii_lowercase(), body)
}

#[tokio::test]
async fn files_are_read_whole_and_in_parts() {
    let trial = Trial::new();
    let _server = trial.serve("h", file).await;
    let (status, head, body) = get(&trial, "h", "").await;
    assert_eq!((status, &body[..]), (200, &bytes()[..]));
    for line in [
        "content-length: 1000\r\n",
        "content-type: application/x-root\r\n",
        "etag: \"v1\"\r\n",
        "accept-ranges: bytes\r\n",
        "last-modified: sun, 06 nov 1994 08:49:37 gmt\r\n",
        "date: thu, 01 jan 2026 00:00:00 gmt\r\n",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    for (range, said, expected) in [
        ("0-9", "bytes 0-9/1000", 0..10),
        ("990-", "bytes 990-999/1000", 990..1000),
        ("-10", "bytes 990-999/1000", 990..1000),
        ("0-0", "bytes 0-0/1000", 0..1),
        ("0-5000", "bytes 0-999/1000", 0..1000),
        ("0-9,5-20", "bytes 0-20/1000", 0..21),
        ("999-,5000-", "bytes 999-999/1000", 999..1000),
    ] {
        let (status, head, body) = get(&trial, "h", &format!("Range: bytes={range}\r\n")).await;
        assert_eq!((status, &body[..]), (206, &bytes()[expected]), "{range}");
        assert!(head.contains(&format!("content-range: {said}\r\n")), "{range}: {head}");
    }
    for (headers, expected) in [
        ("Range: bytes=1000-", 416),
        ("Range: bytes=-0", 416),
        ("Range: bytes=9-1", 200),
        ("Range: lines=1-2", 200),
        ("Range: bytes=0-1\r\nIf-Range: \"v1\"", 206),
        ("Range: bytes=0-1\r\nIf-Range: \"v0\"", 200),
        ("Range: bytes=0-1\r\nIf-None-Match: \"v1\"", 304),
        ("Range: bytes=0-1\r\nIf-Match: \"v0\"", 412),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 304),
    ] {
        let (status, head, body) = get(&trial, "h", &format!("{headers}\r\n")).await;
        assert_eq!(status, expected, "{headers}");
        assert_eq!(body.is_empty(), status == 304, "{headers}");
        assert_eq!(head.contains("content-range: bytes */1000\r\n"), status == 416, "{headers}");
        assert_eq!(head.contains("etag: \"v1\""), !matches!(status, 412 | 416), "{headers}");
    }
    let many = vec!["1-2"; crate::range::RANGES_MAX + 1].join(",");
    assert_eq!(get(&trial, "h", &format!("Range: bytes={many}\r\n")).await.0, 416);
}

#[tokio::test]
async fn several_parts_are_read_by_our_client() {
    let trial = Trial::new();
    let _server = trial.serve("h", file).await;
    let asked = vec![Asked::Last(3), Asked::Between { first: 10, last: 19 }, Asked::From(995)];
    for (asked, expected) in [
        (asked.clone(), vec![(10, 20), (995, 1000)]),
        (asked[..2].to_vec(), vec![(997, 1000), (10, 20)]),
    ] {
        let request = Ask::get(url("http://h/f")).ranges(Ranges::of(asked).unwrap());
        let response = trial.client.send(request).await.unwrap();
        let kind = response.headers[header::CONTENT_TYPE].to_str().unwrap();
        assert!(kind.starts_with("multipart/byteranges; boundary=part-"), "{kind}");
        let mut body = response.ranged(WholeFile::Refuse).await.unwrap();
        let mut got = Vec::new();
        while let Some((at, piece)) = body.next().await.unwrap() {
            let range = at as usize..at as usize + piece.len();
            assert_eq!(piece, bytes().slice(range.clone()));
            got.push((range.start, range.end));
        }
        assert_eq!(got, expected);
        assert_eq!(body.length(), Some(1000));
    }
    assert_eq!(trial.transport.connections(), 1, "read to the end");
}

/// Gives the first bytes only, though more were said.
struct Torn;

#[async_trait::async_trait]
impl Content for Torn {
    async fn read(&self, offset: u64, _: usize) -> Result<Bytes, crate::body::BodyError> {
        // What was read before is on its way.
        tokio::task::yield_now().await;
        if offset < 500 { Ok(bytes().slice(..100)) } else { Err("the disk is gone".into()) }
    }
}

#[tokio::test]
async fn a_read_that_fails_is_no_short_file() {
    let trial = Trial::new();
    let torn = |request| async move { content::answer(&request, &about(), Arc::new(Torn)) };
    let _server = trial.serve("h", torn).await;
    let error = trial.client.send(Ask::get(url("http://h/f"))).await.unwrap().body.whole(2000);
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::Short { got: 500, length: Some(1000), .. }), "{error:?}");
    // Of unknown length too.
    let failing = Arc::new(Notify::new());
    let told = failing.clone();
    let unknown = move |_| {
        let (sender, body) = Body::channel(None);
        let failing = failing.clone();
        tokio::spawn(async move {
            sender.send(Bytes::from_static(b"some")).await.unwrap();
            failing.notified().await;
            sender.fail("the disk is gone").await;
        });
        async { Response::new(StatusCode::OK).body(body) }
    };
    let _server = trial.serve("u", unknown).await;
    let mut body = trial.client.send(Ask::get(url("http://u/f"))).await.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), "some");
    told.notify_one();
    let error = body.next().await.unwrap_err();
    assert!(matches!(error, Error::Short { got: 4, length: None, .. }), "{error:?}");
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let trial = Trial::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let _server = trial
        .serve("h", move |request| {
            assert_eq!(request.method, Method::GET);
            count.fetch_add(usize::from(request.is_head), Ordering::Relaxed);
            async move {
                match request.path.encode().as_str() {
                    "/stream" => Response::new(StatusCode::OK).body(Body::channel(None).1),
                    "/none" => Response::new(StatusCode::NO_CONTENT).body("not sent"),
                    "/no" => Response::text(StatusCode::NOT_FOUND, "no"),
                    _ => file(request).await,
                }
            }
        })
        .await;
    let mut connection = trial.connect("h").await;
    for (path, status, length) in [
        ("/f", "200", Some(1000)),
        ("/stream", "200", None),
        ("/no", "404", Some(3)),
        ("/none", "204", None),
    ] {
        let text = format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        connection.writer.write_all(text.as_bytes()).await.unwrap();
        let head = read_head(&mut connection).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
        let said = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(said.map(|said| said.parse().unwrap()), length, "{path}: {head}");
    }
    assert_eq!(seen.load(Ordering::Relaxed), 4);
    let range = b"HEAD /f HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2,5-6\r\nConnection: close\r\n\r\n";
    let head = ask(connection, range).await;
    assert!(head.starts_with("HTTP/1.1 206 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn what_is_no_request_reaches_no_handler() {
    let trial = Trial::new();
    let _server = trial
        .serve("h", |request| async move { Response::text(StatusCode::OK, &request.path.encode()) })
        .await;
    let long =
        format!("GET /{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "a".repeat(40 << 10));
    let lines = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(200));
    let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "y".repeat(100 << 10));
    for (request, status) in [
        ("GET /a%20b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200"),
        ("GET /a HTTP/1.0\r\n\r\n", "200"),
        ("GET http://h/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200"),
        ("OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200"),
        ("GET /a HTTP/1.1\r\nConnection: close\r\n\r\n", "400"),
        ("GET /a HTTP/1.1\r\nHost: h\r\nHost: i\r\nConnection: close\r\n\r\n", "400"),
        ("GET /%00 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("GET /%zz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("GET /a/../b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("GET /a/%2e%2e/b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("CONNECT h:443 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("GET a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", "400"),
        ("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\n no: fold\r\n\r\n", "400"),
        ("what is this\r\n\r\n", "400"),
        ("\u{16}\u{3}\u{1}\u{2}", "400"),
        (&long, "414"),
        (&lines, "431"),
        (&large, "431"),
    ] {
        let answer = ask(trial.connect("h").await, request.as_bytes()).await;
        let got = answer.get(9..12).unwrap_or_default();
        assert_eq!(got, status, "{request:.60}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stalls_is_shown_out() {
    let trial = Trial::new();
    let settings = Settings {
        pace: Pace { bytes: 100, within: Duration::from_secs(30) },
        ..Settings::default()
    };
    let _server = trial
        .serve_with("h", settings, |request| async move {
            if request.method == Method::GET {
                return Response::new(StatusCode::OK).body(vec![1; 4 << 20]);
            }
            match request.body.open(1 << 20) {
                Ok(body) => match body.whole(1 << 20).await {
                    Ok(body) => Response::text(StatusCode::OK, &body.len().to_string()),
                    Err(error) => error.into(),
                },
                Err(error) => error.into(),
            }
        })
        .await;
    // What is said at first, what then every second, and when it is over.
    let request = "PUT /a HTTP/1.1\r\nHost: h\r\n";
    for (first, then, seconds, status) in [
        ("", "", 15, ""),
        ("P", "", 15, ""),
        ("GET / HTTP/1.1\r\n", "X: y\r\n", 15, ""),
        (&format!("{request}Content-Length: 100\r\n\r\nabc"), "", 30, "408"),
        (&format!("{request}Content-Length: 10000\r\n\r\n"), "x", 30, "408"),
        (&format!("{request}Transfer-Encoding: chunked\r\n\r\n"), "1\r\nx\r\n", 30, "408"),
        (&format!("{request}Content-Length: 0\r\n\r\n"), "", 60, "200"),
    ] {
        let mut connection = trial.connect("h").await;
        let begun = Instant::now();
        connection.writer.write_all(first.as_bytes()).await.unwrap();
        let mut writer = connection.writer;
        let trickle = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if writer.write_all(then.as_bytes()).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        });
        let mut answer = Vec::new();
        let _ = connection.reader.read_to_end(&mut answer).await;
        trickle.abort();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(answer.get(9..12).unwrap_or_default(), status, "{first}: {answer}");
        let passed = begun.elapsed().as_secs();
        assert!((seconds..seconds + 2).contains(&passed), "{first}: after {passed} s");
    }
    // Who asks, and does not take the answer, or a little now and then.
    for sip in [0, 50] {
        let mut connection = trial.connect("h").await;
        connection.writer.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let mut little = vec![0; sip];
            connection.reader.read_exact(&mut little).await.unwrap();
        }
        let mut answer = Vec::new();
        let _ = connection.reader.read_to_end(&mut answer).await;
        assert!(answer.len() < 1 << 20, "{} bytes", answer.len());
    }
}

#[tokio::test]
async fn bodies_are_taken_as_far_as_the_handler_will() {
    let trial = Trial::new();
    let _server = trial
        .serve("h", |request| async move {
            let body = match request.body.open(10) {
                Ok(body) => body,
                Err(error) => return error.into(),
            };
            match body.whole(10).await {
                Ok(body) => Response::text(StatusCode::OK, &body.len().to_string()),
                Err(error) => error.into(),
            }
        })
        .await;
    let put = "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    for (rest, status) in [
        ("Content-Length: 10\r\n\r\n0123456789", "200"),
        ("Content-Length: 0\r\n\r\n", "200"),
        ("\r\n", "200"),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\nX: y\r\n\r\n", "200"),
        ("Content-Length: 11\r\n\r\n", "413"),
        ("Content-Length: 99999999999999\r\nExpect: 100-continue\r\n\r\n", "413"),
        ("Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n", "413"),
        ("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n01234567890123456789", "413"),
        ("Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n0", "400"),
        ("Transfer-Encoding: chunked\r\n\r\nx\r\n", "400"),
    ] {
        let answer = ask(trial.connect("h").await, format!("{put}{rest}").as_bytes()).await;
        assert_eq!(answer.get(9..12).unwrap_or_default(), status, "{rest}: {answer}");
    }
    // Wanted, so asked for.
    let expects = format!("{put}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n01234");
    let answer = ask(trial.connect("h").await, expects.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn a_body_that_ends_early_is_told() {
    let trial = Trial::new();
    let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let _server = trial
        .serve("h", move |request| {
            let told = told.clone();
            async move {
                let result = request.body.open(1000).unwrap().whole(1000).await;
                told.send(result.map(|body| body.len())).unwrap();
                Response::new(StatusCode::CREATED)
            }
        })
        .await;
    for text in [
        "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n01234",
        "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n",
    ] {
        let mut connection = trial.connect("h").await;
        connection.writer.write_all(text.as_bytes()).await.unwrap();
        connection.writer.shutdown().await.unwrap();
        let error = hear.recv().await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Short { got: 5, .. }), "{error:?}");
        drop(connection);
    }
}

#[tokio::test(start_paused = true)]
async fn there_are_so_many_connections() {
    let trial = Trial::new();
    let settings = Settings { connections: 2, connections_per_peer: 5, ..Settings::default() };
    let _server = trial.serve_with("h", settings, file).await;
    let stalled = [trial.connect("h").await, trial.connect("h").await];
    // Waits for who is shown out first.
    let begun = Instant::now();
    assert_eq!(get(&trial, "h", "").await.0, 200);
    assert_eq!(begun.elapsed().as_secs(), Settings::default().head.as_secs());
    drop(stalled);
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_idle_and_waits_for_the_busy() {
    let trial = Trial::new();
    let slow = |request: Request| async move {
        let seconds = request.path.encode()[1..].parse().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Response::text(StatusCode::OK, "done")
    };
    for (seconds, patience, is_done) in [(20, 30, true), (50, 30, false)] {
        let server = trial.serve("h", slow).await;
        let mut fresh = trial.connect("h").await;
        let mut idle = trial.connect("h").await;
        idle.writer.write_all(b"GET /0 HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        read_head(&mut idle).await;
        let client = trial.client.clone();
        let busy = tokio::spawn(async move {
            let request = Ask::get(url(&format!("http://h/{seconds}")));
            Ok::<_, Error>(client.send(request).await?.body.whole(100).await?.len())
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        let ended = async {
            let mut rest = Vec::new();
            idle.reader.read_to_end(&mut rest).await.unwrap();
            fresh.reader.read_to_end(&mut rest).await.unwrap();
            begun.elapsed()
        };
        let (stopped, idle_for) = tokio::join!(server.stop(Duration::from_secs(patience)), ended);
        assert_eq!((stopped, idle_for.as_secs()), (is_done, 0));
        assert_eq!(busy.await.unwrap().is_ok(), is_done);
        assert!(trial.transport.connect("h:80", Duration::from_secs(1)).await.is_err());
    }
}

#[tokio::test]
async fn a_port_is_closed_with_its_server() {
    let trial = Trial::new();
    let handler = Arc::new(By(file));
    let server = Server::start(&trial.world, "h:0", None, Settings::default(), handler);
    let server = server.await.unwrap();
    let address = server.address().to_owned();
    let second = Arc::new(By(file));
    let taken = Server::start(&trial.world, &address, None, Settings::default(), second).await;
    assert!(matches!(taken, Err(Error::Listen { .. })));
    drop(server);
    while trial.transport.connect(&address, Duration::from_secs(1)).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_body_is_handed_on_as_it_comes() {
    let trial = Trial::with(ClientSettings::default());
    let _behind = trial.serve("behind", file).await;
    let client = trial.client.clone();
    let _front = trial
        .serve("front", move |_| {
            let client = client.clone();
            async move {
                let response = client.send(Ask::get(url("http://behind/f"))).await.unwrap();
                let length = response.body.length();
                Response::new(response.status).body(Body::pieces(response.body, length))
            }
        })
        .await;
    let response = trial.client.send(Ask::get(url("http://front/f"))).await.unwrap();
    assert_eq!(response.body.length(), Some(1000));
    assert_eq!(response.body.whole(1000).await.unwrap(), bytes());
}
