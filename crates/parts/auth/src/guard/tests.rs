//! Whose rule holds, what servers are called, and who may say that he is one.

use super::*;
use crate::MapSigner;
use tieline_format::map::{Mdt, Ost, Security, Service};
use tieline_types::{ClientId, FlavorRule, FlavorRules, MdtIndex, OstIndex, Version};

fn cell(rules: &[&str]) -> MapCell {
    let mut flavors = FlavorRules::default();
    for rule in rules {
        flavors.set(FlavorRule::parse(&format!("extenci.srpc.flavor.{rule}")).unwrap().1);
    }
    let map = FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(1),
        mdts: vec![Mdt {
            mdt: MdtIndex(0),
            home: "uf".parse().unwrap(),
            addresses: vec!["mds.uf.example:7640".into()],
        }],
        junctions: vec![],
        osts: vec![Ost {
            ost: OstIndex(0),
            site: "uf".parse().unwrap(),
            addresses: vec!["[2001:db8::1]:7640".into(), "oss.uf.example:7640".into()],
            is_active: true,
        }],
        pools: vec![],
        security: Some(Security {
            realm: "EXTENCI.ORG".into(),
            flavors,
            services: vec![Service {
                address: "oss.uf.example:7640".into(),
                principal: "host/oss.uf.example@UFL.EDU".into(),
            }],
            machines: None,
            strangers: None,
            doors: None,
            issuers: None,
        }),
        invitations: None,
        repositories: None,
    };
    let signer = MapSigner::new([7; 32]);
    MapCell::new(signer.verifier(), signer.sign(&map)).unwrap()
}

fn guard(floor: Flavor, can_prove: bool, rules: &[&str]) -> Arc<Guard> {
    let guard = newcomer(floor, Flavor::Null, can_prove);
    guard.follow(&cell(rules));
    guard
}

/// Without a map.
fn newcomer(floor: Flavor, first: Flavor, can_prove: bool) -> Arc<Guard> {
    let prover = SeededProver { secret: 1, own: "ann@EXTENCI.ORG".into(), nonce: 0.into() };
    Guard::new(GuardParts {
        prover: can_prove.then(|| Box::new(prover) as Box<dyn Prover>),
        floor,
        first,
        serves: Serves { mdt: true, ost: false },
        is_eager: false,
        realm: None,
        services: vec![SERVICE_MDS.into()],
        service: None,
    })
}

fn hello(role: PeerRole, flavor: Flavor, credential: CredentialKind) -> Hello {
    Hello {
        version_oldest: 1,
        version_newest: 1,
        role,
        client: ClientId([0; 16]),
        session: None,
        fs: "extenci".parse().unwrap(),
        credential,
        flavor,
        features: 0,
        description: String::new(),
        map: Version(0),
        wait_ms: None,
    }
}

/// Somebody's who proves himself.
pub(crate) fn hello_of(credential: CredentialKind) -> Hello {
    hello(PeerRole::Client, Flavor::Null, credential)
}

#[test]
fn the_stricter_end_decides() {
    let near: Option<IpAddr> = "10.0.0.1".parse().ok();
    let guard = guard(Flavor::Null, true, &["default=krb5i", "10.0.0.0/8.cli2mdt=krb5n"]);
    let of = |flavor, peer| {
        let hello = hello(PeerRole::Client, flavor, CredentialKind::Test);
        guard.answering(&hello, peer).unwrap().flavor
    };
    assert_eq!(of(Flavor::Null, near), Flavor::Krb5n);
    assert_eq!(of(Flavor::Krb5p, near), Flavor::Krb5p);
    assert_eq!(of(Flavor::Null, None), Flavor::Krb5i);
}

#[test]
fn no_rule_is_met_without_a_proof() {
    let server = guard(Flavor::Null, true, &["default=krb5n"]);
    let bare = hello(PeerRole::Client, Flavor::Null, CredentialKind::None);
    assert_eq!(server.answering(&bare, None).err(), Some(Trouble::NoCredential(Flavor::Krb5n)));
    let client = guard(Flavor::Null, false, &["default=krb5n"]);
    let dialed = client.dialing(PeerRole::Client, "mds.uf.example:7640", None, Tickets::Kept);
    assert_eq!(dialed.err(), Some(Trouble::NoCredential(Flavor::Krb5n)));
    let floor = guard(Flavor::Krb5p, true, &["default=null"]);
    let dialed =
        floor.dialing(PeerRole::Client, "mds.uf.example:7640", None, Tickets::Kept).unwrap();
    assert_eq!(dialed.flavor, Flavor::Krb5p);
}

#[test]
fn who_comes_for_the_first_time_may_want_a_proof_and_the_map_says_what_holds_then() {
    let address = "mds.uf.example:7640";
    let dialed = |guard: &Guard| {
        let dialing = guard.dialing(PeerRole::Client, address, None, Tickets::Kept).unwrap();
        (dialing.flavor, dialing.proofs.is_empty())
    };
    let strict = newcomer(Flavor::Null, Flavor::Krb5n, true);
    assert_eq!(dialed(&strict), (Flavor::Krb5n, false));
    strict.follow(&cell(&["default=null"]));
    assert_eq!(dialed(&strict), (Flavor::Null, true));
    assert_eq!(dialed(&newcomer(Flavor::Null, Flavor::Null, true)), (Flavor::Null, true));
    assert_eq!(dialed(&newcomer(Flavor::Krb5i, Flavor::Krb5n, true)), (Flavor::Krb5i, false));
}

