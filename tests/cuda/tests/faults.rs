//! Calls of the driver that fail, and devices that break down: each is an error in one line, nothing hangs, nothing is
//! freed that the device may still touch, and what could not be freed is counted.

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

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use apart::{apart, hold, leaked, live, take};
use cusim::Fault;
use simulated::{fresh, sim};
use support::watch::{Number, Range, numbers, threads, values};
use support::{eventually, log_of_the_process};
use warpfeed::{AllHeld, Builder, CudaOptions, Device, Error, ErrorKind, Loader, Stream};

const OUT_OF_MEMORY: i32 = 2;
const UNAVAILABLE: i32 = 46;
const ILLEGAL_ADDRESS: i32 = 700;
const UNKNOWN: i32 = 999;

/// Far less than any timeout of ours, and more than a busy machine takes for a few calls.
const SOON: Duration = Duration::from_secs(2);

fn device() -> (usize, Device) {
    let number = fresh(|_| {});
    (number, Device::cuda(number).unwrap())
}

/// 40 numbers in batches of 4.
fn loader() -> Builder<Range, Number> {
    numbers(40).batch_size(4).epochs(1)
}

/// It is the device's, in one line that names the call and the driver's word for what happened.
#[track_caller]
fn assert_clear(error: &Error, word: &str) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Device, "{text}");
    assert!(text.contains(word) && text.contains("cu") && text.lines().count() == 1, "{text}");
}

#[test]
fn out_of_device_memory_names_the_bytes_and_leaves_nothing_behind() {
    apart("out_of_device_memory_names_the_bytes_and_leaves_nothing_behind", || {
        // One slot fits; the driver gives memory in pieces of 512 bytes.
        let loader = || numbers(800).batch_size(200).epochs(1);
        let slot = loader().workers(0).build(&Device::cpu()).unwrap().spec().bytes();
        assert!(slot > 1024);
        let memory = slot.next_multiple_of(512) + 512;
        let number = fresh(|machine| machine.memory = memory);
        let device = Device::cuda(number).unwrap();
        let before = live();
        for workers in [0, 2] {
            let error = loader().workers(workers).build(&device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device);
            let parts =
                [format!("no {slot} bytes"), format!("512 of {memory} bytes are free"), device.name()];
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
            eventually("all is freed", || live() == before && device.counters().host_bytes == 0);
        }
        // One fits.
        let stream = device.new_stream().unwrap();
        let small = loader().device_slots(1).build(&device).unwrap();
        assert_eq!(deliver(&small, &stream).0, (0..800).collect::<Vec<_>>());
        assert_eq!(leaked(), (0, 0));
    });
}

/// Every call of every function that `build` makes fails once: an error that says which, or where a lock is refused,
/// pageable memory. All that was made is gone, and the next `build` works.
#[test]
fn whichever_call_of_build_fails_all_is_freed_and_the_next_one_works() {
    apart("whichever_call_of_build_fails_all_is_freed_and_the_next_one_works", || {
        let functions = [
            ("cuMemAlloc", 2),
            ("cuEventCreate", 12),
            ("cuStreamCreateWithPriority", 1),
            ("cuCtxGetStreamPriorityRange", 1),
            ("cuEventRecord", 4),
            ("cuMemcpyHtoDAsync", 2),
            ("cuStreamSynchronize", 2),
            ("cuEventElapsedTime", 1),
        ];
        let nothing = live();
        for (function, at_least) in functions {
            let mut failed = 0;
            for nth in 1.. {
                eventually("the last round is over", || live() == nothing);
                let (_, device) = device();
                let stream = device.new_stream().unwrap();
                let before = live();
                take();
                sim().fail(Fault::of(function).nth(nth).error(OUT_OF_MEMORY));
                let outcome = loader().workers(0).build(&device);
                let struck = sim().report().calls_of(function) >= nth;
                sim().heal();
                match outcome {
                    Ok(_) if !struck => break,
                    Ok(loader) => assert!(!loader.stats().pinned, "call {nth} of {function} was passed over"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Device);
                        let named = error.to_string().contains(function);
                        assert!(named && error.to_string().lines().count() == 1, "{nth}: {error}");
                        failed += 1;
                    }
                }
                eventually("all is freed", || live() == before && device.counters().host_bytes == 0);
                let loader = loader().workers(2).build(&device).unwrap();
                assert_eq!(deliver(&loader, &stream).0, (0..40).collect::<Vec<_>>());
            }
            assert!(failed >= at_least, "{function} failed {failed} times");
        }
        assert_eq!(leaked(), (0, 0));
    });
}

