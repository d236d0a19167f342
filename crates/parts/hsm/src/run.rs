//! One script: started in a process group of its own, listened to, and killed if it must be.

use crate::Error;
use crate::error::meaning;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// What a script may print: far more than URIs need.
const OUTPUT_MAX: usize = 64 << 10;
/// The end of what it complains of is told on.
const COMPLAINT_MAX: usize = 512;
/// Output that is on its way when the script has ended; something it left behind may hold it open.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Kills the group of a script that has not ended.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.take() {
            // It may have ended just now.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

pub async fn run(
    script: &Path,
    arguments: &[OsString],
    directory: &Path,
    time: Duration,
) -> Result<Vec<u8>, Error> {
    let start = |source| Error::Start { path: script.to_owned(), source };
    let mut command = Command::new(script);
    command.args(arguments).current_dir(directory).process_group(0).kill_on_drop(true);
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("LANG", "C.UTF-8");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let leader = child.id().and_then(|id| Pid::from_raw(id as i32));
    let mut group = Group(leader);
    let late = || Error::Late { path: script.to_owned(), time };
    let heard = tokio::time::timeout(time, hear(&mut child)).await.map_err(|_| late())?;
    let (status, output, complaint) = heard.map_err(start)?;
    // A script that was waited for has no number any more that is surely its own.
    group.0 = None;
    let Some(status) = status else {
        group.0 = leader;
        return Err(Error::Talks { path: script.to_owned(), limit: OUTPUT_MAX });
    };
    if status.success() { Ok(output) } else { Err(failed(script, status, &complaint)) }
}

/// Until it ends. No status: it said too much.
async fn hear(child: &mut Child) -> std::io::Result<(Option<ExitStatus>, Vec<u8>, Vec<u8>)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let status = {
        let both = async {
            let output = listen(stdout, &mut output, OUTPUT_MAX, false);
            tokio::join!(output, listen(stderr, &mut complaint, COMPLAINT_MAX, true)).0
        };
        tokio::pin!(both);
        let ended = tokio::select! {
            biased;
            is_all = &mut both => match is_all {
                true => None,
                false => return Ok((None, Vec::new(), Vec::new())),
            },
            status = child.wait() => Some(status?),
        };
        match ended {
            Some(status) => {
                // What was said is what counts, also if something is left that could say more.
                if let Ok(false) = tokio::time::timeout(LAST_WORDS, &mut both).await {
                    return Ok((None, Vec::new(), Vec::new()));
                }
                status
            }
            None => child.wait().await?,
        }
    };
    Ok((Some(status), output, complaint))
}

/// Reads to the end: no more than `max` bytes, or the last of them. Says whether that was all.
async fn listen(
    from: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    max: usize,
    keeps_last: bool,
) -> bool {
    let Some(mut from) = from else { return true };
    let mut buffer = [0; 4096];
    // A pipe that cannot be read has nothing more to say.
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        into.extend(buffer.iter().take(length));
        if into.len() > max {
            if !keeps_last {
                return false;
            }
            into.drain(..into.len() - max);
        }
    }
    true
}

fn failed(script: &Path, status: ExitStatus, complaint: &[u8]) -> Error {
    let end = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}{}", meaning(code)),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    };
    let complaint = String::from_utf8_lossy(complaint);
    let words: Vec<&str> = complaint.split_whitespace().collect();
    let said = match words.join(" ") {
        nothing if nothing.is_empty() => String::new(),
        text => format!(": {}", text.replace(char::is_control, "?")),
    };
    Error::Failed { path: script.to_owned(), code: status.code(), end, said }
}
