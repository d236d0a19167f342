//! The door of a development federation (`dev up --doors`): https:// and root:// at the first site,
//! with a certificate authority, a host certificate and an issuer of tokens of its own.
//!
//! Its users come with tickets of the federation's KDC, or with tokens that `dev token` makes: of
//! `ann`, `bob` and `daemon`, who are who the servers say.
//!
//! Certificates are made by `openssl`, as administrators make them.
//!
//! Invariant: keys are readable by whoever uses them only, and go with `dev down`.

use crate::kdc::{REALM, USERS, keytab_name};
use crate::plan::{Plan, SitePlan};
use crate::state::{Held, Process};
use crate::user;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_auth::ScratchKdc;
use tieline_base::federation::DoorText;
use tieline_base::issuers::{IssuerKeyText, IssuerText};
use tieline_types::SiteName;

/// In a site's namespace.
const HTTPS_PORT: u16 = 8443;
const ROOT_PORT: u16 = 1094;
const ADMIN_PORT: u16 = 7644;
/// As its tokens name it; nobody answers there.
const ISSUER: &str = "https://tokens.extenci.org/";
const DAYS: &str = "3650";

/// Where the door is.
#[derive(Clone, Debug)]
pub struct DoorPlan {
    pub site: SiteName,
    /// By which clients call it.
    pub host: String,
    /// `HOST:PORT`s.
    pub https: String,
    pub root: String,
    pub admin: String,
    /// The public key of its tokens' issuer: a point of P-256, in digits.
    issuer_key: String,
}

/// What `dev` wrote down of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoorState {
    /// `https://localhost:8443`.
    pub https: String,
    /// `root://localhost:1094`.
    pub root: String,
    /// The certificate of the authority, and the directory that has it by its hash.
    pub authority: PathBuf,
    /// The issuer of its tokens and its key.
    pub issuer: String,
    pub issuer_key: PathBuf,
}

impl DoorPlan {
    /// At a site: on loopback with these ports, or in the site's namespace.
    pub fn new(dir: &Path, site: &SitePlan, ports: Option<[String; 3]>) -> anyhow::Result<Self> {
        let issuer_key = super::token::make_key(&issuer_key(dir))?;
        let site_host = || {
            let host = site.mds.address.rsplit_once(':').map_or("", |(host, _)| host);
            host.trim_start_matches('[').trim_end_matches(']').to_owned()
        };
        let (host, [https, root, admin]) = match ports {
            Some(ports) => ("localhost".to_owned(), ports),
            None => {
                let host = site_host();
                let at = |port: u16| format!("{host}:{port}");
                let admin = format!("127.0.0.1:{ADMIN_PORT}");
                (host.clone(), [at(HTTPS_PORT), at(ROOT_PORT), admin])
            }
        };
        Ok(Self { site: site.site.clone(), host, https, root, admin, issuer_key })
    }

    /// As which it connects.
    fn principal(&self) -> String {
        format!("tieline_door/{}@{REALM}", self.host)
    }

    /// What its users have tickets for.
    fn services(&self) -> Vec<String> {
        ["HTTP", "xrootd"].iter().map(|name| format!("{name}/{}@{REALM}", self.host)).collect()
    }

    /// As the map has it.
    pub fn text(&self) -> DoorText {
        let (principal, services) = (self.principal(), self.services());
        DoorText { principal, services, vouches_for: vec![], scope: None, seconds: None }
    }

    /// The issuer of its tokens, as the map has it: who is `ann` to it is `ann` here.
    pub fn issuer(&self) -> IssuerText {
        IssuerText {
            url: ISSUER.to_owned(),
            audiences: vec![self.url("https", &self.https)],
            users: USERS.iter().map(|user| format!("sub:{user}={user}")).collect(),
            base: "/".to_owned(),
            keys: vec![IssuerKeyText { id: None, key: format!("p256:{}", self.issuer_key) }],
        }
    }

    fn url(&self, scheme: &str, address: &str) -> String {
        let port = address.rsplit_once(':').map_or("", |(_, port)| port);
        format!("{scheme}://{}:{port}", self.host)
    }

    pub fn state(&self, dir: &Path) -> DoorState {
        DoorState {
            https: self.url("https", &self.https),
            root: self.url("root", &self.root),
            authority: tls(dir).join("ca.pem"),
            issuer: ISSUER.to_owned(),
            issuer_key: issuer_key(dir),
        }
    }

    /// Its own key; those of its services go to the MDSs, which open what users send.
    pub fn make_keys(&self, kdc: &Path, sites: &[SitePlan]) -> anyhow::Result<()> {
        let kdc = ScratchKdc::again(kdc, REALM, 0);
        for site in sites {
            kdc.keytab(&keytab_name("mds", site), &self.services())?;
        }
        kdc.keytab(&self.keytab_name(), &[self.principal()])?;
        Ok(())
    }

