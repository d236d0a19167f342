//! What targets begin with that no golden file is for.

use tieline_cache::Known;
use tieline_types::acl::{AccessList, DefaultList, Named, Who};
use tieline_types::{
    Attributes, FileId, FileKind, Gid, Grant, GrantedId, Layout, MdtIndex, Mode, Time, Uid, Version,
};
use tieline_wire::meta::{DirectoryEntry, GetAttributes};
use tieline_wire::trees::{
    BundleList, BundleSigns, FilesPage, Packed, SizedFile, TreeDirectory, TreeEntry, TreePage,
};
use tieline_wire::{Envelope, FrameHeader, FrameKind, Request};

/// Inputs of a target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "acl" => lists(),
        "cache" => found(),
        "der" => vec![token()],
        "left" => left(),
        "packed" => pages(),
        "sealed" => heads(),
        "trespass" => crate::trespass::samples(),
        "stream" => vec![stream()],
        _ => vec![],
    }
}

fn named() -> Vec<Named> {
    let one = |who, rights| Named { who, rights };
    vec![one(Who::User(Uid(7)), 7), one(Who::User(Uid(1000)), 4), one(Who::Group(Gid(7)), 5)]
}

fn lists() -> Vec<Vec<u8>> {
    let access = AccessList { group: 5, named: named() };
    let (owner, group, other, mask) = (7, 5, 4, Some(7));
    let default = DefaultList { owner, group, other, mask, named: named() };
    vec![access.to_bytes(Mode::new(0o750)), default.to_bytes()]
}

fn found() -> Vec<Vec<u8>> {
    let marker = "version = 1\nkind = \"node\"\n";
    let pin = "/extenci/a\n0000-00000001-1\n0000-00000001-2\n";
    let id = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 2 };
    let known = Known::new(id.into(), 100, None);
    let mut entry = vec![2];
    entry.extend(tieline_cache::found::sample(&known, &[7; 100]));
    vec![[&[0][..], marker.as_bytes()].concat(), [&[1][..], pin.as_bytes()].concat(), entry]
}

/// Of DER: a tag, its length in two bytes, its parts.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    let length = (value.len() as u16).to_be_bytes();
    [&[tag, 0x82][..], &length, &value].concat()
}

/// The first token of an initiator, in clear as far as it is.
fn token() -> Vec<u8> {
    let words = der(0x30, &[&der(0x1b, &[b"tieline_mds"]), &der(0x1b, &[b"mds.example"])]);
    let kind = der(0xa0, &[&[2, 1, 1]]);
    let name = der(0x30, &[&kind, &der(0xa1, &[&words])]);
    let realm = der(0xa1, &[&der(0x1b, &[b"EXTENCI.ORG"])]);
    let octets = der(0xa2, &[&der(4, &[b"sealed"])]);
    let sealed = der(0x30, &[&der(0xa0, &[&[2, 1, 18]]), &octets]);
    let fields = der(0x30, &[&kind, &realm, &der(0xa2, &[&name]), &der(0xa3, &[&sealed])]);
    let ticket = der(0xa3, &[&der(0x61, &[&fields])]);
    let request = der(0x6e, &[&der(0x30, &[&kind, &ticket, &der(0xa4, &[&sealed])])]);
    der(0x60, &[&[6, 2, 9, 9], &[1, 0], &request])
}

fn left() -> Vec<Vec<u8>> {
    let body = Request::from(GetAttributes { id: FileId(7) }).encode(&Envelope::default());
    let call = [&7_u64.to_le_bytes()[..], &3_u16.to_le_bytes(), &0_u32.to_le_bytes(), &body];
    let numbers = |kind: u8| [&[kind, 1, 0x84, 1, 2, 3, 4][..]].concat();
    let mut left: Vec<Vec<u8>> = (1..13).map(numbers).collect();
    left.push([&[3, 1][..], &call.concat()].concat());
    left.push([&[8, 1, 6, 0, 0x85, 0, 1, 2, 3, 0x80][..], b"bytes"].concat());
    // The first words of the memory, and of what lies in it.
    left.push(vec![16, 0, 8, 0, 0, 9, 0, 32, 0, 1, 64, 32, 0, 255]);
    left
}

fn pages() -> Vec<Vec<u8>> {
    let attributes = attributes();
    let entry = DirectoryEntry {
        name: "a".parse().expect("a name"),
        id: attributes.id,
        kind: attributes.kind,
        attributes: Some(attributes.clone()),
        target: None,
    };
    let entries = vec![TreeEntry { entry, file: None, xattrs: None }];
    let signs = vec![BundleSigns { number: 1, signs: vec![FileId(7)] }];
    let (is_end, bundles) = (true, Some(signs));
    let directories = vec![TreeDirectory { attributes, entries, is_end, bundles }];
    let tree = TreePage { layouts: vec![Layout::default()], directories, is_cut: false };
    let files = FilesPage { layouts: vec![Layout::default()], files: vec![], count: 3 };
    let sized = SizedFile { id: FileId(7), size: 9 };
    let list = BundleList { directories: vec![FileId(7)], files: vec![sized] };
    let packed =
        |kind: u8, page: Packed| [&[kind][..], &page.length.to_le_bytes(), &page.bytes].concat();
    let plain = |kind: u8, page: Vec<u8>| [&[kind][..], &page].concat();
    vec![
        packed(0, Packed::new(&tree)),
        packed(1, Packed::new(&files)),
        plain(2, tieline_wire::encode(&tree)),
        plain(3, tieline_wire::encode(&files)),
        packed(4, Packed::new(&list)),
        plain(5, tieline_wire::encode(&list)),
    ]
}

fn attributes() -> Attributes {
    let time = Time { seconds: 5, nanos: 6 };
    Attributes {
        id: FileId(7),
        kind: FileKind::Directory,
        mode: Mode::new(0o755),
        links: 2,
        uid: Uid(7),
        gid: Gid(7),
        size: 0,
        stored: 0,
        device: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(3),
        has_xattrs: None,
        acls: None,
        project: None,
        is_written: None,
        content: None,
        tape: None,
    }
}

fn framed(kind: FrameKind, op: u16, body: &[u8], bulk: &[u8]) -> Vec<u8> {
    let (body_length, bulk_length) = (body.len() as u32, bulk.len() as u32);
    let header = FrameHeader { op, body_length, bulk_length, ..FrameHeader::new(kind) };
    [&header.encode(body)[..], body, bulk].concat()
}

fn heads() -> Vec<Vec<u8>> {
    let body = Request::from(GetAttributes { id: FileId(7) }).encode(&Envelope::default());
    let head = framed(FrameKind::Request, 3, &body, &[]);
    (0..4).map(|flavor| [&[flavor, 0, 0, 0][..], &head].concat()).collect()
}

fn stream() -> Vec<u8> {
    let ping = framed(FrameKind::Ping, 0, &[], &[]);
    [framed(FrameKind::Token, 0, &[], &token()), ping].concat()
}
