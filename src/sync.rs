//! What threads share: the one atomic of the pipeline, behind a shim that [loom](https://docs.rs/loom) can
//! replace; a lock that a panic elsewhere does not close; and the process that threads belong to.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
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
        self.arrive_as(rows, Ordering::AcqRel)
    }

    /// With an ordering of the caller's, for the proof that loom sees a wrong one.
    fn arrive_as(&self, rows: usize, ordering: Ordering) -> bool {
        self.0.fetch_sub(rows, ordering) == rows
    }
}

/// Whether a filled batch waits for a device slot, and when it is worth waking the copier for a free one: waking a
/// thread for every small batch would cost more than the batch. It is when half of the slots are free (with three
/// or fewer: when one is), or one is and the consumer is blocked.
///
/// Three parties look at each other's words, each after a fence behind its own: the copier says that it starves,
/// then counts the slots and goes to sleep; who gives a slot back sends it, then looks whether the copier starves; the
/// consumer says that it is blocked, then looks too. In whatever order, the last of them sees the words of the others.
#[derive(Debug)]
pub(crate) struct Hunger {
    /// What the copier starves under, or 0.
    version: AtomicU64,
    blocked: AtomicBool,
}

impl Hunger {
    pub(crate) fn new() -> Self {
        Self { version: AtomicU64::new(0), blocked: AtomicBool::new(false) }
    }

    /// The copier's word: it starves under `version`, or (0) does not.
    pub(crate) fn starve(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// Whether the copier starves under `version`.
    pub(crate) fn is_starving(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }

    /// The consumer's word.
    pub(crate) fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    /// For the copier, after it has said that it starves: whether to go on all the same. `free` counts the free slots.
    pub(crate) fn is_fed(&self, free: impl Fn() -> usize, slots: usize) -> bool {
        fence(Ordering::SeqCst);
        self.is_worth_it(free(), slots)
    }

    /// For whoever has given a slot back, or is blocked: whether the copier is to be woken.
    pub(crate) fn calls(&self, free: impl Fn() -> usize, slots: usize) -> bool {
        fence(Ordering::SeqCst);
        self.version.load(Ordering::Relaxed) != 0 && self.is_worth_it(free(), slots)
    }

    fn is_worth_it(&self, free: usize, slots: usize) -> bool {
        enough(free, slots) || (free > 0 && self.blocked.load(Ordering::Relaxed))
    }
}

/// Rings for a thread that waits for messages: one ring at a time is on its way. What was written before a
/// [`ring`](Bell::ring) is seen after the [`answer`](Bell::answer) to it, or to the one that was on its way.
#[derive(Debug)]
pub(crate) struct Bell(AtomicBool);

impl Bell {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether the caller is to send the message: none is on its way.
    #[must_use]
    pub(crate) fn ring(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// The message has arrived. Whoever answers looks around after this.
    pub(crate) fn answer(&self) {
        self.answer_as(Ordering::AcqRel);
    }

    /// A swap and not a store: it reads the ring that was too late to send a message, and so sees what came before it.
    fn answer_as(&self, ordering: Ordering) {
        self.0.swap(false, ordering);
    }
}

/// Whether so many free slots are worth waking a thread for. With three or fewer, each is.
pub(crate) fn enough(free: usize, slots: usize) -> bool {
    free > 0 && (slots <= 3 || 2 * free >= slots)
}

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

    /// free → filling → filled → (copied) → free, twice over one slot and two workers: the receiver reads rows that
    /// it did not write, and a writer writes rows that the receiver has read.
    fn hand_over(ordering: Ordering) {
        loom::model(move || {
            let slot = Arc::new(Slot { rows: Default::default(), left: Countdown::new() });
            let (free_tx, free_rx) = mpsc::channel::<Arc<Slot>>();
            free_tx.send(slot).unwrap();
            for round in 1..=2u32 {
                let slot = free_rx.recv().unwrap();
                slot.left.start(2);
                let (filled_tx, filled_rx) = mpsc::channel::<Arc<Slot>>();
                let other = {
                    let (slot, filled) = (slot.clone(), filled_tx.clone());
                    thread::spawn(move || fill(slot, 0, round, &filled, ordering))
                };
                fill(slot, 1, round, &filled_tx, ordering);
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

    fn fill(slot: Arc<Slot>, row: usize, round: u32, filled: &mpsc::Sender<Arc<Slot>>, ordering: Ordering) {
        // SAFETY: each worker has a row of its own; loom checks it.
        slot.rows[row].with_mut(|p| unsafe { *p = round * 10 + row as u32 });
        if slot.left.arrive_as(1, ordering) {
            filled.send(slot).unwrap();
        }
    }

    #[test]
    fn rows_are_complete_when_the_batch_is_handed_over() {
        hand_over(Ordering::AcqRel);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_sees_a_relaxed_countdown() {
        hand_over(Ordering::Relaxed);
    }

    /// One slot of eight is given back while the copier finds none and the consumer blocks: whatever the order, the
    /// copier gets it. Asleep for ever, it is a deadlock, which loom reports.
    fn feed(consumer_looks: bool) {
        loom::model(move || {
            const SLOTS: usize = 8;
            let hunger = Arc::new(Hunger::new());
            let free = Arc::new(AtomicUsize::new(0));
            let (wake, woken) = mpsc::channel::<()>();
            let giver = {
                let (hunger, free, wake) = (hunger.clone(), free.clone(), wake.clone());
                thread::spawn(move || {
                    free.fetch_add(1, Ordering::AcqRel);
                    if hunger.calls(|| free.load(Ordering::Acquire), SLOTS) {
                        wake.send(()).unwrap();
                    }
                })
            };
            let consumer = {
                let (hunger, free) = (hunger.clone(), free.clone());
                thread::spawn(move || {
                    hunger.block(true);
                    if consumer_looks && hunger.calls(|| free.load(Ordering::Acquire), SLOTS) {
                        wake.send(()).unwrap();
                    }
                })
            };
            // The copier.
            while free.load(Ordering::Acquire) == 0 {
                hunger.starve(1);
                if !hunger.is_fed(|| free.load(Ordering::Acquire), SLOTS) {
                    woken.recv().unwrap();
                }
                hunger.starve(0);
            }
            giver.join().unwrap();
            consumer.join().unwrap();
        });
    }

    #[test]
    fn a_slot_that_is_given_back_reaches_a_blocked_consumer() {
        feed(true);
    }

    /// A ring is on its way when something is written and rung for again: a message follows, or the answer sees it.
    fn ring_twice(ordering: Ordering) {
        loom::model(move || {
            let bell = Arc::new(Bell::new());
            let written = Arc::new(AtomicUsize::new(0));
            assert!(bell.ring());
            let writer = {
                let (bell, written) = (bell.clone(), written.clone());
                thread::spawn(move || {
                    written.store(1, Ordering::Relaxed);
                    bell.ring()
                })
            };
            bell.answer_as(ordering);
            let seen = written.load(Ordering::Relaxed);
            let follows = writer.join().unwrap();
            assert!(follows || seen == 1, "nobody looks again");
        });
    }

    #[test]
    fn what_is_rung_for_is_seen() {
        ring_twice(Ordering::AcqRel);
    }

    #[test]
    #[should_panic(expected = "nobody looks again")]
    fn loom_sees_an_answer_that_does_not_acquire() {
        ring_twice(Ordering::Release);
    }

    #[test]
    #[should_panic]
    fn loom_sees_a_consumer_that_does_not_look() {
        feed(false);
    }
}
