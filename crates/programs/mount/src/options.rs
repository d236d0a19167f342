//! What stands behind `-o`: our own options, and those of mount(8) that fstab may carry.

use crate::caches::NearOptions;
use crate::one::Who;
use crate::spool;
use std::path::PathBuf;
use std::time::Duration;
use tieline_base::proving::{Proving, flavor_check, service_check};
use tieline_base::report::Usage;
use tieline_client::Offline;
use tieline_foresight::mode::ReadMode;
use tieline_people::idmap::Means;
use tieline_types::{ByteSize, Span};
use tieline_world::Congestion;

/// The wait for a server that does not answer, unless told otherwise; with `interactive`.
const WAIT_DEFAULT: Duration = Duration::from_secs(15 * 60);
const WAIT_INTERACTIVE: Duration = Duration::from_secs(30);
/// No wait is without an end; what NFS calls hard outlasts any outage.
const WAIT_HARD: Duration = Duration::from_secs(30 * 24 * 3600);

/// A daemon that stood still for so long does not come back. A machine that is short of memory or
/// time is slower than one thinks.
const WATCHDOG_DEFAULT: Duration = Duration::from_secs(60);
const WATCHDOG_LEAST: Duration = Duration::from_secs(1);

/// With less, pages of a listing would push out one another.
const INODES_LEAST: usize = 1000;

/// Options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub is_read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// Reading is noted in files' times of access, as `relatime` means it.
    pub notes_access: bool,
    pub wait: Duration,
    /// What is answered while a server is out of reach for longer than a lease.
    pub offline: Offline,
    /// Small changes are answered here where a directory is held alone, and sent within a second.
    pub has_journal: bool,
    /// A holder goes on when the daemon dies.
    pub is_held: bool,
    /// A daemon that gives no sign of life for so long is killed. `None`: never.
    pub watchdog: Option<Duration>,
    /// Treats the kernel as one that speaks no newer FUSE than 7.this.
    pub fuse_minor_max: Option<u32>,
    /// How files are read that say nothing else themselves.
    pub read_mode: ReadMode,
    /// What `readmode=` and `readbuf=` said, in whatever order.
    read_words: (Option<ReadMode>, Option<ReadMode>),
    /// Inode numbers and positions in directories are shown with 32 bits.
    pub has_short_numbers: bool,
    /// Files whose names and attributes are remembered; `None`: as many as the client takes itself.
    pub inodes_max: Option<usize>,
    /// Which congestion control connections get.
    pub congestion: Congestion,
    pub admin: Option<String>,
    pub log: Option<PathBuf>,
    pub pidfile: Option<PathBuf>,
    pub netns: Option<PathBuf>,
    /// Digits or a path.
    pub mapkey: Option<String>,
    /// Where the files of a repository are that is mounted alone, and the digest of its list.
    pub from: Vec<String>,
    pub list: Option<String>,
    /// Files with the master keys that it is believed by, or directories of them.
    pub pubkeys: Vec<PathBuf>,
    /// Whose uids are whose.
    pub idmap: Means,
    /// Everybody is this user, and ids may be mapped once more.
    pub one_user: Option<Who>,
    /// `sec=`, `keytab=`, `principal=`, `krb5conf=`, `service=`.
    pub proving: Proving,
    /// Caches, and storage that is read directly.
    pub near: NearOptions,
    /// Where bytes go that cannot be stored. `None`: nowhere.
    pub spool: Option<PathBuf>,
    /// No more of them are kept.
    pub spool_size: ByteSize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            is_read_only: false,
            // As for every network file system: whoever holds the servers must not become root
            // here.
            no_suid: true,
            no_dev: true,
            no_exec: false,
            // Reading shall cost no change.
            notes_access: false,
            wait: WAIT_DEFAULT,
            offline: Offline::Stale,
            has_journal: true,
            is_held: true,
            watchdog: Some(WATCHDOG_DEFAULT),
            fuse_minor_max: None,
            read_mode: ReadMode::Auto,
            read_words: (None, None),
            has_short_numbers: false,
            inodes_max: None,
            congestion: Congestion::Auto,
            admin: None,
            log: None,
            pidfile: None,
            netns: None,
            mapkey: None,
            from: Vec::new(),
            list: None,
            pubkeys: Vec::new(),
            idmap: Means::Auto,
            one_user: None,
            proving: Proving::default(),
            near: NearOptions::of_a_mount(),
            spool: Some(spool::default_place()),
            spool_size: spool::BYTES_DEFAULT,
        }
    }
}

