//! The CUDA device, on cudarc: the only place that touches the driver's memory, streams and events.
//!
//! Every call runs in a [`Scope`]: on our own threads the context is current for good, on the user's it is pushed
//! and popped again. Nothing here waits for the device but what is named `synchronize`; what the driver may block
//! in (it frees memory behind all work of the device) is left to the reaper's thread.

pub(crate) mod driver;
mod event;
mod memory;
mod numa;
mod stream;
mod view;

use std::cell::Cell;
use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::{CudaContext, sys};

use super::counters::Tally;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Process, lock};
pub(crate) use event::Event;
pub(crate) use memory::{DeviceMemory, HostMemory};
pub(crate) use stream::Stream;
pub use view::CudaSliceRef;

/// How the CUDA device behaves: plain data, set before [`Device::cuda_with`](super::Device::cuda_with).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Whether host buffers are page-locked (on by default). Off, copies go through the driver's own buffer and the
    /// copier waits on the host for each device slot. Where the driver refuses it once, it is off for all later loaders of
    /// this device's handles: open the device anew to try again.
    pub lock: bool,
    /// Whether page-locked memory is write-combined (off by default): copies may be faster on some machines, but
    /// reading it on the CPU is very slow, and a decoder may read what it wrote.
    pub write_combined: bool,
    /// Whether host buffers are placed on the NUMA node that the GPU hangs on, where the system tells it (on by
    /// default).
    pub numa: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { lock: true, write_combined: false, numa: true }
    }
}

impl CudaOptions {
    /// Sets [`CudaOptions::lock`].
    #[must_use]
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Sets [`CudaOptions::write_combined`].
    #[must_use]
    pub fn write_combined(mut self, write_combined: bool) -> Self {
        self.write_combined = write_combined;
        self
    }

    /// Sets [`CudaOptions::numa`].
    #[must_use]
    pub fn numa(mut self, numa: bool) -> Self {
        self.numa = numa;
        self
    }
}

