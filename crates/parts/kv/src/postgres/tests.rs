//! The engine on a real server: Debian's `postgresql`, started here. Without it these tests fail;
//! `make test` installs it.

use super::scratch::{ScratchServer, fast_folder};
use super::*;
use crate::Key;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;
use tempfile::TempDir;
use tieline_types::ByteSize;

/// A server and its folder.
struct Bed {
    server: ScratchServer,
    _folder: TempDir,
}

impl Bed {
    fn new() -> Self {
        let folder =
            tempfile::Builder::new().prefix("tieline-kv-").tempdir_in(fast_folder()).unwrap();
        let server = ScratchServer::start(folder.path())
            .expect("PostgreSQL starts; `make test` installs it where it is missing");
        Self { server, _folder: folder }
    }

    fn settings(&self, schema: &str, owner: &str) -> PostgresSettings {
        let server = self.server.words().parse().unwrap();
        let holder = format!("mds-{owner}");
        PostgresSettings::new(server, schema.to_owned(), owner.to_owned(), holder)
    }

    async fn open(&self, schema: &str, owner: &str) -> Result<PostgresStore, Error> {
        PostgresStore::open(self.settings(schema, owner), opening()).await
    }

    /// What an administrator types.
    async fn execute(&self, text: &str) {
        let (client, connection) =
            tokio_postgres::connect(&self.server.words(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(text).await.unwrap();
    }
}

fn opening() -> Opening {
    Opening { cache: ByteSize(16 << 20), ..Opening::default() }
}

async fn put(store: &dyn Store, key: &str, value: &str) -> Result<Version, Error> {
    let mut transaction = store.begin().await?;
    transaction.put(key.into(), value.into());
    let committed = transaction.commit().await?;
    committed.durable.await?;
    Ok(committed.version)
}

async fn get(store: &dyn Store, key: &str) -> Result<Option<String>, Error> {
    let key: Key = key.into();
    let found = store.begin().await?.read(&[key]).await?.remove(0);
    Ok(found.map(|value| String::from_utf8(value).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let bed = Bed::new();
    let count = AtomicU32::new(0);
    crate::conformance::run(|| async {
        let schema = format!("store_{}", count.fetch_add(1, Ordering::Relaxed));
        Arc::new(bed.open(&schema, "a").await.unwrap()) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test]
async fn one_owner_at_a_time() {
    let bed = Bed::new();
    let first = bed.open("one", "a").await.unwrap();
    let version = put(&first, "k", "1").await.unwrap();
    // Another server, while the first is at work.
    let refused = bed.open("one", "b").await.err().unwrap();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("mds-a"), "{refused}");
    // Another store of the same database is another matter.
    put(&bed.open("other", "b").await.unwrap(), "k", "other").await.unwrap();
    // The same server, started again while the database still holds its lease.
    let again = bed.open("one", "a").await.unwrap();
    assert_eq!(get(&again, "k").await.unwrap().as_deref(), Some("1"));
    assert!(put(&again, "k", "2").await.unwrap() > version, "versions go on");
    // What the first still sends changes nothing, and it learns that it is over.
    let stale = put(&first, "k", "stale").await.unwrap_err();
    assert!(matches!(stale, Error::Failed { .. }), "{stale}");
    assert!(matches!(first.begin().await.err(), Some(Error::Failed { .. })));
    drop(first);
    assert_eq!(get(&again, "k").await.unwrap().as_deref(), Some("2"));
    // Closed in good order, it is free at once.
    drop(again);
    let next = bed.open("one", "b").await.unwrap();
    assert_eq!(get(&next, "k").await.unwrap().as_deref(), Some("2"));
    put(&next, "k", "3").await.unwrap();

    // A store of a newer build is left as it is.
    drop(next);
    bed.execute("UPDATE one.store SET format = 2, epoch = 77").await;
    let newer = bed.open("one", "b").await.err().unwrap();
    assert!(matches!(newer, Error::Refused { .. }), "{newer}");
    bed.execute("UPDATE one.store SET format = 1").await;
    let check: crate::Check = Box::new(|value| {
        assert_eq!(value.as_deref(), Some(&b"3"[..]));
        Err("not this one".into())
    });
    let judged = Opening { check: Some((b"k".to_vec(), check)), ..opening() };
    let judged = PostgresStore::open(bed.settings("one", "b"), judged).await.err().unwrap();
    assert!(matches!(judged, Error::Refused { .. }), "{judged}");
    bed.execute("DO $$ BEGIN ASSERT (SELECT epoch = 77 FROM one.store); END $$").await;
    PostgresStore::remove(&bed.settings("one", "a").server, "one").await.unwrap();
    let new = bed.open("one", "c").await.unwrap();
    assert_eq!(get(&new, "k").await.unwrap(), None, "removed and made again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_not_heard_from_is_replaced_and_answers_no_more() {
    let bed = Bed::new();
    let short = |owner| PostgresSettings {
        lease: Duration::from_millis(900),
        patience: Duration::from_secs(20),
        ..bed.settings("one", owner)
    };
    let first = PostgresStore::open(short("a"), opening()).await.unwrap();
    put(&first, "k", "1").await.unwrap();
    assert_eq!(get(&first, "k").await.unwrap().as_deref(), Some("1"));
    // It stands still: nothing of it renews the lease.
    let (go_on, standing) = std::sync::mpsc::channel::<()>();
    first._runtime.handle().spawn(async move {
        let _ = standing.recv();
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    let second = loop {
        match PostgresStore::open(short("b"), opening()).await {
            Ok(store) => break store,
            Err(Error::InUse { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    put(&second, "k", "2").await.unwrap();
    drop(go_on);
    // Neither from its memory nor from the database does it answer now.
    let error = get(&first, "k").await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "mds-b took it over");
    assert_eq!(get(&second, "k").await.unwrap().as_deref(), Some("2"));
}

/// Writers count up, each in a pair of its own and one they share, while the server goes and comes
/// back: what was acknowledged is there, and nothing was done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_database_costs_only_time() {
    let mut bed = Bed::new();
    let store = Arc::new(bed.open("one", "a").await.unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..4).map(|writer| tokio::spawn(count_up(store.clone(), writer, stop.clone()))).collect();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        match round % 2 {
            0 => bed.server.kill().unwrap(),
            _ => bed.server.stop().unwrap(),
        }
        bed.server.start_again().unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let mut sum = 0;
    for (writer, counting) in writers.into_iter().enumerate() {
        let counted = counting.await.unwrap().expect("the store outlives its database");
        assert!(counted > 0);
        let own = get(&*store, &format!("own-{writer}")).await.unwrap();
        assert_eq!(own, Some(counted.to_string()));
        sum += counted;
    }
    assert_eq!(get(&*store, "shared").await.unwrap(), Some(sum.to_string()));
    drop(store);
    // What is in the database is the same as what was in memory.
    let store = bed.open("one", "a").await.unwrap();
    assert_eq!(get(&store, "shared").await.unwrap(), Some(sum.to_string()));
}

async fn count_up(
    store: Arc<PostgresStore>,
    writer: usize,
    stop: Arc<AtomicBool>,
) -> Result<u32, Error> {
    let own: Key = format!("own-{writer}").into();
    let mut counted = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut transaction = store.begin().await?;
        let shared = match transaction.read(&[b"shared".to_vec()]).await {
            Ok(mut values) => values.remove(0),
            Err(Error::Conflict) => continue,
            Err(error) => return Err(error),
        };
        let shared = shared.map_or(0, |value| String::from_utf8(value).unwrap().parse().unwrap());
        let next: u32 = shared + 1;
        transaction.put(b"shared".to_vec(), next.to_string().into());
        transaction.put(own.clone(), (counted + 1).to_string().into());
        match transaction.commit().await {
            Ok(committed) => {
                committed.durable.await?;
                counted += 1;
            }
            Err(Error::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(counted)
}

#[test]
fn words_that_name_no_database_are_refused_and_passwords_are_not_shown() {
    for words in ["", "dbname=x", "host=h nonsense", "host=h port=many", "http://h/d"] {
        let error = words.parse::<PostgresServer>().unwrap_err().to_string();
        assert!(error.contains("host=/run/postgresql"), "{words}: {error}");
    }
    let server: PostgresServer = "postgres://u:s3cret@db.example.org:5433/meta".parse().unwrap();
    assert!(server.has_password());
    assert_eq!(server.to_string(), "db.example.org:5433/meta");
    assert!(!format!("{server:?}").contains("s3cret"));
    let server: PostgresServer = "host=/run/postgresql user=tieline".parse().unwrap();
    assert_eq!(server.to_string(), "/run/postgresql/tieline");
}
