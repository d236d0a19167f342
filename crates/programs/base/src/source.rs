//! Where a file system is: `HOST[:PORT][,HOST2[:PORT]]:/FS[/directory]` for `mount`,
//! `tieline://HOST[:PORT]/FS/path` for verbs; or `repository:NAME[/directory]`, or its name
//! alone, which has no server.

use crate::report::Usage;
use std::fmt;
use std::str::FromStr;
use tieline_format::map::Repository;
use tieline_types::{FsName, RepositoryName};

/// The port that servers listen on unless told otherwise.
pub const PORT_DEFAULT: u16 = 7640;

/// Servers of a federation, its file system, and the directory in it that is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// `HOST:PORT`, at least one.
    pub addresses: Vec<String>,
    pub fs: FsName,
    /// Below the file system's root, without slashes at its ends; empty for the root.
    pub directory: String,
}

impl FromStr for Source {
    type Err = Usage;

    /// Reads what `mount` is given.
    fn from_str(text: &str) -> Result<Self, Usage> {
        let wrong = |why: &str| {
            Usage(format!("`{text}` is no source ({why}): write HOST[:PORT][,HOST2]:/FS[/dir]"))
        };
        if let Some(rest) = text.strip_prefix(Repository::SCHEME) {
            let (name, directory) = rest.split_once('/').unwrap_or((rest, ""));
            let name: RepositoryName = name.parse().map_err(|error| wrong(&format!("{error}")))?;
            return Ok(Self::of_repository(&name, directory));
        }
        // As CVMFS names what it mounts. No server's source has neither a colon nor a slash.
        if text.contains('.')
            && !text.contains(['/', ':'])
            && let Ok(name) = text.parse::<RepositoryName>()
        {
            return Ok(Self::of_repository(&name, ""));
        }
        let (hosts, path) = text.split_once(":/").ok_or_else(|| wrong("there is no `:/`"))?;
        Self::build(hosts, path).map_err(|why| wrong(&why))
    }
}

impl Source {
    /// Reads `tieline://HOST[:PORT][,HOST2]/FS/path`; the path is left in `directory`.
    pub fn from_url(text: &str) -> Result<Self, Usage> {
        let wrong =
            |why: &str| Usage(format!("`{text}` ({why}): write tieline://HOST[:PORT]/FS/path"));
        let rest = text.strip_prefix("tieline://").ok_or_else(|| wrong("no tieline URL"))?;
        let (hosts, path) = rest.split_once('/').ok_or_else(|| wrong("no file system"))?;
        Self::build(hosts, path).map_err(|why| wrong(&why))
    }

    /// As much of its name as one of a file system has.
    fn of_repository(name: &RepositoryName, directory: &str) -> Self {
        let mut fs = name.as_str();
        while fs.len() > FsName::LENGTH_MAX {
            fs = fs.rsplit_once('.').map_or(&fs[..FsName::LENGTH_MAX], |(before, _)| before);
        }
        Self {
            addresses: vec![format!("{}{name}", Repository::SCHEME)],
            fs: fs.parse().unwrap_or_else(|_| unreachable!("`{fs}` begins a repository's name")),
            directory: directory.trim_matches('/').to_owned(),
        }
    }

    /// The repository that it is, if no server has it.
    pub fn repository(&self) -> Option<RepositoryName> {
        self.addresses.first()?.strip_prefix(Repository::SCHEME)?.parse().ok()
    }

    fn build(hosts: &str, path: &str) -> Result<Self, String> {
        let path = path.trim_matches('/');
        let (fs, directory) = path.split_once('/').unwrap_or((path, ""));
        Ok(Self {
            addresses: hosts.split(',').map(address).collect::<Result<_, _>>()?,
            fs: fs.parse().map_err(|e| format!("file system `{fs}`: {e}"))?,
            directory: directory.trim_matches('/').to_owned(),
        })
    }

    /// The same servers and file system, without a directory.
    pub fn whole(&self) -> Self {
        Self { directory: String::new(), ..self.clone() }
    }
}

/// Adds the port where none is given.
fn address(host: &str) -> Result<String, String> {
    let bare = host.strip_suffix(':').unwrap_or(host);
    let has_port = match bare.rsplit_once(':') {
        Some((before, port)) => {
            port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
        }
        None => false,
    };
    let is_bracketed = bare.starts_with('[') && bare.ends_with(']');
    match (bare.is_empty(), has_port) {
        (true, _) => Err("a host is empty".to_owned()),
        (false, true) => Ok(bare.to_owned()),
        (false, false) if !bare.contains(':') || is_bracketed => {
            Ok(format!("{bare}:{PORT_DEFAULT}"))
        }
        // An IPv6 address that stands bare has no port: it could not be told from its last group.
        (false, false) if bare.parse::<std::net::Ipv6Addr>().is_ok() => {
            Ok(format!("[{bare}]:{PORT_DEFAULT}"))
        }
        (false, false) => Err(format!("`{host}` is no host")),
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repository() {
            Some(name) => write!(f, "{}{name}", Repository::SCHEME)?,
            None => write!(f, "{}:/{}", self.addresses.join(","), self.fs)?,
        }
        match self.directory.as_str() {
            "" => Ok(()),
            directory => write!(f, "/{directory}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_and_print() {
        for (text, printed) in [
            ("mds.uf.example:/extenci", "mds.uf.example:7640:/extenci"),
            ("a:1,b:/extenci/data/x/", "a:1,b:7640:/extenci/data/x"),
            ("[::1]:9,::2:/e", "[::1]:9,[::2]:7640:/e"),
            ("127.0.0.1:5:/e/", "127.0.0.1:5:/e"),
            ("repository:sw.example.org/bin/", "repository:sw.example.org/bin"),
            ("sw.example.org", "repository:sw.example.org"),
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), printed, "{text}");
        }
        for wrong in [
            "",
            "host",
            "host:extenci",
            ":/extenci",
            "host:/",
            "a:b:/e",
            "h:/-x",
            "repository:",
            "repository:/x",
        ] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_repository_is_a_file_system_of_its_name() {
        let source: Source =
            "repository:software.of.a.long-name.experiment.example.org".parse().unwrap();
        assert_eq!(source.fs.as_str(), "software.of.a.long-name");
        assert!(source.repository().is_some());
        assert!("h:/extenci".parse::<Source>().unwrap().repository().is_none());
    }

    #[test]
    fn urls_name_files() {
        let source = Source::from_url("tieline://h:1,g/extenci/data/run7.root").unwrap();
        assert_eq!(source.addresses, ["h:1", "g:7640"]);
        assert_eq!((source.fs.as_str(), source.directory.as_str()), ("extenci", "data/run7.root"));
        assert!(Source::from_url("http://x/y").is_err());
        assert!(Source::from_url("tieline://x").is_err());
    }
}
