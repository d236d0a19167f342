//! The machine itself.

use super::Findings;
use rustix::process::{Resource, getrlimit};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Fewer open files than this, and a busy server or mount runs out of them.
const FILES_MIN: u64 = 65_536;
/// What `adjtimex` answers when nothing keeps the clock right.
const CLOCK_UNSYNCHRONISED: i32 = 5;
/// The oldest kernel that is tested, and what newer ones add (docs/kernels.md).
const KERNEL_OLDEST: (u32, u32) = (5, 14);
const KERNEL_FEATURES: [((u32, u32), &str); 3] = [
    ((6, 1), "files without a name (O_TMPFILE)"),
    ((6, 6), "mapping of files that are read past the cache"),
    ((6, 9), "requests resent to a restarted daemon"),
];

pub fn look(findings: &mut Findings) {
    look_at_clock(findings);
    look_at_kernel(findings);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if files < FILES_MIN {
        let fix = format!(
            "`ulimit -n {FILES_MIN}`, or LimitNOFILE={FILES_MIN} in the systemd unit of a server"
        );
        findings.doubtful("open files", format!("at most {files} at once"), fix);
    } else {
        findings.well("open files", format!("at most {files} at once"));
    }
}

fn look_at_clock(findings: &mut Findings) {
    // SAFETY: the structure is plain numbers, and asking (no `modes`) writes only into it.
    let state = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        libc::adjtimex(&raw mut clock)
    };
    match state {
        CLOCK_UNSYNCHRONISED => findings.doubtful(
            "clock",
            "nothing keeps it right",
            "install chrony (or enable systemd-timesyncd): times of files, and Kerberos, need it",
        ),
        0.. => findings.well("clock", "synchronised"),
        _ => findings.doubtful(
            "clock",
            "whether it is synchronised cannot be told here",
            "compare `date -u` with another machine's",
        ),
    }
}

fn look_at_kernel(findings: &mut Findings) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let Some(version) = version(&release) else {
        findings.doubtful("kernel", release, "use a Linux kernel of 5.14 or newer");
        return;
    };
    if version < KERNEL_OLDEST {
        let what = format!("{release} is older than any that is tested");
        findings.broken("kernel", what, "use 5.14 or newer: openat2 and FUSE features are missing");
        return;
    }
    let missing = KERNEL_FEATURES.iter().filter(|(since, _)| version < *since);
    let missing: Vec<&str> = missing.map(|(_, feature)| *feature).collect();
    match missing.is_empty() {
        true => findings.well("kernel", release),
        false => {
            let what = format!("{release}: without {}", missing.join(", "));
            findings.well("kernel", format!("{what} (docs/kernels.md says what that costs)"));
        }
    }
}

/// The first two numbers of `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Can file systems be mounted here? `is_needed`: else it is only said.
pub fn look_at_fuse(findings: &mut Findings, is_needed: bool) {
    let device = Path::new("/dev/fuse");
    let mut wrong = |what: String, fix: &str| match is_needed {
        true => findings.broken("/dev/fuse", what, fix),
        false => findings.doubtful("/dev/fuse", format!("{what} (no mounts from here)"), fix),
    };
    match device.metadata() {
        Err(_) => {
            let fix = "`modprobe fuse`; in a container, give it the device: --device /dev/fuse";
            return wrong("is not there".to_owned(), fix);
        }
        Ok(there) if !there.file_type().is_char_device() => {
            return wrong("is no device".to_owned(), "`mknod -m 666 /dev/fuse c 10 229`");
        }
        Ok(_) => {}
    }
    let opened = std::fs::File::options().read(true).write(true).open(device);
    if let Err(error) = opened {
        return wrong(error.to_string(), "as root: `chmod 666 /dev/fuse` (udev's usual mode)");
    }
    let is_root = rustix::process::geteuid().is_root();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_helper = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists());
    if !is_root && !has_helper {
        let fix = "install `fuse3`: it mounts for those who are not root";
        return wrong("opens, but fusermount3 is missing".to_owned(), fix);
    }
    findings.well("/dev/fuse", "opens");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_first_two_numbers() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.14.0-427.el9"), Some((5, 14)));
        assert_eq!(version("7.2"), Some((7, 2)));
        assert_eq!(version("unknown"), None);
    }
}
