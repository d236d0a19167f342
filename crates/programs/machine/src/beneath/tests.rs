//! What somebody who may write in a destination can plant there, each at its place.

use super::*;
use rustix::fs::Timespec;
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicBool;

/// A destination, and beside it what nothing may happen to.
struct Bed {
    folder: tempfile::TempDir,
    before: Vec<(PathBuf, u32, i64, i64)>,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("to")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("etc/passwd"), "root").unwrap();
        let mut bed = Self { folder, before: Vec::new() };
        bed.before = bed.outside();
        bed
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn to(&self) -> Directory {
        Directory::open(&self.at("to")).unwrap()
    }

    fn outside(&self) -> Vec<(PathBuf, u32, i64, i64)> {
        assert_eq!(std::fs::read(self.at("etc/passwd")).unwrap(), b"root");
        let entries = std::fs::read_dir(self.at("etc")).unwrap();
        let inside = entries.map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = [self.at("etc")].into_iter().chain(inside).collect();
        all.sort();
        let is = |path: PathBuf| {
            let found = path.symlink_metadata().unwrap();
            (path, found.mode(), found.mtime(), found.mtime_nsec())
        };
        all.into_iter().map(is).collect()
    }

    fn check(&self) {
        assert_eq!(self.outside(), self.before, "something happened outside");
    }
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn write(at: &Directory, text: &str, called: &OsStr) -> io::Result<()> {
    let draft = at.draft(0o600)?;
    draft.file().write_all(text.as_bytes())?;
    draft.publish(called)
}

#[test]
fn a_link_in_the_place_of_a_directory_is_not_gone_through() {
    let bed = Bed::new();
    let absolute = bed.at("etc");
    for (link, target) in [("absolute", absolute.as_path()), ("relative", Path::new("../etc"))] {
        symlink(target, bed.at("to").join(link)).unwrap();
        symlink(link, bed.at("to").join(format!("{link}-twice"))).unwrap();
        for link in [link.to_owned(), format!("{link}-twice")] {
            for went in [bed.to().enter(name(&link)), bed.to().enter_or_make(name(&link))] {
                let why = went.unwrap_err().to_string();
                assert!(why.contains("symbolic link") && why.contains("move it away"), "{why}");
            }
            let middle = Path::new(&link).join("passwd");
            assert!(bed.to().find(&middle).is_err());
        }
    }
    let deep = bed.to().enter_or_make(name("d")).unwrap().enter_or_make(name("e")).unwrap();
    write(&deep, "x", name("f")).unwrap();
    assert!(bed.to().find(Path::new("d/e/f")).unwrap().metadata().unwrap().is_file());
    // Its own way out, one that goes nowhere, and one in a circle.
    for (link, target) in [("up", ".."), ("nowhere", "nothing"), ("circle", "circle")] {
        symlink(target, bed.at("to").join(link)).unwrap();
        assert!(bed.to().enter_or_make(name(link)).is_err());
    }
    bed.check();
}

#[test]
fn names_that_are_ways_are_none() {
    let bed = Bed::new();
    for way in ["", ".", "..", "/", "/etc", "a/b", "../etc", "../etc/passwd"] {
        let (to, way) = (bed.to(), name(way));
        assert!(to.look(way).is_err() && to.enter(way).is_err(), "{way:?}");
        assert!(to.enter_or_make(way).is_err() && to.remove(way).is_err(), "{way:?}");
        assert!(write(&to, "x", way).is_err() && to.log(way).is_err(), "{way:?}");
        assert!(to.make_symlink(name("x"), way).is_err(), "{way:?}");
        assert!(to.make_special(FileType::Fifo, 0, way).is_err(), "{way:?}");
        assert!(to.write_whole(way, b"x", 0o600, None).is_err(), "{way:?}");
    }
    for way in ["..", "../etc/passwd", "/etc/passwd", "a/../../etc/passwd"] {
        assert!(bed.to().find(Path::new(way)).is_err(), "{way}");
    }
    assert_eq!(bed.to().names().unwrap(), [""; 0], "drafts were left");
    bed.check();
}

