//! Time for an index, sampler by sampler: `cargo bench --bench sampler`. Run as a test it does each once.
//!
//! Analysis: the loader asks for a batch at a time, so what counts is `fill`. Samples of a few bytes come at tens of
//! millions a second; a sampler that takes 15 ns leaves most of a core to the feeder then. `sequential` is the cost
//! of the harness and of writing positions.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use warpfeed::sampler::{BlockShuffle, Mix, Sampler, Sequential, Shuffle, Weighted};

const BATCH: usize = 1024;

/// The fastest of several runs, in ns an index: what else the machine does only adds.
fn time(sampler: &dyn Sampler, step: u64, full: bool) -> f64 {
    let mut out = [0; BATCH];
    let starts = (sampler.len() - 1) / step - BATCH as u64;
    let (runs, batches) = if full { (20, 500) } else { (1, 1) };
    let mut best = Duration::MAX;
    for run in 0..runs {
        let begun = Instant::now();
        for batch in 0..batches {
            sampler.fill(run, batch * BATCH as u64 % starts, step, black_box(&mut out));
        }
        best = best.min(begun.elapsed());
    }
    best.as_nanos() as f64 / (batches * BATCH as u64) as f64
}

fn main() -> warpfeed::Result<()> {
    let full = std::env::args().any(|arg| arg == "--bench");
    let weights: Vec<f64> = (0..100_000).map(|i| f64::from(i % 7)).collect();
    let parts = [(1_000_000, 0.7), (50_000, 0.2), (5000, 0.1)];
    let samplers: [(&str, Box<dyn Sampler>); 10] = [
        ("sequential", Box::new(Sequential::new(1 << 40))),
        ("shuffle 5 000", Box::new(Shuffle::new(5000, 1))),
        ("shuffle 10^6", Box::new(Shuffle::new(1_000_000, 1))),
        ("shuffle 10^8", Box::new(Shuffle::new(100_000_000, 1))),
        ("shuffle 10^12", Box::new(Shuffle::new(1_000_000_000_000, 1))),
        ("shuffle 2^64-1", Box::new(Shuffle::new(u64::MAX, 1))),
        ("block shuffle 10^9, 256 x 64", Box::new(BlockShuffle::new(1_000_000_000, 256, 64, 1))),
        ("block shuffle 10^9, 16 x 16", Box::new(BlockShuffle::new(1_000_000_000, 16, 16, 1))),
        ("weighted, 10^5 weights", Box::new(Weighted::new(&weights, 1 << 40, 1)?)),
        ("mix of 3, blocks of 1000", Box::new(Mix::new(&parts, 1000, 1)?)),
    ];
    for (name, sampler) in samplers {
        let [alone, of_two] = [1, 2].map(|step| time(&*sampler, step, full));
        if full {
            println!("{name:30} {alone:6.1} ns an index, {of_two:6.1} as one rank of two");
        }
    }
    Ok(())
}
