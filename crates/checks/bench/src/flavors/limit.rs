//! The rate that protected bytes cannot pass on this machine: each that crosses a connection is
//! sealed once and opened once, by a cipher whose rate is known, beside all that null costs.

use anyhow::{Result, anyhow};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::time::{Duration, Instant};
use tieline_auth::seal::SEGMENT;

const MEASURED: Duration = Duration::from_millis(300);

/// Bytes in a second of one processor.
#[derive(Clone, Copy, Debug)]
pub struct Cipher {
    pub sealing: f64,
    pub opening: f64,
}

/// What some work took.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub wall: f64,
    /// Seconds of processors, of clients and servers together.
    pub processors: f64,
    /// Bytes of bulk that crossed connections, by what servers counted.
    pub crossed: f64,
}

impl Cipher {
    /// AES-256-GCM of AWS-LC on one segment after another; `is_private`: encrypted, else signed.
    pub fn measure(is_private: bool) -> Result<Self> {
        let broken = |_| anyhow!("the cipher does not work");
        let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).map_err(broken)?;
        let key = LessSafeKey::new(key);
        let nonce = || Nonce::assume_unique_for_key([1; 12]);
        let mut segment = vec![3_u8; SEGMENT];
        let sealing = rate(|| {
            let tag = match is_private {
                true => key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut segment),
                false => key.seal_in_place_separate_tag(nonce(), Aad::from(&segment), &mut []),
            };
            tag.map(drop).map_err(broken)
        })?;
        let mut sealed = segment.clone();
        let tag = match is_private {
            true => key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut sealed),
            false => key.seal_in_place_separate_tag(nonce(), Aad::from(&segment), &mut []),
        };
        let tag = tag.map_err(broken)?;
        let mut opened = vec![0; SEGMENT];
        let opening = rate(|| {
            let (aad, secret) = match is_private {
                true => (&[][..], &sealed[..]),
                false => (&segment[..], &[][..]),
            };
            let place = &mut opened[..secret.len()];
            key.open_separate_gather(nonce(), Aad::from(aad), secret, tag.as_ref(), place)
                .map_err(broken)
        })?;
        Ok(Self { sealing, opening })
    }

    /// Seconds that work takes at least on so many processors, by what it took under flavor null,
    /// and how that comes about.
    pub fn least(self, null: Spent, processors: f64) -> (f64, String) {
        let Spent { wall, processors: busy_null, crossed } = null;
        let (sealing, opening) = (crossed / self.sealing, crossed / self.opening);
        let busy = (busy_null + sealing + opening) / processors;
        let least = wall.max(busy);
        let terms = format!(
            "at least {least:.3} s: null {wall:.3} s; processors ({busy_null:.2} s + sealing \
             {:.0} MB {sealing:.3} s at {:.1} GB/s + opening {opening:.3} s at {:.1} GB/s) / \
             {processors} = {busy:.3} s",
            crossed / 1e6,
            self.sealing / 1e9,
            self.opening / 1e9,
        );
        (least, terms)
    }
}

fn rate(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begun, mut bytes) = (Instant::now(), 0_u64);
    while begun.elapsed() < MEASURED {
        work()?;
        bytes += SEGMENT as u64;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_line_or_the_processors() {
        let cipher = Cipher { sealing: 2e9, opening: 1e9 };
        let idle = Spent { wall: 4.0, processors: 1.0, crossed: 2e9 };
        assert!((cipher.least(idle, 2.0).0 - 4.0).abs() < 1e-9);
        let busy = Spent { wall: 2.0, processors: 4.0, crossed: 2e9 };
        let (least, terms) = cipher.least(busy, 2.0);
        assert!((least - 3.5).abs() < 1e-9, "{terms}");
    }

    #[test]
    fn both_ciphers_are_measured() {
        for is_private in [true, false] {
            let cipher = Cipher::measure(is_private).unwrap();
            assert!(cipher.sealing > 1e6 && cipher.opening > 1e6, "{cipher:?}");
        }
    }
}