/// Whoever says that he is a server has not shown it, and under null he never would.
#[test]
fn no_rule_for_servers_lets_anybody_in_who_says_to_be_one() {
    let said = |role, rules: &[&str]| {
        let server = guard(Flavor::Null, true, rules);
        let bare = hello(role, Flavor::Null, CredentialKind::None);
        let answering = server.answering_flavor(&bare, None);
        // The other end goes by the same.
        assert_eq!(server.dialing_flavor(role, "mds.uf.example:7640", None), answering);
        (answering, server.answering(&bare, None).is_ok())
    };
    for role in [PeerRole::Mds, PeerRole::Oss] {
        let clients = "default.cli2mdt=krb5i";
        let rules = ["default.mdt2ost=null", "default.mdt2mdt=null", clients];
        assert_eq!(said(role, &rules), (Flavor::Krb5i, false));
        // Anybody may be a client here, and nobody a server.
        let rules = ["default=null", "default.cli2ost=krb5p"];
        assert_eq!(said(role, &rules), (Flavor::Krb5n, false));
        let rules = ["default=null", "192.0.2.0/24=krb5p"];
        assert_eq!(said(role, &rules), (Flavor::Krb5n, false));
        assert_eq!(said(role, &["default=null"]), (Flavor::Null, true));
        assert_eq!(said(role, &["default=krb5n", clients]), (Flavor::Krb5n, false));
    }
    let rules = ["default=null", "default.cli2ost=krb5p"];
    assert_eq!(said(PeerRole::Client, &rules), (Flavor::Null, true));
}

#[test]
fn servers_have_the_names_that_the_map_gives_them() {
    let guard = guard(Flavor::Null, true, &[]);
    assert_eq!(guard.principal_of("mds.uf.example:7640"), "tieline_mds/mds.uf.example@EXTENCI.ORG");
    assert_eq!(guard.principal_of("oss.uf.example:7640"), "host/oss.uf.example@UFL.EDU");
    assert_eq!(guard.principal_of("[2001:db8::1]:7640"), "tieline_oss/2001:db8::1@EXTENCI.ORG");
    assert_eq!(guard.principals_of("elsewhere:1"), ["tieline_mds/elsewhere", "host/elsewhere"]);
    let oss = "host/oss.uf.example@UFL.EDU";
    assert_eq!(guard.principals_of("oss.uf.example:7640"), [oss]);
    let mut parts = Guard::open();
    let pinned = Arc::get_mut(&mut parts).unwrap();
    (pinned.parts.service, pinned.parts.realm) = (Some("host".into()), Some("UFL.EDU".into()));
    assert_eq!(pinned.principals_of("mds:1"), ["host/mds@UFL.EDU"]);
    assert!(guard.is_server("host/oss.uf.example@UFL.EDU"));
    assert!(!guard.is_server("host/oss.uf.example@EXTENCI.ORG"));
}

#[test]
fn nobody_is_a_server_by_saying_so() {
    let guard = guard(Flavor::Null, true, &[]);
    let proof = |peer: &str, own: &str| Proof {
        peer: peer.into(),
        own: own.into(),
        secret: [0; crate::mechanism::SECRET],
        lifetime: None,
    };
    let own = "tieline_mds/mds.uf.example@EXTENCI.ORG";
    let oss = hello(PeerRole::Oss, Flavor::Null, CredentialKind::Test);
    let client = hello(PeerRole::Client, Flavor::Null, CredentialKind::Test);
    assert!(guard.check_caller(&oss, &proof("ann@EXTENCI.ORG", own)).is_err());
    assert!(guard.check_caller(&oss, &proof("host/oss.uf.example@UFL.EDU", own)).is_ok());
    assert!(guard.check_caller(&client, &proof("ann@EXTENCI.ORG", own)).is_ok());
    let other = proof("ann@EXTENCI.ORG", "nfs/mds.uf.example@EXTENCI.ORG");
    assert!(guard.check_caller(&client, &other).is_err());
    assert!(guard.check_server(&proof("a/b@C", ""), "a/b").is_ok());
    assert!(guard.check_server(&proof("a/b@C", ""), "a/b@D").is_err());
}

#[test]
fn an_address_is_found_with_and_without_a_scope() {
    let of = |peer| address_of(peer).map(|address| address.to_string());
    assert_eq!(of("192.0.2.1:7640").as_deref(), Some("192.0.2.1"));
    assert_eq!(of("[fe80::1%2]:7640").as_deref(), Some("fe80::1"));
    assert_eq!(of("[fe80::1%eth0]:7640").as_deref(), Some("fe80::1"));
    assert_eq!(of("mds.uf.example:7640"), None);
}

#[test]
fn what_is_sent_to_a_door_is_for_its_services_and_for_no_server() {
    let guard = guard(Flavor::Null, true, &["default=krb5i"]);
    let [door, server] = ["HTTP/door@EXTENCI.ORG", "host/oss.uf.example@UFL.EDU"];
    let sent = |service| Seeded::for_door(1, "bob@EXTENCI.ORG", service, 7);
    let seen = guard.witness(&sent(door), |service| service == door).unwrap();
    assert_eq!((seen.user.as_str(), seen.service.as_str()), ("bob@EXTENCI.ORG", door));
    let wrong = |token: &[u8], may_be: fn(&str) -> bool| guard.witness(token, may_be).unwrap_err();
    assert!(wrong(&sent(door), |_| false).to_string().contains("no service of that door"));
    // Whatever a map says: that stands on the line elsewhere.
    assert!(wrong(&sent(server), |_| true).to_string().contains("no service of that door"));
    assert_eq!(wrong(&Seeded::for_door(2, "bob@R", door, 7), |_| true), Trouble::Binding);
    wrong(b"short", |_| true);
    let cannot = newcomer(Flavor::Null, Flavor::Null, false);
    assert!(cannot.witness(&sent(door), |_| true).is_err());
}
