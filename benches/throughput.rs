//! Delivered GB/s of fixed-size records in random order, against what the machine's memory can do, in one run.
//!
//! Records of 150,528 bytes (224 × 224 × 3), batch 256, two workers, the CPU device with an unlimited link, a warm
//! page cache. A delivered byte is written once into a host slot and copied once to the device, so that with
//! mapped files half of the best two-thread copy is the ceiling, and with positioned reads 1 / (1/read + 1/copy).
//! Rounds are interleaved; the table gives median, minimum and maximum.

#![allow(clippy::print_stdout)] // A benchmark prints its table.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use warpfeed::source::{RecordFile, Records};
use warpfeed::{CpuOptions, Device, Loader, SampleRng};

const RECORD: usize = 150_528;
const BATCH: usize = 256;
const THREADS: usize = 2;

fn main() -> anyhow::Result<()> {
    let smoke = std::env::args().any(|a| a == "--smoke" || a == "--test") || cfg!(debug_assertions);
    let (records, rounds, batches) = if smoke { (600, 1, 4) } else { (12 * BATCH, 7, 48) };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("records.bin");
    write_records(&path, records)?;

    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    for _ in 0..rounds {
        let best_copy =
            [(Copy::Plain, "copy, plain"), (Copy::NonTemporal, "copy, non-temporal")].map(|(how, name)| {
                let rate = copy_rate(how, batches);
                push(&mut rows, name, rate);
                rate
            });
        let copy = best_copy[0].max(best_copy[1]);
        let read = read_rate(&path, records, batches)?;
        push(&mut rows, "read", read);
        let mapped = {
            // SAFETY: the file is this program's own, in a directory of its own, and nobody changes it.
            let source = unsafe { RecordFile::map(&path, RECORD)? };
            loader_rate(source, batches)?
        };
        push(&mut rows, "loader, mapped", mapped);
        let positioned = loader_rate(RecordFile::open(&path, RECORD)?, batches)?;
        push(&mut rows, "loader, positioned reads", positioned);
        push(&mut rows, "ratio, mapped / (copy / 2)", mapped / (copy / 2.0));
        push(
            &mut rows,
            "ratio, positioned / (1 / (1/read + 1/copy))",
            positioned * (1.0 / read + 1.0 / copy),
        );
    }
    println!(
        "{:<46} {:>8} {:>8} {:>8}",
        format!("{rounds} rounds; GB/s, or a ratio"),
        "median",
        "min",
        "max"
    );
    for (name, values) in &mut rows {
        values.sort_by(f64::total_cmp);
        println!(
            "{name:<46} {:>8.2} {:>8.2} {:>8.2}",
            values[values.len() / 2],
            values[0],
            values[values.len() - 1]
        );
    }
    Ok(())
}

fn push<'n>(rows: &mut Vec<(&'n str, Vec<f64>)>, name: &'n str, value: f64) {
    match rows.iter_mut().find(|(n, _)| *n == name) {
        Some((_, values)) => values.push(value),
        None => rows.push((name, vec![value])),
    }
}

fn write_records(path: &Path, records: usize) -> anyhow::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut record = vec![0u8; RECORD];
    for k in 0..records {
        record.fill(k as u8);
        file.write_all(&record)?;
    }
    Ok(file.flush()?)
}

