//! mount(8): `mount -t tieline` runs the helper `mount.tieline`, as a line of fstab does.
//!
//! The helper has to lie in /sbin, which a test must not touch: it runs in a mount namespace of its
//! own where an overlay puts the helper there.

use anyhow::{Context, Result, ensure};
use tieline_lab::{program, with_federation};

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
                    mount -t tieline {address}:/extenci $PWD/admin -o noatime,sec=null
                    cat admin/f; echo
                    findmnt --noheadings --output FSTYPE,SOURCE $PWD/admin
                    echo written > admin/g
                    umount $PWD/admin
                    ls admin | wc -l
                '
                "#
            ),
        )?;
        let lines: Vec<_> = said.lines().collect();
        ensure!(lines.first() == Some(&"by mount(8)"), "{said}");
        ensure!(lines.get(1).is_some_and(|line| line.contains("fuse")), "{said}");
        ensure!(lines.last() == Some(&"0"), "{said}");
        ensure!(std::fs::read_to_string(lab.mount().join("g"))? == "written\n");
        Ok(())
    })
}
