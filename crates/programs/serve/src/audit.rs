//! Who came, who was turned away, and who changed what is everybody's: a file of JSON lines.
//!
//! Each line has `time` (UTC), `server` and `event`: `authentication`, `refusal`, `proof`,
//! `delegation`, `denial` or `administration`. A denial's `id` is in the answer and in the server's
//! log, too; what was asked, of which file and from where is known by the task that answers
//! ([`asked`]). What administrators did has an `outcome` ([`deed`]).
//!
//! Lines are written by a thread of their own ([`file`]): a full disk holds nobody up. What cannot
//! be written waits; what finds no place to wait is counted, and said in the log.
//!
//! Invariant: at most [`WAITING_MAX`] lines wait.

use crate::identities::Who;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, SessionId};
use tieline_wire::{Hello, Refusal};
use tieline_world::World;

mod asked;
mod deed;
mod file;

pub use asked::Asked;
pub use deed::Deed;

use file::{LineFile, Trouble};

const WAITING_MAX: usize = 10_000;

/// For whom a door speaks from now on.
#[derive(Clone, Copy)]
pub struct Handing<'a> {
    pub who: &'a Who,
    pub door: &'a str,
    /// For people.
    pub evidence: &'a str,
    pub seconds: u64,
    pub session: SessionId,
}

/// See the module.
pub struct Audit {
    server: String,
    world: World,
    lines: Option<SyncSender<String>>,
    trouble: Trouble,
}

impl Audit {
    /// Without a file, only the log hears of it.
    pub fn new(server: String, world: World, file: Option<&Path>) -> std::io::Result<Self> {
        let mut audit = Self { server, world, lines: None, trouble: Trouble::default() };
        if let Some(path) = file {
            let file = LineFile::open(path, audit.trouble.clone())?;
            let (lines, waiting) = sync_channel(WAITING_MAX);
            std::thread::Builder::new()
                .name("audit".to_owned())
                .spawn(move || file.write_all(&waiting))?;
            audit.lines = Some(lines);
        }
        Ok(audit)
    }

