//! Puts filled batches into delivery order and on their way to the device.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::Shared;
use super::control::Seen;
use crate::device::Stream;
use crate::error::{Error, Stage};
use crate::pool::{Claim, DeviceSlot, EventPool, FilledSlot, FreeSlot, Item, Ticket, upload};
use crate::sync::{enough, lock};

/// What the consumer receives, in delivery order.
pub(crate) enum Delivery {
    Batch(DeviceSlot),
    End(Ticket),
    Failed(Ticket, Error),
}

/// A claim whose one row is to be tried again later.
pub(crate) struct Retry {
    pub(crate) due: Instant,
    pub(crate) claim: Claim,
    pub(crate) attempt: u32,
}

/// How often the gate of a slot is looked at.
const GATE: Duration = Duration::from_micros(200);

pub(crate) struct Copier {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Stream,
    pub(crate) events: EventPool,
    pub(crate) items: Receiver<Item>,
    pub(crate) free_device: Receiver<DeviceSlot>,
    pub(crate) free_host: Sender<FreeSlot>,
    pub(crate) ready: Sender<Delivery>,
    pub(crate) state: Order,
    /// A free slot whose gate has to pass first, as a copy of pageable memory would wait for it in the driver, where
    /// nothing could end the wait.
    pub(crate) gated: Option<DeviceSlot>,
}

/// What has arrived and is not delivered yet.
#[derive(Default)]
pub(crate) struct Order {
    generation: u64,
    epoch: u64,
    /// Items of this epoch that were delivered; in order, the next number.
    done: u64,
    pending: Vec<Item>,
    seen: Seen,
    starved_since: Option<Instant>,
}

impl Order {
    pub(crate) fn new(epoch: u64, items: usize) -> Self {
        Self { epoch, pending: Vec::with_capacity(items), ..Self::default() }
    }
}

fn ticket(item: &Item) -> Ticket {
    match item {
        Item::Batch(slot) => slot.manifest().ticket,
        Item::End(ticket) | Item::Failed(ticket, _) => *ticket,
        Item::Wake => Ticket::default(),
    }
}

