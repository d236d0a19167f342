//! The table of calls: every request of the protocol, its number, its reply, who answers it, and
//! what it changes.
//!
//! To add a call: define its messages in `meta`, `data` or `federation`, add a line here with the
//! next number where its answerer stands, serve it in its room, and bless its golden bytes. Numbers
//! are never reused.

use crate::{
    BodyError, capability, chores, data, exposed, federation, identity, ledger, locks, meta,
    mirrors, quotas, ranges, tape, trees,
};
use minicbor::{Decode, Decoder, Encode};
use tieline_types::{Caller, FileId, RequestNumber};

/// A request message and what it is answered with.
pub trait Call: Encode<()> + for<'b> Decode<'b, ()> + Into<Request> + Send + Sync {
    const OP: Op;
    type Reply: Encode<()> + for<'b> Decode<'b, ()> + Send;
}

/// What stands before every request's message in the body.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Envelope {
    /// On whose behalf.
    #[n(0)]
    pub caller: Caller,
    /// Every request below this number has been answered and the answer seen: it need not be kept.
    #[n(1)]
    pub answered_below: RequestNumber,
}

/// Who answers a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answerer {
    /// An MDT, in one transaction.
    Tree,
    /// An MDT, beside its store.
    Mdt,
    /// A server, whatever it holds.
    Node,
    /// The chunk service of an OSS.
    Oss,
}

/// Of each call: its number, name, message and reply; which room of `tieline_meta::ops` answers it,
/// and where in the reply its lease is, if it has one; whether it changes an MDT, and which file's
/// record it is most likely to write; whether who asks it of one directory after the other walks
/// through them.
macro_rules! calls {
    (($d:tt) $( $place:ident { $(
        $number:literal $name:ident $message:path => $reply:path
        $(, in $room:ident $lease:tt)? $(, changes $changes:tt)? $(, sweeps $sweeps:tt)?;
    )* } )*) => {
        /// The calls by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Op { $($( $name, )*)* }

        impl Op {
            pub const ALL: &'static [Self] = &[$($( Self::$name, )*)*];

            /// The number in the frame's header.
            pub fn number(self) -> u16 {
                match self { $($( Self::$name => $number, )*)* }
            }

            pub fn name(self) -> &'static str {
                match self { $($( Self::$name => stringify!($name), )*)* }
            }

            pub fn answerer(self) -> Answerer {
                match self { $( $( Self::$name )|* => calls!(@answerer $place), )* }
            }

            /// Does it change an MDT? Then its answer is stored with its effect, and repeated
            /// rather than redone.
            pub fn is_mutation(self) -> bool {
                match self { $($( Self::$name => calls!(@is $($changes)?), )*)* }
            }

            /// Do bytes come beside the request?
            pub fn takes_bulk(self) -> bool {
                self == Self::PutChunk
            }

            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($( $number => Some(Self::$name), )*)* _ => None }
            }

            /// Is `body` a reply of this call? For tests that have bytes and no type.
            pub fn check_reply(self, body: &[u8]) -> Result<(), BodyError> {
                match self { $($( Self::$name => crate::decode::<$reply>(body).map(drop), )*)* }
            }
        }

        /// Any request, decoded.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Request { $($( $name($message), )*)* }

        impl Request {
            pub fn op(&self) -> Op {
                match self { $($( Self::$name(_) => Op::$name, )*)* }
            }

            /// The file whose record it is most likely to write: mutations of one file queue up
            /// rather than collide.
            pub fn written(&self) -> FileId {
                match self { $($( Self::$name(_r) => calls!(@file _r $($changes)?), )*)* }
            }

            /// Does who asks this of one directory after the other walk through them? Whoever
            /// writes files in many does not.
            pub fn sweeps(&self) -> bool {
                match self { $($( Self::$name(_r) => calls!(@sweeps _r $($sweeps)?), )*)* }
            }

            /// Decodes the body of a request frame.
            pub fn decode(op: u16, body: &[u8]) -> Result<(Envelope, Self), BodyError> {
                let op = Op::from_number(op).ok_or(BodyError::UnknownCall(op))?;
                let mut decoder = Decoder::new(body);
                let envelope = decoder.decode()?;
                let request = match op {
                    $($( Op::$name => Self::$name(decoder.decode()?), )*)*
                };
                match body.len().saturating_sub(decoder.position()) {
                    0 => Ok((envelope, request)),
                    extra => Err(BodyError::Trailing(extra)),
                }
            }

            /// Decodes a message alone, as batches carry them.
            pub fn decode_message(op: u16, message: &[u8]) -> Result<Self, BodyError> {
                let op = Op::from_number(op).ok_or(BodyError::UnknownCall(op))?;
                Ok(match op { $($( Op::$name => Self::$name(crate::decode(message)?), )*)* })
            }

            /// The message alone.
            pub fn encode_message(&self) -> Vec<u8> {
                match self { $($( Self::$name(message) => crate::encode(message), )*)* }
            }

            /// The body of a request frame.
            pub fn encode(&self, envelope: &Envelope) -> Vec<u8> {
                let mut body = crate::encode(envelope);
                if let Self::Batch(batch) = self {
                    body.reserve(batch.items.iter().map(|item| item.weight()).sum());
                }
                match self {
                    $($( Self::$name(message) => crate::encode_onto(&mut body, message), )*)*
                }
                body
            }
        }

        /// Hands the macro `$then` the calls that an MDT answers in one transaction: each by its
        /// name, and that of the room that answers it.
        #[macro_export]
        macro_rules! tree_calls {
            ($d then:ident) => { $d then! { $($( $( $name $room )? )*)* } };
        }

        calls! { @replies $($( $( $name $reply, $room $lease; )? )*)* }

        $($(
            impl From<$message> for Request {
                fn from(message: $message) -> Self { Self::$name(message) }
            }

            impl Call for $message {
                const OP: Op = Op::$name;
                type Reply = $reply;
            }
        )*)*
    };
    (@replies $( $name:ident $reply:path, $room:ident $lease:tt; )*) => {
        /// What an MDT answers in one transaction, by its call.
        #[derive(Clone, PartialEq, Debug)]
        pub enum TreeReply { $( $name($reply), )* }

        impl TreeReply {
            pub fn encode(&self) -> Vec<u8> {
                match self { $( Self::$name(reply) => crate::encode(reply), )* }
            }

            /// The lease that it grants, if it says anything that may be cached.
            pub fn lease_mut(&mut self) -> Option<&mut meta::LeaseGrant> {
                match self { $( Self::$name(_reply) => calls!(@lease _reply $lease), )* }
            }
        }
    };
    (@lease $reply:ident ()) => { None };
    (@lease $reply:ident ($($path:ident).+)) => { Some(&mut $reply.$($path).+) };
    (@answerer tree) => { Answerer::Tree };
    (@answerer mdt) => { Answerer::Mdt };
    (@answerer node) => { Answerer::Node };
    (@answerer oss) => { Answerer::Oss };
    (@is) => { false };
    (@is $changes:tt) => { true };
    (@file $r:ident) => { FileId::default() };
    (@file $r:ident ()) => { FileId::default() };
    (@file $r:ident ($message:ident => $file:expr)) => {{ let $message = $r; $file }};
    (@sweeps $r:ident) => { false };
    (@sweeps $r:ident ()) => { true };
    (@sweeps $r:ident ($message:ident => $when:expr)) => {{ let $message = $r; $when }};
}

