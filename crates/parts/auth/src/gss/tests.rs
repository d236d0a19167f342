//! Against a real KDC; without its programs these tests say so and pass.

use super::*;
use crate::seal::{self, Transcript};
use crate::{Guard, GuardParts, Kerberos, ScratchError, ScratchKdc, Serves};
use std::path::Path;
use tieline_wire::Flavor;

const REALM: &str = "EXTENCI.ORG";
const MDS: &str = "tieline_mds/mds.uf.example@EXTENCI.ORG";

/// `KRB5_CONFIG` belongs to the process: one realm serves all these tests.
fn with_realm(test: impl FnOnce(&mut ScratchKdc, &Path)) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poison| poison.into_inner());
    let dir = tempfile::tempdir().unwrap();
    let mut kdc = match ScratchKdc::start(dir.path(), REALM) {
        Err(error @ ScratchError::Program { .. }) => {
            let is_everything = std::env::var_os("CI").is_some_and(|value| value == "1");
            assert!(!is_everything, "CI=1, and yet: {error}");
            return eprintln!("SKIPPED: {error}");
        }
        kdc => kdc.unwrap(),
    };
    // SAFETY: the lock keeps other tests that read it waiting.
    unsafe { std::env::set_var("KRB5_CONFIG", kdc.config()) };
    test(&mut kdc, dir.path());
}

fn keytab(path: PathBuf) -> Keys {
    Keys { keytab: Some(path), ..Keys::default() }
}

fn cache(dir: &Path, name: &str) -> Keys {
    let cache = format!("FILE:{}", dir.join(name).display());
    Keys { cache: Some(cache), ..Keys::default() }
}

fn user(kdc: &ScratchKdc, dir: &Path) -> Keys {
    kdc.user("ann", "secret").unwrap();
    let keys = cache(dir, "ann");
    kdc.kinit("ann", "secret", keys.cache.as_ref().unwrap()).unwrap();
    keys
}

fn shake(
    dialing: Keys,
    answering: Keys,
    target: &str,
    bindings: [[u8; 32]; 2],
) -> Result<(Proof, Proof), Trouble> {
    shake_with(GssInitiator::new(dialing, target.to_owned()), answering, bindings)
}

fn shake_with(
    mut initiator: GssInitiator,
    answering: Keys,
    bindings: [[u8; 32]; 2],
) -> Result<(Proof, Proof), Trouble> {
    let mut acceptor = GssAcceptor::new(answering);
    let first = initiator.step(None, &bindings[0])?;
    let answer = acceptor.step(first.token.as_deref(), &bindings[1])?;
    let last = initiator.step(answer.token.as_deref(), &bindings[0])?;
    Ok((last.proof.unwrap(), answer.proof.unwrap()))
}

#[test]
fn a_user_and_a_server_prove_themselves() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        assert_eq!(own_principal(&keys).unwrap(), "ann@EXTENCI.ORG");
        let (client, mds) = shake(keys, server, MDS, [[7; 32]; 2]).unwrap();
        assert_eq!((client.peer.as_str(), mds.peer.as_str()), (MDS, "ann@EXTENCI.ORG"));
        assert_eq!(client.secret, mds.secret);
        assert!(client.lifetime.unwrap() > Duration::from_secs(3600));
        let transcript = Transcript::new().digest();
        let (mut sealer, _) = seal::initiator(&client, Flavor::Krb5p, &transcript);
        let (_, mut opener) = seal::acceptor(&mds, Flavor::Krb5p, &transcript);
        let mut text = b"event bytes".to_vec();
        let tag = sealer.head(0, &mut text);
        text.extend(tag);
        assert_eq!(opener.head(0, 0, &mut text).unwrap(), b"event bytes");
    });
}

