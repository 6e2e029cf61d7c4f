//! Work that takes a given time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A sleep that ends late by more than this has met a busy machine, and that is not made up for.
const LONGEST_DEBT: Duration = Duration::from_millis(2);

thread_local! {
    /// By how much this thread's waits have ended late, and later ones have not made up for yet.
    static DEBT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `work`, and waits until `time` has passed since the call: by sleeping, or where `spin` is set by using
/// the processor. What a wait ends late is taken off the thread's next ones, so that `n` calls take `n × time` and
/// not `n` inaccuracies of the timer more. Nothing else is made up for: `work` that takes longer takes longer.
pub(crate) fn paced<T>(time: Duration, spin: bool, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let out = work();
    let debt = DEBT.get();
    let paid = debt.min(time);
    let deadline = (begun + (time - paid)).max(Instant::now());
    if spin {
        while Instant::now() < deadline {
            std::hint::spin_loop();
        }
    } else {
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
    }
    DEBT.set((debt - paid + deadline.elapsed()).min(LONGEST_DEBT));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_made_up_for_once() {
        let (time, count) = (Duration::from_micros(100), 200);
        for spin in [false, true] {
            DEBT.set(Duration::ZERO);
            let begun = Instant::now();
            (0..count).for_each(|_| paced(time, spin, || ()));
            // What is still owed has been waited for too much, and no more than that.
            let waited = begun.elapsed();
            assert!(waited >= time * count, "{waited:?} for {count} waits");
        }
    }

    #[test]
    fn late_work_leaves_no_debt() {
        DEBT.set(Duration::ZERO);
        paced(Duration::from_micros(10), true, || std::thread::sleep(Duration::from_millis(5)));
        assert!(DEBT.get() < Duration::from_millis(2), "{:?}", DEBT.get());
    }

    #[test]
    fn a_debt_shortens_the_next_wait() {
        DEBT.set(Duration::from_millis(1));
        let begun = Instant::now();
        // Half of it is paid by a call that takes no time at all.
        paced(Duration::from_micros(500), true, || ());
        let first = begun.elapsed();
        let left = DEBT.get();
        assert!(left >= Duration::from_micros(500) && left < Duration::from_micros(500) + first, "{left:?}");
    }
}
