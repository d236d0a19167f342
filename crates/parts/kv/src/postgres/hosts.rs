//! The hosts of a database: each is asked by itself, the last good one first.
//!
//! A host that is frozen (a hung disk, a machine that stands still) takes the connection, and says
//! nothing: the kernel answers for it. So a host has a short time for all that makes a connection
//! one, the address, the start-up, and whether it may write; then the next is asked, and of a name
//! with several addresses each.
//!
//! Invariants: no host keeps the others from being asked; one that only reads is none.

use super::fault::Trouble;
use super::sql;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

/// For all of a host's beginning, unless the words say `connect_timeout`.
const HOST_PATIENCE: Duration = Duration::from_secs(3);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Where a database may be.
pub struct Hosts {
    config: Config,
    patience: Duration,
    last_good: Mutex<Option<Candidate>>,
}

/// One of them: its place in the words, and which of its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    place: usize,
    address: Option<IpAddr>,
}

/// A connection, and what its server says beside its answers.
pub struct Connected {
    pub client: Client,
    /// Commits that it did not wait for to be as durable as they should be.
    pub warnings: Arc<AtomicU64>,
}

impl Hosts {
    pub fn new(config: Config) -> Self {
        let patience = config.get_connect_timeout().copied().unwrap_or(HOST_PATIENCE);
        Self { config, patience, last_good: Mutex::default() }
    }

    /// Are there several, so that one takes over from another?
    pub fn are_several(&self) -> bool {
        self.config.get_hosts().len() > 1
    }

    /// Asks one after the other.
    pub async fn connect(&self) -> Result<Connected, Trouble> {
        let first = *self.last_good();
        let mut troubles = Vec::new();
        if let Some(first) = first {
            match self.connect_to(first).await {
                Ok(connected) => return Ok(connected),
                Err(trouble) => troubles.push((self.describe(first), trouble)),
            }
        }
        for place in 0..self.config.get_hosts().len() {
            let candidates = match self.candidates(place).await {
                Ok(candidates) => candidates,
                Err(trouble) => {
                    let candidate = Candidate { place, address: None };
                    troubles.push((self.describe(candidate), trouble));
                    continue;
                }
            };
            for candidate in candidates.into_iter().filter(|one| Some(*one) != first) {
                match self.connect_to(candidate).await {
                    Ok(connected) => {
                        *self.last_good() = Some(candidate);
                        return Ok(connected);
                    }
                    Err(trouble) => troubles.push((self.describe(candidate), trouble)),
                }
            }
        }
        Err(trouble_of(troubles))
    }

