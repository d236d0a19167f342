//! `tieline checksum`: the Adler-32 that grid catalogues keep, combined by the servers' records
//! where they can be; others ([`kind`]) by reading the file.

pub mod kind;

use self::kind::{Kind, Summing, hex};
use crate::fetch;
use crate::progress::Progress;
use crate::shell::{self, Shell};
use anyhow::Context;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::show;
use tieline_types::Attributes;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which checksum: adler32 costs nothing, for the others the file is read
    #[arg(short = 't', long = "type", default_value = "adler32")]
    #[arg(value_parser = ["adler32", "md5", "crc32c", "zcrc32"])]
    kind: String,
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    files: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.files)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        let mut values = Vec::new();
        for location in &all {
            let entry = shell.resolve(&location.path, true).await?;
            let sum = sum_up(&shell, &args.kind, (&location.text, &entry.attributes)).await;
            let sum = sum.with_context(|| format!("cannot sum up {}", location.text))?;
            if args.json {
                values.push(show::with_bytes(
                    json!({ "type": args.kind, "value": sum }),
                    "path",
                    &location.typed,
                ));
            } else {
                let path = show::printed(&location.typed);
                out.write_all(&[sum.as_bytes(), b"  ", &path, b"\n"].concat())?;
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(values))?;
        }
        Ok(())
    })
}

async fn sum_up(
    shell: &Shell,
    kind: &str,
    (path, attributes): (&str, &Attributes),
) -> anyhow::Result<String> {
    match Kind::named(kind) {
        None => Ok(format!("{:08x}", shell.files.adler32(&shell.caller, attributes.id).await?)),
        Some(kind) => {
            let sums = by_reading(shell, (path, attributes), &[kind]).await?;
            Ok(sums.first().map_or_else(String::new, |(_, sum)| hex(sum)))
        }
    }
}

/// Reads a file once for all of `kinds`.
pub async fn by_reading(
    shell: &Shell,
    (path, attributes): (&str, &Attributes),
    kinds: &[Kind],
) -> anyhow::Result<Vec<(Kind, Vec<u8>)>> {
    let mut summing = Summing::new(kinds);
    let mut progress = Progress::new(path, attributes.size);
    fetch::copy(shell, attributes, &mut summing, &mut progress).await?;
    progress.end();
    Ok(summing.end())
}
