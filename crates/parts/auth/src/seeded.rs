//! A mechanism for tests and simulated worlds: both ends know one secret, and believe any name.
//!
//! It has the shape of the real one (token out, token back, a shared secret, bindings), so whatever
//! stands on [`Mechanism`] is tested without a KDC. Programs never make one.

use crate::gss::Witnessed;
use crate::mechanism::{BINDING, Mechanism, Proof, SECRET, Step};
use crate::trouble::Trouble;
use aws_lc_rs::digest::{SHA256, SHA512, digest};
use tieline_wire::CredentialKind;

pub struct Seeded {
    secret: u64,
    own: String,
    /// Whom we expect, on the dialing side.
    target: Option<String>,
    nonce: u64,
}

impl Seeded {
    pub fn initiator(secret: u64, own: &str, target: &str, nonce: u64) -> Self {
        Self { secret, own: own.to_owned(), target: Some(target.to_owned()), nonce }
    }

    pub fn acceptor(secret: u64, own: &str) -> Self {
        Self { secret, own: own.to_owned(), target: None, nonce: 0 }
    }

    /// A token of a user's for a door's service, as [`crate::gss::witness`] opens real ones.
    pub fn for_door(secret: u64, user: &str, service: &str, nonce: u64) -> Vec<u8> {
        let own = format!("{user} {service}");
        Self::acceptor(secret, &own).token(nonce, &[0; BINDING])
    }

    pub fn service_of(token: &[u8]) -> Option<String> {
        let said = std::str::from_utf8(token.get(40..)?).ok()?;
        Some(said.split_once(' ')?.1.to_owned())
    }

    pub fn witness(secret: u64, service: &str, token: &[u8]) -> Result<Witnessed, Trouble> {
        let (_, said) =
            Self::acceptor(secret, service).read(token, &[0; BINDING]).ok_or(Trouble::Binding)?;
        let (user, told) = said.split_once(' ').ok_or(Trouble::Binding)?;
        if told != service {
            let (peer, expected) = (told.to_owned(), service.to_owned());
            return Err(Trouble::WrongServer { peer, expected });
        }
        let mut mark = [0; 32];
        mark.copy_from_slice(digest(&SHA256, token).as_ref());
        let (user, service) = (user.to_owned(), service.to_owned());
        Ok(Witnessed { user, service, lifetime: None, mark, answer: None })
    }

    fn token(&self, nonce: u64, binding: &[u8; BINDING]) -> Vec<u8> {
        let said = [&nonce.to_le_bytes()[..], self.own.as_bytes()].concat();
        [digest(&SHA256, &self.salted(&said, binding)).as_ref(), &said].concat()
    }

    fn salted(&self, said: &[u8], binding: &[u8; BINDING]) -> Vec<u8> {
        [&self.secret.to_le_bytes()[..], binding, said].concat()
    }

    fn read(&self, token: &[u8], binding: &[u8; BINDING]) -> Option<(u64, String)> {
        let (proof, said) = token.split_at_checked(32)?;
        if digest(&SHA256, &self.salted(said, binding)).as_ref() != proof {
            return None;
        }
        let (nonce, name) = said.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*nonce), String::from_utf8(name.to_vec()).ok()?))
    }
}

impl Mechanism for Seeded {
    fn kind(&self) -> CredentialKind {
        CredentialKind::Test
    }

    fn step(&mut self, token: Option<&[u8]>, binding: &[u8; BINDING]) -> Result<Step, Trouble> {
        let Some(token) = token else {
            return Ok(Step { token: Some(self.token(self.nonce, binding)), proof: None });
        };
        let (nonce, peer) = self.read(token, binding).ok_or(Trouble::Binding)?;
        let shared = [self.secret.to_le_bytes(), nonce.to_le_bytes()].concat();
        let mut secret = [0; SECRET];
        secret.copy_from_slice(digest(&SHA512, &shared).as_ref());
        let answer = self.target.is_none().then(|| self.token(nonce, binding));
        if let Some(expected) = self.target.as_ref().filter(|target| **target != peer) {
            return Err(Trouble::WrongServer { peer, expected: expected.clone() });
        }
        let proof = Proof { peer, own: self.own.clone(), secret, lifetime: None };
        Ok(Step { token: answer, proof: Some(proof) })
    }
}
