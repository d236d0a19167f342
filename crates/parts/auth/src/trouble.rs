//! What goes wrong with Kerberos, one line each, with what to do about it.
//!
//! The library's numbers are those of RFC 4120 section 7.5.9 and of MIT's `krb5.h`. Everything that
//! is not in the table keeps the library's own words.

use std::path::Path;
use tieline_wire::Flavor;

/// Why a handshake did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error(
        "libgssapi_krb5 cannot be used ({why}): install libgssapi-krb5-2 \
         (Debian) or krb5-libs (RHEL)"
    )]
    NoLibrary { why: String },
    #[error(
        "krb5.conf cannot be used ({why}): correct what its lines or those of a file that it \
         includes say (KRB5_CONFIG, or `config` in a server's settings, names another)"
    )]
    Config { why: String },
    #[error(
        "clocks differ by more than Kerberos allows: set both machines' clocks (NTP), \
         then try again"
    )]
    ClockSkew,
    #[error("the ticket{} is of another key version than the server's keytab: give the server a \
        new keytab (`ktadd`), then `kinit` again", of(.target))]
    KeyVersion { target: String },
    #[error("the server's keytab has no key for the ticket{}: add that principal to it \
        (`ktadd`)", of(.target))]
    NoKey { target: String },
    #[error("there is no enctype that the KDC, the server's key{} and this machine share: give \
        the principal aes256-cts keys (`cpw -e aes256-cts:normal`), and permit them in \
        krb5.conf", of(.target))]
    NoEnctype { target: String },
    #[error("this machine's krb5.conf permits none of the enctypes that tickets{} have: permit \
        aes256-cts in its `permitted_enctypes` and `default_tgs_enctypes`, then `kinit` again",
        of(.target))]
    NoEnctypeHere { target: String },
    #[error(
        "the session key has enctype {enctype}, and only AES-256 is accepted: set \
         session_enctypes of the server's principal to aes256-cts"
    )]
    WeakKey { enctype: u8 },
    #[error(
        "the ticket is sealed with enctype {enctype}, and only AES-256 is accepted: give the \
         server's principal aes256-cts keys alone (`cpw -randkey -e aes256-cts:normal`), and the \
         server a new keytab (`ktadd`)"
    )]
    WeakTicket { enctype: u8 },
    #[error("no way to the realm{}: name its KDC in [realms] of krb5.conf, or have the realms \
        trust each other (krbtgt/THEIRS@OURS)", of(.target))]
    WrongRealm { target: String },
    #[error(
        "a KDC cannot read the ticket of another realm{}: give the principal of the trust \
         (krbtgt/THEIRS@OURS) the same password and key version in both KDCs", of(.target)
    )]
    Trust { target: String },
    #[error("no KDC answers{}: look at the network, and at `kdc =` in krb5.conf", of(.target))]
    NoKdc { target: String },
    #[error("the KDC does not know the server's principal{}: add it (`addprinc -randkey`), or \
        correct its name in the federation map; if it is of another realm, name that for its host \
        in [domain_realm] of krb5.conf", of(.target))]
    UnknownServer { target: String },
    #[error("the KDC does not know us{}: add that principal (`addprinc`), or name another of the \
        keytab's (`klist -k`)", of(.client))]
    UnknownClient { client: String },
    #[error("the KDC does not take our key{}: the keytab is older than the KDC's key of the \
        principal, or another's: compare `kvno` and `klist -k`, then make a new one (`ktadd`)",
        of(.key))]
    OldKey { key: String },
    #[error("the ticket has expired: run `kinit`")]
    Expired,
    /// A cached ticket ended between its choice and its use: the next try gets another.
    #[error("the ticket ended while it was used: try again")]
    Ended,
    #[error("there is no ticket: run `kinit`, or give a keytab")]
    NoTicket,
    #[error(
        "the ticket was shown before, as if somebody on the way repeated it: try again; if it \
         stays so, look at what is between both ends"
    )]
    Replayed,
    #[error(
        "the ticket belongs to another conversation, as if somebody on the way changed what was \
         said: connect both ends without a proxy between them, and update the older one"
    )]
    Binding,
    #[error(
        "the ticket belongs to no conversation, so that it may have been shown to somebody else: \
         update the end that dials, and the server's libgssapi_krb5 (1.19 at least)"
    )]
    Unbound,
    #[error("the ticket or its key is not what the server has{}: compare key versions with \
        `kvno` and `klist -k`", of(.target))]
    Damaged { target: String },
    #[error(
        "the keytab {path} has no key{}: `klist -k {path}` shows whose keys it has", of(.principal)
    )]
    KeytabLacks { path: String, principal: String },
    #[error(
        "the keytab {path} cannot be read ({why}): correct its path, or give it to the user that \
         reads it (`chown`, `chmod 600`)"
    )]
    Keytab { path: String, why: String },
    #[error(
        "the other end did not prove itself: look who listens at that address, and run \
         `tieline doctor` there"
    )]
    NotMutual,
    #[error(
        "{peer} answered, and not {expected}: it has the wrong keys, or the map has a wrong name"
    )]
    WrongServer { peer: String, expected: String },
    #[error("flavor {} needs Kerberos, and this end has no credential for it: give a keytab or \
        run `kinit` (towards servers without Kerberos: `sec=null`)", .0.name())]
    NoCredential(Flavor),
    #[error("flavor {} was offered, and nothing weaker than {} is taken here: look with `tieline \
        flavor list` at the rules, and at `sec=` of both ends; if they agree, somebody on the way \
        has a hand in it", .offered.name(), .wanted.name())]
    TooWeak { offered: Flavor, wanted: Flavor },
    #[error(
        "the handshake took longer than {seconds} s: look whether the KDCs of `kdc =` in krb5.conf \
         answer, and at the load of this machine"
    )]
    Late { seconds: u64 },
    #[error(
        "a token has {length} bytes, and {limit} are the most: have the KDC put less into the \
         ticket (in Active Directory: fewer groups for the account)"
    )]
    TokenTooLong { length: usize, limit: usize },
    #[error(
        "{peer} is no server of this federation: add its address to the federation map, or \
         correct its principal in `services`"
    )]
    NoServer { peer: String },
    #[error("{text}: look at the KDC's log, and at what `KRB5_TRACE=/dev/stderr` shows")]
    Other { text: String },
}

fn of(target: &str) -> String {
    if target.is_empty() { String::new() } else { format!(" ({target})") }
}

/// `GSS_S_BAD_BINDINGS`, `_NO_CRED`, `_DUPLICATE_TOKEN`, as they stand in a status.
const BAD_BINDINGS: u32 = 4 << 16;
const NO_CRED: u32 = 7 << 16;
const CREDENTIALS_EXPIRED: u32 = 11 << 16;
const CONTEXT_EXPIRED: u32 = 12 << 16;

impl Trouble {
    /// From GSSAPI's general error and the mechanism's own number.
    pub(crate) fn from_code(general: u32, code: i32, text: String) -> Self {
        let target = String::new();
        // A number of the system's: of the files that are read only krb5.conf is not named.
        if code == libc::EACCES && !text.contains('/') {
            return Self::Config { why: text };
        }
        // krb5.h; the base of the table is -1765328384.
        match code + 1_765_328_384 {
            7 if text.contains("krbtgt/") => Self::WrongRealm { target },
            33 | 37 => Self::ClockSkew,
            44 | 230 => Self::KeyVersion { target },
            45 | 181 => Self::NoKey { target },
            14 | 150 | 237 => Self::NoEnctype { target },
            154 | 217 | 220 => Self::WrongRealm { target },
            156 => Self::NoKdc { target },
            7 => Self::UnknownServer { target },
            6 => Self::UnknownClient { client: target },
            24 => Self::OldKey { key: target },
            32 => Self::Expired,
            136..=138 => Self::Config { why: text },
            141 | 143 | 195 => Self::NoTicket,
            34 => Self::Replayed,
            31 | 41 => Self::Damaged { target },
            35 | 36 | 144 => Self::NoKey { target },
            _ => Self::from_words(general, text),
        }
    }

    /// Some numbers are lost on the way through the library; its words are not.
    fn from_words(general: u32, text: String) -> Self {
        let target = String::new();
        let has = |part: &str| text.contains(part);
        match general {
            _ if has("not found in keytab; ticket is likely out of date")
                || has("not found in keytab; keytab is likely out of date") =>
            {
                Self::KeyVersion { target }
            }
            _ if has("not found in keytab") => Self::NoKey { target },
            _ if has("Kerberos configuration file") => Self::Config { why: text },
            _ if has("PROCESS_TGS") => Self::Trust { target },
            // MIT's KDC, where none of the principal's keys has an enctype that it permits.
            _ if has("FINDING_SERVER_KEY") => Self::NoEnctype { target },
            _ if has("No credentials found with supported encryption types") => {
                Self::NoEnctypeHere { target }
            }
            _ if has("No Kerberos credentials available") || has("No credentials cache found") => {
                Self::NoTicket
            }
            BAD_BINDINGS => Self::Binding,
            CREDENTIALS_EXPIRED => Self::Expired,
            CONTEXT_EXPIRED => Self::Ended,
            NO_CRED if text.is_empty() => Self::NoTicket,
            _ => Self::Other { text },
        }
    }

    /// The same, naming whom it was about.
    pub(crate) fn about(mut self, name: &str) -> Self {
        match &mut self {
            Self::KeyVersion { target }
            | Self::NoKey { target }
            | Self::NoEnctype { target }
            | Self::NoEnctypeHere { target }
            | Self::WrongRealm { target }
            | Self::Trust { target }
            | Self::NoKdc { target }
            | Self::UnknownServer { target }
            | Self::Damaged { target } => name.clone_into(target),
            _ => {}
        }
        self
    }

    /// The same, of an end that dials with a keytab, before any server has said a word. The KDC's
    /// answer is sealed with the key that it has of the principal: whoever cannot open it has
    /// another.
    pub(crate) fn with_keytab(self, path: &Path, principal: &str) -> Self {
        match self {
            Self::OldKey { .. } | Self::Damaged { .. } => {
                Self::OldKey { key: format!("{principal} in {}", path.display()) }
            }
            Self::UnknownClient { .. } => {
                Self::UnknownClient { client: format!("{principal} in {}", path.display()) }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_troubles_say_what_to_do() {
        let of = |code: i32| Trouble::from_code(13 << 16, code, String::new()).to_string();
        assert!(of(-1_765_328_347).contains("clocks"));
        assert!(of(-1_765_328_340).contains("key version"));
        assert!(of(-1_765_328_370).contains("aes256-cts"));
        assert!(of(-1_765_328_230).contains("realm"));
        assert!(of(-1_765_328_228).contains("KDC"));
        assert!(of(-1_765_328_377).contains("addprinc"));
        assert!(of(-1_765_328_360).contains("ktadd"));
        let named = Trouble::from_code(13 << 16, -1_765_328_377, String::new()).about("a/b@C");
        assert!(named.to_string().contains("a/b@C"));
        assert_eq!(Trouble::from_code(4 << 16, 0, String::new()), Trouble::Binding);
        let text = || "x".to_owned();
        let others = [
            (Trouble::Keytab { path: text(), why: text() }, "chown"),
            (Trouble::from_code(13 << 16, -1_765_328_247, text()), "KRB5_CONFIG"),
            (Trouble::from_code(13 << 16, libc::EACCES, text()), "KRB5_CONFIG"),
            (Trouble::WrongRealm { target: text() }, "[realms]"),
            (Trouble::NotMutual, "tieline doctor"),
            (Trouble::Replayed, "try again"),
            (Trouble::Binding, "proxy"),
            (Trouble::Unbound, "update"),
            (Trouble::WeakTicket { enctype: 17 }, "aes256-cts"),
            (Trouble::TooWeak { offered: Flavor::Null, wanted: Flavor::Krb5i }, "sec="),
            (Trouble::Late { seconds: 8 }, "kdc ="),
            (Trouble::TokenTooLong { length: 1, limit: 0 }, "groups"),
            (Trouble::NoServer { peer: text() }, "federation map"),
            (Trouble::Other { text: text() }, "KRB5_TRACE"),
        ];
        for (trouble, step) in others {
            let told = trouble.to_string();
            let (_, fix) = told.rsplit_once(": ").unwrap();
            assert!(fix.contains(step), "{told}");
        }
        assert_eq!(Trouble::from_code(12 << 16, 0, "Success".into()), Trouble::Ended);
    }

    /// Some KDCs say so, of others the answer cannot be opened.
    #[test]
    fn an_old_keytab_is_named_with_its_principal() {
        for code in [-1_765_328_360, -1_765_328_353] {
            let trouble = Trouble::from_code(13 << 16, code, String::new()).about("mds/x@R");
            let told = trouble.with_keytab(Path::new("/etc/old.kt"), "host/a@R").to_string();
            assert!(told.contains("host/a@R in /etc/old.kt") && !told.contains("mds/x"), "{told}");
            let (_, fix) = told.rsplit_once(": ").unwrap();
            assert!(fix.contains("kvno") && fix.contains("ktadd"), "{fix}");
        }
        let unknown = Trouble::from_code(13 << 16, -1_765_328_378, String::new());
        let told = unknown.with_keytab(Path::new("/etc/my.kt"), "host/a@R").to_string();
        assert!(told.contains("host/a@R in /etc/my.kt") && told.contains("klist -k"), "{told}");
        let other = Trouble::from_code(13 << 16, -1_765_328_347, String::new());
        assert_eq!(other.with_keytab(Path::new("/k"), "host/a@R"), Trouble::ClockSkew);
    }

    #[test]
    fn a_client_that_permits_no_enctype_of_its_tickets_is_told_where() {
        let text = "No credentials found with supported encryption types (filename: /tmp/cc)";
        let told = Trouble::from_code(13 << 16, 0, text.to_owned()).about("mds/x@R").to_string();
        assert!(told.contains("mds/x@R") && told.contains("permitted_enctypes"), "{told}");
    }
}
