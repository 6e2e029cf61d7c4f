//! What a loader is told, and the one place where all of it is checked.

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use memmap2::MmapMut;

use super::batch::Life;
use super::config::{AllHeld, Config, Order};
use super::control::{Control, Waker};
use super::copier::{Copier, Order as Arrivals};
use super::fault::{OnError, Tally};
use super::feeder::Feeder;
use super::progress::Progress;
use super::read_back::ReadBack;
use super::runtime::{DEVICE_BUDGET, Runtime, default_host_budget, default_workers};
use super::work::{Pair, Status};
use super::{Core, Inline, Loader, Shared};
use crate::checkpoint::State;
use crate::decode::{Decode, DecodeFn, DecodeRuns, Raw, Sample, Samples};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::metrics::Metrics;
use crate::pool::{Budget, DeviceSlot, EventPool, FreeSlot};
use crate::random::key;
use crate::row::{Row, RowBlock};
use crate::sampler::{Remainder, Sampler, Sequential, Shard, Shuffle};
use crate::source::Source;
use crate::spec::{BatchSpec, Field};
use crate::sync::lock;

type HostMemory = Box<dyn FnMut(usize) -> anyhow::Result<MmapMut>>;
type WorkerInit = Arc<dyn Fn(usize) + Send + Sync>;

/// The configuration of a [`Loader`]: plain data, checked as a whole by [`Builder::build`].
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<S: Source, D = Raw> {
    source: S,
    decode: D,
    sampler: Option<Box<dyn Sampler>>,
    runtime: Option<Runtime>,
    worker_init: Option<WorkerInit>,
    host_memory: Option<HostMemory>,
    config: Config,
}

impl<S: Source> Builder<S> {
    pub(super) fn new(source: S) -> Self {
        let config = Config::default();
        Self {
            source,
            decode: Raw,
            sampler: None,
            runtime: None,
            worker_init: None,
            host_memory: None,
            config,
        }
    }
}

impl<S: Source, D> Builder<S, D> {
    /// Decodes with `decode`.
    pub fn decode<E: Decode<S>>(self, decode: E) -> Builder<S, E> {
        let Self { source, sampler, runtime, worker_init, host_memory, config, .. } = self;
        Builder { source, decode, sampler, runtime, worker_init, host_memory, config }
    }

    /// Decodes with a closure, which writes each of `fields` of one sample into its row.
    pub fn decode_with<F>(self, fields: impl Into<Vec<Field>>, decode: F) -> Builder<S, DecodeFn<F>>
    where
        F: Fn(&mut Sample<'_, S>, &mut Row<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
    {
        self.decode(DecodeFn::new(fields.into(), decode))
    }

    /// Decodes with a closure that writes `fields` of many samples at once, column by column: for samples of a few
    /// bytes, where a call each would be most of what they cost.
    pub fn decode_runs<F>(self, fields: impl Into<Vec<Field>>, decode: F) -> Builder<S, DecodeRuns<F>>
    where
        F: Fn(&mut Samples<'_, S>, &mut RowBlock<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
    {
        self.decode(DecodeRuns::new(fields.into(), decode))
    }

    /// Samples a batch. Default 1.
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.config.batch_size = samples;
        self
    }

    /// Threads that read and decode. Default: the CPUs that this process may use. 0: `next` does it all itself.
    pub fn workers(mut self, threads: usize) -> Self {
        self.config.workers = Some(threads);
        self
    }

    /// Runs on each worker thread as it starts, with its number.
    pub fn worker_init(mut self, init: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.worker_init = Some(Arc::new(init));
        self
    }

    /// Takes workers and budgets from `runtime`, which other loaders share.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Page-locked batches on the host: being filled, filled, or being copied. Default 3.
    pub fn host_slots(mut self, slots: usize) -> Self {
        self.config.host_slots = slots;
        self
    }

    /// Takes the memory of each host slot from `memory`, which is called with the bytes that it needs at least: huge
    /// pages, a shared mapping, memory bound to a node. It is zeroed and page-locked, on CUDA by registering it with the
    /// driver. Each slot needs memory of its own: a file mapped twice is the same bytes twice. The type is
    /// [`memmap2`](crate::memmap2)'s. Default: the device's own page-locked memory.
    pub fn host_memory(mut self, memory: impl FnMut(usize) -> anyhow::Result<MmapMut> + 'static) -> Self {
        self.host_memory = Some(Box::new(memory));
        self
    }

    /// Batches on the device: being copied, ready, or held by the consumer. Default 2.
    pub fn device_slots(mut self, slots: usize) -> Self {
        self.config.device_slots = slots;
        self
    }

    /// The most bytes of host memory for slots. Default: 1 GiB, or a quarter of the available memory.
    pub fn host_budget(mut self, bytes: usize) -> Self {
        self.config.host_budget = Some(bytes);
        self
    }

    /// The most bytes of device memory for slots. Default 1 GiB.
    pub fn device_budget(mut self, bytes: usize) -> Self {
        self.config.device_budget = Some(bytes);
        self
    }

    /// The most bytes that the ragged rows of one batch take together, each rounded up to 16; a row that is tried again
    /// and got longer counts twice. Default: room for every row at its `max_row`.
    pub fn max_batch_bytes(mut self, bytes: usize) -> Self {
        self.config.max_batch_bytes = Some(bytes);
        self
    }

    /// Shuffles every epoch anew, by a permutation keyed by `seed`, which keys the samples' generators too.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.config.shuffle = true;
        self.seed(seed)
    }

