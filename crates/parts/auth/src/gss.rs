//! Kerberos through GSSAPI (RFC 2743, 4120, 4121): MIT's library, behind safe types.
//!
//! * [`Keys`]: where an end's secrets are: a keytab, a credential cache, or the process' default.
//! * [`GssInitiator`], [`GssAcceptor`]: the two sides of a handshake, as [`Mechanism`]s.
//! * [`witness`]: what a user sent to a door, opened with the door's key.
//!
//! The peer's name is imported as a Kerberos principal and not as a host-based service, so the
//! library neither canonicalizes it nor asks any reverse DNS. Both ends bind the handshake to a
//! digest of what was said before it (channel bindings), so a ticket cannot be carried into another
//! conversation, and one that is bound to none is refused (but of a witness). What leaves here are
//! a name and 64 bytes of the context's pseudo-random function (RFC 4401, 4402); message functions
//! of GSSAPI are not used.
//!
//! Invariants: mutual authentication or nothing; a ticket that is sealed with another enctype than
//! AES-256, and a key of another, are refused; each handle is released once; these calls may block
//! (network, files), and are never made on a task's thread.

use crate::mechanism::{BINDING, Mechanism, Proof, SECRET, Step, TOKEN_MAX};
use crate::trouble::Trouble;
use library::{Bindings, Handle, KeyValue, KeyValueSet, Library, Oid, OidSet, RawBuffer, library};
use std::ffi::{CString, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::Duration;
use tieline_wire::CredentialKind;

pub mod asked;
mod caches;
mod keytab;
mod library;
mod realm;
mod witness;

use caches::Anew;
pub use caches::{Cache, caches, default_cache};
pub use keytab::{principals, usual_principal};
pub use witness::{Witnessed, service_of, witness};

/// 1.2.840.113554.1.2.2
static KERBEROS: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// 1.2.840.113554.1.2.2.1: GSS_KRB5_NT_PRINCIPAL_NAME
static PRINCIPAL: [u8; 10] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x01];
/// 1.2.840.113554.1.2.2.5.5: GSS_C_INQ_SSPI_SESSION_KEY
static SESSION_KEY: [u8; 11] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x05, 0x05];
/// 1.2.840.113554.1.2.2.4 and one more arc, the enctype's number.
const ENCTYPE_PREFIX: [u8; 10] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x04];
/// aes256-cts-hmac-sha1-96 (RFC 3962) and aes256-cts-hmac-sha384-192 (RFC 8009).
const ENCTYPES: [u8; 2] = [18, 20];

const MUTUAL: u32 = 2;
const REPLAY: u32 = 4;
const SEQUENCE: u32 = 8;
const CONFIDENTIAL: u32 = 16;
const INTEGRITY: u32 = 32;
/// Of a context that was accepted: the dialing end had given these very bindings. Without any of
/// its own, MIT's library (1.19 and later) is content.
const BOUND: u32 = 0x800;
/// What every context must have, beside being mutual.
const FLAGS: u32 = MUTUAL | REPLAY | SEQUENCE | CONFIDENTIAL | INTEGRITY;

const INITIATE: c_int = 1;
const ACCEPT: c_int = 2;
const INDEFINITE: u32 = u32::MAX;
const CONTINUE_NEEDED: u32 = 1;
/// The upper half of a status: what went wrong.
const ERRORS: u32 = 0xffff_0000;
const MECHANISM_CODE: c_int = 2;
const GENERAL_CODE: c_int = 1;
/// The key of a fully made context.
const PRF_FULL: c_int = 0;
/// What the pseudo-random function is asked for.
const PRF_INPUT: &[u8] = b"tieline 1 connection secret";

/// Where an end's secrets are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// A keytab: the keys of a service, or of a machine that dials.
    pub keytab: Option<PathBuf>,
    /// A credential cache, as in KRB5CCNAME. Beside a keytab: where its tickets are kept.
    pub cache: Option<String>,
    /// Who to be, where there are several.
    pub principal: Option<String>,
}

impl Keys {
    /// Names the keytab and whose key it was, where those are what is wrong.
    fn blame(&self, trouble: Trouble) -> Trouble {
        let Some(keytab) = &self.keytab else { return trouble };
        // Without a name the library takes the first.
        let first = || principals(keytab).ok()?.into_iter().next();
        let principal = self.principal.clone().or_else(first).unwrap_or_default();
        trouble.with_keytab(keytab, &principal)
    }
}