#[test]
fn what_has_a_files_place_is_never_written_to() {
    let bed = Bed::new();
    let to = bed.to();
    let planted = |planted: &str| {
        let path = bed.at("to").join(planted);
        let _ = std::fs::remove_file(&path);
        match planted {
            "link" => symlink(bed.at("etc/passwd"), path).unwrap(),
            "dangling" => symlink(bed.at("etc/new"), path).unwrap(),
            _ => std::fs::hard_link(bed.at("etc/passwd"), path).unwrap(),
        }
    };
    for there in ["link", "dangling", "hard"] {
        planted(there);
        let error = write(&to, "foreign", name(there)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        // Where a file is to be replaced, its name is, and not what it leads to.
        let draft = to.draft(0o600).unwrap();
        draft.replace(name(there)).unwrap();
        assert!(bed.at("to").join(there).symlink_metadata().unwrap().is_file());
        planted(there);
        to.write_whole(name(there), b"foreign", 0o644, None).unwrap();
        // And so is what it would be written under meanwhile.
        planted(there);
        let temporary = format!("{there}.new");
        std::fs::rename(bed.at("to").join(there), bed.at("to").join(&temporary)).unwrap();
        to.write_whole(name(there), b"foreign", 0o644, None).unwrap();
        planted(there);
        let log = to.log(name(there));
        assert!(log.is_err(), "{there}: a log leads elsewhere");
    }
    assert!(!bed.at("etc/new").exists());
    bed.check();
}

#[test]
fn pipes_and_devices_are_neither_waited_for_nor_replaced() {
    let bed = Bed::new();
    let to = bed.to();
    let pipe = to.make_special(FileType::Fifo, 0, name("pipe")).unwrap();
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    let mut there = vec!["pipe", "directory"];
    std::fs::create_dir(bed.at("to/directory")).unwrap();
    if rustix::process::geteuid().is_root()
        && to.make_special(FileType::CharacterDevice, 0x103, name("null")).is_ok()
    {
        there.push("null");
    }
    for there in there {
        let kind = |to: &Directory| to.look(name(there)).unwrap().unwrap().metadata().unwrap();
        let before = kind(&to).file_type();
        assert!(to.draft(0o600).unwrap().replace(name(there)).is_err(), "{there}");
        assert!(write(&to, "x", name(there)).is_err(), "{there}");
        assert!(to.write_whole(name(there), b"x", 0o600, None).is_err(), "{there}");
        assert!(to.look(name(there)).unwrap().unwrap().open().is_err(), "{there}");
        assert!(to.log(name(there)).is_err(), "{there}");
        assert_eq!(kind(&to).file_type(), before);
    }
    let left = to.names().unwrap();
    assert!(!left.iter().any(|name| name.as_bytes().starts_with(b".tieline")), "{left:?}");
}

#[test]
fn the_destination_itself_may_be_reached_through_links() {
    let bed = Bed::new();
    symlink("to", bed.at("one")).unwrap();
    symlink("one", bed.at("two")).unwrap();
    write(&Directory::open(&bed.at("two")).unwrap(), "x", name("f")).unwrap();
    assert_eq!(std::fs::read(bed.at("to/f")).unwrap(), b"x");
    let (above, called) = Directory::of(&bed.at("two/f")).unwrap();
    assert!(above.look(&called).unwrap().is_some());
    assert!(Directory::of(Path::new("/")).is_err());
    assert_eq!(Directory::of(Path::new("f")).unwrap().1, name("f"));
}

/// Whoever owns the directory puts a link in the place of one in it, over and over.
#[test]
fn a_directory_that_is_swapped_meanwhile_leads_nowhere_else() {
    let bed = Bed::new();
    std::fs::create_dir(bed.at("to/d")).unwrap();
    symlink(bed.at("etc"), bed.at("to/link")).unwrap();
    let held = bed.to().enter(name("d")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (d, link) = (bed.at("to/d"), bed.at("to/link"));
            while !stop.load(Ordering::Relaxed) {
                let swap = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &d, CWD, &link, swap).unwrap();
            }
        });
        let (mut entered, mut refused) = (0, 0);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut round = 0;
        while (entered < 20 || refused < 20) && std::time::Instant::now() < deadline {
            round += 1;
            match bed.to().enter_or_make(name("d")) {
                Ok(d) => {
                    entered += 1;
                    write(&d, "x", name(&format!("new-{round}"))).unwrap();
                    d.held().mode_set(0o711).unwrap();
                    d.write_whole(name("whole"), b"x", 0o644, None).unwrap();
                }
                Err(_) => refused += 1,
            }
            write(&held, "x", name(&format!("held-{round}"))).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(entered > 0 && refused > 0, "{entered} {refused}: nothing was swapped");
    });
    bed.check();
}