/// What breaks a device.
#[derive(Clone, Copy, Debug)]
enum Break {
    /// An error that stays in its context.
    Poison,
    /// The device is gone.
    Lose,
}

impl Break {
    const BOTH: [Self; 2] = [Self::Poison, Self::Lose];

    fn strike(self, device: usize) {
        match self {
            Self::Poison => sim().poison(device, ILLEGAL_ADDRESS),
            Self::Lose => sim().lose(device, UNAVAILABLE),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Poison => "CUDA_ERROR_ILLEGAL_ADDRESS: the GPU's context is lost",
            Self::Lose => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        }
    }
}

/// On a device that has failed everything fails, at once.
fn assert_dead(loader: &Loader, stream: &Stream, device: &Device, word: &str) {
    for _ in 0..5 {
        let begun = Instant::now();
        let mut epoch = loader.epoch(stream).unwrap();
        assert_clear(&epoch.next().unwrap().unwrap_err(), word);
        assert!(epoch.next().is_none() && begun.elapsed() < SOON, "after {:?}", begun.elapsed());
    }
    assert_clear(&self::loader().build(device).unwrap_err(), word);
    assert_clear(&device.new_stream().unwrap_err(), word);
    assert_clear(&stream.synchronize().unwrap_err(), word);
}

#[test]
fn a_broken_device_ends_the_epoch_and_its_memory_is_leaked_and_counted() {
    apart("a_broken_device_ends_the_epoch_and_its_memory_is_leaked_and_counted", || {
        let log = log_of_the_process();
        for (how, workers) in Break::BOTH.into_iter().flat_map(|b| [(b, 2), (b, 0)]) {
            let (before, leaked_before) = (live(), leaked());
            log.lock().unwrap().clear();
            let ((number, device), (_, other)) = (device(), device());
            let (stream, on_other) = (device.new_stream().unwrap(), other.new_stream().unwrap());
            let broken = loader().workers(workers).build(&device).unwrap();
            let sound = loader().workers(workers).build(&other).unwrap();
            let slot = broken.spec().bytes();
            let mut goes_on = sound.epoch(&on_other).unwrap();
            assert_eq!(values(&goes_on.next().unwrap().unwrap()), [0, 1, 2, 3]);

            let mut epoch = broken.epoch(&stream).unwrap();
            assert_eq!(values(&epoch.next().unwrap().unwrap()), [0, 1, 2, 3]);
            how.strike(number);
            let begun = Instant::now();
            assert_clear(&epoch.next().unwrap().unwrap_err(), how.word());
            assert!(epoch.next().is_none() && begun.elapsed() < SOON);
            drop(epoch);
            assert_dead(&broken, &stream, &device, how.word());

            // The other device's loader knows nothing of it.
            assert_eq!(goes_on.map(|batch| batch.unwrap().len()).sum::<usize>(), 36);
            sound.close().unwrap();
            drop((on_other, other));

            let report = broken.close().unwrap();
            assert_eq!((report.batches_alive, report.threads_left, report.waiting), (0, 0, 0));
            assert_eq!(
                report.leaked - leaked_before.0,
                5,
                "{how:?}, {workers} workers: 3 host and 2 device slots"
            );
            assert_eq!(report.leaked_bytes - leaked_before.1, 5 * slot);
            // It is still the driver's, in truth.
            let kept = live();
            assert_eq!((kept[0] - before[0], kept[1] - before[1]), (2, 3));
            let warnings: Vec<_> =
                log.lock().unwrap().iter().filter(|l| l.starts_with("WARN")).cloned().collect();
            assert_eq!(warnings.len(), 5, "{warnings:#?}");
            let told = |line: &String| line.contains(&format!("{slot} bytes are leaked"));
            assert!(warnings.iter().all(told), "{warnings:#?}");
        }
    });
}

