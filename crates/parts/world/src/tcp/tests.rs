//! Over the loopback: files byte for byte, names with several addresses.

use super::*;
use std::io::Write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(5);

async fn pair() -> (Connection, Connection) {
    let transport = TcpTransport::default();
    let mut listener = transport.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address().unwrap();
    let (near, far) = tokio::join!(transport.connect(&address, PATIENCE), listener.accept());
    (near.unwrap(), far.unwrap())
}

fn file_of(bytes: &[u8]) -> Arc<std::fs::File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

/// Bytes without a period that a lost or doubled page could hide in.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[tokio::test]
async fn a_file_range_arrives_byte_for_byte_between_written_bytes() {
    let (mut near, mut far) = pair().await;
    let bytes = pattern(20 << 20);
    let length = (bytes.len() - 4097 - 13) as u32;
    let range = FileRange::new(file_of(&bytes), 4097, length);
    let sender = tokio::spawn(async move {
        near.writer.write_all(b"head").await.unwrap();
        near.writer.send_file(&range).await.unwrap();
        near.writer.write_all(b"tail").await.unwrap();
    });
    let mut received = Vec::new();
    far.reader.read_to_end(&mut received).await.unwrap();
    sender.await.unwrap();
    let expected = [b"head", &bytes[4097..bytes.len() - 13], b"tail"].concat();
    assert!(received == expected, "{} bytes, {} expected", received.len(), expected.len());
}

#[tokio::test]
async fn a_file_that_is_too_short_is_an_error() {
    let (mut near, _far) = pair().await;
    let range = FileRange::new(file_of(&[1; 100]), 50, 51);
    let error = near.writer.send_file(&range).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_name_that_has_several_addresses_is_tried_at_each() {
    let transport = TcpTransport::default();
    let mut listener = transport.listen("127.0.0.1:0").await.unwrap();
    let port = listener.address().unwrap().rsplit_once(':').unwrap().1.to_owned();
    // `localhost` is often ::1 first, where nobody listens.
    let address = format!("localhost:{port}");
    let (near, far) = tokio::join!(transport.connect(&address, PATIENCE), listener.accept());
    assert!(near.is_ok() && far.is_ok());
}

#[tokio::test]
async fn nobody_listening_is_refused_at_once() {
    let transport = TcpTransport::default();
    let address = transport.listen("127.0.0.1:0").await.unwrap().address().unwrap();
    let error = transport.connect(&address, PATIENCE).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn families_take_turns() {
    let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
    let mut addresses =
        ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"].map(parse).into_iter().collect();
    alternate_families(&mut addresses);
    assert_eq!(addresses, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"].map(parse));
}
