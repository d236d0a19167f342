//! Repositories in CVMFS's format: published, judged by a reader that is not ours, mounted alone
//! and below the root of a federation, over HTTP and through caches; what happens when they change,
//! when bytes of them are not what was signed, and when their publisher is killed.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::nodes::{Clients, PATIENCE, chunks, number, report};
use tieline_lab::published::{Alone, NAME, Published, same, text};
use tieline_lab::{Federation, program, with_federation};

/// All that a time has.
const NANOS: &str = "%T@";
/// What catalogs of before their revision 7 have of it.
const SECONDS: &str = "%Ts";

/// Promise 110: A repository in CVMFS's format shows what was published: names, bytes, modes,
/// owners, times, links of both kinds, and extended attributes.
#[test]
fn what_is_published_is_what_others_read_and_what_is_mounted() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &[])?;
        let empty = published.check(None)?;
        ensure!(number(&empty, &["revision"])? == 1 && number(&empty, &["entries"])? == 1);
        published.fill()?;
        let told = published.publish()?;
        ensure!(number(&told, &["revision"])? == 2 && number(&told, &["catalogs"])? == 3);
        let seen = published.check(Some(&published.tree))?;
        ensure!(number(&seen, &["chunked"])? == 2, "two files have more than 8 MiB: {seen}");
        ensure!(seen["root"] == told["root"] && number(&seen, &["nested"])? == 2, "{seen}");
        published.check_with_peer()?;
        // What is the same is not published again.
        let again = published.publish()?;
        ensure!(again["unchanged"] == true && number(&again, &["revision"])? == 2, "{again}");
        let [node, site] = ["node", "site"].map(|name| lab.local(name));
        for cache in [&node, &site] {
            fs::create_dir_all(cache)?;
        }
        let caches = format!("cache={},sitecache={}", node.display(), site.display());
        let options = format!("{},{caches}", published.options());
        {
            let mounted = Alone::mount(lab, &options)?;
            same(&published.tree, &mounted.path, NANOS)?;
            refuses_changes(&mounted.path)?;
            let links = "test $(stat -c %i links/one) = $(stat -c %i links/other)";
            program::shell(&mounted.path, links)?;
            let objects = || chunks(&site).len() as u64;
            let stored = number(&seen, &["objects"])?;
            // The empty file has an object that nobody reads.
            let is_there = || objects() + 1 >= stored;
            program::until("the site's cache has all", PATIENCE, is_there)?;
        }
        // Names come from the repository, bytes from either cache.
        hide_files(&published.storage)?;
        for cache in [&node, &site] {
            same(&published.tree, &Alone::mount(lab, &options)?.path, NANOS)?;
            fs::remove_dir_all(cache)?;
            fs::create_dir(cache)?;
        }
        Ok(())
    })
}

/// Takes away what is no catalog and no certificate.
fn hide_files(storage: &Path) -> Result<()> {
    program::shell(storage, "find data -type f ! -name '*[CXH]' -delete").map(drop)
}

fn refuses_changes(mount: &Path) -> Result<()> {
    for change in [
        "touch new",
        "echo x >> run",
        "rm empty",
        "mkdir d",
        "mv empty other",
        "chmod 644 empty",
        "ln -s x y",
        "setfattr -n user.x -v 1 run",
    ] {
        let script =
            format!("(LC_ALL=C sh -c '{change}' 2>&1 || true) | grep -q 'Read-only file system'");
        program::shell(mount, &script).context(change)?;
    }
    Ok(())
}

/// Promise 115: Repositories of other makers are read: with the digests SHA-1, RIPEMD-160 and
/// SHAKE-128, of each revision of schema 2.5, packed or plain.
#[test]
fn repositories_of_other_makers_are_read() -> Result<()> {
    with_federation(|lab| {
        for (maker, more, time) in [
            (("sha1", "7"), &[][..], NANOS),
            (("rmd160", "5"), &[], SECONDS),
            (("shake128", "7"), &["plain"], NANOS),
        ] {
            let published = Published::foreign(lab, maker, more)?;
            published.check(None)?;
            let mounted = Alone::mount(lab, &published.options())?;
            same(&published.tree, &mounted.path, time).context(format!("{maker:?}"))?;
            refuses_changes(&mounted.path)?;
        }
        // Older ones know neither pipes nor attributes.
        let published = Published::foreign(lab, ("sha1", "0"), &[])?;
        let mounted = Alone::mount(lab, &published.options())?;
        program::shell(&published.tree, "rm links/fifo")?;
        let (there, here) = (published.tree.display(), mounted.path.display());
        program::shell(lab.mount(), &format!("diff -r --no-dereference '{there}' '{here}'"))?;
        Ok(())
    })
}

