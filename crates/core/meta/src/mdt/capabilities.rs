//! Capabilities: what a client shows to OSSs, and when that is taken back.
//!
//! They are given with an open, and when asked for: of a file, to whom its mode allows it now, or
//! who owns it and could allow himself; of what a session writes itself, to the session. Changes of
//! mode, owner or access lists take back all those of the file, and a session's end all of its own:
//! OSSs hear of it within seconds, and who still may asks again.
//!
//! Who acts for another has none for what the session writes, which is also other users', and none
//! that outlives his right to do so.
//!
//! A federation that proves nothing has none.
//!
//! Invariant: a capability whose rights were looked at before a change is taken back with it.

use crate::error::Result;
use crate::mdt::Mdt;
use crate::permission::{self, READ, SEARCH, WRITE};
use crate::placement::wall_time;
use crate::view::{Keepers, View};
use crate::{Asker, chunks, ops, walked};
use std::collections::BTreeSet;
use tieline_auth::capability::{Serial, server_holder};
use tieline_auth::principal_at;
use tieline_types::rules::Rights;
use tieline_types::{Content, Extent, FileId, Grant, ObjectName, OstIndex, OstPlace, SessionId};
use tieline_wire::capability::{
    CapabilityGrant, CapabilityNewsReply, GetCapability, GetCapabilityReply, Holder, Scope,
};
use tieline_wire::meta::{BatchOutcome, Open, OpenReply};
use tieline_wire::{Op, Request};

/// Extents whose objects one capability names at most.
const OBJECTS_PAGE: usize = 256;

impl Mdt {
    /// What OSSs must know to judge what was given here.
    pub fn capability_news(&self) -> CapabilityNewsReply {
        self.issuer.news(self.now_ms())
    }

    /// Everything that was given here ends, with the key that signed it.
    pub fn renew_capability_key(&self) {
        self.issuer.renew();
    }

    /// To be taken before the rights of an open are looked at; `None` where no rights are given.
    pub(crate) fn capability_serial(&self, request: &Request) -> Option<Serial> {
        let id = match request {
            Request::Open(open) => Some(open.id),
            Request::GetCapability(asked) => asked.id,
            _ => return None,
        };
        let is_proven = self.parts.map.current().map.security.is_some();
        is_proven.then(|| self.issuer.serial(id))
    }

    /// Puts the capability of what was asked into an open's answer.
    pub(crate) fn grant_open(
        &self,
        asker: &Asker,
        serial: Serial,
        open: &Open,
        reply: &mut OpenReply,
    ) {
        let Some(holder) = self.sessions.holder(asker.session) else { return };
        // A file that never had a place of its own for chunks was made of others' by copying.
        let objects = named(&reply.extents.extents, reply.stripe.is_empty());
        // Who has a handle from before may be one who only writes.
        let may_read = || {
            let rights = Rights::of(&reply.attributes);
            let caller = &asker.caller;
            rights.is_owner(caller) || [READ, SEARCH].iter().any(|&one| rights.allow(caller, one))
        };
        let is_read = open.wants_bytes() && (open.is_read || may_read());
        let is_write = open.is_write;
        let scope = Scope::File { file: open.id, is_read, is_write, objects };
        reply.capability = Some(self.sign_for(asker, serial, holder, scope));
    }

    pub(crate) async fn get_capability(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &GetCapability,
    ) -> Result<GetCapabilityReply> {
        let asked = Request::from(request.clone());
        let Some(serial) = self.capability_serial(&asked) else {
            return Ok(GetCapabilityReply { grant: None });
        };
        let holder = request.holder.or_else(|| self.sessions.holder(asker.session));
        let Some(holder) = holder else { return Ok(GetCapabilityReply { grant: None }) };
        let scope = match request.id {
            // What one user of a door writes is nobody else's there.
            None if asker.delegation.is_some() => return Ok(GetCapabilityReply { grant: None }),
            None => Scope::Own { runs: self.sessions.runs(asker.session) },
            Some(id) => self.file_scope(asker, grant, id, request).await?,
        };
        let grant = self.sign_for(asker, serial, holder, scope);
        Ok(GetCapabilityReply { grant: Some(grant) })
    }

