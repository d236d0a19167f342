//! What is asked: a head and its payload, read into a [`Request`].
//!
//! Everything here comes from outside. Nothing is believed of lengths, and nothing panics.
//!
//! Invariants: a payload is [`PAYLOAD_MAX`] at most; a path is absolute, and [`PATH_MAX`] at most.

use crate::refusal::{Code, Refusal};
use crate::wire::{Handle, Head, SessionName, code};
use bytes::{Buf, Bytes};
use std::ops::Range;

/// No request for reading has more, and of the others no more is read.
pub const PAYLOAD_MAX: usize = 64 << 10;
/// As Linux has it.
pub const PATH_MAX: usize = 4096;
/// With what stands behind the question mark.
const PATH_AND_CGI_MAX: usize = 16 << 10;
/// Ranges in one request.
pub const RANGES_MAX: usize = 1024;
/// Bytes in one of them: 2 MiB without the head of its answer.
pub const RANGE_BYTES_MAX: u32 = (2 << 20) - RANGE_HEAD as u32;
pub const RANGE_HEAD: usize = 16;
/// Paths in one request.
pub const PATHS_MAX: usize = 1024;

mod open {
    pub const DELETE: u16 = 0x2;
    pub const NEW: u16 = 0x8;
    pub const UPDATE: u16 = 0x20;
    pub const APPEND: u16 = 0x200;
    pub const RETSTAT: u16 = 0x400;
    pub const WRITE_TO: u16 = 0x8000;
    pub const WRITES: u16 = DELETE | NEW | UPDATE | APPEND | WRITE_TO;
}

/// A request for something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Protocol,
    Login {
        answers_unasked: bool,
    },
    Auth {
        kind: [u8; 4],
        shown: Bytes,
    },
    Bind,
    EndSession(SessionName),
    Ping,
    /// What a client tells of itself.
    Tell,
    Stat {
        of: Named,
        is_space: bool,
    },
    StatMany(Vec<Path>),
    Locate {
        path: Path,
    },
    List {
        path: Path,
        has_stat: bool,
        has_checksums: bool,
    },
    Open {
        path: Path,
        wants_stat: bool,
    },
    Close(Handle),
    Read {
        handle: Handle,
        range: Range<u64>,
    },
    ReadMany(Vec<Element>),
    ReadPages {
        handle: Handle,
        range: Range<u64>,
    },
    Checksum {
        of: Named,
        algorithm: Option<String>,
    },
    Space(Path),
    Config(Vec<String>),
    /// Something that would change files.
    Change(&'static str),
    /// Something that there is, and not here.
    Missing(&'static str),
}

/// A path from the root, without what stands behind the question mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    pub bytes: Bytes,
    pub cgi: Bytes,
}

/// What a request is about: a path, or an open file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    Path(Path),
    Handle(Handle),
}

/// One of many ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Element {
    pub handle: Handle,
    pub offset: u64,
    pub length: u32,
}

impl Element {
    pub fn range(self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.length)
    }
}

impl Path {
    fn read(mut payload: Bytes) -> Result<Self, Refusal> {
        // Some clients count the zero at the end.
        let end = payload.iter().position(|&byte| byte == 0).unwrap_or(payload.len());
        payload.truncate(end);
        let mark = payload.iter().position(|&byte| byte == b'?').unwrap_or(payload.len());
        let bytes = payload.split_to(mark);
        if payload.has_remaining() {
            payload.advance(1);
        }
        if bytes.is_empty() {
            return Err(Refusal::new(Code::ArgMissing, "a path is missing"));
        }
        if bytes.len() > PATH_MAX || payload.len() > PATH_AND_CGI_MAX {
            let what = format!("a path of {} bytes, {PATH_MAX} are the most", bytes.len());
            return Err(Refusal::new(Code::ArgTooLong, what));
        }
        if !bytes.starts_with(b"/") {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let what = format!("`{shown}` does not begin with a slash: root://HOST//PATH");
            return Err(Refusal::new(Code::ArgInvalid, what));
        }
        Ok(Self { bytes, cgi: payload })
    }

    /// For people.
    pub fn shown(&self) -> String {
        tieline_types::Shown(&self.bytes).to_string()
    }

    /// What stands behind a name in the CGI.
    fn said(&self, name: &str) -> Option<String> {
        let pairs = self.cgi.split(|&byte| byte == b'&');
        let said = pairs.filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        said.map(|value| String::from_utf8_lossy(value).into_owned()).next()
    }
}