/// Promise 111: Every signature and every digest of a repository is verified, from the master key
/// down to each byte: one that was changed anywhere is an error, and the log says which and what to
/// do.
#[test]
fn a_flipped_bit_anywhere_is_an_error_that_says_so() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &["--ttl", "1 s"])?;
        published.fill()?;
        published.publish()?;
        let options = published.options();
        let data = published.storage.join("data");
        let root = object(&published, "C")?;
        // What is signed, and what that names: no mount.
        for (path, at, why) in [
            (published.storage.join(".cvmfspublished"), 3, "manifest"),
            (published.storage.join(".cvmfspublished"), -9, "not signed with the key"),
            (published.storage.join(".cvmfswhitelist"), 3, "whitelist"),
            (published.storage.join(".cvmfswhitelist"), -9, "not signed with a master key"),
            (object(&published, "X")?, 99, "certificate"),
            (root, 99, "does not have its digest"),
        ] {
            let _flipped = Flipped::new(&path, at)?;
            let told = Alone::refused(lab, &options)?;
            ensure!(told.contains(why) && told.contains(NAME), "{}: {told}", path.display());
        }
        // What comes later: that part alone, and only as long as it is so.
        let mounted = Alone::mount(lab, &options)?;
        let fails = |path: &str| {
            let read =
                format!("(LC_ALL=C cat '{path}' 2>&1 >/dev/null || true) | grep Input/output");
            program::shell(&mounted.path, &read)
        };
        let files = program::shell(&data, "find . -type f ! -name '*[CXH]' -size +8000k")?;
        let pieces: Vec<_> = files.lines().map(|path| data.join(path)).collect();
        ensure!(pieces.len() == 2, "{files}");
        {
            let _flipped = [Flipped::new(&pieces[0], 77)?, Flipped::new(&pieces[1], 77)?];
            fails("large/whole")?;
            fails("large/pieces")?;
            program::shell(&mounted.path, "cat large/zeroes lib/deep/file > /dev/null")?;
        }
        let nested = nested_catalogs(&published)?;
        {
            let _flipped: Vec<_> =
                nested.iter().map(|path| Flipped::new(path, 99)).collect::<Result<_>>()?;
            fails("nested/n")?;
            program::shell(&mounted.path, "cat run > /dev/null")?;
        }
        let logged = mounted.logged()?;
        for said in ["digest of its metadata", "does not have its digest", "have it published anew"]
        {
            ensure!(logged.contains(said), "{said} is not in {logged}");
        }
        drop(mounted);
        // Another key of the same name is nobody.
        let other = lab.local("other");
        fs::create_dir(&other)?;
        let make = "openssl genrsa 2048 2>/dev/null | openssl rsa -pubout > sw.pub 2>/dev/null";
        program::shell(&other, make)?;
        let url = format!("url=file://{}", published.storage.display());
        let told = Alone::refused(lab, &format!("{url},pubkey={}/sw.pub", other.display()))?;
        ensure!(told.contains("not signed with a master key that is believed here"), "{told}");
        same(&published.tree, &Alone::mount(lab, &options)?.path, NANOS)
    })
}

/// A file with one bit changed, as long as this lives.
struct Flipped {
    path: PathBuf,
    good: Vec<u8>,
}

impl Flipped {
    /// `at`: from the end, if it is below 0.
    fn new(path: &Path, at: i64) -> Result<Self> {
        let good = fs::read(path)?;
        let mut bad = good.clone();
        let at = if at < 0 { good.len() as i64 + at } else { at };
        bad[usize::try_from(at)?] ^= 4;
        fs::write(path, bad)?;
        Ok(Self { path: path.to_owned(), good })
    }
}

impl Drop for Flipped {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.good);
    }
}

/// The object that the manifest names on a line.
fn object(published: &Published<'_>, key: &str) -> Result<PathBuf> {
    let manifest = fs::read(published.storage.join(".cvmfspublished"))?;
    let manifest = String::from_utf8_lossy(&manifest).into_owned();
    let digest = manifest.lines().find_map(|line| line.strip_prefix(key)).context("a digest")?;
    let (folder, rest) = digest.split_at(2);
    Ok(published.storage.join("data").join(folder).join(format!("{rest}{key}")))
}

