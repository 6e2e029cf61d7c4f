//! An approximate shuffle of a sequence.

use std::sync::{Mutex, PoisonError};

use super::Source;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{SampleRng, key};

const TAG: u64 = u64::from_le_bytes(*b"shuffle\0");

/// A sequence in an order that is random within a window: a buffer of `capacity` records is filled from the
/// inner sequence; each pull takes a record from a random place of the buffer, and the next one of the inner
/// sequence takes its place. A record moves forward by less than `capacity` places, and back as far as chance has it.
/// Which place is drawn is keyed by (seed, epoch, number of the record in its epoch).
///
/// - The first pull of an epoch reads `capacity` records. A capacity of 0 or 1 leaves the order as it is.
/// - The buffer is freed at the end of the sequence and when it is opened anew. A sequence that is read once keeps
///   it until then, since an epoch that was left early goes on with the records in it.
/// - A record that can't be had is an error at once and takes no place in the buffer.
#[derive(Debug)]
pub struct ShuffleBuffer<S: Source> {
    source: S,
    capacity: usize,
    seed: u64,
    state: Mutex<State<S::Scratch>>,
}

#[derive(Debug)]
struct State<R> {
    /// Records that were pulled and not yet given out.
    buffer: Vec<R>,
    /// What the caller's last record lay in: the memory for the next one.
    spare: Option<R>,
    epoch: u64,
    given: u64,
    ended: bool,
}

impl<R> State<R> {
    fn free(&mut self) {
        self.buffer = Vec::new();
        self.spare = None;
    }
}

impl<S: Source> ShuffleBuffer<S> {
    pub(super) fn new(source: S, capacity: usize, seed: u64) -> Result<Self> {
        if source.len().is_some() {
            let text =
                "a shuffle buffer is for sequences; an indexed source is shuffled as a whole, by its sampler";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let state = State { buffer: Vec::new(), spare: None, epoch: 0, given: 0, ended: false };
        Ok(Self { source, capacity: capacity.max(1), seed, state: Mutex::new(state) })
    }

    pub(super) fn selected_from(&self) -> &S {
        &self.source
    }

    /// Fills the buffer as far as the sequence goes.
    fn fill(&self, state: &mut State<S::Scratch>) -> Result<()> {
        while !state.ended && state.buffer.len() < self.capacity {
            let mut record = state.spare.take().unwrap_or_default();
            if self.source.pull(&mut record)? {
                if state.buffer.len() == state.buffer.capacity() {
                    // Doubles, but never past the capacity.
                    let held = state.buffer.len();
                    let more = held.max(16).min(self.capacity - held);
                    state.buffer.reserve_exact(more);
                }
                state.buffer.push(record);
            } else {
                state.ended = true;
            }
        }
        Ok(())
    }
}

impl<S: Source> Source for ShuffleBuffer<S> {
    type Record = S::Record;
    type Scratch = S::Scratch;

    fn len(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> u64 {
        key(&[TAG, self.source.fingerprint(), self.capacity as u64, self.seed])
    }

    fn describe(&self, index: u64) -> Place {
        Place::of_index(index)
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut S::Scratch) -> Result<&'a S::Record> {
        self.source.read(index, scratch)
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        // A panic of the inner sequence poisons the lock between two whole states of the buffer.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.source.reopens() {
            state.free();
        }
        state.epoch = epoch;
        state.given = 0;
        state.ended = !self.source.open(epoch)?;
        Ok(!state.ended || !state.buffer.is_empty())
    }

