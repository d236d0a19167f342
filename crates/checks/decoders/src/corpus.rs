//! What is kept of each target: the golden bytes of `words`, in the shape that it wants, and what
//! libFuzzer found: `corpus/TARGET.hex`, an input on each line.

use crate::samples;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tieline_wire::{FrameHeader, FrameKind, Op, Request};

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

/// All that is kept for a target.
pub fn kept(target: &str) -> Result<Vec<Vec<u8>>> {
    let mut kept = goldens(target)?.into_iter().collect::<BTreeSet<_>>();
    kept.extend(samples::of(target));
    let path = path(target);
    for line in fs::read_to_string(&path).unwrap_or_default().lines() {
        kept.insert(bytes_of(line).with_context(|| path.display().to_string())?);
    }
    Ok(kept.into_iter().collect())
}

/// Where inputs of a target are kept.
pub fn path(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).with_extension("hex")
}

/// So many inputs are kept of each target, of all lengths.
const KEPT_MAX: usize = 400;

/// Keeps these inputs for a target, in place of what was kept.
pub fn keep(target: &str, inputs: &BTreeSet<Vec<u8>>) -> Result<()> {
    let hex = |input: &Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = inputs.iter().map(hex).collect::<Vec<_>>();
    lines.sort_by_key(|line| (line.len(), line.clone()));
    let count = lines.len().min(KEPT_MAX);
    let lines: Vec<_> = (0..count).map(|at| &*lines[at * lines.len() / count]).collect();
    Ok(fs::write(path(target), lines.join("\n") + "\n")?)
}

/// The golden bytes that are for a target.
pub fn goldens(target: &str) -> Result<Vec<Vec<u8>>> {
    let words = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../words");
    let mut goldens = Vec::new();
    for (name, bytes) in files(&words.join("wire/tests/golden"))? {
        if target == "inner" {
            goldens.extend(alone(&name, &bytes)?);
        }
        let (wanted, bytes) = of_wire(&name, bytes)?;
        if target == "stream" && wanted == "frame" {
            goldens.push(bytes.clone());
        }
        goldens.extend((wanted == target).then_some(bytes));
    }
    for (name, bytes) in files(&words.join("format/tests/golden"))? {
        let (wanted, bytes) = of_format(&name, bytes);
        goldens.extend((wanted == target).then_some(bytes));
    }
    Ok(goldens)
}

/// Which target a golden file of the wire is for, and what that is fed.
fn of_wire(name: &str, bytes: Vec<u8>) -> Result<(&'static str, Vec<u8>)> {
    Ok(if let Some(call) = name.strip_prefix("request-") {
        ("request", [&number(call)?, &bytes[..]].concat())
    } else if let Some(call) = name.strip_prefix("reply-") {
        ("reply", [&number(call)?, &bytes[..]].concat())
    } else if name.starts_with("frame-") {
        ("frame", bytes)
    } else if name.starts_with("capability-") {
        ("capability", bytes)
    } else {
        ("frame", framed(name, &bytes))
    })
}

/// A request's message alone, behind its number.
fn alone(name: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(call) = name.strip_prefix("request-") else { return Ok(None) };
    let number = number(call)?;
    let decoded = Request::decode(u16::from_le_bytes(number), body);
    Ok(decoded.ok().map(|(_, request)| [&number[..], &request.encode_message()].concat()))
}

fn of_format(name: &str, bytes: Vec<u8>) -> (&'static str, Vec<u8>) {
    let kind = RECORDS.iter().position(|record| name.starts_with(&format!("{record}-v")));
    match kind {
        Some(kind) => ("record", [&[kind as u8], &bytes[..]].concat()),
        None if name.starts_with("object-") => ("object", bytes),
        None if name.starts_with("frame-") => ("ledger", bytes),
        None if name.starts_with("key-") => ("record", bytes),
        None => ("map", bytes),
    }
}

/// Names and bytes of the golden files of a folder.
fn files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().context("a golden file has a name")?;
        let digits: String = fs::read_to_string(&path)?.split_whitespace().collect();
        let bytes = bytes_of(&digits).with_context(|| path.display().to_string())?;
        files.push((name.to_string_lossy().into_owned(), bytes));
    }
    Ok(files)
}

fn bytes_of(digits: &str) -> Result<Vec<u8>> {
    let pair = |pair: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    digits.as_bytes().chunks(2).map(pair).collect()
}

/// The number of the call in `Rename-exchange`.
fn number(name: &str) -> Result<[u8; 2]> {
    let call = name.split('-').next().unwrap_or(name);
    let op = Op::ALL.iter().find(|op| op.name() == call);
    Ok(op.with_context(|| format!("no call is {call}"))?.number().to_le_bytes())
}

/// A message of the handshake or a notice, in its frame.
fn framed(name: &str, body: &[u8]) -> Vec<u8> {
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
