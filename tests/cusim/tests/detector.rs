//! What the race detector finds, and what it must not take for a race. None of it depends on time.

mod support;

use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use support::{INCREMENT, Locked, sim};

const N: usize = 8192;

/// Two streams, a page-locked buffer and device memory for it.
struct Rig {
    context: Arc<CudaContext>,
    a: Arc<CudaStream>,
    b: Arc<CudaStream>,
    host: *mut u8,
    device: sys::CUdeviceptr,
    sim: Locked, // last: the next test begins when it is dropped
}

impl Rig {
    fn new() -> Rig {
        let sim = sim();
        let context = CudaContext::new(0).unwrap();
        // SAFETY: the rig orders its streams itself, or fails to on purpose. The memory is used within `N`.
        unsafe {
            context.disable_event_tracking();
            let host = result::malloc_host(N, 0).unwrap().cast();
            let device = result::malloc_sync(N).unwrap();
            let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            Rig { sim, context, a, b, host, device }
        }
    }

    fn upload(&self, stream: &CudaStream) {
        self.upload_part(stream, 0, N);
    }

    fn upload_part(&self, stream: &CudaStream, from: usize, n: usize) {
        // SAFETY: inside both buffers.
        let r = unsafe {
            let (device, host) = (self.device + from as u64, self.host.add(from));
            sys::cuMemcpyHtoDAsync_v2(device, host.cast(), n, stream.cu_stream())
        };
        r.result().unwrap();
    }

    fn download(&self, stream: &CudaStream) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.host.cast(), self.device, N, stream.cu_stream()) }
            .result()
            .unwrap();
    }

    fn fill(&self, stream: &CudaStream) {
        // SAFETY: inside the buffer.
        unsafe { result::memset_d8_async(self.device, 1, N, stream.cu_stream()) }.unwrap();
    }

    /// Launches a kernel that reads and writes the first 1000 words.
    fn increment(&self, stream: &Arc<CudaStream>) {
        let module = self.context.load_module(Ptx::from_src(INCREMENT)).unwrap();
        let increment = module.load_function("cusim_increment").unwrap();
        let mut launch = stream.launch_builder(&increment);
        launch.arg(&self.device).arg(&1000u32);
        // SAFETY: the kernel takes a device pointer to 1000 words, and their number.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1000)) }.unwrap();
    }

    #[track_caller]
    fn races(&self, expected: usize) -> Vec<String> {
        self.context.synchronize().unwrap();
        let report = self.sim.report();
        assert!(report.accesses_checked > 0);
        assert_eq!(report.races.len(), expected, "{:#?}", report.races);
        assert!(report.host_races.is_empty() && report.misuse.is_empty(), "{report:#?}");
        report.races
    }

    #[track_caller]
    fn host_races(&self, expected: usize) -> Vec<String> {
        self.context.synchronize().unwrap();
        let report = self.sim.report();
        assert!(report.races.is_empty(), "{report:#?}");
        assert_eq!(report.host_races.len(), expected, "{:#?}", report.host_races);
        report.host_races
    }
}

#[test]
fn a_missing_wait_is_a_race() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    rig.fill(&rig.b);
    let races = rig.races(1);
    assert!(races[0].contains("cuMemsetD8Async") && races[0].contains("cuMemcpyHtoDAsync"), "{races:?}");
}

#[test]
fn a_wait_for_the_event_orders() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    rig.b.wait(&rig.a.record_event(None).unwrap()).unwrap();
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn reads_do_not_race() {
    let rig = Rig::new();
    rig.fill(&rig.a);
    rig.b.wait(&rig.a.record_event(None).unwrap()).unwrap();
    for stream in [&rig.a, &rig.b] {
        // SAFETY: the vector outlives the copy, which is synchronous into pageable memory.
        unsafe { result::memcpy_dtoh_async(&mut [0u8; N], rig.device, stream.cu_stream()) }.unwrap();
    }
    rig.races(0);
}

#[test]
fn a_write_after_another_streams_read_is_a_race() {
    let rig = Rig::new();
    rig.download(&rig.a);
    rig.fill(&rig.b);
    let races = rig.races(1);
    assert!(races[0].contains("which reads it"), "{races:?}");
}