calls! {
    ($)
    // An MDT, in one transaction: `tieline_meta::ops` has a room of that name for each.
    tree {
        // The namespace, at an MDS.
        1 Lookup meta::Lookup => meta::EntryReply, in lookup(lease);
        2 LookupParent meta::LookupParent => meta::LookupParentReply, in lookup_parent();
        3 GetAttributes meta::GetAttributes => meta::AttributesReply, in get_attributes(lease);
        4 SetAttributes meta::SetAttributes => meta::AttributesReply,
            in set_attributes(lease), changes(r => r.id), sweeps(r => r.size.is_none());
        5 ReadDirectory meta::ReadDirectory => meta::ReadDirectoryReply, in read_directory(lease);
        6 Create meta::Create => meta::CreateReply,
            in create(open.lease), changes(r => r.parent), sweeps();
        7 MakeDirectory meta::MakeDirectory => meta::EntryReply,
            in make_directory(lease), changes(r => r.parent), sweeps();
        8 MakeSymlink meta::MakeSymlink => meta::EntryReply,
            in make_symlink(lease), changes(r => r.parent);
        9 MakeNode meta::MakeNode => meta::EntryReply, in make_node(lease), changes(r => r.parent);
        10 Link meta::Link => meta::EntryReply, in link(lease), changes(r => r.parent), sweeps();
        11 Unlink meta::Unlink => meta::ChangeReply,
            in unlink(lease), changes(r => r.parent), sweeps();
        12 RemoveDirectory meta::RemoveDirectory => meta::ChangeReply,
            in remove_directory(lease), changes(r => r.parent), sweeps();
        13 Rename meta::Rename => meta::ChangeReply,
            in rename(lease), changes(r => r.from_parent), sweeps();
        14 ReadSymlink meta::ReadSymlink => meta::ReadSymlinkReply, in read_symlink();
        15 Open meta::Open => meta::OpenReply, in open(lease);
        16 GetExtents meta::GetExtents => meta::GetExtentsReply, in get_extents(lease);
        17 Commit meta::Commit => meta::AttributesReply, in commit(lease), changes(r => r.id);
        18 Place meta::Place => meta::PlaceReply, in place(), changes(r => r.id);
        19 Release meta::Release => meta::ChangeReply, in release(lease), changes(r => r.id);
        20 GetXattr meta::GetXattr => meta::GetXattrReply, in get_xattr();
        21 ListXattrs meta::ListXattrs => meta::ListXattrsReply, in list_xattrs(lease);
        22 SetXattr meta::SetXattr => meta::AttributesReply,
            in set_xattr(lease), changes(r => r.id), sweeps();
        23 RemoveXattr meta::RemoveXattr => meta::AttributesReply,
            in remove_xattr(lease), changes(r => r.id), sweeps();
        24 GetLayout meta::GetLayout => meta::GetLayoutReply, in get_layout();
        25 SetLayout meta::SetLayout => meta::AttributesReply,
            in set_layout(lease), changes(r => r.id);
        26 Usage meta::Usage => meta::UsageReply, in usage();
        // Checksums of adopted files, at an MDS.
        31 RecordSums meta::RecordSums => meta::RecordSumsReply,
            in record_sums(), changes(r => r.id);
        // Extents without their bytes.
        36 CopyRange ranges::CopyRange => ranges::CopyRangeReply,
            in copy_range(lease), changes(r => r.to);
        37 Compact ranges::Compact => ranges::CompactReply, in compact(), changes(r => r.id);
        // Copies of chunks, at an MDS.
        41 ExtendMirrors mirrors::ExtendMirrors => meta::AttributesReply,
            in extend_mirrors(lease), changes(r => r.id);
        43 SplitMirror mirrors::SplitMirror => mirrors::SplitMirrorReply,
            in split_mirror(lease), changes(r => r.id);
        // For bad days, at an MDS.
        45 ListDeleted ledger::ListDeleted => ledger::ListDeletedReply, in list_deleted();
        46 Undelete ledger::Undelete => meta::EntryReply,
            in undelete(lease), changes(r => r.parent);
        // Metadata in bulk.
        53 ReportBundle trees::ReportBundle => trees::ReportBundleReply,
            in report_bundle(), changes();
        54 ReadBundle trees::ReadBundle => trees::ReadBundleReply, in read_bundle();
        // What a client did by itself under exclusive leases.
        56 Batch meta::Batch => meta::BatchReply, in batch(lease), changes();
        57 Reserve meta::Reserve => meta::ReserveReply, in reserve(), changes();
        // Tape, at an MDS.
        91 AskTape tape::AskTape => tape::TapeReply, in ask_tape(), changes(r => r.id);
        92 GetTape tape::GetTape => tape::TapeReply, in get_tape();
        93 GiveUpBytes tape::GiveUpBytes => tape::GiveUpBytesReply,
            in give_up_bytes(lease), changes(r => r.id);
        // Quotas, at an MDS.
        83 SetProject quotas::SetProject => quotas::SetProjectReply,
            in set_project(), changes(r => r.ids.first().copied().unwrap_or_default());
    }
    // An MDT beside its store: locks, bulk, copies, dumps, shares.
    mdt {
        // Advisory locks.
        27 Lock locks::Lock => locks::LockReply;
        28 TestLock locks::TestLock => locks::TestLockReply;
        29 CancelLock locks::CancelLock => locks::CancelLockReply;
        // Extents without their bytes.
        38 AssertLocks locks::AssertLocks => locks::AssertLocksReply;
        // Copies of chunks, at an MDS.
        40 ReportPlace mirrors::ReportPlace => mirrors::ReportPlaceReply;
        42 ResyncFile mirrors::ResyncFile => mirrors::ResyncFileReply;
        // For bad days, at an MDS.
        47 DumpMdt ledger::DumpMdt => ledger::DumpMdtReply;
        48 CheckMdt ledger::CheckMdt => ledger::CheckMdtReply;
        // What goes on in the background.
        49 ListChores chores::ListChores => chores::ListChoresReply;
        // Metadata in bulk.
        50 ReadTree trees::ReadTree => trees::ReadTreeReply;
        52 ReadFiles trees::ReadFiles => trees::ReadFilesReply;
        // The right to bytes, at an MDS.
        75 GetCapability capability::GetCapability => capability::GetCapabilityReply;
        77 RenewCapabilityKey capability::RenewCapabilityKey => capability::RenewCapabilityKeyReply;
        // Quotas, at an MDS.
        80 GetQuota quotas::GetQuota => quotas::Quota;
        81 SetQuota quotas::SetQuota => quotas::SetQuotaReply;
        82 ListQuotas quotas::ListQuotas => quotas::ListQuotasReply;
        84 Promise quotas::Promise => quotas::PromiseReply;
        // Shares of limits, between MDSs.
        87 ReclaimShares quotas::ReclaimShares => quotas::ReclaimSharesReply;
    }
    // A server as such, of whatever it holds: the map, who is who, news among servers.
    node {
        // The federation map, at any server; edits at the one that holds the key.
        60 GetMap federation::GetMap => federation::MapReply;
        61 EditMap federation::EditMap => federation::EditMapReply;
        // Who is who, at an MDS; edits at the root's.
        70 EditIdentities identity::EditIdentities => identity::EditIdentitiesReply;
        71 ListIdentities identity::ListIdentities => identity::ListIdentitiesReply;
        72 Prove identity::Prove => identity::ProveReply;
        // The right to bytes, at an MDS.
        76 CapabilityNews capability::CapabilityNews => capability::CapabilityNewsReply;
        // Shares of limits, between MDSs.
        85 QuotaShares quotas::QuotaShares => quotas::QuotaSharesReply;
        86 QuotaNews quotas::QuotaNews => quotas::QuotaNewsReply;
        // What operators say to any server.
        120 Drain federation::Drain => federation::DrainReply;
    }
    // The chunk service of an OSS.
    oss {
        100 PutChunk data::PutChunk => data::PutChunkReply;
        101 ReadObject data::ReadObject => data::ReadObjectReply;
        102 SyncFile data::SyncFile => data::SyncFileReply;
        103 DeleteChunks data::DeleteChunks => data::DeleteChunksReply;
        104 OstStatus data::OstStatus => data::OstStatusReply;
        105 StatObject data::StatObject => data::StatObjectReply;
        106 ListObjects data::ListObjects => data::ListObjectsReply;
        107 FetchChunk mirrors::FetchChunk => mirrors::FetchChunkReply;
        108 VerifyObject mirrors::VerifyObject => mirrors::VerifyObjectReply;
        110 ListAdopted data::ListAdopted => data::ListAdoptedReply;
        111 ChecksumAdopted data::ChecksumAdopted => data::ChecksumAdoptedReply;
        112 Fill data::Fill => data::FillReply;
        113 GrantRoom data::GrantRoom => data::GrantRoomReply;
        118 DriveTape tape::DriveTape => tape::DriveTapeReply;
        // Files that lie whole in a directory.
        130 StageFile exposed::StageFile => exposed::StageFileReply;
        131 ArrangeExposed exposed::ArrangeExposed => exposed::ArrangeExposedReply;
        132 ListExposed exposed::ListExposed => exposed::ListExposedReply;
    }
}

