//! Inventions: what is kept, changed by dice.

/// A seed's dice (splitmix64: Steele, Lea and Flood, 2014).
pub struct Dice(pub u64);

/// Numbers at whose borders lengths and counts break.
const BORDERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
const CHANGES_MAX: usize = 4;
pub const LENGTH_MAX: usize = 4096;

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.roll() % end as u64) as usize }
    }

    /// One of `kept`, changed in some places.
    pub fn invent(&mut self, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = kept.get(self.below(kept.len())).cloned().unwrap_or_default();
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change(&mut bytes, kept);
        }
        bytes.truncate(LENGTH_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, kept: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        let rest = bytes.len() - at;
        match self.below(7) {
            0 if rest > 0 => bytes[at] ^= 1 << self.below(8),
            1 if rest > 0 => bytes[at] = self.roll() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + self.below(rest.min(16) + 1))),
            4 => {
                let border = BORDERS[self.below(BORDERS.len())].to_be_bytes();
                let width = rest.min(1 << self.below(4));
                bytes[at..at + width].copy_from_slice(&border[8 - width..]);
            }
            5 => {
                let again = bytes[at..at + self.below(rest.min(64) + 1)].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                // The end of another: two halves that fit each by itself.
                let other = kept.get(self.below(kept.len())).cloned().unwrap_or_default();
                let from = self.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}
