//! What is looked for: the words of `lfs find` and find(1).

use super::glob::matches;
use crate::getstripe;
use crate::quota::names::Names;
use crate::shell::Shell;
use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use tieline_base::report::Usage;
use tieline_types::quota::PayerKind;
use tieline_types::{
    Attributes, ByteSize, Content, FileKind, Layout, MdtIndex, OstIndex, PoolName, Time,
};

const KNOWN: &str = "-name, -type, -size, -pool, -ost, -mdt, -user, -group, -uid, -gid, \
                     -atime, -ctime, -mtime, -amin, -cmin, -mmin, -newer, \
                     -maxdepth, -mindepth, !, -print, -print0, --json";
const MINUTE: i64 = 60;
const DAY: i64 = 86_400;

/// What is looked for, and how it is told.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub path: Option<OsString>,
    tests: Vec<(IsNot, Test)>,
    pub depth_min: usize,
    pub depth_max: Option<usize>,
    /// Names end with a zero byte.
    pub ends_with_zero: bool,
    pub is_json: bool,
}

type IsNot = bool;

/// More, less or just so many.
type Count = (Ordering, u64);

#[derive(Debug, PartialEq, Eq)]
enum Test {
    Name(String),
    Kind(FileKind),
    Size(Count),
    Pool(PoolName),
    Ost(OstIndex),
    Mdt(MdtIndex),
    /// A name that is not looked up yet.
    Named(PayerKind, String),
    Uid(u32),
    Gid(u32),
    /// So many whole units of seconds ago.
    Age(Stamp, i64, Count),
    Newer(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    Access,
    Change,
    Modification,
}

impl Stamp {
    fn of(self, attributes: &Attributes) -> Time {
        match self {
            Self::Access => attributes.atime,
            Self::Change => attributes.ctime,
            Self::Modification => attributes.mtime,
        }
    }
}

impl Wanted {
    pub fn parse(words: &[OsString]) -> Result<Self, Usage> {
        let mut wanted = Self::default();
        let mut is_not = false;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let key = text.trim_start_matches('-');
            match key {
                "!" | "not" => {
                    is_not = !is_not;
                    continue;
                }
                _ if key.len() == text.len() => {
                    if wanted.path.replace(word.clone()).is_some() {
                        return Err(Usage(format!("find takes one path, and `{text}` is another")));
                    }
                }
                "json" => wanted.is_json = true,
                "print" => wanted.ends_with_zero = false,
                "print0" | "0" => wanted.ends_with_zero = true,
                "maxdepth" | "D" => {
                    wanted.depth_max = Some(parsed(&text, value(&text, &mut words)?)?)
                }
                "mindepth" => wanted.depth_min = parsed(&text, value(&text, &mut words)?)?,
                _ => {
                    let test = test(&text, key, || value(&text, &mut words))?;
                    wanted.tests.push((is_not, test));
                    is_not = false;
                    continue;
                }
            }
            if is_not {
                return Err(Usage(format!("find: `!` stands before a condition, not `{text}`")));
            }
        }
        if is_not {
            return Err(Usage("find: `!` stands before a condition".into()));
        }
        Ok(wanted)
    }

    /// Looks up the users and groups that were named.
    pub async fn resolve(&mut self, shell: &Shell) -> anyhow::Result<()> {
        let is_named = |(_, test): &(IsNot, Test)| matches!(test, Test::Named(..));
        if !self.tests.iter().any(is_named) {
            return Ok(());
        }
        let names = Names::of(shell).await;
        for (_, test) in &mut self.tests {
            let Test::Named(kind, name) = &*test else { continue };
            let number = names.number(*kind, name)?;
            *test = if *kind == PayerKind::User { Test::Uid(number) } else { Test::Gid(number) };
        }
        Ok(())
    }

