//! What a mount denied lately, as it tells the caller (`tieline_fuse::DENIALS`).

use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tieline_types::{FileId, Span, Uid};

/// As long as an attribute can be.
const ROOM: usize = 64 << 10;
/// Lines for people.
const TOLD_MAX: usize = 5;

/// One denial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    pub ago: Duration,
    pub uid: Uid,
    /// The file; of names, the directory.
    pub file: FileId,
    /// Where it is, if that is known.
    pub path: Option<String>,
    pub operation: String,
    pub errno: i32,
    pub reason: String,
}

impl Denial {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, '\t');
        let ago = Duration::from_millis(fields.next()?.parse().ok()?);
        let uid = Uid(fields.next()?.parse().ok()?);
        let file = FileId(fields.next()?.parse().ok()?);
        let operation = fields.next()?.to_owned();
        let errno = fields.next()?.parse().ok()?;
        let reason = fields.next()?.to_owned();
        Some(Self { ago, uid, file, path: None, operation, errno, reason })
    }

    /// The id that is in the server's log and on record, if a server was asked.
    fn id(&self) -> Option<&str> {
        let (_, rest) = self.reason.rsplit_once("(denial ")?;
        rest.split(')').next()
    }

    /// The reason without the id.
    fn clause(&self) -> &str {
        self.reason.rsplit_once("(denial ").map_or(&self.reason, |(clause, _)| clause)
    }

    pub fn json(&self) -> Value {
        json!({
            "seconds_ago": self.ago.as_secs_f64(), "uid": self.uid.0, "op": self.operation,
            "path": self.path, "errno": self.errno, "why": self.reason, "id": self.id(),
        })
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = Span(Duration::from_secs(self.ago.as_secs()));
        let path = self.path.as_ref().map_or_else(String::new, |path| format!(" {path}"));
        write!(f, "denied {ago} ago: {}{path}: {}", self.operation, self.reason)
    }
}

/// The newest denials for people: what was denied again and again for one reason is one line.
pub fn told(denials: &[Denial]) -> Vec<String> {
    let mut lines: Vec<(&Denial, usize)> = vec![];
    for denial in denials.iter().rev() {
        let same = |other: &Denial| {
            let key = |one: &Denial| (one.uid, one.file, one.operation.clone(), one.errno);
            key(other) == key(denial) && other.clause() == denial.clause()
        };
        match lines.iter_mut().find(|(other, _)| same(other)) {
            Some((_, count)) => *count += 1,
            None => lines.push((denial, 1)),
        }
    }
    let told = lines.into_iter().take(TOLD_MAX).map(|(denial, count)| match count {
        1 => denial.to_string(),
        count => format!("{denial} ({count} times)"),
    });
    told.collect()
}

/// What a mount says; nothing, if it is an older one.
pub fn read(mountpoint: &Path) -> Vec<Denial> {
    let mut room = vec![0; ROOM];
    let Ok(length) = rustix::fs::getxattr(mountpoint, tieline_fuse::DENIALS, &mut room[..]) else {
        return vec![];
    };
    let told = String::from_utf8_lossy(&room[..length.min(ROOM)]).into_owned();
    told.lines().filter_map(Denial::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_mounts_write_them() {
        let line = "1500\t1501\t7\tcreate\t13\tmode of 0x7: ann by a rule (denial 0a1b2c3d)";
        let denial = Denial::parse(line).unwrap();
        assert_eq!((denial.uid, denial.file, denial.errno), (Uid(1501), FileId(7), 13));
        assert_eq!(denial.id(), Some("0a1b2c3d"));
        assert!(denial.to_string().starts_with("denied 1 s ago: create: mode of 0x7"));
        assert_eq!(Denial::parse("1\t2\t3"), None);
    }

    #[test]
    fn what_was_denied_again_is_one_line() {
        let lines = [
            "9000\t5\t7\topen\t13\tno (denial 00000001)",
            "8000\t5\t8\topen\t13\tno",
            "7000\t5\t7\topen\t13\tno (denial 00000002)",
        ];
        let denials: Vec<Denial> = lines.iter().filter_map(|line| Denial::parse(line)).collect();
        let wanted =
            ["denied 7 s ago: open: no (denial 00000002) (2 times)", "denied 8 s ago: open: no"];
        assert_eq!(told(&denials), wanted);
    }
}
