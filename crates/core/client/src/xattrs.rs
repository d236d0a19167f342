//! Extended attributes: real ones from the MDS, all of a file's at once, and virtual ones that are
//! computed here. Access lists are made of the file's attributes, where the MDS tells them.
//!
//! Programs ask for `security.capability` and others at every turn: the list that is cached under
//! the file's lease, or its attributes that say that there are none, answer without a round trip.
//!
//! `user.tieline.readmode` is real, and holds one of the words of [`crate::ReadMode`]
//! ([`crate::read_mode`]).
//! Virtual, readable and not listed: `user.tieline.adler32` (eight hexadecimal digits),
//! `user.XrdCks.adler32` (the structure that XRootD's servers keep, if no real one is set),
//! `user.tieline.layout` and, where the mount has caches, `user.tieline.cache` (JSON), and
//! `user.tieline.pin` with the two that change it by being read, and `user.tieline.pins`
//! ([`crate::pins`]);
//! `user.tieline.away`, while the file's MDS is out of reach: the site that is.

use crate::read_mode::{READ_MODE, check_read_mode};
use crate::shared::Shared;
use crate::told::Told;
use crate::{AttributeChange, Error, LayoutInForce, Result, pins};
use std::sync::Arc;
use tieline_believed::access;
use tieline_believed::tables::XattrsKnown;
use tieline_believed::{Reply, Under};
use tieline_owed::cause;
use tieline_types::acl::{ACCESS_NAME, AccessList, DEFAULT_NAME};
use tieline_types::rules::Rights;
use tieline_types::{
    Attributes, Caller, ErrorKind, FileId, FileKind, Mode, StripeCount, XattrMode, XattrName,
};
use tieline_wire::Op;
use tieline_wire::meta::{
    AttributesReply, GetXattr, ListXattrs, ListXattrsReply, RemoveXattr, SetXattr, Xattr,
};

const ADLER32: &[u8] = b"user.tieline.adler32";
const AWAY: &[u8] = b"user.tieline.away";
/// What the mount's caches did.
const CACHE: &[u8] = b"user.tieline.cache";
const LAYOUT: &[u8] = b"user.tieline.layout";
const XRD_ADLER32: &[u8] = b"user.XrdCks.adler32";
/// Ends with any write, which may not be committed yet.
const CAPABILITY: &[u8] = b"security.capability";
const OWN_PREFIX: &[u8] = b"user.tieline.";
const TRUSTED_PREFIX: &[u8] = b"trusted.";
/// Of these, access lists only are kept.
const SYSTEM_PREFIX: &[u8] = b"system.";

