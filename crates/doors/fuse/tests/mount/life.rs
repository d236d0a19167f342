//! Mounts come and go.

use super::*;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tieline_fuse::Unmounted;

fn mount_line(mountpoint: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let mountpoint = format!(" {} ", mountpoint.display());
    table.lines().find(|line| line.contains(&mountpoint)).map(str::to_owned)
}

fn wait_ended(on: &Mounted) {
    let ended = async { tokio::time::timeout(Duration::from_secs(20), on.mount.wait()).await };
    on.runtime.block_on(ended).expect("ended");
}

#[test]
fn the_mount_shows_what_it_is() {
    let on = Mounted::with(Memory::new(1), |options| options.is_read_only = true);
    let line = mount_line(on.root()).unwrap();
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
    assert_eq!(mount_line(on.root()), None);
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
    assert_eq!(mount_line(on.root()), None);
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

/// Somebody who is not root, in a mount namespace where /dev/fuse is open to all as udev makes it.
#[test]
fn mounted_by_somebody_else_through_the_helper() {
    assert!(rustix::process::geteuid().is_root(), "this test changes its user: run it as root");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(at("mnt")).unwrap();
    std::os::unix::fs::chown(at("mnt"), Some(65534), Some(65534)).unwrap();
    // Where the build is may be nobody's business.
    fs::copy(std::env::current_exe().unwrap(), at("test")).unwrap();
    let script = "set -e; command -v fusermount3 >/dev/null || { echo install fuse3; exit 1; }
        mknod $1/fuse c 10 229; chmod 666 $1/fuse; mount --bind $1/fuse /dev/fuse; cd /
        MOUNTPOINT=$1/mnt exec setpriv --reuid=65534 --regid=65534 --clear-groups \
            $1/test --exact life::mounts_as_somebody_else --ignored --nocapture";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    let output = unshare.arg(directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by the test above, as somebody else"]
fn mounts_as_somebody_else() {
    let mountpoint = PathBuf::from(std::env::var_os("MOUNTPOINT").unwrap());
    let runtime = Runtime::new().unwrap();
    let options = MountOptions::new(&mountpoint, "a,b:7988:/extenci");
    let memory = Arc::new(Memory::new(1));
    memory.put_elsewhere("theirs", b"x");
    let mount = Mount::start(memory, &options, runtime.handle().clone()).unwrap();
    let line = mount_line(&mountpoint).unwrap();
    assert!(line.starts_with("a,b:7988:/extenci "), "{line}");
    assert!(line.contains("fuse.tieline") && line.contains("user_id=65534"), "{line}");
    assert_eq!(fs::read(mountpoint.join("theirs")).unwrap(), b"x");
    assert_eq!(runtime.block_on(mount.unmount()).unwrap(), Unmounted::Clean);
    let ended = async { tokio::time::timeout(Duration::from_secs(20), mount.wait()).await };
    runtime.block_on(ended).expect("ended");
    assert_eq!(mount_line(&mountpoint), None);
}
