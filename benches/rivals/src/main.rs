//! What a loader costs when its samples cost nothing: u32 values out of memory, shuffled, in batches that
//! the consumer sums. See README.md.

mod base;
mod burn;
mod dataloader_rs;
mod libtorch;
mod rusttorch;
mod warpfeed_row;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cpu_time::ProcessTime;
use serde_json::json;

/// What all do: every value once an epoch, in batches, the last one short.
pub struct Work {
    pub values: Arc<Vec<u32>>,
    pub batch_size: usize,
    pub shuffle: bool,
    pub seed: u64,
}

impl Work {
    fn new(samples: usize, batch_size: usize, shuffle: bool) -> Self {
        let values = (0..samples as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ (i >> 7)).collect();
        Self { values: Arc::new(values), batch_size, shuffle, seed: 42 }
    }

    fn expected(&self) -> Seen {
        let batches = self.values.len().div_ceil(self.batch_size);
        self.values.iter().fold(Seen { batches, ..Seen::default() }, |seen, &v| seen.and(&[v]))
    }
}

/// What the consumer saw in one epoch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub batches: usize,
    pub samples: usize,
    pub sum: u64,
}

impl Seen {
    /// The consumer: sums the batch.
    #[inline]
    pub fn batch(self, values: &[u32]) -> Self {
        Self { batches: self.batches + 1, ..self }.and(values)
    }

    fn and(self, values: &[u32]) -> Self {
        let sum = values.iter().fold(self.sum, |sum, &v| sum + u64::from(v));
        Self { samples: self.samples + values.len(), sum, ..self }
    }
}

/// One loader at one setting; a call runs an epoch.
pub struct Candidate {
    pub rival: &'static str,
    pub workers: usize,
    pub setting: String,
    pub epoch: Box<dyn FnMut() -> Result<Seen>>,
}

/// A rival: every setting of it that is worth a try at this many workers; none if it has no such mode.
type Rival = fn(&Work, workers: usize) -> Result<Vec<Candidate>>;

/// A new rival is one function and one entry here.
const RIVALS: &[Rival] =
    &[base::candidates, warpfeed_row::candidates, dataloader_rs::candidates, burn::candidates, rusttorch::candidates];

/// One timed run.
struct Run {
    samples_per_s: f64,
    cpu_ns_per_sample: f64,
    /// Cores that the rest of the machine used meanwhile; NaN where /proc/stat is missing.
    other_cores: f64,
}

/// Runs whole epochs for at least `time` and checks what they delivered.
fn run(candidate: &mut Candidate, expected: Seen, time: Duration) -> Result<Run> {
    let (busy, cpu, wall) = (busy_seconds(), ProcessTime::now(), Instant::now());
    let mut samples = 0;
    while samples == 0 || wall.elapsed() < time {
        let seen = (candidate.epoch)()?;
        let Candidate { rival, workers, setting, .. } = &*candidate;
        ensure!(seen == expected, "{rival} {workers} {setting}: {seen:?}, expected {expected:?}");
        samples += seen.samples;
    }
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu.elapsed().as_secs_f64());
    let busy = busy_seconds().zip(busy).map_or(f64::NAN, |(after, before)| after - before);
    Ok(Run {
        samples_per_s: samples as f64 / wall,
        cpu_ns_per_sample: cpu * 1e9 / samples as f64,
        other_cores: ((busy - cpu) / wall).max(0.0),
    })
}

/// CPU time of the whole machine so far, where Linux tells it (in ticks of 10 ms).
fn busy_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.map_while(|f| f.parse().ok()).take(8).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().sum::<f64>() - idle) / 100.0)
}

/// The fastest of `candidates`, by the fastest of 3 runs after one epoch to warm up: the run that other work disturbed least.
fn best(candidates: Vec<Candidate>, expected: Seen, time: Duration) -> Result<Option<Candidate>> {
    let mut best: Option<(f64, Candidate)> = None;
    for mut candidate in candidates {
        run(&mut candidate, expected, Duration::ZERO)?;
        let mut rates = Vec::new();
        for _ in 0..3 {
            rates.push(run(&mut candidate, expected, time / 4)?.samples_per_s);
        }
        let (_, _, rate) = quantiles(rates);
        let line = json!({"phase": "settings", "rival": candidate.rival, "workers": candidate.workers,
            "setting": candidate.setting, "samples_per_s": rate.round()});
        println!("{line}");
        if best.as_ref().is_none_or(|(other, _)| rate > *other) {
            best = Some((rate, candidate));
        }
    }
    Ok(best.map(|(_, candidate)| candidate))
}

/// Minimum, median and maximum.
fn quantiles(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (at(0), at(values.len() / 2), at(values.len().saturating_sub(1)))
}

/// The value behind `--name`, or the default.
fn option(name: &str, default: f64) -> Result<f64> {
    let mut args = std::env::args().skip_while(|a| a != name);
    match args.next() {
        None => Ok(default),
        Some(_) => args.next().context("a value is missing")?.parse().with_context(|| name.to_string()),
    }
}

fn main() -> Result<()> {
    let samples = option("--samples", 1e6)? as usize;
    let batch_size = option("--batch", 256.0)? as usize;
    let rounds = option("--rounds", 5.0)? as usize;
    let time = Duration::from_secs_f64(option("--seconds", 0.6)?);
    let work = Work::new(samples, batch_size, !std::env::args().any(|a| a == "--in-order"));
    let expected = work.expected();
    println!(
        "{}",
        json!({"phase": "work", "samples": samples, "batch_size": batch_size,
        "shuffle": work.shuffle, "rounds": rounds, "seconds": time.as_secs_f64(),
        "cores": std::thread::available_parallelism().map_or(0, Into::into)})
    );

    let mut chosen = Vec::new();
    for workers in 0..=2 {
        for rival in RIVALS {
            chosen.extend(best(rival(&work, workers)?, expected, time)?);
        }
    }
    let mut runs: Vec<Vec<Run>> = chosen.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (candidate, runs) in chosen.iter_mut().zip(&mut runs) {
            run(candidate, expected, Duration::ZERO)?; // its caches and its threads, not the last one's
            let run = run(candidate, expected, time)?;
            println!(
                "{}",
                json!({"phase": "rounds", "round": round, "rival": candidate.rival,
                "workers": candidate.workers, "setting": candidate.setting,
                "samples_per_s": run.samples_per_s.round(), "cpu_ns_per_sample": run.cpu_ns_per_sample,
                "other_cores": run.other_cores})
            );
            runs.push(run);
        }
    }

    println!(
        "\n| rival | workers | setting | M samples/s: median (min–max) | CPU ns a sample | other cores |"
    );
    println!("|---|---|---|---|---|---|");
    for (c, runs) in chosen.iter().zip(&runs) {
        let of = |f: fn(&Run) -> f64| quantiles(runs.iter().map(f).collect());
        let (min, median, max) = of(|r| r.samples_per_s / 1e6);
        let (cpu, others) = (of(|r| r.cpu_ns_per_sample).1, of(|r| r.other_cores).1);
        let Candidate { rival, workers, setting, .. } = c;
        println!(
            "| {rival} | {workers} | {setting} | {median:.1} ({min:.1}–{max:.1}) | {cpu:.1} | {others:.1} |"
        );
    }
    Ok(())
}
