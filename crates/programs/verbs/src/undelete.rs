//! `tieline undelete`: what was deleted and can be brought back, and bringing it back.
//!
//! A path may lead through directories that are deleted themselves: they are brought back on the
//! way, the newest of a name unless one is named by its id or time.

use crate::list;
use crate::progress::Ticker;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::time::Duration;
use tieline_base::location::Location;
use tieline_base::show;
use tieline_client::At;
use tieline_types::{ByteSize, ErrorKind, FileId, FileKind, Name, Shown, Span, Time};
use tieline_wire::ledger::DeletedFile;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// List what was deleted from directories, and for how long it is kept
    #[arg(short, long)]
    list: bool,
    /// Also everything that was deleted below directories
    #[arg(short, long)]
    recursive: bool,
    /// Another name, in the same directory
    #[arg(long, value_name = "NEWNAME")]
    to: Option<OsString>,
    /// One JSON list: of what was deleted, or of what was brought back
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path; `PATH@ID` or `PATH@TIME`, as --list
    /// tells them, for one of several of a name
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStringExt;
    crate::log_start();
    if args.to.is_some() && (args.list || args.paths.len() > 1) {
        return Err(tieline_base::report::usage("--to goes with one path to bring back"));
    }
    let (first, all) = crate::locations(&args.paths)?;
    let to = args.to.map(|to| Name::new(to.into_vec())).transpose()?;
    shell::run(&first, |shell| async move {
        let mut listed = Vec::new();
        let news = Ticker::new("undeleting", "files");
        let mut back = Back { rows: vec![], waiting: vec![], news };
        for location in &all {
            if args.list {
                list_one(&shell, location, &args.recursive, &mut listed).await?;
            } else {
                bring_back(&shell, location, to.as_ref(), args.recursive, &mut back).await?;
            }
        }
        back.link_waiting(&shell).await?;
        match (args.list, args.json) {
            (true, is_json) => print(&listed, is_json)?,
            (false, true) => writeln!(std::io::stdout(), "{}", Value::Array(back.rows))?,
            (false, false) => {}
        }
        Ok(())
    })
}

/// What was brought back, and what stayed since its name is taken.
struct Back {
    rows: Vec<Value>,
    /// Names, with the directories they were in, of files that are not there yet.
    waiting: Vec<(Vec<u8>, FileId, DeletedFile)>,
    news: Ticker,
}

impl Back {
    fn add(&mut self, path: &[u8], file: &DeletedFile, is_back: bool) {
        self.news.add(1);
        let (id, kind) = (file.id.to_string(), show::kind(file.kind));
        let row = json!({ "id": id, "kind": kind, "is_back": is_back });
        self.rows.push(show::with_bytes(row, "path", path));
    }

    /// Gives files that came back meanwhile their other names again.
    async fn link_waiting(&mut self, shell: &Shell) -> anyhow::Result<()> {
        for (path, directory, file) in std::mem::take(&mut self.waiting) {
            let to = At { parent: directory, name: &file.name };
            match undelete(shell, &file, directory, to).await {
                Ok(_) => self.add(&path, &file, true),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.add(&path, &file, false);
                    let (shown, id) = (Shown(&path), file.id);
                    eprintln!(
                        "tieline: {shown} was one of several names of {id}, which lost its last \
                         one elsewhere: bring it back there (`tieline undelete --list -r` finds \
                         it), then this again"
                    );
                }
                Err(error) => return Err(error).context(Shown(&path).to_string()),
            }
        }
        Ok(())
    }
}

/// A deleted file as it is listed.
struct Row {
    path: Vec<u8>,
    file: DeletedFile,
    remaining: Duration,
}

/// Where a path leads: as far as there is something, then through what was deleted.
struct Spot {
    live: FileId,
    /// Deleted files on the way, each from the one before it.
    deleted: Vec<DeletedFile>,
}

impl Spot {
    fn id(&self) -> FileId {
        self.deleted.last().map_or(self.live, |file| file.id)
    }
}

