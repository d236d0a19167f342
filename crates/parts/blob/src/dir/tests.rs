//! The directory store on its own: crashes, wrong directories, full and read-only file systems.

use super::*;
use crate::conformance::{self, bytes, chunk, trailer};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tieline_format::object::ObjectFooter;
use tieline_types::{ErrorKind, FileKind, OstIndex, checksum};
use tieline_world::SystemDice;

fn identity(ost: u16) -> Identity {
    Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(ost) }
}

fn formatted(path: &Path) -> DirChunks {
    DirChunks::format(path, &identity(3), &SystemDice).unwrap();
    DirChunks::open(path, &identity(3)).unwrap()
}

fn store() -> (TempDir, DirChunks) {
    let directory = tempfile::tempdir().unwrap();
    let store = formatted(directory.path());
    (directory, store)
}

async fn put(store: &DirChunks, serial: u64, data: &Bytes) -> Result<(), Error> {
    store.put(&trailer(chunk(serial), data), data.clone()).await
}

/// Why a directory was refused.
fn reason(result: Result<DirChunks, Error>) -> String {
    match result {
        Err(Error::WrongStore { reason, .. } | Error::Missing { reason, .. }) => reason,
        Err(other) => panic!("not a wrong store but {other}"),
        Ok(_) => panic!("the store was opened"),
    }
}

fn object_path(directory: &Path, serial: u64) -> PathBuf {
    directory.join(tree::path(chunk(serial)))
}

#[tokio::test]
async fn conforms() {
    let (_directory, store) = store();
    conformance::check(&store).await;
}

#[tokio::test]
async fn objects_outlive_the_store_that_wrote_them() {
    let (directory, store) = store();
    let data = bytes(100_000, 1);
    put(&store, 1, &data).await.unwrap();
    drop(store);
    let store = DirChunks::open(directory.path(), &identity(3)).unwrap();
    assert_eq!(conformance::read(&store, chunk(1), 0, 100_000).await.unwrap(), data);
    let plain = std::fs::read(object_path(directory.path(), 1)).unwrap();
    assert!(plain.starts_with(&data), "other programs can read the data");
}

#[tokio::test]
async fn what_was_read_once_is_sent_from_the_open_file() {
    let (directory, store) = store();
    assert!(store.abilities().sendfile);
    put(&store, 1, &bytes(100_000, 1)).await.unwrap();
    // Opening it anew would not find it there.
    let (path, away) = (object_path(directory.path(), 1), directory.path().join("away"));
    std::fs::rename(&path, &away).unwrap();
    let slice = store.read(chunk(1), 5000, 10).await.unwrap();
    let Bulk::File(range) = slice.bulk else { panic!("not a file") };
    assert_eq!((range.offset, range.length, slice.checks.len()), (4096, 4096, 1));
}

#[tokio::test]
async fn an_object_that_is_cut_or_removed_behind_us_is_not_sent() {
    let (directory, store) = store();
    let path = object_path(directory.path(), 1);
    let data = bytes(100_000, 1);
    put(&store, 1, &data).await.unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(50_000).unwrap();
    assert!(matches!(store.read(chunk(1), 60_000, 10).await, Err(Error::Damaged { .. })));
    store.replace(&conformance::trailer(chunk(1), &data), data.clone()).await.unwrap();
    assert_eq!(conformance::read(&store, chunk(1), 0, 100_000).await.unwrap(), data);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(store.read(chunk(1), 0, 10).await, Err(Error::Absent { .. })));
}

