//! The worker against OSTs that lose and damage copies.

use crate::chore;
use crate::fixture::*;
use std::sync::Arc;
use std::time::Duration;
use tieline_meta::Mdt;
use tieline_types::{
    Content, ErrorKind, Extent, FileId, GrantedId, Layout, ObjectName, OstIndex, OstPlace, Place,
    StripeCount,
};
use tieline_wire::meta::{self, GetLayout, LayoutChange, PoolChoice, SetLayout};
use tieline_wire::mirrors::{ExtendMirrors, ReportPlace, ResyncFile, SplitMirror};

/// An MDT whose worker runs, and whose OSSs answer.
async fn house() -> (House, tokio::task::JoinSet<()>) {
    let house = House::new().await;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(hear(house.mdt.clone()));
    tasks.spawn(mend(&house));
    (house, tasks)
}

/// The worker alone.
fn mend(house: &House) -> impl Future<Output = ()> + use<> {
    let parts = house.parts().clone();
    let copies = Box::new(super::Copies::new(&parts));
    chore::run(parts, copies, Arc::new(house.status()))
}

async fn hear(mdt: Arc<Mdt>) {
    loop {
        mdt.observe((0..4).map(state).collect());
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

fn mirrored(count: u8) -> LayoutChange {
    LayoutChange { mirrors: Some(count), inline_limit: Some(0), ..LayoutChange::default() }
}

/// A chunk with places on `osts`, those of `stale` without the chunk.
fn chunk(house: &House, client: &Client, serial: u64, osts: &[u16], stale: &[u16]) -> Extent {
    let mut extent = client.chunk(serial, (serial - 1) << 20, 1 << 20);
    if let Content::Chunk(chunk) = &mut extent.content {
        let id = chunk.chunk.granted().unwrap();
        let object = ObjectName::Chunk(id);
        let place = |&ost: &u16| OstPlace {
            ost: OstIndex(ost),
            object: object.clone(),
            offset: 0,
            length: 1 << 20,
            is_stale: stale.contains(&ost),
        };
        let places: Vec<_> = osts.iter().map(place).collect();
        let held = places.iter().filter(|place| !place.is_stale);
        house.mender.held.lock().unwrap().extend(held.map(|place| (place.ost, id)));
        chunk.places = places.into_iter().map(Place::from).collect();
        chunk.digest = Some(DIGEST);
    }
    extent
}

fn id(extent: &Extent) -> GrantedId {
    let Content::Chunk(chunk) = &extent.content else { panic!("no chunk") };
    chunk.chunk.granted().unwrap()
}

/// (OST, is it stale) of the places of a file's first chunk.
async fn places(client: &Client, file: FileId) -> Vec<(u16, bool)> {
    let extents = client.extents(file).await;
    let Content::Chunk(chunk) = &extents[0].content else { panic!("no chunk") };
    chunk.places.iter().map(|place| (place.ost().unwrap().0, place.is_stale)).collect()
}

async fn report(client: &Client, chunk: GrantedId, ost: u16) {
    let what = "damaged".to_owned();
    client.call(ReportPlace { chunk, ost: OstIndex(ost), what }).await.unwrap();
}

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_commit_did_not_wait_for_is_fetched_later() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    let extent = chunk(&house, &client, 1, &[0, 2], &[2]);
    client.commit(file, vec![extent.clone()]).await;
    assert_eq!(places(&client, file).await, [(0, false), (2, true)]);
    assert_eq!(house.count(b'm').await, 1);
    wait(1).await;
    assert!(house.mender.fetches.lock().unwrap().is_empty(), "the writer may still send it");
    wait(10).await;
    assert_eq!(places(&client, file).await, [(0, false), (2, false)]);
    assert_eq!(house.count(b'm').await, 0);
    let fetches = house.mender.fetches.lock().unwrap();
    assert_eq!(fetches.len(), 1);
    assert_eq!((fetches[0].ost, fetches[0].from[0].ost), (OstIndex(2), OstIndex(0)));
    assert_eq!((fetches[0].chunk, fetches[0].digest), (id(&extent), Some(DIGEST)));
}

#[tokio::test(start_paused = true)]
async fn an_ost_that_is_away_gets_its_copy_when_it_is_back_also_after_a_restart() {
    let (house, tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    house.mender.down.lock().unwrap().insert(OstIndex(2));
    let extent = chunk(&house, &client, 1, &[0, 2], &[2]);
    client.commit(file, vec![extent]).await;
    wait(60).await;
    assert_eq!(places(&client, file).await, [(0, false), (2, true)]);
    drop(tasks);
    let held = house.mender.held.lock().unwrap().clone();
    let house = house.restarted().await;
    *house.mender.held.lock().unwrap() = held;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(hear(house.mdt.clone()));
    tasks.spawn(mend(&house));
    wait(30).await;
    let client = house.client().await;
    assert_eq!(places(&client, file).await, [(0, false), (2, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_copy_is_looked_at_marked_and_made_again() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    let extent = chunk(&house, &client, 1, &[0, 2], &[]);
    client.commit(file, vec![extent.clone()]).await;
    // Who complains without reason changes nothing.
    report(&client, id(&extent), 0).await;
    wait(1).await;
    assert!(house.mender.fetches.lock().unwrap().is_empty());
    house.mender.bad.lock().unwrap().insert((OstIndex(0), id(&extent)));
    let version = client.stat(file).await.version;
    report(&client, id(&extent), 0).await;
    wait(1).await;
    assert!(house.mender.bad.lock().unwrap().is_empty(), "it was made again");
    assert_eq!(places(&client, file).await, [(0, false), (2, false)]);
    assert_eq!(client.stat(file).await.version, version, "readers keep what they know");
    // Lost as a whole: the same.
    house.mender.held.lock().unwrap().remove(&(OstIndex(2), id(&extent)));
    report(&client, id(&extent), 2).await;
    wait(1).await;
    assert!(house.mender.held.lock().unwrap().contains(&(OstIndex(2), id(&extent))));
    assert_eq!(house.count(b'm').await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_last_good_copy_is_never_marked() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let extent = chunk(&house, &client, 1, &[0, 2], &[]);
    client.commit(file, vec![extent.clone()]).await;
    let both = [0, 2].map(|ost| (OstIndex(ost), id(&extent)));
    house.mender.bad.lock().unwrap().extend(both);
    for ost in [0, 2] {
        report(&client, id(&extent), ost).await;
    }
    wait(60).await;
    let good = places(&client, file).await.into_iter().filter(|(_, is_stale)| !is_stale);
    assert_eq!(good.count(), 1);
    // It is hopeless: whoever reads it and complains does not have it looked at again and again.
    let looks = house.mender.looks();
    for ost in [0, 2] {
        report(&client, id(&extent), ost).await;
    }
    wait(60).await;
    assert_eq!(house.mender.looks(), looks);
}

#[tokio::test(start_paused = true)]
async fn copies_that_are_damaged_in_different_blocks_are_both_made_again() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    let extent = chunk(&house, &client, 1, &[0, 2], &[]);
    client.commit(file, vec![extent.clone()]).await;
    let both = [0, 2].map(|ost| (OstIndex(ost), id(&extent)));
    // In one order of events and the other: both are reported, or the first is known to be bad and
    // could not be made again then.
    for is_known in [false, true] {
        house.mender.bad.lock().unwrap().extend(both);
        if is_known {
            house.mender.scattered.lock().unwrap().clear();
            report(&client, id(&extent), 0).await;
            wait(2).await;
            assert_eq!(places(&client, file).await, [(0, true), (2, false)]);
            // The rest that it has now is over.
            house.mirrors.mended(id(&extent));
        }
        house.mender.scattered.lock().unwrap().insert(id(&extent));
        report(&client, id(&extent), 2).await;
        if !is_known {
            report(&client, id(&extent), 0).await;
        }
        wait(10).await;
        assert!(house.mender.bad.lock().unwrap().is_empty(), "is known: {is_known}");
        assert_eq!(places(&client, file).await, [(0, false), (2, false)]);
        assert_eq!(house.count(b'm').await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_chunk_without_any_copy_is_refused() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let extent = chunk(&house, &client, 1, &[0, 2], &[0, 2]);
    let kind = client.kind_of(commit(file, vec![extent])).await;
    assert_eq!(kind, Some(ErrorKind::InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_given_more_mirrors() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.call(meta::Place { id: file, exclude: vec![], wish: None }).await.unwrap();
    let extents: Vec<Extent> =
        (1..=600).map(|serial| chunk(&house, &client, serial, &[0], &[])).collect();
    client.commit(file, extents).await;
    let user = client.by(&user(5, 5, &[]));
    let extend = ExtendMirrors { id: file, count: 1, pool: None };
    assert_eq!(user.kind_of(extend.clone()).await, Some(ErrorKind::NotPermitted));
    client.call(extend).await.unwrap();
    let layout = client.call(GetLayout { id: file }).await.unwrap();
    assert_eq!((layout.layout.mirrors, layout.stripe.len()), (2, 2));
    wait(60).await;
    assert_eq!(house.count(b'm').await, 0);
    let fetches = house.mender.fetches.lock().unwrap().clone();
    assert_eq!(fetches.len(), 600);
    // Elsewhere than the first, and spread over what is there.
    assert!(fetches.iter().all(|fetch| fetch.ost.0 >= 2), "another site has them");
    assert!((250..350).contains(&fetches.iter().filter(|fetch| fetch.ost.0 == 2).count()));
    let there = places(&client, file).await;
    assert!(there.len() == 2 && there.iter().all(|(_, is_stale)| !is_stale), "{there:?}");
    let wanted = ExtendMirrors { id: file, count: 9, pool: None };
    assert_eq!(client.kind_of(wanted).await, Some(ErrorKind::InvalidArgument), "four OSTs");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_what_is_missing_and_why() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    house.mender.down.lock().unwrap().insert(OstIndex(2));
    let extents =
        vec![chunk(&house, &client, 1, &[0, 2], &[2]), chunk(&house, &client, 2, &[0, 2], &[])];
    client.commit(file, extents).await;
    let page = ResyncFile { id: file, offset: 0, limit: 100 };
    let reply = client.call(page.clone()).await.unwrap();
    assert_eq!((reply.chunks, reply.lacking.len(), reply.lacking[0].copies), (2, 1, 1));
    wait(1).await;
    let reply = client.call(page.clone()).await.unwrap();
    let trouble = reply.lacking[0].trouble.clone().unwrap();
    assert!(trouble.reason.contains("OST0002 at fnal"), "{trouble:?}");
    house.mender.down.lock().unwrap().clear();
    wait(6).await;
    let reply = client.call(page).await.unwrap();
    wait(1).await;
    assert!(reply.covered >= 2 << 20);
    assert_eq!(places(&client, file).await, [(0, false), (2, false)]);
}

#[tokio::test(start_paused = true)]
async fn notes_of_files_that_are_gone_go_too() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    house.mender.down.lock().unwrap().insert(OstIndex(2));
    client.commit(file, vec![chunk(&house, &client, 1, &[0, 2], &[2])]).await;
    client.call(ExtendMirrors { id: file, count: 1, pool: None }).await.unwrap();
    client.call(unlink(ROOT, "f")).await.unwrap();
    house.mender.down.lock().unwrap().clear();
    wait(60).await;
    assert_eq!(house.count(b'm').await, 0);
}

#[tokio::test(start_paused = true)]
async fn layouts_say_how_many_copies_a_commit_waits_for() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let set = async |change: LayoutChange| {
        client.call(SetLayout { id: dir, layout: Some(change) }).await?;
        Ok::<Layout, tieline_wire::Failure>(client.call(GetLayout { id: dir }).await?.layout)
    };
    let pool = |name: &str| Some(PoolChoice::Pool(name.parse().unwrap()));
    assert_eq!(set(mirrored(2)).await.unwrap().sync, 1, "across sites");
    let within = LayoutChange { pool: pool("uf"), ..mirrored(2) };
    assert_eq!(set(within.clone()).await.unwrap().sync, 2, "within one");
    let told = LayoutChange { sync: Some(1), ..within.clone() };
    assert_eq!(set(told).await.unwrap().sync, 1);
    let small = LayoutChange { mirrors: Some(3), ..within };
    assert_eq!(set(small).await.unwrap_err().kind, ErrorKind::InvalidArgument);
    let pools = Some(vec![Some("uf".parse().unwrap()), None]);
    let each = LayoutChange { mirror_pools: pools.clone(), ..LayoutChange::default() };
    let layout = set(each).await.unwrap();
    assert_eq!((layout.mirrors, layout.sync, layout.mirror_pools.clone()), (2, 1, pools));
    assert_eq!(layout.stripe_count, StripeCount::Exactly(1));
    let file = client.create(dir, "f").await;
    let stripe =
        client.call(meta::Place { id: file, exclude: vec![], wish: None }).await.unwrap().stripe;
    assert!(stripe[0].0 < 2 && stripe[1].0 >= 2, "{stripe:?}");
}

/// All of one mirror's copies in one page.
fn split(file: FileId, mirrors: u8, mirror: u8) -> SplitMirror {
    SplitMirror { id: file, mirrors, mirror, within: None, offset: 0, limit: 1024, is_look: false }
}

/// A file on OSTs 0 and 2, as its stripe says, with `stale` of its first chunk's copies missing.
async fn twofold(house: &House, client: &Client, stale: &[u16]) -> FileId {
    client.call(SetLayout { id: ROOT, layout: Some(mirrored(2)) }).await.unwrap();
    let file = client.create(ROOT, "f").await;
    let stripe =
        client.call(meta::Place { id: file, exclude: vec![], wish: None }).await.unwrap().stripe;
    let osts = [stripe[0].0, stripe[1].0];
    let stale: Vec<u16> = stale.iter().map(|&mirror| osts[usize::from(mirror)]).collect();
    let extents = vec![chunk(house, client, 1, &osts, &stale), chunk(house, client, 2, &osts, &[])];
    client.commit(file, extents).await;
    file
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_split_and_its_copies_go_later() {
    let house = House::new().await;
    let client = house.client().await;
    let file = twofold(&house, &client, &[]).await;
    let stripe = client.call(GetLayout { id: file }).await.unwrap().stripe;
    let other = client.by(&user(5, 5, &[]));
    assert_eq!(other.kind_of(split(file, 2, 1)).await, Some(ErrorKind::NotPermitted));
    assert_eq!(client.kind_of(split(file, 3, 1)).await, Some(ErrorKind::InvalidArgument));
    let look = SplitMirror { is_look: true, ..split(file, 2, 1) };
    let seen = client.call(look).await.unwrap();
    assert!(seen.is_done && seen.gone.len() == 2 && seen.gone[0].ost == stripe[1]);
    assert_eq!(seen.gone[0].chunk.places.len(), 1);
    assert_eq!(client.call(GetLayout { id: file }).await.unwrap().layout.mirrors, 2);
    let done = client.call(split(file, 2, 1)).await.unwrap();
    assert_eq!((done.gone.len(), done.shared), (2, 0));
    let layout = client.call(GetLayout { id: file }).await.unwrap();
    assert_eq!((layout.layout.mirrors, layout.layout.sync), (1, 1));
    assert_eq!(layout.stripe, stripe[..1]);
    assert_eq!(places(&client, file).await, [(stripe[0].0, false)]);
    assert_eq!(client.kind_of(split(file, 1, 0)).await, Some(ErrorKind::InvalidArgument));
    // Readers who know of them have their time; then the objects go, and the chunks stay.
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert!(house.remover.removed.lock().unwrap().is_empty());
    wait(61).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    let removed = house.remover.removed.lock().unwrap().clone();
    assert!(removed.len() == 2 && removed.iter().all(|(ost, _)| *ost == stripe[1]), "{removed:?}");
    assert_eq!((house.count(b'f').await, house.count(b'k').await), (0, 2));
    client.call(unlink(ROOT, "f")).await.unwrap();
    wait(61).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!((house.count(b'f').await, house.count(b'k').await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_last_whole_copy_is_not_split() {
    let house = House::new().await;
    let client = house.client().await;
    let file = twofold(&house, &client, &[1]).await;
    assert_eq!(client.kind_of(split(file, 2, 0)).await, Some(ErrorKind::InvalidArgument));
    assert_eq!(places(&client, file).await.len(), 2);
    client.call(split(file, 2, 1)).await.unwrap();
    assert_eq!(places(&client, file).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_wanted_again_stays() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    wait(1).await;
    let file = twofold(&house, &client, &[]).await;
    let stripe = client.call(GetLayout { id: file }).await.unwrap().stripe;
    client.call(split(file, 2, 1)).await.unwrap();
    for _ in 0..3 {
        client.call(ExtendMirrors { id: file, count: 1, pool: None }).await.unwrap();
    }
    wait(30).await;
    let there = places(&client, file).await;
    assert!(there.contains(&(stripe[1].0, false)), "{there:?}");
    wait(61).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert!(house.remover.removed.lock().unwrap().is_empty());
    assert_eq!(house.count(b'f').await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_split_goes_in_pages_and_leaves_alone_what_others_share() {
    let house = House::new().await;
    let client = house.client().await;
    let file = twofold(&house, &client, &[]).await;
    let copy = client.create(ROOT, "copy").await;
    let range = tieline_wire::ranges::CopyRange {
        from: file,
        from_offset: 0,
        to: copy,
        to_offset: 0,
        length: 1 << 20,
        mtime: tieline_types::SetTime::Now,
        clears_setid: false,
    };
    client.call(range).await.unwrap();
    let first = client.call(SplitMirror { limit: 1, ..split(file, 2, 1) }).await.unwrap();
    assert_eq!(
        (first.covered, first.is_done, first.gone.len(), first.shared),
        (1 << 20, false, 0, 1)
    );
    let rest = SplitMirror { limit: 1, offset: first.covered, ..split(file, 2, 1) };
    let rest = client.call(rest).await.unwrap();
    assert_eq!((rest.is_done, rest.gone.len(), rest.shared), (true, 1, 0));
    assert_eq!(places(&client, copy).await.len(), 2);
}
