//! A selection of records of a source.

use std::sync::Arc;

use super::{Part, Records, Source, known_len, out_of_range, renumbered};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{SampleRng, key};

const TAG: u64 = u64::from_le_bytes(*b"subset\0\0");

/// A selection of records of a source: see [`SourceExt::subset`](super::SourceExt::subset) and
/// [`SourceExt::split`](super::SourceExt::split). Errors and places carry the index within the selection.
#[derive(Debug, Clone)]
pub struct Subset<S> {
    source: Arc<S>,
    indices: Indices,
    fingerprint: u64,
}

#[derive(Debug, Clone)]
enum Indices {
    Narrow(Arc<[u32]>),
    Wide(Arc<[u64]>),
}

impl Indices {
    /// `indices`, as narrow as a source of `len` records allows.
    fn new(len: u64, indices: impl Iterator<Item = u64>) -> Self {
        if u32::try_from(len).is_ok() {
            Self::Narrow(indices.map(|i| i as u32).collect())
        } else {
            Self::Wide(indices.collect())
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Narrow(indices) => indices.len(),
            Self::Wide(indices) => indices.len(),
        }
    }

    fn get(&self, at: u64) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        match self {
            Self::Narrow(indices) => indices.get(at).map(|&i| u64::from(i)),
            Self::Wide(indices) => indices.get(at).copied(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len() as u64).filter_map(|at| self.get(at))
    }
}

impl<S: Source> Subset<S> {
    pub(super) fn selected_from(&self) -> &S {
        &self.source
    }

    pub(super) fn new(source: Arc<S>, indices: impl IntoIterator<Item = u64>) -> Result<Self> {
        let len = known_len(&*source, "a subset")?;
        let mut outside = None;
        let inside = indices.into_iter().take_while(|&i| {
            outside = (i >= len).then_some(i);
            outside.is_none()
        });
        let indices = Indices::new(len, inside);
        match outside {
            Some(index) => Err(out_of_range(index, len)),
            None => Ok(Self::of(source, indices)),
        }
    }

