//! `tieline hsm archive|release|restore|state`: files to tape and back, with the words of `lfs
//! hsm_…`.
//!
//! All files are wished for first, and then waited for: so a tape library can bring them in its own
//! order. The work is the servers': whoever interrupts the command interrupts nothing else.
//!
//! * `state`: how a file stands to tape, for people and programs.
//! * `wait`: until what was wished is so.

mod state;
mod wait;

use crate::list::listed;
use crate::shell::{self, Shell};
use anyhow::bail;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use tieline_base::report::chain;
use tieline_base::show;
use tieline_types::{FileId, FileKind, TapeWish};
use tieline_wire::tape::{AskTape, GetTape, GiveUpBytes};

/// Extents in one step of a release.
const PAGE: u32 = 512;

#[derive(clap::Subcommand, Debug)]
pub enum Hsm {
    /// Put files on tape as they are now
    Archive(Wished),
    /// Have OSTs give up what tape has: the files become NEARLINE
    Release(Files),
    /// Bring released files back
    Restore(Wished),
    /// Show how files stand to tape
    State(Files),
}

#[derive(clap::Args, Debug)]
pub struct Wished {
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Debug)]
pub struct Files {
    /// All files below directories
    #[arg(short, long)]
    recursive: bool,
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    files: Vec<OsString>,
}

pub fn run(verb: Hsm) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Hsm::Archive(args) => wish(args, TapeWish::Archive),
        Hsm::Restore(args) => wish(args, TapeWish::Restore),
        Hsm::Release(files) => each(files, "release", async |shell, told| {
            told.each("release", async |one| release(shell, one).await).await;
        }),
        Hsm::State(files) => each(files, "look at", async |shell, told| {
            told.each("look at", async |one| {
                let reply = shell.volume.ask(&shell.caller, one.id, GetTape { id: one.id }).await?;
                Ok(Said { text: state::text(&reply), json: state::json(&reply) })
            })
            .await;
        }),
    }
}

/// A file that was named, or found.
struct One {
    path: Vec<u8>,
    id: FileId,
    size: u64,
}

impl One {
    fn shown(&self) -> String {
        String::from_utf8_lossy(&show::printed(&self.path)).into_owned()
    }
}

/// What is said of a file, without its path.
struct Said {
    text: String,
    json: Value,
}

/// Files, and what became of them.
struct Told {
    files: Vec<One>,
    is_json: bool,
    values: Vec<Value>,
    bad: usize,
}

impl Told {
    /// One after the other.
    async fn each(&mut self, verb: &str, work: impl AsyncFn(&One) -> anyhow::Result<Said>) {
        for one in std::mem::take(&mut self.files) {
            let outcome = work(&one).await;
            self.tell(verb, &one, outcome);
        }
    }

    fn tell(&mut self, verb: &str, one: &One, outcome: anyhow::Result<Said>) {
        match outcome {
            Ok(Said { json, .. }) if self.is_json => {
                self.values.push(show::with_bytes(json, "path", &one.path));
            }
            Ok(Said { text, .. }) => {
                let line = [&show::printed(&one.path)[..], b": ", text.as_bytes(), b"\n"].concat();
                // A reader that has gone has heard enough.
                let _ = io::stdout().write_all(&line);
            }
            Err(error) => {
                let why = chain(error.as_ref());
                eprintln!("tieline: cannot {verb} {}: {why}", one.shown());
                if self.is_json {
                    let json = json!({ "error": why });
                    self.values.push(show::with_bytes(json, "path", &one.path));
                }
                self.bad += 1;
            }
        }
    }
}

fn each(args: Files, verb: &str, work: impl AsyncFn(&Arc<Shell>, &mut Told)) -> anyhow::Result<()> {
    let (first, all) = crate::locations(&args.files)?;
    shell::run(&first, |shell| async move {
        let mut told = Told { files: vec![], is_json: args.json, values: vec![], bad: 0 };
        for location in &all {
            let at = &location.typed;
            let found = gather(&shell, (&location.path, at), args.recursive, &mut told.files);
            if let Err(error) = found.await {
                let one = One { path: at.clone(), id: FileId::default(), size: 0 };
                told.tell(verb, &one, Err(error));
            }
        }
        let count = told.files.len() + told.bad;
        work(&shell, &mut told).await;
        if told.is_json {
            writeln!(io::stdout(), "{}", Value::Array(told.values))?;
        }
        match told.bad {
            0 => Ok(()),
            bad => bail!("{bad} of {count} files are not in order"),
        }
    })
}

/// The regular file at a path, or all below a directory.
async fn gather(
    shell: &Shell,
    (path, typed): (&[u8], &[u8]),
    is_recursive: bool,
    files: &mut Vec<One>,
) -> anyhow::Result<()> {
    let entry = shell.resolve(path, true).await?;
    let mut todo = vec![];
    match entry.attributes.kind {
        FileKind::Regular => {
            let (id, size) = (entry.attributes.id, entry.attributes.size);
            files.push(One { path: typed.to_vec(), id, size });
        }
        FileKind::Directory if is_recursive => {
            let stem = typed.strip_suffix(b"/").unwrap_or(typed);
            todo.push((stem.to_vec(), entry.attributes.id));
        }
        FileKind::Directory => bail!("it is a directory: say -r for all files below"),
        _ => bail!("it is no regular file: only those go to tape"),
    }
    while let Some((path, directory)) = todo.pop() {
        for entry in listed(shell, directory).await? {
            let path = show::below(&path, &entry.name);
            match entry.kind {
                FileKind::Regular => {
                    let known = shell.files.attributes(&shell.caller, entry.id).await?;
                    let size = known.attributes.size;
                    files.push(One { path, id: entry.id, size });
                }
                FileKind::Directory => todo.push((path, entry.id)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn wish(args: Wished, wish: TapeWish) -> anyhow::Result<()> {
    let verb = wish.to_string();
    let no_wait = args.no_wait;
    each(args.files, &verb.clone(), async move |shell, told| {
        let mut wished = vec![];
        for one in std::mem::take(&mut told.files) {
            match shell.volume.ask(&shell.caller, one.id, AskTape { id: one.id, wish }).await {
                Ok(reply) => wished.push((one, reply)),
                Err(error) => told.tell(&verb, &one, Err(error.into())),
            }
        }
        if no_wait {
            for (one, reply) in wished {
                let said = Said { text: state::text(&reply), json: state::json(&reply) };
                told.tell(&verb, &one, Ok(said));
            }
            return;
        }
        wait::all(shell, wish, wished, told).await;
    })
}

/// Gives up a page after the other.
async fn release(shell: &Shell, one: &One) -> anyhow::Result<Said> {
    let (mut offset, mut released, mut kept) = (0, 0, 0);
    loop {
        let message = GiveUpBytes { id: one.id, offset, limit: PAGE };
        let reply = shell.volume.ask(&shell.caller, one.id, message).await?;
        released += reply.released;
        kept += reply.kept;
        if reply.is_done {
            break;
        }
        offset = reply.covered;
    }
    let json = json!({ "bytes_released": released, "bytes_kept": kept });
    let text = match kept {
        0 => format!("{released} bytes released"),
        kept => format!(
            "{released} bytes released; {kept} stay on disk, since other files have them too, they \
             were written over in part, or they lie in adopted files"
        ),
    };
    Ok(Said { text, json })
}