impl Op {
    /// Does it do nothing but tell? Then it may be asked again where its reply was not kept.
    pub fn only_tells(self) -> bool {
        let is_of_tree = self.answerer() == Answerer::Tree && !self.is_mutation();
        is_of_tree
            || matches!(
                self,
                Self::ReadTree
                    | Self::ReadFiles
                    | Self::GetMap
                    | Self::ListIdentities
                    | Self::ListQuotas
                    | Self::ReadObject
                    | Self::ListObjects
                    | Self::ListAdopted
                    | Self::ListExposed
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_one_call_each() {
        let numbers: std::collections::BTreeSet<u16> =
            Op::ALL.iter().map(|op| op.number()).collect();
        assert_eq!(numbers.len(), Op::ALL.len());
        for &op in Op::ALL {
            assert_eq!(Op::from_number(op.number()), Some(op));
        }
        assert_eq!(Op::from_number(0), None);
    }

    #[test]
    fn a_request_round_trips_with_its_envelope() {
        let envelope = Envelope { answered_below: RequestNumber(7), ..Envelope::default() };
        let request = Request::from(meta::GetAttributes { id: tieline_types::FileId(42) });
        let body = request.encode(&envelope);
        assert_eq!(Request::decode(3, &body).unwrap(), (envelope, request));
        assert!(matches!(Request::decode(999, &body), Err(BodyError::UnknownCall(999))));
        assert!(Request::decode(3, &[&body[..], &[0]].concat()).is_err());
    }
}
