//! Who callers are to the file system, and as whom its owners are shown here.
//!
//! The kernel knows uids and gids of this machine, the file system its own identities. A mount that
//! is given [`People`] asks them who a caller is, and translates owners on their way in and out.
//! Without, the numbers are the same.

use tieline_types::{Attributes, Caller, ErrorKind, Gid, Uid};

/// The virtual attribute of any file that tells a program as whom it is served here: as
/// [`People::described`] puts it, for who can ask no server himself.
pub const WHO: &str = "system.tieline.who";

/// The uid of a request of which the kernel does not say who asks (`FUSE_INVALID_UIDGID`).
pub const UID_UNSAID: u32 = u32::MAX;

/// Who asked, as the kernel and /proc say.
#[derive(Clone, Debug)]
pub struct Asking {
    pub process: u32,
    pub stated: Caller,
}

/// Why it is not known who somebody is.
#[derive(Clone, Debug)]
pub struct Unknown {
    pub kind: ErrorKind,
    pub why: String,
}

impl From<tieline_files::Error> for Unknown {
    fn from(error: tieline_files::Error) -> Self {
        Self { kind: error.kind(), why: error.to_string() }
    }
}

/// What a mount asks about people.
#[async_trait::async_trait]
pub trait People: Send + Sync {
    /// Who it is to the file system.
    async fn caller(&self, asking: Asking) -> Result<Caller, Unknown>;

    /// The same for people, with how it was found.
    async fn described(&self, asking: Asking) -> Result<String, Unknown>;

    /// What belongs to an owner here.
    fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid);

    /// The owner that a uid of this machine means; `None` if it means none.
    fn stored_uid(&self, uid: Uid) -> Option<Uid>;

    fn stored_gid(&self, gid: Gid) -> Option<Gid>;

    /// One of these means none: he may be new.
    async fn learn(&self);

    /// Callers of one uid may have different rights: the kernel, which knows only uids, asks each
    /// time.
    fn are_personal(&self) -> bool;
}

/// What needs people of this machine to be known, tried once more if they are not yet.
pub async fn learned<T, E>(people: &dyn People, known: impl Fn() -> Result<T, E>) -> Result<T, E> {
    match known() {
        Ok(known) => Ok(known),
        Err(_) => {
            people.learn().await;
            known()
        }
    }
}

/// Attributes as they are shown.
pub fn show(people: Option<&dyn People>, attributes: &mut Attributes) {
    if let Some(people) = people {
        (attributes.uid, attributes.gid) = people.shown(attributes.uid, attributes.gid);
    }
}
