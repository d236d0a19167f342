//! What an HSM script printed when it had put a file.

use tieline_hsm::said;
use tieline_types::TapeCopy;

pub fn feed(bytes: &[u8]) {
    let Ok(uris) = said::uris(bytes) else { return };
    assert!((1..=TapeCopy::URIS_MAX).contains(&uris.len()));
    for uri in &uris {
        assert!(uri.len() <= TapeCopy::URI_MAX);
        // It says the same again.
        assert_eq!(said::uris(uri.as_bytes()).ok().as_deref(), Some(std::slice::from_ref(uri)));
    }
}