async fn list_one(
    shell: &Shell,
    location: &Location,
    recursive: &bool,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let spot = find(shell, location).await?;
    let mut todo = vec![(location.stem(), spot.id(), spot.deleted.is_empty())];
    while let Some((path, directory, is_live)) = todo.pop() {
        if *recursive && is_live {
            let attributes = shell.files.attributes(&shell.caller, directory).await?.attributes;
            let entries = match attributes.is_directory() {
                true => list::listed(shell, attributes.id).await?,
                false => vec![],
            };
            let directories = entries.into_iter().filter(|entry| entry.kind == FileKind::Directory);
            todo.extend(directories.map(|entry| (show::below(&path, &entry.name), entry.id, true)));
        }
        let (files, now, keep) = deleted(shell, directory).await?;
        for file in files {
            let path = show::below(&path, &file.name);
            if *recursive && file.kind == FileKind::Directory {
                todo.push((path.clone(), file.id, false));
            }
            let until = file.deleted.seconds as f64 + keep.as_secs_f64();
            let remaining = Duration::from_secs_f64((until - now.seconds as f64).max(0.0));
            rows.push(Row { path, file, remaining });
        }
    }
    Ok(())
}

fn print(rows: &[Row], is_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if is_json {
        let all: Vec<Value> = rows.iter().map(row_json).collect();
        writeln!(out, "{}", Value::Array(all))?;
        return Ok(());
    }
    for Row { path, file, remaining } in rows {
        let left = Span(Duration::from_secs(remaining.as_secs()));
        let (size, when) = (ByteSize(file.size), file.deleted);
        let what = match file.is_lost {
            Some(true) => "one of its names, removed",
            _ => "deleted",
        };
        out.write_all(&show::printed(path))?;
        writeln!(
            out,
            "@{}  {}:{}  {size}  {what} {when} by uid {}, kept for {left} more",
            file.id, file.uid, file.gid, file.by
        )?;
    }
    Ok(())
}

fn row_json(row: &Row) -> Value {
    let file = &row.file;
    let value = json!({
        "id": file.id.to_string(), "kind": show::kind(file.kind), "size": file.size,
        "uid": file.uid.0, "gid": file.gid.0,
        "deleted": file.deleted.seconds, "deleted_by": file.by.0,
        "remaining_seconds": row.remaining.as_secs(), "is_name": file.is_lost == Some(true),
    });
    let value = show::with_bytes(value, "path", &row.path);
    show::with_bytes(value, "name", file.name.as_bytes())
}

/// Brings back a file, or a name that it lost while it had others.
async fn undelete(
    shell: &Shell,
    file: &DeletedFile,
    from: FileId,
    to: At<'_>,
) -> tieline_client::Result<tieline_client::Known> {
    match file.is_lost {
        Some(true) => {
            let lost = (from, &file.name);
            shell.volume.undelete_name(&shell.caller, file.id, lost, to).await
        }
        _ => shell.files.undelete(&shell.caller, file.id, from, to).await,
    }
}

/// All that was deleted from a directory, the server's time, and how long it is kept.
async fn deleted(
    shell: &Shell,
    directory: FileId,
) -> anyhow::Result<(Vec<DeletedFile>, Time, Duration)> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = shell.files.deleted(&shell.caller, directory, after).await?;
        all.extend(page.files);
        after = page.next;
        if after.is_none() {
            all.extend(lost_names(shell, directory).await?);
            all.sort_by_key(|file| file.deleted);
            return Ok((all, page.now, Duration::from_millis(page.keep_ms)));
        }
    }
}

async fn lost_names(shell: &Shell, directory: FileId) -> anyhow::Result<Vec<DeletedFile>> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = shell.volume.lost_names(&shell.caller, directory, after).await?;
        let count = page.files.len();
        all.extend(page.files.into_iter().filter(|file| file.is_lost == Some(true)));
        after = page.next.zip(page.next_name);
        // A server of an earlier build tells of files once more.
        if after.is_none() || all.is_empty() && count > 0 {
            return Ok(all);
        }
    }
}

