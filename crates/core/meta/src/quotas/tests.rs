//! What is counted is what is there, and limits hold whatever meets.

use super::*;
use crate::fixture::*;
use proptest::prelude::*;
use tieline_types::ErrorKind::{CrossDevice, InvalidArgument, NotPermitted, QuotaExceeded};
use tieline_types::quota::PayerKind;
use tieline_types::{ErrorKind, Uid};
use tieline_wire::meta::{Create, LayoutChange, Link, PoolChoice, SetAttributes, SetLayout};
use tieline_wire::mirrors::ExtendMirrors;
use tieline_wire::quotas::{GetQuota, ListQuotas, Promise, Quota, SetProject, SetQuota};

const KIB: u64 = 1024;

fn payer(kind: PayerKind, id: u32) -> Payer {
    Payer { kind, id, pool: None }
}

fn set(payer: Payer) -> SetQuota {
    SetQuota {
        payer,
        bytes_soft: None,
        bytes_hard: None,
        inodes_soft: None,
        inodes_hard: None,
        bytes_grace: None,
        inodes_grace: None,
        is_default: None,
    }
}

async fn quota(client: &Client, payer: Payer) -> Quota {
    client.call(GetQuota { payer, is_default: None }).await.unwrap()
}

async fn used(client: &Client, kind: PayerKind, id: u32) -> (u64, u64) {
    let used = quota(client, payer(kind, id)).await.used;
    (used.bytes, used.inodes)
}

fn bytes(kib: usize) -> Vec<u8> {
    vec![7; kib << 10]
}

/// What the store notes is what a count of all files gives, and what is told.
async fn check(house: &House) {
    let mut snapshot = house.mdt.parts.store.snapshot().await.unwrap();
    let noted = count::noted(&mut *snapshot).await.unwrap();
    assert_eq!(noted, count::counted(&mut *snapshot).await.unwrap());
    let told = house.mdt.quotas.table().used.clone();
    let told: Sums = told.into_iter().filter(|(_, sum)| *sum != Sum::default()).collect();
    assert_eq!(noted, told);
}

/// An upload counts for who makes it from its first byte; what it replaces counts no more.
#[tokio::test(start_paused = true)]
async fn what_is_put_in_a_place_counts_and_what_was_there_does_not() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (ann, bob) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let old = bob.create(ROOT, "f").await;
    bob.commit(old, vec![inline(0, &bytes(4))]).await;
    let nameless = Create { is_nameless: Some(true), ..create(ROOT, "-", 0o644) };
    let new = ann.call(nameless).await.unwrap().open.attributes.id;
    ann.commit(new, vec![inline(0, &bytes(3))]).await;
    assert_eq!(used(&root, PayerKind::User, 10).await, (3 * KIB, 1));
    assert_eq!(used(&root, PayerKind::User, 11).await, (4 * KIB, 1));
    ann.call(Link { replaces: Some(true), ..link(new, ROOT, "f") }).await.unwrap();
    assert_eq!(used(&root, PayerKind::User, 10).await, (3 * KIB, 1));
    assert_eq!(used(&root, PayerKind::User, 11).await, (0, 0));
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn files_are_counted_for_owner_group_and_project() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[21]));
    let directory = ann.mkdir(ROOT, "d").await;
    root.call(SetProject { ids: vec![directory], project: 7 }).await.unwrap();
    let file = ann.create(directory, "f").await;
    ann.commit(file, vec![inline(0, &bytes(4)), inline(8 * KIB, &bytes(2))]).await;
    for (kind, id) in [(PayerKind::User, 10), (PayerKind::Group, 20), (PayerKind::Project, 7)] {
        assert_eq!(used(&root, kind, id).await, (6 * KIB, 2), "{kind:?}");
    }
    // It goes with the group, is counted once for two names, and shrinks.
    ann.call(SetAttributes { gid: Some(tieline_types::Gid(21)), ..setattr(file) }).await.unwrap();
    ann.call(link(file, directory, "g")).await.unwrap();
    ann.call(truncate(file, KIB)).await.unwrap();
    assert_eq!(used(&root, PayerKind::Group, 20).await, (0, 1));
    assert_eq!(used(&root, PayerKind::Group, 21).await, (KIB, 1));
    check(&house).await;
    ann.call(unlink(directory, "f")).await.unwrap();
    ann.call(unlink(directory, "g")).await.unwrap();
    assert_eq!(used(&root, PayerKind::User, 10).await, (0, 1));
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_without_names_is_counted_while_it_is_open() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let file = ann.create(ROOT, "f").await;
    ann.commit(file, vec![inline(0, &bytes(4))]).await;
    let keep = Some(file);
    ann.call(tieline_wire::meta::Unlink { keep, ..unlink(ROOT, "f") }).await.unwrap();
    assert_eq!(used(&root, PayerKind::User, 10).await, (4 * KIB, 1));
    ann.call(tieline_wire::meta::Release { id: file }).await.unwrap();
    assert_eq!(used(&root, PayerKind::User, 10).await, (0, 0));
    check(&house).await;
}

