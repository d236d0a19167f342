//! Who is whom after edits, and what edits are refused.

use super::*;
use crate::EditError;
use tieline_types::identity::IDENTITY_MAX;
use tieline_wire::identity::{IdentityEdit, NewIdentity, NewMapping};

fn name(text: &str) -> IdentityName {
    text.parse().unwrap()
}

fn put(kind: IdentityKind, text: &str, number: Option<u32>, groups: &[&str]) -> IdentityEdit {
    let groups = (kind == IdentityKind::User).then(|| groups.iter().map(|g| name(g)).collect());
    IdentityEdit::Put(NewIdentity { kind, name: name(text), number, groups })
}

fn map(principal: &str, to: &str) -> IdentityEdit {
    let to = NewMapping::Named(to.to_owned());
    IdentityEdit::Map { principal: principal.to_owned(), to }
}

fn people() -> IdentityTable {
    use IdentityKind::{Group, User};
    let edits = [
        put(Group, "cms", Some(6001), &[]),
        put(Group, "atlas", None, &[]),
        put(User, "ann", Some(5001), &["cms", "atlas"]),
        put(User, "uf-bob", None, &["cms"]),
        map("ann@PSC.EDU", "ann"),
        map("ann/admin@EXTENCI.ORG", "ann"),
        map("*@UFL.EDU", "uf-*"),
    ];
    IdentityTable::default().edited(&edits).unwrap()
}

#[test]
fn principals_are_found_as_they_stand_by_realm_and_by_name() {
    let table = people();
    let who = |principal| {
        table.resolve(principal, "EXTENCI.ORG").map(|found| (found.caller.uid.0, found.caller))
    };
    let (number, caller) = who("ann@EXTENCI.ORG").unwrap();
    assert_eq!((number, caller.gid, caller.groups), (5001, Gid(6001), vec![Gid(100_000)]));
    assert_eq!(who("ann@PSC.EDU").unwrap().0, 5001);
    assert_eq!(who("ann/admin@EXTENCI.ORG").unwrap().0, 5001);
    assert_eq!(who("bob@UFL.EDU").unwrap().0, 100_000);
    assert_eq!(who("bob@PSC.EDU"), Err(Unknown::NotMapped));
    assert_eq!(who("carl@EXTENCI.ORG"), Err(Unknown::NotMapped));
    // Whatever stands before the realm is one name, and none with a slash is a user's.
    assert!(matches!(who("bob/root@UFL.EDU"), Err(Unknown::NoUser { .. })));
    assert!(matches!(who("ann@UFL.EDU"), Err(Unknown::NoUser { .. })));
    // Unless a narrower pattern says so.
    let edits = [map("*/root@UFL.EDU", "uf-*"), map("job/*@UFL.EDU", "ann")];
    let narrow = table.edited(&edits).unwrap();
    let who = |principal| narrow.resolve(principal, "EXTENCI.ORG").map(|found| found.caller.uid.0);
    assert_eq!(who("bob/root@UFL.EDU"), Ok(100_000));
    assert_eq!(who("job/wn17@UFL.EDU"), Ok(5001));
    assert_eq!(who("job/root@UFL.EDU"), Ok(5001));
    assert_eq!(who("bob@UFL.EDU"), Ok(100_000));
    assert!(matches!(who("bob/admin@UFL.EDU"), Err(Unknown::NoUser { .. })));
    let nobody = IdentityEdit::Map { principal: "bob@UFL.EDU".into(), to: NewMapping::Nobody };
    let table = table.edited(&[nobody]).unwrap();
    let found = table.resolve("bob@UFL.EDU", "EXTENCI.ORG");
    assert_eq!(found, Err(Unknown::Nobody("bob@UFL.EDU".into())));
}

#[test]
fn edits_are_checked_and_done_all_or_none() {
    use IdentityKind::{Group, User};
    let table = people();
    let error = |edit: IdentityEdit| table.edited(&[edit]).unwrap_err();
    for number in [0, NOBODY, IDENTITY_MAX] {
        assert_eq!(error(put(User, "eve", Some(number), &[])), EditError::Number { number });
    }
    assert!(matches!(error(put(User, "eve", Some(5001), &[])), EditError::Taken { .. }));
    assert!(matches!(error(put(User, "ann", Some(7), &[])), EditError::Fixed { .. }));
    assert!(matches!(error(put(User, "eve", None, &["lhcb"])), EditError::NoIdentity { .. }));
    for wrong in ["ann", "@X", "a*@X", "ann@", "a b@X", "*/*@X", "a/b/*@X", "*/@X", "*@*", "a@b@X"]
    {
        assert_eq!(error(map(wrong, "ann")), EditError::Principal(wrong.into()));
    }
    for wrong in ["../*", "x*y*"] {
        assert!(matches!(error(map("*@X", wrong)), EditError::Pattern(_)), "{wrong}");
    }
    assert!(matches!(error(map("eve@X", "eve")), EditError::NoIdentity { .. }));
    assert!(table.edited(&[put(Group, "new", None, &[]), map("eve@X", "eve")]).is_err());
    assert_eq!(table.edited(&[put(Group, "cms", None, &[])]).unwrap(), table, "nothing new");
}

