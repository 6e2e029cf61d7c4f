//! Streams, contexts and kernels of other code of the process, as candle has them.

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

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use half::f16;
use samples::{bytes, configured, expected, fields, kind, loader, sum_on};
use simulated::sim;
use step::{Step, checked, current, numbered, sums};
use support::eventually;
use support::watch::alone;
use warpfeed::{Batch, Device, Element, ErrorKind, Stream, VALID, View};

#[test]
fn a_stream_of_a_context_object_with_event_tracking_is_used_and_kept_alive() {
    checked(|| {
        let (device, number) = numbered();
        // Two streams, so that cudarc takes care of their order.
        let context = CudaContext::new(number).unwrap();
        let (own, _second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        assert!(context.is_managing_stream_synchronization());
        let weak = Arc::downgrade(&own);
        let stream = Stream::from_cudarc(&device, own).unwrap();
        assert!(Arc::ptr_eq(stream.cudarc().unwrap(), &weak.upgrade().unwrap()));
        let loader = loader(&device);
        for _ in 0..3 {
            assert_eq!(sum_on(&loader, &stream), expected());
        }
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        drop(stream);
        assert!(weak.upgrade().is_some(), "the batch keeps it");
        drop(batch);
        assert!(weak.upgrade().is_none(), "nobody needs it any more");
    });
}

#[test]
fn a_raw_stream_is_used_and_not_destroyed() {
    checked(|| {
        let (device, number) = numbered();
        let context = CudaContext::new(number).unwrap();
        context.bind_to_thread().unwrap();
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        // SAFETY: the stream outlives the handle and all batches.
        let stream = unsafe { Stream::from_raw(&device, raw) }.unwrap();
        let loader = loader(&device);
        assert_eq!(sum_on(&loader, &stream), expected());
        assert_eq!(stream.cudarc().unwrap().cu_stream(), raw);
        drop(stream);
        // SAFETY: ours, and used for the last time.
        unsafe {
            assert!(result::stream::is_capturing(raw).is_ok());
            result::stream::destroy(raw).unwrap();
        }
    });
}

#[test]
fn the_legacy_default_stream_is_a_stream_like_any_other() {
    checked(|| {
        let (device, number) = numbered();
        let loader = loader(&device);
        let context = CudaContext::new(number).unwrap();
        let stream = Stream::from_cudarc(&device, context.default_stream()).unwrap();
        assert_eq!(sum_on(&loader, &stream), expected());
        for raw in [0, 1] {
            // SAFETY: it lives as long as the context, which is the process's.
            let stream = unsafe { Stream::from_raw(&device, raw as sys::CUstream) }.unwrap();
            assert_eq!(sum_on(&loader, &stream), expected());
        }
    });
}

#[test]
fn streams_that_can_not_be_meant_are_refused() {
    checked(|| {
        let ((device, number), (other, other_number)) = (numbered(), numbered());
        let [context, elsewhere] = [number, other_number].map(|n| CudaContext::new(n).unwrap());
        let apart = CudaContext::new_non_primary(number, 0).unwrap();
        let refused = |stream: Arc<CudaStream>, words: &str| {
            let raw = stream.cu_stream();
            stream.context().bind_to_thread().unwrap();
            // SAFETY: `stream` keeps it alive.
            let of_raw = unsafe { Stream::from_raw(&device, raw) }.unwrap_err();
            let error = Stream::from_cudarc(&device, stream.clone()).unwrap_err();
            for error in [error, of_raw] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.message().contains(words), "{error}");
            }
        };
        refused(context.per_thread_stream(), "per-thread");
        refused(elsewhere.new_stream().unwrap(), "primary context of CUDA");
        refused(apart.new_stream().unwrap(), "primary context of CUDA");
        // An epoch and a batch on a stream of another device, or of the other kind.
        let loader = loader(&device);
        let (there, on_cpu) = (other.new_stream().unwrap(), Device::cpu().new_stream().unwrap());
        let stream = device.new_stream().unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        let batch = running.next().unwrap().unwrap();
        for wrong in [&there, &on_cpu] {
            assert_eq!(kind(batch.record_stream(wrong)), ErrorKind::InvalidArgument);
            assert_eq!(kind(batch.cuda_view::<u8>("x", wrong)), ErrorKind::InvalidArgument);
            assert_eq!(kind(batch.enqueue(wrong, |_| ())), ErrorKind::InvalidArgument);
        }
        drop((batch, running));
        for wrong in [&there, &on_cpu] {
            assert_eq!(loader.epoch(wrong).err().unwrap().kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(sum_on(&loader, &stream), expected());
        let their = context.new_stream().unwrap();
        assert_eq!(kind(Stream::from_cudarc(&Device::cpu(), their)), ErrorKind::InvalidArgument);
    });
}

#[test]
fn the_cpu_device_has_no_view_for_cudarc_and_says_so() {
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    assert!(stream.cudarc().is_none());
    let loader = loader(&device);
    let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
    let error = batch.cuda_view::<u8>("x", &stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("CPU device"), "{error}");
}

/// A field of a batch by kernels on `stream`: its view, and the padded one, whose tail counts nothing.
fn check_view<T: Element>(batch: &Batch, field: &str, stream: &Stream, of: impl Fn(u64) -> Vec<T>) {
    let rows: Vec<Vec<T>> = batch.indices().iter().map(|i| of(*i)).collect();
    let width = size_of_val(rows[0].as_slice());
    let expected = sums(rows.iter().map(|row| bytes(row)), width);
    let theirs = stream.cudarc().unwrap();
    let valid = batch.padded_view::<bool>(VALID).unwrap().cuda(stream).unwrap();
    let views: [View<'_, T>; 2] = [batch.view(field).unwrap(), batch.padded_view(field).unwrap()];
    for view in views {
        let mut step = Step::new(theirs.context(), theirs, width);
        let slice = view.cuda(stream).unwrap();
        assert_eq!(slice.len(), view.elements());
        step.launch(theirs, &slice, &valid, view.shape()[0]);
        assert_eq!(step.read(theirs), expected, "{field} of {batch:?}");
    }
}

#[test]
fn kernels_read_every_dtype_through_views_on_the_epochs_stream_and_on_another() {
    checked(|| {
        let (device, number) = numbered();
        let context = CudaContext::new(number).unwrap();
        let second = Stream::from_cudarc(&device, context.new_stream().unwrap()).unwrap();
        let stream = device.new_stream().unwrap();
        let loader = loader(&device);
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            for on in [&stream, &second] {
                check_view(&batch, "h", on, |i| fields(i).0.to_vec());
                check_view(&batch, "b", on, |i| fields(i).1.to_vec());
                check_view(&batch, "label", on, |i| vec![fields(i).2]);
                check_view(&batch, "flag", on, |i| fields(i).3.to_vec());
                check_view(&batch, "x", on, |i| fields(i).4.to_vec());
            }
        }
        assert_eq!(loader.state().epoch(), 1);
    });
}

#[test]
fn a_second_stream_keeps_the_slot_until_its_work_is_done() {
    checked(|| {
        // Kernels that take their time: a slot that came back too early would be written under them.
        let number = simulated::fresh(|machine| machine.delay_us = 300);
        let device = Device::cuda(number).unwrap();
        let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let loader = configured().device_slots(1).build(&device).unwrap();
        let theirs = second.cudarc().unwrap();
        let mut step = Step::new(theirs.context(), theirs, 7);
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let x = batch.cuda_view::<u8>("x", &second).unwrap();
            step.launch(theirs, &x, &batch.cuda_view::<bool>(VALID, &second).unwrap(), batch.len());
        }
        assert_eq!(step.read(theirs), expected());
    });
}

