//! Paths as people type them, made absolute: what is compared with the kernel's table and with what
//! other processes wrote down.

use std::path::{Component, Path, PathBuf};

/// Absolute, with the kernel's view of everything but the last component, which may be a symlink
/// that is meant itself.
pub fn absolute(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let (Some(parent), Some(name)) = (whole.parent(), whole.file_name())
        && let Ok(parent) = parent.canonicalize()
    {
        return parent.join(name);
    }
    let mut clean = PathBuf::new();
    for component in whole.components() {
        match component {
            Component::ParentDir => drop(clean.pop()),
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink("d", real.join("link")).unwrap();
        assert_eq!(absolute(&real.join("d/../link")), real.join("link"));
        assert_eq!(absolute(&real.join("link/x")), real.join("d/x"));
        assert_eq!(absolute(Path::new("/a/../nowhere/../b/x/y")), Path::new("/b/x/y"));
    }
}
