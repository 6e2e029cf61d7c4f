//! Mistakes that are no races: bounds, frees, pointers.

mod support;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use support::{INCREMENT, sim};
use sys::CUresult::*;

#[test]
fn copies_out_of_bounds_are_refused_and_named() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: the driver refuses what does not fit.
    unsafe {
        let host = result::malloc_host(64, 0).unwrap();
        let device = result::malloc_sync(64).unwrap();
        let copy = |d, n| sys::cuMemcpyHtoDAsync_v2(d, host, n, stream.cu_stream());
        assert_eq!(copy(device, 64), CUDA_SUCCESS);
        assert_eq!(copy(device, 65), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(copy(device + 1, 64), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(copy(host as u64, 64), CUDA_ERROR_INVALID_VALUE);
    }
    stream.synchronize().unwrap();
    let misuse = sim.report().misuse;
    assert!(misuse.iter().any(|m| m.contains("OUT OF BOUNDS: cuMemcpyHtoDAsync")), "{misuse:?}");
}

#[test]
fn freed_memory_is_not_used_or_freed_again() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: the driver refuses each use of freed memory.
    unsafe {
        let device = result::malloc_async(stream.cu_stream(), 64).unwrap();
        result::free_async(device, stream.cu_stream()).unwrap();
        let r = sys::cuMemsetD8Async(device, 0, 64, stream.cu_stream());
        assert_eq!(r, CUDA_ERROR_INVALID_VALUE);
        assert!(sim.take().misuse[0].starts_with("USE AFTER FREE: cuMemsetD8Async"));
        assert_eq!(sys::cuMemFree_v2(device), CUDA_ERROR_INVALID_VALUE);
        assert!(sim.take().misuse[0].starts_with("DOUBLE FREE: cuMemFree"));
        let host = result::malloc_host(64, 0).unwrap();
        assert_eq!(sys::cuMemFreeHost(host.add(1)), CUDA_ERROR_INVALID_VALUE);
        assert!(sim.take().misuse[0].starts_with("BAD FREE: cuMemFreeHost of byte 1"));
        assert_eq!(sys::cuMemFreeHost(host), CUDA_SUCCESS);
        assert_eq!(sys::cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
        assert!(sim.take().misuse[0].starts_with("DOUBLE FREE: cuMemFreeHost"));
        assert_eq!(sys::cuMemFree_v2(0), CUDA_SUCCESS);
    }
}

#[test]
fn addresses_of_freed_memory_may_come_back_as_the_programs_own() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    const N: usize = 1 << 16;
    // SAFETY: the mapping is this test's own, at an address that was free, and is given back after its last use.
    unsafe {
        let device = result::malloc_sync(N).unwrap();
        let host = result::malloc_host(N, 0).unwrap();
        result::free_host(host).unwrap();
        let copy = || sys::cuMemcpyHtoDAsync_v2(device, host, N, stream.cu_stream());
        assert_eq!(copy(), CUDA_ERROR_INVALID_VALUE);
        assert!(sim.take().misuse[0].starts_with("USE AFTER FREE"));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let own = libc::mmap(host, N, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(own, host);
        own.cast::<u8>().write(5);
        assert_eq!(copy(), CUDA_SUCCESS);
        let mut back = [0u8; 1];
        result::memcpy_dtoh_async(&mut back, device, stream.cu_stream()).unwrap();
        assert_eq!(back, [5]);
        libc::munmap(own, N);
        sim.take().assert_clean();
    }
}

#[test]
fn a_kernel_out_of_bounds_breaks_its_context() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    // SAFETY: one stream only. cudarc's own events would meet the error first.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let module = context.load_module(Ptx::from_src(INCREMENT)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    let mut device = stream.alloc_zeros::<u32>(64).unwrap();
    let mut launch = stream.launch_builder(&increment);
    launch.arg(&mut device).arg(&65u32);
    // SAFETY: one word too many, which the simulator stops.
    unsafe { launch.launch(LaunchConfig::for_num_elems(65)) }.unwrap();
    assert_eq!(stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    // It stays: every later call says the same.
    assert_eq!(context.mem_get_info().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(sim.report().misuse[0].starts_with("OUT OF BOUNDS: kernel cusim_increment touches 260 B"));
}

#[test]
fn handles_that_are_gone_are_refused() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    // SAFETY: handles are numbers here; the driver looks them up.
    unsafe {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).unwrap();
        result::stream::destroy(stream).unwrap();
        assert_eq!(sys::cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
        result::event::destroy(event).unwrap();
        assert_eq!(sys::cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    }
    assert_eq!(sim.report().live_of("streams"), 0);
}

#[test]
fn live_objects_are_counted_and_leaks_named_at_the_end_of_the_context() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let mut own = [0u8; 100];
    // SAFETY: what is leaked here is freed by the end of the context; `own` is unregistered by it.
    unsafe {
        result::malloc_host(64, 0).unwrap();
        result::malloc_sync(64).unwrap();
        result::malloc_sync(64).unwrap();
        sys::cuMemHostRegister_v2(own.as_mut_ptr().cast(), 100, 0).result().unwrap();
    }
    let report = sim.report();
    let live = |kind| report.live_of(kind);
    assert_eq!((live("device"), live("host"), live("registered"), live("contexts")), (2, 1, 1, 1));
    drop(context);
    let report = sim.report();
    assert_eq!(report.leaks, ["context of device 0 ended with: device 2, host 1, registered 1"]);
    assert_eq!(report.live_of("device"), 0);
}
