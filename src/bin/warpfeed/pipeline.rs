//! The pipeline of a benchmark: as a whole, one step after another, and stage by stage.

mod watch;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use warpfeed::decode::Decode;
use warpfeed::sampler::{Sampler, Sequential, Shuffle};
use warpfeed::source::Source;
use warpfeed::{Event, Loader, Result, Stage, Stats};

use crate::rig::Rig;
use crate::usage::{Usage, Used};
use watch::{Numbers, Watch, Watched};

/// The stages run alone for at most this many steps: enough to know how long one takes.
const ALONE: u64 = 100;
/// Slots of a stage that runs alone, so that nothing else holds it up.
const ALONE_SLOTS: usize = 3;

/// What is loaded.
#[derive(Debug)]
pub(crate) struct Feed<S, D> {
    pub(crate) source: Arc<S>,
    pub(crate) decode: D,
    /// The seed of a shuffled order; `None`: the source's.
    pub(crate) shuffle: Option<u64>,
}

/// How it is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) batch_size: u64,
    pub(crate) workers: usize,
    pub(crate) host_slots: usize,
    pub(crate) device_slots: usize,
    /// Steps that are timed.
    pub(crate) steps: u64,
    /// What decoding a sample takes; zero: what copying it takes.
    pub(crate) decode: Duration,
    /// The modelled link in 10⁹ bytes a second, on the CPU device; `None`: a copy takes what copying its bytes takes.
    pub(crate) link_gbps: Option<f64>,
    /// What a step of the consumer takes on the device.
    pub(crate) compute: Duration,
    /// Whether decode and compute use the processor, instead of waiting.
    pub(crate) spin: bool,
}

/// What was measured, each stage by itself and all of them together. Times are of one step.
pub(crate) struct Measured {
    pub(crate) load: Duration,
    pub(crate) copy: Duration,
    pub(crate) compute: Duration,
    pub(crate) serial: Duration,
    pub(crate) overlapped: Duration,
    /// The overlapped run's consumer stream idle, a step.
    pub(crate) stall: Duration,
    /// From before `build` until the first batch is on the device, in the overlapped run.
    pub(crate) first_batch: Duration,
    /// From after `build` until the first step begins, in the overlapped run.
    pub(crate) fill: Duration,
    /// From the last sample's decoding until the last step ends, in the overlapped run.
    pub(crate) drain: Duration,
    /// Bytes of a batch on the link.
    pub(crate) batch_bytes: u64,
    /// What the loader of the overlapped run says.
    pub(crate) stats: Stats,
}

#[cfg_attr(
    not(feature = "image"),
    allow(dead_code, reason = "of images alone loading is measured for itself")
)]
impl Plan {
    /// Steps before the timed ones: what was prefetched before the first step is used up by then.
    pub(crate) fn warm_up(&self) -> u64 {
        (self.host_slots + self.device_slots) as u64
    }

    /// Batches of the longest run.
    pub(crate) fn batches(&self) -> u64 {
        self.warm_up() + self.steps
    }

    /// The warm-up of a run that only loads: nobody is slower than the loader, which so is never ahead.
    fn short_warm_up(&self) -> u64 {
        self.warm_up().min(self.steps.div_ceil(4))
    }

    /// Steps of [`Plan::load_alone`], for a progress bar.
    pub(crate) fn steps_of_loading(&self) -> u64 {
        self.short_warm_up() + self.steps
    }

    /// Steps of [`Plan::measure_after`], for a progress bar.
    pub(crate) fn steps_after_loading(&self) -> u64 {
        2 * self.batches() + self.alone(self).batches() + self.alone(self).steps
    }

    /// Steps of [`Plan::measure`], for a progress bar.
    pub(crate) fn steps_in_all(&self) -> u64 {
        self.steps_after_loading() + self.alone(self).batches()
    }