    /// The addresses of a host.
    async fn candidates(&self, place: usize) -> Result<Vec<Candidate>, Trouble> {
        let is_named = self.config.get_hostaddrs().is_empty();
        let Some(Host::Tcp(name)) = self.config.get_hosts().get(place).filter(|_| is_named) else {
            return Ok(vec![Candidate { place, address: None }]);
        };
        let found = timeout(self.patience, tokio::net::lookup_host((name.as_str(), 0))).await;
        let found = found.map_err(|_| Trouble::Silent(self.patience))?.map_err(Trouble::Unknown)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|address| address.ip()).take(ADDRESSES_MAX) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let candidate = |address| Candidate { place, address: Some(address) };
        Ok(addresses.into_iter().map(candidate).collect())
    }

    async fn connect_to(&self, candidate: Candidate) -> Result<Connected, Trouble> {
        let config = self.config_of(candidate);
        let connecting = async {
            let (client, mut connection) = config.connect(NoTls).await?;
            let warnings = Arc::new(AtomicU64::new(0));
            let counted = warnings.clone();
            tokio::spawn(async move {
                while let Some(message) =
                    std::future::poll_fn(|cx| connection.poll_message(cx)).await
                {
                    match message {
                        // Whatever its language: of our statements none warns but a commit that
                        // somebody cut short.
                        Ok(AsyncMessage::Notice(notice))
                            if *notice.code() == SqlState::WARNING
                                && notice.parsed_severity() == Some(Severity::Warning) =>
                        {
                            counted.fetch_add(1, Ordering::Release);
                            tracing::debug!(%notice, "the database warns");
                        }
                        Ok(_) => {}
                        Err(error) => {
                            tracing::debug!(%error, "connection to the database ended");
                            break;
                        }
                    }
                }
            });
            client.batch_execute(sql::CONNECTION).await?;
            Ok::<_, tokio_postgres::Error>(Connected { client, warnings })
        };
        match timeout(self.patience, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(Trouble::Silent(self.patience)),
        }
    }

    /// The words, of one host. They cannot be taken from a whole.
    fn config_of(&self, candidate: Candidate) -> Config {
        let (all, mut one) = (&self.config, Config::new());
        let Candidate { place, address } = candidate;
        match all.get_hosts().get(place) {
            Some(Host::Tcp(host)) => drop(one.host(host)),
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        if let Some(address) = address.or_else(|| all.get_hostaddrs().get(place).copied()) {
            one.hostaddr(address);
        }
        if let Some(port) = all.get_ports().get(place).or(all.get_ports().first()) {
            one.port(*port);
        }
        if let Some(user) = all.get_user() {
            one.user(user);
        }
        if let Some(password) = all.get_password() {
            one.password(password);
        }
        if let Some(name) = all.get_dbname() {
            one.dbname(name);
        }
        if let Some(options) = all.get_options() {
            one.options(options);
        }
        if let Some(name) = all.get_application_name() {
            one.application_name(name);
        }
        one.ssl_mode(all.get_ssl_mode());
        one.ssl_negotiation(all.get_ssl_negotiation());
        one.channel_binding(all.get_channel_binding());
        one.connect_timeout(self.patience);
        if let Some(timeout) = all.get_tcp_user_timeout() {
            one.tcp_user_timeout(*timeout);
        }
        one.keepalives(all.get_keepalives());
        one.keepalives_idle(all.get_keepalives_idle());
        if let Some(interval) = all.get_keepalives_interval() {
            one.keepalives_interval(interval);
        }
        if let Some(retries) = all.get_keepalives_retries() {
            one.keepalives_retries(retries);
        }
        // A standby would take reads and refuse writes.
        one.target_session_attrs(TargetSessionAttrs::ReadWrite);
        one
    }

    fn describe(&self, candidate: Candidate) -> String {
        let host = match self.config.get_hosts().get(candidate.place) {
            Some(Host::Tcp(host)) => host.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let ports = self.config.get_ports();
        let port = ports.get(candidate.place).or(ports.first());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        match candidate.address.map(|address| address.to_string()) {
            Some(address) if address != host => format!("{host}{port} at {address}"),
            _ => format!("{host}{port}"),
        }
    }

    fn last_good(&self) -> std::sync::MutexGuard<'_, Option<Candidate>> {
        self.last_good.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What it means that none of them took us: while one may come back, that they are away.
fn trouble_of(mut troubles: Vec<(String, Trouble)>) -> Trouble {
    if troubles.len() <= 1 || !troubles.iter().any(|(_, trouble)| trouble.is_away()) {
        return troubles.pop().map_or(Trouble::Nowhere(String::new()), |(_, trouble)| trouble);
    }
    let told = |(host, trouble): &(String, Trouble)| match trouble.cause() {
        cause if cause.is_empty() => format!("{host}: {trouble}"),
        cause => format!("{host}: {cause}"),
    };
    Trouble::Nowhere(troubles.iter().map(told).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(words: &str) -> Hosts {
        Hosts::new(words.parse().unwrap())
    }

    #[test]
    fn each_host_has_what_the_words_say_of_all() {
        let all = hosts(
            "host=a,/run/b port=1,2 user=u password=p dbname=d options=-cx=1 \
             application_name=n connect_timeout=9 keepalives=0 target_session_attrs=any",
        );
        assert!(all.are_several() && all.patience == Duration::from_secs(9));
        let address = IpAddr::from([10, 0, 0, 1]);
        let one = all.config_of(Candidate { place: 0, address: Some(address) });
        assert_eq!(one.get_hosts(), [Host::Tcp("a".to_owned())]);
        assert_eq!((one.get_ports(), one.get_hostaddrs()), (&[1][..], &[address][..]));
        assert_eq!((one.get_user(), one.get_password()), (Some("u"), Some(&b"p"[..])));
        assert_eq!((one.get_dbname(), one.get_options()), (Some("d"), Some("-cx=1")));
        assert_eq!((one.get_application_name(), one.get_keepalives()), (Some("n"), false));
        assert_eq!(one.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        let other = all.config_of(Candidate { place: 1, address: None });
        assert_eq!(other.get_hosts(), [Host::Unix("/run/b".into())]);
        assert_eq!((other.get_ports(), other.get_hostaddrs()), (&[2][..], &[][..]));
    }

    #[tokio::test]
    async fn a_name_has_all_its_addresses() {
        let all = hosts("host=127.0.0.1,/run/b");
        let found = all.candidates(0).await.unwrap();
        assert_eq!(found, [Candidate { place: 0, address: Some([127, 0, 0, 1].into()) }]);
        assert_eq!(all.candidates(1).await.unwrap(), [Candidate { place: 1, address: None }]);
        assert_eq!(all.describe(found[0]), "127.0.0.1");
        let numbered = hosts("host=a,b hostaddr=10.0.0.1,10.0.0.2");
        assert_eq!(
            numbered.candidates(1).await.unwrap(),
            [Candidate { place: 1, address: None }],
            "it says its address itself"
        );
    }

    #[test]
    fn while_one_may_come_back_all_are_away() {
        let silent = || ("a".to_owned(), Trouble::Silent(HOST_PATIENCE));
        let refused = || ("b".to_owned(), Trouble::Nowhere("x".to_owned()));
        assert!(trouble_of(vec![silent(), refused()]).is_away());
        let told = trouble_of(vec![silent(), silent()]).to_string();
        assert!(told.contains("a: the database did not answer within 3 s; a: "), "{told}");
    }
}
