//! `tieline setstripe`, with the meanings of `lfs setstripe`.
//!
//! On a directory it sets what new files inherit; on a new name it makes an empty file; on a file
//! without bytes it changes where they will go; a file that has bytes is refused.

use crate::location::Location;
use crate::report::Usage;
use crate::shell::{self, Shell, is_not_found};
use anyhow::{Context, bail};
use std::ffi::OsString;
use tieline_client::NewNode;
use tieline_types::{ByteSize, FileKind, Layout, Mode, StripeCount};
use tieline_wire::meta::{LayoutChange, PoolChoice};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Over how many OSTs: -1 for all
    #[arg(short = 'c', long, allow_hyphen_values = true, value_name = "N")]
    stripe_count: Option<i32>,
    /// Bytes on one OST before the next, such as 4M
    #[arg(short = 'S', long, value_name = "SIZE")]
    stripe_size: Option<ByteSize>,
    /// Only OSTs of this pool; `none` for any
    #[arg(short = 'p', long, value_name = "POOL")]
    pool: Option<String>,
    /// raid0: small files on OSTs too; mdt: small files in the metadata
    #[arg(short = 'L', long, value_name = "raid0|mdt", value_parser = ["raid0", "mdt"])]
    layout: Option<String>,
    /// Bytes of one chunk
    #[arg(long, value_name = "SIZE")]
    chunk_size: Option<ByteSize>,
    /// Back to what the parent directory says
    #[arg(short = 'd', long)]
    delete: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::verbs::log_start();
    let change = args.change()?;
    let (first, all) = crate::verbs::locations(&args.paths)?;
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
                "it has bytes already: set the layout of its directory, and copy it to a new name"
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
    let at = tieline_client::At { parent: parent.id, name: &name };
    let umask = Mode::new(crate::process::umask());
    let node = NewNode { kind: FileKind::Regular, mode: Mode::new(0o666), umask, device: 0 };
    Ok(shell.files.make_node(&shell.caller, at, node).await?.attributes.id)
}

impl Args {
    /// `None`: back to the parent's.
    fn change(&self) -> Result<Option<LayoutChange>, Usage> {
        let is_empty = self.stripe_count.is_none()
            && self.stripe_size.is_none()
            && self.pool.is_none()
            && self.layout.is_none()
            && self.chunk_size.is_none();
        if self.delete {
            return match is_empty {
                true => Ok(None),
                false => Err(Usage("-d takes everything back: it stands alone".into())),
            };
        }
        let pool = match self.pool.as_deref() {
            None => None,
            Some("none" | "") => Some(PoolChoice::Any),
            Some(name) => {
                // Lustre's people write FS.POOL here too.
                let name = name.rsplit_once('.').map_or(name, |(_, pool)| pool);
                Some(PoolChoice::Pool(name.parse().map_err(|e| Usage(format!("-p: {e}")))?))
            }
        };
        Ok(Some(LayoutChange {
            stripe_count: self.stripe_count.map(stripe_count).transpose()?,
            stripe_size: self.stripe_size.map(|size| bytes("-S", size)).transpose()?,
            pool,
            mirrors: None,
            sync: None,
            inline_limit: self.layout.as_deref().map(inline_limit),
            chunk_size: self.chunk_size.map(|size| bytes("--chunk-size", size)).transpose()?,
        }))
    }
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
        assert!(change("-d -c 1 /d").is_err());
        assert!(change("-S 4G /d").is_err());
        assert!(change("-c -2 /d").is_err());
    }
}