impl Copier {
    /// The thread.
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        while !shared.control.is_closed() {
            let slots = self.free_device.capacity().unwrap_or(0);
            if self.poll()
                && self.gated.is_none()
                && shared.life.hunger.is_fed(|| self.free_device.len(), slots)
            {
                continue;
            }
            // The end may have been announced by the wake-up that `poll` has just taken: no other follows.
            if shared.control.is_closed() {
                return;
            }
            // Who gives a slot back, or changes a wish, wakes this thread when it is worth it.
            let pause = if self.gated.is_some() { GATE } else { Duration::from_secs(3600) };
            let pause = self.next_retry().unwrap_or(pause).min(pause);
            if let Ok(item) = self.items.recv_timeout(pause) {
                self.take(item);
            }
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Wake => self.shared.control.copier().taken(),
            item => self.state.pending.push(item),
        }
    }

    /// Takes what has arrived, and delivers what can be. Whether a batch waits for a device slot.
    pub(crate) fn poll(&mut self) -> bool {
        while let Ok(item) = self.items.try_recv() {
            self.take(item);
        }
        self.pump()
    }

    /// Starts what is due; the time until the next retry.
    pub(crate) fn next_retry(&mut self) -> Option<Duration> {
        let shared = &self.shared;
        let mut retries = lock(&shared.retries);
        if retries.is_empty() {
            return None;
        }
        let now = Instant::now();
        let mut k = 0;
        while k < retries.len() {
            let Retry { due, claim, .. } = &retries[k];
            // What nobody wants any more gives its slot back at once, however long its pause.
            if shared.control.is_stale(&claim.ticket()) {
                drop(retries.swap_remove(k));
            } else if *due <= now {
                let Retry { claim, attempt, .. } = retries.swap_remove(k);
                drop(retries);
                // Without workers this runs the sample, which may come back here.
                shared.spawn(claim, attempt);
                retries = lock(&shared.retries);
                k = 0;
            } else {
                k += 1;
            }
        }
        retries.iter().map(|r| r.due.saturating_duration_since(now)).min()
    }

    /// Delivers all that can be. `true`: the next item is a batch and no device slot is free.
    fn pump(&mut self) -> bool {
        loop {
            self.drop_stale();
            let Some(k) = self.next() else { return self.starved(false) };
            if matches!(self.state.pending[k], Item::Batch(_)) {
                let Some(slot) = self.free_slot(k) else {
                    return self.starved(true);
                };
                self.starved(false);
                self.state.done += 1;
                match self.state.pending.swap_remove(k) {
                    Item::Batch(filled) => self.upload(filled, slot),
                    other => self.state.pending.push(other),
                }
            } else {
                self.state.done += 1;
                let delivery = match self.state.pending.swap_remove(k) {
                    Item::End(ticket) => {
                        (self.state.epoch, self.state.done) = (ticket.epoch + 1, 0);
                        Delivery::End(ticket)
                    }
                    Item::Failed(ticket, error) => Delivery::Failed(ticket, error),
                    // Neither gets here: one is handled above, the other is never kept.
                    Item::Batch(_) | Item::Wake => continue,
                };
                self.deliver(delivery);
            }
        }
    }

    /// A device slot for item `k`, if there is one to copy to.
    fn free_slot(&mut self, k: usize) -> Option<DeviceSlot> {
        let slot = self.gated.take().or_else(|| self.free_device.try_recv().ok())?;
        let blocks = matches!(&self.state.pending[k], Item::Batch(filled) if filled.copy_blocks());
        // An error is met again, and told, by the upload.
        let waits = blocks && matches!(slot.gate_has_passed(), Ok(false));
        self.shared.copier_at_gate.store(waits, Ordering::Relaxed);
        if waits {
            self.gated = Some(slot);
            return None;
        }
        Some(slot)
    }

    fn upload(&mut self, mut filled: FilledSlot, slot: DeviceSlot) {
        if self.shared.compact && !filled.manifest().faults.is_empty() {
            filled.compact();
        }
        let ticket = filled.manifest().ticket;
        match upload(filled, slot, &self.stream, &mut self.events) {
            Ok((host, device)) => {
                self.recycle(host);
                self.deliver(Delivery::Batch(device));
            }
            Err(error) => {
                self.shared.life.lost.fetch_add(1, Ordering::AcqRel);
                self.shared.life.lost_on_host.fetch_add(1, Ordering::AcqRel);
                self.deliver(Delivery::Failed(ticket, error));
            }
        }
    }

    /// The channels have room for all slots and markers, so that a send never waits; a closed one means that the
    /// loader is gone, and what comes back is freed behind its gate.
    fn recycle(&self, slot: FreeSlot) {
        drop(self.free_host.send(slot));
        fence(Ordering::SeqCst);
        if self.shared.feeder_parks.load(Ordering::Relaxed)
            && enough(self.free_host.len(), self.free_host.capacity().unwrap_or(0))
        {
            self.shared.control.wake_feeder();
        }
    }

    fn deliver(&self, delivery: Delivery) {
        drop(self.ready.send(delivery));
    }

    /// The next item in delivery order, if it has arrived.
    fn next(&self) -> Option<usize> {
        let Order { pending, epoch, done, .. } = &self.state;
        let here = |item: &Item| ticket(item).epoch == *epoch;
        let in_turn = |item: &Item| here(item) && ticket(item).seq == *done;
        // As ready: any batch of this epoch; its end, and an error, only when all before it has been delivered.
        let any = |item: &Item| here(item) && matches!(item, Item::Batch(_));
        let as_ready = if self.shared.in_order { None } else { pending.iter().position(any) };
        as_ready.or_else(|| pending.iter().position(in_turn))
    }

    /// Follows the consumer's wishes, and gives back what will not be delivered.
    fn drop_stale(&mut self) {
        let state = &mut self.state;
        let wishes = self.shared.control.refresh(&mut state.seen);
        if wishes.generation != state.generation {
            (state.generation, state.epoch, state.done) = (wishes.generation, wishes.start.epoch, 0);
        }
        if state.epoch < wishes.floor {
            (state.epoch, state.done) = (wishes.floor, 0);
        }
        let mut k = 0;
        while k < self.state.pending.len() {
            let t = ticket(&self.state.pending[k]);
            if t.generation == wishes.generation && t.epoch >= wishes.floor {
                k += 1;
            } else if let Item::Batch(slot) = self.state.pending.swap_remove(k) {
                self.recycle(slot.discard());
            }
        }
    }

    /// Notes whether a filled batch waits for a device slot, for the consumer to see and for the statistics.
    fn starved(&mut self, starved: bool) -> bool {
        match (starved, self.state.starved_since) {
            (true, None) => self.state.starved_since = Some(Instant::now()),
            (false, Some(since)) => {
                self.shared.metrics.spend(Stage::DeviceSlot, since.elapsed());
                self.state.starved_since = None;
            }
            _ => {}
        }
        let version = if starved { self.shared.control.version() } else { 0 };
        self.shared.life.hunger.starve(version);
        starved
    }
}