/// All catalogs but the root's.
fn nested_catalogs(published: &Published<'_>) -> Result<Vec<PathBuf>> {
    let root = object(published, "C")?;
    let found = program::shell(&published.storage, "find \"$PWD/data\" -name '*C'")?;
    Ok(found.lines().map(PathBuf::from).filter(|path| *path != root).collect())
}

/// Promise 112: Within the time that a revision says it holds, every mount that is used sees the
/// next one.
/// Promise 113: No mount goes back to an earlier revision than it has shown.
#[test]
fn the_next_revision_is_seen_in_its_time_and_the_last_one_never_again() -> Result<()> {
    with_federation(|lab| {
        const TTL: Duration = Duration::from_secs(4);
        let published = Published::new(lab, &["--ttl", "4 s"])?;
        published.fill()?;
        published.publish()?;
        let mounted = Alone::mount(lab, &published.options())?;
        same(&published.tree, &mounted.path, NANOS)?;
        let manifest = published.storage.join(".cvmfspublished");
        let before = fs::read(&manifest)?;
        let id = || program::shell(&mounted.path, "stat -c %i run nested/n");
        let ids = id()?;
        let change = "echo more >> 'two words'; rm lib/deep/file; mkdir new; echo y > new/file; \
                      echo 7 > nested/inner/numbers; rm links/there; mkdir links/there";
        program::shell(&published.tree, change)?;
        let told = published.publish()?;
        ensure!(number(&told, &["revision"])? == 3, "{told}");
        let begun = Instant::now();
        let there = || fs::read(mounted.path.join("new/file")).is_ok();
        program::until("the next revision is seen", TTL, there)?;
        eprintln!("seen after {:?}", begun.elapsed());
        same(&published.tree, &mounted.path, NANOS)?;
        ensure!(id()? == ids, "what stays has the number it had");
        // An old manifest is validly signed: a mount that saw a later one does not believe it.
        fs::write(&manifest, &before)?;
        std::thread::sleep(TTL);
        same(&published.tree, &mounted.path, NANOS)?;
        let logged =
            || mounted.logged().is_ok_and(|log| log.contains("revision 3 was there before"));
        program::until("the log says so", PATIENCE, logged)
    })
}

/// Promise 114: Whatever ends a publication before its end, the former revision is whole, and the
/// next publication goes on as if that one had not begun.
#[test]
fn a_publisher_that_is_killed_leaves_the_former_revision_whole() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &[])?;
        published.fill()?;
        published.publish()?;
        let before = lab.local("before");
        let (tree, copy) = (text(&published.tree)?, text(&before)?);
        program::shell(lab.mount(), &format!("cp -a '{tree}' '{copy}'"))?;
        let tieline = program::tieline()?;
        for milliseconds in [5, 20, 60, 120, 240, 400] {
            let change = "head -c 9000000 /dev/urandom > large/whole; seq $RANDOM > nested/n";
            program::shell(&published.tree, change)?;
            let mut command = Command::new(tieline);
            command.args(["repo", "publish", "--storage", text(&published.storage)?, NAME, tree]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            std::thread::sleep(Duration::from_millis(milliseconds));
            let pid = Pid::from_raw(i32::try_from(child.id())?).context("a pid is not 0")?;
            kill_process(pid, Signal::KILL)?;
            let ended = child.wait()?;
            if ended.success() {
                // It was quicker: what it published is the former one from now on.
                program::shell(lab.mount(), &format!("rm -r '{copy}'; cp -a '{tree}' '{copy}'"))?;
            }
            // Killed between its last step and its end, it has published, too.
            let is_former = published.check(Some(&before));
            is_former.or_else(|_| published.check(Some(&published.tree)))?;
        }
        published.publish()?;
        published.check(Some(&published.tree))?;
        let drafts = program::shell(&published.storage, "ls -A .tieline/drafts | wc -l")?;
        ensure!(drafts.trim() == "0", "{drafts} drafts are left");
        same(&published.tree, &Alone::mount(lab, &published.options())?.path, NANOS)
    })
}