impl Options {
    /// Reads `ro,wait=30 s,…`, as often as `-o` was given.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self, Usage> {
        let mut options = Self::default();
        let words = lists.into_iter().flat_map(|list| list.split(','));
        let mut wrong = Vec::new();
        // mount(8) puts what it knows before the rest, whatever the order was: a no is heard.
        let (allowing, others): (Vec<&str>, Vec<&str>) =
            words.filter(|word| !word.is_empty()).partition(|word| word.starts_with("allow_"));
        for word in allowing.into_iter().chain(others) {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word, None),
            };
            if let Err(Usage(why)) = options.set(word, key, value) {
                wrong.push(why);
            }
        }
        wrong.extend(options.near.without_place());
        match options.read_words {
            (Some(mode), Some(_)) if !matches!(mode, ReadMode::ReadBuffer(_)) => wrong.push(
                format!("-o readbuf=: goes with readmode=readbuf, and not with readmode={mode}"),
            ),
            (mode, buffer) => options.read_mode = buffer.or(mode).unwrap_or(options.read_mode),
        }
        if wrong.is_empty() { Ok(options) } else { Err(Usage(wrong.join("\n"))) }
    }

    /// Without what the kernel keeps, and may keep otherwise later.
    pub fn without_kernels(self) -> Self {
        let (is_read_only, no_suid, no_dev, no_exec) = (false, false, false, false);
        Self { is_read_only, no_suid, no_dev, no_exec, ..self }
    }

    fn set(&mut self, word: &str, key: &str, value: Option<&str>) -> Result<(), Usage> {
        match (key, value) {
            ("ro", None) => self.is_read_only = true,
            ("rw", None) => self.is_read_only = false,
            // mount(8) does not pass on what is so on other file systems anyway.
            ("suid" | "allow_suid", None) => self.no_suid = false,
            ("nosuid", None) => self.no_suid = true,
            ("dev" | "allow_dev", None) => self.no_dev = false,
            ("nodev", None) => self.no_dev = true,
            ("exec", None) => self.no_exec = false,
            ("noexec", None) => self.no_exec = true,
            // To mount(8), `atime` is what the kernel does by itself, and that is relatime.
            ("relatime" | "atime", None) => self.notes_access = true,
            ("noatime" | "norelatime", None) => self.notes_access = false,
            ("interactive", None) => self.wait = WAIT_INTERACTIVE,
            ("hard", None) => self.wait = WAIT_HARD,
            ("soft", None) => self.wait = WAIT_DEFAULT,
            ("wait", Some(value)) => {
                let span: Span = value.parse().map_err(|e| Usage(format!("-o {word}: {e}")))?;
                self.wait = span.0;
            }
            ("offline", Some("stale")) => self.offline = Offline::Stale,
            ("offline", Some("error")) => self.offline = Offline::Error,
            ("offline", Some(_)) => return Err(Usage(format!("-o {word}: stale or error"))),
            ("journal", Some("on")) => self.has_journal = true,
            // What mount(8) calls so: nothing is answered before it is done.
            ("journal", Some("off")) | ("sync" | "dirsync", None) => self.has_journal = false,
            ("hold", Some("on")) => self.is_held = true,
            ("hold", Some("off")) => self.is_held = false,
            ("watchdog", Some("off")) => self.watchdog = None,
            ("watchdog", Some(value)) => {
                let span: Span = value.parse().map_err(|e| Usage(format!("-o {word}: {e}")))?;
                let span = (span.0 >= WATCHDOG_LEAST).then_some(span.0);
                let short = || Usage(format!("-o {word}: a second at least, or off"));
                self.watchdog = Some(span.ok_or_else(short)?);
            }
            ("fuse", Some(value)) => {
                let minor = value.strip_prefix("7.").and_then(|minor| minor.parse().ok());
                let wrong = || Usage(format!("-o {word}: a version of FUSE, as 7.39"));
                self.fuse_minor_max = Some(minor.ok_or_else(wrong)?);
            }
            ("readmode", Some(value)) => {
                let mode = value.parse().map_err(|e| Usage(format!("-o {word}: {e}")))?;
                self.read_words.0 = Some(mode);
            }
            ("readbuf", Some(value)) => {
                let mode = ReadMode::buffer(value).map_err(|e| Usage(format!("-o {word}: {e}")))?;
                self.read_words.1 = Some(mode);
            }
            ("ino32", None) => self.has_short_numbers = true,
            ("inodes", Some(value)) => {
                let number = value.parse().ok().filter(|number| *number >= INODES_LEAST);
                let wrong = || Usage(format!("-o {word}: a number, {INODES_LEAST} at least"));
                self.inodes_max = Some(number.ok_or_else(wrong)?);
            }
            ("congestion", Some(value)) => {
                self.congestion = value.parse().map_err(|e| Usage(format!("-o {word}: {e}")))?;
            }
            ("sec", Some(value)) => {
                self.proving.sec = Some(flavor_check(value)?.name().to_owned());
            }
            ("keytab", Some(value)) => self.proving.keytab = Some(value.into()),
            ("principal", Some(value)) => self.proving.principal = Some(value.to_owned()),
            ("krb5conf", Some(value)) => self.proving.config = Some(value.into()),
            ("service", Some(value)) => self.proving.service = Some(service_check(value)?),
            ("admin", Some(value)) => self.admin = Some(value.to_owned()),
            ("log", Some(value)) => self.log = Some(value.into()),
            ("pidfile", Some(value)) => self.pidfile = Some(value.into()),
            ("netns", Some(value)) => self.netns = Some(tieline_machine::namespace::path(value)),
            ("idmap", Some(value)) => self.idmap = Means::parse(value),
            ("idmap", None) => {
                let why =
                    "idmap=names, idmap=same or idmap=FILE; for id-mapped mounts idmapped=USER";
                return Err(Usage(format!("-o idmap: {why}")));
            }
            ("idmapped", Some(value)) => self.one_user = Some(value.parse()?),
            ("spool", Some("off")) => self.spool = None,
            ("spool", Some(value)) => {
                let place = Some(PathBuf::from(value)).filter(|place| place.is_absolute());
                let wrong = || Usage(format!("-o {word}: an absolute path, or off"));
                self.spool = Some(place.ok_or_else(wrong)?);
            }
            ("spool-size", Some(value)) => {
                self.spool_size = value.parse().map_err(|e| Usage(format!("-o {word}: {e}")))?;
            }
            // As CVMFS's lists: with `;` between several, or with the option once more.
            ("url" | "from", Some(value)) => {
                self.from.extend(value.split(';').filter(|url| !url.is_empty()).map(str::to_owned));
            }
            ("pubkey", Some(value)) => {
                let paths: Vec<_> = value.split(':').map(PathBuf::from).collect();
                if !paths.iter().all(|path| path.is_absolute()) {
                    return Err(Usage(format!("-o {word}: absolute paths of public keys")));
                }
                self.pubkeys.extend(paths);
            }
            ("list", Some(value)) => self.list = Some(value.to_owned()),
            ("mapkey", Some(value)) => self.mapkey = Some(value.to_owned()),
            _ if self.near.set(word, key, value)? => (),
            _ if is_of_mount(key) => (),
            (key, None) if IN_ANY_CASE.contains(&key) => (),
            _ => {
                let why = NEVER.iter().find(|(never, _)| *never == key).map(|(_, why)| why);
                return Err(Usage(match why {
                    Some(why) => format!("-o {word} is not offered: {why}"),
                    None => format!(
                        "mount option `{word}` is not known (`tieline mount --help` lists them)"
                    ),
                }));
            }
        }
        Ok(())
    }
}

