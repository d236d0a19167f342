//! `tieline checksum`: the Adler-32 that grid catalogues keep, combined by the servers' records
//! where they can be.

use crate::shell;
use anyhow::Context;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which checksum
    #[arg(short = 't', long = "type", default_value = "adler32", value_parser = ["adler32"])]
    kind: String,
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    files: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::verbs::log_start();
    let (first, all) = crate::verbs::locations(&args.files)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        let mut values = Vec::new();
        for location in &all {
            let entry = shell.resolve(&location.path, true).await?;
            let sum = shell.files.adler32(&shell.caller, entry.attributes.id).await;
            let sum = sum.with_context(|| format!("cannot sum up {}", location.text))?;
            let sum = format!("{sum:08x}");
            if args.json {
                values.push(json!({ "path": location.text, "type": args.kind, "value": sum }));
            } else {
                writeln!(out, "{sum}  {}", location.text)?;
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(values))?;
        }
        Ok(())
    })
}
