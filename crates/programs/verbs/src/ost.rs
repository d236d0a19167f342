//! `tieline ost`: which OSTs there are, and which take new chunks. Also how OSTs are named on
//! command lines.

use crate::df;
use crate::shell;
use anyhow::bail;
use std::ffi::OsString;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_types::{FsName, OstIndex};
use tieline_wire::federation::MapEdit;

#[derive(clap::Subcommand, Debug)]
pub enum Ost {
    /// List OSTs with their site, state and space
    List {
        #[arg(long)]
        json: bool,
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// FS, or a path below it
        #[arg(conflicts_with = "fs")]
        name: Option<OsString>,
    },
    /// Let new chunks go to OSTs again
    Activate(Change),
    /// Send no new chunks to OSTs; what is there stays readable
    Deactivate(Change),
}

#[derive(clap::Args, Debug)]
pub struct Change {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
    /// OST0000, extenci-OST0000, or OST[0-3]
    #[arg(required = true)]
    osts: Vec<String>,
}

pub fn run(verb: Ost) -> anyhow::Result<()> {
    match verb {
        Ost::List { json, fs, name } => df::list(name.or(fs), json),
        Ost::Activate(change) => edit(change, MapEdit::OstActivate),
        Ost::Deactivate(change) => edit(change, MapEdit::OstDeactivate),
    }
}

fn edit(change: Change, edit: fn(OstIndex) -> MapEdit) -> anyhow::Result<()> {
    crate::log_start();
    let osts = parse_all(&change.osts)?;
    let location = Location::find_fs(change.fs.as_deref(), osts.fs.as_ref())?;
    shell::run(&location, |shell| async move {
        let map = shell.files.map();
        if let Some(unknown) = osts.indices.iter().find(|&&ost| map.ost(ost).is_none()) {
            bail!("{} is not in the federation map", unknown.label());
        }
        for &ost in &osts.indices {
            shell.files.edit_map(&shell.caller, edit(ost)).await?;
        }
        Ok(())
    })
}

/// OSTs that were named, and the file system if that was named with them.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Named {
    pub fs: Option<FsName>,
    pub indices: Vec<OstIndex>,
}

/// Reads `OST0000`, `extenci-OST000a_UUID`, `OST[0-3,5]`; numbers are hexadecimal, as Lustre
/// writes them.
pub fn parse_all(words: &[String]) -> Result<Named, Usage> {
    let mut named = Named::default();
    for word in words {
        let (fs, indices) = parse(word)?;
        if let (Some(fs), Some(before)) = (&fs, &named.fs)
            && fs != before
        {
            return Err(Usage(format!("`{word}`: one file system at a time")));
        }
        named.fs = named.fs.or(fs);
        named.indices.extend(indices);
    }
    Ok(named)
}

/// One OST, as an option names it.
pub fn single(word: &str) -> Result<OstIndex, Usage> {
    if let Ok(index) = word.parse() {
        return Ok(OstIndex(index));
    }
    match parse(word)?.1.as_slice() {
        [ost] => Ok(*ost),
        _ => Err(Usage(format!("{word}: name one OST"))),
    }
}

fn parse(word: &str) -> Result<(Option<FsName>, Vec<OstIndex>), Usage> {
    let wrong =
        || Usage(format!("`{word}` names no OST: write OST0000, extenci-OST0000 or OST[0-3]"));
    let bare = word.strip_suffix("_UUID").unwrap_or(word);
    let (fs, label) = match bare.rsplit_once("-OST") {
        Some((fs, rest)) => (Some(fs.parse().map_err(|_| wrong())?), rest),
        None => (None, bare.strip_prefix("OST").ok_or_else(wrong)?),
    };
    let number = |text: &str| u16::from_str_radix(text, 16).map_err(|_| wrong());
    let Some(list) = label.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok((fs, vec![OstIndex(number(label)?)]));
    };
    let mut indices = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        indices.extend((number(from)?..=number(to)?).map(OstIndex));
    }
    Ok((fs, indices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_are_named_as_in_lustre() {
        let parse = |word: &str| parse_all(&[word.to_owned()]);
        assert_eq!(parse("OST000a").unwrap().indices, [OstIndex(10)]);
        let named = parse("extenci-OST0001_UUID").unwrap();
        assert_eq!((named.fs.unwrap().as_str(), named.indices), ("extenci", vec![OstIndex(1)]));
        assert_eq!(parse("extenci-OST[0-2,5]").unwrap().indices, [0, 1, 2, 5].map(OstIndex));
        for wrong in ["", "OST", "MDT0000", "OSTxyz", "OST[0-", "a b-OST0000", "OST[]"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let two = ["a-OST0".to_owned(), "b-OST1".to_owned()];
        assert!(parse_all(&two).is_err());
    }
}