    async fn file_scope(
        &self,
        asker: &Asker,
        grant: Grant,
        id: FileId,
        request: &GetCapability,
    ) -> Result<Scope> {
        let map = self.parts.map.current();
        let nobody = Keepers::new();
        let scene = self.scene(asker, grant, &map.map, &nobody);
        let mut view = View::new(scene, self.parts.store.begin().await?);
        if request.is_read {
            walked::reach(&mut view, id).await?;
        }
        let inode = view.inode(id).await?;
        ops::open_kind(id, &inode)?;
        for (is_wanted, wish) in [(request.is_read, READ), (request.is_write, WRITE)] {
            if is_wanted {
                permission::check_open(id, &inode, &asker.caller, &[wish])?;
            }
        }
        let objects = match request.offset {
            Some(offset) => {
                let page = chunks::page(&mut view, id, &inode, offset, OBJECTS_PAGE).await?;
                named(&page.extents, true)
            }
            None => vec![],
        };
        view.commit().await?;
        let (is_read, is_write) = (request.is_read, request.is_write);
        Ok(Scope::File { file: id, is_read, is_write, objects })
    }

    /// For an OSS that is to fetch a chunk from others.
    pub fn copy_capability(
        &self,
        to: OstIndex,
        file: FileId,
        from: &[OstPlace],
    ) -> Option<Vec<u8>> {
        let map = self.parts.map.current();
        map.map.security.as_ref()?;
        let address = map.map.ost(to)?.addresses.first()?;
        let holder = server_holder(&principal_at(&map.map, address)?);
        let objects = from.iter().map(|place| place.object.clone()).collect();
        let scope = Scope::File { file, is_read: true, is_write: false, objects };
        let serial = self.issuer.serial(Some(file));
        // No client's session has this number: nothing is put with it.
        Some(self.sign(serial, SessionId(0), holder, scope).signed)
    }

    /// For who acts for another it ends with his right to do that.
    fn sign_for(
        &self,
        asker: &Asker,
        serial: Serial,
        holder: Holder,
        scope: Scope,
    ) -> CapabilityGrant {
        let Some(delegation) = &asker.delegation else {
            return self.sign(serial, asker.session, holder, scope);
        };
        let (now, whose) = (self.now_ms(), (asker.session, holder));
        let life = delegation.left().unwrap_or_default();
        self.issuer.issue_for(life, serial, now, whose, scope.delegated())
    }

    pub(crate) fn sign(
        &self,
        serial: Serial,
        session: SessionId,
        holder: Holder,
        scope: Scope,
    ) -> CapabilityGrant {
        self.issuer.issue(serial, self.now_ms(), (session, holder), scope)
    }

    /// A mutation was committed: did it change rights? Of a batch, with what came of its items,
    /// those from `first` on; what is partial has begun the next one, too.
    pub(crate) fn revoke_changed(
        &self,
        request: &Request,
        outcomes: &[BatchOutcome],
        (first, is_partial): (usize, bool),
    ) {
        let Request::Batch(batch) = request else {
            changed(request).into_iter().for_each(|file| self.issuer.revoke_file(file));
            return;
        };
        let count = outcomes.len() + usize::from(is_partial);
        for (index, item) in batch.items.iter().enumerate().take(count).skip(first) {
            // What was refused changed nothing: else it would take back what it may not touch.
            let is_refused = outcomes.get(index).is_some_and(|outcome| outcome.failure.is_some());
            if is_refused || item.op != Op::SetAttributes.number() {
                continue;
            }
            // The file that is changed is the message's.
            let request = Request::decode_message(item.op, &item.message);
            let file = request.ok().as_ref().and_then(changed);
            file.into_iter().for_each(|file| self.issuer.revoke_file(file));
        }
    }

    fn now_ms(&self) -> u64 {
        wall_time(&self.parts.world).millis()
    }
}

/// The file whose mode, owner or access list a call changes.
fn changed(request: &Request) -> Option<FileId> {
    match request {
        Request::SetAttributes(change) => {
            let is_change = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
            is_change.then_some(change.id)
        }
        Request::SetXattr(change) => is_acl(change.name.as_bytes()).then_some(change.id),
        Request::RemoveXattr(change) => is_acl(change.name.as_bytes()).then_some(change.id),
        _ => None,
    }
}

fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl")
}

/// Objects that extents refer to and that do not say of themselves whose they are: adopted files,
/// and chunks that may be shared, if they are wanted.
fn named(extents: &[Extent], with_chunks: bool) -> Vec<ObjectName> {
    let mut chunks = BTreeSet::new();
    let mut adopted: Vec<ObjectName> = vec![];
    for extent in extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        for place in &chunk.places {
            match &place.object {
                ObjectName::Chunk(id) if with_chunks => drop(chunks.insert(*id)),
                ObjectName::Chunk(_) => {}
                // One file has one or a few, each in many extents.
                object if adopted.last() == Some(object) => {}
                object if adopted.contains(object) => {}
                object => adopted.push(object.clone()),
            }
        }
    }
    adopted.extend(chunks.into_iter().map(ObjectName::Chunk));
    adopted
}

#[cfg(test)]
mod tests;
