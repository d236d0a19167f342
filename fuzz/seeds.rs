//! Writes the seed corpora: the golden bytes, as each target wants them.
//!
//! `seeds` writes `corpus/TARGET/NAME` below the working directory. Files that are there stay: a
//! corpus grows.

use std::error::Error;
use std::fs;
use std::path::Path;
use tieline_wire::Op;

/// Records in the order of the `record` target.
const RECORDS: [&str; 13] = [
    "superblock",
    "inode",
    "entry",
    "extent",
    "chunk",
    "freed-chunk",
    "xattr",
    "session",
    "answer",
    "orphan",
    "deleted-file",
    "deletion",
    "lost-name",
];

fn main() -> Result<(), Box<dyn Error>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/words");
    for (name, bytes) in goldens(&crates.join("wire/tests/golden"))? {
        if let Some(call) = name.strip_prefix("request-") {
            write("request", &name, &[&number(call)?, &bytes[..]].concat())?;
        } else if let Some(call) = name.strip_prefix("reply-") {
            write("reply", &name, &[&number(call)?, &bytes[..]].concat())?;
        } else if name.starts_with("frame-") {
            write("frame", &name, &bytes)?;
        } else if name.starts_with("capability-") {
            write("capability", &name, &bytes)?;
        } else {
            write("frame", &name, &framed(&name, &bytes))?;
        }
    }
    for (name, bytes) in goldens(&crates.join("format/tests/golden"))? {
        let kind = RECORDS.iter().position(|record| name.starts_with(&format!("{record}-v")));
        if let Some(kind) = kind {
            write("record", &name, &[&[kind as u8], &bytes[..]].concat())?;
        } else if name.starts_with("object-") {
            write("object", &name, &bytes)?;
        } else if name.starts_with("frame-") {
            write("ledger", &name, &bytes)?;
        } else if name.starts_with("key-") {
            write("record", &name, &bytes)?;
        } else {
            write("map", &name, &bytes)?;
        }
    }
    Ok(())
}

/// Names and bytes of the golden files of a folder.
fn goldens(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Box<dyn Error>> {
    let mut goldens = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().ok_or("no name")?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16);
        goldens.push((name, digits.chunks(2).map(byte).collect::<Result<_, _>>()?));
    }
    Ok(goldens)
}

/// The number of the call in `Rename-exchange`.
fn number(name: &str) -> Result<[u8; 2], Box<dyn Error>> {
    let call = name.split('-').next().unwrap_or(name);
    let op = Op::ALL.iter().find(|op| op.name() == call).ok_or(format!("no call is {call}"))?;
    Ok(op.number().to_le_bytes())
}

/// A message of the handshake or a notice, in its frame.
fn framed(name: &str, body: &[u8]) -> Vec<u8> {
    use tieline_wire::{FrameHeader, FrameKind};
    let kind = match name {
        "hello" => FrameKind::Hello,
        "welcome" => FrameKind::Welcome,
        "refusal" => FrameKind::Refused,
        "failure" => FrameKind::Reply,
        "pong" => FrameKind::Pong,
        "notice-answer" => FrameKind::NoticeAnswer,
        _ => FrameKind::Notice,
    };
    let header = FrameHeader { body_length: body.len() as u32, ..FrameHeader::new(kind) };
    [&header.encode(body)[..], body].concat()
}

fn write(target: &str, name: &str, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(name), bytes)?)
}
