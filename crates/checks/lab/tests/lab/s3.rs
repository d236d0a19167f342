//! OSTs whose objects are in a bucket: on stores that others wrote.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::time::Duration;
use tieline_blob::conformance::{self, bytes, chunk, trailer};
use tieline_blob::{ChunkStore, Error, Identity};
use tieline_lab::buckets::{self, Buckets, Kind};
use tieline_lab::{Federation, program, with_federation};
use tieline_s3::{Credentials, S3Chunks, Settings};
use tieline_types::OstIndex;
use tieline_world::World;

const PATIENCE: Duration = Duration::from_secs(60);

fn settings(buckets: &Buckets, prefix: &str) -> Result<Settings> {
    Ok(Settings {
        bucket: "objects".to_owned(),
        prefix: prefix.to_owned(),
        endpoint: Some(buckets.endpoint()),
        region: "us-east-1".to_owned(),
        credentials: Credentials::File(buckets.credentials()?),
        authorities: None,
        given: None,
    })
}

fn identity(ost: u16) -> Identity {
    Identity { fs: "extenci".parse().expect("a name"), ost: OstIndex(ost) }
}

async fn made(settings: &Settings, ost: u16) -> Result<S3Chunks, Error> {
    let world = World::real();
    let uuid = S3Chunks::format(settings, &identity(ost), &world).await?;
    S3Chunks::open(settings, &identity(ost), &uuid, &world).await
}

fn run(test: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(test)
}

fn with_buckets(kind: Kind, test: impl AsyncFnOnce(&mut Buckets) -> Result<()>) -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    let folder = tempfile::Builder::new().prefix("tieline-lab-s3-").tempdir()?;
    let mut buckets = Buckets::start(kind, &python, folder.path().join("store"))?;
    buckets.make("objects")?;
    run(test(&mut buckets))
}

async fn check_conformance(buckets: &Buckets) -> Result<()> {
    for prefix in ["", "one/ost0001"] {
        let store = made(&settings(buckets, prefix)?, 1).await?;
        conformance::check(&store).await;
    }
    // What is limited counts itself, and has room again after a deletion.
    let limited = Settings { given: Some(1 << 20), ..settings(buckets, "limited")? };
    let store = made(&limited, 2).await?;
    let data = bytes(600_000, 1);
    store.put(&trailer(chunk(1), &data), data.clone()).await?;
    let full = store.put(&trailer(chunk(2), &data), data.clone()).await;
    ensure!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    store.put(&trailer(chunk(1), &data), data.clone()).await.context("what is there")?;
    let free = store.space().await?.bytes_free;
    ensure!((440_000..450_000).contains(&free), "{free}");
    ensure!(store.delete(chunk(1)).await?);
    store.put(&trailer(chunk(2), &data), data).await?;
    // Another process counts what it finds.
    let world = World::real();
    let refused = S3Chunks::format(&limited, &identity(2), &world).await;
    let text = refused.err().context("it has an owner")?.to_string();
    let uuid = text.split("uuid ").nth(1).and_then(|rest| rest.split(')').next());
    let again = S3Chunks::open(&limited, &identity(2), uuid.context("a uuid")?, &world).await?;
    again.put(&trailer(chunk(3), &bytes(10, 1)), bytes(10, 1)).await?;
    let left = again.space().await?.bytes_free;
    ensure!(left < free && left > free - 1000, "{left} of {free}");
    Ok(())
}

#[test]
fn the_suite_of_chunk_stores_passes_on_moto() -> Result<()> {
    with_buckets(Kind::Moto, async |buckets| check_conformance(buckets).await)
}

#[test]
fn the_suite_of_chunk_stores_passes_on_seaweedfs() -> Result<()> {
    with_buckets(Kind::Seaweed, async |buckets| {
        check_conformance(buckets).await?;
        Ok(())
    })
}