#[test]
fn what_hangs_on_an_identity_goes_with_it() {
    let table = people();
    let gone = IdentityEdit::Remove { kind: IdentityKind::Group, name: name("atlas") };
    let gone = table.edited(&[gone]).unwrap();
    let ann = gone.resolve("ann@PSC.EDU", "EXTENCI.ORG").unwrap();
    assert_eq!((ann.caller.gid, ann.caller.groups), (Gid(6001), vec![]));
    // As groupdel(8) has it: not the group that somebody's new files get.
    let first = IdentityEdit::Remove { kind: IdentityKind::Group, name: name("cms") };
    let refused = table.edited(&[first]).unwrap_err();
    let users = "ann, uf-bob".to_owned();
    assert_eq!(refused, EditError::FirstGroup { name: name("cms"), users });
    let gone = IdentityEdit::Remove { kind: IdentityKind::User, name: name("ann") };
    let gone = table.edited(&[gone]).unwrap();
    assert_eq!(gone.resolve("ann@PSC.EDU", "EXTENCI.ORG"), Err(Unknown::NotMapped));
    assert_eq!(gone.version(), table.version() + 1);
}

#[test]
fn a_principal_is_taken_from_nobody_by_chance() {
    let table = people();
    for (principal, holder) in [("ann@PSC.EDU", "ann"), ("*@UFL.EDU", "uf-*")] {
        let (principal, holder) = (principal.to_owned(), holder.to_owned());
        let refused = table.edited(&[map(&principal, "uf-bob")]).unwrap_err();
        assert_eq!(refused, EditError::Mapped { principal, holder });
    }
    assert_eq!(table.edited(&[map("ann@PSC.EDU", "ann")]).unwrap(), table, "it is hers");
    // On purpose: what it was is forgotten first. That it is nobody is said on purpose, too.
    let nobody = IdentityEdit::Map { principal: "ann@PSC.EDU".into(), to: NewMapping::Nobody };
    let barred = table.edited(&[nobody]).unwrap();
    assert!(barred.edited(&[map("ann@PSC.EDU", "ann")]).is_err(), "somebody barred it");
    let moved = [IdentityEdit::Unmap("ann@PSC.EDU".into()), map("ann@PSC.EDU", "uf-bob")];
    for table in [&table, &barred] {
        let table = table.edited(&moved).unwrap();
        let found = table.resolve("ann@PSC.EDU", "EXTENCI.ORG").unwrap();
        assert_eq!(found.name, name("uf-bob"));
    }
}

#[test]
fn who_is_in_no_group_gets_his_own() {
    use IdentityKind::{Group, User};
    let remove = |kind, text| IdentityEdit::Remove { kind, name: name(text) };
    let own = |table: &IdentityTable, user: &str| {
        let user = table.named(User, &name(user)).unwrap();
        let [group] = user.groups[..] else { panic!("{user:?}") };
        (group, table.identity(Group, group).unwrap().name.to_string())
    };
    let table = people().edited(&[put(User, "eve", Some(5002), &[])]).unwrap();
    assert_eq!(own(&table, "eve"), (5002, "eve".into()));
    // The number is that of a group, and one that was in no other when this was not so yet.
    let table = table.edited(&[put(User, "carl", Some(6001), &[])]).unwrap();
    assert_eq!(own(&table, "carl"), (100_001, "carl".into()));
    let new = NewIdentity { kind: User, name: name("carl"), number: None, groups: None };
    let again = table.edited(&[IdentityEdit::Put(new)]).unwrap();
    assert_eq!(again, table, "it has one");
    // A group of others is not entered by chance.
    let refused = table.edited(&[put(User, "cms", None, &[])]).unwrap_err();
    assert_eq!(refused, EditError::OwnGroup { name: name("cms") });
    // With no group left a user has his own; that group goes with him.
    let table = table.edited(&[put(User, "uf-bob", None, &[])]).unwrap();
    assert_eq!(own(&table, "uf-bob").1, "uf-bob");
    assert!(matches!(table.edited(&[remove(Group, "eve")]), Err(EditError::FirstGroup { .. })));
    let table = table.edited(&[remove(User, "eve"), remove(User, "carl")]).unwrap();
    assert!(table.named(Group, &name("eve")).is_none());
    let shared = table.edited(&[put(User, "dora", None, &["uf-bob"])]).unwrap();
    let shared = shared.edited(&[remove(User, "uf-bob")]).unwrap();
    assert_eq!(own(&shared, "dora").1, "uf-bob", "it is dora's, too");
}

#[test]
fn pages_make_the_table_again() {
    let mut edits = vec![];
    for place in 0..900 {
        edits.push(put(IdentityKind::User, &format!("u{place}"), None, &[]));
    }
    let mut table = people();
    for round in 0..3 {
        for (place, edit) in edits.iter_mut().enumerate() {
            let text = format!("u{round}-{place}");
            *edit = put(IdentityKind::User, &text, None, &[]);
        }
        table = table.edited(&edits).unwrap();
    }
    let mut copy = IdentityTable::default();
    let mut from = 0;
    loop {
        let page = table.page(0, from, true);
        from += (page.identities.len() + page.mappings.len()) as u32;
        copy.adopt(page.version, page.identities, page.mappings);
        if page.is_end {
            break;
        }
    }
    assert_eq!(copy, table);
    assert!(table.page(table.version(), 0, true).identities.is_empty());
    let told = table.page(0, 0, false);
    assert!(told.mappings.is_empty() && told.identities.iter().all(|one| one.roles.is_empty()));
}

#[test]
fn names_that_machines_and_verbs_understand_otherwise_are_refused() {
    let table = people();
    for reserved in ["root", "nobody", "5001"] {
        for kind in [IdentityKind::User, IdentityKind::Group] {
            let refused = table.edited(&[put(kind, reserved, Some(7), &["cms"])]);
            assert!(matches!(refused, Err(EditError::Reserved { .. })), "{reserved}: {refused:?}");
        }
    }
}
