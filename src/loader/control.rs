//! What the consumer tells the threads behind it: where to feed from, what is stale, and when to end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::pool::{Item, Ticket};
use crate::sync::{Bell, lock};

/// Where feeding (re)starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) epoch: u64,
    /// Global position within the epoch.
    pub(crate) position: u64,
    /// Number of the batch there.
    pub(crate) number: u64,
    /// Bit k: batch `number + k` has been delivered already.
    pub(crate) map: u64,
}

/// The consumer's wishes, under one lock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes {
    pub(crate) generation: u64,
    pub(crate) start: Start,
    /// The epoch that the consumer is in or enters next; earlier ones are stale.
    pub(crate) floor: u64,
    /// The oldest batch number of the floor's epoch that was not delivered.
    pub(crate) low: u64,
    /// Grows with every change.
    ticks: u64,
}

/// What a thread last saw of the wishes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// 0 before the first look.
    version: u64,
    wishes: Wishes,
}

/// Shared by the consumer, the feeder, the copier and the workers.
#[derive(Debug)]
pub(crate) struct Control {
    wishes: Mutex<Wishes>,
    changed: Condvar,
    // Copies of the wishes that workers read without the lock. Relaxed is enough: a late look only means that
    // a stale sample is still decoded.
    generation: AtomicU64,
    floor: AtomicU64,
    version: AtomicU64,
    closed: AtomicBool,
    feeder: (Sender<()>, Receiver<()>),
    copier: Arc<Waker>,
}

/// Wakes the copier, which waits for items only.
#[derive(Debug)]
pub(crate) struct Waker {
    /// One wake-up at a time is on its way, so that the channel keeps its room for batches.
    bell: Bell,
    outlet: Sender<Item>,
}

impl Waker {
    pub(crate) fn new(outlet: Sender<Item>) -> Self {
        Self { bell: Bell::new(), outlet }
    }

    pub(crate) fn wake(&self) {
        if self.bell.ring() {
            // A closed channel has nobody to wake; it is never full of batches, markers and this.
            let _ = self.outlet.try_send(Item::Wake);
        }
    }

    /// The copier has taken the wake-up, and looks around after this.
    pub(crate) fn taken(&self) {
        self.bell.answer();
    }
}

impl Control {
    pub(crate) fn new(start: Start, copier: Arc<Waker>) -> Self {
        let wishes = Wishes { generation: 0, start, floor: start.epoch, low: start.number, ticks: 0 };
        Self {
            wishes: Mutex::new(wishes),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            floor: AtomicU64::new(start.epoch),
            version: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            feeder: bounded(1),
            copier,
        }
    }

    pub(crate) fn wishes(&self) -> Wishes {
        *lock(&self.wishes)
    }

    /// The wishes, without the lock where `seen` is up to date. Not for [`Wishes::low`], which has no version.
    pub(crate) fn refresh(&self, seen: &mut Seen) -> Wishes {
        let version = self.version();
        if seen.version != version {
            // Read after the version: the wishes are as new as it, or newer.
            *seen = Seen { version, wishes: self.wishes() };
        }
        seen.wishes
    }

    /// Waits until the wishes are no longer what was `seen`.
    pub(crate) fn wait(&self, seen: &Wishes) {
        let mut wishes = lock(&self.wishes);
        while wishes.ticks == seen.ticks && !self.is_closed() {
            wishes = crate::sync::wait(&self.changed, wishes);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether what has this ticket will not be delivered.
    pub(crate) fn is_stale(&self, ticket: &Ticket) -> bool {
        ticket.epoch < self.floor.load(Ordering::Relaxed)
            || ticket.generation != self.generation.load(Ordering::Relaxed)
            || self.closed.load(Ordering::Relaxed)
    }

    /// The generation that the consumer is in; for the consumer itself.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Changes with every wish: what was concluded under another version is void.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Epochs before `floor` are over for the consumer.
    pub(crate) fn leave_for(&self, floor: u64) {
        self.change(|w| {
            w.floor = floor;
            w.low = 0;
        });
    }

    /// Everything in flight is stale: feed from `start`.
    pub(crate) fn restart(&self, start: Start) {
        self.change(|w| {
            (w.generation, w.start) = (w.generation + 1, start);
            (w.floor, w.low) = (start.epoch, start.number);
        });
    }

    /// The oldest batch not delivered is now `low`: more may be begun behind it.
    pub(crate) fn advance(&self, low: u64) {
        let mut wishes = lock(&self.wishes);
        wishes.low = low;
        wishes.ticks += 1;
        drop(wishes);
        self.changed.notify_all();
    }

    /// Everybody ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.change(|_| ());
    }

    fn change(&self, change: impl FnOnce(&mut Wishes)) {
        let mut wishes = lock(&self.wishes);
        change(&mut wishes);
        wishes.ticks += 1;
        self.generation.store(wishes.generation, Ordering::Relaxed);
        self.floor.store(wishes.floor, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        drop(wishes);
        self.changed.notify_all();
        self.wake_feeder();
        self.copier.wake();
    }

    pub(crate) fn wake_feeder(&self) {
        // Full means that a wake-up is on its way already.
        let _ = self.feeder.0.try_send(());
    }

    pub(crate) fn copier(&self) -> &Waker {
        &self.copier
    }

    /// Gives the feeder, where it waits for a channel, a message after each change.
    pub(crate) fn feeder_woken(&self) -> &Receiver<()> {
        &self.feeder.1
    }
}