    /// This plan with as many slots and steps as a stage alone needs.
    fn alone(&self, stage: &Self) -> Self {
        let slots = |n: usize| n.max(ALONE_SLOTS);
        let (host_slots, device_slots) = (slots(self.host_slots), slots(self.device_slots));
        Self { host_slots, device_slots, steps: self.steps.min(ALONE), ..*stage }
    }

    /// This plan with nothing that loading waits for.
    fn with_free_link(&self) -> Self {
        Self { link_gbps: None, compute: Duration::ZERO, ..*self }
    }

    /// Loads, and does nothing with what comes, with a short warm-up.
    ///
    /// # Errors
    /// As [`Plan::measure`].
    pub(crate) fn load_alone<S, D>(&self, rig: &Rig, feed: &Feed<S, D>, progress: &ProgressBar) -> Result<Run>
    where
        S: Source,
        D: Decode<Arc<S>> + Clone,
    {
        progress.set_message("load alone");
        self.with_free_link().run(rig, feed, Mode::Loading, progress)
    }

    /// Measures it all, over `feed` on `rig`.
    ///
    /// # Errors
    /// What the loader and the device meet.
    pub(crate) fn measure<S, D>(
        &self,
        rig: &Rig,
        feed: &Feed<S, D>,
        progress: &ProgressBar,
    ) -> Result<Measured>
    where
        S: Source,
        D: Decode<Arc<S>> + Clone,
    {
        progress.set_message("load alone");
        let load = self.alone(&self.with_free_link()).run(rig, feed, Mode::Overlapped, progress)?;
        self.measure_after(load.time_to_load(self.workers), rig, feed, progress)
    }

    /// Measures all but what a step's loading takes.
    ///
    /// # Errors
    /// As [`Plan::measure`].
    pub(crate) fn measure_after<S, D>(
        &self,
        load: Duration,
        rig: &Rig,
        feed: &Feed<S, D>,
        progress: &ProgressBar,
    ) -> Result<Measured>
    where
        S: Source,
        D: Decode<Arc<S>> + Clone,
    {
        progress.set_message("copy alone");
        let copy = self.copy_alone(rig, feed, progress)?;
        progress.set_message("compute alone");
        let compute = self.alone(self).compute_alone(rig, progress)?;
        progress.set_message("serial");
        let one_slot = Self { host_slots: 1, device_slots: 1, ..*self };
        let serial = one_slot.run(rig, feed, Mode::Serial, progress)?;
        progress.set_message("overlapped");
        let run = self.run(rig, feed, Mode::Overlapped, progress)?;
        Ok(Measured {
            load,
            copy,
            compute,
            serial: serial.step,
            overlapped: run.step,
            stall: run.stall,
            first_batch: run.first_batch,
            fill: run.fill,
            drain: run.drain,
            batch_bytes: run.stats.bytes / run.stats.batches.max(1),
            stats: run.stats,
        })
    }

    /// What a batch's copy takes on a link that has nothing else to do.
    ///
    /// # Errors
    /// As [`Plan::measure`].
    pub(crate) fn copy_alone<S, D>(
        &self,
        rig: &Rig,
        feed: &Feed<S, D>,
        progress: &ProgressBar,
    ) -> Result<Duration>
    where
        S: Source,
        D: Decode<Arc<S>> + Clone,
    {
        let no_work = Self { compute: Duration::ZERO, ..*self };
        Ok(self.alone(&no_work).run(rig, feed, Mode::Undecoded, progress)?.step)
    }

    /// What a step of the consumer takes on a stream that has nothing else to do.
    fn compute_alone(&self, rig: &Rig, progress: &ProgressBar) -> Result<Duration> {
        let stream = rig.device(None).new_stream()?;
        let device = stream.device();
        let begun = device.new_event()?;
        stream.record(&begun)?;
        let mut ends = Vec::new();
        for _ in 0..self.steps {
            rig.compute(&stream, self.compute, self.spin)?;
            let end = device.new_event()?;
            stream.record(&end)?;
            ends.push(end);
        }
        for end in &ends {
            end.synchronize()?;
            progress.inc(1);
        }
        let all = ends.last().map_or(Ok(Duration::ZERO), |end| end.elapsed_since(&begun))?;
        Ok(if self.compute.is_zero() { Duration::ZERO } else { each(all, self.steps) })
    }

