//! The way to tape and back, at an OSS: files are put together as whole local files for the site's
//! script, and what the script brings back becomes chunks again.
//!
//! An MDS drives it ([`DriveTape`]): it hands over what is to be done, in pages, and asks how far
//! it is. What is under way is in memory only. After a restart nothing of it is known here; the
//! MDS, which has it in its store, begins anew.
//!
//! * `put`: from chunks to one file, and that to tape.
//! * `get`: from tape to one file, and that to chunks.
//!
//! Invariants: nothing is said to be done before it is: what is put has its URIs, what is gotten
//! was compared whole with what was archived, and is durable; at most [`JOBS_MAX`] jobs are known,
//! and one that nobody asks about ends.

mod get;
mod put;

use crate::ChunkService;
use crate::copies::ObjectSource;
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_hsm::{Deed, Scripts};
use tieline_types::{ErrorKind, FileId};
use tieline_wire::Failure;
use tieline_wire::tape::{DriveState, DriveTape, DriveTapeReply, TapeDeed, TapePart, TapeWork};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Jobs that are known at once: those that wait for their turn are among them.
const JOBS_MAX: usize = 256;
/// A job that no MDS asks about any more ends.
const ASKED_WITHIN: Duration = Duration::from_secs(120);
/// Who asks is answered when something has changed, or after this.
const NEWS_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub struct TapeService {
    chunks: Arc<ChunkService>,
    scripts: Scripts,
    jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
}

/// One file on its way.
pub(crate) struct Job {
    number: u64,
    pub file: FileId,
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    work: TapeWork,
    parts: Vec<TapePart>,
    state: DriveState,
    capability: Option<Vec<u8>>,
    asked: Instant,
    task: Option<AbortHandle>,
}

