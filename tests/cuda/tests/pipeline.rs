//! The pipeline on a CUDA device: what it calls, and that it delivers what the CPU device does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

extern crate warpfeed_cuda as warpfeed;

#[path = "support/simulated.rs"]
mod simulated;
#[path = "../../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use simulated::sim;
use support::{Signed, device, range, within};
use warpfeed::{Batch, BatchSpec, CpuOptions, Device, Field, Loader, OnError, Order, Stream};

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// One test at a time: the driver's books are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_batch_costs_one_copy_two_records_and_two_waits() {
    within(MINUTE, || {
        let _alone = alone();
        for (workers, device_slots) in [(2, 2), (2, 3), (0, 2)] {
            let batches = 200;
            let device = device();
            let stream = device.new_stream().unwrap();
            sim().take();
            let loader = Loader::builder(range(batches * 4))
                .decode(Signed(1000))
                .batch_size(4)
                .workers(workers)
                .device_slots(device_slots)
                .epochs(1)
                .build(&device)
                .unwrap();
            for batch in loader.epoch(&stream).unwrap() {
                drop(batch.unwrap());
            }
            stream.synchronize().unwrap();
            let report = sim().take();
            let counters = device.counters();
            // A device slot has no gate the first time.
            let gates = batches - device_slots as u64;
            assert_eq!(counters.h2d_copies, batches);
            assert_eq!(counters.records, 2 * batches);
            assert_eq!(counters.waits, batches + gates);
            assert_eq!((counters.d2h_copies, counters.pageable_copies), (0, 0));
            // The same in the driver's books, where measuring the link twice at `build` adds its own.
            assert_eq!(report.calls_of("cuMemcpyHtoDAsync"), batches + 2);
            assert_eq!(report.calls_of("cuEventRecord"), 2 * batches + 4);
            assert_eq!(report.calls_of("cuStreamWaitEvent"), batches + gates);
            // Nothing else is enqueued, and the host waits for nothing but the link's measure and the test's own wait.
            for call in [
                "cuLaunchHostFunc",
                "cuLaunchKernel",
                "cuMemcpyDtoHAsync",
                "cuCtxSynchronize",
                "cuEventSynchronize",
            ] {
                assert_eq!(report.calls_of(call), 0, "{call}");
            }
            assert_eq!(report.calls_of("cuStreamSynchronize"), 3);
            assert!(report.accesses_checked >= 2 * batches, "{}", report.accesses_checked);
            assert!(report.findings().is_empty(), "{:?}", report.findings());
        }
    });
}

#[test]
fn the_steady_state_makes_and_frees_nothing() {
    within(MINUTE, || {
        let _alone = alone();
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader =
            Loader::builder(range(400)).decode(Signed(64)).batch_size(2).workers(2).build(&device).unwrap();
        let epoch = || loader.epoch(&stream).unwrap().for_each(|b| drop(b.unwrap()));
        epoch();
        let before = sim().take().live;
        (0..5).for_each(|_| epoch());
        let report = sim().take();
        assert_eq!(report.live, before);
        for call in [
            "cuMemAlloc",
            "cuMemHostAlloc",
            "cuMemFree",
            "cuMemFreeHost",
            "cuStreamCreate",
            "cuEventCreate",
            "cuEventDestroy",
        ] {
            assert_eq!(report.calls_of(call), 0, "{call}");
        }
    });
}

/// Every byte of every batch, with what belongs to it.
fn everything(
    device: &Device,
    order: Order,
    workers: usize,
    host_slots: usize,
    device_slots: usize,
) -> Vec<Vec<u8>> {
    let stream: Stream = device.new_stream().unwrap();
    let fields =
        [Field::scalar::<u64>("x"), Field::new::<u8>("noise", &[37]), Field::ragged::<u16>("words", 40)];
    let loader = Loader::builder(range(203))
        .decode_with(fields, |sample, row| {
            let x = *sample.read()?;
            anyhow::ensure!(x % 31 != 7, "not this one");
            let mut rng = sample.rng();
            row.set("x", x)?;
            row.slice::<u8>("noise")?.iter_mut().for_each(|b| *b = rng.u64() as u8);
            let words = row.ragged::<u16>("words", (x % 41) as usize)?;
            words.iter_mut().for_each(|w| *w = rng.u64() as u16);
            Ok(())
        })
        .batch_size(8)
        .shuffle(5)
        .order(order)
        .workers(workers)
        .host_slots(host_slots)
        .device_slots(device_slots)
        .on_error(OnError::Skip { limit: 100 })
        .build(device)
        .unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        for batch in loader.epoch(&stream).unwrap() {
            all.push(bytes(&batch.unwrap()));
        }
    }
    all
}