#[test]
fn a_machine_dials_with_its_keytab_and_keeps_no_file() {
    with_realm(|kdc, _| {
        let host = "host/wn17.uf.example@EXTENCI.ORG".to_owned();
        let machine = kdc.keytab("host.keytab", std::slice::from_ref(&host)).unwrap();
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let cache = Some("MEMORY:machine".to_owned());
        let machine = Keys { keytab: Some(machine), cache, principal: Some(host.clone()) };
        let (_, mds) = shake(machine, server, MDS, [[7; 32]; 2]).unwrap();
        assert_eq!(mds.peer, host);
    });
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let wrong = |keys: &Keys, server: &Keys, target: &str| {
            shake(keys.clone(), server.clone(), target, [[7; 32]; 2]).unwrap_err()
        };
        let other = "tieline_oss/mds.uf.example@EXTENCI.ORG";
        let unknown = wrong(&keys, &server, other);
        assert!(matches!(unknown, Trouble::UnknownServer { .. }), "{unknown}");
        kdc.keytab("oss.keytab", &[other.to_owned()]).unwrap();
        let no_key = wrong(&keys, &server, other);
        assert_eq!(no_key, Trouble::NoKey { target: other.to_owned() });
        let realm = wrong(&keys, &server, "tieline_mds/x@UFL.EDU");
        assert!(matches!(realm, Trouble::WrongRealm { .. }), "{realm}");
        let nobody = wrong(&cache(dir, "nobody"), &server, MDS);
        assert_eq!(nobody, Trouble::NoTicket);
        let lost = wrong(&keys, &keytab(dir.join("lost.keytab")), MDS);
        assert!(matches!(lost, Trouble::Keytab { .. }), "{lost}");
        let bound = shake(keys.clone(), server.clone(), MDS, [[7; 32], [8; 32]]).unwrap_err();
        assert_eq!(bound, Trouble::Binding);
        // The ticket of above is of the key that the server has no more.
        kdc.admin(&format!("cpw -randkey {MDS}\n")).unwrap();
        std::fs::remove_file(dir.join("mds.keytab")).unwrap();
        let newer = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let version = wrong(&keys, &newer, MDS);
        assert_eq!(version, Trouble::KeyVersion { target: MDS.to_owned() });
        let names = principals(newer.keytab.as_ref().unwrap()).unwrap();
        assert_eq!(names, [MDS]);
    });
}

#[test]
fn a_repeated_token_and_a_silent_kdc_are_refused() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let mut initiator = GssInitiator::new(keys.clone(), MDS.to_owned());
        let token = initiator.step(None, &[7; 32]).unwrap().token.unwrap();
        let accept = || GssAcceptor::new(server.clone()).step(Some(&token), &[7; 32]);
        assert!(accept().unwrap().proof.is_some());
        assert_eq!(accept().unwrap_err(), Trouble::Replayed);
        kdc.admin(&format!("addprinc -randkey other/x@{REALM}\n")).unwrap();
        let path = dir.join("krb5.conf");
        let conf = std::fs::read_to_string(&path).unwrap();
        let dead = conf.replace(&kdc.port().to_string(), "1");
        std::fs::write(&path, dead).unwrap();
        let silent = GssInitiator::new(keys, format!("other/x@{REALM}")).step(None, &[7; 32]);
        let silent = silent.unwrap_err();
        assert!(matches!(silent, Trouble::NoKdc { .. }), "{silent}");
    });
}

/// MIT's library is content where only the server binds: such a ticket could have been shown to
/// somebody else's program, who shows it on.
#[test]
fn a_token_that_is_bound_to_nothing_is_refused_in_hellos_and_for_users() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let answering = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let guard = Guard::new(GuardParts {
            prover: Some(Box::new(Kerberos { dialing: Keys::default(), answering })),
            floor: Flavor::Krb5i,
            first: Flavor::Null,
            serves: Serves { mdt: true, ost: false },
            is_eager: true,
            realm: None,
            services: vec![],
            service: None,
        });
        let hello = crate::guard::tests::hello_of(CredentialKind::Kerberos);
        let of_hellos = || guard.answering(&hello, None).unwrap().mechanism.unwrap();
        let of_users = || guard.acceptor().unwrap();
        for mut acceptor in [of_hellos(), of_users()] {
            let mut initiator = GssInitiator::new(keys.clone(), MDS.to_owned());
            let token = initiator.advance(None, None).unwrap().token.unwrap();
            let refused = acceptor.step(Some(&token), &[7; 32]).map(|step| step.proof);
            assert_eq!(refused.err(), Some(Trouble::Unbound));
        }
        for mut acceptor in [of_hellos(), of_users()] {
            let mut initiator = GssInitiator::new(keys.clone(), MDS.to_owned());
            let token = initiator.step(None, &[7; 32]).unwrap().token.unwrap();
            assert!(acceptor.step(Some(&token), &[7; 32]).unwrap().proof.is_some());
        }
    });
}

