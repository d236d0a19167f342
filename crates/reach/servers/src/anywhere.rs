//! What every MDS knows, asked of any: a site that is cut off has one of its own.

use crate::{Error, Result, Servers};
use std::future::Future;
use std::time::Duration;
use tieline_types::{Caller, ErrorKind, MdtIndex, Retry};
use tieline_wire::Call;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

/// An MDS that took so long is not waited for alone any more.
const ALONE: Duration = Duration::from_secs(2);

impl Servers {
    /// Asks the MDS of an MDT, without regard for what was done here.
    pub async fn ask_mds<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
    ) -> Result<C::Reply> {
        let deadline = Instant::now() + self.wait_for(mdt);
        Ok(self.ask_mdt(caller, mdt, message, deadline, drop).await?.0)
    }

    /// Is the MDS of an MDT out of reach, as far as is known to who hears it?
    pub fn is_away(&self, mdt: MdtIndex) -> bool {
        let hearer = self.hearer.upgrade();
        let server = self.mds(mdt).ok();
        hearer.zip(server).is_some_and(|(hearer, server)| hearer.is_away(server.number))
    }

    /// Asks the server of `first`, and when that is away or slow, those of all other MDTs beside
    /// it: the first answer counts, and a refusal is one.
    pub async fn anywhere<T, F>(&self, first: MdtIndex, ask: impl Fn(MdtIndex) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        asked.spawn(ask(first));
        let mut failure = None;
        if !self.is_away(first)
            && let Ok(Some(outcome)) = timeout(ALONE, asked.join_next()).await
        {
            match judged(outcome) {
                Ok(outcome) => return outcome,
                Err(error) => failure = Some(error),
            }
        }
        let believed = self.map.current();
        for mdt in believed.map.mdts.iter().map(|entry| entry.mdt).filter(|&mdt| mdt != first) {
            asked.spawn(ask(mdt));
        }
        while let Some(outcome) = asked.join_next().await {
            match judged(outcome) {
                Ok(outcome) => return outcome,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::local(ErrorKind::Unreachable, "all MDSs")))
    }
}

/// What counts as an answer; else why there is none.
fn judged<T>(joined: Result<Result<T>, JoinError>) -> Result<Result<T>, Error> {
    match joined {
        Ok(Err(error)) if error.kind().retry() != Retry::Never => Err(error),
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(Error::local(ErrorKind::Internal, "task of the client")),
    }
}
