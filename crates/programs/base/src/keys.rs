//! The keys of a federation: the secret one that signs its map, and the public one by which
//! everybody judges it.
//!
//! A key is replaced by one that the server makes, keeps in its state directory and uses from then
//! on: [`Successor`], [`signer_of`].
//!
//! Invariant: no secret that others than its owner can read is used.

use anyhow::Context;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tieline_auth::{MapSigner, MapVerifier};
use tieline_machine::{beneath, private};
use tieline_world::{Dice, World};

/// Reads a public key that is given as digits or as a path.
pub fn key_open(text: &str) -> Result<MapVerifier, String> {
    if text.len() == 64 && !text.contains('/') {
        return MapVerifier::from_hex(text).map_err(|e| e.to_string());
    }
    let digits = std::fs::read_to_string(text).map_err(|e| {
        format!("`{text}` is neither 64 hexadecimal digits nor a readable file: {e}")
    })?;
    MapVerifier::from_hex(&digits).map_err(|e| format!("file {text}: {e}"))
}

/// Reads a secret key, unless others than its owner could.
pub fn secret_open(path: &Path) -> Result<MapSigner, String> {
    match secret_parse(&private::read(path)?) {
        Some(secret) => Ok(MapSigner::new(secret)),
        None => Err(format!("{} is not a secret key: 64 hexadecimal digits are", path.display())),
    }
}

/// Writes a new key pair; says the public key, and where the secret is.
pub fn keygen(dir: &Path, name: &str) -> anyhow::Result<(String, PathBuf)> {
    let world = World::real();
    let (secret, digits) = secret_new(&*world.dice);
    let public = MapSigner::new(secret).verifier().to_hex();
    let secret_path = dir.join(format!("{name}.secret"));
    let public_path = dir.join(format!("{name}.key"));
    let mut options = File::options();
    let created = options.write(true).create_new(true).mode(0o600).open(&secret_path);
    let mut file = created.with_context(|| format!("cannot create {}", secret_path.display()))?;
    writeln!(file, "{digits}")?;
    file.sync_all()?;
    beneath::write_whole(&public_path, format!("{public}\n").as_bytes(), 0o644)
        .with_context(|| format!("cannot write {}", public_path.display()))?;
    Ok((public, secret_path))
}

/// In the state directory of the server that may change the map, once it made a key itself.
const SECRET_FILE: &str = "map.secret";
/// The same until the first map is signed with it.
const NEXT_FILE: &str = "map.secret.next";

/// A new key, which is on disk and signs nothing yet.
pub struct Successor {
    pub signer: MapSigner,
    state: PathBuf,
}

impl Successor {
    /// Made anew, in place of one that never came to sign a map. Blocks.
    pub fn make(state: &Path, dice: &dyn Dice) -> io::Result<Self> {
        let (secret, digits) = secret_new(dice);
        private::write_whole(&state.join(NEXT_FILE), format!("{digits}\n").as_bytes())?;
        Ok(Self { signer: MapSigner::new(secret), state: state.to_owned() })
    }

    /// A map that it signed is on disk: there is no other key any more. Blocks.
    pub fn succeed(&self) -> io::Result<()> {
        settle(&self.state)
    }
}

fn settle(state: &Path) -> io::Result<()> {
    std::fs::rename(state.join(NEXT_FILE), state.join(SECRET_FILE))?;
    File::open(state)?.sync_all()
}

/// The secret of the key that signed the map which lies in a state directory: `named` by the
/// settings, or made by the server itself, by one that died right after that, too. `None`: it is
/// not here.
pub fn signer_of(key: &MapVerifier, named: &MapSigner, state: &Path) -> Option<MapSigner> {
    if named.verifier() == *key {
        return Some(named.clone());
    }
    let here = [SECRET_FILE, NEXT_FILE].map(|name| secret_open(&state.join(name)));
    here.into_iter().flatten().find(|signer| signer.verifier() == *key)
}

/// Ends what a server began that died between the first map by a new key and its end.
pub fn settle_signer(key: &MapVerifier, state: &Path) -> io::Result<()> {
    match secret_open(&state.join(NEXT_FILE)) {
        Ok(next) if next.verifier() == *key => settle(state),
        _ => Ok(()),
    }
}

/// A new secret key, as the digits that its file holds.
fn secret_new(dice: &dyn Dice) -> ([u8; 32], String) {
    let mut secret = [0; 32];
    dice.fill(&mut secret);
    let digits = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    (secret, digits)
}

fn secret_parse(digits: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (place, byte) in secret.iter_mut().enumerate() {
        let pair = digits.get(2 * place..2 * place + 2)?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_that_was_replaced_has_its_successor_beside_the_map() {
        let dir = tempfile::tempdir().unwrap();
        let (state, first) = (dir.path(), MapSigner::new([7; 32]));
        let found = |key: &MapVerifier| signer_of(key, &first, state).map(|one| one.verifier());
        assert!(found(&first.verifier()) == Some(first.verifier()));
        let never = Successor::make(state, &*World::real().dice).unwrap();
        let next = Successor::make(state, &*World::real().dice).unwrap();
        assert!(found(&never.signer.verifier()).is_none(), "it signed nothing");
        let key = next.signer.verifier();
        // A server that dies here has the map of the new key on disk.
        assert!(found(&key) == Some(key.clone()));
        settle_signer(&key, state).unwrap();
        assert!(found(&key) == Some(key.clone()) && !state.join(NEXT_FILE).exists());
        let third = Successor::make(state, &*World::real().dice).unwrap();
        settle_signer(&key, state).unwrap();
        assert!(found(&key) == Some(key.clone()), "the new one does not take its place too early");
        third.succeed().unwrap();
        assert!(found(&third.signer.verifier()).is_some() && found(&key).is_none());
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "07".repeat(32)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(secret_open(&path).err().unwrap().contains("chmod 600"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(
            secret_open(&path).unwrap().verifier().to_hex(),
            MapSigner::new([7; 32]).verifier().to_hex()
        );
    }
}