#[test]
fn a_read_does_not_hide_the_write_before_it() {
    let rig = Rig::new();
    rig.fill(&rig.a);
    rig.download(&rig.a);
    // SAFETY: the buffer outlives the copy, which is synchronous into pageable memory.
    unsafe { result::memcpy_dtoh_async(&mut [0u8; N], rig.device, rig.b.cu_stream()) }.unwrap();
    let races = rig.races(1);
    assert!(races[0].contains("cuMemsetD8Async"), "{races:?}");
}

#[test]
fn parts_that_do_not_meet_do_not_race() {
    {
        let rig = Rig::new();
        rig.upload_part(&rig.a, 0, 4000);
        rig.upload_part(&rig.b, 4000, 4000);
        rig.races(0);
    }
    let rig = Rig::new();
    rig.upload_part(&rig.a, 0, 4001);
    rig.upload_part(&rig.b, 4000, 4000);
    rig.races(1);
}

#[test]
fn rows_race_only_where_their_bytes_meet() {
    let columns = |stream: &CudaStream, rig: &Rig, x: usize, width: usize| {
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: x,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: rig.host.cast(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: 128,
            dstXInBytes: x,
            dstY: 1,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: rig.device,
            dstArray: std::ptr::null_mut(),
            dstPitch: 256,
            WidthInBytes: width,
            Height: 20,
        };
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result().unwrap();
    };
    for (from, races) in [(64, 0), (63, 1)] {
        let rig = Rig::new();
        columns(&rig.a, &rig, 0, 64);
        columns(&rig.b, &rig, from, 64);
        rig.races(races);
    }
}

#[test]
fn registered_memory_is_watched_too() {
    let rig = Rig::new();
    let mut own = vec![0u8; N];
    let p = own.as_mut_ptr().cast();
    // SAFETY: inside both buffers; `own` lives until it is unregistered, after the streams' work.
    unsafe {
        sys::cuMemHostRegister_v2(p, N, 0).result().unwrap();
        sys::cuMemcpyHtoDAsync_v2(rig.device, p, N, rig.a.cu_stream()).result().unwrap();
        sys::cuMemcpyDtoHAsync_v2(p, rig.device, N, rig.b.cu_stream()).result().unwrap();
        let races = rig.races(2); // the device memory, and this
        assert!(races.iter().any(|race| race.contains("registered memory")), "{races:?}");
        sys::cuMemHostUnregister(p).result().unwrap();
    }
}

#[test]
fn a_copy_inside_a_device_is_not_done_when_the_call_returns() {
    let rig = Rig::new();
    // SAFETY: inside the buffer.
    unsafe { sys::cuMemcpyDtoD_v2(rig.device, rig.device + 4096, 4096) }.result().unwrap();
    rig.fill(&rig.a);
    rig.races(1);
}

