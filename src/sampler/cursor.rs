//! One rank's share of an epoch.

use super::{Remainder, Sampler, Shard};
use crate::error::{Error, ErrorKind, Result};

/// One rank's share of an epoch, or of what is left of it from global position `start` on.
///
/// Rank `r` of `count` gets the global positions `start + r`, `start + r + count`, …: so when every rank has
/// delivered `k` samples, the first `start + k · count` positions are done, and a run of any world size can go on
/// from there. All ranks of one run must agree on `start`, the [`Shard`]'s count and the [`Remainder`]; under
/// [`Remainder::Pad`] and [`Remainder::Drop`] they then have equally many samples and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    len: u64,
    start: u64,
    shard: Shard,
    samples: u64,
}

impl Cursor {
    /// The share of `shard` in an epoch of `len` positions that begins, or goes on, at `start`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where `start` lies behind the epoch's end.
    pub fn new(len: u64, shard: Shard, remainder: Remainder, start: u64) -> Result<Self> {
        let Some(left) = len.checked_sub(start) else {
            let message = format!("can't start at position {start} of an epoch of {len}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let (all, over) = (left / shard.count(), left % shard.count());
        let more = match remainder {
            Remainder::Pad => over > 0,
            Remainder::Drop => false,
            Remainder::Uneven => shard.index() < over,
        };
        Ok(Self { len, start, shard, samples: all + u64::from(more) })
    }

    /// How many samples this rank gets, padding included.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many batches of `batch_size` this rank gets; the last may be smaller unless `drop_last`. None where
    /// `batch_size` is 0.
    pub fn batches(&self, batch_size: u64, drop_last: bool) -> u64 {
        match batch_size {
            0 => 0,
            _ if drop_last => self.samples / batch_size,
            _ => self.samples.div_ceil(batch_size),
        }
    }

    /// The global position of this rank's `k`-th sample; padding takes its positions from the epoch's start.
    ///
    /// # Panics
    /// Where `k` is not below [`samples`](Self::samples).
    pub fn position(&self, k: u64) -> u64 {
        (self.unwrapped(k) % u128::from(self.len)) as u64
    }

    /// Whether this rank's `k`-th sample repeats one of another rank so that all ranks have as many.
    ///
    /// # Panics
    /// Where `k` is not below [`samples`](Self::samples).
    pub fn is_padding(&self, k: u64) -> bool {
        self.unwrapped(k) >= u128::from(self.len)
    }

    /// Writes the indices of this rank's samples `first..first + out.len()`.
    ///
    /// # Panics
    /// Where that goes beyond [`samples`](Self::samples), or `sampler` does not have as many positions as this cursor.
    pub fn fill(&self, sampler: &dyn Sampler, epoch: u64, first: u64, out: &mut [u64]) {
        assert_eq!(sampler.len(), self.len, "this cursor was made for another sampler");
        let Some((last, before)) = out.split_last_mut() else { return };
        // Only a rank's last sample can be padding: the ranks differ by less than one round.
        let last_k = first.saturating_add(before.len() as u64);
        let end = self.position(last_k);
        if self.is_padding(last_k) {
            *last = sampler.index(epoch, end);
            if !before.is_empty() {
                sampler.fill(epoch, self.position(first), self.shard.count(), before);
            }
        } else {
            sampler.fill(epoch, self.position(first), self.shard.count(), out);
        }
    }

    /// The global position that is reached when every rank has delivered its first `k` samples: where an epoch that
    /// is resumed then starts. At `k = samples()` this rank's epoch is over, also where that is short of the
    /// epoch's length (a dropped remainder, a sample that only other ranks have).
    pub fn global_after(&self, k: u64) -> u64 {
        let done = u128::from(self.start) + u128::from(k.min(self.samples)) * u128::from(self.shard.count());
        done.min(u128::from(self.len)) as u64
    }

    /// The `k`-th sample's position if the epoch went on behind its end.
    fn unwrapped(&self, k: u64) -> u128 {
        assert!(k < self.samples, "sample {k} is not below this rank's {}", self.samples);
        u128::from(self.start)
            + u128::from(self.shard.index())
            + u128::from(k) * u128::from(self.shard.count())
    }
}
