//! What a daemon and its holder give each other through their socket.
//!
//! The holder begins: it gives the memory, and the mount if an earlier daemon made it. The daemon
//! gives a mount that it made. When the holder dies the daemon gives all of it to another one.
//!
//! Invariant: a message comes whole, with its descriptors, or not at all.

use anyhow::{Context, bail};
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tieline_base::registry::Entry;
use tieline_fuse::{Give, HandOver, Taken};
use tieline_keep::{Keep, Record, Stage};
use tieline_machine::process::ProcessId;

/// Descriptors in one message: the kernel takes 253.
const DESCRIPTORS_MAX: usize = 64;
const BYTES_MAX: usize = 256;
/// Options that say how this process is started; those behind them are its own.
const OWN_OPTIONS: [&str; 2] = ["--held", "--hold"];

/// A mount, as it is handed around.
pub struct Gift {
    pub devices: Vec<OwnedFd>,
    /// Agreed with the kernel.
    pub agreed: Vec<u8>,
    /// Of the daemon that serves it; 0 if that is no news.
    pub pid: i32,
}

/// What a daemon has of its holder.
pub struct Held {
    socket: Arc<OwnedFd>,
    pub keep: Keep,
    /// What an earlier daemon put down.
    pub records: Vec<Record>,
    /// What it served.
    pub taken: Option<Taken>,
    mount: Arc<std::sync::Mutex<Option<Gift>>>,
}

impl Held {
    /// Takes what the holder gives to begin with.
    pub fn begin(socket: i32) -> anyhow::Result<Self> {
        let socket = take_descriptor(socket)?;
        let (bytes, mut descriptors) = receive(&socket).context("the holder gives nothing")?;
        if descriptors.is_empty() {
            bail!("the holder gives no memory");
        }
        let (keep, mut records) = Keep::open(descriptors.remove(0))?;
        let (mut taken, mut mount) = (None, None);
        if !descriptors.is_empty() {
            let devices = descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
            mount = Some(Gift { devices, agreed: bytes.clone(), pid: 0 });
            taken = Some(Taken::new(descriptors, &bytes, keep.clone(), &mut records)?);
        }
        let mount = Arc::new(std::sync::Mutex::new(mount));
        Ok(Self { socket: Arc::new(socket), keep, records, taken, mount })
    }

    /// Gives the holder a mount.
    pub fn hand_over(&self) -> HandOver {
        let (socket, mount) = (self.socket.clone(), self.mount.clone());
        let give: Give = Box::new(move |devices, agreed| {
            let borrowed: Vec<_> = devices.iter().map(AsFd::as_fd).collect();
            send(&socket, agreed, &borrowed)?;
            let devices = devices.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
            let gift = Gift { devices, agreed: agreed.to_vec(), pid: 0 };
            *mount.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(gift);
            Ok(())
        });
        HandOver { give, keep: self.keep.clone() }
    }

    /// A thread that sees to it that there is always a holder.
    pub fn guard(&self, entry: Entry) -> anyhow::Result<()> {
        let (mut socket, keep) = (self.socket.clone(), self.keep.clone());
        let mount = self.mount.clone();
        let guard = move || {
            while receive(&socket).is_ok() {}
            while keep.stage() == Stage::Serving {
                let mount = mount.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let Some(gift) = mount.as_ref() else { return };
                tracing::warn!("the mount's holder died: starting another one");
                match start_holder(&keep, gift) {
                    Ok((new, holder)) => {
                        drop(mount);
                        name_holder(&entry, holder);
                        socket = Arc::new(new);
                        while receive(&socket).is_ok() {}
                    }
                    Err(error) => {
                        drop(mount);
                        let error = tieline_base::report::chain(error.as_ref());
                        tracing::error!(%error, "no holder can be started");
                        std::thread::sleep(std::time::Duration::from_secs(5));
                    }
                }
            }
        };
        std::thread::Builder::new().name("holder".to_owned()).spawn(guard)?;
        Ok(())
    }
}

/// Starts a holder for this very process.
fn start_holder(keep: &Keep, gift: &Gift) -> anyhow::Result<(OwnedFd, u32)> {
    let (ours, theirs) = pair()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(own_arguments()).arg("--hold").arg(theirs.as_raw_fd().to_string());
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn()?;
    let holder = child.id();
    drop(theirs);
    // Nobody else buries it.
    std::thread::Builder::new().name("burial".to_owned()).spawn(move || {
        let mut child = child;
        let _ = child.wait();
    })?;
    let pid = i32::try_from(std::process::id())?;
    let memory = keep.file().context("a daemon that is held has memory")?;
    let devices = gift.devices.iter().map(AsFd::as_fd);
    let descriptors: Vec<_> = [memory].into_iter().chain(devices).collect();
    send(&ours, &[&pid.to_le_bytes()[..], &gift.agreed].concat(), &descriptors)?;
    Ok((ours, holder))
}