/// Editors and checkpoints replace files by renaming others over them.
#[tokio::test(start_paused = true)]
async fn a_replaced_file_is_counted_by_whoever_still_uses_it() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let (old, new) = (ann.create(ROOT, "f").await, ann.create(ROOT, "g").await);
    for file in [old, new] {
        ann.commit(file, vec![inline(0, &bytes(4))]).await;
    }
    ann.call(rename((ROOT, "g"), (ROOT, "f"))).await.unwrap();
    assert_eq!(used(&root, PayerKind::User, 10).await, (4 * KIB, 1));
    check(&house).await;
    // Somebody had looked it up.
    ann.commit(old, vec![inline(4 * KIB, &bytes(4))]).await;
    assert_eq!(used(&root, PayerKind::User, 10).await, (12 * KIB, 2));
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn hard_limits_hold() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let limit = SetQuota {
        bytes_hard: Some(6 * KIB),
        inodes_hard: Some(2),
        ..set(payer(PayerKind::User, 10))
    };
    assert_eq!(ann.kind_of(limit.clone()).await, Some(NotPermitted));
    root.call(limit).await.unwrap();
    let file = ann.create(ROOT, "f").await;
    ann.create(ROOT, "g").await;
    assert_eq!(ann.kind_of(create(ROOT, "h", 0o644)).await, Some(QuotaExceeded));
    assert_eq!(ann.kind_of(mkdir(ROOT, "h", 0o755)).await, Some(QuotaExceeded));
    ann.commit(file, vec![inline(0, &bytes(4))]).await;
    assert_eq!(
        ann.kind_of(commit(file, vec![inline(4 * KIB, &bytes(4))])).await,
        Some(QuotaExceeded)
    );
    // Over what is there it costs nothing.
    ann.commit(file, vec![inline(0, &bytes(4))]).await;
    ann.commit(file, vec![inline(4 * KIB, &bytes(2))]).await;
    // Others may; and a file is not given to who has no room.
    let other = root.by(&user(11, 20, &[]));
    other.create(ROOT, "h").await;
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_promised_is_counted_at_once() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (one, two) = (root.by(&user(10, 20, &[])), house.client().await.by(&user(10, 20, &[])));
    let (file, other) = (one.create(ROOT, "f").await, two.create(ROOT, "g").await);
    let ask = |id, needed, wanted| Promise { id, wanted, needed, payers: None };
    assert_eq!(one.call(ask(file, KIB, KIB)).await.unwrap().promised, None);
    let hard = SetQuota { bytes_hard: Some(10 * KIB), ..set(payer(PayerKind::User, 10)) };
    root.call(hard).await.unwrap();
    assert_eq!(one.call(ask(file, 6 * KIB, 6 * KIB)).await.unwrap().promised, Some(6 * KIB));
    let short = two.call(ask(other, 5 * KIB, 5 * KIB)).await.unwrap();
    assert_eq!(short.promised, Some(4 * KIB));
    assert!(short.reason.unwrap().contains("user 10: hard limit of 10"));
    // Under its promise a commit is not refused, without one it is.
    one.commit(file, vec![inline(0, &bytes(6))]).await;
    let more = commit(file, vec![inline(6 * KIB, &bytes(1))]);
    assert_eq!(one.kind_of(more.clone()).await, Some(QuotaExceeded));
    two.call(ask(other, 0, 0)).await.unwrap();
    one.call(more).await.unwrap();
    let told = quota(&root, payer(PayerKind::User, 10)).await;
    assert_eq!((told.used.bytes, told.promised), (7 * KIB, 0));
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn soft_limits_hold_when_their_grace_is_over() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let soft = SetQuota {
        bytes_soft: Some(2 * KIB),
        bytes_grace: Some(60),
        ..set(payer(PayerKind::User, 10))
    };
    root.call(soft).await.unwrap();
    let file = ann.create(ROOT, "f").await;
    ann.commit(file, vec![inline(0, &bytes(4))]).await;
    assert!(quota(&ann, payer(PayerKind::User, 10)).await.bytes_over.is_some());
    ann.commit(file, vec![inline(4 * KIB, &bytes(4))]).await;
    // The clock of the house does not move by itself; a grace of nothing is over at once.
    root.call(SetQuota { bytes_grace: Some(0), ..set(payer(PayerKind::User, 10)) }).await.unwrap();
    let more = commit(file, vec![inline(8 * KIB, &bytes(4))]);
    assert_eq!(ann.kind_of(more).await, Some(QuotaExceeded));
    ann.call(truncate(file, KIB)).await.unwrap();
    assert!(quota(&ann, payer(PayerKind::User, 10)).await.bytes_over.is_none());
    ann.commit(file, vec![inline(KIB, &bytes(1))]).await;
    let crossed =
        SetQuota { bytes_soft: Some(9), bytes_hard: Some(8), ..set(payer(PayerKind::User, 10)) };
    assert_eq!(root.kind_of(crossed).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn projects_are_trees() {
    let house = House::new().await;
    let root = house.client().await;
    let (tree, outside) = (root.mkdir(ROOT, "tree").await, root.mkdir(ROOT, "outside").await);
    let set = SetProject { ids: vec![tree], project: 7 };
    assert_eq!(root.call(set).await.unwrap().changed, 1);
    let below = root.mkdir(tree, "below").await;
    let file = root.create(below, "f").await;
    root.commit(file, vec![inline(0, &bytes(1))]).await;
    assert_eq!(root.stat(file).await.project, Some(7));
    assert_eq!(used(&root, PayerKind::Project, 7).await, (KIB, 3));
    // A file changes its project with its tree; a directory with something in it does not.
    root.call(rename((below, "f"), (outside, "f"))).await.unwrap();
    assert_eq!(used(&root, PayerKind::Project, 7).await, (0, 2));
    root.create(below, "g").await;
    assert_eq!(root.kind_of(rename((tree, "below"), (outside, "b"))).await, Some(CrossDevice));
    assert_eq!(root.kind_of(link(file, below, "h")).await, Some(CrossDevice));
    // The tree itself has its name outside.
    root.call(rename((ROOT, "tree"), (ROOT, "moved"))).await.unwrap();
    assert_eq!(used(&root, PayerKind::Project, 7).await, (0, 3));
    check(&house).await;
}

#[tokio::test(start_paused = true)]
async fn counts_and_limits_outlive_restarts_and_adding_up() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let hard = SetQuota { inodes_hard: Some(3), ..set(payer(PayerKind::User, 10)) };
    root.call(hard).await.unwrap();
    ann.create(ROOT, "a").await;
    house.mdt.add_up_usage().await.unwrap();
    ann.create(ROOT, "b").await;
    house.mdt.add_up_usage().await.unwrap();
    ann.create(ROOT, "c").await;
    check(&house).await;
    let house = house.restarted().await;
    check(&house).await;
    let root = house.client().await;
    let ann = root.by(&user(10, 20, &[]));
    assert_eq!(ann.kind_of(create(ROOT, "d", 0o644)).await, Some(QuotaExceeded));
    let listed = ListQuotas { kind: PayerKind::User, after: None, limit: 10 };
    let listed = root.call(listed).await.unwrap();
    let ids: Vec<u32> = listed.quotas.iter().map(|quota| quota.payer.id).collect();
    assert_eq!((ids, listed.is_end), (vec![0, 10], true));
    house.mdt.add_up_usage().await.unwrap();
    house.mdt.add_up_usage().await.unwrap();
    check(&house).await;
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, u8),
    Remove(usize),
    Write(usize, u8, u8),
    Cut(usize, u8),
    Give(usize, u8),
    Project(usize, u8),
    Move(usize, bool),
    AddUp,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4usize, 0..3u8).prop_map(|(file, who)| Step::Create(file, who)),
        1 => (0..4usize).prop_map(Step::Remove),
        4 => (0..4usize, 0..8u8, 1..8u8).prop_map(|(file, at, long)| Step::Write(file, at, long)),
        1 => (0..4usize, 0..8u8).prop_map(|(file, size)| Step::Cut(file, size)),
        1 => (0..4usize, 0..3u8).prop_map(|(file, to)| Step::Give(file, to)),
        1 => (0..4usize, 0..3u8).prop_map(|(file, project)| Step::Project(file, project)),
        1 => (0..4usize, any::<bool>()).prop_map(|(file, into)| Step::Move(file, into)),
        1 => Just(Step::AddUp),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Does one thing; what cannot be done or is refused by a limit changes nothing.
