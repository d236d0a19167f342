//! Messages about quotas, at an MDS.

use minicbor::{Decode, Encode};
use tieline_types::quota::{Grace, Limits, Payer, PayerKind, Used};
use tieline_types::{FileId, Time};

/// What one payer uses and may use. Users ask for themselves and their groups, anybody for
/// projects, root for all.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetQuota {
    #[n(0)]
    pub payer: Payer,
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
}

/// Sets limits, or the grace of a kind. Root only. When it is answered every client knows.
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
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetQuotaReply {
    #[n(0)]
    pub quota: Quota,
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
    pub quotas: Vec<Quota>,
    #[n(1)]
    pub is_end: bool,
}

/// Puts files into a project; what is made in its directories from then on is of it too. Root only.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetProject {
    /// At most 256. Those that are gone meanwhile are left out.
    #[n(0)]
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
