//! The door before files in memory, in a world within this process; a client that says what it
//! likes.

use crate::refusal::Code;
use crate::request::{PAYLOAD_MAX, RANGE_BYTES_MAX};
use crate::wire::{HANDSHAKE, Status, Stream, code};
use crate::{Offer, Server, Settings};
use std::sync::Arc;
use std::time::Duration;
use tieline_files::memory::Memory;
use tieline_files::{Error, Paths};
use tieline_people::visitors::{Visitor, Visitors, Wish};
use tieline_types::checksum::crc32c;
use tieline_types::{Caller, ErrorKind};
use tieline_wire::identity::Evidence;
use tieline_world::{Connection, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIFE: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(120);

/// Knows Ann by her ticket, and nobody else.
struct Known;

#[async_trait::async_trait]
impl Visitors for Known {
    async fn meet(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        if wish.evidence == Evidence::Ticket(b"ann".to_vec()) {
            return Ok(Arc::new(Visitor::known(Caller::default(), None, LIFE)));
        }
        Err(Error::local(ErrorKind::PermissionDenied, "nothing maps it"))
    }

    async fn meet_again(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        self.meet(wish).await
    }

    fn service(&self, first: &str) -> Option<String> {
        Some(format!("{first}/door@R"))
    }

    fn advice(&self, _: &str) -> String {
        "add the door".to_owned()
    }
}

struct Scene {
    world: World,
    files: Arc<Memory>,
    server: Server,
}

async fn scene(bytes: usize) -> Scene {
    let (world, _) = World::local(7);
    let files = Arc::new(Memory::new(1));
    let settings = Settings {
        listen: "door:0".to_owned(),
        address: None,
        connections: 8,
        connections_per_peer: 8,
        bytes,
        site: "uf".to_owned(),
    };
    let offer = Offer {
        world: world.clone(),
        fs: "extenci".parse().unwrap(),
        paths: Paths::new(files.clone()),
        visitors: Arc::new(Known),
    };
    let server = Server::start(offer, settings).await.unwrap();
    Scene { world, files, server }
}

struct Client(Connection);

/// What came back: status and payload.
#[derive(Debug)]
struct Told {
    stream: Stream,
    status: u16,
    payload: Vec<u8>,
}

impl Told {
    fn code(&self) -> u32 {
        assert_eq!(self.status, Status::Error as u16, "{self:?}");
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}

impl Scene {
    async fn connect(&self) -> Client {
        let connecting = self.world.transport.connect(self.server.address(), PATIENCE);
        Client(connecting.await.unwrap())
    }

    async fn login(&self, shown: &[u8]) -> Client {
        let mut client = self.connect().await;
        client.0.writer.write_all(&HANDSHAKE).await.unwrap();
        client.ask(code::PROTOCOL, [0; 16], b"").await;
        client.hear().await;
        assert_eq!(client.hear().await.payload.len(), 8);
        let mut body = [0; 16];
        body[14] = 0x85;
        let told = client.told(code::LOGIN, body, b"").await;
        assert!(told.payload[16..].starts_with(b"&P=krb5,xrootd/door@R"), "{told:?}");
        let mut body = [0; 16];
        body[12..].copy_from_slice(b"krb5");
        let told = client.told(code::AUTH, body, &[b"krb5\0", shown].concat()).await;
        assert_eq!((told.status, told.payload.len()), (0, 0));
        client
    }
}

impl Client {
    async fn ask(&mut self, code: u16, body: [u8; 16], payload: &[u8]) {
        self.ask_as([0, 1], code, body, payload).await;
    }

    async fn ask_as(&mut self, stream: Stream, code: u16, body: [u8; 16], payload: &[u8]) {
        let length = i32::try_from(payload.len()).unwrap().to_be_bytes();
        let bytes = [&stream[..], &code.to_be_bytes(), &body, &length, payload].concat();
        self.0.writer.write_all(&bytes).await.unwrap();
    }

    async fn hear(&mut self) -> Told {
        let hearing = async {
            let mut head = [0; 8];
            self.0.reader.read_exact(&mut head).await.unwrap();
            let status = u16::from_be_bytes([head[2], head[3]]);
            let length = u32::from_be_bytes(head[4..].try_into().unwrap());
            let mut payload = vec![0; length as usize];
            self.0.reader.read_exact(&mut payload).await.unwrap();
            if status == Status::Pages as u16 {
                let more = u32::from_be_bytes(payload[12..16].try_into().unwrap()) as usize;
                let behind = payload.len();
                payload.resize(behind + more, 0);
                self.0.reader.read_exact(&mut payload[behind..]).await.unwrap();
            }
            Told { stream: [head[0], head[1]], status, payload }
        };
        tokio::time::timeout(PATIENCE, hearing).await.expect("an answer")
    }

    async fn told(&mut self, code: u16, body: [u8; 16], payload: &[u8]) -> Told {
        self.ask(code, body, payload).await;
        self.hear().await
    }

    async fn open(&mut self, path: &str) -> u32 {
        let told = self.told(code::OPEN, [0; 16], path.as_bytes()).await;
        assert_eq!((told.status, told.payload.len()), (0, 4), "{told:?}");
        u32::from_be_bytes(told.payload.try_into().unwrap())
    }

    /// All of an answer, however many pieces it has.
    async fn all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let told = self.hear().await;
            all.extend(told.payload);
            match told.status {
                4000 => {}
                0 => return all,
                other => panic!("{other}: {}", String::from_utf8_lossy(&all)),
            }
        }
    }

    /// Nothing more is said.
    async fn is_ended(&mut self) -> bool {
        let reading = self.0.reader.read_u8();
        tokio::time::timeout(PATIENCE, reading).await.expect("an end").is_err()
    }
}