/// Has the library of all who come now read other settings.
fn set(dir: &Path, setting: &str) {
    let path = dir.join("krb5.conf");
    let conf = std::fs::read_to_string(&path).unwrap();
    let conf = conf.replacen("[libdefaults]\n", &format!("[libdefaults]\n  {setting}\n"), 1);
    std::fs::write(&path, conf).unwrap();
}

#[test]
fn clocks_and_keys_that_do_not_fit_are_told() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        // Made three seconds before the clock of a server that allows for one.
        set(dir, "clockskew = 1");
        let mut initiator = GssInitiator::new(keys.clone(), MDS.to_owned());
        let token = initiator.step(None, &[7; 32]).unwrap().token.unwrap();
        std::thread::sleep(Duration::from_secs(3));
        let late = GssAcceptor::new(server.clone()).step(Some(&token), &[7; 32]).unwrap_err();
        assert_eq!(late, Trouble::ClockSkew);
        set(dir, "clockskew = 300");

        // A server whose only key is weaker, and one whose tickets may only have weaker keys.
        let (weak, weaker) =
            (format!("tieline_mds/weak@{REALM}"), format!("tieline_mds/w@{REALM}"));
        let aes128 = "aes128-cts-hmac-sha1-96";
        kdc.admin(&format!(
            "addprinc -randkey -e {aes128}:normal {weak}\naddprinc -randkey {weaker}\n\
             setstr {weaker} session_enctypes {aes128}\n"
        ))
        .unwrap();
        for name in [weak, weaker] {
            let enctype = GssInitiator::new(keys.clone(), name).step(None, &[7; 32]).unwrap_err();
            assert!(matches!(enctype, Trouble::NoEnctype { .. }), "{enctype}");
        }

        // A machine whose keytab is older than its key at the KDC, with and without
        // preauthentication.
        let host = format!("host/wn17@{REALM}");
        let old = kdc.keytab("host.keytab", std::slice::from_ref(&host)).unwrap();
        kdc.admin(&format!("cpw -randkey {host}\n")).unwrap();
        for (name, flag) in [("a", "-requires_preauth"), ("b", "+requires_preauth")] {
            kdc.admin(&format!("modprinc {flag} {host}\n")).unwrap();
            let (keytab, cache) = (Some(old.clone()), Some(format!("MEMORY:{name}")));
            let old = Keys { keytab, cache, principal: Some(host.clone()) };
            let refused = GssInitiator::new(old, MDS.to_owned()).step(None, &[7; 32]).unwrap_err();
            let key = format!("{host} in {}", dir.join("host.keytab").display());
            assert_eq!(refused, Trouble::OldKey { key }, "{flag}");
        }
    });
}

/// Has all who come now, and the KDC, permit these enctypes and no others; keys that are made now
/// are of them.
fn permit(kdc: &mut ScratchKdc, dir: &Path, enctypes: &[&str]) {
    kdc.stop();
    change(dir, "krb5.conf", "permitted_enctypes", &enctypes.join(" "));
    let kept = enctypes.iter().map(|enctype| format!("{enctype}:normal"));
    change(dir, "kdc.conf", "supported_enctypes", &kept.collect::<Vec<_>>().join(" "));
    kdc.serve().unwrap();
}

