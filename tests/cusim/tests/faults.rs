//! Failures on demand, and machines on which nothing works.

mod support;

use cudarc::driver::{CudaContext, result, sys};
use cusim::Fault;
use support::{INCREMENT, sim};
use sys::CUresult::*;

#[test]
fn the_nth_call_fails_once() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    sim.fail(Fault::of("cuMemHostAlloc").nth(2).error(CUDA_ERROR_OUT_OF_MEMORY as i32));
    // SAFETY: what is allocated here ends with the context.
    let codes = [0; 3].map(|_| unsafe { result::malloc_host(64, 0) }.err().map(|e| e.0));
    assert_eq!(codes, [None, Some(CUDA_ERROR_OUT_OF_MEMORY), None]);
    assert_eq!(sim.report().calls_of("cuMemHostAlloc"), 3);
}

#[test]
fn a_fault_may_last_until_it_is_taken_back() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    sim.fail(Fault::of("cuStreamCreateWithPriority").error(CUDA_ERROR_NOT_SUPPORTED as i32).forever());
    for _ in 0..3 {
        assert_eq!(context.new_stream_with_priority(0).unwrap_err().0, CUDA_ERROR_NOT_SUPPORTED);
    }
    sim.heal();
    context.new_stream_with_priority(0).unwrap();
}

