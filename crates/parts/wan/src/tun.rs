//! TUN devices: packets of an interface, read and written by this process.
//!
//! All that is unsafe about them is here. The device is found by its name in the network namespace
//! of the thread that opens it; from then on any thread may use it. If it is not there it is made,
//! and goes with the process.

use crate::Error;
use crate::packet::{HEADER, PACKET_MAX};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const DEVICE: &str = "/dev/net/tun";
const SET_INTERFACE: libc::c_ulong = 0x4004_54ca;
const SET_OFFLOAD: libc::c_ulong = 0x4004_54d0;
/// Sums are left to us, and streams of TCP come uncut, also those that carry marks of congestion.
const OFFLOAD: libc::c_ulong = 1 | 2 | 4 | 8;

/// One device.
pub struct Tun {
    name: String,
    device: OwnedFd,
    buffer: Vec<u8>,
}

impl Tun {
    /// Opens the device `name` of this thread's namespace.
    pub fn open(name: &str) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Device { name: name.to_owned(), source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device =
            rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        // SAFETY: the structure is plain numbers, for which zeroes are values.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the descriptor is open, and the structure is what this request takes.
        if unsafe { libc::ioctl(device.as_raw_fd(), SET_INTERFACE as _, &request) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: as above; this request takes a number.
        if unsafe { libc::ioctl(device.as_raw_fd(), SET_OFFLOAD as _, OFFLOAD) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(Self { name: name.to_owned(), device, buffer: vec![0; PACKET_MAX] })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next packet with its header; `None`: there is none now, or the device is down.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let length = rustix::io::read(&self.device, &mut self.buffer).ok()?;
        (length > HEADER).then(|| self.buffer.get(..length).map(<[u8]>::to_vec))?
    }

    /// Hands a packet with its header to the kernel. Says whether it took it.
    pub fn write(&self, packet: &[u8]) -> bool {
        rustix::io::write(&self.device, packet).is_ok()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
