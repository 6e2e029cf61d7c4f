//! The memory of loaders as the driver sees it: how it is locked, and who frees it when.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

extern crate warpfeed_cuda as warpfeed;

#[path = "support/apart.rs"]
mod apart;
#[path = "support/simulated.rs"]
mod simulated;
#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apart::{apart, hold, leaked, live, take};
use cudarc::driver::{CudaContext, sys};
use cusim::Fault;
use simulated::{fresh, sim};
use support::watch::{Number, Range, numbers, samples, threads, values};
use support::{eventually, logged};
use warpfeed::{Builder, CudaOptions, Device, ErrorKind, Field, Loader, Runtime};

const OUT_OF_MEMORY: i32 = 2;

/// Calls in which the driver may wait for the device.
const BLOCKING: [&str; 7] = [
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRelease",
];

fn device(options: CudaOptions) -> (usize, Device) {
    let number = fresh(|_| {});
    (number, Device::cuda_with(number, options).unwrap())
}

fn loader() -> Builder<Range, Number> {
    numbers(40).batch_size(4)
}

fn warnings(log: &[String]) -> Vec<&String> {
    log.iter().filter(|line| line.starts_with("WARN")).collect()
}

#[test]
fn a_lock_that_is_refused_at_whichever_slot_leaves_the_rest_pageable() {
    apart("a_lock_that_is_refused_at_whichever_slot_leaves_the_rest_pageable", || {
        for (workers, nth) in [0, 2].into_iter().flat_map(|workers| (1..=4).map(move |nth| (workers, nth))) {
            let (_, device) = device(CudaOptions::default());
            let stream = device.new_stream().unwrap();
            take();
            sim().fail(Fault::of("cuMemHostAlloc").nth(nth).error(OUT_OF_MEMORY));
            let builder = loader().workers(workers).host_slots(4).epochs(1);
            let (loader, log) = logged(|| builder.build(&device).unwrap());
            let warnings = warnings(&log);
            assert_eq!(warnings.len(), 1, "{log:?}");
            let slot = loader.spec().bytes();
            let locked = (nth - 1) as usize * slot;
            for part in [
                format!("page-locking {slot} bytes"),
                format!("({locked} are locked by now)"),
                "cuMemHostAlloc failed with CUDA_ERROR_OUT_OF_MEMORY".to_string(),
                "the copier waits for the GPU".to_string(),
            ] {
                assert!(warnings[0].contains(&part), "{part}: {warnings:?}");
            }
            // The call that failed left nothing behind in the driver.
            stream.record(&device.new_event().unwrap()).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(samples(&loader, &stream), (0..40).collect::<Vec<_>>());
            assert!(!loader.stats().pinned);
            let c = device.counters();
            assert_eq!((c.pins, c.pin_failures, c.pinned_bytes), (nth - 1, 1, locked as u64));
            assert!(c.pageable_copies > 0 && c.h2d_copies == 10, "{c:?}");
            assert!(nth > 1 || c.pageable_copies == 10, "{c:?}");
            // It was not tried again; the read-back's buffer is the test's own.
            assert_eq!(sim().report().calls_of("cuMemHostAlloc"), nth);
        }
    });
}

