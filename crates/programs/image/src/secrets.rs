//! Looks for what must not be in an image: keys, tickets, passwords, and what tells one machine
//! from another.
//!
//! Everybody who has an image has all that is in it, and every machine that starts from it. So a
//! build looks at every file of the tree before it packs it, and fails with what it found. What a
//! Debian package has is no secret, though it may be a key (libgnutls tests itself with some): a
//! file that is just as its package's list of MD5 sums has it is let through.
//!
//! Invariants: no link is followed; of each file a bounded part is read, its beginning and all of
//! it in pieces for texts of keys.

use anyhow::{Context, bail};
use memchr::memmem;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

mod packages;

/// How many findings are named.
const NAMED_MAX: usize = 20;
/// Deeper trees are no root of a machine.
const DEPTH_MAX: usize = 64;
const PIECE: usize = 1 << 20;
/// A private key in PEM, from its first words on.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";
const PEM_KEY: &[u8] = b"PRIVATE KEY-----";
/// Between the two may stand `ENCRYPTED`, `OPENSSH`, `RSA` and the like.
const PEM_KIND_MAX: usize = 24;
/// Programs that read keys know the words; a key goes on with its base64.
const PEM_BODY: usize = 48;

/// Files whose very existence is one machine's: their names from the root on.
const OF_ONE_MACHINE: [&str; 6] = [
    "etc/krb5.keytab",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
    "var/lib/dbus/machine-id",
    "etc/tieline/machine.toml",
    "boot/loader/random-seed",
];

/// Looks at a whole tree; fails if anything is found.
pub fn search(tree: &Path) -> anyhow::Result<()> {
    let found = find(tree).with_context(|| format!("cannot look at {}", tree.display()))?;
    if found.is_empty() {
        return Ok(());
    }
    let more = found.len().saturating_sub(NAMED_MAX);
    let mut text = found.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join("\n  ");
    if more > 0 {
        text += &format!("\n  and {more} more");
    }
    bail!("secrets are in {}:\n  {text}", tree.display())
}