#[tokio::test]
async fn an_object_that_was_moved_away_behind_us_is_told_to_be_gone() {
    let (directory, store) = store();
    let (path, away) = (object_path(directory.path(), 1), directory.path().join("away"));
    put(&store, 1, &bytes(100_000, 1)).await.unwrap();
    store.stat(chunk(1)).await.unwrap();
    std::fs::rename(&path, &away).unwrap();
    assert!(matches!(store.stat(chunk(1)).await, Err(Error::Absent { .. })));
    assert!(matches!(store.read(chunk(1), 0, 10).await, Err(Error::Absent { .. })));
    // Another file in its place.
    let other = bytes(50_000, 2);
    put(&store, 2, &other).await.unwrap();
    std::fs::rename(object_path(directory.path(), 2), &path).unwrap();
    assert!(matches!(store.stat(chunk(1)).await, Err(Error::Damaged { .. })));
    std::fs::rename(&away, &path).unwrap();
    assert_eq!(store.stat(chunk(1)).await.unwrap().1, 100_000, "it is back");
}

#[tokio::test]
async fn what_is_forgotten_is_looked_for_on_the_disk() {
    let (directory, store) = store();
    let path = object_path(directory.path(), 1);
    put(&store, 1, &bytes(100_000, 1)).await.unwrap();
    let mut whole = std::fs::read(&path).unwrap();
    *whole.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &whole).unwrap();
    store.read(chunk(1), 0, 10).await.expect("from memory");
    store.forget(chunk(1));
    assert!(matches!(store.read(chunk(1), 0, 10).await, Err(Error::Damaged { .. })));
    // Another file under its name.
    put(&store, 2, &bytes(50_000, 2)).await.unwrap();
    std::fs::rename(object_path(directory.path(), 2), &path).unwrap();
    store.forget(chunk(1));
    assert!(matches!(store.read(chunk(1), 0, 10).await, Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn large_objects_come_back_from_wherever_they_lay_in_memory() {
    const PAGE: usize = 4096;
    let (_directory, store) = store();
    let lengths = [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 5 * PAGE + 17];
    let places = [0, 1].into_iter().flat_map(|shift| lengths.map(|length| (shift, length)));
    for (serial, (shift, length)) in places.enumerate() {
        let mut room = vec![0; length + 2 * PAGE];
        let start = room.as_ptr().align_offset(PAGE) + shift;
        let bytes = (0..length).map(|at| (at * 31 % 251) as u8);
        room.splice(start..start + length, bytes);
        let data = Bytes::from(room).slice(start..start + length);
        put(&store, serial as u64, &data).await.unwrap();
        store.sync(&[chunk(serial as u64)]).await.unwrap();
        let slice = store.read(chunk(serial as u64), 0, length as u32).await.unwrap();
        assert!(slice.bulk.to_bytes().unwrap() == data, "{length} bytes, {shift} off a page");
        assert_eq!(tieline_types::checksum::first_mismatch(&data, &slice.checks), None);
        let (_, known) = store.stat(chunk(serial as u64)).await.unwrap();
        assert_eq!(known, length as u64);
    }
}

#[tokio::test]
async fn half_written_objects_are_cleaned_up() {
    let (directory, store) = store();
    drop(store);
    let left = directory.path().join("tmp").join(format!("{}.7", chunk(1)));
    std::fs::write(&left, b"half of an obj").unwrap();
    let store = DirChunks::open(directory.path(), &identity(3)).unwrap();
    assert!(!left.exists());
    assert!(store.list(None, 10).await.unwrap().chunks.is_empty());
    assert_eq!(store.stat(chunk(1)).await.unwrap_err().kind(), ErrorKind::Gone);
}

/// After a power failure a file system may keep a name whose bytes it lost.
#[tokio::test]
async fn truncated_and_damaged_objects_are_never_readable_and_can_be_put_again() {
    let (directory, store) = store();
    let data = bytes(10_000, 1);
    put(&store, 1, &data).await.unwrap();
    drop(store);
    let path = object_path(directory.path(), 1);
    let whole = std::fs::read(&path).unwrap();
    let footer = whole.len() - ObjectFooter::LENGTH;
    let mut versions: Vec<Vec<u8>> =
        [0, 1, 23, 24, 5000, 10_000, 10_001, footer, footer + 1, whole.len() - 1]
            .map(|length| whole[..length].to_vec())
            .into();
    versions.push([&whole[..], b"more"].concat());
    versions.push(vec![0; whole.len()]);
    for at in [10_001, footer, footer + 8, footer + 12, footer + 18] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        versions.push(flipped);
    }
    for version in versions {
        let length = version.len();
        std::fs::write(&path, version).unwrap();
        let store = DirChunks::open(directory.path(), &identity(3)).unwrap();
        let refusal = store.read(chunk(1), 0, 1).await.unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Corrupt, "{length} bytes: {refusal}");
        put(&store, 1, &data).await.unwrap();
        assert_eq!(conformance::read(&store, chunk(1), 0, 10_000).await.unwrap(), data);
    }
}

