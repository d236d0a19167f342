//! The door over files in memory, asked byte for byte as clients do.

use crate::WebDav;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::memory::Memory;
use tieline_files::{At, Error, Files, Paths};
use tieline_http::server::{Server, Settings};
use tieline_people::visitors::{Visitor, Visitors, Wish};
use tieline_types::{Allowed, Caller, ErrorKind, Mode, Scope};
use tieline_wire::identity::Evidence;
use tieline_world::{LocalTransport, Transport, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A token is the scope that it gives.
struct Believing;

#[async_trait::async_trait]
impl Visitors for Believing {
    async fn meet(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        let Evidence::Token(token) = wish.evidence else {
            return Err(Error::local(ErrorKind::PermissionDenied, "a ticket"));
        };
        let text = String::from_utf8(token).unwrap();
        if text == "stranger" {
            return Err(Error::local(ErrorKind::PermissionDenied, "nobody here"));
        }
        let allowed: Option<Vec<Allowed>> =
            text.split('+').map(|one| one.replace('|', "/").parse().ok()).collect();
        let scope = allowed.and_then(|allowed| Scope::new(allowed).ok());
        let scope = scope
            .ok_or_else(|| Error::local(ErrorKind::Unauthenticated, "the token is no token"))?;
        let life = Duration::from_secs(60);
        Ok(Arc::new(Visitor::known(Caller::root(), Some(scope), life)))
    }

    async fn meet_again(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        self.meet(wish).await
    }

    fn service(&self, first: &str) -> Option<String> {
        Some(format!("{first}/door@R"))
    }

    fn advice(&self, _: &str) -> String {
        String::new()
    }
}

struct Trial {
    memory: Arc<Memory>,
    transport: Arc<LocalTransport>,
    _server: Server,
}

/// An answer's head, in lower case, and its body.
struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(self.status(), status, "{}\n{}", self.head, self.body);
        self
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }
}

impl Trial {
    async fn new() -> Self {
        let memory = Arc::new(Memory::new(1));
        for (directory, files) in [("data", &["a", "b c"][..]), ("data2", &["a"])] {
            let at = At { parent: memory.root(), name: &directory.parse().unwrap() };
            let root = Caller::root();
            let made = memory.make_directory(&root, at, Mode::new(0o755), Mode::new(0)).await;
            for name in files {
                let text = format!("{directory} {name} 0123456789");
                let name = name.parse().unwrap();
                let at = At { parent: made.as_ref().unwrap().attributes.id, name: &name };
                let access = tieline_files::Access { write: true, ..Default::default() };
                let new = tieline_files::NewFile {
                    mode: Mode::new(0o644),
                    umask: Mode::new(0),
                    is_exclusive: true,
                    access,
                    layout: None,
                };
                let (_, opened) = memory.create(&root, at, new).await.unwrap();
                memory.write(opened.handle, 0, Bytes::from(text)).await.unwrap();
                memory.release(opened.handle).await;
            }
        }
        let (world, transport) = World::local(7);
        let paths = Paths::new(memory.clone());
        let door = WebDav::new(paths, Arc::new(Believing), "extenci".to_owned());
        let server = Server::start(&world, "door:443", None, Settings::default(), door).await;
        Self { memory, transport, _server: server.unwrap() }
    }

    /// Sends something, and reads one answer until the connection closes.
    async fn say(&self, text: &[u8]) -> Answer {
        let connecting = self.transport.connect("door:443", Duration::from_secs(1));
        let mut connection = connecting.await.unwrap();
        connection.writer.write_all(text).await.unwrap();
        let mut answer = Vec::new();
        let _ = connection.reader.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        Answer { head: head.to_lowercase(), body: body.to_owned() }
    }

    /// With the scope `/data` to be read and changed.
    async fn ask(&self, first: &str, more: &str) -> Answer {
        self.ask_as("read:|data+modify:|data", first, more, "").await
    }

    async fn ask_as(&self, token: &str, first: &str, more: &str, body: &str) -> Answer {
        let length = match body {
            "" => String::new(),
            body => format!("Content-Length: {}\r\n", body.len()),
        };
        let text = format!(
            "{first} HTTP/1.1\r\nHost: door\r\nConnection: close\r\nAuthorization: Bearer \
             {token}\r\n{more}{length}\r\n{body}"
        );
        self.say(text.as_bytes()).await
    }

