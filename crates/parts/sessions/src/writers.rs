//! Which sessions write which files, and so may hold bytes that no server has seen.
//!
//! A session says that it writes a file before it gathers bytes of it (an open's `writes`; a file
//! that it made it writes at once). Whoever looks at the file waits until they are committed, and
//! is told that he must look again next time; who writes it as well has each write committed before
//! it returns, here and there. A session that has closed the file, or lets it rest, is out of the
//! table when it answers so. Where a session works alone it is asked for all of its directory
//! instead.
//!
//! An answer is waited for only so long: whoever writes to an OST that is away must not hold up
//! those who list its files.
//!
//! Invariants: the asking session is never asked; the table is bounded, and of what it forgot
//! others see the bytes when they are committed, a second later.

use crate::Holders;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{FileId, SessionId};
use tokio::time::Instant;

/// Who did not answer, or commits each write anyhow, is not asked again before: if he did not
/// answer again and again, twice as long each time.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(600);
/// Who did not answer so often is not asked for the sake of other writers sooner either.
const UNANSWERED_MAX: u32 = 2;

#[derive(Default)]
pub struct WriterTable {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    writers: Holders<Writer>,
    /// Counts what was said.
    said: u64,
}

/// A session that writes a file.
#[derive(Clone, Copy, Default)]
struct Writer {
    /// When it said so: an answer to an older question is not about this.
    said: u64,
    /// It knows that others write there, too.
    is_told: bool,
    /// When it was last asked, if it need not be for a while.
    asked: Option<Instant>,
    /// How often in a row it did not answer.
    unanswered: u32,
}

impl Writer {
    fn is_asked(&self, writes: bool) -> bool {
        let doublings = self.unanswered.saturating_sub(1).min(16);
        let pause = ASK_AGAIN.saturating_mul(1 << doublings).min(ASK_AGAIN_MAX);
        let is_lately = self.asked.is_some_and(|asked| asked.elapsed() < pause);
        !is_lately || writes && !self.is_told && self.unanswered < UNANSWERED_MAX
    }
}

impl WriterTable {
    /// Says whether that is news.
    pub fn note(&self, session: SessionId, file: FileId) -> bool {
        let mut inner = self.lock();
        inner.said += 1;
        let said = inner.said;
        if let Some(writer) = inner.writers.get_mut(session, file) {
            writer.said = said;
            return false;
        }
        // They do not know of this one.
        let others = inner.writers.of_mut(file);
        others.for_each(|(_, other)| (other.is_told, other.asked) = (false, None));
        inner.writers.insert(session, file, Writer { said, ..Writer::default() });
        true
    }

    pub fn closed(&self, session: SessionId, file: FileId) {
        self.lock().writers.remove(session, file);
    }

    pub fn end(&self, session: SessionId) {
        self.lock().writers.end(session);
    }

    /// Does anybody but `session` write the file?
    pub fn has_others(&self, session: SessionId, file: FileId) -> bool {
        self.lock().writers.of(file).any(|(writer, _)| writer != session)
    }

    /// Who must be asked before `asking` sees these files, or writes them, and for which of them?
    pub fn to_ask(
        &self,
        asking: SessionId,
        files: &BTreeSet<FileId>,
        writes: bool,
    ) -> BTreeMap<SessionId, Vec<FileId>> {
        let inner = self.lock();
        let mut asks: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        for &file in files {
            let writers = inner.writers.of(file);
            for (session, writer) in writers.filter(|(session, _)| *session != asking) {
                if writer.is_asked(writes) {
                    asks.entry(session).or_default().push(file);
                }
            }
        }
        asks
    }

    /// What a session said when it was asked for these files, `writes`: by another who writes
    /// them, too. `still`: which it still writes; `None`: it said nothing.
    pub fn answered(
        &self,
        (session, said): (SessionId, u64),
        (files, writes): (&[FileId], bool),
        still: Option<&[FileId]>,
    ) {
        for &file in files {
            let mut inner = self.lock();
            let writer = inner.writers.get_mut(session, file);
            let Some(writer) = writer.filter(|writer| writer.said <= said) else { continue };
            if still.is_some_and(|still| !still.contains(&file)) {
                drop(inner);
                self.closed(session, file);
                continue;
            }
            writer.is_told |= writes && still.is_some();
            writer.unanswered = if still.is_some() { 0 } else { writer.unanswered + 1 };
            let rests = writer.is_told || still.is_none();
            writer.asked = rests.then(Instant::now);
        }
    }

    /// What was said by now.
    pub fn said(&self) -> u64 {
        self.lock().said
    }

    /// A session that hears no more of others gathers its writes again.
    pub fn is_alone_again(&self, session: SessionId, file: FileId) {
        let mut inner = self.lock();
        if inner.writers.of(file).count() == 1
            && let Some(writer) = inner.writers.get_mut(session, file)
        {
            (writer.is_told, writer.asked) = (false, None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_writes_is_asked_until_he_has_closed() {
        let table = WriterTable::default();
        let (a, b, file) = (SessionId(1), SessionId(2), FileId(1));
        let files = BTreeSet::from([file]);
        assert!(table.note(a, file) && !table.note(a, file));
        assert!(table.has_others(b, file) && !table.has_others(a, file));
        assert!(table.to_ask(a, &files, false).is_empty(), "the asking session is never asked");
        // Each look asks.
        for _ in 0..2 {
            assert_eq!(table.to_ask(b, &files, false), BTreeMap::from([(a, vec![file])]));
            table.answered((a, u64::MAX), (&[file], false), Some(&[file]));
        }
        table.answered((a, u64::MAX), (&[file], false), Some(&[]));
        assert!(!table.has_others(b, file));
        // An answer to a question of before is not about what was said since.
        let said = table.said();
        table.note(a, file);
        table.answered((a, said), (&[file], false), Some(&[]));
        assert!(table.has_others(b, file));
    }

    #[tokio::test(start_paused = true)]
    async fn who_commits_each_write_or_does_not_answer_is_left_alone_for_a_while() {
        let table = WriterTable::default();
        let (a, b, file) = (SessionId(1), SessionId(2), FileId(1));
        let files = BTreeSet::from([file]);
        table.note(a, file);
        table.answered((a, u64::MAX), (&[file], false), None);
        assert!(table.to_ask(b, &files, false).is_empty(), "he did not answer");
        assert!(!table.to_ask(b, &files, true).is_empty(), "but must know of another writer");
        for pause in [10, 20, 40] {
            tokio::time::advance(ASK_AGAIN_MAX).await;
            table.answered((a, u64::MAX), (&[file], true), None);
            tokio::time::advance(Duration::from_secs(pause - 1)).await;
            assert!(table.to_ask(b, &files, true).is_empty(), "for {pause} s");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!table.to_ask(b, &files, true).is_empty());
        }
        table.note(b, file);
        table.answered((a, u64::MAX), (&[file], true), Some(&[file]));
        assert!(table.to_ask(b, &files, true).is_empty(), "he knows");
        tokio::time::advance(ASK_AGAIN).await;
        assert!(!table.to_ask(b, &files, false).is_empty(), "he may have closed");
        table.closed(b, file);
        table.is_alone_again(a, file);
        assert!(!table.to_ask(b, &files, true).is_empty());
    }
}
