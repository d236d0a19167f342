//! From the master key down to a manifest: whom to believe, and what was signed.
//!
//! The whitelist is the master key's, names this repository, has not expired, and has the
//! fingerprint of the certificate that the manifest names; that certificate's key signed the
//! manifest. The certificate's own dates and names are not looked at.

use crate::keys::{Certificate, MasterKey};
use crate::manifest::{Manifest, ManifestError};
use crate::seal::{self, SealError};
use crate::whitelist::{Whitelist, WhitelistError};
use std::io::Read;
use tieline_types::{Digest, RepositoryName, Time};

/// A certificate is smaller, unpacked.
const CERTIFICATE_MAX: u64 = 1 << 20;

/// Why nothing of a repository is believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    #[error("manifest: {0}")]
    ManifestSeal(SealError),
    #[error("manifest: {0}")]
    Manifest(#[from] ManifestError),
    #[error("manifest is of repository {0}")]
    OtherManifest(String),
    #[error("manifest names no certificate")]
    NoCertificate,
    #[error("manifest is not signed with the key of its certificate")]
    ManifestSignature,
    #[error("certificate {0} does not have its digest")]
    CertificateDigest(String),
    #[error("certificate {0} is none of an RSA key")]
    Certificate(String),
    #[error("whitelist: {0}")]
    WhitelistSeal(SealError),
    #[error("whitelist: {0}")]
    Whitelist(#[from] WhitelistError),
    #[error("whitelist is of repository {0}")]
    OtherWhitelist(RepositoryName),
    #[error("whitelist is not signed with a master key that is believed here")]
    WhitelistSignature,
    #[error("whitelist expired at {0} (UTC): its publisher must sign it anew")]
    Expired(String),
    #[error("certificate {0} is not on the whitelist")]
    NotListed(String),
}

/// Whom a repository is believed from.
#[derive(Clone, Debug)]
pub struct Trust {
    pub repository: RepositoryName,
    /// Any one of them.
    pub keys: Vec<MasterKey>,
}

impl Trust {
    /// What a manifest says, of which only the digest was looked at: with it the certificate can
    /// be fetched.
    pub fn read(&self, manifest: &[u8]) -> Result<(Manifest, Digest), TrustError> {
        let sealed = seal::open(manifest).map_err(TrustError::ManifestSeal)?;
        let read = Manifest::parse(sealed.text)?;
        if read.repository.as_ref() != Some(&self.repository) {
            let other = read.repository.map_or_else(|| "none".into(), |name| name.to_string());
            return Err(TrustError::OtherManifest(other));
        }
        let certificate = read.certificate.ok_or(TrustError::NoCertificate)?;
        Ok((read, certificate))
    }

    /// A manifest that is believed at that time. `certificate`: its object, as it is stored.
    pub fn verify(
        &self,
        manifest: &[u8],
        certificate: &[u8],
        whitelist: &[u8],
        now: Time,
    ) -> Result<Manifest, TrustError> {
        let (read, named) = self.read(manifest)?;
        let shown = || crate::hash::text(&named);
        let listed = self.listed(whitelist, now)?;
        if !named.is_of(certificate) {
            return Err(TrustError::CertificateDigest(shown()));
        }
        let unpacked = unpack(certificate).as_deref().and_then(Certificate::parse);
        let certificate = unpacked.ok_or_else(|| TrustError::Certificate(shown()))?;
        if !listed.has(&certificate.der) {
            return Err(TrustError::NotListed(shown()));
        }
        let sealed = seal::open(manifest).map_err(TrustError::ManifestSeal)?;
        if !certificate.verifies(sealed.hash, sealed.signature) {
            return Err(TrustError::ManifestSignature);
        }
        Ok(read)
    }

    /// The certificates of a whitelist that is believed at that time.
    fn listed(&self, whitelist: &[u8], now: Time) -> Result<Whitelist, TrustError> {
        let sealed = seal::open(whitelist).map_err(TrustError::WhitelistSeal)?;
        if !self.keys.iter().any(|key| key.verifies(sealed.hash, sealed.signature)) {
            return Err(TrustError::WhitelistSignature);
        }
        let read = Whitelist::parse(sealed.text)?;
        if read.repository != self.repository {
            return Err(TrustError::OtherWhitelist(read.repository));
        }
        if read.has_expired(now) {
            return Err(TrustError::Expired(read.expires));
        }
        Ok(read)
    }
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let stream = flate2::read::ZlibDecoder::new(packed);
    let length = stream.take(CERTIFICATE_MAX + 1).read_to_end(&mut bytes).ok()?;
    (length as u64 <= CERTIFICATE_MAX).then_some(bytes)
}
