//! The kernels of `kernels/`, on a device: one that computes, and one that checks memory where it lies.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as PROCESSORS;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use warpfeed::{Batch, Device, Error, ErrorKind, Result, Stream};

const SPIN: &str = include_str!("../../../kernels/spin.ptx");
const FILL_CHECK: &str = include_str!("../../../kernels/fill_check.ptx");
/// Threads of a block.
const THREADS: u32 = 128;

/// The kernels, loaded once a device. A grid is one wave: a block for each of the device's processors.
pub(crate) struct Kernels {
    context: Arc<CudaContext>,
    spin: CudaFunction,
    fill_check: CudaFunction,
    processors: u32,
}

impl Kernels {
    /// Loads them, and runs each once, so that no run pays for it. `None` for a CPU device.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where the driver does not take them.
    pub(crate) fn load(device: &Device) -> Result<Option<Self>> {
        let stream = device.new_stream()?;
        let Some(context) = stream.cudarc().map(|stream| stream.context().clone()) else { return Ok(None) };
        let function = |ptx: &str, name: &str| {
            let module = context.load_module(Ptx::from_src(ptx))?;
            module.load_function(name)
        };
        let named = |what| move |e| refused(what, e);
        let processors = context.attribute(PROCESSORS).map_err(named("cuDeviceGetAttribute"))?;
        let kernels = Self {
            spin: function(SPIN, "spin").map_err(named("loading the kernel spin"))?,
            fill_check: function(FILL_CHECK, "fill_check").map_err(named("loading the kernel fill_check"))?,
            processors: u32::try_from(processors).unwrap_or(1).max(1),
            context,
        };
        kernels.spin(&stream, Duration::ZERO)?;
        let found = kernels.new_found(&stream)?;
        // SAFETY: of no bytes, none is read.
        unsafe { kernels.check(cudarc_of(&stream)?, (0, 0), [0, 0], found)? };
        stream.synchronize()?;
        Ok(Some(kernels))
    }

    fn wave(&self) -> LaunchConfig {
        LaunchConfig { grid_dim: (self.processors, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }

    /// Enqueues a computation of `time` on all processors.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub(crate) fn spin(&self, stream: &Stream, time: Duration) -> Result<()> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the kernel takes this one u64, and touches no memory.
        let launched = unsafe { cudarc_of(stream)?.launch_builder(&self.spin).arg(&ns).launch(self.wave()) };
        launched.map(drop).map_err(|e| refused("launching the kernel spin", e))
    }

    /// A new place for what checks find, for all streams to add to.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub(crate) fn new_found(&self, stream: &Stream) -> Result<Found> {
        self.context.bind_to_thread().map_err(|e| refused("cuCtxSetCurrent", e))?;
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(size_of_val(&NOTHING)) };
        let address = address.map_err(|e| refused("cuMemAlloc", e))?;
        // SAFETY: as many bytes as were allocated, from memory that is static.
        let copied = unsafe { result::memcpy_htod_async(address, &NOTHING, cudarc_of(stream)?.cu_stream()) };
        copied.map_err(|e| refused("cuMemcpyHtoDAsync", e))?;
        stream.synchronize()?;
        Ok(Found(address))
    }

    /// What was found, by the checks that are over by now on `stream` and that were waited for on others: how many bytes
    /// differ, and the least position of one.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub(crate) fn read(&self, found: Found, stream: &Stream) -> Result<[u64; 2]> {
        self.context.bind_to_thread().map_err(|e| refused("cuCtxSetCurrent", e))?;
        let mut words = NOTHING;
        // SAFETY: as many bytes as were allocated. A copy to pageable memory is over when the call returns.
        let copied =
            unsafe { result::memcpy_dtoh_async(&mut words, found.0, cudarc_of(stream)?.cu_stream()) };
        copied.map_err(|e| refused("cuMemcpyDtoHAsync", e))?;
        stream.synchronize()?;
        Ok(words)
    }

    /// Enqueues a check of a row of the u8 field `field` of `batch`, against the bytes of the stream of `seed` from
    /// position `first` on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a field or row that there is not; [`ErrorKind::Device`].
    pub(crate) fn check_row(
        &self,
        (batch, field, row): (&Batch, &str, usize),
        [seed, first]: [u64; 2],
        stream: &Stream,
        found: Found,
    ) -> Result<()> {
        let view = batch.cuda_view::<u8>(field, stream)?;
        let row_bytes = view.len() / batch.len().max(1);
        let Some(row) = view.try_slice(row * row_bytes..(row + 1) * row_bytes) else {
            let text = format!("row {row} of a batch of {}", batch.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        let stream = cudarc_of(stream)?;
        let (address, _read) = row.device_ptr(stream);
        // SAFETY: the row's bytes, which the view orders on this stream, before the batch is dropped.
        unsafe { self.check(stream, (address, row_bytes), [seed, first], found) }
    }

    /// # Safety
    /// `bytes` bytes of device memory from `address` on are there to read, in order on `stream`.
    unsafe fn check(
        &self,
        stream: &CudaStream,
        (address, bytes): (sys::CUdeviceptr, usize),
        [seed, first]: [u64; 2],
        found: Found,
    ) -> Result<()> {
        let mut launch = stream.launch_builder(&self.fill_check);
        let bytes = bytes as u64;
        launch.arg(&address).arg(&bytes).arg(&seed).arg(&first).arg(&found.0);
        // SAFETY: the kernel takes a pointer, three u64 and a pointer, as given. It reads `bytes` bytes at `address`, by
        // the contract, and adds to two words that are never freed.
        let launched = unsafe { launch.launch(self.wave()) };
        launched.map(drop).map_err(|e| refused("launching the kernel fill_check", e))
    }
}

/// Before any check: no byte differs, and the least position of none.
static NOTHING: [u64; 2] = [0, u64::MAX];

/// A place on the device for what checks find. It is never freed, since checks may be under way: a few bytes a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found(sys::CUdeviceptr);

/// The stream for cudarc.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for one of the CPU device.
pub(crate) fn cudarc_of(stream: &Stream) -> Result<&Arc<CudaStream>> {
    let text = "a stream of the CPU device runs no kernel";
    stream.cudarc().ok_or_else(|| Error::new(ErrorKind::InvalidArgument, text))
}

pub(crate) fn refused(what: &str, error: DriverError) -> Error {
    let name = error.error_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|_| format!("error {}", error.0 as u32));
    Error::new(ErrorKind::Device, format!("{what} failed with {name}"))
}
