//! The opening handshake: what of the kernel's offers is taken, and why.
//!
//! Taken: parallel reads and directory operations, 1 MiB requests, listings with attributes when
//! they pay, truncation within open, POSIX ACLs (the kernel checks them on names it has cached, as
//! we do on what it asks) and masks left to the file system (default ACLs need them), locks
//! of both kinds (they hold between clients), and setuid and setgid cleared by the file system:
//! else the kernel asks for `security.capability` before every write.
//!
//! Taken if it is wanted: mounts with other ids. The kernel then says of most requests no more who
//! asks.
//!
//! Not taken: the writeback cache (the kernel would own size and mtime); invalidation by mtime (we
//! tell), nor the promise that we tell of *every* change, so that a size that changed unasked still
//! drops pages; no-open (rights are found at open); export; request timeouts (they
//! abort the whole mount); passthrough and io_uring (no gain measured; rings die with the program).

use crate::abi::bits::init as bits;
use crate::abi::incoming::{InitIn, Reader};
use crate::abi::outgoing::InitOut;
use crate::abi::{MAJOR, MINOR_NEWEST, MINOR_OLDEST, Malformed};

/// Bytes of the largest read or write: 256 small pages, the limit of an unchanged kernel.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads ahead and other requests nobody waits for: enough for several sequential readers with 4
/// MiB windows.
const BACKGROUND_MAX: u16 = 64;
/// From here on the kernel holds readers' windows back.
const CONGESTED_FROM: u16 = 48;

const WANTED: u64 = bits::ASYNC_READ
    | bits::POSIX_LOCKS
    | bits::FLOCK_LOCKS
    | bits::ATOMIC_O_TRUNC
    | bits::BIG_WRITES
    | bits::DONT_MASK
    | bits::DO_READDIRPLUS
    | bits::READDIRPLUS_AUTO
    | bits::ASYNC_DIO
    | bits::PARALLEL_DIROPS
    | bits::ABORT_ERROR
    | bits::MAX_PAGES
    | bits::POSIX_ACL
    | bits::CACHE_SYMLINKS
    | bits::HANDLE_KILLPRIV_V2
    | bits::INIT_EXT
    | bits::CREATE_SUPP_GROUP
    | bits::HAS_EXPIRE_ONLY
    | bits::DIRECT_IO_ALLOW_MMAP
    | bits::NO_EXPORT_SUPPORT
    | bits::HAS_RESEND;

/// What this kernel can do beyond what every kernel can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    pub minor: u32,
    /// Names can be expired without dropping what stands on them (7.38).
    pub expires: bool,
    /// All names can be doubted at once, without a lock (7.44).
    pub has_epoch: bool,
    /// What was read and not answered can be read again (7.40).
    pub resends: bool,
    /// Files may be mapped that are not cached otherwise (7.39).
    pub maps_direct: bool,
    /// It says with each write whether setuid and setgid end (7.33).
    pub says_setid: bool,
    /// It may be mounted with other ids, and says only of what is made who asks (7.41).
    pub maps_ids: bool,
}

impl Features {
    /// For the process that goes on with the session.
    pub fn to_bytes(self) -> Vec<u8> {
        let Self { minor, expires, has_epoch, resends, maps_direct, says_setid, maps_ids } = self;
        let flags = [expires, has_epoch, resends, maps_direct, says_setid, maps_ids];
        let flags = flags.map(u8::from);
        [&minor.to_le_bytes()[..], &flags].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let (minor, flags) = bytes.split_first_chunk().ok_or(Malformed)?;
        // Earlier programs did not say the last ones.
        let (flags, rest) = flags.split_first_chunk().ok_or(Malformed)?;
        let [expires, has_epoch, resends] = flags.map(|flag| flag != 0);
        let [maps_direct, says_setid, maps_ids] =
            [0, 1, 2].map(|at| rest.get(at).is_some_and(|&flag| flag != 0));
        let minor = u32::from_le_bytes(*minor);
        Ok(Self { minor, expires, has_epoch, resends, maps_direct, says_setid, maps_ids })
    }
}

/// Kernels that cannot be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooOld {
    #[error("kernel speaks FUSE {major}.{minor}, at least {MAJOR}.{MINOR_OLDEST} is needed")]
    Whole { major: u32, minor: u32 },
    #[error("kernel speaks FUSE 7.{minor}; id-mapped mounts need 7.41 (Linux 6.12)")]
    ForMappedIds { minor: u32 },
}

/// The kernel's offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
}

impl Offer {
    pub fn read(arguments: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(arguments);
        let base = InitIn::read(&mut from)?;
        // Kernels before 7.36 end here.
        let upper = if u64::from(base.flags) & bits::INIT_EXT != 0 { from.u32()? } else { 0 };
        let flags = u64::from(base.flags) | (u64::from(upper) << 32);
        let InitIn { major, minor, max_readahead, .. } = base;
        Ok(Self { major, minor, max_readahead, flags })
    }

