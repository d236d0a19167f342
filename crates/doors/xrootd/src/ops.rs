//! Requests of somebody who is known, one kind in a file.

use crate::answer;
use crate::login::Guest;
use crate::output::Frame;
use crate::refusal::{Code, Refusal};
use crate::request::{Path, Request};
use crate::session::{Session, count};
use crate::wire::{Handle, Status, Stream};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tieline_files::{Entry, Error, Files, LastLink};
use tieline_types::ErrorKind;

mod checksum;
mod config;
mod list;
mod locate;
mod open;
mod pages;
mod read;
mod space;
mod stat;
mod vector;

/// What answers are cut to: as stock servers do.
const FRAME: usize = 2 << 20;

/// A request, and for whom.
pub(crate) struct Asked {
    pub session: Arc<Session>,
    pub guest: Arc<Guest>,
    pub stream: Stream,
    /// The client takes answers that come later.
    pub answers_unasked: bool,
}

/// What ends an answer.
enum Last {
    Payload(Vec<u8>),
    /// All of it was sent.
    Sent,
}

type Outcome = Result<Last, Refusal>;

impl From<Vec<u8>> for Last {
    fn from(payload: Vec<u8>) -> Self {
        Self::Payload(payload)
    }
}

impl From<String> for Last {
    fn from(text: String) -> Self {
        Self::Payload(text.into_bytes())
    }
}

/// Answers a request.
pub(crate) async fn answer(asked: Asked, request: Request) {
    let name = request.name();
    let outcome = asked.outcome(request).await;
    let last = match outcome {
        Ok(Last::Sent) => {
            count(name, "ok");
            return;
        }
        Ok(Last::Payload(payload)) => {
            count(name, "ok");
            answer::whole(asked.stream, Status::Done, &payload)
        }
        Err(refusal) => {
            count(name, &(refusal.code as u32).to_string());
            tracing::debug!(
                request = name, principal = asked.guest.visitor.principal(),
                code = refusal.code as u32, why = %refusal.text, "refused"
            );
            answer::error(asked.stream, &refusal)
        }
    };
    // Who hears nothing any more needs no answer.
    let _ = asked.session.output.send(last).await;
}

impl Asked {
    async fn outcome(&self, request: Request) -> Outcome {
        match request {
            Request::Ping | Request::Tell => Ok(Vec::new().into()),
            Request::EndSession(name) => {
                let principal = self.guest.visitor.principal();
                if name == *self.session.registered.name()
                    || self.session.shared.end(&name, principal)
                {
                    return Ok(Vec::new().into());
                }
                Err(Refusal::new(Code::NotFound, "there is no such session of yours"))
            }
            Request::Stat { of, is_space: false } => self.stat(&of).await,
            Request::Stat { of, is_space: true } => self.space_at(&of).await,
            Request::StatMany(paths) => self.stat_many(&paths).await,
            Request::Locate { path } => self.locate(&path).await,
            Request::List { path, has_stat, has_checksums } => {
                self.list(&path, has_stat, has_checksums).await
            }
            Request::Open { path, wants_stat } => self.open(&path, wants_stat).await,
            Request::Close(handle) => {
                self.session.handles.remove(handle)?;
                Ok(Vec::new().into())
            }
            Request::Read { handle, range } => self.read(handle, range).await,
            Request::ReadMany(elements) => self.read_many(&elements).await,
            Request::ReadPages { handle, range } => self.read_pages(handle, range).await,
            Request::Checksum { of, algorithm } => self.checksum(&of, algorithm).await,
            Request::Space(path) => self.space(&path).await,
            Request::Config(names) => Ok(self.config(&names).into()),
            Request::Change(what) => Err(read_only(what)),
            Request::Missing(what) => {
                Err(Refusal::new(Code::Unsupported, format!("{what} is not offered here")))
            }
            // Those are answered before anybody is known.
            Request::Protocol | Request::Login { .. } | Request::Auth { .. } | Request::Bind => {
                Err(Refusal::new(Code::InvalidRequest, "once is enough"))
            }
        }
    }

    fn files(&self) -> &Arc<dyn Files> {
        self.session.shared.offer.paths.files()
    }

    async fn find(&self, path: &Path) -> Result<Entry, Refusal> {
        let paths = &self.session.shared.offer.paths;
        let found = paths.find(&self.guest.who, &path.bytes, LastLink::Followed).await;
        found.map_err(|error| self.refused(&path.shown(), &error))
    }

    /// Why something is not given, and what to do about it.
    fn refused(&self, path: &str, error: &Error) -> Refusal {
        let refusal = Refusal::of(path, error);
        let advice = match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::NotPermitted => {
                let who = self.guest.visitor.principal().unwrap_or("YOU@REALM");
                let fs = &self.session.shared.offer.fs;
                format!("; `tieline explain /{fs}{path} --as {who} --op read` says who denies it")
            }
            ErrorKind::Unauthenticated => "; log in again".to_owned(),
            _ => return refusal,
        };
        Refusal { text: refusal.text + &advice, ..refusal }
    }

    /// What a client is told of a handle that names nothing.
    fn path_of(&self, handle: Handle) -> String {
        self.session
            .handles
            .get(handle)
            .map_or_else(|_| handle.to_string(), |file| file.path.clone())
    }

    /// Sends a piece of the answer.
    async fn partly(&self, payload: &[u8]) -> Result<(), Refusal> {
        self.send(answer::whole(self.stream, Status::Partly, payload)).await
    }

    async fn send(&self, frame: impl Into<Frame>) -> Result<(), Refusal> {
        let gone = |_| Refusal::new(Code::Cancelled, "the client is gone");
        self.session.output.send(frame).await.map_err(gone)
    }
}

fn read_only(what: &str) -> Refusal {
    let text = format!(
        "files are served by root:// here to be read, and not for {what}: change them on a mount \
         (`tieline mount`) or by https://"
    );
    Refusal::new(Code::FsReadOnly, text)
}

/// Takes so many bytes from the front of pieces, in pieces.
fn cut(pieces: &mut VecDeque<Bytes>, mut length: usize) -> VecDeque<Bytes> {
    let mut taken = VecDeque::new();
    while length > 0
        && let Some(first) = pieces.front_mut()
    {
        if first.len() > length {
            taken.push_back(first.split_to(length));
            break;
        }
        length -= first.len();
        taken.extend(pieces.pop_front());
    }
    taken
}

fn total(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_they_are_to_be() {
        let mut pieces: VecDeque<_> =
            ["abc", "", "de"].map(|text| Bytes::from_static(text.as_bytes())).into();
        let joined = |pieces: VecDeque<Bytes>| Vec::from(pieces).concat();
        assert_eq!(joined(cut(&mut pieces, 4)), b"abcd");
        assert_eq!(joined(cut(&mut pieces, 9)), b"e");
        assert!(cut(&mut pieces, 1).is_empty());
    }
}
