//! Reads settings that may be wrong in several places, and names all of them.
//!
//! A reader of TOML stops at the first key that is unknown, missing or of another type. Here each
//! table is read again without the culprit, or with something in its place, until it can be read.
//!
//! Knows no setting by name: what it says comes from the structures themselves.

use super::{HttpSettings, MdtSettings, OstSettings, Settings, Wrongs};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use tieline_base::proving::KerberosSettings;
use toml::{Table, Value};

/// More wrongs in one table than any file has.
const WRONGS_MAX: usize = 200;

/// Settings with something in the place of what cannot be read, and what that was.
#[derive(Default)]
pub(super) struct Gathered {
    pub wrongs: Vec<String>,
    /// Keys that were complained of: what stands in their place is not to be judged.
    pub keys: BTreeSet<String>,
}

impl Gathered {
    pub fn settings(&mut self, mut table: Table) -> Result<Settings, Wrongs> {
        let mdt = table.remove("mdt");
        let osts = table.remove("ost");
        let kerberos = table.remove("kerberos");
        let http = table.remove("http");
        let settings = self.table::<Settings>(table, "");
        let kerberos = match kerberos {
            None => None,
            Some(Value::Table(kerberos)) => self.table::<KerberosSettings>(kerberos, "kerberos."),
            Some(_) => {
                self.complain("kerberos", "is not a table: write [kerberos]".into());
                None
            }
        };
        let mdt = match mdt {
            None => None,
            Some(Value::Table(mdt)) => self.table::<MdtSettings>(mdt, "mdt."),
            Some(_) => {
                self.complain("mdt", "is not a table: write [mdt] and its keys below".into());
                None
            }
        };
        let http = match http {
            None => None,
            Some(Value::Table(http)) => self.table::<HttpSettings>(http, "http."),
            Some(_) => {
                self.complain("http", "is not a table: write [http] and its keys below".into());
                None
            }
        };
        let osts = match osts {
            None => vec![],
            Some(Value::Array(osts)) => self.osts(osts),
            Some(_) => {
                self.complain("ost", "is not a list: write [[ost]] for each OST".into());
                vec![]
            }
        };
        let Some(mut settings) = settings else { return Err(Wrongs(self.wrongs.clone())) };
        (settings.mdt, settings.ost, settings.kerberos) = (mdt, osts, kerberos);
        settings.http = http;
        Ok(settings)
    }

    fn osts(&mut self, osts: Vec<Value>) -> Vec<OstSettings> {
        let mut read = Vec::new();
        for (place, ost) in osts.into_iter().enumerate() {
            match ost {
                Value::Table(ost) => {
                    read.extend(self.table::<OstSettings>(ost, &format!("ost[{place}].")));
                }
                _ => self.complain(&format!("ost[{place}]"), "is not a table".into()),
            }
        }
        read
    }

    fn table<T: DeserializeOwned>(&mut self, mut table: Table, prefix: &str) -> Option<T> {
        for _ in 0..WRONGS_MAX {
            let message = match attempt::<T>(&table) {
                Ok(read) => return Some(read),
                Err(message) => message,
            };
            if let Some(key) = quoted(&message, "unknown field `") {
                let known: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
                let fix = match nearest(key, &known) {
                    Some(known) => format!("is no setting: did you mean `{known}`?"),
                    None => format!("is no setting here: {} are", known.join(", ")),
                };
                self.complain(&format!("{prefix}{key}"), fix);
                table.remove(key);
            } else if let Some(key) = quoted(&message, "missing field `") {
                let path = format!("{prefix}{key}");
                if !self.keys.contains(&path) {
                    self.complain(&path, "is missing: add it".into());
                }
                // Of which type it is shows when it is read.
                table.insert(key.to_owned(), Value::String(String::new()));
            } else {
                let key = culprit::<T>(&table, &message)?;
                let path = format!("{prefix}{key}");
                let was_filled = self.keys.contains(&path);
                table.remove(&key);
                if was_filled {
                    table.insert(key, Value::Integer(0));
                } else {
                    self.complain(&path, message);
                }
            }
        }
        None
    }

    fn complain(&mut self, key: &str, wrong: String) {
        self.wrongs.push(format!("{key}: {wrong}"));
        self.keys.insert(key.to_owned());
    }

    /// What another look found. `follows`: from what was complained of before.
    pub fn add(&mut self, found: Vec<String>, follows: impl Fn(&str, &BTreeSet<String>) -> bool) {
        let before = self.keys.clone();
        for wrong in found {
            let key = wrong.split(": ").next().unwrap_or_default();
            if !before.contains(key) && !follows(key, &before) {
                self.keys.insert(key.to_owned());
                self.wrongs.push(wrong);
            }
        }
    }
}

fn attempt<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    T::deserialize(Value::Table(table.clone())).map_err(|error| error.message().trim().to_owned())
}

/// The key without which another error comes, or none.
fn culprit<T: DeserializeOwned>(table: &Table, message: &str) -> Option<String> {
    let is_it = |key: &&String| {
        let mut without = table.clone();
        without.remove(*key);
        attempt::<T>(&without).err().is_none_or(|other| other != message)
    };
    table.keys().find(is_it).cloned()
}

fn quoted<'m>(message: &'m str, start: &str) -> Option<&'m str> {
    message.strip_prefix(start)?.split('`').next()
}

/// The known word that is typed almost so.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let near = known.iter().map(|known| (distance(word, known), *known)).min()?;
    (near.0 <= 2).then_some(near.1)
}

/// How many letters differ (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, (y, pair)) in b.iter().zip(row.windows(2)).enumerate() {
            let (above_left, above) = (pair[0], pair[1]);
            let changed = above_left + usize::from(x != *y);
            next.push(changed.min(above + 1).min(next[j] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}