/// With which tickets to dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tickets {
    /// Those that a cache has; what it lacks, the KDC gives.
    Kept,
    /// For the server one that the KDC gives now: it may have a newer key of that server.
    Fresh,
}

/// The dialing side.
pub struct GssInitiator {
    keys: Keys,
    target: String,
    tickets: Tickets,
    /// Made in the first step; the second needs no other.
    ready: Option<Ready>,
    context: Context,
    left: Option<Duration>,
}

/// The accepting side.
pub struct GssAcceptor {
    keys: Keys,
    context: Context,
}

impl GssInitiator {
    /// Proves us to `target`, a Kerberos principal.
    pub fn new(keys: Keys, target: String) -> Self {
        Self::with(keys, target, Tickets::Kept)
    }

    pub fn with(keys: Keys, target: String, tickets: Tickets) -> Self {
        Self { keys, target, tickets, ready: None, context: Context::new(), left: None }
    }

    /// How long the ticket that was used holds (`None`: for ever), by its own end. What acceptors
    /// say is later by the minutes that clocks may differ.
    pub fn left(&self) -> Option<Duration> {
        self.left
    }

    /// One step of the context, bound to what is given.
    fn advance(
        &mut self,
        token: Option<&[u8]>,
        bindings: Option<&Bindings>,
    ) -> Result<Step, Trouble> {
        let library = opened()?;
        let about = (self.target.as_str(), self.tickets);
        let Ready { credential, target, .. } = match self.ready.take() {
            Some(ready) => self.ready.insert(ready),
            None => self.ready.insert(Ready::new(library, &self.keys, about)?),
        };
        let oid = oid(&KERBEROS);
        let mut input = RawBuffer::of(token.unwrap_or_default());
        let mut output = Buffer::new(library);
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: all pointers are to values that live through the call; the context is null or
        // what an earlier call of this function made.
        let major = unsafe {
            (library.init_sec_context)(
                &mut minor,
                credential.handle,
                &mut self.context.handle,
                target.handle,
                &oid,
                FLAGS,
                0,
                bindings.map_or(null(), std::ptr::from_ref),
                &mut input,
                null_mut(),
                &mut output.raw,
                &mut flags,
                &mut lifetime,
            )
        };
        check(library, major, minor).map_err(|trouble| {
            let trouble = trouble.about(&self.target);
            if token.is_none() { self.keys.blame(trouble) } else { trouble }
        })?;
        self.left = (lifetime != INDEFINITE).then(|| Duration::from_secs(u64::from(lifetime)));
        let token = output.bytes();
        if major & CONTINUE_NEEDED != 0 {
            return Ok(Step { token: Some(token), proof: None });
        }
        let peer = self.context.prove(library, flags, lifetime, Side::Initiator)?;
        Ok(Step { token: (!token.is_empty()).then_some(token), proof: Some(peer) })
    }
}

/// A server closes where more comes, and says nothing.
fn check_length(token: &[u8]) -> Result<(), Trouble> {
    let (length, limit) = (token.len(), TOKEN_MAX);
    if length <= limit { Ok(()) } else { Err(Trouble::TokenTooLong { length, limit }) }
}

impl GssAcceptor {
    pub fn new(keys: Keys) -> Self {
        Self { keys, context: Context::new() }
    }
}

impl Mechanism for GssInitiator {
    fn kind(&self) -> CredentialKind {
        CredentialKind::Kerberos
    }

    fn may_block(&self) -> bool {
        true
    }

    fn step(&mut self, token: Option<&[u8]>, binding: &[u8; BINDING]) -> Result<Step, Trouble> {
        let bindings = bindings(binding);
        let mut step = self.advance(token, Some(&bindings));
        if let (None, Err(Trouble::Expired)) = (token, &step)
            && self.keys == Keys::default()
            && let Some(other) = caches::in_force()
        {
            // A ticket that ended is as good as none: the collection may have others.
            self.keys.cache = Some(other);
            (self.ready, self.context) = (None, Context::new());
            step = self.advance(None, Some(&bindings));
        }
        let step = step?;
        if let (None, Some(request)) = (token, &step.token) {
            check_length(request)?;
            check_ticket(request)?;
        }
        Ok(step)
    }
}

