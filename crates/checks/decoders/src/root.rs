//! What strangers send by root://: the head of a request and its payload.

use bytes::Bytes;
use tieline_xrootd::request::{
    Named, PATH_MAX, PATHS_MAX, Path, RANGE_BYTES_MAX, RANGES_MAX, Request,
};
use tieline_xrootd::wire::{HEAD_BYTES, Head};

pub fn feed(bytes: &[u8]) {
    let Some((head, payload)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    let head = Head::read(head);
    let Ok(request) = Request::read(&head, Bytes::copy_from_slice(payload)) else { return };
    assert!(!request.name().is_empty());
    match request {
        Request::ReadMany(elements) => {
            assert!(!elements.is_empty() && elements.len() <= RANGES_MAX);
            assert!(elements.iter().all(|one| one.length <= RANGE_BYTES_MAX));
            elements.iter().for_each(|one| assert!(one.range().start <= one.range().end));
        }
        Request::Read { range, .. } | Request::ReadPages { range, .. } => {
            assert!(range.start <= range.end);
        }
        Request::StatMany(paths) => {
            assert!(paths.len() <= PATHS_MAX);
            paths.iter().for_each(check);
        }
        Request::Stat { of: Named::Path(path), .. }
        | Request::Checksum { of: Named::Path(path), .. }
        | Request::Locate { path }
        | Request::List { path, .. }
        | Request::Open { path, .. }
        | Request::Space(path) => check(&path),
        _ => {}
    }
}

fn check(path: &Path) {
    assert!(path.bytes.starts_with(b"/") && path.bytes.len() <= PATH_MAX);
    assert!(!path.bytes.contains(&0) && !path.bytes.contains(&b'?'));
}
