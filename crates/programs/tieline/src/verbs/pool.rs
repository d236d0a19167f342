//! `tieline pool`: named groups of OSTs, with the words of `lctl pool_…` and `lfs pool_list`.

use crate::location::Location;
use crate::report::Usage;
use crate::shell;
use crate::verbs::ost::parse_all;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_format::map::{self, FederationMap};
use tieline_types::{FsName, OstIndex, PoolName};
use tieline_wire::federation::MapEdit;

#[derive(clap::Subcommand, Debug)]
pub enum Pool {
    /// Make an empty pool
    New(One),
    /// Put OSTs into a pool
    Add(Members),
    /// Take OSTs out of a pool
    Remove(Members),
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

pub fn run(verb: Pool) -> anyhow::Result<()> {
    crate::verbs::log_start();
    match verb {
        Pool::New(One { fs, name }) => {
            let (location, pool) = target(fs, &name)?;
            edit(&location, MapEdit::PoolNew(pool))
        }
        Pool::Destroy(One { fs, name }) => {
            let (location, pool) = target(fs, &name)?;
            edit(&location, MapEdit::PoolDestroy(pool))
        }
        Pool::Add(members) => {
            let (location, pool, osts) = members.target()?;
            edit(&location, MapEdit::PoolAdd { pool, osts })
        }
        Pool::Remove(members) => {
            let (location, pool, osts) = members.target()?;
            edit(&location, MapEdit::PoolRemove { pool, osts })
        }
        Pool::List { json, fs, name } => list(fs, name, json),
    }
}

fn edit(location: &Location, edit: MapEdit) -> anyhow::Result<()> {
    shell::run(location, |shell| async move {
        shell.files.edit_map(&shell.caller, edit).await?;
        Ok(())
    })
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
        json!({ "name": pool.name, "osts": osts })
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
