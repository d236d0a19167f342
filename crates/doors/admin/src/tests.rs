//! The door as a monitoring system sees it: raw bytes over TCP.

use super::*;
use tieline_world::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn door(health: Health) -> Handle {
    let details = Box::new(|| serde_json::json!({"sessions": 3}));
    let subject = Subject { health, role: "oss of extenci at uf".to_owned(), details };
    serve(&World::real(), "127.0.0.1:0", subject).await.unwrap()
}

/// Head and body of the answer to a request.
async fn ask(door: &Handle, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(door.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

async fn get(door: &Handle, path: &str) -> (u16, String, String) {
    let (head, body) = ask(door, &format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")).await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head, body)
}

#[tokio::test]
async fn metrics_come_as_prometheus_reads_them() {
    tieline_telemetry::metrics::METRICS.bulk_sent_bytes.inc();
    let door = door(Health::default()).await;
    assert!(!door.address().ends_with(":0"));
    let (status, head, body) = get(&door, "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE tieline_bulk_sent_bytes_total counter"), "{body}");
}

#[tokio::test]
async fn health_says_what_is_wrong_and_follows_it() {
    let health = Health::default();
    let door = door(health.clone()).await;
    let (status, _, body) = get(&door, "/health").await;
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &json["live"], &json["ready"]), (503, &true.into(), &false.into()));
    assert_eq!(get(&door, "/health/live").await.0, 200);
    assert_eq!(get(&door, "/health/ready").await.0, 503);

    health.set_ready(true);
    health.degrade("OST0003", "full \"but\" for the reserve");
    let (status, head, body) = get(&door, "/health").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"));
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({
        "live": true, "ready": true, "role": "oss of extenci at uf",
        "degraded": [{"part": "OST0003", "reason": "full \"but\" for the reserve"}],
        "version": env!("CARGO_PKG_VERSION"), "details": {"sessions": 3},
    });
    assert_eq!(json, expected);
    let ready = get(&door, "/health/ready").await;
    assert_eq!((ready.0, ready.2.trim()), (200, "{\"ready\":true}"));
}

#[tokio::test]
async fn other_paths_and_methods_get_a_hint() {
    let door = door(Health::default()).await;
    let (status, _, body) = get(&door, "/").await;
    assert!(status == 404 && body.contains("/metrics"), "{status} {body}");
    let (head, _) = ask(&door, "DELETE /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{head}");
    let (head, body) = ask(&door, "HEAD /health/live HTTP/1.1\r\nHost: here\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}");
    let (head, _) = ask(&door, "what is this\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 400"), "{head}");
}

#[tokio::test]
async fn the_port_closes_with_the_handle() {
    let door = door(Health::default()).await;
    let address = door.address().to_owned();
    let stalled = TcpStream::connect(&address).await.unwrap();
    drop(door);
    // The listener goes when the runtime next runs its task.
    while TcpStream::connect(&address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    drop(stalled);
}

#[tokio::test(start_paused = true)]
async fn who_stalls_is_shown_out_and_makes_room() {
    let (world, transport) = World::local(7);
    let subject =
        Subject { health: Health::default(), role: String::new(), details: Box::new(|| ().into()) };
    let door = serve(&world, "here:1", subject).await.unwrap();
    let patience = Duration::from_secs(60);
    let mut stalled = Vec::new();
    for _ in 0..CONNECTIONS_MAX + 1 {
        stalled.push(transport.connect(door.address(), patience).await.unwrap());
    }
    let mut last = transport.connect(door.address(), patience).await.unwrap();
    last.writer.write_all(b"GET /health/live HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    let mut text = String::new();
    last.reader.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}