    /// For `/health`: why lines are not written, if so.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.told()
    }

    /// Somebody proved to be there.
    pub fn came(&self, hello: &Hello, peer: &tieline_net::Peer, session: SessionId) {
        let Some(principal) = &peer.principal else { return };
        self.write(
            "authentication",
            json!({
                "principal": &**principal, "address": peer.address, "flavor": peer.flavor.name(),
                "role": format!("{:?}", hello.role).to_lowercase(), "session": session.0,
                "description": hello.description,
            }),
        );
    }

    /// Somebody could not prove to be anybody who is let in.
    pub fn turned_away(&self, address: &str, refusal: &Refusal) {
        let (kind, why) = (format!("{:?}", refusal.kind), &refusal.detail);
        self.write("refusal", json!({ "address": address, "kind": kind, "why": why }));
    }

    /// A user showed a ticket over a machine's connection.
    pub fn proven(&self, who: &Who, machine: Option<&str>, session: SessionId) {
        self.write(
            "proof",
            json!({
                "principal": who.principal.as_deref(), "identity": who.caller.uid.0,
                "how": who.how, "machine": machine, "session": session.0,
            }),
        );
    }

    /// A door showed that a user came to it.
    pub fn handed(&self, handing: &Handing<'_>) {
        let Handing { who, door, evidence, seconds, session } = *handing;
        let scope = who.delegation.as_ref().and_then(|one| one.scope.as_ref());
        let scope = scope.map(ToString::to_string);
        let principal = who.principal.as_deref();
        tracing::info!(principal, door, evidence, scope, seconds, "delegation");
        self.write(
            "delegation",
            json!({
                "principal": principal, "identity": who.caller.uid.0, "how": who.how,
                "door": door, "evidence": evidence, "scope": scope, "seconds": seconds,
                "until": self.time_in(seconds), "session": session.0,
            }),
        );
    }

    /// Somebody was refused: says under which id.
    pub fn denied(&self, principal: Option<&str>, kind: ErrorKind, why: &str) -> String {
        let id = format!("{:08x}", self.world.random() as u32);
        tracing::info!(denial = %id, principal, why, "denied");
        let mut fields = Asked::told();
        fields.insert("id".to_owned(), json!(id));
        fields.insert("principal".to_owned(), json!(principal));
        fields.insert("kind".to_owned(), json!(format!("{kind:?}")));
        fields.insert("why".to_owned(), json!(why));
        self.write("denial", Value::Object(fields));
        id
    }

    /// Somebody begins what only administrators may.
    pub fn begin<'a>(&'a self, who: &'a Who, what: Vec<String>) -> Deed<'a> {
        Deed::new(self, who, what)
    }

    fn act(&self, who: &Who, what: &str, outcome: &str) {
        let (principal, uid) = (who.principal.as_deref(), who.caller.uid.0);
        tracing::info!(principal, uid, what, outcome, "administration");
        self.write(
            "administration",
            json!({ "principal": principal, "identity": uid, "what": what, "outcome": outcome }),
        );
    }

    fn write(&self, event: &str, fields: Value) {
        let Some(lines) = &self.lines else { return };
        let mut line = Map::new();
        line.insert("time".to_owned(), Value::String(self.now()));
        line.insert("server".to_owned(), Value::String(self.server.clone()));
        line.insert("event".to_owned(), Value::String(event.to_owned()));
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        if lines.try_send(Value::Object(line).to_string()).is_err() {
            METRICS.audit_lost.inc();
            tracing::warn!(event, "a line of the audit log is lost: the disk does not keep up");
        }
    }

    fn now(&self) -> String {
        self.time_in(0)
    }

    fn time_in(&self, seconds: u64) -> String {
        let wall = self.world.clock.wall() + Duration::from_secs(seconds);
        let (days, seconds) = (wall.as_secs() / 86_400, wall.as_secs() % 86_400);
        let (year, month, day) = date_of(days as i64);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let millis = wall.subsec_millis();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Year, month and day, `days` after 1970-01-01, in the Gregorian calendar. Years are counted from
/// March on, so that the day that only some have is their last.
fn date_of(days: i64) -> (i64, i64, i64) {
    /// Days in 400 years.
    const ERA: i64 = 146_097;
    // From 0000-03-01 on.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What of an act is on record, after `doing` it.
    fn recorded(doing: impl FnOnce(&Audit)) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let world = World::real();
        let audit = Audit::new("mds".to_owned(), world, Some(&path)).unwrap();
        doing(&audit);
        drop(audit);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if lines.iter().any(|line| line["what"] == "last") {
                return lines;
            }
            assert!(std::time::Instant::now() < deadline, "{text}");
        }
    }

    #[test]
    fn an_act_is_on_record_with_what_became_of_it() {
        let who = Who::default();
        let lines = recorded(|audit| {
            let begin = |what: &str| audit.begin(&who, vec![what.to_owned()]);
            begin("one").ended(Ok(())).unwrap();
            let failure = tieline_wire::Failure::new(ErrorKind::Exists, "it is there");
            begin("two").ended::<()>(Err(failure)).unwrap_err();
            drop(begin("three"));
            audit.begin(&who, vec!["four".to_owned(), "last".to_owned()]).ended(Ok(())).unwrap();
        });
        let told = |line: &Value| format!("{} {}", line["what"], line["outcome"]).replace('"', "");
        let told: Vec<String> = lines.iter().map(told).collect();
        assert_eq!(told[..1], ["one done"]);
        assert!(told[1].starts_with("two failed: ") && told[1].contains("it is there"), "{told:?}");
        assert_eq!(told[2..], ["three unknown", "four done", "last done"]);
    }

    #[test]
    fn days_have_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_089, (2025, 1, 1)),
            (20_453, (2025, 12, 31)),
        ] {
            assert_eq!(date_of(days), date);
        }
    }
}
