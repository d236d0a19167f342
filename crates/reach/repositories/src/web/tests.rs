//! Files of servers that know ranges or do not, that lie, and that are away.

use super::*;
use crate::Repositories;
use std::sync::Mutex;
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner};
use tieline_format::map::{Catalog, FederationMap, Repository};
use tieline_http::StatusCode;
use tieline_http::header::{HeaderValue, RANGE};
use tieline_http::server::content::{self, About};
use tieline_http::server::{self, Handler, Response, Server};
use tieline_types::{Digest, MdtIndex, RepositoryName, Version};
use tokio::time::Instant;

const BYTES: &[u8] = b"0123456789";

#[derive(Default)]
struct Files {
    knows_ranges: bool,
    is_away: bool,
    asked: Mutex<Vec<String>>,
}

struct Serves(Arc<Files>);

#[async_trait::async_trait]
impl Handler for Serves {
    async fn answer(&self, request: server::Request) -> Response {
        let path = request.path.encode();
        let range = request.headers.get(RANGE).and_then(|range| range.to_str().ok());
        let asked = format!("{path} {}", range.unwrap_or("all"));
        self.0.asked.lock().unwrap().push(asked);
        if self.0.is_away {
            return Response::text(StatusCode::SERVICE_UNAVAILABLE, "away");
        }
        if path != "/sw/data/one" {
            return Response::text(StatusCode::NOT_FOUND, "no such file");
        }
        let bytes = Bytes::from_static(BYTES);
        if !self.0.knows_ranges {
            return Response::new(StatusCode::OK).body(bytes);
        }
        let kind = HeaderValue::from_static("application/octet-stream");
        let about = About { length: 10, kind, version: Default::default() };
        content::answer(&request, &about, Arc::new(bytes))
    }
}

struct Scene {
    repositories: Repositories,
    first: Arc<Files>,
    second: Arc<Files>,
    _servers: [Server; 2],
}

fn name() -> RepositoryName {
    "sw.example.org".parse().unwrap()
}

async fn scene(first: Files, second: Files) -> Scene {
    let (world, _) = World::local(7);
    let (first, second) = (Arc::new(first), Arc::new(second));
    let serve = async |host: &str, files: &Arc<Files>| {
        let handler = Arc::new(Serves(files.clone()));
        Server::start(&world, host, None, Default::default(), handler).await.unwrap()
    };
    let servers = [serve("one:80", &first).await, serve("two:80", &second).await];
    let repository = Repository {
        name: name(),
        mdt: MdtIndex(0),
        sources: ["http://one/sw", "http://two/sw"].map(str::to_owned).to_vec(),
        catalog: Catalog::Frozen(Digest::of(b"")),
    };
    let map = FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(1),
        mdts: vec![],
        junctions: vec![],
        osts: vec![],
        pools: vec![],
        security: None,
        invitations: None,
        repositories: Some(vec![repository]),
    };
    let signer = MapSigner::new([7; 32]);
    let map = MapCell::new(signer.verifier(), signer.sign(&map)).unwrap();
    let web = Web::new(&world);
    let repositories = Repositories::new(map, Box::new(move |source| web.shelf(source)));
    Scene { repositories, first, second, _servers: servers }
}

impl Scene {
    async fn get(&self, want: Want<'_>) -> Result<Bytes, ErrorKind> {
        let until = Instant::now() + Duration::from_secs(60);
        self.repositories.get(&name(), want, until).await.map_err(|trouble| trouble.kind)
    }
}

fn want(offset: u64, length: Option<u64>) -> Want<'static> {
    Want { key: "data/one", offset, length, most: 10 }
}

fn asked(files: &Files) -> Vec<String> {
    std::mem::take(&mut files.asked.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn files_are_asked_for_whole_and_parts_of_packs_by_ranges() {
    for knows_ranges in [true, false] {
        let scene = scene(Files { knows_ranges, ..Files::default() }, Files::default()).await;
        for whole in [want(0, None), want(0, Some(10))] {
            assert_eq!(scene.get(whole).await.unwrap(), BYTES);
            assert_eq!(asked(&scene.first), ["/sw/data/one all"]);
        }
        assert_eq!(scene.get(want(3, Some(4))).await.unwrap(), BYTES[3..7]);
        assert_eq!(asked(&scene.first), ["/sw/data/one bytes=3-6"]);
        assert_eq!(scene.get(want(3, None)).await.unwrap(), BYTES[3..]);
        assert_eq!(scene.get(want(0, Some(4))).await.unwrap(), BYTES[..4]);
        assert_eq!(asked(&scene.first).last().unwrap(), "/sw/data/one bytes=0-3");
        assert!(asked(&scene.second).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_larger_than_it_may_be_is_not_read() {
    let scene = scene(Files::default(), Files::default()).await;
    let small = |want| Want { most: 9, ..want };
    for wrong in [want(0, None), want(0, Some(10)), want(0, Some(u64::MAX))] {
        assert!(scene.get(small(wrong)).await.is_err(), "{wrong:?}");
    }
    assert!(scene.get(want(8, Some(3))).await.is_err(), "there are no three bytes");
}

#[tokio::test(start_paused = true)]
async fn another_source_is_asked_and_one_that_failed_is_asked_last() {
    let scene = scene(Files { is_away: true, ..Files::default() }, Files::default()).await;
    assert_eq!(scene.get(want(0, None)).await.unwrap(), BYTES);
    assert!(!asked(&scene.first).is_empty());
    assert_eq!(scene.get(want(0, None)).await.unwrap(), BYTES);
    assert!(asked(&scene.first).is_empty(), "it failed just now");
    let none = Want { key: "data/two", ..want(0, None) };
    assert!(scene.get(none).await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;
    asked(&scene.first);
    assert_eq!(scene.get(want(0, None)).await.unwrap(), BYTES);
    assert!(!asked(&scene.first).is_empty(), "it may be back");
}
