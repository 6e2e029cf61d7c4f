//! What the simulator and a GPU must both do. Nothing here knows which of the two it runs on: this very file runs
//! on a machine with a GPU as well (with a CUDA 12 driver, at least one device, and no other driver on the
//! library path).

use cudarc::driver::result::{event, stream};
use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use cusim as _; // a program that links it is shown the simulated devices, where the driver is the simulated one
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::CUresult::*;

/// A context, its default clean-up, and the process to itself: a capture is in the way of other threads' calls.
struct Rig {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    _alone: MutexGuard<'static, ()>,
}

fn rig() -> Rig {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let context = CudaContext::new(0).unwrap();
    // SAFETY: each test orders its streams itself.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    Rig { context, stream, _alone: alone }
}

impl Rig {
    fn cu(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    fn flags(&self, flags: sys::CUevent_flags) -> sys::CUevent {
        event::create(flags).unwrap()
    }
}

const TIMED: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
const UNTIMED: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A host function that holds its stream up until the flag is 1, and then makes it 2.
unsafe extern "C" fn hold(data: *mut c_void) {
    // SAFETY: the tests pass an AtomicU32 that outlives the stream's work.
    let flag = unsafe { &*data.cast::<AtomicU32>() };
    let begun = Instant::now();
    while flag.load(Ordering::SeqCst) == 0 && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    flag.store(2, Ordering::SeqCst);
}

/// Holds a stream up while it lives.
struct Held<'a> {
    flag: &'a AtomicU32,
}

impl Held<'_> {
    fn new(flag: &AtomicU32, on: sys::CUstream) -> Held<'_> {
        // SAFETY: the flag outlives the stream's work: dropping this ends it, and tests wait before they return.
        unsafe { stream::launch_host_function(on, hold, std::ptr::from_ref(flag).cast_mut().cast()) }
            .unwrap();
        Held { flag }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.flag.store(1, Ordering::SeqCst);
    }
}

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    let _rig = rig();
    let event = event::create(UNTIMED).unwrap();
    // SAFETY: a live event.
    unsafe {
        assert_eq!(sys::cuEventQuery(event), CUDA_SUCCESS);
        assert_eq!(sys::cuEventSynchronize(event), CUDA_SUCCESS);
        event::destroy(event).unwrap();
    }
}

#[test]
fn an_event_is_complete_once_the_work_before_it_is() {
    let rig = rig();
    let flag = AtomicU32::new(0);
    let event = rig.flags(UNTIMED);
    // SAFETY: live handles.
    unsafe {
        let held = Held::new(&flag, rig.cu());
        event::record(event, rig.cu()).unwrap();
        assert_eq!(sys::cuEventQuery(event), CUDA_ERROR_NOT_READY);
        assert_eq!(sys::cuStreamQuery(rig.cu()), CUDA_ERROR_NOT_READY);
        drop(held);
        assert_eq!(sys::cuEventSynchronize(event), CUDA_SUCCESS);
        assert_eq!(flag.load(Ordering::SeqCst), 2);
        assert_eq!(sys::cuEventQuery(event), CUDA_SUCCESS);
        stream::synchronize(rig.cu()).unwrap();
        assert_eq!(sys::cuStreamQuery(rig.cu()), CUDA_SUCCESS);
        event::destroy(event).unwrap();
    }
}

