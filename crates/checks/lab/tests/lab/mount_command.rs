//! mount(8): `mount -t tieline` runs the helper `mount.tieline`, as a line of fstab does.
//!
//! The helper has to lie in /sbin, which a test must not touch: it runs in a mount namespace of its
//! own where an overlay puts the helper there.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::with_federation;

#[test]
fn mount_and_umount_as_an_administrator_does() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let tieline = program::tieline()?.display().to_string();
        std::fs::write(lab.mount().join("f"), "by mount(8)")?;
        let said = program::shell(
            &lab.local("."),
            &format!(
                r#"
                mkdir sbin work admin
                ln -s {tieline} sbin/mount.tieline
                unshare --mount --propagation private bash -euo pipefail -c '
                    mount -t overlay overlay -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin
                    mount -t tieline {address}:/extenci $PWD/admin -o noatime,sec=null,allow_suid
                    cat admin/f; echo
                    findmnt --noheadings --output FSTYPE,SOURCE,OPTIONS $PWD/admin
                    echo written > admin/g
                    umount $PWD/admin
                    ls admin | wc -l
                '
                "#
            ),
        )?;
        let lines: Vec<_> = said.lines().collect();
        ensure!(lines.first() == Some(&"by mount(8)"), "{said}");
        let line = lines.get(1).context("no mount")?;
        ensure!(line.contains("fuse") && line.contains("nodev"), "{said}");
        ensure!(!line.contains("nosuid"), "{said}");
        ensure!(lines.last() == Some(&"0"), "{said}");
        ensure!(std::fs::read_to_string(lab.mount().join("g"))? == "written\n");
        Ok(())
    })
}

/// Promise 97: After `mount -o remount,ro` writes are refused with EROFS and what was written
/// before is at its servers; after `remount,rw` they work again.
#[test]
fn a_mount_is_made_read_only_and_writable_again() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let tieline = program::tieline()?.display().to_string();
        let fstab =
            format!("{address}:/extenci there tieline _netdev,nofail,wait=40s,sec=null 0 0\n");
        std::fs::create_dir(lab.local("there"))?;
        let fstab = fstab.replace("there", &lab.local("there").to_string_lossy());
        std::fs::write(lab.local("fstab"), fstab)?;
        // What mount(8) finds in the kernel's table, and what it finds in fstab.
        program::shell(
            &lab.local("."),
            &format!(
                r#"
                mkdir sbin work admin
                ln -s {tieline} sbin/mount.tieline
                ln -s {tieline} sbin/mount.fuse.tieline
                ln -s {tieline} sbin/umount.fuse.tieline
                cat > inside <<'END'
                mount -t overlay overlay -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin
                flags() {{ findmnt --noheadings --output VFS-OPTIONS,FS-OPTIONS $1; }}
                refused() {{ if "$@" 2> why; then echo "$@ was not refused"; exit 1; fi; cat why; }}
                mount -t tieline {address}:/extenci $PWD/admin -o relatime,sec=null,log=$PWD/log
                mount --fstab fstab $PWD/there
                for place in admin there; do
                    fstab='--fstab fstab'
                    test $place = there || fstab=
                    before=$(flags $place)
                    echo one > $place/$place; exec 5>> $place/open
                    refused mount $fstab -o remount,ro $PWD/$place | grep -q 'open to be written'
                    echo more >&5; exec 5>&-
                    mount $fstab -o remount,ro $PWD/$place
                    flags $place | grep -q '^ro,nosuid,nodev,.* ro,'
                    for change in 'echo two > $place/$place' 'mkdir $place/d' 'rm $place/$place' \
                        'chmod 700 $place/$place' 'mv $place/$place $place/z'; do
                        (refused eval "$change") | grep -q 'Read-only file system'
                    done
                    test $(cat $place/$place) = one
                    # What the kernel does not keep is named, and nothing is changed.
                    mount $fstab -o remount,ro $PWD/$place
                    refused mount $fstab -o remount,rw,wait=3s,ino32 $PWD/$place > said
                    grep -q 'wait=3s.*ino32.*cannot be changed while it is mounted' said
                    flags $place | grep -q '^ro,'
                    mount $fstab -o remount,rw,noexec $PWD/$place
                    flags $place | grep -q '^rw,nosuid,nodev,noexec,.* rw,'
                    echo two > $place/$place
                    mount $fstab -o remount,exec $PWD/$place
                    test "$(flags $place)" = "$before"
                done
                # The daemon sees it, however it was done: reading is noted in a file that was not
                # read since it was written, but not while that is read-only.
                touch -a -d 2000-01-01 admin/open
                mount -i -o remount,ro $PWD/admin
                last() {{ grep -o 'is_read_only=[a-z]*' log | tail -n 1; }}
                until test "$(last)" = is_read_only=true; do sleep 0.1; done
                cat admin/open; sleep 0.2
                stat -c %x admin/open | grep -q ^2000-01-01
                mount -o remount,rw $PWD/admin
                until test "$(last)" = is_read_only=false; do sleep 0.1; done
                cat admin/open
                until ! stat -c %x admin/open | grep -q ^2000-01-01; do sleep 0.1; done
                umount $PWD/admin $PWD/there
END
                unshare --mount --propagation private bash -euo pipefail inside
                "#
            ),
        )?;
        ensure!(std::fs::read_to_string(lab.mount().join("admin"))? == "two\n");
        ensure!(std::fs::read_to_string(lab.mount().join("there"))? == "two\n");
        Ok(())
    })
}