    async fn put(&self, path: &str, more: &str, body: &str) -> Answer {
        let first = format!("PUT {path}");
        self.ask_as("read:|data+modify:|data", &first, more, body).await
    }
}

#[tokio::test]
async fn files_and_ranges_are_given_to_whoever_may() {
    let trial = Trial::new().await;
    let all = trial.ask("GET /data/a", "").await.is(200);
    assert_eq!(all.body, "data a 0123456789");
    let tag = all.header("etag").unwrap().to_owned();
    let head = trial.ask("HEAD /data/a", "Want-Digest: adler32\r\n").await.is(200);
    assert_eq!((head.header("content-length"), head.body.as_str()), (Some("17"), ""));
    assert_eq!(head.header("digest"), Some("adler32=2b600449"));
    let md5 = trial.ask("HEAD /data/a", "Want-Digest: md5;q=0.5, sha-256\r\n").await;
    assert!(md5.header("digest").unwrap().starts_with("sha-256="), "{}", md5.head);
    let one = trial.ask("GET /data/a", "Range: bytes=7-9\r\n").await.is(206);
    assert_eq!(one.body, "012");
    assert_eq!(one.header("content-range"), Some("bytes 7-9/17"));
    let two = trial.ask("GET /data/a", "Range: bytes=0-1,7-9\r\n").await.is(206);
    assert!(two.header("content-type").unwrap().starts_with("multipart/byteranges"));
    assert!(two.body.contains("\r\n\r\nda\r\n") && two.body.contains("\r\n\r\n012\r\n"));
    trial.ask("GET /data/a", "Range: bytes=17-\r\n").await.is(416);
    let same = format!("If-None-Match: {tag}\r\n");
    trial.ask("GET /data/a", &same).await.is(304);
    trial.ask("GET /data/a", "If-Match: \"other\"\r\n").await.is(412);
    assert_eq!(trial.ask("GET /data//b%20c", "").await.is(200).body, "data b c 0123456789");
    trial.ask("GET /data/none", "").await.is(404);
    for unknown in ["POST", "COPY", "LOCK"] {
        let refused = trial.ask(&format!("{unknown} /data/a"), "").await.is(501);
        assert!(refused.header("allow").unwrap().contains("propfind"), "{}", refused.head);
    }
    let listing = trial.ask("GET /data", "").await.is(200);
    assert!(listing.body.contains("href=\"/data/b%20c\""), "{}", listing.body);
    // What was opened is given back.
    while trial.memory.handles() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nobody_is_answered_who_does_not_say_who_he_is() {
    let trial = Trial::new().await;
    let options = b"OPTIONS / HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n";
    let options = trial.say(options).await.is(200);
    assert_eq!(options.header("dav"), Some("1, 3"));
    let bare = b"GET /data/a HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n";
    let bare = trial.say(bare).await.is(401);
    assert!(bare.head.contains("www-authenticate: bearer realm=\"extenci\""), "{}", bare.head);
    assert!(bare.body.contains("Authorization: Bearer"), "{}", bare.body);
    let basic = "GET /data/a HTTP/1.1\r\nHost: door\r\nConnection: close\r\nAuthorization: Basic \
                 YTpi\r\n\r\n";
    trial.say(basic.as_bytes()).await.is(401);
    trial.ask_as("nonsense", "GET /data/a", "", "").await.is(401);
    let stranger = trial.ask_as("stranger", "GET /data/a", "", "").await.is(403);
    assert!(stranger.body.starts_with("nobody here"), "{}", stranger.body);
    // A token in the query is as good, with and without its scheme.
    for authz in ["read%3A%7Cdata", "Bearer%20read%3A%7Cdata"] {
        let text = format!(
            "GET /data/a?authz={authz} HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n"
        );
        trial.say(text.as_bytes()).await.is(200);
    }
}

#[tokio::test]
async fn a_scope_is_of_whole_names() {
    let trial = Trial::new().await;
    for path in ["/data2/a", "/data2", "/", "/data%2F..%2Fdata2/a", "/data/../data2/a"] {
        let got = trial.ask(&format!("GET {path}"), "").await;
        assert!([400, 403].contains(&got.status()), "{path}: {}", got.head);
    }
    trial.put("/data2/new", "", "x").await.is(403);
    trial.put("/data2new", "", "x").await.is(403);
    trial.ask("DELETE /data2/a", "").await.is(403);
    trial.ask("MOVE /data/a", "Destination: /data2/b\r\n").await.is(403);
    trial.ask("PROPFIND /data2", "Depth: 1\r\n").await.is(403);
    // Above it its attributes are told, and no names.
    trial.ask("PROPFIND /", "Depth: 0\r\n").await.is(207);
    trial.ask("PROPFIND /", "Depth: 1\r\n").await.is(403);
    let reader = "read:|data";
    trial.ask_as(reader, "PUT /data/new", "", "x").await.is(403);
    trial.ask_as(reader, "MKCOL /data/new", "", "").await.is(403);
    let maker = "create:|data";
    trial.ask_as(maker, "PUT /data/new", "", "x").await.is(201);
    trial.ask_as(maker, "PUT /data/new", "", "y").await.is(403);
    trial.ask_as(maker, "GET /data/new", "", "").await.is(403);
    // What he made he may look after; what is beside his scope he may not.
    let wanted = "Want-Digest: adler32\r\n";
    let head = trial.ask_as(maker, "HEAD /data/new", wanted, "").await.is(200);
    assert_eq!(head.header("digest"), Some("adler32=00790079"));
    trial.ask_as(maker, "HEAD /data2/a", wanted, "").await.is(403);
    trial.ask_as(maker, "DELETE /data/new", "", "").await.is(403);
}

#[tokio::test]
async fn what_is_put_is_there_whole_or_not_at_all() {
    let trial = Trial::new().await;
    let new = trial.put("/data/new", "Want-Digest: adler32\r\n", "Wikipedia").await.is(201);
    assert_eq!(new.header("digest"), Some("adler32=11e60398"));
    assert_eq!(trial.ask("GET /data/new", "").await.is(200).body, "Wikipedia");
    let tag = trial.put("/data/new", "", "other").await.is(204);
    let tag = tag.header("etag").unwrap().to_owned();
    trial.put("/data/new", "If-None-Match: *\r\n", "x").await.is(412);
    trial.put("/data/new", "If-Match: \"old\"\r\n", "x").await.is(412);
    trial.put("/data/new", &format!("If-Match: {tag}\r\n"), "third").await.is(204);
    trial.put("/data/none/new", "", "x").await.is(409);
    trial.put("/data/a/new", "", "x").await.is(409);
    trial.put("/data/new/", "", "x").await.is(405);
    trial.put("/data", "", "x").await.is(405);
    trial.put("/data/new", "Content-Range: bytes 0-0/5\r\n", "x").await.is(400);
    // What is not what it is said to be is not kept.
    let wrong = "Digest: adler32=11e60399\r\n";
    trial.put("/data/sum", wrong, "Wikipedia").await.is(412);
    trial.ask("GET /data/sum", "").await.is(404);
    trial.put("/data/sum", "Digest: adler32=11e60398\r\n", "Wikipedia").await.is(201);
    assert_eq!(trial.ask("GET /data/new", "").await.is(200).body, "third");
    // Without a length, and empty.
    let chunked = "4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n";
    let head = "PUT /data/chunked HTTP/1.1\r\nHost: door\r\nConnection: close\r\nAuthorization: \
                Bearer modify:|data\r\nTransfer-Encoding: chunked\r\n\r\n";
    trial.say(format!("{head}{chunked}").as_bytes()).await.is(201);
    assert_eq!(trial.ask("GET /data/chunked", "").await.body, "Wikipedia");
    trial.put("/data/empty", "Content-Length: 0\r\n", "").await.is(201);
    assert_eq!(trial.ask("GET /data/empty", "").await.is(200).body, "");
    // Who breaks off leaves nothing.
    let connecting = trial.transport.connect("door:443", Duration::from_secs(1));
    let mut connection = connecting.await.unwrap();
    let begun = "PUT /data/half HTTP/1.1\r\nHost: door\r\nAuthorization: Bearer \
                 modify:|data\r\nContent-Length: 9\r\n\r\nWiki";
    connection.writer.write_all(begun.as_bytes()).await.unwrap();
    drop(connection);
    while trial.memory.handles() > 0 {
        tokio::task::yield_now().await;
    }
    trial.ask("GET /data/half", "").await.is(404);
}

#[tokio::test]
async fn a_body_is_asked_for_when_it_is_wanted() {
    let trial = Trial::new().await;
    for (path, wanted) in [("/data/new", "100 continue"), ("/data2/new", "403 forbidden")] {
        let connecting = trial.transport.connect("door:443", Duration::from_secs(1));
        let mut connection = connecting.await.unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: door\r\nAuthorization: Bearer modify:|data\r\nExpect: \
             100-continue\r\nContent-Length: 4\r\n\r\n"
        );
        connection.writer.write_all(head.as_bytes()).await.unwrap();
        let mut first = vec![0; 12 + wanted.len() - 3];
        connection.reader.read_exact(&mut first).await.unwrap();
        let first = String::from_utf8_lossy(&first).to_lowercase();
        assert!(first.contains(wanted), "{path}: {first}");
    }
}

