//! Where the time goes, and what to change.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::Stage;

const STAGES: usize = 8;

/// Counters of one loader; written by all its threads, a few relaxed additions a run of rows.
#[derive(Debug)]
pub(crate) struct Metrics {
    start: Instant,
    busy: [AtomicU64; STAGES],
    stalled: [AtomicU64; STAGES],
    napped: AtomicU64,
    pub(crate) samples: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) tasks: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) replaced: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        let zero = || AtomicU64::new(0);
        Self {
            start: Instant::now(),
            busy: zeros(),
            stalled: zeros(),
            napped: zero(),
            samples: zero(),
            batches: zero(),
            bytes: zero(),
            tasks: zero(),
            failed: zero(),
            retried: zero(),
            replaced: zero(),
        }
    }

    /// Adds time that a thread of ours spent in `stage`: working, or (for the slot stages) waiting.
    pub(crate) fn spend(&self, stage: Stage, time: Duration) {
        self.busy[stage as usize].fetch_add(nanos(time), Relaxed);
    }

    /// Adds time that the consumer spent waiting in `next`, for want of what `stage` does.
    pub(crate) fn stall(&self, stage: Stage, time: Duration) {
        self.stalled[stage as usize].fetch_add(nanos(time), Relaxed);
    }

    /// Notes that a caller without workers waited for a host slot's copy, for [`Metrics::take_nap`].
    pub(crate) fn nap(&self, time: Duration) {
        self.napped.fetch_add(nanos(time), Relaxed);
    }

    pub(crate) fn take_nap(&self) -> Duration {
        Duration::from_nanos(self.napped.swap(0, Relaxed))
    }

    /// Whether reading or decoding took the workers longer so far.
    pub(crate) fn dearer_of_read_and_decode(&self) -> Stage {
        let time = |s: Stage| self.busy[s as usize].load(Relaxed);
        if time(Stage::Read) > time(Stage::Decode) { Stage::Read } else { Stage::Decode }
    }

    pub(crate) fn snapshot(&self, workers: usize, link: Duration) -> Stats {
        let times =
            |from: &[AtomicU64; STAGES]| ALL.map(|s| Duration::from_nanos(from[s as usize].load(Relaxed)));
        let mut busy = times(&self.busy);
        busy[Stage::Copy as usize] = link;
        Stats {
            wall: self.start.elapsed(),
            workers,
            busy,
            stalled: times(&self.stalled),
            samples: self.samples.load(Relaxed),
            batches: self.batches.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            tasks: self.tasks.load(Relaxed),
            failed: self.failed.load(Relaxed),
            retried: self.retried.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            pinned: false,
            lost_slots: 0,
        }
    }
}

const ALL: [Stage; STAGES] = [
    Stage::Sample,
    Stage::Read,
    Stage::Decode,
    Stage::HostSlot,
    Stage::DeviceSlot,
    Stage::Copy,
    Stage::Transform,
    Stage::Consumer,
];

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a loader has done since it was built, and why its consumer waited.
///
/// Two kinds of time. [`Stats::busy`] is what the threads of each stage spent, summed over threads: near
/// `workers × wall` for read and decode means that the workers are the limit; near `wall` for the link means that the
/// link is. [`Stats::stalled`] is what the consumer waited in `next`, by the stage that it waited for: near zero
/// means that the loader keeps up. [`Stage::Consumer`] there is time in which `next` waited for the consumer's own
/// stream: its host runs ahead of its device, every slot is in use, and the loader keeps up too.
#[derive(Debug, Clone)]
pub struct Stats {
    wall: Duration,
    workers: usize,
    busy: [Duration; STAGES],
    stalled: [Duration; STAGES],
    /// Samples delivered, holes not counted.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Bytes sent over the host-to-device link.
    pub bytes: u64,
    /// Tasks given to the workers' pool, each of which it keeps in a small box.
    pub tasks: u64,
    /// Attempts that failed, in delivered batches.
    pub failed: u64,
    /// Attempts that were repeated under a retry policy.
    pub retried: u64,
    /// Samples that another one took the place of.
    pub replaced: u64,
    /// Whether all host slots are page-locked.
    pub pinned: bool,
    /// Device slots that are lost to a failed event.
    pub lost_slots: usize,
}

impl Stats {
    /// Time since the loader was built.
    pub fn wall(&self) -> Duration {
        self.wall
    }

    /// Time that threads spent in `stage`, summed over threads: see [`Stats`].
    pub fn busy(&self, stage: Stage) -> Duration {
        self.busy[stage as usize]
    }

    /// Time that the consumer waited for `stage`. For [`Stage::Consumer`]: host code that runs ahead of its device waited
    /// for what it had enqueued there itself.
    pub fn stalled(&self, stage: Stage) -> Duration {
        self.stalled[stage as usize]
    }

    /// Time that the consumer waited in all.
    pub fn stalled_in_all(&self) -> Duration {
        self.stalled.iter().sum()
    }

    /// Whether the workers did next to nothing of what they could have done.
    fn workers_rest(&self) -> bool {
        let could = self.wall.mul_f64(self.workers.max(1) as f64);
        self.busy(Stage::Read) + self.busy(Stage::Decode) < could.mul_f64(0.3)
    }

