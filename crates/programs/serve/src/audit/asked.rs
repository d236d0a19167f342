//! What a request asks, for the record of its denial: which call, of which file, over whose
//! connection and from where.
//!
//! Denials come from many rooms that know only why. The task that answers a request carries the
//! rest with it, and whoever writes the denial down in it finds it there.
//!
//! Invariant: a denial outside such a task is written without these fields.

use serde_json::{Map, Value, json};
use std::sync::Arc;
use tieline_net::CallContext;
use tieline_types::{FileId, Name};
use tieline_wire::meta::{Batch, BatchItem};
use tieline_wire::{Op, Request};

tokio::task_local! {
    static ASKED: Asked;
}

/// See the module.
pub struct Asked {
    op: Op,
    /// The file; of names, the directory.
    file: Option<FileId>,
    name: Option<Name>,
    /// Who holds the connection: a machine, or the user himself.
    machine: Option<Arc<str>>,
    address: Arc<str>,
}

impl Asked {
    pub fn of(context: &CallContext, request: &Request) -> Self {
        let (file, name) = subject(request);
        let (machine, address) = (context.principal.clone(), context.address.clone());
        Self { op: request.op(), file, name: name.cloned(), machine, address }
    }

    /// One of the items of a batch.
    pub fn of_item(context: &CallContext, item: &BatchItem) -> Self {
        let request = Request::decode_message(item.op, &item.message);
        let asked = request.map(|request| Self::of(context, &request));
        // What cannot be read was not denied for what it asks.
        asked.unwrap_or_else(|_| Self::of(context, &Request::Batch(Batch { items: vec![] })))
    }

    /// Whatever is denied in `answering` is about this.
    pub async fn scope<F: Future>(self, answering: F) -> F::Output {
        ASKED.scope(self, answering).await
    }

    /// The same for what is denied at once.
    pub fn scope_now<T>(self, denying: impl FnOnce() -> T) -> T {
        ASKED.sync_scope(self, denying)
    }

    /// What the running task answers.
    pub fn told() -> Map<String, Value> {
        ASKED.try_with(Self::fields).unwrap_or_default()
    }

    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("op".to_owned(), json!(self.op.name()));
        // As the reason has it.
        let file = self.file.map(|file| file.to_string());
        fields.insert("file".to_owned(), json!(file));
        fields.insert("name".to_owned(), json!(self.name.as_ref().map(Name::to_string)));
        fields.insert("machine".to_owned(), json!(self.machine.as_deref()));
        fields.insert("address".to_owned(), json!(&*self.address));
        fields
    }
}

/// The file that a request is about, or the directory and the name in it.
fn subject(request: &Request) -> (Option<FileId>, Option<&Name>) {
    use Request as R;
    match request {
        R::Lookup(asked) => (Some(asked.parent), Some(&asked.name)),
        R::Create(asked) => (Some(asked.parent), Some(&asked.name)),
        R::MakeDirectory(asked) => (Some(asked.parent), Some(&asked.name)),
        R::MakeSymlink(asked) => (Some(asked.parent), Some(&asked.name)),
        R::MakeNode(asked) => (Some(asked.parent), Some(&asked.name)),
        R::Link(asked) => (Some(asked.parent), Some(&asked.name)),
        R::Unlink(asked) => (Some(asked.parent), Some(&asked.name)),
        R::RemoveDirectory(asked) => (Some(asked.parent), Some(&asked.name)),
        R::Rename(asked) => (Some(asked.from_parent), Some(&asked.from_name)),
        R::Undelete(asked) => (Some(asked.parent), Some(&asked.name)),
        R::LookupParent(asked) => (Some(asked.id), None),
        R::GetAttributes(asked) => (Some(asked.id), None),
        R::SetAttributes(asked) => (Some(asked.id), None),
        R::ReadDirectory(asked) => (Some(asked.id), None),
        R::ReadSymlink(asked) => (Some(asked.id), None),
        R::Open(asked) => (Some(asked.id), None),
        R::GetExtents(asked) => (Some(asked.id), None),
        R::Commit(asked) => (Some(asked.id), None),
        R::Place(asked) => (Some(asked.id), None),
        R::GetXattr(asked) => (Some(asked.id), None),
        R::ListXattrs(asked) => (Some(asked.id), None),
        R::SetXattr(asked) => (Some(asked.id), None),
        R::RemoveXattr(asked) => (Some(asked.id), None),
        R::GetLayout(asked) => (Some(asked.id), None),
        R::SetLayout(asked) => (Some(asked.id), None),
        R::GetCapability(asked) => (asked.id, None),
        R::SetProject(asked) => (asked.ids.first().copied(), None),
        R::ListDeleted(asked) => (Some(asked.directory), None),
        R::ReadTree(asked) => (asked.roots.first().copied(), None),
        R::ReadFiles(asked) => (asked.ids.first().copied(), None),
        R::PutChunk(asked) => (Some(asked.owner.file), None),
        R::SyncFile(asked) => (Some(asked.file), None),
        _ => (None, None),
    }
}