/// Each finding: where, and what it is.
fn find(tree: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![(tree.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let mut entries = fs::read_dir(&folder)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if kind.is_dir() {
                found.push(format!("/{}: too deep to be looked at", below(tree, &path).display()));
            } else if kind.is_file() {
                let name = below(tree, &path);
                if let Some(what) = judge(tree, &name, &path)? {
                    found.push(format!("/{}: {what}", name.display()));
                }
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn below(tree: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(tree).unwrap_or(path).to_owned()
}

/// What is secret about a file, by its name from the root on and by its bytes.
fn judge(tree: &Path, name: &Path, path: &Path) -> io::Result<Option<&'static str>> {
    if OF_ONE_MACHINE.iter().any(|known| name == Path::new(known)) {
        return Ok(Some("belongs to one machine"));
    }
    let last = name.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
    if last.ends_with(".keytab") || (last.starts_with("ssh_host_") && last.contains("_key")) {
        return Ok(Some("a key, by its name"));
    }
    if last.starts_with("krb5cc_") {
        return Ok(Some("tickets, by its name"));
    }
    if name == Path::new("etc/machine-id") {
        return Ok((path.metadata()?.len() > 0).then_some("tells one machine from another"));
    }
    if [Path::new("etc/shadow"), Path::new("etc/shadow-")].contains(&name) {
        return Ok(fs::read_to_string(path)?
            .lines()
            .any(has_password)
            .then_some("a password, or none is asked for"));
    }
    match judge_bytes(path)? {
        Some(_) if packages::has(tree, name, path)? => Ok(None),
        judged => Ok(judged),
    }
}

/// A line of shadow(5) by which somebody could log in.
fn has_password(line: &str) -> bool {
    let word = line.split(':').nth(1).unwrap_or_default();
    !word.starts_with(['*', '!'])
}

fn judge_bytes(path: &Path) -> io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let mut piece = Vec::with_capacity(PIECE + 256);
    let mut is_first = true;
    loop {
        let read = file.by_ref().take(PIECE as u64).read_to_end(&mut piece)?;
        if is_first && is_keytab(&piece) {
            return Ok(Some("a keytab, by its bytes"));
        }
        if is_first && is_tickets(&piece) {
            return Ok(Some("tickets, by its bytes"));
        }
        if has_private_key(&piece) {
            return Ok(Some("a private key"));
        }
        if read == 0 {
            return Ok(None);
        }
        is_first = false;
        // A key may lie across two pieces.
        let kept = piece.len().saturating_sub(PEM_BEGIN.len() + PEM_KIND_MAX + 128);
        piece.drain(..kept);
    }
}

/// Version 5.2, then entries of a length that fits and of few components.
fn is_keytab(bytes: &[u8]) -> bool {
    let [5, 2, rest @ ..] = bytes else { return false };
    let Some((length, entry)) = rest.split_first_chunk::<4>() else { return false };
    let length = i32::from_be_bytes(*length).unsigned_abs() as usize;
    let Some(components) = entry.first_chunk::<2>() else { return false };
    (8..=4096).contains(&length)
        && length <= entry.len()
        && (1..=8).contains(&u16::from_be_bytes(*components))
}

/// A credential cache of version 5.4, whose header has a known length.
fn is_tickets(bytes: &[u8]) -> bool {
    matches!(bytes, [5, 4, 0, 0 | 12, ..]) && bytes.len() > 32
}

fn has_private_key(bytes: &[u8]) -> bool {
    memmem::find_iter(bytes, PEM_BEGIN).any(|at| {
        let rest = bytes.get(at + PEM_BEGIN.len()..).unwrap_or_default();
        let most = rest.len().min(PEM_KIND_MAX + PEM_KEY.len());
        let head = rest.get(..most).unwrap_or_default();
        let Some(end) = memmem::find(head, PEM_KEY) else { return false };
        let body = rest.get(end + PEM_KEY.len()..).unwrap_or_default();
        let body: Vec<u8> = body.iter().copied().filter(|byte| *byte != b'\r').collect();
        is_body(&body)
    })
}

/// What a key in PEM goes on with: a new line, and base64 or a header.
fn is_body(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"\n") else { return false };
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=\n".contains(byte);
    rest.starts_with(b"Proc-Type:")
        || rest.len() >= PEM_BODY && rest.iter().take(PEM_BODY).all(is_base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\n\
                       MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49\n";

    fn keytab() -> Vec<u8> {
        let mut entry = vec![0, 1];
        entry.extend([0; 40]);
        [&[5, 2, 0, 0, 0, 42][..], &entry].concat()
    }

    fn tree(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = tree.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        tree
    }

    #[test]
    fn each_kind_of_secret_is_found_where_it_lies() {
        let long = [vec![b'x'; PIECE - 20], KEY.as_bytes().to_vec()].concat();
        for (name, bytes) in [
            ("etc/krb5.keytab", &b""[..]),
            ("root/other", &keytab()),
            ("srv/job.keytab", b""),
            ("tmp/krb5cc_0", b""),
            ("etc/ssh/ssh_host_ed25519_key", b"x"),
            ("etc/machine-id", b"0123456789abcdef0123456789abcdef\n"),
            ("etc/shadow", b"daemon:*:1::::::\nroot:$y$j9T$x$y:1::::::\n"),
            ("etc/shadow-", b"root::1::::::\n"),
            ("usr/share/x.pem", KEY.as_bytes()),
            ("usr/share/across-two-pieces", &long),
            ("usr/share/x.crlf", KEY.replace('\n', "\r\n").as_bytes()),
        ] {
            let tree = tree(&[(name, bytes), ("usr/bin/true", b"ELF")]);
            let said = search(tree.path()).unwrap_err().to_string();
            assert!(said.contains(&format!("/{name}: ")), "{name}: {said}");
            assert!(!said.contains("/usr/bin/true"), "{said}");
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        let words = [&b"error: no -----BEGIN RSA PRIVATE KEY----- in "[..], &[0; 80]].concat();
        let tree = tree(&[
            ("etc/machine-id", b""),
            ("etc/shadow", b"root:*:1::::::\nsystemd-network:!*:1::::::\n"),
            ("usr/bin/openssl", &words),
            ("usr/share/c.pem", b"-----BEGIN CERTIFICATE-----\nMHcCAQEEIIrYSSNQFaA2Hwf1\n"),
            ("usr/share/five", &[5, 2, 0, 0, 0, 1, 9, 9, 9]),
            ("usr/share/empty", b""),
        ]);
        std::os::unix::fs::symlink("/etc/krb5.keytab", tree.path().join("link")).unwrap();
        search(tree.path()).unwrap();
    }

    #[test]
    fn a_key_that_a_package_has_is_none_as_long_as_it_is_that_one() {
        let sums = "1aa5a3ea6b7a2b5e4f1c0f2d3a4b5c6d  lib/x/test.pem\n";
        let name = "usr/lib/x/test.pem";
        let list = "var/lib/dpkg/info/libx:amd64.md5sums";
        let other = tree(&[(name, KEY.as_bytes()), (list, sums.as_bytes())]);
        assert!(search(other.path()).is_err());
        let sum = crate::about::digits::<md5::Md5>(&other.path().join(name)).unwrap();
        let sums = sums.replace("1aa5a3ea6b7a2b5e4f1c0f2d3a4b5c6d", &sum);
        search(tree(&[(name, KEY.as_bytes()), (list, sums.as_bytes())]).path()).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(0_u8.., 0..300)) {
            let tree = tree(&[("file", &bytes)]);
            find(tree.path()).unwrap();
        }
    }
}