/// What the handles of one device share.
pub(crate) struct Shared {
    options: CudaOptions,
    context: Arc<CudaContext>,
    name: String,
    node: Option<usize>,
    tally: Tally,
    /// Whether page-locking was refused once; it is not tried again.
    refused: Mutex<bool>,
    /// What 1 MiB takes on the link, in nanoseconds.
    link_ns: AtomicU64,
    process: Process,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

thread_local! {
    /// The context that is current for good on this thread, which is one of ours.
    static HOME: Cell<usize> = const { Cell::new(0) };
    /// The stream whose work runs on this thread, which is the driver's.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread is the driver's and runs a host function.
pub(super) fn in_host_function() -> bool {
    RUNNING.get() != 0
}

fn refuse_host_function() -> Result<()> {
    if in_host_function() {
        let text = "CUDA allows no call on a device inside work that runs on a stream";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

/// The time in which the context is current on the caller's thread.
pub(super) struct Scope {
    /// What the thread's capture mode was; `None` where nothing was changed.
    mode: Option<sys::CUstreamCaptureMode>,
}

impl Shared {
    /// Makes the context current until the scope ends. Calls in it can't break a capture of another thread's stream.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`]; [`ErrorKind::InvalidArgument`] in work that runs on a stream; [`ErrorKind::Device`].
    pub(super) fn enter(&self) -> Result<Scope> {
        if self.process.is_forked() {
            let text = "this process was forked from the one that made the device, and CUDA does not survive a fork: \
                        spawn instead of forking";
            return Err(Error::new(ErrorKind::Forked, text));
        }
        refuse_host_function()?;
        let context = self.context.cu_ctx();
        if HOME.get() == context as usize {
            return Ok(Scope { mode: None });
        }
        // SAFETY: the context is retained for the life of the process.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Scope { mode: Some(exchange_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)) })
    }
}

impl Shared {
    /// Bytes of device memory that are free, and all there are. An error says that the device has failed.
    fn memory_info(&self) -> Result<(usize, usize)> {
        let _scope = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two valid places for the answer; the context is current.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            exchange_mode(mode);
            let mut context = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this very thread (a scope is not Send: it holds no handle to
            // move it by). A failure means that the driver is shutting down.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
        }
    }
}

fn exchange_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the place is valid across the call; the mode belongs to the thread alone.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// Turns the driver's answer into ours.
pub(super) fn check(call: &str, code: sys::CUresult) -> Result<()> {
    use sys::CUresult as E;
    if code == E::CUDA_SUCCESS {
        return Ok(());
    }
    let kind = match code {
        E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | E::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | E::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | E::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | E::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        | E::CUDA_ERROR_CAPTURED_EVENT => ErrorKind::Capturing,
        E::CUDA_ERROR_DEINITIALIZED | E::CUDA_ERROR_CONTEXT_IS_DESTROYED => ErrorKind::Closed,
        _ => ErrorKind::Device,
    };
    // The context stays broken after these: CUDA Driver API, CUresult, "the process must be terminated and relaunched".
    let lost = matches!(
        code,
        E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_ASSERT
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
    );
    let name = cudarc::driver::DriverError(code);
    let name = name.error_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|_| format!("error {}", code as c_int));
    let advice = match (code, lost) {
        (E::CUDA_ERROR_OUT_OF_MEMORY, _) => ": there is not enough memory",
        _ if kind == ErrorKind::Closed => ": the driver is shutting down",
        (_, true) => {
            ": the GPU's context is lost, start the process again; a kernel enqueued before is the likely cause"
        }
        _ => "",
    };
    Err(Error::new(kind, format!("{call} failed with {name}{advice}")))
}

/// Whether there is a driver's library, usable or not.
pub(crate) fn has_driver() -> bool {
    driver::Library::load().is_ok()
}

/// A handle of a CUDA device.
#[derive(Debug, Clone)]
pub(crate) struct Device(Arc<Shared>);

impl Device {
    /// The device of that number, as `CUDA_VISIBLE_DEVICES` numbers them.
    pub(crate) fn open(ordinal: usize, options: CudaOptions) -> Result<Self> {
        refuse_host_function()?;
        driver::driver()?;
        let context = driver::guarded("opening the CUDA context", || context(ordinal))??;
        let (name, node) = {
            let mut bus = [0u8; 32];
            let device = context.cu_device();
            // SAFETY: the buffer is as long as said, and lives across the call; the driver writes a C string.
            let code = unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), 32, device) };
            let bus = (code == sys::CUresult::CUDA_SUCCESS).then(|| {
                let end = bus.iter().position(|&b| b == 0).unwrap_or(bus.len());
                String::from_utf8_lossy(&bus[..end]).to_lowercase()
            });
            let name = context.name().unwrap_or_else(|_| "an NVIDIA GPU".to_string());
            let node = bus.filter(|_| options.numa).and_then(|bus| numa::node_of(Path::new("/sys"), &bus));
            (format!("CUDA {ordinal}: {name}"), node)
        };
        Ok(Self(Arc::new(Shared {
            options,
            context,
            name,
            node,
            tally: Tally::default(),
            refused: Mutex::new(false),
            link_ns: AtomicU64::new(DEFAULT_LINK_NS),
            process: Process::current(),
        })))
    }

    pub(crate) fn name(&self) -> String {
        self.0.name.clone()
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.0.tally
    }

