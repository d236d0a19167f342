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

    /// A host of two: the other is the server's socket.
    fn settings_behind(&self, port: u16, owner: &str) -> PostgresSettings {
        let words = self.server.words().replace("host=", "host=127.0.0.1,");
        let words = format!("{words} port={port},5432");
        PostgresSettings { server: words.parse().unwrap(), ..self.settings("one", owner) }
    }

    async fn count(&self, text: &str) -> i64 {
        let (client, connection) =
            tokio_postgres::connect(&self.server.words(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query_one(text, &[]).await.unwrap().get(0)
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

/// Takes connections, and from some moment on says nothing any more.
struct Line {
    port: u16,
    is_frozen: tokio::sync::watch::Sender<bool>,
    taken: Arc<AtomicU32>,
}

impl Line {
    async fn to(bed: &Bed, is_frozen: bool) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_frozen, taken) = (tokio::sync::watch::Sender::new(is_frozen), Arc::default());
        let line = Self { port, is_frozen, taken };
        let socket = bed._folder.path().join("socket/.s.PGSQL.5432");
        let (frozen, taken) = (line.is_frozen.clone(), line.taken.clone());
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                taken.fetch_add(1, Ordering::Relaxed);
                let (socket, mut frozen) = (socket.clone(), frozen.subscribe());
                tokio::spawn(async move {
                    let Ok(mut far) = tokio::net::UnixStream::connect(socket).await else { return };
                    let still = async { drop(frozen.wait_for(|is_frozen| *is_frozen).await) };
                    tokio::select! {
                        biased;
                        () = still => {}
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                    }
                    // Both ends stay as they are.
                    std::future::pending::<()>().await
                });
            }
        });
        line
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_host_that_never_answers_costs_seconds_and_only_once() {
    let bed = Bed::new();
    let silent = Line::to(&bed, true).await;
    let began = Instant::now();
    let settings = bed.settings_behind(silent.port, "a");
    let store = PostgresStore::open(settings.clone(), opening()).await.unwrap();
    put(&store, "k", "1").await.unwrap();
    // One host's time, where the second was never asked; more is a busy machine.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(get(&store, "k").await.unwrap().as_deref(), Some("1"));
    assert!(began.elapsed() > Duration::from_secs(3), "the silent host answers");
    let taken = silent.taken.load(Ordering::Relaxed);
    assert!(taken >= 1, "it was never asked, and shows nothing");
    // All that is asked from here on begins with the host that is known to be good: the other is
    // asked again at most where a busy machine was too slow.
    for _ in 0..5 {
        drop(store.snapshot().await.unwrap());
    }
    assert!(silent.taken.load(Ordering::Relaxed) < taken + 5);
    // A host that only reads is none: the database is away, and says why.
    drop(store);
    bed.execute("ALTER ROLE tieline SET default_transaction_read_only = on").await;
    let error = PostgresStore::look(&settings.server).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("does not allow writes"), "{cause}");
    assert!(cause.contains("did not answer within 3 s"), "{cause}");
}

/// Promise 102: While the primary of a metadata database of several hosts dies or stands still,
/// requests wait, and nothing that was answered is lost.
///
/// The primary stands still while writers are at work; whatever it was asked last may be done or
/// not. Here the other host is the same server, so that what was done twice would show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_freezes_costs_a_silence_and_nothing_is_lost_or_done_twice() {
    let bed = Bed::new();
    let line = Line::to(&bed, false).await;
    let store = PostgresStore::open(bed.settings_behind(line.port, "a"), opening()).await.unwrap();
    let (store, stop) = (Arc::new(store), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> =
        (0..4).map(|writer| tokio::spawn(count_up(store.clone(), writer, stop.clone()))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = bed.count("SELECT version FROM one.store").await;
    assert!(line.taken.load(Ordering::Relaxed) > 0);
    let frozen = Instant::now();
    line.is_frozen.send_replace(true);
    // A silence, one host's time, and what a busy machine needs; it was 30 s and never ended.
    while bed.count("SELECT version FROM one.store").await < before + 20 {
        assert!(frozen.elapsed() < Duration::from_secs(25), "it waits for the frozen host");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut sum = 0;
    for (writer, counting) in writers.into_iter().enumerate() {
        let counted = counting.await.unwrap().expect("the store outlives its host");
        let own = get(&*store, &format!("own-{writer}")).await.unwrap();
        assert_eq!(own, Some(counted.to_string()));
        sum += counted;
    }
    assert_eq!(get(&*store, "shared").await.unwrap(), Some(sum.to_string()));
    drop(store);
    let store = bed.open("one", "a").await.unwrap();
    assert_eq!(get(&store, "shared").await.unwrap(), Some(sum.to_string()));
}

/// Promise 103: What a database's synchronous standby has not got is not answered for, also when
/// somebody cancels the database's wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_for_its_standby_was_cancelled_is_not_acknowledged() {
    let bed = Bed::new();
    let store = Arc::new(bed.open("one", "a").await.unwrap());
    put(&*store, "k", "1").await.unwrap();
    let standby = async |name: &str| {
        bed.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'")).await;
        bed.execute("SELECT pg_reload_conf()").await;
    };
    standby("nobody").await;
    let mut putting = None;
    for _ in 0..50 {
        let store = store.clone();
        let task = tokio::spawn(async move { put(&*store, "k", "2").await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        if !task.is_finished() {
            putting = Some(task);
            break;
        }
        // PostgreSQL had not read yet that there is a standby to wait for.
    }
    let putting = putting.expect("commits never wait");
    // Said to be done by the first, cut off by the second, and what asks after it likewise.
    for end in ["cancel", "terminate", "cancel", "cancel"] {
        let deadline = Instant::now() + Duration::from_secs(20);
        let ended = format!(
            "SELECT count(pg_{end}_backend(pid)) FROM pg_stat_activity \
             WHERE wait_event = 'SyncRep' AND application_name LIKE 'tieline%'"
        );
        while bed.count(&ended).await == 0 {
            assert!(Instant::now() < deadline && !putting.is_finished(), "nothing waits");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!putting.is_finished(), "acknowledged, and on one host only");
    }
    // It is there, but nobody may count on that yet.
    assert_eq!(bed.count("SELECT count(*) FROM one.pairs WHERE value = '2'").await, 1);
    standby("").await;
    putting.await.unwrap().unwrap();
    assert_eq!(get(&*store, "k").await.unwrap().as_deref(), Some("2"));
    put(&*store, "k", "3").await.unwrap();
}

#[tokio::test]
async fn a_database_that_lost_what_it_acknowledged_is_not_gone_on_with() {
    let bed = Bed::new();
    let store = bed.open("one", "a").await.unwrap();
    put(&store, "k", "1").await.unwrap();
    bed.execute("UPDATE one.store SET version = version - 1").await;
    let error = put(&store, "k", "2").await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    let error = store.begin().await.err().unwrap();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("has lost commits"), "{cause}");
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
    let wrong = ["", "dbname=x", "host=h nonsense", "host=h port=many", "http://h/d"];
    for words in wrong.into_iter().chain(["host=a,b port=1,2,3", "host=a hostaddr=::1,::1"]) {
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
