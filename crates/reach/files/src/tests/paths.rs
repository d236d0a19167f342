//! Walks: links, `..`, what is mounted, scopes.

use crate::memory::Memory;
use crate::*;
use std::sync::Arc;
use tieline_types::{Allowed, Caller, Doing, ErrorKind, FileId, FileKind, Mode, Name, Scope};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn way(path: &str) -> Vec<Name> {
    path.split('/').filter(|part| !part.is_empty()).map(name).collect()
}

fn scope(of: &[(&str, Doing)]) -> Who {
    let allowed = of.iter().map(|&(path, doing)| Allowed { path: way(path), doing });
    Who::within(Caller::root(), Scope::new(allowed.collect()).unwrap())
}

struct World {
    memory: Arc<Memory>,
    paths: Paths,
    root: Who,
}

impl World {
    /// `/data/run7/events`, `/home/ann/mine`, and links: `/home/ann/run` and `/home/ann/far` to the
    /// run, relative and absolute, `/home/ann/out` to elsewhere.
    async fn new() -> Self {
        let memory = Arc::new(Memory::new(1));
        let paths = Paths::new(memory.clone());
        let paths = paths.leading_in("/mnt/t", "/data").leading_in("/extenci", "");
        let world = Self { memory, paths, root: Who::himself(Caller::root()) };
        for directory in ["/data", "/data/run7", "/home", "/home/ann"] {
            world.directory(directory).await;
        }
        world.file("/data/run7/events").await;
        world.file("/home/ann/mine").await;
        world.link("/home/ann/run", "../../data/./run7").await;
        world.link("/home/ann/far", "/extenci/data//run7").await;
        world.link("/home/ann/mounted", "/mnt/t/run7").await;
        world.link("/home/ann/out", "/etc/passwd").await;
        world.link("/home/ann/nearly", "/extenci2/data").await;
        world
    }

    async fn directory(&self, path: &str) -> FileId {
        let (parent, name) = self.paths.parent_of(&self.root, path.as_bytes()).await.unwrap();
        let at = At { parent: parent.id(), name: &name };
        let (mode, umask) = (Mode::new(0o755), Mode::new(0));
        let made = self.memory.make_directory(&Caller::root(), at, mode, umask).await;
        made.unwrap().attributes.id
    }

    async fn file(&self, path: &str) {
        let (parent, name) = self.paths.parent_of(&self.root, path.as_bytes()).await.unwrap();
        let at = At { parent: parent.id(), name: &name };
        let (kind, umask) = (FileKind::Regular, Mode::new(0));
        let node = NewNode { kind, mode: Mode::new(0o644), umask, device: 0 };
        self.memory.make_node(&Caller::root(), at, node).await.unwrap();
    }

    async fn link(&self, path: &str, target: &str) {
        let (parent, name) = self.paths.parent_of(&self.root, path.as_bytes()).await.unwrap();
        let at = At { parent: parent.id(), name: &name };
        self.memory.make_symlink(&Caller::root(), at, target.as_bytes()).await.unwrap();
    }

    async fn find(&self, path: &str) -> Result<Entry> {
        self.paths.find(&self.root, path.as_bytes(), LastLink::Followed).await
    }

    async fn refused(&self, who: &Who, path: &str) -> ErrorKind {
        let found = self.paths.find(who, path.as_bytes(), LastLink::Followed).await;
        found.map(|entry| entry.way).unwrap_err().kind()
    }
}

#[tokio::test]
async fn a_path_leads_past_links_and_dots_to_one_way() {
    let world = World::new().await;
    let events = world.find("/data/run7/events").await.unwrap();
    assert_eq!(events.way, way("/data/run7/events"));
    let run = world.find("data/run7").await.unwrap();
    assert_eq!(events.at, Some((run.id(), name("events"))));
    let all = [
        "//data/./run7//events/",
        "/home/ann/run/events",
        "/home/ann/far/events",
        "/home/ann/mounted/events",
        "/home/ann/run/../run7/events",
        "/../../data/run7/events",
        "/home/ann/../ann/run/events",
    ];
    for path in all {
        let found = world.find(path).await.unwrap();
        assert_eq!((found.id(), &found.way), (events.id(), &events.way), "{path}");
        assert_eq!(found.at, events.at, "{path}");
    }
    let root = world.find("/data/..").await.unwrap();
    assert_eq!((root.id(), root.way.len(), root.at), (FileId(1), 0, None));
}

#[tokio::test]
async fn the_last_link_is_followed_or_kept() {
    let world = World::new().await;
    let link = world.paths.find(&world.root, b"/home/ann/run", LastLink::Kept).await.unwrap();
    assert_eq!(link.attributes.kind, FileKind::Symlink);
    assert_eq!(link.way, way("/home/ann/run"));
    assert!(world.find("/home/ann/run").await.unwrap().attributes.is_directory());
}

