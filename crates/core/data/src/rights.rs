//! Who may do what at an OSS.
//!
//! Servers of the federation do what keeps it whole: copies, checks, deletions. Everybody else
//! shows a capability with whatever touches bytes. Over connections that prove nothing there are no
//! capabilities, and no rights to tell apart.
//!
//! Invariant: whatever is refused is counted here, with its reason. Who asked gives the refusal to
//! the log.

use tieline_auth::capability::{Admitted, Checker, Refused, Wish};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, FileId, GrantedId, MdtIndex, ObjectName};
use tieline_wire::capability::Holder;
use tieline_wire::{Failure, Request};

/// What whoever asks may do.
#[derive(Clone, Copy)]
pub enum Rights<'a> {
    /// A server of this federation.
    All,
    /// A client where nothing is proven: it may all that its site lets unknown people.
    Unproven,
    /// What capabilities say.
    Shown {
        checker: &'a Checker,
        holder: Holder,
        /// A client's realm; the site's rules for clients are not for servers.
        realm: Option<&'a str>,
        /// An administrator of machines: may look at adopted trees.
        is_root: bool,
    },
}

impl Rights<'_> {
    /// May the request be made at all? What it asks to read is looked at when its object is known.
    pub(crate) fn check(&self, request: &Request) -> Result<Shown, Failure> {
        let Self::Shown { is_root, .. } = self else { return Ok(Shown::All) };
        match request {
            Request::PutChunk(put) => {
                let wish = Wish::Put { chunk: put.chunk, file: put.owner.file };
                self.admit(request, put.capability.as_deref(), Some(wish))
            }
            Request::SyncFile(sync) => {
                let wish = Wish::Sync { file: sync.file };
                self.admit(request, sync.capability.as_deref(), Some(wish))
            }
            Request::ReadObject(read) => {
                self.admit_object(request, read.capability.as_deref(), &read.object)
            }
            // No bytes leave with it: an administrator looks after all copies.
            Request::VerifyObject(verify) if verify.capability.is_none() && *is_root => {
                Ok(Shown::All)
            }
            Request::VerifyObject(verify) => {
                self.admit_object(request, verify.capability.as_deref(), &verify.object)
            }
            Request::ChecksumAdopted(sums) => {
                self.admit_object(request, sums.capability.as_deref(), &sums.object)
            }
            Request::OstStatus(_) | Request::Fill(_) | Request::GrantRoom(_) => Ok(Shown::All),
            Request::ListAdopted(_) if *is_root => Ok(Shown::All),
            other => {
                let what = format!("{} is for servers of the federation", other.op().name());
                Err(self.refuse(request, &Refused::Missing, Some(what)))
            }
        }
    }

    fn admit_object(
        &self,
        request: &Request,
        shown: Option<&[u8]>,
        object: &ObjectName,
    ) -> Result<Shown, Failure> {
        let wish = match object {
            // Whose it is, the object says when it is read.
            ObjectName::Chunk(_) => None,
            // Importing and checking adopted files comes before any file of ours refers to them.
            ObjectName::External { .. } if shown.is_none() && self.is_root() => {
                return Ok(Shown::All);
            }
            object => Some(Wish::Read { object, file: None }),
        };
        self.admit(request, shown, wish)
    }

    fn is_root(&self) -> bool {
        matches!(self, Self::Shown { is_root: true, .. })
    }

    fn admit(
        &self,
        request: &Request,
        shown: Option<&[u8]>,
        wish: Option<Wish<'_>>,
    ) -> Result<Shown, Failure> {
        let Self::Shown { checker, holder, .. } = self else { return Ok(Shown::All) };
        let admitted = checker.admit(shown, *holder).and_then(|admitted| {
            wish.map_or(Ok(()), |wish| admitted.allows(wish))?;
            Ok(admitted)
        });
        admitted.map(Shown::Some).map_err(|refused| self.refuse(request, &refused, None))
    }

    /// May a chunk be read that says to be `file`'s?
    pub(crate) fn check_read(
        &self,
        shown: &Shown,
        request: &'static str,
        (chunk, file): (GrantedId, FileId),
    ) -> Result<(), Failure> {
        let Shown::Some(admitted) = shown else { return Ok(()) };
        let object = ObjectName::Chunk(chunk);
        let allowed = admitted.allows(Wish::Read { object: &object, file: Some(file) });
        allowed.map_err(|refused| self.refuse_named(request, &refused, None))
    }

    fn refuse(&self, request: &Request, refused: &Refused, what: Option<String>) -> Failure {
        self.refuse_named(request.op().name(), refused, what)
    }

    fn refuse_named(&self, op: &str, refused: &Refused, what: Option<String>) -> Failure {
        let reason = refused.reason();
        METRICS.capability_refusals.with_label_values(&[reason]).inc();
        let why = what.unwrap_or_else(|| refused.to_string());
        Failure::new(ErrorKind::PermissionDenied, format!("{op}: {why}"))
    }
}

/// What a request showed.
pub(crate) enum Shown {
    /// It needs to show nothing.
    All,
    Some(Admitted),
}

impl Shown {
    /// The MDT whose word it is.
    pub fn mdt(&self) -> Option<MdtIndex> {
        match self {
            Self::All => None,
            Self::Some(admitted) => Some(admitted.mdt()),
        }
    }
}