    pub(super) fn split(source: Arc<S>, fraction: f64, seed: u64) -> Result<(Self, Self)> {
        if !(0.0..=1.0).contains(&fraction) {
            let text = format!("a split takes a fraction from 0 to 1, not {fraction}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let len = known_len(&*source, "a split")?;
        let mut left = (len as f64 * fraction).round() as u64;
        // Selection sampling (Knuth, TAOCP 3.4.2, algorithm S): every set of that size is equally likely, in
        // one pass and in order.
        let mut draw = SampleRng::from_key(key(&[TAG, seed]));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for index in 0..len {
            if draw.below(len - index) < left {
                left -= 1;
                first.push(index);
            } else {
                second.push(index);
            }
        }
        let of = |indices: Vec<u64>| Self::of(Arc::clone(&source), Indices::new(len, indices.into_iter()));
        Ok((of(first), of(second)))
    }

    fn of(source: Arc<S>, indices: Indices) -> Self {
        let start = key(&[TAG, source.fingerprint(), indices.len() as u64]);
        let fingerprint = indices.iter().fold(start, |h, i| key(&[h, i]));
        Self { source, indices, fingerprint }
    }

    /// The index in the source that `index` of the selection stands for.
    fn inner(&self, index: u64) -> Result<u64> {
        self.indices.get(index).ok_or_else(|| out_of_range(index, self.indices.len() as u64))
    }
}

impl<S: Source> Source for Subset<S> {
    type Record = S::Record;
    type Scratch = S::Scratch;

    fn len(&self) -> Option<u64> {
        Some(self.indices.len() as u64)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn describe(&self, index: u64) -> Place {
        let inner = self.indices.get(index).map(|inner| self.source.describe(inner));
        Place { index: Some(index), ..inner.unwrap_or_default() }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut S::Scratch) -> Result<&'a S::Record> {
        let inner = self.inner(index)?;
        self.source.read(inner, scratch).map_err(|e| renumbered(e, index))
    }

    fn hint(&self, upcoming: &[u64]) {
        let inner: Vec<u64> = upcoming.iter().filter_map(|&index| self.indices.get(index)).collect();
        self.source.hint(&inner);
    }
}

impl<S: Records> Records for Subset<S> {
    fn parts(&self) -> &[Part] {
        self.source.parts()
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        let inner = self.inner(index)?;
        self.source.read_into(inner, rows).map_err(|e| renumbered(e, index))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::error::Error as _;

    use super::*;
    use crate::source::contract::holds_contract;
    use crate::source::{SourceExt, from_fn, from_iter, from_vec};

    fn values(source: &impl Source<Record = u64, Scratch = Option<u64>>) -> Vec<u64> {
        (0..source.len().unwrap()).map(|i| *source.read(i, &mut None).unwrap()).collect()
    }

    #[test]
    fn a_subset_is_a_source() {
        let source = || from_vec(vec![10u8, 11, 12, 13]);
        holds_contract(&source().subset([3, 0, 0]).unwrap(), &[&13, &10, &10]);
        holds_contract(&source().subset([]).unwrap(), &[]);
        holds_contract(&source().subset([2, 1]).unwrap().subset([1]).unwrap(), &[&11]);
        let print = |indices: &[u64]| source().subset(indices.to_vec()).unwrap().fingerprint();
        assert!(print(&[1, 2]) != print(&[2, 1]) && print(&[1, 2]) == print(&[1, 2]));
        let e = source().subset([1, 4, 9]).unwrap_err();
        assert_eq!((e.kind(), e.place().index), (ErrorKind::InvalidArgument, Some(4)));
    }

    #[test]
    fn a_split_is_disjoint_covers_all_and_is_keyed() {
        for n in [0u64, 1, 2, 9, 1000] {
            for fraction in [0.0, 0.1, 0.5, 0.9, 1.0] {
                let (a, b) = from_fn(n, Ok).split(fraction, 7).unwrap();
                let (a, b) = (values(&a), values(&b));
                assert_eq!(a.len() as u64, (n as f64 * fraction).round() as u64);
                assert!(a.is_sorted() && b.is_sorted());
                let all: HashSet<u64> = a.iter().chain(&b).copied().collect();
                assert_eq!((all.len() as u64, (a.len() + b.len()) as u64), (n, n));
            }
        }
        let first = |seed| values(&from_fn(100, Ok).split(0.5, seed).unwrap().0);
        assert!(first(1) == first(1) && first(1) != first(2));
        // Each record is drawn about as often as any other.
        let mut drawn = [0u32; 10];
        (0..4000).for_each(|seed| {
            values(&from_fn(10, Ok).split(0.3, seed).unwrap().0).iter().for_each(|&i| drawn[i as usize] += 1);
        });
        assert!(drawn.iter().all(|n| (1050..1350).contains(n)), "{drawn:?}");
    }

    #[test]
    fn what_cannot_be_selected_is_refused() {
        let kind = |e: Error| (e.kind(), e.to_string());
        for fraction in [-0.1, 1.1, f64::NAN] {
            let e = kind(from_fn(3, Ok).split(fraction, 0).map(drop).unwrap_err());
            assert_eq!(e.0, ErrorKind::InvalidArgument);
        }
        let e = kind(from_iter(0..3).subset([0]).map(drop).unwrap_err());
        assert!(e.0 == ErrorKind::InvalidArgument && e.1.contains("sequence"), "{e:?}");
        let e = kind(from_iter(0..3).split(0.5, 0).map(drop).unwrap_err());
        assert!(e.0 == ErrorKind::InvalidArgument && e.1.contains("sequence"), "{e:?}");
    }

    #[test]
    fn an_error_carries_the_outer_index_and_keeps_the_inner() {
        let source = from_fn(9, |i| if i == 7 { anyhow::bail!("boom") } else { Ok(i) });
        let subset = source.subset([3, 7]).unwrap();
        let e = subset.read(1, &mut None).unwrap_err();
        assert_eq!((e.kind(), e.message(), e.place().index), (ErrorKind::Sample, "boom", Some(1)));
        assert!(e.source().unwrap().to_string().contains("index 7"));
        assert_eq!(subset.describe(1).index, Some(1));
    }

    #[test]
    fn row_40_a_split_of_a_million_costs_four_bytes_a_record() {
        let (a, b) = from_fn(1_000_000, Ok).split(0.9, 1).unwrap();
        let bytes = |s: &Subset<_>| match &s.indices {
            Indices::Narrow(indices) => size_of_val(&**indices),
            Indices::Wide(indices) => size_of_val(&**indices),
        };
        assert_eq!(bytes(&a) + bytes(&b), 4_000_000);
        assert!(Arc::ptr_eq(&a.source, &b.source));
    }
}