#[tokio::test]
async fn damaged_data_shows_at_the_reader_in_its_block_only() {
    let (directory, store) = store();
    put(&store, 1, &bytes(10_000, 1)).await.unwrap();
    let file = std::fs::File::options().write(true).open(object_path(directory.path(), 1));
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), b"???", 5000).unwrap();
    let slice = store.read(chunk(1), 0, 10_000).await.unwrap();
    let got = slice.bulk.to_bytes().unwrap();
    assert_eq!(checksum::first_mismatch(&got, &slice.checks), Some(1));
    assert!(conformance::read(&store, chunk(1), 8192, 1808).await.is_ok());
}

#[tokio::test]
async fn an_object_under_another_name_is_damage() {
    let (directory, store) = store();
    put(&store, 1, &bytes(10, 1)).await.unwrap();
    let (from, to) = (object_path(directory.path(), 1), object_path(directory.path(), 2));
    std::fs::copy(from, to).unwrap();
    assert_eq!(store.stat(chunk(2)).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn many_puts_and_deletions_at_once_keep_their_directories() {
    let (_directory, store) = store();
    let data = bytes(10, 1);
    let mut tasks = JoinSet::new();
    for serial in 0..64 {
        let (store, data) = (store.clone(), data.clone());
        tasks.spawn(async move {
            for _ in 0..8 {
                put(&store, serial, &data).await.unwrap();
                assert!(store.delete(chunk(serial)).await.unwrap());
            }
            put(&store, serial, &data).await.unwrap();
        });
    }
    tasks.join_all().await;
    let chunks = store.list(None, 100).await.unwrap().chunks;
    assert_eq!(chunks.len(), 64);
    store.sync(&chunks).await.unwrap();
}

#[tokio::test]
async fn of_two_different_puts_at_once_one_wins() {
    let (_directory, store) = store();
    for serial in 0..20 {
        let (one, two) = (bytes(5000, 1), bytes(5000, 2));
        let (first, second) = tokio::join!(put(&store, serial, &one), put(&store, serial, &two));
        let kept = conformance::read(&store, chunk(serial), 0, 5000).await.unwrap();
        assert_ne!(first.is_ok(), second.is_ok());
        assert_eq!(kept, if first.is_ok() { one } else { two });
    }
}

#[test]
fn a_directory_serves_its_own_ost_once() {
    let (directory, store) = store();
    let path = directory.path();
    assert!(reason(DirChunks::open(path, &identity(3))).contains("another process"));
    assert!(DirChunks::format(path, &identity(3), &SystemDice).is_ok(), "again is no harm");
    drop(store);
    let other = reason(DirChunks::open(path, &identity(4)));
    assert!(other.contains("OST0003 of file system extenci, not to OST0004"), "{other}");
    let elsewhere = Identity { fs: "other".parse().unwrap(), ..identity(3) };
    assert!(reason(DirChunks::open(path, &elsewhere)).contains("extenci"));
    assert!(DirChunks::format(path, &identity(4), &SystemDice).is_err());
    DirChunks::open(path, &identity(3)).unwrap();
}

#[test]
fn a_directory_that_is_not_ours_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert!(reason(DirChunks::open(path, &identity(3))).contains("no marker"));
    let missing = path.join("missing");
    assert!(reason(DirChunks::open(&missing, &identity(3))).contains("no such directory"));
    assert!(DirChunks::format(&missing, &identity(3), &SystemDice).is_err());
    std::fs::create_dir(path.join("objects")).unwrap();
    let refusal = DirChunks::format(path, &identity(3), &SystemDice).unwrap_err();
    assert!(refusal.to_string().contains("whose are they"), "{refusal}");
    std::fs::write(path.join("tieline-ost"), "version = 2\n").unwrap();
    assert!(reason(DirChunks::open(path, &identity(3))).contains("newer build"));
    std::fs::write(path.join("tieline-ost"), "").unwrap();
    assert!(reason(DirChunks::open(path, &identity(3))).contains("no `version`"));
}

#[tokio::test]
async fn a_vanished_file_system_is_neither_filled_nor_taken_for_empty() {
    let (directory, store) = store();
    let (marker, away) = (directory.path().join("tieline-ost"), directory.path().join("away"));
    std::fs::rename(&marker, &away).unwrap();
    for _ in 0..2 {
        let refusals = [
            put(&store, 1, &bytes(10, 1)).await.unwrap_err(),
            store.read(chunk(1), 0, 1).await.unwrap_err(),
            store.delete(chunk(1)).await.unwrap_err(),
            store.space().await.unwrap_err(),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Error::WrongStore { .. }), "{refusal}");
        }
        // Another directory in its place is no better.
        std::fs::copy(&away, &marker).unwrap();
    }
    std::fs::rename(&away, &marker).unwrap();
    put(&store, 1, &bytes(10, 1)).await.unwrap();
}

