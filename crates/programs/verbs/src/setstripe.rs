//! `tieline setstripe`, with the meanings of `lfs setstripe`.
//!
//! On a directory it sets what new files inherit; on a new name it makes an empty file; on a file
//! without bytes it changes where they will go; a file that has bytes is refused.

use crate::shell::{self, Shell, is_not_found};
use anyhow::{Context, bail};
use std::ffi::OsString;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_files::NewNode;
use tieline_types::{ByteSize, FileKind, Layout, Mode, OstIndex, PoolName, StripeCount};
use tieline_wire::meta::{LayoutChange, PoolChoice};

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    wishes: Wishes,
    /// Back to what the parent directory says
    #[arg(short = 'd', long)]
    delete: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// What a layout shall be.
#[derive(clap::Args, Debug)]
pub struct Wishes {
    /// Over how many OSTs: -1 for all
    #[arg(short = 'c', long, allow_hyphen_values = true, value_name = "N")]
    stripe_count: Option<i32>,
    /// Bytes on one OST before the next, such as 4M
    #[arg(short = 'S', long, value_name = "SIZE")]
    stripe_size: Option<ByteSize>,
    /// Of a file: the OST of its first chunk; -1 for any
    #[arg(short = 'i', long, allow_hyphen_values = true, value_name = "INDEX")]
    stripe_index: Option<String>,
    /// Of a file: exactly these OSTs in this order, such as 0,2 or 4-7
    #[arg(short = 'o', long, value_name = "LIST", conflicts_with = "stripe_index")]
    ost: Option<String>,
    /// Only OSTs of this pool; `none` for any. After several -N: one for each
    #[arg(short = 'p', long, value_name = "POOL")]
    pool: Vec<String>,
    /// Copies of each chunk, on different OSTs; may stand several times, each with its own -p
    #[arg(short = 'N', long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "1")]
    mirror_count: Vec<u8>,
    /// Copies that fsync and close wait for: all within a site, one across sites
    #[arg(long, value_name = "COUNT")]
    sync: Option<u8>,
    /// raid0: small files on OSTs too; mdt: small files in the metadata
    #[arg(short = 'L', long, value_name = "raid0|mdt", value_parser = ["raid0", "mdt"])]
    layout: Option<String>,
    /// Bytes of one chunk
    #[arg(long, value_name = "SIZE")]
    chunk_size: Option<ByteSize>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let change = args.change()?;
    let (first, all) = crate::locations(&args.paths)?;
    shell::run(&first, |shell| async move {
        for location in &all {
            set(&shell, location, change.clone())
                .await
                .with_context(|| format!("cannot set the layout of {}", location.text))?;
        }
        Ok(())
    })
}

async fn set(
    shell: &Shell,
    location: &Location,
    change: Option<LayoutChange>,
) -> anyhow::Result<()> {
    let id = match shell.resolve(&location.path, true).await {
        Ok(entry) => match entry.attributes.kind {
            FileKind::Directory => entry.attributes.id,
            FileKind::Regular if entry.attributes.size == 0 => entry.attributes.id,
            FileKind::Regular => bail!(
                "it has bytes already: `tieline migrate` moves them to where another layout says"
            ),
            _ => bail!("it is neither a file nor a directory"),
        },
        Err(error) if is_not_found(&error) => create(shell, location).await?,
        Err(error) => return Err(error),
    };
    shell.files.set_layout(&shell.caller, id, change).await?;
    Ok(())
}

async fn create(shell: &Shell, location: &Location) -> anyhow::Result<tieline_types::FileId> {
    let (parent, name) = shell.resolve_parent(&location.path).await?;
    let at = tieline_files::At { parent: parent.id, name: &name };
    let umask = Mode::new(tieline_machine::process::umask());
    let node = NewNode { kind: FileKind::Regular, mode: Mode::new(0o666), umask, device: 0 };
    Ok(shell.files.make_node(&shell.caller, at, node).await?.attributes.id)
}