impl Shared {
    pub(crate) async fn xattr(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
    ) -> Result<Vec<u8>> {
        match name.as_bytes() {
            ADLER32 => {
                self.check_readable(caller, id).await?;
                return Ok(format!("{:08x}", self.adler32(caller, id).await?).into_bytes());
            }
            AWAY => return self.site_away(id.mdt()).ok_or_else(|| none(name)),
            CACHE => {
                let report = self.near.report.as_ref().ok_or_else(|| none(name))?;
                return Ok(report().into_bytes());
            }
            LAYOUT => return Ok(layout_text(&self.layout(caller, id).await?).into_bytes()),
            pins::NAME => {
                return self.pinned(id).map(String::into_bytes).ok_or_else(|| none(name));
            }
            pins::ALL => return Ok(self.all_pinned(caller).into_bytes()),
            pins::SET => {
                self.pin(caller, id).await?;
                return Ok(b"1".to_vec());
            }
            pins::DROP => {
                self.unpin(caller, id).await?;
                return Ok(b"1".to_vec());
            }
            READ_MODE => {}
            own if own.starts_with(OWN_PREFIX) => return Err(none(name)),
            ACCESS_NAME | DEFAULT_NAME => return self.access_list(caller, id, name).await,
            system if system.starts_with(SYSTEM_PREFIX) => return Err(not_kept(name)),
            _ => {}
        }
        let real = self.real_xattr(caller, id, name).await;
        let is_none = real.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoAttribute);
        if is_none && name.as_bytes() == XRD_ADLER32 {
            return self.xrd_checksum(caller, id).await;
        }
        real
    }

    /// An access list is among the attributes. Anybody may see it who found the file.
    async fn access_list(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
    ) -> Result<Vec<u8>> {
        let known = self.attributes(caller, id).await?;
        list_bytes(&known.attributes, name.as_bytes()).ok_or_else(|| none(name))
    }

    async fn real_xattr(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
    ) -> Result<Vec<u8>> {
        if name.as_bytes() == CAPABILITY && self.file_known(id).is_some_and(|file| file.is_dirty())
        {
            return Err(none(name));
        }
        let is_user = name.as_bytes().starts_with(b"user.");
        let (known, may_read) = {
            let tables = self.cache.lock();
            let may_read = !is_user || tables.allows(caller, id, access::READ);
            (tables.xattrs(id), may_read)
        };
        if !may_read {
            // What may be read is the MDS's to decide when mode bits do not say yes.
            let message = GetXattr { id, name: name.clone() };
            return Ok(self.ask(caller, id, message).await?.reply.value);
        }
        let is_trusted = name.as_bytes().starts_with(TRUSTED_PREFIX);
        if is_trusted && !caller.is_root() {
            return Err(none(name));
        }
        let known = known.filter(|known| known.has_trusted || !is_trusted);
        let is_known = known.is_some();
        let list = match known {
            Some(known) => known.list,
            None => self.fetch_xattrs(caller, id).await?,
        };
        let found = list.into_iter().find(|xattr| xattr.name == *name).ok_or_else(|| none(name))?;
        if is_user && !is_known && found.value.is_empty() {
            // Empty, or not to be read by this caller, as the MDS sees it.
            let message = GetXattr { id, name: name.clone() };
            return Ok(self.ask(caller, id, message).await?.reply.value);
        }
        Ok(found.value)
    }

    pub(crate) async fn xattrs(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<Vec<XattrName>> {
        let known = self.cache.lock().xattrs(id);
        let list = match known.filter(|known| known.has_trusted || !caller.is_root()) {
            Some(known) => known.list,
            None => self.fetch_xattrs(caller, id).await?,
        };
        let is_shown =
            |name: &XattrName| caller.is_root() || !name.as_bytes().starts_with(TRUSTED_PREFIX);
        let names = list.into_iter().map(|xattr| xattr.name).filter(is_shown);
        let known = self.attributes(caller, id).await?;
        let has_list = |name: &&[u8]| list_bytes(&known.attributes, name).is_some();
        let lists = [ACCESS_NAME, DEFAULT_NAME].into_iter().filter(has_list);
        Ok(lists.filter_map(|name| XattrName::new(name).ok()).chain(names).collect())
    }

    pub(crate) async fn fetch_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Xattr>> {
        if self.made_up(id).is_some() {
            // Every `ls -l` asks for them.
            return Ok(Vec::new());
        }
        let told = self.ask(caller, id, ListXattrs { id }).await?;
        let ListXattrsReply { xattrs, lease } = told.reply;
        let mut tables = self.cache.lock();
        let reply = tables.admit(told.stamp, &lease);
        // Who may not read the file is told no values: they would be wrong for others.
        let is_blank =
            |one: &Xattr| one.value.is_empty() && one.name.as_bytes().starts_with(b"user.");
        if xattrs.iter().any(is_blank) {
            return Ok(xattrs);
        }
        let known = XattrsKnown { list: xattrs.clone(), has_trusted: caller.is_root() };
        tables.learn_xattrs(reply, id, known);
        Ok(xattrs)
    }

    pub(crate) async fn set_xattr(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if name.as_bytes() == pins::NAME {
            return self.pin(caller, id).await;
        }
        refuse_virtual(name)?;
        if name.as_bytes() == READ_MODE {
            check_read_mode(value)?;
        }
        if name.as_bytes() == ACCESS_NAME && self.set_as_mode(caller, id, value).await {
            return Ok(());
        }
        if name.as_bytes() == CAPABILITY {
            self.launder_empowered(id).await?;
        }
        let message = SetXattr { id, name: name.clone(), value: value.to_vec(), mode };
        let (shared, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            let outcome = shared.ask(&caller, id, message).await;
            shared.learn_xattr_change(id, outcome)
        })
        .await
    }

    /// An access list that names nobody is a mode. `cp -p` sets one on each file that it makes:
    /// where directories are held alone that waits for no server, as a mode does not.
    async fn set_as_mode(self: &Arc<Self>, caller: &Caller, id: FileId, value: &[u8]) -> bool {
        if self.was_done(Op::SetAttributes).is_some() {
            return true;
        }
        let Ok(Some((classes, None))) = AccessList::parse(value) else { return false };
        if cause::has_answer(Op::SetXattr) {
            return false;
        }
        self.own_room(id).await;
        let known = self.cache.lock().own_file(id).map(|(file, _)| file);
        let has_no_list = |file: &Attributes| {
            file.kind != FileKind::Symlink && list_bytes(file, ACCESS_NAME).is_none()
        };
        let Some(file) = known.filter(has_no_list) else {
            return false;
        };
        let mode = Mode::new(file.mode.bits() & !0o777 | classes.bits());
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        self.set_attributes_own(caller, id, false, &change).is_some()
    }

    /// Is that a list of the caller's own file, which is believed to have none? To take it away is
    /// no error, and changes nothing.
    fn has_no_list(&self, caller: &Caller, id: FileId, name: &[u8]) -> bool {
        let known = self.cache.lock().attributes(id).map(|known| known.attributes);
        matches!(name, ACCESS_NAME | DEFAULT_NAME)
            && known.is_some_and(|known| {
                list_bytes(&known, name).is_none() && Rights::of(&known).is_owner(caller)
            })
    }

    pub(crate) async fn remove_xattr(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
    ) -> Result<()> {
        if name.as_bytes() == pins::NAME {
            return self.unpin(caller, id).await;
        }
        refuse_virtual(name)?;
        if self.has_no_list(caller, id, name.as_bytes()) {
            return Ok(());
        }
        let message = RemoveXattr { id, name: name.clone() };
        let (shared, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            let outcome = shared.ask(&caller, id, message).await;
            shared.learn_xattr_change(id, outcome)
        })
        .await
    }

    fn learn_xattr_change(&self, id: FileId, outcome: Result<Told<AttributesReply>>) -> Result<()> {
        let told = outcome.inspect_err(|error| self.doubt_change(id, error))?;
        let AttributesReply { attributes, lease } = told.reply;
        let version = attributes.version;
        let before = self.file_known(id).map(|file| (self.before(&file), file));
        let mut tables = self.cache.lock();
        tables.forget_xattrs(id);
        let reply: Reply = tables.admit(told.stamp, &lease);
        let known = tables.learn_attributes(reply, &lease, Under::Granted, attributes);
        drop(tables);
        // Attributes beside the bytes: what is known of the bytes stays right.
        if let Some((before, file)) = before
            && before.is_still(&known)
        {
            file.with(|state| {
                state.door.changed_here(state.version, version);
                state.version = version;
            });
        }
        Ok(())
    }

    async fn check_readable(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<()> {
        if self.cache.lock().allows(caller, id, access::READ) {
            return Ok(());
        }
        let message = tieline_wire::meta::Open { id, is_read: true, is_write: false, writes: None };
        self.ask(caller, id, message).await.map(drop)
    }

    async fn xrd_checksum(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        let known = self.attributes(caller, id).await?;
        if known.attributes.kind != FileKind::Regular {
            return Err(Error::local(ErrorKind::NoAttribute, format!("file {id}")));
        }
        self.check_readable(caller, id).await?;
        Ok(xrd_record(&known.attributes, self.adler32(caller, id).await?, self.now_of(id)))
    }
}

