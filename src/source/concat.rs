//! Sources one after another.

use std::sync::OnceLock;

use super::{Part, Records, Source, known_len, out_of_range, renumbered};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::key;

/// Sources of one type, one after another. Made by [`concat()`]. Errors and places carry the index within the
/// whole.
#[derive(Debug)]
pub struct Concat<S> {
    sources: Vec<S>,
    /// The first index of each source; the total length at the end.
    firsts: Vec<u64>,
    /// Whether all sources have the same parts, once that was asked for.
    same_parts: OnceLock<bool>,
}

/// The records of `sources`, one source after another.
///
/// ```
/// use warpfeed::source::{self, Source};
/// let both = source::concat(vec![source::from_vec(vec![1, 2]), source::from_vec(vec![3])])?;
/// assert_eq!((both.len(), *both.read(2, &mut ())?), (Some(3), 3));
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for no sources, for a sequence among them, and where the lengths add up to
/// more than 64 bits.
pub fn concat<S: Source>(sources: Vec<S>) -> Result<Concat<S>> {
    let refused = |text| Error::new(ErrorKind::InvalidArgument, text);
    if sources.is_empty() {
        return Err(refused("there are no sources to join"));
    }
    let mut firsts = vec![0u64];
    let mut total = 0u64;
    for source in &sources {
        let len = known_len(source, "joining sources")?;
        total = total.checked_add(len).ok_or_else(|| refused("the lengths add up to more than 64 bits"))?;
        firsts.push(total);
    }
    Ok(Concat { sources, firsts, same_parts: OnceLock::new() })
}

impl<S: Source> Concat<S> {
    pub(super) fn joined(&self) -> &[S] {
        &self.sources
    }

    fn total(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// The number of the source that holds `index`, and the index within it.
    fn locate(&self, index: u64) -> Option<(usize, u64)> {
        if index >= self.total() {
            return None;
        }
        // The last source that starts at or before the index: empty ones start where the next one does.
        let at = self.firsts.partition_point(|&first| first <= index).checked_sub(1)?;
        Some((at, index - self.firsts.get(at)?))
    }

    fn found(&self, index: u64) -> Result<(&S, u64)> {
        let found = self.locate(index).and_then(|(at, inner)| Some((self.sources.get(at)?, inner)));
        found.ok_or_else(|| out_of_range(index, self.total()))
    }
}

impl<S: Source> Source for Concat<S> {
    type Record = S::Record;
    type Scratch = S::Scratch;

    fn len(&self) -> Option<u64> {
        Some(self.total())
    }

    fn fingerprint(&self) -> u64 {
        let start = key(&[u64::from_le_bytes(*b"concat\0\0"), self.sources.len() as u64]);
        self.sources.iter().fold(start, |h, source| key(&[h, source.fingerprint()]))
    }

    fn describe(&self, index: u64) -> Place {
        let inner = self.found(index).map(|(source, inner)| source.describe(inner));
        Place { index: Some(index), ..inner.unwrap_or_default() }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut S::Scratch) -> Result<&'a S::Record> {
        let (source, inner) = self.found(index)?;
        source.read(inner, scratch).map_err(|e| renumbered(e, index))
    }

    fn hint(&self, upcoming: &[u64]) {
        // Runs that lie in one source go there together; the order stays.
        let located: Vec<(usize, u64)> = upcoming.iter().filter_map(|&index| self.locate(index)).collect();
        let mut inner = Vec::with_capacity(located.len());
        for run in located.chunk_by(|a, b| a.0 == b.0) {
            inner.clear();
            inner.extend(run.iter().map(|&(_, index)| index));
            if let Some(source) = run.first().and_then(|&(at, _)| self.sources.get(at)) {
                source.hint(&inner);
            }
        }
    }
}

impl<S: Records> Records for Concat<S> {
    /// The parts of the first source. Reading is refused where another source has others.
    fn parts(&self) -> &[Part] {
        self.sources.first().map_or(&[], Records::parts)
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        let same = || self.sources.iter().all(|source| source.parts() == self.parts());
        if !self.same_parts.get_or_init(same) {
            let text = "the joined sources have records of different parts";
            return Err(Error::new(ErrorKind::InvalidConfig, text).at(Place::of_index(index)));
        }
        let (source, inner) = self.found(index)?;
        source.read_into(inner, rows).map_err(|e| renumbered(e, index))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::source::contract::holds_contract;
    use crate::source::{SourceExt, from_fn, from_iter, from_vec};

    #[test]
    fn joined_sources_are_a_source() {
        let of = |values: &[u8]| from_vec(values.to_vec());
        let joined = concat(vec![of(&[]), of(&[1, 2]), of(&[]), of(&[]), of(&[3]), of(&[])]).unwrap();
        holds_contract(&joined, &[&1, &2, &3]);
        holds_contract(&concat(vec![of(&[])]).unwrap(), &[]);
        let print = |a: &[u8], b: &[u8]| concat(vec![of(a), of(b)]).unwrap().fingerprint();
        assert!(print(&[1], &[2, 3]) != print(&[1, 2], &[3]));
    }

    #[test]
    fn an_error_carries_the_outer_index_and_keeps_the_inner() {
        let of = || from_fn(3, |i| if i == 1 { anyhow::bail!("boom") } else { Ok(i) });
        let joined = concat(vec![of(), of()]).unwrap();
        let e = joined.read(4, &mut None).unwrap_err();
        assert_eq!((e.message(), e.place().index), ("boom", Some(4)));
        assert!(e.source().unwrap().to_string().contains("index 1"));
    }

    #[test]
    fn what_cannot_be_joined_is_refused() {
        let kind = |r: Result<()>| r.unwrap_err().kind();
        assert_eq!(
            kind(concat(Vec::<super::super::Memory<u8>>::new()).map(drop)),
            ErrorKind::InvalidArgument
        );
        assert_eq!(kind(concat(vec![from_iter(0..2)]).map(drop)), ErrorKind::InvalidArgument);
        let huge = || from_fn(u64::MAX / 2 + 1, Ok);
        assert_eq!(kind(concat(vec![huge(), huge()]).map(drop)), ErrorKind::InvalidArgument);
    }

    /// Keeps what it was told would be read.
    #[derive(Default)]
    struct Told(Mutex<Vec<Vec<u64>>>);
    impl Source for Told {
        type Record = u8;
        type Scratch = ();
        fn len(&self) -> Option<u64> {
            Some(3)
        }
        fn fingerprint(&self) -> u64 {
            0
        }
        fn read<'a>(&'a self, _: u64, (): &'a mut ()) -> Result<&'a u8> {
            Ok(&0)
        }
        fn hint(&self, upcoming: &[u64]) {
            self.0.lock().unwrap().push(upcoming.to_vec());
        }
    }

    #[test]
    fn hints_are_translated_and_keep_their_order() {
        let (a, b) = (Arc::new(Told::default()), Arc::new(Told::default()));
        let joined = concat(vec![Arc::clone(&a), Arc::clone(&b)]).unwrap();
        let subset = joined.subset([5, 4, 0, 2, 3]).unwrap().take(4);
        subset.hint(&[0, 1, 2, 3, 99, 0]);
        assert_eq!(*a.0.lock().unwrap(), [[0, 2]]);
        assert_eq!(*b.0.lock().unwrap(), [vec![2, 1], vec![2]]);
    }
}
