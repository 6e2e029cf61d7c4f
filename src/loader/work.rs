//! What the workers do: read and decode the rows of a claim, and deal with those that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Shared;
use super::fault::Verdict;
use crate::decode::{Decode, Sample, Samples, decode_block, decode_row};
use crate::error::{Error, ErrorKind, Place, Result, Stage};
use crate::pool::{Claim, Fault, Outcome, Ticket};
use crate::row::Rows;
use crate::source::Source;
use crate::sync::lock;

/// A source and its decoder, with their types erased.
pub(crate) trait Work: Send + Sync {
    fn len(&self) -> Option<u64>;
    fn reopens(&self) -> bool;
    fn describe(&self, index: u64) -> Place;
    fn hint(&self, upcoming: &[u64]);
    /// Starts an epoch of a sequence; `false` where nothing is left of it.
    fn open(&self, epoch: u64) -> Result<bool>;
    /// Takes the next record of a sequence for a row of a host slot; `false` at the end. A record that can't be
    /// had takes its row all the same.
    fn pull(&self, slot: usize, row: usize) -> Result<bool>;
    /// Takes the next record of a sequence and drops it; `false` at the end.
    fn skip(&self) -> bool;
    /// Fills the rows of `claim`. `attempt` is 0, or counts the attempts at its one row.
    /// The claim comes back for its drop to count the rows as done.
    fn run(&self, shared: &Shared, claim: Claim, attempt: u32, worker: usize) -> Claim;
}

/// Batches that are filled by one task.
pub(crate) type Group = [Option<Claim>; 16];

/// What a worker is at, for the message of a timeout. One writer each.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Nanoseconds since the loader's start, plus 1; 0 while idle.
    since: AtomicU64,
    seq: AtomicU64,
    row: AtomicU64,
    epoch: AtomicU64,
    number: AtomicU64,
    index: AtomicU64,
    stage: AtomicU8,
}

const READING: u8 = 1;

impl Status {
    fn begin(&self, ticket: &Ticket) {
        self.seq.store(ticket.seq, Relaxed);
        self.epoch.store(ticket.epoch, Relaxed);
        self.number.store(ticket.number, Relaxed);
    }

    fn row(&self, row: usize, index: u64, now: u64) {
        self.row.store(row as u64, Relaxed);
        self.index.store(index, Relaxed);
        self.stage.store(0, Relaxed);
        self.since.store(now + 1, Relaxed);
    }

    fn end(&self) {
        self.since.store(0, Relaxed);
    }

    fn stage(&self) -> Stage {
        if self.stage.load(Relaxed) == READING { Stage::Read } else { Stage::Decode }
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.since.load(Relaxed) != 0
    }

    /// What sorts by age, since when (nanoseconds), and where; `None` while idle.
    pub(crate) fn look(&self, worker: usize) -> Option<([u64; 3], u64, Place)> {
        let since = self.since.load(Relaxed).checked_sub(1)?;
        let row = self.row.load(Relaxed);
        let place = Place {
            epoch: Some(self.epoch.load(Relaxed)),
            batch: Some(self.number.load(Relaxed)),
            row: Some(row as usize),
            worker: Some(worker),
            stage: Some(self.stage()),
            ..Place::of_index(self.index.load(Relaxed))
        };
        Some(([self.epoch.load(Relaxed), self.seq.load(Relaxed), row], since, place))
    }
}

pub(crate) struct Pair<S: Source, D: Decode<S>> {
    source: S,
    decode: D,
    /// One a worker, and one for the caller or the feeder.
    workers: Vec<Mutex<Scratch<S, D>>>,
    /// A row's record of a sequence, `[host slots][capacity]`; empty for indexed sources.
    pulled: Vec<Vec<Mutex<Pulled<S>>>>,
}

struct Scratch<S: Source, D: Decode<S>> {
    source: S::Scratch,
    decode: D::Scratch,
}

impl<S: Source, D: Decode<S>> Default for Scratch<S, D> {
    fn default() -> Self {
        Self { source: Default::default(), decode: Default::default() }
    }
}

struct Pulled<S: Source> {
    scratch: S::Scratch,
    error: Option<Error>,
}

impl<S: Source, D: Decode<S>> Pair<S, D> {
    pub(crate) fn new(source: S, decode: D, workers: usize, host_slots: usize, capacity: usize) -> Self {
        let pulled = |_| Mutex::new(Pulled { scratch: Default::default(), error: None });
        let slots = if source.len().is_none() { host_slots } else { 0 };
        Self {
            workers: (0..=workers).map(|_| Mutex::default()).collect(),
            pulled: (0..slots).map(|_| (0..capacity).map(pulled).collect()).collect(),
            source,
            decode,
        }
    }

