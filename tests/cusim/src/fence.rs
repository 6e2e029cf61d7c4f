//! The point at which one piece of work of a stream is done.

use crate::clock::Clock;
use crate::lane::Lane;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

pub struct Fence {
    done: Mutex<Option<Instant>>,
    fired: Condvar,
    lane: Weak<Lane>,
    place: u64,
    /// What is known to be done, once this is.
    pub clock: Clock,
}

impl Fence {
    pub fn new(lane: &Arc<Lane>, place: u64, clock: Clock) -> Arc<Fence> {
        Arc::new(Fence {
            done: Mutex::new(None),
            fired: Condvar::new(),
            lane: Arc::downgrade(lane),
            place,
            clock,
        })
    }

    /// A fence that was never in anybody's way.
    pub fn passed(clock: Clock) -> Arc<Fence> {
        let done = Mutex::new(Some(Instant::now()));
        Arc::new(Fence { done, fired: Condvar::new(), lane: Weak::new(), place: 0, clock })
    }

    pub fn fire(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.fired.notify_all();
    }

    /// When it was passed; `None` as long as it is not.
    pub fn time(&self) -> Option<Instant> {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is passed. Asking is a reason for a lazy stream to get on.
    pub fn query(&self) -> bool {
        let done = self.time().is_some();
        if !done {
            self.demand();
        }
        done
    }

    pub fn wait(&self) {
        self.demand();
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while done.is_none() {
            done = self.fired.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn demand(&self) {
        if let Some(lane) = self.lane.upgrade() {
            lane.demand(self.place);
        }
    }
}