/// What other file systems must be asked for, and what always is so here. Locks hold among all
/// clients, which is more than `localflock` asks.
const IN_ANY_CASE: &[&str] = &[
    "acl",
    "user_xattr",
    "flock",
    "localflock",
    "default_permissions",
    "intr",
    "lazystatfs",
    "nostrictatime",
    "nomand",
];

/// What nobody gets, and why: who asks must not believe that he has it.
const NEVER: &[(&str, &str)] = &[
    ("strictatime", "noting every reading would cost a change each; take relatime"),
    ("noacl", "access lists are kept with the file and checked by its server"),
    ("nouser_xattr", "attributes are kept with the file"),
    ("noflock", "locks hold among all clients"),
    ("nointr", "who waits can always be interrupted"),
    ("mand", "locks are advisory"),
];

/// Options that concern mount(8), systemd or the kernel, and change nothing here.
fn is_of_mount(key: &str) -> bool {
    const KNOWN: &[&str] = &[
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "_netdev",
        "nofail",
        "async",
        "diratime",
        "nodiratime",
        "lazytime",
        "nolazytime",
        "iversion",
        "noiversion",
        "silent",
        "loud",
        "comment",
        "allow_other",
    ];
    key.starts_with("x-") || key.starts_with("X-") || KNOWN.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::NodeAt;
    use std::path::Path;

    #[test]
    fn what_would_do_nothing_is_refused_and_says_what_is_missing() {
        let refused = |list: &str| Options::parse([list]).unwrap_err().0;
        assert_eq!(refused("offline=maybe"), "-o offline=maybe: stale or error");
        let both = refused("sitecache-size=1G,cache=off,cache-size=1G");
        assert!(both.contains("sitecache=DIR") && both.contains(" cache=DIR"), "{both}");
        for mode in ["auto", "stream"] {
            let [one, other] = [format!("readmode={mode}"), "readbuf=1M".to_owned()];
            for list in [format!("{one},{other}"), format!("{other},{one},ro")] {
                let told = refused(&list);
                assert!(told.contains("readmode=readbuf") && told.contains(&one), "{told}");
            }
        }
        Options::parse(["sitecache-size=1G", "sitecache=/gluster/cache"]).unwrap();
        assert!(refused("cache=var/cache").contains("an absolute path is needed"));
        assert!(refused("cache=auto:var").contains("an absolute path is needed"));
    }

    #[test]
    fn a_mount_has_a_cache_of_its_own_unless_it_shares_one_or_is_told() {
        let node = |list: &str| {
            let mut near = Options::parse([list]).unwrap().near;
            near.settle(&"extenci".parse().unwrap(), Path::new("/mnt/x"));
            near.node
        };
        let own = |place: &str| NodeAt::Own(Path::new(place).join("extenci-mnt-x"));
        assert_eq!(node("cache=auto:/srv/c,cache-size=1G"), own("/srv/c"));
        assert!(matches!(node(""), NodeAt::Own(path) if path.ends_with("tieline/extenci-mnt-x")));
        assert_eq!(node("cache=/srv/c,sitecache=/s"), NodeAt::At("/srv/c".into()));
        for list in ["cache=off", "sitecache=/s", "direct=OST0000=/s"] {
            assert_eq!(node(list), NodeAt::Off, "{list}");
        }
    }

    #[test]
    fn options_of_ours_and_of_fstab() {
        let lists = ["rw,_netdev,nofail,x-systemd.automount,wait=90 s", "ro,sec=null,netns=wn"];
        let options = Options::parse(lists).unwrap();
        assert!(options.is_read_only && options.no_suid);
        assert_eq!(options.wait, Duration::from_secs(90));
        assert!(options.has_journal && !Options::parse(["journal=off"]).unwrap().has_journal);
        assert!(!Options::parse(["journal=on,sync"]).unwrap().has_journal);
        assert_eq!(options.netns, Some("/run/netns/wn".into()));
        assert!(!options.notes_access && Options::parse(["relatime"]).unwrap().notes_access);
        let usual = "defaults,noexec,acl,user_xattr,flock,hard,intr,default_permissions,noauto";
        let usual = Options::parse([usual]).unwrap();
        assert!(usual.no_exec && usual.no_dev && !Options::parse(["noexec,exec"]).unwrap().no_exec);
        assert!(usual.wait > Duration::from_secs(24 * 3600));
        assert!(Options::default().is_held);
        let held = Options::parse(["hold=on,watchdog=2 s"]).unwrap();
        assert_eq!((held.is_held, held.watchdog), (true, Some(Duration::from_secs(2))));
        assert_eq!(Options::parse(["fuse=7.39"]).unwrap().fuse_minor_max, Some(39));
        let read_mode = |list| Options::parse([list]).unwrap().read_mode;
        assert_eq!(read_mode("readmode=stream"), ReadMode::Stream);
        let buffer = ReadMode::ReadBuffer(1 << 20);
        assert_eq!(read_mode("readmode=readbuf,readbuf=1M"), buffer);
        assert_eq!(read_mode("readbuf=1M,readmode=readbuf"), buffer);
        assert!(!usual.has_short_numbers && Options::parse(["ino32"]).unwrap().has_short_numbers);
        assert_eq!(Options::parse(["inodes=2000"]).unwrap().inodes_max, Some(2000));
        assert!(Options::parse(["inodes=7"]).is_err() && Options::parse(["inodes=all"]).is_err());
        let congestion = |list| Options::parse([list]).unwrap().congestion;
        assert_eq!(congestion("congestion=system"), Congestion::System);
        assert_eq!(congestion("ro"), Congestion::Auto);
        let alone = Options::parse(["hold=off,watchdog=off"]).unwrap();
        assert_eq!((alone.is_held, alone.watchdog), (false, None));
        assert!(Options::parse(["watchdog=3 ms"]).is_err());
        let spool = |list| Options::parse([list]).map(|options| options.spool);
        assert_eq!(spool("ro").unwrap(), Some(spool::default_place()));
        assert_eq!(spool("spool=/data/spool").unwrap(), Some("/data/spool".into()));
        assert!(spool("spool=off").unwrap().is_none() && spool("spool=here").is_err());
        let sized = Options::parse(["spool-size=8 GiB"]).unwrap();
        assert_eq!(sized.spool_size, ByteSize(8 << 30));
        let idmap = |text: &str| Options::parse([text]).unwrap().idmap;
        assert_eq!(idmap("idmap=names"), Means::Names);
        assert_eq!(idmap("idmap=/etc/idmap"), Means::File("/etc/idmap".into()));
        assert_eq!(idmap("ro"), Means::Auto);
        let one = Options::parse(["idmapped=5001:6001"]).unwrap().one_user;
        assert_eq!(one, Some(Who::Numbers(5001, 6001)));
        let pinned = Options::parse(["service=host"]).unwrap().proving.service;
        assert_eq!(pinned.as_deref(), Some("host"));
        let interactive = Options::parse(["interactive,suid,mapkey=/etc/tieline/e.key"]).unwrap();
        assert_eq!(interactive.wait, Duration::from_secs(30));
        assert!(!interactive.no_suid);
        let allows = Options::parse(["rw,allow_suid,allow_dev"]).unwrap();
        assert!(!allows.no_suid && !allows.no_dev);
        let refuses = Options::parse(["nosuid,nodev,allow_suid,allow_dev"]).unwrap();
        assert!(refuses.no_suid && refuses.no_dev, "as mount(8) puts `allow_suid,nosuid`");
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |list| Options::parse([list]).unwrap_err().0;
        assert!(error("rdonly").contains("`rdonly`"));
        assert!(error("sec=rot13").contains("rot13"));
        assert!(error("fuse=8").contains("7.39"));
        assert!(error("service=host/mds.uf.example").contains("service=host"));
        assert!(error("readmode=fast").contains("readahead"));
        assert!(error("readbuf=1").contains("4 KiB"));
        assert!(error("congestion=vegas").contains("system"));
        assert!(error("wait=soon").contains("wait=soon"));
        assert!(error("strictatime").contains("relatime"));
        assert!(
            error("idmap").contains("idmapped=USER") && error("idmapped=root").contains("root")
        );
        assert!(error("noacl").contains("access lists"));
        let all = error("wait=5x,ro,bogus,readbuf=1");
        assert_eq!(all.lines().count(), 3, "{all}");
        assert!(all.contains("5x") && all.contains("`bogus`") && all.contains("4 KiB"), "{all}");
    }
}
