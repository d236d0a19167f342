//! overlayfs with a directory of the mount as what it changes (`upperdir`): containers that write
//! (`apptainer --overlay`, podman).

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tieline_lab::program;
use tieline_lab::setting::{Setting, Tree};

/// Mounts the overlay over `$1` in a mount namespace of its own, and runs `$2` in it.
const INSIDE: &str = r"
mount -t overlay overlay -o lowerdir=lower,upperdir=$1/upper,workdir=$1/work,redirect_dir=on merged
(cd merged && bash -euo pipefail ../$2)
umount merged
";

const CHANGE: &str = r#"
echo new > new
rm a; test ! -e a; echo again > a; rm a
mv b c; test ! -e b
mv dir moved; echo more >> moved/sub/y
rm -rf gone; mkdir gone; test -z "$(ls gone)"; echo w > gone/w
python3 -c '
import ctypes, os
fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
os.write(fd, b"nameless\n")
assert ctypes.CDLL(None).linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400) == 0
'
git init -q repo; cd repo
for n in 1 2 3; do echo $n > f$n; done
git add .; git -c user.name=n -c user.email=e commit -q -m one; git fsck
"#;

const LOOK: &str = r"
ls -A . gone moved moved/sub
cat new c moved/sub/y gone/w named
getfattr --only-values -n user.color c; echo
git -C repo status --short; cat repo/f3
";

/// What the kernel said since a mark, of overlays.
fn said_since(mark: &str) -> Result<Vec<String>> {
    let log = program::shell(Path::new("/"), "dmesg")?;
    let since = log.lines().skip_while(|line| !line.contains(mark));
    let of_overlays = since.filter(|line| line.contains("overlayfs:"));
    Ok(of_overlays.map(ToOwned::to_owned).collect())
}

/// Promise 98: overlayfs takes a directory of the mount as its upper: what is made, changed, moved
/// and removed in the overlay is so after it was mounted again, also by another client.
#[test]
fn an_overlay_writes_into_the_mount() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    // What is tried is what the kernel asks for, which distance does not change. Far away it takes
    // 40 s.
    Setting { tree: Tree::Junction, ..Setting::NEAR }.run(&[], |pair| {
        let local = pair.lab.local("overlay");
        fs::create_dir(&local)?;
        let mark = format!("tieline-lab-overlay-{}", std::process::id());
        fs::write("/dev/kmsg", &mark)?;
        let (here, there) = (pair.here.display(), pair.there.display());
        fs::write(local.join("inside"), INSIDE)?;
        fs::write(local.join("change"), CHANGE)?;
        fs::write(local.join("look"), LOOK)?;
        let script = format!(
            "mkdir -p merged {here}/upper {here}/work lower/dir/sub lower/gone
             cd lower; echo a > a; echo b > b; echo x > dir/x; echo y > dir/sub/y; echo z > gone/z
             setfattr -n user.color -v blue b; cd ..
             inside() {{ unshare --mount --propagation private bash -euo pipefail inside $@; }}
             inside {here} change
             inside {here} look
             inside {there} look > second"
        );
        let said = program::shell(&local, &script)?;
        let words: Vec<_> = said.split_whitespace().collect();
        let expected = ".: c gone moved named new repo gone: w moved: sub x moved/sub: y \
                        new b y more w nameless blue 3";
        ensure!(words.join(" ") == expected, "{said}");
        let again = fs::read_to_string(local.join("second"))?;
        ensure!(again == said, "another client: {again}");
        // What lies in the upper directory, by another client.
        for gone in ["a", "b", "dir"] {
            let found = fs::symlink_metadata(pair.there.join("upper").join(gone)).context(gone)?;
            let is_whiteout = found.file_type().is_char_device() && found.rdev() == 0;
            ensure!(is_whiteout, "{gone}: {found:?}");
        }
        let complaints = said_since(&mark)?;
        ensure!(complaints.iter().all(|line| !line.contains("does not support")), "{complaints:?}");
        Ok(())
    })
}
