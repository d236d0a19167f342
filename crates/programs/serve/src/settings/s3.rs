//! An OST in a bucket: what its settings say, and what they must not.

use super::{Check, OstSettings};
use std::path::PathBuf;
use tieline_s3::{Credentials, Keys};
use tieline_types::OstIndex;

/// Before the name of a secret that the service manager keeps for us.
const ENTRUSTED: &str = "credential:";
const REGION: &str = "us-east-1";
/// Leaves room for the names of objects in the 1024 bytes that a key may have.
const PREFIX_MAX: usize = 512;

/// The bucket of an OST, if all of it holds; what it is given is said by its limit.
pub(super) fn validate(
    ost: &OstSettings,
    fs: &str,
    key: &dyn Fn(&str) -> String,
    check: &mut Check,
) -> tieline_s3::Settings {
    let bucket = ost.bucket.clone().unwrap_or_default();
    check.holds(is_bucket(&bucket), &key("bucket"), || match bucket.as_str() {
        "" => "is missing: name the bucket that holds the objects".to_owned(),
        _ => format!("`{bucket}` is no bucket: write 3 to 63 of a-z, 0-9, `-` and `.`"),
    });
    let own = || format!("{fs}/{}", OstIndex(ost.index).label().to_lowercase());
    let prefix = ost.prefix.clone().unwrap_or_else(own);
    check.holds(is_prefix(&prefix), &key("prefix"), || {
        format!(
            "`{prefix}` is no prefix: write such as \"{}\", of letters, digits, `-`, `_`",
            own()
        )
    });
    let credentials = credentials(ost.credentials.as_deref());
    let credentials = check.take(&key("credentials"), credentials);
    if let Some(authorities) = &ost.authorities {
        check.holds(authorities.is_file(), &key("authorities"), || {
            format!("{} is no file: name one with certificates (PEM)", authorities.display())
        });
    }
    let settings = tieline_s3::Settings {
        bucket,
        prefix,
        endpoint: ost.endpoint.clone(),
        region: ost.region.clone().unwrap_or_else(|| REGION.to_owned()),
        // What stands for others is never used.
        credentials: credentials.unwrap_or(Credentials::File(PathBuf::new())),
        authorities: ost.authorities.clone(),
        given: None,
    };
    if let Some(url) = check.take(&key("endpoint"), settings.endpoint()) {
        let is_root = url.path() == "/" && url.query().is_none();
        check.holds(is_root, &key("endpoint"), || {
            "has a path: write such as \"https://s3.example.org\", and the bucket in `bucket`"
                .into()
        });
        let is_near = ["127.0.0.1", "::1", "localhost"].contains(&url.origin.host.as_str());
        if url.origin.scheme.name() == "http" && !is_near {
            check.doubt(&key("endpoint"), "objects cross the network unencrypted: write https://");
        }
    }
    settings
}

/// What only stands for a bucket has no meaning for a directory.
pub(super) fn check_unused(ost: &OstSettings, key: &dyn Fn(&str) -> String, check: &mut Check) {
    let has = [
        ("bucket", ost.bucket.is_some()),
        ("prefix", ost.prefix.is_some()),
        ("endpoint", ost.endpoint.is_some()),
        ("region", ost.region.is_some()),
        ("credentials", ost.credentials.is_some()),
        ("authorities", ost.authorities.is_some()),
    ];
    for (name, _) in has.into_iter().filter(|(_, is_there)| *is_there) {
        check.complain(&key(name), "is for `store = \"s3\"`: add that, or leave it out".into());
    }
}

fn is_bucket(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (3..=63).contains(&name.len()) && name.bytes().all(|b| is_known(b) || b == b'-' || b == b'.')
}

fn is_prefix(prefix: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_part =
        |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_known);
    prefix.len() <= PREFIX_MAX && (prefix.is_empty() || prefix.split('/').all(is_part))
}

/// By a file, by what the service manager keeps, or from the environment.
fn credentials(named: Option<&str>) -> Result<Credentials, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let credentials = match named.map(|named| (named, named.strip_prefix(ENTRUSTED))) {
        Some((_, Some(name))) => {
            let folder = variable("CREDENTIALS_DIRECTORY").ok_or_else(|| {
                format!(
                    "{name} is not entrusted to this process: LoadCredential={name}:FILE in the \
                     unit does that; outside of the unit name the file itself"
                )
            })?;
            Credentials::Entrusted(PathBuf::from(folder).join(name))
        }
        Some((path, None)) if path.starts_with('/') => Credentials::File(path.into()),
        Some((path, None)) => {
            return Err(format!("`{path}` is not an absolute path, nor credential:NAME"));
        }
        None => {
            let keys = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
            let (id, secret) = keys.ok_or(
                "is missing: name a file with the access key, or put AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY into the server's environment",
            )?;
            Credentials::Given(Keys { id, secret, token: variable("AWS_SESSION_TOKEN") })
        }
    };
    credentials.read().map(|_| credentials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_every_store_takes() {
        for good in ["objects", "a-1.b", "abc"] {
            assert!(is_bucket(good), "{good}");
        }
        for bad in ["", "ab", "Upper", "a/b", "a_b"] {
            assert!(!is_bucket(bad), "{bad}");
        }
        for good in ["", "extenci/ost0001", "a.b_c-d/E"] {
            assert!(is_prefix(good), "{good}");
        }
        for bad in ["/a", "a/", "a//b", "../a", "a/./b", "a b", "ä"] {
            assert!(!is_prefix(bad), "{bad}");
        }
    }
}