fn change(dir: &Path, file: &str, key: &str, value: &str) {
    let path = dir.join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().find(|line| line.trim_start().starts_with(key)).unwrap();
    std::fs::write(&path, text.replace(line, &format!("  {key} = {value}"))).unwrap();
}

const SHA1: &str = "aes256-cts-hmac-sha1-96";
const SHA2: &str = "aes256-cts-hmac-sha384-192";

#[test]
fn either_kind_of_aes_256_is_enough() {
    for enctype in [SHA1, SHA2] {
        with_realm(|kdc, dir| {
            permit(kdc, dir, &[enctype]);
            let keys = user(kdc, dir);
            let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
            let (client, mds) = shake(keys, server, MDS, [[7; 32]; 2]).expect(enctype);
            assert_eq!(client.secret, mds.secret);
        });
    }
}

#[test]
fn a_weaker_session_key_is_refused_whatever_the_machines_permit() {
    with_realm(|kdc, dir| {
        let aes128 = "aes128-cts-hmac-sha1-96";
        permit(kdc, dir, &[SHA1, aes128]);
        kdc.admin(&format!(
            "addprinc -randkey -e {aes128}:normal {MDS}\n\
             setstr krbtgt/{REALM} session_enctypes {aes128}\n"
        ))
        .unwrap();
        let server = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let keys = user(kdc, dir);
        // Both ends know no better: else the acceptor gives a stronger key of its own. The KDC
        // does: it reads its settings again when they change, and the realm's keys are stronger.
        let weaker = dir.join("weaker.conf");
        std::fs::copy(kdc.config(), &weaker).unwrap();
        change(dir, "weaker.conf", "permitted_enctypes", aes128);
        // SAFETY: as in `with_realm`, whose next test has its own.
        unsafe { std::env::set_var("KRB5_CONFIG", weaker) };
        let weak = Trouble::WeakTicket { enctype: 17 };
        let mut initiator = GssInitiator::new(keys, MDS.to_owned());
        let first = initiator.advance(None, Some(&bindings(&[7; 32]))).unwrap();
        let mut acceptor = GssAcceptor::new(server);
        let refused = acceptor.step(first.token.as_deref(), &[7; 32]).unwrap_err();
        assert_eq!(refused, weak);
    });
}

/// The library's default: it takes the stronger of what both ends permit for the context's key,
/// whatever the ticket has.
fn permit_as_usual(dir: &Path) {
    for (file, key) in [("krb5.conf", "permitted_enctypes"), ("kdc.conf", "supported_enctypes")] {
        let path = dir.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = text.lines().filter(|line| !line.trim_start().starts_with(key));
        std::fs::write(&path, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
}

#[test]
fn a_weaker_ticket_is_refused_at_either_end_though_the_contexts_key_is_strong() {
    with_realm(|kdc, dir| {
        kdc.stop();
        permit_as_usual(dir);
        kdc.serve().unwrap();
        let aes128 = "aes128-cts-hmac-sha1-96";
        let (sealed, keyed) = (MDS, "tieline_mds/other.uf.example@EXTENCI.ORG");
        // One whose own key is weaker, and one to whom a weaker key is given with the ticket.
        kdc.admin(&format!(
            "addprinc -randkey -e {aes128}:normal {sealed}\n\
             addprinc -randkey -e {SHA1}:normal {keyed}\n\
             setstr {sealed} session_enctypes {SHA1}\n\
             setstr {keyed} session_enctypes {aes128}\n"
        ))
        .unwrap();
        let names = [sealed, keyed].map(str::to_owned);
        let server = keytab(kdc.keytab("mds.keytab", &names).unwrap());
        let keys = user(kdc, dir);
        for (name, weak) in [
            (sealed, Trouble::WeakTicket { enctype: 17 }),
            (keyed, Trouble::WeakKey { enctype: 17 }),
        ] {
            let mut initiator = GssInitiator::new(keys.clone(), name.to_owned());
            assert_eq!(initiator.step(None, &[7; 32]).err(), Some(weak.clone()), "{name}");
            // Who dials is not asked for his opinion.
            let mut careless = GssInitiator::new(keys.clone(), name.to_owned());
            let first = careless.advance(None, Some(&bindings(&[7; 32]))).unwrap();
            let mut acceptor = GssAcceptor::new(server.clone());
            let refused = acceptor.step(first.token.as_deref(), &[7; 32]).map(|step| step.proof);
            assert_eq!(refused.err(), Some(weak), "{name}");
        }
    });
}

/// A name is taken as it stands, though `krb5.conf` asks for canonical names and reverse DNS.
#[test]
fn names_depend_on_no_dns() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        // Another name of loopback in the hosts file of every Debian.
        let names = ["ip6-loopback", "127.0.0.1", "no.such.host.example"];
        let names = names.map(|host| format!("tieline_mds/{host}@{REALM}"));
        let server = keytab(kdc.keytab("mds.keytab", &names).unwrap());
        let path = dir.join("krb5.conf");
        let conf = std::fs::read_to_string(&path).unwrap();
        let conf = conf.replace("  rdns = false\n", "  rdns = true\n");
        let changed =
            conf.replace("dns_canonicalize_hostname = false", "dns_canonicalize_hostname = true");
        assert_ne!(conf, changed);
        std::fs::write(&path, changed).unwrap();
        for name in names {
            let (client, mds) =
                shake(keys.clone(), server.clone(), &name, [[7; 32]; 2]).expect(&name);
            assert_eq!((client.peer, mds.peer.as_str()), (name, "ann@EXTENCI.ORG"));
        }
    });
}

