//! The tickets of a job: the caller's own, taken along into caches of its own and renewed there.
//!
//! All caches of a collection are taken along: which of them a server is shown depends on its
//! realm, and the job may go to several. One is a file; several are a directory of files (`DIR:`).

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tieline_auth::gss::{Keys, caches, copy_tickets, default_cache, own_principal, standing};

/// Tickets are renewed when half of their time is over, or so often.
const RENEW_MAX: Duration = Duration::from_secs(600);
const RENEW_LEAST: Duration = Duration::from_secs(1);
/// Nobody has tickets of so many realms.
const CACHES_MAX: usize = 32;

/// See the module.
pub struct Tickets {
    /// As in KRB5CCNAME.
    pub name: String,
    caches: Vec<String>,
    source: Source,
}

enum Source {
    Caller,
    Keytab { path: PathBuf, principal: String },
}

impl Tickets {
    /// Tickets that keys bring.
    pub fn from_keytab(
        keytab: &Path,
        principal: Option<&str>,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let name = format!("FILE:{}", home.join("tickets").display());
        // `kinit -k` takes the machine's own principal, which few keytabs of people have.
        let keys = Keys {
            keytab: Some(keytab.to_owned()),
            cache: Some("MEMORY:tieline-job".to_owned()),
            principal: principal.map(str::to_owned),
        };
        let source = Source::Keytab { path: keytab.to_owned(), principal: own_principal(&keys)? };
        let tickets = Self { caches: vec![name.clone()], name, source };
        if !tickets.renew()? {
            bail!("kinit did not work with {}", keytab.display());
        }
        Ok(tickets)
    }

    /// The caller's, as they are now, from whatever caches he has.
    pub fn from_caller(home: &Path) -> anyhow::Result<Self> {
        let file = |number: usize| home.join(format!("tkt{number}"));
        let mut copies = vec![];
        let mut failure = None;
        for cache in caches().into_iter().take(CACHES_MAX) {
            let keys = Keys { cache: Some(cache.name), ..Keys::default() };
            let to = format!("FILE:{}", file(copies.len()).display());
            match copy_tickets(&keys, &to) {
                Ok(()) => copies.push(to),
                // Those of one realm may be over, and the others good.
                Err(trouble) => failure = failure.or(Some(trouble)),
            }
        }
        if copies.is_empty() {
            // Tickets that the library brings by itself, or its word for why there are none.
            let to = format!("FILE:{}", file(0).display());
            let copied = failure.map_or_else(|| copy_tickets(&Keys::default(), &to), Err);
            copied.with_context(|| {
                let shown = default_cache().unwrap_or_else(|| "your default cache".to_owned());
                format!("there are no tickets in {shown}: run kinit, or give --keytab")
            })?;
            copies.push(to);
        }
        let name = match copies.as_slice() {
            [only] => only.clone(),
            _ => {
                std::fs::write(home.join("primary"), "tkt0\n")?;
                format!("DIR:{}", home.display())
            }
        };
        Ok(Self { name, caches: copies, source: Source::Caller })
    }

    /// Half of what is left of the time of those that end first.
    pub fn pause(&self) -> Duration {
        let left = self.caches.iter().filter_map(|cache| {
            let keys = Keys { cache: Some(cache.clone()), ..Keys::default() };
            standing(&keys).ok().and_then(|(_, left)| left)
        });
        left.min().map_or(RENEW_LEAST, |left| left / 2).clamp(RENEW_LEAST, RENEW_MAX)
    }

    /// Makes them last longer. Says whether all do.
    pub fn renew(&self) -> anyhow::Result<bool> {
        let mut are_renewed = true;
        for cache in &self.caches {
            are_renewed &= self.kinit(cache)?.success();
        }
        Ok(are_renewed)
    }

    fn kinit(&self, cache: &str) -> anyhow::Result<ExitStatus> {
        let mut kinit = Command::new("kinit");
        match &self.source {
            Source::Keytab { path, principal } => {
                kinit.arg("-k").arg("-t").arg(path).args(["-c", cache, principal]);
            }
            Source::Caller => {
                kinit.args(["-R", "-c", cache]).stderr(Stdio::null());
            }
        }
        kinit.stdin(Stdio::null()).status().context("kinit cannot be run: install krb5-user")
    }
}