    /// The same kernel, had it stopped at `minor`.
    pub fn limited_to(mut self, minor: u32) -> Self {
        /// Which flags came with which version.
        const SINCE: [(u32, u64); 6] = [
            (33, bits::HANDLE_KILLPRIV_V2),
            (36, bits::INIT_EXT),
            (38, bits::CREATE_SUPP_GROUP | bits::HAS_EXPIRE_ONLY),
            (39, bits::DIRECT_IO_ALLOW_MMAP),
            (40, bits::NO_EXPORT_SUPPORT | bits::HAS_RESEND),
            (41, bits::ALLOW_IDMAP),
        ];
        for (_, flags) in SINCE.iter().filter(|(since, _)| minor < *since) {
            self.flags &= !flags;
        }
        self.minor = self.minor.min(minor);
        self
    }

    /// What is taken of it. `maps_ids`: it is to be mounted with other ids.
    pub fn accept(self, maps_ids: bool) -> Result<(Features, InitOut), TooOld> {
        let Self { major, minor, .. } = self;
        if major != MAJOR || minor < MINOR_OLDEST {
            return Err(TooOld::Whole { major, minor });
        }
        let wanted = WANTED | if maps_ids { bits::ALLOW_IDMAP } else { 0 };
        let flags = self.flags & wanted;
        let has = |flag| flags & flag != 0;
        if maps_ids && !has(bits::ALLOW_IDMAP) {
            return Err(TooOld::ForMappedIds { minor });
        }
        let features = Features {
            minor,
            expires: minor >= 38 && has(bits::HAS_EXPIRE_ONLY),
            has_epoch: minor >= 44,
            resends: minor >= 40 && has(bits::HAS_RESEND),
            maps_direct: minor >= 39 && has(bits::DIRECT_IO_ALLOW_MMAP),
            says_setid: minor >= 33 && has(bits::HANDLE_KILLPRIV_V2),
            maps_ids,
        };
        let out = InitOut {
            minor: minor.min(MINOR_NEWEST),
            max_readahead: self.max_readahead,
            flags,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTED_FROM,
            max_write: REQUEST_BYTES_MAX,
            max_pages: (REQUEST_BYTES_MAX as usize / rustix::param::page_size()) as u16,
        };
        Ok((features, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32) -> Offer {
        Offer { major: 7, minor: 45, max_readahead: 1 << 17, flags: u64::MAX }.limited_to(minor)
    }

    #[test]
    fn each_kernel_gets_what_it_can_do() {
        let features = |minor| kernel(minor).accept(false).unwrap().0;
        let known = |minor| {
            let features = features(minor);
            assert_eq!(Features::from_bytes(&features.to_bytes()), Ok(features));
            (features.expires, features.has_epoch, features.resends)
        };
        assert_eq!(known(31), (false, false, false));
        assert_eq!(known(37), (false, false, false));
        assert_eq!(known(38), (true, false, false));
        assert_eq!(known(41), (true, false, true));
        assert_eq!(known(45), (true, true, true));
        assert_eq!(kernel(30).accept(false), Err(TooOld::Whole { major: 7, minor: 30 }));
    }

    #[test]
    fn ids_are_mapped_where_that_is_wanted_and_offered() {
        let taken = |minor| {
            kernel(minor).accept(true).map(|(features, out)| {
                assert_eq!(Features::from_bytes(&features.to_bytes()), Ok(features));
                (features.maps_ids, out.flags & bits::ALLOW_IDMAP != 0)
            })
        };
        assert_eq!(taken(41), Ok((true, true)));
        assert_eq!(taken(40), Err(TooOld::ForMappedIds { minor: 40 }));
    }

    #[test]
    fn what_must_not_be_taken_is_not() {
        let (_, out) = kernel(45).accept(false).unwrap();
        // Export, automatic invalidation, writeback, no-open, no-opendir,
        // explicit invalidation only, passthrough, mapped ids, io_uring, request timeouts.
        for bit in [4, 12, 16, 17, 24, 25, 37, 40, 41, 42] {
            assert_eq!(out.flags & (1 << bit), 0, "bit {bit}");
        }
        assert_eq!(out.to_bytes().len(), 64);
    }

    #[test]
    fn the_upper_half_is_read_where_it_is_sent() {
        let words = |flags: u32, tail: &[u32]| -> Vec<u8> {
            let head = [7, 36, 4096, flags];
            head.iter().chain(tail).flat_map(|word| word.to_ne_bytes()).collect()
        };
        let ext = bits::INIT_EXT as u32;
        assert_eq!(Offer::read(&words(1, &[])).unwrap().flags, 1);
        let both = Offer::read(&words(ext, &[1 << 3, 0])).unwrap();
        assert_eq!(both.flags, bits::INIT_EXT | bits::HAS_EXPIRE_ONLY);
        assert_eq!(Offer::read(&words(ext, &[])), Err(Malformed));
    }
}
