//! Batches and the capture of graphs: what is refused meanwhile, what is put off, what never disturbs it; and graphs
//! that are replayed, one a slot.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

extern crate warpfeed_cuda as warpfeed;

#[path = "../../../examples/graphs.rs"]
#[allow(dead_code, reason = "a test has a main of its own")]
mod graphs;
#[path = "support/simulated.rs"]
mod simulated;
#[path = "support/step.rs"]
mod step;
#[path = "../../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use simulated::{fresh, sim};
use step::{Step, checked, sums};
use support::watch::alone;
use support::{Uniform, device, eventually, range};
use warpfeed::{AllHeld, Batch, Builder, Device, ErrorKind, Loader, Order, Stream, VALID};

const WIDTH: usize = 40;

type Numbers = Builder<support::watch::Range, Uniform>;

/// Batches of 4 samples.
fn numbers(n: u64) -> Numbers {
    Loader::builder(range(n)).decode(Uniform(WIDTH)).batch_size(4).workers(2)
}

/// The sums of the samples 0, 1, … n-1.
fn expected(n: u64) -> Vec<u64> {
    let rows: Vec<_> = (0..n).map(|i| [(i % 251) as u8; WIDTH]).collect();
    sums(rows.iter().map(<[u8; WIDTH]>::as_slice), WIDTH)
}

/// A capture of the strictest mode. A test that fails in it ends it all the same, so that it is in nobody's way.
struct Capture<'s>(Option<&'s Arc<CudaStream>>);

fn begin(stream: &Stream) -> Capture<'_> {
    let theirs = stream.cudarc().unwrap();
    theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let capture = Capture(Some(theirs));
    assert!(stream.is_capturing().unwrap());
    capture
}

impl Capture<'_> {
    /// Ends it; nothing may have disturbed it.
    fn end(mut self) -> CudaGraph {
        let graph = self.0.take().unwrap().end_capture(CUgraphInstantiate_flags(0));
        graph.expect("the capture was disturbed").unwrap()
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            drop(stream.end_capture(CUgraphInstantiate_flags(0)));
        }
    }
}

/// A step for the stream's own context.
fn step(stream: &Stream) -> Step {
    let stream = stream.cudarc().unwrap();
    Step::new(stream.context(), stream, WIDTH)
}

/// Enqueues the step on all of a batch's slot.
fn launch(step: &mut Step, batch: &Batch, stream: &Stream) {
    let x = batch.padded_view::<u8>("x").unwrap().cuda(stream).unwrap();
    let valid = batch.padded_view::<bool>(VALID).unwrap().cuda(stream).unwrap();
    step.launch(stream.cudarc().unwrap(), &x, &valid, batch.capacity());
}

fn kind<T>(result: Option<warpfeed::Result<T>>) -> ErrorKind {
    result.expect("not the end").err().expect("an error").kind()
}

#[test]
fn the_next_batch_is_refused_while_the_epochs_stream_is_captured_and_comes_after() {
    checked(|| {
        for workers in [0, 2] {
            let device = device();
            let stream = device.new_stream().unwrap();
            let loader = numbers(30).workers(workers).build(&device).unwrap();
            let mut step = step(&stream);
            for epoch in 0..2 {
                let mut running = loader.epoch(&stream).unwrap();
                let mut refused = 0;
                loop {
                    let capture = begin(&stream);
                    for _ in 0..2 {
                        assert_eq!(kind(running.next()), ErrorKind::Capturing);
                        refused += 1;
                    }
                    drop(capture.end());
                    let Some(batch) = running.next() else { break };
                    launch(&mut step, &batch.unwrap(), &stream);
                }
                assert_eq!(refused, 2 * (8 + 1));
                drop(running);
                assert_eq!(loader.state().epoch(), epoch + 1);
            }
            let doubled: Vec<_> = expected(30).iter().map(|sum| 2 * sum).collect();
            assert_eq!(step.read(stream.cudarc().unwrap()), doubled);
        }
    });
}