#[test]
fn a_wait_is_for_the_latest_record_at_the_call() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let (flag, again) = (AtomicU32::new(0), AtomicU32::new(0));
    let event = rig.flags(UNTIMED);
    // SAFETY: live handles.
    unsafe {
        // Nothing was recorded: the wait is for nothing.
        let held = Held::new(&flag, rig.cu());
        stream::wait_event(other.cu_stream(), event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        event::record(event, rig.cu()).unwrap();
        stream::synchronize(other.cu_stream()).unwrap();
        // Now it is for this record, and a later one takes nothing away.
        stream::wait_event(other.cu_stream(), event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        assert_eq!(sys::cuStreamQuery(other.cu_stream()), CUDA_ERROR_NOT_READY);
        drop(held);
        let held = Held::new(&again, rig.cu());
        event::record(event, rig.cu()).unwrap();
        stream::synchronize(other.cu_stream()).unwrap();
        assert_eq!(sys::cuEventQuery(event), CUDA_ERROR_NOT_READY);
        drop(held);
        stream::synchronize(rig.cu()).unwrap();
        event::destroy(event).unwrap();
    }
}

#[test]
fn elapsed_time_needs_timed_recorded_completed_events() {
    let rig = rig();
    let flag = AtomicU32::new(0);
    let (a, b, untimed) = (rig.flags(TIMED), rig.flags(TIMED), rig.flags(UNTIMED));
    let mut ms = -1.0;
    // SAFETY: live handles; the driver writes to this stack.
    unsafe {
        assert_eq!(sys::cuEventElapsedTime(&mut ms, a, b), CUDA_ERROR_INVALID_HANDLE);
        event::record(untimed, rig.cu()).unwrap();
        event::record(a, rig.cu()).unwrap();
        let held = Held::new(&flag, rig.cu());
        event::record(b, rig.cu()).unwrap();
        assert_eq!(sys::cuEventElapsedTime(&mut ms, a, b), CUDA_ERROR_NOT_READY);
        assert_eq!(sys::cuEventSynchronize(a), CUDA_SUCCESS);
        std::thread::sleep(Duration::from_millis(20));
        drop(held);
        stream::synchronize(rig.cu()).unwrap();
        assert_eq!(sys::cuEventElapsedTime(&mut ms, untimed, b), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuEventElapsedTime(&mut ms, a, b), CUDA_SUCCESS);
        assert!((15.0..5000.0).contains(&ms), "{ms} ms");
        [a, b, untimed].into_iter().for_each(|event| event::destroy(event).unwrap());
    }
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let rig = rig();
    let (flag, again) = (AtomicU32::new(0), AtomicU32::new(0));
    let blocking = stream::create(stream::StreamKind::Default).unwrap();
    let (before, after) = (rig.flags(UNTIMED), rig.flags(UNTIMED));
    // SAFETY: live handles.
    unsafe {
        let held = Held::new(&flag, blocking);
        event::record(after, null_mut()).unwrap(); // the default stream
        event::record(before, rig.cu()).unwrap(); // a non-blocking one
        assert_eq!(sys::cuEventSynchronize(before), CUDA_SUCCESS);
        assert_eq!(sys::cuEventQuery(after), CUDA_ERROR_NOT_READY);
        drop(held);
        assert_eq!(sys::cuEventSynchronize(after), CUDA_SUCCESS);
        let held = Held::new(&again, null_mut());
        event::record(after, blocking).unwrap();
        assert_eq!(sys::cuEventQuery(after), CUDA_ERROR_NOT_READY);
        drop(held);
        assert_eq!(sys::cuEventSynchronize(after), CUDA_SUCCESS);
        [before, after].into_iter().for_each(|event| event::destroy(event).unwrap());
        stream::destroy(blocking).unwrap();
    }
}

#[test]
fn each_thread_has_a_stream_of_its_own() {
    let rig = rig();
    let per_thread = || 2 as sys::CUstream; // CU_STREAM_PER_THREAD
    let flag = AtomicU32::new(0);
    let event = rig.flags(UNTIMED);
    // SAFETY: live handles.
    unsafe {
        let held = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rig.context.bind_to_thread().unwrap();
                Held::new(&flag, per_thread())
            });
            thread.join().unwrap()
        });
        event::record(event, per_thread()).unwrap();
        assert_eq!(sys::cuEventSynchronize(event), CUDA_SUCCESS);
        event::record(event, null_mut()).unwrap(); // the legacy stream comes after those of all threads
        assert_eq!(sys::cuEventQuery(event), CUDA_ERROR_NOT_READY);
        drop(held);
        assert_eq!(sys::cuEventSynchronize(event), CUDA_SUCCESS);
        event::destroy(event).unwrap();
    }
}

