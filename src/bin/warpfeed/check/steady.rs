//! Batches at a steady rate, as a training loop that is not starved has them: how long one takes from its last sample's
//! decoding until it is on the device, and how much of a processor the copier's thread takes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warpfeed::sampler::Sequential;
use warpfeed::{Field, Loader, source};

use crate::pace::paced;
use crate::rig::Rig;

/// The copier's thread, as the system knows it.
const COPIER: &str = "warpfeed-copier";
/// What the loader has prefetched before the first batch is taken says nothing.
const WARM_UP: u64 = 10;
/// Samples of a batch.
const SAMPLES: usize = 16;

pub(super) struct Steady {
    pub(super) batch_bytes: u64,
    /// Batches a second that there were.
    pub(super) rate: f64,
    /// From the end of the last sample's decoding until the batch's copy has passed, sorted.
    latencies: Vec<Duration>,
    /// What the copier's thread ran for, a batch.
    pub(super) copier: Duration,
}

impl Steady {
    /// The latency that a share `q` of the batches have at most.
    pub(super) fn latency(&self, q: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let rank = (q * last as f64).round() as usize;
        self.latencies.get(rank.min(last)).copied().unwrap_or_default()
    }

    /// What the copier's thread would take of a processor at 100 batches a second.
    pub(super) fn copier_share(&self) -> f64 {
        self.copier.as_secs_f64() * 100.0
    }
}

/// `batches` batches of about `batch_bytes` bytes, one each `interval`.
///
/// # Errors
/// What the loader and the device meet; a system that does not say what a thread ran for.
pub(super) fn run(rig: &Rig, batch_bytes: usize, batches: u64, interval: Duration) -> anyhow::Result<Steady> {
    let device = rig.device(None);
    let stream = device.new_stream()?;
    let workers = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, SAMPLES);
    let time = interval.mul_f64(workers as f64 / SAMPLES as f64);
    let row_bytes = (batch_bytes / SAMPLES).max(1);
    let all = WARM_UP + batches;
    let epoch = Instant::now();
    // When the last sample of each batch was decoded, in nanoseconds since `epoch`.
    let decoded: Arc<Vec<AtomicU64>> = Arc::new((0..all).map(|_| AtomicU64::new(0)).collect());
    let marks = decoded.clone();
    let samples = all * SAMPLES as u64;
    let loader = Loader::builder(source::from_fn(samples, Ok))
        .decode_with([Field::new::<u8>("bytes", &[row_bytes])], move |sample, row| {
            let index = sample.index();
            paced(time, false, || row.slice::<u8>("bytes").map(|bytes| bytes.fill(index as u8)))?;
            if let Some(mark) = marks.get((index / SAMPLES as u64) as usize) {
                mark.fetch_max(nanos(epoch), Relaxed);
            }
            Ok(())
        })
        .sampler(Sequential::new(samples))
        .batch_size(SAMPLES)
        .workers(workers)
        .epochs(1)
        .build(&device)?;
    let passed = device.new_event()?;
    let (mut latencies, mut begun) = (Vec::new(), None);
    for (number, batch) in loader.epoch(&stream)?.enumerate() {
        let batch = batch?;
        stream.record(&passed)?;
        // The host's wake-up from a wait is no part of it. A look costs a few microseconds at most, with or without the
        // rest of the machine's help.
        while !passed.query()? {
            std::thread::yield_now();
        }
        let (now, at) = (nanos(epoch), decoded.get(number).map_or(0, |mark| mark.load(Relaxed)));
        drop(batch);
        if number as u64 + 1 == WARM_UP {
            begun = Some((Instant::now(), copier_time()?));
        }
        if number as u64 >= WARM_UP {
            latencies.push(Duration::from_nanos(now.saturating_sub(at)));
        }
    }
    let (since, before) = begun.context("there were too few batches")?;
    let (wall, copier) = (since.elapsed(), copier_time()?.saturating_sub(before));
    let n = latencies.len();
    ensure!(n as u64 == batches, "{n} batches came instead of {batches}");
    latencies.sort_unstable();
    loader.close()?;
    Ok(Steady {
        batch_bytes: (row_bytes * SAMPLES) as u64,
        rate: batches as f64 / wall.as_secs_f64().max(1e-9),
        latencies,
        copier: copier / u32::try_from(batches).unwrap_or(u32::MAX).max(1),
    })
}

fn nanos(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What the threads of the copier's name have run for.
fn copier_time() -> anyhow::Result<Duration> {
    let tasks = Path::new("/proc/self/task");
    let tasks = std::fs::read_dir(tasks).context("the system does not list the threads of a process")?;
    let (mut all, mut threads) = (Duration::ZERO, 0);
    for task in tasks.filter_map(Result::ok) {
        let read = |name| std::fs::read_to_string(task.path().join(name));
        // A thread that ends meanwhile has no files any more.
        let Ok(stat) = read("stat") else { continue };
        let Some((name, ticks)) = name_and_time(&stat) else { continue };
        if name == COPIER {
            let exact = read("schedstat").ok().and_then(|text| text.split(' ').next()?.parse().ok());
            all += exact.map_or(ticks, Duration::from_nanos);
            threads += 1;
        }
    }
    ensure!(threads > 0, "there is no thread {COPIER}");
    Ok(all)
}

/// A thread's name and what it ran for, to the hundredth of a second, out of its `stat`: proc_pid_stat(5).
fn name_and_time(stat: &str) -> Option<(&str, Duration)> {
    // The name stands in parentheses, and may hold some itself.
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    // Fields 14 and 15, of which the third is the first here: in ticks of USER_HZ, which is 100.
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((name, Duration::from_millis((ticks()? + ticks()?) * 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_time_is_read() {
        let line = "77 (warp) feed) (x) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 100 0\n";
        assert_eq!(name_and_time(line), Some(("warp) feed) (x", Duration::from_secs(3))));
        assert_eq!(name_and_time("77 (short) S 1 2"), None);
        assert_eq!(name_and_time(""), None);
        let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(name_and_time(&own).is_some(), "{own}");
    }

    #[test]
    fn percentiles_are_those_of_the_sorted() {
        let latencies = (1..=101).map(Duration::from_millis).collect();
        let steady = Steady { batch_bytes: 0, rate: 0.0, latencies, copier: Duration::from_micros(50) };
        let ms = |q| steady.latency(q).as_millis();
        assert_eq!([ms(0.0), ms(0.5), ms(0.99), ms(1.0)], [1, 51, 100, 101]);
        assert!((steady.copier_share() - 0.005).abs() < 1e-12);
    }
}
