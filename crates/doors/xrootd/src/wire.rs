//! Heads and numbers of the protocol. All integers are big-endian.
//!
//! ```text
//! handshake   0 i32 | 0 i32 | 0 i32 | 4 i32 | 2012 i32
//! request     stream 2 bytes | code u16 | body 16 bytes | length i32 | payload
//! answer      stream 2 bytes | status u16 | length i32 | payload
//! ```
//!
//! Numbers are those of the protocol's header, which is free to be implemented again.

/// A client's first bytes, which say which protocol it means.
pub const HANDSHAKE: [u8; HANDSHAKE_BYTES] =
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 7, 0xdc];
pub const HANDSHAKE_BYTES: usize = 20;
pub const HEAD_BYTES: usize = 24;
pub const ANSWER_BYTES: usize = 8;
/// 5.1.1, which Debian's servers speak.
pub const VERSION: u32 = 0x511;
/// A server that has data, and pages with checks.
pub const SERVER_FLAGS: u32 = 0x1 | 0x0020_0000;

/// By which a client finds the answer to its request.
pub type Stream = [u8; 2];
/// What a client calls an open file.
pub type Handle = u32;
pub type SessionName = [u8; 16];

/// The head of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub stream: Stream,
    pub code: u16,
    pub body: [u8; 16],
    /// As it was sent: what is negative or too much is refused before anything is read.
    pub length: i32,
}

impl Head {
    pub fn read(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [s0, s1, c0, c1, rest @ ..] = *bytes;
        let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15, length @ ..] =
            rest;
        let body = [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15];
        let code = u16::from_be_bytes([c0, c1]);
        Self { stream: [s0, s1], code, body, length: i32::from_be_bytes(length) }
    }
}

/// What follows the head of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Status {
    Done = 0,
    /// More follows.
    Partly = 4000,
    /// Said unasked.
    Attention = 4001,
    Error = 4003,
    /// Ask again in so many seconds.
    Wait = 4005,
    /// The answer comes unasked.
    WaitForAnswer = 4006,
    /// Pages with their checks.
    Pages = 4007,
}

/// Requests, as clients number them.
pub mod code {
    pub const AUTH: u16 = 3000;
    pub const QUERY: u16 = 3001;
    pub const CHMOD: u16 = 3002;
    pub const CLOSE: u16 = 3003;
    pub const DIRLIST: u16 = 3004;
    pub const PROTOCOL: u16 = 3006;
    pub const LOGIN: u16 = 3007;
    pub const MKDIR: u16 = 3008;
    pub const MV: u16 = 3009;
    pub const OPEN: u16 = 3010;
    pub const PING: u16 = 3011;
    pub const CHKPOINT: u16 = 3012;
    pub const READ: u16 = 3013;
    pub const RM: u16 = 3014;
    pub const RMDIR: u16 = 3015;
    pub const SYNC: u16 = 3016;
    pub const STAT: u16 = 3017;
    pub const SET: u16 = 3018;
    pub const WRITE: u16 = 3019;
    pub const FATTR: u16 = 3020;
    pub const PREPARE: u16 = 3021;
    pub const STATX: u16 = 3022;
    pub const ENDSESS: u16 = 3023;
    pub const BIND: u16 = 3024;
    pub const READV: u16 = 3025;
    pub const PGWRITE: u16 = 3026;
    pub const LOCATE: u16 = 3027;
    pub const TRUNCATE: u16 = 3028;
    pub const SIGVER: u16 = 3029;
    pub const PGREAD: u16 = 3030;
    pub const WRITEV: u16 = 3031;
    pub const CLONE: u16 = 3032;
}
