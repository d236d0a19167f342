//! What a door asks about people.
//!
//! A door knows those who come to it as its protocol names them, the file system its own
//! identities. One that is given [`People`] asks them who a caller is, and translates owners on
//! their way in and out. Without, the numbers are the same.

use tieline_types::{Attributes, Caller, ErrorKind, Gid, Uid};

/// Who asked, as this machine says.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The process or thread that wants something; 0: none that can be looked at.
    pub process: u32,
    /// Its ids.
    pub stated: Caller,
}

/// Why it is not known who somebody is.
#[derive(Clone, Debug)]
pub struct Unknown {
    pub kind: ErrorKind,
    pub why: String,
}

/// See the module.
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
