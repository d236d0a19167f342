//! Repositories: trees that are published as files, mounted alone and below the root of a
//! federation, through both caches; and what happens when what lies there is not what was
//! published.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_lab::federation::Federation;
use tieline_lab::nodes::{Clients, PATIENCE, bytes, chunks, number, report};
use tieline_lab::{program, with_federation};

const NAME: &str = "sw.example.org";

/// What was frozen, and where.
struct Published {
    source: PathBuf,
    files: PathBuf,
    /// Digest of the list.
    list: String,
}

impl Published {
    /// Files of none, one and several chunks, links, and names that are no letters.
    fn new(lab: &Federation, how: &[&str]) -> Result<Self> {
        let (source, files) = (lab.local("tree"), lab.local("published"));
        fs::create_dir_all(source.join("lib/deep"))?;
        for (name, length) in [("empty", 0), ("lib/small", 5000), ("lib/deep/large", 9 << 20)] {
            fs::write(source.join(name), bytes(7, length))?;
        }
        fs::write(source.join("run 7 ü"), "x".repeat(1 << 20))?;
        symlink("lib/small", source.join("link"))?;
        let [source_text, files_text] = [&source, &files].map(|path| path.to_str());
        let paths = [source_text.context("path")?, files_text.context("path")?];
        let words = [&["repo", "freeze", "--json", NAME], how, &paths].concat();
        let told: serde_json::Value = serde_json::from_str(&lab.tieline(&words)?)?;
        let list = told["list"].as_str().context("a list")?.to_owned();
        Ok(Self { source, files, list })
    }

    fn from(&self) -> String {
        format!("file://{}", self.files.display())
    }

    /// The mount has what was published, and nothing else.
    fn expect(&self, mount: &Path) -> Result<()> {
        let (source, mount) = (self.source.display(), mount.display());
        program::shell(&self.source, &format!("diff -r --no-dereference '{source}' '{mount}'"))?;
        let list = "find . -printf '%p %y %m %s %l\\n' | sort";
        let [there, here] =
            [&source, &mount].map(|at| format!("cd '{at}' && {list} | grep -v ' d '"));
        let (there, here) =
            (program::shell(&self.source, &there)?, program::shell(&self.source, &here)?);
        ensure!(there == here, "{there}\n{here}");
        Ok(())
    }

    /// The file of a chunk there, the largest first.
    fn chunks(&self) -> Result<Vec<PathBuf>> {
        let found = program::shell(&self.files, "find data -type f -printf '%s %p\\n' | sort -rn")?;
        let path = |line: &str| Some(self.files.join(line.split_once(' ')?.1));
        Ok(found.lines().filter_map(path).collect())
    }
}

/// A repository that is mounted alone, as long as this lives.
struct Alone<'a> {
    lab: &'a Federation,
    path: PathBuf,
}

impl<'a> Alone<'a> {
    fn mount(lab: &'a Federation, options: &str) -> Result<Self> {
        let path = lab.local("alone");
        fs::create_dir_all(&path)?;
        let (source, shown) = (format!("repository:{NAME}"), path.to_str().context("path")?);
        lab.tieline(&["mount", &source, shown, "-o", options])?;
        Ok(Self { lab, path })
    }

    /// It is not: says why.
    fn refused(lab: &Federation, options: &[&str]) -> Result<String> {
        let (source, path) = (format!("repository:{NAME}"), lab.local("alone"));
        let words = [&["mount", &source, path.to_str().context("path")?], options].concat();
        let refused = lab.try_tieline(&words)?;
        ensure!(!refused.status.success(), "{refused:?}");
        Ok(refused.stderr)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let _ = self.lab.umount(&self.path);
    }
}

fn refuses_changes(mount: &Path) -> Result<()> {
    for change in [
        "touch new",
        "echo x >> lib/small",
        "rm empty",
        "mkdir d",
        "mv empty other",
        "chmod 600 empty",
        "ln -s x y",
        "setfattr -n user.x -v 1 empty",
    ] {
        let script =
            format!("(LC_ALL=C sh -c '{change}' 2>&1 || true) | grep -q 'Read-only file system'");
        program::shell(mount, &script).context(change)?;
    }
    Ok(())
}

/// Promise 105: A repository refuses every change with EROFS, and no write to it is ever taken.
#[test]
fn a_repository_is_mounted_alone_and_read_through_both_caches() -> Result<()> {
    with_federation(|lab| {
        for how in [&[][..], &["--plain"]] {
            let published = Published::new(lab, how)?;
            let [node, site] = ["node", "site"].map(|name| lab.local(name));
            fs::create_dir_all(&node)?;
            fs::create_dir_all(&site)?;
            let (from, list) = (published.from(), &published.list);
            let caches = format!("cache={},sitecache={}", node.display(), site.display());
            let options = format!("from={from},list={list},{caches}");
            {
                let mounted = Alone::mount(lab, &options)?;
                published.expect(&mounted.path)?;
                refuses_changes(&mounted.path)?;
                let all = published.chunks()?.len();
                let is_there = || chunks(&site).len() == all;
                program::until("the site's cache has all", PATIENCE, is_there)?;
                let is_whole = || {
                    let told = report(&mounted.path).unwrap_or_default();
                    number(&told, &["node", "bytes"]).is_ok_and(|bytes| bytes >= 10 << 20)
                };
                program::until("the node's cache has all", PATIENCE, is_whole)?;
            }
            // Each of the caches alone has it all.
            let hidden = published.files.with_extension("away");
            let data = published.files.join("data");
            fs::rename(&data, &hidden)?;
            for cache in [&node, &site] {
                published.expect(&Alone::mount(lab, &options)?.path)?;
                fs::remove_dir_all(cache)?;
                fs::create_dir(cache)?;
            }
            fs::remove_dir_all(&hidden)?;
            fs::remove_dir_all(&published.source)?;
        }
        Ok(())
    })
}

