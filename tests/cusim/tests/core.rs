//! The driver under unmodified cudarc: contexts, copies, streams, events, host functions, PTX, launches.

mod support;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use std::sync::atomic::{AtomicU32, Ordering};
use support::{INCREMENT, sim};

#[test]
fn cudarc_finds_the_simulated_driver() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.name().unwrap(), "cusim 0");
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    assert_eq!(sim.report().calls_of("cuDevicePrimaryCtxRetain"), 1);
}

#[test]
fn a_kernel_runs_on_what_was_copied() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let module = context.load_module(Ptx::from_src(INCREMENT)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    let data: Vec<u32> = (0..1000).collect();
    let mut device = stream.clone_htod(&data).unwrap();
    let n = data.len() as u32;
    for _ in 0..3 {
        let mut launch = stream.launch_builder(&increment);
        launch.arg(&mut device).arg(&n);
        // SAFETY: the kernel takes a pointer to `n` words, and `n`.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
    }
    let back = stream.clone_dtoh(&device).unwrap();
    assert!(back.iter().zip(&data).all(|(new, old)| *new == old + 3));
    drop(device);
    let report = sim.report();
    report.assert_clean();
    assert_eq!(report.calls_of("cuLaunchKernel"), 3);
}

#[test]
fn fresh_memory_is_not_zero() {
    let _sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: the memory is only read as bytes, which any value is.
    let device = unsafe { stream.alloc::<u8>(300) }.unwrap();
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [0xCD; 300]);
    // SAFETY: fresh memory of 300 bytes; it is freed by the end of the context.
    let host = unsafe { std::slice::from_raw_parts(result::malloc_host(300, 0).unwrap().cast::<u8>(), 300) };
    assert_eq!(host, [0xCD; 300]);
}

unsafe extern "C" fn count(data: *mut std::ffi::c_void) {
    // SAFETY: the tests below pass an AtomicU32 that outlives the stream's work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn host_functions_run_in_order() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let counter = AtomicU32::new(0);
    let data = (&raw const counter).cast_mut().cast();
    // SAFETY: the counter lives until the stream has been waited for.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), count, data) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    assert!(sim.report().findings().is_empty());
}

unsafe extern "C" fn call_driver(data: *mut std::ffi::c_void) {
    let mut version = 0;
    // SAFETY: as for `count`; the driver writes the version to this stack.
    unsafe { &*data.cast::<AtomicU32>() }
        .store(unsafe { sys::cuDriverGetVersion(&mut version) } as u32, Ordering::SeqCst);
}

#[test]
fn a_driver_call_from_a_host_function_is_refused_and_reported() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let code = AtomicU32::new(0);
    let data = (&raw const code).cast_mut().cast();
    // SAFETY: the code lives until the stream has been waited for.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), call_driver, data) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(code.load(Ordering::SeqCst), sys::CUresult::CUDA_ERROR_NOT_PERMITTED as u32);
    assert_eq!(sim.report().misuse, ["cuDriverGetVersion is called from a host function"]);
}

#[test]
fn unknown_kernels_fail_by_name_unless_only_time_is_asked_for() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let module =
        context.load_module(Ptx::from_src(INCREMENT.replace("cusim_increment", "stranger"))).unwrap();
    let stranger = module.load_function("stranger").unwrap();
    let mut device = stream.alloc_zeros::<u32>(64).unwrap();
    let mut launch = |n: u32| {
        let mut launch = stream.launch_builder(&stranger);
        launch.arg(&mut device).arg(&n);
        // SAFETY: as the kernel declares its parameters.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.map(drop)
    };
    assert_eq!(launch(64).unwrap_err().0, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert!(sim.take().misuse[0].contains("stranger"));
    sim.change(|config| {
        config.unknown_kernels = true;
        config.kernel_us = 20_000;
    });
    let begun = std::time::Instant::now();
    launch(64).unwrap();
    stream.synchronize().unwrap();
    assert!(begun.elapsed().as_millis() >= 20);
    sim.report().assert_clean();
}
