//! Work on the host that runs on a CUDA stream: what it reads, and what it may do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

extern crate warpfeed_cuda as warpfeed;

#[path = "support/samples.rs"]
mod samples;
#[path = "support/simulated.rs"]
mod simulated;
#[path = "support/step.rs"]
mod step;
#[path = "../../support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};

use cusim::Fault;
use half::f16;
use samples::{bytes, configured, expected, fields, kind, loader, sum_on};
use simulated::sim;
use step::{Step, checked, numbered};
use support::eventually;
use warpfeed::{Device, ErrorKind, Stream, VALID};

/// What work on the batches of an epoch reads.
fn enqueued(device: &Device) -> (Vec<Vec<u8>>, u64) {
    let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let loader = loader(device);
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut pins = Vec::new();
    for batch in loader.epoch(&stream).unwrap() {
        let batch = batch.unwrap();
        let on = if batch.number() % 2 == 0 { &stream } else { &second };
        let (all, number) = (all.clone(), batch.number());
        batch
            .enqueue(on, move |b| {
                let mut found = bytes(b.get::<f16>("h")?).to_vec();
                found.extend(bytes(b.padded::<i64>("label")?));
                found.extend(bytes(b.get::<bool>("flag")?));
                found.extend(bytes(b.padded::<bool>(VALID)?));
                for row in 0..b.len() {
                    found.extend(bytes(b.ragged::<u16>("words", row)?));
                }
                assert_eq!((b.number(), b.epoch()), (number, 0));
                all.lock().unwrap().push((number, found));
                anyhow::Ok(())
            })
            .unwrap();
        on.synchronize().unwrap();
        pins.push(device.counters().pins);
    }
    assert!(pins.iter().all(|&n| n == pins[0]), "page-locked in the loop: {pins:?}");
    let mut all = std::mem::take(&mut *all.lock().unwrap());
    all.sort_unstable();
    (all.into_iter().map(|(_, found)| found).collect(), pins[0])
}

#[test]
fn work_on_batches_reads_what_it_does_on_the_cpu_device_and_locks_one_buffer() {
    checked(|| {
        let expected = enqueued(&Device::cpu()).0;
        let device = numbered().0;
        let before = device.counters().pins;
        let (found, pins) = enqueued(&device);
        assert_eq!(found.len(), 9);
        assert_eq!(found, expected);
        // Three host slots, and the buffer that all of the work shares.
        assert_eq!(pins - before, 3 + 1);
    });
}

#[test]
fn work_that_has_not_run_keeps_its_copy_while_other_work_gets_one() {
    checked(|| {
        let device = numbered().0;
        let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let loader = configured().device_slots(3).build(&device).unwrap();
        let batches: Vec<_> = loader.epoch(&stream).unwrap().take(3).map(Result::unwrap).collect();
        let (found, results) = std::sync::mpsc::channel();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let read = |on: &Stream, batch: &warpfeed::Batch, gate: Option<std::sync::mpsc::Receiver<()>>| {
            let (found, number) = (found.clone(), batch.number());
            let work = move |b: warpfeed::HostBatch<'_>| {
                if let Some(gate) = gate {
                    gate.recv().unwrap();
                }
                found.send((number, b.get::<u8>("x")?.to_vec())).unwrap();
                anyhow::Ok(())
            };
            batch.enqueue(on, work).unwrap();
        };
        // The copy of the first is there, and the work on it waits, while the others come and go.
        read(&stream, &batches[0], Some(gate));
        for batch in &batches[1..] {
            read(&second, batch, None);
            second.synchronize().unwrap();
        }
        go.send(()).unwrap();
        stream.synchronize().unwrap();
        let mut results: Vec<_> = results.try_iter().collect();
        results.sort_unstable();
        let expected = batches.iter().map(|batch| {
            let rows: Vec<u8> = batch.indices().iter().flat_map(|i| fields(*i).4).collect();
            (batch.number(), rows)
        });
        assert_eq!(results, expected.collect::<Vec<_>>());
    });
}

#[test]
fn work_that_panics_costs_no_buffer() {
    checked(|| {
        let device = numbered().0;
        let stream = device.new_stream().unwrap();
        let loader = loader(&device);
        let mut running = loader.epoch(&stream).unwrap();
        let batch = running.next().unwrap().unwrap();
        batch.enqueue(&stream, |_| ()).unwrap();
        stream.synchronize().unwrap();
        let pins = device.counters().pins;
        for _ in 0..10 {
            batch.enqueue(&stream, |_| -> () { panic!("a user's") }).unwrap();
            // Through cudarc, which leaves the error for our next call.
            stream.cudarc().unwrap().synchronize().unwrap();
            assert_eq!(kind(batch.enqueue(&stream, |_| ())), ErrorKind::Panic);
        }
        assert_eq!(device.counters().pins, pins);
    });
}

