//! Failure cases of other loaders, by their number in the list of failure cases: page-locked memory, budgets, and what
//! happens where it is refused. Sizes are small, since the usual limit on locked memory is 8 MiB a process; what is
//! checked does not depend on them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

mod support;

use std::time::Duration;

use support::{Signed, Uniform, can_lock, device, device_with, eventually, logged, range, within};
use warpfeed::{Counters, CpuOptions, Device, ErrorKind, Field, Loader, Stream};

const MINUTE: Duration = Duration::from_secs(60);

/// The bytes of all samples of an epoch, and how many batches there were.
fn deliver(loader: &Loader, stream: &Stream) -> (Vec<u8>, usize) {
    let (mut all, mut batches) = (Vec::new(), 0);
    for batch in loader.epoch(stream).unwrap() {
        all.extend_from_slice(&batch.unwrap().host::<u8>("payload").unwrap());
        batches += 1;
    }
    (all, batches)
}

/// 32 samples of 1000 bytes in 8 batches, on a device with these options: their bytes, the device, whether the slots
/// are locked, and what `build` logged.
fn run(options: CpuOptions, host_slots: usize) -> (Vec<u8>, Device, bool, Vec<String>) {
    let device = device_with(options);
    let stream = device.new_stream().unwrap();
    let builder = Loader::builder(range(32))
        .decode(Signed(1000))
        .batch_size(4)
        .workers(2)
        .host_slots(host_slots)
        .epochs(1);
    let (loader, log) = logged(|| builder.build(&device).unwrap());
    let (bytes, batches) = deliver(&loader, &stream);
    assert_eq!(batches, 8);
    // The device works on after a refusal.
    stream.record(&device.new_event().unwrap()).unwrap();
    stream.synchronize().unwrap();
    let pinned = loader.stats().pinned;
    (bytes, device, pinned, log)
}

fn warnings(log: &[String]) -> Vec<&String> {
    log.iter().filter(|line| line.starts_with("WARN")).collect()
}

#[test]
fn row_09_locked_memory_stays_within_the_budget_and_is_given_back() {
    within(MINUTE, || {
        let (row, slots) = (65_536, 3);
        let device = device();
        let stream = device.new_stream().unwrap();
        let budget = slots * (row + 4096);
        let loader = Loader::builder(range(8))
            .decode(Uniform(row))
            .workers(2)
            .host_budget(budget)
            .host_slots(slots)
            .build(&device)
            .unwrap();
        assert_eq!(loader.epoch(&stream).unwrap().map(|b| drop(b.unwrap())).count(), 8);
        let c = device.counters();
        assert!(c.host_bytes > 0 && c.host_bytes <= budget as u64, "{c:?}");
        assert!(c.pinned_peak <= budget as u64, "{c:?}");
        assert!(!can_lock(row) || c.pinned_peak == c.host_bytes, "{c:?}");
        drop(loader);
        eventually("the slots are freed", || {
            let c = device.counters();
            (c.pinned_bytes, c.host_bytes, c.device_bytes) == (0, 0, 0) && c.unpins == c.pins
        });
    });
}

#[test]
fn row_13_a_refused_lock_leaves_no_trace_but_one_warning() {
    within(MINUTE, || {
        let (expected, ..) = run(CpuOptions::default(), 3);
        let (bytes, device, pinned, log) = run(CpuOptions::default().pin_limit(0), 3);
        assert_eq!(bytes.len(), 32_000);
        assert!(bytes == expected, "pageable memory delivers the same bytes");
        assert!(!pinned, "the statistics say that the slots are pageable");
        let c = device.counters();
        assert_eq!((c.pins, c.pinned_bytes, c.pageable_copies), (0, 0, c.h2d_copies));
        let slot = c.host_bytes / 3;
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 1, "{log:?}");
        assert!(warnings[0].contains(&format!("{slot} bytes")), "{warnings:?}");
        assert!(
            warnings[0].contains("page-locking") && warnings[0].contains("RLIMIT_MEMLOCK"),
            "{warnings:?}"
        );
    });
}