#[test]
fn a_synchronise_of_the_host_orders() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    rig.a.synchronize().unwrap();
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn a_synchronise_of_the_context_is_for_destroyed_streams_too() {
    for done in [true, false] {
        let rig = Rig::new();
        let gone = rig.context.new_stream().unwrap();
        if !done {
            rig.sim.change(|config| config.copy_us = 30_000);
        }
        rig.upload(&gone);
        if done {
            // Until it is done, without the host's knowing.
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        drop(gone);
        rig.context.synchronize().unwrap();
        rig.fill(&rig.b);
        rig.races(0);
    }
}

#[test]
fn polling_an_event_orders() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    let event = rig.a.record_event(None).unwrap();
    while !event.is_complete() {
        std::thread::yield_now();
    }
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn polling_a_stream_orders() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    // SAFETY: the stream is alive.
    while unsafe { sys::cuStreamQuery(rig.a.cu_stream()) } != sys::CUresult::CUDA_SUCCESS {
        std::thread::yield_now();
    }
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn order_passes_through_a_third_stream() {
    let rig = Rig::new();
    let c = rig.context.new_stream().unwrap();
    rig.upload(&rig.a);
    c.join(&rig.a).unwrap();
    rig.b.join(&c).unwrap();
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn a_stale_event_does_not_order() {
    let rig = Rig::new();
    let event = rig.a.record_event(None).unwrap();
    rig.upload(&rig.a);
    rig.b.wait(&event).unwrap();
    rig.fill(&rig.b);
    rig.races(1);
}

#[test]
fn an_event_that_was_never_recorded_does_not_order() {
    let rig = Rig::new();
    let event = rig.context.new_event(None).unwrap();
    rig.upload(&rig.a);
    rig.b.wait(&event).unwrap();
    rig.fill(&rig.b);
    event.record(&rig.a).unwrap();
    rig.races(1);
}

#[test]
fn a_wait_is_for_the_record_before_it() {
    let rig = Rig::new();
    let event = rig.context.new_event(None).unwrap();
    rig.upload(&rig.a);
    event.record(&rig.a).unwrap();
    rig.b.wait(&event).unwrap();
    event.record(&rig.b).unwrap(); // a later record takes nothing away
    rig.fill(&rig.b);
    rig.races(0);
}

#[test]
fn the_next_upload_must_wait_for_the_kernel_that_reads_the_last() {
    for waits in [true, false] {
        let rig = Rig::new();
        rig.upload(&rig.a);
        rig.b.wait(&rig.a.record_event(None).unwrap()).unwrap();
        rig.increment(&rig.b);
        if waits {
            rig.a.wait(&rig.b.record_event(None).unwrap()).unwrap();
        }
        rig.upload(&rig.a);
        rig.races(if waits { 0 } else { 1 });
    }
}

#[test]
fn kernels_race_only_over_what_they_touch() {
    let rig = Rig::new();
    rig.increment(&rig.a);
    rig.upload_part(&rig.b, 4000, 4000);
    rig.races(0);
}

#[test]
fn the_default_stream_is_in_order_with_blocking_streams_only() {
    {
        let rig = Rig::new();
        let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: inside the buffer; the stream is destroyed once.
        unsafe {
            result::memset_d8_async(rig.device, 1, N, blocking).unwrap();
            rig.fill(&rig.context.default_stream());
            result::memset_d8_async(rig.device, 2, N, blocking).unwrap();
            result::stream::destroy(blocking).unwrap();
        }
        rig.races(0);
    }
    let rig = Rig::new();
    rig.fill(&rig.context.default_stream());
    rig.upload(&rig.a); // cudarc's streams are non-blocking
    rig.races(1);
}

#[test]
fn the_default_stream_is_in_order_with_blocking_streams_that_are_gone() {
    for (kind, races) in
        [(result::stream::StreamKind::Default, 0), (result::stream::StreamKind::NonBlocking, 1)]
    {
        let rig = Rig::new();
        let gone = result::stream::create(kind).unwrap();
        // SAFETY: inside the buffer; the stream is destroyed once.
        unsafe {
            result::memset_d8_async(rig.device, 1, N, gone).unwrap();
            result::stream::destroy(gone).unwrap();
        }
        rig.fill(&rig.context.default_stream());
        rig.races(races);
    }
}

#[test]
fn a_pageable_synchronous_copy_is_not_done_when_it_returns() {
    {
        let rig = Rig::new();
        // SAFETY: inside the buffer; the source is staged by the time the call returns.
        unsafe { result::memcpy_htod_sync(rig.device, &[7u8; N]) }.unwrap();
        rig.fill(&rig.a);
        rig.races(1);
    }
    let rig = Rig::new();
    // SAFETY: inside both buffers.
    unsafe { result::memcpy_htod_sync(rig.device, std::slice::from_raw_parts(rig.host, N)) }.unwrap();
    rig.fill(&rig.a); // from page-locked memory it is
    rig.races(0);
}

#[test]
fn stream_ordered_memory_is_used_after_its_allocation() {
    let rig = Rig::new();
    // SAFETY: the second stream is not told of the allocation, which is the mistake.
    unsafe {
        let device = result::malloc_async(rig.a.cu_stream(), 64).unwrap();
        result::memset_d8_async(device, 0, 64, rig.b.cu_stream()).unwrap();
    }
    let races = rig.races(1);
    assert!(races[0].contains("cuMemAllocAsync"), "{races:?}");
}

#[test]
fn stream_ordered_memory_is_freed_after_its_use() {
    for waits in [true, false] {
        let rig = Rig::new();
        // SAFETY: inside the allocation.
        unsafe {
            let device = result::malloc_async(rig.a.cu_stream(), 64).unwrap();
            rig.b.join(&rig.a).unwrap();
            result::memset_d8_async(device, 0, 64, rig.b.cu_stream()).unwrap();
            if waits {
                rig.a.join(&rig.b).unwrap();
            }
            result::free_async(device, rig.a.cu_stream()).unwrap();
        }
        rig.races(if waits { 0 } else { 1 });
    }
}

#[test]
fn an_early_free_of_host_memory_is_found() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    // SAFETY: freed once; too early, which is the mistake.
    unsafe { result::free_host(rig.host.cast()) }.unwrap();
    let races = rig.host_races(1);
    assert!(races[0].contains("cuMemFreeHost"), "{races:?}");
}

#[test]
fn an_early_free_of_device_memory_is_found() {
    let rig = Rig::new();
    rig.fill(&rig.a);
    // SAFETY: freed once; too early, which is the mistake.
    unsafe { result::free_sync(rig.device) }.unwrap();
    rig.host_races(1);
}

#[test]
fn a_free_after_a_synchronise_is_fine() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    rig.a.synchronize().unwrap();
    // SAFETY: freed once, after their last use.
    unsafe {
        result::free_host(rig.host.cast()).unwrap();
        result::free_sync(rig.device).unwrap();
    }
    rig.host_races(0);
}