async fn find(shell: &Shell, location: &Location) -> anyhow::Result<Spot> {
    let parts = location.path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let parts: Vec<&[u8]> = parts.collect();
    let mut known = parts.len();
    let live = loop {
        let path = parts.get(..known).unwrap_or_default().join(&b'/');
        match shell.resolve(&path, known < parts.len()).await {
            Ok(entry) => break entry,
            Err(error) if known > 0 && shell::is_not_found(&error) => known -= 1,
            Err(error) => return Err(error),
        }
    };
    let mut spot = Spot { live: live.attributes.id, deleted: vec![] };
    for part in parts.get(known..).unwrap_or_default() {
        let (files, ..) = deleted(shell, spot.id()).await?;
        let found = choose(files, part);
        spot.deleted.push(found.with_context(|| {
            format!(
                "nothing deleted as `{}` is kept there for you: \
                 `tieline undelete --list` shows what is",
                Shown(part)
            )
        })?);
    }
    Ok(spot)
}

/// The newest that was deleted of a name that something has again.
async fn find_before(shell: &Shell, location: &Location) -> anyhow::Result<Spot> {
    let path = &location.path;
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = path.get(..end).unwrap_or_default();
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at(start);
    let live = shell.resolve(parent, true).await?.attributes.id;
    let (files, ..) = deleted(shell, live).await?;
    Ok(Spot { live, deleted: choose(files, name).into_iter().collect() })
}

/// The newest of a name; or the one that `NAME@ID` or `NAME@TIME` means.
fn choose(files: Vec<DeletedFile>, typed: &[u8]) -> Option<DeletedFile> {
    let plain = files.iter().rfind(|file| file.name.as_bytes() == typed);
    if let Some(file) = plain {
        return Some(file.clone());
    }
    let at = typed.iter().rposition(|&byte| byte == b'@')?;
    let (name, which) = (typed.get(..at)?, std::str::from_utf8(typed.get(at + 1..)?).ok()?);
    let is_meant = |file: &DeletedFile| {
        file.name.as_bytes() == name
            && (file.id.to_string() == which
                || file.deleted.seconds.to_string() == which
                || file.deleted.to_string().starts_with(which))
    };
    files.into_iter().rfind(is_meant)
}

async fn bring_back(
    shell: &Shell,
    location: &Location,
    to: Option<&Name>,
    recursive: bool,
    back: &mut Back,
) -> anyhow::Result<()> {
    let mut spot = find(shell, location).await?;
    let text = location.text.trim_end_matches('/');
    if spot.deleted.is_empty() && to.is_some() {
        spot = find_before(shell, location).await?;
    }
    if spot.deleted.is_empty() && recursive && to.is_none() {
        return bring_back_below(shell, location, spot.live, back).await;
    }
    if spot.deleted.is_empty() {
        bail!(
            "{text} is there: nothing to bring back (-r brings back what is below it, --to NEWNAME \
             a deleted file that had its name before)"
        );
    }
    let mut at = spot.live;
    let count = spot.deleted.len();
    let mut last = location.stem();
    let typed: Vec<Vec<u8>> = last.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect();
    for (place, file) in spot.deleted.into_iter().enumerate() {
        let name = to.filter(|_| place + 1 == count).unwrap_or(&file.name);
        let to = At { parent: at, name };
        undelete(shell, &file, at, to)
            .await
            .with_context(|| format!("cannot bring back `{}` of {text} as `{name}`", file.name))?;
        // Of a path that leads through deleted directories, each down to it came back.
        let above = typed.len().saturating_sub(count - place);
        let mut path = typed.get(..above).unwrap_or_default().to_vec();
        path.push(name.as_bytes().to_vec());
        last = path.join(&b'/');
        back.add(&last, &file, true);
        at = file.id;
    }
    if recursive { below(shell, at, last, back).await } else { Ok(()) }
}

