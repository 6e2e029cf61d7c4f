//! The first records of a source.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Part, Records, Source, out_of_range};
use crate::error::{Place, Result};
use crate::random::key;

/// The first records of a source: see [`SourceExt::take`](super::SourceExt::take).
#[derive(Debug)]
pub struct Take<S> {
    source: S,
    n: u64,
    /// Of a sequence: how many were pulled since it was opened. One thread pulls, so no ordering is needed.
    pulled: AtomicU64,
}

impl<S: Source> Take<S> {
    pub(super) fn new(source: S, n: u64) -> Self {
        let n = source.len().map_or(n, |len| n.min(len));
        Self { source, n, pulled: AtomicU64::new(0) }
    }

    pub(super) fn selected_from(&self) -> &S {
        &self.source
    }

    fn check(&self, index: u64) -> Result<()> {
        if self.source.len().is_some() && index >= self.n { Err(out_of_range(index, self.n)) } else { Ok(()) }
    }
}

impl<S: Source> Source for Take<S> {
    type Record = S::Record;
    type Scratch = S::Scratch;

    fn len(&self) -> Option<u64> {
        self.source.len().map(|_| self.n)
    }

    fn fingerprint(&self) -> u64 {
        key(&[u64::from_le_bytes(*b"take\0\0\0\0"), self.source.fingerprint(), self.n])
    }

    fn describe(&self, index: u64) -> Place {
        if self.check(index).is_err() { Place::of_index(index) } else { self.source.describe(index) }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut S::Scratch) -> Result<&'a S::Record> {
        self.check(index)?;
        self.source.read(index, scratch)
    }

    fn hint(&self, upcoming: &[u64]) {
        self.source.hint(upcoming);
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        self.pulled.store(0, Relaxed);
        self.source.open(epoch)
    }

    fn pull(&self, scratch: &mut S::Scratch) -> Result<bool> {
        if self.source.len().is_none() && self.pulled.load(Relaxed) >= self.n {
            *scratch = S::Scratch::default();
            return Ok(false);
        }
        let pulled = self.source.pull(scratch);
        self.pulled.fetch_add(1, Relaxed);
        pulled
    }

    fn reopens(&self) -> bool {
        self.source.reopens()
    }
}

impl<S: Records> Records for Take<S> {
    fn parts(&self) -> &[Part] {
        self.source.parts()
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        self.check(index)?;
        self.source.read_into(index, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::contract::{holds_contract, holds_sequence_contract, pull_all};
    use crate::source::{SourceExt, from_iter, from_iter_fn, from_vec, try_from_iter};

    #[test]
    fn the_first_of_an_indexed_source() {
        let source = || from_vec(vec![1u8, 2, 3]);
        holds_contract(&source().take(2), &[&1, &2]);
        holds_contract(&source().take(9), &[&1, &2, &3]);
        holds_contract(&source().take(0), &[]);
        assert_ne!(source().take(2).fingerprint(), source().take(1).fingerprint());
    }

    #[test]
    fn the_first_of_a_sequence() {
        holds_sequence_contract(&from_iter_fn(|_| 5u8..).take(2), &[&5, &6]);
        holds_sequence_contract(&from_iter_fn(|_| 5u8..7).take(9), &[&5, &6]);
        let source = from_iter(0..5).take(2);
        let opening = |epoch| source.open(epoch).unwrap().then(|| pull_all(&source));
        assert_eq!(opening(0), Some(vec![Ok(0), Ok(1)]));
        assert_eq!(opening(1), Some(vec![Ok(2), Ok(3)]));
        assert_eq!((opening(2), opening(3)), (Some(vec![Ok(4)]), None));
        let source =
            try_from_iter((0..).map(|i| if i % 2 == 0 { Ok(i) } else { Err(anyhow::anyhow!("odd {i}")) }))
                .take(3);
        assert_eq!(pull_all(&source), [Ok(0), Err("odd 1".to_string()), Ok(2)]);
    }
}
