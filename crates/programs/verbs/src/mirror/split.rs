//! `tieline mirror split`: one copy of each chunk goes.
//!
//! First all of the file is looked through, and of what stays each chunk is read where it lies: a
//! file is not left with a copy that nobody knew to be bad. Then the copies go, page by page.

use super::verify::{State, concluded};
use super::{Files, Outcome};
use crate::progress::Progress;
use crate::shell::Shell;
use crate::{ost, setstripe};
use anyhow::bail;
use serde_json::json;
use std::sync::Arc;
use tieline_base::report::Usage;
use tieline_types::{Attributes, Layout, OstIndex, PoolName};
use tieline_wire::mirrors::{GoneCopy, SplitMirror, SplitMirrorReply};
use tokio::task::JoinSet;

/// Extents in one call.
const PAGE: u32 = 256;
/// Chunks whose copies are looked at at once.
const AT_ONCE: usize = 8;

#[derive(clap::Args, Debug)]
pub struct Split {
    /// The copy on OSTs of this pool
    #[arg(short = 'p', long, value_name = "POOL")]
    pool: Option<String>,
    /// The copy on this OST, such as OST0003 or 3
    #[arg(long, value_name = "OST", conflicts_with = "pool")]
    ost: Option<String>,
    /// This mirror, from 1, in the order of `getstripe`; without any of these the last one
    #[arg(long, value_name = "ID", conflicts_with_all = ["pool", "ost"],
        value_parser = clap::value_parser!(u8).range(1..))]
    mirror_id: Option<u8>,
    /// As in `lfs`; the copy is freed also without it, for it cannot be a file of its own
    #[arg(short = 'd', long)]
    destroy: bool,
    /// Do not read first what stays, but believe what is known of it
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    pub(super) files: Files,
}

/// Which copy goes.
#[derive(Clone, Debug)]
pub enum Choice {
    Pool(PoolName),
    Ost(OstIndex),
    /// From 0.
    Mirror(u8),
    Last,
}

impl Split {
    pub fn choice(&self) -> Result<Choice, Usage> {
        if let Some(name) = &self.pool {
            let pool = setstripe::pool(name)?;
            return pool.map(Choice::Pool).ok_or_else(|| Usage("-p: name a pool".into()));
        }
        if let Some(word) = &self.ost {
            return Ok(Choice::Ost(ost::single(word)?));
        }
        Ok(self.mirror_id.map_or(Choice::Last, |id| Choice::Mirror(id.saturating_sub(1))))
    }

    pub fn verifies(&self) -> bool {
        !self.no_verify
    }
}

pub async fn split(
    shell: &Arc<Shell>,
    path: &str,
    attributes: &Attributes,
    choice: &Choice,
    verifies: bool,
) -> anyhow::Result<Outcome> {
    let id = attributes.id;
    let force = shell.files.layout(&shell.caller, id).await?;
    let (mirror, within) = resolved(shell, choice, &force.layout, &force.stripe)?;
    let mirrors = force.layout.mirrors;
    let wish = SplitMirror { id, mirrors, mirror, within, offset: 0, limit: PAGE, is_look: true };
    let mut progress = Progress::new(path, 0);
    let (mut looked, mut shared) = (0, 0);
    each_page(shell, &wish, async |reply| {
        looked += reply.gone.len();
        shared += reply.shared;
        if verifies { whole(shell, reply.gone, &mut progress).await } else { Ok(()) }
    })
    .await?;
    progress.end();
    if looked == 0 && shared == 0 && attributes.size > 0 && wish.within.is_some() {
        let has_chunks = !shell.files.extents(&shell.caller, id, 0).await?.extents.is_empty();
        let is_placed = force.stripe.iter().any(|ost| is_within(&wish, *ost));
        if has_chunks && !is_placed && !force.stripe.is_empty() {
            bail!("no copy of it is there: `tieline getstripe` shows where they are");
        }
    }
    let (mut chunks, mut bytes) = (0u64, 0u64);
    each_page(shell, &SplitMirror { is_look: false, ..wish }, async |reply| {
        chunks += reply.gone.len() as u64;
        bytes += reply.gone.iter().map(|copy| copy.chunk.length).sum::<u64>();
        Ok(())
    })
    .await?;
    let left = mirrors - 1;
    let mut text = format!("{chunks} chunks, {bytes} bytes given up, mirrors left: {left}");
    if shared > 0 {
        text += &format!("; {shared} chunks that other files have too keep their copies");
    }
    let json = json!({
        "chunks": chunks, "bytes_freed": bytes, "shared": shared, "mirrors": left,
    });
    Ok(Outcome { json, text, is_bad: false })
}

fn is_within(wish: &SplitMirror, ost: OstIndex) -> bool {
    wish.within.as_ref().is_none_or(|within| within.contains(&ost))
}

