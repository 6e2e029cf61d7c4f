//! Failure cases of other loaders, by their number in the list of failure cases: copies that overlap, streams, and
//! slots that are used again too early.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Findings, Signed, Uniform, check_signed, device, device_with, eventually, range, within};
use warpfeed::{AllHeld, Batch, CpuOptions, Device, HostBatch, Loader, SampleRng, Stream};

const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// Has `stream` check that every byte of the batch is its number mod 251.
fn check_uniform(batch: &Batch, stream: &Stream, findings: &Findings) {
    let (findings, expected) = (findings.clone(), (batch.number() % 251) as u8);
    batch
        .enqueue(stream, move |b| {
            let x = b.get::<u8>("x").unwrap();
            let wrong = x.iter().filter(|&&byte| byte != expected).count();
            let text = || format!("batch {}: {wrong} bytes are not {expected}", b.number());
            findings.add(if wrong == 0 { Ok(()) } else { Err(text()) });
        })
        .unwrap();
}

#[test]
fn row_01_no_slot_is_filled_before_the_copy_out_of_it_is_done() {
    within(MINUTE, || {
        // The copies lag behind the workers all the time, so that a slot handed out too early would be overwritten.
        let device = device_with(CpuOptions::default().copy_delay(1, 10 * MS).copy_time(MS));
        let stream = device.new_stream().unwrap();
        let loader = Loader::builder(range(200))
            .decode(Uniform(4096))
            .workers(2)
            .host_slots(3)
            .build(&device)
            .unwrap();
        let findings = Findings::default();
        for batch in loader.epoch(&stream).unwrap() {
            check_uniform(&batch.unwrap(), &stream, &findings);
        }
        stream.synchronize().unwrap();
        findings.assert_all_right(200);
    });
}

#[test]
fn row_04_a_batch_is_handed_over_while_its_copy_is_under_way() {
    for (pin_limit, pageable) in [(usize::MAX, 0), (0, 1)] {
        if pin_limit > 0 && !support::can_lock(65_536) {
            continue;
        }
        within(MINUTE, move || {
            let copy = 1000 * MS;
            let device = device_with(CpuOptions::default().copy_time(copy).pin_limit(pin_limit));
            let stream = device.new_stream().unwrap();
            let loader = Loader::builder(range(1))
                .decode(Uniform(65_536))
                .workers(1)
                .epochs(1)
                .host_slots(1)
                .build(&device)
                .unwrap();
            let ran = Arc::new(AtomicBool::new(false));
            let start = Instant::now();
            let mut epoch = loader.epoch(&stream).unwrap();
            let batch = epoch.next().unwrap().unwrap();
            let at_work = ran.clone();
            batch.enqueue(&stream, move |_| at_work.store(true, Ordering::SeqCst)).unwrap();
            drop(batch);
            // A GPU's copies of pageable memory do wait: the counter says that there are any.
            if pageable == 0 || device.is_cpu() {
                assert!(start.elapsed() < copy / 2, "the host waited {:?} for a copy", start.elapsed());
                assert!(!ran.load(Ordering::SeqCst), "work ran before the copy that it reads");
            }
            stream.synchronize().unwrap();
            assert!(ran.load(Ordering::SeqCst) && device.counters().copy_busy >= copy);
            assert_eq!(
                device.counters().pageable_copies,
                pageable,
                "a copy out of pageable memory is counted"
            );
        });
    }
}

#[test]
fn row_07_one_slot_makes_the_producer_wait_and_stays_right() {
    within(MINUTE, || {
        let device = device_with(CpuOptions::default().copy_time(20 * MS));
        let stream = device.new_stream().unwrap();
        let start = Instant::now();
        let loader = Loader::builder(range(50))
            .decode(Uniform(4096))
            .workers(2)
            .host_slots(1)
            .device_slots(1)
            .build(&device)
            .unwrap();
        let findings = Findings::default();
        for batch in loader.epoch(&stream).unwrap() {
            check_uniform(&batch.unwrap(), &stream, &findings);
        }
        stream.synchronize().unwrap();
        findings.assert_all_right(50);
        assert!(start.elapsed() >= 1000 * MS, "50 copies of 20 ms in {:?}", start.elapsed());
    });
}

