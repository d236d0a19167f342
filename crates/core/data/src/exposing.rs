//! Exposed pools, at the OSS whose machine has the directory: files are put together from their
//! chunks, and names there follow what an MDS says.
//!
//! * `stage`: bytes from wherever their chunks lie, verified, into a file without a name.
//! * `dress`: whose a file is on this machine, and what its mode lets others do.
//!
//! What is put together waits in a bounded table until it gets its name. Steps of one pool are done
//! one after the other.
//!
//! Invariants: what an earlier start of an MDS says is not done; a step that is answered survives
//! the machine; nothing gets a name that was not verified whole.

mod dress;
mod stage;

pub use dress::Owners;

use crate::ChunkService;
use stage::Draft;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_exposed::{Dress as Worn, Error, ExposedTree};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, FileId, MdtIndex, Name, OstIndex, PoolName};
use tieline_wire::Failure;
use tieline_wire::exposed::{
    ArrangeExposed, ArrangeExposedReply, ExposedName, ListExposed, ListExposedReply, Step,
    StepOutcome,
};

/// Names in one listing.
const NAMES_MAX: u32 = 4096;

/// Where a pool is exposed, as the federation map says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExposedAt {
    pub directory: PathBuf,
    /// By what the directory is known to be this pool's: `extenci.uf`.
    pub owner: String,
}

/// The exposed directories of this machine.
pub(crate) struct Exposing {
    /// Another number each time that the server is started.
    boot: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    trees: BTreeMap<PoolName, Arc<Open>>,
    drafts: BTreeMap<(PoolName, FileId), Arc<Draft>>,
    /// The latest start of each MDT that was heard of.
    boots: BTreeMap<MdtIndex, u64>,
    /// What is wrong with a pool's directory.
    troubles: BTreeMap<PoolName, Option<String>>,
}

/// An exposed directory that is open.
struct Open {
    at: ExposedAt,
    tree: ExposedTree,
    /// Steps take turns.
    turn: Mutex<()>,
}

