//! The socket on which orders come: one line in, one line out.
//!
//! A line is an [`Order`], or `script STEP…`; in front of both may stand which link is meant. The
//! answer is JSON, or `error: ` and why not.
//!
//! Invariant: whoever connects and says nothing is left after [`PATIENCE`].

use crate::Error;
use crate::quality::WordError;
use crate::relay::Desk;
use crate::script::Script;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line.
const LINE_MAX: u64 = 1 << 20;
const REFUSED: &str = "error: ";

/// Takes orders at `path`, in a thread of its own.
pub(crate) fn listen(desk: Desk, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Socket { path: path.display().to_string(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One after the other: people and tests do not order at once.
            let _ = serve(&desk, &stream);
        }
    });
    Ok(())
}

fn serve(desk: &Desk, stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream).take(LINE_MAX).read_line(&mut line)?;
    let answer = match obey(desk, line.trim()) {
        Ok(answer) => answer,
        Err(error) => format!("{REFUSED}{error}"),
    };
    writeln!(&mut &*stream, "{answer}")
}

fn obey(desk: &Desk, line: &str) -> Result<String, WordError> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let (link, rest) = match words[..] {
        ["link", name, rest] => (Some(name), rest),
        _ => (None, line),
    };
    let steps = rest.strip_prefix("script").filter(|steps| !steps.starts_with(|c| c != ' '));
    let Some(steps) = steps else { return desk.ask(line.parse()?) };
    let mut script: Script = steps.parse()?;
    for (_, order) in script.steps.iter_mut().filter(|_| link.is_some()) {
        order.link = link.map(str::to_owned);
    }
    desk.play(script)?;
    desk.ask("show".parse()?)
}

/// Gives the relay at `path` an order; its answer.
pub fn ask(path: &Path, line: &str) -> Result<String, Error> {
    let shown = || path.display().to_string();
    let stream =
        UnixStream::connect(path).map_err(|source| Error::Nobody { path: shown(), source })?;
    let failed = |source| Error::Socket { path: shown(), source };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    writeln!(&mut &stream, "{line}").map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(failed)?;
    match answer.trim_end().strip_prefix(REFUSED) {
        Some(why) => Err(Error::Refused(why.to_owned())),
        None => Ok(answer.trim_end().to_owned()),
    }
}