fn loader_rate(source: impl Records, batches: usize) -> anyhow::Result<f64> {
    // One more than by default: on two cores the copy out of a slot often waits for a worker.
    let slots: usize = std::env::var("HOST_SLOTS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    let device = Device::cpu_with(CpuOptions::default());
    let stream = device.new_stream()?;
    let loader = Loader::builder(source)
        .batch_size(BATCH)
        .workers(THREADS)
        .host_slots(slots)
        .drop_last(true)
        .shuffle(7)
        .build(&device)?;
    let mut start = Instant::now();
    let mut delivered = 0;
    let warm_up = loader.len().unwrap_or(4) as usize;
    'epochs: loop {
        for batch in loader.epoch(&stream)? {
            let batch = batch?;
            // The consumer's step: it is over when the batch is there.
            batch.synchronize()?;
            delivered += 1;
            // The first epoch maps and touches every page once.
            if delivered == warm_up {
                start = Instant::now();
            }
            if delivered == batches + warm_up {
                break 'epochs;
            }
        }
    }
    let rate = (batches * BATCH * RECORD) as f64 / start.elapsed().as_secs_f64() / 1e9;
    if std::env::var("STATS").is_ok() {
        println!("{}", loader.stats());
    }
    Ok(rate)
}

#[derive(Clone, Copy)]
enum Copy {
    Plain,
    NonTemporal,
}

/// Two threads copy batches between warm buffers of their own.
fn copy_rate(how: Copy, batches: usize) -> f64 {
    on_threads(batches, |_, bytes| {
        let from = vec![1u8; bytes];
        let mut to = vec![2u8; bytes];
        move || {
            for (to, from) in to.chunks_mut(RECORD).zip(from.chunks(RECORD)) {
                match how {
                    Copy::Plain => to.copy_from_slice(from),
                    Copy::NonTemporal => copy_non_temporal(to, from),
                }
            }
            std::hint::black_box(&to[bytes / 2]);
        }
    })
}

/// Two threads read random records into warm buffers of their own.
fn read_rate(path: &Path, records: usize, batches: usize) -> anyhow::Result<f64> {
    let file = std::fs::File::open(path)?;
    Ok(on_threads(batches, |thread, bytes| {
        let file = &file;
        let mut to = vec![2u8; bytes];
        let mut rng = SampleRng::new(thread as u64, 0, 0);
        move || {
            for row in to.chunks_mut(RECORD) {
                let offset = rng.below(records as u64) * RECORD as u64;
                // A benchmark of its own file: a failed read stops it.
                assert!(file.read_exact_at(row, offset).is_ok(), "reading the benchmark's own file");
            }
        }
    }))
}

/// GB/s of `batches` batches, half of each on each of two threads that start together.
fn on_threads<F: FnMut() + Send>(batches: usize, make: impl Fn(usize, usize) -> F + Sync) -> f64 {
    let bytes = BATCH / THREADS * RECORD;
    let barrier = std::sync::Barrier::new(THREADS + 1);
    let elapsed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|k| {
                let (make, barrier) = (&make, &barrier);
                scope.spawn(move || {
                    let mut pass = make(k, bytes);
                    pass();
                    barrier.wait();
                    (0..batches).for_each(|_| pass());
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        threads.into_iter().for_each(|t| assert!(t.join().is_ok(), "a copying thread ended well"));
        start.elapsed()
    });
    (batches * bytes * THREADS) as f64 / elapsed.as_secs_f64() / 1e9
}

#[cfg(target_arch = "x86_64")]
fn copy_non_temporal(to: &mut [u8], from: &[u8]) {
    #[target_feature(enable = "avx2")]
    fn streamed(to: &mut [u8], from: &[u8]) {
        use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
        let head = to.as_ptr().align_offset(32).min(to.len());
        to[..head].copy_from_slice(&from[..head]);
        let (to, from) = (&mut to[head..], &from[head..]);
        let blocks = to.len() / 32;
        for k in 0..blocks {
            // SAFETY: block k lies inside both slices; `to` is 32-byte aligned from `head` on.
            unsafe {
                let value = _mm256_loadu_si256(from.as_ptr().add(32 * k).cast());
                _mm256_stream_si256(to.as_mut_ptr().add(32 * k).cast(), value);
            }
        }
        to[32 * blocks..].copy_from_slice(&from[32 * blocks..]);
        _mm_sfence();
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected.
        unsafe { streamed(to, from) }
    } else {
        to.copy_from_slice(from);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_non_temporal(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}