impl Exposing {
    pub fn new(boot: u64) -> Self {
        Self { boot, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool's directory. Blocks.
    fn open(
        &self,
        pool: &PoolName,
        at: &ExposedAt,
        was_marked: bool,
    ) -> Result<Arc<Open>, Failure> {
        let known = self.lock().trees.get(pool).cloned();
        if let Some(known) = known.filter(|known| known.at == *at && known.tree.is_in_place()) {
            return Ok(known);
        }
        let opened = ExposedTree::open(&at.directory, &at.owner, was_marked);
        let mut inner = self.lock();
        inner.trees.remove(pool);
        match opened {
            Ok(tree) => {
                let open = Arc::new(Open { at: at.clone(), tree, turn: Mutex::default() });
                inner.trees.insert(pool.clone(), open.clone());
                inner.troubles.insert(pool.clone(), None);
                Ok(open)
            }
            Err(error) => {
                inner.troubles.insert(pool.clone(), Some(error.to_string()));
                Err(failure(pool, &error))
            }
        }
    }

    /// What an earlier start of an MDS said may come late.
    fn check_boot(&self, mdt: MdtIndex, boot: u64) -> Result<(), Failure> {
        let mut inner = self.lock();
        let latest = inner.boots.entry(mdt).or_default();
        if boot < *latest {
            let detail = format!("{} was started anew since it said so", mdt.label());
            return Err(Failure::new(ErrorKind::NotPermitted, detail));
        }
        *latest = boot;
        Ok(())
    }
}

impl ChunkService {
    /// What is wrong with the directories of exposed pools here, if something is.
    pub fn exposed_troubles(&self) -> BTreeMap<PoolName, Option<String>> {
        self.exposing.lock().troubles.clone()
    }

    /// Does what an MDS says to names in an exposed directory.
    pub async fn arrange(
        self: &Arc<Self>,
        message: ArrangeExposed,
        at: ExposedAt,
        owners: &dyn Owners,
    ) -> Result<ArrangeExposedReply, Failure> {
        if message.steps.len() > Step::COUNT_MAX {
            let detail = format!("{} steps at once: {} fit", message.steps.len(), Step::COUNT_MAX);
            return Err(Failure::new(ErrorKind::InvalidArgument, detail));
        }
        self.exposing.check_boot(message.mdt, message.boot)?;
        let mut worn = Vec::with_capacity(message.steps.len());
        for step in &message.steps {
            worn.push(dress::worn(step, owners).await);
        }
        let service = self.clone();
        blocking(move || {
            let open = service.exposing.open(&message.pool, &at, message.is_marked)?;
            let _turn = open.turn.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have waited for its turn.
            service.exposing.check_boot(message.mdt, message.boot)?;
            let steps = message.steps.iter().zip(worn);
            let done =
                steps.map(|(step, worn)| service.step(&message.pool, &open.tree, step, worn));
            let mut outcomes: Vec<StepOutcome> = done.collect();
            sync(&open.tree, &message.steps, &mut outcomes);
            let boot = service.exposing.boot;
            Ok(ArrangeExposedReply { outcomes, boot, is_marked: true })
        })
        .await
    }

    fn step(
        &self,
        pool: &PoolName,
        tree: &ExposedTree,
        step: &Step,
        worn: Option<Worn>,
    ) -> StepOutcome {
        let done = match (step, &worn) {
            (Step::MakeDirectory { path, .. }, Some(worn)) => tree.make_directory(path, worn),
            (Step::Dress { path, .. }, Some(worn)) => tree.dress(path, worn),
            (Step::Place { path, file, content, .. }, Some(worn)) => {
                let draft = self.exposing.lock().drafts.remove(&(pool.clone(), *file));
                match draft.filter(|draft| draft.is_whole_of(*content)) {
                    Some(draft) => tree.place(path, &draft.staged, worn).inspect(|()| {
                        METRICS.exposed_files.with_label_values(&[pool.as_str()]).inc();
                    }),
                    None => return StepOutcome::Missing,
                }
            }
            (Step::Link { from, path }, _) => tree.link(from, path),
            (Step::Move { from, path }, _) => tree.rename(from, path),
            (Step::Remove { path }, _) => tree.remove(path),
            (Step::RemoveDirectory { path }, _) => tree.remove_directory(path),
            (Step::Check { path, size, mtime }, _) => {
                let is_good = tree.is_as_left(path, *size, *mtime);
                return if is_good { StepOutcome::Done } else { StepOutcome::Missing };
            }
            _ => Ok(()),
        };
        outcome(pool, done)
    }

    /// Lists some names of an exposed directory.
    pub async fn list_exposed(
        self: &Arc<Self>,
        message: ListExposed,
        at: ExposedAt,
    ) -> Result<ListExposedReply, Failure> {
        if message.limit == 0 || message.limit > NAMES_MAX {
            let detail = format!("listing of {} names: 1 to {NAMES_MAX} fit", message.limit);
            return Err(Failure::new(ErrorKind::InvalidArgument, detail));
        }
        let service = self.clone();
        blocking(move || {
            let ListExposed { pool, directory, after, limit, .. } = &message;
            let open = service.exposing.open(pool, &at, false)?;
            let found = open.tree.list(directory, after.as_ref(), *limit as usize);
            let found = found.map_err(|error| failure(pool, &error))?.into_iter();
            let named = |one: tieline_exposed::Found| ExposedName {
                name: one.name,
                is_directory: one.is_directory,
            };
            Ok(ListExposedReply { names: found.map(named).collect() })
        })
        .await
    }

    pub(crate) fn exposing(&self) -> &Exposing {
        &self.exposing
    }
}

/// Where names changed is made durable; where that fails nothing was done.
fn sync(tree: &ExposedTree, steps: &[Step], outcomes: &mut [StepOutcome]) {
    let changes = steps.iter().filter(|step| !matches!(step, Step::Check { .. }));
    let above = |path: &Vec<Name>| path.split_last().map(|(_, above)| above.to_vec());
    let directories: BTreeSet<_> = changes.flat_map(Step::paths).filter_map(above).collect();
    if let Err(error) = tree.sync(&directories) {
        let failed = StepOutcome::Failed(chain(&error));
        outcomes.iter_mut().for_each(|outcome| *outcome = failed.clone());
    }
}

fn outcome(pool: &PoolName, done: Result<(), Error>) -> StepOutcome {
    match done {
        Ok(()) => StepOutcome::Done,
        Err(Error::Missing(_)) => StepOutcome::Missing,
        Err(error) => {
            METRICS.exposed_failures.with_label_values(&[pool.as_str()]).inc();
            StepOutcome::Failed(chain(&error))
        }
    }
}

fn failure(pool: &PoolName, error: &Error) -> Failure {
    Failure::new(error.kind(), format!("exposed pool {pool}: {}", chain(error)))
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// Whose server serves the OST by which messages find it.
pub(crate) fn about(ost: OstIndex, pool: &PoolName) -> String {
    format!("exposed pool {pool} at {}", ost.label())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Failure::new(ErrorKind::Internal, error.to_string())),
    }
}

#[cfg(test)]
mod tests;
