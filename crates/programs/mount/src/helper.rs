//! The words that mount(8) and umount(8) use: `mount.tieline SOURCE TARGET [-sfnv] [-o OPTIONS]`.

use crate::{Args, UmountArgs, remount};
use std::ffi::OsString;
use std::path::PathBuf;
use tieline_base::report::Usage;

/// `mount.tieline`.
pub fn mount(words: &[OsString]) -> anyhow::Result<()> {
    let call = MountCall::parse(words)?;
    if call.is_fake {
        return Ok(());
    }
    let options = call.options();
    let args = Args {
        source: Some(call.source.parse()?),
        mountpoint: Some(call.target.into()),
        options,
        foreground: false,
        daemon: false,
        restart: None,
        held: None,
        hold: None,
        scout: None,
    };
    crate::run(args, false)
}

/// `umount.tieline TARGET [-flnrv]`.
pub fn umount(words: &[OsString]) -> anyhow::Result<()> {
    let mut args = UmountArgs { lazy: false, force: false, wait: false, mountpoints: Vec::new() };
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match text.as_ref() {
            // umount(8) names the type and the namespace with a word of their own.
            "-t" | "-N" => drop(words.next()),
            flags if flags.starts_with('-') => {
                args.lazy |= flags.contains('l');
                args.force |= flags.contains('f');
            }
            _ => args.mountpoints.push(PathBuf::from(word)),
        }
    }
    if args.mountpoints.is_empty() {
        return Err(Usage("umount.tieline TARGET [-flnrv]".into()).into());
    }
    crate::umount(&args)
}

/// What mount(8) said.
#[derive(Default, Debug, PartialEq, Eq)]
struct MountCall {
    source: String,
    target: OsString,
    options: Vec<String>,
    is_fake: bool,
}

impl MountCall {
    /// As they are meant. Of a mount that is there mount(8) names all flags that it shall have:
    /// that a flag is to go, it says by leaving it out. `suid` and `dev` it leaves out of fstab,
    /// too, and those are not given unasked.
    fn options(&self) -> Vec<String> {
        let mut options = self.options.clone();
        let has = |wanted| options.iter().flat_map(|list| list.split(',')).any(|one| one == wanted);
        if remount::is_wanted(&options) && !has("noexec") {
            options.push("exec".to_owned());
        }
        options
    }

    fn parse(words: &[OsString]) -> Result<Self, Usage> {
        let usage = || Usage("mount.tieline SOURCE TARGET [-sfnv] [-o OPTIONS]".into());
        let mut call = Self::default();
        let mut places = Vec::new();
        let mut is_sloppy = false;
        let mut words = words.iter().skip(1);
        while let Some(word) = words.next() {
            let text = word.to_string_lossy().into_owned();
            match text.as_str() {
                "-o" => {
                    let list = words.next().ok_or_else(usage)?;
                    call.options.push(list.to_string_lossy().into_owned());
                }
                "-t" | "-N" => drop(words.next()),
                flags if flags.starts_with('-') => {
                    call.is_fake |= flags.contains('f');
                    is_sloppy |= flags.contains('s');
                }
                _ => places.push(word.clone()),
            }
        }
        let [source, target] = places.as_slice() else { return Err(usage()) };
        call.source = source.to_string_lossy().into_owned();
        call.target = target.clone();
        if is_sloppy {
            // Options that nobody knows are to be overlooked.
            let words = call.options.iter().flat_map(|list| list.split(','));
            let known = words.filter(|word| {
                *word == "remount" || crate::options::Options::parse([*word]).is_ok()
            });
            call.options = vec![known.collect::<Vec<_>>().join(",")];
        }
        Ok(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<MountCall, Usage> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        MountCall::parse(&words)
    }

    #[test]
    fn mounts_words_are_understood() {
        let call = parse("mount.tieline h:/extenci /mnt -v -n -o rw,noatime,sec=null").unwrap();
        assert_eq!((call.source.as_str(), call.target.to_str()), ("h:/extenci", Some("/mnt")));
        assert_eq!(call.options, ["rw,noatime,sec=null"]);
        assert!(!call.is_fake);
        assert!(parse("mount.tieline h:/e /mnt -f").unwrap().is_fake);
        let sloppy = parse("mount.tieline h:/e /mnt -s -o ro,frobnicate").unwrap();
        assert_eq!(sloppy.options, ["ro"]);
        let again = parse("mount.tieline h:/e /mnt -s -o rw,user_id=0,remount,ro").unwrap();
        assert_eq!(again.options(), ["rw,remount,ro", "exec"]);
        let kept = parse("mount.tieline h:/e /mnt -o rw,noexec,remount,ro").unwrap();
        assert_eq!(kept.options(), ["rw,noexec,remount,ro"]);
        assert!(parse("mount.tieline h:/e").is_err());
        assert!(parse("mount.tieline h:/e /mnt -o").is_err());
    }
}
