//! Messages about quotas, at an MDS.

use crate::bounds::MDTS_MAX;
use minicbor::{Decode, Encode};
use tieline_types::quota::{Grace, Limits, Payer, PayerKind, Share, Used};
use tieline_types::{AtMost, FileId, MdtIndex, Time};

/// Payers of one page, of whatever is told or asked of them.
pub const PAGE_MAX: usize = 1024;
/// Files that are put into a project at once.
pub const PROJECT_FILES_MAX: usize = 256;
/// Who pays for a file: its user, group and project, each in all and in its pool.
const PAYERS_MAX: usize = 64;
/// Kinds of payers.
const KINDS_MAX: usize = 16;

/// What one payer uses and may use. Users ask for themselves and their groups, anybody for
/// projects, root for all.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetQuota {
    #[n(0)]
    pub payer: Payer,
    /// With id 0: the limits of everybody of the kind who has none of their own.
    #[n(1)]
    pub is_default: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Quota {
    #[n(0)]
    pub payer: Payer,
    #[n(1)]
    pub used: Used,
    /// Bytes that clients may write and have not: counted as used.
    #[n(2)]
    pub promised: u64,
    #[n(3)]
    pub limits: Limits,
    /// Since when the soft limit of bytes is passed.
    #[n(4)]
    pub bytes_over: Option<Time>,
    #[n(5)]
    pub inodes_over: Option<Time>,
    #[n(6)]
    pub grace: Grace,
    /// The server's time.
    #[n(7)]
    pub now: Time,
    /// What others said last that they use, at the MDT that keeps the limits. `used` and
    /// `promised` are of the MDT that is asked.
    #[n(8)]
    #[cbor(with = "AtMost::<MDTS_MAX>")]
    pub elsewhere: Option<Vec<UsedElsewhere>>,
    /// The limits are those of everybody who has none of their own.
    #[n(9)]
    pub is_default: Option<bool>,
}

/// What another MDT said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UsedElsewhere {
    #[n(0)]
    pub mdt: MdtIndex,
    #[n(1)]
    pub used: Used,
    #[n(2)]
    pub promised: u64,
    /// What it may use by itself.
    #[n(3)]
    pub share: Share,
}

/// Sets limits, or the grace of a kind, of all MDTs: at the MDT of the root. Root only. When it is
/// answered every client knows, but for those of MDTs that are named in the answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetQuota {
    /// Whose limits. For the grace only its kind counts.
    #[n(0)]
    pub payer: Payer,
    #[n(1)]
    pub bytes_soft: Option<u64>,
    #[n(2)]
    pub bytes_hard: Option<u64>,
    #[n(3)]
    pub inodes_soft: Option<u64>,
    #[n(4)]
    pub inodes_hard: Option<u64>,
    /// Seconds that soft limits of this kind of payer may be passed.
    #[n(5)]
    pub bytes_grace: Option<u64>,
    #[n(6)]
    pub inodes_grace: Option<u64>,
    /// With id 0: sets the limits of everybody of the kind (and pool) who has none of their own.
    /// With another: whoever it is has none of their own any more.
    #[n(7)]
    pub is_default: Option<bool>,
}

