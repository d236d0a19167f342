//! Opening and closing files.
//!
//! A file whose attributes and layout are known under a lease is opened without a server when its
//! mode bits give what is wanted ([`tieline_believed::access`]), and [`crate::opens`] sees that the
//! MDS knows before it must; all else is asked.

use crate::declared::Declaring;
use crate::file::File;
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::writer::How;
use crate::{Access, AttributeChange, HandleId, Opened, Result};
use std::sync::{Arc, Mutex, OnceLock};
use tieline_believed::access;
use tieline_believed::{Stamp, Under};
use tieline_foresight::ahead::Pattern;
use tieline_foresight::mode::ReadMode;
use tieline_foresight::past::Manner;
use tieline_servers::turns::Reader;
use tieline_types::{Attributes, Caller, FileId};
use tieline_wire::meta::{Open, OpenReply, Release};
use tokio::time::Instant;

impl Shared {
    pub(crate) async fn open(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Result<Opened> {
        let is_change = access.write || access.truncate;
        let _begun = is_change.then(|| self.handles.begin(id));
        let mut known = self.open_cached(caller, id, access);
        if access.read && !access.write && !access.truncate {
            self.come_to_file(caller, id, known.is_some()).await;
            known = known.or_else(|| self.open_cached(caller, id, access));
        }
        let is_known = known.is_some();
        let (mut attributes, mode_above) = match known {
            Some(attributes) => (attributes, None),
            None => {
                // Neither waits for the other.
                let opened = self.open_at_server(caller, id, access);
                let (opened, mode) = tokio::join!(opened, self.read_mode_above(caller, id));
                (opened?, Some(mode))
            }
        };
        if access.truncate {
            attributes = self.truncate_opened(caller, id).await?;
        }
        if access.write && attributes.is_nearline() {
            self.bring_back_file(caller, id).await?;
        }
        self.patch(&mut attributes);
        self.about_to_tell(&attributes).await;
        let mode = match mode_above.filter(|_| attributes.has_xattrs != Some(true)) {
            Some(mode) => mode,
            None => self.read_mode(caller, &attributes).await,
        };
        self.warm(id);
        if access.read && !access.write {
            self.bring_loaded(caller, &attributes);
        }
        let opened = self.add_handle_as(caller, attributes, access, mode);
        // A recall that comes from now on names the file as open. One that came before has not, and
        // the MDS does not know of this handle: then it is told.
        if is_known && !self.note_open(caller, id, access) {
            let unused = Unused { shared: self, handle: Some(opened.handle) };
            self.open_at_server(caller, id, access).await?;
            unused.keep();
        }
        Ok(opened)
    }

    pub(crate) fn open_cached(
        &self,
        caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Option<Attributes> {
        // What is written needs a server that says yes today.
        let is_change = access.write || access.truncate;
        let is_frozen = || self.servers.mds(id.mdt()).is_ok_and(|server| server.is_frozen());
        if is_change && (self.is_stale(id.mdt()) || is_frozen()) {
            return None;
        }
        let file = self.files.known(id)?;
        let (version, is_declared) = file.with(|state| {
            let is_opened = state.layout.is_some();
            is_opened.then_some((state.version, state.is_declared))
        })?;
        let mut tables = self.cache.lock();
        let wanted = wanted(access);
        let known = tables.attributes(id).filter(|known| known.attributes.version == version)?;
        // Of before its last contact, while leases of that still run.
        if is_change && !tables.units.are_current(&known.belief) {
            return None;
        }
        if access.may_map() && !is_declared && tables.own_file(id).is_none() {
            return None;
        }
        tables.allows(caller, id, wanted).then_some(known.attributes)
    }

    /// A file was opened without a server. `false`: the lease that it was opened under is gone.
    fn note_open(&self, caller: &Caller, id: FileId, access: Access) -> bool {
        let Some(unit) = self.cache.lock().unit_of(id) else { return false };
        // Of an earlier handle the MDS knows, or will.
        if self.file(id).with(|state| state.handles) == 1 || self.untold.has(id) {
            // Before the lease is looked at: whoever takes it from then on finds the file here.
            self.untold.note(id, unit, caller);
        }
        self.open_cached(caller, id, access).is_some()
    }

    pub(crate) async fn open_at_server(
        &self,
        caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Result<Attributes> {
        let is_write = access.write || access.truncate;
        let writes = access.write.then_some(true);
        let is_read = access.read && !access.runs;
        self.ask_open(caller, Open { id, is_read, is_write, writes }).await
    }

    pub(crate) async fn ask_open(&self, caller: &Caller, message: Open) -> Result<Attributes> {
        let (id, is_write) = (message.id, message.is_write);
        let declaring = message.writes.map(|_| Declaring::new(self.file(id)));
        let asked = Instant::now();
        let told = self.ask(caller, id, message).await?;
        self.untold.settled(id);
        let open = told.reply;
        if let Some(declaring) = declaring {
            declaring.done(&open.attributes, open.lease.as_of);
        }
        if let Some(grant) = &open.capability {
            self.chunks.capabilities.learn(grant, asked);
        }
        {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &open.lease);
            let attributes = open.attributes.clone();
            tables.learn_attributes(reply, &open.lease, Under::Granted, attributes);
        }
        self.learn_open(&open, Some(told.stamp));
        if is_write {
            self.look_for_wear(&open);
        }
        self.shrink();
        Ok(open.attributes)
    }

    /// Takes what the MDS says of a file's bytes. With the stamp of a reply whose lease is on the
    /// file alone.
    pub(crate) fn learn_open(&self, open: &OpenReply, stamp: Option<Stamp>) {
        let file = self.file(open.attributes.id);
        self.promises.told(open.has_limits == Some(true));
        let heard = stamp.and_then(|stamp| self.cache.lock().units.covering(stamp, &open.lease));
        file.with(|state| {
            state.layout = Some(open.layout.clone());
            if !open.stripe.is_empty() || state.stripe.is_empty() {
                state.stripe = open.stripe.clone();
            }
            if state.learn_page(open.lease.as_of, &open.attributes, 0, &open.extents) {
                state.heard_under = heard;
            }
        });
    }

    async fn truncate_opened(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<Attributes> {
        let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
        Ok(self.set_attributes(caller, id, None, change).await?.attributes)
    }

    /// Its bytes may be asked for soon.
    fn warm(&self, id: FileId) {
        if let Some(file) = self.file_known(id) {
            let stripe = file.with(|state| state.stripe.clone());
            self.servers.warm(&stripe);
        }
    }

    /// A handle for a file whose rights were found.
    pub(crate) fn add_handle(
        &self,
        caller: &Caller,
        attributes: Attributes,
        access: Access,
    ) -> Opened {
        self.add_handle_as(caller, attributes, access, self.settings.read_mode)
    }

    fn add_handle_as(
        &self,
        caller: &Caller,
        attributes: Attributes,
        access: Access,
        mode: ReadMode,
    ) -> Opened {
        let directory = self.cache.lock().parent_of(attributes.id);
        let manner = match mode {
            ReadMode::Auto if access.read && !access.write => {
                lock(&self.past).opened(attributes.id, directory, attributes.size)
            }
            _ => Manner::Unknown,
        };
        let is_direct = access.read
            && !access.write
            && match mode {
                // A kernel that reads on would ask for more than a buffer.
                ReadMode::Normal | ReadMode::ReadBuffer(_) => true,
                ReadMode::Auto => manner != Manner::Unknown,
                ReadMode::ReadAhead | ReadMode::Stream => false,
            };
        // Where others write now, each read is to see how far they are, and where the file ends.
        let is_written = attributes.is_written == Some(true);
        let is_direct = is_direct || is_written && access.read && !access.write && !access.runs;
        let file = self.file(attributes.id);
        let is_due = self.is_access_due(&attributes);
        let keeps_cache = file.with(|state| {
            state.handles += 1;
            if state.last_written.is_none() {
                // What is asked for the file is asked for somebody who may.
                state.writer = caller.clone();
            }
            let is_same = state.door.open(attributes.version, state.handles == 1);
            is_same && !(access.read && is_due && !access.unnoted)
        });
        let pattern = Pattern::new(mode);
        let pattern = if manner == Manner::Anew { pattern.of_piece() } else { pattern };
        let (caller, pattern) = (caller.clone(), Mutex::new(pattern));
        let seen = file.with(|state| state.late.seen());
        let looking = tokio::sync::Mutex::default();
        let open = FileHandle {
            file,
            caller,
            access,
            pattern,
            looking,
            directory,
            in_vain: Mutex::default(),
            seen,
            lost: OnceLock::new(),
        };
        let handle = self.handles.add_file(open);
        Opened { handle, attributes, keeps_cache, is_direct }
    }

    /// The last close of a handle. What is dirty is committed by a task of its own.
    pub(crate) fn release(self: &Arc<Self>, handle: HandleId) {
        let Some(open) = self.handles.remove(handle) else { return };
        self.servers.forget(Reader::Handle(handle));
        let (is_last, is_orphan, is_dirty, is_promised) = open.file.with(|state| {
            state.handles = state.handles.saturating_sub(1);
            state.door.closed();
            state.is_answered |= state.handles == 0 && state.is_dirty();
            // What is deferred has its own time.
            let is_dirty = state.is_dirty() && state.deferred.is_none();
            (state.handles == 0, state.is_orphan, is_dirty, state.promise.may_be_held())
        });
        if is_last {
            self.untold.settled(open.file.id);
        }
        if is_last && self.is_untold(open.file.id) {
            let (shared, id) = (self.clone(), open.file.id);
            tokio::spawn(async move { shared.nobody_to_tell(id).await });
        }
        if !is_last || !(is_orphan || is_dirty || is_promised) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move { shared.last_close(&open).await });
    }

    async fn last_close(self: &Arc<Self>, open: &FileHandle) {
        let file = &open.file;
        if let Err(error) = self.launder(file, How::Flush).await {
            tracing::warn!(file = %file.id, %error, "closed file is not committed yet");
        }
        self.give_promise_back(file).await;
        let is_over = file.with(|state| state.is_orphan && state.handles == 0);
        if is_over {
            self.give_back(&open.caller, file).await;
        }
    }

    /// Nobody can name the file any more, and nobody here holds it.
    pub(crate) async fn give_back(&self, caller: &Caller, file: &Arc<File>) {
        self.files.remove(file.id);
        lock(&self.dirty).remove(&file.id);
        self.cache.lock().forget(file.id);
        if let Err(error) = self.ask(caller, file.id, Release { id: file.id }).await {
            // The session's end gives it back as well.
            tracing::info!(file = %file.id, %error, "file without a name is not given back");
        }
    }
}

/// A handle that nobody knows yet: released if its open comes to nothing.
struct Unused<'a> {
    shared: &'a Arc<Shared>,
    handle: Option<HandleId>,
}

impl Unused<'_> {
    fn keep(mut self) {
        self.handle = None;
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            self.shared.release(handle);
        }
    }
}

fn wanted(access: Access) -> u32 {
    let read = match access {
        Access { runs: true, .. } => access::SEARCH,
        Access { read: true, .. } => access::READ,
        _ => 0,
    };
    let write = if access.write || access.truncate { access::WRITE } else { 0 };
    read | write
}