    /// Keys the samples' generators, without a shuffle. Default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Takes the order from `sampler`, instead of `shuffle`.
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Box::new(sampler));
        self
    }

    /// Delivers one rank's share of every epoch.
    pub fn shard(mut self, shard: Shard) -> Self {
        self.config.shard = shard;
        self
    }

    /// What becomes of samples that can't be shared out evenly. Default [`Remainder::Pad`].
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.config.remainder = remainder;
        self
    }

    /// The order of delivery. Default [`Order::InOrder`].
    pub fn order(mut self, order: Order) -> Self {
        self.config.order = order;
        self
    }

    /// What happens when a sample fails. Default [`OnError::Fail`].
    pub fn on_error(mut self, policy: OnError) -> Self {
        self.config.on_error = policy;
        self
    }

    /// Appends every failed attempt to a file, as a line of JSON: epoch, batch, row, index, path or shard and
    /// member, offset, stage, attempt, outcome, error.
    pub fn quarantine(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.quarantine = Some(path.into());
        self
    }

    /// Fills holes with rows from the batch's end, so that `len` counts samples only. Default: holes stay where
    /// they are, marked in `valid`.
    pub fn compact(mut self, compact: bool) -> Self {
        self.config.compact = compact;
        self
    }

    /// What `next` does when all device slots are held. Default [`AllHeld::Error`].
    pub fn on_all_held(mut self, policy: AllHeld) -> Self {
        self.config.on_all_held = policy;
        self
    }

    /// The longest that one call of `next` waits, then [`ErrorKind::Timeout`]. Without workers it is checked after
    /// each sample. Default: no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = Some(timeout);
        self
    }

    /// Leaves out an epoch's last batch if it is not full. Default `false`.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.config.drop_last = drop_last;
        self
    }

    /// No epoch from number `epochs` on is prefetched or delivered. Numbers are absolute, also after a resume.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.config.epochs = Some(epochs);
        self
    }

    /// Goes on where `state` was saved.
    pub fn resume(mut self, state: State) -> Self {
        self.config.resume = Some(state);
        self
    }
}