#[test]
fn what_a_file_has_is_set_on_the_file_and_not_on_its_name() {
    let bed = Bed::new();
    let to = bed.to();
    let spec = |seconds| Timespec { tv_sec: seconds, tv_nsec: 5 };
    let times = Timestamps { last_access: spec(1), last_modification: spec(2) };
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let directory = to.enter_or_make(name("directory")).unwrap();
    let link = to.make_symlink(bed.at("etc/passwd").as_os_str(), name("link")).unwrap();
    let pipe = to.make_special(FileType::Fifo, 0, name("pipe")).unwrap();
    let draft = to.draft(0o600).unwrap();
    // All of them lead elsewhere by now.
    for gone in ["directory", "link", "pipe"] {
        std::fs::rename(bed.at("to").join(gone), bed.at("to").join(format!("{gone}-was"))).unwrap();
        symlink(bed.at("etc/passwd"), bed.at("to").join(gone)).unwrap();
    }
    for held in [directory.held(), &pipe, draft.held()] {
        held.mode_set(0o4750).unwrap();
        assert_eq!(held.metadata().unwrap().mode() & 0o7777, 0o4750);
    }
    for held in [directory.held(), &link, &pipe, draft.held()] {
        held.owner_set(own.0, own.1).unwrap();
        held.times_set(&times).unwrap();
        let found = held.metadata().unwrap();
        assert_eq!((found.atime(), found.mtime(), found.mtime_nsec()), (1, 2, 5));
    }
    for held in [directory.held(), draft.held()] {
        match held.xattr_set(b"user.k", b"v") {
            Err(Errno::OPNOTSUPP) => continue,
            set => set.unwrap(),
        }
        assert_eq!(held.xattr(b"user.k").as_deref(), Some(&b"v"[..]));
        held.xattr_remove(b"user.k").unwrap();
        assert_eq!(held.xattr(b"user.k"), None);
    }
    assert_eq!(link.target().unwrap(), bed.at("etc/passwd").into_os_string());
    let found = bed.at("to/link-was").symlink_metadata().unwrap();
    assert!(found.is_symlink() && found.mtime() == 2);
    bed.check();
}

#[test]
fn a_file_gets_another_name_and_no_link_does_for_it() {
    let bed = Bed::new();
    let to = bed.to();
    write(&to, "bytes", name("first")).unwrap();
    let first = to.look(name("first")).unwrap().unwrap();
    // Its name is somebody else's by now.
    std::fs::rename(bed.at("to/first"), bed.at("to/was")).unwrap();
    symlink(bed.at("etc/passwd"), bed.at("to/first")).unwrap();
    to.link(&first, name("second")).unwrap();
    assert_eq!(std::fs::read(bed.at("to/second")).unwrap(), b"bytes");
    assert!(to.link(&first, name("was")).is_err(), "it replaced what was there");
    assert_eq!(first.metadata().unwrap().nlink(), 2);
    let mut read = String::new();
    io::Read::read_to_string(&mut first.open().unwrap(), &mut read).unwrap();
    assert_eq!(read, "bytes");
    assert!(to.look(name("first")).unwrap().unwrap().open().is_err(), "a link was opened");
    bed.check();
}

#[test]
fn the_longest_names_have_drafts_too() {
    let bed = Bed::new();
    let (to, longest) = (bed.to(), "n".repeat(255));
    write(&to, "x", name(&longest)).unwrap();
    to.draft(0o600).unwrap().replace(name(&longest)).unwrap();
    assert!(write(&to, "x", name(&"n".repeat(256))).is_err());
    assert_eq!(to.names().unwrap(), [longest.as_str()]);
    // A draft whose name somebody took before has another.
    let next: usize = {
        let draft = to.draft(0o600).unwrap();
        let called = draft.name.as_ref().unwrap().to_str().unwrap();
        called.rsplit('-').next().unwrap().parse().unwrap()
    };
    for taken in next..next + 20 {
        let path = format!(".tieline-{}-{taken}", std::process::id());
        symlink(bed.at("etc/passwd"), bed.at("to").join(path)).unwrap();
    }
    write(&to, "x", name("f")).unwrap();
    assert_eq!(std::fs::read(bed.at("to/f")).unwrap(), b"x");
    bed.check();
}

#[test]
fn a_log_goes_on_where_it_ended() {
    let bed = Bed::new();
    for _ in 0..2 {
        bed.to().log(name("log")).unwrap().write_all(b"line\n").unwrap();
        let mode = bed.at("to/log").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // As an earlier build made it.
        std::fs::set_permissions(bed.at("to/log"), PermissionsExt::from_mode(0o644)).unwrap();
    }
    assert_eq!(std::fs::read(bed.at("to/log")).unwrap(), b"line\nline\n");
    write_whole(&bed.at("to/log"), b"new", 0o640).unwrap();
    assert_eq!(std::fs::read(bed.at("to/log")).unwrap(), b"new");
    assert_eq!(bed.at("to/log").metadata().unwrap().mode() & 0o7777, 0o640);
}
