//! Repositories in CVMFS's format: making them, publishing to them, and signing who may.

use super::live::Live;
use crate::progress::Progress;
use crate::shell;
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_publish::manifest::TTL_DEFAULT;
use tieline_publish::repository::Limits;
use tieline_publish::repository::{
    Create, Publish, Published, Repository, STORAGE_DEFAULT, WHITELIST_DEFAULT,
};
use tieline_publish::tree::{Directory, Tree};
use tieline_types::{ByteSize, RepositoryName, Span};
use tieline_world::World;

#[derive(clap::Args, Debug)]
pub struct CreateArgs {
    /// Directory with the repository's keys: FQRN.masterkey, FQRN.pub, FQRN.key and FQRN.crt are
    /// used if they are there, and made if none is
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Time for which clients need not ask whether there is a newer revision [default: 240 s]
    #[arg(long, value_name = "SPAN")]
    ttl: Option<Span>,
    /// Time until clients stop believing, unless `repo resign` was run before [default: 30 d]
    #[arg(long, value_name = "SPAN")]
    expires: Option<Span>,
    /// Fully qualified name, such as sw.example.org
    #[arg(value_name = "FQRN")]
    name: RepositoryName,
}

#[derive(clap::Args, Debug)]
pub struct PublishArgs {
    #[command(flatten)]
    place: Place,
    /// Directory with the repository's keys, if they were moved
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Time for which clients need not ask whether there is a newer revision [default: as before]
    #[arg(long, value_name = "SPAN")]
    ttl: Option<Span>,
    /// Entries beyond which a catalog is divided at its directories (those with a file
    /// .cvmfscatalog always have one of their own)
    #[arg(long, value_name = "N", default_value_t = Limits::default().most)]
    catalog_entries: u64,
    #[arg(long)]
    json: bool,
    /// Fully qualified name, such as sw.example.org
    #[arg(value_name = "FQRN")]
    name: RepositoryName,
    /// Directory whose content the next revision has: a path here (below a mount, too), or
    /// tieline://HOST[:PORT]/FS/path
    source: OsString,
}

#[derive(clap::Args, Debug)]
pub struct ResignArgs {
    #[command(flatten)]
    place: Place,
    /// Time until clients stop believing [default: 30 d]
    #[arg(long, value_name = "SPAN")]
    expires: Option<Span>,
    /// Fully qualified name, such as sw.example.org
    #[arg(value_name = "FQRN")]
    name: RepositoryName,
}

#[derive(clap::Args, Debug)]
struct Place {
    /// Directory that holds the repository, for web servers to serve [default: /srv/cvmfs/FQRN]
    #[arg(long, value_name = "DIR")]
    storage: Option<PathBuf>,
}

impl Place {
    fn of(&self, name: &RepositoryName) -> PathBuf {
        let default = || Path::new(STORAGE_DEFAULT).join(name.as_str());
        self.storage.clone().unwrap_or_else(default)
    }
}

pub fn create(args: CreateArgs) -> anyhow::Result<()> {
    let CreateArgs { keys, place, ttl, expires, name } = args;
    let storage = place.of(&name);
    let how = Create {
        keys: keys.clone(),
        ttl: ttl.map_or(TTL_DEFAULT, |span| span.0),
        whitelist: life(expires)?,
    };
    let made = Repository::create(&name, &storage, &how, &World::real());
    made.with_context(|| format!("cannot make repository {name}"))?;
    println!("{name}: revision 1, empty, in {}", storage.display());
    println!("keys in {}: keep {name}.masterkey safe; clients need {name}.pub", keys.display());
    println!(
        "whitelist expires in {}: run `tieline repo resign {name}` before",
        Span(how.whitelist)
    );
    Ok(())
}

pub fn resign(args: ResignArgs) -> anyhow::Result<()> {
    let ResignArgs { place, expires, name } = args;
    let life = life(expires)?;
    let repository = Repository::open(&name, &place.of(&name), &World::real())?;
    let signed = repository.sign_whitelist(life);
    signed.with_context(|| format!("cannot sign the whitelist of {name}"))?;
    println!("{name}: clients believe it for {} more", Span(life));
    Ok(())
}

/// Hours count, and nothing smaller: what holds for less has expired.
fn life(expires: Option<Span>) -> anyhow::Result<Duration> {
    const LEAST: Duration = Duration::from_secs(2 * 3600);
    let life = expires.map_or(WHITELIST_DEFAULT, |span| span.0);
    if life < LEAST {
        return Err(Usage("--expires: two hours at least".into()).into());
    }
    Ok(life)
}

pub fn publish(args: PublishArgs) -> anyhow::Result<()> {
    let is_live = args.source.to_str().is_some_and(|source| source.starts_with("tieline://"));
    if !is_live {
        let mut tree = Directory::new(&args.source);
        return publish_tree(&args, &mut tree);
    }
    let location = Location::find(&args.source)?;
    shell::run(&location.clone(), |shell| async move {
        let root = shell.resolve(&location.path, true).await?.attributes;
        let mut tree = Live::new(shell, root);
        // A publication waits for each answer in its place.
        tokio::task::block_in_place(|| publish_tree(&args, &mut tree))
    })
}

fn publish_tree(args: &PublishArgs, tree: &mut dyn Tree) -> anyhow::Result<()> {
    let name = &args.name;
    let mut repository = Repository::open(name, &args.place.of(name), &World::real())?;
    let limits = Limits { most: args.catalog_entries.max(1), ..Limits::default() };
    let limits = Limits { least: limits.least.min(limits.most), ..limits };
    let how = Publish { keys: args.keys.clone(), ttl: args.ttl.map(|span| span.0), limits };
    let mut progress = Progress::new(format!("publish {name}"), 0);
    let mut told = |bytes| {
        progress.widen(bytes);
        progress.add(bytes);
    };
    let published = repository.publish(tree, &how, &mut told);
    let published = published.with_context(|| format!("cannot publish {name}"))?;
    progress.end();
    tell(name, &published, args.json);
    Ok(())
}

fn tell(name: &RepositoryName, published: &Published, is_json: bool) {
    let root = tieline_publish::hash::text(&published.root);
    let Published { revision, is_unchanged, entries, bytes, catalogs, new, new_bytes, .. } =
        *published;
    if is_json {
        let value = serde_json::json!({
            "repository": name.as_str(), "revision": revision, "unchanged": is_unchanged,
            "root": root, "entries": entries, "bytes": bytes, "catalogs": catalogs,
            "new_objects": new, "new_bytes": new_bytes,
        });
        println!("{value}");
        return;
    }
    let what = if is_unchanged { "nothing changed" } else { "published" };
    let (bytes, new_bytes) = (ByteSize(bytes), ByteSize(new_bytes));
    println!(
        "{name}: revision {revision} ({what}): {entries} entries with {bytes} in {catalogs} \
         catalogs; {new} new objects, {new_bytes}"
    );
}
