//! A mount from beginning to end.
//!
//! Mounted, then the kernel's INIT is answered on the spot, then threads start. It ends when it is
//! unmounted, from here or from outside: the kernel then tells every event thread that the device
//! is gone.
//!
//! A mount that is dropped is detached, so that no test and no early error leaves one behind.

use crate::abi::incoming::{self, Header};
use crate::abi::opcode::Opcode;
use crate::abi::{Malformed, outgoing};
use crate::attach::{self, AttachError, Attachment, DeviceNumber, Flags};
use crate::buffer::{self, Pool};
use crate::init::{Features, Offer, REQUEST_BYTES_MAX, TooOld};
use crate::kernel::{Forget, Kernel};
use crate::moves::Moves;
use crate::nodes::Nodes;
use crate::notify::Notifier;
use crate::numbers::Numbers;
use crate::requests::{Left, Requests};
use crate::scout::Start;
use crate::session::Session;
use crate::taken::{Beginning, HandOver, Taken};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tieline_client::{CacheListener, FileSystem, Invalidation};
use tieline_keep::Keep;
use tieline_people::People;
use tieline_types::ByteSize;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Room for a request's header and arguments beside its data, as the kernel wants it.
const ARGUMENTS_BYTES_MAX: usize = 4096;
/// How often and how far apart a busy mount is tried before it is detached lazily.
const UNMOUNT_TRIES: u32 = 20;
const UNMOUNT_EVERY: Duration = Duration::from_millis(100);

/// What to mount where.
#[derive(Clone)]
pub struct MountOptions {
    pub mountpoint: PathBuf,
    /// What is mounted, as `mount` shows it: `127.0.0.1:7988:/extenci`.
    pub source: String,
    pub is_read_only: bool,
    /// Others than the mounting user may use it. The kernel checks permissions in any case.
    pub allows_others: bool,
    pub allows_suid: bool,
    pub allows_devices: bool,
    pub allows_exec: bool,
    pub is_noatime: bool,
    /// Event threads, each with a descriptor of its own.
    pub threads: usize,
    /// How far the kernel reads ahead of a sequential reader, where it may be told.
    pub read_ahead: ByteSize,
    /// Treats the kernel as one that speaks no newer protocol than 7.this: to test fallbacks, or to
    /// avoid a kernel's fault.
    pub minor_max: u32,
    /// Programs see inode numbers of 32 bits.
    pub has_short_numbers: bool,
    /// It may be mounted with other ids (`MOUNT_ATTR_IDMAP`). The kernel then says of most requests
    /// [`UID_UNSAID`](crate::UID_UNSAID), and `people` must know whom those are for.
    pub maps_ids: bool,
    /// Starts a process that goes to where directories were moved ([`crate::scout`]); `None`: who
    /// stands in such a directory sees its old path until somebody goes to the new one.
    pub scout: Option<Start>,
    /// Who callers are; `None`: whom they state.
    pub people: Option<Arc<dyn People>>,
}

impl MountOptions {
    pub fn new(mountpoint: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            source: source.into(),
            is_read_only: false,
            allows_others: false,
            allows_suid: false,
            allows_devices: false,
            allows_exec: true,
            is_noatime: false,
            threads: 4,
            read_ahead: ByteSize(READ_AHEAD),
            minor_max: u32::MAX,
            has_short_numbers: false,
            maps_ids: false,
            scout: None,
            people: None,
        }
    }

    fn nodes(&self, nodes: Nodes, features: Features) -> Nodes {
        let numbers = Numbers::new(self.has_short_numbers);
        nodes.showing(numbers).asking_for_directories(!features.expires)
    }

    fn flags(&self) -> Flags {
        Flags {
            source: self.source.clone(),
            is_read_only: self.is_read_only,
            allows_others: self.allows_others,
            allows_suid: self.allows_suid,
            allows_devices: self.allows_devices,
            allows_exec: self.allows_exec,
            is_noatime: self.is_noatime,
        }
    }
}

/// Four requests of the largest size under way. One sequential reader of answers that take 20 ms
/// each had 12 MB/s with the kernel's 128 KiB, 88 with 1 MiB, 304 with this; beyond, readers of
/// pieces would fetch too much for nothing.
const READ_AHEAD: u64 = 4 << 20;

/// Why a mount could not be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("the kernel's opening request could not be read")]
    InitRead { source: Errno },
    #[error("the kernel's opening request is none")]
    InitMalformed(#[from] Malformed),
    #[error(transparent)]
    TooOld(#[from] TooOld),
    #[error("the answer to the kernel's opening request was refused")]
    InitRefused { source: Errno },
    #[error("a thread could not be started")]
    Thread { source: std::io::Error },
    #[error("what an earlier process left of the mount cannot be read")]
    Left,
    #[error("the mount's holder does not take it")]
    HandOver { source: std::io::Error },
}

/// How a mount went away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmounted {
    Clean,
    /// Programs still hold files: it is out of sight, and gone when they let go or this process
    /// ends.
    Detached,
}

