//! Credential caches by their names: which is the default, and which the collection has.
//!
//! The library chooses among the caches of a collection by the server's realm, as long as it is
//! given none of them, and looks at no ticket's end. So little here is for choosing ([`in_force`]):
//! it is for telling people where tickets were looked for, for taking all of them along, and for
//! doing without one that a server refused ([`Anew`]).
//!
//! Invariant: nothing is removed from a cache that others have.

use super::library::{Handle, Library, Ticket, library};
use super::{Keys, copy_tickets};
use crate::trouble::Trouble;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Caches of this kind are nobody's but the process' own.
const OWN: &str = "MEMORY:";

/// A cache of the collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    /// As in KRB5CCNAME.
    pub name: String,
    pub principal: String,
    /// When the last of its tickets ends or ended, in seconds since 1970.
    pub ends: Option<u32>,
}

impl Cache {
    /// Have all its tickets ended?
    pub fn is_over(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.ends.is_some_and(|ends| u64::from(ends) <= now)
    }
}

/// The first choice of the collection that has tickets still.
pub(super) fn in_force() -> Option<String> {
    caches().into_iter().find(|cache| !cache.is_over()).map(|cache| cache.name)
}

/// What KRB5CCNAME, krb5.conf or the library's default name.
pub fn default_cache() -> Option<String> {
    let krb5 = Krb5::new()?;
    // SAFETY: the context is a valid one; the name is its own, or null, and copied before it goes.
    unsafe {
        let name = (krb5.library.cache_default_name)(krb5.context);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// All caches of the default's collection that belong to somebody, the first choice first.
pub fn caches() -> Vec<Cache> {
    let Some(krb5) = Krb5::new() else { return vec![] };
    let (library, context) = (krb5.library, krb5.context);
    let (mut found, mut cursor) = (vec![], null_mut());
    // SAFETY: the context is a valid one; the cursor and each cache are made by the library, and
    // released once.
    unsafe {
        if (library.caches_begin)(context, &mut cursor) != 0 {
            return vec![];
        }
        loop {
            let mut cache = null_mut();
            if (library.caches_next)(context, cursor, &mut cache) != 0 || cache.is_null() {
                break;
            }
            found.extend(krb5.describe(cache));
            (library.cache_close)(context, cache);
        }
        (library.caches_end)(context, &mut cursor);
    }
    found
}

/// Keys whose cache has no ticket for one server, so that the KDC gives another: it may have a
/// newer key of that server than the ticket that was kept.
pub(super) struct Anew {
    pub keys: Keys,
    /// A copy of a user's cache, which goes with this.
    copy: Option<String>,
}

impl Anew {
    pub fn new(keys: &Keys, target: &str) -> Result<Self, Trouble> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let is_own = |cache: &String| cache.starts_with(OWN);
        if let Some(own) = keys.cache.as_ref().filter(|cache| is_own(cache)) {
            forget(own, target);
            return Ok(Self { keys: keys.clone(), copy: None });
        }
        let copy = format!("{OWN}tieline-anew-{}", COPIES.fetch_add(1, Ordering::Relaxed));
        let from = Keys { cache: keys.cache.clone().or_else(|| chosen(target)), ..keys.clone() };
        copy_tickets(&from, &copy)?;
        forget(&copy, target);
        let keys = Keys { cache: Some(copy.clone()), ..keys.clone() };
        Ok(Self { keys, copy: Some(copy) })
    }
}

impl Drop for Anew {
    fn drop(&mut self) {
        let Some(krb5) = Krb5::new() else { return };
        let Some(cache) = self.copy.as_deref().and_then(|copy| krb5.named(copy)) else { return };
        // SAFETY: the cache is one of this context, and is not used after this call.
        unsafe { (krb5.library.cache_destroy)(krb5.context, cache) };
    }
}

/// The cache of the collection that is of a server's realm.
fn chosen(target: &str) -> Option<String> {
    let (_, realm) = target.rsplit_once('@')?;
    let is_its = |cache: &Cache| cache.principal.rsplit_once('@').is_some_and(|of| of.1 == realm);
    let found = caches().into_iter().find(|cache| is_its(cache) && !cache.is_over());
    found.map(|cache| cache.name).or_else(in_force)
}

/// Takes the tickets for a server out of a cache. Where that cannot be done they stay.
fn forget(cache: &str, target: &str) {
    let Some(krb5) = Krb5::new() else { return };
    let (library, context) = (krb5.library, krb5.context);
    let (Some(cache), Ok(target)) = (krb5.named(cache), CString::new(target)) else { return };
    let mut server = null_mut();
    // SAFETY: cache and name are made by the library for this context, and released once; the
    // ticket lives through the call, which only compares it with those that are kept.
    unsafe {
        if (library.parse_name)(context, target.as_ptr(), &mut server) == 0 {
            (library.cache_remove)(context, cache, 0, &mut Ticket::for_server(server));
            (library.free_principal)(context, server);
        }
        (library.cache_close)(context, cache);
    }
}

struct Krb5 {
    library: &'static Library,
    context: Handle,
}

impl Krb5 {
    fn new() -> Option<Self> {
        let library = library().ok()?;
        let mut context = null_mut();
        // SAFETY: the library fills the context, which is released in `drop` only.
        let is_made = unsafe { (library.krb5_init)(&mut context) } == 0;
        is_made.then_some(Self { library, context })
    }

    /// Whoever takes it releases it.
    fn named(&self, name: &str) -> Option<Handle> {
        let name = CString::new(name).ok()?;
        let mut cache = null_mut();
        // SAFETY: the name is copied; the library fills the handle where it succeeds.
        let failed = unsafe { (self.library.cache_named)(self.context, name.as_ptr(), &mut cache) };
        (failed == 0 && !cache.is_null()).then_some(cache)
    }

    /// # Safety
    /// The cache must be one of this context.
    unsafe fn describe(&self, cache: Handle) -> Option<Cache> {
        let (library, context) = (self.library, self.context);
        let (mut name, mut principal, mut text) = (null_mut::<c_char>(), null_mut(), null_mut());
        // SAFETY: what a call that succeeds gives is valid, copied, and released once.
        unsafe {
            if (library.cache_full_name)(context, cache, &mut name) != 0 {
                return None;
            }
            let full = CStr::from_ptr(name).to_string_lossy().into_owned();
            (library.free_string)(context, name);
            if (library.cache_principal)(context, cache, &mut principal) != 0 {
                return None;
            }
            let is_told = (library.unparse_name)(context, principal, &mut text) == 0;
            let owner = is_told.then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
            if is_told {
                (library.free_name)(context, text);
            }
            (library.free_principal)(context, principal);
            Some(Cache { name: full, principal: owner?, ends: self.last_end(cache) })
        }
    }

    /// # Safety
    /// The cache must be one of this context.
    unsafe fn last_end(&self, cache: Handle) -> Option<u32> {
        let (library, context) = (self.library, self.context);
        let (mut last, mut cursor) = (0, null_mut());
        // SAFETY: the cursor is made by the library and released once; so is what each ticket
        // refers to.
        unsafe {
            if (library.cache_begin)(context, cache, &mut cursor) != 0 {
                return None;
            }
            loop {
                let mut ticket = Ticket::empty();
                if (library.cache_next)(context, cache, &mut cursor, &mut ticket) != 0 {
                    break;
                }
                last = last.max(ticket.ends());
                (library.free_ticket)(context, &mut ticket);
            }
            (library.cache_end)(context, cache, &mut cursor);
        }
        (last > 0).then_some(last)
    }
}

impl Drop for Krb5 {
    fn drop(&mut self) {
        // SAFETY: the context was made by the library, and is released here and nowhere else.
        unsafe { (self.library.krb5_free)(self.context) };
    }
}
