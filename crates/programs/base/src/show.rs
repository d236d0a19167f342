//! How things look: modes, kinds, and the JSON of what several verbs tell.

use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::sync::LazyLock;
use tieline_types::{Attributes, FileKind, Layout, Name, Shown, StripeCount, Time};

/// `drwxr-xr-x`.
pub fn mode(attributes: &Attributes) -> String {
    let bits = attributes.mode.bits();
    let mut text = String::from(kind_letter(attributes.kind));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let can = |bit: u32| bits >> shift & bit != 0;
        text.push(if can(4) { 'r' } else { '-' });
        text.push(if can(2) { 'w' } else { '-' });
        text.push(match (bits & special != 0, can(1)) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn kind_letter(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "-",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
    }
}

pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// Seconds with their fraction, as `stat` counts.
pub fn seconds(time: Time) -> f64 {
    time.seconds as f64 + f64::from(time.nanos) / 1e9
}

/// What several verbs tell of a file.
pub fn attributes_json(path: &[u8], attributes: &Attributes) -> Value {
    let value = json!({
        "kind": kind(attributes.kind),
        "inode": attributes.id.0,
        "mdt": attributes.id.mdt().0,
        "mode": format!("{:04o}", attributes.mode.bits()),
        "links": attributes.links,
        "uid": attributes.uid.0,
        "gid": attributes.gid.0,
        "size": attributes.size,
        "stored": attributes.stored,
        "atime": seconds(attributes.atime),
        "mtime": seconds(attributes.mtime),
        "ctime": seconds(attributes.ctime),
        "btime": seconds(attributes.btime),
        "version": attributes.version.0,
    });
    with_bytes(value, "path", path)
}

/// A name or path as standard output takes it: the bytes that it is for programs, harmless for a
/// terminal.
pub fn printed(path: &[u8]) -> Cow<'_, [u8]> {
    static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());
    match *IS_TERMINAL {
        true => Cow::from(Shown(path).to_string().into_bytes()),
        false => Cow::from(path),
    }
}

/// The object with a name or path in it: as text, and where that is not all of it as `KEY_hex` too.
pub fn with_bytes(mut value: Value, key: &str, bytes: &[u8]) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), String::from_utf8_lossy(bytes).into());
        if std::str::from_utf8(bytes).is_err() {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{key}_hex"), digits.into());
        }
    }
    value
}

/// The path of what has that name in a directory.
pub fn below(directory: &[u8], name: &Name) -> Vec<u8> {
    [directory, name.as_bytes()].join(&b'/')
}

/// The last name of a path.
pub fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Lustre's number: -1 for all.
pub fn stripe_count(layout: &Layout) -> i32 {
    match layout.stripe_count {
        StripeCount::All => -1,
        StripeCount::Exactly(count) => i32::from(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_text_keep_their_bytes() {
        let plain = with_bytes(json!({}), "path", "é\x1b".as_bytes());
        assert_eq!(plain, json!({ "path": "é\x1b" }));
        let path = below(b"/m", &Name::new(*b"\xff").unwrap());
        let value = with_bytes(json!({}), "path", &path);
        assert_eq!(value, json!({ "path": "/m/\u{fffd}", "path_hex": "2f6d2fff" }));
        assert_eq!(name_of(&path), b"\xff");
    }
}