#[test]
fn row_14_a_refused_lock_is_not_tried_again_and_the_budget_is_fixed() {
    within(MINUTE, || {
        let (_, device, ..) = run(CpuOptions::default().pin_limit(0), 4);
        assert_eq!(device.counters().pin_failures, 1);
        // The default budget is at most 1 GiB: a slot over it is refused with the arithmetic, before any allocation.
        let build = Loader::builder(range(1)).decode(Uniform((1 << 30) + 1)).workers(1).build(&device);
        let e = build.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
        assert!(e.to_string().contains("host_budget"), "{e}");
        assert_eq!(device.counters().pin_failures, 1);
        eventually("nothing was allocated", || device.counters().host_bytes == 0);
    });
}

/// The counters after each batch of an epoch of `batches`.
fn counters_by_batch(batches: u64, host_slots: usize) -> Vec<Counters> {
    let device = device();
    let stream = device.new_stream().unwrap();
    let loader = Loader::builder(range(batches))
        .decode(Uniform(16))
        .workers(2)
        .host_slots(host_slots)
        .build(&device)
        .unwrap();
    let after = |batch: warpfeed::Result<warpfeed::Batch>| {
        drop(batch.unwrap());
        device.counters()
    };
    let all: Vec<_> = loader.epoch(&stream).unwrap().map(after).collect();
    assert_eq!(all.len() as u64, batches);
    all
}

#[test]
fn row_15_ten_thousand_batches_lock_no_more_than_the_slots() {
    within(2 * MINUTE, || {
        let all = counters_by_batch(10_000, 4);
        assert!(all[0].pins + all[0].pin_failures <= 4 + 2, "{:?}", all[0]);
        let calls = |c: &Counters| (c.pins, c.unpins, c.pin_failures, c.host_bytes, c.events);
        assert!(all.iter().all(|c| calls(c) == calls(&all[0])), "{:?}", all.last());
    });
}

#[test]
fn row_16_a_ceiling_on_locked_memory_is_kept_and_named() {
    within(MINUTE, || {
        // 8 slots of about 4 KiB are asked for, and 10 KiB may be locked.
        let ceiling = 10_240;
        let (expected, ..) = run(CpuOptions::default(), 8);
        let (bytes, device, pinned, log) = run(CpuOptions::default().pin_limit(ceiling), 8);
        assert!(bytes == expected && !pinned);
        let c = device.counters();
        assert!(c.pinned_peak <= ceiling as u64, "{c:?}");
        assert_eq!(c.pin_failures, 1);
        assert!(c.pageable_copies > 0, "{c:?}");
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 1, "{log:?}");
        // A CUDA driver does not say what its ceiling is.
        let named = warnings[0].contains(&ceiling.to_string()) || !device.is_cpu();
        assert!(named || !can_lock(4096), "{warnings:?}");
    });
}

#[test]
fn row_16_a_small_budget_makes_fewer_slots_and_too_small_a_one_none() {
    within(MINUTE, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let build = |host, on_device| {
            let builder = Loader::builder(range(32)).decode(Signed(1000)).batch_size(4).workers(2);
            let builder = builder.host_slots(8).device_slots(8).host_budget(host).device_budget(on_device);
            logged(|| builder.build(&device))
        };
        let (whole, log) = build(1 << 20, 1 << 20);
        let whole = whole.unwrap();
        let slot = whole.spec().bytes();
        assert!(warnings(&log).is_empty(), "{log:?}");
        assert_eq!(device.counters().host_bytes, 8 * slot as u64);
        let expected = deliver(&whole, &stream);
        drop(whole);
        eventually("the slots are freed", || device.counters().host_bytes == 0);

        let page = slot.next_multiple_of(4096); // memory comes in whole pages
        let (loader, log) = build(3 * page + page / 2, 2 * page);
        let loader = loader.unwrap();
        let c = device.counters();
        assert_eq!((c.host_bytes, c.device_bytes), (3 * slot as u64, 2 * slot as u64));
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 2, "one line each: {log:?}");
        assert!(warnings[0].contains("host_slots") && warnings[1].contains("device_slots"), "{log:?}");
        assert!(deliver(&loader, &stream) == expected, "the same bytes through fewer slots");

        for (host, on_device, option) in [(page - 1, page, "host_budget"), (page, page - 1, "device_budget")]
        {
            let e = build(host, on_device).0.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::LimitExceeded);
            for part in [option, &page.to_string(), &(page - 1).to_string()] {
                assert!(e.to_string().contains(part), "{part}: {e}");
            }
        }
        let small = device_with(CpuOptions::default().memory(slot));
        let refused = Loader::builder(range(32)).decode(Signed(1000)).batch_size(4).workers(2).build(&small);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Device);
        eventually("what was made before is freed", || small.counters().host_bytes == 0);
    });
}

