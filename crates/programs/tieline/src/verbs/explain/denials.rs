//! What a mount denied lately, as it tells the caller (`tieline_fuse::DENIALS`).

use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tieline_types::{FileId, Span, Uid};

/// As long as an attribute can be.
const ROOM: usize = 64 << 10;

/// One denial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    pub ago: Duration,
    pub uid: Uid,
    /// The file; of names, the directory.
    pub file: FileId,
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
        Some(Self { ago, uid, file, operation, errno, reason: fields.next()?.to_owned() })
    }

    /// The id that is in the server's log and on record, if a server was asked.
    fn id(&self) -> Option<&str> {
        let (_, rest) = self.reason.rsplit_once("(denial ")?;
        rest.split(')').next()
    }

    pub fn json(&self) -> Value {
        json!({
            "seconds_ago": self.ago.as_secs_f64(), "uid": self.uid.0, "op": self.operation,
            "errno": self.errno, "why": self.reason, "id": self.id(),
        })
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = Span(Duration::from_secs(self.ago.as_secs()));
        write!(f, "denied {ago} ago: {}: {}", self.operation, self.reason)
    }
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
}
