//! A repository in a directory, answered from as a client asks.

use super::*;
use crate::repository::{Create, Publish, Repository as Made, WHITELIST_DEFAULT};
use crate::tree::Directory;
use std::fs;
use std::path::PathBuf;
use tieline_auth::{MapCell, MapSigner};
use tieline_format::map::{FederationMap, PublicKey};
use tieline_types::{Content, FileId, Name, RepositoryName, Version};
use tieline_wire::meta::{
    AttributesReply, EntryReply, GetAttributes, GetExtents, GetExtentsReply, Lookup, ReadDirectory,
    ReadDirectoryReply,
};
use tieline_world::World;

const INDEX: MdtIndex = MdtIndex(9);

struct Scene {
    folder: tempfile::TempDir,
    made: Made,
    repositories: Arc<Repositories>,
    clock: Arc<dyn Clock>,
}

impl Scene {
    fn new() -> Self {
        let (folder, world) = (tempfile::tempdir().unwrap(), World::real());
        let (keys, storage) = (folder.path().join("keys"), folder.path().join("storage"));
        let name: RepositoryName = "sw.example.org".parse().unwrap();
        let ttl = Duration::from_secs(1);
        let how = Create { keys, ttl, whitelist: WHITELIST_DEFAULT };
        let made = Made::create(&name, &storage, &how, &world).unwrap();
        let keys = vec![PublicKey(made.keys().public().unwrap().to_der().into())];
        let repository = Repository {
            name,
            mdt: INDEX,
            sources: vec![format!("file://{}", storage.display())],
            catalog: Kind::Signed(keys),
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
        let repositories = Arc::new(Repositories::new(map, Box::new(|_| None)));
        Self { folder, made, repositories, clock: world.clock.clone() }
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path: PathBuf = self.folder.path().join("tree").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn publish(&mut self) {
        let mut tree = Directory::new(self.folder.path().join("tree"));
        self.made.publish(&mut tree, &Publish::default(), &mut |_| ()).unwrap();
    }

    /// As a process that begins.
    fn process(&self) -> Process {
        let address = "repository:sw.example.org";
        Process(Signed::at(address, &self.repositories, &self.clock).unwrap())
    }
}

struct Process(Arc<dyn Answerer>);

impl Process {
    async fn ask(&self, request: Request) -> Result<Vec<u8>, ErrorKind> {
        let until = Instant::now() + Duration::from_secs(20);
        let answer = self.0.answer(&Caller::root(), &request, until).await;
        answer.map_err(|failure| failure.kind)
    }

    async fn find(&self, path: &str) -> Option<FileId> {
        let mut id = FileId::root_of(INDEX);
        for name in path.split('/') {
            let call = Lookup { parent: id, name: name.parse().unwrap() };
            let reply = self.ask(Request::Lookup(call)).await.unwrap();
            let reply: EntryReply = tieline_wire::decode(&reply).unwrap();
            id = reply.attributes?.id;
        }
        Some(id)
    }

    async fn size(&self, id: FileId) -> Result<u64, ErrorKind> {
        let reply = self.ask(Request::GetAttributes(GetAttributes { id })).await?;
        Ok(tieline_wire::decode::<AttributesReply>(&reply).unwrap().attributes.size)
    }

    /// All names, asked for a few at a time.
    async fn list(&self, id: FileId) -> Vec<String> {
        let (mut names, mut after) = (Vec::new(), None::<Name>);
        loop {
            let call = ReadDirectory { id, after: after.clone(), limit: 2, is_plus: true };
            let reply = self.ask(Request::ReadDirectory(call)).await.unwrap();
            let reply: ReadDirectoryReply = tieline_wire::decode(&reply).unwrap();
            names.extend(reply.entries.iter().map(|entry| entry.name.to_string()));
            after = reply.entries.last().map(|entry| entry.name.clone());
            if reply.is_end {
                return names;
            }
        }
    }

    async fn edition(&self) -> u64 {
        let until = Instant::now() + Duration::from_secs(20);
        self.0.holds(until).await.unwrap().edition
    }
}

#[tokio::test]
async fn files_keep_their_ids_and_are_found_by_whoever_never_met_them() {
    let mut scene = Scene::new();
    for folder in ["deep", "deep/deeper"] {
        scene.write(&format!("{folder}/.cvmfscatalog"), b"");
    }
    scene.write("deep/deeper/far/file", b"seven b");
    scene.write("file", b"two");
    scene.publish();
    let (one, other) = (scene.process(), scene.process());
    let far = one.find("deep/deeper/far/file").await.unwrap();
    let folder = one.find("deep/deeper/far").await.unwrap();
    assert_eq!(far.mdt(), INDEX);
    // Another process is asked by ids alone, as one that goes on with a mount.
    assert_eq!(other.size(far).await, Ok(7));
    assert_eq!(scene.process().list(folder).await, ["file"]);
    assert_eq!(other.size(FileId::new(INDEX, 77)).await, Err(ErrorKind::Stale));
    let root = FileId::root_of(INDEX);
    assert_eq!(one.list(root).await, ["deep", "file"]);
    assert_eq!(one.list(one.find("deep").await.unwrap()).await, [".cvmfscatalog", "deeper"]);
    assert_eq!(one.find("deep/nothing").await, None);
}

#[tokio::test]
async fn the_next_revision_is_another_edition_and_the_last_one_never_comes_back() {
    let mut scene = Scene::new();
    scene.write("file", b"one");
    scene.publish();
    let process = scene.process();
    let file = process.find("file").await.unwrap();
    assert_eq!((process.edition().await, process.size(file).await), (2, Ok(3)));
    let manifest = scene.folder.path().join("storage/.cvmfspublished");
    let before = fs::read(&manifest).unwrap();
    scene.write("file", b"three");
    scene.publish();
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!((process.edition().await, process.size(file).await), (3, Ok(5)));
    fs::write(&manifest, &before).unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!((process.edition().await, process.size(file).await), (3, Ok(5)));
    fs::write(&manifest, "no manifest").unwrap();
    assert_eq!(process.size(file).await, Ok(5), "what was believed is gone on with");
    let begun = scene.process().ask(Request::GetAttributes(GetAttributes { id: file })).await;
    assert_eq!(begun, Err(ErrorKind::Corrupt));
}

#[tokio::test]
async fn pieces_are_told_in_pages_and_make_up_the_file() {
    let mut scene = Scene::new();
    let length = 2 * crate::publish::PIECE as u64 + 5;
    scene.write("large", &vec![7; length as usize]);
    scene.publish();
    let process = scene.process();
    let id = process.find("large").await.unwrap();
    let (mut offset, mut pieces) = (0, 0);
    while offset < length {
        let reply = process.ask(Request::GetExtents(GetExtents { id, offset, limit: 2 })).await;
        let reply: GetExtentsReply = tieline_wire::decode(&reply.unwrap()).unwrap();
        for extent in &reply.page.extents {
            assert_eq!(extent.offset, offset);
            assert!(matches!(&extent.content, Content::Chunk(_)));
            assert!(extent.validate().is_ok());
            (offset, pieces) = (extent.end(), pieces + 1);
        }
        assert_eq!(reply.page.covered, offset);
    }
    assert_eq!((offset, pieces), (length, 3));
}