#[test]
fn streams_have_priorities_and_flags() {
    let rig = rig();
    let (mut least, mut greatest, mut priority, mut flags) = (0, 0, 0, 0);
    // SAFETY: live handles; the driver writes to this stack.
    unsafe {
        sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest).result().unwrap();
        assert!(greatest < least, "{greatest} {least}");
        for (wanted, given) in [(least, least), (greatest, greatest), (greatest - 100, greatest)] {
            let stream = rig.context.new_stream_with_priority(wanted).unwrap();
            sys::cuStreamGetPriority(stream.cu_stream(), &mut priority).result().unwrap();
            assert_eq!(priority, given);
            sys::cuStreamGetFlags(stream.cu_stream(), &mut flags).result().unwrap();
            assert_eq!(flags, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        }
    }
}

#[test]
fn page_locked_memory_goes_there_and_back() {
    let rig = rig();
    const N: usize = 1 << 16;
    // SAFETY: inside the buffers, which are freed after the stream has been waited for.
    unsafe {
        let host: *mut u8 = result::malloc_host(2 * N, sys::CU_MEMHOSTALLOC_PORTABLE).unwrap().cast();
        (0..N).for_each(|i| host.add(i).write((i * 7) as u8));
        let device = result::malloc_sync(N).unwrap();
        let (up, down) = (host.cast(), host.add(N).cast());
        sys::cuMemcpyHtoDAsync_v2(device, up, N, rig.cu()).result().unwrap();
        sys::cuMemcpyDtoHAsync_v2(down, device, N, rig.cu()).result().unwrap();
        stream::synchronize(rig.cu()).unwrap();
        assert!((0..N).all(|i| host.add(N + i).read() == (i * 7) as u8));
        let mut flags = 0;
        sys::cuMemHostGetFlags(&mut flags, host.cast()).result().unwrap();
        assert_eq!(flags & sys::CU_MEMHOSTALLOC_PORTABLE, sys::CU_MEMHOSTALLOC_PORTABLE);
        let mut kind = 0u32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        for (p, expected) in [(host as u64, 1), (device, 2)] {
            sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, p).result().unwrap();
            assert_eq!(kind, expected);
        }
        result::free_sync(device).unwrap();
        result::free_host(host.cast()).unwrap();
    }
}

