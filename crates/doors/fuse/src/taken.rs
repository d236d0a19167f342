//! A mount whose process died, and is followed by this one.
//!
//! The descriptors were kept by a holder, so that the kernel's connection never ended. The kernel
//! is told to give again what was read and not answered: such requests come with a mark in their
//! number, and perhaps were carried out already, which is for the client to know
//! (`Resume::cause`).
//!
//! A kernel before 7.40 does not do that. There the process itself keeps each request in the
//! holder's memory until it is answered ([`crate::requests`]).

use crate::abi::bits::notify;
use crate::abi::outgoing;
use crate::init::Features;
use crate::mount::Error;
use crate::requests::{self, Left};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use tieline_keep::{Keep, Record};

/// How a mount begins.
pub enum Beginning {
    /// It is made now. A holder, if there is one, is given it before anything is served.
    Mounted(Option<HandOver>),
    /// It was made by a process that died.
    Taken(Taken),
}

/// The way to a holder.
pub struct HandOver {
    pub give: Give,
    /// Its memory.
    pub keep: Keep,
}

/// Takes descriptors, and what was agreed with the kernel.
pub type Give = Box<dyn FnOnce(&[OwnedFd], &[u8]) -> io::Result<()> + Send>;

/// What an earlier process left of a mount.
pub struct Taken {
    pub(crate) devices: Vec<OwnedFd>,
    pub(crate) features: Features,
    pub(crate) keep: Keep,
    pub(crate) left: Vec<Left>,
}

impl Taken {
    /// Takes over what was handed over, and has the kernel give again what was not answered, or
    /// finds it among the records. A program that waits for such an answer can be killed from then
    /// on.
    pub fn new(
        devices: Vec<OwnedFd>,
        agreed: &[u8],
        keep: Keep,
        records: &mut Vec<Record>,
    ) -> Result<Self, Error> {
        let features = Features::from_bytes(agreed).map_err(|_| Error::Left)?;
        let device = devices.first().ok_or(Error::Left)?;
        if features.resends {
            let resend = outgoing::header(0, notify::RESEND, 0);
            match rustix::io::write(device, &resend) {
                // Unmounted meanwhile: nobody waits.
                Ok(_) | Err(Errno::NODEV | Errno::NOTCONN | Errno::PERM | Errno::CONNABORTED) => {}
                Err(error) => tracing::error!(%error, "the kernel does not give requests again"),
            }
        }
        Ok(Self { devices, features, keep, left: requests::take_left(records) })
    }
}
