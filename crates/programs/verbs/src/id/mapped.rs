//! `tieline id map`: a principal becomes somebody's, and is taken from whom it was only on purpose.
//!
//! What it is mapped to the server knows, and refuses. That a principal of our realm is the user of
//! its name nothing in the table says: that is looked at here.

use super::Rules;
use anyhow::ensure;
use tieline_identities::IdentityTable;
use tieline_types::IdentityKind;
use tieline_wire::identity::{IdentityEdit, NewMapping};

/// The edits that map it. `moves`: whatever it was before.
pub fn mapping(
    table: &IdentityTable,
    rules: &Rules,
    (principal, to): (&str, NewMapping),
    moves: bool,
) -> anyhow::Result<Vec<IdentityEdit>> {
    if !moves {
        check_name(table, rules, principal, &to)?;
    }
    let is_mapped = table.mappings().any(|mapping| mapping.principal == principal);
    let principal = principal.to_owned();
    let gone = (moves && is_mapped).then(|| IdentityEdit::Unmap(principal.clone()));
    Ok(gone.into_iter().chain([IdentityEdit::Map { principal, to }]).collect())
}

/// A principal that is a user by its name is no other's.
pub fn check_name(
    table: &IdentityTable,
    rules: &Rules,
    principal: &str,
    to: &NewMapping,
) -> anyhow::Result<()> {
    let NewMapping::Named(to) = to else { return Ok(()) };
    let own = rules.realm.as_deref();
    let parts = principal.rsplit_once('@').filter(|(_, realm)| Some(*realm) == own);
    let Some(name) = parts.and_then(|(name, _)| name.parse().ok()) else { return Ok(()) };
    let is_mapped = table.mappings().any(|mapping| mapping.principal == principal);
    let is_user = table.named(IdentityKind::User, &name).is_some();
    ensure!(
        !is_user || is_mapped || name.as_str() == to,
        "{principal} is user `{name}`, by its name: `tieline id map --move {principal} {to}` takes \
         it from there"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Identity, Mapping, Strangers};

    #[test]
    fn what_is_a_users_by_its_name_or_mapped_is_moved_on_purpose() {
        let mut table = IdentityTable::default();
        let user = |text: &str, number| Identity {
            kind: IdentityKind::User,
            number,
            name: text.parse().unwrap(),
            groups: vec![number],
            roles: vec![],
        };
        let to = tieline_types::MappedTo::User(5001);
        let mapped = Mapping { principal: "ann@PSC.EDU".to_owned(), to };
        table.adopt(1, vec![user("ann", 5001), user("bob", 5002)], vec![mapped]);
        let realm = Some("EXTENCI.ORG".to_owned());
        let rules = Rules { realm, strangers: Strangers::default(), machines: vec![] };
        let bob = || NewMapping::Named("bob".to_owned());
        let edits = |principal, to, moves| mapping(&table, &rules, (principal, to), moves);
        let refused = edits("ann@EXTENCI.ORG", bob(), false).unwrap_err().to_string();
        assert!(refused.contains("id map --move ann@EXTENCI.ORG bob"), "{refused}");
        assert_eq!(edits("ann@EXTENCI.ORG", bob(), true).unwrap().len(), 1);
        assert_eq!(edits("ann@EXTENCI.ORG", NewMapping::Nobody, false).unwrap().len(), 1);
        for (principal, count) in [("bob@EXTENCI.ORG", 1), ("ann@UFL.EDU", 1), ("ann@PSC.EDU", 2)] {
            assert_eq!(edits(principal, bob(), false).unwrap().len(), 1, "the server judges");
            assert_eq!(edits(principal, bob(), true).unwrap().len(), count, "{principal}");
        }
    }
}
