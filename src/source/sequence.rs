//! Records that an iterator gives in its own order.

use std::any::type_name;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::Source;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{key, key_of_bytes};

type Items<T> = Box<dyn Iterator<Item = anyhow::Result<T>> + Send>;
type Open<T> = Box<dyn Fn(u64) -> anyhow::Result<Items<T>> + Send + Sync>;

/// A source of unknown length whose records are pulled in order. Made by [`from_iter`], [`try_from_iter`]
/// (read once), [`from_iter_fn`], [`try_from_iter_fn`] (opened anew for every epoch).
///
/// - [`Source::open`] of one that opens anew starts it from its first record. One that is read once goes on with
///   the records that are left, so nothing is lost where an epoch was left early; once its end has been seen
///   `open` says `false`.
/// - The iterator is called by one thread at a time, and not again after its end.
/// - An item that is an error is the error of that record (kind [`ErrorKind::Sample`], or its own where it is
///   an [`Error`]); the next pull takes the next item. So it is after a panic in the iterator.
pub struct Sequence<T> {
    open: Option<Open<T>>,
    items: Mutex<Option<Items<T>>>,
    name: u64,
}

/// A source that reads an iterator once.
///
/// ```
/// use warpfeed::source::{self, Source};
/// let source = source::from_iter(1..);
/// let mut record = None;
/// assert!(source.open(0)? && source.pull(&mut record)?);
/// assert_eq!(*source.read(0, &mut record)?, 1);
/// # Ok::<(), warpfeed::Error>(())
/// ```
pub fn from_iter<T, I>(items: I) -> Sequence<T>
where
    T: Send + 'static,
    I: IntoIterator<Item = T>,
    I::IntoIter: Send + 'static,
{
    Sequence::new(None, Some(Box::new(items.into_iter().map(Ok))))
}

/// A source that reads an iterator of results once.
pub fn try_from_iter<T, I>(items: I) -> Sequence<T>
where
    T: Send + 'static,
    I: IntoIterator<Item = anyhow::Result<T>>,
    I::IntoIter: Send + 'static,
{
    Sequence::new(None, Some(Box::new(items.into_iter())))
}

/// A source that calls `open(epoch)` for an iterator at the start of every epoch.
///
/// ```
/// use warpfeed::source::{self, Source};
/// let source = source::from_iter_fn(|epoch| (0..3).map(move |i| 10 * epoch + i));
/// assert!(source.open(7)? && source.reopens());
/// # Ok::<(), warpfeed::Error>(())
/// ```
pub fn from_iter_fn<T, I, F>(open: F) -> Sequence<T>
where
    T: Send + 'static,
    I: IntoIterator<Item = T>,
    I::IntoIter: Send + 'static,
    F: Fn(u64) -> I + Send + Sync + 'static,
{
    Sequence::new(Some(Box::new(move |epoch| Ok(Box::new(open(epoch).into_iter().map(Ok))))), None)
}

/// A source that calls `open(epoch)` for an iterator of results at the start of every epoch.
pub fn try_from_iter_fn<T, I, F>(open: F) -> Sequence<T>
where
    T: Send + 'static,
    I: IntoIterator<Item = anyhow::Result<T>>,
    I::IntoIter: Send + 'static,
    F: Fn(u64) -> anyhow::Result<I> + Send + Sync + 'static,
{
    Sequence::new(Some(Box::new(move |epoch| Ok(Box::new(open(epoch)?.into_iter())))), None)
}

impl<T> Sequence<T> {
    fn new(open: Option<Open<T>>, items: Option<Items<T>>) -> Self {
        Self { open, items: Mutex::new(items), name: key_of_bytes(type_name::<T>().as_bytes()) }
    }

    /// Names the data for the fingerprint. Without a name the fingerprint knows the type of a record only.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = key_of_bytes(name.as_bytes());
        self
    }
}