    /// One attempt at one row.
    fn attempt(
        &self,
        seat: &mut Seat<'_>,
        scratch: &mut Scratch<S, D>,
        rows: &mut Rows<'_>,
        k: usize,
        timed: bool,
    ) -> Result<()> {
        let key = [seat.shared.seed, seat.ticket.epoch, rows.index(k)];
        let mut pulled = match self.pulled.get(seat.slot).and_then(|rows_of| rows_of.get(rows.number(k))) {
            Some(cell) => Some(lock(cell)),
            None => None,
        };
        let record = match &mut pulled {
            None => &mut scratch.source,
            Some(pulled) => match pulled.error.take() {
                Some(error) => return Err(error),
                None => &mut pulled.scratch,
            },
        };
        let mut row = rows.row(k);
        let clock = timed.then_some(&mut seat.reading);
        let mut sample = Sample::new(&self.source, record, key, clock, &seat.status.stage);
        // Unwinding: after a panic the row is cleared or written anew, and both scratches are replaced.
        let result = catch_unwind(AssertUnwindSafe(|| {
            decode_row(&self.decode, &mut sample, &mut scratch.decode, &mut row)
        }));
        result.unwrap_or_else(|payload| {
            scratch.decode = D::Scratch::default();
            if pulled.is_none() {
                scratch.source = S::Scratch::default();
            }
            Err(Error::from_panic(payload))
        })
    }
}

impl<S: Source, D: Decode<S>> Pair<S, D> {
    /// All rows of a claim at once; `false` where that can't be, or one of them failed.
    fn attempt_all(&self, seat: &Seat<'_>, scratch: &mut Scratch<S, D>, rows: &mut Rows<'_>) -> bool {
        let key = [seat.shared.seed, seat.ticket.epoch];
        let (indices, mut block) = rows.block();
        let mut samples = Samples::new(&self.source, &mut scratch.source, key, indices);
        // Unwinding: as in `attempt`; the rows are then written one by one.
        let all = || decode_block(&self.decode, &mut samples, &mut scratch.decode, &mut block);
        let done = catch_unwind(AssertUnwindSafe(all));
        if done.is_err() {
            *scratch = Scratch::default();
        }
        let done = done.unwrap_or(false);
        if done {
            rows.set_all_valid();
        }
        done
    }
}

/// What a worker has at hand over the rows of a run.
struct Seat<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    slot: usize,
    worker: usize,
    status: &'a Status,
    /// Rows cost so much that each is timed by itself; else the first stands for all.
    dear: bool,
    now: Instant,
    timed: Duration,
    reading: Duration,
}

impl Seat<'_> {
    fn is_stale(&self) -> bool {
        self.shared.control.is_stale(&self.ticket)
    }

    fn sit(&self, rows: &Rows<'_>, k: usize) {
        self.status.row(rows.number(k), rows.index(k), self.shared.nanos(self.now));
    }
}

/// Above this cost a row is timed by itself, in nanoseconds.
const DEAR: u64 = 5_000;

impl<S: Source, D: Decode<S>> Work for Pair<S, D> {
    fn len(&self) -> Option<u64> {
        self.source.len()
    }

    fn reopens(&self) -> bool {
        self.source.reopens()
    }

    fn describe(&self, index: u64) -> Place {
        // It is asked where something went wrong already: a panic of its own must not hide that.
        guard(|| Ok(self.source.describe(index))).unwrap_or_default()
    }

    fn hint(&self, upcoming: &[u64]) {
        self.source.hint(upcoming);
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        guard(|| self.source.open(epoch))
    }

    fn pull(&self, slot: usize, row: usize) -> Result<bool> {
        let Some(cell) = self.pulled.get(slot).and_then(|rows| rows.get(row)) else {
            return Err(Error::new(ErrorKind::NotResumable, "an indexed source is read by index"));
        };
        let mut pulled = lock(cell);
        pulled.error = None;
        match guard(|| self.source.pull(&mut pulled.scratch)) {
            Ok(more) => Ok(more),
            Err(error) => {
                pulled.error = Some(error);
                Ok(true)
            }
        }
    }

    fn skip(&self) -> bool {
        guard(|| self.source.pull(&mut S::Scratch::default())).unwrap_or(true)
    }

    fn run(&self, shared: &Shared, mut claim: Claim, attempt: u32, worker: usize) -> Claim {
        let (Some(cell), Some(status)) = (self.workers.get(worker), shared.statuses.get(worker)) else {
            return claim;
        };
        let mut scratch = lock(cell);
        let (ticket, rows_in_all) = (claim.ticket(), claim.len());
        status.begin(&ticket);
        let start = Instant::now();
        let mut seat = Seat {
            shared,
            ticket,
            slot: claim.slot(),
            worker,
            status,
            dear: shared.cost.load(Relaxed) >= DEAR,
            now: start,
            timed: Duration::ZERO,
            reading: Duration::ZERO,
        };
        let (mut k, mut attempt) = (0, attempt);
        while let Some(error) = self.rows(&mut seat, &mut scratch, &mut claim.rows(), &mut k, attempt) {
            match self.fault(&seat, &mut claim, k, attempt, error) {
                Verdict::GiveUp => (k, attempt) = (k + 1, 0),
                Verdict::Again(pause) if !pause.is_zero() => {
                    let (one, rest) = claim.split_off(k);
                    // The rows before it are counted as done here.
                    claim = rest;
                    shared.retry_later(one, attempt + 1, pause);
                    (k, attempt) = (0, 0);
                }
                Verdict::Again(_) | Verdict::Replace(_) => attempt += 1,
            }
        }
        status.end();
        shared.account(start.elapsed(), rows_in_all, seat.reading, seat.timed);
        claim
    }
}