/// A kernel of the user's, or a copy, breaks the context while batches are on their way.
#[test]
fn a_kernel_or_a_copy_that_breaks_the_context_is_told_by_the_next_call() {
    apart("a_kernel_or_a_copy_that_breaks_the_context_is_told_by_the_next_call", || {
        for workers in [2, 0] {
            let (number, device) = device();
            let stream = device.new_stream().unwrap();
            let loader = numbers(40).batch_size(4).workers(workers).build(&device).unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let batch = epoch.next().unwrap().unwrap();
            launch(number, &stream, &batch);
            drop(batch);
            // The host runs ahead of the kernel, by as many batches as it likes; epochs follow each other.
            drop(epoch);
            let error = (0..)
                .find_map(|_| loader.epoch(&stream).unwrap().find_map(Result::err))
                .expect("the kernel fails");
            assert_clear(&error, "CUDA_ERROR_LAUNCH_FAILED: the GPU's context is lost");
            assert_dead(&loader, &stream, &device, "CUDA_ERROR_LAUNCH_FAILED");
            drop(loader);

            for nth in [1, 2, 3, 7] {
                // Their last calls would count too.
                eventually("the last loader's threads end", || !threads().iter().any(is_of_a_loader));
                let (_, device) = self::device();
                let stream = device.new_stream().unwrap();
                let fault = Fault::of("cuMemcpyHtoDAsync").nth(2 + nth).error(ILLEGAL_ADDRESS).sticky();
                sim().fail(fault);
                let loader = self::loader().workers(workers).build(&device).unwrap();
                let error = loader.epoch(&stream).unwrap().find_map(Result::err).unwrap();
                assert_clear(&error, "CUDA_ERROR_ILLEGAL_ADDRESS");
                assert_dead(&loader, &stream, &device, "CUDA_ERROR_ILLEGAL_ADDRESS");
                sim().heal();
            }
        }
    });
}

/// Launches a kernel on `batch` that fails while it runs.
fn launch(number: usize, stream: &Stream, batch: &warpfeed::Batch) {
    use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
    let ptx = include_str!("../../cusim/tests/increment.ptx");
    let context = CudaContext::new(number).unwrap();
    let module = context.load_module(cudarc::nvrtc::Ptx::from_src(ptx)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    sim().fail(Fault::of("kernel cusim_increment").error(719));
    let view = batch.cuda_view::<u64>("x", stream).unwrap();
    let (data, words) = (&*view, 8u32);
    let mut launch = stream.cudarc().unwrap().launch_builder(&increment);
    launch.arg(data).arg(&words);
    // SAFETY: the kernel takes a pointer to so many words of 4 bytes, and never gets to write them.
    unsafe { launch.launch(LaunchConfig::for_num_elems(words)) }.unwrap();
    drop(view);
    // A module that is unloaded goes at once; the context is cudarc's own reference to the primary one.
    Box::leak(Box::new((increment, module, context)));
}

/// The consumer's stream goes no further, so that all slots are in flight: the feeder waits for a copy, or where memory is
/// pageable the copier for a gate, and the consumer for a batch. Then the device breaks.
#[test]
fn whoever_waits_for_a_broken_device_is_told_at_once() {
    apart("whoever_waits_for_a_broken_device_is_told_at_once", || {
        let cases = [(2, true), (2, false), (0, true), (0, false)];
        for (how, (workers, lock)) in Break::BOTH.into_iter().flat_map(|how| cases.map(|case| (how, case))) {
            let number = fresh(|_| {});
            let device = Device::cuda_with(number, CudaOptions::default().lock(lock)).unwrap();
            let stream = device.new_stream().unwrap();
            let loader = loader().workers(workers).host_slots(2).build(&device).unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let held = hold(&stream);
            for _ in 0..2 {
                drop(epoch.next().unwrap().unwrap());
            }
            let (told, outcome) = channel();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut waited = Vec::new();
                    let error = loop {
                        match epoch.next().unwrap() {
                            Ok(batch) => waited.push(batch),
                            Err(error) if error.kind() == ErrorKind::Exhausted => waited.clear(),
                            Err(error) => break error,
                        }
                    };
                    told.send((error, Instant::now())).unwrap();
                });
                std::thread::sleep(Duration::from_millis(50));
                let struck = Instant::now();
                how.strike(number);
                let (error, at) = outcome.recv_timeout(SOON).expect("whoever waits is told");
                assert_clear(&error, how.word());
                assert!(at - struck < SOON, "{how:?} {workers} {lock}");
            });
            let begun = Instant::now();
            drop((loader, stream, device));
            assert!(begun.elapsed() < SOON);
            drop(held);
            eventually("its threads end", || !threads().iter().any(is_of_a_loader));
        }
    });
}

