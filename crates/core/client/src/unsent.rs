//! What programs were promised and no server has yet, and which servers it waits for: for whoever
//! ends a mount.

use crate::shared::{Shared, lock};
use std::collections::BTreeSet;
use tieline_files::Unsent;
use tieline_servers::Server;
use tieline_types::{MdtIndex, OstIndex};

impl Shared {
    pub(crate) fn unsent(&self) -> Unsent {
        let mut unsent = Unsent::default();
        let (mut mdts, mut osts): (BTreeSet<MdtIndex>, BTreeSet<OstIndex>) = Default::default();
        let files: Vec<_> = lock(&self.dirty).values().cloned().collect();
        for file in files {
            let (bytes, stripe) =
                file.with(|state| (state.overlay.bytes() as u64, state.stripe.clone()));
            if bytes > 0 {
                unsent.files += 1;
                unsent.bytes += bytes;
                mdts.insert(file.id.mdt());
                osts.extend(stripe);
            }
        }
        for queue in self.journal.all() {
            let waiting = queue.waiting();
            unsent.changes += waiting;
            if waiting > 0 {
                mdts.insert(queue.mdt);
            }
        }
        let away = |server: crate::Result<std::sync::Arc<Server>>| {
            server.is_ok_and(|server| !server.is_connected())
        };
        let mdts = mdts.into_iter().filter(|&mdt| away(self.servers.mds(mdt)));
        unsent.away.extend(mdts.map(|mdt| mdt.label()));
        let osts = osts.into_iter().filter(|&ost| away(self.servers.oss(ost)));
        unsent.away.extend(osts.map(|ost| ost.label()));
        unsent
    }
}