/// A mounted file system.
pub struct Mount {
    attachment: Arc<Attachment>,
    device: Option<DeviceNumber>,
    ended: watch::Receiver<bool>,
    /// Another process may go on with it: dropping it leaves it where it is.
    is_held: bool,
}

impl Mount {
    /// Mounts `fs`. Its calls run on `runtime`, and at first on this mount's own threads.
    pub fn start(
        fs: Arc<dyn FileSystem>,
        options: &MountOptions,
        runtime: Handle,
    ) -> Result<Self, Error> {
        Self::start_as(fs, options, runtime, Beginning::Mounted(None))
    }

    /// The same, for a process that is held: what holds it gets the mount, or gave it.
    pub fn start_as(
        fs: Arc<dyn FileSystem>,
        options: &MountOptions,
        runtime: Handle,
        beginning: Beginning,
    ) -> Result<Self, Error> {
        let buffers = Pool::new(REQUEST_BYTES_MAX as usize + ARGUMENTS_BYTES_MAX);
        match beginning {
            Beginning::Mounted(hand_over) => {
                Self::attached(fs, options, runtime, buffers, hand_over)
            }
            Beginning::Taken(Taken { devices, features, keep, left }) => {
                let attachment = Attachment::existing(&options.mountpoint);
                let mut mount = Self::over(attachment);
                mount.is_held = true;
                let nodes = options.nodes(Nodes::taken(fs.root()), features);
                let kernel = Kernel::new(nodes, features, devices);
                let ended = mount.serve((fs, runtime), kernel, buffers, (keep, left), options)?;
                mount.ended = ended;
                Ok(mount)
            }
        }
    }

    fn attached(
        fs: Arc<dyn FileSystem>,
        options: &MountOptions,
        runtime: Handle,
        buffers: Arc<Pool>,
        hand_over: Option<HandOver>,
    ) -> Result<Self, Error> {
        let (device, attachment) = attach::attach(&options.mountpoint, &options.flags())?;
        // From here on an error drops this, which detaches.
        let mut mount = Self::over(attachment);
        let features = start_init(&device, &buffers, options)?;
        let (devices, keep) = start_devices(device, features, options.threads.max(1), hand_over)?;
        let nodes = options.nodes(Nodes::new(fs.root()), features);
        let kernel = Kernel::new(nodes, features, devices);
        let kept = (keep, Vec::new());
        mount.ended = mount.serve((fs, runtime), kernel, buffers, kept, options)?;
        mount.tune(options);
        Ok(mount)
    }

    fn over(attachment: Attachment) -> Self {
        let (_, ended) = watch::channel(false);
        let device = attachment.device_number();
        Self { attachment: Arc::new(attachment), device, ended, is_held: false }
    }

    fn serve(
        &self,
        (fs, runtime): (Arc<dyn FileSystem>, Handle),
        kernel: Kernel,
        buffers: Arc<Pool>,
        (keep, left): (Keep, Vec<Left>),
        options: &MountOptions,
    ) -> Result<watch::Receiver<bool>, Error> {
        let (ended_sender, ended) = watch::channel(false);
        let kernel = Arc::new(kernel);
        let thread = |source| Error::Thread { source };
        let asked = (Arc::clone(&kernel), &fs);
        let mountpoint = self.mountpoint().to_owned();
        let moves = Moves::start(asked, runtime.clone(), mountpoint, options.scout);
        let moves = moves.map_err(thread)?;
        let notifier = Notifier::start(Arc::clone(&kernel), Arc::clone(&moves)).map_err(thread)?;
        fs.listen(Arc::clone(&notifier) as Arc<_>);
        runtime.spawn(buffer::shrink_idle(Arc::downgrade(&buffers)));
        let keep = if kernel.features.resends { Keep::none() } else { keep };
        let memory = (buffers, Requests::new(keep));
        let session =
            Arc::new(Session::new(fs, runtime, (kernel, moves), memory, options.people.clone()));
        if self.is_held {
            go_on(&session, &notifier);
            session.serve_left(left);
        }
        let guarded = Arc::clone(&session);
        let guard = std::thread::Builder::new().name("fuse-guard".to_owned());
        guard.spawn(move || guarded.watch.guard()).map_err(thread)?;
        let end = Arc::new(End { notifier, ended: ended_sender });
        for index in 0..options.threads.max(1) {
            let (session, end) = (Arc::clone(&session), Arc::clone(&end));
            let run = move || {
                session.run(index);
                drop(end);
            };
            let builder = std::thread::Builder::new().name(format!("fuse-{index}"));
            builder.spawn(run).map_err(thread)?;
        }
        Ok(ended)
    }

    /// What only root may change, and nobody needs.
    fn tune(&self, options: &MountOptions) {
        let Some(device) = self.device else { return };
        if let Err(error) = attach::raise_read_ahead(device, options.read_ahead.0) {
            tracing::debug!(%error, "the kernel's read-ahead stays as it is");
        }
    }

    pub fn mountpoint(&self) -> &Path {
        &self.attachment.mountpoint
    }

    /// Until it is unmounted, from here or from outside, and no request is served any more.
    pub async fn wait(&self) {
        let mut ended = self.ended.clone();
        // The sender says so before it goes; if it is gone, so is the mount.
        let _ = ended.wait_for(|is_ended| *is_ended).await;
    }