#[test]
fn a_batch_dropped_during_a_capture_is_parked_told_once_and_given_back_after_it() {
    checked(|| {
        for (workers, on_second) in [(0, false), (2, false), (2, true)] {
            let device = device();
            let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let loader = numbers(80).workers(workers).device_slots(2).build(&device).unwrap();
            let captured = if on_second { &second } else { &stream };
            let mut step = step(&stream);
            let mut running = loader.epoch(&stream).unwrap();
            let (first, other) = (running.next().unwrap().unwrap(), running.next().unwrap().unwrap());
            first.record_stream(&second).unwrap();
            launch(&mut step, &first, &stream);
            launch(&mut step, &other, &stream);
            let records = device.counters().records;
            let capture = begin(captured);
            drop(first);
            assert_eq!(device.counters().records, records, "nothing is recorded into the graph");
            let graph = end_or(capture, on_second, || {
                let error = running.next().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Capturing);
                assert!(error.message().contains("was dropped while"), "{error}");
                // Told once; both slots count as held.
                assert_eq!(kind(running.next()), ErrorKind::Exhausted);
                drop(other);
                assert_eq!(running.next().unwrap().unwrap().number(), 2);
                // That one was dropped behind the first, which is held still.
                let third = running.next().unwrap().unwrap();
                assert_eq!(kind(running.next()), ErrorKind::Exhausted);
                launch(&mut step, &third, &stream);
                drop(third);
            });
            drop(graph);
            // What is left comes, whole, through both slots.
            let mut slots = std::collections::BTreeSet::new();
            let mut told = 0;
            for next in running.by_ref() {
                match next {
                    Ok(batch) => {
                        slots.insert(batch.slot());
                        launch(&mut step, &batch, &stream);
                    }
                    Err(error) => {
                        assert_eq!((error.kind(), on_second), (ErrorKind::Capturing, false), "{error}");
                        told += 1;
                    }
                }
            }
            assert_eq!((slots.len(), told), (2, u32::from(!on_second)));
            drop(running);
            let mut all = step.read(stream.cudarc().unwrap());
            if on_second {
                // One batch was dropped unseen: samples 8 to 11.
                let unseen = sums(
                    (8..12).map(|i| [i; WIDTH]).collect::<Vec<_>>().iter().map(<[u8; WIDTH]>::as_slice),
                    WIDTH,
                );
                all.iter_mut().zip(unseen).for_each(|(sum, x)| *sum += x);
            }
            assert_eq!(all, expected(80));
            assert_eq!(loader.stats().lost_slots, 0);
            assert_eq!(loader.close().unwrap().batches_alive, 0);
        }
    });
}

/// Runs `meanwhile` before the capture of a second stream is ended; that of the epoch's own refuses all of it.
fn end_or(capture: Capture<'_>, second: bool, meanwhile: impl FnOnce()) -> CudaGraph {
    if second {
        meanwhile();
    }
    capture.end()
}

#[test]
fn a_stream_that_is_captured_takes_no_new_batch_and_no_work_on_the_host() {
    checked(|| {
        let device = device();
        let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let loader = numbers(16).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        let batch = running.next().unwrap().unwrap();
        let mut step = step(&second);
        let waits = device.counters().waits;
        let capture = begin(&second);
        assert_eq!(kind(Some(batch.record_stream(&second))), ErrorKind::Capturing);
        assert_eq!(kind(Some(batch.cuda_view::<u8>("x", &second))), ErrorKind::Capturing);
        assert_eq!(kind(Some(batch.enqueue(&second, |_| ()))), ErrorKind::Capturing);
        assert_eq!(kind(Some(second.enqueue(|| ()))), ErrorKind::Capturing);
        assert_eq!(device.counters().waits, waits, "nothing waits inside the graph");
        drop(capture.end());
        // Used before, it may be viewed during a capture; work on the host can't be a part of one all the same.
        batch.record_stream(&second).unwrap();
        let capture = begin(&second);
        launch(&mut step, &batch, &second);
        assert_eq!(kind(Some(batch.enqueue(&second, |_| ()))), ErrorKind::Capturing);
        // Reading back has a stream of its own.
        assert_eq!(batch.host::<u8>("x").unwrap()[WIDTH], 1);
        batch.synchronize().unwrap();
        capture.end().launch().unwrap();
        drop(batch);
        assert_eq!(step.read(second.cudarc().unwrap()), expected(4));
        batch_by_batch(running, 3);
        assert_eq!(device.counters().pins, 3, "a refused copy takes no buffer");
    });
}

fn batch_by_batch(running: warpfeed::Epoch<'_>, batches: usize) {
    assert_eq!(running.map(|batch| drop(batch.unwrap())).count(), batches);
}