fn range(handle: u32, offset: i64, length: i32) -> [u8; 16] {
    let mut body = [0; 16];
    body[..4].copy_from_slice(&handle.to_be_bytes());
    body[4..12].copy_from_slice(&offset.to_be_bytes());
    body[12..].copy_from_slice(&length.to_be_bytes());
    body
}

fn element(handle: u32, length: u32, offset: u64) -> Vec<u8> {
    [&handle.to_be_bytes()[..], &length.to_be_bytes(), &offset.to_be_bytes()].concat()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 257) as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_anything_before_he_is_known() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.connect().await;
    client.0.writer.write_all(&HANDSHAKE).await.unwrap();
    client.hear().await;
    let asked = [code::STAT, code::OPEN, code::PING, code::QUERY, code::READV, code::RM];
    for asked in asked {
        let told = client.told(asked, [0; 16], &element(0, 1, 0)).await;
        assert!([3000, 3001, 3006].contains(&told.code()), "{asked}: {told:?}");
    }
    let told = client.told(code::AUTH, [0; 16], b"krb5\0ann").await;
    assert_eq!(told.code(), Code::InvalidRequest as u32);
    let mut stranger = scene.login(b"eve").await;
    for (asked, path) in [(code::STAT, "/f"), (code::OPEN, "/f"), (code::DIRLIST, "/")] {
        let told = stranger.told(asked, [0; 16], path.as_bytes()).await;
        assert_eq!(told.code(), Code::NotAuthorized as u32);
        assert!(String::from_utf8_lossy(&told.payload).contains("tieline id add"), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_read_are_the_files_bytes() {
    let scene = scene(16 << 20).await;
    let bytes = noise((5 << 20) + 77);
    scene.files.put_elsewhere("f", &bytes);
    let mut client = scene.login(b"ann").await;
    let handle = client.open("/f").await;
    client.ask(code::READ, range(handle, 100, i32::MAX), b"").await;
    assert_eq!(client.all().await, bytes[100..]);
    client.ask(code::READ, range(handle, 1 << 40, 100), b"").await;
    assert!(client.all().await.is_empty());
    // Many ranges, one of them as large as may be.
    let most = u64::from(RANGE_BYTES_MAX);
    let ranges = [(0, 5), (1 << 20, most), (7, 0), (5 << 20, 77)];
    let asked: Vec<u8> =
        ranges.iter().flat_map(|&(from, length)| element(handle, length as u32, from)).collect();
    client.ask(code::READV, [0; 16], &asked).await;
    let mut all = &client.all().await[..];
    for (from, length) in ranges {
        let (head, rest) = all.split_at(16);
        assert_eq!(head, element(handle, length as u32, from));
        let (got, rest) = rest.split_at(length as usize);
        assert_eq!(got, &bytes[from as usize..(from + length) as usize]);
        all = rest;
    }
    assert!(all.is_empty());
    let beyond = element(handle, 78, 5 << 20);
    assert_eq!(client.told(code::READV, [0; 16], &beyond).await.code(), Code::FsError as u32);
    // Pages, not from a page's beginning.
    client.ask(code::PGREAD, range(handle, 1000, 3 << 20), b"").await;
    let (mut again, mut is_last) = (Vec::new(), false);
    while !is_last {
        let told = client.hear().await;
        assert_eq!(told.payload[..4], crc32c(&told.payload[4..24]).to_be_bytes());
        is_last = told.payload[7] == 0;
        let mut left = &told.payload[24..];
        while !left.is_empty() {
            let page = 4096 - (1000 + again.len()) % 4096;
            let (check, rest) = left.split_at(4);
            let (page, rest) = rest.split_at(page.min(rest.len()));
            assert_eq!(check, crc32c(page).to_be_bytes());
            again.extend_from_slice(page);
            left = rest;
        }
    }
    assert_eq!(again, bytes[1000..1000 + (3 << 20)]);
    let mut body = [0; 16];
    body[1] = 3;
    let told = client.told(code::QUERY, body, b"/f\0").await;
    let sum = simple_adler(&bytes);
    assert_eq!(told.payload, format!("adler32 {sum:08x}\0").into_bytes());
    let mut body = [0; 16];
    body[..4].copy_from_slice(&handle.to_be_bytes());
    assert_eq!(client.told(code::CLOSE, body, b"").await.status, 0);
    let told = client.told(code::READ, range(handle, 0, 1), b"").await;
    assert_eq!(told.code(), Code::FileNotOpen as u32);
}

fn simple_adler(bytes: &[u8]) -> u32 {
    let (mut first, mut second) = (1_u32, 0_u32);
    for byte in bytes {
        first = (first + u32::from(*byte)) % 65_521;
        second = (second + first) % 65_521;
    }
    second << 16 | first
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_keeps_no_other_waiting() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.login(b"ann").await;
    let handle = client.open("/f").await;
    scene.files.freeze("read");
    client.ask_as([0, 9], code::READ, range(handle, 0, 5), b"").await;
    client.ask_as([0, 2], code::STAT, [0; 16], b"/f").await;
    assert_eq!(client.hear().await.stream, [0, 2]);
    scene.files.thaw();
    let told = client.hear().await;
    assert_eq!((told.stream, &told.payload[..]), ([0, 9], &b"bytes"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_checksum_that_takes_long_comes_unasked() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.login(b"ann").await;
    scene.files.freeze("adler32");
    let mut body = [0; 16];
    body[1] = 3;
    client.ask_as([3, 4], code::QUERY, body, b"/f?cks.type=adler32").await;
    let told = client.hear().await;
    assert_eq!((told.stream, told.status), ([3, 4], Status::WaitForAnswer as u16));
    scene.files.thaw();
    let told = client.hear().await;
    assert_eq!((told.stream, told.status), ([0, 0], Status::Attention as u16));
    assert_eq!(told.payload[..4], 5008_u32.to_be_bytes());
    assert_eq!(told.payload[8..12], [3, 4, 0, 0]);
    assert!(told.payload[16..].starts_with(b"adler32 "), "{told:?}");
    let told = client.told(code::QUERY, body, b"/f?cks.type=md5").await;
    assert_eq!(told.code(), Code::Unsupported as u32);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_keeps_nobody_else_waiting() {
    let scene = scene(4 << 20).await;
    scene.files.put_elsewhere("f", &noise(8 << 20));
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let mut client = scene.login(b"ann").await;
        let handle = client.open("/f").await;
        for _ in 0..20 {
            client.ask(code::READ, range(handle, 0, 8 << 20), b"").await;
        }
        greedy.push(client);
    }
    let mut other = scene.login(b"ann").await;
    let handle = other.open("/f").await;
    other.ask(code::READ, range(handle, 0, 8 << 20), b"").await;
    assert_eq!(other.all().await.len(), 8 << 20);
    // Those who never read are let go.
    tokio::time::sleep(PATIENCE).await;
    let mut again = scene.login(b"ann").await;
    assert_eq!(again.told(code::PING, [0; 16], b"").await.status, 0);
    drop(greedy);
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_refused_and_ends_where_nothing_can_follow() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.login(b"ann").await;
    for asked in [2999, 3005, 3033, u16::MAX] {
        let told = client.told(asked, [0xff; 16], b"whatever").await;
        assert_eq!(told.code(), Code::InvalidRequest as u32);
    }
    let told = client.told(code::READV, [0; 16], &element(77, 1, 0)).await;
    assert_eq!(told.code(), Code::FileNotOpen as u32);
    for change in [code::RM, code::MKDIR, code::MV, code::TRUNCATE, code::CHMOD, code::WRITE] {
        let told = client.told(change, [0; 16], b"/f").await;
        assert_eq!(told.code(), Code::FsReadOnly as u32);
    }
    assert_eq!(client.told(code::PING, [0; 16], b"").await.status, 0);
    for length in [-1, i32::MIN, PAYLOAD_MAX as i32 + 1, i32::MAX] {
        let mut client = scene.login(b"ann").await;
        let mut bytes = [0; 24];
        bytes[2..4].copy_from_slice(&code::STAT.to_be_bytes());
        bytes[20..].copy_from_slice(&length.to_be_bytes());
        client.0.writer.write_all(&bytes).await.unwrap();
        assert_eq!(client.hear().await.code(), Code::InvalidRequest as u32);
        assert!(client.is_ended().await);
    }
    let mut other = scene.connect().await;
    other.0.writer.write_all(b"GET / HTTP/1.1\r\nHost: door\r\n\r\n").await.unwrap();
    assert!(other.is_ended().await);
    // A stranger who goes on asking is not told for ever.
    let mut stranger = scene.login(b"eve").await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        let told = stranger.told(code::STAT, [0; 16], b"/f").await;
        assert_eq!(told.code(), Code::NotAuthorized as u32);
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(stranger.is_ended().await);
    // Somebody who says nothing is not waited for.
    assert!(scene.connect().await.is_ended().await);
}

#[tokio::test(start_paused = true)]
async fn a_visit_ends_with_its_time_and_its_files_are_closed() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.login(b"ann").await;
    client.open("/f").await;
    assert_eq!(scene.files.handles(), 1);
    tokio::time::sleep(LIFE / 2 - Duration::from_secs(10)).await;
    assert_eq!(client.told(code::PING, [0; 16], b"").await.status, 0);
    tokio::time::sleep(LIFE / 2 - Duration::from_secs(100)).await;
    assert_eq!(client.told(code::PING, [0; 16], b"").await.status, 0);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(client.is_ended().await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.files.handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_ended_by_who_has_it_and_nobody_else() {
    let scene = scene(16 << 20).await;
    let mut client = scene.login(b"ann").await;
    let told = client.told(code::ENDSESS, [9; 16], b"").await;
    assert_eq!(told.code(), Code::NotFound as u32);
    let told = client.told(code::BIND, [9; 16], b"").await;
    assert_eq!(told.code(), Code::Unsupported as u32);
}

#[tokio::test(start_paused = true)]
async fn a_listing_says_what_is_there() {
    let scene = scene(16 << 20).await;
    for number in 0..2500 {
        scene.files.put_elsewhere(&format!("name-{number}"), b"x");
    }
    scene.files.put_elsewhere("two\nlines", b"x");
    let mut client = scene.login(b"ann").await;
    client.ask(code::DIRLIST, [0; 16], b"/").await;
    let plain = String::from_utf8(client.all().await).unwrap();
    let names: Vec<&str> = plain.trim_end_matches('\0').split('\n').collect();
    assert_eq!(names.len(), 2500);
    assert!(names.iter().all(|name| name.starts_with("name-")));
    let mut body = [0; 16];
    body[15] = 4;
    client.ask(code::DIRLIST, body, b"/").await;
    let told = String::from_utf8(client.all().await).unwrap();
    let lines: Vec<&str> = told.trim_end_matches('\0').split('\n').collect();
    assert_eq!((lines[0], lines[1], lines.len()), (".", "0 0 0 0", 5002));
    assert!(lines[3].ends_with(" 0644 0 0 [ none ]"), "{}", lines[3]);
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_all_have_their_answers() {
    let scene = scene(16 << 20).await;
    scene.files.put_elsewhere("f", b"bytes");
    let mut client = scene.login(b"ann").await;
    let handle = client.open("/f").await;
    scene.files.freeze("read");
    client.ask(code::READ, range(handle, 0, 5), b"").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopping = tokio::spawn(scene.server.stop(Duration::from_secs(30)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.files.thaw();
    assert_eq!(client.hear().await.payload, b"bytes");
    assert!(client.is_ended().await && stopping.await.unwrap());
}
