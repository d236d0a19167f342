//! docs/protocol.md lists what the source lists.

use std::fs;
use std::path::Path;
use tieline_types::ErrorKind;
use tieline_wire::{FrameKind, Op};

#[test]
fn the_document_lists_every_call_kind_and_error() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/protocol.md");
    let text = fs::read_to_string(path).unwrap();
    let has_row = |start: &str, end: &str| {
        text.lines().any(|line| line.starts_with(start) && line.ends_with(end))
    };
    for op in Op::ALL {
        let changes = if op.is_mutation() { "| yes |" } else { "|  |" };
        let row = format!("| {} | {} |", op.number(), op.name());
        assert!(has_row(&row, changes), "{row} … {changes}");
    }
    for kind in FrameKind::ALL {
        let row = format!("| {} | {kind:?} |", kind.number());
        assert!(has_row(&row, "|"), "{row}");
    }
    for kind in ErrorKind::ALL {
        let row = format!("| {} | {kind:?} | {kind} |", kind.number());
        assert!(has_row(&row, "|"), "{row}");
    }
}
