//! TLS: whom we believe ([`Roots`]), who we are ([`Identity`]), and both in a form that can be
//! replaced while connections are open ([`ServerTls`]).
//!
//! rustls with the aws-lc-rs provider, TLS 1.2 and 1.3. The time comes from the world. Certificates
//! are checked against the name or address in the URL (RFC 9525); clients' against roots, if they
//! show any.
//!
//! * `roots`: certificates of authorities, from files and folders.
//! * `subject`: whose a certificate is, in the slash form that the grid's lists have.
//!
//! Invariants: a certificate that was shown was verified, or there is no connection; keys are read
//! from files that only their owner can read.

mod roots;
mod subject;

pub use roots::{Roots, RootsFrom};
pub use subject::subject;

use crate::error::{Error, Phase};
use crate::stream::{Io, Stream};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tieline_world::Clock;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The only protocol that is spoken here.
const ALPN: &[u8] = b"http/1.1";
/// Of a file with certificates or a key.
const PEM_MAX: u64 = 16 << 20;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than certificates are", .0.display())]
    Large(PathBuf),
    #[error("{} can be read by others: a key must not be", .0.display())]
    Open(PathBuf),
    #[error("{whence} is no certificate or key in PEM form: {text}")]
    Pem { whence: String, text: String },
    #[error("no certificate in {0}")]
    Empty(String),
    #[error("no certificates of authorities in any of the usual places")]
    NoSystem,
    #[error("certificate and key cannot be used")]
    Rustls(#[from] rustls::Error),
    #[error("certificates of clients cannot be verified: {0}")]
    Verifier(String),
}

/// A certificate with what leads to its authority, and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// From PEM files, which may be one and the same. The key must be its owner's alone.
    pub fn load(certificates: &Path, key: &Path) -> Result<Self, TlsError> {
        let failed = |source| TlsError::Read { path: key.to_owned(), source };
        if fs::metadata(key).map_err(failed)?.permissions().mode() & 0o077 != 0 {
            return Err(TlsError::Open(key.to_owned()));
        }
        let (chain, secret) = (read(certificates)?, read(key)?);
        Self::parse(&chain, &secret, &certificates.display().to_string())
    }

    /// From PEM texts. `whence` is for messages.
    pub fn parse(certificates: &[u8], key: &[u8], whence: &str) -> Result<Self, TlsError> {
        let failed = |error: rustls::pki_types::pem::Error| TlsError::Pem {
            whence: whence.to_owned(),
            text: error.to_string(),
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        if chain.is_empty() {
            return Err(TlsError::Empty(whence.to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(failed)?;
        Ok(Self { chain, key })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} certificates)", self.chain.len())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.len() > PEM_MAX {
        return Err(TlsError::Large(path.to_owned()));
    }
    fs::read(path).map_err(failed)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The world's time, as rustls asks for it.
struct Time(Arc<dyn Clock>);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0.wall()))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Time")
    }
}

/// The client's side of TLS.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    pub fn new(
        clock: &Arc<dyn Clock>,
        roots: Roots,
        identity: Option<Identity>,
    ) -> Result<Self, TlsError> {
        let time = Arc::new(Time(clock.clone()));
        let builder = ClientConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots.store());
        let mut config = match identity {
            Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Believes and shows the same things by the same object: connections may be shared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: Stream,
        peer: &str,
        patience: Duration,
    ) -> Result<Box<dyn Io>, Error> {
        let failed = |source| Error::Secure { peer: peer.to_owned(), source };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let handshake = TlsConnector::from(self.0.clone()).connect(name, stream);
        match tokio::time::timeout(patience, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(source)) => Err(failed(source)),
            Err(_) => {
                Err(Error::Timeout { peer: peer.to_owned(), phase: Phase::Handshake, patience })
            }
        }
    }
}

/// What a server asks of its clients.
pub enum ClientCertificates {
    /// Nothing.
    Unasked,
    /// They may show one; it must lead to one of these then.
    Optional(Roots),
    /// They must.
    Required(Roots),
}

/// A server's side of TLS, which can be replaced while it serves: connections that are open stay as
/// they are.
#[derive(Clone)]
pub struct ServerTls {
    clock: Arc<dyn Clock>,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl ServerTls {
    pub fn new(
        clock: &Arc<dyn Clock>,
        identity: Identity,
        clients: ClientCertificates,
    ) -> Result<Self, TlsError> {
        let config = Self::config(clock, identity, clients)?;
        Ok(Self { clock: clock.clone(), config: Arc::new(RwLock::new(config)) })
    }

    /// For connections from now on. On failure what was stays.
    pub fn replace(&self, identity: Identity, clients: ClientCertificates) -> Result<(), TlsError> {
        let config = Self::config(&self.clock, identity, clients)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    fn config(
        clock: &Arc<dyn Clock>,
        identity: Identity,
        clients: ClientCertificates,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = provider();
        let verifier = |roots: Roots, is_required: bool| {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.store().into(), provider.clone());
            let verifier = if is_required { verifier } else { verifier.allow_unauthenticated() };
            verifier.build().map_err(|error| TlsError::Verifier(error.to_string()))
        };
        let verifier = match clients {
            ClientCertificates::Unasked => Arc::new(NoClientAuth),
            ClientCertificates::Optional(roots) => verifier(roots, false)?,
            ClientCertificates::Required(roots) => verifier(roots, true)?,
        };
        let time = Arc::new(Time(clock.clone()));
        let mut config = ServerConfig::builder_with_details(provider.clone(), time)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain, identity.key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Arc::new(config))
    }

    pub(crate) async fn accept(
        &self,
        stream: Stream,
    ) -> io::Result<(Box<dyn Io>, Option<ClientCertificate>)> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let certificate = chain.first().map(|leaf| ClientCertificate {
            subject: subject(leaf),
            chain: chain.iter().map(|one| one.to_vec()).collect(),
        });
        Ok((Box::new(stream), certificate))
    }
}

/// What a client showed, and proved to have the key of. It leads to one of the roots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    /// `/DC=ch/DC=cern/CN=somebody`. `None` if it has letters that cannot be told apart in it.
    pub subject: Option<String>,
    /// In DER, the client's own first.
    pub chain: Vec<Vec<u8>>,
}
