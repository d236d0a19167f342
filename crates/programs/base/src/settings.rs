//! What is wrong with a settings file, for people.

use std::path::PathBuf;

/// Everything that is wrong with one.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrongs(pub Vec<String>);

impl std::fmt::Display for Wrongs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} wrong setting{plural}", self.0.len())?;
        self.0.iter().try_for_each(|wrong| write!(f, "\n  {wrong}"))
    }
}

impl std::error::Error for Wrongs {}

/// Why one could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read settings file {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("settings file {} is not in order", .path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("settings file {} is not in order", .path.display())]
    Wrong { path: PathBuf, source: Wrongs },
}