#[tokio::test]
async fn names_and_attributes_are_told_as_xml() {
    let trial = Trial::new().await;
    let one = trial.ask("PROPFIND /data/a", "Depth: 0\r\n").await.is(207);
    assert!(one.body.contains("<D:href>/data/a</D:href>"), "{}", one.body);
    assert!(one.body.contains("<D:getcontentlength>17</D:getcontentlength>"), "{}", one.body);
    assert!(one.body.contains("<L:mode>100644</L:mode>"), "{}", one.body);
    let body = "<propfind xmlns='DAV:'><prop><resourcetype/><getcontentlength/><quota-used-bytes/>\
                <x xmlns='urn:y'/></prop></propfind>";
    let token = "read:|data";
    let all = trial.ask_as(token, "PROPFIND /data", "Depth: 1\r\n", body).await.is(207);
    for text in [
        "<D:href>/data/</D:href>",
        "<D:href>/data/b%20c</D:href>",
        "<D:resourcetype><D:collection/></D:resourcetype>",
        "<D:getcontentlength>19</D:getcontentlength>",
        "<x:x xmlns:x=\"urn:y\"/>",
        "404 Not Found",
        "</D:multistatus>",
    ] {
        assert!(all.body.contains(text), "{text} in {}", all.body);
    }
    for depth in ["", "Depth: infinity\r\n"] {
        let all = trial.ask("PROPFIND /data", depth).await.is(403);
        assert!(all.body.contains("propfind-finite-depth"), "{}", all.body);
    }
    trial.ask("PROPFIND /data", "Depth: 2\r\n").await.is(400);
    let broken = trial
        .ask_as(token, "PROPFIND /data", "Depth: 0\r\n", "<propfind xmlns='DAV:'>")
        .await
        .is(400);
    assert!(broken.body.contains("well-formed"), "{}", broken.body);
    trial.ask("PROPFIND /data/none", "Depth: 0\r\n").await.is(404);
}