#[allow(clippy::ptr_arg, reason = "for `any`")]
fn is_of_a_loader(thread: &String) -> bool {
    thread.starts_with("warpfeed-")
}

#[test]
fn batches_of_a_broken_device_are_dropped_without_a_panic_and_the_one_who_waits_for_them_is_told() {
    apart(
        "batches_of_a_broken_device_are_dropped_without_a_panic_and_the_one_who_waits_for_them_is_told",
        || {
            for (how, workers) in Break::BOTH.into_iter().flat_map(|how| [(how, 2), (how, 0)]) {
                let (number, device) = device();
                let stream = device.new_stream().unwrap();
                let patient = AllHeld::Wait(Duration::from_secs(60));
                let loader = loader().workers(workers).on_all_held(patient).build(&device).unwrap();
                let mut epoch = loader.epoch(&stream).unwrap();
                let held: Vec<_> = (0..2).map(|_| epoch.next().unwrap().unwrap()).collect();
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| epoch.next().unwrap().unwrap_err());
                    std::thread::sleep(Duration::from_millis(30));
                    how.strike(number);
                    let word = how.word();
                    assert_clear(&held[0].host::<u64>("x").unwrap_err(), word);
                    assert_clear(&held[0].synchronize().unwrap_err(), word);
                    assert_clear(&held[0].enqueue(&stream, |_| ()).unwrap_err(), word);
                    drop(held);
                    let begun = Instant::now();
                    let error = waiting.join().unwrap();
                    assert!(begun.elapsed() < SOON && error.kind() == ErrorKind::Device, "{error}");
                });
                drop(epoch);
                // What the drops met and nobody has heard of.
                let text = match loader.close() {
                    Ok(report) => format!("{report:?}"),
                    Err(error) => error.to_string(),
                };
                assert!(text.contains(how.word()) || text.contains("leaked"), "{text}");
            }
        },
    );
}

/// A failure in the driver that passes: the batch that it hits is an error, the epoch can be tried again, and every
/// batch comes once, with the right bytes.
#[test]
fn a_call_that_fails_once_costs_a_slot_at_most_and_the_epoch_is_tried_again() {
    apart("a_call_that_fails_once_costs_a_slot_at_most_and_the_epoch_is_tried_again", || {
        // Whether a slot may go with it: how far the call came is not known, or no event says when it has passed.
        let functions = [
            ("cuMemcpyHtoDAsync", Some(true)),
            ("cuEventRecord", Some(true)),
            ("cuStreamWaitEvent", Some(true)),
            ("cuEventQuery", Some(false)),
            ("cuStreamIsCapturing", Some(false)),
            // Whichever call it comes before.
            ("cuCtxPushCurrent", None),
        ];
        for ((function, costs), workers) in functions.into_iter().flat_map(|f| [(f, 0), (f, 2)]) {
            let (mut lost, mut told) = (0, 0);
            for nth in (1..=8).chain([13, 20]) {
                let before = leaked();
                let (_, device) = device();
                let stream = device.new_stream().unwrap();
                let loader = loader().workers(workers).build(&device).unwrap();
                sim().fail(Fault::of(function).nth(nth).error(UNKNOWN));
                let (samples, errors, own) = deliver(&loader, &stream);
                sim().heal();
                assert_eq!(samples, (0..40).collect::<Vec<_>>(), "{function} {nth}");
                assert!(errors.len() + own <= 1, "{function} {nth}: {errors:?}");
                errors.iter().for_each(|error| assert_clear(error, &format!("{function} failed with")));
                let slots = loader.stats().lost_slots;
                assert!(slots <= errors.len(), "{function} {nth}");
                let report = loader.close().unwrap();
                assert_eq!(report.waiting, 0);
                if own == 0 {
                    // Both sides of a copy, or the slot of a batch that was dropped.
                    let leaked = report.leaked - before.0;
                    assert!((slots..=2 * slots).contains(&leaked), "{function} {nth}: {leaked} for {slots}");
                }
                (lost, told) = (lost + slots, told + errors.len());
            }
            assert!(costs.is_none_or(|costs| costs == (lost > 0)), "{function}, {workers} workers: {lost}");
            assert!(told > 0 || function == "cuEventQuery", "{function}, {workers} workers");
        }
    });
}

