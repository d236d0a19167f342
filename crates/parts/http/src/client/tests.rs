//! The client against our own server, and against peers that say what they should not.

use super::*;
use crate::body::Body;
use crate::error::RangeFault;
use crate::multipart::MultipartError;
use crate::range::{Asked, Ranges};
use crate::server::{Response as Answer, Server};
use crate::stream::Pace;
use crate::trial::{Trial, url};
use bytes::Bytes;
use hyper::header::RETRY_AFTER;
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_types::ErrorKind;
use tieline_world::Transport;
use tokio::io::AsyncWriteExt;

async fn text(trial: &Trial, request: Request) -> Result<String, Error> {
    let body = trial.client.send(request).await?.success().await?.body.whole(1 << 20).await?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn get(text: &str) -> Request {
    Request::get(url(text))
}

async fn hello(trial: &Trial, host: &str) -> Server {
    trial.serve(host, |_| async { Answer::text(StatusCode::OK, "hello") }).await
}

#[tokio::test(start_paused = true)]
async fn one_connection_serves_many_and_is_dropped_when_idle() {
    let trial = Trial::new();
    let _server = hello(&trial, "h").await;
    for _ in 0..5 {
        assert_eq!(text(&trial, get("http://h/")).await.unwrap(), "hello\n");
        let head = trial.client.send(Request::head(url("http://h/"))).await.unwrap();
        assert_eq!(head.headers["content-length"], "6");
        assert_eq!(head.body.whole(0).await.unwrap(), "");
    }
    assert_eq!((trial.transport.connections(), trial.client.connections()), (1, (1, 0)));
    tokio::time::sleep(Settings::default().idle * 2).await;
    assert_eq!(trial.client.connections(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_that_died_is_replaced_once() {
    let trial = Trial::new();
    let _server = hello(&trial, "h").await;
    text(&trial, get("http://h/")).await.unwrap();
    // Dies while nobody looks: found out by the next request.
    trial.transport.reset("h:80");
    text(&trial, get("http://h/")).await.unwrap();
    trial.transport.reset("h:80");
    text(&trial, Request::put(url("http://h/"), "x")).await.unwrap();
    assert_eq!(trial.transport.connections(), 3);

    // Who closes each connection without an answer is not asked for ever.
    let heard =
        trial.say("closes", &["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", ""]).await;
    text(&trial, get("http://closes/")).await.unwrap();
    let error = text(&trial, get("http://closes/")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}");
    assert_eq!(heard.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_repeated_gets_a_new_connection() {
    let trial = Trial::new();
    let _server = hello(&trial, "h").await;
    text(&trial, get("http://h/")).await.unwrap();
    text(&trial, Request::new(Method::POST, url("http://h/")).bytes("x")).await.unwrap();
    assert_eq!(trial.transport.connections(), 2);
    let heard = trial.say("closes", &["", ""]).await;
    let post = Request::new(Method::POST, url("http://closes/"));
    assert!(text(&trial, post).await.is_err());
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_has_so_many_connections() {
    // Shorter than servers wait for who does not read.
    let turn = Duration::from_secs(10);
    let settings =
        Settings { connections_per_host: 2, connections: 3, turn, ..Settings::default() };
    let trial = Trial::with(settings);
    let big = || async { Answer::new(StatusCode::OK).body(vec![7; 1 << 20]) };
    let _servers = [trial.serve("a", move |_| big()).await, trial.serve("b", move |_| big()).await];
    let first = trial.client.send(get("http://a/")).await.unwrap();
    let _second = trial.client.send(get("http://a/")).await.unwrap();
    let error = trial.client.send(get("http://a/")).await.err().unwrap();
    assert!(matches!(error, Error::Timeout { phase: Phase::Turn, .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    let other = trial.client.send(get("http://b/")).await.unwrap();
    let third = trial.client.clone();
    let third = tokio::spawn(async move { third.send(get("http://a/")).await.is_ok() });
    assert_eq!(first.body.whole(1 << 20).await.unwrap().len(), 1 << 20);
    assert!(third.await.unwrap());
    assert_eq!(trial.transport.connections(), 3, "the one that was given back");
    assert_eq!(other.body.whole(1 << 20).await.unwrap().len(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn redirects_are_followed_without_credentials() {
    let trial = Trial::new();
    let _from = trial
        .serve("from", |request| async move {
            let to = match request.path.encode().as_str() {
                "/near" => "/seen?x=a%20b",
                "/far" => "http://to/seen",
                "/round" => "/round",
                "/nowhere" => return Answer::new(StatusCode::FOUND),
                "/odd" => "ftp://to/",
                _ => return seen(request),
            };
            Answer::new(StatusCode::FOUND).with_text(LOCATION, to).body("moved")
        })
        .await;
    let _to = trial.serve("to", |request| async { seen(request) }).await;
    let with_secret =
        |text: &str| get(text).header(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
    assert_eq!(text(&trial, with_secret("http://from/near")).await.unwrap(), "secret x=a%20b\n");
    assert_eq!(text(&trial, with_secret("http://from/far")).await.unwrap(), "nothing\n");
    assert_eq!(trial.transport.connections(), 2, "answers that lead elsewhere are read");
    for (path, fault) in [
        ("round", RedirectFault::Often(8)),
        ("nowhere", RedirectFault::Nowhere),
        ("odd", RedirectFault::Url(crate::url::UrlError::Scheme)),
    ] {
        match trial.client.send(get(&format!("http://from/{path}"))).await {
            Err(Error::Redirect { why, .. }) if why == fault => {}
            other => panic!("{path}: {:?}", other.err()),
        }
    }
    let plain = trial.client.send(get("http://from/far").without_redirects()).await.unwrap();
    assert_eq!(plain.status, 302);
    let put = Request::put(url("http://from/far"), "x");
    assert_eq!(trial.client.send(put).await.unwrap().status, 302, "a 302 is for reading");
}

fn seen(request: crate::server::Request) -> Answer {
    let secret = if request.headers.contains_key(AUTHORIZATION) { "secret" } else { "nothing" };
    let query = request.query.map_or_else(String::new, |query| format!(" {query}"));
    Answer::text(StatusCode::OK, &format!("{secret}{query}"))
}

/// Counts what it made.
fn counted(pieces: usize, made: &Arc<AtomicUsize>) -> Body {
    struct Counted(usize, Arc<AtomicUsize>);
    #[async_trait::async_trait]
    impl crate::body::Pieces for Counted {
        async fn next(&mut self) -> Result<Option<Bytes>, crate::body::BodyError> {
            if self.0 == 0 {
                return Ok(None);
            }
            self.0 -= 1;
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(Some(Bytes::from_static(&[b'x'; 1000])))
        }
    }
    Body::pieces(Counted(pieces, made.clone()), Some(1000 * pieces as u64))
}

#[tokio::test(start_paused = true)]
async fn a_body_waits_until_it_is_wanted() {
    let trial = Trial::new();
    let _head = trial
        .serve("head", |request| async move {
            match request.path.encode().as_str() {
                "/no" => Answer::new(StatusCode::FORBIDDEN),
                _ => Answer::new(StatusCode::TEMPORARY_REDIRECT)
                    .with_text(LOCATION, "http://node/there"),
            }
        })
        .await;
    let _node = trial
        .serve("node", |request| async move {
            let length = request.body.open(1 << 20).unwrap().whole(1 << 20).await.unwrap().len();
            Answer::text(StatusCode::CREATED, &length.to_string())
        })
        .await;
    let made = Arc::new(AtomicUsize::new(0));
    let put = |path: &str| {
        Request::new(Method::PUT, url(&format!("http://head/{path}"))).body(counted(50, &made))
    };
    // Wanted only behind the redirect: sent once, there.
    assert_eq!(text(&trial, put("put").expect_continue()).await.unwrap(), "50000\n");
    assert_eq!(made.swap(0, Ordering::Relaxed), 50);
    let refused = trial.client.send(put("no").expect_continue()).await.unwrap();
    assert_eq!((refused.status.as_u16(), made.swap(0, Ordering::Relaxed)), (403, 0));
    // Without asking it is gone when the redirect comes.
    let begun = trial.client.send(put("put")).await.unwrap();
    assert_eq!(begun.status, 307);
    // One that can be made again is made again.
    let again = made.clone();
    let put = Request::new(Method::PUT, url("http://head/put"));
    let put = put.body_again(move || counted(50, &again));
    assert_eq!(text(&trial, put).await.unwrap(), "50000\n");
    assert_eq!(trial.client.connections().1, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_no_expect_gets_the_body_anyway() {
    let trial = Trial::new();
    let made = Arc::new(AtomicUsize::new(0));
    let no = "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n";
    let yes = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
    let heard = trial.say("refuses", &[no, yes]).await;
    let put = Request::new(Method::PUT, url("http://refuses/"));
    let created = trial.client.send(put.body(counted(3, &made)).expect_continue()).await.unwrap();
    assert_eq!((created.status.as_u16(), made.load(Ordering::Relaxed)), (201, 3));
    let heads = heard.lock().unwrap().clone();
    assert!(heads[0].contains("expect:") && !heads[1].contains("expect:"), "{heads:?}");

    let mut listener = trial.transport.listen("mute:80").await.unwrap();
    let waiting = tokio::spawn(async move {
        let mut connection = listener.accept().await.unwrap();
        let head = crate::trial::read_head(&mut connection).await;
        assert!(head.contains("expect: 100-continue\r\n"), "{head}");
        let begun = Instant::now();
        let mut body = vec![0; 3000];
        tokio::io::AsyncReadExt::read_exact(&mut connection.reader, &mut body).await.unwrap();
        assert_eq!(begun.elapsed(), EXPECT_PATIENCE);
        let done = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
        connection.writer.write_all(done).await.unwrap();
        connection
    });
    let put = Request::new(Method::PUT, url("http://mute/"));
    let created = trial.client.send(put.body(counted(3, &made)).expect_continue()).await.unwrap();
    assert_eq!(created.status, 201);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn peers_that_lie_or_stop_are_errors() {
    let trial = Trial::new();
    let ok = "HTTP/1.1 200 OK\r\n";
    let endless: &'static str =
        Box::leak(format!("{ok}{}", "X-More: and more\r\n".repeat(1000)).into_boxed_str());
    let long: &'static str =
        Box::leak(format!("{ok}X: {}\r\n\r\n", "y".repeat(100 << 10)).into_boxed_str());
    for (number, (answer, kind)) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", ErrorKind::Disconnected),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
            ErrorKind::Disconnected,
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123", ErrorKind::Disconnected),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ErrorKind::Protocol),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
            ErrorKind::Protocol,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", ErrorKind::Protocol),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", ErrorKind::Protocol),
        ("HTTP/1.1 200", ErrorKind::Disconnected),
        ("", ErrorKind::Disconnected),
        (endless, ErrorKind::Protocol),
        (long, ErrorKind::Protocol),
    ]
    .into_iter()
    .enumerate()
    {
        let host = format!("h{number}");
        trial.say(&host, &[answer, answer]).await;
        let error = text(&trial, get(&format!("http://{host}/x?secret"))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{answer:.80}: {error:?}");
        assert!(error.to_string().contains(&format!("http://{host}/x")), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let error = text(&trial, get("http://nobody/")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(trial.client.connections(), (0, 0));
    // Until the end of the connection: nobody can know more.
    trial.say("old", &["HTTP/1.0 200 OK\r\n\r\n12345"]).await;
    assert_eq!(text(&trial, get("http://old/")).await.unwrap(), "12345");
}

/// A peer that says this, then some bytes at times, for ever.
async fn trickle(trial: &Trial, host: &str, head: &'static str, piece: &'static [u8], pause: u64) {
    let mut listener = trial.transport.listen(&format!("{host}:80")).await.unwrap();
    tokio::spawn(async move {
        let mut connection = listener.accept().await.unwrap();
        crate::trial::read_head(&mut connection).await;
        connection.writer.write_all(head.as_bytes()).await.unwrap();
        loop {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            if connection.writer.write_all(piece).await.is_err() {
                return;
            }
        }
    });
}

#[tokio::test(start_paused = true)]
async fn no_wait_is_endless() {
    let pace = Pace { bytes: 1000, within: Duration::from_secs(20) };
    let trial = Trial::with(Settings { pace, ..Settings::default() });
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    trickle(&trial, "silent", "", b"", 100).await;
    trickle(&trial, "header", "HTTP/1.1 200 OK\r\n", b"X: y\r\n", 1).await;
    trickle(&trial, "stalled", chunked, b"", 100).await;
    trickle(&trial, "slow", chunked, b"1\r\nx\r\n", 5).await;
    trickle(&trial, "steady", chunked, b"a\r\n0123456789\r\n", 1).await;
    for (host, phase, seconds) in [
        ("silent", Phase::Head, 60..=60),
        ("header", Phase::Head, 60..=60),
        ("stalled", Phase::Body, 20..=20),
        ("slow", Phase::Body, 20..=20),
        ("steady", Phase::Body, 20..=20),
    ] {
        let begun = Instant::now();
        let error = text(&trial, get(&format!("http://{host}/"))).await.unwrap_err();
        let passed = begun.elapsed().as_secs();
        let is_right = matches!(&error, Error::Timeout { phase: its, .. } if *its == phase);
        assert!(is_right && seconds.contains(&passed), "{host}: {error:?} after {passed} s");
        assert!(error.is_worth_trying_again());
    }
    // Fast enough, but larger than is taken; and for longer than is given.
    trickle(&trial, "large", chunked, b"2\r\nxx\r\n", 0).await;
    let large = trial.client.send(get("http://large/")).await.unwrap();
    let error = large.body.whole(10_000).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { most: 10_000, .. }), "{error:?}");
    trial.transport.freeze("frozen:80");
    for (host, patience) in [("frozen", 5), ("slow2", 7)] {
        trickle(&trial, host, chunked, b"1\r\nx\r\n", 1).await;
        let (begun, patience) = (Instant::now(), Duration::from_secs(patience));
        let request = get(&format!("http://{host}/")).within(patience);
        let error = text(&trial, request).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { phase: Phase::Whole, .. }), "{error:?}");
        assert_eq!(begun.elapsed(), patience);
    }
    assert_eq!(trial.client.connections(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_of_ours_is_no_stall_of_theirs() {
    let trial = Trial::new();
    let _server = trial
        .serve("h", |request| async move {
            let pace = request.body.open(100).unwrap().whole(100).await;
            Answer::text(StatusCode::OK, &pace.map_or(0, |body| body.len()).to_string())
        })
        .await;
    let (sender, body) = Body::channel(None);
    tokio::spawn(async move {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            sender.send(Bytes::from_static(b"0123456789")).await.unwrap();
        }
        sender.end().await.unwrap();
    });
    let put = Request::new(Method::PUT, url("http://h/")).body(body);
    // The server waits for us no longer than it may; but the client does.
    let error = text(&trial, put).await;
    assert_eq!(error.unwrap(), "0\n");
    let (sender, body) = Body::channel(Some(10));
    drop(sender);
    let put = Request::new(Method::PUT, url("http://h/")).body(body);
    let error = text(&trial, put).await.unwrap_err();
    assert!(matches!(error, Error::Body { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn bodies_are_as_long_as_they_say() {
    let trial = Trial::new();
    let _server = trial
        .serve("h", |request| async move {
            let body = request.body.open(100).unwrap().whole(100).await.unwrap_or_default();
            Answer::text(StatusCode::OK, &body.len().to_string())
        })
        .await;
    for (sent, said, is_fine) in [
        (30, Some(30), true),
        (30, None, true),
        (0, None, true),
        (0, Some(0), true),
        (20, Some(30), false),
        (40, Some(30), false),
    ] {
        let (sender, body) = Body::channel(said);
        tokio::spawn(async move {
            for _ in 0..sent / 10 {
                // Nobody reads on behind the end.
                let _ = sender.send(Bytes::from_static(b"0123456789")).await;
            }
            let _ = sender.end().await;
        });
        let result = text(&trial, Request::new(Method::PUT, url("http://h/")).body(body)).await;
        match result {
            Ok(text) if is_fine => assert_eq!(text, format!("{sent}\n")),
            Err(Error::Body { .. }) if !is_fine => {}
            other => panic!("{sent} of {said:?}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_is_said_to_be_empty() {
    let trial = Trial::new();
    let created = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
    let heard = trial.say("h", &[created, created, created]).await;
    let put = Request::put(url("http://h/"), "");
    let chunked = HeaderValue::from_static("chunked");
    text(&trial, put.header(TRANSFER_ENCODING, chunked)).await.unwrap();
    text(&trial, Request::put(url("http://h/"), "").expect_continue()).await.unwrap();
    text(&trial, get("http://h/")).await.unwrap();
    let heads = heard.lock().unwrap().clone();
    for head in &heads[..2] {
        assert!(head.contains("content-length: 0\r\n"), "{head}");
        assert!(!head.contains("transfer-encoding") && !head.contains("expect"), "{head}");
    }
    assert!(!heads[2].contains("content-length"), "{}", heads[2]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_body_stays_broken() {
    let trial = Trial::new();
    trial.say("short", &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n12345"]).await;
    trial.say("long", &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789"]).await;
    for host in ["short", "long"] {
        let response = trial.client.send(get(&format!("http://{host}/"))).await.unwrap();
        let mut body = response.body.with_limit(8);
        while body.next().await.is_ok() {}
        for _ in 0..3 {
            assert!(matches!(body.next().await, Err(Error::Short { .. })));
        }
    }
    assert_eq!(trial.client.connections(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_stands_behind_bodies_comes_through() {
    let trial = Trial::new();
    let name = || HeaderName::from_static("repr-digest");
    struct Trailed(Option<Bytes>);
    #[async_trait::async_trait]
    impl crate::body::Pieces for Trailed {
        async fn next(&mut self) -> Result<Option<Bytes>, crate::body::BodyError> {
            Ok(self.0.take())
        }

        fn trailers(&mut self) -> Option<HeaderMap> {
            let mut trailers = HeaderMap::new();
            trailers.insert("repr-digest", HeaderValue::from_static("adler=:AAAAAA==:"));
            trailers.insert("not-announced", HeaderValue::from_static("x"));
            Some(trailers)
        }
    }
    let _server = trial
        .serve("h", move |request| async move {
            let mut body = request.body.open(100).unwrap();
            while body.next().await.unwrap().is_some() {}
            assert_eq!(body.trailers().unwrap()["repr-digest"], "adler=:AAAAAA==:");
            assert_eq!(body.trailers().unwrap().len(), 1);
            let body = Body::pieces(Trailed(Some(Bytes::from_static(b"down"))), Some(4));
            Answer::new(StatusCode::OK).body(body.with_trailers(vec![name()]))
        })
        .await;
    let put = || {
        let body = Body::pieces(Trailed(Some(Bytes::from_static(b"up"))), None);
        Request::new(Method::PUT, url("http://h/")).body(body.with_trailers(vec![name()]))
    };
    let mut answer = trial.client.send(put().trailers()).await.unwrap();
    assert_eq!(answer.headers["trailer"], "repr-digest");
    assert_eq!(answer.body.next().await.unwrap().unwrap(), "down");
    assert_eq!(answer.body.next().await.unwrap(), None);
    assert_eq!(answer.body.trailers().unwrap()["repr-digest"], "adler=:AAAAAA==:");
    // Who does not ask gets none.
    let mut answer = trial.client.send(put()).await.unwrap();
    while answer.body.next().await.unwrap().is_some() {}
    assert!(answer.body.trailers().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_told_the_whole_url() {
    let trial = Trial::new();
    let heard = trial.say("proxy", &["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]).await;
    let request = get("http://far:8000/data?x").via(url("http://proxy"));
    assert_eq!(text(&trial, request).await.unwrap(), "hi");
    let head = heard.lock().unwrap().remove(0);
    assert!(head.starts_with("GET http://far:8000/data?x HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("host: far:8000\r\n"), "{head}");
    let secure = get("https://far/").via(url("http://proxy"));
    assert!(matches!(trial.client.send(secure).await, Err(Error::Secure { .. })));
}

#[tokio::test(start_paused = true)]
async fn refusals_carry_what_the_server_says() {
    let trial = Trial::new();
    let _server = trial
        .serve("h", |_| async {
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, "\u{7}later").with_text(RETRY_AFTER, "30")
        })
        .await;
    let error = text(&trial, get("http://h/")).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(30)));
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert_eq!(error.to_string(), "http://h/ answered 503 Service Unavailable: later");
}

/// What comes for `asked` if the server answers so.
async fn ranged(
    asked: &[Asked],
    answer: &'static str,
    whole: WholeFile,
) -> Result<Vec<(u64, String)>, Error> {
    let trial = Trial::new();
    trial.say("h", &[answer]).await;
    let request = get("http://h/").ranges(Ranges::of(asked.to_vec()).unwrap());
    let mut body = trial.client.send(request).await?.ranged(whole).await?;
    let mut pieces: Vec<(u64, String)> = Vec::new();
    while let Some((offset, bytes)) = body.next().await? {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match pieces.last_mut() {
            Some((at, last)) if *at + last.len() as u64 == offset => *last += &text,
            _ => pieces.push((offset, text)),
        }
    }
    Ok(pieces)
}

fn between(first: u64, last: u64) -> Asked {
    Asked::Between { first, last }
}

const CUT: WholeFile = WholeFile::Cut;
const ALL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789";

#[tokio::test(start_paused = true)]
async fn ranges_come_as_they_were_asked_for() {
    let part =
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 2-4/10\r\n\r\n234";
    let piece = |at: u64, text: &str| (at, text.to_owned());
    assert_eq!(ranged(&[between(2, 4)], part, CUT).await.unwrap(), [piece(2, "234")]);
    let tail = "HTTP/1.1 206 Partial\r\nContent-Range: bytes 8-9/10\r\n\r\n89";
    for asked in [Asked::Last(2), Asked::From(8), between(8, 100)] {
        assert_eq!(ranged(&[asked], tail, CUT).await.unwrap(), [piece(8, "89")]);
    }
    let unknown = "HTTP/1.1 206 Partial\r\nContent-Range: bytes 2-4/*\r\n\r\n234";
    assert_eq!(ranged(&[between(2, 4)], unknown, CUT).await.unwrap(), [piece(2, "234")]);
    // All of it: cut, or refused.
    let both = [between(7, 7), between(2, 3)];
    assert_eq!(ranged(&both, ALL, CUT).await.unwrap(), [piece(2, "23"), piece(7, "7")]);
    assert_eq!(ranged(&[Asked::Last(1)], ALL, CUT).await.unwrap(), [piece(9, "9")]);
    let error = ranged(&both, ALL, WholeFile::Refuse).await.unwrap_err();
    assert!(matches!(error, Error::Range { why: RangeFault::Whole, .. }), "{error:?}");
    // In parts, in any order; joined, as one.
    let parts = "HTTP/1.1 206 Partial\r\nContent-Type: multipart/byteranges; boundary=B\r\n\r\n\
        --B\r\nContent-Range: bytes 7-7/10\r\n\r\n7\r\n\
        --B\r\nContent-Range: bytes 2-3/10\r\n\r\n23\r\n--B--\r\n";
    assert_eq!(ranged(&both, parts, CUT).await.unwrap(), [piece(7, "7"), piece(2, "23")]);
    let joined = "HTTP/1.1 206 Partial\r\nContent-Range: bytes 2-7/10\r\n\r\n234567";
    assert_eq!(ranged(&both, joined, CUT).await.unwrap(), [piece(2, "23"), piece(7, "7")]);
}

#[tokio::test(start_paused = true)]
async fn other_bytes_than_asked_for_are_errors() {
    let one = [between(2, 4)];
    let two = [between(2, 3), between(7, 7)];
    let is_range = |error: &Error| matches!(error, Error::Range { .. });
    let is_short = |error: &Error| matches!(error, Error::Short { .. });
    type Case<'a> = (&'a [Asked], &'static str, &'a dyn Fn(&Error) -> bool);
    let cases: [Case; 15] = [
        (&one, "Content-Range: bytes 2-5/10\r\n\r\n2345", &is_range),
        (&one, "Content-Range: bytes 1-4/10\r\n\r\n1234", &is_range),
        (&one, "Content-Range: bytes 2-3/10\r\n\r\n23", &is_range),
        (&one, "Content-Range: bytes 0-9/10\r\n\r\n0123456789", &is_range),
        (&one, "Content-Length: 2\r\nContent-Range: bytes 2-4/10\r\n\r\n23", &is_range),
        (&one, "Content-Length: 3\r\n\r\n234", &is_range),
        (&one, "Content-Range: bytes */10\r\n\r\n", &is_range),
        (&one, "Content-Range: bytes 2-4/10\r\n\r\n23", &is_short),
        (&[Asked::Last(3)], "Content-Range: bytes 2-4/*\r\n\r\n234", &is_range),
        (&[Asked::Last(3)], "Content-Range: bytes 2-4/10\r\n\r\n234", &is_range),
        (&two, "Content-Range: bytes 2-3/10\r\n\r\n23", &is_range),
        // In parts: one is missing, one is other, one is twice, two lengths.
        (&two, "P\r\n\r\n--B\r\nContent-Range: bytes 2-3/10\r\n\r\n23\r\n--B--\r\n", &is_short),
        (&two, "P\r\n\r\n--B\r\nContent-Range: bytes 5-6/10\r\n\r\n56\r\n--B--\r\n", &is_range),
        (
            &two,
            "P\r\n\r\n--B\r\nContent-Range: bytes 2-3/10\r\n\r\n23\r\n\
             --B\r\nContent-Range: bytes 2-3/10\r\n\r\n23\r\n--B--\r\n",
            &is_range,
        ),
        (
            &two,
            "P\r\n\r\n--B\r\nContent-Range: bytes 2-3/10\r\n\r\n23\r\n\
             --B\r\nContent-Range: bytes 7-7/11\r\n\r\n7\r\n--B--\r\n",
            &is_range,
        ),
    ];
    for (asked, answer, is_right) in cases {
        let kind = "Content-Type: multipart/byteranges; boundary=B";
        let head =
            answer.strip_prefix('P').map_or(answer.to_owned(), |rest| kind.to_owned() + rest);
        let answer = Box::leak(format!("HTTP/1.1 206 Partial\r\n{head}").into_boxed_str());
        match ranged(asked, answer, CUT).await {
            Err(error) if is_right(&error) => {}
            other => panic!("{answer}: {other:?}"),
        }
    }
    let cut = "HTTP/1.1 206 Partial\r\nContent-Type: multipart/byteranges; boundary=B\r\n\r\n\
        --B\r\nContent-Range: bytes 2-3/10\r\n\r\n2";
    let error = ranged(&two, cut, CUT).await.unwrap_err();
    let short = RangeFault::Parts(MultipartError::Short);
    assert!(matches!(error, Error::Range { why, .. } if why == short));
    let none = "HTTP/1.1 416 No\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n";
    let error = ranged(&[Asked::From(10)], none, CUT).await.unwrap_err();
    assert!(matches!(error, Error::Unsatisfiable { length: Some(10), .. }), "{error:?}");
    let error = ranged(&[Asked::From(10)], ALL, CUT).await.unwrap_err();
    assert!(matches!(error, Error::Unsatisfiable { length: Some(10), .. }), "{error:?}");
    let gone = "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(ranged(&one, gone, CUT).await.unwrap_err().kind(), ErrorKind::NotFound);
}