/// One loader after the other on a device, each through an epoch: the feeder, the copier and the reaper have work.
fn work_of_the_pipeline(device: &Device, over: &AtomicBool, rounds: &AtomicU64) {
    while !over.load(Relaxed) {
        let stream = device.new_stream().unwrap();
        let loader = numbers(40).order(Order::AsReady).device_slots(2).build(device).unwrap();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            batch.host::<u8>("x").unwrap();
            batch.enqueue(&stream, |_| ()).unwrap();
        }
        drop(loader); // with its memory on its way to the reaper
        rounds.fetch_add(1, Relaxed);
    }
}

#[test]
fn no_thread_of_the_pipeline_disturbs_a_capture_of_the_strictest_mode() {
    checked(|| {
        let number = fresh(|machine| (machine.delay_us, machine.copy_us) = (100, 50));
        let device = Device::cuda(number).unwrap();
        let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let stream = device.new_stream().unwrap();
        let loader = numbers(4000).device_slots(3).build(&device).unwrap();
        let mut step = step(&stream);
        std::thread::scope(|scope| {
            let pipeline = scope.spawn(|| work_of_the_pipeline(&device, &over, &rounds));
            let mut running = loader.epoch(&stream).unwrap();
            let mut captures = 0;
            while rounds.load(Relaxed) < 4 || captures < 20 {
                let batch = running.next().unwrap().unwrap();
                let capture = begin(&stream);
                launch(&mut step, &batch, &stream);
                let (tasks, before) = (loader.stats().tasks, rounds.load(Relaxed));
                // Batches of another loader on this very thread, which is not one of ours.
                let beside = device.new_stream().unwrap();
                let inner = numbers(8).workers(captures % 2).build(&device).unwrap();
                for batch in inner.epoch(&beside).unwrap() {
                    batch.unwrap().host::<u8>("x").unwrap();
                }
                drop((inner, beside));
                std::thread::sleep(std::time::Duration::from_millis(3));
                if captures == 0 {
                    eventually("a loader comes and goes", || rounds.load(Relaxed) > before);
                    assert!(loader.stats().tasks >= tasks);
                }
                assert!(stream.is_capturing().unwrap());
                capture.end().launch().unwrap();
                captures += 1;
            }
            over.store(true, Relaxed);
            pipeline.join().unwrap();
        });
    });
}

#[test]
fn a_slot_whose_loader_goes_during_the_capture_is_leaked_and_counted() {
    checked(|| {
        // Without threads nothing of the loader is left when its drop returns.
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader = numbers(16).workers(0).device_slots(2).build(&device).unwrap();
        let mut step = step(&stream);
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        let slot = device.counters().device_bytes / 2;
        let leaked = || {
            let report = numbers(4).workers(0).build(&Device::cpu()).unwrap().close().unwrap();
            (report.leaked, report.leaked_bytes)
        };
        assert_eq!(leaked(), (0, 0));
        let capture = begin(&stream);
        launch(&mut step, &batch, &stream);
        drop(batch);
        drop(loader);
        // Nothing can be recorded, so nothing says when it may be freed.
        assert_eq!(leaked(), (1, slot as usize));
        eventually("the other slot is freed", || device.counters().device_bytes == slot);
        capture.end().launch().unwrap();
        assert_eq!(step.read(stream.cudarc().unwrap()), expected(4));
    });
}

#[test]
fn a_loader_dropped_after_a_capture_frees_its_parked_slot_behind_the_graph() {
    checked(|| {
        for close in [false, true] {
            let number = fresh(|machine| machine.delay_us = 2000);
            let device = Device::cuda(number).unwrap();
            let stream = device.new_stream().unwrap();
            let loader = numbers(16).device_slots(2).build(&device).unwrap();
            let mut step = step(&stream);
            let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
            let capture = begin(&stream);
            launch(&mut step, &batch, &stream);
            drop(batch);
            let graph = capture.end();
            for _ in 0..5 {
                graph.launch().unwrap();
            }
            if close {
                let error = loader.close().unwrap_err();
                assert!(
                    error.kind() == ErrorKind::Capturing && error.message().contains("was dropped"),
                    "{error}"
                );
            } else {
                drop(loader);
            }
            eventually("all is freed", || device.counters().device_bytes == 0);
            let all = step.read(stream.cudarc().unwrap());
            assert_eq!(all, expected(4).iter().map(|sum| 5 * sum).collect::<Vec<_>>());
        }
    });
}

