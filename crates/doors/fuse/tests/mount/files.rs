//! What programs do with files.

use super::*;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

#[test]
fn files_are_made_written_read_renamed_and_removed() {
    let on = Mounted::new();
    let (path, other) = (on.path("a"), on.path("b"));
    fs::write(&path, b"hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.len(), stat.blocks(), stat.blksize()), (5, 1, 128 << 10));
    fs::rename(&path, &other).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(on.fs.bytes("b"), b"hello");
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 1);
    fs::remove_file(&other).unwrap();
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 0);
    eventually("handles are released", || on.fs.handles() == 0);
}

#[test]
fn large_files_pass_whole_in_both_directions() {
    let on = Mounted::new();
    let bytes: Vec<u8> = (0..9_000_001u32).map(|at| ((at * 31) >> 3) as u8).collect();
    fs::write(on.path("large"), &bytes).unwrap();
    assert!(on.fs.bytes("large") == bytes);
    assert!(fs::read(on.path("large")).unwrap() == bytes, "from the page cache");
    on.fs.put_elsewhere("cold", &bytes);
    assert!(fs::read(on.path("cold")).unwrap() == bytes, "from the file system");
    let mut piece = [0; 1000];
    File::open(on.path("cold")).unwrap().read_exact_at(&mut piece, 3_456_789).unwrap();
    assert_eq!(piece, bytes[3_456_789..3_457_789]);
}

#[test]
fn direct_reads_and_writes_bypass_the_page_cache() {
    let on = Mounted::new();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let file = options.open(on.path("direct")).unwrap();
    let bytes = vec![7u8; 3 << 20];
    file.write_all_at(&bytes, 0).unwrap();
    on.fs.put_elsewhere("direct", &vec![8u8; 3 << 20]);
    let mut back = vec![0u8; 3 << 20];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|&byte| byte == 8), "not what was cached");
}

#[test]
fn appends_go_to_the_end_wherever_the_kernel_thinks_it_is() {
    let on = Mounted::new();
    let mut file = OpenOptions::new().append(true).create(true).open(on.path("log")).unwrap();
    file.write_all(b"one\n").unwrap();
    on.fs.put_elsewhere("log", b"one\nelsewhere\n");
    file.write_all(b"two\n").unwrap();
    assert_eq!(on.fs.bytes("log"), b"one\nelsewhere\ntwo\n");
}

#[test]
fn exclusive_creation_and_truncation_are_the_file_systems() {
    let on = Mounted::new();
    fs::write(on.path("a"), b"old").unwrap();
    let again = OpenOptions::new().write(true).create_new(true).open(on.path("a"));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let mut file = OpenOptions::new().write(true).truncate(true).open(on.path("a")).unwrap();
    assert_eq!(on.fs.bytes("a"), b"");
    file.write_all(b"newer").unwrap();
    file.set_len(2).unwrap();
    assert_eq!(fs::read(on.path("a")).unwrap(), b"ne");
    file.set_len(4).unwrap();
    assert_eq!(fs::read(on.path("a")).unwrap(), b"ne\0\0");
}

#[test]
fn attributes_are_set() {
    let on = Mounted::new();
    fs::write(on.path("a"), b"x").unwrap();
    fs::set_permissions(on.path("a"), fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(on.path("a"), Some(1234), Some(99)).unwrap();
    let stat = fs::metadata(on.path("a")).unwrap();
    // A new owner ends setuid, as on every Linux file system.
    assert_eq!((stat.mode(), stat.uid(), stat.gid()), (0o100_751, 1234, 99));
    let before = std::time::UNIX_EPOCH - Duration::from_millis(1500);
    File::open(on.path("a")).unwrap().set_modified(before).unwrap();
    let stat = fs::metadata(on.path("a")).unwrap();
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (-2, 500_000_000));
}

