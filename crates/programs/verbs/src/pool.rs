//! `tieline pool`: named groups of OSTs, with the words of `lctl pool_…` and `lfs pool_list`.

mod hsm;

use crate::find::wanted::names_pool;
use crate::list::listed;
use crate::ost::parse_all;
use crate::shell::{self, Shell};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_base::show;
use tieline_format::map::{self, FederationMap};
use tieline_types::{FileKind, FsName, OstIndex, PoolName, Shown};
use tieline_wire::federation::MapEdit;
use tokio::time::timeout;

/// Directories that are looked for, and for how long.
const NAMED_MAX: usize = 3;
const LOOK_FOR: Duration = Duration::from_secs(2);

#[derive(clap::Subcommand, Debug)]
pub enum Pool {
    /// Make an empty pool
    New(One),
    /// Put OSTs into a pool
    Add(Members),
    /// Take OSTs out of a pool
    Remove(Members),
    /// Say what a pool's files get beside OSTs: a directory in which they lie whole, or a tape
    Set(Box<Set>),
    /// Remove a pool that is empty
    Destroy(One),
    /// List the pools of a file system, or the OSTs of a pool
    List {
        #[arg(long)]
        json: bool,
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// FS or FS.POOL
        name: Option<String>,
    },
}

#[derive(clap::Args, Debug)]
pub struct One {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
    /// FS.POOL
    name: String,
}

#[derive(clap::Args, Debug)]
pub struct Members {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
    /// FS.POOL
    name: String,
    /// OST0000, extenci-OST0000, or OST[0-3]
    #[arg(required = true)]
    osts: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub struct Set {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
    /// FS.POOL
    name: String,
    /// Expose it there: an empty directory on the machine of the pool's first OST
    #[arg(long, value_name = "DIR")]
    expose: Option<String>,
    /// Expose it no more: what lies there is removed
    #[arg(long, conflicts_with_all = ["expose", "ost", "at_rest"])]
    no_expose: bool,
    /// Whose machine has the directory [default: the pool's first OST]
    #[arg(long, value_name = "OST")]
    ost: Option<String>,
    /// trusted: also where a rule has bytes encrypted on their way (krb5p)
    #[arg(long, value_name = "trusted", value_parser = ["trusted"])]
    at_rest: Option<String>,
    #[command(flatten)]
    hsm: hsm::Args,
}

pub fn run(verb: Pool) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Pool::New(One { fs, name }) => {
            let (location, pool) = target(fs, &name)?;
            edit(&location, MapEdit::PoolNew(pool), None)
        }
        Pool::Destroy(One { fs, name }) => {
            let (location, pool) = target(fs, &name)?;
            edit(&location, MapEdit::PoolDestroy(pool.clone()), Some(&pool))
        }
        Pool::Add(members) => {
            let (location, pool, osts) = members.target()?;
            edit(&location, MapEdit::PoolAdd { pool, osts }, None)
        }
        Pool::Remove(members) => {
            let (location, pool, osts) = members.target()?;
            edit(&location, MapEdit::PoolRemove { pool: pool.clone(), osts }, Some(&pool))
        }
        Pool::Set(set) => {
            let (location, pool) = target(set.fs.clone(), &set.name)?;
            set.edits(&pool)?.into_iter().try_for_each(|one| edit(&location, one, None))
        }
        Pool::List { json, fs, name } => list(fs, name, json),
    }
}

/// `smaller`: the pool that may have no OSTs any more.
fn edit(location: &Location, edit: MapEdit, smaller: Option<&PoolName>) -> anyhow::Result<()> {
    shell::run(location, |shell| async move {
        shell.files.edit_map(&shell.caller, edit).await?;
        let map = shell.files.map();
        let is_empty = |name: &&PoolName| map.pool(name).is_none_or(|pool| pool.osts.is_empty());
        if let Some(pool) = smaller.filter(is_empty) {
            warn_of_layouts(&shell, pool).await;
        }
        Ok(())
    })
}