    /// What has been added since `earlier`, a snapshot of the same loader: for a report an epoch.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let times = |a: &[Duration; STAGES], b: &[Duration; STAGES]| {
            std::array::from_fn(|k| a[k].saturating_sub(b[k]))
        };
        Self {
            wall: self.wall.saturating_sub(earlier.wall),
            busy: times(&self.busy, &earlier.busy),
            stalled: times(&self.stalled, &earlier.stalled),
            samples: self.samples.saturating_sub(earlier.samples),
            batches: self.batches.saturating_sub(earlier.batches),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            tasks: self.tasks.saturating_sub(earlier.tasks),
            failed: self.failed.saturating_sub(earlier.failed),
            retried: self.retried.saturating_sub(earlier.retried),
            replaced: self.replaced.saturating_sub(earlier.replaced),
            ..*self
        }
    }

    pub(crate) fn with_slots(mut self, pinned: bool, lost_slots: usize) -> Self {
        (self.pinned, self.lost_slots) = (pinned, lost_slots);
        self
    }

    /// The stage that limits the run. [`Stage::Consumer`] where the consumer waits for under 2 % of the time and the
    /// link is not full, or waits for its own work on the device: then the loader keeps up, and only a faster training
    /// step makes the run faster.
    pub fn limiting(&self) -> Stage {
        let wall = self.wall.as_secs_f64().max(1e-9);
        if (self.stalled_in_all() - self.stalled(Stage::Consumer)).as_secs_f64() < 0.02 * wall {
            let link = self.busy(Stage::Copy).as_secs_f64();
            return if link > 0.9 * wall { Stage::Copy } else { Stage::Consumer };
        }
        ALL.into_iter().max_by_key(|&s| self.stalled(s)).unwrap_or(Stage::Consumer)
    }

    /// What to change so that the run gets faster.
    pub fn advice(&self) -> &'static str {
        match self.limiting() {
            Stage::Read | Stage::Decode if self.workers_rest() => {
                "the workers mostly rest, but batches are begun or finished late: raise host_slots, or, where single \
                 samples are slow, deliver AsReady"
            }
            Stage::Sample => {
                "the sampler or the sequence is slow: make it cheaper, or prefetch inside the iterator"
            }
            Stage::Read => "reading is slow: more workers, a mapped file, larger records, or a faster disk",
            Stage::Decode => {
                "decoding is slow: more workers, or less work per sample (ship u8, finish on the device)"
            }
            Stage::HostSlot => "batches wait for a host slot: raise host_slots",
            Stage::DeviceSlot => "every device slot is held: drop batches earlier, or raise device_slots",
            Stage::Copy => "the host-to-device link is full: ship smaller elements",
            Stage::Transform => "a device transform is slow",
            Stage::Consumer => "the loader keeps up: the training step is what takes the time",
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = self.wall.as_secs_f64().max(1e-9);
        let percent = |d: Duration| 100.0 * d.as_secs_f64() / wall;
        writeln!(
            f,
            "{} batches, {} samples, {:.1} MB in {wall:.2} s: {:.0} samples/s",
            self.batches,
            self.samples,
            self.bytes as f64 / 1e6,
            self.samples as f64 / wall
        )?;
        let workers = self.workers.max(1) as f64;
        writeln!(
            f,
            "  workers: {:.0} % reading, {:.0} % decoding; link: {:.0} % busy; consumer waited {:.1} % of the time",
            percent(self.busy(Stage::Read)) / workers,
            percent(self.busy(Stage::Decode)) / workers,
            percent(self.busy(Stage::Copy)),
            percent(self.stalled_in_all()),
        )?;
        for stage in ALL {
            if percent(self.stalled(stage)) >= 0.1 {
                writeln!(f, "    for {stage}: {:.1} %", percent(self.stalled(stage)))?;
            }
        }
        if self.failed + self.retried + self.replaced > 0 {
            let (failed, retried, replaced) = (self.failed, self.retried, self.replaced);
            writeln!(
                f,
                "  faults: {failed} attempts failed, {retried} retried, {replaced} samples replaced"
            )?;
        }
        if !self.pinned {
            writeln!(f, "  host slots are pageable, so copies are slow: the log says why")?;
        }
        write!(f, "  limit: {} ({})", self.limiting(), self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_consumer_waited_for() {
        let m = Metrics::new();
        std::thread::sleep(Duration::from_millis(2));
        let quiet = m.snapshot(2, Duration::ZERO);
        assert_eq!(quiet.limiting(), Stage::Consumer);
        assert_eq!(m.snapshot(2, Duration::from_secs(100)).limiting(), Stage::Copy);
        m.stall(Stage::Decode, Duration::from_millis(1));
        m.stall(Stage::DeviceSlot, Duration::from_millis(2));
        let stats = m.snapshot(2, Duration::ZERO);
        assert_eq!(stats.limiting(), Stage::DeviceSlot);
        assert!(stats.to_string().contains("device_slots"), "{stats}");
        m.stall(Stage::Decode, Duration::from_secs(1));
        assert!(m.snapshot(2, Duration::ZERO).advice().contains("host_slots"), "nobody decoded");
        m.spend(Stage::Decode, Duration::from_secs(100));
        assert!(m.snapshot(2, Duration::ZERO).advice().contains("more workers"));
        let stats = m.snapshot(2, Duration::ZERO);
        m.stall(Stage::Consumer, Duration::from_secs(9));
        let later = m.snapshot(2, Duration::ZERO).since(&stats);
        assert_eq!((later.stalled(Stage::DeviceSlot), later.limiting()), (Duration::ZERO, Stage::Consumer));
    }
}
