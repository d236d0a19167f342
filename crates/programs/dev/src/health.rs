//! Asking a process how it is: `GET /health` at its admin address, from within its network
//! namespace.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
/// A health report is small.
const ANSWER_MAX: u64 = 64 << 10;

/// What `/health` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub is_ready: bool,
    pub report: Value,
}

impl Health {
    /// Some part works worse than it should.
    pub fn is_degraded(&self) -> bool {
        self.report["degraded"].as_array().is_some_and(|parts| !parts.is_empty())
    }
}

/// Asks; `None` if nobody answers.
pub fn ask(admin: &str, netns: Option<&Path>) -> Option<Health> {
    let admin: SocketAddr = admin.parse().ok()?;
    let Some(netns) = netns else { return ask_here(admin) };
    // A thread of its own: it stays in the namespace it entered.
    std::thread::scope(|scope| {
        let thread = scope
            .spawn(|| tieline_machine::namespace::enter(netns).ok().and_then(|()| ask_here(admin)));
        thread.join().ok().flatten()
    })
}

fn ask_here(admin: SocketAddr) -> Option<Health> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).ok()?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> Option<Health> {
    let status = answer.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let report = serde_json::from_str(body.trim()).unwrap_or(Value::Null);
    Some(Health { is_ready: status == "200", report })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_ready_or_not() {
        let ready = parse("HTTP/1.1 200 OK\r\nx: y\r\n\r\n{\"ready\":true}").unwrap();
        assert!(ready.is_ready);
        assert_eq!(ready.report["ready"], true);
        assert!(!parse("HTTP/1.1 503 Unavailable\r\n\r\n{}").unwrap().is_ready);
        assert!(parse("").is_none());
    }
}