#[tokio::test]
async fn removed_objects_are_no_space() {
    let (directory, store) = store();
    put(&store, 1, &bytes(10, 1)).await.unwrap();
    std::fs::remove_dir_all(directory.path().join("objects")).unwrap();
    let refusal = store.space().await.unwrap_err();
    assert!(refusal.to_string().contains("objects was removed"), "{refusal}");
    assert_eq!(put(&store, 2, &bytes(10, 1)).await.unwrap_err().kind(), ErrorKind::StorageFault);
}

#[test]
fn full_and_read_only_have_their_own_kinds() {
    let kind = |errno: Errno| failed(Path::new("/x"), "write", errno.into()).kind();
    assert_eq!(kind(Errno::NOSPC), ErrorKind::NoSpace);
    assert_eq!(kind(Errno::DQUOT), ErrorKind::NoSpace);
    assert_eq!(kind(Errno::ROFS), ErrorKind::ReadOnly);
    assert_eq!(kind(Errno::IO), ErrorKind::StorageFault);
}

/// Runs `test` with a small file system of its own, where that is allowed.
fn with_small_file_system(test: impl AsyncFnOnce(&Path, DirChunks) + Send + 'static) {
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
    use rustix::thread::UnshareFlags;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let thread = std::thread::spawn(move || {
        // SAFETY: only this thread, and those that its runtime makes, see other mounts; nothing of
        // the process depends on them.
        let is_private =
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) };
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        if is_private.is_err() || rustix::mount::mount_change("/", private).is_err() {
            return;
        }
        rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&path, formatted(&path)));
        rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
    });
    thread.join().unwrap();
}

#[test]
fn a_full_file_system_refuses_puts_and_takes_them_again_after_a_deletion() {
    with_small_file_system(async |path, store| {
        let data = bytes(300_000, 1);
        let mut serial = 0;
        let refusal = loop {
            serial += 1;
            if let Err(refusal) = put(&store, serial, &data).await {
                break refusal;
            }
        };
        assert!(serial > 2 && matches!(refusal, Error::Full { .. }), "{refusal}");
        assert_eq!(std::fs::read_dir(path.join("tmp")).unwrap().count(), 0, "no half is left");
        assert_eq!(store.stat(chunk(serial)).await.unwrap_err().kind(), ErrorKind::Gone);
        put(&store, 1, &data).await.expect("a repeated put needs no room");
        store.delete(chunk(1)).await.unwrap();
        put(&store, serial, &data).await.unwrap();
    });
}

