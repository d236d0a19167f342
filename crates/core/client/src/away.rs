//! Servers that are out of reach: what was known last counts, and the directories above junctions,
//! and those at junctions, are made up from the map.
//!
//! A server is *away* when its connection is gone and was not made again within
//! [`AWAY_AFTER`], or when it never answered at all. Reads that wait for it then look once more,
//! and find what the cache kept ([`Shared::as_known`]); what was never known here waits on, as long
//! as the mount's patience says. Changes always wait for the server.
//!
//! A directory above junctions that others changed right before its server was lost is told as it
//! was last, with the names of the junctions alone.
//!
//! With [`Offline::Error`] nothing is told beyond its lease but the mounted directory's own
//! attributes, which `df` and `umount` ask for, and the space.
//!
//! Invariants: the first word of a server ends its absence and with it all that was believed
//! without a lease; made-up directories are never remembered, and answer for names that lead to
//! other MDTs only.

use crate::shared::Shared;
use crate::{Belief, Known, Offline, Result};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{
    Attributes, Caller, FileId, FileKind, MdtIndex, Mode, Name, ServerNumber, Time,
};
use tieline_world::Unsettled;
use tokio::time::timeout;

/// A server that restarts quickly was never away.
const AWAY_AFTER: Duration = Duration::from_secs(1);
/// A server that was never reached is given longer: the first contact is the slowest.
const UNMET_AFTER: Duration = Duration::from_secs(4);
/// Whoever lists a directory looks at every junction in it, one after the other.
const JUNCTION_AFTER: Duration = Duration::from_secs(2);
/// An error that comes by itself says more.
const GRACE: Duration = Duration::from_millis(300);

/// Has connections looked at when the machine slept or its networks changed.
pub(crate) async fn watch(shared: std::sync::Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let transport = strong.servers.world().transport.clone();
        drop(strong);
        let what = transport.unsettled().await;
        let Some(shared) = shared.upgrade() else { return };
        tracing::info!(?what, "looking whether servers still hear us");
        if what == Unsettled::Slept {
            shared.cache.lock().units.slept();
        }
        shared.servers.doubt();
    }
}

