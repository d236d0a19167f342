//! What lies in an exposed directory and is not ours, or is not as it was left.
//!
//! A directory of which nothing is known (a pool that begins to be exposed, an MDT that was
//! restored) is emptied, as is one that is exposed no more. Else names without a record go, and
//! files that are missing or were changed there are made anew.
//!
//! Done a page at a time, between the steps of changes. Names of other MDTs' trees are theirs.

use super::lane::Lane;
use super::paths::PARKED_PREFIX;
use super::plan::{Halt, Plan};
use crate::error::{Error, Result, decode};
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::Record;
use tieline_format::mdt::{ExposeNote, Exposed, ExposedEntry, NO_SESSION, key};
use tieline_kv::{Key, Range};
use tieline_types::{ErrorKind, FileId, Name};
use tieline_wire::exposed::{ListExposed, Path, Step, StepOutcome};

/// Names in one page.
const PAGE: u32 = 256;
/// Records that one transaction deletes.
const RECORDS: usize = 1024;

/// Where a sweep is.
pub struct Sweep {
    /// Everything goes.
    is_emptying: bool,
    folders: Vec<Folder>,
}

/// A directory that is swept.
struct Folder {
    path: Path,
    /// `None`: it is not ours.
    id: Option<FileId>,
    after: Option<Name>,
    is_listed: bool,
    is_top: bool,
}

impl Sweep {
    pub fn new(prefix: &[Name], root: FileId, is_emptying: bool) -> Self {
        let top = Folder {
            path: prefix.to_vec(),
            id: Some(root).filter(|_| !is_emptying),
            after: None,
            is_listed: false,
            is_top: true,
        };
        Self { is_emptying, folders: vec![top] }
    }
}

impl Lane {
    /// Sweeps a page. Says whether that was the last.
    pub async fn sweep(&mut self) -> Result<bool> {
        let Some(mut sweep) = self.sweeping.take() else { return Ok(true) };
        let swept = self.sweep_page(&mut sweep).await;
        let is_over = sweep.folders.is_empty();
        if swept.is_err() || !is_over {
            self.sweeping = Some(sweep);
        }
        swept.map(|()| is_over)
    }