/// Jobs mount the same path each in a mount namespace of their own.
#[test]
fn a_mount_of_another_namespace_is_let_be() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let tieline = program::tieline()?.display().to_string();
        let said = program::shell(
            &lab.local("."),
            &format!(
                r#"
                mkdir there
                mkfifo end
                in_own() {{ unshare --mount --propagation private bash -euo pipefail -c "$1"; }}
                mounts='{tieline} mount {address}:/extenci there -o sec=null'
                in_own "$mounts; touch up; cat end > /dev/null; {tieline} umount there" &
                until test -e up; do sleep 0.1; done
                in_own "$mounts; timeout 20 {tieline} umount there"
                code=0
                timeout 20 {tieline} umount there 2> said || code=$?
                echo > end
                wait $!
                echo $code
                cat said
                "#
            ),
        )?;
        ensure!(said.starts_with("1\n") && said.contains("nothing is mounted"), "{said}");
        Ok(())
    })
}

/// Else the MDS waits for it as for a client that is cut off, with what others delete meanwhile.
#[test]
fn a_mount_that_fails_leaves_no_session() -> Result<()> {
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let (there, table) = (lab.local("there"), lab.local("idmap"));
        std::fs::create_dir(&there)?;
        std::fs::write(&table, "nonsense\n")?;
        let source = format!("{address}:/extenci");
        let options = format!("sec=null,idmap={}", table.display());
        let words = ["mount", &source, &there.to_string_lossy(), "-o", &options];
        let mut mount = Command::new(program::tieline()?);
        let run = program::finish(mount.args(words), DEADLINE)?;
        ensure!(!run.status.success() && run.stderr.contains("nonsense"), "{}", run.stderr);
        let log = std::fs::read_to_string(lab.dir().join("logs/mds-uf.log"))?;
        let of_it = format!("session opened: mount {}", there.display());
        let opened = log.lines().find(|line| line.contains(&of_it)).context("no session opened")?;
        let session = opened.split("session=").nth(1).and_then(|rest| rest.split(' ').next());
        let ended = format!("session={}", session.context("session's number")?);
        let is_ended =
            log.lines().any(|line| line.contains("session ended") && line.contains(&ended));
        ensure!(is_ended, "{log}");
        Ok(())
    })
}
