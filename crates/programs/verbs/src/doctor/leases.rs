//! A running MDS: are there clients that do not answer it?

use super::Findings;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 4 << 20;
const SUSPENDED: &str = "tieline_sessions_suspended";
const FIX: &str = "the server's log says which (\"a recall ran out\"): is that machine asleep, \
                   overloaded or badly connected? It gets leases again by itself, after ten \
                   minutes at most";

pub fn look(admin: &str, findings: &mut Findings) {
    let Some(metrics) = ask(admin) else { return };
    match value(&metrics, SUSPENDED) {
        None => {}
        Some(0) => findings.well("leases", "all clients answer"),
        Some(count) => {
            let what = format!("{count} sessions are given no leases: recalls of theirs ran out");
            findings.doubtful("leases", what, FIX);
        }
    }
}

fn ask(admin: &str) -> Option<String> {
    let admin: SocketAddr = admin.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn value(metrics: &str, name: &str) -> Option<u64> {
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# HELP tieline_sessions_suspended Sessions\n\
                    tieline_sessions_suspended_more 9\ntieline_sessions_suspended 3\n";
        assert_eq!(value(text, SUSPENDED), Some(3));
        assert_eq!(value(text, "tieline_sessions"), None);
    }
}
