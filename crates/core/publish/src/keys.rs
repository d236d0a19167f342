//! The keys of a repository as files, named as CVMFS names them: `FQRN.masterkey`, `FQRN.pub`,
//! `FQRN.key`, `FQRN.crt`.
//!
//! The master key signs the whitelist and may lie elsewhere between two signatures; the key of the
//! certificate signs every manifest.
//!
//! Invariant: secrets are made readable for their owner alone, and no file is ever replaced.

use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, LineEnding,
};
use rsa::rand_core::{TryCryptoRng, TryRng};
use rsa::{Pkcs1v15Sign, PrivateKey, PublicKey};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tieline_types::RepositoryName;
use tieline_world::{Dice, World};
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{Builder, CertificateBuilder};
use x509_cert::certificate::{CertificateInner, Raw, TbsCertificate};
use x509_cert::der::{Decode, Encode, EncodePem, pem};
use x509_cert::ext::Extension;
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{SubjectPublicKeyInfoOwned, SubjectPublicKeyInfoRef};
use x509_cert::time::Validity;

/// Both keys, as CVMFS makes them.
const BITS: usize = 2048;
/// Readers of the format look at no date of a certificate, only whether it is on the whitelist.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A file with a key or a certificate is smaller.
const FILE_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("{}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is no {what}", .path.display())]
    Shape { path: PathBuf, what: &'static str },
    #[error(
        "{} is not the certificate of {}: use the pair that was made together",
        .certificate.display(), .key.display()
    )]
    Pair { certificate: PathBuf, key: PathBuf },
    #[error(
        "{}/{repository}.{extension} is missing: bring it back, or keep what is there elsewhere",
        .folder.display()
    )]
    Incomplete { folder: PathBuf, repository: RepositoryName, extension: &'static str },
    #[error("a key could not be made ({0})")]
    Made(String),
}

/// Verifies what one master key signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MasterKey(PublicKey);

impl MasterKey {
    /// In DER, as maps keep it.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        PublicKey::from_public_key_der(der).ok().map(Self)
    }

    pub fn from_pem(pem: &str) -> Option<Self> {
        PublicKey::from_public_key_pem(pem.trim()).ok().map(Self)
    }

    pub fn to_der(&self) -> Vec<u8> {
        // A key that was read can be written.
        self.0.to_public_key_der().map(|der| der.as_bytes().to_vec()).unwrap_or_default()
    }

    /// Of a text's digest as it is spelt: padded, and nothing said of a digest.
    pub fn verifies(&self, hash: &str, signature: &[u8]) -> bool {
        let scheme = Pkcs1v15Sign::new_unprefixed();
        self.0.verify(scheme, hash.as_bytes(), signature).is_ok()
    }
}

/// A certificate, of which only the key and the fingerprint count.
pub struct Certificate {
    pub der: Vec<u8>,
    key: PublicKey,
}

impl Certificate {
    /// In PEM, as repositories keep it, or in DER.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let der = match std::str::from_utf8(bytes) {
            Ok(text) => {
                const END: &str = "-----END CERTIFICATE-----";
                let rest = text.get(text.find("-----BEGIN CERTIFICATE-----")?..)?;
                let pem = rest.get(..rest.find(END)? + END.len())?;
                pem::decode_vec(pem.as_bytes()).ok()?.1
            }
            Err(_) => bytes.to_vec(),
        };
        // Old tools write serial numbers that a strict reader would refuse.
        let parsed = CertificateInner::<Raw>::from_der(&der).ok()?;
        let spki = parsed.tbs_certificate().subject_public_key_info().to_der().ok()?;
        let key = PublicKey::from_public_key_der(&spki).ok()?;
        Some(Self { der, key })
    }

    /// Of a text's digest as it is spelt: its SHA-1, whatever digest it is.
    pub fn verifies(&self, hash: &str, signature: &[u8]) -> bool {
        let digest = Sha1::digest(hash.as_bytes());
        self.key.verify(Pkcs1v15Sign::new::<Sha1>(), &digest, signature).is_ok()
    }
}

/// Where the keys of a repository are.
#[derive(Clone, Debug)]
pub struct Keys {
    pub folder: PathBuf,
    pub repository: RepositoryName,
}

