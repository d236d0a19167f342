//! Where programs work, when the way there is closed.

use super::{ANN, BOB, CMS, Machine, id, people};
use anyhow::{Result, ensure};
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::tickets::with_kdc;

/// Promise 173: A program goes on in a directory, and with a file that it has open, where a
/// directory above was made private since.
#[test]
fn a_place_of_work_is_kept_when_a_directory_above_is_made_private() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let elsewhere = Machine::of(federation, federation.local("elsewhere"))?;
        std::fs::create_dir(&elsewhere.mount)?;
        elsewhere.mount()?;
        // Who may ask as root is told anyway; somebody has to administer all the same.
        id(federation, &["role", "ann", "fs-admin"])?;
        id(federation, &["machine", "host/client.extenci.org@EXTENCI.ORG", "squash"])?;
        let (ann, bobs) = (machine.kinit("ann", ANN)?, machine.kinit("bob", BOB)?);
        let make = "mkdir -p $MOUNT/all/open/below && cd $MOUNT/all/open/below && echo text > f \
                    && ln -s there link && chmod 755 .. . && chmod 644 f";
        machine.by(ANN, &ann, make)?;
        let (flag, go) = (federation.local("flag"), federation.local("go"));
        std::fs::create_dir(&flag)?;
        std::os::unix::fs::chown(&flag, Some(BOB), Some(CMS))?;
        let script = format!(
            "cd $MOUNT/all/open/below; exec 3<f; touch {}/up; \
             while [ ! -e {} ]; do sleep 0.1; done; \
             cat <&3; cat f; stat -c %F .; readlink link; ls; \
             python3 -c 'import os; print(os.fstat(3).st_size)'; \
             if stat $MOUNT/all/open/below; then exit 9; fi",
            flag.display(),
            go.display()
        );
        let said = std::thread::scope(|scope| {
            let job = scope.spawn(|| machine.by(BOB, &bobs, &script));
            let up = program::until("he is there", DEADLINE, || flag.join("up").exists());
            // What his mount holds of the place is taken back: else it would not ask.
            let close = "cd $MOUNT/all/open/below; chmod 700 ..; touch new; rm new; sync .";
            let closed = up.and_then(|()| elsewhere.by(ANN, &ann, close));
            std::fs::write(&go, "")?;
            closed?;
            job.join().map_err(|_| anyhow::anyhow!("the job's thread died"))?
        })?;
        ensure!(said == "text\ntext\ndirectory\nthere\nf\nlink\n5\n", "{said}");
        machine.denied(BOB, &bobs, "cat $MOUNT/all/open/below/f")?;
        // Started anew, the server knows of no walk: who may go the way is told as before.
        federation.kill_and_restart("mds-uf")?;
        machine.denied(BOB, &bobs, "cat $MOUNT/all/open/below/f")?;
        machine.by(ANN, &ann, "cat $MOUNT/all/open/below/f; ls -l $MOUNT/all/open/below").map(drop)
    })
}
