//! The protection of what a connection carries, from a secret that its two ends share.
//!
//! docs/security.md states the construction exactly. In short: HKDF-SHA256 (RFC 5869) makes of the
//! handshake's secret and of the transcript's digest one chain per direction; each link of a chain
//! gives an AES-256-GCM key (NIST SP 800-38D), an initial vector and the next link. A message's
//! nonce is the vector, exclusive-or the count of messages so far in its direction, which is sent
//! nowhere: what is repeated, left out, exchanged or changed does not open. Privacy encrypts;
//! integrity passes the bytes as additional data and encrypts nothing (GMAC).
//!
//! Knows neither frames nor sockets, only *heads* (always sealed) and *segments* of bulk.
//!
//! Invariants: no nonce is used twice with a key; a key ends after [`KEY_BYTES_MAX`] bytes,
//! [`KEY_MESSAGES_MAX`] messages or [`KEY_AGE_MAX`]; the first head of each direction is sealed
//! under every flavor but null, so that both ends see the other's key before anything else.

use crate::mechanism::{Proof, SECRET};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use std::time::Duration;
use tieline_wire::Flavor;
use tokio::time::Instant;

/// Bytes that each sealed message has more.
pub const TAG: usize = MAX_TAG_LEN;
/// Bytes of bulk that are sealed as one message: they stay in the processor's cache meanwhile.
pub const SEGMENT: usize = 256 << 10;
/// Far below what GCM permits per key, and so often that a key found is worth little.
pub const KEY_BYTES_MAX: u64 = 64 << 30;
pub const KEY_MESSAGES_MAX: u64 = 1 << 30;
pub const KEY_AGE_MAX: Duration = Duration::from_secs(3600);

const KEY: usize = 32;
const NONCE: usize = 12;
const LINK: usize = 32;

/// What was said in a handshake, in order.
#[derive(Clone)]
pub struct Transcript(Context);

/// The digest of a [`Transcript`].
pub type Digest = [u8; 32];

impl Transcript {
    pub fn new() -> Self {
        let mut context = Context::new(&SHA256);
        context.update(b"tieline 1 transcript");
        Self(context)
    }

    /// Adds a part; its length goes in first, so that parts cannot flow into each other.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    pub fn digest(&self) -> Digest {
        let mut digest = [0; 32];
        digest.copy_from_slice(self.0.clone().finish().as_ref());
        digest
    }
}

impl Default for Transcript {
    fn default() -> Self {
        Self::new()
    }
}

/// How much of a frame is protected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Nothing, after the first head.
    None,
    /// Heads: integrity.
    Head,
    /// Heads and bulk: integrity.
    Integrity,
    /// Heads and bulk: privacy.
    Privacy,
}

impl Level {
    fn of(flavor: Flavor) -> Self {
        match flavor {
            Flavor::Null | Flavor::Krb5n => Self::None,
            Flavor::Krb5a => Self::Head,
            Flavor::Krb5i => Self::Integrity,
            Flavor::Krb5p => Self::Privacy,
        }
    }
}

/// What does not open: changed, repeated, out of order, or of another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a protected message does not open: it was changed, repeated or moved on the way")]
pub struct Broken;

/// Protects what is sent.
pub struct Sealer(Chain);

/// Opens what comes.
pub struct Opener(Chain);

/// Both directions of a connection, as the end that dialed sees them.
pub fn initiator(proof: &Proof, flavor: Flavor, transcript: &Digest) -> (Sealer, Opener) {
    let (out, back) = chains(&proof.secret, flavor, transcript);
    (Sealer(out), Opener(back))
}

/// Both directions of a connection, as the end that was dialed sees them.
pub fn acceptor(proof: &Proof, flavor: Flavor, transcript: &Digest) -> (Sealer, Opener) {
    let (out, back) = chains(&proof.secret, flavor, transcript);
    (Sealer(back), Opener(out))
}

fn chains(secret: &[u8; SECRET], flavor: Flavor, transcript: &Digest) -> (Chain, Chain) {
    let prk = Salt::new(HKDF_SHA256, transcript).extract(secret);
    let level = Level::of(flavor);
    let link = |label: &[u8]| expand::<LINK>(&prk, &[label, flavor.name().as_bytes()]);
    (Chain::new(link(b"tieline 1 dialer "), level), Chain::new(link(b"tieline 1 server "), level))
}

/// One direction: the key at work, and the link that makes the next.
struct Chain {
    level: Level,
    key: LessSafeKey,
    vector: [u8; NONCE],
    next: [u8; LINK],
    epoch: u32,
    /// Messages so far, under all keys.
    count: u64,
    /// Of the key at work.
    bytes: u64,
    messages: u64,
    since: Instant,
}

impl Chain {
    fn new(link: [u8; LINK], level: Level) -> Self {
        let (key, vector, next) = keys(&link);
        let since = Instant::now();
        Self { level, key, vector, next, epoch: 0, count: 0, bytes: 0, messages: 0, since }
    }

    fn nonce(&mut self, bytes: usize) -> Nonce {
        let mut nonce = self.vector;
        let count = self.count.to_be_bytes();
        nonce.iter_mut().skip(NONCE - count.len()).zip(count).for_each(|(byte, c)| *byte ^= c);
        self.count += 1;
        self.messages += 1;
        self.bytes += bytes as u64;
        Nonce::assume_unique_for_key(nonce)
    }

    fn is_worn(&self) -> bool {
        self.bytes >= KEY_BYTES_MAX
            || self.messages >= KEY_MESSAGES_MAX
            || self.since.elapsed() >= KEY_AGE_MAX
    }

    fn turn(&mut self) {
        (self.key, self.vector, self.next) = keys(&self.next);
        self.epoch += 1;
        (self.bytes, self.messages, self.since) = (0, 0, Instant::now());
    }

