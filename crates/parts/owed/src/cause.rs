//! What a door's request has caused, until the door has answered it.
//!
//! A door whose requests are given again when this process dies (a kernel's) runs each request
//! within its [`Cause`]. Whatever then changes something remembers it, also in tasks of its own:
//! the next process, given the request again, finds what was done and answers instead of doing it
//! twice ([`crate::records`]).
//!
//! Invariant: what a cause holds is let go when the request was answered, and not before.

use std::future::Future;
use std::sync::{Arc, Mutex};
use tieline_keep::{Keep, Kept};
use tieline_net::{CallError, Incoming};
use tieline_types::{FileId, HandleId};
use tieline_wire::{Op, Request};

use crate::{lock, records};

tokio::task_local! {
    static CURRENT: Arc<Cause>;
}

/// A request of a door.
pub struct Cause {
    /// The door's number of it, never used again. Not 0.
    pub number: u64,
    keep: Keep,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_answered: bool,
    holds: Vec<Box<dyn Send>>,
    before: Before,
}

/// What an earlier process did for the request.
#[derive(Default)]
pub struct Before {
    /// What servers answered, in the order of the requests.
    pub answers: Vec<(Request, Result<Incoming, CallError>)>,
    /// What was decided here: the number of the call, and the file it was about.
    pub done: Vec<(u16, FileId)>,
    /// Its bytes were taken.
    pub has_written: bool,
    /// Opened, and perhaps known to nobody.
    pub handles: Vec<HandleId>,
    /// Say to a third process what is said here.
    pub marks: Vec<Kept>,
}

impl Cause {
    pub fn new(number: u64, keep: Keep, before: Before) -> Self {
        let state = State { before, ..State::default() };
        Self { number, keep, state: Mutex::new(state) }
    }

    /// The door has answered: nobody will ask again.
    pub fn answered(&self) {
        let holds = {
            let mut state = lock(&self.state);
            state.is_answered = true;
            std::mem::take(&mut state.holds)
        };
        drop(holds);
    }

    /// Keeps something until the request is answered.
    pub fn hold(&self, what: impl Send + 'static) {
        let mut state = lock(&self.state);
        if !state.is_answered {
            state.holds.push(Box::new(what));
        }
    }

    /// What stood for the effect is about to go: until the request is answered a mark says that it
    /// was carried out.
    pub fn leave_mark(&self, op: u16, id: FileId) {
        if lock(&self.state).is_answered {
            return;
        }
        if let Some(mark) = records::put_mark(&self.keep, self.number, op, id) {
            self.hold(mark);
        }
    }

    /// The answer that an earlier process's request got, if it made one of this call.
    pub fn take_answer(&self, is_it: impl Fn(&Request) -> bool) -> Option<Answered> {
        let mut state = lock(&self.state);
        let at = state.before.answers.iter().position(|(request, _)| is_it(request))?;
        Some(state.before.answers.remove(at))
    }

    /// The call that an earlier process made, if it was answered.
    pub fn answered_call(&self, op: Op) -> Option<Request> {
        let state = lock(&self.state);
        let mut calls = state.before.answers.iter().map(|(request, _)| request);
        calls.find(|request| request.op() == op).cloned()
    }

    pub fn has_answer(&self, is_it: impl Fn(&Request) -> bool) -> bool {
        lock(&self.state).before.answers.iter().any(|(request, _)| is_it(request))
    }

    /// The file of a call that was decided here before.
    pub fn done(&self, op: u16) -> Option<FileId> {
        let state = lock(&self.state);
        state.before.done.iter().find(|(done, _)| *done == op).map(|(_, id)| *id)
    }

    pub fn has_written(&self) -> bool {
        lock(&self.state).before.has_written
    }
}

pub type Answered = (Request, Result<Incoming, CallError>);

/// Did an earlier process get an answer to a call for the request that is being served?
pub fn has_answer(op: Op) -> bool {
    current().is_some_and(|cause| cause.has_answer(|request| request.op() == op))
}

/// The request that is being served, if it is one of a door that may ask again.
pub fn current() -> Option<Arc<Cause>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Does work on behalf of a request.
pub async fn within<F: Future>(cause: Option<Arc<Cause>>, work: F) -> F::Output {
    match cause {
        Some(cause) => CURRENT.scope(cause, work).await,
        None => work.await,
    }
}