    /// Runs the pipeline. All times are taken by events on the consumer's stream.
    ///
    /// # Errors
    /// As [`Plan::measure`].
    pub(crate) fn run<S, D>(
        &self,
        rig: &Rig,
        feed: &Feed<S, D>,
        mode: Mode,
        progress: &ProgressBar,
    ) -> Result<Run>
    where
        S: Source,
        D: Decode<Arc<S>> + Clone,
    {
        let device = rig.device(self.link_gbps);
        let stream = device.new_stream()?;
        let warm_up = if mode == Mode::Loading { self.short_warm_up() } else { self.warm_up() };
        let batches = warm_up + self.steps;
        let event = |_| device.new_event();
        let starts = (0..batches).map(event).collect::<Result<Vec<Event>>>()?;
        let ends = (0..batches).map(event).collect::<Result<Vec<Event>>>()?;
        let (begun, built) = (device.new_event()?, device.new_event()?);

        let len = feed.source.len().unwrap_or(0);
        let shuffle = feed.shuffle.map(|seed| Shuffle::new(len, seed));
        let epoch_batches = (len / self.batch_size).max(1);
        let numbers = Numbers { epoch_batches, batch_size: self.batch_size };
        let watch = Arc::new(Watch::new(numbers, batches - 1, shuffle.as_ref()));
        // Without workers `next` does it all, when it is asked: a gate would only lock out the one who opens it.
        let gated = mode == Mode::Serial && self.workers > 0;
        let gate =
            Arc::new(Gate { opened: Mutex::new(if gated { 0 } else { u64::MAX }), more: Condvar::new() });

        stream.record(&begun)?;
        let order: Box<dyn Sampler> = match shuffle {
            Some(shuffle) => Box::new(shuffle),
            None => Box::new(Sequential::new(len)),
        };
        let decode = feed.decode.clone();
        let skip = (mode == Mode::Undecoded).then(|| feed.decode.fields(&feed.source)).transpose()?;
        let loader = Loader::builder(feed.source.clone())
            .decode(Watched { decode, skip, watch: watch.clone() })
            .sampler(OnDemand { order, numbers, gate: gate.clone() })
            .seed(feed.shuffle.unwrap_or(0))
            .batch_size(usize::try_from(self.batch_size).unwrap_or(usize::MAX))
            .workers(self.workers)
            .host_slots(self.host_slots)
            .device_slots(self.device_slots)
            .drop_last(true)
            .epochs(batches.div_ceil(epoch_batches) + 1) // so that the workers have no less to do at the end
            .build(&device)?;
        stream.record(&built)?;
        let _open = Open(&gate); // dropped before the loader, whose feeder may be waiting there

        let mut from = None;
        let mut marks = starts.iter().zip(&ends);
        let mut next = marks.next();
        let mut number = 0;
        while next.is_some() {
            let mut epoch = loader.epoch(&stream)?;
            while let Some((start, end)) = next {
                if gated {
                    gate.open(number + 1);
                }
                let Some(batch) = epoch.next().transpose()? else { break };
                stream.record(start)?;
                rig.compute(&stream, self.compute, self.spin)?;
                stream.record(end)?;
                if mode == Mode::Serial {
                    stream.synchronize()?;
                }
                if number + 1 == warm_up {
                    from = Some((Usage::now(), watch.count.load(Relaxed)));
                }
                drop(batch);
                progress.inc(1);
                (next, number) = (marks.next(), number + 1);
            }
        }
        stream.synchronize()?;
        let done = Instant::now();
        let (until, count) = (Usage::now(), watch.count.load(Relaxed));

        let timed = ends.windows(2).zip(starts.iter().skip(1)).skip(warm_up as usize - 1);
        let (mut all, mut stall) = (Duration::ZERO, Duration::ZERO);
        for (pair, start) in timed {
            let [before, end] = pair else { continue };
            all += end.elapsed_since(before)?;
            stall += start.elapsed_since(before)?;
        }
        let first = starts.first().map_or(Ok(Duration::ZERO), |start| start.elapsed_since(&begun))?;
        let fill = starts.first().map_or(Ok(Duration::ZERO), |start| start.elapsed_since(&built))?;
        let decoded = *lock(&watch.decoded);
        let used = from.map_or_else(Used::default, |(from, before)| Used {
            samples: count - before,
            wall: until.at - from.at,
            cpu: until.cpu.saturating_sub(from.cpu),
        });
        Ok(Run {
            step: each(all, self.steps),
            stall: each(stall, self.steps),
            first_batch: first,
            fill,
            drain: decoded.map_or(Duration::ZERO, |at| done.saturating_duration_since(at)),
            slot_bytes: loader.spec().bytes(),
            used,
            stats: loader.stats(),
        })
    }
}

