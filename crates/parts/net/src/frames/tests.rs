//! Frames over in-memory streams: sizes, interruptions, damage.

use super::*;
use std::io::Write;
use tieline_world::{Connection, Transport, World};

async fn pair() -> (FrameWriter, FrameReader) {
    pair_with(Budget::unlimited()).await
}

async fn pair_with(budget: Budget) -> (FrameWriter, FrameReader) {
    let (_, transport) = World::local(1);
    let mut listener = transport.listen("a").await.unwrap();
    let near = transport.connect("a", Duration::from_secs(1)).await.unwrap();
    let far = listener.accept().await.unwrap();
    (FrameWriter::new(near.writer), FrameReader::new(far.reader, budget))
}

fn frame(number: u64, body: usize, bulk: Bulk) -> OutFrame {
    let body = vec![number as u8; body];
    let frame = OutFrame::new(FrameKind::Request, RequestNumber(number), body, bulk);
    frame.with(|header| header.op = Op::PutChunk.number())
}

fn bytes(number: u64, length: usize) -> Bulk {
    Bulk::from(Bytes::from(vec![number as u8; length]))
}

fn bulk_of(frame: Frame) -> Bytes {
    match frame.bulk {
        InBulk::Here(bytes, _) => bytes,
        InBulk::Skipped => panic!("skipped"),
    }
}

