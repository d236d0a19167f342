//! What a verb is pointed at: a path below a mount, or `tieline://HOST[:PORT]/FS/path`.
//!
//! A path below a mount is looked up in the registry of mounts, so that verbs talk to the same
//! servers, from the same network namespace, with the same key, but without going through the
//! mount.

use crate::proving::Proving;
use crate::registry::{self, Entry};
use crate::report::Usage;
use crate::source::Source;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tieline_machine::paths::absolute;
use tieline_types::{FsName, Shown};

/// A place in a file system, and how to get there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Servers, file system, and the directory that `path` starts from.
    pub source: Source,
    /// Without slashes at its ends.
    pub path: Vec<u8>,
    pub netns: Option<PathBuf>,
    /// Digits or a path.
    pub mapkey: Option<String>,
    /// Where the source is mounted, if it is.
    pub mountpoint: Option<PathBuf>,
    /// How the mount shows owners, as `-o idmap=` says it.
    pub idmap: Option<String>,
    /// How we prove ourselves to its servers.
    pub proving: Proving,
    /// As it was typed, to go on from it.
    pub typed: Vec<u8>,
    /// The same, for messages.
    pub text: String,
}

impl Location {
    /// What the words of a command line mean.
    pub fn find(typed: &OsStr) -> Result<Self, Usage> {
        if let Some(url) = typed.to_str().filter(|text| text.starts_with("tieline://")) {
            return Self::from_url(url);
        }
        let path = absolute(Path::new(typed));
        match registry::covering(&path) {
            Some((entry, rest)) => {
                Self::from_entry(&entry, rest.as_os_str().as_bytes(), typed.as_bytes())
            }
            None => Err(Usage(format!(
                "`{}` is not below a tieline mount: name a path that is, \
                 or tieline://HOST[:PORT]/FS/path",
                Shown(typed.as_bytes())
            ))),
        }
    }

    /// The file system that operators' commands are about: the one of `typed` if given, else the
    /// one that is mounted here.
    pub fn find_fs(typed: Option<&OsStr>, fs: Option<&FsName>) -> Result<Self, Usage> {
        if let Some(typed) = typed {
            let location = Self::find(typed)?;
            return match fs {
                Some(fs) if *fs != location.source.fs => Err(Usage(format!(
                    "`{}` is in /{}, not in /{fs}",
                    location.text, location.source.fs
                ))),
                _ => Ok(location),
            };
        }
        Self::mounted(fs, "--fs ")
    }

    /// The file system that a word names, by a path below it or by its own name; without a word,
    /// the one that is mounted here.
    pub fn find_word(word: Option<&OsStr>) -> Result<Self, Usage> {
        let Some(word) = word else { return Self::mounted(None, "") };
        let fs = word.to_str().and_then(|word| word.parse::<FsName>().ok());
        match fs {
            Some(fs) if !Path::new(word).exists() => Self::mounted(Some(&fs), ""),
            _ => Self::find(word),
        }
    }

    /// The one that is mounted here; else what to say, after which option.
    fn mounted(fs: Option<&FsName>, option: &str) -> Result<Self, Usage> {
        let mut mounted: Vec<(Entry, Source)> = Vec::new();
        for entry in registry::all() {
            let source: Source = entry.source.parse()?;
            let is_meant = fs.is_none_or(|fs| source.fs == *fs);
            // Several mounts of one federation are one; two federations may use one name.
            if is_meant && !mounted.iter().any(|(known, _)| known.is_together_with(&entry)) {
                mounted.push((entry, source));
            }
        }
        match mounted.as_slice() {
            [(entry, source)] => Self::from_entry(entry, b"", format!("/{}", source.fs).as_bytes()),
            [] => Err(Usage(format!(
                "no such file system is mounted here: give {option}tieline://HOST[:PORT]/FS"
            ))),
            _ => Err(Usage(format!(
                "several file systems are mounted here: say which with {option}PATH-BELOW-IT"
            ))),
        }
    }

    fn from_url(text: &str) -> Result<Self, Usage> {
        let source = Source::from_url(text)?;
        Ok(Self {
            path: source.directory.as_bytes().to_vec(),
            netns: None,
            mapkey: site_key(&source.fs),
            mountpoint: None,
            idmap: None,
            proving: Proving::default(),
            typed: text.into(),
            text: Shown(text.as_bytes()).to_string(),
            source: source.whole(),
        })
    }

    fn from_entry(entry: &Entry, rest: &[u8], typed: &[u8]) -> Result<Self, Usage> {
        Ok(Self {
            source: entry.source.parse()?,
            path: rest.to_vec(),
            netns: entry.netns.clone(),
            mapkey: Some(entry.mapkey.clone()),
            mountpoint: Some(entry.mountpoint.clone()),
            idmap: entry.idmap.clone(),
            proving: entry.proving.clone(),
            typed: typed.to_vec(),
            text: Shown(typed).to_string(),
        })
    }

    /// The path as it was typed, for names to be put behind it.
    pub fn stem(&self) -> Vec<u8> {
        let end = self.typed.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        self.typed.get(..end).unwrap_or_default().to_vec()
    }

    /// Can both be reached through one session?
    pub fn is_together_with(&self, other: &Self) -> bool {
        (&self.source, &self.netns, &self.mapkey) == (&other.source, &other.netns, &other.mapkey)
    }
}

/// Where a site keeps the key of a federation, if it does.
pub fn site_key(fs: &FsName) -> Option<String> {
    let path = format!("/etc/tieline/{fs}.key");
    Path::new(&path).exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_need_no_mount() {
        let location = Location::find("tieline://h:1/extenci/a/b".as_ref()).unwrap();
        assert_eq!(location.path, b"a/b");
        assert_eq!(location.source.to_string(), "h:1:/extenci");
        assert!(Location::find("/nowhere/at/all".as_ref()).is_err());
    }

    #[test]
    fn who_is_told_to_say_which_can_say_so() {
        let none = "none-of-that-name";
        let by_word = Location::find_word(Some(none.as_ref())).unwrap_err().to_string();
        assert!(by_word.contains("give tieline://"), "{by_word}");
        let by_option = Location::find_fs(None, none.parse().ok().as_ref()).unwrap_err();
        assert!(by_option.to_string().contains("give --fs tieline://"), "{by_option}");
    }
}
