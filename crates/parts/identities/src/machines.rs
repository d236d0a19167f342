//! Principals that are machines or roles rather than users: they may say which of their users asks.

use tieline_format::map::Security;
use tieline_types::MachineTrust;

/// As what machines and roles come: they may state their users' ids.
pub const MACHINES: [&str; 2] = ["host", "tieline_role"];

/// How far the map believes a machine of its users; `None`: the principal is a user's.
pub fn trust_of(principal: &str, security: Option<&Security>) -> Option<MachineTrust> {
    let security = security?;
    let (name, realm) = principal.rsplit_once('@')?;
    let is_machine = name.split_once('/').is_some_and(|(first, _)| MACHINES.contains(&first));
    match security.machine(principal) {
        Some(trust) if is_machine => Some(trust),
        None if is_machine && realm == security.realm => Some(MachineTrust::Squash),
        // `ann/admin` is no machine, nor is one of a realm that nobody answers for.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_format::map::Machine;
    use tieline_types::FlavorRules;

    #[test]
    fn principals_are_machines_or_users() {
        let named = |principal: &str, trust| Machine { principal: principal.to_owned(), trust };
        let security = Security {
            realm: "EXTENCI.ORG".into(),
            flavors: FlavorRules::default(),
            services: vec![],
            machines: Some(vec![
                named("host/trusted@EXTENCI.ORG", MachineTrust::All),
                named("host/far@PSC.EDU", MachineTrust::Root),
                named("ann@EXTENCI.ORG", MachineTrust::All),
            ]),
            strangers: None,
            doors: None,
            issuers: None,
        };
        let of = |principal| trust_of(principal, Some(&security));
        assert_eq!(of("host/wn17@EXTENCI.ORG"), Some(MachineTrust::Squash));
        assert_eq!(of("tieline_role/image@EXTENCI.ORG"), Some(MachineTrust::Squash));
        assert_eq!(of("host/trusted@EXTENCI.ORG"), Some(MachineTrust::All));
        assert_eq!(of("host/far@PSC.EDU"), Some(MachineTrust::Root));
        assert_eq!(of("host/other@PSC.EDU"), None, "a stranger, then");
        for user in ["ann@EXTENCI.ORG", "ann/admin@EXTENCI.ORG", "ann@PSC.EDU", "ann"] {
            assert_eq!(of(user), None, "{user}");
        }
    }
}
