//! What the MDT that keeps the limits knows of the others: when it heard of them, and what they
//! know.
//!
//! Invariant: of one MDT only the newest question counts.

use super::shares::There;
use super::table::Table;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::MdtIndex;
use tieline_types::quota::Payer;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// Who was heard within this is waited for.
const IN_TOUCH: Duration = Duration::from_secs(10);

/// What is known of the MDTs that follow.
pub(crate) struct Home {
    contacts: Mutex<BTreeMap<MdtIndex, Contact>>,
    /// One question is answered at a time.
    pub giving: tokio::sync::Mutex<()>,
    /// Advances with every question.
    heard: watch::Sender<u64>,
    /// Somebody is short of what clients here may have.
    pub wanted: Notify,
    started: Instant,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Contact {
    /// The newest question: start, and number within it.
    question: (u64, u64),
    /// News that were taken in.
    pub known: u64,
    heard: Option<Instant>,
}

impl Default for Home {
    fn default() -> Self {
        let (heard, _) = watch::channel(0);
        let (contacts, giving) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { contacts, giving, heard, wanted: Notify::new(), started: Instant::now() }
    }
}

impl Home {
    fn contacts(&self) -> MutexGuard<'_, BTreeMap<MdtIndex, Contact>> {
        self.contacts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn contact(&self, mdt: MdtIndex, note: impl FnOnce(&mut Contact)) {
        {
            let mut contacts = self.contacts();
            let contact = contacts.entry(mdt).or_default();
            contact.heard = Some(Instant::now());
            note(contact);
        }
        self.heard.send_modify(|count| *count += 1);
    }

    /// Was no later question heard? One whose store was restored counts from an earlier start: who
    /// was silent for longer than questions live begins anew.
    pub fn is_newest(&self, mdt: MdtIndex, question: (u64, u64)) -> bool {
        let mut contacts = self.contacts();
        let contact = contacts.entry(mdt).or_default();
        if contact.heard.is_none_or(|heard| heard.elapsed() > IN_TOUCH) {
            contact.question = question;
        }
        contact.heard = Some(Instant::now());
        contact.question = contact.question.max(question);
        contact.question == question
    }

    /// Is an MDT waited for? After a start all are, for a while.
    pub fn is_in_touch(&self, mdt: MdtIndex) -> bool {
        let heard = self.contacts().get(&mdt).and_then(|contact| contact.heard);
        heard.unwrap_or(self.started).elapsed() < IN_TOUCH
    }

    pub fn known(&self, mdt: MdtIndex) -> u64 {
        self.contacts().get(&mdt).map_or(0, |contact| contact.known)
    }

    /// Waits until something holds, which may become so with any question.
    pub async fn wait(&self, patience: Duration, holds: impl Fn() -> bool) {
        let (mut heard, deadline) = (self.heard.subscribe(), Instant::now() + patience);
        while !holds() {
            match timeout_at(deadline, heard.changed()).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
    }
}

impl Table {
    pub fn there(&self, mdt: MdtIndex, payer: &Payer) -> Option<There> {
        self.others.get(payer)?.get(&mdt).copied()
    }

    /// Who has shares at another MDT.
    pub fn payers_of(&self, mdt: MdtIndex) -> Vec<Payer> {
        let there = self.others.iter().filter(|(_, others)| others.contains_key(&mdt));
        there.map(|(payer, _)| payer.clone()).collect()
    }

    pub fn forget(&mut self, mdt: MdtIndex) {
        for others in self.others.values_mut() {
            others.remove(&mdt);
        }
        self.others.retain(|_, others| !others.is_empty());
    }

    pub fn share_noted(&mut self, mdt: MdtIndex, payer: &Payer) {
        if let Some(there) = self.others.get_mut(payer).and_then(|others| others.get_mut(&mdt)) {
            there.is_noted = true;
        }
    }

    /// Payers whose grace ended since they were last looked at.
    pub fn newly_late(&mut self, now: tieline_types::Time) -> Vec<Payer> {
        let over = |(_, bound): &(&Payer, &super::Bound)| {
            bound.bytes_over.is_some() || bound.inodes_over.is_some() || bound.is_late
        };
        let payers: Vec<Payer> =
            self.bounds.iter().filter(over).map(|(payer, _)| payer.clone()).collect();
        let mut late = vec![];
        for payer in payers {
            let is_late = self.is_late(&payer, now);
            let Some(bound) = self.bounds.get_mut(&payer) else { continue };
            if is_late && !bound.is_late {
                late.push(payer);
            }
            bound.is_late = is_late;
        }
        late
    }
}
