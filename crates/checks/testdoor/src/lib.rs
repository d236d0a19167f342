//! The smallest door that uses all that doors are given: a protocol of lines over a socket, for
//! tests.
//!
//! A request is a line of words: `LOGIN name`, `STAT path`, `LS path`, `READV path from-to …`,
//! `PAGES path from-to`, `GET path [from-to]`, `PUT path bytes [replace]` (whose bytes follow once
//! it has said `GO`), `MKDIR path`, `RM path`, `ETAG path`, `RESIDENCY path`. The answer is `OK
//! bytes` and so many bytes, or `NO kind` and why.
//!
//! Knows files, ways to them and who asks; no cache, no lease, no message of servers. Who a name
//! is, it was told.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tieline_files::{
    Access, At, Entry, Error, Files, Held, LastLink, NewUpload, Paths, Result, Stream, Upload, Who,
};
use tieline_types::{Doing, ErrorKind, Mode};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// Of a request's words.
const LINE_MAX: u64 = 64 << 10;
/// What is taken of an upload at a time, and given of a listing.
const PIECE: usize = 64 << 10;
const NAMES: usize = 1000;

pub struct Door {
    files: Arc<dyn Files>,
    paths: Paths,
    users: BTreeMap<String, Who>,
}

type Socket = BufReader<UnixStream>;

enum Answer {
    Text(String),
    Pieces(Vec<Bytes>),
    /// A range of a file, which is open until it is sent.
    File(Held, Range<u64>),
}

impl Door {
    pub fn new(paths: Paths, users: BTreeMap<String, Who>) -> Arc<Self> {
        Arc::new(Self { files: paths.files().clone(), paths, users })
    }

    pub async fn serve(self: Arc<Self>, listener: UnixListener) -> io::Result<()> {
        loop {
            let (socket, _) = listener.accept().await?;
            let door = self.clone();
            // Whoever hangs up has no more to hear.
            tokio::spawn(async move { door.converse(BufReader::new(socket)).await });
        }
    }

    async fn converse(&self, mut socket: Socket) -> io::Result<()> {
        let mut who = None;
        loop {
            let mut line = String::new();
            if (&mut socket).take(LINE_MAX).read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let answer = match (words.as_slice(), &who) {
                (["LOGIN", name], _) => {
                    who = self.users.get(*name).cloned();
                    let known = who.as_ref().map(|_| Answer::Text(String::new()));
                    known.ok_or_else(|| wrong(ErrorKind::Unauthenticated, "nobody has that name"))
                }
                (_, None) => Err(wrong(ErrorKind::Unauthenticated, "LOGIN first")),
                (words, Some(who)) => self.ask(who, words, &mut socket).await,
            };
            self.tell(&mut socket, answer).await?;
        }
    }

    async fn ask(&self, who: &Who, words: &[&str], socket: &mut Socket) -> Result<Answer> {
        let (files, caller) = (&self.files, &who.caller);
        let text = match *words {
            ["STAT", path] => {
                let Entry { attributes: of, way, .. } = self.find(who, path).await?;
                let way: String = way.iter().map(|name| format!("/{name}")).collect();
                format!("{way} {:?} {:o} {} {}", of.kind, of.mode.bits(), of.uid, of.size)
            }
            ["LS", path] => self.list(who, path).await?,
            ["READV", path, ref ranges @ ..] => {
                let ranges: Result<Vec<_>> = ranges.iter().map(|range| range_of(range)).collect();
                let held = self.open(who, path).await?;
                let read = files.read_ranges(held.handle, &ranges?).await?;
                return Ok(Answer::Pieces(read.into_iter().flatten().collect()));
            }
            ["PAGES", path, range] => {
                let (held, range) = (self.open(who, path).await?, range_of(range)?);
                let length = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                let pages = files.read_pages(held.handle, range.start, length).await?;
                let checks: Vec<_> = pages.checks.iter().map(|one| format!("{one:08x}")).collect();
                checks.join(" ")
            }
            ["GET", path, ref range @ ..] => {
                let held = self.open(who, path).await?;
                let (whole, size) = (Ok(0..u64::MAX), held.attributes.size);
                let range = range.first().map_or(whole, |range| range_of(range))?;
                return Ok(Answer::File(held, range.start.min(size)..range.end.min(size)));
            }
            ["PUT", path, bytes, ref replaces @ ..] => {
                let bytes = bytes.parse().map_err(|_| wrong(ErrorKind::InvalidArgument, bytes))?;
                let (parent, name) = self.paths.parent_of(who, path.as_bytes()).await?;
                let replaces = replaces.first() == Some(&"replace");
                let (mode, umask, layout) = (Mode::new(0o664), Mode::new(0o022), None);
                let new = NewUpload { mode, umask, layout, replaces };
                let upload = Upload::begin(files.clone(), who, (&parent, &name), new).await?;
                take(socket, upload, bytes).await?
            }
            ["MKDIR", path] => {
                let (parent, name) = self.paths.parent_of(who, path.as_bytes()).await?;
                who.may(&parent.way_of(&name), Doing::Create)?;
                let at = At { parent: parent.id(), name: &name };
                let (mode, umask) = (Mode::new(0o777), Mode::new(0o022));
                files.make_directory(caller, at, mode, umask).await?;
                String::new()
            }
            ["RM", path] => {
                let (parent, name) = self.paths.parent_of(who, path.as_bytes()).await?;
                who.may(&parent.way_of(&name), Doing::Modify)?;
                files.unlink(caller, At { parent: parent.id(), name: &name }).await?;
                String::new()
            }
            ["ETAG", path] => {
                let entry = self.find(who, path).await?;
                format!("\"{}\"", files.content_version(caller, entry.id()).await?)
            }
            ["RESIDENCY", path] => {
                let entry = self.find(who, path).await?;
                files.residency(caller, entry.id()).await?.to_string()
            }
            _ => return Err(wrong(ErrorKind::InvalidArgument, "there is no such request")),
        };
        Ok(Answer::Text(text))
    }