#[test]
fn a_directory_of_the_live_file_system_is_published_served_and_mounted_by_all() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &["--ttl", "2 s"])?;
        published.fill()?;
        let (mount, tree) = (lab.mount(), text(&published.tree)?);
        program::shell(mount, &format!("cp -a '{tree}' live && sync -f ."))?;
        let status = lab.status()?;
        let source = status["source"].as_str().context("a source")?;
        let (host, fs_name) = source.split_once(":/").context("a source")?;
        let told = published.publish_from(&format!("tieline://{host}/{fs_name}/live"), &[])?;
        ensure!(number(&told, &["catalogs"])? == 3, "{told}");
        published.check(Some(&published.tree))?;
        // The same by the way of a mount.
        let again = published.publish_from(text(&mount.join("live"))?, &[])?;
        ensure!(again["unchanged"] == true, "{again}");
        let url = serve(lab, published.storage.parent().context("a folder")?)?;
        served_as_is_fit(&url)?;
        let alone = format!("url={url}/@fqrn@,{}", published.key_option());
        same(&published.tree, &Alone::mount(lab, &alone)?.path, NANOS)?;
        let fs_path = text(mount)?;
        let key = published.public_key();
        let add = ["repo", "add", "--fs", fs_path, "--pubkey", text(&key)?, "--at", "sw", NAME];
        lab.tieline(&[&add[..], &[&format!("{url}/{NAME}")]].concat())?;
        let clients = Clients::new(lab);
        for mounted in [mount.to_owned(), clients.mount("")?] {
            let there = mounted.join("sw");
            program::until("the junction shows", PATIENCE, || there.join("run").exists())?;
            same(&published.tree, &there, NANOS)?;
            refuses_changes(&there)?;
            program::shell(&there, "test $(stat -c %i ..) = 1 && ls .. | grep -qx sw")?;
        }
        ensure!(number(&report(mount)?, &["oss_round_trips"])? < 200, "chunks came from servers");
        program::shell(mount, "echo changed > live/run && sync -f .")?;
        published.publish_from(text(&mount.join("live"))?, &[])?;
        let is_seen = || fs::read(mount.join("sw/run")).is_ok_and(|bytes| bytes == b"changed\n");
        program::until("the junction has the next revision", Duration::from_secs(2), is_seen)?;
        let shown = lab.tieline(&["map", "show", fs_path])?;
        ensure!(shown.contains(NAME) && shown.contains("(at sw)"), "{shown}");
        lab.tieline(&["repo", "remove", "--fs", fs_path, NAME])?;
        program::until("the junction is gone", PATIENCE, || !mount.join("sw").exists())
    })
}

/// Has a server of the federation serve repositories; where.
fn serve(lab: &Federation, repositories: &Path) -> Result<String> {
    let port = program::free_port()?;
    let settings = lab.dir().join("sites/fnal/oss.toml");
    let mut text = fs::read_to_string(&settings)?;
    text += &format!(
        "\n[http]\nlisten = \"127.0.0.1:{port}\"\nrepositories = \"{}\"\n",
        repositories.display()
    );
    fs::write(&settings, text)?;
    lab.kill_and_restart("oss-fnal")?;
    Ok(format!("http://127.0.0.1:{port}/cvmfs"))
}

/// Objects are for ever, what is signed is not, and nothing else is there.
fn served_as_is_fit(url: &str) -> Result<()> {
    let get = |path: &str, more: &str| {
        let curl = format!("curl -sS -D - -o /dev/null {more} '{url}/{NAME}/{path}' | tr -d '\\r'");
        program::shell(Path::new("/"), &curl)
    };
    let published = get(".cvmfspublished", "")?;
    ensure!(published.contains("no-cache") && published.contains(" 200 "), "{published}");
    let tag = published.lines().find_map(|line| line.strip_prefix("etag: ")).context("a tag")?;
    let again = get(".cvmfspublished", &format!("-H 'If-None-Match: {tag}'"))?;
    ensure!(again.contains(" 304 "), "{again}");
    let manifest = program::shell(
        Path::new("/"),
        &format!("curl -sS '{url}/{NAME}/.cvmfspublished' | head -1 | tr -d C"),
    )?;
    let (folder, rest) = manifest.trim().split_at(2);
    let object = get(&format!("data/{folder}/{rest}C"), "-r 0-9")?;
    ensure!(object.contains("immutable") && object.contains(" 206 "), "{object}");
    for hidden in [".tieline/repository.toml", "", "data", "../secret", ".cvmfsnothing"] {
        let answer = get(hidden, "--path-as-is")?;
        ensure!(answer.contains(" 404 ") || answer.contains(" 400 "), "{hidden}: {answer}");
    }
    let put = get(".cvmfspublished", "-X PUT")?;
    ensure!(put.contains(" 405 "), "{put}");
    Ok(())
}