/// Brings back what was deleted below something that is there. That may not be what was meant: one
/// that had its name before is named.
async fn bring_back_below(
    shell: &Shell,
    location: &Location,
    directory: FileId,
    back: &mut Back,
) -> anyhow::Result<()> {
    let text = location.text.trim_end_matches('/');
    let before = back.rows.len();
    below(shell, directory, location.stem(), back).await?;
    let found = back.rows.len() > before;
    // Who may not look into the directory above hears nothing of it.
    let earlier = find_before(shell, location).await.ok().and_then(|mut spot| spot.deleted.pop());
    match earlier {
        Some(file) => {
            let (when, id) = (file.deleted, file.id);
            let told = format!(
                "what was deleted as {text} ({when}) stays deleted, for something has the name: \
                 `tieline undelete -r {text}@{id} --to NEWNAME` brings it back beside that"
            );
            match found {
                true => eprintln!("tieline: {told}"),
                false => bail!("{told}"),
            }
        }
        None if !found => bail!("nothing that was deleted below {text} is kept for you"),
        None => {}
    }
    Ok(())
}

/// Brings back all that was deleted below a directory: of each name the newest, where nothing has
/// the name by now.
fn below<'a>(
    shell: &'a Shell,
    directory: FileId,
    path: Vec<u8>,
    back: &'a mut Back,
) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>> {
    Box::pin(async move {
        let attributes = shell.files.attributes(&shell.caller, directory).await?.attributes;
        if !attributes.is_directory() {
            return Ok(());
        }
        let (files, ..) = deleted(shell, directory).await?;
        let newest: BTreeMap<Vec<u8>, DeletedFile> =
            files.into_iter().map(|file| (file.name.as_bytes().to_vec(), file)).collect();
        for file in newest.into_values() {
            let to = At { parent: directory, name: &file.name };
            let path = show::below(&path, &file.name);
            let shown = Shown(&path);
            match undelete(shell, &file, directory, to).await {
                Ok(_) => back.add(&path, &file, true),
                Err(error) if file.is_lost.is_some() && error.kind() == ErrorKind::NotFound => {
                    back.waiting.push((path, directory, file));
                }
                Err(error) if error.kind() == ErrorKind::Exists => {
                    back.add(&path, &file, false);
                    let id = file.id;
                    eprintln!(
                        "tieline: {shown} is there; the deleted one stays {id} (`tieline \
                         undelete -r {shown}@{id} --to NEWNAME`)"
                    );
                }
                Err(error) => return Err(error).context(shown.to_string()),
            }
        }
        let attributes = shell.files.attributes(&shell.caller, directory).await?.attributes;
        for entry in list::listed(shell, attributes.id).await? {
            if entry.kind == FileKind::Directory {
                below(shell, entry.id, show::below(&path, &entry.name), back).await?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Gid, Mode, Uid};

    fn file(id: u64, name: &str, seconds: i64) -> DeletedFile {
        DeletedFile {
            id: FileId(id),
            name: name.parse().unwrap(),
            kind: FileKind::Regular,
            mode: Mode::new(0o644),
            uid: Uid(1),
            gid: Gid(1),
            size: 0,
            mtime: Time::default(),
            deleted: Time { seconds, nanos: 0 },
            by: Uid(1),
            is_lost: None,
        }
    }

    #[test]
    fn one_of_several_is_chosen() {
        let files = || vec![file(0x10, "f", 100), file(0x11, "f", 200), file(0x12, "f@0x10", 300)];
        assert_eq!(choose(files(), b"f").unwrap().id, FileId(0x11));
        assert_eq!(choose(files(), b"f@100").unwrap().id, FileId(0x10));
        assert_eq!(choose(files(), b"f@0x11").unwrap().id, FileId(0x11));
        assert_eq!(choose(files(), b"f@0x10").unwrap().id, FileId(0x12), "a name comes first");
        assert!(choose(files(), b"f@300").is_none());
        assert!(choose(files(), b"g").is_none());
    }
}