#[test]
fn a_view_that_is_dropped_frees_nothing_and_calls_nothing() {
    // In a process of its own: the books are the process's, and the reaper may still free what an earlier test left.
    alone("a_view_that_is_dropped_frees_nothing_and_calls_nothing", || {
        checked(|| {
            let (device, number) = numbered();
            let context = CudaContext::new(number).unwrap();
            let (own, _second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let tracked = Stream::from_cudarc(&device, own).unwrap();
            let loader = loader(&device);
            let mut running = loader.epoch(&tracked).unwrap();
            let batch = running.next().unwrap().unwrap();
            // So that the loader's threads have nothing left to do.
            tracked.synchronize().unwrap();
            // The record follows the copy, and is the last that a batch costs.
            eventually("the pipeline is full", || device.counters().records >= 2);
            let before = sim().take();
            for _ in 0..100 {
                drop(batch.cuda_view::<u8>("x", &tracked).unwrap());
                drop(batch.padded_view::<f16>("h").unwrap().cuda(&tracked).unwrap());
            }
            let after = sim().report();
            for kind in ["device", "events", "streams"] {
                assert_eq!(after.live_of(kind), before.live_of(kind), "{kind}");
            }
            for call in [
                "cuMemFree",
                "cuMemFreeAsync",
                "cuEventCreate",
                "cuEventDestroy",
                "cuEventRecord",
                "cuStreamWaitEvent",
            ] {
                assert_eq!(after.calls_of(call), 0, "{call}");
            }
            // Something is to be checked in this test too.
            assert_eq!(batch.host::<u8>("x").unwrap().len(), 5 * 7);
        })
    });
}

#[test]
fn a_clone_of_a_view_is_a_copy_that_outlives_batch_stream_and_loader() {
    checked(|| {
        for tracked in [true, false] {
            let (device, number) = numbered();
            let context = CudaContext::new(number).unwrap();
            if !tracked {
                // SAFETY: one stream, in order.
                unsafe { context.disable_event_tracking() };
            }
            let stream = Stream::from_cudarc(&device, context.new_stream().unwrap()).unwrap();
            let loader = loader(&device);
            let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
            let copy = (*batch.cuda_view::<u8>("x", &stream).unwrap()).clone();
            let rows: Vec<u8> = batch.indices().iter().flat_map(|i| fields(*i).4).collect();
            drop((batch, loader, stream));
            assert_eq!(copy.stream().clone_dtoh(&copy).unwrap(), rows);
            drop(copy); // frees on its stream, which is alive
        }
    });
}

/// Calls everything that a user's thread may call, and `look` after each.
fn everything(number: usize, look: &dyn Fn(&str)) {
    let device = Device::cuda(number).unwrap();
    look("Device::cuda");
    assert!(Device::cuda(1 << 30).is_err());
    look("Device::cuda of a device that is not there");
    let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    look("new_stream");
    let (event, later) = (device.new_event().unwrap(), device.new_event().unwrap());
    look("new_event");
    stream.record(&event).unwrap();
    second.wait(&event).unwrap();
    second.record(&later).unwrap();
    look("record, wait");
    later.synchronize().unwrap();
    assert!(event.query().unwrap() && later.synchronize_for(std::time::Duration::from_secs(1)).unwrap());
    later.elapsed_since(&event).unwrap();
    look("query, synchronize, elapsed_since");
    stream.enqueue(|| ()).unwrap();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap() && !stream.is_capturing().unwrap());
    look("enqueue, synchronize, query, is_capturing");
    let raw = stream.cudarc().unwrap().cu_stream();
    // SAFETY: `stream` outlives it.
    drop(unsafe { Stream::from_raw(&device, raw) }.unwrap());
    drop(Stream::from_cudarc(&device, stream.cudarc().unwrap().clone()).unwrap());
    look("from_raw, from_cudarc");
    for workers in [2, 0] {
        let loader = configured().workers(workers).build(&device).unwrap();
        look("build");
        let mut running = loader.epoch(&stream).unwrap();
        look("epoch");
        let batch = running.next().unwrap().unwrap();
        look("next");
        batch.record_stream(&second).unwrap();
        batch.synchronize().unwrap();
        look("record_stream, synchronize");
        let view = batch.cuda_view::<u8>("x", &stream).unwrap();
        look("cuda_view");
        drop(view);
        look("a view's drop");
        batch.host::<u8>("x").unwrap();
        batch.host_ragged::<u16>("words", 0).unwrap();
        look("host");
        batch.enqueue(&second, |_| ()).unwrap();
        look("batch.enqueue");
        drop(batch);
        look("a batch's drop");
        running.for_each(|batch| drop(batch.unwrap()));
        look("an epoch");
        let kept = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        if workers == 0 {
            drop(loader)
        } else {
            assert_eq!(loader.close().unwrap().threads_left, 0);
        }
        look("a loader's end");
        drop(kept);
        look("the drop of a batch without its loader");
    }
    drop((event, later));
    look("an event's drop");
    second.synchronize().unwrap();
    drop((stream, second));
    look("a stream's drop");
    drop(device);
    look("a device's drop");
}

