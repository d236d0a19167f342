//! TLS between our own client and server, with certificates that openssl made.

use crate::authority::{Authority, Made, openssl};
use crate::{by, url};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tieline_http::client::{Client, Request, Settings};
use tieline_http::header::LOCATION;
use tieline_http::server::{Response, Server};
use tieline_http::tls::{
    ClientCertificates, ClientTls, Identity, Roots, RootsFrom, ServerTls, TlsError,
};
use tieline_http::{Error, StatusCode};
use tieline_types::ErrorKind;
use tieline_world::World;

const NAMES: &str = "DNS:localhost,IP:127.0.0.1";

/// Says who asks.
async fn serve(world: &World, tls: Option<&ServerTls>) -> Server {
    let handler = by(|request| async move {
        let subject = request.certificate.as_ref().and_then(|shown| shown.subject.clone());
        let depth = request.certificate.as_ref().map_or(0, |shown| shown.chain.len());
        let text = format!("{} {depth}", subject.unwrap_or_else(|| "nobody".to_owned()));
        Response::text(StatusCode::OK, &text)
    });
    let settings = tieline_http::server::Settings::default();
    Server::start(world, "127.0.0.1:0", tls.cloned(), settings, handler).await.unwrap()
}

fn client(world: &World, roots: Roots, identity: Option<Identity>) -> Client {
    let tls = ClientTls::new(&world.clock, roots, identity).unwrap();
    Client::new(world, tls, Settings::default())
}

async fn get(client: &Client, server: &Server, host: &str) -> Result<String, Error> {
    let port = server.address().rsplit_once(':').unwrap().1;
    let request = Request::get(url(&format!("https://{host}:{port}/")));
    let body = client.send(request).await?.success().await?.body.whole(1000).await?;
    Ok(String::from_utf8(body.to_vec()).unwrap().trim().to_owned())
}

fn is_refused(result: Result<String, Error>) -> bool {
    let error = result.unwrap_err();
    let is_secure = matches!(error, Error::Secure { .. }) && !error.is_worth_trying_again();
    is_secure && error.kind() == ErrorKind::Unauthenticated
}

#[tokio::test]
async fn servers_are_believed_for_their_names_only() {
    let world = World::real();
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let identity = authority.server("host", NAMES).identity();
    let tls = ServerTls::new(&world.clock, identity, ClientCertificates::Unasked).unwrap();
    let server = serve(&world, Some(&tls)).await;
    let believes = client(&world, authority.roots(), None);
    assert_eq!(get(&believes, &server, "localhost").await.unwrap(), "nobody 0");
    assert_eq!(get(&believes, &server, "127.0.0.1").await.unwrap(), "nobody 0");
    assert!(is_refused(get(&client(&world, other.roots(), None), &server, "localhost").await));
    assert!(is_refused(get(&client(&world, Roots::none(), None), &server, "localhost").await));

    // Another name, and another time; those who are connected stay so.
    let replace = |made: Made| tls.replace(made.identity(), ClientCertificates::Unasked).unwrap();
    replace(authority.server("elsewhere", "DNS:elsewhere.example.org"));
    assert_eq!(get(&believes, &server, "localhost").await.unwrap(), "nobody 0");
    assert!(is_refused(get(&client(&world, authority.roots(), None), &server, "localhost").await));
    replace(authority.make("old", "/CN=old", &format!("subjectAltName={NAMES}"), -1));
    assert!(is_refused(get(&client(&world, authority.roots(), None), &server, "localhost").await));
    replace(authority.server("again", NAMES));
    let again = client(&world, authority.roots(), None);
    assert_eq!(get(&again, &server, "localhost").await.unwrap(), "nobody 0");
    // A client may change its mind too.
    again.replace_tls(ClientTls::new(&world.clock, other.roots(), None).unwrap());
    assert!(is_refused(get(&again, &server, "localhost").await));
}

#[tokio::test]
async fn clients_are_known_by_what_they_prove() {
    let world = World::real();
    let (authority, grid) = (Authority::new("hosts"), Authority::new("people"));
    let host = || authority.server("host", NAMES).identity();
    let somebody = || grid.client("me", "/DC=ch/DC=cern/OU=Users/CN=some.body").identity();
    let optional = ClientCertificates::Optional(grid.roots());
    let tls = ServerTls::new(&world.clock, host(), optional).unwrap();
    let server = serve(&world, Some(&tls)).await;
    let as_whom = |identity| client(&world, authority.roots(), identity);
    assert_eq!(
        get(&as_whom(Some(somebody())), &server, "localhost").await.unwrap(),
        "/DC=ch/DC=cern/OU=Users/CN=some.body 1"
    );
    assert_eq!(get(&as_whom(None), &server, "localhost").await.unwrap(), "nobody 0");
    // Of an authority that is not believed: no connection, rather than nobody.
    let forged = authority.client("forged", "/DC=ch/DC=cern/CN=some.body").identity();
    assert!(get(&as_whom(Some(forged)), &server, "localhost").await.is_err());
    tls.replace(host(), ClientCertificates::Required(grid.roots())).unwrap();
    assert!(get(&as_whom(None), &server, "localhost").await.is_err());
    assert!(get(&as_whom(Some(somebody())), &server, "localhost").await.is_ok());
}