    /// Unmounts, waiting a little for programs that still use it; then takes it out of their sight.
    pub async fn unmount(&self) -> Result<Unmounted, Error> {
        for _ in 0..UNMOUNT_TRIES {
            match self.detach(false).await {
                Err(AttachError::Unmount { source: Errno::BUSY, .. })
                | Err(AttachError::HelperRefused { .. }) => {}
                Ok(()) => return Ok(Unmounted::Clean),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(UNMOUNT_EVERY).await;
        }
        tracing::warn!(mountpoint = %self.mountpoint().display(), "programs still use the mount");
        self.detach(true).await?;
        Ok(Unmounted::Detached)
    }

    /// Off the runtime's threads: dirty pages are written by way of this very mount.
    async fn detach(&self, is_lazy: bool) -> Result<(), AttachError> {
        if self.is_gone() {
            return Ok(());
        }
        let attachment = Arc::clone(&self.attachment);
        let detaching = tokio::task::spawn_blocking(move || attachment.detach(is_lazy));
        // The runtime is going down; dropping the mount detaches it.
        detaching.await.unwrap_or(Ok(()))
    }

    /// Somebody else unmounted it: what is there now, if anything, is not ours.
    fn is_gone(&self) -> bool {
        *self.ended.borrow() || self.device != self.attachment.device_number()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_held || self.is_gone() {
            return;
        }
        if let Err(error) = self.attachment.detach(true) {
            tracing::error!(%error, "the mount stays behind");
        }
    }
}

/// What the kernel believes from an earlier process's answers rests on leases that are not known
/// here: it is to ask again. What programs have open goes on as it was opened.
fn go_on(session: &Session, notifier: &Notifier) {
    if session.kernel.features.has_epoch {
        session.kernel.forget(&Forget::Names);
    }
    let mut all = Invalidation::default();
    for open in session.fs.open_files() {
        all.attributes.push(open.id);
        all.data.push(open.id);
    }
    notifier.invalidate(all, Box::new(|| ()));
}

/// Held by every event thread: dropped by the last one.
struct End {
    notifier: Arc<Notifier>,
    ended: watch::Sender<bool>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.notifier.close();
        self.ended.send_replace(true);
    }
}

/// The first request is always INIT: the kernel sends nothing else before it is answered.
fn start_init(
    device: &OwnedFd,
    buffers: &Arc<Pool>,
    options: &MountOptions,
) -> Result<Features, Error> {
    let mut buffer = buffers.take();
    let length = loop {
        match rustix::io::read(device, buffer.as_mut()) {
            Ok(length) => break length,
            Err(Errno::INTR) => {}
            Err(source) => return Err(Error::InitRead { source }),
        }
    };
    let bytes = buffer.as_ref().get(..length).ok_or(Malformed)?;
    let (Header { opcode, unique, .. }, arguments, _) = incoming::split(bytes)?;
    if Opcode::from_number(opcode) != Opcode::Init {
        return Err(Malformed.into());
    }
    let offer = Offer::read(arguments)?.limited_to(options.minor_max);
    let (features, out) = offer.accept(options.maps_ids)?;
    let body = out.to_bytes();
    let reply = [&outgoing::header(body.len(), 0, unique)[..], &body].concat();
    rustix::io::write(device, &reply).map_err(|source| Error::InitRefused { source })?;
    tracing::debug!(?features, "the kernel opened the session");
    Ok(features)
}

/// A descriptor per thread, all tied to the same mount. A holder is given what it is to keep.
fn start_devices(
    first: OwnedFd,
    features: Features,
    threads: usize,
    hand_over: Option<HandOver>,
) -> Result<(Vec<OwnedFd>, Keep), Error> {
    let devices = with_clones(first, threads);
    let Some(HandOver { give, keep }) = hand_over else { return Ok((devices, Keep::none())) };
    give(&devices, &features.to_bytes()).map_err(|source| Error::HandOver { source })?;
    Ok((devices, keep))
}

/// Whoever may not open the device has one descriptor for all threads.
fn with_clones(first: OwnedFd, threads: usize) -> Vec<OwnedFd> {
    let clones: Result<Vec<_>, _> = (1..threads).map(|_| clone_device(&first)).collect();
    let mut devices = vec![first];
    match clones {
        Ok(clones) => devices.extend(clones),
        Err(error) => tracing::debug!(%error, "event threads share one descriptor"),
    }
    devices
}

fn clone_device(first: &OwnedFd) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    use rustix::ioctl::{Setter, ioctl, opcode};
    /// `FUSE_DEV_IOC_CLONE`: ties this descriptor to the mount of the one whose number is given.
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    let another = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = first.as_raw_fd() as u32;
    // SAFETY: the call reads one 32-bit number at the pointer it gets, and `Setter` gives it a
    // pointer to exactly that, alive for the call. Both descriptors are open and stay ours.
    unsafe { ioctl(&another, Setter::<CLONE, u32>::new(number)) }?;
    Ok(another)
}