    async fn find(&self, who: &Who, path: &str) -> Result<Entry> {
        self.paths.find(who, path.as_bytes(), LastLink::Followed).await
    }

    async fn open(&self, who: &Who, path: &str) -> Result<Held> {
        let access = Access { read: true, ..Access::default() };
        Held::open(self.files.clone(), who, &self.find(who, path).await?, access).await
    }

    async fn list(&self, who: &Who, path: &str) -> Result<String> {
        let entry = self.find(who, path).await?;
        who.may(&entry.way, Doing::Read)?;
        let handle = self.files.open_directory(&who.caller, entry.id()).await?;
        let (mut names, mut from) = (Ok(String::new()), 0);
        while let Ok(all) = &mut names {
            match self.files.read_directory(handle, from, NAMES, false).await {
                Ok(page) if page.is_empty() => break,
                Ok(page) => {
                    page.iter().for_each(|one| *all += &format!("{}\n", one.name));
                    from = page.last().map_or(from, |one| one.next);
                }
                Err(error) => names = Err(error),
            }
        }
        self.files.release_directory(handle).await;
        names
    }

    async fn tell(&self, socket: &mut Socket, answer: Result<Answer>) -> io::Result<()> {
        match answer {
            Ok(Answer::Text(text)) => {
                head(socket, text.len() as u64).await?;
                socket.write_all(text.as_bytes()).await?;
            }
            Ok(Answer::Pieces(pieces)) => {
                head(socket, pieces.iter().map(|piece| piece.len() as u64).sum()).await?;
                for piece in pieces {
                    socket.write_all(&piece).await?;
                }
            }
            Ok(Answer::File(held, range)) => {
                head(socket, range.end - range.start).await?;
                let mut stream = Stream::of(self.files.clone(), held.handle, range);
                while let Some(piece) = stream.next().await {
                    // Who was told of more bytes sees that they end.
                    socket.write_all(&piece.map_err(io::Error::other)?).await?;
                }
            }
            Err(error) => {
                let line = format!("NO {:?} {error}\n", error.kind());
                socket.write_all(line.as_bytes()).await?;
            }
        }
        socket.flush().await
    }
}

async fn head(socket: &mut Socket, bytes: u64) -> io::Result<()> {
    socket.write_all(format!("OK {bytes}\n").as_bytes()).await
}

/// Takes the bytes of an upload as they come. Who hangs up in the middle leaves nothing.
async fn take(socket: &mut Socket, mut upload: Upload, bytes: u64) -> Result<String> {
    let hung_up = |error: io::Error| wrong(ErrorKind::Disconnected, &error.to_string());
    // Before this nothing is sent: what is refused is refused without.
    socket.write_all(b"GO\n").await.map_err(hung_up)?;
    socket.flush().await.map_err(hung_up)?;
    let mut left = bytes;
    while left > 0 {
        let mut piece = BytesMut::zeroed(left.min(PIECE as u64) as usize);
        let got = socket.read(&mut piece).await.map_err(hung_up)?;
        if got == 0 {
            return Err(hung_up(io::ErrorKind::UnexpectedEof.into()));
        }
        left -= got as u64;
        upload.write(piece.freeze().slice(..got)).await?;
    }
    let placed = upload.finish().await?;
    Ok(format!("\"{}\"", placed.attributes.content_version()))
}

fn range_of(text: &str) -> Result<Range<u64>> {
    let range =
        text.split_once('-').and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range
        .filter(|range| range.start <= range.end)
        .ok_or_else(|| wrong(ErrorKind::InvalidArgument, text))
}

fn wrong(kind: ErrorKind, what: &str) -> Error {
    Error::local(kind, what)
}
