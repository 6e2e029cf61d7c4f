//! More than one device.

mod support;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use std::ffi::{CStr, c_char};
use support::{INCREMENT, sim};
use sys::CUresult::*;

#[test]
fn devices_have_names_ids_and_memory_of_their_own() {
    let sim = sim();
    sim.change(|config| {
        config.devices = 3;
        config.pci = "0000:17:00.0,0001:65:00.1".into();
    });
    let contexts: Vec<_> = (0..3).map(|device| CudaContext::new(device).unwrap()).collect();
    let names: Vec<_> = contexts.iter().map(|context| context.name().unwrap()).collect();
    assert_eq!(names, ["cusim 0", "cusim 1", "cusim 2"]);
    let mut id = [0 as c_char; 32];
    // SAFETY: the driver writes at most 32 bytes to this stack.
    unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, contexts[1].cu_device()) }.result().unwrap();
    // SAFETY: the driver ends what it writes with NUL.
    assert_eq!(unsafe { CStr::from_ptr(id.as_ptr()) }, c"0001:65:00.1");
    use sys::CUdevice_attribute::*;
    let bus = [
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    ];
    assert_eq!(bus.map(|attribute| contexts[1].attribute(attribute).unwrap()), [1, 0x65, 0]);
    contexts[2].bind_to_thread().unwrap();
    // SAFETY: freed by the end of the context.
    unsafe { result::malloc_sync(4096) }.unwrap();
    let used = contexts.iter().map(|context| context.mem_get_info().map(|(free, all)| all - free).unwrap());
    assert_eq!(used.collect::<Vec<_>>(), [0, 0, 4096]);
}

#[test]
fn an_event_is_recorded_in_its_own_context_and_waited_for_in_any() {
    let _sim = sim();
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let (a, b) = (first.new_stream().unwrap(), second.new_stream().unwrap());
    let event = first.new_event(None).unwrap();
    // SAFETY: live handles.
    unsafe {
        assert_eq!(sys::cuEventRecord(event.cu_event(), b.cu_stream()), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuEventRecord(event.cu_event(), a.cu_stream()), CUDA_SUCCESS);
        assert_eq!(sys::cuStreamWaitEvent(b.cu_stream(), event.cu_event(), 0), CUDA_SUCCESS);
        assert_eq!(sys::cuEventSynchronize(event.cu_event()), CUDA_SUCCESS);
    }
}

#[test]
fn a_kernel_goes_to_a_stream_of_its_own_context() {
    let _sim = sim();
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let b = second.new_stream().unwrap();
    let module = first.load_module(Ptx::from_src(INCREMENT)).unwrap();
    let increment = module.load_function("cusim_increment").unwrap();
    let mut launch = b.launch_builder(&increment);
    launch.arg(&0u64).arg(&0u32);
    // SAFETY: the driver refuses the launch.
    let code = unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap_err().0;
    assert_eq!(code, CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn peers_copy_and_their_order_is_checked() {
    for waits in [true, false] {
        let sim = sim();
        let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        let (a, b) = (first.new_stream().unwrap(), second.new_stream().unwrap());
        // SAFETY: inside the buffers; contexts are current where theirs are used.
        unsafe {
            first.disable_event_tracking();
            second.disable_event_tracking();
            second.bind_to_thread().unwrap();
            let there = result::malloc_sync(64).unwrap();
            first.bind_to_thread().unwrap();
            let here = result::malloc_sync(64).unwrap();
            result::memset_d8_async(here, 7, 64, a.cu_stream()).unwrap();
            sys::cuMemcpyPeerAsync(there, second.cu_ctx(), here, first.cu_ctx(), 64, a.cu_stream())
                .result()
                .unwrap();
            // The contexts named must be those of the memory.
            let swapped =
                sys::cuMemcpyPeerAsync(there, first.cu_ctx(), here, second.cu_ctx(), 64, a.cu_stream());
            assert_eq!(swapped, CUDA_ERROR_INVALID_VALUE);
            let copied = a.record_event(None).unwrap();
            if waits {
                b.wait(&copied).unwrap();
            }
            second.bind_to_thread().unwrap();
            let mut back = [0u8; 64];
            result::memcpy_dtoh_async(&mut back, there, b.cu_stream()).unwrap();
            a.synchronize().unwrap();
            let races = sim.report().races;
            if waits {
                assert_eq!(back, [7; 64]);
                assert!(races.is_empty(), "{races:?}");
            } else {
                assert!(races.len() == 1 && races[0].contains("cuMemcpyPeerAsync"), "{races:?}");
            }
        }
    }
}

#[test]
fn peer_access_is_asked_for_once() {
    let sim = sim();
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let mut can = 0;
    // SAFETY: live handles; the driver writes to this stack.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, 0, 1).result().unwrap();
        assert_eq!(can, 1);
        first.bind_to_thread().unwrap();
        assert_eq!(sys::cuCtxEnablePeerAccess(second.cu_ctx(), 0), CUDA_SUCCESS);
        assert_eq!(sys::cuCtxEnablePeerAccess(second.cu_ctx(), 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(sys::cuCtxDisablePeerAccess(second.cu_ctx()), CUDA_SUCCESS);
        sim.change(|config| config.peer = false);
        sys::cuDeviceCanAccessPeer(&mut can, 0, 1).result().unwrap();
        assert_eq!(can, 0);
        assert_eq!(sys::cuCtxEnablePeerAccess(second.cu_ctx(), 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
}

#[test]
fn a_kernel_needs_peer_access_to_the_memory_of_another_device() {
    for enabled in [true, false] {
        let sim = sim();
        let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        // SAFETY: one stream only.
        unsafe { first.disable_event_tracking() };
        let there = second.default_stream().alloc_zeros::<u32>(16).unwrap();
        second.synchronize().unwrap();
        let module = first.load_module(Ptx::from_src(INCREMENT)).unwrap();
        let increment = module.load_function("cusim_increment").unwrap();
        let stream = first.new_stream().unwrap();
        if enabled {
            // SAFETY: live handles.
            unsafe { sys::cuCtxEnablePeerAccess(second.cu_ctx(), 0) }.result().unwrap();
        }
        use cudarc::driver::DevicePtr;
        let (p, _guard) = there.device_ptr(&stream);
        let mut launch = stream.launch_builder(&increment);
        launch.arg(&p).arg(&16u32);
        // SAFETY: a pointer to 16 words, of the other device.
        unsafe { launch.launch(LaunchConfig::for_num_elems(16)) }.unwrap();
        let code = stream.synchronize().err().map(|error| error.0);
        assert_eq!(code, (!enabled).then_some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(sim.report().misuse.len(), usize::from(!enabled));
    }
}

#[test]
fn contexts_stack_up_on_a_thread() {
    let _sim = sim();
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let mut device = -1;
    let mut popped = std::ptr::null_mut();
    // SAFETY: live handles; the driver writes to this stack.
    unsafe {
        sys::cuCtxSetCurrent(first.cu_ctx()).result().unwrap();
        sys::cuCtxPushCurrent_v2(second.cu_ctx()).result().unwrap();
        sys::cuCtxGetDevice(&mut device).result().unwrap();
        assert_eq!(device, 1);
        sys::cuCtxPopCurrent_v2(&mut popped).result().unwrap();
        assert_eq!(popped, second.cu_ctx());
        sys::cuCtxGetDevice(&mut device).result().unwrap();
        assert_eq!(device, 0);
        assert_eq!(sys::cuCtxPushCurrent_v2(std::ptr::null_mut()), CUDA_ERROR_INVALID_CONTEXT);
    }
}
