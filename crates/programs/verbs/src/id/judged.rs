//! Who a principal is, as far as a table tells that may not be shown as a whole.
//!
//! Mappings and roles are for administrators to see. Others see names: a mapping may make somebody
//! of whoever has none, and somebody else of who has one. What cannot be seen is not denied.

use tieline_identities::{IdentityTable, Resolved, Unknown};

/// Who a principal is, or a sentence that says why not.
pub fn judged(table: &IdentityTable, principal: &str, realm: &str) -> Result<Resolved, String> {
    match table.resolve(principal, realm) {
        found if table.is_whole() => found.map_err(|why| stranger(principal, &why)),
        Ok(found) => {
            let how = format!("{}, unless a mapping says otherwise: {HIDDEN}", found.how);
            Ok(Resolved { how, ..found })
        }
        Err(Unknown::NotMapped) => {
            Err(format!("no user has the name of {principal}, but a mapping may exist: {HIDDEN}"))
        }
        Err(why) => Err(stranger(principal, &why)),
    }
}

const HIDDEN: &str = "only administrators see mappings";

fn stranger(principal: &str, why: &Unknown) -> String {
    format!("{principal} is a stranger: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Identity, IdentityKind, MappedTo, Mapping, Role};

    const REALM: &str = "EXTENCI.ORG";

    fn ann(roles: Vec<Role>) -> Identity {
        let name = "ann".parse().unwrap();
        Identity { kind: IdentityKind::User, number: 5001, name, groups: vec![5001], roles }
    }

    #[test]
    fn who_is_shown_no_mappings_is_told_so() {
        let mapping = Mapping { principal: "carl@PSC.EDU".to_owned(), to: MappedTo::User(5001) };
        let (mut shown, mut whole) = (IdentityTable::default(), IdentityTable::default());
        shown.adopt(1, vec![ann(vec![])], vec![]);
        whole.adopt(1, vec![ann(vec![])], vec![mapping]);
        assert_eq!(judged(&whole, "carl@PSC.EDU", REALM).unwrap().name.to_string(), "ann");
        let why = judged(&shown, "carl@PSC.EDU", REALM).unwrap_err();
        assert!(why.contains("only administrators") && !why.contains("stranger"), "{why}");
        let how = judged(&shown, "ann@EXTENCI.ORG", REALM).unwrap().how;
        assert!(how.contains("only administrators"), "{how}");
        // Who sees all is told what is; also where there is nothing to hide, as the server says.
        let (mut roles, mut plain) = (IdentityTable::default(), IdentityTable::default());
        roles.adopt(1, vec![ann(vec![Role::FsAdmin])], vec![]);
        plain.adopt(1, vec![ann(vec![])], vec![]);
        plain.told(Some(true));
        for table in [&whole, &roles, &plain] {
            let why = judged(table, "dora@PSC.EDU", REALM).unwrap_err();
            assert_eq!(why, "dora@PSC.EDU is a stranger: nothing maps it");
            let how = judged(table, "ann@EXTENCI.ORG", REALM).unwrap().how;
            assert!(!how.contains("administrators"), "{how}");
        }
    }
}