    /// Handles of one GPU are equal, however they were opened.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.context.cu_ctx() == other.0.context.cu_ctx()
    }

    pub(crate) fn new_stream(&self) -> Result<Stream> {
        Stream::new(&self.0, false)
    }

    /// At the highest priority there is: a copy is short, and others wait for it.
    pub(crate) fn new_copy_stream(&self) -> Result<Stream> {
        Stream::new(&self.0, true)
    }

    pub(crate) fn wrap_stream(&self, stream: Arc<cudarc::driver::CudaStream>) -> Result<Stream> {
        Stream::wrap(&self.0, stream)
    }

    /// # Safety
    /// See [`Stream::from_raw`].
    pub(crate) unsafe fn raw_stream(&self, raw: sys::CUstream) -> Result<Stream> {
        // SAFETY: the caller's.
        unsafe { Stream::from_raw(&self.0, raw) }
    }

    pub(crate) fn new_event(&self) -> Result<Event> {
        Event::new(&self.0, true)
    }

    pub(crate) fn new_untimed_event(&self) -> Result<Event> {
        Event::new(&self.0, false)
    }

    pub(crate) fn host_buffer(&self, bytes: usize) -> Result<HostMemory> {
        HostMemory::new(&self.0, bytes)
    }

    pub(crate) fn registered(&self, map: memmap2::MmapMut, bytes: usize) -> Result<HostMemory> {
        HostMemory::registered(&self.0, map, bytes)
    }

    pub(crate) fn device_buffer(&self, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.0, bytes)
    }

    /// Makes the context current on the caller's thread for good, which is one of ours, and keeps the thread's calls
    /// from breaking captures of others.
    pub(crate) fn bind_thread(&self) -> Result<()> {
        drop(self.0.enter()?);
        let context = self.0.context.cu_ctx();
        // SAFETY: the context is retained for the life of the process.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        exchange_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        HOME.set(context as usize);
        Ok(())
    }
}

const MIB: f64 = (1 << 20) as f64;

/// Until it is measured: 12 GB/s, a PCIe 3.0 x16 link.
const DEFAULT_LINK_NS: u64 = 87_000;

impl Shared {
    /// Notes that a copy of `bytes` takes `time`.
    fn note_link(&self, bytes: usize, time: Duration) {
        if bytes > 0 && !time.is_zero() {
            self.link_ns.store((time.as_nanos() as f64 * MIB / bytes as f64) as u64, Relaxed);
        }
    }

    /// What a copy of `bytes` keeps the link busy, by what was measured when the last loader was built.
    fn note_copy(&self, bytes: usize) {
        let ns = bytes as f64 * self.link_ns.load(Relaxed) as f64 / MIB;
        self.tally.copy_busy_ns.fetch_add(ns as u64, Relaxed);
    }
}

/// The primary context of a device, retained once for the life of the process: to release the last one would destroy
/// what other libraries use, and would wait for the device.
fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    static CONTEXTS: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());
    let mut contexts = lock(&CONTEXTS);
    if let Some(known) = contexts.iter().find(|c| c.ordinal() == ordinal) {
        return Ok(known.clone());
    }
    let count = CudaContext::device_count().map_err(|e| refused("cuDeviceGetCount", e))?;
    if ordinal >= usize::try_from(count).unwrap_or(0) {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES");
        let visible = visible.map(|v| format!(" (CUDA_VISIBLE_DEVICES={v:?})")).unwrap_or_default();
        let text = format!("there is no CUDA device {ordinal}: {count} found, numbered from 0{visible}");
        return Err(Error::new(ErrorKind::Device, text));
    }
    let mut before = std::ptr::null_mut();
    // SAFETY: a valid place for the answer; the driver is initialised.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
    let context = CudaContext::new(ordinal).map_err(|e| refused("retaining the primary context", e));
    // SAFETY: gives the thread back the context it had (or none), which is the caller's and alive.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(before) })?;
    let context = context?;
    // SAFETY: nothing that is made through this object relies on cudarc's own events: our streams are ordered by ours.
    unsafe { context.disable_event_tracking() };
    contexts.push(context.clone());
    Ok(context)
}

fn refused(call: &str, error: cudarc::driver::DriverError) -> Error {
    check(call, error.0).err().unwrap_or_else(|| Error::new(ErrorKind::Device, call.to_string()))
}