fn none(name: &XattrName) -> Error {
    Error::local(ErrorKind::NoAttribute, name.to_string())
}

/// One of a file's access lists, as its attribute's value.
fn list_bytes(attributes: &Attributes, name: &[u8]) -> Option<Vec<u8>> {
    let acls = attributes.acls.as_deref()?;
    match name {
        ACCESS_NAME => Some(acls.access.as_ref()?.to_bytes(attributes.mode)),
        _ => Some(acls.default.as_ref()?.to_bytes()),
    }
}

fn not_kept(name: &XattrName) -> Error {
    Error::local(ErrorKind::NotSupported, name.to_string())
}

fn refuse_virtual(name: &XattrName) -> Result<()> {
    let is_virtual = name.as_bytes().starts_with(OWN_PREFIX) && name.as_bytes() != READ_MODE;
    let refusal = || Error::local(ErrorKind::NotSupported, format!("setting {name}"));
    if is_virtual { Err(refusal()) } else { Ok(()) }
}

fn layout_text(force: &LayoutInForce) -> String {
    let layout = &force.layout;
    let count = match layout.stripe_count {
        StripeCount::All => -1,
        StripeCount::Exactly(count) => i32::from(count),
    };
    let stripe: Vec<String> = force.stripe.iter().map(|ost| ost.0.to_string()).collect();
    // Pool names hold letters, digits, `_`, `-` and `.` only: nothing to escape.
    let pool = layout.pool.as_ref().map_or("null".to_owned(), |pool| format!("\"{pool}\""));
    format!(
        "{{\"stripe_count\":{count},\"stripe_size\":{},\"pool\":{pool},\"mirrors\":{},\
         \"inline_limit\":{},\"chunk_size\":{},\"stripe\":[{}],\"is_own\":{}}}",
        layout.stripe_size,
        layout.mirrors,
        layout.inline_limit,
        layout.chunk_size,
        stripe.join(","),
        force.is_own,
    )
}

/// XRootD's record of a checksum, as its servers keep it: 96 bytes with numbers in network order.
///
/// Name (16), modification time of the file (8), seconds from then to the computation (4), reserved
/// (2 and 1), length of the value (1), the value (64).
fn xrd_record(attributes: &Attributes, adler32: u32, now: tieline_types::Time) -> Vec<u8> {
    let mtime = attributes.mtime.seconds;
    let since = i32::try_from(now.seconds.saturating_sub(mtime)).unwrap_or(i32::MAX);
    let mut record = Vec::with_capacity(96);
    record.extend_from_slice(b"adler32\0\0\0\0\0\0\0\0\0");
    record.extend_from_slice(&mtime.to_be_bytes());
    record.extend_from_slice(&since.to_be_bytes());
    record.extend_from_slice(&[0, 0, 0, 4]);
    record.extend_from_slice(&adler32.to_be_bytes());
    record.resize(96, 0);
    record
}
