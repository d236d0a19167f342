//! What the kernel caches, and how it forgets.

use super::*;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;
use tieline_files::Invalidation;
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

/// The kernel would fill up what it gets to the end that it knew.
#[test]
fn a_file_that_is_cut_while_it_is_read_shows_no_zeroes() {
    let on = Mounted::new();
    let id = on.fs.put_elsewhere("a", &[b'x'; 100_000]);
    for length in [0, 5000] {
        on.fs.put_elsewhere("a", &[b'x'; 100_000]);
        let what = || Invalidation { attributes: vec![id], data: vec![id], ..Default::default() };
        done(on.fs.invalidate(what()));
        let file = File::open(on.path("a")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_000);
        on.fs.freeze("read");
        let read = std::thread::spawn(move || {
            let mut all = vec![b'-'; 100_000];
            let count = file.read_at(&mut all, 0).unwrap();
            all.truncate(count);
            all
        });
        on.fs.wait_until_waiting(1);
        on.fs.put_elsewhere("a", &vec![b'y'; length]);
        let forgotten = on.fs.invalidate(what());
        // Attributes go at once; bytes when the read has its answer.
        std::thread::sleep(Duration::from_millis(200));
        on.fs.thaw();
        let seen = read.join().unwrap();
        done(forgotten);
        assert!(!seen.contains(&0), "{} bytes", seen.len());
        assert_eq!(seen.len(), length);
    }
}

/// Pages that are on their way are waited for only by who wants them forgotten as well.
#[test]
fn parts_are_forgotten_around_a_read_that_waits() {
    let on = Mounted::new();
    let id = on.fs.put_elsewhere("a", &[b'x'; 20_000]);
    let file = File::open(on.path("a")).unwrap();
    let alone = rustix::fs::Advice::Random;
    rustix::fs::fadvise(&file, 0, None, alone).unwrap();
    let page = move |file: &File, offset| {
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, offset).unwrap();
        page
    };
    for offset in [0, 4096, 12_288] {
        assert_eq!(page(&file, offset), [b'x'; 4096]);
    }
    on.fs.freeze("read");
    let read = std::thread::spawn({
        let file = file.try_clone().unwrap();
        move || page(&file, 8192)
    });
    on.fs.wait_until_waiting(1);
    on.fs.put_elsewhere("a", &[b'y'; 20_000]);
    let whole = on.fs.invalidate(Invalidation { data: vec![id], ..Default::default() });
    let parts = vec![(id, 0..8192), (id, 12_288..1 << 40)];
    done(on.fs.invalidate(Invalidation { parts, ..Default::default() }));
    assert!(whole.try_recv().is_err(), "it waits for the read");
    on.fs.thaw();
    assert_eq!(read.join().unwrap(), [b'y'; 4096]);
    done(whole);
    for offset in [0, 4096, 8192, 12_288] {
        assert_eq!(page(&file, offset), [b'y'; 4096]);
    }
}

/// The kernel drops attributes during whose question it was told to forget: where each change
/// elsewhere came with that, a file that grows would keep its size here.
#[test]
fn attributes_that_are_good_once_are_taken_though_the_file_changes_meanwhile() {
    let mut memory = Memory::new(1);
    memory.valid = Duration::ZERO;
    let on = Mounted::with(memory, |_| {});
    let id = on.fs.put_elsewhere("a", b"old");
    let file = File::open(on.path("a")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    on.fs.freeze("attributes");
    let looking = std::thread::spawn({
        let file = file.try_clone().unwrap();
        move || file.metadata().unwrap().len()
    });
    on.fs.wait_until_waiting(1);
    on.fs.put_elsewhere("a", b"newer");
    done(on.fs.invalidate(Invalidation {
        attributes: vec![id],
        data: vec![id],
        ..Default::default()
    }));
    on.fs.thaw();
    assert_eq!(looking.join().unwrap(), 5);
    // Within the size that it knows it does not ask for it.
    on.fs.freeze("attributes");
    let (read, is_read) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut all = [0; 5];
        file.read_exact_at(&mut all, 0).unwrap();
        read.send(all).unwrap();
    });
    let all = is_read.recv_timeout(Duration::from_secs(10));
    on.fs.thaw();
    reading.join().unwrap();
    assert_eq!(&all.expect("it knows the size"), b"newer");
}

/// The kernel drops the answer to its question about the end, and reads on all the same.
#[test]
fn a_read_goes_up_to_the_new_end_though_the_answer_about_it_is_dropped() {
    let mut memory = Memory::new(1);
    memory.valid = Duration::ZERO;
    let on = Mounted::with(memory, |_| {});
    let id = on.fs.put_elsewhere("a", b"old");
    let file = File::open(on.path("a")).unwrap();
    let mut old = [0; 3];
    file.read_exact_at(&mut old, 0).unwrap();
    on.fs.freeze("attributes");
    let reading = std::thread::spawn(move || {
        let mut all = [0; 10_000];
        let length = file.read_at(&mut all, 0).unwrap();
        all[..length].to_vec()
    });
    on.fs.wait_until_waiting(1);
    let new = [b'n'; 9000];
    on.fs.put_elsewhere("a", &new);
    let what = Invalidation { attributes: vec![id], data: vec![id], ..Default::default() };
    done(on.fs.invalidate(what));
    on.fs.thaw();
    let read = reading.join().unwrap();
    assert_eq!((read.len(), read == new), (9000, true));
}

