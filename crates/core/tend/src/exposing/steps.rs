//! A batch of steps: written down before it is sent, and what it came to.
//!
//! Invariant: while steps may not have ended nothing else is planned; what is sent again is what
//! was written down.

use super::lane::Lane;
use super::plan::{Followed, Plan};
use crate::error::{Error, Result, decode};
use tieline_format::Record;
use tieline_format::mdt::{ExposeSteps, key};
use tieline_kv::Transaction;
use tieline_telemetry::metrics::METRICS;
use tieline_wire::exposed::{ArrangeExposed, Step, StepOutcome};

/// What a batch came to.
#[derive(Default)]
pub struct Outcome {
    /// Of each group.
    pub done: Vec<bool>,
    /// Files that got their names.
    pub placed: u64,
    /// The first thing that could not be done.
    pub trouble: Option<String>,
}

impl Lane {
    /// Writes a plan down, has it done, and takes note of what that came to.
    pub async fn carry_out(&mut self, plan: Plan<'_>) -> Result<Outcome> {
        let Plan { mut transaction, steps, groups, followed, .. } = plan;
        if groups.is_empty() {
            // Nothing is to be done there: what was noted is over.
            clear(&mut *transaction, followed.iter(), &[]).await?;
            transaction.commit().await?.durable.await?;
            return Ok(Outcome::default());
        }
        let message = tieline_wire::encode(&self.message(steps)?);
        let written = ExposeSteps { message, groups };
        transaction.put(key::expose_steps(&self.pool), written.to_bytes());
        transaction.commit().await?.durable.await?;
        self.finish(&followed).await
    }

    /// Has what was written down done, if something was.
    pub async fn finish(&mut self, followed: &[Followed]) -> Result<Outcome> {
        let own = key::expose_steps(&self.pool);
        let mut transaction = self.parts.store.begin().await?;
        let values = transaction.read(std::slice::from_ref(&own)).await?;
        let Some(value) = values.into_iter().next().flatten() else {
            return Ok(Outcome::default());
        };
        drop(transaction);
        let written: ExposeSteps = decode(&value, || self.pool.to_string())?;
        let before: ArrangeExposed = tieline_wire::decode(&written.message)
            .map_err(|_| Error::Given { what: "steps of an exposure cannot be read" })?;
        let message = ArrangeExposed { boot: self.parts.mdt.boot(), ..before };
        let steps = message.steps.clone();
        let reply = self.parts.exposed.arrange(message).await?;
        self.heard(reply.boot);
        self.set_marked(reply.is_marked).await?;
        if reply.outcomes.len() != steps.len() {
            return Err(Error::Given { what: "an OSS did not say what came of each step" });
        }
        let mut outcomes = steps.iter().zip(&reply.outcomes);
        let mut outcome = Outcome::default();
        for group in &written.groups {
            let mut is_done = true;
            for (step, came) in outcomes.by_ref().take(group.steps as usize) {
                is_done &= *came == StepOutcome::Done;
                let is_placed = matches!(step, Step::Place { .. }) && *came == StepOutcome::Done;
                outcome.placed += u64::from(is_placed);
                if let StepOutcome::Failed(detail) = came {
                    outcome.trouble.get_or_insert_with(|| detail.clone());
                }
            }
            outcome.done.push(is_done);
        }
        loop {
            let mut transaction = self.parts.store.begin().await?;
            for (group, is_done) in written.groups.iter().zip(&outcome.done) {
                let writes = if *is_done { &group.done } else { &group.undone };
                for write in writes {
                    match &write.value {
                        Some(value) => transaction.put(write.key.clone(), value.clone()),
                        None => transaction.delete(write.key.clone()),
                    }
                }
            }
            transaction.delete(own.clone());
            clear(&mut *transaction, followed.iter(), &outcome.done).await?;
            match transaction.commit().await {
                Ok(committed) => {
                    committed.durable.await?;
                    return Ok(outcome);
                }
                Err(tieline_kv::Error::Conflict) => METRICS.conflicts.inc(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub fn message(&self, steps: Vec<Step>) -> Result<ArrangeExposed> {
        let exposure = self.exposure()?;
        Ok(ArrangeExposed {
            ost: exposure.ost,
            pool: self.pool.clone(),
            mdt: self.parts.index,
            boot: self.parts.mdt.boot(),
            is_marked: self.state.is_marked,
            steps,
        })
    }
}

/// Notes are over whose groups are done, unless something was noted anew.
async fn clear(
    transaction: &mut dyn Transaction,
    followed: impl Iterator<Item = &Followed>,
    done: &[bool],
) -> Result<()> {
    for note in followed {
        let groups = done.get(note.groups.clone()).unwrap_or_default();
        let values = transaction.read(std::slice::from_ref(&note.key)).await?;
        let is_same = values.first().is_some_and(|value| value.as_ref() == Some(&note.value));
        if is_same && groups.iter().all(|done| *done) {
            transaction.delete(note.key.clone());
        }
    }
    Ok(())
}