impl TapeService {
    /// What earlier processes left in the spool is nobody's.
    pub fn new(chunks: Arc<ChunkService>, scripts: Scripts) -> std::io::Result<Arc<Self>> {
        let spool = scripts.spool();
        DirBuilder::new().recursive(true).mode(0o700).create(spool)?;
        check_own(spool)?;
        for entry in std::fs::read_dir(spool)? {
            let path = entry?.path();
            if path.is_file() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(Arc::new(Self { chunks, scripts, jobs: Mutex::default() }))
    }

    /// Takes up work, and says how far it is.
    pub async fn drive(
        self: &Arc<Self>,
        message: DriveTape,
        source: &Arc<dyn ObjectSource>,
    ) -> Result<DriveTapeReply, Failure> {
        self.chunks.target(message.ost)?;
        self.prune();
        if message.ends == Some(true) {
            self.end(message.job);
            return Ok(DriveTapeReply { state: DriveState::Unknown });
        }
        let Some(job) = self.job(&message)? else {
            return Ok(DriveTapeReply { state: DriveState::Unknown });
        };
        let changed = job.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let before = {
            let mut inner = job.lock();
            inner.asked = Instant::now();
            inner.capability = message.capability;
            if let Some(work) = message.work {
                gather(&mut inner, work)?;
            }
            inner.state.clone()
        };
        let state = match before {
            DriveState::Gathering(count) if count == job.lock().work.total => {
                self.begin(&job, source);
                DriveState::Waiting
            }
            DriveState::Waiting | DriveState::Running => {
                let _ = tokio::time::timeout(NEWS_WITHIN, changed).await;
                job.lock().state.clone()
            }
            other => other,
        };
        Ok(DriveTapeReply { state })
    }

    /// The job that is asked about; with work, it is begun.
    fn job(&self, message: &DriveTape) -> Result<Option<Arc<Job>>, Failure> {
        let mut jobs = self.lock();
        if let Some(job) = jobs.get(&message.job) {
            return Ok(Some(job.clone()).filter(|job| job.file == message.file));
        }
        let Some(work) = &message.work else { return Ok(None) };
        check(work)?;
        // An MDS that was started again has forgotten what it had begun.
        let is_old = |job: &&Arc<Job>| {
            let inner = job.lock();
            job.file == message.file && deed_of(&inner.work) == deed_of(work)
        };
        let old: Vec<u64> = jobs.values().filter(is_old).map(|job| job.number).collect();
        old.into_iter().filter_map(|number| jobs.remove(&number)).for_each(|job| job.abort());
        if jobs.len() >= JOBS_MAX {
            let detail = format!("{JOBS_MAX} files are on their way to tape or back already");
            return Err(Failure::new(ErrorKind::Overloaded, detail));
        }
        let job = Arc::new(Job {
            number: message.job,
            file: message.file,
            inner: Mutex::new(Inner {
                work: TapeWork { parts: vec![], ..work.clone() },
                parts: vec![],
                state: DriveState::Gathering(0),
                capability: None,
                asked: Instant::now(),
                task: None,
            }),
            changed: Notify::new(),
        });
        jobs.insert(message.job, job.clone());
        Ok(Some(job))
    }

    fn begin(self: &Arc<Self>, job: &Arc<Job>, source: &Arc<dyn ObjectSource>) {
        let (service, own, source) = (self.clone(), job.clone(), source.clone());
        job.tell(DriveState::Waiting);
        let task = tokio::spawn(async move {
            let worked = tokio::select! {
                biased;
                worked = service.work(&own, &*source) => worked,
                // Its MDS went on at another OSS, perhaps: the script ends here.
                () = own.forgotten() => return service.end(own.number),
            };
            let state = match worked {
                Ok(done) => done,
                Err(Ended { failure: Failure { kind, detail }, is_final }) => {
                    let (file, job) = (own.file, own.number);
                    tracing::warn!(%file, job, "tape: {detail}");
                    DriveState::Failed { kind, detail, is_final }
                }
            };
            own.tell(state);
        });
        job.lock().task = Some(task.abort_handle());
    }

    async fn work(&self, job: &Arc<Job>, source: &dyn ObjectSource) -> Result<DriveState, Ended> {
        let (work, parts) = {
            let mut inner = job.lock();
            (inner.work.clone(), std::mem::take(&mut inner.parts))
        };
        match &work.deed {
            TapeDeed::Put { name, size } => {
                let file = self.spooled(name, job);
                let put = put::Put { service: self, job, work: &work, file: &file.0 };
                put.run((name, *size), parts, source).await
            }
            TapeDeed::Get { name, copy } => {
                let file = self.spooled(name, job);
                let get = get::Get { service: self, job, work: &work, file: &file.0 };
                get.run((name, copy), parts).await
            }
            TapeDeed::Remove(uris) => {
                for uri in uris {
                    self.script(job, &work, &Deed::Remove { uri }).await?;
                }
                Ok(DriveState::Done)
            }
        }
    }

    fn spooled(&self, name: &str, job: &Job) -> Spooled {
        Spooled(self.scripts.spool().join(format!("{name}.{:016x}", job.number)))
    }

    async fn script(&self, job: &Job, work: &TapeWork, deed: &Deed<'_>) -> Result<Vec<u8>, Ended> {
        let begins = || job.tell(DriveState::Running);
        self.scripts.run(&work.hsm, deed, begins).await.map_err(|error| Ended {
            is_final: error.is_final(),
            failure: Failure::new(error.kind(), format!("{}: {error}", deed.word())),
        })
    }

    fn prune(&self) {
        let old = |job: &Arc<Job>| job.lock().asked.elapsed() >= ASKED_WITHIN;
        let ended: Vec<u64> = {
            let jobs = self.lock();
            jobs.values().filter(|job| old(job)).map(|job| job.number).collect()
        };
        ended.into_iter().for_each(|number| self.end(number));
    }

    fn end(&self, number: u64) {
        let job = self.lock().remove(&number);
        job.iter().for_each(|job| job.abort());
    }

    /// Ends all that is under way, scripts included.
    pub fn stop(&self) {
        let numbers: Vec<u64> = self.lock().keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end(number));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until nobody asks about it any more.
    async fn forgotten(&self) {
        loop {
            let asked = self.lock().asked.elapsed();
            let Some(left) = ASKED_WITHIN.checked_sub(asked) else { return };
            tokio::time::sleep(left + Duration::from_millis(1)).await;
        }
    }

    fn tell(&self, state: DriveState) {
        self.lock().state = state;
        self.changed.notify_waiters();
    }

    /// Its script ends, too.
    fn abort(&self) {
        if let Some(task) = self.lock().task.take() {
            task.abort();
        }
    }

    fn capability(&self) -> Option<Vec<u8>> {
        self.lock().capability.clone()
    }
}

/// Who may write in the spool chooses what is taken for a file from tape, and what a script writes
/// through; and what a link leads to would be emptied.
fn check_own(spool: &Path) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(spool)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && is_own && found.mode() & 0o002 == 0 {
        return Ok(());
    }
    let shown = spool.display();
    let why = format!(
        "{shown} is no directory of the server's user alone: chown it, chmod o-w it, or set \
         `hsm.spool`"
    );
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why))
}