unsafe extern "C" fn raise(data: *mut c_void) {
    // SAFETY: the test passes an AtomicU32 that outlives the stream's work.
    unsafe { &*data.cast::<AtomicU32>() }.store(1, Ordering::SeqCst);
}

#[test]
fn a_host_function_that_ran_is_knowledge() {
    let rig = Rig::new();
    let flag = AtomicU32::new(0);
    rig.upload(&rig.a);
    // SAFETY: the flag outlives the wait for it.
    unsafe {
        result::stream::launch_host_function(rig.a.cu_stream(), raise, (&raw const flag).cast_mut().cast())
    }
    .unwrap();
    while flag.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    rig.sim.touch(rig.host, N, true);
    rig.host_races(0);
}

#[test]
fn a_host_that_says_it_is_too_early_is_told_so() {
    let rig = Rig::new();
    rig.upload(&rig.a);
    rig.sim.touch(rig.host, 1, false); // reading what is read is fine
    rig.sim.touch(rig.host, 1, true);
    let races = rig.host_races(1);
    assert!(races[0].contains("the host writes"), "{races:?}");
}

#[test]
fn what_happens_often_is_reported_once_with_its_count() {
    let rig = Rig::new();
    for _ in 0..5 {
        rig.upload(&rig.a);
        rig.fill(&rig.b);
        rig.context.synchronize().unwrap();
    }
    let races = rig.races(1);
    assert!(races[0].ends_with("(5 times)"), "{races:?}");
}

#[test]
fn reports_do_not_depend_on_time() {
    let run = |delay_us, lazy| {
        let rig = Rig::new();
        rig.sim.change(|config| {
            config.delay_us = delay_us;
            config.lazy = lazy;
        });
        rig.upload(&rig.a);
        rig.fill(&rig.b);
        rig.b.join(&rig.a).unwrap();
        rig.upload(&rig.b);
        rig.races(1)
    };
    let strip = |races: Vec<String>| {
        races[0].split('#').map(|s| s.trim_start_matches(char::is_numeric).to_owned()).collect::<Vec<_>>()
    };
    let shape = |races: Vec<String>| {
        strip(races).into_iter().map(|s| s.split(" on stream").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = shape(run(0, false));
    for (delay_us, lazy) in [(0, false), (2000, false), (0, true), (500, true)] {
        assert_eq!(shape(run(delay_us, lazy))[1..], first[1..]);
    }
}