impl<S: Source, D: Decode<S>> Builder<S, D> {
    /// Checks everything, makes every allocation, stream and thread, and starts to prefetch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] naming the options that are wrong; [`ErrorKind::LimitExceeded`] where a slot does
    /// not fit a budget; [`ErrorKind::StateMismatch`] and [`ErrorKind::NotResumable`] for a state to resume; what the
    /// device and the system refuse.
    pub fn build(self, device: &Device) -> Result<Loader> {
        let text = format!("{self:?}");
        let Self { source, decode, sampler, runtime, worker_init, mut host_memory, config: c } = self;
        let length = source.len();
        let feeder_may_fill = worker_init.is_none();
        let errors = Arc::new(Mutex::new(None));
        let worker_init = worker_init.map(|init| guarded(init, errors.clone()));
        c.check(length, sampler.is_some(), worker_init.is_some(), runtime.is_some())?;
        let workers_shared = runtime.is_some();
        let runtime = match runtime {
            Some(runtime) => runtime,
            None => {
                let workers = c.workers.unwrap_or_else(default_workers);
                let host = c.host_budget.unwrap_or_else(default_host_budget);
                Runtime::start(workers, host, c.device_budget.unwrap_or(DEVICE_BUDGET), worker_init)?
            }
        };
        let fields = decode.fields(&source)?;
        let places = if matches!(c.on_error, OnError::Fail | OnError::Skip { .. }) { 1 } else { 2 };
        let spec = BatchSpec::with_attempts(fields, c.batch_size, c.max_batch_bytes, places)?;
        let spec = Arc::new(spec);
        let sampler: Arc<dyn Sampler> = match (sampler, length) {
            (Some(sampler), Some(n)) => {
                if n == 0 && !sampler.is_empty() {
                    let text = format!("the sampler has {} positions, the source no record", sampler.len());
                    return Err(Error::new(ErrorKind::InvalidConfig, text));
                }
                Arc::from(sampler)
            }
            (_, Some(n)) if c.shuffle => Arc::new(Shuffle::new(n, c.seed)),
            (_, n) => Arc::new(Sequential::new(n.unwrap_or(0))),
        };
        let fingerprint =
            key(&[source.fingerprint(), sampler.fingerprint(), c.seed, length.unwrap_or(u64::MAX)]);
        let start = c.start(fingerprint, &source)?;

        let (host, host_bytes) = slots(&runtime.host, "host_slots", c.host_slots, spec.bytes())?;
        let (on_device, _) = slots(&runtime.device, "device_slots", c.device_slots, spec.bytes())?;
        let (host_slots, device_slots) = (host.len(), on_device.len());
        let pair = Pair::new(source, decode, runtime.workers, host_slots, c.batch_size);
        let workers = runtime.workers;
        // Room for every slot, and for what else can be on its way: an end, an error behind it, a wake-up.
        let (outlet, items) = bounded(host_slots + 4);
        let waker = Arc::new(Waker::new(outlet.clone()));
        let control = Control::new(start, waker.clone());
        let life = Arc::new(Life::new(waker, errors, ReadBack::new(device, 2 * device_slots)));
        let shared = Arc::new(Shared {
            control,
            metrics: Metrics::new(),
            work: Box::new(pair),
            pool: runtime.pool.clone(),
            statuses: (0..=workers).map(|_| Status::default()).collect(),
            feeder_may_fill,
            workers,
            cost: AtomicU64::new(0),
            sampler,
            seed: c.seed,
            world: c.shard.count(),
            rank: c.shard.index(),
            remainder: c.remainder,
            batch_size: c.batch_size,
            drop_last: c.drop_last,
            epochs: c.epochs.unwrap_or(u64::MAX),
            in_order: c.order != Order::AsReady,
            compact: c.compact,
            replay: if let Order::Replay(epochs) = c.order { epochs } else { Vec::new() },
            on_error: c.on_error.clone(),
            feeder_parks: AtomicBool::new(false),
            copier_at_gate: AtomicBool::new(false),
            life,
            feeder: AtomicU8::new(0),
            retries: Mutex::new(Vec::new()),
            start: Instant::now(),
        });
        let progress = Progress::new(&shared, start)?;
        let tally = Tally::new(c.on_error, c.quarantine.as_deref())?;
        shared.warn_of_no_batch(length);

        let (free_host_tx, free_host) = bounded(host_slots);
        let (free_device, free_device_rx) = bounded(device_slots);
        let (ready_tx, ready) = bounded(device_slots + 4);
        let mut pinned = true;
        for (number, budget) in host.into_iter().enumerate() {
            let memory = host_memory.as_mut().map(|memory| memory(spec.bytes())).transpose();
            let memory = memory.map_err(|e| {
                let text = format!("host_memory gave no memory for host slot {number}: {e}");
                Error::new(ErrorKind::InvalidConfig, text).caused_by(e)
            })?;
            let slot = FreeSlot::new(number, device, &spec, memory, budget)?;
            pinned &= slot.is_locked();
            drop(free_host_tx.send(slot));
        }
        let stream = device.new_copy_stream()?;
        for (number, budget) in on_device.into_iter().enumerate() {
            let mut slot = DeviceSlot::new(number, device, &spec, budget)?;
            if number == 0
                && let Ok(host) = free_host.try_recv()
            {
                drop(free_host_tx.send(slot.measure_link(host, &stream)?));
            }
            drop(free_device.send(slot));
        }
        tracing::debug!(host_slots, device_slots, host_bytes, pinned, "loader built");
        let feeder = Feeder::new(shared.clone(), free_host, outlet);
        let copier = Copier {
            shared: shared.clone(),
            stream,
            events: EventPool::new(device, host_slots + device_slots + 1)?,
            items,
            free_device: free_device_rx,
            free_host: free_host_tx,
            ready: ready_tx,
            state: Arrivals::new(start.epoch, host_slots + 4),
            gated: None,
        };
        let mut loader = Core {
            link_before: device.counters().copy_busy,
            spec,
            device: device.clone(),
            ready,
            free_device,
            progress: Mutex::new(progress),
            tally,
            fingerprint,
            timeout: c.timeout,
            on_all_held: c.on_all_held,
            host_slots,
            device_slots,
            pinned,
            busy: AtomicBool::new(false),
            inline: None,
            threads: Mutex::new(Vec::new()),
            workers_shared,
            config: text,
            shared,
        };
        if workers == 0 {
            loader.inline = Some(Mutex::new(Inline { feeder, copier, claims: None }));
        } else {
            let copier = thread("warpfeed-copier", device, move || copier.run())?;
            let feeder = thread("warpfeed-feeder", device, move || feeder.run());
            let feeder = feeder.inspect_err(|_| loader.shared.control.close())?;
            loader.threads = Mutex::new(vec![copier, feeder]);
        }
        Ok(Loader(ManuallyDrop::new(loader)))
    }
}