impl Keys {
    pub fn path(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.repository))
    }

    /// Makes them, unless they are there; says whether it did. What is there in part is left alone.
    pub fn prepare(&self, world: &World) -> Result<bool, KeyError> {
        const ALL: [&str; 4] = ["masterkey", "pub", "key", "crt"];
        let missing: Vec<_> = ALL.into_iter().filter(|end| !self.path(end).exists()).collect();
        match missing[..] {
            [] => Ok(false),
            _ if missing.len() == ALL.len() => self.make(world).map(|()| true),
            // The master key may be kept elsewhere; the public one can be had again from it.
            ["masterkey"] => Ok(false),
            [extension, ..] => Err(KeyError::Incomplete {
                folder: self.folder.clone(),
                repository: self.repository.clone(),
                extension,
            }),
        }
    }

    fn make(&self, world: &World) -> Result<(), KeyError> {
        let failed = |source| KeyError::File { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let made = |error: &dyn std::fmt::Display| KeyError::Made(error.to_string());
        let mut chance = Chance(&*world.dice);
        let mut one = || PrivateKey::new(&mut chance, BITS).map_err(|error| made(&error));
        let (master, key) = (one()?, one()?);
        let pem = |key: &PrivateKey| key.to_pkcs8_pem(LineEnding::LF);
        let public = PublicKey::from(&master).to_public_key_pem(LineEnding::LF);
        let certificate = certificate(&self.repository, &key, world).map_err(|e| made(&e))?;
        let secret = |error: rsa::pkcs8::Error| made(&error);
        self.write("masterkey", 0o400, pem(&master).map_err(secret)?.as_bytes())?;
        self.write("key", 0o400, pem(&key).map_err(secret)?.as_bytes())?;
        self.write("crt", 0o444, certificate.as_bytes())?;
        self.write("pub", 0o444, public.map_err(|error| made(&error))?.as_bytes())
    }

    fn write(&self, extension: &str, mode: u32, bytes: &[u8]) -> Result<(), KeyError> {
        let path = self.path(extension);
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(mode).open(&path);
        let written = file.and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| KeyError::File { path, source })
    }

    /// The certificate in PEM, as it is published, and what signs manifests.
    pub fn signer(&self) -> Result<(Vec<u8>, Signer), KeyError> {
        let (certificate, key) = (self.path("crt"), self.path("key"));
        let pem = read(&certificate)?;
        let shape =
            || KeyError::Shape { path: certificate.clone(), what: "certificate of an RSA key" };
        let known = Certificate::parse(&pem).ok_or_else(shape)?;
        let signer = private(&key)?;
        if PublicKey::from(&signer) != known.key {
            return Err(KeyError::Pair { certificate, key });
        }
        Ok((pem, Signer(signer)))
    }

    /// What signs whitelists.
    pub fn master(&self) -> Result<Signer, KeyError> {
        private(&self.path("masterkey")).map(Signer)
    }

    pub fn public(&self) -> Result<MasterKey, KeyError> {
        public(&self.path("pub"))
    }
}

/// A master key's public part, in a file.
pub fn public(path: &Path) -> Result<MasterKey, KeyError> {
    let shape = || KeyError::Shape { path: path.to_owned(), what: "public RSA key in PEM" };
    let bytes = read(path)?;
    let pem = std::str::from_utf8(&bytes).ok().and_then(MasterKey::from_pem);
    pem.ok_or_else(shape)
}

fn private(path: &Path) -> Result<PrivateKey, KeyError> {
    let shape = || KeyError::Shape { path: path.to_owned(), what: "RSA key in PEM" };
    let text = String::from_utf8(read(path)?).map_err(|_| shape())?;
    let text = text.trim();
    let key = PrivateKey::from_pkcs8_pem(text).ok();
    key.or_else(|| PrivateKey::from_pkcs1_pem(text).ok()).ok_or_else(shape)
}

fn read(path: &Path) -> Result<Vec<u8>, KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > FILE_MAX {
        return Err(KeyError::Shape { path: path.to_owned(), what: "key: it is too large" });
    }
    fs::read(path).map_err(failed)
}

/// Signs the digests of texts, as they are spelt.
pub struct Signer(PrivateKey);

impl Signer {
    /// As a certificate's key does.
    pub fn sign_manifest(&self, hash: &str) -> Result<Vec<u8>, KeyError> {
        let digest = Sha1::digest(hash.as_bytes());
        let signed = self.0.sign(Pkcs1v15Sign::new::<Sha1>(), &digest);
        signed.map_err(|error| KeyError::Made(error.to_string()))
    }

    /// As a master key does.
    pub fn sign_whitelist(&self, hash: &str) -> Result<Vec<u8>, KeyError> {
        let signed = self.0.sign(Pkcs1v15Sign::new_unprefixed(), hash.as_bytes());
        signed.map_err(|error| KeyError::Made(error.to_string()))
    }
}

/// The world's dice, as keys are thrown with.
struct Chance<'d>(&'d dyn Dice);

impl TryRng for Chance<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}

/// The real world's are the kernel's.
impl TryCryptoRng for Chance<'_> {}

/// Signed by itself, as CVMFS makes them: the whitelist says that it is the right one.
fn certificate(
    repository: &RepositoryName,
    key: &PrivateKey,
    world: &World,
) -> Result<String, x509_cert::builder::Error> {
    let name = format!("CN={repository} release manager");
    let profile = Plain(Name::from_str(&name)?);
    let mut serial = [0; 8];
    world.dice.fill(&mut serial);
    serial[0] &= 0x7f;
    let now = std::time::SystemTime::UNIX_EPOCH + world.clock.wall();
    let validity = Validity::new(now.try_into()?, (now + CERTIFICATE_LIFE).try_into()?);
    let spki = SubjectPublicKeyInfoOwned::from_key(&PublicKey::from(key))?;
    let signer = SigningKey::<Sha256>::new(key.clone());
    let builder = CertificateBuilder::new(profile, SerialNumber::new(&serial)?, validity, spki)?;
    let certificate = builder.build::<_, rsa::pkcs1v15::Signature>(&signer)?;
    Ok(certificate.to_pem(LineEnding::LF)?)
}

/// A certificate with a name and nothing else.
struct Plain(Name);

impl BuilderProfile for Plain {
    fn get_issuer(&self, subject: &Name) -> Name {
        subject.clone()
    }

    fn get_subject(&self) -> Name {
        self.0.clone()
    }

    fn build_extensions(
        &self,
        _: SubjectPublicKeyInfoRef<'_>,
        _: SubjectPublicKeyInfoRef<'_>,
        _: &TbsCertificate,
    ) -> Result<Vec<Extension>, x509_cert::builder::Error> {
        Ok(Vec::new())
    }
}
