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
                principal: Some(principal.clone()),
                how: "mapped to ann".into(),
                seconds: Some(36_000),
                is_believed: false,
                scope: None,
                answer: None,
            };
            let token = Some(vec![0x60, 0x82]);
            let proof = identity::Prove { proof: 7, token, delegation: None };
            let mut samples = pair(proof.clone(), reply.clone());
            let scope = Scope::new(vec!["read:/data".parse().unwrap()]).unwrap();
            let own = identity::Delegation {
                evidence: None,
                scope: Some(scope.clone()),
                seconds: Some(600),
            };
            let ticket = identity::Evidence::Ticket(vec![0x6e, 0x82]);
            let word = identity::Evidence::Word { principal };
            let shown = identity::Evidence::Token(b"eyJhbGciOiJFUzI1NiJ9.e30.AA".to_vec());
            for (variant, evidence) in [
                ("-own", None),
                ("-ticket", Some(ticket)),
                ("-word", Some(word)),
                ("-token", Some(shown)),
            ] {
                let token = proof.token.clone().filter(|_| evidence.is_none());
                let delegation = Some(identity::Delegation { evidence, ..own.clone() });
                let delegated = identity::Prove { token, delegation, ..proof };
                samples.push(request(variant, delegated));
            }
            let answer = Some(vec![0x60, 0x81]);
            let limited = identity::ProveReply { scope: Some(scope), answer, ..reply };
            samples.push(reply_of::<identity::Prove>("-scope", limited));
            samples
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
