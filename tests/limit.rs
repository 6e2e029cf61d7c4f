//! The loader names the stage that limits a run, whether or not the consumer's host code waits for its device.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use warpfeed::{CpuOptions, Device, Field, Loader, Stage, Stats, source};

const BATCH: u32 = 8;
const STEPS: u32 = 25;
const UNIT: Duration = Duration::from_millis(4);

/// Runs steps that take so many units to decode (by two workers), to copy and to compute on.
fn run([decode, copy, compute]: [u32; 3], synchronous: bool) -> Stats {
    let device = Device::cpu_with(CpuOptions::default().copy_time(UNIT * copy));
    let stream = device.new_stream().unwrap();
    let sample = UNIT * decode * 2 / BATCH;
    let loader = Loader::builder(source::from_fn(u64::from(BATCH * STEPS), Ok))
        .decode_with([Field::scalar::<u64>("x")], move |s, row| {
            sleep(sample);
            let x = *s.read()?;
            Ok(row.set("x", x)?)
        })
        .batch_size(BATCH as usize)
        .workers(2)
        .epochs(1)
        .build(&device)
        .unwrap();
    for batch in loader.epoch(&stream).unwrap() {
        let batch = batch.unwrap();
        batch.enqueue(&stream, move |_| sleep(UNIT * compute)).unwrap();
        if synchronous {
            stream.synchronize().unwrap();
        }
        drop(batch);
    }
    loader.stats()
}

#[test]
fn the_longest_stage_is_the_limit() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        for (times, limit) in
            [([4, 1, 1], Stage::Decode), ([1, 4, 1], Stage::Copy), ([1, 1, 4], Stage::Consumer)]
        {
            for synchronous in [true, false] {
                // A machine that is busy elsewhere can make another stage the longest one; not three times.
                let mut stats = run(times, synchronous);
                for _ in 0..2 {
                    if stats.limiting() != limit {
                        stats = run(times, synchronous);
                    }
                }
                done.send((times, limit, synchronous, stats)).unwrap();
            }
        }
    });
    for _ in 0..6 {
        let (times, limit, synchronous, stats) = finished.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(stats.limiting(), limit, "{times:?}, synchronous: {synchronous}\n{stats}");
    }
}
