//! Plans batches, and starts filling them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};

use super::Shared;
use super::control::{Seen, Start, Wishes};
use super::plan::Plan;
use super::work::{Group, guard};
use crate::error::{Error, Place, Stage};
use crate::pool::{Claims, FreeSlot, Item, Ticket};
use crate::sampler::Remainder;
use crate::sync::enough;

/// The furthest that a batch may be delivered ahead of the oldest one that was not: what a state's map holds.
pub(crate) const WINDOW: u64 = 64;

/// How long a task should take where samples are cheap, in nanoseconds: much longer than handing it over does.
const TASK: u64 = 100_000;

/// Below this cost of a batch, in nanoseconds, several are filled by one task.
const GROUPED: u64 = 20_000;

/// Below this cost of a batch, in nanoseconds, the feeder fills it itself: less than handing it to a worker takes.
const TRIVIAL: u64 = 4_000;

pub(crate) struct Feeder {
    shared: Arc<Shared>,
    free: Receiver<FreeSlot>,
    outlet: Sender<Item>,
    seen: Seen,
    generation: u64,
    seq: u64,
    epoch: u64,
    plan: Option<Plan>,
    /// The end of this epoch has been announced, and it had nothing: wait for the consumer to pass it.
    stopped_after: Option<u64>,
    /// A free slot that is still being copied from.
    waiting: Option<FreeSlot>,
}

/// What a step came to.
pub(crate) enum Step {
    /// A batch was begun: the claims on its rows, for somebody to run.
    Batch(Claims),
    /// An end or an error was sent.
    Sent,
    /// Nothing can be done before the consumer's wishes change.
    Idle,
    /// No host slot is free yet; how long that was waited for.
    NoSlot(Duration),
}

impl Feeder {
    pub(crate) fn new(shared: Arc<Shared>, free: Receiver<FreeSlot>, outlet: Sender<Item>) -> Self {
        let wishes = shared.control.wishes();
        Self {
            shared,
            free,
            outlet,
            seen: Seen::default(),
            generation: wishes.generation,
            seq: 0,
            epoch: wishes.start.epoch,
            plan: None,
            stopped_after: None,
            waiting: None,
        }
    }