impl Mechanism for GssAcceptor {
    fn kind(&self) -> CredentialKind {
        CredentialKind::Kerberos
    }

    fn may_block(&self) -> bool {
        true
    }

    fn step(&mut self, token: Option<&[u8]>, binding: &[u8; BINDING]) -> Result<Step, Trouble> {
        let Some(given) = token else { return Ok(Step { token: None, proof: None }) };
        let library = opened()?;
        check_ticket(given)?;
        let credential = Credential::acquire(library, &self.keys, ACCEPT)?;
        let bindings = bindings(binding);
        let mut input = RawBuffer::of(given);
        let mut output = Buffer::new(library);
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: all pointers are to values that live through the call; the context is null or
        // what an earlier call of this function made.
        let major = unsafe {
            (library.accept_sec_context)(
                &mut minor,
                &mut self.context.handle,
                credential.handle,
                &mut input,
                &bindings,
                null_mut(),
                null_mut(),
                &mut output.raw,
                &mut flags,
                &mut lifetime,
                null_mut(),
            )
        };
        // Whom the ticket is for is not to be had of a context that was not made.
        check(library, major, minor)
            .map_err(|trouble| trouble.about(&asked::server(given).unwrap_or_default()))?;
        let token = output.bytes();
        if major & CONTINUE_NEEDED != 0 {
            return Ok(Step { token: Some(token), proof: None });
        }
        let peer = self.context.prove(library, flags, lifetime, Side::Acceptor)?;
        Ok(Step { token: (!token.is_empty()).then_some(token), proof: Some(peer) })
    }
}

/// Who our keys say we are, without asking any KDC where a cache holds tickets.
pub fn own_principal(keys: &Keys) -> Result<String, Trouble> {
    standing(keys).map(|(name, _)| name)
}

/// The same, and for how long there are tickets (`None`: for ever).
pub fn standing(keys: &Keys) -> Result<(String, Option<Duration>), Trouble> {
    let library = opened()?;
    let credential = Credential::acquire(library, keys, INITIATE)?;
    let mut name = Name { library, handle: null_mut() };
    let (mut minor, mut lifetime) = (0, 0);
    // SAFETY: the credential was acquired; name and lifetime live through the call.
    let major = unsafe {
        (library.inquire_cred)(
            &mut minor,
            credential.handle,
            &mut name.handle,
            &mut lifetime,
            null_mut(),
            null_mut(),
        )
    };
    check(library, major, minor)?;
    let left = (lifetime != INDEFINITE).then(|| Duration::from_secs(u64::from(lifetime)));
    Ok((name.text()?, left))
}

/// Copies the tickets of one cache (`DIR:`, `KEYRING:` and `KCM:` too) into another.
pub fn copy_tickets(from: &Keys, to: &str) -> Result<(), Trouble> {
    let library = opened()?;
    let credential = Credential::acquire(library, from, INITIATE)?;
    let (key, value) = (word("ccache")?, word(to)?);
    let element = KeyValue { key: key.as_ptr(), value: value.as_ptr() };
    let store = KeyValueSet { count: 1, elements: &element };
    let (kerberos, mut minor) = (oid(&KERBEROS), 0);
    // SAFETY: all pointers are to values that live through the call.
    let major = unsafe {
        (library.store_cred_into)(
            &mut minor,
            credential.handle,
            INITIATE,
            &kerberos,
            1,
            0,
            &store,
            null_mut(),
            null_mut(),
        )
    };
    check(library, major, minor)
}

