//! Names of caches, as KRB5CCNAME has them: `FILE:/tmp/krb5cc_1000`, `KEYRING:persistent:1000`.

use std::path::{Path, PathBuf};
use tieline_types::Shown;

/// Where a process that looks into a cache finds the root of its user's tree.
const BELOW: &str = "/proc/self/fd/0";

/// The path that a cache is, if it is a file.
pub(crate) fn file_named(name: &str) -> Option<&Path> {
    let path = Path::new(name.strip_prefix("FILE:").unwrap_or(name));
    path.is_absolute().then_some(path)
}

/// The name of a cache with the whole path of its file or directory, for who works in `cwd`.
pub(crate) fn named_whole(name: String, cwd: impl FnOnce() -> Option<PathBuf>) -> String {
    let (kind, path) = name.split_once(':').unwrap_or(("FILE", &name));
    let (mark, path) = path.strip_prefix(':').map_or(("", path), |path| (":", path));
    if !["FILE", "DIR"].contains(&kind) || path.starts_with('/') || path.is_empty() {
        return name;
    }
    let whole = cwd().and_then(|cwd| cwd.join(path).into_os_string().into_string().ok());
    whole.map_or_else(|| name.clone(), |whole| format!("{kind}:{mark}{whole}"))
}

/// The same cache in the caller's tree; `None`: it is no file, and the same everywhere.
pub(super) fn name_below(cache: &str) -> Option<String> {
    let (kind, path) = match cache.split_once(':') {
        Some((kind @ ("FILE" | "DIR"), path)) => (kind, path),
        Some(_) => return None,
        None => ("FILE", cache),
    };
    // `DIR::/path` is one of the directory's caches.
    let (mark, path) = path.strip_prefix(':').map_or(("", path), |path| (":", path));
    path.starts_with('/').then(|| format!("{kind}:{mark}{BELOW}{path}"))
}

/// Who alone can look into caches of some kinds: a mount has others do it.
pub(super) fn keeper(cache: &str) -> Option<&'static str> {
    let kinds = [
        ("MEMORY:", "the program itself"),
        ("KEYRING:process:", "the program itself"),
        ("KEYRING:thread:", "the program's own thread"),
        ("KEYRING:session:", "the session it was made in"),
    ];
    kinds.into_iter().find(|(kind, _)| cache.starts_with(kind)).map(|(_, keeper)| keeper)
}

/// What is wrong with a name under which nobody finds a cache, for a process elsewhere.
pub(super) fn leads_nowhere(cache: &str) -> Option<String> {
    let (kind, path) = cache.split_once(':').unwrap_or(("FILE", cache));
    match kind {
        "FILE" | "DIR" if path.trim_start_matches(':').starts_with('/') => None,
        "FILE" | "DIR" => Some("the path in KRB5CCNAME is relative: name it whole".to_owned()),
        "KCM" | "KEYRING" | "MEMORY" | "API" | "MSLSA" => None,
        kind => {
            let kind = Shown(kind.as_bytes());
            Some(format!(
                "KRB5CCNAME names a cache of the unknown kind `{kind}`: name a file, \
                 KEYRING:persistent:{} or KCM:",
                rustix::process::getuid().as_raw()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        assert_eq!(file_named("FILE:/tmp/x"), Some(Path::new("/tmp/x")));
        assert_eq!(file_named("/tmp/x"), Some(Path::new("/tmp/x")));
        for other in ["KCM:", "KEYRING:persistent:7", "DIR:/tmp/d", "FILE:x", ""] {
            assert_eq!(file_named(other), None, "{other}");
        }
    }

    #[test]
    fn a_relative_path_is_of_where_its_process_works() {
        let whole = |name: &str| named_whole(name.to_owned(), || Some("/home/k".into()));
        assert_eq!(whole("cc"), "FILE:/home/k/cc");
        assert_eq!(whole("FILE:./cc"), "FILE:/home/k/./cc");
        assert_eq!(whole("DIR:d"), "DIR:/home/k/d");
        assert_eq!(whole("DIR::d/tkt"), "DIR::/home/k/d/tkt");
        for same in ["/tmp/x", "FILE:/tmp/x", "KCM:", "KEYRING:persistent:7", "BOGUS:x", "FILE:"] {
            assert_eq!(whole(same), same);
        }
        assert_eq!(named_whole("cc".to_owned(), || None), "cc");
    }

    #[test]
    fn files_of_another_tree_are_below_its_root() {
        let below = |name| name_below(name).unwrap_or_default();
        assert_eq!(below("FILE:/tmp/x"), "FILE:/proc/self/fd/0/tmp/x");
        assert_eq!(below("/tmp/x"), "FILE:/proc/self/fd/0/tmp/x");
        assert_eq!(below("DIR:/tmp/d"), "DIR:/proc/self/fd/0/tmp/d");
        assert_eq!(below("DIR::/tmp/d/tkt"), "DIR::/proc/self/fd/0/tmp/d/tkt");
        for same in ["KCM:", "KEYRING:persistent:7", "MEMORY:x", "FILE:x"] {
            assert_eq!(name_below(same), None, "{same}");
        }
    }
}
