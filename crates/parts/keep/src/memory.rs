//! A file in memory, mapped: all that is unsafe about shared memory is here.
//!
//! Invariant: every access lies within the mapping, and words are aligned.

use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone and lives as long as it; words are accessed
// atomically, and bytes by whoever the heap gave the slot to.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the first `bytes` of a file, which must be that long.
    pub fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let length = rustix::fs::fstat(&file)?.st_size;
        if bytes == 0 || u64::try_from(length).unwrap_or(0) < bytes as u64 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes, file })
    }

    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    fn at(&self, offset: usize, length: usize) -> NonNull<u8> {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.bytes), "access beyond the shared memory");
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.base.add(offset) }
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word of shared memory is not aligned");
        let place = self.at(offset, 8).cast::<u64>();
        // SAFETY: in bounds, aligned (the mapping begins on a page), and alive as long as `self`.
        unsafe { AtomicU64::from_ptr(place.as_ptr()) }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let place = self.at(offset, bytes.len());
        // SAFETY: in bounds; the slot belongs to the caller, so nobody else reads or writes it.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // What cannot be is not asked memory for.
        self.at(offset, length);
        let mut bytes = vec![0u8; length];
        self.read_into(offset, &mut bytes);
        bytes
    }

    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) {
        let place = self.at(offset, bytes.len());
        // SAFETY: in bounds; the slot belongs to the caller, so nobody else writes it.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The bytes where they lie.
    ///
    /// # Safety
    ///
    /// They belong to the caller, who has no other reference to them.
    #[expect(clippy::mut_from_ref, reason = "the bytes are the caller's alone")]
    pub unsafe fn slice_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        let place = self.at(offset, length);
        // SAFETY: in bounds, alive as long as `self`; alone by the caller's promise.
        unsafe { NonNull::slice_from_raw_parts(place, length).as_mut() }
    }

    /// Has pages stay in memory, as far as this process may.
    pub fn pin(&self, offset: usize, length: usize) {
        self.fill(offset, length);
        let place = self.at(offset, length);
        // SAFETY: in bounds; changes no byte.
        let _ = unsafe { rustix::mm::mlock(place.as_ptr().cast(), length) };
    }

    /// Has pages made before they are used; what cannot be made is made when it is.
    pub fn fill(&self, offset: usize, length: usize) {
        let place = self.at(offset, length);
        // Kernels before 5.14 do not know it.
        // SAFETY: in bounds; populating changes no byte.
        let _ = unsafe {
            rustix::mm::madvise(place.as_ptr().cast(), length, Advice::LinuxPopulateWrite)
        };
    }

    /// Gives the pages back: they read as zeroes.
    pub fn punch(&self, offset: usize, length: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset as u64, length as u64)?)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from it outlives this value.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}