#[test]
fn a_read_only_file_system_serves_what_it_has() {
    with_small_file_system(async |path, store| {
        use rustix::mount::MountFlags;
        let data = bytes(10_000, 1);
        put(&store, 1, &data).await.unwrap();
        drop(store);
        rustix::mount::mount_remount(path, MountFlags::RDONLY, c"size=1m").unwrap();
        let store = DirChunks::open(path, &identity(3)).unwrap();
        assert_eq!(conformance::read(&store, chunk(1), 0, 10_000).await.unwrap(), data);
        assert!(matches!(put(&store, 2, &data).await, Err(Error::ReadOnly { .. })));
        assert!(matches!(store.space().await, Err(Error::ReadOnly { .. })));
    });
}

#[tokio::test]
async fn what_is_no_object_is_named_once_and_keeps_nobody_waiting() {
    let (directory, store) = store();
    for serial in 0..6 {
        put(&store, serial, &bytes(10, 1)).await.unwrap();
    }
    let objects = directory.path().join("objects");
    let place = |serial| object_path(directory.path(), serial);
    let leaf = place(0).parent().unwrap().to_owned();
    std::fs::write(objects.join("notes"), "x").unwrap();
    std::fs::create_dir(objects.join("1")).unwrap();
    std::fs::create_dir(leaf.join("folder")).unwrap();
    std::fs::write(leaf.join(".nfs0001"), "removed while it was open").unwrap();
    // In the place of objects, and an object where none looks for it.
    std::fs::rename(place(1), objects.join(chunk(1).to_string())).unwrap();
    std::os::unix::fs::symlink("elsewhere", place(1)).unwrap();
    std::fs::remove_file(place(2)).unwrap();
    std::fs::create_dir(place(2)).unwrap();
    std::fs::remove_file(place(3)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place(3), rustix::fs::Mode::from_raw_mode(0o600))
        .unwrap();
    let (mut chunks, mut foreign) = (vec![], vec![]);
    loop {
        let page = store.list(chunks.last().copied(), 2).await.unwrap();
        foreign.extend(page.foreign);
        chunks.extend(&page.chunks);
        if page.chunks.len() < 2 {
            break;
        }
    }
    assert_eq!(chunks, [chunk(0), chunk(4), chunk(5)]);
    let mut named: Vec<_> = foreign
        .iter()
        .map(|foreign| {
            let path = Path::new(std::ffi::OsStr::from_bytes(&foreign.path));
            assert!(directory.path().join(path).symlink_metadata().is_ok(), "{path:?}");
            (path.file_name().unwrap().to_str().unwrap().to_owned(), foreign.kind)
        })
        .collect();
    named.sort_by(|a, b| (&a.0, a.1 as u8).cmp(&(&b.0, b.1 as u8)));
    let id = |serial| chunk(serial).to_string();
    let expected = [
        (id(1), FileKind::Regular),
        (id(1), FileKind::Symlink),
        (id(2), FileKind::Directory),
        (id(3), FileKind::Fifo),
        ("1".to_owned(), FileKind::Directory),
        ("folder".to_owned(), FileKind::Directory),
        ("notes".to_owned(), FileKind::Regular),
    ];
    assert_eq!(named, expected);
    for serial in [1, 2] {
        store.forget(chunk(serial));
        let failed = store.stat(chunk(serial)).await.unwrap_err();
        assert!(matches!(failed, Error::Unopened { .. }), "{failed:?}");
        assert!(failed.to_string().contains(&format!("/{}", id(serial))), "{failed}");
    }
    store.forget(chunk(3));
    let fifo = tokio::time::timeout(Duration::from_secs(5), store.stat(chunk(3))).await.unwrap();
    assert!(matches!(fifo, Err(Error::Damaged { .. })));
}