#[test]
fn a_repository_sits_below_the_root_and_costs_its_servers_nothing() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &[])?;
        let (clients, fs_path) = (Clients::new(lab), lab.mount().to_str().context("path")?);
        let add = ["repo", "add", "--fs", fs_path, "--list", &published.list, "--at", "sw", NAME];
        lab.tieline(&[&add[..], &[&published.from()]].concat())?;
        let refused = lab.try_tieline(&[&add[..], &[&published.from()]].concat())?;
        ensure!(refused.stderr.contains("is in the federation map already"), "{refused:?}");
        for mount in [lab.mount().to_owned(), clients.mount("")?] {
            let there = mount.join("sw");
            program::until("the junction shows", PATIENCE, || there.exists())?;
            published.expect(&there)?;
            refuses_changes(&there)?;
            program::shell(&there, "test $(stat -c %i ..) = 1 && ls .. | grep -qx sw")?;
            program::shell(
                &mount,
                "cp -r sw copy && diff -r --no-dereference sw copy && rm -r copy",
            )?;
        }
        let told = report(lab.mount())?;
        ensure!(number(&told, &["oss_round_trips"])? < 40, "chunks came from servers: {told}");
        let shown = lab.tieline(&["map", "show", fs_path])?;
        ensure!(shown.contains(NAME) && shown.contains("(at sw)"), "{shown}");
        lab.tieline(&["repo", "remove", "--fs", fs_path, NAME])?;
        let is_gone = || !lab.mount().join("sw").exists();
        program::until("the junction is gone", PATIENCE, is_gone)
    })
}

/// Python's server of a directory, as long as this lives.
struct Web {
    child: std::process::Child,
    port: u16,
}

impl Web {
    fn serve(files: &Path) -> Result<Self> {
        let port = program::free_port()?;
        let python = tieline_lab::python().unwrap_or_else(|| "python3".into());
        let mut command = Command::new(python);
        let words = ["-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "-d"];
        command.args(words).arg(files).stdout(Stdio::null()).stderr(Stdio::null());
        let child = program::start(&mut command)?;
        let web = Self { child, port };
        let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        program::until("the web server answers", PATIENCE, answers)?;
        Ok(web)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        program::kill_group(&self.child);
        let _ = self.child.wait();
    }
}

/// What others serve is mounted, alone and at a junction, and goes on from caches and from another
/// source when a server is away.
#[test]
fn a_repository_behind_http_is_read_while_one_of_its_servers_is_there() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &[])?;
        let webs = [Web::serve(&published.files)?, Web::serve(&published.files)?];
        let [one, other] = webs.each_ref().map(|web| format!("http://127.0.0.1:{}", web.port));
        let fs_path = lab.mount().to_str().context("path")?;
        let add = ["repo", "add", "--fs", fs_path, "--list", &published.list, "--at", "sw", NAME];
        lab.tieline(&[&add[..], &[&one, &other]].concat())?;
        let there = lab.mount().join("sw");
        program::until("the junction shows", PATIENCE, || there.exists())?;
        published.expect(&there)?;
        let options = format!("from={one},from={other},list={}", published.list);
        let [first, second] = webs;
        drop(first);
        let alone = Alone::mount(lab, &options)?;
        published.expect(&alone.path)?;
        drop(alone);
        // Nobody is there: that is an error in its time, and no mount that hangs.
        drop(second);
        let why = Alone::refused(lab, &["-o", &format!("{options},interactive")])?;
        ensure!(why.contains("list.json"), "{why}");
        Ok(())
    })
}

/// Promise 104: A repository shows what was published and nothing else, through any cache: bytes
/// that do not have their digest are an error, wherever they come from.
#[test]
fn what_is_not_what_was_published_is_an_error_that_says_so() -> Result<()> {
    with_federation(|lab| {
        let published = Published::new(lab, &[])?;
        let log = lab.local("repository.log");
        let options =
            format!("from={},list={},log={}", published.from(), published.list, log.display());
        let mounted = Alone::mount(lab, &options)?;
        let mount = mounted.path.clone();
        let largest = published.chunks()?.into_iter().next().context("a chunk")?;
        let good = fs::read(&largest)?;
        let mut bad = good.clone();
        bad[100] ^= 1;
        for wrong in [bad, good[..good.len() - 1].to_vec(), Vec::new()] {
            fs::write(&largest, &wrong)?;
            let read =
                "(LC_ALL=C cat lib/deep/large 2>&1 >/dev/null || true) | grep -q 'Input/output'";
            program::shell(&mount, read)?;
            program::shell(&mount, "cat lib/small > /dev/null")?;
        }
        fs::remove_file(&largest)?;
        let read = "(timeout 60 cat lib/deep/large 2>&1 >/dev/null || true) | grep -q ':'";
        program::shell(&mount, read)?;
        fs::write(&largest, &good)?;
        program::shell(&mount, "sleep 1; cat lib/deep/large > /dev/null")?;
        drop(mounted);
        ensure!(fs::read_to_string(&log)?.contains("digest of its metadata"));
        // Another list than the one that is believed, none at all, and none that is believed.
        fs::write(published.files.join("list.json"), "{}")?;
        let why = Alone::refused(lab, &["-o", &options])?;
        ensure!(why.contains("digest"), "{why}");
        fs::remove_file(published.files.join("list.json"))?;
        let why = Alone::refused(lab, &["-o", &options])?;
        ensure!(why.contains("list.json"), "{why}");
        let why = Alone::refused(lab, &[])?;
        ensure!(why.contains("-o url="), "{why}");
        Ok(())
    })
}