/// The number of the mirror that goes, from 0, and the OSTs that its copies must be on.
fn resolved(
    shell: &Shell,
    choice: &Choice,
    layout: &Layout,
    stripe: &[OstIndex],
) -> anyhow::Result<(u8, Option<Vec<OstIndex>>)> {
    let (mirrors, map) = (layout.mirrors, shell.files.map());
    if mirrors <= 1 {
        bail!("it has one copy only: there is none to split from it");
    }
    let osts_of = |name: &PoolName| map.pool(name).map(|pool| pool.osts.clone());
    // Where mirrors have pools of their own, copies are known by these.
    let within_of = |mirror: u8| match &layout.mirror_pools {
        Some(_) => {
            let pool = layout.pool_of_mirror(mirror.into())?;
            let others = (0..mirrors).filter(|other| *other != mirror);
            let mut pools = others.map(|other| layout.pool_of_mirror(other.into()));
            let is_only = pools.all(|other| other != Some(pool));
            osts_of(pool).filter(|_| is_only)
        }
        None => None,
    };
    match choice {
        Choice::Last => Ok((mirrors - 1, within_of(mirrors - 1))),
        Choice::Mirror(mirror) if *mirror < mirrors => Ok((*mirror, within_of(*mirror))),
        Choice::Mirror(mirror) => {
            bail!("it has {mirrors} mirrors, and none with the number {}", u16::from(*mirror) + 1)
        }
        Choice::Pool(name) => {
            let Some(osts) = osts_of(name) else {
                bail!("pool {name} does not exist: list pools with `tieline pool list`");
            };
            let named = (0..mirrors)
                .rev()
                .find(|mirror| layout.pool_of_mirror((*mirror).into()) == Some(name));
            let mirror = match named {
                Some(mirror) => mirror,
                None => position(layout, stripe, |ost| osts.contains(&ost)).unwrap_or(mirrors - 1),
            };
            Ok((mirror, Some(osts)))
        }
        Choice::Ost(ost) => {
            let is_wide = layout.columns(stripe) > 1;
            if is_wide {
                bail!(
                    "its copies go round several OSTs, and one OST has parts of them only: say \
                     --mirror-id or --pool"
                );
            }
            let mirror = position(layout, stripe, |other| other == *ost);
            Ok((mirror.unwrap_or(mirrors - 1), Some(vec![*ost])))
        }
    }
}

/// The mirror, from 0, that is on such OSTs in the first column; the last if there are several.
fn position(layout: &Layout, stripe: &[OstIndex], fits: impl Fn(OstIndex) -> bool) -> Option<u8> {
    let column = layout.column(0, stripe);
    column.iter().rposition(|ost| fits(*ost)).and_then(|at| u8::try_from(at).ok())
}

/// Asks for all pages of the file.
async fn each_page(
    shell: &Shell,
    wish: &SplitMirror,
    mut seen: impl AsyncFnMut(SplitMirrorReply) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut wish = wish.clone();
    loop {
        let reply = shell.volume.split_mirror(&shell.caller, wish.clone()).await?;
        let is_done = reply.is_done;
        wish.offset = reply.covered;
        seen(reply).await?;
        if is_done {
            return Ok(());
        }
    }
}

/// Reads of each chunk the copies that stay, until one is found whole.
async fn whole(
    shell: &Arc<Shell>,
    gone: Vec<GoneCopy>,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut looking = JoinSet::new();
    for copy in gone {
        if looking.len() >= AT_ONCE {
            settled(&mut looking, progress).await?;
        }
        looking.spawn(look(shell.clone(), copy));
    }
    while !looking.is_empty() {
        settled(&mut looking, progress).await?;
    }
    Ok(())
}

async fn settled(
    looking: &mut JoinSet<anyhow::Result<u64>>,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    if let Some(found) = looking.join_next().await {
        let bytes = found??;
        progress.widen(bytes);
        progress.add(bytes);
    }
    Ok(())
}

async fn look(shell: Arc<Shell>, copy: GoneCopy) -> anyhow::Result<u64> {
    let mut why = String::new();
    for place in copy.chunk.at_osts().filter(|place| !place.is_stale) {
        let found = shell.volume.verify_place(&place).await;
        match concluded(&shell, &copy.chunk, &place, found).await {
            State::Good => return Ok(copy.chunk.length),
            State::Bad(reason) | State::Unknown(reason) => {
                why = format!("{}: {reason}", place.ost.label());
            }
        }
    }
    bail!(
        "chunk {} at {} would have no whole copy without that on {} ({why}): have the others made \
         with `tieline mirror resync` first, or split another",
        copy.chunk.chunk,
        copy.offset,
        copy.ost.label()
    )
}