impl Args {
    /// `None`: back to the parent's.
    fn change(&self) -> Result<Option<LayoutChange>, Usage> {
        let change = self.wishes.change()?;
        match self.delete {
            true if change == LayoutChange::default() => Ok(None),
            true => Err(Usage("-d takes everything back: it stands alone".into())),
            false => Ok(Some(change)),
        }
    }
}

impl Wishes {
    pub fn change(&self) -> Result<LayoutChange, Usage> {
        let (mirrors, pool, mirror_pools) = self.mirrors()?;
        let osts = self.osts()?;
        let listed = self.ost.as_ref().and(osts.as_ref()).map(|osts| osts.len() as u16);
        let count = self.stripe_count.map(stripe_count).transpose()?;
        if let (Some(StripeCount::Exactly(count)), Some(listed)) = (count, listed)
            && count != listed
        {
            return Err(Usage(format!("-c {count}, and {listed} OSTs with -o: leave -c out")));
        }
        Ok(LayoutChange {
            stripe_count: listed.map(StripeCount::Exactly).or(count),
            osts,
            stripe_size: self.stripe_size.map(|size| bytes("-S", size)).transpose()?,
            pool,
            mirrors,
            mirror_pools,
            sync: self.sync,
            inline_limit: self.layout.as_deref().map(inline_limit),
            chunk_size: self.chunk_size.map(|size| bytes("--chunk-size", size)).transpose()?,
            moves: None,
        })
    }

    /// The OSTs that a file begins with; `-i` names the first alone.
    fn osts(&self) -> Result<Option<Vec<OstIndex>>, Usage> {
        match (self.stripe_index.as_deref(), self.ost.as_deref()) {
            (None | Some("-1"), None) => Ok(None),
            (Some(index), _) => Ok(Some(vec![ost_index("-i", index)?])),
            (None, Some(list)) => {
                let words = list.split(',').map(ost_range).collect::<Result<Vec<_>, _>>()?;
                Ok(Some(words.concat()))
            }
        }
    }

    /// How many mirrors, and in which pools: one for all, one for each group, or one for each
    /// mirror.
    #[allow(clippy::type_complexity)]
    fn mirrors(
        &self,
    ) -> Result<(Option<u8>, Option<PoolChoice>, Option<Vec<Option<PoolName>>>), Usage> {
        let pools: Vec<Option<PoolName>> =
            self.pool.iter().map(|name| pool(name)).collect::<Result<_, _>>()?;
        let total = self.mirror_count.iter().map(|&count| usize::from(count)).sum::<usize>();
        let mirrors = u8::try_from(total).map_err(|_| Usage(format!("-N {total}: too many")))?;
        let mirrors = (!self.mirror_count.is_empty()).then_some(mirrors);
        if mirrors == Some(0) {
            return Err(Usage("-N 0: there is always one copy".into()));
        }
        if let [] | [_] = pools.as_slice() {
            let pool = pools.into_iter().next();
            return Ok((
                mirrors,
                pool.map(|pool| pool.map_or(PoolChoice::Any, PoolChoice::Pool)),
                None,
            ));
        }
        let each = if pools.len() == self.mirror_count.len() {
            let groups = pools.iter().zip(&self.mirror_count);
            groups.flat_map(|(pool, &count)| vec![pool.clone(); count.into()]).collect()
        } else if pools.len() == total {
            pools
        } else {
            let text =
                format!("{} pools for {total} mirrors: one for all, or -N -p each", pools.len());
            return Err(Usage(text));
        };
        Ok((mirrors, None, Some(each)))
    }
}

/// As Lustre takes them: decimal, 0x for hexadecimal.
fn ost_index(option: &str, word: &str) -> Result<OstIndex, Usage> {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => word.parse(),
    };
    number
        .map(OstIndex)
        .map_err(|_| Usage(format!("{option} {word}: an OST's number, as 3 or 0x3")))
}

fn ost_range(word: &str) -> Result<Vec<OstIndex>, Usage> {
    let Some((first, last)) = word.split_once('-') else { return Ok(vec![ost_index("-o", word)?]) };
    let (first, last) = (ost_index("-o", first)?, ost_index("-o", last)?);
    Ok((first.0..=last.0).map(OstIndex).collect())
}