#[test]
fn registered_memory_is_registered_once() {
    let _rig = rig();
    let mut own = vec![0u8; 1 << 16];
    let p = own.as_mut_ptr().cast();
    // SAFETY: `own` lives until it is unregistered.
    unsafe {
        assert_eq!(sys::cuMemHostUnregister(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        assert_eq!(sys::cuMemHostRegister_v2(p, own.len(), 0), CUDA_SUCCESS);
        assert_eq!(sys::cuMemHostRegister_v2(p, own.len(), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(sys::cuMemHostUnregister(p), CUDA_SUCCESS);
        assert_eq!(sys::cuMemHostUnregister(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
}

#[test]
fn a_pageable_source_is_free_when_the_call_returns() {
    let rig = rig();
    let mut source = vec![3u8; 4096];
    // SAFETY: inside the allocation; the source is staged by the call.
    unsafe {
        let device = result::malloc_sync(4096).unwrap();
        sys::cuMemcpyHtoDAsync_v2(device, source.as_ptr().cast(), 4096, rig.cu()).result().unwrap();
        source.fill(4);
        let mut back = vec![0u8; 4096];
        // Into pageable memory the copy is done when the call returns.
        sys::cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), device, 4096, rig.cu()).result().unwrap();
        assert_eq!(back, [3u8; 4096]);
        result::free_sync(device).unwrap();
    }
}

#[test]
fn rows_are_copied_with_their_pitches() {
    let rig = rig();
    let (width, rows, pitch) = (100usize, 5usize, 256usize);
    let source: Vec<u8> = (0..width * rows).map(|i| i as u8).collect();
    // SAFETY: inside the allocation, rows included.
    unsafe {
        let device = result::malloc_sync(pitch * rows).unwrap();
        result::memset_d8_async(device, 0xEE, pitch * rows, rig.cu()).unwrap();
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: source.as_ptr().cast(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: width,
            dstXInBytes: 4,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: device,
            dstArray: null_mut(),
            dstPitch: pitch,
            WidthInBytes: width,
            Height: rows,
        };
        sys::cuMemcpy2DAsync_v2(&copy, rig.cu()).result().unwrap();
        let mut back = vec![0u8; pitch * rows];
        sys::cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), device, back.len(), rig.cu()).result().unwrap();
        for (row, line) in back.chunks(pitch).enumerate() {
            assert_eq!(line[..4], [0xEE; 4]);
            assert_eq!(line[4..4 + width], source[row * width..][..width]);
            assert!(line[4 + width..].iter().all(|byte| *byte == 0xEE));
        }
        result::free_sync(device).unwrap();
    }
}

#[test]
fn fills_have_elements_of_one_two_and_four_bytes() {
    let rig = rig();
    let mut back = [0u8; 16];
    // SAFETY: inside the allocation.
    unsafe {
        let device = result::malloc_sync(16).unwrap();
        sys::cuMemsetD8Async(device, 1, 16, rig.cu()).result().unwrap();
        sys::cuMemsetD16Async(device + 4, 0x0302, 2, rig.cu()).result().unwrap();
        sys::cuMemsetD32Async(device + 8, 0x07060504, 1, rig.cu()).result().unwrap();
        sys::cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), device, 16, rig.cu()).result().unwrap();
        assert_eq!(back, [1, 1, 1, 1, 2, 3, 2, 3, 4, 5, 6, 7, 1, 1, 1, 1]);
        assert_eq!(sys::cuMemsetD32Async(device + 1, 0, 1, rig.cu()), CUDA_ERROR_INVALID_VALUE);
        result::free_sync(device).unwrap();
    }
}

#[test]
fn a_kernel_from_ptx_runs() {
    let rig = rig();
    let module = rig.context.load_module(Ptx::from_src(include_str!("increment.ptx"))).unwrap();
    assert!(module.load_function("no_such_kernel").is_err());
    let increment = module.load_function("cusim_increment").unwrap();
    let mut data = rig.stream.clone_htod(&[41u32; 333]).unwrap();
    let mut launch = rig.stream.launch_builder(&increment);
    launch.arg(&mut data).arg(&300u32);
    // SAFETY: the kernel takes a pointer to at least 300 words.
    unsafe { launch.launch(LaunchConfig::for_num_elems(300)) }.unwrap();
    let back = rig.stream.clone_dtoh(&data).unwrap();
    assert!(back[..300].iter().all(|x| *x == 42) && back[300..].iter().all(|x| *x == 41));
}

#[test]
fn a_launch_that_cannot_be_is_refused() {
    let rig = rig();
    let module = rig.context.load_module(Ptx::from_src(include_str!("increment.ptx"))).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    for (grid, block) in [((0, 1, 1), (32, 1, 1)), ((1, 1, 1), (1025, 1, 1)), ((1, 65536, 1), (32, 1, 1))] {
        let mut launch = rig.stream.launch_builder(&increment);
        launch.arg(&0u64).arg(&0u32);
        let config = LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: nothing is launched.
        assert_eq!(unsafe { launch.launch(config) }.unwrap_err().0, CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_thread_without_a_context_is_refused() {
    let _rig = rig();
    let codes = std::thread::spawn(|| {
        let mut out = 0;
        let mut event = null_mut();
        // SAFETY: the driver writes to this stack, if at all.
        unsafe {
            [sys::cuMemAlloc_v2(&mut out, 64), sys::cuEventCreate(&mut event, 0), sys::cuCtxSynchronize()]
        }
    });
    assert_eq!(codes.join().unwrap(), [CUDA_ERROR_INVALID_CONTEXT; 3]);
}

#[test]
fn contexts_are_pushed_and_popped() {
    let rig = rig();
    let context = rig.context.cu_ctx();
    std::thread::spawn({
        let context = context as usize;
        move || {
            let context = context as sys::CUcontext;
            let mut out = null_mut();
            // SAFETY: a live context; the driver writes to this stack.
            unsafe {
                assert_eq!(sys::cuCtxPopCurrent_v2(&mut out), CUDA_ERROR_INVALID_CONTEXT);
                assert_eq!(sys::cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
                assert_eq!(sys::cuCtxGetCurrent(&mut out), CUDA_SUCCESS);
                assert_eq!(out, context);
                assert_eq!(sys::cuCtxPopCurrent_v2(&mut out), CUDA_SUCCESS);
                assert_eq!(out, context);
                assert_eq!(sys::cuCtxGetCurrent(&mut out), CUDA_SUCCESS);
                assert!(out.is_null());
            }
        }
    })
    .join()
    .unwrap();
}

#[test]
fn errors_have_the_drivers_names() {
    let _rig = rig();
    let error = result::DriverError(CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(error.error_string().unwrap(), c"out of memory");
    let error = result::DriverError(CUDA_ERROR_NOT_READY);
    assert_eq!(error.error_string().unwrap(), c"device not ready");
}

#[test]
fn more_memory_than_there_is_is_refused() {
    let rig = rig();
    let (free, total) = rig.context.mem_get_info().unwrap();
    assert!(free <= total);
    let mut out = 0;
    // SAFETY: nothing is allocated.
    unsafe {
        assert_eq!(sys::cuMemAlloc_v2(&mut out, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(sys::cuMemAlloc_v2(&mut out, 0), CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn stream_ordered_memory_is_allocated_and_freed_in_order() {
    let rig = rig();
    let mut back = [0u8; 64];
    // SAFETY: used on its own stream, between its allocation and its end.
    unsafe {
        let device = result::malloc_async(rig.cu(), 64).unwrap();
        result::memset_d8_async(device, 9, 64, rig.cu()).unwrap();
        result::memcpy_dtoh_async(&mut back, device, rig.cu()).unwrap();
        result::free_async(device, rig.cu()).unwrap();
        stream::synchronize(rig.cu()).unwrap();
    }
    assert_eq!(back, [9; 64]);
}

#[test]
fn work_that_is_captured_is_done_by_each_launch() {
    let rig = rig();
    let module = rig.context.load_module(Ptx::from_src(include_str!("increment.ptx"))).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    let mut data = rig.stream.clone_htod(&[0u32; 64]).unwrap();
    rig.stream.synchronize().unwrap();
    rig.stream.begin_capture(GLOBAL).unwrap();
    for _ in 0..2 {
        let mut launch = rig.stream.launch_builder(&increment);
        launch.arg(&mut data).arg(&64u32);
        // SAFETY: the kernel takes a pointer to 64 words.
        unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.unwrap();
    }
    let graph = rig.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let mut n = 0;
    // SAFETY: a live graph; without room only the number is written.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), null_mut(), &mut n) }.result().unwrap();
    assert_eq!(n, 2);
    assert_eq!(rig.stream.clone_dtoh(&data).unwrap(), [0; 64]);
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    assert_eq!(rig.stream.clone_dtoh(&data).unwrap(), [6; 64]);
}

#[test]
fn a_capture_forks_and_joins_by_events() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut a = rig.stream.clone_htod(&[0u8; 64]).unwrap();
    let mut b = rig.stream.clone_htod(&[0u8; 64]).unwrap();
    let (fork, join) = (rig.context.new_event(None).unwrap(), rig.context.new_event(None).unwrap());
    rig.stream.synchronize().unwrap();
    rig.stream.begin_capture(GLOBAL).unwrap();
    rig.stream.memset_zeros(&mut a).unwrap();
    fork.record(&rig.stream).unwrap();
    other.wait(&fork).unwrap();
    assert_eq!(other.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    other.memset_zeros(&mut b).unwrap();
    join.record(&other).unwrap();
    rig.stream.wait(&join).unwrap();
    let graph = rig.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    assert_eq!(other.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    for slice in [&mut a, &mut b] {
        rig.stream.memcpy_htod(&[5u8; 64], slice).unwrap();
    }
    graph.launch().unwrap();
    assert_eq!(rig.stream.clone_dtoh(&a).unwrap(), [0; 64]);
    assert_eq!(rig.stream.clone_dtoh(&b).unwrap(), [0; 64]);
}

/// Ends a capture that has gone wrong.
fn end(rig: &Rig) -> sys::CUresult {
    let mut graph = null_mut();
    // SAFETY: a live stream; the driver writes to this stack.
    let code = unsafe { sys::cuStreamEndCapture(rig.cu(), &mut graph) };
    assert!(graph.is_null());
    code
}

#[test]
fn an_unjoined_fork_is_an_error() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut data = rig.stream.alloc_zeros::<u8>(64).unwrap();
    rig.stream.synchronize().unwrap();
    rig.stream.begin_capture(GLOBAL).unwrap();
    other.wait(&rig.stream.record_event(None).unwrap()).unwrap();
    other.memset_zeros(&mut data).unwrap();
    assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

#[test]
fn a_captured_stream_cannot_wait_for_work_outside() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let outside = other.record_event(None).unwrap();
    rig.stream.begin_capture(GLOBAL).unwrap();
    assert_eq!(rig.stream.wait(&outside).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn a_captured_stream_cannot_be_waited_for() {
    let rig = rig();
    rig.stream.begin_capture(RELAXED).unwrap();
    assert_eq!(rig.stream.synchronize().unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    rig.stream.begin_capture(RELAXED).unwrap();
    let inside = rig.stream.record_event(None).unwrap();
    // SAFETY: a live event.
    unsafe { assert_eq!(sys::cuEventQuery(inside.cu_event()), CUDA_ERROR_CAPTURED_EVENT) };
    assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn an_unsafe_call_of_another_thread_breaks_a_global_capture() {
    for (mode, breaks) in [(GLOBAL, true), (RELAXED, false)] {
        let rig = rig();
        rig.stream.begin_capture(mode).unwrap();
        let code = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rig.context.bind_to_thread().unwrap();
                let mut out = 0;
                // SAFETY: the driver writes to this stack; what it gives is freed.
                unsafe {
                    let code = sys::cuMemAlloc_v2(&mut out, 64);
                    if code == CUDA_SUCCESS {
                        result::free_sync(out).unwrap();
                    }
                    code
                }
            });
            thread.join().unwrap()
        });
        if breaks {
            assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        } else {
            assert_eq!(code, CUDA_SUCCESS);
            assert!(rig.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().is_some());
        }
    }
}

#[test]
fn a_thread_may_relax_its_own_mode() {
    let rig = rig();
    let mut mode = RELAXED;
    // SAFETY: the driver swaps the mode on this stack.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
    assert_eq!(mode, GLOBAL);
    rig.stream.begin_capture(GLOBAL).unwrap();
    let other = rig.context.new_stream().unwrap();
    other.synchronize().unwrap();
    assert!(rig.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().is_some());
    // SAFETY: as above.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
}

#[test]
fn a_capture_ends_where_it_began() {
    let rig = rig();
    assert_eq!(end(&rig), CUDA_ERROR_ILLEGAL_STATE);
    rig.stream.begin_capture(GLOBAL).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.context.bind_to_thread().unwrap();
            assert_eq!(end(&rig), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        });
    });
    // SAFETY: the legacy stream is refused.
    let code = unsafe { sys::cuStreamBeginCapture_v2(null_mut(), GLOBAL) };
    assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let mut graph = null_mut();
    // SAFETY: a live stream; the graph that it gives is destroyed.
    unsafe {
        sys::cuStreamEndCapture(rig.cu(), &mut graph).result().unwrap();
        result::graph::destroy(graph).unwrap();
    }
}
