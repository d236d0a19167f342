//! Entries of a spool: what is given later lies over what was given before, and nothing is half
//! there.

// Ranges are given as lists, of which some have one.
#![allow(clippy::single_range_in_vec_init)]

use super::*;
use bytes::Bytes;
use rustix::fs::{CWD, renameat_with};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_owed::spool::{Piece, Place};
use tieline_types::{Caller, ErrorKind, Time, Version};

const FILE: FileId = FileId(0x10_0000_0007);

fn about() -> About {
    About {
        source: "h:1:/extenci/sub".to_owned(),
        mountpoint: "/mnt/x".into(),
        mapkey: "00".to_owned(),
    }
}

fn lost(place: Place, bytes: &'static [u8], claim: Claim) -> Lost {
    Lost {
        file: FILE,
        path: b"sub/d/f".to_vec(),
        pieces: vec![Piece { place, bytes: Bytes::from_static(bytes) }],
        claim,
        kind: ErrorKind::NoSpace,
        why: "full".to_owned(),
        writer: Caller::root(),
        base: Some(Base { version: Some(Version(3)), mtime: None, size: 0 }),
    }
}

fn spool(place: &Path, bytes_max: u64) -> (PathBuf, Arc<DiskSpool>) {
    let directory = own_directory(place, "extenci", Path::new("/mnt/x"));
    (directory.clone(), DiskSpool::new(directory, ByteSize(bytes_max), about()))
}

#[tokio::test]
async fn bytes_lie_at_their_places_and_nobody_else_reads_them() {
    let place = tempfile::tempdir().unwrap();
    let (directory, spool) = spool(place.path(), 1 << 20);
    let all = vec![
        lost(Place::At(8), b"world", Claim::Answered),
        lost(Place::At(0), b"hello", Claim::Open),
        lost(Place::Appended, b"one", Claim::Answered),
        lost(Place::Appended, b"two", Claim::Answered),
    ];
    assert!(spool.keep(all).await.iter().all(Result::is_ok));
    let entries = entry::all_at(&directory);
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    let ranges = |entry: &Entry| -> Vec<Range<u64>> {
        entry.manifest.placed.iter().map(|part| part.range()).collect()
    };
    assert_eq!(ranges(entry), [0..5, 8..13]);
    assert_eq!(std::fs::read(entry.file("data")).unwrap(), b"hello\0\0\0world");
    assert_eq!(std::fs::read(entry.file("appended")).unwrap(), b"onetwo");
    assert_eq!(entry.manifest.shown(), "/mnt/x/d/f");
    assert_eq!(entry.manifest.id().unwrap(), FILE);
    for file in std::fs::read_dir(&directory).unwrap() {
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // Whoever wrote them was told.
    spool.forget(FILE, Claim::Open).await;
    let now = Base { version: Some(Version(9)), mtime: None, size: 10 };
    spool.changed(FILE, now, vec![9..10]).await;
    let entry = &entry::all_at(&directory)[0];
    assert_eq!(ranges(entry), [8..9, 10..13]);
    let base = entry.manifest.base.as_ref().unwrap();
    assert!(base.is_of(Version(9), Time::default(), 0));
    assert!(!base.is_of(Version(3), Time::default(), 10));
    spool.changed(FILE, now, vec![0..u64::MAX]).await;
    spool.forget(FILE, Claim::Answered).await;
    assert!(entry::all_at(&directory).is_empty());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "the lock alone");
}

#[tokio::test]
async fn a_spool_that_is_full_says_so_and_has_room_again() {
    let place = tempfile::tempdir().unwrap();
    let (directory, spool) = spool(place.path(), 8);
    let keep = async |at, bytes| spool.keep(vec![lost(Place::At(at), bytes, Claim::Open)]).await;
    assert_eq!(keep(0, b"12345").await, [Ok(())]);
    let refused = keep(5, b"6789").await.remove(0).unwrap_err();
    assert!(refused.contains("full") && refused.contains("spool-size"), "{refused}");
    spool.answered(FILE).await;
    spool.forget(FILE, Claim::Open).await;
    let entry = entry::all_at(&directory).remove(0);
    assert_eq!(entry.manifest.bytes(), 5, "nobody is told of it any more");
    entry.remove().unwrap();
    assert_eq!(keep(5, b"6789").await, [Ok(())], "it was put back");
}

#[tokio::test]
async fn what_others_may_look_into_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (directory, spool) = spool(place.path(), 1 << 20);
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    let refused = spool.keep(vec![lost(Place::At(0), b"x", Claim::Open)]).await.remove(0);
    assert!(refused.unwrap_err().contains("chmod 700"));
}

#[tokio::test]
async fn a_manifest_that_is_half_written_counts_for_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (directory, spool) = spool(place.path(), 1 << 20);
    assert_eq!(spool.keep(vec![lost(Place::At(0), b"x", Claim::Answered)]).await, [Ok(())]);
    let entry = &entry::all_at(&directory)[0];
    let manifest = File::options().write(true).open(entry.file("json")).unwrap();
    manifest.write_all_at(b"?", 0).unwrap();
    assert!(entry::all_at(&directory).is_empty());
    // A new entry takes no name of before.
    let (_, next) = self::spool(place.path(), 1 << 20);
    assert_eq!(next.keep(vec![lost(Place::At(0), b"y", Claim::Answered)]).await, [Ok(())]);
    assert!(entry::all_at(&directory)[0].name.ends_with("-2"));
}

#[test]
fn nothing_is_kept_where_somebody_puts_a_link_meanwhile() {
    let place = tempfile::tempdir().unwrap();
    let (directory, spool) = spool(place.path(), 1 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let keep = async || spool.keep(vec![lost(Place::At(0), b"x", Claim::Open)]).await;
    assert_eq!(runtime.block_on(keep()), [Ok(())]);
    let (outside, link) = (place.path().join("etc"), place.path().join("link"));
    DirBuilder::new().mode(0o700).create(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                renameat_with(CWD, &directory, CWD, &link, flags).unwrap();
            }
        });
        let kept = (0..300).filter(|_| runtime.block_on(keep())[0].is_ok()).count();
        is_over.store(true, Ordering::Relaxed);
        assert!(kept > 0);
    });
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "something was written elsewhere");
}
