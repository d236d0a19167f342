//! The local world keeps its promises, and breaks them on demand only.

use super::*;
use tokio::io::AsyncReadExt;

const PATIENCE: Duration = Duration::from_secs(5);

async fn pair(transport: &LocalTransport) -> (Connection, Connection) {
    let mut listener = transport.listen("mds").await.unwrap();
    let near = transport.connect("mds", PATIENCE).await.unwrap();
    (near, listener.accept().await.unwrap())
}

#[tokio::test]
async fn bytes_pass_until_the_writer_is_dropped() {
    let (mut near, mut far) = pair(&LocalTransport::default()).await;
    near.writer.write_all(b"hello").await.unwrap();
    drop(near.writer);
    let mut received = Vec::new();
    far.reader.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"hello");
}

#[tokio::test]
async fn a_cut_wakes_readers_and_refuses_until_mended() {
    let transport = LocalTransport::default();
    let (mut near, mut far) = pair(&transport).await;
    let reading = tokio::spawn(async move { far.reader.read_u8().await });
    tokio::task::yield_now().await;
    transport.cut("mds");
    assert_eq!(reading.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!(near.writer.write_all(b"x").await.is_err());
    assert!(transport.connect("mds", PATIENCE).await.is_err());
    transport.mend("mds");
    let mut listener = transport.listen("mds").await.unwrap();
    assert!(transport.connect("mds", PATIENCE).await.is_ok());
    assert!(listener.accept().await.is_ok());
    assert_eq!(transport.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_line_passes_nothing_and_then_everything() {
    let transport = LocalTransport::default();
    let (mut near, mut far) = pair(&transport).await;
    transport.freeze("mds");
    let writing = tokio::spawn(async move {
        near.writer.write_all(b"x").await.unwrap();
        near
    });
    let waited = tokio::time::timeout(PATIENCE, far.reader.read_u8()).await;
    assert!(waited.is_err());
    let connecting = transport.connect("mds", PATIENCE).await;
    assert_eq!(connecting.err().unwrap().kind(), io::ErrorKind::TimedOut);
    transport.mend("mds");
    assert_eq!(far.reader.read_u8().await.unwrap(), b'x');
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_line_takes_its_time() {
    let transport = LocalTransport::default();
    transport.slow("mds", Some(100_000));
    let (mut near, mut far) = pair(&transport).await;
    tokio::spawn(async move { near.writer.write_all(&[7; 1_000_000]).await });
    let begun = Instant::now();
    let mut received = Vec::new();
    far.reader.read_to_end(&mut received).await.unwrap();
    assert!(received == [7; 1_000_000]);
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[test]
fn dice_repeat_for_a_seed_only() {
    let roll = |seed| {
        let mut bytes = [0; 13];
        SeededDice::new(seed).fill(&mut bytes);
        bytes
    };
    assert_eq!(roll(1), roll(1));
    assert_ne!(roll(1), roll(2));
}