async fn step(house: &House, root: &Client, tree: FileId, step: &Step) {
    let name = |file: usize| format!("f{file}");
    let find = async |file: usize| {
        for parent in [ROOT, tree] {
            if let Some(id) = root.id(parent, &name(file)).await {
                return Some((parent, id));
            }
        }
        None
    };
    let refused = |kind: Option<ErrorKind>| match kind {
        None | Some(QuotaExceeded | ErrorKind::Exists) => {}
        Some(kind) => panic!("{step:?}: {kind:?}"),
    };
    match *step {
        Step::AddUp => house.mdt.add_up_usage().await.unwrap(),
        Step::Create(file, who) => {
            let by = root.by(&user(u32::from(who) + 10, 20, &[]));
            if find(file).await.is_none() {
                refused(by.kind_of(create(ROOT, &name(file), 0o644)).await);
            }
        }
        Step::Remove(file) => {
            if let Some((parent, _)) = find(file).await {
                refused(root.kind_of(unlink(parent, &name(file))).await);
            }
        }
        Step::Write(file, at, long) => {
            if let Some((_, id)) = find(file).await {
                let written = inline(u64::from(at) * KIB, &bytes(long.into()));
                refused(root.kind_of(commit(id, vec![written])).await);
            }
        }
        Step::Cut(file, size) => {
            if let Some((_, id)) = find(file).await {
                refused(root.kind_of(truncate(id, u64::from(size) * KIB)).await);
            }
        }
        Step::Give(file, to) => {
            if let Some((_, id)) = find(file).await {
                let uid = Some(Uid(u32::from(to) + 10));
                refused(root.kind_of(SetAttributes { uid, ..setattr(id) }).await);
            }
        }
        Step::Project(file, project) => {
            if let Some((_, id)) = find(file).await {
                let set = SetProject { ids: vec![id], project: project.into() };
                refused(root.kind_of(set).await);
            }
        }
        Step::Move(file, into) => {
            if let Some((parent, _)) = find(file).await {
                let to = if into { tree } else { ROOT };
                if to != parent {
                    refused(root.kind_of(rename((parent, &name(file)), (to, &name(file)))).await);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// The model is the count of all files.
    #[test]
    fn whatever_happens_the_count_is_right(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let house = House::new().await;
            let root = house.client().await;
            root.call(chmod(ROOT, 0o777)).await.unwrap();
            let tree = root.mkdir(ROOT, "tree").await;
            root.call(SetProject { ids: vec![tree], project: 2 }).await.unwrap();
            let hard = SetQuota { bytes_hard: Some(12 * KIB), ..set(payer(PayerKind::User, 10)) };
            root.call(hard).await.unwrap();
            for one in &steps {
                step(&house, &root, tree, one).await;
                check(&house).await;
            }
            let house = house.restarted().await;
            check(&house).await;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn default_limits_hold_for_who_has_none_of_their_own() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let [ann, ben, cyd] = [10, 11, 12].map(|id| root.by(&user(id, 20, &[])));
    let old = ann.create(ROOT, "old").await;
    ann.commit(old, vec![inline(0, &bytes(4))]).await;
    let default = |inodes: u64| SetQuota {
        inodes_hard: Some(inodes),
        is_default: Some(true),
        ..set(payer(PayerKind::User, 0))
    };
    let of = |id: u32| set(payer(PayerKind::User, id));
    assert_eq!(ann.kind_of(default(2)).await, Some(NotPermitted));
    let told = root.call(default(2)).await.unwrap().quota;
    assert_eq!((told.limits.inodes_hard, told.is_default), (2, Some(true)));
    let told = quota(&root, payer(PayerKind::User, 10)).await;
    assert_eq!((told.limits.inodes_hard, told.is_default), (2, Some(true)));
    // Root has none, who was there before and who is new have it.
    assert_eq!(quota(&root, payer(PayerKind::User, 0)).await.limits, Limits::default());
    for name in ["r1", "r2", "r3"] {
        root.create(ROOT, name).await;
    }
    ann.create(ROOT, "a").await;
    let refused = ann.call(create(ROOT, "a2", 0o644)).await.unwrap_err();
    assert_eq!(refused.kind, QuotaExceeded);
    assert!(refused.detail.contains("default hard limit of 2"), "{}", refused.detail);
    for name in ["b1", "b2"] {
        ben.create(ROOT, name).await;
    }
    assert_eq!(ben.kind_of(create(ROOT, "b3", 0o644)).await, Some(QuotaExceeded));
    // Own limits are not under it, also none at all.
    root.call(SetQuota { inodes_hard: Some(3), ..of(11) }).await.unwrap();
    root.call(SetQuota { inodes_hard: Some(0), ..of(12) }).await.unwrap();
    assert_eq!(quota(&root, payer(PayerKind::User, 12)).await.is_default, None);
    ben.create(ROOT, "b3").await;
    assert_eq!(ben.kind_of(create(ROOT, "b4", 0o644)).await, Some(QuotaExceeded));
    for name in ["c1", "c2", "c3", "c4", "c5"] {
        cyd.create(ROOT, name).await;
    }
    // After a restart, too; and what becomes of the default holds for who is under it.
    let house = house.restarted().await;
    let root = house.client().await;
    let [ann, ben, cyd] = [10, 11, 12].map(|id| root.by(&user(id, 20, &[])));
    assert_eq!(ann.kind_of(create(ROOT, "a2", 0o644)).await, Some(QuotaExceeded));
    cyd.create(ROOT, "c6").await;
    root.call(default(4)).await.unwrap();
    ann.create(ROOT, "a2").await;
    assert_eq!(ben.kind_of(create(ROOT, "b4", 0o644)).await, Some(QuotaExceeded));
    // Back under it.
    for id in [11, 12] {
        root.call(SetQuota { is_default: Some(true), ..of(id) }).await.unwrap();
    }
    ben.create(ROOT, "b4").await;
    assert_eq!(cyd.kind_of(create(ROOT, "c7", 0o644)).await, Some(QuotaExceeded));
    root.call(default(0)).await.unwrap();
    assert!(!house.mdt.quotas.has_limits());
    for (client, name) in [(&ann, "a9"), (&ben, "b9"), (&cyd, "c9")] {
        client.create(ROOT, name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_in_a_pool_hold_there_and_nowhere_else() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let ann = root.by(&user(10, 20, &[]));
    let pooled = root.mkdir(ROOT, "pooled").await;
    root.call(chmod(pooled, 0o777)).await.unwrap();
    let uf: tieline_types::PoolName = "uf".parse().unwrap();
    let change = LayoutChange { pool: Some(PoolChoice::Pool(uf.clone())), ..Default::default() };
    root.call(SetLayout { id: pooled, layout: Some(change) }).await.unwrap();
    let within = |kind, id| Payer { kind, id, pool: Some(uf.clone()) };
    let ann_there = within(PayerKind::User, 10);
    let hard =
        SetQuota { bytes_hard: Some(6 * KIB), inodes_hard: Some(2), ..set(ann_there.clone()) };
    root.call(hard).await.unwrap();
    let file = ann.create(pooled, "f").await;
    ann.create(pooled, "g").await;
    assert_eq!(ann.kind_of(create(pooled, "h", 0o644)).await, Some(QuotaExceeded));
    ann.commit(file, vec![inline(0, &bytes(4))]).await;
    let more = commit(file, vec![inline(4 * KIB, &bytes(4))]);
    assert_eq!(ann.kind_of(more).await, Some(QuotaExceeded));
    let ask = Promise { id: file, wanted: 9 * KIB, needed: 9 * KIB, payers: None };
    let short = ann.call(ask).await.unwrap();
    assert_eq!(short.promised, Some(2 * KIB));
    assert!(short.reason.unwrap().contains("uf"));
    // Elsewhere there is no limit; nor for others there.
    let free = ann.create(ROOT, "h").await;
    ann.commit(free, vec![inline(0, &bytes(12))]).await;
    let ben = root.by(&user(11, 20, &[]));
    ben.create(pooled, "b").await;
    let there = quota(&root, ann_there.clone()).await;
    assert_eq!((there.used.bytes, there.used.inodes), (4 * KIB, 2));
    assert_eq!(used(&root, PayerKind::User, 10).await, (16 * KIB, 3));
    assert_eq!(quota(&root, within(PayerKind::Group, 20)).await.used.inodes, 3);
    check(&house).await;
    // A default in the pool is for who has no limits of their own there.
    let default = SetQuota {
        inodes_hard: Some(1),
        is_default: Some(true),
        ..set(within(PayerKind::User, 0))
    };
    root.call(default).await.unwrap();
    assert_eq!(ben.kind_of(create(pooled, "c", 0o644)).await, Some(QuotaExceeded));
    ben.create(ROOT, "c").await;
    // What goes makes room.
    ann.call(unlink(pooled, "g")).await.unwrap();
    ann.create(pooled, "i").await;
    // A mirror there takes it.
    root.call(SetQuota { inodes_hard: Some(9), ..set(ann_there.clone()) }).await.unwrap();
    ann.call(Promise { id: file, wanted: 0, needed: 0, payers: None }).await.unwrap();
    let extend = |id| ExtendMirrors { id, count: 1, pool: Some(uf.clone()) };
    assert_eq!(ann.kind_of(extend(free)).await, Some(QuotaExceeded));
    ann.call(truncate(free, KIB)).await.unwrap();
    ann.call(extend(free)).await.unwrap();
    assert_eq!(quota(&root, ann_there.clone()).await.used.bytes, 5 * KIB);
    let listed = ListQuotas { kind: PayerKind::User, after: None, limit: 100 };
    let listed = root.call(listed).await.unwrap().quotas;
    assert!(listed.iter().any(|one| one.payer == ann_there && one.limits.bytes_hard == 6 * KIB));
    check(&house).await;
}
