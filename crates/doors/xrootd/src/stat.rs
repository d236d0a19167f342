//! Attributes as the protocol's text has them:
//! `id size flags mtime ctime atime mode owner group`.

use tieline_types::rules::{READ, Rights, SEARCH, WRITE};
use tieline_types::{Attributes, Caller, FileKind};

/// May be executed, or searched.
const EXECUTABLE: u8 = 1;
const DIRECTORY: u8 = 2;
/// Neither a file nor a directory.
const OTHER: u8 = 4;
/// It must be brought before it can be read.
const OFFLINE: u8 = 8;
const READABLE: u8 = 16;
const WRITABLE: u8 = 32;

/// What a client may know of a file without asking for more. The rights are those of whoever asks,
/// by the same rules that servers decide by.
pub fn flags(of: &Attributes, caller: &Caller) -> u8 {
    let rights = Rights::of(of);
    let allowed = |wish, flag| if rights.allow(caller, wish) { flag } else { 0 };
    let kind = match of.kind {
        FileKind::Directory => DIRECTORY,
        FileKind::Regular => 0,
        _ => OTHER,
    };
    let offline = if is_offline(of) { OFFLINE } else { 0 };
    kind | offline
        | allowed(SEARCH, EXECUTABLE)
        | allowed(READ, READABLE)
        | allowed(WRITE, WRITABLE)
}

pub fn is_readable(of: &Attributes, caller: &Caller) -> bool {
    Rights::of(of).allow(caller, READ)
}

/// Must its bytes be brought from tape before they can be read?
fn is_offline(of: &Attributes) -> bool {
    of.is_nearline()
}

/// `owners`: of owner and group, for people.
pub fn line(of: &Attributes, caller: &Caller, (owner, group): (&str, &str)) -> String {
    let Attributes { id, size, mtime, ctime, atime, mode, .. } = of;
    format!(
        "{} {size} {} {} {} {} {:04o} {owner} {group}",
        id.0,
        flags(of, caller),
        mtime.seconds,
        ctime.seconds,
        atime.seconds,
        mode.bits() & 0o7777,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{FileId, Gid, Mode, OnTape, Time, Uid};

    #[test]
    fn flags_are_for_who_asks() {
        let mut of =
            Attributes::new(FileId(7), FileKind::Regular, Mode::new(0o640), Time::default());
        (of.uid, of.gid) = (Uid(5), Gid(6));
        let caller = |uid, gid| Caller { uid: Uid(uid), gid: Gid(gid), ..Caller::default() };
        assert_eq!(flags(&of, &caller(5, 1)), READABLE | WRITABLE);
        assert_eq!(flags(&of, &caller(1, 6)), READABLE);
        assert_eq!(flags(&of, &caller(1, 1)), 0);
        let secondary = Caller { groups: vec![Gid(6)], ..caller(1, 1) };
        assert_eq!(flags(&of, &secondary), READABLE);
        of.tape = Some(OnTape::Released);
        assert_eq!(flags(&of, &secondary), READABLE | OFFLINE);
        of.tape = Some(OnTape::Archived);
        assert_eq!(flags(&of, &secondary), READABLE);
        of.kind = FileKind::Directory;
        of.mode = Mode::new(0o755);
        assert_eq!(flags(&of, &caller(1, 1)), DIRECTORY | EXECUTABLE | READABLE);
        let line = line(&of, &caller(1, 1), ("ann", "cms"));
        assert!(line.starts_with("7 0 19 ") && line.ends_with(" 0755 ann cms"), "{line}");
    }
}