    async fn sweep_page(&mut self, sweep: &mut Sweep) -> Result<()> {
        let Some(folder) = sweep.folders.last_mut() else { return Ok(()) };
        if folder.is_listed {
            let goes = folder.id.is_none() && !folder.is_top;
            if goes {
                let step = Step::RemoveDirectory { path: folder.path.clone() };
                self.arrange(vec![step]).await?;
            }
            sweep.folders.pop();
            return Ok(());
        }
        let asked = ListExposed {
            ost: self.exposure()?.ost,
            pool: self.pool.clone(),
            directory: folder.path.clone(),
            after: folder.after.clone(),
            limit: PAGE,
        };
        let names = match self.parts.exposed.list_exposed(asked).await {
            Ok(reply) => reply.names,
            // It is not there, or moved: then it comes again.
            Err(failure) if failure.kind == ErrorKind::NotFound && !folder.path.is_empty() => {
                sweep.folders.pop();
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        folder.is_listed = names.len() < PAGE as usize;
        folder.after = names.last().map(|last| last.name.clone()).or(folder.after.take());
        let (path, id) = (folder.path.clone(), folder.id);
        let others = if folder.is_top { self.names_of_others() } else { BTreeSet::new() };
        let (mut steps, mut below) = (vec![], vec![]);
        for one in names {
            let is_parked = one.name.as_bytes().starts_with(PARKED_PREFIX.as_bytes());
            if others.contains(&one.name) || (is_parked && !sweep.is_emptying) {
                continue;
            }
            let known = match id {
                Some(id) => self.known(id, &one.name, one.is_directory).await?,
                None => None,
            };
            let path = [&path[..], std::slice::from_ref(&one.name)].concat();
            if one.is_directory {
                let (after, is_listed, is_top) = (None, false, false);
                below.push(Folder { path, id: known, after, is_listed, is_top });
            } else if known.is_none() {
                steps.push(Step::Remove { path });
            }
        }
        if !steps.is_empty() {
            if !sweep.is_emptying {
                let count = steps.len();
                tracing::warn!(pool = %self.pool, count, "names that were not ours are removed");
            }
            self.arrange(steps).await?;
        }
        sweep.folders.extend(below);
        Ok(())
    }

    /// Names at the top of our tree that are other MDTs'.
    fn names_of_others(&self) -> BTreeSet<Name> {
        let map = self.parts.map.current();
        map.map.junctions_in(self.root()).map(|junction| junction.name.clone()).collect()
    }

    async fn known(&self, id: FileId, name: &Name, is_directory: bool) -> Result<Option<FileId>> {
        let mut transaction = self.parts.store.begin().await?;
        let own = key::exposed_entry(&self.pool, id, name);
        let values = transaction.read(std::slice::from_ref(&own)).await?;
        let Some(value) = values.into_iter().next().flatten() else { return Ok(None) };
        let entry: ExposedEntry = decode(&value, || name.to_string())?;
        let own = key::exposed(&self.pool, entry.id);
        let values = transaction.read(std::slice::from_ref(&own)).await?;
        let Some(value) = values.into_iter().next().flatten() else { return Ok(None) };
        let own: Exposed = decode(&value, || entry.id.to_string())?;
        Ok(Some(entry.id).filter(|_| own.is_directory == is_directory))
    }

    /// Steps that change no record; none: only to hear who is there.
    pub async fn arrange(&mut self, steps: Vec<Step>) -> Result<Vec<StepOutcome>> {
        let reply = self.parts.exposed.arrange(self.message(steps)?).await?;
        self.heard(reply.boot);
        let failed = reply.outcomes.iter().find_map(|outcome| match outcome {
            StepOutcome::Failed(detail) => Some(detail.clone()),
            StepOutcome::Done | StepOutcome::Missing => None,
        });
        if let Some(detail) = failed {
            self.trouble(detail);
        }
        Ok(reply.outcomes)
    }

    /// Looks whether a page of files is as it was left. Says where the next begins.
    pub async fn check(&mut self, from: Key) -> Result<Option<Key>> {
        let map = self.parts.map.current();
        let (pool, ready, prefix) = (self.pool.clone(), BTreeMap::new(), self.prefix()?);
        let transaction = self.parts.store.begin().await?;
        let at = (self.root(), &prefix[..]);
        let mut plan = Plan::new(transaction, (&pool, &map.map), at, self.parts.now(), &ready);
        let range = Range::new(from, key::after(&key::exposed_all(&pool)));
        let found = plan.transaction.scan(range, PAGE as usize).await?;
        let (mut steps, mut files) = (vec![], vec![]);
        for (key, value) in &found {
            let Some(file) = key::exposed_file(key) else { continue };
            let own: Exposed = decode(value, || file.to_string())?;
            // What is doubtful is made anew anyhow.
            let is_checked = !own.is_directory && !own.is_doubtful;
            for name in own.names.iter().filter(|_| is_checked) {
                let path = match plan.path(name).await {
                    Ok(path) => path,
                    Err(Halt::Failed(error)) => return Err(error),
                    Err(Halt::Lost | Halt::Full) => vec![],
                };
                steps.push(Step::Check { path, size: own.size, mtime: own.mtime });
                files.push((file, own.clone()));
            }
        }
        drop(plan);
        let next = found.last().map(|(key, _)| [&key[..], &[0]].concat());
        let next = next.filter(|_| found.len() == PAGE as usize);
        if steps.is_empty() {
            return Ok(next);
        }
        let mut outcomes = vec![];
        while !steps.is_empty() {
            let rest = steps.split_off(steps.len().min(Step::COUNT_MAX));
            outcomes.extend(self.arrange(std::mem::replace(&mut steps, rest)).await?);
        }
        let wrong = files.iter().zip(&outcomes).filter(|(_, came)| **came != StepOutcome::Done);
        let wrong: BTreeMap<FileId, Exposed> = wrong.map(|(file, _)| file.clone()).collect();
        if !wrong.is_empty() {
            let (pool, count) = (&self.pool, wrong.len());
            tracing::warn!(%pool, count, "exposed files were not as they were left: made anew");
            self.remakes = true;
            self.doubt(wrong).await?;
        }
        Ok(next)
    }

    async fn doubt(&mut self, files: BTreeMap<FileId, Exposed>) -> Result<()> {
        let mut transaction = self.parts.store.begin().await?;
        let note = ExposeNote { at: self.parts.now(), session: NO_SESSION };
        for (file, own) in files {
            let doubted = Exposed { is_doubtful: true, ..own };
            transaction.put(key::exposed(&self.pool, file), doubted.to_bytes());
            transaction.put(key::expose_note(&self.pool, file), note.to_bytes());
        }
        Ok(transaction.commit().await?.durable.await?)
    }

    /// Forgets what was recorded of what lay there.
    pub async fn forget(&mut self, prefixes: &[Key]) -> Result<()> {
        for prefix in prefixes {
            loop {
                let mut transaction = self.parts.store.begin().await?;
                let range = Range::new(prefix.clone(), key::after(prefix));
                let found = transaction.scan(range, RECORDS).await?;
                let is_last = found.len() < RECORDS;
                found.into_iter().for_each(|(key, _)| transaction.delete(key));
                match transaction.commit().await {
                    Ok(committed) => committed.durable.await?,
                    Err(tieline_kv::Error::Conflict) => continue,
                    Err(error) => return Err(error.into()),
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Where the MDT's tree is in the file system, name by name: MDTs are mounted in the roots of
    /// others.
    pub fn prefix(&self) -> Result<Path> {
        let map = self.parts.map.current();
        let (mut names, mut at) = (vec![], self.parts.index);
        while let Some(junction) = map.map.junction_of(at) {
            names.push(junction.name.clone());
            if junction.parent != FileId::root_of(junction.parent.mdt()) || names.len() > 64 {
                let what = "its MDT is mounted below a directory of another: only MDTs that are \
                            mounted in root directories can be exposed";
                return Err(Error::Given { what });
            }
            at = junction.parent.mdt();
        }
        names.reverse();
        Ok(names)
    }
}
