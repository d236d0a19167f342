//! What clients of WebDAV write, by its kind (1 byte): what a PROPFIND asks for, as XML; a ticket
//! in its wrapping.

use tieline_webdav::asked::{Asked, PROPERTIES_MAX};
use tieline_webdav::spnego;

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    if kind % 2 == 1 {
        let within = spnego::unwrapped(rest);
        assert!(within.len() <= rest.len());
        assert!(spnego::is_wrapped(rest) || within == rest);
        return;
    }
    if let Ok(Asked::These(properties)) = Asked::parse(rest) {
        assert!(properties.len() <= PROPERTIES_MAX);
    }
}