impl Request {
    /// What was asked.
    pub fn read(head: &Head, payload: Bytes) -> Result<Self, Refusal> {
        let body = Body(head.body);
        Ok(match head.code {
            code::PROTOCOL => Self::Protocol,
            // The last but one byte says what the client can do.
            code::LOGIN => Self::Login { answers_unasked: body.byte(14) & 0x80 != 0 },
            code::AUTH => Self::Auth { kind: body.four(12), shown: payload },
            code::BIND => Self::Bind,
            code::ENDSESS => Self::EndSession(head.body),
            code::PING => Self::Ping,
            code::SET => Self::Tell,
            code::STAT => {
                let of = Named::read(payload, body.handle(12))?;
                Self::Stat { of, is_space: body.byte(0) & 1 != 0 }
            }
            code::STATX => Self::StatMany(paths(payload)?),
            code::LOCATE => {
                let path = payload.strip_prefix(b"*").map(|path| payload.slice_ref(path));
                Self::Locate { path: Path::read(path.unwrap_or(payload))? }
            }
            code::DIRLIST => {
                let options = body.byte(15);
                let (has_stat, has_checksums) = (options & 0b1110 != 0, options & 4 != 0);
                Self::List { path: Path::read(payload)?, has_stat, has_checksums }
            }
            code::OPEN => {
                let options = body.short(2);
                if options & open::WRITES != 0 {
                    return Ok(Self::Change("opening a file to be written"));
                }
                Self::Open { path: Path::read(payload)?, wants_stat: options & open::RETSTAT != 0 }
            }
            code::CLOSE => Self::Close(body.handle(0)),
            code::READ => Self::Read { handle: body.handle(0), range: body.range(4)? },
            code::PGREAD => Self::ReadPages { handle: body.handle(0), range: body.range(4)? },
            code::READV => Self::ReadMany(elements(payload)?),
            code::QUERY => query(&body, payload)?,
            code::CHMOD => Self::Change("chmod"),
            code::MKDIR => Self::Change("mkdir"),
            code::MV => Self::Change("mv"),
            code::RM => Self::Change("rm"),
            code::RMDIR => Self::Change("rmdir"),
            code::SYNC => Self::Change("sync"),
            code::TRUNCATE => Self::Change("truncate"),
            code::WRITE | code::PGWRITE | code::WRITEV => Self::Change("write"),
            code::CLONE => Self::Change("clone"),
            code::CHKPOINT => Self::Change("chkpoint"),
            code::FATTR => Self::Missing("fattr"),
            code::PREPARE => Self::Missing("prepare"),
            code::SIGVER => Self::Missing("sigver"),
            other => {
                return Err(Refusal::new(Code::InvalidRequest, format!("no request {other}")));
            }
        })
    }

    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Login { .. } => "login",
            Self::Auth { .. } => "auth",
            Self::Bind => "bind",
            Self::EndSession(_) => "endsess",
            Self::Ping => "ping",
            Self::Tell => "set",
            Self::Stat { .. } => "stat",
            Self::StatMany(_) => "statx",
            Self::Locate { .. } => "locate",
            Self::List { .. } => "dirlist",
            Self::Open { .. } => "open",
            Self::Close(_) => "close",
            Self::Read { .. } => "read",
            Self::ReadMany(_) => "readv",
            Self::ReadPages { .. } => "pgread",
            Self::Checksum { .. } => "checksum",
            Self::Space(_) => "space",
            Self::Config(_) => "config",
            Self::Change(_) => "change",
            Self::Missing(_) => "missing",
        }
    }
}

impl Named {
    /// A path, or where none is, a handle.
    fn read(payload: Bytes, handle: Handle) -> Result<Self, Refusal> {
        if payload.iter().all(|&byte| byte == 0) {
            return Ok(Self::Handle(handle));
        }
        Ok(Self::Path(Path::read(payload)?))
    }
}

/// The sixteen bytes of a head that mean something else in each request.
struct Body([u8; 16]);

impl Body {
    /// Of bytes that are there: places are constants.
    fn some<const N: usize>(&self, at: usize) -> [u8; N] {
        let some = self.0.get(at..at + N).and_then(|some| some.try_into().ok());
        some.unwrap_or([0; N])
    }

