//! Mounts come and go.

use super::*;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use tieline_fuse::Unmounted;

fn mount_line(on: &Mounted) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let mountpoint = format!(" {} ", on.root().display());
    table.lines().find(|line| line.contains(&mountpoint)).map(str::to_owned)
}

fn wait_ended(on: &Mounted) {
    let ended = async { tokio::time::timeout(Duration::from_secs(20), on.mount.wait()).await };
    on.runtime.block_on(ended).expect("ended");
}

#[test]
fn the_mount_shows_what_it_is() {
    let on = Mounted::with(Memory::new(1), |options| options.is_read_only = true);
    let line = mount_line(&on).unwrap();
    assert!(line.starts_with("127.0.0.1:7988:/extenci "), "{line}");
    for word in ["fuse.tieline", "ro,", "nosuid", "nodev", "default_permissions", "allow_other"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    let error = fs::write(on.path("a"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn the_kernel_reads_further_ahead() {
    let on = Mounted::new();
    let device = fs::metadata(on.root()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    assert_eq!(fs::read_to_string(setting).unwrap().trim(), "4096");
}

#[test]
fn unmounted_from_here() {
    let on = Mounted::new();
    fs::write(on.path("a"), b"x").unwrap();
    assert_eq!(on.runtime.block_on(on.mount.unmount()).unwrap(), Unmounted::Clean);
    wait_ended(&on);
    assert_eq!(mount_line(&on), None);
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 0);
    assert_eq!(on.runtime.block_on(on.mount.unmount()).unwrap(), Unmounted::Clean, "again");
}

#[test]
fn unmounted_from_outside() {
    let on = Mounted::new();
    unmount(on.root(), UnmountFlags::empty()).unwrap();
    wait_ended(&on);
}

#[test]
fn a_busy_mount_is_taken_out_of_sight() {
    let on = Mounted::new();
    fs::write(on.path("a"), b"held").unwrap();
    let file = File::open(on.path("a")).unwrap();
    assert_eq!(on.runtime.block_on(on.mount.unmount()).unwrap(), Unmounted::Detached);
    assert_eq!(mount_line(&on), None);
    assert_eq!(std::io::read_to_string(&file).unwrap(), "held", "served until it lets go");
    drop(file);
    wait_ended(&on);
}

#[test]
fn a_dropped_mount_is_gone() {
    let on = Mounted::new();
    let path = on.root().to_owned();
    let Mounted { mount, fs: _, runtime, _directory } = on;
    drop(mount);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!table.contains(path.to_str().unwrap()));
    drop(runtime);
}

#[test]
fn a_directory_below_the_top_is_the_root_here() {
    let on = Mounted::with(Memory::new(0x0002_0000_0000_0001), |_| {});
    fs::create_dir(on.path("d")).unwrap();
    assert_eq!(fs::metadata(on.root()).unwrap().ino(), 0x0002_0000_0000_0001);
    let up = fs::metadata(on.path("d/..")).unwrap();
    assert_eq!(up.ino(), 0x0002_0000_0000_0001);
    fs::write(on.path("d/a"), b"x").unwrap();
    assert_eq!(fs::read(on.path("d/a")).unwrap(), b"x");
}

#[test]
fn older_protocols_work_too() {
    for minor in [31, 33, 36, 38, 41] {
        let on = Mounted::with(Memory::new(1), |options| options.minor_max = minor);
        fs::create_dir(on.path("d")).unwrap();
        fs::write(on.path("d/a"), vec![5; 2_000_000]).unwrap();
        assert!(fs::read(on.path("d/a")).unwrap() == vec![5; 2_000_000]);
        assert_eq!(fs::read_dir(on.path("d")).unwrap().count(), 1);
        fs::rename(on.path("d/a"), on.path("b")).unwrap();
        fs::remove_file(on.path("b")).unwrap();
    }
}

#[test]
fn a_wrong_mount_point_is_named() {
    let runtime = Runtime::new().unwrap();
    let options = MountOptions::new("/nowhere/at/all", "x:/y");
    let fs = Arc::new(Memory::new(1));
    let error = Mount::start(fs, &options, runtime.handle().clone()).err().unwrap();
    assert_eq!(error.to_string(), "/nowhere/at/all cannot be used as a mount point");
}