    /// The thread.
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        while !shared.control.is_closed() {
            // User code may run in here: no lock is held.
            let wishes = self.wishes();
            match self.look(&wishes) {
                Look::Wait => shared.control.wait(&wishes),
                Look::End => self.end_epoch(),
                Look::Feed => {
                    let start = Instant::now();
                    if let Some(slot) = self.free_slot() {
                        shared.metrics.spend(Stage::HostSlot, start.elapsed());
                        self.feed_group(slot);
                    }
                }
            }
        }
    }

    fn wishes(&mut self) -> Wishes {
        if self.shared.in_order {
            self.shared.control.refresh(&mut self.seen)
        } else {
            self.shared.control.wishes()
        }
    }

    /// One step in the caller's thread, which fills the batch itself.
    pub(crate) fn step(&mut self) -> Step {
        let wishes = self.wishes();
        match self.look(&wishes) {
            Look::Wait => Step::Idle,
            Look::End => {
                self.end_epoch();
                Step::Sent
            }
            Look::Feed => {
                let Some(mut slot) = self.waiting.take().or_else(|| self.free.try_recv().ok()) else {
                    return Step::NoSlot(Duration::ZERO);
                };
                let start = Instant::now();
                match slot.wait(Duration::from_millis(5)) {
                    Ok(true) => self.feed(slot, false),
                    Ok(false) => {
                        self.waiting = Some(slot);
                        Step::NoSlot(start.elapsed())
                    }
                    Err(error) => {
                        self.lose(slot);
                        self.fail(error)
                    }
                }
            }
        }
    }

    /// What is to be done, under the consumer's wishes.
    fn look(&mut self, wishes: &Wishes) -> Look {
        if self.generation != wishes.generation {
            self.generation = wishes.generation;
            self.begin(wishes.start);
        } else if self.epoch < wishes.floor {
            self.begin(Start { epoch: wishes.floor, ..Start::default() });
        }
        if self.epoch >= self.shared.epochs || self.stopped_after.is_some_and(|e| wishes.floor <= e) {
            return Look::Wait;
        }
        if self.plan.is_none() {
            let start = if wishes.start.epoch == self.epoch {
                wishes.start
            } else {
                Start { epoch: self.epoch, ..Start::default() }
            };
            if self.epoch > wishes.floor && !self.shared.work.reopens() {
                return Look::Wait;
            }
            self.shared.feeder_waits(Some(Stage::Sample));
            let plan = Plan::new(&self.shared, start);
            self.shared.feeder_waits(None);
            match plan {
                Ok(plan) => self.plan = Some(plan),
                Err(error) => {
                    self.fail(error);
                    return Look::Wait;
                }
            }
        }
        let Some(plan) = &mut self.plan else { return Look::Wait };
        if plan.has_more(&self.shared) {
            let low = if self.epoch == wishes.floor { wishes.low } else { 0 };
            return if !self.shared.in_order && plan.start.number + plan.at >= low + WINDOW {
                Look::Wait
            } else {
                Look::Feed
            };
        }
        // The look-ahead crosses one boundary: a second end waits until the first has been taken.
        if self.epoch > wishes.floor { Look::Wait } else { Look::End }
    }

    fn begin(&mut self, start: Start) {
        self.epoch = start.epoch;
        self.seq = 0;
        self.plan = None;
        self.stopped_after = None;
    }

    fn end_epoch(&mut self) {
        let empty = self.plan.as_ref().is_none_or(|p| p.sent == 0);
        let ticket = self.ticket(0, 0, 0, true);
        // The channel has room for every slot and marker; a closed one means that the loader ends.
        drop(self.outlet.send(Item::End(ticket)));
        if empty {
            self.stopped_after = Some(self.epoch);
        }
        self.epoch += 1;
        self.seq = 0;
        self.plan = None;
    }

    /// Sends an error in the place of a batch, and stops until the next restart.
    fn fail(&mut self, error: Error) -> Step {
        let ticket = self.ticket(0, 0, 0, false);
        drop(self.outlet.send(Item::Failed(ticket, error)));
        self.stopped_after = Some(u64::MAX);
        Step::Sent
    }

    fn ticket(&mut self, number: u64, first: u64, position: u64, last: bool) -> Ticket {
        let ticket = Ticket {
            generation: self.generation,
            seq: self.seq,
            epoch: self.epoch,
            number,
            first,
            position,
            last,
        };
        self.seq += 1;
        ticket
    }

    /// Waits for a host slot that is free and no longer copied from; `None` where something else comes first.
    fn free_slot(&mut self) -> Option<FreeSlot> {
        let at_hand =
            self.waiting.take().or_else(|| if self.is_cheap() { None } else { self.free.try_recv().ok() });
        let mut slot = match at_hand {
            Some(slot) => slot,
            None if self.park() => return None,
            None => select! {
                recv(self.free) -> slot => slot.ok()?,
                recv(self.shared.control.feeder_woken()) -> _ => return None,
            },
        };
        self.shared.feeder_waits(Some(Stage::Copy));
        let waited = slot.wait(Duration::from_millis(20));
        self.shared.feeder_waits(None);
        match waited {
            Ok(true) => Some(slot),
            Ok(false) => {
                self.waiting = Some(slot);
                None
            }
            Err(error) => {
                self.lose(slot);
                self.fail(error);
                None
            }
        }
    }

    /// A slot whose copy can't be seen to end: its memory is leaked.
    fn lose(&self, slot: FreeSlot) {
        drop(slot);
        self.shared.life.lost_on_host.fetch_add(1, Ordering::AcqRel);
    }

    /// Where batches are cheap, waits until half of the host slots are free, so that they are filled together: waking a
    /// thread for each would cost more than the batch. `true` where something may have changed meanwhile.
    fn park(&self) -> bool {
        let shared = &self.shared;
        let enough = || enough(self.free.len(), self.free.capacity().unwrap_or(0));
        if !self.is_cheap() || !self.free.is_empty() {
            return false;
        }
        shared.feeder_parks.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut parked = false;
        if !enough() {
            // The timeout is for slots that were lost to an error of the device.
            parked = shared.control.feeder_woken().recv_timeout(Duration::from_millis(20)).is_ok();
        }
        shared.feeder_parks.store(false, Ordering::Relaxed);
        parked
    }

    /// Whether a batch takes less time than waking a thread does.
    fn is_cheap(&self) -> bool {
        (1..GROUPED).contains(&self.batch_cost())
    }

    /// What filling a batch costs, in nanoseconds; 0 before the first.
    fn batch_cost(&self) -> u64 {
        self.shared.cost.load(Relaxed).saturating_mul(self.shared.batch_size as u64)
    }

    /// Starts a batch in `slot`; where batches are cheap, as many as there are free slots, in one task.
    fn feed_group(&mut self, slot: FreeSlot) {
        let shared = self.shared.clone();
        if !self.is_cheap() {
            if let Step::Batch(claims) = self.feed(slot, false) {
                claims.for_each(|claim| shared.spawn(claim, 0));
            }
            return;
        }
        let mut group = Group::default();
        let mut next = Some(slot);
        let trivial = shared.feeder_may_fill && self.batch_cost() < TRIVIAL;
        let size = if trivial { group.len() } else { (group.len() / shared.workers.max(1)).max(1) };
        for (done, place) in group[..size].iter_mut().enumerate() {
            let Some(slot) = next.take() else { break };
            if let Step::Batch(mut claims) = self.feed(slot, true) {
                *place = claims.next();
                if trivial {
                    *place = place.take().map(|claim| shared.work.run(&shared, claim, 0, shared.workers));
                }
                claims.for_each(|claim| shared.spawn(claim, 0));
            }
            let wishes = self.wishes();
            if done + 1 < size && matches!(self.look(&wishes), Look::Feed) {
                next = self.waiting.take().or_else(|| self.free.try_recv().ok());
                next = match next.map(|mut slot| (slot.wait(Duration::ZERO), slot)) {
                    Some((Ok(true), slot)) => Some(slot),
                    // Not free yet, or in trouble: the next round waits for it.
                    Some((_, slot)) => {
                        self.waiting = Some(slot);
                        None
                    }
                    None => None,
                };
            }
        }
        if trivial {
            // All at once: one wake-up of the copier.
            drop(group);
        } else {
            shared.spawn_group(group);
        }
    }

    /// Starts the next batch in `slot`: the claims on its rows, in one piece where `whole`.
    fn feed(&mut self, slot: FreeSlot, whole: bool) -> Step {
        let begin = Instant::now();
        let shared = self.shared.clone();
        let Some(plan) = &mut self.plan else { return Step::Idle };
        let Some(number) = plan.next(&shared) else { return Step::Idle };
        let offset = number - plan.start.number;
        let first = offset * shared.batch_size as u64;
        let (cursor, start) = (plan.cursor, plan.start);
        let (len, last) = match cursor {
            Some(cursor) => {
                let len = (cursor.samples() - first).min(shared.batch_size as u64) as usize;
                (len, !plan.has_more(&shared))
            }
            None => (shared.batch_size, false),
        };
        plan.sent += 1;
        let position = match cursor {
            Some(cursor) => cursor.position(first),
            None => start.position + first * shared.world + shared.rank,
        };
        let ticket = self.ticket(number, first, position, last);
        let mut filling = match slot.fill(ticket, len) {
            Ok(filling) => filling,
            Err(slot) => {
                // Unreachable: the slot was waited for. Keep it, and go on.
                self.waiting = Some(slot);
                return Step::NoSlot(Duration::ZERO);
            }
        };
        let number_of_slot = filling.number();
        let manifest = filling.manifest_mut();
        match cursor {
            Some(cursor) => {
                let indices = &mut manifest.rows.indices[..len];
                self.shared.feeder_waits(Some(Stage::Sample));
                let planned = guard(|| {
                    cursor.fill(&*shared.sampler, self.epoch, first, indices);
                    shared.work.hint(indices);
                    Ok(())
                });
                self.shared.feeder_waits(None);
                if let Err(error) = planned {
                    // The batch does not exist: its number of dispatch goes to the error.
                    self.seq -= 1;
                    self.waiting = Some(filling.cancel());
                    let (epoch, batch, stage) = (Some(self.epoch), Some(number), Some(Stage::Sample));
                    return self.fail(error.at(Place { epoch, batch, stage, ..Place::default() }));
                }
                if len > 0 && cursor.is_padding(first + len as u64 - 1) {
                    manifest.padding = Some(len - 1);
                }
            }
            None => {
                self.shared.feeder_waits(Some(Stage::Sample));
                let (got, more) = self.pull(number_of_slot, position, &mut manifest.rows.indices);
                self.shared.feeder_waits(None);
                manifest.len = got;
                if let (Some(plan), false) = (&mut self.plan, more) {
                    plan.ended = true;
                    if got == 0 || (got < len && shared.drop_last) {
                        // The batch does not exist: its number of dispatch goes to the end of the epoch.
                        plan.sent -= 1;
                        self.seq -= 1;
                        self.waiting = Some(filling.cancel());
                        return Step::Sent;
                    }
                    filling.zero_tail();
                }
            }
        }
        let len = filling.manifest_mut().len;
        let run = if whole { len } else { self.run_length(len) };
        let claims = filling.split(run, self.outlet.clone());
        shared.metrics.spend(Stage::Sample, begin.elapsed());
        Step::Batch(claims)
    }

    /// Rows a task: one where samples are dear, many where they are cheap.
    fn run_length(&self, len: usize) -> usize {
        match self.shared.cost.load(Relaxed) {
            // Without workers the caller looks at its timeout after each run.
            0 if self.shared.workers == 0 => 1,
            0 => len.div_ceil(8 * self.shared.workers.max(1)),
            cost => usize::try_from(TASK / cost).unwrap_or(1).clamp(1, len.max(1)),
        }
    }

    /// Pulls this rank's next records of a sequence; how many came, and whether there may be more.
    fn pull(&self, slot: usize, position: u64, indices: &mut [u64]) -> (usize, bool) {
        let shared = &self.shared;
        let own = |row: usize| position + row as u64 * shared.world;
        let wanted = indices.len();
        for (row, index) in indices.iter_mut().enumerate() {
            *index = own(row);
            for other in 0..shared.world {
                if shared.control.is_closed() {
                    return (row, false);
                }
                if other == shared.rank {
                    // An error of opening or pulling takes the row; `run` reports it there.
                    if !shared.work.pull(slot, row).unwrap_or(false) {
                        return (row, false);
                    }
                } else if !shared.work.skip() {
                    // The round is not whole: dropped, or kept by the ranks that have theirs already.
                    let mine = other > shared.rank && shared.remainder == Remainder::Uneven;
                    return (row + usize::from(mine), false);
                }
            }
        }
        (wanted, true)
    }
}

enum Look {
    Wait,
    End,
    Feed,
}
