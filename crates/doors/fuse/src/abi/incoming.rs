//! Requests, read field by field.
//!
//! A [`Reader`] never looks past its end: what is missing is [`Malformed`]. Fields that nobody here
//! needs are read and named `_…`, so that each structure can be held beside the protocol's own.

use super::{IN_HEADER_BYTES, Malformed, bits};

/// What is left of a request.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Up to a zero byte, which is passed over.
    pub fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.0.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let text = self.take(length)?;
        self.take(1)?;
        Ok(text)
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: from.$type()?,)* })
            }
        }
    )*};
}

incoming! {
    /// Before every request's arguments.
    Header {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extension_words: u16, _padding: u16,
    }
    /// The part of INIT that all kernels send; newer ones add the upper half of the flags.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    ForgetOne { node: u64, lookups: u64, }
    BatchForgetIn { count: u32, _padding: u32, }
    GetattrIn { flags: u32, _padding: u32, handle: u64, }
    SetattrIn {
        valid: u32, _padding: u32, handle: u64, size: u64, _lock_owner: u64, atime: u64,
        mtime: u64, _ctime: u64, atime_nanos: u32, mtime_nanos: u32, _ctime_nanos: u32,
        mode: u32, _unused4: u32, uid: u32, gid: u32, _unused5: u32,
    }
    MknodIn { mode: u32, device: u32, umask: u32, _padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { to_parent: u64, }
    Rename2In { to_parent: u64, flags: u32, _padding: u32, }
    LinkIn { node: u64, }
    OpenIn { flags: u32, _open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, _open_flags: u32, }
    ReadIn {
        handle: u64, offset: u64, size: u32, _read_flags: u32, _lock_owner: u64, _flags: u32,
        _padding: u32,
    }
    WriteIn {
        handle: u64, offset: u64, size: u32, write_flags: u32, _lock_owner: u64, flags: u32,
        _padding: u32,
    }
    /// RELEASEDIR begins with it.
    HandleIn { handle: u64, }
    FlushIn { handle: u64, _unused: u32, _padding: u32, lock_owner: u64, }
    ReleaseIn { handle: u64, _flags: u32, release_flags: u32, lock_owner: u64, }
    /// GETLK, SETLK and SETLKW. The last byte is included.
    LockIn {
        handle: u64, owner: u64, start: u64, last: u64, kind: u32, process: u32, flags: u32,
        _padding: u32,
    }
    FsyncIn { handle: u64, flags: u32, _padding: u32, }
    SetxattrIn { size: u32, flags: u32, }
    GetxattrIn { size: u32, _padding: u32, }
    InterruptIn { unique: u64, }
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, _padding: u32, }
    LseekIn { handle: u64, offset: u64, whence: u32, _padding: u32, }
    CopyFileRangeIn {
        from_handle: u64, from_offset: u64, to_node: u64, to_handle: u64, to_offset: u64,
        length: u64, _flags: u64,
    }
    ExtensionHeader { size: u32, kind: u32, }
}

/// A request's three parts: header, arguments, extensions.
pub fn split(bytes: &[u8]) -> Result<(Header, &[u8], &[u8]), Malformed> {
    let header = Header::read(&mut Reader::new(bytes))?;
    if usize::try_from(header.len) != Ok(bytes.len()) {
        return Err(Malformed);
    }
    let body = bytes.get(IN_HEADER_BYTES..).ok_or(Malformed)?;
    let extensions = usize::from(header.extension_words) * 8;
    let at = body.len().checked_sub(extensions).ok_or(Malformed)?;
    let (arguments, extensions) = body.split_at_checked(at).ok_or(Malformed)?;
    Ok((header, arguments, extensions))
}

/// Groups in a request's extensions. Extensions that are not understood are passed over.
pub fn extension_groups(extensions: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut groups = Vec::new();
    let mut left = Reader::new(extensions);
    while !left.rest().is_empty() {
        let header = ExtensionHeader::read(&mut left)?;
        let length = (header.size as usize).checked_sub(8).ok_or(Malformed)?;
        let mut body = Reader::new(left.take(length)?);
        if header.kind == bits::EXTENSION_GROUPS {
            // The list's own length bounds the loop, not what it claims.
            let count = body.u32()?;
            for _ in 0..count {
                groups.push(body.u32()?);
            }
        }
    }
    Ok(groups)
}
