//! Lists from outside, who they let in, and what they hand down.

use super::*;
use crate::FileKind;
use crate::rules::Rights;
use proptest::prelude::*;

fn user(uid: u32, rights: u8) -> Named {
    Named { who: Who::User(Uid(uid)), rights }
}

fn group(gid: u32, rights: u8) -> Named {
    Named { who: Who::Group(Gid(gid)), rights }
}

fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid: Uid(uid),
        gid: Gid(gid),
        groups: groups.iter().map(|&gid| Gid(gid)).collect(),
        ..Caller::default()
    }
}

fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn a_list_of_linux_round_trips() {
    let bytes = raw(&[
        (USER_OBJ, 7, NO_ID),
        (USER, 5, 1001),
        (GROUP_OBJ, 4, NO_ID),
        (GROUP, 6, 2001),
        (MASK, 5, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    let (mode, list) = AccessList::parse(&bytes).unwrap().unwrap();
    let list = list.unwrap();
    assert_eq!(mode, Mode::new(0o750));
    assert_eq!(list, AccessList { group: 4, named: vec![user(1001, 5), group(2001, 6)] });
    assert_eq!(list.to_bytes(mode), bytes);
    assert_eq!(DefaultList::parse(&bytes).unwrap().unwrap().to_bytes(), bytes);
}

#[test]
fn a_list_that_a_mode_can_say_is_a_mode() {
    let bytes = raw(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)]);
    assert_eq!(AccessList::parse(&bytes).unwrap(), Some((Mode::new(0o640), None)));
    // Nothing, or a list without entries, takes the list away.
    assert_eq!(AccessList::parse(&[]), Ok(None));
    assert_eq!(AccessList::parse(&raw(&[])), Ok(None));
}

#[test]
fn what_is_no_list_is_refused() {
    let (owner, group, other) = ((USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 5, NO_ID));
    let refused = |entries: &[(u16, u16, u32)]| AccessList::parse(&raw(entries)).unwrap_err();
    assert_eq!(refused(&[owner, group]), AclError::Shape);
    assert_eq!(refused(&[owner, other, group]), AclError::Shape);
    assert_eq!(refused(&[owner, owner, group, other]), AclError::Shape);
    assert_eq!(refused(&[(USER_OBJ, 8, NO_ID), group, other]), AclError::Shape);
    assert_eq!(refused(&[owner, group, other, (0x40, 0, 0)]), AclError::Shape);
    // Somebody by name needs a mask, and an id.
    assert_eq!(refused(&[owner, (USER, 7, 1), group, other]), AclError::Shape);
    let mask = (MASK, 7, NO_ID);
    assert_eq!(refused(&[owner, (USER, 7, NO_ID), group, mask, other]), AclError::Shape);
    let mut many = vec![owner];
    many.extend((0..ENTRIES_MAX as u32).map(|uid| (USER, 7, uid)));
    many.extend([group, mask, other]);
    assert_eq!(refused(&many), AclError::TooLong);
    assert_eq!(AccessList::parse(&[1, 0, 0, 0]), Err(AclError::Version));
    assert_eq!(AccessList::parse(&[2, 0, 0]), Err(AclError::Shape));
    assert_eq!(AccessList::parse(&[2, 0, 0, 0, 1]), Err(AclError::Shape));
}

#[test]
fn the_most_exact_entry_decides_under_the_mask() {
    let named = vec![user(1001, 6), group(2001, 7), group(2002, 4)];
    let list = AccessList { group: 2, named };
    let mode = Mode::new(0o751);
    let allows = |caller: &Caller, wish| list.allow(mode, Gid(20), caller, wish);
    // The user's entry is cut by the mask (r-x), and no group adds to it.
    assert!(allows(&caller(1001, 2001, &[]), 4));
    assert!(!allows(&caller(1001, 2001, &[]), 1));
    assert!(!allows(&caller(1001, 1, &[]), 2));
    // Any group that has all of the wish will do; one that has not does not stand in its way.
    assert!(allows(&caller(7, 20, &[2001]), 4));
    assert!(allows(&caller(7, 2002, &[2001]), 5));
    assert!(!allows(&caller(7, 2002, &[]), 1));
    // Being in some group, others' rights are not theirs.
    assert!(!allows(&caller(7, 20, &[]), 1));
    assert!(allows(&caller(7, 7, &[]), 1));
    assert!(!allows(&caller(7, 7, &[]), 4));
}

#[test]
fn everybody_may_what_each_class_and_each_entry_gives() {
    let allowed = |mode, acls: Option<&Acls>| {
        let (kind, uid, gid) = (FileKind::Directory, Uid(10), Gid(20));
        Rights { kind, mode: Mode::new(mode), uid, gid, acls }.allow_everybody(1)
    };
    assert!(allowed(0o711, None));
    for mode in [0o701, 0o710, 0o011, 0o700] {
        assert!(!allowed(mode, None), "{mode:o}");
    }
    let listed = |group, rights| {
        let named = vec![user(1001, 7), user(1002, rights)];
        Acls::new(Some(AccessList { group, named }), None)
    };
    assert!(allowed(0o755, listed(5, 5).as_deref()));
    // Neither the owning group nor one whom the list names is kept out.
    for (group, named) in [(4, 7), (7, 0)] {
        assert!(!allowed(0o755, listed(group, named).as_deref()));
    }
}

#[test]
fn an_empty_mask_leaves_others_what_they_have() {
    let list = AccessList { group: 7, named: vec![user(1001, 7)] };
    let allows = |caller: &Caller| list.allow(Mode::new(0o704), Gid(20), caller, 4);
    assert!(!allows(&caller(7, 20, &[])));
    assert!(allows(&caller(1001, 1, &[])));
}

#[test]
fn defaults_are_handed_down_cut_by_the_mode_asked_for() {
    let default =
        DefaultList { owner: 7, group: 5, other: 5, mask: Some(7), named: vec![user(1, 7)] };
    let (mode, list) = default.hand_down(Mode::new(0o4640));
    assert_eq!(mode, Mode::new(0o4640));
    assert_eq!(list, Some(AccessList { group: 5, named: vec![user(1, 7)] }));
    // Without a mask the owning group's entry is cut, and a mode says it all.
    let plain = DefaultList { mask: None, named: vec![], ..default };
    assert_eq!(plain.hand_down(Mode::new(0o666)), (Mode::new(0o644), None));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = AccessList::parse(&bytes);
        let _ = DefaultList::parse(&bytes);
    }

    #[test]
    fn what_is_read_is_told_again(
        tags in proptest::collection::vec((0u16..7, 0u16..8, 0u32..4), 0..12)
    ) {
        let tag = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER, 0x40];
        let mut entries: Vec<(u16, u16, u32)> = Vec::new();
        for (which, rights, id) in tags {
            let tag = tag[usize::from(which)];
            entries.push((tag, rights, if matches!(tag, USER | GROUP) { id } else { NO_ID }));
        }
        entries.sort_by_key(|entry| entry.0);
        let bytes = raw(&entries);
        if let Ok(Some(list)) = DefaultList::parse(&bytes) {
            prop_assert_eq!(list.to_bytes(), bytes);
        }
    }
}

#[test]
fn a_list_of_elsewhere_gets_the_numbers_of_here() {
    let bytes = raw(&[
        (1, 6, u32::MAX),
        (2, 6, 5001),
        (2, 7, 5002),
        (2, 3, 5003),
        (4, 5, u32::MAX),
        (8, 4, 5001),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ]);
    let here = renamed(&bytes, |who| match who {
        Who::User(Uid(5001)) => Who::User(Uid(1)),
        Who::User(_) => Who::User(Uid(9)),
        group => group,
    });
    let (mode, list) = AccessList::parse(&here.unwrap()).unwrap().unwrap();
    assert_eq!(mode.bits(), 0o660);
    // Two became one: what both may do.
    assert_eq!(list.unwrap().named, [user(1, 6), user(9, 3), group(5001, 4)]);
    assert_eq!(group_alone(&bytes), 4, "the mask counts for the owning group as well");
    assert_eq!(group_alone(b"no list"), 0);
    assert_eq!(renamed(&[], |who| who), Ok(vec![]));
}
