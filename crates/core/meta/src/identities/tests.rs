//! The table in a store, and after a restart.

use crate::fixture::House;
use tieline_types::{IdentityKind, IdentityName, Role};
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

#[tokio::test]
async fn the_store_keeps_the_table() {
    let house = House::new().await;
    let mdt = house.mdt.clone();
    assert!(mdt.identities().await.unwrap().is_empty());
    let edits = [
        put(IdentityKind::Group, "cms", None, &[]),
        put(IdentityKind::User, "ann", Some(5001), &["cms"]),
        map("ann@PSC.EDU", "ann"),
    ];
    let table = mdt.edit_identities(&edits).await.unwrap();
    assert_eq!(mdt.identities().await.unwrap(), table);
    let role = IdentityEdit::Role { user: name("ann"), role: Role::FsAdmin, is_given: true };
    let remove = IdentityEdit::Unmap("ann@PSC.EDU".into());
    let table = mdt.edit_identities(&[role, remove]).await.unwrap();
    assert_eq!((table.version(), mdt.identities().await.unwrap()), (2, table));
    // Numbers of those who are gone are not given again, also after a restart: files carry them.
    let gone = IdentityEdit::Remove { kind: IdentityKind::User, name: name("ann") };
    mdt.edit_identities(&[gone]).await.unwrap();
    let table = mdt.identities().await.unwrap();
    let table = table.edited(&[put(IdentityKind::User, "jane", None, &["cms"])]).unwrap();
    assert_eq!(table.named(IdentityKind::User, &name("jane")).unwrap().number, 100_000);
    let table = mdt.edit_identities(&[put(IdentityKind::User, "ivan", None, &["cms"])]).await;
    assert!(table.is_ok());
    let gone = IdentityEdit::Remove { kind: IdentityKind::User, name: name("ivan") };
    mdt.edit_identities(&[gone]).await.unwrap();
    let table = mdt.identities().await.unwrap();
    let table = table.edited(&[put(IdentityKind::User, "jane", None, &["cms"])]).unwrap();
    assert_eq!(table.named(IdentityKind::User, &name("jane")).unwrap().number, 100_001);
}
