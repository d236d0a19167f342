//! The table of calls: every request of the protocol, its number, its reply, and whether it changes
//! anything.
//!
//! To add a call: define its messages in `meta`, `data` or `federation`, add a line here with the
//! next number, serve it in its room, and bless its golden bytes. Numbers are never reused.

use crate::{
    BodyError, capability, data, federation, identity, ledger, locks, meta, mirrors, quotas,
    ranges, trees,
};
use minicbor::{Decode, Decoder, Encode};
use tieline_types::{Caller, RequestNumber};

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

macro_rules! calls {
    ($( $number:literal $name:ident $message:path => $reply:path, $mutation:literal; )*) => {
        /// The calls by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Op { $($name),* }

        impl Op {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The number in the frame's header.
            pub fn number(self) -> u16 {
                match self { $(Self::$name => $number),* }
            }

            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Does it change an MDT? Then its answer is stored with its effect, and repeated
            /// rather than redone.
            pub fn is_mutation(self) -> bool {
                match self { $(Self::$name => $mutation),* }
            }

            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Is `body` a reply of this call? For tests that have bytes and no type.
            pub fn check_reply(self, body: &[u8]) -> Result<(), BodyError> {
                match self { $(Self::$name => crate::decode::<$reply>(body).map(drop)),* }
            }
        }

        /// Any request, decoded.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Request { $($name($message)),* }

        impl Request {
            pub fn op(&self) -> Op {
                match self { $(Self::$name(_) => Op::$name),* }
            }

            /// Decodes the body of a request frame.
            pub fn decode(op: u16, body: &[u8]) -> Result<(Envelope, Self), BodyError> {
                let op = Op::from_number(op).ok_or(BodyError::UnknownCall(op))?;
                let mut decoder = Decoder::new(body);
                let envelope = decoder.decode()?;
                let request = match op { $(Op::$name => Self::$name(decoder.decode()?)),* };
                match body.len().saturating_sub(decoder.position()) {
                    0 => Ok((envelope, request)),
                    extra => Err(BodyError::Trailing(extra)),
                }
            }

            /// Decodes a message alone, as batches carry them.
            pub fn decode_message(op: u16, message: &[u8]) -> Result<Self, BodyError> {
                let op = Op::from_number(op).ok_or(BodyError::UnknownCall(op))?;
                Ok(match op { $(Op::$name => Self::$name(crate::decode(message)?)),* })
            }

            /// The message alone.
            pub fn encode_message(&self) -> Vec<u8> {
                match self { $(Self::$name(message) => crate::encode(message)),* }
            }

            /// The body of a request frame.
            pub fn encode(&self, envelope: &Envelope) -> Vec<u8> {
                let mut body = crate::encode(envelope);
                if let Self::Batch(batch) = self {
                    body.reserve(batch.items.iter().map(|item| item.weight()).sum());
                }
                match self { $(Self::$name(message) => crate::encode_onto(&mut body, message)),* }
                body
            }
        }

        $(
            impl From<$message> for Request {
                fn from(message: $message) -> Self { Self::$name(message) }
            }

            impl Call for $message {
                const OP: Op = Op::$name;
                type Reply = $reply;
            }
        )*
    };
}

