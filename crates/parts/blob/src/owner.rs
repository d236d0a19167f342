//! Whose objects a store holds, as its marker says: the file, or the object, `tieline-ost`.
//!
//! Knows words only; where a marker lies, and how it is kept from being written twice, is the
//! store's.

use std::fmt;
use tieline_types::{FsName, OstIndex};

/// The name of the marker.
pub const MARKER: &str = "tieline-ost";
/// More than any marker has.
pub const MARKER_MAX: u64 = 4 << 10;
const VERSION: &str = "1";

/// Whose objects a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub fs: FsName,
    pub ost: OstIndex,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of file system {}", self.ost.label(), self.fs)
    }
}

/// The text of a marker; `uuid` tells this store from another of the same name.
pub fn marker(identity: &Identity, uuid: [u8; 16]) -> String {
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "# Tieline keeps the objects of one OST here. Leave this file as it is.\n\
         version = {VERSION}\nfs = \"{}\"\nost = {}\nuuid = \"{uuid}\"\n",
        identity.fs, identity.ost
    )
}

/// The uuid of a marker, if it is `identity`'s; else what is wrong, for people.
pub fn check(text: &str, identity: &Identity) -> Result<String, String> {
    let field = |wanted: &str| {
        let line = text.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == wanted).then(|| value.trim().trim_matches('"').to_owned())
        });
        line.ok_or_else(|| format!("its marker {MARKER} has no `{wanted}`"))
    };
    let version = field("version")?;
    if version != VERSION {
        return Err(format!(
            "its marker has version {version}, this build knows {VERSION}: use a newer build"
        ));
    }
    let (fs, ost) = (field("fs")?, field("ost")?);
    if fs != identity.fs.as_str() || ost != identity.ost.to_string() {
        let owner = match ost.parse() {
            Ok(index) => OstIndex(index).label(),
            Err(_) => format!("OST `{ost}`"),
        };
        return Err(format!("it belongs to {owner} of file system {fs}, not to {identity}"));
    }
    field("uuid")
}