/// From now on the mount is known by another process.
fn name_holder(entry: &Entry, holder: u32) {
    let Some(process) = ProcessId::of(holder) else { return };
    match (Entry { process, ..entry.clone() }).register() {
        // Whoever finds that the process is gone removes it.
        Ok(registered) => std::mem::forget(registered),
        Err(error) => tracing::warn!("the mount is not registered: {error:#}"),
    }
}

/// The words this process was started with, without those that say how it is held.
pub fn own_arguments() -> Vec<OsString> {
    let mut words = std::env::args_os().skip(1);
    let mut own = Vec::new();
    while let Some(word) = words.next() {
        if OWN_OPTIONS.iter().any(|option| word == *option) {
            drop(words.next());
        } else {
            own.push(word);
        }
    }
    own
}

/// Two ends; the second is for a child.
pub fn pair() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    Ok((ours, theirs))
}

/// The descriptor that whoever started us left open under that number.
pub fn take_descriptor(number: i32) -> anyhow::Result<OwnedFd> {
    if number <= 2 {
        bail!("descriptor {number} is not a holder's");
    }
    // SAFETY: the number is given to the one process that it was opened for, which takes it once;
    // one that is not open is found out by the next call, which fails.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC).context("no holder has started this")?;
    Ok(descriptor)
}

/// The holder's first words.
pub fn give(to: &OwnedFd, keep: &Keep, mount: Option<&Gift>) -> anyhow::Result<()> {
    let memory = keep.file().context("a holder has memory")?;
    let devices = mount.iter().flat_map(|gift| &gift.devices).map(AsFd::as_fd);
    let descriptors: Vec<BorrowedFd<'_>> = [memory].into_iter().chain(devices).collect();
    let agreed = mount.map_or(&[][..], |gift| gift.agreed.as_slice());
    // A daemon that ended at once is found out by who waits for it.
    let _ = send(to, agreed, &descriptors);
    Ok(())
}

/// A mount that the daemon made.
pub fn receive_mount(from: &OwnedFd) -> io::Result<Gift> {
    let (agreed, devices) = receive(from)?;
    match devices.is_empty() {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(Gift { devices, agreed, pid: 0 }),
    }
}

/// Everything, from a daemon whose holder died.
pub fn receive_all(from: &OwnedFd) -> io::Result<(Gift, OwnedFd)> {
    let (bytes, mut devices) = receive(from)?;
    let (pid, agreed) = bytes.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    if devices.len() < 2 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let memory = devices.remove(0);
    let pid = i32::from_le_bytes(*pid);
    Ok((Gift { devices, agreed: agreed.to_vec(), pid }, memory))
}

fn send(to: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A message without bytes would look like the end.
    let parts = [IoSlice::new(&[0]), IoSlice::new(bytes)];
    rustix::net::sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: &OwnedFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0u8; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => {
                let rights = control.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                    _ => None,
                });
                let descriptors = rights.flatten().collect();
                let body = bytes.get(1..message.bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
                return Ok((body.to_vec(), descriptors));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whoever reads our standard output has heard all.
pub fn close_stdout() -> io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_handed_around_with_their_descriptors() {
        let (ours, theirs) = pair().unwrap();
        let keep = Keep::create(4 << 20).unwrap();
        let devices = vec![theirs.try_clone().unwrap(), theirs.try_clone().unwrap()];
        let gift = Gift { devices, agreed: b"agreed".to_vec(), pid: 0 };
        give(&ours, &keep, Some(&gift)).unwrap();
        let (bytes, descriptors) = receive(&theirs).unwrap();
        assert_eq!((bytes.as_slice(), descriptors.len()), (&b"agreed"[..], 3));
        give(&ours, &keep, None).unwrap();
        let (bytes, descriptors) = receive(&theirs).unwrap();
        assert!(bytes.is_empty() && descriptors.len() == 1);
        drop(ours);
        assert!(receive(&theirs).is_err(), "the end");
    }

    #[test]
    fn numbers_that_are_no_descriptors_are_refused() {
        assert!(take_descriptor(1).is_err());
        assert!(own_arguments().iter().all(|word| word != "--held"));
    }
}
