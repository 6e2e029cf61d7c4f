//! All samples, in order or shuffled.

use super::permutation::Permutation;
use super::{Sampler, check, write_positions};
use crate::random::key;

/// Every sample once an epoch, in the source's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequential {
    len: u64,
}

impl Sequential {
    /// The order `0, 1, …, len - 1`.
    pub fn new(len: u64) -> Self {
        Self { len }
    }
}

impl Sampler for Sequential {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        check(position, self.len);
        position
    }

    fn fill(&self, _epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.len, out);
    }

    fn fingerprint(&self) -> u64 {
        key(&[u64::from_le_bytes(*b"sequent1"), self.len])
    }
}

/// Every sample once an epoch, in an order drawn from all of them, another one each epoch.
///
/// The order is a keyed permutation that is computed and not stored, so that a shuffle of 10^12 samples
/// costs no more memory or time to set up than one of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    len: u64,
    seed: u64,
}

impl Shuffle {
    const KIND: u64 = u64::from_le_bytes(*b"shuffle1");

    /// A full shuffle of `0..len`, keyed by `(seed, epoch)`.
    pub fn new(len: u64, seed: u64) -> Self {
        Self { len, seed }
    }

    fn order(&self, epoch: u64) -> Permutation {
        Permutation::new(self.len, key(&[Self::KIND, self.seed, epoch]))
    }
}

impl Sampler for Shuffle {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        check(position, self.len);
        self.order(epoch).apply(position)
    }

    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.len, out);
        self.order(epoch).apply_all(out);
    }

    fn fingerprint(&self) -> u64 {
        key(&[Self::KIND, self.len, self.seed])
    }
}
