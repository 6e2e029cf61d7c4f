//! The pipeline: sampler → source → decode into host slots → copy stream → device slots → batches.
//!
//! A feeder thread plans batches and starts filling them on the worker pool; the copier thread puts filled
//! batches into delivery order and enqueues their copies; the consumer takes them in [`Epoch::next`]. They
//! share [`Shared`] and hand slots on through channels that have room for every slot, so that no send ever
//! waits.

mod batch;
mod builder;
mod config;
mod control;
mod copier;
mod epoch;
mod fault;
mod feeder;
mod host_batch;
mod plan;
mod progress;
mod read_back;
mod runtime;
mod view;
mod work;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::checkpoint::State;
use crate::device::{Device, Stream, reaper};
use crate::error::{Error, ErrorKind, Place, Result, Stage};
use crate::metrics::{Metrics, Stats};
use crate::pool::{Claim, Claims, DeviceSlot};
use crate::sampler::{Cursor, Remainder, Sampler, Shard};
use crate::source::Source;
use crate::spec::BatchSpec;
use crate::sync::lock;
use batch::Life;
use control::Control;
use copier::{Copier, Delivery, Retry};
use fault::Tally;
use feeder::Feeder;
use progress::Progress;
use work::{Status, Work};

pub use batch::Batch;
pub use builder::Builder;
pub use config::{AllHeld, Order};
pub use epoch::Epoch;
pub use fault::OnError;
pub use host_batch::{HostBatch, Outcome};
pub use runtime::Runtime;
pub use view::{Dims, RaggedView, View};

/// What the consumer, the feeder, the copier and the workers share.
pub(crate) struct Shared {
    pub(crate) control: Control,
    pub(crate) metrics: Metrics,
    pub(crate) work: Box<dyn Work>,
    /// `None`: the caller decodes.
    pub(crate) pool: Option<Arc<rayon::ThreadPool>>,
    /// One a worker, and one for the caller or the feeder.
    pub(crate) statuses: Vec<Status>,
    /// No worker has to be prepared by the user before it decodes.
    pub(crate) feeder_may_fill: bool,
    pub(crate) workers: usize,
    /// Moving average of what a row costs, in nanoseconds; 0 before the first.
    pub(crate) cost: AtomicU64,
    pub(crate) sampler: Arc<dyn Sampler>,
    pub(crate) seed: u64,
    pub(crate) world: u64,
    pub(crate) rank: u64,
    pub(crate) remainder: Remainder,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
    pub(crate) epochs: u64,
    pub(crate) in_order: bool,
    pub(crate) compact: bool,
    pub(crate) replay: Vec<Vec<u64>>,
    pub(crate) on_error: OnError,
    /// What consumer and batches share.
    pub(crate) life: Arc<Life>,
    /// The feeder waits until half of the host slots are free.
    pub(crate) feeder_parks: AtomicBool,
    /// The copier waits on the host for what the consumer has enqueued on a slot.
    pub(crate) copier_at_gate: AtomicBool,
    /// What the feeder waits for: see [`Shared::feeder_waits_for`].
    pub(crate) feeder: AtomicU8,
    /// Claims that are to be tried again later; the copier is their timer.
    pub(crate) retries: Mutex<Vec<Retry>>,
    start: Instant,
}

impl Shared {
    /// Whether the source is a sequence that can't be opened again.
    pub(crate) fn is_read_once(&self) -> bool {
        self.work.len().is_none() && !self.work.reopens()
    }

    /// This rank's share of an epoch that begins at `position`.
    pub(crate) fn cursor(&self, position: u64) -> Result<Cursor> {
        Cursor::new(self.sampler.len(), Shard::new(self.rank, self.world)?, self.remainder, position)
    }

    pub(crate) fn replay(&self, epoch: u64) -> Option<&[u64]> {
        self.replay.get(usize::try_from(epoch).ok()?).map(Vec::as_slice)
    }

