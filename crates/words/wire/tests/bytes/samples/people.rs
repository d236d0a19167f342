//! Who is who, and the calls about that.

use super::*;

pub fn calls(op: Op) -> Vec<Sample> {
    let (ann, cms): (IdentityName, IdentityName) = ("ann".parse().unwrap(), "cms".parse().unwrap());
    let principal = "ann@EXTENCI.ORG".to_owned();
    match op {
        Op::ListIdentities => {
            let user = Identity {
                kind: IdentityKind::User,
                number: 5001,
                name: ann,
                groups: vec![6001],
                roles: vec![Role::FsAdmin, Role::PoolAdmin("fast".parse().unwrap())],
            };
            let reply = identity::ListIdentitiesReply {
                version: 9,
                identities: vec![user],
                mappings: vec![Mapping { principal, to: MappedTo::User(5001) }],
                is_end: true,
                is_whole: Some(true),
            };
            pair(identity::ListIdentities { have: 8, from: 2000 }, reply)
        }
        Op::Prove => {
            let reply = identity::ProveReply {
                caller: caller(),
                principal: Some(principal),
                how: "mapped to ann".into(),
                seconds: Some(36_000),
                is_believed: false,
            };
            pair(identity::Prove { proof: 7, token: Some(vec![0x60, 0x82]) }, reply)
        }
        _ => {
            let user = identity::NewIdentity {
                kind: IdentityKind::User,
                name: ann.clone(),
                number: Some(5001),
                groups: Some(vec![cms.clone()]),
            };
            let edits = vec![
                IdentityEdit::Put(user),
                IdentityEdit::Remove { kind: IdentityKind::Group, name: cms },
                IdentityEdit::Map { principal, to: identity::NewMapping::Named("ann".into()) },
                IdentityEdit::Map {
                    principal: "*@UFL.EDU".into(),
                    to: identity::NewMapping::Nobody,
                },
                IdentityEdit::Unmap("*@PSC.EDU".into()),
                IdentityEdit::Role { user: ann, role: Role::FsAdmin, is_given: true },
            ];
            let reply = identity::EditIdentitiesReply { version: 9 };
            pair(identity::EditIdentities { edits }, reply)
        }
    }
}