/// The GPU is held up, and with it the copies of pageable memory, for which the driver would wait: no thread of ours
/// does.
#[test]
fn a_loader_of_pageable_memory_ends_while_the_gpu_is_held_up() {
    apart("a_loader_of_pageable_memory_ends_while_the_gpu_is_held_up", || {
        for workers in [0, 2] {
            let before = live();
            let (_, device) = device(CudaOptions::default().lock(false));
            let stream = device.new_stream().unwrap();
            let limit = Duration::from_millis(100);
            let loader = loader().workers(workers).timeout(limit).build(&device).unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let held = hold(&stream);
            for k in 0..2 {
                assert_eq!(epoch.next().unwrap().unwrap().number(), k);
            }
            let begun = Instant::now();
            let error = epoch.next().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(error.to_string().contains("the work on the next device slot is not done"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(5));
            drop(epoch);
            let begun = Instant::now();
            drop(loader);
            assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
            let ours = |name: &String| name == "warpfeed-copier" || name == "warpfeed-feeder";
            eventually("its threads end", || !threads().iter().any(ours));
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
            // The device slots are there as long as the stream may use them.
            assert_eq!(live()[0] - before[0], 2);
            drop(held);
            drop(stream);
            eventually("all is freed", || live() == before);
        }
        assert_eq!(leaked(), (0, 0));
    });
}

#[test]
fn a_pageable_copier_goes_on_once_the_gate_has_passed() {
    apart("a_pageable_copier_goes_on_once_the_gate_has_passed", || {
        for workers in [0, 2] {
            let (_, device) = device(CudaOptions::default().lock(false));
            let stream = device.new_stream().unwrap();
            let loader = loader().workers(workers).epochs(1).build(&device).unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let held = hold(&stream);
            (0..2).for_each(|_| drop(epoch.next().unwrap().unwrap()));
            std::thread::scope(|scope| {
                let rest = scope.spawn(|| epoch.map(|batch| batch.unwrap().number()).collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(50));
                assert!(!rest.is_finished());
                drop(held);
                assert_eq!(rest.join().unwrap(), (2..10).collect::<Vec<_>>());
            });
            assert_eq!(device.counters().pageable_copies, 10);
        }
    });
}

/// The flags with which the driver locked a slot: asked for at an address that the decoder was given.
fn flags_of_a_slot(options: CudaOptions) -> Result<u32, sys::CUresult> {
    let (number, device) = device(options);
    let place = Arc::new(AtomicUsize::new(0));
    let seen = place.clone();
    let loader = Loader::builder(support::range(8))
        .decode_with([Field::new::<u8>("x", &[64])], move |_, row| {
            let x = row.slice::<u8>("x")?;
            x.fill(1);
            seen.store(x.as_ptr() as usize, Ordering::SeqCst);
            Ok(())
        })
        .workers(0)
        .build(&device)
        .unwrap();
    let stream = device.new_stream().unwrap();
    assert_eq!(loader.epoch(&stream).unwrap().map(|b| drop(b.unwrap())).count(), 8);
    CudaContext::new(number).unwrap().bind_to_thread().unwrap();
    let mut flags = 0;
    // SAFETY: a place for the answer; the address is only asked about.
    let code = unsafe { sys::cuMemHostGetFlags(&mut flags, place.load(Ordering::SeqCst) as *mut _) };
    if code == sys::CUresult::CUDA_SUCCESS { Ok(flags) } else { Err(code) }
}

#[test]
fn options_decide_how_the_driver_locks() {
    apart("options_decide_how_the_driver_locks", || {
        const PORTABLE: u32 = 1;
        const WRITE_COMBINED: u32 = 4;
        assert_eq!(flags_of_a_slot(CudaOptions::default()), Ok(PORTABLE));
        let combined = CudaOptions::default().write_combined(true);
        assert_eq!(flags_of_a_slot(combined), Ok(PORTABLE | WRITE_COMBINED));
        take();
        let unlocked = flags_of_a_slot(CudaOptions::default().lock(false));
        assert_eq!(unlocked, Err(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
        let report = sim().report();
        assert_eq!((report.calls_of("cuMemHostAlloc"), report.calls_of("cuMemHostRegister")), (0, 0));
    });
}

#[test]
fn the_callers_memory_is_registered_once_and_unregistered_once() {
    apart("the_callers_memory_is_registered_once_and_unregistered_once", || {
        let before = live();
        let (_, device) = device(CudaOptions::default());
        let stream = device.new_stream().unwrap();
        let memory = |bytes| Ok(memmap2::MmapMut::map_anon(bytes)?);
        take();
        let loader = loader().workers(2).host_slots(3).host_memory(memory).build(&device).unwrap();
        for _ in 0..3 {
            assert_eq!(loader.epoch(&stream).unwrap().map(|b| drop(b.unwrap())).count(), 10);
        }
        assert!(loader.stats().pinned);
        assert_eq!(live()[2] - before[2], 3);
        drop(loader);
        drop(stream);
        eventually("all is given back", || live() == before);
        let report = sim().report();
        let calls =
            ["cuMemHostRegister", "cuMemHostUnregister", "cuMemHostAlloc"].map(|f| report.calls_of(f));
        assert_eq!(calls, [3, 3, 0]);

        // Refused, it is pageable, with one line.
        let (_, device) = self::device(CudaOptions::default());
        let stream = device.new_stream().unwrap();
        take();
        sim().fail(Fault::of("cuMemHostRegister").error(OUT_OF_MEMORY));
        let (loader, log) = logged(|| self::loader().host_memory(memory).build(&device).unwrap());
        assert_eq!(warnings(&log).len(), 1, "{log:?}");
        assert!(
            warnings(&log)[0].contains("cuMemHostRegister failed with CUDA_ERROR_OUT_OF_MEMORY"),
            "{log:?}"
        );
        assert_eq!(samples(&loader, &stream), (0..40).collect::<Vec<_>>());
        assert!(!loader.stats().pinned);
        assert_eq!(sim().report().calls_of("cuMemHostRegister"), 1);

        // On a device that has failed it can't be unregistered: then it stays mapped.
        let number = fresh(|_| {});
        let device = Device::cuda(number).unwrap();
        let loader = self::loader().workers(0).host_memory(memory).build(&device).unwrap();
        sim().poison(number, 700);
        let (leaked, registered) = (leaked().0, live()[2]);
        drop(loader);
        eventually("it is counted", || apart::leaked().0 == leaked + 5);
        assert_eq!(live()[2], registered);
    });
}

/// A thread of the user's drops a loader and its batches while the device is at work on them: it waits for nothing, and the
/// memory is freed behind the work, by the reaper's thread alone.
#[test]
fn memory_is_freed_behind_the_work_by_the_reaper_alone() {
    apart("memory_is_freed_behind_the_work_by_the_reaper_alone", || {
        for workers in [0, 2] {
            let before = live();
            let (_, device) = device(CudaOptions::default());
            let stream = device.new_stream().unwrap();
            let slot = loader().workers(0).build(&Device::cpu()).unwrap().spec().bytes();
            let room = slot.next_multiple_of(4096);
            let runtime = Runtime::new(workers, 3 * room, 2 * room).unwrap();
            let build = || loader().runtime(&runtime).build(&device);
            let loader = build().unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let batches: Vec<_> = (0..2).map(|_| epoch.next().unwrap().unwrap()).collect();
            // Read once, so that there are buffers of the read-back too.
            batches[0].enqueue(&stream, |b| assert_eq!(b.number(), 0)).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(values(&batches[1]), [4, 5, 6, 7]);
            drop(epoch);
            let held = hold(&stream);
            take();
            std::thread::scope(|scope| {
                let user = std::thread::Builder::new().name("a user".to_string());
                let thread = user.spawn_scoped(scope, || {
                    let begun = Instant::now();
                    drop(batches);
                    drop(loader);
                    begun.elapsed()
                });
                let took = thread.unwrap().join().unwrap();
                assert!(took < Duration::from_millis(500), "{took:?}");
            });
            std::thread::sleep(Duration::from_millis(100));
            // Both slots may still be in use; so may whatever the driver frees behind the stream.
            assert_eq!(live()[0] - before[0], 2);
            let error = build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            let soon = std::thread::scope(|scope| {
                let waiting = scope.spawn(build);
                std::thread::sleep(Duration::from_millis(50));
                drop(held);
                waiting.join().unwrap()
            });
            let loader = soon.expect("build waits for memory that is about to be freed");
            assert_eq!(samples(&loader, &stream), (0..40).collect::<Vec<_>>());
            drop((loader, stream));
            eventually("all is freed", || live() == before);
            let report = take();
            assert!(!report.has_called("a user", &BLOCKING), "{:?}", report.callers);
            for call in ["cuMemFree", "cuMemFreeHost"] {
                let reaper = BTreeSet::from(["warpfeed-reaper".to_string()]);
                assert_eq!(report.callers[call], reaper, "{call}");
            }
        }
        assert_eq!(leaked(), (0, 0));
    });
}

/// A read-back whose work is refused: nothing says when the copy into its buffer is over.
#[test]
fn the_buffer_of_a_read_back_that_goes_wrong_is_leaked_and_counted() {
    apart("the_buffer_of_a_read_back_that_goes_wrong_is_leaked_and_counted", || {
        let (_, device) = device(CudaOptions::default());
        let stream = device.new_stream().unwrap();
        let loader = loader().workers(0).build(&device).unwrap();
        let slot = loader.spec().bytes();
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        sim().fail(Fault::of("cuLaunchHostFunc").error(OUT_OF_MEMORY));
        let error = batch.enqueue(&stream, |_| ()).unwrap_err();
        assert!(error.to_string().contains("cuLaunchHostFunc failed with"), "{error}");
        assert_eq!(leaked(), (1, slot));
        sim().fail(Fault::of("cuStreamSynchronize").error(OUT_OF_MEMORY));
        let error = batch.host::<u64>("x").unwrap_err();
        assert!(error.to_string().contains("cuStreamSynchronize failed with"), "{error}");
        assert_eq!(leaked(), (2, slot + 4 * 8));
        // Both go on.
        batch.enqueue(&stream, |b| assert_eq!(b.get::<u64>("x").unwrap(), [0, 1, 2, 3])).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(values(&batch), [0, 1, 2, 3]);
    });
}

#[test]
fn two_hundred_loaders_leave_nothing() {
    apart("two_hundred_loaders_leave_nothing", || {
        let (_, device) = device(CudaOptions::default());
        let memory = |bytes| Ok(memmap2::MmapMut::map_anon(bytes)?);
        let round = |k: usize| {
            let stream = device.new_stream().unwrap();
            let loader = loader().workers(k % 3).device_slots(2 + k % 2);
            let loader = if k.is_multiple_of(5) { loader.host_memory(memory) } else { loader };
            let loader = loader.build(&device).unwrap();
            // Some are left early, and some batches read on the host, from their streams, or held too long.
            let batches = loader.epoch(&stream).unwrap().map(Result::unwrap).inspect(|batch| {
                batch.enqueue(&stream, |_| ()).unwrap();
                assert_eq!(values(batch).len(), 4);
            });
            let last = batches.take(1 + k % 10).last();
            if k.is_multiple_of(2) {
                drop(loader)
            } else {
                loader.close().unwrap();
            }
            drop(last);
        };
        let before = live();
        (0..200).for_each(round);
        eventually("all is freed", || live() == before);
        let c = device.counters();
        let all = [c.host_bytes, c.device_bytes, c.pinned_bytes, c.live_streams, c.live_events];
        assert_eq!((all, c.pins), ([0; 5], c.unpins));
        assert_eq!(leaked(), (0, 0));
    });
}
