//! Is a file just what a Debian package has? Packages list the MD5 sums of their files in
//! `var/lib/dpkg/info/PACKAGE.md5sums`.

use crate::about::digits;
use md5::Md5;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

const LISTS: &str = "var/lib/dpkg/info";

/// `name` is from the tree's root on.
pub fn has(tree: &Path, name: &Path, path: &Path) -> io::Result<bool> {
    let Some(name) = name.to_str() else { return Ok(false) };
    let sum = digits::<Md5>(path)?;
    // Packages of before the merging of /usr have it without `usr/`.
    let names = [name, name.strip_prefix("usr/").unwrap_or(name)];
    let Ok(lists) = fs::read_dir(tree.join(LISTS)) else { return Ok(false) };
    for list in lists {
        let list = list?;
        if !list.file_name().to_string_lossy().ends_with(".md5sums") {
            continue;
        }
        for line in BufReader::new(File::open(list.path())?).lines() {
            let line = line?;
            if line.split_once("  ").is_some_and(|(of, file)| of == sum && names.contains(&file)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