/// One write by the kernel's asynchronous interface (io_submit(2)).
struct Asynchronous {
    context: libc::c_ulong,
    /// `struct iocb` of linux/aio_abi.h.
    request: Box<[u64; 8]>,
}

impl Asynchronous {
    const PWRITE: u64 = 1;

    fn write(file: &File, page: &[u8], offset: u64) -> Self {
        let (address, length) = (page.as_ptr() as u64, page.len() as u64);
        let to = file.as_raw_fd() as u64;
        let request = Box::new([0, 0, Self::PWRITE | to << 32, address, length, offset, 0, 0]);
        let mut this = Self { context: 0, request };
        // SAFETY: pages and request live until the end is waited for.
        let begun = unsafe {
            assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut this.context), 0);
            let mut requests = [this.request.as_mut_ptr()];
            libc::syscall(libc::SYS_io_submit, this.context, 1, requests.as_mut_ptr())
        };
        assert_eq!(begun, 1);
        this
    }

    fn wait(self) -> i64 {
        let mut event = [0_i64; 4];
        // SAFETY: one event is as long as that.
        unsafe {
            let (none, event) = (std::ptr::null::<libc::timespec>(), event.as_mut_ptr());
            let ended = libc::syscall(libc::SYS_io_getevents, self.context, 1, 1, event, none);
            assert_eq!(ended, 1);
            libc::syscall(libc::SYS_io_destroy, self.context);
        }
        event[2]
    }
}

#[test]
fn what_is_written_asynchronously_past_the_cache_is_read() {
    const PAGE: usize = 4096;
    let on = Mounted::new();
    on.fs.put_elsewhere("a", &[b'x'; PAGE]);
    let reader = File::open(on.path("a")).unwrap();
    let direct = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::DIRECT;
    let writer = rustix::fs::open(on.path("a"), direct, rustix::fs::Mode::empty()).unwrap();
    let layout = std::alloc::Layout::from_size_align(PAGE, PAGE).unwrap();
    // SAFETY: as long and as aligned as said, and never given back.
    let page = unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc(layout), PAGE) };
    page.fill(b'y');
    let seen = || {
        let mut seen = [0; PAGE];
        reader.read_exact_at(&mut seen, 0).unwrap();
        (seen[0], seen[PAGE - 1])
    };
    on.fs.freeze("write");
    let write = Asynchronous::write(&File::from(writer), page, 0);
    on.fs.wait_until_waiting(1);
    assert_eq!(seen(), (b'x', b'x'));
    on.fs.thaw();
    assert_eq!(write.wait(), PAGE as i64);
    assert_eq!(seen(), (b'y', b'y'));
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

/// A program that stands in a directory.
struct Standing(std::process::Child);

impl Standing {
    fn at(directory: &Path) -> Self {
        let mut sleep = std::process::Command::new("sleep");
        Self(sleep.arg("1000").current_dir(directory).spawn().unwrap())
    }

    /// As the kernel shows it; with ` (deleted)` behind it, getcwd(2) gives ENOENT.
    fn path(&self) -> PathBuf {
        fs::read_link(format!("/proc/{}/cwd", self.0.id())).unwrap()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Whatever the kernel can do: the oldest, one without an epoch, and this one.
#[test]
fn who_stands_in_a_directory_stands_there_while_its_name_is_doubted() {
    for minor in [31, 43, u32::MAX] {
        let on = Mounted::with(Memory::new(1), |options| options.minor_max = minor);
        let here = on.path("d");
        fs::create_dir(&here).unwrap();
        let standing = Standing::at(&here);
        for is_looked_at in [true, false, true] {
            if is_looked_at {
                fs::metadata(&here).unwrap();
            }
            let what = Invalidation { doubted: vec![name("d")], ..Default::default() };
            done(on.fs.invalidate(what));
            assert_eq!(standing.path(), here, "7.{minor}");
        }
        // The kernel asks again, all the same.
        let before = on.fs.lookups.load(std::sync::atomic::Ordering::Relaxed);
        fs::metadata(&here).unwrap();
        let after = on.fs.lookups.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(after, before + 1, "7.{minor}");
        // What moves is somewhere, and what is removed is not.
        let moved = Some(ROOT);
        let what = Invalidation { entries: vec![name("d")], moved, ..Default::default() };
        done(on.fs.invalidate(what));
        assert_eq!(standing.path(), here, "7.{minor}");
        let what = Invalidation { entries: vec![name("d")], ..Default::default() };
        done(on.fs.invalidate(what));
        assert_eq!(standing.path(), PathBuf::from(format!("{} (deleted)", here.display())));
        drop(standing);
    }
}

/// Also what the kernel renamed itself is known by its name.
#[test]
fn who_stands_in_a_directory_that_was_renamed_here_stands_there() {
    let on = Mounted::new();
    fs::create_dir(on.path("a")).unwrap();
    let standing = Standing::at(&on.path("a"));
    fs::rename(on.path("a"), on.path("b")).unwrap();
    done(on.fs.invalidate(Invalidation { doubted: vec![name("b")], ..Default::default() }));
    assert_eq!(standing.path(), on.path("b"));
    drop(standing);
}
