//! Uploads: nothing shows before all is there, and nothing is left of what was given up.

use crate::memory::Memory;
use crate::*;
use bytes::Bytes;
use std::sync::Arc;
use tieline_types::{Allowed, Caller, Doing, ErrorKind, Mode, Name, Scope};

fn new(replaces: bool) -> NewUpload {
    NewUpload { mode: Mode::new(0o644), umask: Mode::new(0), layout: None, replaces }
}

async fn begin(memory: &Arc<Memory>, who: &Who, name: &str, replaces: bool) -> Result<Upload> {
    let paths = Paths::new(memory.clone());
    let root = paths.find(who, b"/", LastLink::Followed).await?;
    let name: Name = name.parse().unwrap();
    Upload::begin(memory.clone(), who, (&root, &name), new(replaces)).await
}

#[tokio::test]
async fn it_is_seen_when_all_of_it_is_there() {
    let memory = Arc::new(Memory::new(1));
    let who = Who::himself(Caller::root());
    memory.put_elsewhere("old", b"before");
    for (name, replaces) in [("new", false), ("new too", true), ("old", true)] {
        let before = memory.try_bytes(name);
        let mut upload = begin(&memory, &who, name, replaces).await.unwrap();
        upload.write(Bytes::from_static(b"one ")).await.unwrap();
        upload.write(Bytes::from_static(b"two")).await.unwrap();
        upload.write_at(0, Bytes::from_static(b"O")).await.unwrap();
        assert_eq!(memory.try_bytes(name), before);
        upload.finish().await.unwrap();
        assert_eq!(memory.bytes(name), b"One two");
        assert_eq!(memory.handles(), 0);
    }
    // Each was durable before it had its name.
    assert_eq!(memory.syncs.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn what_is_given_up_leaves_nothing() {
    let memory = Arc::new(Memory::new(1));
    let who = Who::himself(Caller::root());
    let mut upload = begin(&memory, &who, "new", false).await.unwrap();
    upload.write(Bytes::from_static(b"one")).await.unwrap();
    let file = upload.id();
    drop(upload);
    while memory.handles() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(memory.attributes(&who.caller, file).await.unwrap_err().kind(), ErrorKind::Stale);
    let upload = begin(&memory, &who, "new", false).await.unwrap();
    let file = upload.id();
    upload.abandon().await;
    assert!(memory.attributes(&who.caller, file).await.is_err() && memory.handles() == 0);
    assert_eq!(memory.try_bytes("new"), None);
}

#[tokio::test]
async fn what_can_be_refused_is_refused_at_once() {
    let memory = Arc::new(Memory::new(1));
    let himself = Who::himself(Caller::root());
    memory.put_elsewhere("there", b"before");
    let at = At { parent: memory.root(), name: &"directory".parse().unwrap() };
    let mode = Mode::new(0o755);
    memory.make_directory(&himself.caller, at, mode, Mode::new(0)).await.unwrap();
    let scope = |doing| {
        let allowed = vec![Allowed { path: Vec::new(), doing }];
        Who::within(Caller::root(), Scope::new(allowed).unwrap())
    };
    let (creates, reads) = (scope(Doing::Create), scope(Doing::Read));
    let refused = [
        (&himself, "there", false, ErrorKind::Exists),
        (&himself, "directory", true, ErrorKind::IsDirectory),
        (&reads, "new", true, ErrorKind::PermissionDenied),
        (&creates, "there", true, ErrorKind::PermissionDenied),
    ];
    for (who, name, replaces, kind) in refused {
        let begun = begin(&memory, who, name, replaces).await;
        assert_eq!(begun.map(|_| ()).unwrap_err().kind(), kind, "{name}");
    }
    // Who may only create does not replace what came meanwhile.
    let upload = begin(&memory, &creates, "new", true).await.unwrap();
    memory.put_elsewhere("new", b"another's");
    assert_eq!(upload.finish().await.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(memory.bytes("new"), b"another's");
}