    /// `now` in seconds, as the files' times are counted.
    pub async fn fits(
        &self,
        shell: &Shell,
        (name, found): (&str, &Attributes),
        now: i64,
    ) -> anyhow::Result<bool> {
        for (is_not, test) in &self.tests {
            if test.holds(shell, (name, found), now).await? == *is_not {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Test {
    async fn holds(
        &self,
        shell: &Shell,
        (name, found): (&str, &Attributes),
        now: i64,
    ) -> anyhow::Result<bool> {
        Ok(match self {
            Self::Name(glob) => matches(glob, name),
            Self::Kind(kind) => found.kind == *kind,
            Self::Size((order, size)) => found.size.cmp(size) == *order,
            Self::Named(..) => false,
            Self::Uid(uid) => found.uid.0 == *uid,
            Self::Gid(gid) => found.gid.0 == *gid,
            Self::Mdt(mdt) => found.id.mdt() == *mdt,
            Self::Age(stamp, unit, (order, units)) => {
                let age = now.saturating_sub(stamp.of(found).seconds).max(0) / unit;
                age.cmp(&(*units).cast_signed()) == *order
            }
            Self::Newer(than) => {
                let of = |time: &Time| (time.seconds, time.nanos);
                of(&found.mtime) > of(than)
            }
            Self::Pool(pool) => {
                matches!(found.kind, FileKind::Regular | FileKind::Directory)
                    && names_pool(&shell.files.layout(&shell.caller, found.id).await?.layout, pool)
            }
            Self::Ost(ost) => {
                found.kind == FileKind::Regular
                    && getstripe::extents(shell, found).await?.iter().any(|extent| {
                        let Content::Chunk(chunk) = &extent.content else { return false };
                        chunk.places.iter().any(|place| place.is_at(*ost))
                    })
            }
        })
    }
}

/// Is a mirror of the layout in the pool?
pub fn names_pool(layout: &Layout, pool: &PoolName) -> bool {
    (0..usize::from(layout.mirrors)).any(|mirror| layout.pool_of_mirror(mirror) == Some(pool))
}

fn value<'a>(
    word: &str,
    words: &mut impl Iterator<Item = &'a OsString>,
) -> Result<&'a OsStr, Usage> {
    let value = words.next().map(OsString::as_os_str);
    value.ok_or_else(|| Usage(format!("find: `{word}` needs a value")))
}

fn test<'a>(
    word: &str,
    key: &str,
    value: impl FnOnce() -> Result<&'a OsStr, Usage>,
) -> Result<Test, Usage> {
    let age = |stamp, unit, value: &OsStr| {
        Ok(Test::Age(stamp, unit, count(value, |text| parsed(word, OsStr::new(text)))?))
    };
    match key {
        "name" => Ok(Test::Name(value()?.to_string_lossy().into_owned())),
        "type" | "t" => kind(value()?).map(Test::Kind),
        "size" | "s" => {
            let bytes = |text: &str| {
                let size = text.parse().map_err(|e| Usage(format!("find {word}: {e}")));
                size.map(|size: ByteSize| size.0)
            };
            count(value()?, bytes).map(Test::Size)
        }
        "pool" => parsed(word, value()?).map(Test::Pool),
        "ost" | "obd" | "O" => index(word, value()?, "OST").map(|index| Test::Ost(OstIndex(index))),
        "mdt" | "m" => index(word, value()?, "MDT").map(|index| Test::Mdt(MdtIndex(index))),
        "user" | "u" | "uid" => owner(PayerKind::User, value()?),
        "group" | "g" | "gid" => owner(PayerKind::Group, value()?),
        "atime" | "A" => age(Stamp::Access, DAY, value()?),
        "ctime" | "C" => age(Stamp::Change, DAY, value()?),
        "mtime" | "M" => age(Stamp::Modification, DAY, value()?),
        "amin" => age(Stamp::Access, MINUTE, value()?),
        "cmin" => age(Stamp::Change, MINUTE, value()?),
        "mmin" => age(Stamp::Modification, MINUTE, value()?),
        "newer" => newer(value()?),
        _ => Err(Usage(format!("find: `{word}` is not known: {KNOWN} are"))),
    }
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    word: &str,
    value: &OsStr,
) -> Result<T, Usage> {
    let text = value.to_string_lossy();
    text.parse().map_err(|e| Usage(format!("find {word}: `{text}`: {e}")))
}

/// A number, or a name that is looked up later; lfs takes both with `-user` and with `-uid`.
fn owner(kind: PayerKind, value: &OsStr) -> Result<Test, Usage> {
    let text = value.to_string_lossy().into_owned();
    Ok(match (text.parse(), kind) {
        (Ok(number), PayerKind::User) => Test::Uid(number),
        (Ok(number), _) => Test::Gid(number),
        (Err(_), kind) => Test::Named(kind, text),
    })
}

/// `3`, `OST0003` or `extenci-OST0003`; the digits of names are hexadecimal, as Lustre's.
fn index(word: &str, value: &OsStr, kind: &str) -> Result<u16, Usage> {
    let text = value.to_string_lossy();
    let text = text.trim_end_matches("_UUID");
    match text.rsplit_once(kind) {
        Some((_, digits)) => u16::from_str_radix(digits, 16)
            .map_err(|e| Usage(format!("find {word}: `{text}`: {e}"))),
        None => parsed(word, OsStr::new(text)),
    }
}

/// `+N`: more; `-N`: less.
fn count(value: &OsStr, number: impl FnOnce(&str) -> Result<u64, Usage>) -> Result<Count, Usage> {
    let text = value.to_string_lossy();
    let (order, text) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(rest), _) => (Ordering::Greater, rest),
        (_, Some(rest)) => (Ordering::Less, rest),
        _ => (Ordering::Equal, &*text),
    };
    Ok((order, number(text)?))
}

