//! What the door is like, by names that clients ask for.

use super::Asked;
use super::checksum::ALGORITHM;
use crate::request::{RANGE_BYTES_MAX, RANGES_MAX};

impl Asked {
    /// A line for each name; of one that says nothing here, the name itself, as clients expect.
    pub(super) fn config(&self, names: &[String]) -> String {
        let lines = names.iter().map(|name| self.value(name).unwrap_or_else(|| name.clone()));
        lines.map(|line| line + "\n").collect()
    }

    fn value(&self, name: &str) -> Option<String> {
        let settings = &self.session.shared.settings;
        Some(match name {
            "readv_iov_max" => RANGES_MAX.to_string(),
            "readv_ior_max" => RANGE_BYTES_MAX.to_string(),
            "chksum" => format!("0:{ALGORITHM}"),
            "role" => "server".to_owned(),
            "version" => format!("tieline {}", env!("CARGO_PKG_VERSION")),
            "sitename" => settings.site.clone(),
            // No other connections beside the first.
            "bind_max" => "0".to_owned(),
            "cms" => "none|".to_owned(),
            _ => return None,
        })
    }
}
