//! Where a file's chunks shall go, as `setstripe` says it, with Lustre's meanings.
//!
//! Three sizes that are not the same thing: the *stripe size* says when the round moves to the next
//! OST, the *chunk size* is the writer's choice within it, and an object is as large as its backend
//! likes.

use crate::{AtMost, OstIndex, PoolName};
use minicbor::{Decode, Encode};

/// Over how many OSTs a file is spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum StripeCount {
    /// `-c -1`: every OST of the pool.
    #[n(1)]
    All,
    #[n(2)]
    Exactly(#[n(0)] u16),
}

/// A layout, complete: inherited by new files from their directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Layout {
    #[n(0)]
    pub stripe_count: StripeCount,
    /// Bytes; a multiple of 64 KiB, from 64 KiB to 4 GiB - 64 KiB.
    #[n(1)]
    pub stripe_size: u32,
    /// `None`: any OST.
    #[n(2)]
    pub pool: Option<PoolName>,
    /// Copies of each chunk, from 1.
    #[n(3)]
    pub mirrors: u8,
    /// How many copies a commit waits for, from 1 to `mirrors`.
    #[n(4)]
    pub sync: u8,
    /// Files up to this many bytes live in the metadata; 0 for never (`-L raid0`), 16 KiB with `-L
    /// mdt`.
    #[n(5)]
    pub inline_limit: u32,
    /// Bytes; a multiple of 64 KiB, from 64 KiB to 64 MiB. The writer cuts chunks of this size.
    #[n(6)]
    pub chunk_size: u32,
    /// The pool of each mirror, where they differ: as many as `mirrors`. `None`: all are in `pool`.
    #[n(7)]
    #[cbor(with = "AtMost::<{ Layout::MIRRORS_MAX as usize }>")]
    pub mirror_pools: Option<Vec<Option<PoolName>>>,
}

/// Why a layout was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("stripe size {0} is not a multiple of 64 KiB from 64 KiB to 4 GiB")]
    StripeSize(u64),
    #[error("chunk size {0} is not a multiple of 64 KiB from 64 KiB to 64 MiB")]
    ChunkSize(u64),
    #[error("stripe count 0 means nothing in a complete layout")]
    StripeCount,
    #[error(
        "{sync} sync copies of {mirrors} mirrors: both are at least 1, and sync at most mirrors"
    )]
    Mirrors { sync: u8, mirrors: u8 },
    #[error("at most {limit} mirrors, not {0}", limit = Layout::MIRRORS_MAX)]
    ManyMirrors(u8),
    #[error("{pools} pools for {mirrors} mirrors: one for each, or one for all")]
    MirrorPools { pools: usize, mirrors: u8 },
    #[error("inline limit {0} exceeds 16 KiB")]
    InlineLimit(u32),
}

impl Layout {
    /// Stripe and chunk sizes are multiples of this.
    pub const GRAIN: u32 = 64 << 10;
    pub const CHUNK_SIZE_MAX: u32 = 64 << 20;
    pub const CHUNK_SIZE_DEFAULT: u32 = 4 << 20;
    /// An extent holds at most this many bytes in the metadata.
    pub const INLINE_MAX: u32 = 16 << 10;
    /// More copies than any site has asked for.
    pub const MIRRORS_MAX: u8 = 16;

    /// Bytes of the chunk that a writer cuts: never across a stripe's end when there are several
    /// OSTs.
    pub fn cut_size(&self, stripe_width: usize) -> u64 {
        if stripe_width > 1 {
            u64::from(self.chunk_size.min(self.stripe_size))
        } else {
            u64::from(self.chunk_size)
        }
    }

    /// Which OST of `stripe_width` the byte at `offset` goes to.
    pub fn stripe_index(&self, offset: u64, stripe_width: usize) -> usize {
        (offset / u64::from(self.stripe_size)) as usize % stripe_width.max(1)
    }

    /// How many OSTs chunks go round side by side: a stripe names, for each of these columns, one
    /// OST per mirror.
    pub fn columns(&self, stripe: &[OstIndex]) -> usize {
        match stripe.len() {
            0 => 0,
            entries => (entries / usize::from(self.mirrors.max(1))).max(1),
        }
    }