    fn pull(&self, scratch: &mut S::Scratch) -> Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        self.fill(state)?;
        if state.buffer.is_empty() {
            state.free();
            return Ok(false);
        }
        let mut draw = SampleRng::from_key(key(&[TAG, self.seed, state.epoch, state.given]));
        let at = draw.below(state.buffer.len() as u64) as usize;
        state.given += 1;
        let record = state.buffer.swap_remove(at);
        let last = std::mem::replace(scratch, record);
        state.spare = (!state.ended).then_some(last);
        if state.ended && state.buffer.is_empty() {
            state.free();
        }
        Ok(true)
    }

    fn reopens(&self) -> bool {
        self.source.reopens()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

    use super::*;
    use crate::source::contract::{holds_sequence_contract, pull_all};
    use crate::source::{SourceExt, from_fn, from_iter, from_iter_fn, try_from_iter};

    fn order(source: &impl Source<Record = u64>, epoch: u64) -> Vec<u64> {
        assert!(source.open(epoch).unwrap());
        pull_all(source).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn a_buffer_of_one_keeps_the_order() {
        for capacity in [0, 1] {
            let source = from_iter_fn(|_| [4u64, 5, 6]).shuffle_buffer(capacity, 3).unwrap();
            holds_sequence_contract(&source, &[&4, &5, &6]);
        }
        holds_sequence_contract(&from_iter_fn(|_| [4u8; 0]).shuffle_buffer(9, 3).unwrap(), &[]);
    }

    #[test]
    fn the_order_is_a_permutation_keyed_by_seed_and_epoch() {
        let new = |capacity, seed| from_iter_fn(|_| 0..100u64).shuffle_buffer(capacity, seed).unwrap();
        let a = order(&new(20, 1), 0);
        assert_eq!(a, order(&new(20, 1), 0));
        assert!(a != order(&new(20, 2), 0) && a != order(&new(20, 1), 1));
        for (place, &item) in a.iter().enumerate() {
            assert!(item < place as u64 + 20, "item {item} came at {place}, before it was read");
        }
        for capacity in [2, 20, 100, 1000] {
            let source = new(capacity, 1);
            for epoch in 0..2 {
                let mut all = order(&source, epoch);
                assert!(!all.is_sorted(), "capacity {capacity}");
                all.sort_unstable();
                assert!(all.into_iter().eq(0..100));
            }
        }
    }

    #[test]
    fn every_place_of_the_first_window_is_drawn_alike() {
        let mut first = [0u32; 8];
        let source = from_iter_fn(|_| 0..8u64).shuffle_buffer(8, 5).unwrap();
        for epoch in 0..8000 {
            first[order(&source, epoch)[0] as usize] += 1;
        }
        assert!(first.iter().all(|n| (850..1150).contains(n)), "{first:?}");
    }

    /// A record that counts how many of its kind are alive, and how many ever were at once.
    struct Counted(Arc<[AtomicIsize; 2]>);
    impl Counted {
        fn new(alive: &Arc<[AtomicIsize; 2]>) -> Self {
            alive[1].fetch_max(alive[0].fetch_add(1, SeqCst) + 1, SeqCst);
            Self(Arc::clone(alive))
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0[0].fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn row_46_the_buffer_is_freed_when_opened_again_and_at_the_end() {
        let alive = Arc::new([AtomicIsize::new(0), AtomicIsize::new(0)]);
        let counter = Arc::clone(&alive);
        let source = from_iter_fn(move |_| {
            let counter = Arc::clone(&counter);
            (0..3000).map(move |_| Counted::new(&counter))
        });
        let source = source.shuffle_buffer(1000, 1).unwrap();
        for epoch in 0..20 {
            assert!(source.open(epoch).unwrap());
            assert_eq!(alive[0].load(SeqCst), 0, "opened again");
            let mut scratch = None;
            assert!(source.pull(&mut scratch).unwrap());
            assert_eq!(alive[0].load(SeqCst), 1000);
        }
        let mut scratch = None;
        while source.pull(&mut scratch).unwrap() {
            let buffer = source.state.lock().unwrap().buffer.capacity();
            assert!(buffer <= 1000, "{buffer}");
        }
        assert!(alive[1].load(SeqCst) <= 1002, "{alive:?}");
        drop(scratch);
        assert_eq!((alive[0].load(SeqCst), source.state.lock().unwrap().buffer.capacity()), (0, 0));
    }

    #[test]
    fn a_one_shot_left_early_loses_nothing_in_the_buffer() {
        let source = from_iter(0..10u64).shuffle_buffer(4, 1).unwrap();
        assert!(source.open(0).unwrap() && !source.reopens());
        let mut scratch = None;
        assert!(source.pull(&mut scratch).unwrap());
        let mut all = order(&source, 1);
        all.push(scratch.unwrap());
        all.sort_unstable();
        assert!(all.into_iter().eq(0..10));
        assert!(!source.open(2).unwrap());
    }

    #[test]
    fn a_panic_in_the_sequence_loses_one_record_only() {
        let source =
            from_iter((0..6u64).inspect(|&i| assert_ne!(i, 2, "boom"))).shuffle_buffer(4, 1).unwrap();
        assert!(source.open(0).unwrap());
        let pull = std::panic::AssertUnwindSafe(|| source.pull(&mut None));
        assert!(std::panic::catch_unwind(pull).is_err());
        let mut all: Vec<u64> = pull_all(&source).into_iter().map(Result::unwrap).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 3, 4, 5]);
    }

    #[test]
    fn errors_pass_and_an_indexed_source_is_refused() {
        let items = (0..6u64).map(|i| if i % 3 == 1 { Err(anyhow::anyhow!("bad {i}")) } else { Ok(i) });
        let source = try_from_iter(items).shuffle_buffer(3, 1).unwrap();
        assert!(source.open(0).unwrap());
        let (good, bad): (Vec<_>, Vec<_>) = pull_all(&source).into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), bad), (4, vec![Err("bad 1".to_string()), Err("bad 4".to_string())]));
        let e = from_fn(3, Ok).shuffle_buffer(2, 0).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    }
}