#[tokio::test]
async fn directories_are_made_and_names_changed() {
    let trial = Trial::new().await;
    trial.ask("MKCOL /data/new/", "").await.is(201);
    trial.ask("MKCOL /data/new", "").await.is(405);
    trial.ask("MKCOL /data/a", "").await.is(405);
    trial.ask("MKCOL /data/none/new", "").await.is(409);
    let token = "read:|data+modify:|data";
    trial.ask_as(token, "MKCOL /data/body", "", "x").await.is(415);
    trial.ask("MOVE /data/a", "Destination: https://door/data/new/a\r\n").await.is(201);
    trial.ask("GET /data/a", "").await.is(404);
    trial.ask("GET /data/new/a", "").await.is(200);
    trial.ask("MOVE /data/new/a", "Destination: https://else/data/x\r\n").await.is(502);
    trial.ask("MOVE /data/new/a", "").await.is(400);
    let kept = "Destination: /data/b%20c\r\nOverwrite: F\r\n";
    trial.ask("MOVE /data/new/a", kept).await.is(412);
    trial.ask("DELETE /data/new", "").await.is(409);
    trial.ask("MOVE /data/new/a", "Destination: /data/b%20c\r\n").await.is(204);
    trial.ask("DELETE /data/new", "").await.is(204);
    trial.ask("DELETE /data/b%20c", "").await.is(204);
    trial.ask("DELETE /data/b%20c", "").await.is(404);
}
