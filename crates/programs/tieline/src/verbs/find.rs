//! `tieline find PATH [-name GLOB] [-type f|d|l] [-size [+-]N] [-pool POOL]`, as `lfs find`.

use crate::location::Location;
use crate::report::Usage;
use crate::shell::{self, Shell};
use crate::verbs::list::listed;
use crate::verbs::show;
use serde_json::Value;
use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_types::{Attributes, ByteSize, FileKind, PoolName};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// PATH, then -name GLOB, -type f|d|l, -size [+-]SIZE, -pool POOL, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

/// What is looked for.
#[derive(Default, Debug, PartialEq, Eq)]
struct Wanted {
    path: Option<OsString>,
    name: Option<String>,
    kind: Option<FileKind>,
    size: Option<(Ordering, u64)>,
    pool: Option<PoolName>,
    is_json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::verbs::log_start();
    let wanted = Wanted::parse(&args.words)?;
    let path = wanted.path.clone().ok_or_else(|| Usage("find needs a path".into()))?;
    let location = Location::find(&path)?;
    shell::run(&location.clone(), |shell| async move { search(&shell, &location, &wanted).await })
}

async fn search(shell: &Shell, location: &Location, wanted: &Wanted) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let mut values = Vec::new();
    let start = shell.resolve(&location.path, false).await?;
    let path = location.text.trim_end_matches('/').to_owned();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut todo = vec![(path, name, start.attributes)];
    while let Some((path, name, attributes)) = todo.pop() {
        if wanted.fits(shell, &name, &attributes).await? {
            if wanted.is_json {
                values.push(show::attributes_json(&path, &attributes));
            } else {
                writeln!(out, "{path}")?;
            }
        }
        if !attributes.is_directory() {
            continue;
        }
        for entry in listed(shell, attributes.id).await?.into_iter().rev() {
            let attributes = match entry.known {
                Some(known) => known.attributes,
                None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
            };
            todo.push((format!("{path}/{}", entry.name), entry.name.to_string(), attributes));
        }
    }
    if wanted.is_json {
        writeln!(out, "{}", Value::Array(values))?;
    }
    Ok(())
}

impl Wanted {
    fn parse(words: &[OsString]) -> Result<Self, Usage> {
        let mut wanted = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let key = text.trim_start_matches('-');
            if key.len() == text.len() {
                if wanted.path.replace(word.clone()).is_some() {
                    return Err(Usage(format!("find takes one path, and `{text}` is another")));
                }
                continue;
            }
            if key == "json" {
                wanted.is_json = true;
                continue;
            }
            let value = words.next().map(|value| value.to_string_lossy());
            let value = value.ok_or_else(|| Usage(format!("find: `{text}` needs a value")))?;
            wanted.set(key, &value)?;
        }
        Ok(wanted)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Usage> {
        match key {
            "name" => self.name = Some(value.to_owned()),
            "type" => self.kind = Some(kind(value)?),
            "size" => self.size = Some(size(value)?),
            "pool" => {
                let pool = value.parse().map_err(|e| Usage(format!("find -pool: {e}")))?;
                self.pool = Some(pool);
            }
            _ => {
                let known = "-name, -type, -size, -pool, --json";
                return Err(Usage(format!("find: `-{key}` is not known: {known} are")));
            }
        }
        Ok(())
    }

    async fn fits(&self, shell: &Shell, name: &str, found: &Attributes) -> anyhow::Result<bool> {
        let is_named = self.name.as_ref().is_none_or(|glob| matches(glob, name));
        let is_kind = self.kind.is_none_or(|kind| found.kind == kind);
        let is_size = self.size.is_none_or(|(order, size)| found.size.cmp(&size) == order);
        if !(is_named && is_kind && is_size) {
            return Ok(false);
        }
        let Some(pool) = &self.pool else { return Ok(true) };
        if !matches!(found.kind, FileKind::Regular | FileKind::Directory) {
            return Ok(false);
        }
        let layout = shell.files.layout(&shell.caller, found.id).await?;
        Ok(layout.layout.pool.as_ref() == Some(pool))
    }
}

fn kind(text: &str) -> Result<FileKind, Usage> {
    Ok(match text {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        _ => return Err(Usage(format!("find -type: `{text}` is none of f, d, l, p, s, c, b"))),
    })
}

fn size(text: &str) -> Result<(Ordering, u64), Usage> {
    let (order, number) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(rest), _) => (Ordering::Greater, rest),
        (_, Some(rest)) => (Ordering::Less, rest),
        _ => (Ordering::Equal, text),
    };
    let size: ByteSize = number.parse().map_err(|e| Usage(format!("find -size: {e}")))?;
    Ok((order, size.0))
}

/// Shell patterns: `*`, `?` and `[a-z]`.
fn matches(glob: &str, name: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let name: Vec<char> = name.chars().collect();
    matches_from(&glob, &name)
}

fn matches_from(glob: &[char], name: &[char]) -> bool {
    let Some((&first, rest)) = glob.split_first() else { return name.is_empty() };
    match (first, name.split_first()) {
        ('*', None) => matches_from(rest, name),
        ('*', Some((_, after))) => matches_from(rest, name) || matches_from(glob, after),
        ('?', Some((_, after))) => matches_from(rest, after),
        ('[', Some((&letter, after))) => match rest.iter().skip(1).position(|&c| c == ']') {
            Some(end) => {
                let (set, tail) = rest.split_at(end + 1);
                in_set(set, letter) && matches_from(&tail[1..], after)
            }
            None => letter == '[' && matches_from(rest, after),
        },
        (_, Some((&letter, after))) => letter == first && matches_from(rest, after),
        (_, None) => false,
    }
}

fn in_set(set: &[char], letter: char) -> bool {
    let (is_negated, set) = match set {
        ['!' | '^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut left = set;
    let mut is_in = false;
    while let Some((&from, rest)) = left.split_first() {
        left = match rest {
            ['-', to, after @ ..] => {
                is_in |= (from..=*to).contains(&letter);
                after
            }
            _ => {
                is_in |= from == letter;
                rest
            }
        };
    }
    is_in != is_negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (glob, name, fits) in [
            ("*.root", "run7.root", true),
            ("*.root", "run7.root.gz", false),
            ("run?.*", "run7.root", true),
            ("run[0-6]*", "run7.root", false),
            ("run[!0-6]*", "run7.root", true),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("[", "[", true),
        ] {
            assert_eq!(matches(glob, name), fits, "{glob} {name}");
        }
    }

    #[test]
    fn words_say_what_is_wanted() {
        let words: Vec<OsString> =
            "/e -type f -size +1M -pool uf --json".split(' ').map(Into::into).collect();
        let wanted = Wanted::parse(&words).unwrap();
        assert_eq!(wanted.size, Some((Ordering::Greater, 1 << 20)));
        assert_eq!(wanted.kind, Some(FileKind::Regular));
        assert!(wanted.is_json && wanted.path == Some("/e".into()));
        for wrong in ["/e -type x", "/e -mtime 3", "/e -name", "/e /f"] {
            let words: Vec<OsString> = wrong.split(' ').map(Into::into).collect();
            assert!(Wanted::parse(&words).is_err(), "{wrong}");
        }
    }
}
