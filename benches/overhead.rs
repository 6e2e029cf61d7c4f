//! What the loader itself costs: samples of 4 bytes, batch 256, on 0, 1 and 2 workers.
//!
//! The consumer sums the values of every batch on the host, so that all of them are delivered. Rounds are
//! interleaved; the table gives million samples a second, median, minimum and maximum. The same work on other
//! Rust loaders is in `benches/rivals`.

#![allow(clippy::print_stdout)] // A benchmark prints its table.

use std::time::Instant;

use warpfeed::source::from_vec;
use warpfeed::{Device, Field, Loader};

const BATCH: usize = 256;

fn main() -> anyhow::Result<()> {
    let smoke = std::env::args().any(|a| a == "--smoke" || a == "--test") || cfg!(debug_assertions);
    let (samples, rounds) = if smoke { (10_000, 1) } else { (1_000_000, 5) };
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    for _ in 0..rounds {
        for workers in [0, 1, 2] {
            for shuffled in [false, true] {
                for runs in [false, true] {
                    let name = format!(
                        "{workers} workers, {}, {}",
                        if shuffled { "shuffled" } else { "in order" },
                        if runs { "runs of rows" } else { "row by row" },
                    );
                    if std::env::var("ONLY").is_ok_and(|only| only != name) {
                        continue;
                    }
                    let rate = rate(samples, workers, shuffled, runs)?;
                    match rows.iter_mut().find(|(n, _)| *n == name) {
                        Some((_, rates)) => rates.push(rate),
                        None => rows.push((name, vec![rate])),
                    }
                }
            }
        }
    }
    println!("{:<36} {:>8} {:>8} {:>8}", format!("{rounds} rounds; M samples/s"), "median", "min", "max");
    for (name, rates) in &mut rows {
        rates.sort_by(f64::total_cmp);
        println!(
            "{name:<36} {:>8.1} {:>8.1} {:>8.1}",
            rates[rates.len() / 2],
            rates[0],
            rates[rates.len() - 1]
        );
    }
    Ok(())
}

/// Million samples a second over one epoch, after one that is not timed.
fn rate(samples: u32, workers: usize, shuffled: bool, runs: bool) -> anyhow::Result<f64> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let builder = Loader::builder(from_vec((0..samples).collect::<Vec<u32>>()))
        .batch_size(BATCH)
        .workers(workers)
        .host_slots(32)
        .device_slots(16);
    let builder = if shuffled { builder.shuffle(7) } else { builder };
    let fields = [Field::scalar::<u32>("x")];
    let loader = if runs {
        builder
            .decode_runs(fields, |samples, rows| {
                for (x, &index) in rows.column("x")?.iter_mut().zip(samples.indices()) {
                    *x = *samples.read(index)?;
                }
                Ok(())
            })
            .build(&device)?
    } else {
        builder.decode_with(fields, |sample, row| Ok(row.set(0, *sample.read()?)?)).build(&device)?
    };
    let mut start = Instant::now();
    for epoch in 0..2 {
        if epoch == 1 {
            start = Instant::now();
        }
        let mut sum = 0u64;
        for batch in loader.epoch(&stream)? {
            sum += batch?.host::<u32>("x")?.iter().map(|&x| u64::from(x)).sum::<u64>();
        }
        anyhow::ensure!(sum == u64::from(samples) * u64::from(samples - 1) / 2, "every sample once");
    }
    if std::env::var_os("STATS").is_some() {
        println!("{}", loader.stats());
    }
    Ok(f64::from(samples) / start.elapsed().as_secs_f64() / 1e6)
}