async fn send(mut writer: FrameWriter, frames: Vec<OutFrame>) {
    for frame in &frames {
        writer.write(frame).await.unwrap();
    }
    writer.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn frames_of_all_sizes_come_as_they_were_sent() {
    let (writer, mut reader) = pair().await;
    let sizes = [
        (0, 0),
        (10, 0),
        (0, 10),
        (100, GATHER - 1),
        (1, GATHER),
        (GATHER, 3 << 20),
        (5 << 20, 1),
        (8, 0),
    ];
    let frames = sizes.iter().enumerate();
    let frames = frames.map(|(at, &(body, bulk))| frame(at as u64, body, bytes(at as u64, bulk)));
    tokio::spawn(send(writer, frames.collect()));
    for (at, (body, bulk)) in sizes.into_iter().enumerate() {
        let frame = reader.next().await.unwrap();
        assert_eq!(frame.header.number.0, at as u64);
        assert!(frame.body == vec![at as u8; body], "body of {at}");
        assert!(bulk_of(frame) == vec![at as u8; bulk], "bulk of {at}");
    }
    assert!(matches!(reader.next().await, Err(ReadError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_may_stop_waiting_at_any_time() {
    let (writer, mut reader) = pair().await;
    let frames = (0..20).map(|at| frame(at, 70_000, bytes(at, 700_000)));
    tokio::spawn(send(writer, frames.collect()));
    let mut tries = 0;
    for at in 0..20 {
        let frame = loop {
            tries += 1;
            tokio::select! {
                biased;
                frame = reader.next() => break frame.unwrap(),
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(frame.header.number.0, at);
        assert!(bulk_of(frame) == vec![at as u8; 700_000]);
    }
    assert!(tries > 40, "it was interrupted {tries} times only");
}

#[tokio::test(start_paused = true)]
async fn bulk_in_many_pieces_comes_as_one() {
    let (writer, mut reader) = pair().await;
    let piece = |at: usize| Bytes::from(vec![at as u8; 1 + at * 7]);
    let pieces: Vec<Bytes> = (0..SLICES_MAX * 2 + 3).map(piece).collect();
    let whole = Bytes::from(pieces.concat());
    tokio::spawn(send(writer, vec![frame(1, 3, Bulk::from(pieces)), frame(2, 3, Bulk::Empty)]));
    let bulk = bulk_of(reader.next().await.unwrap());
    assert!(bulk == whole);
    assert_eq!(bulk.as_ptr().align_offset(PAGE), 0, "a store may write it from where it is");
    assert_eq!(reader.next().await.unwrap().header.number.0, 2);
}

#[tokio::test(start_paused = true)]
async fn bulk_comes_from_files_too() {
    let (writer, mut reader) = pair().await;
    let mut file = tempfile::tempfile().unwrap();
    let content: Vec<u8> = (0..2_500_000u32).map(|at| (at / 251) as u8).collect();
    file.write_all(&content).unwrap();
    let range = FileRange::new(Arc::new(file), 1000, 2_400_000);
    tokio::spawn(send(writer, vec![frame(1, 3, Bulk::File(range)), frame(2, 3, Bulk::Empty)]));
    assert!(bulk_of(reader.next().await.unwrap()) == content[1000..2_401_000]);
    assert_eq!(reader.next().await.unwrap().header.number.0, 2);
}

#[tokio::test(start_paused = true)]
async fn bulk_waits_for_room_and_is_skipped_when_there_is_none() {
    let (writer, mut reader) = pair_with(Budget::new(1000)).await;
    let frames = [600, 600, 300, 600, 5000].into_iter().enumerate();
    let frames = frames.map(|(at, size)| frame(at as u64, 10, bytes(at as u64, size)));
    tokio::spawn(send(writer, frames.collect()));
    let first = reader.next().await.unwrap();
    // No room while the first is held: skipped after a while, and the stream goes on.
    assert!(matches!(reader.next().await.unwrap().bulk, InBulk::Skipped));
    let third = reader.next().await.unwrap();
    drop((first, third));
    assert_eq!(bulk_of(reader.next().await.unwrap()).len(), 600);
    // More than there is in all takes all there is.
    assert_eq!(bulk_of(reader.next().await.unwrap()).len(), 5000);
}

#[tokio::test(start_paused = true)]
async fn bulk_that_no_call_wants_is_not_kept() {
    let budget = Budget::new(1000);
    let (writer, mut reader) = pair_with(budget.clone()).await;
    let unwanted = frame(1, 10, bytes(1, 700)).with(|header| header.op = Op::GetMap.number());
    tokio::spawn(send(writer, vec![unwanted, frame(2, 10, bytes(2, 900))]));
    let first = reader.next().await.unwrap();
    assert!(matches!(first.bulk, InBulk::Skipped));
    assert_eq!(bulk_of(reader.next().await.unwrap()).len(), 900);
}

#[tokio::test(start_paused = true)]
async fn long_bodies_take_room_with_what_is_made_of_them() {
    let (long, short) = (100 << 10, BODY_FREE as usize);
    let bodies = Budget::new(long * BODY_WEIGHT as usize * 3 / 2);
    let (writer, mut reader) = pair().await;
    reader.unlimit(bodies.clone(), Budget::unlimited());
    let lengths = [long, short, long, long];
    let frames = lengths.into_iter().zip(0..);
    let frames = frames.map(|(body, at)| frame(at, body, Bulk::Empty)).collect();
    tokio::spawn(send(writer, frames));
    let first = reader.next().await.unwrap();
    let _short = reader.next().await.unwrap();
    let begun = tokio::time::Instant::now();
    // Dropped meanwhile, the reader loses nothing.
    assert!(timeout(Duration::from_secs(5), reader.next()).await.is_err());
    drop(first);
    let third = reader.next().await.unwrap();
    assert_eq!((third.header.number.0, third.body.len()), (2, long));
    assert!(begun.elapsed() <= Duration::from_secs(5));
    assert!(matches!(reader.next().await, Err(ReadError::NoRoom)));
    assert!(begun.elapsed() >= BODY_PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn who_takes_his_share_leaves_the_rest() {
    let all = Budget::new(1000);
    let (one, other) = (all.share(600), all.share(600));
    let held = one.hold(600, BULK_PATIENCE).await.unwrap();
    assert!(one.hold(1, BULK_PATIENCE).await.is_none());
    let rest = other.hold(400, BULK_PATIENCE).await;
    assert!(rest.is_some());
    drop(held);
    assert!(one.hold(600, BULK_PATIENCE).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_within_a_frame_is_given_up() {
    let (mut writer, mut reader) = pair().await;
    let whole = frame(1, 100, Bulk::Empty);
    let header = whole.header.encode(&whole.body);
    writer.stream.write_all(&header).await.unwrap();
    assert!(matches!(reader.next().await, Err(ReadError::Stalled)));

    let (mut writer, mut reader) = pair().await;
    writer.stream.write_all(&header[..20]).await.unwrap();
    drop(writer);
    assert!(matches!(reader.next().await, Err(ReadError::Torn)));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_body_is_found_before_its_bulk_is_read() {
    let (mut writer, mut reader) = pair().await;
    let whole = frame(1, 100, bytes(1, 1 << 20));
    let mut raw = whole.header.encode(&whole.body).to_vec();
    raw.extend_from_slice(&whole.body);
    raw[50] ^= 1;
    writer.stream.write_all(&raw).await.unwrap();
    let error = reader.next().await.unwrap_err();
    assert!(matches!(error, ReadError::Malformed(FrameError::Checksum)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_given_up() {
    let (mut writer, _reader) = pair().await;
    let error = writer.write(&frame(1, 0, bytes(1, 4 << 20))).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

mod sealed {
    use super::*;
    use tieline_auth::Proof;
    use tieline_auth::seal::{self, Transcript};
    use tieline_types::Flavor;

    const FLAVORS: [Flavor; 4] = [Flavor::Krb5n, Flavor::Krb5a, Flavor::Krb5i, Flavor::Krb5p];

    async fn pair_of(flavor: Flavor, budget: Budget) -> (FrameWriter, FrameReader) {
        let (mut writer, mut reader) = pair_with(budget).await;
        let secret = [5; tieline_auth::SECRET];
        let proof = Proof { peer: "a".into(), own: "b".into(), secret, lifetime: None };
        let transcript = Transcript::new().digest();
        writer.protect(seal::initiator(&proof, flavor, &transcript).0);
        reader.protect(seal::acceptor(&proof, flavor, &transcript).1);
        (writer, reader)
    }

    fn sizes() -> Vec<(usize, usize)> {
        let segment = seal::SEGMENT;
        vec![
            (0, 0),
            (10, 1),
            (0, GATHER - 1),
            (100, GATHER),
            (1, segment - 1),
            (GATHER, segment),
            (1, segment + 1),
            (5 << 20, 4 * segment),
            (3, 9 * segment + 17),
            (8, 0),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn frames_of_all_sizes_and_flavors_come_as_they_were_sent() {
        for flavor in FLAVORS {
            let (writer, mut reader) = pair_of(flavor, Budget::unlimited()).await;
            let frames = sizes().into_iter().zip(0..);
            let frames = frames.map(|((body, bulk), at)| frame(at, body, bytes(at, bulk)));
            tokio::spawn(send(writer, frames.collect()));
            for ((body, bulk), at) in sizes().into_iter().zip(0..) {
                let frame = reader.next().await.unwrap();
                assert_eq!((frame.header.number.0, frame.body.len()), (at, body), "{flavor:?}");
                assert_eq!(bulk_of(frame), vec![at as u8; bulk], "{flavor:?}");
            }
            assert!(matches!(reader.next().await, Err(ReadError::Closed)));
        }
    }

    #[tokio::test]
    async fn files_are_sealed_too() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..5u32 << 18).flat_map(|at| at.to_le_bytes()).collect();
        file.write_all(&content).unwrap();
        let file = Arc::new(file);
        for flavor in FLAVORS {
            let (writer, mut reader) = pair_of(flavor, Budget::unlimited()).await;
            let range = |offset, length| Bulk::File(FileRange::new(file.clone(), offset, length));
            let frames = vec![frame(1, 3, range(5, 3_000_001)), frame(2, 0, range(0, 17))];
            tokio::spawn(send(writer, frames));
            assert_eq!(bulk_of(reader.next().await.unwrap()), content[5..3_000_006], "{flavor:?}");
            assert_eq!(bulk_of(reader.next().await.unwrap()), content[..17], "{flavor:?}");
        }
    }

    #[tokio::test]
    async fn pieces_are_sealed_as_one() {
        let segment = seal::SEGMENT;
        let lengths = [1, 0, segment - 1, segment, 3 * segment + 5, 70, 2 * segment, 9, 0];
        let pieces = lengths.iter().zip(1..).map(|(&length, at)| Bytes::from(vec![at; length]));
        let pieces: Vec<Bytes> = pieces.collect();
        let whole = pieces.concat();
        for flavor in FLAVORS {
            let (writer, mut reader) = pair_of(flavor, Budget::unlimited()).await;
            let bulk = Bulk::Pieces(pieces.clone().into());
            tokio::spawn(send(writer, vec![frame(1, 3, bulk), frame(2, 0, bytes(2, 17))]));
            assert!(bulk_of(reader.next().await.unwrap()) == whole, "{flavor:?}");
            assert_eq!(bulk_of(reader.next().await.unwrap()), vec![2; 17], "{flavor:?}");
        }
    }

    /// Else its OSS would promise the same bytes again and again.
    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_remembered() {
        for flavor in [Flavor::Krb5i, Flavor::Krb5p] {
            let (mut writer, _reader) = pair_of(flavor, Budget::unlimited()).await;
            // Nothing is mapped at 0: EIO.
            let file = Arc::new(std::fs::File::open("/proc/self/mem").unwrap());
            let range = FileRange::new(file, 0, 4096);
            let error = writer.write(&frame(1, 0, Bulk::File(range.clone()))).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(5), "{error}");
            assert!(range.has_failed.load(Ordering::Relaxed), "{flavor:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_sealed_bodies_take_room_too() {
        let long = 100 << 10;
        let bodies = Budget::new(long * BODY_WEIGHT as usize);
        let (writer, mut reader) = pair_of(Flavor::Krb5p, Budget::unlimited()).await;
        reader.unlimit(bodies, Budget::unlimited());
        let frames = (0..3).map(|at| frame(at, long, Bulk::Empty)).collect();
        tokio::spawn(send(writer, frames));
        let first = reader.next().await.unwrap();
        assert!(timeout(Duration::from_secs(5), reader.next()).await.is_err());
        drop(first);
        let second = reader.next().await.unwrap();
        assert_eq!((second.header.number.0, second.body.len()), (1, long));
        assert!(matches!(reader.next().await, Err(ReadError::NoRoom)));
    }

    #[tokio::test(start_paused = true)]
    async fn bulk_without_room_is_passed_over_and_the_next_frame_opens() {
        let budget = Budget::new(1 << 20);
        let (writer, mut reader) = pair_of(Flavor::Krb5p, budget.clone()).await;
        let _taken = budget.hold(1 << 20, BULK_PATIENCE).await.unwrap();
        tokio::spawn(send(writer, vec![frame(1, 9, bytes(1, 900_000)), frame(2, 9, Bulk::Empty)]));
        assert!(matches!(reader.next().await.unwrap().bulk, InBulk::Skipped));
        assert_eq!(reader.next().await.unwrap().header.number.0, 2);
    }

    /// The bytes that two frames have on the wire.
    async fn on_the_wire(flavor: Flavor) -> Vec<u8> {
        let (_, transport) = World::local(1);
        let mut listener = transport.listen("a").await.unwrap();
        let near = transport.connect("a", Duration::from_secs(1)).await.unwrap();
        let mut far = listener.accept().await.unwrap();
        let mut writer = FrameWriter::new(near.writer);
        let secret = [5; tieline_auth::SECRET];
        let proof = Proof { peer: "a".into(), own: "b".into(), secret, lifetime: None };
        writer.protect(seal::initiator(&proof, flavor, &Transcript::new().digest()).0);
        tokio::spawn(send(writer, vec![frame(65, 20, bytes(66, 40)), frame(67, 5, bytes(68, 9))]));
        let mut wire = Vec::new();
        far.reader.read_to_end(&mut wire).await.unwrap();
        wire
    }

    async fn read_back(flavor: Flavor, wire: Vec<u8>) -> (usize, Result<Frame, ReadError>) {
        let reader = Box::new(std::io::Cursor::new(wire));
        let mut reader = FrameReader::new(reader, Budget::unlimited());
        let secret = [5; tieline_auth::SECRET];
        let proof = Proof { peer: "a".into(), own: "b".into(), secret, lifetime: None };
        reader.protect(seal::acceptor(&proof, flavor, &Transcript::new().digest()).1);
        let mut came = 0;
        loop {
            match reader.next().await {
                Ok(_) => came += 1,
                end => return (came, end),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_flipped_bit_every_cut_and_every_repetition_is_found() {
        for flavor in [Flavor::Krb5i, Flavor::Krb5p] {
            let wire = on_the_wire(flavor).await;
            let whole = read_back(flavor, wire.clone()).await;
            assert!(matches!(whole, (2, Err(ReadError::Closed))), "{whole:?}");
            let first = 16 + 32 + 20 + 16 + 40 + 16;
            for bit in 0..wire.len() * 8 {
                let mut changed = wire.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let (came, end) = read_back(flavor, changed).await;
                assert!(came <= usize::from(bit / 8 >= first), "{flavor:?} bit {bit}");
                assert!(!matches!(end, Err(ReadError::Closed)), "{flavor:?} bit {bit}");
            }
            for cut in 1..wire.len() {
                let (came, end) = read_back(flavor, wire[..cut].to_vec()).await;
                assert_eq!(came, usize::from(cut >= first));
                assert_eq!(matches!(end, Err(ReadError::Closed)), cut == first);
            }
            let (one, two) = wire.split_at(first);
            for moved in [[one, one].concat(), [two, one].concat(), [one, one, two].concat()] {
                let (came, end) = read_back(flavor, moved).await;
                assert!(came <= 1 && matches!(end, Err(ReadError::Broken(_))), "{end:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_privacy_hides_what_is_said() {
        let shows = |wire: &[u8]| wire.windows(9).any(|part| part == [66; 9]);
        assert!(shows(&on_the_wire(Flavor::Krb5i).await));
        let private = on_the_wire(Flavor::Krb5p).await;
        assert!(!shows(&private) && !private.windows(4).any(|part| part == b"TLN1"));
    }
}

/// What the other end takes, or sends, every now and then.
const DRIP: Duration = Duration::from_secs(STALL_MAX.as_secs() - 1);
/// More than lies on a line of these tests.
const LONG: usize = 16 * GATHER;

async fn line() -> (Connection, Connection) {
    let (_, transport) = World::local(1);
    let mut listener = transport.listen("a").await.unwrap();
    let near = transport.connect("a", Duration::from_secs(1)).await.unwrap();
    (near, listener.accept().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_takes_a_byte_now_and_then_is_given_up() {
    let (near, mut far) = line().await;
    let mut writer = FrameWriter::new(near.writer);
    tokio::spawn(async move {
        let mut drop = [0];
        while far.reader.read_exact(&mut drop).await.is_ok() {
            tokio::time::sleep(DRIP).await;
        }
    });
    let begun = tokio::time::Instant::now();
    let long = frame(1, LONG, Bulk::Empty);
    let sent = timeout(Duration::from_secs(3600), async {
        writer.write(&long).await?;
        writer.flush().await
    });
    let error = sent.await.expect("it is held for an hour").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begun.elapsed() <= 2 * STALL_MAX, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_sends_a_byte_now_and_then_is_given_up() {
    let (mut near, far) = line().await;
    let mut reader = FrameReader::new(far.reader, Budget::unlimited());
    let long = frame(1, LONG, Bulk::Empty);
    tokio::spawn(async move {
        near.writer.write_all(&long.header.encode(&long.body)).await.unwrap();
        for byte in long.body.chunks(1) {
            if near.writer.write_all(byte).await.is_err() {
                return;
            }
            tokio::time::sleep(DRIP).await;
        }
    });
    let begun = tokio::time::Instant::now();
    let came = timeout(Duration::from_secs(3600), reader.next()).await;
    assert!(matches!(came.expect("it is held for an hour"), Err(ReadError::Stalled)));
    assert!(begun.elapsed() <= 2 * STALL_MAX, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_line_is_waited_for() {
    let ((near, mut far), (mut out, back)) = (line().await, line().await);
    let mut writer = FrameWriter::new(near.writer);
    let mut reader = FrameReader::new(back.reader, Budget::unlimited());
    // 64 kbit/s.
    tokio::spawn(async move {
        let mut some = [0; 800];
        while let Ok(read @ 1..) = far.reader.read(&mut some).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
            out.writer.write_all(&some[..read]).await.unwrap();
        }
    });
    let begun = tokio::time::Instant::now();
    tokio::spawn(async move {
        for number in 1..=2 {
            writer.write(&frame(number, LONG, bytes(number, LONG))).await.unwrap();
        }
        writer.flush().await.unwrap();
    });
    for number in 1..=2 {
        let came = reader.next().await.unwrap();
        assert_eq!((came.header.number.0, came.body.len()), (number, LONG));
        assert_eq!(bulk_of(came).len(), LONG);
    }
    assert!(begun.elapsed() > 10 * STALL_MAX, "{:?}", begun.elapsed());
}
