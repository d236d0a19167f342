//! What the kernel caches, and how it forgets.

use super::*;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;
use tieline_client::Invalidation;
use tieline_types::{FileId, Name};

const ROOT: FileId = FileId(1);

fn done(is_done: Receiver<()>) {
    is_done.recv_timeout(Duration::from_secs(20)).expect("forgotten");
}

fn name(text: &str) -> (FileId, Name) {
    (ROOT, text.parse().unwrap())
}

#[test]
fn bytes_are_cached_until_they_are_invalidated() {
    let on = Mounted::new();
    let id = on.fs.put_elsewhere("a", b"old");
    assert_eq!(fs::read(on.path("a")).unwrap(), b"old");
    on.fs.put_elsewhere("a", b"new");
    assert_eq!(fs::read(on.path("a")).unwrap(), b"old", "believed for an hour");
    let what = Invalidation { attributes: vec![id], data: vec![id], ..Default::default() };
    done(on.fs.invalidate(what));
    assert_eq!(fs::read(on.path("a")).unwrap(), b"new");
}

#[test]
fn a_size_that_changed_unasked_drops_stale_pages() {
    let mut memory = Memory::new(1);
    memory.valid = Duration::ZERO;
    let on = Mounted::with(memory, |_| {});
    on.fs.put_elsewhere("a", b"old");
    let file = File::open(on.path("a")).unwrap();
    assert_eq!(std::io::read_to_string(&file).unwrap(), "old");
    on.fs.put_elsewhere("a", b"newer");
    assert_eq!(file.metadata().unwrap().len(), 5);
    let mut all = [0; 5];
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(&all, b"newer", "not the old page, filled up with zeroes");
}

#[test]
fn attributes_alone_are_invalidated() {
    let on = Mounted::new();
    let id = on.fs.put_elsewhere("a", b"old");
    assert_eq!(fs::metadata(on.path("a")).unwrap().len(), 3);
    on.fs.put_elsewhere("a", b"newer");
    assert_eq!(fs::metadata(on.path("a")).unwrap().len(), 3, "believed for an hour");
    done(on.fs.invalidate(Invalidation { attributes: vec![id], ..Default::default() }));
    assert_eq!(fs::metadata(on.path("a")).unwrap().len(), 5);
}

#[test]
fn a_removed_name_is_gone_and_a_new_one_is_seen() {
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    assert!(on.path("a").exists() && !on.path("b").exists());
    on.fs.remove_elsewhere("a");
    on.fs.put_elsewhere("b", b"x");
    assert!(on.path("a").exists() && !on.path("b").exists(), "believed for an hour");
    let what = Invalidation { entries: vec![name("a"), name("b")], ..Default::default() };
    done(on.fs.invalidate(what));
    assert!(!on.path("a").exists() && on.path("b").exists());
}

#[test]
fn a_doubted_name_is_asked_for_again() {
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    assert!(on.path("a").exists());
    on.fs.remove_elsewhere("a");
    done(on.fs.invalidate(Invalidation { doubted: vec![name("a")], ..Default::default() }));
    assert!(!on.path("a").exists());
}

#[test]
fn a_doubted_name_that_is_right_keeps_what_stands_on_it() {
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    let file = File::open(on.path("a")).unwrap();
    // A name that was answered a moment ago is dropped to be sure, so it must be older.
    std::thread::sleep(Duration::from_millis(1100));
    done(on.fs.invalidate(Invalidation { doubted: vec![name("a")], ..Default::default() }));
    assert!(on.path("a").exists());
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(link, on.path("a"), "not marked as deleted");
}

#[test]
fn an_overtaken_answer_is_not_cached() {
    let mut memory = Memory::new(1);
    memory.valid = Duration::ZERO;
    let on = Mounted::with(memory, |_| {});
    on.fs.put_elsewhere("a", b"old");
    assert_eq!(fs::metadata(on.path("a")).unwrap().len(), 3);
    on.fs.put_elsewhere("a", b"newer");
    assert_eq!(fs::metadata(on.path("a")).unwrap().len(), 5);
    on.fs.remove_elsewhere("a");
    assert!(!on.path("a").exists());
}