/// `none` is any OST.
pub fn pool(name: &str) -> Result<Option<PoolName>, Usage> {
    if matches!(name, "none" | "") {
        return Ok(None);
    }
    // Lustre's people write FS.POOL here too.
    let name = name.rsplit_once('.').map_or(name, |(_, pool)| pool);
    name.parse().map(Some).map_err(|e| Usage(format!("-p: {e}")))
}

fn inline_limit(layout: &str) -> u32 {
    if layout == "mdt" { Layout::INLINE_MAX } else { 0 }
}

/// Lustre's numbers: -1 is all, 0 the default, which is one here.
fn stripe_count(count: i32) -> Result<StripeCount, Usage> {
    match count {
        -1 => Ok(StripeCount::All),
        0 => Ok(StripeCount::Exactly(1)),
        count => u16::try_from(count)
            .map(StripeCount::Exactly)
            .map_err(|_| Usage(format!("-c {count}: from 1 to 65535, or -1 for all"))),
    }
}

fn bytes(option: &str, size: ByteSize) -> Result<u32, Usage> {
    u32::try_from(size.0).map_err(|_| Usage(format!("{option} {size}: less than 4 GiB")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn change(line: &str) -> Result<Option<LayoutChange>, Usage> {
        let words = std::iter::once("x").chain(line.split(' '));
        Line::try_parse_from(words).unwrap().args.change()
    }

    #[test]
    fn lustres_words_have_lustres_meanings() {
        let all = change("-c -1 -S 1M -p extenci.uf /d").unwrap().unwrap();
        assert_eq!(all.stripe_count, Some(StripeCount::All));
        assert_eq!(all.stripe_size, Some(1 << 20));
        assert_eq!(all.pool, Some(PoolChoice::Pool("uf".parse().unwrap())));
        assert_eq!(all.inline_limit, None);
        assert_eq!(change("-L raid0 /d").unwrap().unwrap().inline_limit, Some(0));
        assert_eq!(change("-d /d").unwrap(), None);
        let two = change("-N 2 -p uf /d").unwrap().unwrap();
        assert_eq!((two.mirrors, two.mirror_pools.clone()), (Some(2), None));
        assert_eq!(two.pool, all.pool);
        let pools = |names: &[&str]| Some(names.iter().map(|name| pool(name).unwrap()).collect());
        let each = change("-N -p uf -N -p fnal --sync 2 /d").unwrap().unwrap();
        assert_eq!((each.mirrors, each.sync, each.pool), (Some(2), Some(2), None));
        assert_eq!(each.mirror_pools, pools(&["uf", "fnal"]));
        let groups = change("-N2 -p uf -N1 -p none /d").unwrap().unwrap();
        assert_eq!(groups.mirror_pools, pools(&["uf", "uf", "none"]));
        let osts = |list: &[u16]| Some(list.iter().map(|&ost| OstIndex(ost)).collect::<Vec<_>>());
        let listed = change("-o 5,0x0a,1-2 /f").unwrap().unwrap();
        assert_eq!(listed.osts, osts(&[5, 10, 1, 2]));
        assert_eq!(listed.stripe_count, Some(StripeCount::Exactly(4)));
        let begun = change("-c 2 -i 3 /f").unwrap().unwrap();
        assert_eq!((begun.osts, begun.stripe_count), (osts(&[3]), Some(StripeCount::Exactly(2))));
        assert_eq!(change("-i -1 /f").unwrap().unwrap().osts, None);
        assert!(change("-c 3 -o 1,2 /f").is_err() && change("-o x /f").is_err());
        assert!(change("-N 3 -p uf -p fnal /d").is_err());
        assert!(change("-N 0 /d").is_err());
        assert!(change("-d -c 1 /d").is_err());
        assert!(change("-S 4G /d").is_err());
        assert!(change("-c -2 /d").is_err());
    }
}
