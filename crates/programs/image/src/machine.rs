//! What a machine is given about itself, the credential `tieline.machine`: its name, what to mount
//! where, and how. TOML; nothing in it is secret, the keytab is a credential of its own.
//!
//! It comes from outside the machine, so it is read with limits, and words that mount would take
//! for something else are refused.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};
use tieline_base::source::Source;

/// Systemd's credentials, by their names.
pub const MACHINE: &str = "tieline.machine";
pub const HOST: &str = "tieline.host";
pub const JOB: &str = "tieline.job";
pub const KEYTAB: &str = "krb5.keytab";
pub const KRB5_CONF: &str = "krb5.conf";

/// A machine's own text is a few hundred bytes.
pub const LENGTH_MAX: usize = 64 << 10;
const NAME_MAX: usize = 63;
const FQDN_MAX: usize = 253;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name among the machines here.
    pub name: String,
    /// What it calls itself.
    pub hostname: String,
    /// What is mounted: `HOST[:PORT][,HOST2]:/FS[/dir]`.
    pub source: String,
    pub mountpoint: PathBuf,
    /// As behind `mount -o`.
    pub options: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    #[error("it has {0} bytes, and at most {LENGTH_MAX} are read")]
    Long(usize),
    #[error("it is not UTF-8")]
    Text,
    #[error("{0}")]
    Toml(String),
    #[error("`{0}` is no machine's name: letters, digits and -, at most {NAME_MAX}")]
    Name(String),
    #[error("`{0}` is no host's name")]
    Hostname(String),
    #[error("{0}")]
    Source(String),
    #[error("{} is no place to mount at: an absolute path below /, without ..", .0.display())]
    Mountpoint(PathBuf),
    #[error("the options have a control character")]
    Options,
}

impl Machine {
    pub fn parse(bytes: &[u8]) -> Result<Self, MachineError> {
        if bytes.len() > LENGTH_MAX {
            return Err(MachineError::Long(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| MachineError::Text)?;
        let machine: Self =
            toml::from_str(text).map_err(|error| MachineError::Toml(error.message().to_owned()))?;
        machine.check()?;
        Ok(machine)
    }

    /// Can a machine be given this?
    pub fn check(&self) -> Result<(), MachineError> {
        check_name(&self.name)?;
        let is_label = |label: &str| is_name(label);
        if self.hostname.len() > FQDN_MAX || !self.hostname.split('.').all(is_label) {
            return Err(MachineError::Hostname(self.hostname.clone()));
        }
        self.source.parse::<Source>().map_err(|error| MachineError::Source(error.to_string()))?;
        if !is_mountpoint(&self.mountpoint) {
            return Err(MachineError::Mountpoint(self.mountpoint.clone()));
        }
        match self.options.chars().any(char::is_control) {
            true => Err(MachineError::Options),
            false => Ok(()),
        }
    }

    pub fn text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// A machine's name is a folder's name, too.
pub fn check_name(name: &str) -> Result<(), MachineError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(MachineError::Name(name.to_owned())),
    }
}

fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(is_letter)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Nothing that would hide the machine's own system: `/` is not, nor what begins with `..`.
fn is_mountpoint(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.components().count() > 1
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !path.to_string_lossy().chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            name: "wn1".to_owned(),
            hostname: "wn1.extenci.org".to_owned(),
            source: "127.0.0.1:7640:/extenci".to_owned(),
            mountpoint: "/extenci".into(),
            options: "mapkey=00,keytab=/etc/krb5.keytab".to_owned(),
        }
    }

    #[test]
    fn a_machine_reads_what_was_written_for_it() {
        let text = machine().text().unwrap();
        assert_eq!(Machine::parse(text.as_bytes()), Ok(machine()));
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        let refused = |machine: Machine| machine.check().unwrap_err().to_string();
        for name in ["", "-x", "x-", "../x", "a b", "a/b", &"x".repeat(64)] {
            assert!(refused(Machine { name: name.to_owned(), ..machine() }).contains("name"));
        }
        let hostname = "a..b".to_owned();
        assert!(refused(Machine { hostname, ..machine() }).contains("a..b"));
        let source = "nowhere".to_owned();
        assert!(refused(Machine { source, ..machine() }).contains("nowhere"));
        for place in ["/", "extenci", "/a/../b", "/a\nb"] {
            let mountpoint = PathBuf::from(place);
            assert!(refused(Machine { mountpoint, ..machine() }).contains("no place"), "{place}");
        }
        let options = "ro\nExecStart=x".to_owned();
        assert!(refused(Machine { options, ..machine() }).contains("control"));
        let unknown = machine().text().unwrap() + "more = 1\n";
        assert!(matches!(Machine::parse(unknown.as_bytes()), Err(MachineError::Toml(_))));
        let long = vec![b' '; LENGTH_MAX + 1];
        assert_eq!(Machine::parse(&long), Err(MachineError::Long(LENGTH_MAX + 1)));
        assert_eq!(Machine::parse(&[0xff]), Err(MachineError::Text));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(0_u8.., 0..400)) {
            let _ = Machine::parse(&bytes);
        }

        #[test]
        fn what_is_read_can_be_written_and_read(
            name in "[a-z/-]{0,6}",
            mountpoint in "[a-z./]{0,12}",
            options in "[a-z=,\n]{0,12}",
        ) {
            let made = Machine { name, mountpoint: mountpoint.into(), options, ..machine() };
            let text = made.text().unwrap();
            if let Ok(machine) = Machine::parse(text.as_bytes()) {
                let again = machine.text().unwrap();
                proptest::prop_assert_eq!(Machine::parse(again.as_bytes()), Ok(machine));
            }
        }
    }
}