/// Replays one graph a slot over `epochs` epochs, and returns the sums; `early` drops the batch before the replay.
fn replay(device: &Device, builder: Numbers, epochs: usize, early: bool) -> Vec<u64> {
    let stream = device.new_stream().unwrap();
    let loader = builder.build(device).unwrap();
    let mut step = step(&stream);
    let mut graphs: HashMap<usize, (CudaGraph, *const u8)> = HashMap::new();
    for _ in 0..epochs {
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            // SAFETY: the address alone is looked at.
            let address = unsafe { batch.padded_view::<u8>("x").unwrap().device_ptr() };
            let (graph, captured) = graphs.entry(batch.slot()).or_insert_with(|| {
                let capture = begin(&stream);
                launch(&mut step, &batch, &stream);
                (capture.end(), address)
            });
            assert_eq!(*captured, address, "slot {} has moved", batch.slot());
            if early {
                drop(batch);
            }
            graph.launch().unwrap();
        }
    }
    assert_eq!(graphs.len(), 3, "slots");
    step.read(stream.cudarc().unwrap())
}

#[test]
fn a_graph_a_slot_is_replayed_over_epochs_and_sums_every_sample_once() {
    checked(|| {
        for (seed, n) in [(1, 42), (2, 40), (3, 161)] {
            let number = fresh(|machine| (machine.seed, machine.delay_us) = (seed, 200));
            let device = Device::cuda(number).unwrap();
            let found = replay(&device, numbers(n).device_slots(3).shuffle(seed), 4, false);
            assert_eq!(found, expected(n).iter().map(|sum| 4 * sum).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_replay_after_its_batch_was_dropped_is_a_race_that_is_seen() {
    // In a process of its own: no other test may find this race in the books.
    alone("a_replay_after_its_batch_was_dropped_is_a_race_that_is_seen", || {
        checked(|| {
            replay(&device(), numbers(80).device_slots(3), 1, true);
            let races = sim().take().races;
            let seen = |race: &String| race.contains("cuLaunchKernel of masked_sum in a graph");
            assert!(races.iter().any(seen), "{races:?}");
            // What is checked last is right.
            replay(&device(), numbers(80).device_slots(3), 1, false);
        });
    });
}

#[test]
fn the_legacy_stream_counts_as_captured_while_a_blocking_stream_is() {
    checked(|| {
        let number = fresh(|_| {});
        let device = Device::cuda(number).unwrap();
        let context = CudaContext::new(number).unwrap();
        let stream = Stream::from_cudarc(&device, context.default_stream()).unwrap();
        let loader = numbers(16).on_all_held(AllHeld::Error).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        let batch = running.next().unwrap().unwrap();
        context.bind_to_thread().unwrap();
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: a live stream, destroyed at the end.
        unsafe {
            result::stream::begin_capture(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        }
        assert_eq!(kind(running.next()), ErrorKind::Capturing);
        drop(batch);
        // SAFETY: as above; the graph is destroyed once.
        unsafe {
            result::graph::destroy(result::stream::end_capture(raw).unwrap()).unwrap();
            result::stream::destroy(raw).unwrap();
        }
        assert_eq!(kind(running.next()), ErrorKind::Capturing);
        batch_by_batch(running, 3);
        assert_eq!(loader.stats().lost_slots, 0);
    });
}

#[test]
fn the_example_sums_every_sample_by_one_graph_a_slot() {
    checked(|| {
        let epochs = 3;
        let found = graphs::sum(&device(), epochs).unwrap();
        let batches = epochs as usize * 16;
        let expected = graphs::Outcome { sums: graphs::expected(epochs), graphs: 2, replays: batches - 2 };
        assert_eq!(found, expected);
        let on_cpu = graphs::sum(&Device::cpu(), epochs).unwrap();
        assert_eq!((on_cpu.sums, on_cpu.graphs), (found.sums, 0));
    });
}

/// A stream of other code is captured by that code.
#[test]
fn a_capture_of_a_stream_of_other_code_is_seen() {
    checked(|| {
        let number = fresh(|_| {});
        let device = Device::cuda(number).unwrap();
        let theirs: Arc<CudaStream> = CudaContext::new(number).unwrap().new_stream().unwrap();
        let stream = Stream::from_cudarc(&device, theirs.clone()).unwrap();
        let loader = numbers(16).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        let capture = begin(&stream);
        assert_eq!(kind(running.next()), ErrorKind::Capturing);
        drop(capture.end());
        batch_by_batch(running, 4);
    });
}
