//! Our client, at Python's `http.server`, which knows no ranges and closes each connection.

use crate::{Program, free_port, noise, plain_client, url};
use std::fs;
use std::process::{Command, Stdio};
use tieline_http::Error;
use tieline_http::client::{Request, WholeFile};
use tieline_http::range::{Asked, Ranges};
use tieline_types::ErrorKind;
use tieline_world::World;

#[tokio::test]
async fn all_of_a_file_is_cut_or_refused() {
    let world = World::real();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let file = noise(3 << 20);
    fs::write(folder.path().join("a file"), &file).unwrap();
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
    command.current_dir(folder.path()).stderr(Stdio::null());
    let mut python = Program::start(command);
    python.wait_for(port).await;
    let client = plain_client(&world);
    let at = url(&format!("http://127.0.0.1:{port}/")).below(["a file"]);
    let response = client.send(Request::get(at.clone())).await.unwrap();
    assert_eq!(response.body.whole(8 << 20).await.unwrap(), file);
    let ask = |asked: Vec<Asked>| {
        let request = Request::get(at.clone()).ranges(Ranges::of(asked).unwrap());
        let client = client.clone();
        async move { client.send(request).await.unwrap() }
    };
    let wanted = || vec![Asked::Between { first: 1_000_000, last: 1_000_999 }];
    let refused = ask(wanted()).await.ranged(WholeFile::Refuse).await;
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::Protocol);
    let cut = ask(wanted()).await.ranged(WholeFile::Cut).await.unwrap();
    assert_eq!(cut.length(), Some(3 << 20));
    assert_eq!(cut.run().await.unwrap(), file[1_000_000..1_001_000]);
    let cut = ask(vec![Asked::Last(10)]).await.ranged(WholeFile::Cut).await.unwrap();
    assert_eq!(cut.run().await.unwrap(), file[file.len() - 10..]);
    let beyond = ask(vec![Asked::From(4 << 20)]).await.ranged(WholeFile::Cut).await;
    assert!(matches!(beyond, Err(Error::Unsatisfiable { length: Some(3_145_728), .. })));
    let error = client.send(Request::put(at, "x")).await.unwrap().success().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
}