#[test]
fn the_users_threads_keep_the_context_that_they_have_or_have_not() {
    checked(|| {
        // Threads of their own, whose contexts nobody else has touched.
        let without = std::thread::spawn(|| {
            everything(simulated::fresh(|_| {}), &|after| assert!(current().is_null(), "after {after}"));
            // SAFETY: nothing is on the stack to be popped.
            let code = unsafe { sys::cuCtxPopCurrent_v2(&mut std::ptr::null_mut()) };
            assert_eq!(code, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT, "something is left on the stack");
        });
        without.join().unwrap();
        let with = std::thread::spawn(|| {
            let theirs = CudaContext::new(simulated::fresh(|_| {})).unwrap();
            assert_eq!(current(), theirs.cu_ctx());
            let keeps = |after: &str| assert_eq!(current(), theirs.cu_ctx(), "after {after}");
            everything(simulated::fresh(|_| {}), &keeps);
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what this thread set, and then nothing.
            let codes = unsafe {
                [sys::cuCtxPopCurrent_v2(&mut popped), sys::cuCtxPopCurrent_v2(&mut std::ptr::null_mut())]
            };
            assert_eq!(codes, [sys::CUresult::CUDA_SUCCESS, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT]);
            assert_eq!(popped, theirs.cu_ctx());
        });
        with.join().unwrap();
    });
}

#[test]
fn two_devices_have_two_loaders_side_by_side() {
    checked(|| {
        let pairs = [numbered().0, numbered().0].map(|device| {
            let stream = device.new_stream().unwrap();
            (loader(&device), stream)
        });
        let [(first, here), (second, there)] = &pairs;
        for _ in 0..3 {
            // Batch by batch on one thread.
            let both = first.epoch(here).unwrap().zip(second.epoch(there).unwrap());
            for (mine, other) in both {
                let (mine, other) = (mine.unwrap(), other.unwrap());
                assert_eq!(kind(mine.record_stream(there)), ErrorKind::InvalidArgument);
                assert_eq!(kind(other.cuda_view::<u8>("x", here)), ErrorKind::InvalidArgument);
                assert_eq!(mine.host::<u8>("x").unwrap(), other.host::<u8>("x").unwrap());
            }
        }
        std::thread::scope(|scope| {
            let sums = pairs.each_ref().map(|(loader, stream)| scope.spawn(|| sum_on(loader, stream)));
            sums.into_iter().for_each(|sum| assert_eq!(sum.join().unwrap(), expected()));
        });
    });
}