/// A panic of `init` would end the process, since a pool has nobody to tell: it becomes the loader's next error.
fn guarded(init: WorkerInit, errors: Arc<Mutex<Option<Error>>>) -> WorkerInit {
    Arc::new(move |worker| {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| init(worker))) {
            let place = Place { worker: Some(worker), ..Place::default() };
            lock(&errors).get_or_insert(Error::from_panic(payload).at(place));
        }
    })
}

impl Shared {
    /// An epoch without a batch is allowed, but rarely meant.
    fn warn_of_no_batch(&self, length: Option<u64>) {
        let Some(n) = length else { return };
        if let Ok(cursor) = self.cursor(0)
            && cursor.batches(self.batch_size as u64, self.drop_last) == 0
        {
            tracing::warn!(
                "every epoch is empty on this rank: {n} samples over {} ranks, batch_size {}, drop_last {}",
                self.world,
                self.batch_size,
                self.drop_last
            );
        }
    }
}

/// Reserves up to `count` slots of `bytes`, at least one.
fn slots(
    budget: &Budget,
    option: &str,
    count: usize,
    bytes: usize,
) -> Result<(Vec<crate::pool::Reservation>, usize)> {
    // Memory of loaders that just ended may still wait for the device.
    // Memory comes in whole pages.
    let bytes = bytes.next_multiple_of(PAGE);
    let first = budget.reserve(bytes, Duration::from_secs(1));
    let mut reserved = vec![first.map_err(|e| {
        let text = format!(
            "no room for one of the {option}, which hold a batch each: {}; lower batch_size",
            e.message()
        );
        Error::new(e.kind(), text)
    })?];
    while reserved.len() < count {
        match budget.reserve(bytes, Duration::ZERO) {
            Ok(more) => reserved.push(more),
            Err(_) => break,
        }
    }
    if reserved.len() < count {
        tracing::warn!(
            "{option} {count} × {bytes} bytes do not fit the budget of {} bytes ({} left): made {}",
            budget.limit(),
            budget.left(),
            reserved.len()
        );
    }
    let total = reserved.len() * bytes;
    Ok((reserved, total))
}

/// A page of memory, in bytes.
const PAGE: usize = 4096;

/// A thread of ours, which makes calls on `device`.
fn thread(name: &str, device: &Device, code: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let device = device.clone();
    let code = move || {
        if let Err(error) = device.bind_thread() {
            // Its calls meet the same error, and say so where somebody can do something about it.
            tracing::debug!("{error}");
        }
        code();
    };
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(code)
        .map_err(|e| Error::new(ErrorKind::Io, format!("can't start the thread {name}: {e}")).caused_by(e))
}

impl<S: Source, D> fmt::Debug for Builder<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("source", &std::any::type_name::<S>())
            .field("records", &self.source.len())
            .field("decode", &std::any::type_name::<D>())
            .field("own_sampler", &self.sampler.is_some())
            .field("runtime", &self.runtime)
            .field("config", &self.config)
            .finish()
    }
}
