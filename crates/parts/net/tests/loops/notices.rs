//! What a server says unasked.

use crate::house::*;
use std::time::Duration;
use tieline_net::Channel;
use tieline_types::{FileId, Version};
use tieline_wire::Notice;
use tieline_wire::notice::Recall;
use tokio::task::JoinSet;

fn recall(unit: u64) -> Notice {
    let files = vec![FileId(unit)];
    Notice::Recall(Recall { files, ..Recall::of(FileId(unit), Version(1)) })
}

#[tokio::test(start_paused = true)]
async fn every_notice_gets_its_own_answer() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    let mut recalls = JoinSet::new();
    for unit in 1..3000 {
        let notifier = house.desk.notifier();
        recalls.spawn(async move { (unit, notifier.notify(recall(unit), PATIENCE).await) });
    }
    while let Some(result) = recalls.join_next().await {
        let (unit, answer) = result.unwrap();
        let answer = answer.unwrap();
        assert!(answer.is_contended);
        assert_eq!(answer.open, [FileId(unit)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_blocks_neither_calls_nor_other_notices() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    let notifier = house.desk.notifier();
    let begun = tokio::time::Instant::now();
    let (hung, answered, asked) = tokio::join!(
        notifier.notify(recall(0), Duration::from_secs(3)),
        notifier.notify(recall(5), Duration::from_secs(3)),
        ask(&*house.session, 4),
    );
    assert!(hung.is_none());
    assert_eq!(begun.elapsed().as_secs(), 3);
    assert!(answered.is_some());
    assert!(asked.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_to_the_connection_of_its_notice_only() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    // Handled after two seconds, when this connection is gone.
    let notifier = house.desk.notifier();
    let lost = tokio::spawn(async move { notifier.notify(recall(10_002), PATIENCE).await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    house.transport.reset(ADDRESS);
    assert!(lost.await.unwrap().is_none());
    ask(&*house.session, 2).await.unwrap();
    // The same number on the new connection; its own answer takes five seconds.
    let answer = house.desk.notifier().notify(recall(10_005), PATIENCE).await.unwrap();
    assert_eq!(answer.open, [FileId(10_005)]);
}

#[tokio::test(start_paused = true)]
async fn a_notice_to_a_connection_that_ends_has_no_answer() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    let notifier = house.desk.notifier();
    let waiting = {
        let notifier = notifier.clone();
        tokio::spawn(async move { notifier.notify(recall(0), PATIENCE).await })
    };
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = tokio::time::Instant::now();
    house.session.close(Duration::from_secs(1)).await;
    assert!(waiting.await.unwrap().is_none());
    assert!(notifier.notify(recall(3), PATIENCE).await.is_none());
    assert!(begun.elapsed() < Duration::from_secs(1));
}
