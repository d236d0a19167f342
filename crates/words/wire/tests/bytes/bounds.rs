//! Every array of a message says how long it may be.

use std::path::Path;
use tieline_types::{Caller, FileId, Time};
use tieline_wire::Op;
use tieline_wire::meta::{Batch, BatchItem};

/// Bytes and texts take no more memory than they took on the wire.
const BOUNDED: [&str; 2] = ["AtMost::<", "minicbor::bytes"];
/// In the signed map, which nobody reads who did not verify it.
const ELSEWHERE: [&str; 1] = ["pub struct FlavorRules("];

/// Fields of messages that are arrays, each with the attributes above it.
fn arrays(source: &str) -> Vec<(String, String)> {
    let mut arrays = vec![];
    let mut attributes = String::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") && line.ends_with(']') {
            attributes += line;
            continue;
        }
        let is_array = line.contains("Vec<") || line.contains(": Path,");
        let is_numbered = attributes.contains("#[n(") || line.contains("#[n(");
        if is_array && is_numbered {
            arrays.push((line.to_owned(), std::mem::take(&mut attributes)));
        }
        if !line.starts_with("///") {
            attributes.clear();
        }
    }
    arrays
}

#[test]
fn every_array_of_a_message_has_a_bound() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for folder in ["src", "../types/src"] {
        for file in here.join(folder).read_dir().unwrap() {
            let path = file.unwrap().path();
            let Some("rs") = path.extension().and_then(|kind| kind.to_str()) else { continue };
            for (line, attributes) in arrays(&std::fs::read_to_string(&path).unwrap()) {
                let is_elsewhere = ELSEWHERE.iter().any(|other| line.starts_with(other));
                let is_bounded = BOUNDED.iter().any(|codec| attributes.contains(codec));
                assert!(
                    is_bounded || is_elsewhere,
                    "{}: `{line}` may have any number of elements: say how many, as in \
                     #[cbor(with = \"AtMost::<4096>\")]",
                    path.display()
                );
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} arrays were found");
}

#[test]
fn a_batch_of_more_items_is_refused_before_it_takes_memory() {
    let item = BatchItem {
        caller: Caller::default(),
        at: Time::default(),
        id: FileId(1),
        op: Op::Unlink.number(),
        message: vec![],
    };
    let one = tieline_wire::encode(&item);
    let body = |count: u32| {
        let head = [&[0x81, 0x9a][..], &count.to_be_bytes()].concat();
        [head, one.repeat(count as usize)].concat()
    };
    let most = body(Batch::ITEMS_MAX as u32);
    assert_eq!(tieline_wire::decode::<Batch>(&most).unwrap().items.len(), Batch::ITEMS_MAX);
    let error = tieline_wire::decode::<Batch>(&body(Batch::ITEMS_MAX as u32 + 1)).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("has 4097 elements where 4096 are the most"), "{source}");
}