/// Can the library answer with these keys, as far as that shows without a KDC: is krb5.conf in
/// order, and has the keytab any key, or one of the principal?
pub fn try_answering(keys: &Keys) -> Result<(), Trouble> {
    if let Some(keytab) = &keys.keytab {
        let wanted = keys.principal.as_deref();
        let is_it = |name: &String| {
            let mut rest = wanted.map(|wanted| name.strip_prefix(wanted)).into_iter();
            rest.all(|rest| rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@')))
        };
        if !principals(keytab)?.iter().any(is_it) {
            return Err(Trouble::KeytabLacks {
                path: keytab.display().to_string(),
                principal: wanted.unwrap_or_default().to_owned(),
            });
        }
    }
    Credential::acquire(opened()?, keys, ACCEPT).map(drop)
}

/// Gets a ticket for a server, and no further.
pub fn try_ticket(keys: &Keys, target: &str) -> Result<(), Trouble> {
    let mut initiator = GssInitiator::new(keys.clone(), target.to_owned());
    initiator.step(None, &[0; BINDING]).map(drop)
}

/// Proves us to ourselves: what is in the keytab must open what the KDC gives.
pub fn try_self(dialing: &Keys, answering: &Keys, own: &str) -> Result<(), Trouble> {
    let mut initiator = GssInitiator::new(dialing.clone(), own.to_owned());
    let first = initiator.step(None, &[0; BINDING])?;
    let mut acceptor = GssAcceptor::new(answering.clone());
    acceptor.step(first.token.as_deref(), &[0; BINDING]).map(drop)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Initiator,
    Acceptor,
}

/// What dialing takes: keys or tickets, and whom to reach. Each is a trip to files.
struct Ready {
    credential: Credential,
    target: Name,
    /// Where the credential has its tickets, if not where it usually has.
    _anew: Option<Anew>,
}

// SAFETY: MIT's credentials and names may be used by any thread, one at a time; nothing here is
// shared.
unsafe impl Send for Ready {}

impl Ready {
    fn new(
        library: &'static Library,
        keys: &Keys,
        (target, tickets): (&str, Tickets),
    ) -> Result<Self, Trouble> {
        let target = realm::complete(library, target);
        let anew = match tickets {
            Tickets::Kept => None,
            Tickets::Fresh => Some(Anew::new(keys, &target)?),
        };
        let keys = anew.as_ref().map_or(keys, |anew| &anew.keys);
        let credential = Credential::acquire(library, keys, INITIATE)?;
        let target = Name::import(library, &target)?;
        Ok(Self { credential, target, _anew: anew })
    }
}

/// A security context under way or made.
struct Context {
    handle: Handle,
}

// SAFETY: MIT's contexts may be used by any thread, one at a time; nothing here is shared.
unsafe impl Send for Context {}

impl Context {
    fn new() -> Self {
        Self { handle: null_mut() }
    }

    /// What a finished context is worth.
    fn prove(
        &self,
        library: &'static Library,
        flags: u32,
        lifetime: u32,
        side: Side,
    ) -> Result<Proof, Trouble> {
        if flags & FLAGS != FLAGS {
            return Err(Trouble::NotMutual);
        }
        if side == Side::Acceptor && flags & BOUND == 0 {
            return Err(Trouble::Unbound);
        }
        self.check_enctype(library)?;
        let (source, target) = self.names(library)?;
        let (peer, own) = match side {
            Side::Initiator => (target, source),
            Side::Acceptor => (source, target),
        };
        let lifetime = (lifetime != INDEFINITE).then(|| Duration::from_secs(u64::from(lifetime)));
        Ok(Proof { peer, own, secret: self.secret(library)?, lifetime })
    }

    /// Who made the context, and with whom.
    fn names(&self, library: &'static Library) -> Result<(String, String), Trouble> {
        let mut source = Name { library, handle: null_mut() };
        let mut target = Name { library, handle: null_mut() };
        let mut minor = 0;
        // SAFETY: the context is made; both names live through the call.
        let major = unsafe {
            (library.inquire_context)(
                &mut minor,
                self.handle,
                &mut source.handle,
                &mut target.handle,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        check(library, major, minor)?;
        Ok((source.text()?, target.text()?))
    }

    fn secret(&self, library: &'static Library) -> Result<[u8; SECRET], Trouble> {
        let mut input = RawBuffer::of(PRF_INPUT);
        let mut output = Buffer::new(library);
        let mut minor = 0;
        // SAFETY: the context is made; the buffers live through the call.
        let major = unsafe {
            (library.pseudo_random)(
                &mut minor,
                self.handle,
                PRF_FULL,
                &mut input,
                SECRET as isize,
                &mut output.raw,
            )
        };
        check(library, major, minor)?;
        output.bytes().try_into().map_err(|_| Trouble::Other {
            text: "the context's pseudo-random function gave too little".to_owned(),
        })
    }

    /// The context's key must be one of AES-256, whatever a krb5.conf permits. It is the acceptor's
    /// own where both ends permit a stronger one than the ticket's.
    fn check_enctype(&self, library: &'static Library) -> Result<(), Trouble> {
        let wanted = oid(&SESSION_KEY);
        let (mut minor, mut set) = (0, null_mut());
        // SAFETY: the context is made; the library fills the set, which is released below.
        let major = unsafe {
            (library.inquire_sec_context_by_oid)(&mut minor, self.handle, &wanted, &mut set)
        };
        check(library, major, minor)?;
        // SAFETY: the call above succeeded, so the set is a valid one: the key, then its enctype.
        let enctype = unsafe {
            let elements = match (*set).count {
                2 => std::slice::from_raw_parts((*set).elements, 2),
                _ => &[],
            };
            let enctype = elements.get(1).map(|element| element.copy()).unwrap_or_default();
            (library.release_buffer_set)(&mut minor, &mut set);
            enctype
        };
        match enctype.strip_prefix(&ENCTYPE_PREFIX) {
            Some([number]) if ENCTYPES.contains(number) => Ok(()),
            Some([number]) => Err(Trouble::WeakKey { enctype: *number }),
            _ => Err(Trouble::WeakKey { enctype: 0 }),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let (false, Ok(library)) = (self.handle.is_null(), library()) {
            let mut minor = 0;
            // SAFETY: the handle is a context, deleted here and nowhere else.
            unsafe { (library.delete_sec_context)(&mut minor, &mut self.handle, null_mut()) };
        }
    }
}

struct Credential {
    library: &'static Library,
    handle: Handle,
}

impl Credential {
    /// Reads keys or tickets; tickets that a keytab can bring are fetched when they are used.
    fn acquire(library: &'static Library, keys: &Keys, usage: c_int) -> Result<Self, Trouble> {
        Self::acquire_with(library, keys, usage, &[])
    }

    /// The same, with more that the library is told of where secrets are.
    fn acquire_with(
        library: &'static Library,
        keys: &Keys,
        usage: c_int,
        more: &[(&str, &str)],
    ) -> Result<Self, Trouble> {
        let name = match &keys.principal {
            Some(principal) => Some(Name::import(library, principal)?),
            None => None,
        };
        let mut words: Vec<(CString, CString)> = Vec::new();
        if let Some(keytab) = &keys.keytab {
            // The library tells a missing keytab from a missing key only in some of its versions.
            std::fs::File::open(keytab).map_err(|error| Trouble::Keytab {
                path: keytab.display().to_string(),
                why: error.to_string(),
            })?;
            let key = if usage == ACCEPT { "keytab" } else { "client_keytab" };
            words.push((word(key)?, word(&format!("FILE:{}", keytab.display()))?));
        }
        if let Some(cache) = keys.cache.as_ref().filter(|_| usage == INITIATE) {
            words.push((word("ccache")?, word(cache)?));
        }
        for (key, value) in more {
            words.push((word(key)?, word(value)?));
        }
        let elements: Vec<KeyValue> = words
            .iter()
            .map(|(key, value)| KeyValue { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let store = KeyValueSet { count: elements.len() as u32, elements: elements.as_ptr() };
        let kerberos = oid(&KERBEROS);
        let mechanisms = OidSet { count: 1, elements: &kerberos };
        let mut credential = Self { library, handle: null_mut() };
        let mut minor = 0;
        // SAFETY: all pointers are to values that live through the call.
        let major = unsafe {
            (library.acquire_cred_from)(
                &mut minor,
                name.as_ref().map_or(null_mut(), |name| name.handle),
                INDEFINITE,
                &mechanisms,
                usage,
                if elements.is_empty() { null() } else { &store },
                &mut credential.handle,
                null_mut(),
                null_mut(),
            )
        };
        check(library, major, minor).map_err(|trouble| match (&keys.keytab, trouble) {
            (Some(keytab), Trouble::NoTicket) if usage == INITIATE => Trouble::KeytabLacks {
                path: keytab.display().to_string(),
                principal: keys.principal.clone().unwrap_or_default(),
            },
            (_, trouble) if usage == INITIATE => keys.blame(trouble),
            (_, trouble) => trouble,
        })?;
        Ok(credential)
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle is null or a credential, released here and nowhere else.
        unsafe { (self.library.release_cred)(&mut minor, &mut self.handle) };
    }
}

struct Name {
    library: &'static Library,
    handle: Handle,
}

impl Name {
    fn import(library: &'static Library, principal: &str) -> Result<Self, Trouble> {
        let kind = oid(&PRINCIPAL);
        let mut text = RawBuffer::of(principal.as_bytes());
        let mut name = Self { library, handle: null_mut() };
        let mut minor = 0;
        // SAFETY: all pointers are to values that live through the call.
        let major =
            unsafe { (library.import_name)(&mut minor, &mut text, &kind, &mut name.handle) };
        check(library, major, minor)?;
        Ok(name)
    }

    fn text(&self) -> Result<String, Trouble> {
        let mut output = Buffer::new(self.library);
        let mut minor = 0;
        // SAFETY: the handle is a name that the library gave.
        let major = unsafe {
            (self.library.display_name)(&mut minor, self.handle, &mut output.raw, null_mut())
        };
        check(self.library, major, minor)?;
        // A name that is no text is nobody's.
        String::from_utf8(output.bytes())
            .map_err(|_| Trouble::Other { text: "the peer's principal is not text".to_owned() })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle is null or a name, released here and nowhere else.
        unsafe { (self.library.release_name)(&mut minor, &mut self.handle) };
    }
}

/// Bytes that the library gives.
struct Buffer {
    library: &'static Library,
    raw: RawBuffer,
}

impl Buffer {
    fn new(library: &'static Library) -> Self {
        Self { library, raw: RawBuffer::empty() }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the buffer is empty or was filled by the library.
        unsafe { self.raw.copy() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or was filled by the library, and is released here only.
        unsafe { (self.library.release_buffer)(&mut minor, &mut self.raw) };
    }
}

/// So must be the keys that the ticket brings: what the context's own follows from is only as
/// strong as they are.
fn check_ticket(token: &[u8]) -> Result<(), Trouble> {
    let text = || "a token came that is no request of Kerberos".to_owned();
    let asked = asked::enctypes(token).ok_or_else(|| Trouble::Other { text: text() })?;
    let is_strong = |enctype| ENCTYPES.contains(&enctype);
    match (asked.ticket, asked.session) {
        (ticket, _) if !is_strong(ticket) => Err(Trouble::WeakTicket { enctype: ticket }),
        (_, session) if !is_strong(session) => Err(Trouble::WeakKey { enctype: session }),
        _ => Ok(()),
    }
}

fn opened() -> Result<&'static Library, Trouble> {
    library().map_err(|why| Trouble::NoLibrary { why })
}

fn oid(elements: &'static [u8]) -> Oid {
    Oid { length: elements.len() as u32, elements: elements.as_ptr().cast::<c_void>() }
}

/// Only application data: addresses of machines change on the way.
fn bindings(binding: &[u8; BINDING]) -> Bindings {
    Bindings {
        initiator_type: 0,
        initiator: RawBuffer::empty(),
        acceptor_type: 0,
        acceptor: RawBuffer::empty(),
        application: RawBuffer::of(binding),
    }
}

fn word(text: &str) -> Result<CString, Trouble> {
    CString::new(text)
        .map_err(|_| Trouble::Other { text: format!("`{}` is no path", text.escape_debug()) })
}

fn check(library: &'static Library, major: u32, minor: u32) -> Result<(), Trouble> {
    if major & ERRORS == 0 {
        return Ok(());
    }
    let (general, code) = (major & ERRORS, minor as i32);
    let text = match status_text(library, minor, MECHANISM_CODE) {
        text if minor == 0 || text.is_empty() => status_text(library, general, GENERAL_CODE),
        text => text,
    };
    Err(Trouble::from_code(general, code, text))
}

fn status_text(library: &'static Library, status: u32, kind: c_int) -> String {
    let oid = oid(&KERBEROS);
    let mut output = Buffer::new(library);
    let (mut minor, mut more) = (0, 0);
    // SAFETY: all pointers are to values that live through the call.
    unsafe {
        (library.display_status)(&mut minor, status, kind, &oid, &mut more, &mut output.raw);
    }
    String::from_utf8_lossy(&output.bytes()).into_owned()
}

#[cfg(test)]
mod tests;
