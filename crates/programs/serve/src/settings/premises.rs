//! What settings name, as it is on this machine: the federation map in the state directory, files,
//! directories, addresses. All that a start would find wrong one after the other is found at once.
//!
//! Nothing is made or changed. What only the start can know (a database, a lock) is left to it.

use super::{Engine, OstPlan, Plan, Wrongs};
use crate::room::size_bytes;
use crate::run::lost;
use crate::run::{LOCK_FILE, MAP_FILE};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::io::{self, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use tieline_auth::{MapError, MapVerifier};
use tieline_base::keys::signer_of;
use tieline_format::Record;
use tieline_format::map::{FederationMap, SignedMap};
use tieline_machine::becoming::check_port;
use tieline_machine::beneath::{open_plain, read_plain};
use tieline_machine::users::user_of_machine;
use tieline_machine::users::{as_user, changes_to};
use tieline_types::{ByteSize, OstIndex};

/// What the file of an embedded store begins with, whatever wrote it.
const STORE_MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";

/// What was found, each with its key and what to do.
#[derive(Debug, Default)]
pub struct Found {
    /// With these no server starts.
    pub wrongs: Vec<String>,
    /// It starts, but hardly as it was meant.
    pub doubts: Vec<String>,
    /// OSTs that were there and are not: the start says so, and serves the rest.
    pub absent: Vec<String>,
}

impl Found {
    fn wrong(&mut self, key: &str, what: String) {
        self.wrongs.push(format!("{key}: {what}"));
    }

    fn doubt(&mut self, key: &str, what: String) {
        self.doubts.push(format!("{key}: {what}"));
    }

    /// What is wrong with a key.
    pub fn of(&self, key: &str) -> Option<&str> {
        let of_key = |wrong: &String| wrong.split_once(": ").is_some_and(|(own, _)| own == key);
        self.wrongs
            .iter()
            .find(|wrong| of_key(wrong))
            .and_then(|wrong| Some(wrong.split_once(": ")?.1))
    }

    pub fn check(&self) -> Result<(), Wrongs> {
        if self.wrongs.is_empty() { Ok(()) } else { Err(Wrongs(self.wrongs.clone())) }
    }
}

impl Plan {
    /// Looks as the user whom the server will be.
    pub fn look(&self) -> Found {
        // Asked before we are he.
        let changes_user = changes_to(self.user.as_deref()).is_some();
        let look = || self.look_as_we_are(changes_user);
        as_user(self.user.as_deref(), look).unwrap_or_else(|error| {
            let user = self.user.clone().unwrap_or_default();
            let wrongs = vec![format!("user: cannot become `{user}`: {error}")];
            Found { wrongs, ..Found::default() }
        })
    }

    fn look_as_we_are(&self, changes_user: bool) -> Found {
        let mut found = Found { doubts: self.doubts.clone(), ..Found::default() };
        if let Some(http) = self.http.as_ref().filter(|http| !http.repositories.is_dir()) {
            let shown = http.repositories.display();
            found.doubt("http.repositories", format!("{shown} is no directory: make it"));
        }
        match self.map_here() {
            Ok(Some((map, key))) => {
                self.look_at_map(&map, &mut found);
                self.look_at_keys(&key, &mut found);
            }
            Ok(None) => {}
            Err(error) => {
                let (at, why) = (self.state.join(MAP_FILE), tieline_base::report::chain(&error));
                found.wrong("map_key", format!("{} is not in order: {why}", at.display()));
            }
        }
        self.look_at_addresses(changes_user, &mut found);
        self.look_at_state(&mut found);
        self.look_at_store(&mut found);
        self.look_at_audit(&mut found);
        for (place, ost) in self.osts.iter().enumerate() {
            self.look_at_ost((place, ost), changes_user, &mut found);
        }
        self.look_at_nesting(&mut found);
        self.look_at_reserves(&mut found);
        found
    }

    /// The map that a start would find; one that cannot be read is told by the start.
    fn map_here(&self) -> Result<Option<(FederationMap, MapVerifier)>, MapError> {
        let bytes = read_plain(&self.state.join(MAP_FILE)).ok();
        let signed = bytes.and_then(|bytes| SignedMap::from_bytes(&bytes).ok());
        signed.map(|signed| self.verifier.open_by(&signed)).transpose()
    }

    /// `key` signed the map.
    fn look_at_keys(&self, key: &MapVerifier, found: &mut Found) {
        if self.verifier != *key {
            let what = format!("the federation has another key by now: write {}", key.to_hex());
            found.doubt("map_key", what);
        }
        if let Some(named) = &self.signer
            && signer_of(key, named, &self.state).is_none()
        {
            found.wrong("map_secret", lost(key));
        }
    }

    fn look_at_addresses(&self, changes_user: bool, found: &mut Found) {
        if changes_user && let Err(error) = check_port(&self.listen) {
            found.wrongs.push(error.to_string());
            return;
        }
        for (key, address) in [("listen", &self.listen), ("admin", &self.admin)] {
            // A datagram's port disturbs neither the server that runs nor who dials it.
            match UdpSocket::bind(address) {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    let port = address.rsplit_once(':').map_or("", |(_, port)| port);
                    let what = format!(
                        "cannot listen at {address}: {error}: write an address of \
                        this machine, such as \"0.0.0.0:{port}\""
                    );
                    found.wrong(key, what);
                }
                _ => {}
            }
        }
    }

    fn look_at_state(&self, found: &mut Found) {
        let shown = self.state.display();
        if !self.state.exists() {
            let above = self.state.ancestors().find(|path| path.exists());
            if !above.is_some_and(is_open) {
                let who = self.who();
                let what = format!(
                    "{shown} is not there and cannot be made: make it, and give it to {who}"
                );
                found.wrong("state", what);
            }
            return;
        }
        // Files that root made in it, too.
        let is_ours = is_open(&self.state)
            && is_allowed(&self.state.join(LOCK_FILE), Access::WRITE_OK)
            && is_allowed(&self.state.join(MAP_FILE), Access::READ_OK);
        if !is_ours {
            found.wrong("state", self.chown(&self.state));
        }
    }

    /// What is said of a directory that may hold other things.
    fn not_open(&self, folder: &Path) -> String {
        let (shown, who) = (folder.display(), self.who());
        format!("{shown} cannot be written by {who}: name a file in a directory of that user's")
    }

    fn chown(&self, path: &Path) -> String {
        let (shown, who) = (path.display(), self.who());
        match self.named() {
            Some(user) => format!("{shown} cannot be written by {who}: chown -R {user} {shown}"),
            None => format!("{shown} cannot be written by {who}: give it to that user"),
        }
    }

    fn who(&self) -> String {
        match self.named() {
            Some(user) => format!("`{user}`"),
            None => format!("the user it runs as (uid {})", rustix::process::geteuid().as_raw()),
        }
    }

    /// The user of the settings, if we are he: only root becomes him.
    fn named(&self) -> Option<&str> {
        let own = rustix::process::geteuid().as_raw();
        let is_own = |user: &&str| user_of_machine(user).is_some_and(|(uid, _)| uid == own);
        self.user.as_deref().filter(is_own)
    }

    fn look_at_store(&self, found: &mut Found) {
        let Some(mdt) = &self.mdt else { return };
        let log = mdt.log.as_ref().map(|log| log.directory.as_path());
        let Engine::Embedded(store) = &mdt.engine else { return };
        let folder = store.parent().unwrap_or(Path::new("/"));
        let inside = [self.state.as_path(), folder];
        if let Some(log) = log.filter(|log| inside.iter().any(|path| log.starts_with(path))) {
            let what = format!(
                "{} is beside the store: what takes {} takes the log as well; name a \
                directory on another disk",
                log.display(),
                folder.display()
            );
            found.doubt("mdt.log_to", what);
        }
        let shown = store.display();
        if store.is_dir() {
            let what = format!("{shown} is a directory: name the file in it");
            found.wrong("mdt.store", what);
        } else if store.exists() {
            if is_foreign(store) {
                let what = format!(
                    "{shown} is no store of an MDT: name that, or a file that is not \
                    there yet, to be made"
                );
                found.wrong("mdt.store", what);
            } else if !is_allowed(store, Access::READ_OK | Access::WRITE_OK) {
                found.wrong("mdt.store", self.chown(store));
            }
        } else if folder != self.state {
            match folder.is_dir() {
                true if is_open(folder) => {}
                true => found.wrong("mdt.store", self.not_open(folder)),
                false => {
                    let what = format!(
                        "{} is no directory: make it, or mount its file system",
                        folder.display()
                    );
                    found.wrong("mdt.store", what);
                }
            }
        }
    }

    fn look_at_audit(&self, found: &mut Found) {
        let Some(path) = &self.audit else { return };
        let (shown, folder) = (path.display(), path.parent().unwrap_or(Path::new("/")));
        // A state directory that is not there yet is made before.
        let is_made = !folder.exists() && folder.starts_with(&self.state);
        let why = match path.exists() {
            true if path.is_dir() => "it is a directory: name a file in it".to_owned(),
            true if is_allowed(path, Access::WRITE_OK) => return,
            true => self.chown(path),
            false if is_made && folder == self.state => return,
            false if !folder.is_dir() => {
                format!(
                    "{} is no directory: make it, and give it to {}",
                    folder.display(),
                    self.who()
                )
            }
            false if is_open(folder) => return,
            false => self.not_open(folder),
        };
        found.wrong("audit", format!("{shown} cannot be opened: {why}"));
    }

    fn look_at_ost(&self, (place, ost): (usize, &OstPlan), changes_user: bool, found: &mut Found) {
        // Of a bucket only the start knows more: it asks the store.
        let Some(path) = ost.directory() else { return };
        let (key, shown) = (|field: &str| format!("ost[{place}].{field}"), path.display());
        if let Some(adopt) = &ost.adopt
            && (adopt.starts_with(path) || path.starts_with(adopt))
        {
            let what = format!(
                "{} is, or holds, the OST's own directory {shown}: its objects are \
                not for adoption; name the directory with the files",
                adopt.display()
            );
            found.doubt(&key("adopt"), what);
        }
        let was_made = self.ost_mark(ost.index).exists();
        let is_there = path.is_dir();
        let is_fit = is_there && (ost.limits.is_read_only || is_open(path));
        if is_fit {
            return;
        }
        let what = match is_there {
            true => self.chown(path),
            false if was_made => format!(
                "{shown} is not there, and was before: mount its file \
                system; it is not served until then"
            ),
            false => format!("{shown} is no directory: make it, or mount its file system"),
        };
        if was_made && !(is_there && changes_user) {
            found.absent.push(format!("{}: {what}", key("path")));
        } else {
            found.wrong(&key("path"), what);
        }
    }

    /// What lies in an OST's directory is that OST's alone.
    fn look_at_nesting(&self, found: &mut Found) {
        // As the machine knows them, if it does.
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let own = self.osts.iter().map(OstPlan::directory).enumerate();
        let own: Vec<_> = own.filter_map(|(place, path)| Some((place, path?))).collect();
        let paths: Vec<(usize, PathBuf)> = own.iter().map(|(at, path)| (*at, real(path))).collect();
        for ((place, inner), (_, shown)) in paths.iter().zip(&own) {
            let holds = |(other, outer): &&(usize, PathBuf)| {
                // Of two names of one directory the second is told.
                let is_same = inner == outer;
                inner.starts_with(outer) && other != place && (!is_same || other < place)
            };
            let Some((other, outer)) = paths.iter().find(holds) else { continue };
            let outer = own.iter().find(|(at, _)| at == other).map_or(&**outer, |(_, path)| *path);
            let (shown, outer) = (shown.display(), outer.display());
            let what = format!(
                "{shown} is, or lies in, the directory of ost[{other}], {outer}: give each OST a \
                directory beside the others'"
            );
            found.wrong(&format!("ost[{place}].path"), what);
        }
    }

    /// Nothing is written where more is to stay free than there is.
    fn look_at_reserves(&self, found: &mut Found) {
        let mut check = |key: &str, folder: &Path, reserve: u64, example: &str| {
            let Ok(disk) = rustix::fs::statvfs(folder) else { return };
            let (size, shown) = (size_bytes(&disk), folder.display());
            if reserve <= size {
                return;
            }
            let (reserve, size) = (ByteSize(reserve), ByteSize(size));
            let what = format!(
                "{reserve} is more than the disk of {shown} has ({size}): every change would get \
                ENOSPC; write less, such as \"{example}\""
            );
            found.doubt(key, what);
        };
        if let Some(mdt) = &self.mdt
            && let Engine::Embedded(store) = &mdt.engine
        {
            let is_there = |path: &&Path| path.is_dir();
            let folder = store.ancestors().skip(1).find(is_there).unwrap_or(Path::new("/"));
            check("mdt.reserve", folder, mdt.reserve, "256 MiB");
        }
        for (place, ost) in self.osts.iter().enumerate() {
            let Some(path) = ost.directory().filter(|path| path.is_dir()) else { continue };
            check(&format!("ost[{place}].reserve"), path, ost.limits.reserve, "1 GiB");
        }
    }

    /// Says that an OST's directory was prepared.
    pub fn ost_mark(&self, ost: OstIndex) -> PathBuf {
        self.state.join(format!("{}.made", ost.label().to_lowercase()))
    }
}

/// May we make something in a directory? What else its disk has against it, the start says best.
fn is_open(path: &Path) -> bool {
    is_allowed(path, Access::WRITE_OK | Access::EXEC_OK)
}

fn is_allowed(path: &Path, wanted: Access) -> bool {
    !matches!(access(path, wanted), Err(Errno::ACCESS | Errno::PERM))
}

/// Is it certainly no store?
fn is_foreign(store: &Path) -> bool {
    let mut begin = Vec::new();
    let read = open_plain(store)
        .and_then(|file| file.take(STORE_MAGIC.len() as u64).read_to_end(&mut begin));
    read.is_ok() && !begin.is_empty() && begin != STORE_MAGIC
}

mod by_map;
#[cfg(test)]
mod tests;