#[test]
fn a_copy_back_that_the_driver_refuses_costs_no_buffer() {
    checked(|| {
        let device = numbered().0;
        let stream = device.new_stream().unwrap();
        let loader = loader(&device);
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        batch.enqueue(&stream, |_| ()).unwrap();
        stream.synchronize().unwrap();
        let pins = device.counters().pins;
        // More often than there are buffers: were they lost, the last would wait for one in vain.
        for _ in 0..20 {
            sim().fail(Fault::of("cuMemcpyDtoHAsync").error(1));
            assert_eq!(kind(batch.enqueue(&stream, |_| ())), ErrorKind::Device);
        }
        batch.enqueue(&stream, |_| ()).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(device.counters().pins, pins, "page-locked in the loop");
    });
}

#[test]
fn a_call_on_a_device_in_work_on_a_stream_is_refused_before_it_reaches_the_driver() {
    checked(|| {
        let (device, number) = numbered();
        let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let event = device.new_event().unwrap();
        stream.record(&event).unwrap();
        let loader = loader(&device);
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        let (told, kinds) = std::sync::mpsc::channel();
        let work = move || {
            let calls: [(&str, Option<warpfeed::Error>); 15] = [
                ("cuda", Device::cuda(number).err()),
                ("new_stream", device.new_stream().err()),
                ("new_event", device.new_event().err()),
                ("record", second.record(&event).err()),
                ("wait", second.wait(&event).err()),
                ("enqueue", second.enqueue(|| ()).err()),
                ("query", event.query().err()),
                ("synchronize", event.synchronize().err()),
                ("stream.synchronize", second.synchronize().err()),
                ("is_capturing", second.is_capturing().err()),
                ("from_cudarc", Stream::from_cudarc(&device, second.cudarc().unwrap().clone()).err()),
                ("record_stream", batch.record_stream(&second).err()),
                ("host", batch.host::<u8>("x").err()),
                ("batch.enqueue", batch.enqueue(&second, |_| ()).err()),
                ("cuda_view", batch.cuda_view::<u8>("x", &second).err()),
            ];
            let kinds = calls.map(|(call, error)| (call, error.map(|e| e.kind())));
            told.send(kinds).unwrap();
        };
        stream.enqueue(work).unwrap();
        for (call, kind) in kinds.recv().unwrap() {
            assert_eq!(kind, Some(ErrorKind::InvalidArgument), "{call}");
        }
        stream.synchronize().unwrap();
        assert_eq!(sum_on(&loader, &stream), expected());
    });
}

#[test]
fn a_batch_that_is_dropped_in_work_on_a_stream_is_given_back_by_the_next_call() {
    checked(|| {
        for slots in [1, 2, 3] {
            let device = numbered().0;
            let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let wait = warpfeed::AllHeld::Wait(std::time::Duration::from_secs(30));
            let loader = configured().device_slots(slots).on_all_held(wait).build(&device).unwrap();
            let theirs = second.cudarc().unwrap();
            let mut step = Step::new(theirs.context(), theirs, 7);
            for _ in 0..3 {
                for batch in loader.epoch(&stream).unwrap() {
                    let batch = batch.unwrap();
                    let x = batch.cuda_view::<u8>("x", &second).unwrap();
                    step.launch(theirs, &x, &batch.cuda_view::<bool>(VALID, &second).unwrap(), batch.len());
                    drop(x);
                    second.enqueue(move || drop(batch)).unwrap();
                }
            }
            assert_eq!(step.read(theirs), expected().iter().map(|sum| 3 * sum).collect::<Vec<_>>());
            assert_eq!(loader.stats().lost_slots, 0);
            let report = loader.close().unwrap();
            assert_eq!((report.batches_alive, report.leaked), (0, 0));
        }
    });
}

#[test]
fn what_work_drops_after_its_loader_is_freed_behind_the_work() {
    checked(|| {
        for whole_loader in [false, true] {
            let device = numbered().0;
            let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let loader = loader(&device);
            let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
            // Another stream reads the batch much later than it is dropped.
            let (read, ready) = std::sync::mpsc::channel();
            second.enqueue(move || ready.recv().unwrap()).unwrap();
            let theirs = second.cudarc().unwrap();
            let mut step = Step::new(theirs.context(), theirs, 7);
            let (x, valid) = (batch.cuda_view::<u8>("x", &second), batch.cuda_view::<bool>(VALID, &second));
            step.launch(theirs, &x.unwrap(), &valid.unwrap(), batch.len());
            let (go, gate) = std::sync::mpsc::channel();
            let mut taken = Some(loader);
            let left = if whole_loader { taken.take() } else { None };
            let work = move || {
                gate.recv().unwrap();
                drop(batch); // the last that holds what the two share
                drop(left);
            };
            stream.enqueue(work).unwrap();
            drop(taken);
            let slot = device.counters().device_bytes / 2;
            assert!(slot > 0);
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(device.counters().device_bytes >= slot, "the batch's slot is freed");
            go.send(()).unwrap();
            stream.synchronize().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(device.counters().device_bytes >= slot, "freed under the kernel");
            read.send(()).unwrap();
            eventually("all is freed", || {
                let counters = device.counters();
                counters.device_bytes + counters.host_bytes == 0
            });
        }
    });
}