/// Says that layouts may name a pool that has no OSTs any more, and which of the first directories
/// do.
async fn warn_of_layouts(shell: &Shell, pool: &PoolName) {
    let mut named = Vec::new();
    // Directories that cannot be read are for `tieline find` to complain of.
    let looked = timeout(LOOK_FOR, directories_with(shell, pool, &mut named)).await;
    let is_all = matches!(looked, Ok(Ok(())));
    if is_all && named.is_empty() {
        return;
    }
    let fs = &shell.files.map().fs;
    let first = match named.as_slice() {
        [] => String::new(),
        paths => {
            let shown: Vec<String> = paths.iter().map(|path| Shown(path).to_string()).collect();
            format!(", {} among them", shown.join(", "))
        }
    };
    let may = if named.is_empty() { "may name" } else { "name" };
    eprintln!(
        "tieline: directories {may} pool {fs}.{pool} in their layouts{first}: new files there are \
         refused until `tieline setstripe -p POOL DIR` gives them another. \
         `tieline find PATH -type d -pool {pool}` finds them all"
    );
}

/// The first directories, from the root down, whose own layouts name a pool.
async fn directories_with(
    shell: &Shell,
    pool: &PoolName,
    named: &mut Vec<Vec<u8>>,
) -> anyhow::Result<()> {
    let mut todo = VecDeque::from([(Vec::new(), shell.files.root())]);
    while let Some((path, id)) = todo.pop_front() {
        let layout = shell.files.layout(&shell.caller, id).await?;
        if layout.is_own && names_pool(&layout.layout, pool) {
            named.push(if path.is_empty() { b"/".to_vec() } else { path.clone() });
            if named.len() >= NAMED_MAX {
                return Ok(());
            }
        }
        let entries = listed(shell, id).await?.into_iter();
        let below = entries.filter(|entry| entry.kind == FileKind::Directory);
        todo.extend(below.map(|entry| (show::below(&path, &entry.name), entry.id)));
    }
    Ok(())
}

impl Set {
    fn edits(self, pool: &PoolName) -> anyhow::Result<Vec<MapEdit>> {
        let mut edits = Vec::new();
        if self.no_expose {
            edits.push(MapEdit::PoolHide(pool.clone()));
        }
        if let Some(directory) = self.expose {
            let ost = match &self.ost {
                Some(ost) => parse_all(std::slice::from_ref(ost))?.indices.first().copied(),
                None => None,
            };
            let (pool, is_trusted) = (pool.clone(), self.at_rest.is_some());
            edits.push(MapEdit::PoolExpose { pool, directory, ost, is_trusted });
        }
        if let Some(hsm) = self.hsm.wish()? {
            edits.push(MapEdit::PoolHsm { pool: pool.clone(), hsm });
        }
        if edits.is_empty() {
            let what = "nothing to set: say --expose DIR, --no-expose, --hsm SCRIPT or --no-hsm";
            return Err(Usage(what.into()).into());
        }
        Ok(edits)
    }
}

impl Members {
    fn target(self) -> anyhow::Result<(Location, PoolName, Vec<OstIndex>)> {
        let osts = parse_all(&self.osts)?;
        let (fs, pool) = name_parse(&self.name)?;
        if let (Some(fs), Some(other)) = (&fs, &osts.fs)
            && fs != other
        {
            return Err(Usage(format!("the pool is in /{fs}, the OSTs in /{other}")).into());
        }
        let location = Location::find_fs(self.fs.as_deref(), fs.or(osts.fs).as_ref())?;
        Ok((location, pool, osts.indices))
    }
}

fn target(typed: Option<OsString>, name: &str) -> anyhow::Result<(Location, PoolName)> {
    let (fs, pool) = name_parse(name)?;
    Ok((Location::find_fs(typed.as_deref(), fs.as_ref())?, pool))
}