#[test]
fn a_ticket_that_ends_in_use_is_told_as_such_and_the_next_try_gets_another() {
    with_realm(|kdc, dir| {
        let keys = user(kdc, dir);
        let server = keytab(kdc.keytab("short.keytab", &[MDS.to_owned()]).unwrap());
        kdc.admin(&format!("modprinc -maxlife \"2 seconds\" {MDS}\n")).unwrap();
        let mut ended = 0;
        for _ in 0..30 {
            match shake(keys.clone(), server.clone(), MDS, [[7; 32]; 2]) {
                Ok(_) => {}
                Err(Trouble::Ended) => ended += 1,
                Err(other) => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(ended < 25, "no try gets another ticket");
    });
}

#[test]
fn a_fresh_ticket_is_of_the_servers_new_key_and_users_caches_stay_as_they_are() {
    with_realm(|kdc, dir| {
        let service = [MDS.to_owned()];
        let host = format!("host/wn17@{REALM}");
        let machine = Keys {
            keytab: Some(kdc.keytab("host.keytab", std::slice::from_ref(&host)).unwrap()),
            cache: Some("MEMORY:renewed".to_owned()),
            principal: Some(host),
        };
        let user = user(kdc, dir);
        let old = keytab(kdc.keytab("old.keytab", &service).unwrap());
        for keys in [&machine, &user] {
            shake(keys.clone(), old.clone(), MDS, [[7; 32]; 2]).unwrap();
        }
        kdc.admin(&format!("cpw -randkey {MDS}\n")).unwrap();
        let new = keytab(kdc.keytab("new.keytab", &service).unwrap());
        let cached = || std::fs::read(dir.join("ann")).unwrap();
        let before = cached();
        for (keys, is_own) in [(machine, true), (user, false)] {
            let with = |tickets| {
                let initiator = GssInitiator::with(keys.clone(), MDS.to_owned(), tickets);
                shake_with(initiator, new.clone(), [[7; 32]; 2])
            };
            let refused = with(Tickets::Kept).unwrap_err();
            assert!(matches!(refused, Trouble::KeyVersion { .. }), "{refused}");
            with(Tickets::Fresh).unwrap();
            // What it got is kept where the cache is its own.
            assert_eq!(with(Tickets::Kept).is_ok(), is_own);
            with(Tickets::Fresh).unwrap();
        }
        assert_eq!(cached(), before);
    });
}

/// The library takes the cache of the server's realm, whether its tickets have ended or not.
#[test]
fn a_collection_whose_first_choice_has_ended_has_others() {
    with_realm(|kdc, dir| {
        let keys = keytab(kdc.keytab("mds.keytab", &[MDS.to_owned()]).unwrap());
        let collection = dir.join("collection");
        std::fs::create_dir(&collection).unwrap();
        let collection = format!("DIR:{}", collection.display());
        for (name, lifetime) in [("bob", "1h"), ("ann", "2s")] {
            kdc.user(name, "secret").unwrap();
            let script = format!("echo secret | kinit -l {lifetime} {name}");
            let mut shell = kdc.command("sh");
            shell.args(["-c", &script]).env("KRB5CCNAME", &collection);
            assert!(shell.status().unwrap().success());
        }
        // SAFETY: the lock keeps other tests that read it waiting.
        unsafe { std::env::set_var("KRB5CCNAME", &collection) };
        std::thread::sleep(Duration::from_secs(3));
        let proven = shake(Keys::default(), keys, MDS, [[7; 32]; 2]);
        let chosen = caches::in_force();
        // SAFETY: as above.
        unsafe { std::env::remove_var("KRB5CCNAME") };
        assert_eq!(proven.unwrap().1.peer, "bob@EXTENCI.ORG");
        assert!(chosen.is_some());
    });
}

/// What a stock client sends to a door, which nobody bound to anything.
#[test]
fn what_a_user_sent_to_a_door_is_opened_with_the_doors_key() {
    with_realm(|kdc, dir| {
        let ann = user(kdc, dir);
        let [door, other] =
            ["HTTP/door.uf.example@EXTENCI.ORG", "HTTP/other.uf.example@EXTENCI.ORG"];
        let names = [MDS, door, other].map(str::to_owned);
        kdc.keytab("all.keytab", &names).unwrap();
        let server = keytab(kdc.keytab("mds.keytab", &names[..2]).unwrap());
        let send = |service: &str| {
            let mut initiator = GssInitiator::new(ann.clone(), service.to_owned());
            initiator.advance(None, None).unwrap().token.unwrap()
        };
        let token = send(door);
        assert_eq!(service_of(&token).as_deref(), Some(door));
        let seen = witness(&server, door, &token).unwrap();
        assert_eq!((seen.user.as_str(), seen.service.as_str()), ("ann@EXTENCI.ORG", door));
        assert!(seen.lifetime.unwrap() > Duration::from_secs(3600));
        // Other servers are shown it, too: who asks remembers the mark.
        let again = witness(&server, door, &token).unwrap();
        assert_eq!(again.mark, seen.mark);
        // Whoever sent it hears from each that the service is there.
        let mut initiator = GssInitiator::new(ann.clone(), door.to_owned());
        let first = initiator.advance(None, None).unwrap().token.unwrap();
        let answer = witness(&server, door, &first).unwrap().answer;
        let proof = initiator.advance(answer.as_deref(), None).unwrap().proof.unwrap();
        assert_eq!(proof.peer, door);
        // Alone, as other protocols send it, it is the same one.
        let at = token.windows(2).position(|two| two == [0x6e, 0x82]).unwrap();
        let bare = &token[at..];
        assert_eq!(service_of(bare).as_deref(), Some(door));
        assert_eq!(witness(&server, door, bare).unwrap().mark, seen.mark);
        assert_ne!(witness(&server, door, &send(door)).unwrap().mark, seen.mark);

        let wrong = |service: &str, token: &[u8]| witness(&server, service, token).unwrap_err();
        wrong(door, &send(MDS));
        wrong(MDS, &token);
        wrong(other, &send(other));
        wrong(door, b"no token");
        for at in (token.len() - 300..token.len()).step_by(7) {
            let mut changed = token.clone();
            changed[at] ^= 1;
            wrong(door, &changed);
        }
        // What binds a handshake is not asked of a door's users, and not left out of handshakes.
        let mut acceptor = GssAcceptor::new(server.clone());
        assert_eq!(acceptor.step(Some(&send(MDS)), &[7; 32]).unwrap_err(), Trouble::Unbound);
    });
}
