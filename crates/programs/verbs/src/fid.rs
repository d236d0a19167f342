//! `tieline path2fid` and `tieline fid2path`: files' ids, as logs and fsck name them, and the paths
//! that lead to them.

use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_base::show;
use tieline_types::{ErrorKind, FileId, Name};

/// No path is deeper.
const DEPTH_MAX: usize = 4096;

#[derive(clap::Args, Debug)]
pub struct PathArgs {
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

#[derive(clap::Args, Debug)]
pub struct FidArgs {
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// The file system: its name, a path below its mount, or tieline://HOST[:PORT]/FS
    fs: OsString,
    /// Ids such as 0x1000000007, or inode numbers as stat(1) has them
    #[arg(required = true)]
    fids: Vec<String>,
}

pub fn path2fid(args: PathArgs) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.paths)?;
    shell::run(&first, |shell| async move {
        let mut found = Vec::new();
        for location in &all {
            let entry = shell.resolve(&location.path, false).await?;
            found.push((&location.typed, entry.attributes.id));
        }
        let mut out = io::stdout().lock();
        if args.json {
            let row = |(path, id): (&Vec<u8>, FileId)| {
                let value = json!({ "fid": id.to_string(), "inode": id.0, "mdt": id.mdt().0 });
                show::with_bytes(value, "path", path)
            };
            let rows: Vec<Value> = found.into_iter().map(row).collect();
            return Ok(writeln!(out, "{}", Value::Array(rows))?);
        }
        let is_named = found.len() > 1;
        for (path, id) in found {
            if is_named {
                out.write_all(&[&show::printed(path)[..], b": "].concat())?;
            }
            writeln!(out, "{id}")?;
        }
        Ok(())
    })
}

pub fn fid2path(args: FidArgs) -> anyhow::Result<()> {
    crate::log_start();
    let fids: Vec<FileId> = args.fids.iter().map(|text| parsed(text)).collect::<Result<_, _>>()?;
    let location = Location::find_word(Some(&args.fs))?;
    shell::run(&location.clone(), |shell| async move {
        let mut out = io::stdout().lock();
        let mut rows = Vec::new();
        for id in fids {
            for path in paths(&shell, id).await.with_context(|| format!("file {id}"))? {
                let path = shown_from(&location, path);
                if args.json {
                    let row = json!({ "fid": id.to_string() });
                    rows.push(show::with_bytes(row, "path", &path));
                } else {
                    out.write_all(&[&show::printed(&path)[..], b"\n"].concat())?;
                }
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(rows))?;
        }
        Ok(())
    })
}

/// `0x1000000007`, the same in brackets as Lustre's are, or decimal.
fn parsed(text: &str) -> Result<FileId, Usage> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let number = match bare.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => bare.parse(),
    };
    let wrong = |_| Usage(format!("`{text}`: an id, such as 0x1000000007 or an inode's number"));
    number.map(FileId).map_err(wrong)
}

/// All paths that lead to a file, from the file system's root.
async fn paths(shell: &Shell, id: FileId) -> anyhow::Result<Vec<Vec<u8>>> {
    if shell.files.map().mdt(id.mdt()).is_none() {
        bail!("there is no {} in the map: it is an id of another file system", id.mdt().label());
    }
    let names = match shell.volume.names(&shell.caller, id).await {
        Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => bail!(
            "no such file is there; if it was deleted lately, `tieline undelete --list -r` names it"
        ),
        names => names?,
    };
    if names.is_empty() && !id.is_root() {
        bail!("it is open and has no name");
    }
    let mut all = Vec::new();
    for name in &names {
        all.push(path(shell, name.parent, &name.name).await?);
    }
    Ok(if names.is_empty() { vec![b"/".to_vec()] } else { all })
}

async fn path(shell: &Shell, mut directory: FileId, name: &Name) -> anyhow::Result<Vec<u8>> {
    let mut components = vec![name.as_bytes().to_vec()];
    for _ in 0..DEPTH_MAX {
        let names = shell.volume.names(&shell.caller, directory).await?;
        let Some(name) = names.into_iter().next() else {
            components.push(Vec::new());
            components.reverse();
            return Ok(components.join(&b'/'));
        };
        components.push(name.name.as_bytes().to_vec());
        directory = name.parent;
    }
    bail!("its directories lead in a circle: `tieline fsck` tells more")
}

/// Below the mount, if that is where the path leads.
fn shown_from(location: &Location, path: Vec<u8>) -> Vec<u8> {
    let Some(mountpoint) = &location.mountpoint else { return path };
    let directory = location.source.directory.trim_matches('/');
    let above = if directory.is_empty() { String::new() } else { format!("/{directory}") };
    match path.strip_prefix(above.as_bytes()) {
        Some(b"" | b"/") => mountpoint.as_os_str().as_bytes().to_vec(),
        Some(rest) if rest.starts_with(b"/") => [mountpoint.as_os_str().as_bytes(), rest].concat(),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_typed_as_they_are_printed() {
        for text in ["0x1000000007", "[0x1000000007]", "68719476743"] {
            assert_eq!(parsed(text).unwrap(), FileId(0x10_0000_0007), "{text}");
        }
        assert_eq!(parsed(&FileId(77).to_string()).unwrap(), FileId(77));
        assert!(parsed("0x").is_err() && parsed("[0x1:0x2:0x0]").is_err());
    }

    #[test]
    fn paths_are_those_of_the_mount() {
        let of = |directory: &str, path: &str| {
            let mut location = Location::find("tieline://h/extenci".as_ref()).unwrap();
            location.source.directory = directory.into();
            location.mountpoint = Some("/mnt/x".into());
            String::from_utf8(shown_from(&location, path.into())).unwrap()
        };
        assert_eq!(of("", "/a/b"), "/mnt/x/a/b");
        assert_eq!(of("", "/"), "/mnt/x");
        assert_eq!(of("a", "/a/b"), "/mnt/x/b");
        assert_eq!(of("a", "/ab/c"), "/ab/c", "beside what is mounted");
    }
}
