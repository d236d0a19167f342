//! `tieline stat`.

use crate::shell;
use crate::verbs::show;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_types::{Attributes, ByteSize};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// What symlinks lead to, not the links
    #[arg(short = 'L')]
    follow: bool,
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::verbs::log_start();
    let (first, all) = crate::verbs::locations(&args.paths)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        let mut values = Vec::new();
        for location in &all {
            let entry = shell.resolve(&location.path, args.follow).await?;
            if args.json {
                values.push(show::attributes_json(&location.text, &entry.attributes));
            } else {
                text(&mut out, &location.text, &entry.attributes)?;
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(values))?;
        }
        Ok(())
    })
}

fn text(out: &mut dyn Write, path: &str, attributes: &Attributes) -> io::Result<()> {
    let a = attributes;
    writeln!(out, "  file: {path}")?;
    writeln!(out, "  kind: {}, on {}", show::kind(a.kind), a.id.mdt().label())?;
    writeln!(out, "  size: {} ({} stored)", a.size, ByteSize(a.stored))?;
    writeln!(out, " inode: {}, links {}, version {}", a.id.0, a.links, a.version)?;
    writeln!(out, " owner: {}:{}, {} ({:04o})", a.uid, a.gid, show::mode(a), a.mode.bits())?;
    writeln!(out, "access: {}", show::time(a.atime))?;
    writeln!(out, "modify: {}", show::time(a.mtime))?;
    writeln!(out, "change: {}", show::time(a.ctime))?;
    writeln!(out, " birth: {}", show::time(a.btime))
}
