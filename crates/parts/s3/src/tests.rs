//! Stores that throttle, cut, hang and refuse: what they say byte for byte, in a world whose time
//! is the test's.

use crate::bucket::Bucket;
use crate::trouble::Refusal;
use crate::{Credentials, Keys, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tieline_blob::Error;
use tieline_types::ErrorKind;
use tieline_world::{Transport, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const SECRET: &str = "never-to-be-seen";

/// A bucket behind a store that answers each connection with the next of these; an empty one is
/// silence. The last is repeated. The count is that of requests.
async fn bucket(answers: &[&'static str]) -> (Bucket, Arc<AtomicUsize>) {
    let (world, transport) = World::local(3);
    let mut listener = transport.listen("store:80").await.unwrap();
    let (answers, asked) = (answers.to_vec(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok(mut connection) = listener.accept().await {
            let at = count.fetch_add(1, Ordering::Relaxed);
            let answer = answers[at.min(answers.len() - 1)];
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(connection.reader.read_u8().await?);
                }
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
                connection.writer.write_all(answer.as_bytes()).await?;
                connection.writer.shutdown().await?;
                connection.reader.read_to_end(&mut head).await
            });
        }
    });
    let keys = Keys { id: "lab".into(), secret: SECRET.into(), token: None };
    let settings = Settings {
        bucket: "objects".into(),
        prefix: String::new(),
        endpoint: Some("http://store".into()),
        region: "us-east-1".into(),
        credentials: Credentials::Given(keys),
        authorities: None,
        given: None,
    };
    (Bucket::new(&settings, &world).unwrap(), asked)
}

async fn refused(answers: &[&'static str]) -> Error {
    let (bucket, _) = bucket(answers).await;
    match bucket.get("key", None).await {
        Err(Refusal::Other(error)) => error,
        other => panic!("{:?}", other.map(|(bytes, _)| bytes)),
    }
}

fn text(error: &Error) -> String {
    let source = std::error::Error::source(error).map_or_else(String::new, |s| s.to_string());
    let text = format!("{error}: {source}");
    assert!(!text.contains(SECRET), "{text}");
    text
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\netag: \"a\"\r\n\
    last-modified: Sat, 28 Nov 2026 02:00:00 GMT\r\n\r\nhello";
const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\netag: \"a\"\r\n\
    last-modified: Sat, 28 Nov 2026 02:00:00 GMT\r\n\r\nhel";
const SLOW_DOWN: &str = "HTTP/1.1 503 Slow Down\r\ncontent-length: 49\r\n\r\n\
    <Error><Code>SlowDown</Code><Message/></Error>   ";

#[tokio::test(start_paused = true)]
async fn what_passes_is_asked_again() {
    let (bucket, asked) = bucket(&[SLOW_DOWN, "", CUT, "HTTP", WHOLE]).await;
    let (bytes, total) = bucket.get("key", None).await.unwrap();
    assert_eq!((&bytes[..], total), (&b"hello"[..], 5));
    assert_eq!(asked.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_or_silent_is_given_up_in_time() {
    let begun = Instant::now();
    let error = refused(&[""]).await;
    assert!(begun.elapsed() <= Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::StorageFault);
    assert!(text(&error).contains("http://store"), "{error}");
    let error = refused(&[SLOW_DOWN]).await;
    assert!(text(&error).contains("SlowDown"), "{error:?}");
    let begun = Instant::now();
    let error = refused(&["HTTP"]).await;
    assert!(begun.elapsed() <= Duration::from_secs(40), "{:?}", begun.elapsed());
    assert!(matches!(error, Error::Missing { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn refusals_say_what_to_do() {
    let cases = [
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 84\r\n\r\n<Error><Code>RequestTimeTooSkewed\
             </Code><Message>Too far apart.</Message></Error>      ",
            "clock",
        ),
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 79\r\n\r\n<Error><Code>SignatureDoesNotMatch\
             </Code><Message>Differs</Message></Error>       ",
            "access key",
        ),
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 48\r\n\r\n\
             <Error><Code>NoSuchBucket</Code></Error>        ",
            "there is no bucket objects",
        ),
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "access key"),
        ("HTTP/1.1 301 Moved\r\ncontent-length: 0\r\n\r\n", "region"),
    ];
    for (answer, wanted) in cases {
        let error = refused(&[answer]).await;
        assert!(matches!(error, Error::Missing { .. }), "{error:?}");
        assert!(text(&error).contains(wanted), "{error}");
    }
    let full = refused(&["HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 0\r\n\r\n"]).await;
    assert!(matches!(full, Error::Full { .. }), "{full:?}");
    let (absent, _) = bucket(&["HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"]).await;
    assert!(matches!(absent.get("key", None).await, Err(Refusal::Absent)));
}
