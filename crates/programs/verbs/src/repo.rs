//! `tieline repo`: trees that are published as files.

mod live;
mod published;

use crate::progress::Progress;
use crate::shell;
use anyhow::Context;
use std::ffi::OsString;
use std::path::PathBuf;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_base::repositories::{master_keys, named};
use tieline_types::{ByteSize, Digest, Encoding, Name, RepositoryName};
use tieline_wire::federation::{MapEdit, RepositoryAdd, RepositoryTrust};

#[derive(clap::Subcommand, Debug)]
pub enum Repo {
    /// Make a repository in CVMFS's format, with its keys and a first revision that is empty
    Create(published::CreateArgs),
    /// Publish a directory as the next revision of a repository
    Publish(published::PublishArgs),
    /// Sign the whitelist of a repository anew, before it expires
    Resign(published::ResignArgs),
    /// Make a frozen list of a directory, with its chunks beside it: to be served as files
    Freeze {
        /// Keep chunks as they are, rather than pack them with zlib
        #[arg(long)]
        plain: bool,
        #[arg(long)]
        json: bool,
        /// Fully qualified name, such as sw.example.org
        name: RepositoryName,
        /// Directory with the tree
        source: PathBuf,
        /// Directory that gets the list and the chunks
        to: PathBuf,
    },
    /// Mount a repository in the root directory of a federation
    Add {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// Digest of its list, as `repo freeze` printed it
        #[arg(long, required_unless_present = "pubkey", conflicts_with = "pubkey")]
        list: Option<String>,
        /// Public master key of a repository in CVMFS's format (FQRN.pub), or a directory of them
        #[arg(long, value_name = "FILE")]
        pubkey: Vec<PathBuf>,
        /// Its name in the root directory
        #[arg(long)]
        at: String,
        name: RepositoryName,
        /// http://HOST[:PORT]/path, https://… or file:///path, the first ones preferred
        #[arg(required = true)]
        sources: Vec<String>,
    },
    /// Take a repository out of a federation
    Remove {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        name: RepositoryName,
    },
}

pub fn run(verb: Repo) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Repo::Create(args) => published::create(args),
        Repo::Publish(args) => published::publish(args),
        Repo::Resign(args) => published::resign(args),
        Repo::Freeze { plain, json, name, source, to } => {
            let encoding = if plain { Encoding::Plain } else { Encoding::Zlib };
            freeze(&name, (&source, &to), encoding, json)
        }
        Repo::Add { fs, list, pubkey, at, name, sources } => {
            let junction = Name::new(at).map_err(|error| Usage(format!("--at: {error}")))?;
            let sources = sources.iter().map(|source| named(source, &name)).collect();
            let Some(list) = list else {
                let keys = master_keys(&name, &pubkey).map_err(|why| Usage(format!("--{why}")))?;
                let keys = keys.into_iter().map(|key| key.0).collect();
                let add = RepositoryTrust { name, sources, keys, junction };
                return edit(fs, MapEdit::RepositoryTrust(add));
            };
            let list: Digest = list.parse().map_err(|error| Usage(format!("--list: {error}")))?;
            edit(fs, MapEdit::RepositoryAdd(RepositoryAdd { name, sources, list, junction }))
        }
        Repo::Remove { fs, name } => edit(fs, MapEdit::RepositoryRemove(name)),
    }
}

fn edit(fs: Option<OsString>, edit: MapEdit) -> anyhow::Result<()> {
    let location = Location::find_fs(fs.as_deref(), None)?;
    shell::run(&location, |shell| async move {
        shell.files.edit_map(&shell.caller, edit).await?;
        Ok(())
    })
}

fn freeze(
    name: &RepositoryName,
    (source, to): (&PathBuf, &PathBuf),
    encoding: Encoding,
    is_json: bool,
) -> anyhow::Result<()> {
    let mut progress = Progress::new("freeze", 0);
    let mut told = |bytes| {
        progress.widen(bytes);
        progress.add(bytes);
    };
    let made = tieline_frozen::freeze(name, source, to, encoding, &mut told)
        .with_context(|| format!("cannot freeze {} into {}", source.display(), to.display()))?;
    progress.end();
    let (list, files) = (made.list, made.files);
    if is_json {
        let value = serde_json::json!({
            "repository": name.as_str(), "list": list.to_string(), "files": files,
            "bytes": made.bytes, "stored": made.stored,
        });
        println!("{value}");
        return Ok(());
    }
    let (bytes, stored) = (ByteSize(made.bytes), ByteSize(made.stored));
    println!("{name}: {files} files with {bytes}, {stored} as they lie in {}", to.display());
    println!("list {list}");
    Ok(())
}
