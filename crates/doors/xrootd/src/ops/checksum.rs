//! The checksum of a file: at once if it is known, else when it is there.

use super::{Asked, Last, Outcome};
use crate::answer;
use crate::refusal::{Code, Refusal};
use crate::request::Named;
use crate::wire::Status;
use std::time::Duration;
use tieline_types::ContentVersion;

/// The one that is computed.
pub(super) const ALGORITHM: &str = "adler32";
/// How long a client is let wait without a word.
const SOON: Duration = Duration::from_secs(5);
/// What a client is told then; it waits for as long as it likes.
const LATER_SECONDS: u32 = 600;
/// When one that takes no late answers asks again.
const AGAIN_SECONDS: u32 = 10;

impl Asked {
    pub(super) async fn checksum(&self, of: &Named, algorithm: Option<String>) -> Outcome {
        if let Some(other) = algorithm.filter(|name| name != ALGORITHM) {
            let what = format!("`{other}` is not computed here: {ALGORITHM} is");
            return Err(Refusal::new(Code::Unsupported, what));
        }
        // Who may not read a file is not told of its bytes.
        let (id, path) = match of {
            Named::Path(path) => {
                let (held, shown) = self.held(path).await?;
                (held.attributes.id, shown)
            }
            Named::Handle(handle) => {
                let file = self.session.handles.get(*handle)?;
                (file.held.attributes.id, file.path.clone())
            }
        };
        let version = self.files().content_version(self.guest.visitor.caller(), id).await;
        let version: ContentVersion = version.map_err(|error| self.refused(&path, &error))?;
        let checksums = &self.session.shared.checksums;
        let mut sum = checksums.ask(self.files(), &self.guest, (id, version))?;
        if let Ok(there) = tokio::time::timeout(SOON, sum.wait_for(Option::is_some)).await {
            return text(there.ok().and_then(|told| told.clone())).map(Last::from);
        }
        if !self.answers_unasked {
            let wait = answer::wait(self.stream, Status::Wait, AGAIN_SECONDS, "it is computed");
            self.send(wait).await?;
            return Ok(Last::Sent);
        }
        let later =
            answer::wait(self.stream, Status::WaitForAnswer, LATER_SECONDS, "it is computed");
        self.send(later).await?;
        let told = sum.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        let answer = match text(told) {
            Ok(text) => answer::whole(self.stream, Status::Done, text.as_bytes()),
            Err(refusal) => answer::error(self.stream, &refusal),
        };
        self.send(answer::unasked(&answer)).await?;
        Ok(Last::Sent)
    }
}

fn text(told: Option<Result<u32, Refusal>>) -> Result<String, Refusal> {
    let lost = || Err(Refusal::new(Code::ServerError, "the checksum was given up: ask again"));
    Ok(format!("{ALGORITHM} {:08x}\0", told.unwrap_or_else(lost)?))
}