    pub(crate) fn nanos(&self, now: Instant) -> u64 {
        u64::try_from((now - self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Has a claim's one row tried again after `pause`; no thread of the pool waits for it.
    pub(crate) fn retry_later(&self, claim: Claim, attempt: u32, pause: Duration) {
        // A pause beyond what an instant can hold is a day: nobody sees the difference.
        let now = Instant::now();
        let due = now.checked_add(pause).unwrap_or(now + Duration::from_secs(24 * 3600));
        lock(&self.retries).push(Retry { due, claim, attempt });
        self.control.copier().wake();
    }

    /// Notes what the feeder waits for from now on.
    pub(crate) fn feeder_waits(&self, stage: Option<Stage>) {
        self.feeder.store(stage.map_or(0, |s| s as u8 + 1), Ordering::Relaxed);
    }

    /// The sampler, or the link: `None` where it waits for the workers, or for nothing.
    pub(crate) fn feeder_waits_for(&self) -> Option<Stage> {
        let noted = self.feeder.load(Ordering::Relaxed);
        [Stage::Sample, Stage::Copy].into_iter().find(|&s| noted == s as u8 + 1)
    }

    /// Bounds on the batches of an epoch, for the consumer's bookkeeping; `None` for a sequence.
    pub(crate) fn batches(&self, cursor: Option<Cursor>) -> Option<u64> {
        cursor.map(|c| c.batches(self.batch_size as u64, self.drop_last))
    }

    /// The oldest sample that a worker is at, and for how long.
    pub(crate) fn oldest_unfinished(&self) -> Option<(Place, Duration)> {
        let now = self.nanos(Instant::now());
        let looks = self.statuses.iter().enumerate().filter_map(|(worker, s)| s.look(worker));
        let (_, since, place) = looks.min_by_key(|(age, ..)| *age)?;
        Some((self.described(place), Duration::from_nanos(now.saturating_sub(since))))
    }

    /// The oldest sample that waits for another attempt, which attempt, and for how long.
    pub(crate) fn oldest_retry(&self) -> Option<(Place, u32, Duration)> {
        let mut retries = lock(&self.retries);
        let age = |r: &Retry| (r.claim.ticket().epoch, r.claim.ticket().seq);
        let retry = retries.iter_mut().min_by_key(|r| age(r))?;
        let ticket = retry.claim.ticket();
        let rows = retry.claim.rows();
        let place = Place {
            epoch: Some(ticket.epoch),
            batch: Some(ticket.number),
            row: Some(rows.number(0)),
            ..Place::of_index(rows.index(0))
        };
        let left = retry.due.saturating_duration_since(Instant::now());
        Some((self.described(place), retry.attempt, left))
    }

    /// With what the source knows of the sample.
    pub(crate) fn described(&self, mut place: Place) -> Place {
        if let Some(index) = place.index {
            place.fill_from(self.work.describe(index));
        }
        place
    }
}

/// Delivers the batches of a source to a device, epoch after epoch.
///
/// Made by [`Loader::builder`]. Everything it needs is allocated, locked and started by
/// [`build`](Builder::build), which also starts to prefetch.
pub struct Loader(ManuallyDrop<Core>);

/// What a loader is made of. In a forked child none of it is dropped: its threads are the parent's, and one of them
/// may hold any of its locks for ever.
struct Core {
    shared: Arc<Shared>,
    /// The device's link time when this loader was built.
    link_before: Duration,
    spec: Arc<BatchSpec>,
    device: Device,
    ready: Receiver<Delivery>,
    free_device: Sender<DeviceSlot>,
    progress: Mutex<Progress>,
    tally: Tally,
    fingerprint: u64,
    timeout: Option<Duration>,
    on_all_held: AllHeld,
    host_slots: usize,
    device_slots: usize,
    pinned: bool,
    busy: AtomicBool,
    inline: Option<Mutex<Inline>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether the workers belong to a [`Runtime`] of the user's.
    workers_shared: bool,
    config: String,
}

impl Core {
    /// How long the device's link has been busy.
    fn link_time(&self) -> Duration {
        self.device.link_busy()
    }

    fn stats(&self) -> Stats {
        let copy = self.link_time().saturating_sub(self.link_before);
        let lost = self.shared.life.lost.load(Ordering::Acquire);
        self.shared.metrics.snapshot(self.shared.workers, copy).with_slots(self.pinned, lost)
    }
}

/// What the threads would do, for a loader without workers: done in `next`.
struct Inline {
    feeder: Feeder,
    copier: Copier,
    /// Rows of the batch that is being filled.
    claims: Option<Claims>,
}

impl Loader {
    /// Begins a loader over `source`. A source of fixed-size records needs no decoder; others get one by
    /// [`Builder::decode`] or [`Builder::decode_with`].
    pub fn builder<S: Source>(source: S) -> Builder<S> {
        Builder::new(source)
    }

    /// Starts, or goes on with, the epoch that is next, with its batches ordered on `stream`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while another epoch of this loader is alive; [`ErrorKind::InvalidArgument`] for a stream of
    /// another device; [`ErrorKind::Finished`] when all [`epochs`](Builder::epochs) are over; [`ErrorKind::Forked`].
    pub fn epoch(&self, stream: &Stream) -> Result<Epoch<'_>> {
        Epoch::begin(&self.0, stream)
    }

    /// Batches of a whole epoch on this rank; `None` where the source's length is unknown.
    pub fn len(&self) -> Option<u64> {
        self.0.shared.work.len()?;
        let cursor = self.0.shared.cursor(0).ok()?;
        Some(cursor.batches(self.0.shared.batch_size as u64, self.0.shared.drop_last))
    }

    /// Whether an epoch certainly has no batch.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The layout of a batch.
    pub fn spec(&self) -> &BatchSpec {
        &self.0.spec
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The position *delivered*: may be asked for at any time, also inside the loop.
    pub fn state(&self) -> State {
        lock(&self.0.progress).state(&self.0.shared, self.0.fingerprint)
    }

    /// The numbers of the batches of the running (or else the last) epoch in the order of their delivery, when that is
    /// [`Order::AsReady`]: [`Order::Replay`] repeats it.
    pub fn delivered_order(&self) -> Vec<u64> {
        lock(&self.0.progress).order().to_vec()
    }

    /// Where the time went so far, and what to change.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Ends the loader, waiting up to a second for its threads, and says what is left.
    ///
    /// # Errors
    /// What a drop met before; [`ErrorKind::Timeout`] naming the sample that a thread is stuck in: it is left to itself,
    /// and its memory stays; [`ErrorKind::Forked`].
    pub fn close(self) -> Result<Report> {
        self.0.shared.life.check_process()?;
        self.0.shared.control.close();
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut threads = std::mem::take(&mut *lock(&self.0.threads));
        loop {
            threads.retain(|t| !t.is_finished());
            let idle = self.0.shared.oldest_unfinished().is_none();
            if (threads.is_empty() && idle) || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some((place, age)) = self.0.shared.oldest_unfinished() {
            let text = format!(
                "a worker has been in user code for {:.1} s: it was left to itself",
                age.as_secs_f64()
            );
            return Err(Error::new(ErrorKind::Timeout, text).at(place));
        }
        if let Some(thread) = threads.first() {
            let name = thread.thread().name().unwrap_or("a thread").to_string();
            let text = format!(
                "the thread {name} has been in user code (a sampler or a source) for over 1 s: it was left to itself"
            );
            let place = Place { stage: Some(Stage::Sample), ..Place::default() };
            return Err(Error::new(ErrorKind::Timeout, text).at(place));
        }
        let life = self.0.shared.life.clone();
        life.unpark();
        let (stats, workers_shared) = (self.stats(), self.0.workers_shared);
        // All that can be freed goes first.
        drop(self);
        while reaper::pending().0 > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(error) = life.take_error() {
            return Err(error);
        }
        let (waiting, waiting_bytes) = reaper::pending();
        let (leaked, leaked_bytes) = reaper::leaked();
        Ok(Report {
            stats,
            batches_alive: life.held.load(Ordering::Acquire),
            threads_left: threads.len(),
            workers_shared,
            waiting,
            waiting_bytes,
            leaked,
            leaked_bytes,
        })
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.config)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.0.shared.life.process.is_forked() {
            return;
        }
        self.0.shared.control.close();
        // SAFETY: dropped once, here, where nothing uses `self` any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// What is left of a loader that was [closed](Loader::close).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// What it did.
    pub stats: Stats,
    /// Batches that outlive it; their memory goes with them.
    pub batches_alive: usize,
    /// Threads of its own that had not ended within a second.
    pub threads_left: usize,
    /// Whether its workers belong to a [`Runtime`], and go on.
    pub workers_shared: bool,
    /// Buffers of this process that wait for a device before they are freed.
    pub waiting: usize,
    /// Their size.
    pub waiting_bytes: usize,
    /// Buffers of this process that had to be leaked, since nothing could prove that the device is done with them.
    pub leaked: usize,
    /// Their size.
    pub leaked_bytes: usize,
}
