//! `tieline find PATH [-name GLOB] [-type f|d|l] [-size [+-]N] [-pool POOL] …`, as `lfs find`.

mod glob;
pub mod wanted;

use crate::list::listed;
use crate::shell::{self, Shell};
use serde_json::Value;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_base::show;
use wanted::Wanted;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// PATH, then conditions that must all hold: -name GLOB, -type f|d|l|p|s|c|b, -size [+-]SIZE,
    /// -pool POOL, -ost and -mdt INDEX, -user and -group NAME, -uid and -gid NUMBER, -atime, -ctime
    /// and -mtime [+-]DAYS, -amin, -cmin and -mmin [+-]MINUTES, -newer FILE, with ! before what
    /// must not hold; -maxdepth and -mindepth N; -print0, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let mut wanted = Wanted::parse(&args.words)?;
    let path = wanted.path.clone().ok_or_else(|| Usage("find needs a path".into()))?;
    let location = Location::find(&path)?;
    shell::run(&location.clone(), |shell| async move {
        wanted.resolve(&shell).await?;
        search(&shell, &location, &wanted).await
    })
}

async fn search(shell: &Shell, location: &Location, wanted: &Wanted) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let mut values = Vec::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_secs().cast_signed();
    let end = if wanted.ends_with_zero { b'\0' } else { b'\n' };
    let start = shell.resolve(&location.path, false).await?;
    let mut todo = vec![(location.stem(), start.attributes, 0)];
    while let Some((path, attributes, depth)) = todo.pop() {
        let name = String::from_utf8_lossy(show::name_of(&path));
        let is_deep = depth >= wanted.depth_min;
        if is_deep && wanted.fits(shell, (&name, &attributes), now).await? {
            if wanted.is_json {
                values.push(show::attributes_json(&path, &attributes));
            } else {
                let shown = match wanted.ends_with_zero {
                    true => Cow::from(&path),
                    false => show::printed(&path),
                };
                out.write_all(&[&shown[..], &[end]].concat())?;
            }
        }
        if !attributes.is_directory() || wanted.depth_max.is_some_and(|max| depth >= max) {
            continue;
        }
        for entry in listed(shell, attributes.id).await?.into_iter().rev() {
            let attributes = match entry.known {
                Some(known) => known.attributes,
                None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
            };
            todo.push((show::below(&path, &entry.name), attributes, depth + 1));
        }
    }
    if wanted.is_json {
        writeln!(out, "{}", Value::Array(values))?;
    }
    Ok(())
}