#[test]
fn an_opened_file_whose_cache_is_stale_is_read_anew() {
    let mut memory = Memory::new(1);
    memory.keeps_cache = false;
    let on = Mounted::with(memory, |_| {});
    on.fs.put_elsewhere("a", b"old");
    assert_eq!(fs::read(on.path("a")).unwrap(), b"old");
    on.fs.put_elsewhere("a", b"new");
    assert_eq!(fs::read(on.path("a")).unwrap(), b"new");
}

/// A create in flight holds its directory's lock; a recall there must be answered all the same.
fn recalled_while_creating(on: &Mounted, is_contended: bool) {
    on.fs.put_elsewhere("a", b"x");
    assert!(on.path("a").exists());
    on.fs.freeze("create");
    let path = on.path("new");
    let creator = std::thread::spawn(move || File::create(path).map(drop));
    on.fs.wait_until_waiting(1);
    on.fs.remove_elsewhere("a");
    let entries = vec![name("a")];
    let what = Invalidation { entries, is_contended, ..Default::default() };
    done(on.fs.invalidate(what));
    on.fs.thaw();
    creator.join().unwrap().unwrap();
    eventually("the name is gone", || !on.path("a").exists());
}

#[test]
fn a_contended_directory_does_not_hold_up_a_recall() {
    recalled_while_creating(&Mounted::new(), true);
}

#[test]
fn a_lock_nobody_foresaw_does_not_hold_up_a_recall() {
    recalled_while_creating(&Mounted::new(), false);
}

#[test]
fn recalls_behind_a_lock_that_is_held_are_answered_too() {
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    assert!(on.path("a").exists());
    on.fs.freeze("create");
    let path = on.path("new");
    let creator = std::thread::spawn(move || File::create(path).map(drop));
    on.fs.wait_until_waiting(1);
    // More than there are threads, and then again while all threads wait for the lock.
    for names in [["b", "c", "d", "e"], ["f", "g", "h", "a"]] {
        on.fs.remove_elsewhere("a");
        let entries = names.into_iter().map(name).collect();
        done(on.fs.invalidate(Invalidation { entries, ..Default::default() }));
    }
    on.fs.thaw();
    creator.join().unwrap().unwrap();
    assert!(!on.path("a").exists());
}

#[test]
fn older_kernels_answer_recalls_too() {
    for is_contended in [true, false] {
        let on = Mounted::with(Memory::new(1), |options| options.minor_max = 31);
        recalled_while_creating(&on, is_contended);
    }
}

#[test]
fn thousands_of_names_are_doubted_at_once() {
    let on = Mounted::new();
    on.fs.put_elsewhere("f7", b"x");
    assert!(on.path("f7").exists());
    on.fs.remove_elsewhere("f7");
    let entries = (0..9000).map(|n| name(&format!("f{n}"))).collect();
    done(on.fs.invalidate(Invalidation { entries, ..Default::default() }));
    assert!(!on.path("f7").exists());
}

#[test]
fn pages_under_way_are_answered_before_they_are_forgotten() {
    let on = Mounted::new();
    let id = on.fs.put_elsewhere("a", b"old");
    on.fs.freeze("read");
    let path = on.path("a");
    let reader = std::thread::spawn(move || fs::read(path));
    on.fs.wait_until_waiting(1);
    let is_done = on.fs.invalidate(Invalidation { data: vec![id], ..Default::default() });
    // Names do not queue behind it.
    done(on.fs.invalidate(Invalidation { entries: vec![name("b")], ..Default::default() }));
    assert!(is_done.try_recv().is_err(), "the read is not answered yet");
    on.fs.thaw();
    done(is_done);
    assert_eq!(reader.join().unwrap().unwrap(), b"old");
}