#[tokio::test]
async fn nothing_leads_from_https_to_http() {
    let world = World::real();
    let authority = Authority::new("one");
    let identity = authority.server("host", NAMES).identity();
    let tls = ServerTls::new(&world.clock, identity, ClientCertificates::Unasked).unwrap();
    let plain = serve(&world, None).await;
    let to = format!("http://{}/", plain.address());
    let handler = by(move |_| {
        let to = to.clone();
        async move { Response::new(StatusCode::FOUND).with_text(LOCATION, &to) }
    });
    let settings = tieline_http::server::Settings::default();
    let server = Server::start(&world, "127.0.0.1:0", Some(tls), settings, handler).await.unwrap();
    let error = get(&client(&world, authority.roots(), None), &server, "localhost").await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error:?}");
    assert!(error.to_string().contains("from https to http"), "{error}");
    // One that speaks no TLS is told apart.
    assert!(is_refused(get(&client(&world, authority.roots(), None), &plain, "localhost").await));
}

#[tokio::test]
async fn who_speaks_no_tls_gets_no_answer_and_stops_nobody() {
    let world = World::real();
    let authority = Authority::new("one");
    let identity = authority.server("host", NAMES).identity();
    let tls = ServerTls::new(&world.clock, identity, ClientCertificates::Unasked).unwrap();
    let server = serve(&world, Some(&tls)).await;
    let plain = crate::plain_client(&world);
    let request = Request::get(url(&format!("http://{}/", server.address())));
    assert!(plain.send(request).await.is_err());
    let believes = client(&world, authority.roots(), None);
    assert_eq!(get(&believes, &server, "localhost").await.unwrap(), "nobody 0");
}

#[test]
fn keys_and_roots_are_read_with_care() {
    let authority = Authority::new("one");
    let made = authority.server("host", NAMES);
    fs::set_permissions(&made.key, fs::Permissions::from_mode(0o640)).unwrap();
    let load = |made: &Made| Identity::load(&made.certificate, &made.key);
    assert!(matches!(load(&made), Err(TlsError::Open(_))));
    fs::set_permissions(&made.key, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(load(&made).is_ok());
    let swapped = Made { certificate: made.key.clone(), key: made.key.clone() };
    assert!(matches!(load(&swapped), Err(TlsError::Empty(_))));
    let another = authority.server("another", NAMES);
    let mixed = Identity::load(&made.certificate, &another.key).unwrap();
    let world = World::real();
    assert!(ServerTls::new(&world.clock, mixed, ClientCertificates::Unasked).is_err());

    // A folder as the grid has it, with what else lies there.
    let folder = tempfile::tempdir().unwrap();
    let place = [RootsFrom::Folder(folder.path().to_owned())];
    assert!(matches!(Roots::load(&place), Err(TlsError::Empty(_))));
    for (name, bytes) in [
        ("0a1b2c3d.0", fs::read(authority.certificate()).unwrap()),
        ("0a1b2c3d.1", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec()),
        ("11111111.0", b"nonsense".to_vec()),
        ("0a1b2c3d.r0", b"a list of revoked ones".to_vec()),
        ("0a1b2c3d.signing_policy", b"a policy".to_vec()),
        ("one.pem", fs::read(authority.certificate()).unwrap()),
    ] {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let roots = Roots::load(&place).unwrap();
    assert_eq!((roots.count(), roots.left_out()), (1, 2));
    assert!(matches!(
        Roots::load(&[RootsFrom::File(folder.path().join("missing"))]),
        Err(TlsError::Read { .. })
    ));
}

#[test]
fn subjects_are_those_that_openssl_writes() {
    let authority = Authority::new("one");
    for (number, subject) in [
        "/C=CH/O=CERN/OU=Grid/CN=host/se.example.org",
        "/DC=org/DC=terena/DC=tcs/C=DE/ST=Bayern/L=Muenchen/O=Uni/CN=Some.Body-1",
        "/DC=ch/UID=somebody/emailAddress=some@body.example",
    ]
    .into_iter()
    .enumerate()
    {
        // openssl parts names at slashes: the one inside is escaped for it.
        let asked = subject.replace("host/", "host\\/");
        let made = authority.make(&number.to_string(), &asked, "keyUsage=digitalSignature", 30);
        let der = made.certificate.with_extension("der");
        let convert = format!("x509 -in {number}.pem -outform DER -out {number}.der");
        openssl(authority.path(), &convert);
        assert_eq!(tieline_http::tls::subject(&fs::read(der).unwrap()).as_deref(), Some(subject));
    }
    // Two subjects that would look alike: neither is given.
    let made = authority.make("alike", "/CN=a\\/CN=b", "keyUsage=digitalSignature", 30);
    openssl(authority.path(), "x509 -in alike.pem -outform DER -out alike.der");
    let bytes = fs::read(made.certificate.with_extension("der")).unwrap();
    assert_eq!(tieline_http::tls::subject(&bytes), None);
    for end in 0..bytes.len() {
        assert_eq!(tieline_http::tls::subject(&bytes[..end]), None);
    }
}