    /// Is the next head a sealed one?
    fn is_sealed(&self) -> bool {
        self.level > Level::None || self.count == 0
    }

    fn is_private(&self) -> bool {
        self.level == Level::Privacy
    }
}

impl Sealer {
    pub fn level(&self) -> Level {
        self.0.level
    }

    /// Must the next head be sealed?
    pub fn is_sealed(&self) -> bool {
        self.0.is_sealed()
    }

    /// The number of the key that the next head is sealed with; goes into what stands in clear
    /// before it.
    pub fn epoch(&mut self) -> u32 {
        if self.0.is_worn() {
            self.0.turn();
        }
        self.0.epoch
    }

    /// Seals a head where it lies, behind so many bytes in clear that its tag covers as well.
    pub fn head(&mut self, clear: usize, framed: &mut [u8]) -> [u8; TAG] {
        let nonce = self.0.nonce(framed.len().saturating_sub(clear));
        if self.0.is_private() {
            let (context, head) = framed.split_at_mut(clear);
            seal(&self.0.key, nonce, context, head)
        } else {
            seal(&self.0.key, nonce, framed, &mut [])
        }
    }

    /// Seals a segment of bulk where it lies.
    pub fn segment(&mut self, segment: &mut [u8]) -> [u8; TAG] {
        if !self.0.is_private() {
            return self.check(segment);
        }
        let nonce = self.0.nonce(segment.len());
        seal(&self.0.key, nonce, &[], segment)
    }

    /// The tag of a segment that stays as it is; not for privacy.
    pub fn check(&mut self, segment: &[u8]) -> [u8; TAG] {
        debug_assert!(!self.0.is_private(), "a private segment is encrypted");
        let nonce = self.0.nonce(segment.len());
        seal(&self.0.key, nonce, segment, &mut [])
    }

    /// Seals a segment into `sealed`, which has room for it and for its tag.
    pub fn segment_into(&mut self, segment: &[u8], sealed: &mut [u8]) {
        assert_eq!(sealed.len(), segment.len() + TAG, "room for a sealed segment");
        let nonce = self.0.nonce(segment.len());
        let done = self.0.key.seal_in_place_scatter(nonce, Aad::empty(), &mut [], segment, sealed);
        done.expect("a segment is far shorter than what a key seals at once");
    }
}

impl Opener {
    pub fn level(&self) -> Level {
        self.0.level
    }

    /// Must the next head be sealed?
    pub fn is_sealed(&self) -> bool {
        self.0.is_sealed()
    }

    /// Opens a head where it lies, between the bytes in clear that its tag covers as well, so many,
    /// and that tag.
    pub fn head<'a>(
        &mut self,
        epoch: u32,
        clear: usize,
        framed: &'a mut [u8],
    ) -> Result<&'a [u8], Broken> {
        if epoch == self.0.epoch.wrapping_add(1) {
            self.0.turn();
        } else if epoch != self.0.epoch {
            return Err(Broken);
        }
        let length = framed.len().checked_sub(clear + TAG).ok_or(Broken)?;
        let nonce = self.0.nonce(length);
        if self.0.is_private() {
            let (context, sealed) = framed.split_at_mut(clear);
            let opened = self.0.key.open_in_place(nonce, Aad::from(&*context), sealed);
            return opened.map(|opened| &*opened).map_err(|_| Broken);
        }
        let (covered, tag) = framed.split_at_mut(clear + length);
        let opened = self.0.key.open_in_place(nonce, Aad::from(&*covered), tag);
        opened.map(|_| &covered[clear..]).map_err(|_| Broken)
    }

    /// Opens a segment where it lies, its tag behind it.
    pub fn segment(&mut self, sealed: &mut [u8]) -> Result<(), Broken> {
        let length = sealed.len().checked_sub(TAG).ok_or(Broken)?;
        let nonce = self.0.nonce(length);
        let opened = if self.0.is_private() {
            self.0.key.open_in_place(nonce, Aad::empty(), sealed).map(drop)
        } else {
            let (segment, tag) = sealed.split_at_mut(length);
            self.0.key.open_in_place(nonce, Aad::from(&*segment), tag).map(drop)
        };
        opened.map_err(|_| Broken)
    }

    /// Passes over segments that nobody opens.
    pub fn skip(&mut self, segments: usize) {
        for _ in 0..segments {
            self.0.nonce(SEGMENT);
        }
    }
}

/// Bytes that bulk of `length` bytes has on the wire, with the tags of its segments.
pub fn sealed_length(length: usize) -> usize {
    length + length.div_ceil(SEGMENT) * TAG
}

fn seal(key: &LessSafeKey, nonce: Nonce, clear: &[u8], secret: &mut [u8]) -> [u8; TAG] {
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(clear), secret);
    let tag = tag.expect("a message is far shorter than what a key seals at once");
    let mut bytes = [0; TAG];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

fn keys(link: &[u8; LINK]) -> (LessSafeKey, [u8; NONCE], [u8; LINK]) {
    let prk = Prk::new_less_safe(HKDF_SHA256, link);
    let key = expand::<KEY>(&prk, &[b"key"]);
    let key = UnboundKey::new(&AES_256_GCM, &key).expect("the key has the cipher's length");
    (LessSafeKey::new(key), expand(&prk, &[b"vector"]), expand(&prk, &[b"next"]))
}

fn expand<const N: usize>(prk: &Prk, info: &[&[u8]]) -> [u8; N] {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut out = [0; N];
    let filled = prk.expand(info, Length(N)).and_then(|okm| okm.fill(&mut out));
    filled.expect("HKDF gives up to 8160 bytes");
    out
}

#[cfg(test)]
mod tests;
