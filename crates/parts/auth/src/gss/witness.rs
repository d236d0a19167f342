//! What a user sent to a door, opened with the key of the door's service: so the door is not
//! believed about who came. It must not have that key itself: a ticket proves its user to who has
//! the service's key because nobody else but the KDC could have made it.
//!
//! The token is the first of GSSAPI's Kerberos mechanism, or an AP-REQ alone, as some protocols
//! send it. It was made for the door by whatever program the user has, so nothing is asked of its
//! flags or bindings; its enctypes are held to the same rule as everybody's. The library's record
//! of what it saw is not used: the door has seen the token before, perhaps on this machine, and
//! others may be shown it as well. Who asks remembers [`Witnessed::mark`].
//!
//! Invariant: a token that was not made for that very service, by who had a ticket for it within
//! the minutes that clocks may differ, shows nobody.

use super::{
    ACCEPT, Buffer, CONTINUE_NEEDED, Context, Credential, INDEFINITE, KERBEROS, Keys, RawBuffer,
    asked, check, check_length, check_ticket, opened,
};
use crate::trouble::Trouble;
use aws_lc_rs::digest::{SHA256, digest};
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Who came to a door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witnessed {
    /// The user's principal.
    pub user: String,
    /// The service that he came to.
    pub service: String,
    /// How long his ticket holds; without an end for `None`.
    pub lifetime: Option<Duration>,
    /// The same for one token, however it is packed, and for no other.
    pub mark: [u8; 32],
    /// What he is to be answered, if he wants to know who is there.
    pub answer: Option<Vec<u8>>,
}

/// Who sent this token to a service whose key is here.
pub fn witness(keys: &Keys, service: &str, token: &[u8]) -> Result<Witnessed, Trouble> {
    let library = opened()?;
    check_length(token)?;
    check_ticket(token)?;
    // Only what is sealed cannot be changed by who hands it on.
    let sealed = asked::authenticator(token).ok_or_else(|| odd("a token has no authenticator"))?;
    let mark = mark_of(sealed);
    let keys = Keys { principal: Some(service.to_owned()), cache: None, ..keys.clone() };
    let credential = Credential::acquire_with(library, &keys, ACCEPT, &[("rcache", "none:")])?;
    let mut context = Context::new();
    let framed = asked::framed(token, &KERBEROS);
    let mut input = RawBuffer::of(&framed);
    let mut output = Buffer::new(library);
    let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
    // SAFETY: all pointers are to values that live through the call; the context is null.
    let major = unsafe {
        (library.accept_sec_context)(
            &mut minor,
            &mut context.handle,
            credential.handle,
            &mut input,
            null(),
            null_mut(),
            null_mut(),
            &mut output.raw,
            &mut flags,
            &mut lifetime,
            null_mut(),
        )
    };
    check(library, major, minor).map_err(|trouble| trouble.about(service))?;
    if major & CONTINUE_NEEDED != 0 {
        return Err(odd("one token does not suffice"));
    }
    let (user, told) = context.names(library)?;
    if told != service {
        return Err(Trouble::WrongServer { peer: told, expected: service.to_owned() });
    }
    let lifetime = (lifetime != INDEFINITE).then(|| Duration::from_secs(u64::from(lifetime)));
    let answer = Some(output.bytes()).filter(|bytes| !bytes.is_empty());
    Ok(Witnessed { user, service: told, lifetime, mark, answer })
}

/// For which service a token is, by what stands on it in clear.
pub fn service_of(token: &[u8]) -> Option<String> {
    asked::server(token)
}

pub(crate) fn mark_of(bytes: &[u8]) -> [u8; 32] {
    let mut mark = [0; 32];
    mark.copy_from_slice(digest(&SHA256, bytes).as_ref());
    mark
}

fn odd(text: &str) -> Trouble {
    Trouble::Other { text: text.to_owned() }
}
