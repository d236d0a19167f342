//! The lab: real processes, real mounts, real programs.
//!
//! A test asks for a federation with [`with_federation`], which starts one by `tieline dev up` in a
//! folder of its own, hands it to the test, takes it down, and then looks whether anything was
//! left behind and whether any process logged a warning or an error that the test did not name
//! with [`Federation::expect_log`].
//!
//! * [`federation`]: one federation and its mounts.
//! * [`setting`]: two clients, in the tree of which site, how far, proven or not.
//! * [`published`]: repositories in CVMFS's format, and who judges them.
//! * [`nodes`]: mounts of a site; [`storage`]: what they share; [`buckets`]: stores behind S3.
//! * [`program`]: programs run with a deadline, in a process group of their own.
//! * [`alone`]: a process of its own, for a test that changes what belongs to the whole process.
//! * [`times`]: what each test took.
//! * [`tree`]: what a directory tree looks like, for comparing two of them.
//!
//! Knows only the program's command line, never its rooms: what it tests is what people use. (Tests
//! of attacks do: attackers speak the protocol by themselves.)
//! Invariants: every wait has an end; nothing that a test started outlives it.

pub mod alone;
pub mod buckets;
pub mod federation;
pub mod nodes;
pub mod program;
pub mod published;
pub mod setting;
pub mod storage;
pub mod tickets;
pub mod times;
pub mod tree;

pub use federation::{Federation, Plan, with_federation};
pub use program::{Run, shell};

/// Says that a test is skipped, and for want of what. Where everything is to be tested (`CI=1`) it
/// fails.
pub fn skip(what: impl std::fmt::Display) {
    let is_everything = std::env::var_os("CI").is_some_and(|value| value == "1");
    assert!(!is_everything, "CI=1, and yet: {what}");
    eprintln!("SKIPPED: {what}");
}

/// Is this test run by root?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Some things only root may do; such tests say that they were skipped.
pub fn needs_root() -> bool {
    let is_root = is_root();
    if !is_root {
        skip("it needs root");
    }
    is_root
}

/// Is there a KDC to be started?
pub fn has_kdc() -> bool {
    let found = std::path::Path::new("/usr/sbin/krb5kdc").exists();
    if !found {
        skip("krb5-kdc is not installed");
    }
    found
}

/// Can file systems be mounted here at all?
pub fn can_mount() -> bool {
    let is_possible = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !is_possible {
        skip("/dev/fuse cannot be opened here");
    }
    is_possible
}

/// Gives programs another clock than the machine's.
pub const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Can clocks be wrong here?
pub fn can_fake_clocks() -> bool {
    let found = std::path::Path::new(FAKETIME).exists();
    if !found {
        skip("faketime is not installed");
    }
    found
}

/// Can lines be emulated here? They join network namespaces by TUN devices.
pub fn can_emulate_lines() -> bool {
    let is_possible = is_root() && std::path::Path::new("/dev/net/tun").exists();
    if !is_possible {
        skip("emulated lines need root and /dev/net/tun");
    }
    is_possible
}

/// The Python with uproot that `make test` has made; `None` says so.
pub fn python() -> Option<std::path::PathBuf> {
    let python = std::env::var_os("TIELINE_PYTHON").map(std::path::PathBuf::from);
    if python.is_none() {
        skip("TIELINE_PYTHON names no Python with uproot; `make test` makes one");
    }
    python
}
