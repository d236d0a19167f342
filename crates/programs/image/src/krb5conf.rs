//! The realm's `krb5.conf` as a machine can use it: without what belongs to the host it comes
//! from.

/// Lines that name folders of the host, or what it keeps there.
const OF_THE_HOST: [&str; 9] = [
    "default_ccache_name",
    "default_keytab_name",
    "default_client_keytab_name",
    "plugin_base_dir",
    "kdc",
    "admin_server",
    "default",
    "include",
    "includedir",
];
/// Of those, the ones that say where servers are, if it is not a log's file.
const SERVERS: [&str; 2] = ["kdc", "admin_server"];
const LOG_KINDS: [&str; 5] = ["FILE", "STDERR", "CONSOLE", "DEVICE", "SYSLOG"];

/// Leaves those lines out.
pub fn portable(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_end_matches('\r'));
    let kept: Vec<&str> = lines.filter(|line| !is_of_the_host(line)).collect();
    kept.join("\n") + "\n"
}

fn is_of_the_host(line: &str) -> bool {
    let line = line.trim_start();
    let end = line.find(|letter: char| letter == '=' || letter.is_whitespace());
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let value = rest.trim_start_matches(|letter: char| letter == '=' || letter.is_whitespace());
    if SERVERS.contains(&key) || key == "default" {
        // In `[logging]` these words name files; in `[realms]` hosts.
        let kind = value.split([':', '=']).next().unwrap_or_default().trim();
        return LOG_KINDS.contains(&kind);
    }
    OF_THE_HOST.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_host_is_left_there() {
        let text = "includedir /etc/krb5.conf.d/\n[libdefaults]\n  default_realm = EXTENCI.ORG\n  \
                    default_ccache_name = FILE:/tmp/x/%{uid}\n\n[realms]\n  EXTENCI.ORG = {\n    \
                    kdc = 127.0.0.1:30000\n    admin_server = kdc.example\n  }\n[logging]\n  \
                    kdc = FILE:/var/log/kdc.log\n  default = SYSLOG:INFO\n";
        let kept = portable(text);
        for gone in ["includedir", "ccache", "kdc.log", "SYSLOG"] {
            assert!(!kept.contains(gone), "{gone}: {kept}");
        }
        for there in ["default_realm = EXTENCI.ORG", "kdc = 127.0.0.1:30000", "kdc.example", "}"] {
            assert!(kept.contains(there), "{there}: {kept}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(?s).{0,200}") {
            let _ = portable(&text);
        }
    }
}
