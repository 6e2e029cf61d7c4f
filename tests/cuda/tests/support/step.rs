//! What a user does with batches: launches a kernel on them through cudarc.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use warpfeed::Device;

use crate::simulated::{fresh, sim};
use crate::support::within;

/// Runs a test that has the driver's books to itself: nothing is wrong in them at its end, and something was checked.
pub(crate) fn checked(code: impl FnOnce() + Send + 'static) {
    static ONE: Mutex<()> = Mutex::new(());
    within(Duration::from_secs(60), || {
        let _alone: MutexGuard<'_, ()> = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // What the reaper of an earlier test did meanwhile counts too: a finding is never thrown away unseen.
        let before = sim().take();
        assert!(before.findings().is_empty(), "left by an earlier test:\n{}", before.findings().join("\n"));
        code();
        sim().report().assert_clean();
    });
}

/// A new device, and its number.
pub(crate) fn numbered() -> (Device, usize) {
    let number = fresh(|_| {});
    (Device::cuda(number).unwrap(), number)
}

/// The context that is current on this thread; null for none.
pub(crate) fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: a valid place for the answer.
    let code = unsafe { sys::cuCtxGetCurrent(&mut context) };
    assert_eq!(code as c_int, 0);
    context
}

/// The kernel: sums the marked rows of a field, byte by byte.
pub(crate) struct Step {
    kernel: CudaFunction,
    pub(crate) sums: CudaSlice<u64>,
    width: u32,
}

impl Step {
    /// For rows of `width` bytes; its sums are zero.
    pub(crate) fn new(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, width: usize) -> Self {
        let module =
            context.load_module(Ptx::from_src(include_str!("../../../../kernels/masked_sum.ptx"))).unwrap();
        let kernel = module.load_function("masked_sum").unwrap();
        Self { kernel, sums: stream.alloc_zeros(width + 1).unwrap(), width: width as u32 }
    }

    /// Enqueues a launch on `rows` rows of `x`, of which `valid` marks some.
    pub(crate) fn launch<T>(
        &mut self,
        stream: &CudaStream,
        x: &CudaSlice<T>,
        valid: &CudaSlice<bool>,
        rows: usize,
    ) {
        assert_eq!(size_of::<T>() * x.len(), rows * self.width as usize, "the field's bytes");
        assert!(valid.len() >= rows);
        let rows = rows as u32;
        let mut launch = stream.launch_builder(&self.kernel);
        launch.arg(x).arg(valid).arg(&rows).arg(&self.width).arg(&mut self.sums);
        // SAFETY: both inputs are as long as the kernel reads, which was checked above, and the sums as it writes.
        unsafe {
            launch.launch(LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 })
        }
        .unwrap();
    }

    /// Waits for the stream, and reads the sums.
    pub(crate) fn read(&self, stream: &Arc<CudaStream>) -> Vec<u64> {
        let sums = stream.clone_dtoh(&self.sums).unwrap();
        stream.synchronize().unwrap();
        sums
    }
}

/// The same sums of rows of bytes, by a plain loop; all of them count.
pub(crate) fn sums<'a>(rows: impl IntoIterator<Item = &'a [u8]>, width: usize) -> Vec<u64> {
    let mut sums = vec![0; width + 1];
    for row in rows {
        assert_eq!(row.len(), width);
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += u64::from(*x));
        sums[width] += 1;
    }
    sums
}