#[tokio::test]
async fn what_leads_nowhere_says_why() {
    let world = World::new().await;
    let of = |path: &'static str| world.refused(&world.root, path);
    assert_eq!(of("/data/run8/events").await, ErrorKind::NotFound);
    assert_eq!(of("/data/run7/events/x").await, ErrorKind::NotDirectory);
    assert_eq!(of("/data/run7/events/..").await, ErrorKind::NotDirectory);
    assert_eq!(of("/home/ann/nearly").await, ErrorKind::NotSupported);
    let out = world.find("/home/ann/out").await.unwrap_err();
    assert!(out.to_string().contains("out of the file system, to /etc/passwd"), "{out}");
    let long = format!("/{}", "x".repeat(300));
    assert_eq!(world.find(&long).await.unwrap_err().kind(), ErrorKind::NameTooLong);
    let long = "/.".repeat(2049);
    assert_eq!(world.find(&long).await.unwrap_err().kind(), ErrorKind::NameTooLong);
    world.link("/loop", "loop").await;
    assert_eq!(of("/loop").await, ErrorKind::SymlinkLoop);
}

#[tokio::test]
async fn forty_links_are_followed_and_no_more() {
    let world = World::new().await;
    world.link("/l0", "data").await;
    for number in 1..41 {
        world.link(&format!("/l{number}"), &format!("l{}", number - 1)).await;
    }
    assert_eq!(world.find("/l39").await.unwrap().way, way("/data"));
    assert_eq!(world.refused(&world.root, "/l40").await, ErrorKind::SymlinkLoop);
}

/// Two links that each lead to twice the other make few bytes into very many names.
#[tokio::test]
async fn names_on_one_walk_are_bounded() {
    let world = World::new().await;
    let half = "here/".repeat(800);
    world.link("/data/here", ".").await;
    world.link("/data/many", &"./run7/../".repeat(400)).await;
    assert_eq!(world.refused(&world.root, &format!("/data/{half}")).await, ErrorKind::SymlinkLoop);
    let many = format!("/data/{}", "many/".repeat(30));
    assert_eq!(world.refused(&world.root, &many).await, ErrorKind::NameTooLong);
}

#[tokio::test]
async fn a_walk_goes_on_from_what_was_found() {
    let world = World::new().await;
    let ann = world.find("/home/ann").await.unwrap();
    let from =
        |path: &'static [u8]| world.paths.find_from(&world.root, &ann, path, LastLink::Followed);
    assert_eq!(from(b"run/events").await.unwrap().way, way("/data/run7/events"));
    assert_eq!(from(b"../ann/mine").await.unwrap().way, way("/home/ann/mine"));
    assert_eq!(from(b"/home/ann/mine").await.unwrap().way, way("/home/ann/mine"));
    assert_eq!(from(b"").await.unwrap().way, ann.way);
    let (parent, last) = world.paths.parent_of(&world.root, b"/home/ann/run/new/").await.unwrap();
    assert_eq!((parent.way, last), (way("/data/run7"), name("new")));
    for path in [&b"/"[..], b"", b"/home/.."] {
        let error = world.paths.parent_of(&world.root, path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let below = world.paths.parent_of(&world.root, b"/home/ann/mine/new").await.unwrap_err();
    assert_eq!(below.kind(), ErrorKind::NotDirectory);
}

#[tokio::test]
async fn what_is_mounted_is_reached_past_a_root_that_is_silent() {
    let world = World::new().await;
    world.memory.unheard.lock().unwrap().push(FileId(1));
    world.memory.freeze("lookup");
    let found = world.paths.find(&world.root, b"/data", LastLink::Followed);
    assert_eq!(found.await.unwrap().way, way("/data"));
}

#[tokio::test]
async fn a_scope_is_judged_by_the_way_that_was_gone() {
    let world = World::new().await;
    let ann = scope(&[("/home/ann", Doing::Modify), ("/home/ann", Doing::Read)]);
    let find = |path: &'static str| world.paths.find(&ann, path.as_bytes(), LastLink::Followed);
    let mine = find("/home/ann/mine").await.unwrap();
    assert!(ann.may(&mine.way, Doing::Read).is_ok() && ann.may(&mine.way, Doing::Modify).is_ok());
    // What leads there is looked at, and nothing more.
    for above in ["/", "/home"] {
        let above = find(above).await.unwrap();
        assert!(ann.may_pass(&above.way).is_ok());
        assert_eq!(
            ann.may(&above.way, Doing::Read).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        assert!(ann.may(&above.way_of(&name("new")), Doing::Create).is_err());
    }
    // Links and dots lead out of it as little as names.
    for path in [
        "/data",
        "/data/run7/events",
        "/home/ann/run/events",
        "/home/ann/far/events",
        "/home/ann/../../data",
        "/home/bob",
        "/nothing",
    ] {
        assert_eq!(world.refused(&ann, path).await, ErrorKind::PermissionDenied, "{path}");
    }
    let before = world.memory.lookups.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(world.refused(&ann, "/data").await, ErrorKind::PermissionDenied);
    let after = world.memory.lookups.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(before, after, "nothing outside is looked up");
    let new = world.paths.parent_of(&ann, b"/home/ann/new").await;
    assert!(new.is_ok());
    let new = world.paths.parent_of(&ann, b"/home/new").await.unwrap_err();
    assert_eq!(new.kind(), ErrorKind::PermissionDenied);
    let nothing = Who::within(Caller::root(), Scope::default());
    assert_eq!(world.refused(&nothing, "/").await, ErrorKind::PermissionDenied);
}