fn bytes(batch: &Batch) -> Vec<u8> {
    let spec: &BatchSpec = batch.spec();
    assert_eq!(spec.capacity(), 8);
    let mut bytes = Vec::new();
    for x in batch.host::<u64>("x").unwrap().iter() {
        bytes.extend(x.to_le_bytes());
    }
    bytes.extend(batch.host::<u8>("noise").unwrap().iter());
    bytes.extend(batch.host::<bool>("valid").unwrap().iter().map(|&v| u8::from(v)));
    for row in 0..batch.len() {
        for word in batch.host_ragged::<u16>("words", row).unwrap().iter() {
            bytes.extend(word.to_le_bytes());
        }
    }
    for index in batch.indices() {
        bytes.extend(index.to_le_bytes());
    }
    bytes
}

#[test]
fn batches_are_byte_for_byte_those_of_the_cpu_device() {
    within(2 * MINUTE, || {
        let _alone = alone();
        let expected = everything(&Device::cpu(), Order::InOrder, 1, 3, 2);
        assert_eq!(expected.len(), 2 * 26);
        for (workers, host_slots, device_slots) in [(0, 1, 1), (1, 3, 2), (2, 2, 1), (3, 4, 3)] {
            for late in [0, 2] {
                let delay = CpuOptions::default().copy_delay(workers as u64, Duration::from_millis(late));
                let device = simulated::device_with(delay);
                let found = everything(&device, Order::InOrder, workers, host_slots, device_slots);
                assert!(found == expected, "{workers} workers, {host_slots} and {device_slots} slots");
            }
        }
    });
}

#[test]
fn ragged_rows_are_read_on_the_device_by_table_and_heap() {
    within(MINUTE, || {
        let _alone = alone();
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader = Loader::builder(range(20))
            .decode_with(
                [Field::ragged::<u32>("words", 9), Field::ragged::<u8>("text", 30)],
                |sample, row| {
                    let x = *sample.read()? as usize;
                    row.ragged::<u32>("words", x % 10)?.fill(x as u32);
                    row.ragged::<u8>("text", x)?.fill(x as u8);
                    Ok(())
                },
            )
            .batch_size(6)
            .build(&device)
            .unwrap();
        let cuda = stream.cudarc().unwrap();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let (table, heap) = batch.ragged_view::<u32>("words").unwrap().cuda(&stream).unwrap();
            let (table, heap) = (cuda.clone_dtoh(&*table).unwrap(), cuda.clone_dtoh(&*heap).unwrap());
            assert_eq!(table.len(), 2 * batch.capacity());
            for row in 0..batch.len() {
                let (from, len) = (table[2 * row] as usize / 4, table[2 * row + 1] as usize);
                assert_eq!(heap[from..from + len], *batch.host_ragged::<u32>("words", row).unwrap());
                assert_eq!(heap[from..from + len], vec![batch.indices()[row] as u32; len]);
            }
        }
        let findings = sim().take();
        assert!(findings.findings().is_empty(), "{:?}", findings.findings());
    });
}

#[test]
fn work_on_batches_takes_a_bounded_number_of_buffers() {
    within(MINUTE, || {
        let _alone = alone();
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader =
            Loader::builder(range(100)).decode(Signed(64)).batch_size(5).workers(1).build(&device).unwrap();
        let pins = || device.counters().pins;
        let before = pins();
        let (release, held) = std::sync::mpsc::channel::<()>();
        stream
            .enqueue(move || {
                let _ = held.recv();
            })
            .unwrap();
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        // Two buffers for each of two device slots.
        for _ in 0..4 {
            batch.enqueue(&stream, |_| ()).unwrap();
        }
        assert_eq!(pins() - before, 4);
        // The next call waits until the stream gets on.
        let (done, waited) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                batch.enqueue(&stream, |_| ()).unwrap();
                done.send(()).unwrap();
            });
            assert!(waited.recv_timeout(Duration::from_millis(100)).is_err(), "a fifth buffer was made");
            drop(release);
            waited.recv_timeout(MINUTE).unwrap();
        });
        for _ in 0..100 {
            batch.enqueue(&stream, |_| ()).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(pins() - before, 4);
    });
}

#[test]
fn a_consumer_that_keeps_pageable_copies_waiting_is_named() {
    within(2 * MINUTE, || {
        let _alone = alone();
        // What limits is judged by times: a busy machine gets five tries.
        let mut tries = Vec::new();
        for _ in 0..5 {
            let device = simulated::device_with(CpuOptions::default().lock(false));
            let stream = device.new_stream().unwrap();
            let loader = Loader::builder(range(60))
                .decode(Signed(64))
                .batch_size(2)
                .workers(1)
                .build(&device)
                .unwrap();
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                stream.enqueue(|| std::thread::sleep(Duration::from_millis(4))).unwrap();
                drop(batch);
            }
            let stats = loader.stats();
            assert!(!stats.pinned);
            if stats.limiting() == warpfeed::Stage::Consumer {
                return;
            }
            tries.push(stats.to_string());
        }
        panic!("another stage is named: {tries:?}");
    });
}
