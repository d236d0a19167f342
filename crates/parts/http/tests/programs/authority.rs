//! Authorities and certificates, made by openssl.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_http::tls::{Identity, Roots, RootsFrom};

/// An authority that makes certificates in a folder.
pub struct Authority {
    folder: tempfile::TempDir,
}

/// A certificate and its key.
pub struct Made {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Made {
    pub fn identity(&self) -> Identity {
        Identity::load(&self.certificate, &self.key).unwrap()
    }
}

pub fn openssl(folder: &Path, arguments: &str) {
    // Words are parted by blanks, so a subject has none.
    let mut command = Command::new("openssl");
    command.args(arguments.split_whitespace()).current_dir(folder);
    let output = command.output().expect("openssl is needed here");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        openssl(
            folder.path(),
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
                 -subj /DC=test/CN={name} -keyout ca.key -out ca.pem \
                 -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
            ),
        );
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn certificate(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    pub fn roots(&self) -> Roots {
        Roots::load(&[RootsFrom::File(self.certificate())]).unwrap()
    }

    /// Of a server, for these names: `DNS:localhost,IP:127.0.0.1`.
    pub fn server(&self, file: &str, names: &str) -> Made {
        self.make(file, &format!("/DC=test/CN={file}"), &format!("subjectAltName={names}"), 30)
    }

    /// Of somebody.
    pub fn client(&self, file: &str, subject: &str) -> Made {
        self.make(file, subject, "extendedKeyUsage=clientAuth", 30)
    }

    pub fn make(&self, file: &str, subject: &str, extension: &str, days: i32) -> Made {
        let folder = self.path();
        fs::write(folder.join(format!("{file}.ext")), format!("{extension}\n")).unwrap();
        openssl(
            folder,
            &format!(
                "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} \
                 -keyout {file}.key -out {file}.csr"
            ),
        );
        openssl(
            folder,
            &format!(
                "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} \
                 -extfile {file}.ext -out {file}.pem"
            ),
        );
        let made = Made {
            certificate: folder.join(format!("{file}.pem")),
            key: folder.join(format!("{file}.key")),
        };
        fs::set_permissions(&made.key, fs::Permissions::from_mode(0o600)).unwrap();
        made
    }
}