fn each(all: Duration, steps: u64) -> Duration {
    Duration::from_secs_f64(all.as_secs_f64() / steps.max(1) as f64)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As a loader is used: everything at once.
    Overlapped,
    /// A batch is loaded when it is asked for, and the next is asked for when the step that uses it is over.
    Serial,
    /// As overlapped, and nothing is done with the batches.
    Loading,
    /// As overlapped, with rows that nobody writes.
    Undecoded,
}

/// What one run took.
#[cfg_attr(not(feature = "image"), allow(dead_code, reason = "told of images alone"))]
pub(crate) struct Run {
    pub(crate) step: Duration,
    stall: Duration,
    first_batch: Duration,
    fill: Duration,
    drain: Duration,
    /// Bytes of a slot.
    pub(crate) slot_bytes: usize,
    pub(crate) used: Used,
    pub(crate) stats: Stats,
}

impl Run {
    /// What the workers take for a batch. Where copying the bytes took most of the time, the rate of the batches
    /// says nothing about the workers, and their own clocks do.
    pub(crate) fn time_to_load(&self, workers: usize) -> Duration {
        let busy = self.stats.busy(Stage::Read) + self.stats.busy(Stage::Decode);
        let by_clock = busy / u32::try_from(workers.max(1)).unwrap_or(u32::MAX);
        let by_clock = each(by_clock, self.stats.batches);
        let copying = each(self.stats.busy(Stage::Copy), self.stats.batches);
        if copying * 2 > self.step { by_clock } else { self.step }
    }
}

/// Holds a batch back until it has been asked for.
struct Gate {
    /// Batches that were asked for.
    opened: Mutex<u64>,
    more: Condvar,
}

impl Gate {
    fn open(&self, batches: u64) {
        let mut opened = lock(&self.opened);
        *opened = batches.max(*opened);
        self.more.notify_all();
    }

    fn pass(&self, number: u64) {
        let mut opened = lock(&self.opened);
        while *opened <= number {
            opened = self.more.wait(opened).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Opens a gate for good when it is dropped.
struct Open<'a>(&'a Gate);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open(u64::MAX);
    }
}

/// The samples in their order, a batch's indices not before the gate lets it pass. The feeder asks for them before it
/// hands the batch to the workers, so that these wait for nothing and their clocks stay true.
struct OnDemand {
    order: Box<dyn Sampler>,
    numbers: Numbers,
    gate: Arc<Gate>,
}

impl Sampler for OnDemand {
    fn len(&self) -> u64 {
        self.order.len()
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        self.order.index(epoch, position)
    }

    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        self.gate.pass(self.numbers.of(epoch, start));
        self.order.fill(epoch, start, step, out);
    }

    fn fingerprint(&self) -> u64 {
        self.order.fingerprint()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