calls! {
    // The namespace, at an MDS.
    1 Lookup meta::Lookup => meta::EntryReply, false;
    2 LookupParent meta::LookupParent => meta::LookupParentReply, false;
    3 GetAttributes meta::GetAttributes => meta::AttributesReply, false;
    4 SetAttributes meta::SetAttributes => meta::AttributesReply, true;
    5 ReadDirectory meta::ReadDirectory => meta::ReadDirectoryReply, false;
    6 Create meta::Create => meta::CreateReply, true;
    7 MakeDirectory meta::MakeDirectory => meta::EntryReply, true;
    8 MakeSymlink meta::MakeSymlink => meta::EntryReply, true;
    9 MakeNode meta::MakeNode => meta::EntryReply, true;
    10 Link meta::Link => meta::EntryReply, true;
    11 Unlink meta::Unlink => meta::ChangeReply, true;
    12 RemoveDirectory meta::RemoveDirectory => meta::ChangeReply, true;
    13 Rename meta::Rename => meta::ChangeReply, true;
    14 ReadSymlink meta::ReadSymlink => meta::ReadSymlinkReply, false;
    15 Open meta::Open => meta::OpenReply, false;
    16 GetExtents meta::GetExtents => meta::GetExtentsReply, false;
    17 Commit meta::Commit => meta::AttributesReply, true;
    18 Place meta::Place => meta::PlaceReply, true;
    19 Release meta::Release => meta::ChangeReply, true;
    20 GetXattr meta::GetXattr => meta::GetXattrReply, false;
    21 ListXattrs meta::ListXattrs => meta::ListXattrsReply, false;
    22 SetXattr meta::SetXattr => meta::AttributesReply, true;
    23 RemoveXattr meta::RemoveXattr => meta::AttributesReply, true;
    24 GetLayout meta::GetLayout => meta::GetLayoutReply, false;
    25 SetLayout meta::SetLayout => meta::AttributesReply, true;
    26 Usage meta::Usage => meta::UsageReply, false;
    // Advisory locks.
    27 Lock locks::Lock => locks::LockReply, false;
    28 TestLock locks::TestLock => locks::TestLockReply, false;
    29 CancelLock locks::CancelLock => locks::CancelLockReply, false;
    // Checksums of adopted files, at an MDS.
    31 RecordSums meta::RecordSums => meta::RecordSumsReply, true;
    // Extents without their bytes.
    36 CopyRange ranges::CopyRange => ranges::CopyRangeReply, true;
    37 Compact ranges::Compact => ranges::CompactReply, true;
    38 AssertLocks locks::AssertLocks => locks::AssertLocksReply, false;
    // Copies of chunks, at an MDS.
    40 ReportPlace mirrors::ReportPlace => mirrors::ReportPlaceReply, false;
    41 ExtendMirrors mirrors::ExtendMirrors => meta::AttributesReply, true;
    42 ResyncFile mirrors::ResyncFile => mirrors::ResyncFileReply, false;
    43 SplitMirror mirrors::SplitMirror => mirrors::SplitMirrorReply, true;
    // For bad days, at an MDS.
    45 ListDeleted ledger::ListDeleted => ledger::ListDeletedReply, false;
    46 Undelete ledger::Undelete => meta::EntryReply, true;
    47 DumpMdt ledger::DumpMdt => ledger::DumpMdtReply, false;
    48 CheckMdt ledger::CheckMdt => ledger::CheckMdtReply, false;
    // Metadata in bulk.
    50 ReadTree trees::ReadTree => trees::ReadTreeReply, false;
    51 ReportTrails trees::ReportTrails => trees::ReportTrailsReply, true;
    52 ReadFiles trees::ReadFiles => trees::ReadFilesReply, false;
    // What a client did by itself under exclusive leases.
    56 Batch meta::Batch => meta::BatchReply, true;
    57 Reserve meta::Reserve => meta::ReserveReply, true;
    // The federation map, at any server; edits at the one that holds the key.
    60 GetMap federation::GetMap => federation::MapReply, false;
    61 EditMap federation::EditMap => federation::EditMapReply, false;
    // Who is who, at an MDS; edits at the root's.
    70 EditIdentities identity::EditIdentities => identity::EditIdentitiesReply, false;
    71 ListIdentities identity::ListIdentities => identity::ListIdentitiesReply, false;
    72 Prove identity::Prove => identity::ProveReply, false;
    // The right to bytes, at an MDS.
    75 GetCapability capability::GetCapability => capability::GetCapabilityReply, false;
    76 CapabilityNews capability::CapabilityNews => capability::CapabilityNewsReply, false;
    // Quotas, at an MDS.
    80 GetQuota quotas::GetQuota => quotas::Quota, false;
    81 SetQuota quotas::SetQuota => quotas::SetQuotaReply, false;
    82 ListQuotas quotas::ListQuotas => quotas::ListQuotasReply, false;
    83 SetProject quotas::SetProject => quotas::SetProjectReply, true;
    84 Promise quotas::Promise => quotas::PromiseReply, false;
    // Shares of limits, between MDSs.
    85 QuotaShares quotas::QuotaShares => quotas::QuotaSharesReply, false;
    86 QuotaNews quotas::QuotaNews => quotas::QuotaNewsReply, false;
    87 ReclaimShares quotas::ReclaimShares => quotas::ReclaimSharesReply, false;
    // Chunks, at an OSS.
    100 PutChunk data::PutChunk => data::PutChunkReply, false;
    101 ReadObject data::ReadObject => data::ReadObjectReply, false;
    102 SyncFile data::SyncFile => data::SyncFileReply, false;
    103 DeleteChunks data::DeleteChunks => data::DeleteChunksReply, false;
    104 OstStatus data::OstStatus => data::OstStatusReply, false;
    105 StatObject data::StatObject => data::StatObjectReply, false;
    106 ListObjects data::ListObjects => data::ListObjectsReply, false;
    107 FetchChunk mirrors::FetchChunk => mirrors::FetchChunkReply, false;
    108 VerifyObject mirrors::VerifyObject => mirrors::VerifyObjectReply, false;
    110 ListAdopted data::ListAdopted => data::ListAdoptedReply, false;
    111 ChecksumAdopted data::ChecksumAdopted => data::ChecksumAdoptedReply, false;
    112 Fill data::Fill => data::FillReply, false;
    113 GrantRoom data::GrantRoom => data::GrantRoomReply, false;
    // What operators say to any server.
    120 Drain federation::Drain => federation::DrainReply, false;
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
