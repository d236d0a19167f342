//! MKCOL, DELETE and MOVE.
//!
//! A directory is deleted when it is empty, as on a mount: a client that means all that is in it
//! deletes that first, so that a slip of a path costs little.

use crate::WebDav;
use crate::get::joined_path;
use crate::put::{directory_mode, is_taken};
use crate::refusal::Refusal;
use crate::visitor::Visit;
use tieline_files::At;
use tieline_http::StatusCode;
use tieline_http::header::{HOST, HeaderName};
use tieline_http::server::{Request, Response};
use tieline_http::url::{Path, Url};
use tieline_types::{Doing, ErrorKind, RenameMode};

const DESTINATION: HeaderName = HeaderName::from_static("destination");
const OVERWRITE: HeaderName = HeaderName::from_static("overwrite");

impl WebDav {
    pub(crate) async fn make_collection(
        &self,
        request: Request,
        visit: Visit,
    ) -> Result<Response, Refusal> {
        if request.body.length() != Some(0) {
            let text = "a directory is made of nothing: send MKCOL without a body";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let who = &visit.who;
        if request.path.names.is_empty() {
            let text = "this directory is there";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let path = joined_path(&request.path);
        let (parent, name) = self.paths.parent_of(who, &path).await.map_err(Refusal::of_parent)?;
        who.may(&parent.way_of(&name), Doing::Create)?;
        let (mode, umask) = directory_mode();
        let at = At { parent: parent.id(), name: &name };
        let made = self.paths.files().make_directory(&who.caller, at, mode, umask).await;
        made.map_err(|error| match is_taken(error.kind()) {
            // RFC 4918, 9.3.1: clients take it for "it is there".
            true => Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "something has that name already"),
            false => error.into(),
        })?;
        Ok(Response::new(StatusCode::CREATED))
    }

    pub(crate) async fn delete(&self, request: Request, visit: Visit) -> Result<Response, Refusal> {
        let who = &visit.who;
        let path = joined_path(&request.path);
        let (parent, name) = self.paths.parent_of(who, &path).await?;
        who.may(&parent.way_of(&name), Doing::Modify)?;
        let present = self.present(&visit, &parent, &name).await?;
        let missing = || Refusal::new(StatusCode::NOT_FOUND, format!("`{name}` is not there"));
        let present = present.ok_or_else(missing)?;
        let at = At { parent: parent.id(), name: &name };
        let files = self.paths.files();
        match present.is_directory() {
            true => files.remove_directory(&who.caller, at).await?,
            false => files.unlink(&who.caller, at).await?,
        }
        Ok(Response::new(StatusCode::NO_CONTENT))
    }

    pub(crate) async fn rename(&self, request: Request, visit: Visit) -> Result<Response, Refusal> {
        let who = &visit.who;
        let to = destination(&request)?;
        let replaces = request.headers.get(OVERWRITE).is_none_or(|value| value != "F");
        let (from_parent, from) = self.paths.parent_of(who, &joined_path(&request.path)).await?;
        let (to_parent, to) =
            self.paths.parent_of(who, &joined_path(&to)).await.map_err(Refusal::of_parent)?;
        who.may(&from_parent.way_of(&from), Doing::Modify)?;
        who.may(&to_parent.way_of(&to), Doing::Modify)?;
        let present = self.present(&visit, &to_parent, &to).await?;
        let mode = if replaces { RenameMode::Replace } else { RenameMode::NoReplace };
        let renamed = self.paths.files().rename(
            &who.caller,
            At { parent: from_parent.id(), name: &from },
            At { parent: to_parent.id(), name: &to },
            mode,
        );
        renamed.await.map_err(|error| match error.kind() {
            ErrorKind::CrossDevice => Refusal::new(
                StatusCode::BAD_GATEWAY,
                "the two lie at different metadata servers: copy it, then delete it here",
            ),
            _ => error.into(),
        })?;
        let status = if present.is_some() { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
        Ok(Response::new(status))
    }
}

/// Where it is to go: a path of this very door.
fn destination(request: &Request) -> Result<Path, Refusal> {
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    let text = request.headers.get(DESTINATION).and_then(|value| value.to_str().ok());
    let text = text.ok_or_else(|| bad("MOVE says where to: `Destination: URL`".to_owned()))?;
    let raw = match text.strip_prefix('/') {
        Some(_) => text.to_owned(),
        None => {
            // davs:// and dav:// are what clients of the grid call it.
            let text = match text.strip_prefix("davs://").or_else(|| text.strip_prefix("dav://")) {
                Some(rest) => format!("https://{rest}"),
                None => text.to_owned(),
            };
            let url = Url::parse(&text).map_err(|error| bad(format!("`Destination`: {error}")))?;
            let own = request.headers.get(HOST).and_then(|value| value.to_str().ok());
            if own.is_none_or(|own| !own.eq_ignore_ascii_case(&url.origin.authority())) {
                let text = "this door moves files within itself only: copy it to there";
                return Err(Refusal::new(StatusCode::BAD_GATEWAY, text));
            }
            url.path().to_owned()
        }
    };
    let path = Path::decode(&raw).map_err(|error| bad(format!("`Destination`: {error}")))?;
    match path.names.is_empty() {
        true => Err(bad("`Destination` names no file".to_owned())),
        false => Ok(path),
    }
}