#[test]
fn row_11_a_device_slot_waits_for_every_stream_that_used_it() {
    within(MINUTE, || {
        let device = device_with(CpuOptions::default().copy_delay(11, MS / 2));
        let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
        let loader = Loader::builder(range(4000))
            .decode(Signed(64))
            .batch_size(4)
            .workers(2)
            .device_slots(4)
            .shuffle(11)
            .build(&device)
            .unwrap();
        let findings = Findings::default();
        let (mut rng, mut held) = (SampleRng::new(11, 0, 0), Vec::new());
        for batch in loader.epoch(&streams[0]).unwrap() {
            let batch = batch.unwrap();
            for stream in &streams {
                let (findings, indices) = (findings.clone(), batch.indices().to_vec());
                let late = rng.chance(0.1).then(|| Duration::from_micros(rng.below(3000)));
                let work = move |b: HostBatch<'_>| {
                    late.into_iter().for_each(std::thread::sleep);
                    findings.add(check_signed(&b, &indices));
                };
                batch.enqueue(stream, work).unwrap();
            }
            held.push(batch);
            while held.len() == 4 || (!held.is_empty() && rng.chance(0.4)) {
                held.swap_remove(rng.below(held.len() as u64) as usize);
            }
        }
        streams.iter().for_each(|s| s.synchronize().unwrap());
        findings.assert_all_right(2000);
    });
}

#[test]
fn row_11_a_batch_that_outlives_its_loader_keeps_its_memory_for_the_work_on_it() {
    within(MINUTE, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let findings = Findings::default();
        let loader =
            Loader::builder(range(8)).decode(Signed(4096)).batch_size(4).workers(2).build(&device).unwrap();
        let mut epoch = loader.epoch(&stream).unwrap();
        let batches = [epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()];
        drop(epoch);
        drop(loader);
        for batch in batches {
            let (findings, indices) = (findings.clone(), batch.indices().to_vec());
            let work = move |b: HostBatch<'_>| {
                std::thread::sleep(20 * MS);
                findings.add(check_signed(&b, &indices));
            };
            batch.enqueue(&stream, work).unwrap();
        }
        assert!(device.counters().device_bytes > 0, "freed under the work on it");
        stream.synchronize().unwrap();
        findings.assert_all_right(2);
        eventually("all is freed", || {
            let c = device.counters();
            (c.host_bytes, c.device_bytes, c.pinned_bytes, c.live_streams) == (0, 0, 0, 1)
        });
    });
}

#[test]
fn row_12_epochs_make_no_streams_events_or_memory() {
    within(MINUTE, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader =
            Loader::builder(range(64)).decode(Uniform(256)).batch_size(8).workers(2).build(&device).unwrap();
        let mut after = Vec::new();
        for _ in 0..20 {
            let batches = loader.epoch(&stream).unwrap().map(|b| drop(b.unwrap())).count();
            assert_eq!(batches, 8);
            let c = device.counters();
            after.push([c.streams, c.live_streams, c.events, c.host_bytes, c.device_bytes, c.pins]);
        }
        assert!(after[1..].iter().all(|c| *c == after[1]), "{after:?}");
        assert_eq!(after[0][0], 2, "one stream of the loader's, and the consumer's");
        drop(loader);
        eventually("the loader's memory is freed", || {
            let c = device.counters();
            (c.live_streams, c.host_bytes, c.device_bytes) == (1, 0, 0)
        });
    });
}