impl Shared {
    /// The connection to an MDS is gone.
    pub(crate) fn lost_mds(self: &Arc<Self>, server: ServerNumber) {
        let lost = self.cache.lock().units.lost(server);
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(AWAY_AFTER).await;
            if let Some(shared) = shared.upgrade() {
                let recall = shared.seen_of(server).await;
                shared.cache.away(server, lost, recall);
            }
        });
    }

    /// Is the MDS of an MDT out of reach, as far as we know?
    pub(crate) fn is_away(&self, mdt: MdtIndex) -> bool {
        self.servers.is_away(mdt)
    }

    /// The site of an MDT whose MDS is out of reach.
    pub(crate) fn site_away(&self, mdt: MdtIndex) -> Option<Vec<u8>> {
        let believed = self.servers.map.current();
        let home = believed.map.mdt(mdt)?.home.as_str().to_owned();
        self.is_away(mdt).then(|| home.into_bytes())
    }

    /// Do answers about what that MDT holds rest on its last word, and on no lease?
    pub(crate) fn is_stale(&self, mdt: MdtIndex) -> bool {
        let server = self.servers.mds(mdt);
        server.is_ok_and(|server| {
            let tables = self.cache.lock();
            let is_over =
                tables.units.has_lapsed(server.number) || tables.units.is_unmet(server.number);
            let is_told = self.settings.offline == Offline::Stale;
            is_told && tables.units.is_away(server.number) && is_over
        })
    }

    /// Where nothing else is told beyond its lease: what the mounted directory was last.
    pub(crate) fn root_seen(&self, id: FileId) -> Option<Known> {
        if self.settings.offline == Offline::Stale || id != self.root || !self.is_away(id.mdt()) {
            return None;
        }
        let attributes = crate::shared::lock(&self.root_seen).clone()?;
        Some(Known { attributes, belief: Belief::default() })
    }

    /// Runs `ask`, and once more if the MDS of `id` turns out to be away meanwhile: then what is
    /// known counts.
    pub(crate) async fn as_known<T, F>(&self, id: FileId, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if self.settings.offline == Offline::Error && id != self.root {
            return ask().await;
        }
        tokio::select! {
            biased;
            done = ask() => return done,
            () = self.goes_away(id.mdt(), UNMET_AFTER) => {}
        }
        ask().await
    }

    /// The root of an MDT as whoever finds its junction sees it: a site that was never met, or is
    /// away, keeps nobody from going on.
    pub(crate) async fn junction_as_known(
        self: &Arc<Self>,
        caller: &Caller,
        root: FileId,
    ) -> Result<Known> {
        if self.settings.offline == Offline::Stale {
            tokio::select! {
                biased;
                done = self.attributes(caller, root) => return done,
                () = self.goes_away(root.mdt(), JUNCTION_AFTER) => {}
            }
        }
        self.attributes(caller, root).await
    }

    /// The same of names and attributes, which several questions may be asked for: together they
    /// wait no longer than one.
    pub(crate) async fn as_known_in_time<T, F>(&self, id: FileId, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let patience = self.servers.wait_for(id.mdt());
        let told = timeout(patience + GRACE, self.as_known(id, ask)).await;
        told.map_err(|_| tieline_servers::silence(id.mdt(), patience))?
    }

    /// Waits until the MDS is away, also if it was never met.
    async fn goes_away(&self, mdt: MdtIndex, unmet_after: Duration) {
        let Ok(server) = self.servers.mds(mdt) else { return std::future::pending().await };
        let unmet = async {
            tokio::time::sleep(unmet_after).await;
            if server.grant().is_none() {
                let losses = self.cache.lock().units.losses(server.number);
                // Taken out before it is used: who asks again finds it.
                let recall = self.recalled_of(server.number);
                self.cache.away(server.number, losses, recall);
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            biased;
            () = self.cache.goes_away(server.number) => {}
            () = unmet => {}
        }
    }

    /// A directory with junctions in it, or one at a junction, whose MDS is away and of which
    /// nothing is known: what the map says of it.
    pub(crate) fn made_up(&self, id: FileId) -> Option<Known> {
        let believed = self.servers.map.current();
        let junctions = believed.map.junctions_in(id).count();
        let is_junction = id.is_root() && believed.map.junction_of(id.mdt()).is_some();
        let is_made_up = (is_junction || junctions > 0) && self.tells_of_absent(id.mdt());
        (is_made_up && self.cache.lock().attributes(id).is_none()).then(|| {
            // Others may have changed it since, but nobody knows how.
            let seen = crate::shared::lock(&self.root_seen).clone().filter(|seen| seen.id == id);
            let made_up = || directory(id, is_junction, 2 + junctions as u32);
            let attributes = seen.unwrap_or_else(made_up);
            Known { attributes, belief: Belief::default() }
        })
    }

    fn tells_of_absent(&self, mdt: MdtIndex) -> bool {
        self.settings.offline == Offline::Stale && self.is_away(mdt)
    }

    /// The names in such a directory, in their order, if any are known.
    pub(crate) fn made_up_names(&self, id: FileId) -> Option<Vec<(Name, FileId)>> {
        self.made_up(id)?;
        let believed = self.servers.map.current();
        let junctions = believed.map.junctions_in(id);
        let mut names: Vec<_> =
            junctions.map(|one| (one.name.clone(), FileId::root_of(one.mdt))).collect();
        names.sort();
        (!names.is_empty()).then_some(names)
    }

    /// A name that is not known in a directory whose MDS is away: another MDT's root, or nothing
    /// that can be known now.
    pub(crate) fn made_up_junction(&self, parent: FileId, name: &Name) -> Option<FileId> {
        let believed = self.servers.map.current();
        let mut junctions = believed.map.junctions_in(parent);
        let junction = junctions.find(|one| one.name == *name)?;
        self.tells_of_absent(parent.mdt()).then(|| FileId::root_of(junction.mdt))
    }
}

/// A directory of which nothing is known but that it is one: everybody may pass, nobody may write.
/// At a junction the kernel lets everybody try: whoever does waits for the MDS, which decides. An
/// error would end jobs that wait for nothing but a server that restarts.
fn directory(id: FileId, is_junction: bool, links: u32) -> Attributes {
    let mode = if is_junction { 0o777 } else { 0o555 };
    let long_ago = Time { seconds: 0, nanos: 0 };
    Attributes {
        links,
        has_xattrs: Some(false),
        ..Attributes::new(id, FileKind::Directory, Mode::new(mode), long_ago)
    }
}
