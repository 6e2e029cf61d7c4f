//! A stream's thread: takes the stream's work in order, as early as possible or (lazy) as late as possible.

use crate::clock::Clock;
use crate::config;
use crate::error::{Code, Result};
use crate::fence::Fence;
use crate::work::Action;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The sticky error of a context; 0 while there is none.
#[derive(Default)]
pub struct Poison(AtomicI32);

impl Poison {
    pub fn set(&self, code: Code) {
        // The first error stays: later ones are its consequences.
        let _ = self.0.compare_exchange(0, code.0, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub fn check(&self) -> Result {
        match self.0.load(Ordering::SeqCst) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }
}

struct Op {
    place: u64,
    number: u64,
    after: Vec<Arc<Fence>>,
    action: Action,
    done: Arc<Fence>,
    given: Instant,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    given: u64,
    wanted: u64,
    closed: bool,
}

pub struct Lane {
    device: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
    poison: Arc<Poison>,
}

impl Lane {
    /// Starts the thread of stream number `id`.
    pub fn start(id: usize, device: usize, poison: Arc<Poison>) -> Result<Arc<Lane>> {
        let lane = Arc::new(Lane { device, queue: Mutex::default(), wake: Condvar::new(), poison });
        let own = lane.clone();
        let thread = std::thread::Builder::new().name(format!("cusim-{id}"));
        thread.spawn(move || own.run()).map_err(|_| Code::OUT_OF_MEMORY)?;
        Ok(lane)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work after all that was given before, and after the fences in `after`.
    pub fn give(
        self: &Arc<Self>,
        number: u64,
        after: Vec<Arc<Fence>>,
        action: Action,
        clock: Clock,
    ) -> Arc<Fence> {
        let mut queue = self.queue();
        queue.given += 1;
        let place = queue.given;
        let done = Fence::new(self, place, clock);
        queue.ops.push_back(Op { place, number, after, action, done: done.clone(), given: Instant::now() });
        drop(queue);
        self.wake.notify_one();
        done
    }

    /// Someone needs the work up to `place`.
    pub fn demand(&self, place: u64) {
        let mut queue = self.queue();
        if queue.wanted < place {
            queue.wanted = place;
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// What was given is still done; then the thread ends.
    pub fn close(&self) {
        self.queue().closed = true;
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Op> {
        let mut queue = self.queue();
        loop {
            let Some(front) = queue.ops.front() else {
                if queue.closed {
                    return None;
                }
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (lazy, limit) = {
                let config = config::read();
                (config.lazy, Duration::from_millis(config.lazy_ms))
            };
            let age = front.given.elapsed();
            if !lazy || front.place <= queue.wanted || queue.closed || age >= limit {
                return queue.ops.pop_front();
            }
            let (again, _) =
                self.wake.wait_timeout(queue, limit - age).unwrap_or_else(PoisonError::into_inner);
            queue = again;
        }
    }

    fn run(&self) {
        block_signals();
        while let Some(op) = self.next() {
            for fence in &op.after {
                fence.wait();
            }
            let config = config::of(self.device);
            let delay = delay(config.seed, config.delay_us, op.number);
            if !delay.is_zero() {
                std::thread::sleep(delay);
            }
            op.action.perform(&op.done.clock, &self.poison);
            op.done.fire();
        }
    }
}

/// The delay before operation `number`, of at most `most` µs: from the seed alone, so that a run can be repeated.
fn delay(seed: u64, most: u64, number: u64) -> Duration {
    if most == 0 {
        return Duration::ZERO;
    }
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)); // splitmix64
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Duration::from_micros((x ^ (x >> 31)) % (most + 1))
}

/// The program's signals are for its own threads. Faults still arrive: they belong to the thread that makes them.
fn block_signals() {
    // SAFETY: `set` is initialised by sigfillset before it is read; it lives on this stack.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::delay;

    #[test]
    fn delays_follow_from_the_seed_and_stay_below_the_most() {
        let all = |seed| (0..1000).map(|number| delay(seed, 100, number).as_micros()).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        assert!(all(1).iter().all(|us| *us <= 100));
        assert!(all(1).contains(&0) && all(1).contains(&100));
        assert_eq!(delay(1, 0, 5).as_micros(), 0);
    }
}
