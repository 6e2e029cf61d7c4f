//! Waiting: the first batch, a straggler, and an idle consumer, each against what it can be at best.
//!
//! * First batch: time from the end of `build` to the first batch on the device, over the time that loading and
//!   copying one batch take (timed waits, so that two cores can show it). Bound: 1.5.
//! * Straggler: 64 samples of 1 ms, sample 0 takes 200 ms, 4 workers, batch 4. In order the whole takes at most the
//!   ideal plus 200 ms; as ready the first batch does not wait for it.
//! * Idle: CPU time of the process while the consumer does nothing for a second, in percent of one core. Bound: 2 %.
#![allow(clippy::print_stdout)] // A benchmark prints its table.

use std::time::{Duration, Instant};

use warpfeed::{CpuOptions, Device, Field, Loader, Order, source};

fn main() -> anyhow::Result<()> {
    let smoke = std::env::args().any(|a| a == "--smoke" || a == "--test") || cfg!(debug_assertions);
    let rounds = if smoke { 1 } else { 5 };
    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut push = |name: &'static str, value: f64| match rows.iter_mut().find(|(n, _)| *n == name) {
        Some((_, values)) => values.push(value),
        None => rows.push((name, vec![value])),
    };
    for _ in 0..rounds {
        push("first batch / (load + copy)", first_batch()?);
        let (first, all) = straggler(Order::AsReady)?;
        push("straggler, as ready: first batch, ms", first);
        push("straggler, as ready: all, ms", all);
        let (first, all) = straggler(Order::InOrder)?;
        push("straggler, in order: first batch, ms", first);
        push("straggler, in order: all, ms", all);
        push("straggler, in order: all - ideal, ms", all - 16.0);
        push("idle consumer, % of a core", idle(if smoke { 100 } else { 1000 })?);
    }
    println!("{:<40} {:>8} {:>8} {:>8}", format!("{rounds} rounds"), "median", "min", "max");
    for (name, values) in &mut rows {
        values.sort_by(f64::total_cmp);
        println!(
            "{name:<40} {:>8.2} {:>8.2} {:>8.2}",
            values[values.len() / 2],
            values[0],
            values[values.len() - 1]
        );
    }
    Ok(())
}

/// 2 workers wait 1 ms a sample, batch 40: a load takes 20 ms, and a copy 10 ms on the modelled link.
fn first_batch() -> anyhow::Result<f64> {
    let device = Device::cpu_with(CpuOptions::default().copy_time(Duration::from_millis(10)));
    let stream = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(4000, Ok))
        .decode_with([Field::scalar::<u64>("x")], |sample, row| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(row.set("x", *sample.read()?)?)
        })
        .batch_size(40)
        .workers(2)
        .build(&device)?;
    let built = Instant::now();
    let batch = loader.epoch(&stream)?.next().ok_or_else(|| anyhow::anyhow!("a first batch"))??;
    batch.synchronize()?;
    Ok(built.elapsed().as_secs_f64() / 0.030)
}

/// Milliseconds to the first batch and to the last.
fn straggler(order: Order) -> anyhow::Result<(f64, f64)> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(64, Ok))
        .decode_with([Field::scalar::<u64>("x")], |sample, row| {
            let x = *sample.read()?;
            std::thread::sleep(Duration::from_millis(if x == 0 { 200 } else { 1 }));
            Ok(row.set("x", x)?)
        })
        .batch_size(4)
        .workers(4)
        .host_slots(16)
        .device_slots(4)
        .order(order)
        .epochs(1)
        .build(&device)?;
    let start = Instant::now();
    let mut first = None;
    let mut seen = 0;
    for batch in loader.epoch(&stream)? {
        seen += batch?.len();
        first.get_or_insert_with(|| start.elapsed());
    }
    anyhow::ensure!(seen == 64, "every sample once");
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    Ok((ms(first.unwrap_or_default()), ms(start.elapsed())))
}

/// CPU time while nobody takes a batch.
fn idle(ms: u64) -> anyhow::Result<f64> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(1 << 30, Ok))
        .decode_with([Field::scalar::<u64>("x")], |sample, row| Ok(row.set("x", *sample.read()?)?))
        .batch_size(32)
        .workers(2)
        .build(&device)?;
    let mut epoch = loader.epoch(&stream)?;
    for _ in 0..10 {
        epoch.next().transpose()?;
    }
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time()?;
    std::thread::sleep(Duration::from_millis(ms));
    Ok((cpu_time()? - before).as_secs_f64() / (ms as f64 / 1e3) * 100.0)
}

fn cpu_time() -> anyhow::Result<Duration> {
    // SAFETY: all-zero bytes are a timespec, and clock_gettime fills it.
    let (status, time) = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        (libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time), time)
    };
    anyhow::ensure!(status == 0, "the process's CPU clock");
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