    pub fn keytab_name(&self) -> String {
        format!("door-{}.keytab", self.site)
    }

    /// The door's process, with everything it reads.
    pub fn prepare(&self, held: &mut Held, plan: &Plan) -> anyhow::Result<Process> {
        let (dir, user) = (held.dir().to_owned(), plan.user.as_deref());
        let kerberos = plan.kerberos.as_ref().context("a door has a realm")?;
        let tls = tls(&dir);
        std::fs::create_dir(&tls).with_context(|| format!("cannot make {}", tls.display()))?;
        held.state.made.insert(0, tls.clone());
        make_certificates(&tls, &self.host)?;
        let key = tls.join("host.key");
        user::give(&key, user)?;
        let roots: Vec<&String> = plan.sites.iter().map(|site| &site.mds.address).collect();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "fs = {:?}\nroot = {roots:?}\nmap_key = {:?}\nadmin = {:?}\n",
            crate::plan::FS,
            plan.key,
            self.admin
        );
        if let Some(user) = user {
            let _ = writeln!(text, "user = {user:?}");
        }
        let _ = write!(
            text,
            "\n[kerberos]\nkeytab = {:?}\nconfig = {:?}\n\n[https]\nlisten = {:?}\n\
             certificate = {:?}\nkey = {key:?}\n\n[xrootd]\nlisten = {:?}\nsite = {:?}\n",
            kerberos.dir.join(self.keytab_name()),
            kerberos.config,
            self.https,
            tls.join("host.pem"),
            self.root,
            self.site.as_str(),
        );
        let path = crate::plan::site_dir(&dir, &self.site).join("door.toml");
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        let name = format!("door-{}", self.site);
        let network = held.state.network.as_ref();
        Ok(Process {
            argv: ["door", "serve", "--settings", &path.to_string_lossy()]
                .map(str::to_owned)
                .to_vec(),
            log: dir.join("logs").join(format!("{name}.log")),
            name,
            address: Some(self.https.clone()),
            admin: self.admin.clone(),
            socket: None,
            mountpoint: None,
            netns: network.map(|network| network.site(&self.site)),
            process: None,
        })
    }
}

fn tls(dir: &Path) -> PathBuf {
    dir.join("tls")
}

fn issuer_key(dir: &Path) -> PathBuf {
    dir.join("keys").join("issuer.key")
}

/// An authority (`ca.pem`, and by its hash, as grid tools look for it), and the host's certificate
/// and key.
fn make_certificates(tls: &Path, host: &str) -> anyhow::Result<()> {
    let kind = if host.parse::<std::net::IpAddr>().is_ok() { "IP" } else { "DNS" };
    let config = format!(
        "[req]\ndistinguished_name = name\n[name]\n[ca]\nbasicConstraints = critical,CA:TRUE\n\
         keyUsage = critical,keyCertSign,cRLSign\nsubjectKeyIdentifier = hash\n[host]\n\
         basicConstraints = critical,CA:FALSE\nextendedKeyUsage = serverAuth\n\
         subjectAltName = {kind}:{host},IP:127.0.0.1\nauthorityKeyIdentifier = keyid\n"
    );
    let path = tls.join("openssl.conf");
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    let new = "req -config openssl.conf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    let name = "/O=Tieline/CN";
    openssl(
        tls,
        &format!(
            "{new} -x509 -extensions ca -days {DAYS} -keyout ca.key -out ca.pem \
             -subj {name}=dev-authority"
        ),
    )?;
    openssl(tls, &format!("{new} -new -keyout host.key -out host.csr -subj {name}={host}"))?;
    openssl(
        tls,
        &format!(
            "x509 -req -in host.csr -CA ca.pem -CAkey ca.key -set_serial 2 -days {DAYS} \
             -extfile openssl.conf -extensions host -out host.pem"
        ),
    )?;
    let hash = openssl(tls, "x509 -in ca.pem -noout -subject_hash")?;
    let link = tls.join(format!("{}.0", hash.trim()));
    std::os::unix::fs::symlink("ca.pem", &link)
        .with_context(|| format!("cannot make {}", link.display()))
}

/// What it printed.
fn openssl(tls: &Path, words: &str) -> anyhow::Result<String> {
    let mut command = Command::new("openssl");
    command.args(words.split(' ')).current_dir(tls).stdin(Stdio::null());
    let output = command.output().context("cannot run openssl, which makes certificates")?;
    if !output.status.success() {
        bail!("openssl {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
