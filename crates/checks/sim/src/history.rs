//! What clients did and saw, and whether a single, honest file system could have answered so.
//!
//! Every write of a register (a whole small file, written and closed) carries a value of its own.
//! Close-to-open consistency then means, for a read that was opened at `from` and done by `to`:
//!
//! * its value was written by a write that had begun before `to` (nothing comes from the future);
//! * no other write both began after that write was done and was done before `from` (nothing
//!   stale);
//! * a later read never sees a value that was overwritten before the value an earlier read saw
//!   was begun.
//!
//! A write whose outcome its client never learned may have happened at any time after its
//! beginning, or never.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A moment of the simulation.
pub type Moment = Duration;

/// One thing one client did with one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub client: usize,
    pub register: String,
    pub from: Moment,
    pub to: Moment,
    pub what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Wrote this value; `None` for an outcome nobody knows.
    Write { value: u64, is_known: bool },
    /// Read this value; 0 for a register that was never written.
    Read { value: u64 },
}

/// Everything that happened, in the order in which it ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
}

/// Two events that no single file system explains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub event: Event,
    pub because: Option<Event>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.rule, self.event)?;
        match &self.because {
            Some(because) => write!(f, " because of {because:?}"),
            None => Ok(()),
        }
    }
}

/// A write as the checks see it: when it surely had ended, if ever.
struct Written<'a> {
    event: &'a Event,
    value: u64,
    done: Option<Moment>,
}

impl History {
    pub fn check(&self) -> Vec<Violation> {
        let mut registers: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            registers.entry(&event.register).or_default().push(event);
        }
        registers.values().flat_map(|events| check_register(events)).collect()
    }
}

fn check_register(events: &[&Event]) -> Vec<Violation> {
    let writes: Vec<Written<'_>> = events
        .iter()
        .filter_map(|event| match event.what {
            What::Write { value, is_known } => {
                Some(Written { event, value, done: is_known.then_some(event.to) })
            }
            What::Read { .. } => None,
        })
        .collect();
    let mut violations = Vec::new();
    let mut seen: Vec<(&Event, u64)> = Vec::new();
    for event in events {
        let What::Read { value } = event.what else { continue };
        violations.extend(check_read(event, value, &writes));
        violations.extend(check_order(event, value, &seen, &writes));
        seen.push((event, value));
    }
    violations
}

fn check_read(read: &Event, value: u64, writes: &[Written<'_>]) -> Option<Violation> {
    let source = writes.iter().find(|write| write.value == value);
    if value != 0 && source.is_none_or(|write| write.event.from > read.to) {
        return Some(violation("read a value nobody had written", read, None));
    }
    // Value 0 is what was there before everything.
    let source_done = match source {
        Some(write) => write.done,
        None => Some(Moment::ZERO),
    };
    let overwrites = |write: &&Written<'_>| {
        write.value != value
            && source_done.is_some_and(|done| done < write.event.from)
            && write.done.is_some_and(|done| done < read.from)
    };
    let newer = writes.iter().find(overwrites)?;
    Some(violation("read a stale value", read, Some(newer.event)))
}

/// Has an earlier read already seen something newer?
fn check_order(
    read: &Event,
    value: u64,
    seen: &[(&Event, u64)],
    writes: &[Written<'_>],
) -> Option<Violation> {
    let done = match writes.iter().find(|write| write.value == value) {
        Some(write) => write.done?,
        None => Moment::ZERO,
    };
    let is_newer = |&&(earlier, newer): &&(&Event, u64)| {
        earlier.to < read.from
            && newer != value
            && writes.iter().any(|write| write.value == newer && write.event.from > done)
    };
    let (earlier, _) = seen.iter().find(is_newer)?;
    Some(violation("read backwards in time", read, Some(earlier)))
}

fn violation(rule: &'static str, event: &Event, because: Option<&Event>) -> Violation {
    Violation { rule, event: event.clone(), because: because.cloned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(from: u64, to: u64, what: What) -> Event {
        let (from, to) = (Moment::from_millis(from), Moment::from_millis(to));
        Event { client: 0, register: "r".into(), from, to, what }
    }

    fn write(from: u64, to: u64, value: u64) -> Event {
        event(from, to, What::Write { value, is_known: true })
    }

    fn read(from: u64, to: u64, value: u64) -> Event {
        event(from, to, What::Read { value })
    }

    fn rules(events: Vec<Event>) -> Vec<&'static str> {
        History { events }.check().into_iter().map(|violation| violation.rule).collect()
    }

    #[test]
    fn an_honest_history_passes() {
        assert!(rules(vec![read(0, 1, 0), write(2, 5, 7), read(6, 7, 7)]).is_empty());
        // While a write runs, both values are right.
        assert!(rules(vec![write(0, 10, 1), read(3, 4, 0), read(5, 6, 1)]).is_empty());
    }

    #[test]
    fn lies_are_found() {
        assert_eq!(rules(vec![write(1, 2, 1), read(3, 4, 0)]), ["read a stale value"]);
        assert_eq!(rules(vec![read(0, 1, 9)]), ["read a value nobody had written"]);
        let backwards = vec![write(1, 2, 1), write(3, 9, 2), read(4, 5, 2), read(6, 7, 1)];
        assert_eq!(rules(backwards), ["read backwards in time"]);
    }

    #[test]
    fn an_unknown_write_may_show_late_or_never() {
        let unknown = || event(1, 2, What::Write { value: 1, is_known: false });
        assert!(rules(vec![unknown(), read(3, 4, 0), read(5, 6, 1)]).is_empty());
        assert!(rules(vec![unknown(), read(3, 4, 0)]).is_empty());
    }
}
