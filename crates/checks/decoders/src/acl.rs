//! Access lists, as anybody may set them through the extended attribute: bytes of a list, asked for
//! some callers.

use tieline_types::acl::{AccessList, DefaultList, Who, group_alone, renamed};
use tieline_types::{Caller, Gid, Mode, Uid};

pub fn feed(bytes: &[u8]) {
    if let Ok(Some((mode, list))) = AccessList::parse(bytes) {
        judge(mode, list.as_ref());
    }
    if let Ok(Some(list)) = DefaultList::parse(bytes) {
        let again = DefaultList::parse(&list.to_bytes());
        assert_eq!(again.ok().flatten(), Some(list.clone()));
        for mode in [0o777, 0o640, 0] {
            let (handed, access) = list.hand_down(Mode::new(mode));
            assert_eq!(handed.bits() & !mode, 0, "more than was asked for");
            judge(handed, access.as_ref());
        }
    }
    assert!(group_alone(bytes) <= 7);
    let one = |who| match who {
        Who::User(_) => Who::User(Uid(7)),
        Who::Group(_) => Who::Group(Gid(7)),
    };
    if let Ok(fewer) = renamed(bytes, one) {
        assert!(fewer.len() <= bytes.len());
    }
}

fn judge(mode: Mode, list: Option<&AccessList>) {
    let Some(list) = list else { return };
    let again = AccessList::parse(&list.to_bytes(mode));
    let (of_mode, of_list) = again.ok().flatten().unwrap_or((Mode::new(0), None));
    assert_eq!((of_mode.bits() & 0o777, of_list.as_ref()), (mode.bits() & 0o777, Some(list)));
    for caller in [1, 7, 1000].map(|id| Caller { uid: Uid(id), gid: Gid(id), ..Caller::default() })
    {
        let may = |wish| list.allow(mode, Gid(7), &caller, wish);
        // Who may do two things may do each of them.
        for wish in 0..8 {
            assert!(!may(wish) || (0..8).all(|part| part & wish != part || may(part)));
        }
        let _ = list.about(mode, Gid(7), &caller);
    }
}