/// Promise 153: A prefix of a bucket belongs to one OST: a server that is told to use it for
/// another, or a second server for the same, does not start, and names the owner.
#[test]
fn a_prefix_has_one_owner() -> Result<()> {
    with_buckets(Kind::Moto, async |buckets| {
        let world = World::real();
        let settings = settings(buckets, "one")?;
        made(&settings, 1).await?;
        let said = |result: Result<String, Error>| {
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let other = said(S3Chunks::format(&settings, &identity(2), &world).await);
        ensure!(other.contains("belongs to OST0001 of file system extenci"), "{other}");
        let second = said(S3Chunks::format(&settings, &identity(1), &world).await);
        ensure!(second.contains("another server made it"), "{second}");
        let wrong = S3Chunks::open(&settings, &identity(1), &"0".repeat(32), &world).await;
        ensure!(matches!(wrong.err(), Some(Error::WrongStore { .. })));
        // A bucket that was emptied is no bucket without objects.
        let store = made(&Settings { prefix: "two".to_owned(), ..settings.clone() }, 2).await?;
        let data = bytes(5000, 1);
        store.put(&trailer(chunk(1), &data), data).await?;
        buckets.ask("s3.delete_object(Bucket='objects', Key='two/tieline-ost')")?;
        for key in buckets.keys("objects", "two/objects/")? {
            buckets.ask(&format!("s3.delete_object(Bucket='objects', Key='{key}')"))?;
        }
        let gone = store.stat(chunk(1)).await.err().context("it is gone")?;
        ensure!(matches!(gone, Error::Missing { .. }), "{gone}");
        Ok(())
    })
}

/// Has the OSTs of `uf` keep their objects in buckets from now on: they are new then.
fn into_buckets(lab: &Federation, buckets: &Buckets) -> Result<()> {
    let mount = lab.mount().to_str().context("a plain path")?;
    lab.tieline(&["setstripe", "-c", "1", "-p", "uf", mount])?;
    control(lab, "kill")?;
    let site = lab.dir().join("sites/uf");
    let path = site.join("oss.toml");
    let mut settings: toml::Table = fs::read_to_string(&path)?.parse()?;
    let osts = settings.get_mut("ost").and_then(toml::Value::as_array_mut).context("OSTs")?;
    for ost in osts {
        let ost = ost.as_table_mut().context("an OST")?;
        let index = ost["index"].as_integer().context("an index")?;
        ost.remove("path");
        let credentials = buckets.credentials()?.display().to_string();
        let words = [
            ("store", "s3".to_owned()),
            ("bucket", "objects".to_owned()),
            ("endpoint", buckets.endpoint()),
            ("credentials", credentials),
            ("limit", "10 GiB".to_owned()),
        ];
        ost.extend(words.map(|(key, value)| (key.to_owned(), value.into())));
        fs::remove_file(site.join(format!("oss/ost{index:04x}.made")))?;
    }
    fs::write(&path, settings.to_string())?;
    control(lab, "start")
}

fn control(lab: &Federation, verb: &str) -> Result<()> {
    let dir = lab.dir();
    lab.tieline(&["dev", verb, "oss-uf", "--dir", dir.to_str().context("a path")?]).map(drop)
}

fn with_objects_in_buckets(
    test: impl FnOnce(&Federation, &mut Buckets) -> Result<()>,
) -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    with_federation(|lab| {
        lab.expect_log("connection lost");
        let mut buckets = Buckets::start(Kind::Seaweed, &python, lab.local("store"))?;
        buckets.make("objects")?;
        into_buckets(lab, &buckets)?;
        test(lab, &mut buckets)?;
        // Nobody was shown what is secret.
        let logs = lab.logs()?;
        ensure!(!logs.contains(buckets::SECRET_KEY), "a log has the secret");
        Ok(())
    })
}

/// How many chunks a file is of: more than its size asks for where a slow machine had some of it
/// committed early.
fn chunks_of(lab: &Federation, name: &str) -> Result<usize> {
    let path = lab.mount().join(name);
    let told = lab.tieline(&["getstripe", "--json", path.to_str().context("a path")?])?;
    let told: serde_json::Value = serde_json::from_str(&told)?;
    let extents = told[0]["extents"].as_array().with_context(|| format!("extents: {told}"))?;
    let chunks = extents.iter().map(|extent| &extent["chunk"]["id"]).filter(|id| id.is_string());
    Ok(chunks.map(|id| id.to_string()).collect::<std::collections::BTreeSet<_>>().len())
}

/// Every object is whole, and is as its trailer says.
fn check_objects(lab: &Federation, buckets: &Buckets) -> Result<usize> {
    let mut count = 0;
    for ost in [0, 1] {
        let made = lab.dir().join(format!("sites/uf/oss/ost{ost:04x}.made"));
        let uuid = fs::read_to_string(made)?;
        let settings = settings(buckets, &format!("extenci/ost{ost:04x}"))?;
        run(async {
            let store = S3Chunks::open(&settings, &identity(ost), &uuid, &World::real()).await?;
            let listed = store.list(None, 10_000).await?;
            ensure!(listed.foreign.is_empty(), "{:?}", listed.foreign);
            for chunk in listed.chunks {
                conformance::read(&store, chunk, 0, u32::MAX).await?;
                count += 1;
            }
            Ok(())
        })?;
    }
    Ok(count)
}

