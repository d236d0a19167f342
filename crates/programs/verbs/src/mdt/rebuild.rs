//! `tieline mdt rebuild --from-osts`: asks every OST what its objects know, and fills an empty
//! store with it.
//!
//! An OST that does not answer ends it, since files would lose bytes in silence; one that is gone
//! for good is named with `--without`, and the files that show gaps are told.

use super::{NewStore, now, stopped};
use crate::ost;
use crate::progress::Ticker;
use crate::shell::PATIENCE;
use anyhow::{Context, bail};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tieline_auth::Serves;
use tieline_base::contact::Contact;
use tieline_base::dialing::dialer;
use tieline_ledger::rebuild::{FoundObject, Rebuilt, rebuild};
use tieline_net::{CallError, Channel};
use tieline_serve::run::{first_map, open_empty_store};
use tieline_types::{Caller, ErrorKind, Grant, GrantedId, MdtIndex, OstIndex};
use tieline_wire::data::{ListObjects, StatObject, StatObjectReply};
use tieline_world::{Bulk, World};
use tokio::task::JoinSet;

/// Objects in one list: as many as the message takes.
const LISTED: u32 = 4096;
/// Objects that are asked about at once, as a session takes them: an OST may be far, and have a
/// million.
const AT_ONCE: usize = 128;

const NOT_KNOWN: &str = "they are root's with mode 0600 (directories 0700): nothing knows owners, \
     modes, times, links, attributes, symlinks, empty files, and files small enough to lie in the \
     metadata; what was deleted or cut off lately may be back";

/// What was asked, and what came of it.
struct Told {
    mdt: MdtIndex,
    without: Vec<OstIndex>,
    /// Objects that do not say what they are.
    uncertain: Vec<String>,
    rebuilt: Rebuilt,
}

pub fn rebuild_store(settings: &Path, without: &[String], is_json: bool) -> anyhow::Result<()> {
    let without = ost::parse_all(without)?.indices;
    let (plan, identity, _lock) = stopped(settings)?;
    if let Some(log) = plan.mdt.as_ref().and_then(|mdt| mdt.log.as_ref())
        && std::fs::read_dir(&log.directory).is_ok_and(|mut files| files.next().is_some())
    {
        let shown = log.directory.display();
        eprintln!(
            "{shown} has a change log: `tieline mdt restore`, with it and a dump, brings back more"
        );
    }
    plan.kerberos.prepare();
    let runtime = crate::runtime::of_verb()?;
    runtime.block_on(async {
        let world = World::real();
        let guard = plan.kerberos.guard(Serves { mdt: true, ost: false });
        let (dialer, rule) = dialer(&world, &guard);
        let cell = first_map(&plan, &world, &dialer, "tieline mdt rebuild", rule).await?;
        guard.follow(&cell);
        let map = cell.current().map.clone();
        if let Some(stray) = without.iter().find(|&&ost| map.ost(ost).is_none()) {
            bail!("--without {}: it is not in the map (`tieline map show`)", stray.label());
        }
        let prefix = map.junction_of(identity.mdt).map(|junction| junction.name.clone());
        let (mut found, mut uncertain) = (Vec::new(), Vec::new());
        for ost in map.osts.iter().filter(|ost| !without.contains(&ost.ost)) {
            let contact = Contact {
                world: world.clone(),
                dialer: dialer.clone(),
                fs: plan.fs.clone(),
                addresses: ost.addresses.clone(),
                rule,
                description: "tieline mdt rebuild".to_owned(),
                patience: PATIENCE,
            };
            let label = ost.ost.label();
            let objects = objects(&contact, ost.ost, identity.mdt, &mut uncertain).await;
            let objects = objects.with_context(|| {
                format!(
                    "{label} cannot be asked: without it files would lose bytes in silence. \
                     Start its server; if it is gone for good, say --without {label}"
                )
            })?;
            if !is_json {
                println!("{label}: {} objects of {}", objects.len(), identity.mdt.label());
            }
            found.extend(objects);
        }
        let Some(mdt) = &plan.mdt else { return Ok(()) };
        let at = (plan.state.as_path(), "tieline mdt rebuild");
        let new = NewStore::of(&mdt.engine);
        let store = open_empty_store(&mdt.engine, at, &world).await?;
        let prefix = prefix.map_or(vec![], |name| name.as_bytes().to_vec());
        let news = Ticker::new(format!("filling {}", identity.mdt.label()), "");
        let rebuilt = rebuild(&*store, &identity, &prefix, found, now()).await?;
        drop(news);
        new.keep();
        let told = Told { mdt: identity.mdt, without, uncertain, rebuilt };
        if is_json {
            told.json()
        } else {
            told.print()
        }
        Ok(())
    })
}