#[test]
fn row_18_batches_of_many_sizes_never_grow_the_memory() {
    within(MINUTE, || {
        let (largest, budget) = (65_536, 4 * (65_536 + 4096));
        let device = device();
        let stream = device.new_stream().unwrap();
        // A batch of one row of 1 to 64 KiB; the last one is over the limit of a batch.
        let fields = [Field::ragged::<u8>("x", 2 * largest)];
        let loader = Loader::builder(range(1001))
            .decode_with(fields, move |sample, row| {
                let index = sample.index();
                let len =
                    if index == 1000 { largest + 1 } else { 1024 + sample.rng().below(64_512) as usize };
                row.ragged::<u8>("x", len)?.fill(index as u8);
                Ok(())
            })
            .workers(2)
            .host_slots(4)
            .host_budget(budget)
            .max_batch_bytes(largest)
            .build(&device)
            .unwrap();
        let before = device.counters();
        let mut epoch = loader.epoch(&stream).unwrap();
        for k in 0..1000u64 {
            let batch = epoch.next().unwrap().unwrap();
            let row = batch.host_ragged::<u8>("x", 0).unwrap();
            assert!(row.len() >= 1024 && row.iter().all(|&b| b == k as u8), "batch {k}");
        }
        let e = epoch.next().unwrap().unwrap_err();
        assert_eq!((e.kind(), e.place().batch), (ErrorKind::LimitExceeded, Some(1000)), "{e}");
        let after = device.counters();
        assert!(after.pinned_peak <= budget as u64 && after.host_bytes <= budget as u64, "{after:?}");
        let memory = |c: &Counters| (c.pins, c.pinned_peak, c.host_bytes, c.device_bytes);
        assert_eq!(memory(&before), memory(&after));
    });
}

#[test]
fn row_19_a_slot_takes_its_size_and_not_the_next_power_of_two() {
    within(MINUTE, || {
        for (row, lock) in [(147_456, true), (9 * (1 << 20), false)] {
            let device = device_with(CpuOptions::default().lock(lock));
            let loader = Loader::builder(range(4))
                .decode(Uniform(row))
                .workers(0)
                .host_slots(4)
                .device_slots(1)
                .build(&device)
                .unwrap();
            let c = device.counters();
            assert!(c.host_bytes >= 4 * row as u64 && c.host_bytes <= 4 * (row as u64 + 4096), "{c:?}");
            assert!(!loader.stats().pinned || c.pinned_bytes == c.host_bytes, "{c:?}");
            assert_eq!(loader.spec().bytes() as u64 * 4, c.host_bytes);
        }
    });
}

#[test]
fn row_21_nothing_is_locked_or_unlocked_in_the_steady_state() {
    within(MINUTE, || {
        let host_slots = 3;
        let all = counters_by_batch(1000, host_slots);
        let calls = |c: &Counters| (c.pins, c.unpins, c.pin_failures, c.pinned_bytes);
        let steady = calls(&all[host_slots + 1]);
        assert!(all[host_slots + 1..].iter().all(|c| calls(c) == steady), "{:?}", all.last());
        assert_eq!(steady.1, 0);
    });
}

#[test]
#[cfg(not(feature = "simulated"))] // There is a driver, then.
fn row_25_without_a_driver_the_best_device_is_the_cpu() {
    within(MINUTE, || {
        let (device, log) = logged(|| Device::auto().unwrap());
        if !device.is_cpu() {
            println!("skipped: this machine has a GPU");
            return;
        }
        let infos: Vec<_> = log.iter().filter(|line| line.starts_with("INFO")).collect();
        assert_eq!((infos.len(), log.len()), (1, 1), "one line: {log:?}");
        assert!(infos[0].contains("CPU"), "{infos:?}");
        assert_eq!(device.name(), Device::cpu().name());
        let bytes = |device: &Device| {
            let stream = device.new_stream().unwrap();
            let loader = Loader::builder(range(50))
                .decode(Signed(100))
                .batch_size(7)
                .shuffle(25)
                .build(device)
                .unwrap();
            deliver(&loader, &stream).0
        };
        assert!(bytes(&device) == bytes(&Device::cpu()), "the same code gives the same bytes");
    });
}
