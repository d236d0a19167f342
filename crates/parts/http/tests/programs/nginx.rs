//! Our client, at nginx.

use crate::authority::Authority;
use crate::{Program, free_port, noise, plain_client, url};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tieline_http::client::{Client, Request, Settings, WholeFile};
use tieline_http::header::{IF_NONE_MATCH, RANGE};
use tieline_http::range::{Asked, Ranges};
use tieline_http::tls::{ClientTls, Roots, RootsFrom};
use tieline_http::{Error, StatusCode};
use tieline_types::ErrorKind;
use tieline_world::World;

/// An nginx in a folder, with what more is in its server's block.
async fn nginx(folder: &Path, port: u16, tls: &str, block: &str) -> Program {
    let place = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {place}/{kind};"));
    let settings = format!(
        "daemon off; master_process off; pid {place}/nginx.pid; error_log {place}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; {}\n\
         server {{ listen 127.0.0.1:{port}{tls}; root {place}/files; {block} }} }}\n",
        temporary.join(" ")
    );
    fs::write(folder.join("nginx.conf"), settings).unwrap();
    fs::create_dir_all(folder.join("files")).unwrap();
    // Debian has it where only root looks.
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("nginx");
    command.env("PATH", path).stderr(Stdio::null());
    command.arg("-c").arg(folder.join("nginx.conf")).arg("-p").arg(folder);
    let mut program = Program::start(command);
    program.wait_for(port).await;
    program
}

async fn get(client: &Client, text: &str) -> Result<Vec<u8>, Error> {
    let response = client.send(Request::get(url(text))).await?.success().await?;
    Ok(response.body.whole(64 << 20).await?.to_vec())
}

#[tokio::test]
async fn files_and_their_ranges() {
    let world = World::real();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let block = "location /moved { return 302 /file; } location /round { return 301 /round; }\
        location /busy { return 503; } max_ranges 10;";
    let _nginx = nginx(folder.path(), port, "", block).await;
    let file = noise(5 << 20);
    fs::write(folder.path().join("files/file"), &file).unwrap();
    fs::write(folder.path().join("files/empty"), "").unwrap();
    let client = plain_client(&world);
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    assert_eq!(get(&client, &at("/file")).await.unwrap(), file);
    assert_eq!(get(&client, &at("/moved")).await.unwrap(), file);
    assert_eq!(get(&client, &at("/empty")).await.unwrap(), b"");
    for (path, kind) in [
        ("/missing", ErrorKind::NotFound),
        ("/busy", ErrorKind::Overloaded),
        ("/round", ErrorKind::Protocol),
    ] {
        assert_eq!(get(&client, &at(path)).await.unwrap_err().kind(), kind, "{path}");
    }
    let ask = |asked: Vec<Asked>| {
        let request = Request::get(url(&at("/file"))).ranges(Ranges::of(asked).unwrap());
        let client = client.clone();
        async move { client.send(request).await.unwrap().ranged(WholeFile::Refuse).await }
    };
    let between = |first, last| Asked::Between { first, last };
    let run = ask(vec![between(1000, 1_999_999)]).await.unwrap().run().await.unwrap();
    assert_eq!(run, file[1000..2_000_000]);
    assert_eq!(
        ask(vec![Asked::Last(7)]).await.unwrap().run().await.unwrap(),
        file[file.len() - 7..]
    );
    let error = ask(vec![Asked::From(5 << 20)]).await.err().unwrap();
    assert!(matches!(error, Error::Unsatisfiable { length: Some(5_242_880), .. }), "{error:?}");
    // In parts.
    let wanted = [(4_000_000, 4_000_099), (10, 19), (100_000, 299_999)];
    let asked = wanted.iter().map(|(first, last)| between(*first, *last)).collect();
    let mut body = ask(asked).await.unwrap();
    let mut got = vec![None; file.len()];
    while let Some((at, bytes)) = body.next().await.unwrap() {
        for (place, byte) in got.iter_mut().skip(at as usize).zip(bytes) {
            assert_eq!(place.replace(byte), None, "each byte once");
        }
    }
    let is_wanted = |at: u64| wanted.iter().any(|(first, last)| (*first..=*last).contains(&at));
    for (at, (got, byte)) in got.into_iter().zip(&file).enumerate() {
        assert_eq!(got, is_wanted(at as u64).then_some(*byte), "{at}");
    }
    // More than it gives in parts: all of it, which is refused, or cut.
    let many: Vec<_> = (0..20).map(|number| between(number * 1000, number * 1000 + 9)).collect();
    assert!(matches!(ask(many.clone()).await, Err(Error::Range { .. })));
    let request = Request::get(url(&at("/file"))).ranges(Ranges::of(many).unwrap());
    let mut body = client.send(request).await.unwrap().ranged(WholeFile::Cut).await.unwrap();
    let mut count = 0;
    while let Some((at, bytes)) = body.next().await.unwrap() {
        assert_eq!(bytes, file[at as usize..at as usize + bytes.len()]);
        count += bytes.len();
    }
    assert_eq!(count, 200);
    // A version that is had already.
    let head = client.send(Request::head(url(&at("/file")))).await.unwrap();
    let tag = head.headers["etag"].clone();
    let again = Request::get(url(&at("/file"))).header(IF_NONE_MATCH, tag);
    assert_eq!(client.send(again).await.unwrap().status, StatusCode::NOT_MODIFIED);
    // A header of one's own is no typed range: nothing judges it.
    let own = Request::get(url(&at("/file"))).header(RANGE, "bytes=0-1".parse().unwrap());
    let own = client.send(own).await.unwrap();
    assert!(matches!(own.ranged(WholeFile::Cut).await, Err(Error::Range { .. })));
}

#[tokio::test]
async fn what_nginx_closes_is_opened_again() {
    let world = World::real();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let _nginx = nginx(folder.path(), port, "", "keepalive_requests 3;").await;
    fs::write(folder.path().join("files/file"), "some").unwrap();
    let client = plain_client(&world);
    for _ in 0..20 {
        assert_eq!(get(&client, &format!("http://127.0.0.1:{port}/file")).await.unwrap(), b"some");
    }
    let gets = (0..40).map(|_| {
        let (client, at) = (client.clone(), format!("http://127.0.0.1:{port}/file"));
        tokio::spawn(async move { get(&client, &at).await.unwrap().len() })
    });
    for one in gets.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), 4);
    }
}

#[tokio::test]
async fn with_certificates_of_both() {
    let world = World::real();
    let authority = Authority::new("one");
    let host = authority.server("host", "DNS:localhost,IP:127.0.0.1");
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let root = authority.certificate();
    let block = format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {};\
         ssl_verify_client on; location /me {{ return 200 $ssl_client_s_dn; }}",
        host.certificate.display(),
        host.key.display(),
        root.display()
    );
    let _nginx = nginx(folder.path(), port, " ssl", &block).await;
    let client = |identity| {
        let roots = Roots::load(&[RootsFrom::File(root.clone())]).unwrap();
        let tls = ClientTls::new(&world.clock, roots, identity).unwrap();
        Client::new(&world, tls, Settings::default())
    };
    let at = format!("https://localhost:{port}/me");
    let me = authority.client("me", "/DC=ch/CN=some.body").identity();
    assert_eq!(get(&client(Some(me)), &at).await.unwrap(), b"CN=some.body,DC=ch");
    let error = get(&client(None), &at).await.unwrap_err();
    assert!(matches!(error, Error::Status { status: StatusCode::BAD_REQUEST, .. }), "{error:?}");
}