impl<T> fmt::Debug for Sequence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("reopens", &self.open.is_some()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Source for Sequence<T> {
    type Record = T;
    type Scratch = Option<T>;

    fn len(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> u64 {
        key(&[u64::from_le_bytes(*b"sequence"), u64::from(self.open.is_some()), self.name])
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Option<T>) -> Result<&'a T> {
        scratch.as_ref().ok_or_else(|| {
            let text = "a record of a sequence is pulled before it is read";
            Error::new(ErrorKind::InvalidArgument, text).at(Place::of_index(index))
        })
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        // A panic of the iterator poisons the lock; the iterator itself is as the panic left it.
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &self.open else { return Ok(items.is_some()) };
        *items = None; // what the last epoch left is freed first
        *items = Some(open(epoch).map_err(Error::from_user)?);
        Ok(true)
    }

    fn pull(&self, scratch: &mut Option<T>) -> Result<bool> {
        *scratch = None;
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        match items.as_mut().and_then(Iterator::next) {
            Some(Ok(item)) => *scratch = Some(item),
            Some(Err(e)) => return Err(Error::from_user(e)),
            None => *items = None,
        }
        Ok(scratch.is_some())
    }

    fn reopens(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::contract::{holds_sequence_contract, pull_all, within};

    #[test]
    fn an_iterator_that_opens_anew_is_a_sequence() {
        holds_sequence_contract(&from_iter_fn(|_| [5u8, 6, 7]), &[&5, &6, &7]);
        holds_sequence_contract(&try_from_iter_fn(|_| Ok((0..2).map(Ok))), &[&0, &1]);
        holds_sequence_contract(&from_iter_fn(|_| Vec::<u8>::new()), &[]);
        let epochs = from_iter_fn(|epoch| [epoch]);
        assert!(epochs.open(9).unwrap());
        assert_eq!(pull_all(&epochs), [Ok(9)]);
    }

    #[test]
    fn row_89_a_used_up_one_shot_does_not_open_again() {
        let source = from_iter(0..10);
        assert!(!source.reopens());
        assert!(source.open(0).unwrap());
        assert_eq!(pull_all(&source).len(), 10);
        assert!(!source.open(1).unwrap() && !source.open(2).unwrap());
        assert!(!source.pull(&mut None).unwrap());
    }

    #[test]
    fn a_one_shot_that_was_left_early_goes_on_with_the_rest() {
        let source = from_iter(0..5);
        assert!(source.open(0).unwrap());
        assert!(source.pull(&mut None).unwrap() && source.pull(&mut None).unwrap());
        assert!(source.open(1).unwrap());
        assert_eq!(pull_all(&source), [Ok(2), Ok(3), Ok(4)]);
    }

    #[test]
    fn row_61_an_error_is_one_record_and_never_the_end() {
        let items = || (0..5).map(|i| if i == 3 { Err(anyhow::anyhow!("boom")) } else { anyhow::Ok(i) });
        let expected = [Ok(0), Ok(1), Ok(2), Err("boom".to_string()), Ok(4)];
        assert_eq!(pull_all(&try_from_iter(items())), expected);
        let source = try_from_iter_fn(move |_| Ok(items()));
        assert!(!source.pull(&mut None).unwrap(), "nothing comes before it is opened");
        assert!(source.open(0).unwrap());
        assert_eq!(pull_all(&source), expected);
        let closed = try_from_iter_fn(|_| -> anyhow::Result<Vec<anyhow::Result<u8>>> { anyhow::bail!("no") });
        let e = closed.open(0).unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Sample, "no"));
    }

    #[test]
    fn row_80_each_item_comes_once_however_many_threads_pull() {
        let source = from_iter(0..1000u32);
        let mut all: Vec<u32> = std::thread::scope(|scope| {
            let pull = || pull_all(&source).into_iter().map(Result::unwrap).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(pull)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000));
    }

    #[test]
    fn row_88_an_endless_stream_has_no_length_and_is_dropped_at_once() {
        within(20, || {
            let source = from_iter(std::iter::repeat(7u8));
            assert_eq!(source.len(), None);
            let mut scratch = None;
            for i in 0..1000 {
                assert!(source.pull(&mut scratch).unwrap());
                assert_eq!(*source.read(i, &mut scratch).unwrap(), 7);
            }
        });
    }

    #[test]
    fn a_panic_in_the_iterator_is_one_record() {
        let source = from_iter((0..4).inspect(|&i| assert_ne!(i, 1, "boom")));
        let pull = || {
            let mut scratch = None;
            source.pull(&mut scratch).map(|_| scratch)
        };
        assert_eq!(pull().unwrap(), Some(0));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pull));
        assert!(panicked.is_err());
        assert_eq!((pull().unwrap(), pull().unwrap(), pull().unwrap()), (Some(2), Some(3), None));
        assert!(!source.open(1).unwrap());
    }
}
