//! Orders to a machine that runs, over QEMU's control socket (QMP: a line of JSON each way).

use super::qemu::CONTROL;
use super::running::Running;
use crate::tools;
use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Events may come before an answer; so many lines are read for one.
const LINES_MAX: usize = 100;
const LINE_MAX: u64 = 64 << 10;
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// `tieline vm stop`.
pub fn stop(folder: &Path, name: &str, force: bool, patience: Duration) -> anyhow::Result<()> {
    let Some(running) = Running::of(folder) else {
        println!("{name} does not run");
        return Ok(());
    };
    if force {
        running.process.signal(Signal::KILL);
        if !running.process.wait_end(KILL_PATIENCE) {
            bail!("{name} (pid {}) does not end, though it was killed", running.process.pid);
        }
        println!("{name} is off: its plug was pulled");
        return Ok(());
    }
    order(folder, "system_powerdown").with_context(|| format!("cannot tell {name} to end"))?;
    if !running.process.wait_end(patience) {
        let said = tools::last_lines(&super::running::console_log(folder), 5);
        let seconds = patience.as_secs();
        bail!("{name} still runs after {seconds} s: --within, or --force; it last said\n{said}");
    }
    println!("{name} is off");
    Ok(())
}

/// Gives an order, and waits until it is taken.
fn order(folder: &Path, what: &str) -> anyhow::Result<()> {
    // The path of a socket is short; by its folder's descriptor it always is.
    let held = File::open(folder)?;
    let path = format!("/proc/self/fd/{}/{CONTROL}", held.as_raw_fd());
    let stream = UnixStream::connect(path).context("cannot reach its QEMU")?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    line(&mut reader).context("its QEMU says nothing")?;
    for order in ["qmp_capabilities", what] {
        writeln!(stream, "{}", json!({ "execute": order }))?;
        answer(&mut reader).with_context(|| order.to_owned())?;
    }
    Ok(())
}

/// What QEMU answers to an order; events before it are none.
pub fn answer(reader: &mut impl BufRead) -> anyhow::Result<()> {
    for _ in 0..LINES_MAX {
        let value: Value = serde_json::from_str(&line(reader)?)?;
        if value.get("return").is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            bail!("{}", error["desc"].as_str().unwrap_or("refused"));
        }
    }
    bail!("no answer among {LINES_MAX} lines")
}

fn line(reader: &mut impl BufRead) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = reader.take(LINE_MAX).read_line(&mut text)?;
    match read {
        0 => bail!("it has closed the line"),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_among_events() {
        let said = "{\"event\": \"RTC_CHANGE\"}\n{\"return\": {}}\n";
        answer(&mut said.as_bytes()).unwrap();
        let refused = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"not now\"}}\n";
        assert_eq!(answer(&mut refused.as_bytes()).unwrap_err().to_string(), "not now");
        assert!(answer(&mut &b""[..]).is_err());
        assert!(answer(&mut &b"[1"[..]).is_err());
        let events = "{\"event\": 1}\n".repeat(LINES_MAX + 1);
        assert!(answer(&mut events.as_bytes()).unwrap_err().to_string().contains("among"));
    }

    proptest::proptest! {
        #[test]
        fn no_answer_is_too_odd(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = answer(&mut &bytes[..]);
        }
    }
}
