//! PUT: a new file, or one in place of another, seen when all of it is there and durable.
//!
//! What can be refused is refused before the first byte is asked for: a client that sends
//! `Expect: 100-continue` sends none of it then. A body that breaks off, or that is not what its
//! digest says, leaves nothing.

use crate::WebDav;
use crate::digests::{DIGEST, REPR_DIGEST, Wanted, joined};
use crate::get::joined_path;
use crate::properties::version;
use crate::refusal::Refusal;
use crate::visitor::Visit;
use crate::{drain, finish_unread, visitor};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tieline_files::{Entry, NewUpload, Upload};
use tieline_http::conditions::{Verdict, judge};
use tieline_http::digest::{Algorithm, Digest, Hashing};
use tieline_http::header::{CONTENT_RANGE, ETAG, HeaderName, IF_NONE_MATCH};
use tieline_http::server::{Request, Response};
use tieline_http::{HeaderMap, StatusCode};
use tieline_types::{Attributes, ErrorKind, Extent, Mode, Name};

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
/// Of new files, as programs make them with the usual umask.
const MODE: u32 = 0o666;
const UMASK: u32 = 0o022;

impl WebDav {
    pub(crate) async fn put(&self, request: Request, visit: Visit) -> Result<Response, Refusal> {
        match self.begin(&request, &visit).await {
            Ok((upload, is_new)) => self.take(request, upload, is_new).await,
            Err(refusal) => {
                let response = refusal.response(&self.challenges());
                let (peer, path) = (&request.peer, &request.path);
                tracing::info!(%peer, %path, why = refusal.text(), "no upload");
                Ok(finish_unread(request, response).await)
            }
        }
    }

    /// Whatever can be refused is refused here.
    async fn begin(&self, request: &Request, visit: &Visit) -> Result<(Upload, bool), Refusal> {
        if request.headers.contains_key(CONTENT_RANGE) {
            let text = "parts of a file cannot be put: send all of it, without `Content-Range`";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        }
        if request.path.ends_in_slash || request.path.names.is_empty() {
            let text = "a file has no slash at its end: directories are made by MKCOL";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let who = &visit.who;
        let path = joined_path(&request.path);
        let (parent, name) = self.paths.parent_of(who, &path).await.map_err(Refusal::of_parent)?;
        let present = self.present(visit, &parent, &name).await?;
        let told = present.as_ref().map(version);
        if judge(&request.headers, false, told.as_ref()) != Verdict::Proceed {
            let text = "it is not what the request's condition says: look at it again (HEAD)";
            return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, text));
        }
        if let Some(length) = request.body.length() {
            self.check_room(&parent, length).await?;
        }
        // Whoever wants no other replaced has none replaced that comes meanwhile.
        let replaces = !request.headers.contains_key(IF_NONE_MATCH);
        let (mode, umask, layout) = (Mode::new(MODE), Mode::new(UMASK), None);
        let new = NewUpload { mode, umask, layout, replaces };
        let files = self.paths.files().clone();
        let upload = Upload::begin(files, who, (&parent, &name), new).await?;
        Ok((upload, present.is_none()))
    }

    /// What has that name now.
    pub(crate) async fn present(
        &self,
        visit: &visitor::Visit,
        parent: &Entry,
        name: &Name,
    ) -> Result<Option<Attributes>, Refusal> {
        let found = self.paths.files().lookup(&visit.who.caller, parent.id(), name).await?;
        Ok(found.attributes)
    }

    /// Is there room for so much? What others take meanwhile is told at the end.
    async fn check_room(&self, parent: &Entry, length: u64) -> Result<(), Refusal> {
        if length > Extent::FILE_SIZE_MAX {
            let text = format!("{length} bytes are more than a file can have");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        // Servers that are away say so when they are written to.
        let Ok(space) = self.paths.files().statfs(parent.id()).await else { return Ok(()) };
        if space.bytes_total > 0 && length > space.bytes_free {
            let free = space.bytes_free;
            let text = format!("{length} bytes do not fit: {free} are free (`tieline df`)");
            return Err(Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text));
        }
        Ok(())
    }

    async fn take(
        &self,
        request: Request,
        mut upload: Upload,
        is_new: bool,
    ) -> Result<Response, Refusal> {
        let wanted = Wanted::of(&request);
        let said = said(&request.headers);
        let mut algorithms = wanted.algorithms();
        algorithms.extend(said.iter().map(Digest::algorithm));
        algorithms.push(Algorithm::Adler32);
        algorithms.sort();
        algorithms.dedup();
        let mut hashing = Hashing::new(&algorithms);
        let mut body = request.body.open(Extent::FILE_SIZE_MAX)?;
        while let Some(piece) = body.next().await? {
            hashing.update(&piece);
            if let Err(error) = upload.write(piece).await {
                upload.abandon().await;
                drain(body).await;
                return Err(error.into());
            }
        }
        let digests = hashing.finish();
        if let Some(wrong) = said.iter().find(|one| !digests.contains(one)) {
            upload.abandon().await;
            let text = format!(
                "the bytes that came are not those of the {} that came with them: nothing of \
                 them was kept, send them again",
                wrong.algorithm().name()
            );
            return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, text));
        }
        let placed = upload.finish().await?;
        self.digests.remember(&placed.attributes, &digests);
        let status = if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
        let mut response = Response::new(status);
        if let Some(tag) = version(&placed.attributes).tag {
            response = response.with_text(ETAG, &tag.to_string());
        }
        Ok(wanted.tell(response, &digests))
    }
}

/// The digests that a client says its bytes have.
fn said(headers: &HeaderMap) -> Vec<Digest> {
    let text = |name| joined(headers, &name).unwrap_or_default();
    let mut said = Digest::parse_digest(&text(DIGEST));
    said.extend(Digest::parse_repr_digest(&text(REPR_DIGEST)));
    let md5 = STANDARD.decode(text(CONTENT_MD5)).ok();
    said.extend(md5.and_then(|bytes| Digest::new(Algorithm::Md5, bytes)));
    said
}

/// A directory that is made is as new as a file that is put.
pub(crate) fn directory_mode() -> (Mode, Mode) {
    (Mode::new(0o777), Mode::new(UMASK))
}

/// Does this say that the name is taken?
pub(crate) fn is_taken(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Exists | ErrorKind::IsDirectory)
}