#[test]
fn a_stranger_s_write_ends_setuid() {
    let on = Mounted::new();
    fs::write(on.path("tool"), b"x").unwrap();
    fs::set_permissions(on.path("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
    let script = format!("echo y > {}", on.path("tool").display());
    assert!(as_nobody("sh").arg("-c").arg(script).status().unwrap().success());
    assert_eq!(fs::metadata(on.path("tool")).unwrap().mode(), 0o100_777);
}

#[test]
fn the_kernel_checks_permissions() {
    let on = Mounted::new();
    fs::write(on.path("secret"), b"x").unwrap();
    fs::set_permissions(on.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody("cat").arg(on.path("secret")).status().unwrap().success());
    fs::set_permissions(on.path("secret"), fs::Permissions::from_mode(0o604)).unwrap();
    assert!(as_nobody("cat").arg(on.path("secret")).status().unwrap().success());
}

#[test]
fn callers_come_with_their_groups() {
    let on = Mounted::new();
    fs::set_permissions(on.root(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut touch = std::process::Command::new("setpriv");
    touch.args(["--reuid=1234", "--regid=99", "--groups=4,500", "touch"]).arg(on.path("mine"));
    assert!(touch.status().unwrap().success());
    let caller = on.fs.callers.lock().unwrap().last().cloned().unwrap();
    assert_eq!((caller.uid.0, caller.gid.0), (1234, 99));
    let groups: Vec<u32> = caller.groups.iter().map(|gid| gid.0).collect();
    assert_eq!(groups, [4, 500]);
    assert_eq!(fs::metadata(on.path("mine")).unwrap().uid(), 1234);
}

#[test]
fn mappings_are_read_and_written() {
    let on = Mounted::new();
    fs::write(on.path("map"), vec![b'a'; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(on.path("map")).unwrap();
    // A handle that appends must not be used for the pages.
    let log = OpenOptions::new().append(true).open(on.path("map")).unwrap();
    let map = Mapping::new(&file, 10_000);
    assert_eq!(map.get(9_999), b'a');
    map.set(5_000, b'Z');
    map.sync();
    let bytes = on.fs.bytes("map");
    assert_eq!((bytes.len(), bytes[5_000], bytes[4_999]), (10_000, b'Z', b'a'));
    drop(log);
}

/// A shared mapping of a file.
struct Mapping {
    at: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; `file` is open.
        let at = unsafe {
            let descriptor = file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, descriptor, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), length }
    }

    fn get(&self, index: usize) -> u8 {
        assert!(index < self.length);
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { self.at.add(index).read_volatile() }
    }

    fn set(&self, index: usize, byte: u8) {
        assert!(index < self.length);
        // SAFETY: as above, and it is writable.
        unsafe { self.at.add(index).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        assert_eq!(unsafe { libc::msync(self.at.cast(), self.length, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; nothing borrows from it.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

#[test]
fn holes_ranges_and_copies() {
    let on = Mounted::new();
    fs::write(on.path("a"), vec![b'x'; 20_000]).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(on.path("a")).unwrap();
    use rustix::fs::FallocateFlags as Flags;
    let punch = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 4096).unwrap();
    rustix::fs::fallocate(&file, Flags::empty(), 0, 30_000).unwrap();
    let bytes = fs::read(on.path("a")).unwrap();
    assert_eq!((bytes.len(), bytes[4096], bytes[8192], bytes[29_999]), (30_000, 0, b'x', 0));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)).unwrap(), 30_000);
    file.seek(SeekFrom::Start(0)).unwrap();
    let copy = File::create(on.path("copy")).unwrap();
    assert_eq!(rustix::fs::copy_file_range(&file, None, &copy, None, 30_000).unwrap(), 30_000);
    assert_eq!(fs::read(on.path("copy")).unwrap(), bytes);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
}

#[test]
fn extended_attributes_are_kept() {
    use rustix::fs::XattrFlags as Flags;
    let on = Mounted::new();
    fs::write(on.path("a"), b"").unwrap();
    let path = on.path("a");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.run", b"7", Flags::CREATE).unwrap();
    set("user.site", b"uf", Flags::empty()).unwrap();
    assert_eq!(set("user.run", b"8", Flags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(set("user.none", b"8", Flags::REPLACE), Err(rustix::io::Errno::NODATA));
    let get = |name: &str, room: usize| {
        let mut value = vec![0u8; room];
        let length = rustix::fs::getxattr(&path, name, &mut value[..])?;
        value.truncate(length);
        rustix::io::Result::Ok(value)
    };
    assert_eq!(rustix::fs::getxattr_query(&path, "user.site"), Ok(2));
    assert_eq!(get("user.site", 1), Err(rustix::io::Errno::RANGE));
    assert_eq!(get("user.site", 9), Ok(b"uf".to_vec()));
    let mut list = [0u8; 64];
    let length = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    assert_eq!(&list[..length], b"user.run\0user.site\0");
    rustix::fs::removexattr(&path, "user.run").unwrap();
    assert_eq!(get("user.run", 9), Err(rustix::io::Errno::NODATA));
    assert_eq!(get("security.capability", 9), Err(rustix::io::Errno::NODATA));
    assert_eq!(set("security.x", b"1", Flags::empty()), Ok(()));
}

#[test]
fn many_threads_use_it_at_once() {
    let on = Mounted::new();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let on = &on;
            scope.spawn(move || {
                for round in 0..50 {
                    let path = on.path(&format!("{thread}-{}", round % 5));
                    let bytes = vec![thread; 3000 * (round + 1)];
                    fs::write(&path, &bytes).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes);
                    if round % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let on = Mounted::new();
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).open(on.path("tmp")).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(on.path("tmp")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn what_is_not_offered_is_refused_as_usual() {
    let mut memory = Memory::new(1);
    memory.has_nameless = false;
    let on = Mounted::with(memory, |_| {});
    let path = CString::new(on.root().as_os_str().as_bytes()).unwrap();
    // SAFETY: a path that ends in a zero byte; the result is checked.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((file, error), (-1, Some(libc::EOPNOTSUPP)));
}

#[test]
fn locks_are_asked_for_and_freed_at_close() {
    let on = Mounted::new();
    let file = File::create(on.path("a")).unwrap();
    file.lock().unwrap();
    let other = File::open(on.path("a")).unwrap();
    assert!(other.try_lock().is_err());
    let waiting = std::thread::spawn(move || other.lock().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!waiting.is_finished());
    drop(file);
    waiting.join().unwrap();
}

/// A command of somebody without any right of his own.
fn as_nobody(program: &str) -> std::process::Command {
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}