#[test]
fn a_stream_that_is_not_destroyed_is_no_error_of_the_next_one() {
    apart("a_stream_that_is_not_destroyed_is_no_error_of_the_next_one", || {
        let (_, device) = device();
        let stream = device.new_stream().unwrap();
        sim().fail(Fault::of("cuStreamDestroy").error(UNKNOWN));
        drop(stream);
        device.new_stream().unwrap().synchronize().unwrap();
    });
}

/// All samples in the order in which they come, over as many epochs as it takes; the errors between them; and how often
/// it was the test's own read that failed.
fn deliver(loader: &Loader, stream: &Stream) -> (Vec<u64>, Vec<Error>, usize) {
    let (mut samples, mut errors, mut own) = (Vec::new(), Vec::new(), 0);
    while let Ok(epoch) = loader.epoch(stream) {
        for batch in epoch {
            match batch {
                Ok(batch) => {
                    let read = batch.host::<u64>("x").or_else(|_| {
                        own += 1;
                        batch.host("x")
                    });
                    samples.extend_from_slice(&read.unwrap());
                }
                Err(error) => errors.push(error),
            }
        }
        assert!(errors.len() < 10, "{errors:?}");
    }
    (samples, errors, own)
}

#[test]
fn when_the_last_slot_is_lost_that_is_said() {
    apart("when_the_last_slot_is_lost_that_is_said", || {
        for (workers, host, on_device) in [(0, 1, 3), (2, 1, 3), (0, 3, 1), (2, 3, 1)] {
            let (_, device) = device();
            let stream = device.new_stream().unwrap();
            let builder = loader().workers(workers).host_slots(host).device_slots(on_device);
            // Two copies measure the link.
            sim().fail(Fault::of("cuMemcpyHtoDAsync").nth(3).error(UNKNOWN));
            let loader = builder.build(&device).unwrap();
            let error = loader.epoch(&stream).unwrap().find_map(Result::err).unwrap();
            assert_clear(&error, "cuMemcpyHtoDAsync failed with");
            assert_eq!(loader.stats().lost_slots, 1);
            for _ in 0..3 {
                let begun = Instant::now();
                let error = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
                assert!(begun.elapsed() < SOON);
                let text = error.to_string();
                assert!(text.contains("no batch can be delivered any more"), "{text}");
                let lost = if host == 1 { "1 of 1 host slots" } else { "1 of 1 device slots" };
                assert!(error.kind() == ErrorKind::Device && text.contains(lost), "{text}");
            }
            loader.close().unwrap();

            // A batch whose `consumed` can't be recorded takes its slot along.
            let loader = self::loader().workers(workers).device_slots(1).build(&device).unwrap();
            let mut epoch = loader.epoch(&stream).unwrap();
            let batch = epoch.next().unwrap().unwrap();
            sim().fail(Fault::of("cuEventRecord").error(UNKNOWN).forever());
            drop(batch);
            sim().heal();
            assert_clear(&epoch.next().unwrap().unwrap_err(), "cuEventRecord failed with");
            drop(epoch);
            let error = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
            assert!(error.to_string().contains("no batch can be delivered any more"), "{error}");
            assert_eq!(loader.stats().lost_slots, 1);
        }
    });
}
