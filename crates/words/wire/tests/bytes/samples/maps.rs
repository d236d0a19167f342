//! The federation map, and every change of it.

use super::*;

pub fn map_calls(op: Op) -> Vec<Sample> {
    if op == Op::GetMap {
        let reply = federation::MapReply {
            version: Version(7),
            signed: vec![1, 0, 0x80],
            key: Some("d75a980182b10ab7".into()),
            now_ms: Some(1_700_000_000_123),
        };
        return pair(federation::GetMap {}, reply);
    }
    let pool: PoolName = "uf".parse().unwrap();
    let osts = vec![OstIndex(0), OstIndex(3)];
    let edit = |edit| federation::EditMap { edit };
    let reply = federation::EditMapReply { version: Version(8) };
    let mut samples = pair(edit(MapEdit::PoolNew(pool.clone())), reply);
    let add = MapEdit::PoolAdd { pool: pool.clone(), osts: osts.clone() };
    let remove = MapEdit::PoolRemove { pool: pool.clone(), osts };
    let expose = MapEdit::PoolExpose {
        pool: pool.clone(),
        directory: "/srv/exposed".into(),
        ost: Some(OstIndex(3)),
        is_trusted: true,
    };
    samples.push(request("-pool-expose", edit(expose)));
    samples.push(request("-pool-hide", edit(MapEdit::PoolHide(pool.clone()))));
    samples.push(request("-pool-destroy", edit(MapEdit::PoolDestroy(pool))));
    samples.push(request("-pool-add", edit(add)));
    samples.push(request("-pool-remove", edit(remove)));
    samples.push(request("-activate", edit(MapEdit::OstActivate(OstIndex(3)))));
    samples.push(request("-deactivate", edit(MapEdit::OstDeactivate(OstIndex(3)))));
    let (_, rule) = FlavorRule::parse("extenci.srpc.flavor.10.0.0.0/8.cli2ost=krb5p").unwrap();
    samples.push(request("-flavor-set", edit(MapEdit::FlavorSet(rule))));
    samples.push(request("-flavor-unset", edit(MapEdit::FlavorUnset(rule))));
    let (principal, trust) = ("host/wn17.uf.example@UFL.EDU".to_owned(), Some(MachineTrust::Root));
    samples.push(request("-machine-set", edit(MapEdit::MachineSet { principal, trust })));
    let door = Door {
        principal: "tieline_door/xrd.uf.example@EXTENCI.ORG".into(),
        services: vec!["xrootd/xrd.uf.example@EXTENCI.ORG".into()],
        vouches_for: vec![Vouched::Group("cms".parse().unwrap())],
        scope: Some(Scope::new(vec!["read:/data".parse().unwrap()]).unwrap()),
        seconds_max: Some(1800),
    };
    let removed = MapEdit::DoorRemove(door.principal.clone());
    samples.push(request("-door-set", edit(MapEdit::DoorSet(door))));
    samples.push(request("-door-remove", edit(removed)));
    let pool = || "fast".parse().unwrap();
    let tape = MapEdit::PoolHsm { pool: pool(), hsm: Some(tape::hsm()) };
    samples.push(request("-pool-hsm", edit(tape)));
    let no_tape = MapEdit::PoolHsm { pool: pool(), hsm: None };
    samples.push(request("-pool-no-hsm", edit(no_tape)));
    let issuer = issuer();
    let removed = MapEdit::IssuerRemove(issuer.url.clone());
    samples.push(request("-issuer-set", edit(MapEdit::IssuerSet(issuer))));
    samples.push(request("-issuer-remove", edit(removed)));
    samples.push(request("-key-rotate", edit(MapEdit::KeyRotate)));
    let uninvite = MapEdit::SiteUninvite("fnal".parse().unwrap());
    samples.push(request("-site-uninvite", edit(uninvite)));
    let (site, digest) = ("fnal".parse().unwrap(), [0xd1; 32]);
    let invite = MapEdit::SiteInvite { site, digest, until_ms: 1_700_000_000_123 };
    samples.push(request("-site-invite", edit(invite)));
    let join = federation::SiteJoin {
        secret: [0x5a; 32],
        addresses: vec!["tieline.fnal.example:7640".into()],
        osts: 2,
        has_mdt: true,
        principal: Some("host/tieline.fnal.example@FNAL.GOV".into()),
    };
    samples.push(request("-site-join", edit(MapEdit::SiteJoin(join))));
    let name: tieline_types::RepositoryName = "sw.example.org".parse().unwrap();
    let add = federation::RepositoryAdd {
        name: name.clone(),
        sources: vec!["https://stratum1.uf.example/sw".into(), "file:///srv/sw".into()],
        list: Digest::blake3([0xd1; 32]),
        junction: "sw".parse().unwrap(),
    };
    samples.push(request("-repository-add", edit(MapEdit::RepositoryAdd(add))));
    let trust = federation::RepositoryTrust {
        name: name.clone(),
        sources: vec!["http://stratum1.uf.example/cvmfs/sw.example.org".into()],
        keys: vec![vec![0x30, 0x82, 0x01, 0x22].into()],
        junction: "sw".parse().unwrap(),
    };
    samples.push(request("-repository-trust", edit(MapEdit::RepositoryTrust(trust))));
    samples.push(request("-repository-remove", edit(MapEdit::RepositoryRemove(name))));
    samples.push(request("-strangers-set", edit(MapEdit::StrangersSet(Strangers::Squash))));
    samples
}

fn issuer() -> Issuer {
    let (modulus, exponent) = ([&[0xc1][..], &[0x5a; 255]].concat(), vec![1, 0, 1]);
    let rsa = PublicKey::Rsa { modulus, exponent };
    let point = PublicKey::P256([&[4][..], &[0xd1; 64]].concat());
    Issuer {
        url: "https://iam.example/".into(),
        audiences: vec!["https://door.uf.example".into()],
        keys: vec![
            IssuerKey { id: Some("rsa1".into()), key: rsa },
            IssuerKey { id: None, key: point },
        ],
        base: vec!["cms".parse().unwrap()],
        users: vec![
            "sub:6f1e=ann@EXTENCI.ORG".parse().unwrap(),
            "group:/cms=prod".parse().unwrap(),
            "everybody=guest".parse().unwrap(),
        ],
    }
}