/// 20 batches that take 10 ms to copy and 10 ms of work each; how long they take in all.
fn copies_and_work(device_slots: usize) -> Duration {
    let device = device_with(CpuOptions::default().copy_time(10 * MS));
    let stream = device.new_stream().unwrap();
    let loader = Loader::builder(range(20))
        .decode(Uniform(64))
        .workers(1)
        .device_slots(device_slots)
        .on_all_held(AllHeld::Wait(MINUTE))
        .build(&device)
        .unwrap();
    let start = Instant::now();
    for batch in loader.epoch(&stream).unwrap() {
        batch.unwrap().enqueue(&stream, |_| std::thread::sleep(10 * MS)).unwrap();
    }
    stream.synchronize().unwrap();
    start.elapsed()
}

#[test]
fn row_22_a_copy_runs_while_the_work_on_the_last_batch_does() {
    within(2 * MINUTE, || {
        // A serial run takes 400 ms, the ideal one 210. A busy machine gets three tries.
        let mut tries = Vec::new();
        for _ in 0..3 {
            let (serial, overlapped) = (copies_and_work(1), copies_and_work(2));
            assert!(serial >= 400 * MS, "one slot can't overlap: {serial:?}");
            if overlapped <= serial.mul_f64(0.75) {
                return;
            }
            tries.push((serial, overlapped));
        }
        panic!("copies and work do not overlap: {tries:?}");
    });
}

/// Runs `loaders` loaders, each on a thread and streams of its own; the time that they take, and the streams used.
fn side_by_side(device: &Device, loaders: usize) -> (Duration, Vec<u64>) {
    let start = Instant::now();
    let threads: Vec<_> = (0..loaders)
        .map(|_| {
            let device = device.clone();
            std::thread::spawn(move || {
                let stream = device.new_stream().unwrap();
                let loader =
                    Loader::builder(range(40)).decode(Uniform(64)).workers(1).build(&device).unwrap();
                for batch in loader.epoch(&stream).unwrap() {
                    batch.unwrap().enqueue(&stream, |_| std::thread::sleep(5 * MS)).unwrap();
                }
                stream.synchronize().unwrap();
                stream.id()
            })
        })
        .collect();
    let ids = threads.into_iter().map(|t| t.join().unwrap()).collect();
    (start.elapsed(), ids)
}

#[test]
fn row_23_two_loaders_do_not_serialise_each_other() {
    within(2 * MINUTE, || {
        let device = device();
        let mut tries = Vec::new();
        for _ in 0..3 {
            let (one, _) = side_by_side(&device, 1);
            let (two, ids) = side_by_side(&device, 2);
            assert!(!ids.contains(&0), "0 is the null stream");
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 2, "{ids:?}");
            if two <= one.mul_f64(1.5) {
                return;
            }
            tries.push((one, two));
        }
        panic!("two loaders take as long as one after the other: {tries:?}");
    });
}

#[test]
fn row_24_many_consumers_share_the_batches_of_one_loader() {
    within(2 * MINUTE, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader = Loader::builder(range(20_000))
            .decode(Signed(32))
            .batch_size(4)
            .workers(2)
            .device_slots(4)
            .shuffle(24)
            .on_all_held(AllHeld::Wait(MINUTE))
            .build(&device)
            .unwrap();
        let (findings, taken) = (Findings::default(), Arc::new(AtomicUsize::new(0)));
        let (give, take) = crossbeam_channel::bounded::<Batch>(0);
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let (take, findings, taken) = (take.clone(), findings.clone(), taken.clone());
                let stream = device.new_stream().unwrap();
                std::thread::spawn(move || {
                    for batch in take {
                        let (findings, indices) = (findings.clone(), batch.indices().to_vec());
                        batch.enqueue(&stream, move |b| findings.add(check_signed(&b, &indices))).unwrap();
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    stream.synchronize().unwrap();
                })
            })
            .collect();
        drop(take);
        let mut seen = HashSet::new();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            seen.extend(batch.indices().iter().copied());
            give.send(batch).unwrap();
        }
        drop(give);
        consumers.into_iter().for_each(|c| c.join().unwrap());
        assert_eq!((taken.load(Ordering::Relaxed), seen.len()), (5000, 20_000));
        findings.assert_all_right(5000);
    });
}
