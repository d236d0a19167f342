//! Where a file is to be had: here.

use super::{Asked, Outcome};
use crate::request::Path;

impl Asked {
    pub(super) async fn locate(&self, path: &Path) -> Outcome {
        self.find(path).await?;
        let address = self.session.shared.settings.address.as_deref();
        // A server that is there, to be read.
        Ok(format!("Sr{}\0", bracketed(address.unwrap_or(&self.session.local))).into())
    }
}

/// Addresses of IPv4 are written as clients expect them.
fn bracketed(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "1094"));
    let is_v4 = host.parse::<std::net::Ipv4Addr>().is_ok();
    if is_v4 { format!("[::{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_clients_read_them() {
        assert_eq!(bracketed("10.0.0.1:1094"), "[::10.0.0.1]:1094");
        assert_eq!(bracketed("[2001:db8::1]:1094"), "[2001:db8::1]:1094");
        assert_eq!(bracketed("xrd.uf.example:1095"), "xrd.uf.example:1095");
    }
}
