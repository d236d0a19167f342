//! libgssapi_krb5, opened when it is first needed: the only foreign code for Kerberos.
//!
//! Opened by name at run time and not linked, so that Tieline builds without Kerberos headers and
//! a machine without Kerberos runs it all the same (decision 0017). The types are those of RFC 2744
//! and of MIT's extensions; nothing here knows what the functions are called for.
//!
//! Invariants: a function pointer is used only as what the library's header declares it to be; the
//! library is never closed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `gss_OID_desc`.
#[repr(C)]
pub struct Oid {
    pub length: u32,
    pub elements: *const c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub struct OidSet {
    pub count: usize,
    pub elements: *const Oid,
}

/// `gss_buffer_desc`.
#[repr(C)]
pub struct RawBuffer {
    pub length: usize,
    pub value: *mut c_void,
}

/// `gss_buffer_set_desc`.
#[repr(C)]
pub struct RawBufferSet {
    pub count: usize,
    pub elements: *mut RawBuffer,
}

/// `struct gss_channel_bindings_struct`.
#[repr(C)]
pub struct Bindings {
    pub initiator_type: u32,
    pub initiator: RawBuffer,
    pub acceptor_type: u32,
    pub acceptor: RawBuffer,
    pub application: RawBuffer,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub struct KeyValue {
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub struct KeyValueSet {
    pub count: u32,
    pub elements: *const KeyValue,
}

/// `krb5_creds`: of one that is looked for only the names are said, and the rest is zero; of one
/// that a cache gives the end is read.
#[repr(C)]
pub struct Ticket {
    pub magic: i32,
    pub client: Handle,
    pub server: Handle,
    /// The key.
    key: [u64; 3],
    authenticated: i32,
    starts: i32,
    ends: i32,
    renewable: i32,
    /// What it may be used for, addresses, two tickets, and data of the KDC.
    rest: [u64; 7],
}

impl Ticket {
    /// For a server, whoever has it.
    pub fn for_server(server: Handle) -> Self {
        Self { server, ..Self::empty() }
    }

    /// To be filled by the library.
    pub fn empty() -> Self {
        let (client, server) = (null_mut(), null_mut());
        let (authenticated, starts, ends, renewable) = (0, 0, 0, 0);
        let (key, rest) = ([0; 3], [0; 7]);
        Self { magic: 0, client, server, key, authenticated, starts, ends, renewable, rest }
    }

    /// In seconds since 1970; the library's number is one without a sign, in a place for one.
    pub fn ends(&self) -> u32 {
        self.ends.cast_unsigned()
    }
}

/// `gss_ctx_id_t`, `gss_cred_id_t`, `gss_name_t`.
pub type Handle = *mut c_void;
type Status = u32;

macro_rules! library {
    ($($(#[$doc:meta])* fn $name:ident = $symbol:literal ($($type:ty),*) -> $result:ty;)*) => {
        /// The functions that are used.
        pub struct Library {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Library {
            fn open() -> Result<Self, String> {
                let library = load()?;
                Ok(Self {
                    $($name: {
                        let symbol = find(library, $symbol)?;
                        // SAFETY: the symbol is the function of that name, whose declaration in
                        // gssapi.h, gssapi_ext.h or krb5.h this type repeats.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> $result,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    fn import_name = c"gss_import_name" (
        *mut Status, *mut RawBuffer, *const Oid, *mut Handle
    ) -> Status;
    fn release_name = c"gss_release_name" (*mut Status, *mut Handle) -> Status;
    fn display_name = c"gss_display_name" (
        *mut Status, Handle, *mut RawBuffer, *mut *const Oid
    ) -> Status;
    fn acquire_cred_from = c"gss_acquire_cred_from" (
        *mut Status, Handle, u32, *const OidSet, c_int, *const KeyValueSet, *mut Handle,
        *mut *mut OidSet, *mut u32
    ) -> Status;
    fn store_cred_into = c"gss_store_cred_into" (
        *mut Status, Handle, c_int, *const Oid, u32, u32, *const KeyValueSet, *mut *mut OidSet,
        *mut c_int
    ) -> Status;
    fn release_cred = c"gss_release_cred" (*mut Status, *mut Handle) -> Status;
    fn inquire_cred = c"gss_inquire_cred" (
        *mut Status, Handle, *mut Handle, *mut u32, *mut c_int, *mut *mut OidSet
    ) -> Status;
    fn init_sec_context = c"gss_init_sec_context" (
        *mut Status, Handle, *mut Handle, Handle, *const Oid, u32, u32, *const Bindings,
        *mut RawBuffer, *mut *const Oid, *mut RawBuffer, *mut u32, *mut u32
    ) -> Status;
    fn accept_sec_context = c"gss_accept_sec_context" (
        *mut Status, *mut Handle, Handle, *mut RawBuffer, *const Bindings, *mut Handle,
        *mut *const Oid, *mut RawBuffer, *mut u32, *mut u32, *mut Handle
    ) -> Status;
    fn delete_sec_context = c"gss_delete_sec_context" (
        *mut Status, *mut Handle, *mut RawBuffer
    ) -> Status;
    fn inquire_context = c"gss_inquire_context" (
        *mut Status, Handle, *mut Handle, *mut Handle, *mut u32, *mut *const Oid, *mut u32,
        *mut c_int, *mut c_int
    ) -> Status;
    fn inquire_sec_context_by_oid = c"gss_inquire_sec_context_by_oid" (
        *mut Status, Handle, *const Oid, *mut *mut RawBufferSet
    ) -> Status;
    fn pseudo_random = c"gss_pseudo_random" (
        *mut Status, Handle, c_int, *mut RawBuffer, isize, *mut RawBuffer
    ) -> Status;
    fn display_status = c"gss_display_status" (
        *mut Status, Status, c_int, *const Oid, *mut u32, *mut RawBuffer
    ) -> Status;
    fn release_buffer = c"gss_release_buffer" (*mut Status, *mut RawBuffer) -> Status;
    fn release_buffer_set = c"gss_release_buffer_set" (
        *mut Status, *mut *mut RawBufferSet
    ) -> Status;
    /// Of libkrb5, which the library stands on; the symbols are found through it.
    fn krb5_init = c"krb5_init_context" (*mut Handle) -> i32;
    fn krb5_free = c"krb5_free_context" (Handle) -> ();
    fn host_realm = c"krb5_get_host_realm" (Handle, *const c_char, *mut *mut *mut c_char) -> i32;
    fn host_realm_free = c"krb5_free_host_realm" (Handle, *mut *mut c_char) -> i32;
    fn cache_default_name = c"krb5_cc_default_name" (Handle) -> *const c_char;
    fn cache_full_name = c"krb5_cc_get_full_name" (Handle, Handle, *mut *mut c_char) -> i32;
    fn cache_principal = c"krb5_cc_get_principal" (Handle, Handle, *mut Handle) -> i32;
    fn cache_close = c"krb5_cc_close" (Handle, Handle) -> i32;
    fn cache_named = c"krb5_cc_resolve" (Handle, *const c_char, *mut Handle) -> i32;
    fn cache_remove = c"krb5_cc_remove_cred" (Handle, Handle, i32, *mut Ticket) -> i32;
    fn cache_begin = c"krb5_cc_start_seq_get" (Handle, Handle, *mut Handle) -> i32;
    fn cache_next = c"krb5_cc_next_cred" (Handle, Handle, *mut Handle, *mut Ticket) -> i32;
    fn cache_end = c"krb5_cc_end_seq_get" (Handle, Handle, *mut Handle) -> i32;
    fn free_ticket = c"krb5_free_cred_contents" (Handle, *mut Ticket) -> ();
    fn cache_destroy = c"krb5_cc_destroy" (Handle, Handle) -> i32;
    fn parse_name = c"krb5_parse_name" (Handle, *const c_char, *mut Handle) -> i32;
    fn caches_begin = c"krb5_cccol_cursor_new" (Handle, *mut Handle) -> i32;
    fn caches_next = c"krb5_cccol_cursor_next" (Handle, Handle, *mut Handle) -> i32;
    fn caches_end = c"krb5_cccol_cursor_free" (Handle, *mut Handle) -> i32;
    fn unparse_name = c"krb5_unparse_name" (Handle, Handle, *mut *mut c_char) -> i32;
    fn free_name = c"krb5_free_unparsed_name" (Handle, *mut c_char) -> ();
    fn free_principal = c"krb5_free_principal" (Handle, Handle) -> ();
    fn free_string = c"krb5_free_string" (Handle, *mut c_char) -> ();
}

/// The library, or why it is not there.
pub fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
}

fn load() -> Result<*mut c_void, String> {
    // SAFETY: the name ends with a zero byte.
    let library = unsafe { libc::dlopen(c"libgssapi_krb5.so.2".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() { Err(said()) } else { Ok(library) }
}

fn find(library: *mut c_void, symbol: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and never closed; the name ends with a zero byte.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if found.is_null() { Err(said()) } else { Ok(found) }
}

fn said() -> String {
    // SAFETY: dlerror gives null or a string that stays until the next call of this thread.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "it cannot be loaded".to_owned(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

impl RawBuffer {
    pub fn empty() -> Self {
        Self { length: 0, value: null_mut() }
    }

    /// Bytes that the library only reads while a call lasts.
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }

    /// A copy of what the library gave.
    ///
    /// # Safety
    /// The buffer must be empty or filled by the library.
    pub unsafe fn copy(&self) -> Vec<u8> {
        if self.value.is_null() || self.length == 0 {
            return Vec::new();
        }
        // SAFETY: the library says that so many bytes are there.
        unsafe { std::slice::from_raw_parts(self.value.cast::<u8>(), self.length).to_vec() }
    }
}
