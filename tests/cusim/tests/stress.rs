//! Many threads, many streams; and a pipeline that overlaps.

mod support;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use std::time::{Duration, Instant};
use support::{INCREMENT, sim};

/// Each thread has its own context calls, streams, events and memory, made and destroyed over and over.
#[test]
fn threads_do_not_get_into_each_others_way() {
    let sim = sim();
    sim.change(|config| config.guard = true);
    let context = CudaContext::new(0).unwrap();
    let before = sim.report().live;
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let context = &context;
            scope.spawn(move || {
                context.bind_to_thread().unwrap();
                for round in 0..20u8 {
                    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
                    let value = thread * 20 + round;
                    // SAFETY: inside the buffers, which are freed after their last use.
                    unsafe {
                        let host: *mut u8 = result::malloc_host(5000, 0).unwrap().cast();
                        let device = result::malloc_async(a.cu_stream(), 5000).unwrap();
                        result::memset_d8_async(device, value, 5000, a.cu_stream()).unwrap();
                        b.wait(&a.record_event(None).unwrap()).unwrap();
                        sys::cuMemcpyDtoHAsync_v2(host.cast(), device, 5000, b.cu_stream()).result().unwrap();
                        let done = b.record_event(None).unwrap();
                        while !done.is_complete() {
                            std::thread::yield_now();
                        }
                        assert!((0..5000).all(|i| host.add(i).read() == value));
                        a.wait(&done).unwrap();
                        result::free_async(device, a.cu_stream()).unwrap();
                        result::free_host(host.cast()).unwrap();
                    }
                }
            });
        }
    });
    context.synchronize().unwrap();
    let report = sim.report();
    report.assert_clean();
    assert_eq!(report.live, before);
}

/// Milliseconds of 8 batches through `slots` slots, 10 ms of copy and 10 ms of kernel each.
fn pipeline(slots: usize) -> u128 {
    const N: usize = 1 << 16;
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the pipeline orders its streams itself.
    unsafe { context.disable_event_tracking() };
    let (copy, compute) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let module = context.load_module(Ptx::from_src(INCREMENT)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    // SAFETY: inside the buffers, which end with the context, after all work is done.
    unsafe {
        let host = result::malloc_host(N, 0).unwrap();
        let device: Vec<_> = (0..slots).map(|_| result::malloc_sync(N).unwrap()).collect();
        let events = || (0..slots).map(|_| context.new_event(None).unwrap()).collect::<Vec<_>>();
        let (filled, consumed) = (events(), events());
        let begun = Instant::now();
        for batch in 0..8 {
            let slot = batch % slots;
            copy.wait(&consumed[slot]).unwrap();
            sys::cuMemcpyHtoDAsync_v2(device[slot], host, N, copy.cu_stream()).result().unwrap();
            filled[slot].record(&copy).unwrap();
            compute.wait(&filled[slot]).unwrap();
            let mut launch = compute.launch_builder(&increment);
            launch.arg(&device[slot]).arg(&100u32);
            launch.launch(LaunchConfig::for_num_elems(100)).unwrap();
            consumed[slot].record(&compute).unwrap();
        }
        context.synchronize().unwrap();
        begun.elapsed().as_millis()
    }
}

#[test]
fn copies_and_kernels_overlap_over_two_slots_and_not_over_one() {
    let sim = sim();
    sim.change(|config| {
        config.copy_us = 10_000;
        config.kernel_us = 10_000;
    });
    // The least of several tries: what else the machine does can only add.
    let least = |slots| (0..5).map(|_| pipeline(slots)).min().unwrap();
    let (one, two) = (least(1), least(2));
    assert!(one >= 160, "{one} ms");
    assert!((90..one - 30).contains(&two), "{two} ms of {one} ms");
    let report = sim.report();
    assert!(report.races.is_empty(), "{report:#?}");
}

/// What a call costs the host: a loader makes a handful a batch.
#[test]
fn calls_are_quick() {
    let _sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let event = context.new_event(None).unwrap();
    // SAFETY: inside the buffers, which end with the context.
    let (host, device) =
        unsafe { (result::malloc_host(4096, 0).unwrap(), result::malloc_sync(4096).unwrap()) };
    let begun = Instant::now();
    for _ in 0..2000 {
        // SAFETY: as above.
        unsafe { sys::cuMemcpyHtoDAsync_v2(device, host, 4096, stream.cu_stream()) }.result().unwrap();
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
    }
    let each = begun.elapsed() / 2000;
    assert!(each < Duration::from_millis(2), "{each:?}");
}