impl Told {
    fn json(&self) {
        let Rebuilt { files, bytes, directories, superseded, scattered, notes, gaps } =
            &self.rebuilt;
        let gaps = gaps.iter().map(|path| String::from_utf8_lossy(path)).collect::<Vec<_>>();
        let without = self.without.iter().map(|ost| ost.label()).collect::<Vec<_>>();
        let uncertain: Vec<&String> = self.uncertain.iter().chain(notes).collect();
        let document = json!({
            "mdt": self.mdt.0, "files": files, "bytes": bytes, "directories": directories,
            "superseded": superseded, "scattered": scattered, "without": without, "with_gaps": gaps,
            "uncertain": uncertain,
        });
        println!("{document}");
    }

    fn print(&self) {
        for note in self.uncertain.iter().chain(&self.rebuilt.notes) {
            println!("uncertain: {note}");
        }
        let Rebuilt { files, bytes, directories, superseded, gaps, .. } = &self.rebuilt;
        println!(
            "{files} files ({bytes} bytes) and {directories} directories are back; {superseded} \
             objects were superseded"
        );
        if !self.without.is_empty() {
            let without = self.without.iter().map(|ost| ost.label()).collect::<Vec<_>>();
            println!(
                "{} files have gaps; without {} others may end too early, or be missing whole",
                gaps.len(),
                without.join(", ")
            );
        }
        println!("{NOT_KNOWN}");
    }
}

/// What an OST holds of an MDT.
async fn objects(
    contact: &Contact,
    ost: OstIndex,
    mdt: MdtIndex,
    uncertain: &mut Vec<String>,
) -> anyhow::Result<Vec<FoundObject>> {
    let channel = contact.channel();
    let caller = Caller::root();
    let patience = Some(contact.patience);
    let news = Ticker::new(format!("asking {}", ost.label()), "objects");
    let mut after = mdt.0.checked_sub(1).map(|before| GrantedId {
        mdt: MdtIndex(before),
        grant: Grant(u64::MAX),
        serial: u64::MAX,
    });
    let mut found = Vec::new();
    let mut asking: JoinSet<(GrantedId, Result<StatObjectReply, CallError>)> = JoinSet::new();
    let mut take = |asked: (GrantedId, Result<StatObjectReply, CallError>)| -> anyhow::Result<()> {
        news.add(1);
        match asked {
            (chunk, Ok(stat)) => {
                let (length, owner) = (stat.length, stat.owner);
                found.push(FoundObject { ost, chunk, length, owner });
            }
            (chunk, Err(CallError::Refused(failure)))
                if matches!(failure.kind, ErrorKind::Gone | ErrorKind::Corrupt) =>
            {
                uncertain.push(format!("object {chunk}: {failure}"));
            }
            (_, Err(error)) => return Err(error.into()),
        }
        Ok(())
    };
    loop {
        let ask = ListObjects { ost, after, limit: LISTED };
        let (page, _) = tieline_net::call(&*channel, &caller, ask, Bulk::Empty, patience).await?;
        for &chunk in page.chunks.iter().filter(|chunk| chunk.mdt == mdt) {
            if asking.len() >= AT_ONCE
                && let Some(asked) = asking.join_next().await
            {
                take(asked?)?;
            }
            asking.spawn(stat(channel.clone(), ost, chunk));
        }
        after = page.chunks.last().copied();
        if page.is_end || after.is_none_or(|last| last.mdt > mdt) {
            break;
        }
    }
    while let Some(asked) = asking.join_next().await {
        take(asked?)?;
    }
    Ok(found)
}

async fn stat(
    channel: Arc<dyn Channel>,
    ost: OstIndex,
    chunk: GrantedId,
) -> (GrantedId, Result<StatObjectReply, CallError>) {
    let (ask, caller) = (StatObject { ost, chunk }, Caller::root());
    let asked = tieline_net::call(&*channel, &caller, ask, Bulk::Empty, Some(PATIENCE)).await;
    (chunk, asked.map(|(stat, _)| stat))
}
