//! Certificates of authorities: from PEM files, the grid's folders, or the system.
//!
//! A folder as grid sites have it (`/etc/grid-security/certificates`) holds one authority in each
//! `HASH.NUMBER`, beside files of other kinds. Of authorities that cannot be used some are always
//! there: they are left out, and counted.

use super::{TlsError, read};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::path::{Path, PathBuf};

/// Where distributions keep all of them in one file.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Files of a folder that are looked at.
const FILES_MAX: usize = 10_000;

/// Where certificates of authorities are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RootsFrom {
    File(PathBuf),
    Folder(PathBuf),
    System,
}

/// Authorities that are believed.
#[derive(Clone, Debug)]
pub struct Roots {
    store: RootCertStore,
    left_out: usize,
}

impl Roots {
    /// None: nobody is believed. For who speaks http only.
    pub fn none() -> Self {
        Self { store: RootCertStore::empty(), left_out: 0 }
    }

    /// All of these places. One without any authority is an error.
    pub fn load(places: &[RootsFrom]) -> Result<Self, TlsError> {
        let mut roots = Self::none();
        for place in places {
            match place {
                RootsFrom::File(path) => roots.add_file(path)?,
                RootsFrom::Folder(path) => roots.add_folder(path)?,
                RootsFrom::System => {
                    let mut paths = SYSTEM.iter().map(Path::new);
                    let path = paths.find(|path| path.exists()).ok_or(TlsError::NoSystem)?;
                    roots.add_file(path)?;
                }
            }
        }
        Ok(roots)
    }

    /// From a PEM text. `whence` is for messages.
    pub fn parse(pem: &[u8], whence: &str) -> Result<Self, TlsError> {
        let mut roots = Self::none();
        roots.add(pem, whence)?;
        Ok(roots)
    }

    /// How many are believed.
    pub fn count(&self) -> usize {
        self.store.len()
    }

    /// How many could not be used.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    pub(super) fn store(self) -> RootCertStore {
        self.store
    }

    fn add_file(&mut self, path: &Path) -> Result<(), TlsError> {
        self.add(&read(path)?, &path.display().to_string())
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), TlsError> {
        let failed = |source| TlsError::Read { path: folder.to_owned(), source };
        let before = self.count();
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)?.take(FILES_MAX) {
            let path = entry.map_err(failed)?.path();
            if is_hashed(&path) {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            // One bad file of hundreds shall not end all trust.
            if self.add_file(&path).is_err() {
                self.left_out += 1;
            }
        }
        if self.count() == before {
            return Err(TlsError::Empty(folder.display().to_string()));
        }
        Ok(())
    }

    fn add(&mut self, pem: &[u8], whence: &str) -> Result<(), TlsError> {
        let (before, mut unused) = (self.count(), 0);
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| TlsError::Pem {
                whence: whence.to_owned(),
                text: error.to_string(),
            })?;
            unused += usize::from(self.store.add(certificate).is_err());
        }
        if self.count() == before {
            return Err(TlsError::Empty(whence.to_owned()));
        }
        self.left_out += unused;
        Ok(())
    }
}

/// `5ed36f99.0`: eight hexadecimal digits, and a number.
fn is_hashed(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((hash, number)) = name.and_then(|name| name.split_once('.')) else { return false };
    let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
