//! Which sample comes when: pure functions from (epoch, position) to an index.
//!
//! A [`Sampler`] orders the samples of an epoch for all ranks together, a [`Shard`] names the rank, and a
//! [`Cursor`] is that rank's share of the order: its `k`-th sample, its padding, its count of batches.

mod block;
mod cursor;
mod feistel;
mod mix;
mod permutation;
mod shard;
mod shuffle;
mod weighted;

pub use block::BlockShuffle;
pub use cursor::Cursor;
pub use mix::Mix;
pub use shard::{Remainder, Shard};
pub use shuffle::{Sequential, Shuffle};
pub use weighted::Weighted;

/// An order of samples. It holds no position: the same epoch and position give the same index, on every
/// rank and in every run.
///
/// The samplers of this module panic where a position is not below `len()`: a [`Cursor`] gives no such
/// position.
pub trait Sampler: Send + Sync + 'static {
    /// How many positions an epoch has, over all ranks.
    fn len(&self) -> u64;

    /// Whether an epoch has no position.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the sample at `position < len()` of `epoch`.
    fn index(&self, epoch: u64, position: u64) -> u64;

    /// Writes the indices at `start, start + step, start + 2·step, …` of `epoch`. Every position must be
    /// below `len()`.
    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.len(), out);
        for slot in out {
            *slot = self.index(epoch, *slot);
        }
    }

    /// A number that stays the same as long as the order does.
    fn fingerprint(&self) -> u64;
}

/// Holds a caller to `position < len`.
fn check(position: u64, len: u64) {
    assert!(position < len, "position {position} is not below the epoch's {len}");
}

/// Writes `start, start + step, …`, all of them below `len`.
fn write_positions(start: u64, step: u64, len: u64, out: &mut [u64]) {
    let Some(more) = out.len().checked_sub(1) else { return };
    let last = u128::from(start) + more as u128 * u128::from(step);
    assert!(last < u128::from(len), "position {last} is not below the epoch's {len}");
    for (k, slot) in out.iter_mut().enumerate() {
        *slot = start + k as u64 * step;
    }
}
