//! Transactions of several tasks at once: whoever conflicts runs again, and nothing is lost.

use super::{begin, commit, get, key, range};
use crate::{Error, Key, Store, Transaction, Value};
use std::sync::Arc;

/// Commits what a step did, durably; `None` if it is to be run again.
async fn finish<T>(transaction: Box<dyn Transaction>, step: Result<T, Error>) -> Option<T> {
    let outcome = match step {
        Ok(outcome) => transaction.commit().await.map(|committed| (outcome, committed)),
        Err(error) => Err(error),
    };
    match outcome {
        Ok((outcome, committed)) => {
            committed.durable.await.expect("durable");
            Some(outcome)
        }
        Err(Error::Conflict) => {
            tokio::task::yield_now().await;
            None
        }
        Err(error) => panic!("transaction: {error}"),
    }
}

fn number(value: Option<&Value>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().expect("8 bytes")))
}

async fn increment(transaction: &mut dyn Transaction) -> Result<(), Error> {
    let value = transaction.read(&[key("count")]).await?.remove(0);
    let count = number(value.as_ref()) + 1;
    transaction.put(key("count"), count.to_be_bytes().to_vec());
    Ok(())
}

pub(super) async fn no_increment_is_lost(store: Arc<dyn Store>) {
    const TASKS: u64 = 8;
    const EACH: u64 = 25;
    let one_task = async |store: Arc<dyn Store>| {
        let mut done = 0;
        while done < EACH {
            let mut transaction = begin(&*store).await;
            let step = increment(&mut *transaction).await;
            done += u64::from(finish(transaction, step).await.is_some());
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(one_task(store.clone()))).collect();
    for task in tasks {
        task.await.expect("task");
    }
    let value = get(&mut *begin(&*store).await, "count").await;
    assert_eq!(number(value.as_ref()), TASKS * EACH);
}

const ACCOUNTS: u64 = 10;

fn account(index: u64) -> Key {
    format!("account {}", index % ACCOUNTS).into_bytes()
}

/// Moves one unit, if there is one.
async fn transfer(transaction: &mut dyn Transaction, from: u64, to: u64) -> Result<(), Error> {
    let (from, to) = (account(from), account(to));
    let values = transaction.read(&[from.clone(), to.clone()]).await?;
    let (rich, poor) = (number(values[0].as_ref()), number(values[1].as_ref()));
    if from != to && rich > 0 {
        transaction.put(from, (rich - 1).to_be_bytes().to_vec());
        transaction.put(to, (poor + 1).to_be_bytes().to_vec());
    }
    Ok(())
}

/// Money moves between accounts while others add it up by scanning.
pub(super) async fn transfers_keep_the_sum(store: Arc<dyn Store>) {
    let mut transaction = begin(&*store).await;
    for index in 0..ACCOUNTS {
        transaction.put(account(index), 100u64.to_be_bytes().to_vec());
    }
    commit(transaction).await;
    let mover = async |store: Arc<dyn Store>, task: u64| {
        let mut round = 0;
        while round < 20 {
            let mut transaction = begin(&*store).await;
            let (from, to) = (task + round, task * 3 + round * 7 + 1);
            let step = transfer(&mut *transaction, from, to).await;
            round += u64::from(finish(transaction, step).await.is_some());
        }
    };
    let auditor = async |store: Arc<dyn Store>| {
        let mut round = 0;
        while round < 20 {
            let mut transaction = begin(&*store).await;
            let step = transaction.scan(range("account", "b"), 100).await;
            if let Some(accounts) = finish(transaction, step).await {
                let sum: u64 = accounts.iter().map(|(_, value)| number(Some(value))).sum();
                assert_eq!((accounts.len() as u64, sum), (ACCOUNTS, ACCOUNTS * 100));
                round += 1;
            }
        }
    };
    let movers = (0..4).map(|task| tokio::spawn(mover(store.clone(), task)));
    let auditors = (0..2).map(|_| tokio::spawn(auditor(store.clone())));
    let tasks: Vec<_> = movers.chain(auditors).collect();
    for task in tasks {
        task.await.expect("task");
    }
}