    /// The OSTs that the chunk at `offset` goes to. One that is named again stands for a mirror
    /// that found no OST of its own.
    pub fn column<'s>(&self, offset: u64, stripe: &'s [OstIndex]) -> &'s [OstIndex] {
        let columns = self.columns(stripe);
        let width = usize::from(self.mirrors.max(1)).min(stripe.len());
        let start = self.stripe_index(offset, columns) * width;
        stripe.get(start..start + width).unwrap_or_default()
    }

    /// The pool that a mirror, counted from 0, is in.
    pub fn pool_of_mirror(&self, mirror: usize) -> Option<&PoolName> {
        match &self.mirror_pools {
            Some(pools) => pools.get(mirror).and_then(Option::as_ref),
            None => self.pool.as_ref(),
        }
    }

    /// Where the chunk that holds `offset` ends: at the next cut of the stripe, or of the chunk
    /// size.
    pub fn cut_end(&self, offset: u64, stripe_width: usize) -> u64 {
        let cut = self.cut_size(stripe_width);
        if stripe_width <= 1 {
            return (offset / cut + 1) * cut;
        }
        let stripe = u64::from(self.stripe_size);
        let start = offset / stripe * stripe;
        (start + ((offset - start) / cut + 1) * cut).min(start + stripe)
    }

    pub fn validate(&self) -> Result<(), LayoutError> {
        if self.stripe_size == 0 || !self.stripe_size.is_multiple_of(Self::GRAIN) {
            return Err(LayoutError::StripeSize(self.stripe_size.into()));
        }
        if self.chunk_size == 0
            || !self.chunk_size.is_multiple_of(Self::GRAIN)
            || self.chunk_size > Self::CHUNK_SIZE_MAX
        {
            return Err(LayoutError::ChunkSize(self.chunk_size.into()));
        }
        if self.stripe_count == StripeCount::Exactly(0) {
            return Err(LayoutError::StripeCount);
        }
        if self.mirrors == 0 || self.sync == 0 || self.sync > self.mirrors {
            return Err(LayoutError::Mirrors { sync: self.sync, mirrors: self.mirrors });
        }
        if self.mirrors > Self::MIRRORS_MAX {
            return Err(LayoutError::ManyMirrors(self.mirrors));
        }
        if let Some(pools) = &self.mirror_pools
            && pools.len() != usize::from(self.mirrors)
        {
            return Err(LayoutError::MirrorPools { pools: pools.len(), mirrors: self.mirrors });
        }
        if self.inline_limit > Self::INLINE_MAX {
            return Err(LayoutError::InlineLimit(self.inline_limit));
        }
        Ok(())
    }
}

impl Default for Layout {
    /// One OST of any pool, 4 MiB stripes and chunks, one copy, small files in the metadata.
    fn default() -> Self {
        Self {
            stripe_count: StripeCount::Exactly(1),
            stripe_size: Self::CHUNK_SIZE_DEFAULT,
            pool: None,
            mirrors: 1,
            sync: 1,
            inline_limit: Self::INLINE_MAX,
            chunk_size: Self::CHUNK_SIZE_DEFAULT,
            mirror_pools: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_where_stripes_end() {
        let layout = Layout { stripe_size: 6 << 20, ..Layout::default() };
        assert_eq!(layout.cut_end(0, 2), 4 << 20);
        assert_eq!(layout.cut_end(4 << 20, 2), 6 << 20);
        assert_eq!(layout.cut_end(6 << 20, 2), 10 << 20);
        assert_eq!(layout.stripe_index(6 << 20, 2), 1);
        assert_eq!(layout.stripe_index(12 << 20, 2), 0);
    }

    #[test]
    fn one_ost_ignores_the_stripe_size() {
        let layout = Layout { stripe_size: 64 << 10, ..Layout::default() };
        assert_eq!(layout.cut_end(5 << 20, 1), 8 << 20);
    }

    #[test]
    fn every_column_has_an_ost_per_mirror() {
        let layout = Layout { mirrors: 2, ..Layout::default() };
        let stripe = [0, 2, 1, 3].map(OstIndex);
        assert_eq!(layout.columns(&stripe), 2);
        assert_eq!(layout.column(0, &stripe), [OstIndex(0), OstIndex(2)]);
        assert_eq!(layout.column(5 << 20, &stripe), [OstIndex(1), OstIndex(3)]);
        assert_eq!(layout.column(8 << 20, &stripe), [OstIndex(0), OstIndex(2)]);
        // Placed before it had two mirrors.
        assert_eq!(layout.column(5 << 20, &stripe[..1]), [OstIndex(0)]);
        assert_eq!(layout.column(0, &[]), []);
    }

    #[test]
    fn wrong_layouts_are_named() {
        let wrong = |layout: Layout| layout.validate().unwrap_err();
        let base = Layout::default;
        assert_eq!(wrong(Layout { stripe_size: 100, ..base() }), LayoutError::StripeSize(100));
        assert_eq!(
            wrong(Layout { stripe_count: StripeCount::Exactly(0), ..base() }),
            LayoutError::StripeCount
        );
        assert!(base().validate().is_ok());
    }
}
