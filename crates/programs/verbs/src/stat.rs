//! `tieline stat`.

use crate::known;
use crate::shell;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::show;
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
    crate::log_start();
    let (first, all) = crate::locations(&args.paths)?;
    let mut seen = Vec::new();
    if known::away(&first).is_some() {
        for path in all.iter().filter_map(known::path) {
            seen.push(known::attributes(&path, args.follow)?);
        }
    } else {
        let (follows, wanted) = (args.follow, all.clone());
        seen = shell::run(&first, |shell| async move {
            let mut seen = Vec::new();
            for location in &wanted {
                seen.push(shell.resolve(&location.path, follows).await?.attributes);
            }
            Ok(seen)
        })?;
    }
    let mut out = io::stdout().lock();
    let rows = all.iter().map(|location| &location.typed).zip(&seen);
    if args.json {
        let values = rows.map(|(path, attributes)| show::attributes_json(path, attributes));
        writeln!(out, "{}", Value::Array(values.collect()))?;
        return Ok(());
    }
    for (path, attributes) in rows {
        text(&mut out, path, attributes)?;
    }
    Ok(())
}

fn text(out: &mut dyn Write, path: &[u8], attributes: &Attributes) -> io::Result<()> {
    let a = attributes;
    out.write_all(&[b"  file: ", &show::printed(path)[..], b"\n"].concat())?;
    writeln!(out, "  kind: {}, on {}", show::kind(a.kind), a.id.mdt().label())?;
    writeln!(out, "  size: {} ({} stored)", a.size, ByteSize(a.stored))?;
    // What a mount tells while servers are away lacks some of it.
    let version = if a.version.0 == 0 { "unknown".to_owned() } else { a.version.to_string() };
    writeln!(out, " inode: {}, links {}, version {version}", a.id.0, a.links)?;
    writeln!(out, " owner: {}:{}, {} ({:04o})", a.uid, a.gid, show::mode(a), a.mode.bits())?;
    writeln!(out, "access: {}", a.atime)?;
    writeln!(out, "modify: {}", a.mtime)?;
    writeln!(out, "change: {}", a.ctime)?;
    let is_known = a.btime.seconds != 0;
    writeln!(out, " birth: {}", if is_known { a.btime.to_string() } else { "unknown".to_owned() })
}