/// `extenci.uf`, or `uf` alone.
fn name_parse(name: &str) -> Result<(Option<FsName>, PoolName), Usage> {
    let (fs, pool) = match name.split_once('.') {
        Some((fs, pool)) => (Some(fs), pool),
        None => (None, name),
    };
    let fs = fs.map(str::parse).transpose().map_err(|e| Usage(format!("`{name}`: {e}")))?;
    let pool = pool.parse().map_err(|e| Usage(format!("pool `{pool}`: {e}")))?;
    Ok((fs, pool))
}

fn list(typed: Option<OsString>, name: Option<String>, is_json: bool) -> anyhow::Result<()> {
    // `list extenci` names a file system, `list extenci.uf` a pool in it; a path below the mount
    // works too.
    let (typed, fs, pool) = match name {
        None => (typed, None, None),
        Some(path) if path.contains('/') => (Some(path.into()), None, None),
        Some(name) if name.contains('.') => {
            let (fs, pool) = name_parse(&name)?;
            (typed, fs, Some(pool))
        }
        Some(name) => {
            let fs = name.parse().map_err(|e| Usage(format!("`{name}`: {e}")))?;
            (typed, Some(fs), None)
        }
    };
    let location = Location::find_fs(typed.as_deref(), fs.as_ref())?;
    shell::run(&location, |shell| async move {
        let map = shell.files.map();
        let mut out = io::stdout().lock();
        if is_json {
            writeln!(out, "{}", pools_json(&map, pool.as_ref()))?;
        } else {
            pools_text(&mut out, &map, pool.as_ref())?;
        }
        Ok(())
    })
}

fn pools_json(map: &FederationMap, only: Option<&PoolName>) -> Value {
    let pools = map.pools.iter().filter(|pool| only.is_none_or(|only| pool.name == *only));
    let one = |pool: &map::Pool| {
        let osts: Vec<u16> = pool.osts.iter().map(|ost| ost.0).collect();
        let hsm = pool.hsm.as_ref().map(hsm::json);
        let mut shown = json!({ "name": pool.name, "osts": osts, "hsm": hsm });
        if let (Some(exposure), Some(shown)) = (pool.exposed(), shown.as_object_mut()) {
            let (directory, ost) = (&exposure.directory, exposure.ost.label());
            shown.insert("exposed".to_owned(), json!({ "directory": directory, "ost": ost }));
        }
        shown
    };
    pools.map(one).collect()
}

fn pools_text(
    out: &mut dyn Write,
    map: &FederationMap,
    only: Option<&PoolName>,
) -> anyhow::Result<()> {
    let fs = &map.fs;
    match only {
        None => {
            writeln!(out, "Pools from {fs}:")?;
            for pool in &map.pools {
                writeln!(out, "{fs}.{}", pool.name)?;
            }
        }
        Some(name) => {
            let pool = map.pool(name);
            let pool = pool.ok_or_else(|| anyhow::anyhow!("there is no pool {fs}.{name}"))?;
            writeln!(out, "Pool: {fs}.{name}")?;
            for ost in &pool.osts {
                writeln!(out, "{fs}-{}", ost.label())?;
            }
            if let Some(exposure) = pool.exposed() {
                let (directory, ost) = (&exposure.directory, exposure.ost.label());
                writeln!(out, "Exposed in {directory} by the server of {fs}-{ost}")?;
            }
            if let Some(hsm) = &pool.hsm {
                writeln!(out, "{}", hsm::text(hsm))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_named_as_in_lustre() {
        let (fs, pool) = name_parse("extenci.uf").unwrap();
        assert_eq!((fs.unwrap().as_str(), pool.as_str()), ("extenci", "uf"));
        assert!(name_parse("uf").unwrap().0.is_none());
        assert!(name_parse("extenci.sixteen-letters!").is_err());
        assert!(name_parse("a b.uf").is_err());
    }
}
