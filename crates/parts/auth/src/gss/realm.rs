//! The realm of a server that no federation map has named yet: what `[domain_realm]` of krb5.conf
//! says of its host, as for every Kerberized service. Nothing is looked up in DNS for it, unless
//! krb5.conf asks for that.

use super::library::Library;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

/// A principal with the realm of its host. It stays as it is, which means the machine's default
/// realm, where nothing is said of the host.
pub fn complete(library: &Library, principal: &str) -> String {
    let host = principal.split_once('/').map(|(_, host)| host);
    let host = host.filter(|_| !principal.contains('@')).and_then(|host| CString::new(host).ok());
    let realm = host.and_then(|host| of_host(library, &host)).filter(|realm| !realm.is_empty());
    realm.map_or_else(|| principal.to_owned(), |realm| format!("{principal}@{realm}"))
}

fn of_host(library: &Library, host: &CStr) -> Option<String> {
    let (mut context, mut realms) = (null_mut(), null_mut::<*mut c_char>());
    // SAFETY: all pointers are to values that live through the calls. The list is null or what the
    // library made, ends with a null pointer, and is released before the context, which is
    // released here and used nowhere else.
    unsafe {
        if (library.krb5_init)(&mut context) != 0 {
            return None;
        }
        let mut found = None;
        if (library.host_realm)(context, host.as_ptr(), &mut realms) == 0 && !realms.is_null() {
            let first = *realms;
            if !first.is_null() {
                found = Some(CStr::from_ptr(first).to_string_lossy().into_owned());
            }
            (library.host_realm_free)(context, realms);
        }
        (library.krb5_free)(context);
        found
    }
}
