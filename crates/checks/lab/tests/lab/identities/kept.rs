//! What the kernel keeps for all users of a machine, though each shows a ticket of his own.

use super::{ANN, Machine, people};
use anyhow::Result;
use std::fs;
use std::thread::scope;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::tickets::with_kdc;

/// Promise 215: Where users show tickets, what one's programs look up is not shown to a process
/// of the same uid that may not look it up itself: to nobody who comes from the mountpoint
/// without a ticket, and of a directory that not everybody may search to nobody whom it does not
/// let in.
#[test]
fn what_one_looks_up_is_shown_to_nobody_who_may_not() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_kdc(|federation| {
        people(federation)?;
        let machine = Machine::new(federation)?;
        let (ann, bobs) = (machine.kinit("ann", ANN)?, machine.kinit("bob", ANN)?);
        let make = "umask 22; mkdir -p $MOUNT/all/open/d $MOUNT/all/closed/d; cd $MOUNT/all; \
                    touch open/d/f closed/d/f; chmod 700 closed";
        machine.by(ANN, &ann, make)?;
        let end = federation.local("end");
        let look = format!(
            "cd $MOUNT; while [ ! -e {} ]; do for d in open closed; do \
             stat $MOUNT/all/$d/d/f; ! stat $MOUNT/all/$d/d/none; done; done >/dev/null 2>&1",
            end.display()
        );
        scope(|scope| {
            let looking = scope.spawn(|| machine.by(ANN, &ann, &look));
            let closed = |name| {
                let there = format!("stat $MOUNT/all/{name}/d/f");
                let is_closed = || machine.denied(ANN, &bobs, &there).is_ok();
                program::until("it is closed to others", DEADLINE, is_closed)?;
                (0..20).try_for_each(|_| machine.denied(ANN, &bobs, &there))
            };
            let tried = (|| {
                closed("closed")?;
                for _ in 0..20 {
                    machine.by(ANN, &bobs, "stat $MOUNT/all/open/d/f")?;
                    for name in ["f", "none"] {
                        machine.denied(ANN, &bobs, &format!("stat $MOUNT/all/closed/d/{name}"))?;
                        let nobody = "FILE:/nonexistent";
                        machine.denied(ANN, nobody, &format!("stat $MOUNT/all/open/d/{name}"))?;
                    }
                }
                machine.by(ANN, &ann, "chmod 700 $MOUNT/all/open")?;
                closed("open")
            })();
            fs::write(&end, "")?;
            looking.join().map_err(|_| anyhow::anyhow!("the thread that looks died"))??;
            tried
        })
    })
}
