//! Catalogs of repositories: a small one, changed where the input says (offsets and bytes), and
//! asked for everything. Rows: numbers and texts as SQLite may give them.

use std::sync::OnceLock;
use tieline_publish::catalog::draft::Said;
use tieline_publish::catalog::{Catalog, Draft, Piece};
use tieline_publish::hash;
use tieline_publish::row::{Raw, Row};
use tieline_types::{Algorithm, Digest, Encoding};

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 2 {
        0 => row(rest),
        _ => changed(rest),
    }
}

/// Thirteen numbers, and the rest as name, target, digest and attributes.
fn row(bytes: &[u8]) {
    let (numbers, texts) = bytes.split_at(bytes.len().min(13 * 8));
    let mut numbers = numbers.chunks(8).map(|chunk| {
        let mut number = [0; 8];
        number[..chunk.len()].copy_from_slice(chunk);
        i64::from_le_bytes(number)
    });
    let mut next = || numbers.next().unwrap_or_default();
    let mut texts = texts.split(|&byte| byte == b'/').map(<[u8]>::to_vec);
    let raw = Raw {
        path: (next(), next()),
        parent: (next(), next()),
        hardlinks: next(),
        size: next(),
        mode: next(),
        mtime: next(),
        mtimens: Some(next()),
        flags: next(),
        uid: next(),
        gid: next(),
        name: texts.next().unwrap_or_default(),
        symlink: texts.next().unwrap_or_default(),
        hash: texts.next(),
        xattr: texts.next(),
    };
    if let Ok(row) = Row::try_from(raw) {
        assert!(row.links > 0 && !row.name.contains(&b'/'));
        let _ = row.raw();
    }
}

/// Offsets (2 bytes) and what is to be there (1 byte).
fn changed(bytes: &[u8]) {
    let mut image = sample().to_vec();
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % image.len();
        image[at] = change[2];
    }
    let Ok(catalog) = Catalog::open(&image) else { return };
    let root = hash::path_hash(b"");
    let _ = catalog.row(root);
    let _ = catalog.counter("self_regular");
    let _ = catalog.rows_between(i64::MIN, i64::MAX);
    let Ok(rows) = catalog.children(root, b"", 10) else { return };
    for row in rows {
        let _ = catalog.first_of_group(&row);
        let Ok(pieces) = catalog.pieces(&row, 0, 10) else { continue };
        let mut end = 0;
        for (at, piece) in pieces.iter().enumerate() {
            assert!(at == 0 || piece.offset == end, "{pieces:?}");
            end = piece.offset + piece.length;
            assert!(end <= row.size);
        }
    }
}

/// A catalog with a file in pieces, one with attributes, a link, and another catalog below.
fn sample() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let digest = Digest::compute(Algorithm::Sha1, Encoding::Zlib, b"x");
        let hashed = (Algorithm::Sha1, Encoding::Zlib);
        let row = |path: &[u8], mode: i64, flags: i64| {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
            let raw = Raw {
                path: hash::path_hash(path),
                parent: if path.is_empty() { (0, 0) } else { hash::path_hash(b"") },
                hardlinks: 1,
                hash: (mode == 0o100_644 && flags == 4).then(|| digest.as_bytes().to_vec()),
                size: 3,
                mode,
                flags,
                name,
                symlink: if flags == 12 { b"run".to_vec() } else { Vec::new() },
                xattr: (flags == 4).then(|| b"\x01\x01\x06\x01user.xy".to_vec()),
                ..Raw::default()
            };
            Row::try_from(raw).expect("a sample is right")
        };
        let pieces = [(0, 2), (2, 1)].map(|(offset, length)| Piece { offset, length, digest });
        let rows = [
            (row(b"", 0o040_755, 1), vec![]),
            (row(b"/run", 0o100_644, 4), vec![]),
            (row(b"/large", 0o100_644, 68), pieces.to_vec()),
            (row(b"/link", 0o120_777, 12), vec![]),
            (row(b"/nested", 0o040_755, 3), vec![]),
        ];
        assert!(rows.iter().all(|(row, _)| row.hashed == hashed));
        let said = Said { revision: 1, modified: 7, previous: "0".repeat(40), ttl: Some(240) };
        let mut draft = Draft::new(b"").expect("memory takes it");
        draft.add(&rows).expect("memory takes it");
        let below = Draft::new(b"/nested").and_then(|below| below.finish(None, &said));
        draft.nest(b"/nested", &below.expect("memory takes it")).expect("memory takes it");
        let written = draft.finish(None, &said).expect("memory takes it");
        let packed = written.packed.expect("it is new");
        tieline_publish::catalog::read::unpacked(&packed, None).expect("it was packed")
    })
}
