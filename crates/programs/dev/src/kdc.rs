//! The KDC of a development federation: a realm of its own, in the federation's folder. Where sites
//! are namespaces, each has a daemon of its own.
//!
//! Each site's servers have the names `tieline_mds/SITE.extenci.org` and
//! `tieline_oss/SITE.extenci.org`, and those of their address for whoever comes without a map; the
//! mounts are `host/client.extenci.org`. Users `ann`, `bob` and
//! `daemon` have their names for passwords; only who is a user of the servers' machine is none of
//! their strangers.
//!
//! Invariant: the daemons are known by pid and start time, and ended by `dev down`.

use crate::netns::Network;
use crate::plan::SitePlan;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_auth::{SERVICE_HOST, SERVICE_MDS, SERVICE_OSS, ScratchKdc};
use tieline_machine::process::ProcessId;

pub const REALM: &str = "EXTENCI.ORG";
/// What an MDS and an OSS go by.
pub type Services = [&'static str; 2];
pub const SERVICES: Services = [SERVICE_MDS, SERVICE_OSS];
/// The same where a KDC has machines' names only.
pub const SERVICES_HOST: Services = [SERVICE_HOST, SERVICE_HOST];
const CLIENT: &str = "host/client.extenci.org";
pub const USERS: [&str; 3] = ["ann", "bob", "daemon"];
const END_PATIENCE: Duration = Duration::from_secs(5);

/// What `dev` wrote down of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kdc {
    pub realm: String,
    pub config: PathBuf,
    pub keytab: PathBuf,
    pub principal: String,
    pub processes: Vec<ProcessId>,
}

impl Kdc {
    /// Makes the realm with keys for all sites.
    pub fn start(
        dir: &Path,
        sites: &[SitePlan],
        network: Option<&Network>,
        [mds, oss]: Services,
    ) -> anyhow::Result<Self> {
        let hosts: Vec<String> = match network {
            Some(_) => sites.iter().flat_map(hosts_of).collect(),
            None => vec!["127.0.0.1".to_owned()],
        };
        let mut kdc = ScratchKdc::make(dir, REALM, &hosts)?;
        for site in sites {
            let hosts = hosts_of(site).map(|host| format!("{mds}/{host}@{REALM}"));
            let all: Vec<_> = std::iter::once(service(mds, site)).chain(hosts).collect();
            kdc.keytab(&keytab_name("mds", site), &all)?;
            kdc.keytab(&keytab_name("oss", site), &[service(oss, site)])?;
        }
        let principal = client();
        let keytab = kdc.keytab("client.keytab", std::slice::from_ref(&principal))?;
        for user in USERS {
            kdc.user(user, user)?;
        }
        match network {
            Some(network) => sites
                .iter()
                .try_for_each(|site| serve_within(&mut kdc, &network.site(&site.site)))?,
            None => kdc.serve()?,
        }
        let processes = kdc.pids().filter_map(ProcessId::of).collect();
        let config = kdc.config();
        kdc.leave();
        let realm = REALM.to_owned();
        Ok(Self { realm, config, keytab, principal, processes })
    }

    pub fn end(&self) {
        for process in self.processes.iter().filter(|process| process.is_alive()) {
            process.signal(Signal::TERM);
            if !process.wait_end(END_PATIENCE) {
                process.signal(Signal::KILL);
            }
        }
    }
}

/// A daemon in a namespace.
fn serve_within(kdc: &mut ScratchKdc, netns: &Path) -> anyhow::Result<()> {
    let serve = || {
        tieline_machine::namespace::enter(netns)?;
        Ok(kdc.serve()?)
    };
    // A thread of its own: it, and the process it starts, stay in the namespace.
    let served = std::thread::scope(|scope| scope.spawn(serve).join());
    served.map_err(|_| anyhow::anyhow!("thread panicked"))?
}

/// Who the mounts are.
pub fn client() -> String {
    format!("{CLIENT}@{REALM}")
}

/// Where a server's keys are.
pub fn keytab_name(role: &str, site: &SitePlan) -> String {
    format!("{role}-{}.keytab", site.site)
}

/// The name of a site's server.
pub fn service(service: &str, site: &SitePlan) -> String {
    format!("{service}/{}.extenci.org@{REALM}", site.site)
}

/// By which addresses a site is reached, the best first.
fn hosts_of(site: &SitePlan) -> impl Iterator<Item = String> {
    site.mds.announced().into_iter().map(|address| host_of(&address).to_owned())
}

fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}
