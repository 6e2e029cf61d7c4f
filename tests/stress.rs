//! The stress test: what arrives on the device is what the producers wrote, under every interleaving that 20 seeds of
//! random delays bring about. A slot that is filled, copied into or read too early shows as a checksum that differs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::bounded;
use support::{Findings, Signed, check_signed, device_with, range, within};
use warpfeed::{AllHeld, Batch, CpuOptions, HostBatch, Loader, SampleRng, Stream};

const SEEDS: u64 = 20;
const EPOCHS: u64 = 4;
const BATCHES: u64 = 2000;
const ROWS: usize = 4;
/// Seeds that run at the same time: they sleep more than they work.
const LANES: usize = 10;

/// Checks the batch on `stream`: at once, and now and then once more after a while, so that the slot is read late.
fn check(batch: &Batch, stream: &Stream, rng: &mut SampleRng, findings: &Findings) {
    let (findings, indices) = (findings.clone(), batch.indices().to_vec());
    let late = rng.chance(0.1).then(|| Duration::from_micros(rng.below(4000)));
    let work = move |b: HostBatch<'_>| {
        let mut outcome = check_signed(&b, &indices);
        if let (Some(late), Ok(())) = (late, &outcome) {
            std::thread::sleep(late);
            outcome = check_signed(&b, &indices).map_err(|text| format!("{text}, {late:?} later"));
        }
        findings.add(outcome);
    };
    batch.enqueue(stream, work).unwrap();
}

/// 2,000 batches of 4 workers through 2 device slots, each used on two streams by two threads.
fn run(seed: u64) {
    let device = device_with(CpuOptions::default().copy_delay(seed, Duration::from_millis(5)));
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let loader = Loader::builder(range(BATCHES / EPOCHS * ROWS as u64))
        .decode(Signed(48))
        .batch_size(ROWS)
        .workers(4)
        .host_slots(4)
        .device_slots(2)
        .shuffle(seed)
        .epochs(EPOCHS)
        .on_all_held(AllHeld::Wait(Duration::from_secs(60)))
        .build(&device)
        .unwrap();
    let findings = Findings::default();
    let (give, take) = bounded::<Batch>(1);
    std::thread::scope(|scope| {
        let (second, found) = (&streams[1], &findings);
        scope.spawn(move || {
            let (mut rng, mut kept) = (SampleRng::new(seed, 2, 0), None);
            for batch in take {
                if rng.chance(0.5) {
                    // What was kept until now goes before the new one is used, or after.
                    drop(kept.take());
                }
                if rng.chance(0.3) {
                    batch.record_stream(second).unwrap();
                }
                check(&batch, second, &mut rng, found);
                match rng.below(8) {
                    0 => std::thread::sleep(Duration::from_micros(rng.below(1000))),
                    1..4 => kept = Some(batch),
                    _ => drop(batch),
                }
            }
        });
        let mut rng = SampleRng::new(seed, 1, 0);
        for epoch in 0..EPOCHS {
            let mut number = 0;
            for batch in loader.epoch(&streams[0]).unwrap() {
                let batch = batch.unwrap();
                assert_eq!((batch.epoch(), batch.number()), (epoch, number));
                number += 1;
                check(&batch, &streams[0], &mut rng, &findings);
                give.send(batch).unwrap();
            }
            assert_eq!(number, BATCHES / EPOCHS);
        }
        drop(give);
    });
    streams.iter().for_each(|s| s.synchronize().unwrap());
    findings.assert_all_right(2 * BATCHES);
    let report = loader.close().unwrap();
    assert_eq!((report.stats.batches, report.batches_alive, report.leaked), (BATCHES, 0, 0));
    assert_eq!(device.counters().h2d_copies, BATCHES);
}

#[test]
fn row_05_the_checksums_on_the_device_are_those_of_the_producers() {
    within(Duration::from_secs(120), || {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= SEEDS {
                            break;
                        }
                        run(seed);
                    }
                });
            }
        });
        assert!(next.into_inner() >= SEEDS);
    });
}
