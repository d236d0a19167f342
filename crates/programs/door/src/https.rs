//! https://, plugged in: with the host's certificate, which is read again when its files change.

use crate::offered::{Face, Offered};
use crate::settings::Check;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tieline_http::server::{Server, Settings};
use tieline_http::tls::{ClientCertificates, Identity, ServerTls};
use tieline_machine::private::is_private;
use tieline_machine::users::{changes_to, open_as};
use tieline_webdav::WebDav;
use tokio::task::AbortHandle;

/// How often it is looked whether the certificate is another.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// `[https]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpsText {
    /// `HOST:PORT` for clients.
    #[serde(default = "listen_default")]
    pub listen: String,
    /// The host's certificate, with those that lead to its authority: PEM.
    pub certificate: PathBuf,
    /// Its key: PEM, readable by the door's user only.
    pub key: PathBuf,
    /// Clients at once; who comes then waits.
    #[serde(default = "connections_default")]
    pub connections: usize,
    /// The same of one address, which is refused.
    #[serde(default = "per_address_default")]
    pub connections_per_address: usize,
}

/// Of settings that hold.
pub struct HttpsPlan(HttpsText);

fn listen_default() -> String {
    "[::]:8443".to_owned()
}

fn connections_default() -> usize {
    1024
}

fn per_address_default() -> usize {
    256
}

impl HttpsText {
    pub(crate) fn validate(&self, user: Option<&str>, check: &mut Check) -> HttpsPlan {
        check.listen("https.listen", &self.listen, user);
        for (key, path) in [("certificate", &self.certificate), ("key", &self.key)] {
            let key = format!("https.{key}");
            check.holds(path.is_absolute(), &key, || {
                format!("`{}` is not an absolute path", path.display())
            });
            if let Err(error) = open_as(user, path) {
                let whom = changes_to(user).map(|user| format!(" by user `{user}`"));
                let whom = whom.unwrap_or_default();
                let wrong = format!("{} cannot be read{whom}: {error}", path.display());
                check.complain(&key, &wrong);
            }
        }
        if is_private(&self.key).is_ok_and(|is_private| !is_private) {
            let key = self.key.display();
            check.complain("https.key", &format!("{key} can be read by others: chmod 600 it"));
        }
        let counts = [
            ("connections", self.connections),
            ("connections_per_address", self.connections_per_address),
        ];
        for (key, count) in counts {
            check.holds(count > 0, &format!("https.{key}"), || "nobody could come".to_owned());
        }
        HttpsPlan(self.clone())
    }
}

impl HttpsPlan {
    pub(crate) async fn open(&self, offered: Offered) -> anyhow::Result<Box<dyn Face>> {
        let Offered { world, fs, paths, visitors } = offered;
        let text = &self.0;
        let files = Files { certificate: text.certificate.clone(), key: text.key.clone() };
        let (changed, identity) = (files.changed(), files.load()?);
        let tls = ServerTls::new(&world.clock, identity, ClientCertificates::Unasked)
            .context("https.certificate")?;
        let settings = Settings {
            connections: text.connections,
            connections_per_peer: text.connections_per_address,
            ..Settings::default()
        };
        let door = WebDav::new(paths, visitors, fs.to_string());
        let serving = Server::start(&world, &text.listen, Some(tls.clone()), settings, door).await;
        let server =
            serving.with_context(|| format!("https.listen: cannot listen at {}", text.listen))?;
        let following = tokio::spawn(files.follow(tls, changed)).abort_handle();
        Ok(Box::new(Https { server, following }))
    }
}

/// Where the certificate and its key are.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

type Changed = [Option<SystemTime>; 2];

impl Files {
    fn load(&self) -> anyhow::Result<Identity> {
        let named = || format!("https.certificate: {}", self.certificate.display());
        Identity::load(&self.certificate, &self.key).with_context(named)
    }

    fn changed(&self) -> Changed {
        let time = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified()).ok();
        [time(&self.certificate), time(&self.key)]
    }

    /// Takes another certificate for connections from then on. One that cannot be used is tried
    /// again when its files change again: the key may come after it.
    async fn follow(self, tls: ServerTls, mut known: Changed) {
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            let changed = self.changed();
            if changed == known {
                continue;
            }
            known = changed;
            let replaced = self
                .load()
                .and_then(|identity| Ok(tls.replace(identity, ClientCertificates::Unasked)?));
            let certificate = self.certificate.display();
            match replaced {
                Ok(()) => tracing::info!(%certificate, "another certificate from now on"),
                Err(error) => {
                    let error = tieline_base::report::chain(error.as_ref());
                    tracing::warn!(%error, "the old certificate goes on: the new one is none");
                }
            }
        }
    }
}

struct Https {
    server: Server,
    following: AbortHandle,
}

#[async_trait::async_trait]
impl Face for Https {
    fn protocol(&self) -> &'static str {
        "https"
    }

    fn address(&self) -> String {
        self.server.address().to_owned()
    }

    async fn stop(self: Box<Self>, patience: Duration) -> bool {
        self.following.abort();
        self.server.stop(patience).await
    }
}