impl<S: Source, D: Decode<S>> Pair<S, D> {
    /// Fills the rows from `k` on, the first of them in its `attempt`; the error of the one that failed, at the new `k`,
    /// or `None` at the end or where nobody wants them any more.
    fn rows(
        &self,
        seat: &mut Seat<'_>,
        scratch: &mut Scratch<S, D>,
        rows: &mut Rows<'_>,
        k: &mut usize,
        mut attempt: u32,
    ) -> Option<Error> {
        let n = rows.len();
        if *k == 0 && attempt == 0 && n > 1 && self.pulled.is_empty() {
            seat.sit(rows, 0);
            if !seat.is_stale() && self.attempt_all(seat, scratch, rows) {
                return None;
            }
        }
        while *k < n && !seat.is_stale() {
            seat.sit(rows, *k);
            if attempt == 0 {
                rows.row(*k).begin();
            }
            let timed = seat.dear || *k == 0;
            let outcome = self.attempt(seat, scratch, rows, *k, timed);
            if timed {
                let last = std::mem::replace(&mut seat.now, Instant::now());
                seat.timed += seat.now - last;
            }
            if let Err(error) = outcome {
                return Some(error);
            }
            rows.set_valid(*k, true);
            attempt = 0;
            *k += 1;
        }
        None
    }

    /// Makes a hole of a row that failed, records the fault, and says what happens next.
    fn fault(&self, seat: &Seat<'_>, claim: &mut Claim, k: usize, attempt: u32, error: Error) -> Verdict {
        let (shared, ticket) = (seat.shared, seat.ticket);
        let mut rows = claim.rows();
        let (row, index) = (rows.number(k), rows.index(k));
        let place = Place {
            epoch: Some(ticket.epoch),
            batch: Some(ticket.number),
            row: Some(row),
            stage: Some(seat.status.stage()),
            worker: Some(seat.worker),
            ..Place::of_index(index)
        };
        let error = error.at(self.describe(index)).at(place);
        let position = ticket.position + row as u64 * shared.world;
        let key = [shared.seed, ticket.epoch, position];
        let verdict = shared.on_error.judge(attempt, key, self.source.len().unwrap_or(0));
        rows.row(k).clear();
        rows.set_valid(k, false);
        let outcome = match verdict {
            Verdict::GiveUp => Outcome::Failed,
            Verdict::Again(_) => Outcome::Retried,
            Verdict::Replace(other) => {
                rows.set_index(k, other);
                Outcome::Replaced
            }
        };
        claim.fault(Fault { row, attempt, outcome, error });
        verdict
    }
}

/// Runs user code outside a row; a panic becomes an error.
pub(crate) fn guard<T>(code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|payload| Err(Error::from_panic(payload)))
}

impl Shared {
    /// Gives a claim to the pool.
    pub(crate) fn spawn(self: &Arc<Self>, claim: Claim, attempt: u32) {
        let Some(pool) = &self.pool else { return drop(self.work.run(self, claim, attempt, 0)) };
        self.metrics.tasks.fetch_add(1, Relaxed);
        let shared = self.clone();
        pool.spawn(move || {
            let worker = rayon::current_thread_index().unwrap_or(0);
            drop(shared.work.run(&shared, claim, attempt, worker));
        });
    }

    /// Gives whole batches to the pool as one task: for batches that take less time than waking a thread does. They
    /// are handed on together.
    pub(crate) fn spawn_group(self: &Arc<Self>, mut group: Group) {
        let Some(pool) = &self.pool else { return };
        self.metrics.tasks.fetch_add(1, Relaxed);
        let shared = self.clone();
        pool.spawn(move || {
            let worker = rayon::current_thread_index().unwrap_or(0);
            for slot in group.iter_mut() {
                if let Some(claim) = slot.take() {
                    *slot = Some(shared.work.run(&shared, claim, 0, worker));
                }
            }
            drop(group);
        });
    }

    /// Books the time of a run of rows: what share of the timed rows was reading goes for all of them.
    fn account(&self, all: Duration, rows: usize, reading: Duration, timed: Duration) {
        let share = if timed.is_zero() { 0.0 } else { reading.as_secs_f64() / timed.as_secs_f64() };
        let read = all.mul_f64(share.min(1.0));
        self.metrics.spend(Stage::Read, read);
        self.metrics.spend(Stage::Decode, all.saturating_sub(read));
        let cost = u64::try_from(all.as_nanos()).unwrap_or(u64::MAX) / rows.max(1) as u64;
        let old = self.cost.load(Relaxed);
        // A moving average over about eight runs; a race between two workers loses one of them, no more.
        self.cost.store(if old == 0 { cost.max(1) } else { (old - old / 8 + cost / 8).max(1) }, Relaxed);
    }
}
