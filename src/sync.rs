//! What threads share: the one atomic of the pipeline, behind a shim that [loom](https://docs.rs/loom) can
//! replace; a lock that a panic elsewhere does not close; and the process that threads belong to.

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts the rows of a batch that are still being filled. Whoever brings it to zero owns the batch.
#[derive(Debug)]
pub(crate) struct Countdown(AtomicUsize);

impl Countdown {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Starts a count of `rows`. The caller owns the batch alone, and hands it to others through a channel
    /// or a spawn, which orders this store before their first [`Countdown::arrive`].
    pub(crate) fn start(&self, rows: usize) {
        self.0.store(rows, Ordering::Relaxed);
    }

    /// Takes `rows` off; `true` for the one call that brings the count to zero.
    ///
    /// Release: what this thread wrote into its rows comes before the last arrival. Acquire: the last
    /// arrival, which goes on to hand out the batch, sees the writes of all the others.
    pub(crate) fn arrive(&self, rows: usize) -> bool {
        self.0.fetch_sub(rows, ARRIVE) == rows
    }
}

/// The ordering that the proof below is about; `--cfg warpfeed_seeded_bug` plants the mistake it must catch.
const ARRIVE: Ordering = if cfg!(warpfeed_seeded_bug) { Ordering::Relaxed } else { Ordering::AcqRel };

/// Locks `mutex`. No user code runs under a lock of this crate, so what a poisoned one guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`, under the rule of [`lock`].
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The process in which something was made. Threads do not survive a fork and a lock may have been held
/// by one of them, so whatever belongs to another process must not be touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The process of the caller.
    pub(crate) fn current() -> Self {
        Self(fork::count())
    }

    /// Whether the caller runs in a process forked from this one.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::current()
    }
}

/// Tells a child from its parent without a system call: it is asked several times a batch.
#[cfg(all(unix, not(miri)))]
mod fork {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static COUNT: AtomicU32 = AtomicU32::new(0);

    /// How many forks lie between the first call's process and this one.
    pub(super) fn count() -> u32 {
        static WATCH: Once = Once::new();
        extern "C" fn child() {
            COUNT.fetch_add(1, Relaxed);
        }
        // SAFETY: the handler is a static function that does one atomic addition, which a child may do.
        WATCH.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(child));
        });
        COUNT.load(Relaxed)
    }
}

#[cfg(any(not(unix), miri))]
mod fork {
    pub(super) fn count() -> u32 {
        std::process::id()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, mpsc};
    use loom::thread;

    struct Slot {
        rows: [UnsafeCell<u32>; 2],
        left: Countdown,
    }

    /// free → filling → filled → (copied) → free, three times over one slot and two workers: the receiver
    /// reads rows that it did not write, and a writer writes rows that the receiver has read.
    fn hand_over() {
        loom::model(|| {
            let slot =
                Arc::new(Slot { rows: [UnsafeCell::new(0), UnsafeCell::new(0)], left: Countdown::new() });
            let (free_tx, free_rx) = mpsc::channel::<Arc<Slot>>();
            free_tx.send(slot).unwrap();
            for round in 1..=2u32 {
                let slot = free_rx.recv().unwrap();
                slot.left.start(2);
                let (filled_tx, filled_rx) = mpsc::channel::<Arc<Slot>>();
                let other = {
                    let (slot, filled) = (slot.clone(), filled_tx.clone());
                    thread::spawn(move || fill(slot, 0, round, &filled))
                };
                fill(slot, 1, round, &filled_tx);
                let filled = filled_rx.recv().unwrap();
                for (k, row) in filled.rows.iter().enumerate() {
                    // SAFETY: the countdown reached zero, so both writers are done; loom checks just that.
                    row.with(|p| assert_eq!(unsafe { *p }, round * 10 + k as u32));
                }
                other.join().unwrap();
                free_tx.send(filled).unwrap();
            }
        });
    }

    fn fill(slot: Arc<Slot>, row: usize, round: u32, filled: &mpsc::Sender<Arc<Slot>>) {
        // SAFETY: each worker has a row of its own; loom checks it.
        slot.rows[row].with_mut(|p| unsafe { *p = round * 10 + row as u32 });
        if slot.left.arrive(1) {
            filled.send(slot).unwrap();
        }
    }

    #[test]
    #[cfg(not(warpfeed_seeded_bug))]
    fn rows_are_complete_when_the_batch_is_handed_over() {
        hand_over();
    }

    #[test]
    #[cfg(warpfeed_seeded_bug)]
    #[should_panic(expected = "Causality violation")]
    fn loom_sees_the_planted_relaxed_countdown() {
        hand_over();
    }
}