impl SetQuota {
    /// Is it about more than the grace?
    pub fn sets_limits(&self) -> bool {
        let limits = [self.bytes_soft, self.bytes_hard, self.inodes_soft, self.inodes_hard];
        self.is_default == Some(true) || limits.iter().any(Option::is_some)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetQuotaReply {
    #[n(0)]
    pub quota: Quota,
    /// MDTs that did not say in time that they know.
    #[n(1)]
    #[cbor(with = "AtMost::<MDTS_MAX>")]
    pub absent: Option<Vec<MdtIndex>>,
}

/// Everybody of a kind who uses anything or has limits, in order. Root only.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListQuotas {
    #[n(0)]
    pub kind: PayerKind,
    #[n(1)]
    pub after: Option<Payer>,
    /// At most 1,024.
    #[n(2)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListQuotasReply {
    #[n(0)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub quotas: Vec<Quota>,
    #[n(1)]
    pub is_end: bool,
}

/// Puts files into a project; what is made in its directories from then on is of it too. Root only.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetProject {
    /// At most 256. Those that are gone meanwhile are left out.
    #[n(0)]
    #[cbor(with = "AtMost::<PROJECT_FILES_MAX>")]
    pub ids: Vec<FileId>,
    /// 0: none.
    #[n(1)]
    pub project: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetProjectReply {
    /// Files that were of another project before.
    #[n(0)]
    pub changed: u32,
}

/// Has bytes promised to this session, for files that are paid for as `id` is. What is promised is
/// counted as used until it is, so that a write that was accepted is never refused later.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Promise {
    #[n(0)]
    pub id: FileId,
    /// In all, with what was promised before and not committed yet.
    #[n(1)]
    pub wanted: u64,
    /// With less than this nothing can be done.
    #[n(2)]
    pub needed: u64,
    /// Nothing is wanted but to know whether any limit concerns these: who would pay for a file
    /// that is made here. Then only `None` or 0 is answered.
    #[n(3)]
    #[cbor(with = "AtMost::<PAYERS_MAX>")]
    pub payers: Option<Vec<Payer>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PromiseReply {
    /// In all. `None`: no limit concerns these files, until a recall of the whole MDT.
    #[n(0)]
    pub promised: Option<u64>,
    /// If less than was needed: which limit says so.
    #[n(1)]
    pub reason: Option<String>,
}

/// An MDT tells the one of the root what it holds of limits, and asks for more. Who holds a share
/// lowers it himself, before he tells. From the MDS of `mdt` only.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaShares {
    #[n(0)]
    pub mdt: MdtIndex,
    /// The start of the MDT, and the question's number since then: a question is void when a later
    /// one was heard, and so is its answer.
    #[n(1)]
    pub boot: u64,
    #[n(2)]
    pub number: u64,
    /// News that were taken in: [`QuotaNews::known`].
    #[n(3)]
    pub known: u64,
    /// At most 1,024.
    #[n(4)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub shares: Vec<ShareHeld>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ShareHeld {
    #[n(0)]
    pub payer: Payer,
    #[n(1)]
    pub share: Share,
    #[n(2)]
    pub used: Used,
    /// Bytes that clients and changes under way may use, and have not.
    #[n(3)]
    pub promised: u64,
    /// The share without which somebody is refused, else 0; others are asked to give back for it.
    #[n(4)]
    pub needed: Share,
    /// The share that would be good to have.
    #[n(5)]
    pub wanted: Share,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaSharesReply {
    /// Of those who have limits.
    #[n(0)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub shares: Vec<ShareGiven>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ShareGiven {
    #[n(0)]
    pub payer: Payer,
    /// What it may use from now on.
    #[n(1)]
    pub share: Share,
    /// Less than was needed, and others were asked to give back: there may be more in a moment.
    #[n(2)]
    pub is_asked: bool,
}

/// An MDT asks the one of the root which limits changed. Answered at once if any did, else when one
/// does or the time is over. From the MDS of `mdt` only.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaNews {
    #[n(0)]
    pub mdt: MdtIndex,
    /// Whose numbers `known` counts in, from the answer before; 0 at first.
    #[n(1)]
    pub epoch: u64,
    /// News up to this number were taken in, and hold.
    #[n(2)]
    pub known: u64,
    /// At most 10,000.
    #[n(3)]
    pub wait_ms: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaNewsReply {
    /// If it is not what was asked with, `limits` begin anew, and who is not among them until
    /// `is_end` has none.
    #[n(0)]
    pub epoch: u64,
    /// For the next question.
    #[n(1)]
    pub known: u64,
    /// In the order of their news, at most 1,024.
    #[n(2)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub limits: Vec<LimitsNews>,
    #[n(3)]
    pub is_end: bool,
    #[n(4)]
    #[cbor(with = "AtMost::<KINDS_MAX>")]
    pub graces: Vec<KindGrace>,
    /// The clock of MDT0000, by which times in `limits` count.
    #[n(5)]
    pub now: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LimitsNews {
    #[n(0)]
    pub payer: Payer,
    /// None at all: they were taken away.
    #[n(1)]
    pub limits: Limits,
    /// Since when the soft limits are passed by all together.
    #[n(2)]
    pub bytes_over: Option<Time>,
    #[n(3)]
    pub inodes_over: Option<Time>,
    /// Room is short: what is not in use is to be given back now.
    #[n(4)]
    pub is_short: bool,
    /// They are those of everybody who has none of their own: of those id 0 tells.
    #[n(5)]
    pub is_default: Option<bool>,
    /// Without limits, also of those.
    #[n(6)]
    pub is_free: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KindGrace {
    #[n(0)]
    pub kind: PayerKind,
    #[n(1)]
    pub grace: Grace,
}

/// Forgets what a lost MDT held of limits, so that others may have it. At the MDT of the root; for
/// administrators, who know that it does not work on somewhere.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReclaimShares {
    #[n(0)]
    pub mdt: MdtIndex,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReclaimSharesReply {
    /// Of how many payers it held something.
    #[n(0)]
    pub payers: u32,
}