    fn byte(&self, at: usize) -> u8 {
        let [byte] = self.some(at);
        byte
    }

    fn short(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.some(at))
    }

    fn four(&self, at: usize) -> [u8; 4] {
        self.some(at)
    }

    fn handle(&self, at: usize) -> Handle {
        Handle::from_be_bytes(self.some(at))
    }

    /// An offset, and behind it a length.
    fn range(&self, at: usize) -> Result<Range<u64>, Refusal> {
        let offset = i64::from_be_bytes(self.some(at));
        let length = i32::from_be_bytes(self.some(at + 8));
        range(offset, length)
    }
}

fn range(offset: i64, length: i32) -> Result<Range<u64>, Refusal> {
    let range = u64::try_from(offset).ok().zip(u64::try_from(length).ok());
    let range = range.and_then(|(from, length)| Some(from..from.checked_add(length)?));
    range.ok_or_else(|| {
        let what = format!("{length} bytes from {offset}: no file has a range like that");
        Refusal::new(Code::ArgInvalid, what)
    })
}

fn paths(payload: Bytes) -> Result<Vec<Path>, Refusal> {
    let end = payload.iter().position(|&byte| byte == 0).unwrap_or(payload.len());
    let all = payload.slice(..end);
    let named = all.split(|&byte| byte == b'\n').filter(|path| !path.is_empty());
    if named.clone().count() > PATHS_MAX {
        let what = format!("ask for {PATHS_MAX} paths at a time");
        return Err(Refusal::new(Code::ArgTooLong, what));
    }
    let paths: Result<Vec<_>, _> = named.map(|path| Path::read(all.slice_ref(path))).collect();
    match paths {
        Ok(paths) if paths.is_empty() => Err(Refusal::new(Code::ArgMissing, "a path is missing")),
        paths => paths,
    }
}

fn elements(mut payload: Bytes) -> Result<Vec<Element>, Refusal> {
    let wrong = |what: String| Err(Refusal::new(Code::ArgInvalid, what));
    if payload.is_empty() || !payload.len().is_multiple_of(RANGE_HEAD) {
        return wrong(format!("a list of {RANGE_HEAD} bytes for each range is needed"));
    }
    if payload.len() / RANGE_HEAD > RANGES_MAX {
        let what = format!("ask for {RANGES_MAX} ranges at a time");
        return Err(Refusal::new(Code::ArgTooLong, what));
    }
    let mut elements = Vec::with_capacity(payload.len() / RANGE_HEAD);
    while payload.remaining() >= RANGE_HEAD {
        let handle = payload.get_u32();
        let length = payload.get_i32();
        let offset = payload.get_i64();
        let range = range(offset, length)?;
        let length = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        if length > RANGE_BYTES_MAX {
            let what = format!("a range of {length} bytes: {RANGE_BYTES_MAX} are the most");
            return Err(Refusal::new(Code::NoMemory, what));
        }
        elements.push(Element { handle, offset: range.start, length });
    }
    Ok(elements)
}

fn query(body: &Body, payload: Bytes) -> Result<Request, Refusal> {
    Ok(match body.short(0) {
        3 => {
            let of = Named::read(payload, body.handle(4))?;
            let algorithm = match &of {
                Named::Path(path) => path.said("cks.type"),
                Named::Handle(_) => None,
            };
            Request::Checksum { of, algorithm }
        }
        // A client may ask for space without saying where.
        5 if payload.iter().all(|&byte| byte == 0) => {
            Request::Space(Path { bytes: Bytes::from_static(b"/"), cgi: Bytes::new() })
        }
        5 => Request::Space(Path::read(payload)?),
        7 => {
            let text = String::from_utf8_lossy(&payload).into_owned();
            let is_between = |one: char| one.is_whitespace() || one == '\0';
            let words = text.split(is_between).filter(|word| !word.is_empty());
            Request::Config(words.take(RANGES_MAX).map(str::to_owned).collect())
        }
        1 => Request::Missing("query stats"),
        2 => Request::Missing("query prepare"),
        4 => Request::Missing("query xattr"),
        8 => Request::Missing("query visa"),
        9 | 10 => Request::Missing("query of the file system"),
        16 | 32 | 64 => Request::Missing("query of opaque things"),
        other => return Err(Refusal::new(Code::ArgInvalid, format!("no query {other}"))),
    })
}

#[cfg(test)]
mod tests;
