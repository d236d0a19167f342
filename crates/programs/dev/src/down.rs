//! `tieline dev down`: ends processes and mounts, removes namespaces and files; only those that
//! were made here.

use crate::processes;
use crate::state::Held;
use anyhow::{Context, bail};
use std::path::Path;
use tieline_kv::{PostgresServer, PostgresStore};
use tieline_machine::table;

pub fn run(dir: &Path) -> anyhow::Result<()> {
    take_down(Held::open(dir)?)
}

/// Takes out of a database what was put there.
fn remove_schemas(held: &mut Held) -> anyhow::Result<()> {
    let Some(database) = held.state.database.take() else { return Ok(()) };
    let server: PostgresServer = database.connection.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for schema in &database.schemas {
        runtime.block_on(PostgresStore::remove(&server, schema)).with_context(|| {
            format!("cannot remove schema {schema} from {server}: DROP SCHEMA {schema} CASCADE")
        })?;
    }
    held.save()
}

/// Goes on after failures, and reports the first.
pub fn take_down(mut held: Held) -> anyhow::Result<()> {
    let mut first: anyhow::Result<()> = Ok(());
    // What mounts still hold goes over the line.
    let _ = tieline_wan::ask(&super::wan::socket(held.dir()), "heal");
    // Mounts were started last and end first, while their servers can still take what they hold.
    for process in held.state.processes.iter_mut().rev() {
        let ended = processes::end(process);
        first = first.and(ended);
    }
    if let Some(kdc) = &held.state.kdc {
        kdc.end();
    }
    held.save()?;
    first?;
    if let Some(network) = &held.state.network {
        network.remove();
    }
    let _ = std::fs::remove_file(super::wan::socket(held.dir()));
    // A database that is gone for good keeps nobody from taking the rest away: the error says what
    // is left in it.
    let emptied = remove_schemas(&mut held);
    let dir = held.dir().to_owned();
    let mounted = table::below(&dir);
    if let Some(mount) = mounted.first() {
        bail!("{} is still mounted: its files are left alone", mount.display());
    }
    let made = held.state.made.clone();
    for path in made.iter().filter(|path| path.starts_with(&dir) && **path != dir) {
        let _ = std::fs::remove_dir_all(path);
    }
    held.forget();
    // The rest goes only if it is empty: somebody else may have put something there. Deepest first.
    let mut rest: Vec<_> = made.iter().filter(|path| path.exists()).collect();
    rest.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for path in rest {
        let _ = std::fs::remove_dir(path);
    }
    emptied
}