/// A local file that goes when its job does.
struct Spooled(PathBuf);

impl Drop for Spooled {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Why a job did not do what it should.
struct Ended {
    failure: Failure,
    is_final: bool,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self { failure, is_final: false }
    }
}

/// What the site's own storage says.
fn local(what: &str, error: &dyn std::fmt::Display) -> Ended {
    Failure::new(ErrorKind::StorageFault, format!("the spool for tape: {what}: {error}")).into()
}

/// Does blocking work apart.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Ended> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| local(what, &error))?.map_err(|error| local(what, &error))
}

fn check(work: &TapeWork) -> Result<(), Failure> {
    let refuse = |detail: String| Err(Failure::new(ErrorKind::InvalidArgument, detail));
    if let Err(error) = work.hsm.validate() {
        return refuse(error.to_string());
    }
    if work.total > TapeWork::TOTAL_MAX {
        let max = TapeWork::TOTAL_MAX;
        return refuse(format!("a file of {} parts: at most {max} go to tape", work.total));
    }
    let name = match &work.deed {
        TapeDeed::Put { name, .. } | TapeDeed::Get { name, .. } => name,
        TapeDeed::Remove(_) => return Ok(()),
    };
    let is_name = name.len() == 36 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_name { Ok(()) } else { refuse("a name on tape is 36 hexadecimal digits".to_owned()) }
}

/// What two jobs of one file may not do side by side.
fn deed_of(work: &TapeWork) -> (u8, &str) {
    match &work.deed {
        TapeDeed::Put { name, .. } => (1, name),
        TapeDeed::Get { name, .. } => (2, name),
        TapeDeed::Remove(uris) => (3, uris.first().map_or("", |uri| uri)),
    }
}

/// Adds a page of parts, in their order.
fn gather(inner: &mut Inner, work: TapeWork) -> Result<(), Failure> {
    let DriveState::Gathering(count) = inner.state else { return Ok(()) };
    let refuse = |detail: &str| Err(Failure::new(ErrorKind::InvalidArgument, detail.to_owned()));
    if work.before != count {
        return Ok(());
    }
    let total = count + work.parts.len() as u64;
    if work.parts.len() > TapeWork::PARTS_MAX || total > inner.work.total {
        return refuse("more parts than were announced");
    }
    let mut end = inner.parts.last().map_or(0, |part| part.offset.saturating_add(part.length));
    for part in &work.parts {
        if part.offset < end || part.offset.checked_add(part.length).is_none() {
            return refuse("parts overlap, or are out of order");
        }
        end = part.offset + part.length;
    }
    inner.parts.extend(work.parts);
    inner.state = DriveState::Gathering(total);
    Ok(())
}

#[cfg(test)]
mod tests;