#[test]
fn a_sticky_error_is_what_every_later_call_returns() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let event = stream.record_event(None).unwrap();
    stream.synchronize().unwrap();
    // SAFETY: freed below, if the driver lets it be.
    let device = unsafe { result::malloc_sync(64) }.unwrap();
    sim.fail(Fault::of("cuEventRecord").error(CUDA_ERROR_ILLEGAL_ADDRESS as i32).sticky());
    assert_eq!(event.record(&stream).unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    // SAFETY: live handles.
    unsafe {
        assert_eq!(sys::cuEventQuery(event.cu_event()), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(sys::cuMemFree_v2(device), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(sys::cuStreamSynchronize(stream.cu_stream()), CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    // Another device's context goes on.
    let other = CudaContext::new(1).unwrap();
    other.new_stream().unwrap().synchronize().unwrap();
}

#[test]
fn a_kernel_may_fail_while_it_runs() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    // SAFETY: one stream only.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let module = context.load_module(cudarc::nvrtc::Ptx::from_src(INCREMENT)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    let mut data = stream.alloc_zeros::<u32>(64).unwrap();
    sim.fail(Fault::of("kernel cusim_increment").error(CUDA_ERROR_LAUNCH_FAILED as i32));
    use cudarc::driver::{LaunchConfig, PushKernelArg};
    let mut launch = stream.launch_builder(&increment);
    launch.arg(&mut data).arg(&64u32);
    // SAFETY: the kernel takes a pointer to 64 words.
    unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.unwrap(); // the launch itself is fine
    assert_eq!(stream.synchronize().unwrap_err().0, CUDA_ERROR_LAUNCH_FAILED);
}

static CALLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

unsafe extern "C" fn called(_: *mut std::ffi::c_void) {
    CALLED.store(true, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn host_functions_are_not_called_in_a_context_that_has_failed() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    sim.change(|config| {
        config.lazy = true;
        config.lazy_ms = 60_000;
    });
    // SAFETY: the function uses no data.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), called, std::ptr::null_mut()) }
        .unwrap();
    sim.poison(0, CUDA_ERROR_ILLEGAL_ADDRESS as i32);
    assert_eq!(stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    drop((stream, context)); // the end of the context has the stream's work done
    sim.reset();
    assert!(!CALLED.load(std::sync::atomic::Ordering::SeqCst));
}

#[test]
fn a_lost_device_cannot_be_opened_again() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    sim.lose(0, CUDA_ERROR_DEVICE_UNAVAILABLE as i32);
    assert_eq!(context.synchronize().unwrap_err().0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    drop(context);
    assert_eq!(CudaContext::new(0).unwrap_err().0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    CudaContext::new(1).unwrap();
}

#[test]
fn page_locked_memory_has_a_limit() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    sim.change(|config| config.pin_limit = 10_000);
    let mut own = vec![0u8; 5000];
    let p = own.as_mut_ptr().cast();
    // SAFETY: `own` lives until it is unregistered; the rest is freed.
    unsafe {
        let host = result::malloc_host(6000, 0).unwrap();
        assert_eq!(sys::cuMemHostRegister_v2(p, 5000, 0), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(result::malloc_host(5000, 0).unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
        result::free_host(host).unwrap();
        assert_eq!(sys::cuMemHostRegister_v2(p, 5000, 0), CUDA_SUCCESS);
        assert_eq!(sys::cuMemHostUnregister(p), CUDA_SUCCESS);
    }
}

#[test]
fn device_memory_is_accounted() {
    let sim = sim();
    sim.change(|config| config.memory = 1 << 20);
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.mem_get_info().unwrap(), (1 << 20, 1 << 20));
    // SAFETY: freed once.
    unsafe {
        let device = result::malloc_sync((1 << 20) - 1000).unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, 512);
        assert_eq!(result::malloc_sync(513).unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
        result::free_sync(device).unwrap();
        result::free_sync(result::malloc_sync(1 << 20).unwrap()).unwrap();
    }
}

#[test]
fn cu_init_fails_as_it_is_told() {
    let sim = sim();
    for error in [CUDA_ERROR_UNKNOWN, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_STUB_LIBRARY] {
        sim.change(|config| config.init_error = error as i32);
        assert_eq!(CudaContext::new(0).unwrap_err().0, error);
    }
    sim.change(|config| config.init_error = 0);
    let mut n = 0;
    // SAFETY: the driver writes to this stack.
    assert_eq!(unsafe { sys::cuDeviceGetCount(&mut n) }, CUDA_ERROR_NOT_INITIALIZED);
    CudaContext::new(0).unwrap();
}

#[test]
fn a_machine_without_devices_says_so() {
    let sim = sim();
    sim.change(|config| config.devices = 0);
    assert_eq!(CudaContext::new(0).unwrap_err().0, CUDA_ERROR_NO_DEVICE);
}

#[test]
fn visible_devices_are_chosen_by_the_environment() {
    let sim = sim();
    // SAFETY: this process's tests take turns, and the driver reads the environment in cuInit only.
    let set = |value: Option<&str>| unsafe {
        match value {
            Some(value) => std::env::set_var("CUDA_VISIBLE_DEVICES", value),
            None => std::env::remove_var("CUDA_VISIBLE_DEVICES"),
        }
    };
    for nothing in ["", "-1", "7"] {
        set(Some(nothing));
        assert_eq!(CudaContext::new(0).unwrap_err().0, CUDA_ERROR_NO_DEVICE);
    }
    set(Some("1,0"));
    let swapped = CudaContext::new(0).unwrap();
    set(None);
    assert_eq!(swapped.name().unwrap(), "cusim 1");
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    drop(swapped);
    drop(sim);
}

#[test]
fn a_driver_that_is_shut_down_says_so_to_everyone() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    sim.shut_down();
    assert_eq!(stream.synchronize().unwrap_err().0, CUDA_ERROR_DEINITIALIZED);
    assert_eq!(CudaContext::new(0).unwrap_err().0, CUDA_ERROR_DEINITIALIZED);
}

#[test]
fn the_child_of_a_fork_has_no_driver() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    let mut n = 0;
    // SAFETY: the child makes one call of the driver and leaves at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let (before, code) = (sim.calls_in_child(), sys::cuDeviceGetCount(&mut n));
            libc::_exit(if (before, sim.calls_in_child()) == (0, 1) { code as i32 } else { 200 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(libc::WEXITSTATUS(status), CUDA_ERROR_NOT_INITIALIZED as i32);
    }
    assert_eq!(sim.calls_in_child(), 0);
}

#[test]
fn the_threads_that_call_a_function_are_named() {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let thread = std::thread::Builder::new().name("a caller".into());
    let wait = move || stream.synchronize().unwrap();
    thread.spawn(wait).unwrap().join().unwrap();
    let report = sim.take();
    assert!(report.has_called("a caller", &["cuMemAlloc_v2", "cuStreamSynchronize"]), "{report:?}");
    assert!(
        !report.has_called("a caller", &["cuStreamCreate"])
            && !report.has_called("b", &["cuStreamSynchronize"])
    );
    assert!(!sim.report().has_called("a caller", &["cuStreamSynchronize"]));
}

/// Leaves with what the driver says after its exit handler has run.
extern "C" fn ask_at_exit() {
    let mut n = 0;
    // SAFETY: the driver writes to this stack; the process ends here.
    unsafe { libc::_exit(sys::cuDeviceGetCount(&mut n) as i32 + 100) }
}

#[test]
fn a_process_that_ends_has_no_driver_any_more() {
    const CHILD: &str = "CHILD_OF_THE_EXIT_TEST";
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: the handler is a function of this program. Handlers run last first: the driver's before it.
        unsafe { libc::atexit(ask_at_exit) };
        let _context = CudaContext::new(0).unwrap();
        std::process::exit(0);
    }
    let mut run = std::process::Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", "a_process_that_ends_has_no_driver_any_more"]).env(CHILD, "1");
    let out = run.output().unwrap();
    assert_eq!(out.status.code(), Some(100 + CUDA_ERROR_DEINITIALIZED as i32), "{out:?}");
}
