//! Peers that do not keep to the protocol cost their own connection only.

use crate::house::*;
use proptest::prelude::*;
use std::time::Duration;
use tieline_types::{ErrorKind, RequestNumber};
use tieline_wire::{FrameHeader, FrameKind, Refusal};
use tieline_world::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends bytes to the house's server and reads until it closes.
async fn throw(house: &House, bytes: &[u8]) -> Vec<u8> {
    let mut connection = house.transport.connect(ADDRESS, PATIENCE).await.unwrap();
    // The server may close before it has taken everything.
    let _ = connection.writer.write_all(bytes).await;
    let _ = connection.writer.shutdown().await;
    let mut answer = Vec::new();
    let _ = connection.reader.read_to_end(&mut answer).await;
    answer
}

fn header(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut header = FrameHeader::new(kind);
    header.body_length = body.len() as u32;
    [&header.encode(body), body].concat()
}

#[tokio::test(start_paused = true)]
async fn another_protocol_is_closed_at_once() {
    let house = House::new().await;
    let begun = tokio::time::Instant::now();
    let mut connection = house.transport.connect(ADDRESS, PATIENCE).await.unwrap();
    connection.writer.write_all(b"GET / HTTP/1.1\r\nHost: mds.example.org\r\n\r\n").await.unwrap();
    assert_eq!(connection.reader.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(1));
    ask(&*house.session, 2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_says_nothing_is_closed_after_the_patience() {
    let house = House::new().await;
    let begun = tokio::time::Instant::now();
    let mut connection = house.transport.connect(ADDRESS, PATIENCE).await.unwrap();
    assert_eq!(connection.reader.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_session_on_which_nothing_comes_is_closed() {
    let house = House::new().await;
    let (mut reader, _writer) = raw::welcomed(&house.transport).await;
    let begun = tokio::time::Instant::now();
    assert!(reader.next().await.is_err());
    assert!((60..=121).contains(&begun.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_claims_too_much_is_closed_before_it_comes() {
    let house = House::new().await;
    for at in [8, 12] {
        let mut bytes = header(FrameKind::Hello, b"");
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(throw(&house, &bytes).await, b"");
    }
    ask(&*house.session, 2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn versions_that_do_not_meet_are_told_to_both() {
    let house = House::new().await;
    let hello = tieline_wire::Hello { version_oldest: 9, version_newest: 12, ..hello() };
    let answer = throw(&house, &header(FrameKind::Hello, &tieline_wire::encode(&hello))).await;
    let refusal: Refusal = tieline_wire::decode(&answer[FrameHeader::LENGTH..]).unwrap();
    assert_eq!(refusal.kind, ErrorKind::VersionMismatch);
    assert_eq!((refusal.version_oldest, refusal.version_newest), (1, 1));
    assert!(refusal.detail.contains("9 to 12"), "{}", refusal.detail);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_call_is_answered_and_the_connection_goes_on() {
    let house = House::new().await;
    let (mut reader, mut writer) = raw::welcomed(&house.transport).await;
    for (number, op, kind) in [(1, 999, ErrorKind::NotSupported), (2, 3, ErrorKind::Protocol)] {
        raw::send(&mut writer, number, op, b"\xff\xff").await;
        let reply = reader.next().await.unwrap();
        assert_eq!(reply.header.number, RequestNumber(number));
        assert!(reply.header.is_failure());
        let failure: tieline_wire::Failure = tieline_wire::decode(&reply.body).unwrap();
        assert_eq!(failure.kind, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_is_under_way_twice_is_a_violation() {
    let house = House::new().await;
    let (mut reader, mut writer) = raw::welcomed(&house.transport).await;
    let request = tieline_wire::meta::GetAttributes { id: tieline_types::FileId(1) }.into();
    raw::request(&mut writer, 1, &request).await;
    raw::request(&mut writer, 1, &request).await;
    assert!(reader.next().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn who_pings_and_hears_no_answer_is_not_heard_either() {
    let house = House::new().await;
    let (_reader, mut writer) = raw::welcomed(&house.transport).await;
    let pings = async {
        for number in 0..200_000 {
            raw::ping(&mut writer, number).await;
        }
    };
    // The answers would be kept for ever.
    assert!(tokio::time::timeout(Duration::from_secs(5), pings).await.is_err());
    ask(&*house.session, 2).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes, before or after a good hello, the next client is served.
    #[test]
    fn any_bytes_leave_the_server_serving(
        frames in prop::collection::vec((0u8..16, prop::collection::vec(any::<u8>(), 0..60)), 0..6),
        is_greeted in any::<bool>(),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let house = House::new().await;
            let mut bytes = Vec::new();
            if is_greeted {
                bytes.extend(header(FrameKind::Hello, &tieline_wire::encode(&hello())));
            }
            for (kind, body) in &frames {
                // Frames that are whole but mean nothing.
                let kind = FrameKind::ALL[usize::from(*kind) % FrameKind::ALL.len()];
                bytes.extend(header(kind, body));
            }
            bytes.extend(rest);
            throw(&house, &bytes).await;
            ask(&*house.session, 2).await.unwrap();
        });
    }
}
