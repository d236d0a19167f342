//! Mounting: by the mount call as root, else through the set-uid `fusermount3`.
//!
//! Knows nothing of requests: it gives a descriptor of /dev/fuse that is tied to the mount, and
//! takes the mount away again.

use crate::init::REQUEST_BYTES_MAX;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What `mount` and `df` show as the type.
const TYPE: &str = "fuse.tieline";
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Why a mount could not be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{path} cannot be used as a mount point", path = path.display())]
    Mountpoint { path: PathBuf, source: std::io::Error },
    #[error("{DEVICE} cannot be opened")]
    Device { source: Errno },
    #[error("mounting on {path} failed", path = path.display())]
    Mount { path: PathBuf, source: Errno },
    #[error("{HELPER} cannot be run")]
    HelperMissing { source: std::io::Error },
    #[error("{HELPER} refused: {said}")]
    HelperRefused { said: String },
    #[error("source or mount point contains a zero byte")]
    ZeroByte,
    #[error("unmounting {path} failed", path = path.display())]
    Unmount { path: PathBuf, source: Errno },
}

/// How the kernel is to treat the mount.
#[derive(Clone, Debug)]
pub struct Flags {
    /// What is mounted, as `mount` shows it: `127.0.0.1:7988:/extenci`.
    pub source: String,
    pub is_read_only: bool,
    /// Others than the mounting user may use it; the kernel checks permissions in any case.
    pub allows_others: bool,
    pub allows_suid: bool,
    pub allows_devices: bool,
    pub allows_exec: bool,
    pub is_noatime: bool,
}

/// A mount, until it is detached.
#[derive(Debug)]
pub struct Attachment {
    /// Absolute, without symbolic links.
    pub mountpoint: PathBuf,
    is_by_helper: bool,
}

/// Major and minor device number: names the mount in /sys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

pub fn attach(mountpoint: &Path, flags: &Flags) -> Result<(OwnedFd, Attachment), AttachError> {
    let path = std::fs::canonicalize(mountpoint)
        .map_err(|source| AttachError::Mountpoint { path: mountpoint.to_owned(), source })?;
    let is_by_helper = !rustix::process::geteuid().is_root();
    let device =
        if is_by_helper { attach_by_helper(&path, flags)? } else { attach_as_root(&path, flags)? };
    Ok((device, Attachment { mountpoint: path, is_by_helper }))
}

fn attach_as_root(path: &Path, flags: &Flags) -> Result<OwnedFd, AttachError> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| AttachError::Device { source })?;
    let data = CString::new(root_options(&device, flags)).map_err(|_| AttachError::ZeroByte)?;
    let mut bits = MountFlags::empty();
    bits.set(MountFlags::NOSUID, !flags.allows_suid);
    bits.set(MountFlags::NODEV, !flags.allows_devices);
    bits.set(MountFlags::NOEXEC, !flags.allows_exec);
    bits.set(MountFlags::RDONLY, flags.is_read_only);
    bits.set(MountFlags::NOATIME, flags.is_noatime);
    rustix::mount::mount(flags.source.as_str(), path, TYPE, bits, data.as_c_str())
        .map_err(|source| AttachError::Mount { path: path.to_owned(), source })?;
    Ok(device)
}

fn root_options(device: &OwnedFd, flags: &Flags) -> String {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
        REQUEST_BYTES_MAX,
    );
    if flags.allows_others {
        options.push_str(",allow_other");
    }
    options
}

/// The helper mounts and sends the descriptor through a socket whose number it finds in its
/// environment.
fn attach_by_helper(path: &Path, flags: &Flags) -> Result<OwnedFd, AttachError> {
    let missing = |error: Errno| AttachError::HelperMissing { source: error.into() };
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(missing)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(missing)?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(flags))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| AttachError::HelperMissing { source })?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output =
        child.wait_with_output().map_err(|source| AttachError::HelperMissing { source })?;
    device.ok_or_else(|| AttachError::HelperRefused {
        said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

fn helper_options(flags: &Flags) -> String {
    // Commas separate options, and backslashes protect them.
    let source = flags.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options =
        format!("fsname={source},subtype=tieline,default_permissions,max_read={REQUEST_BYTES_MAX}");
    let mut add = |is_wanted: bool, option: &str| {
        if is_wanted {
            options.push(',');
            options.push_str(option);
        }
    };
    add(flags.allows_others, "allow_other");
    add(flags.is_read_only, "ro");
    add(flags.is_noatime, "noatime");
    add(!flags.allows_exec, "noexec");
    // The helper gives these to root only; its refusal says so.
    add(flags.allows_suid, "suid");
    add(flags.allows_devices, "dev");
    options
}

/// `None` if the helper went away without sending one.
fn receive_descriptor(from: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(from.as_fd(), &mut parts, &mut control, flags) {
            Ok(_) => {
                return control.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                    _ => None,
                });
            }
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

impl Attachment {
    /// Of a mount that an earlier process made. The mount point itself is not touched.
    pub fn existing(mountpoint: &Path) -> Self {
        let is_by_helper = !rustix::process::geteuid().is_root();
        Self { mountpoint: mountpoint.to_owned(), is_by_helper }
    }

    /// Of whatever is mounted there now. Asks nothing of the file system, so it answers when
    /// servers do not.
    pub fn device_number(&self) -> Option<DeviceNumber> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(CWD, &self.mountpoint, flags, StatxFlags::empty()).ok()?;
        Some(DeviceNumber { major: stat.stx_dev_major, minor: stat.stx_dev_minor })
    }

    /// `is_lazy`: out of sight at once, gone when the last program lets go.
    pub fn detach(&self, is_lazy: bool) -> Result<(), AttachError> {
        if self.is_by_helper {
            return self.detach_by_helper(is_lazy);
        }
        let flags = if is_lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        rustix::mount::unmount(&self.mountpoint, flags | UnmountFlags::NOFOLLOW)
            .map_err(|source| AttachError::Unmount { path: self.mountpoint.clone(), source })
    }

    fn detach_by_helper(&self, is_lazy: bool) -> Result<(), AttachError> {
        let mut command = Command::new(HELPER);
        command.arg("-u");
        if is_lazy {
            command.arg("-z");
        }
        let output = command.arg("--").arg(&self.mountpoint).output();
        let output = output.map_err(|source| AttachError::HelperMissing { source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(AttachError::HelperRefused { said })
    }
}

/// Lets the kernel read further ahead than its 128 KiB. Only root may; without, sequential reads
/// are merely slower.
pub fn raise_read_ahead(device: DeviceNumber, bytes: u64) -> std::io::Result<()> {
    let DeviceNumber { major, minor } = device;
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(setting, (bytes >> 10).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_told_what_the_kernel_would_be() {
        let mut flags = Flags {
            source: "a,b\\c:7988:/extenci".to_owned(),
            is_read_only: true,
            allows_others: false,
            allows_suid: false,
            allows_devices: false,
            allows_exec: true,
            is_noatime: false,
        };
        assert_eq!(
            helper_options(&flags),
            "fsname=a\\,b\\\\c:7988:/extenci,subtype=tieline,default_permissions,\
             max_read=1048576,ro"
        );
        flags.allows_others = true;
        flags.allows_exec = false;
        let told = helper_options(&flags);
        assert!(told.contains(",allow_other,") && told.ends_with(",noexec"), "{told}");
    }
}