fn noise(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

/// Promise 150: An OST in a bucket keeps what an OST in a directory keeps: what was closed is read
/// whole and in ranges by other clients, also after its server was started again; the store's own
/// clients find one object for each chunk.
///
/// Promise 154: The secret of an access key is in no log and no message.
#[test]
fn a_federation_keeps_its_files_in_a_bucket() -> Result<()> {
    with_objects_in_buckets(|lab, buckets| {
        let data = noise(21 << 20, 1);
        let path = lab.mount().join("large");
        fs::write(&path, &data)?;
        fs::write(lab.mount().join("small"), &data[..100_000])?;
        lab.tieline(&["sync", lab.mount().to_str().context("a path")?])?;
        let other = lab.mount_again()?;
        ensure!(fs::read(other.join("large"))? == data, "another client reads other bytes");
        let keys = buckets.keys("objects", "extenci/")?;
        let objects = keys.iter().filter(|key| key.contains("/objects/")).count();
        let chunks = chunks_of(lab, "large")? + chunks_of(lab, "small")?;
        ensure!(chunks >= 7, "6 of 4 MiB at most, and one: {chunks}");
        ensure!(objects == chunks, "{objects} objects for {chunks} chunks: {keys:#?}");
        lab.kill_and_restart("oss-uf")?;
        let third = lab.mount_again()?;
        let mut part = vec![0; 1000];
        let file = fs::File::open(third.join("large"))?;
        for offset in [0, 4_194_000, 12_345_678, (21 << 20) - 1000] {
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut part, offset)?;
            ensure!(part == data[offset as usize..][..1000], "at {offset}");
        }
        ensure!(check_objects(lab, buckets)? == chunks);
        lab.tieline(&["fsck", "--read", lab.mount().to_str().context("a path")?])?;
        fs::remove_file(&path)?;
        ensure!(!other.join("large").exists());
        Ok(())
    })
}

/// Promise 151: A put that ends with its server leaves no object in the bucket, or a whole one; its
/// writer ends it at the server that follows.
#[test]
fn servers_that_are_killed_in_the_middle_of_puts_leave_nothing_half() -> Result<()> {
    with_objects_in_buckets(|lab, buckets| {
        let data = noise(16 << 20, 7);
        let written = std::thread::scope(|threads| {
            let writer = threads.spawn(|| -> Result<()> {
                for number in 0..6 {
                    let path = lab.mount().join(format!("f{number}"));
                    fs::write(&path, &data)?;
                    fs::File::open(&path)?.sync_all()?;
                }
                Ok(())
            });
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(700));
                lab.kill_and_restart("oss-uf")?;
            }
            writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
        });
        written?;
        let other = lab.mount_again()?;
        for number in 0..6 {
            ensure!(fs::read(other.join(format!("f{number}")))? == data, "f{number}");
        }
        ensure!(check_objects(lab, buckets)? >= 24);
        Ok(())
    })
}

/// Promise 152: While the store of a bucket is away, what needs it ends with an error within a
/// minute and the OST's state says why; what does not goes on. When it is back, so is the OST.
#[test]
fn a_store_that_goes_away_is_said_and_comes_back() -> Result<()> {
    with_objects_in_buckets(|lab, buckets| {
        // Whoever meets it says so, and names the store.
        lab.expect_log(&buckets.endpoint());
        let data = noise(5 << 20, 9);
        fs::write(lab.mount().join("before"), &data)?;
        lab.tieline(&["sync", lab.mount().to_str().context("a path")?])?;
        buckets.kill();
        let other = lab.mount_again()?;
        let begun = std::time::Instant::now();
        let read = fs::read(other.join("before"));
        let (waited, error) = (begun.elapsed(), read.err().context("nobody has it")?);
        ensure!(error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        ensure!(waited < PATIENCE, "{waited:?}");
        fs::write(other.join("tiny"), b"kept with its name")?;
        let endpoint = buckets.endpoint();
        let says = |words: &[&str]| {
            let mount = lab.mount().to_string_lossy().into_owned();
            let told = lab.tieline(&["df", "--json", &mount]).unwrap_or_default();
            words.iter().all(|word| told.contains(word))
        };
        let is_said = || says(&[&endpoint, "does not answer"]);
        program::until("the state says so", PATIENCE, is_said)?;
        ensure!(lab.logs()?.contains("store is away"), "the log of the OSS says so");
        buckets.resume()?;
        let is_back = || fs::read(other.join("before")).is_ok_and(|read| read == data);
        program::until("it is back", PATIENCE, is_back)?;
        program::until("the state says so", PATIENCE, || !says(&["s3://objects/"]))?;
        let after = lab.mount_again()?.join("after");
        fs::write(&after, &data)?;
        fs::File::open(&after)?.sync_all()?;
        ensure!(fs::read(other.join("after"))? == data);
        Ok(())
    })
}
