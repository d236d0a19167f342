//! Credential caches by their names: which is the default, and which the collection has.
//!
//! The library chooses among the caches of a collection by the server's realm, as long as it is
//! given none of them. So nothing here is for choosing: it is for telling people where tickets were
//! looked for, and for taking all of them along.

use super::library::{Handle, Library, library};
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

/// A cache of the collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    /// As in KRB5CCNAME.
    pub name: String,
    pub principal: String,
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
            Some(Cache { name: full, principal: owner? })
        }
    }
}

impl Drop for Krb5 {
    fn drop(&mut self) {
        // SAFETY: the context was made by the library, and is released here and nowhere else.
        unsafe { (self.library.krb5_free)(self.context) };
    }
}