/// Of any file that this machine sees, as find(1) has it.
fn newer(value: &OsStr) -> Result<Test, Usage> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(value)
        .map_err(|e| Usage(format!("find -newer: {}: {e}", value.display())))?;
    let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or_default();
    Ok(Test::Newer(Time { seconds: metadata.mtime(), nanos }))
}

fn kind(value: &OsStr) -> Result<FileKind, Usage> {
    Ok(match &*value.to_string_lossy() {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        text => return Err(Usage(format!("find -type: `{text}` is none of f, d, l, p, s, c, b"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Wanted, Usage> {
        Wanted::parse(&line.split(' ').map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn words_say_what_is_wanted() {
        let wanted = parse("/e -type f ! -size +1M -pool uf --maxdepth 2 --json -0").unwrap();
        let pool = "uf".parse().unwrap();
        let size = Test::Size((Ordering::Greater, 1 << 20));
        let tests =
            [(false, Test::Kind(FileKind::Regular)), (true, size), (false, Test::Pool(pool))];
        assert_eq!(wanted.tests, tests);
        assert!(wanted.is_json && wanted.ends_with_zero && wanted.path == Some("/e".into()));
        assert_eq!((wanted.depth_min, wanted.depth_max), (0, Some(2)));
        for (line, test) in [
            ("/e -mtime -3", Test::Age(Stamp::Modification, DAY, (Ordering::Less, 3))),
            ("/e -amin 10", Test::Age(Stamp::Access, MINUTE, (Ordering::Equal, 10))),
            ("/e -ost 12", Test::Ost(OstIndex(12))),
            ("/e --ost extenci-OST001a_UUID", Test::Ost(OstIndex(26))),
            ("/e -mdt MDT0001", Test::Mdt(MdtIndex(1))),
            ("/e -uid 0", Test::Uid(0)),
            ("/e -group 7", Test::Gid(7)),
            ("/e -user ann", Test::Named(PayerKind::User, "ann".into())),
        ] {
            assert_eq!(parse(line).unwrap().tests, [(false, test)], "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, what) in [
            ("/e -type x", "`x` is none of"),
            ("/e -name", "`-name` needs a value"),
            ("/e /f", "`/f` is another"),
            ("/e -foo", "`-foo` is not known"),
            ("/e -ls", "`-ls` is not known"),
            ("/e -mtime soon", "soon"),
            ("/e -size +1X", "1X"),
            ("/e -newer /nowhere", "/nowhere"),
            ("/e !", "before a condition"),
            ("! /e", "before a condition"),
        ] {
            let said = parse(line).unwrap_err().0;
            assert!(said.contains(what), "{line}: {said}");
        }
    }
}
