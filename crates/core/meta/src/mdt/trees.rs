//! Metadata in bulk, from asking to answer: ReadTree and ReadFiles.
//!
//! As other readers, these run on one state of the store and are granted leases as far as that is
//! still true. Where others work alone they do not disturb: a directory that nobody asked for by
//! itself is left out then. Those who hold directories alone and do nothing there are asked all at
//! once.
//!
//! Capabilities for files with chunks come along, many files in each.
//!
//! Invariant: a capability is signed only for files whose directory was granted after the issuer
//! took note of them: a change of rights that this answer has not seen takes them back.

use crate::Asker;
use crate::error::{Error, Result};
use crate::leases::Entitled;
use crate::mdt::Mdt;
use crate::ops::{read_files, read_tree};
use crate::view::{Keepers, View};
use std::collections::BTreeSet;
use tieline_auth::capability::Serial;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, Grant, Version};
use tieline_wire::Request;
use tieline_wire::capability::{CapabilityGrant, FileRun, Holder, RUNS_MAX, Scope};
use tieline_wire::meta::LeaseGrant;
use tieline_wire::trees::{Packed, ReadFilesReply, ReadTree, ReadTreeReply};

/// How often an answer is begun again because others were in its way.
const ATTEMPTS: usize = 20;

/// What was read, encoded, and what it rests on.
struct Read {
    page: Packed,
    /// Files with chunks that may be read, with their units.
    readable: Vec<(FileId, FileId)>,
    entitled: Vec<Entitled>,
    /// Files that nobody else wrote, by that count.
    resting: (u64, BTreeSet<FileId>),
    as_of: Version,
}

impl Mdt {
    /// Answers a question in bulk; `None` if it is none.
    pub(crate) async fn bulk_call(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &Request,
    ) -> Option<Result<Vec<u8>>> {
        let holder = match request {
            Request::ReadTree(tree) => tree.holder,
            Request::ReadFiles(files) => files.holder,
            _ => return None,
        };
        Some(self.read_bulk(asker, grant, request, holder).await)
    }

    async fn read_bulk(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &Request,
        holder: Option<Holder>,
    ) -> Result<Vec<u8>> {
        let mut left = ATTEMPTS;
        let (Read { page, readable, as_of, .. }, units, serial) = loop {
            left -= 1;
            let read = self.read_undisturbed(asker, grant, request).await?;
            // In this order: see the module.
            // Who acts for another asks for each: those for many say nothing of their end.
            let may_sign = asker.delegation.is_none();
            let serial = self.serial_of_readable(&read.readable).filter(|_| may_sign);
            let units = self.leases.grant(asker.session, &read.entitled, read.as_of);
            // What somebody has begun to write meanwhile is told anew; where others begin all the
            // time, what the answer tells is good for once.
            match self.are_begun(asker.session, read.resting.0, &read.resting.1) {
                false => break (read, units, serial),
                true if left == 0 => break (read, vec![], serial),
                true => {}
            }
        };
        let capabilities = serial.and_then(|serial| {
            let holder = holder.or_else(|| self.sessions.holder(asker.session))?;
            let granted: BTreeSet<FileId> = units.iter().copied().collect();
            let files = readable.iter().filter(|(unit, _)| granted.contains(unit));
            let files: BTreeSet<FileId> = files.map(|(_, file)| *file).collect();
            Some(self.sign_many(asker, serial, holder, &files))
        });
        let lease = LeaseGrant { as_of, units, exclusive: None };
        let has_limits = Some(self.quotas.has_limits()).filter(|&has| has);
        Ok(match request {
            Request::ReadFiles(_) => {
                tieline_wire::encode(&ReadFilesReply { lease, page, capabilities, has_limits })
            }
            _ => tieline_wire::encode(&ReadTreeReply { lease, page, capabilities, has_limits }),
        })
    }

    /// Reads until nobody is left who must say first what he did.
    async fn read_undisturbed(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &Request,
    ) -> Result<Read> {
        let map = self.parts.map.current();
        let (unnamed, mut nobody) = (Keepers::new(), Keepers::new());
        for _ in 0..ATTEMPTS {
            let (shared, said) = (self.leases.shared(), self.writers.said());
            let scene = self.scene(asker, grant, &map.map, &unnamed);
            let mut view = View::reading(scene, self.parts.store.begin().await?);
            let mut found = read_tree::Found::default();
            let may_enter = |unit| !self.leases.is_at_work(asker.session, unit);
            let run = match request {
                Request::ReadFiles(files) => {
                    let page = read_files::run(&mut view, files, &mut found).await;
                    page.map(|page| Packed::new(&page))
                }
                Request::ReadTree(tree) => self.walk(&mut view, tree, &may_enter, &mut found).await,
                _ => Err(Error::NotServed { op: request.op().name() }),
            };
            let asks = self.alone(asker.session, &view.seen, false);
            if !asks.is_empty() {
                drop(view);
                let asks = self.dated(asks).await?;
                self.take_back(asks, &mut nobody).await;
                continue;
            }
            if self.leases.shared() != shared {
                continue;
            }
            let as_of = view.version();
            let page = match run {
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(super::service::fail(view, error).await),
                Ok(page) => page,
            };
            let read_tree::Found { units, readable, .. } = found;
            let units: Vec<FileId> = units.into_iter().collect();
            let entitled = match self.entitled(&mut view, &units).await {
                Err(error) if error.is_conflict() => continue,
                entitled => entitled?,
            };
            let resting = (said, std::mem::take(&mut view.resting));
            match view.commit().await {
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(error),
                Ok(committed) => {
                    committed.durable.await?;
                    return Ok(Read { page, readable, entitled, resting, as_of });
                }
            }
        }
        METRICS.conflicts.inc();
        Err(Error::Contended { attempts: ATTEMPTS })
    }

    async fn walk(
        &self,
        view: &mut View<'_>,
        tree: &ReadTree,
        may_enter: read_tree::MayEnter<'_>,
        found: &mut read_tree::Found,
    ) -> Result<Packed> {
        *found = read_tree::run(view, tree, may_enter).await?;
        Ok(Packed::new(&std::mem::take(&mut found.page)))
    }

    /// `None` where no rights are given, or nothing needs them.
    fn serial_of_readable(&self, readable: &[(FileId, FileId)]) -> Option<Serial> {
        let is_proven = self.parts.map.current().map.security.is_some();
        let files = readable.iter().map(|(_, file)| *file);
        (is_proven && !readable.is_empty()).then(|| self.issuer.serial_of_many(files))
    }

    fn sign_many(
        &self,
        asker: &Asker,
        serial: Serial,
        holder: Holder,
        files: &BTreeSet<FileId>,
    ) -> Vec<CapabilityGrant> {
        let runs = runs(files);
        let scopes = runs.chunks(RUNS_MAX).map(|runs| Scope::Files { runs: runs.to_vec() });
        scopes.map(|scope| self.sign(serial, asker.session, holder, scope)).collect()
    }
}

/// Files that follow each other, as runs.
fn runs(files: &BTreeSet<FileId>) -> Vec<FileRun> {
    let mut runs: Vec<FileRun> = vec![];
    for file in files {
        let serial = file.serial();
        match runs.last_mut() {
            Some(run) if run.first + u64::from(run.count) == serial => run.count += 1,
            _ => runs.push(FileRun { first: serial, count: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
