//! A stream of the CUDA device.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaStream, result};

use super::{DeviceMemory, HostMemory, RUNNING, Shared, check, in_host_function, refused};
use crate::device::counters::{add, sub};
use crate::device::{next_stream_id, reaper};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A handle of a stream.
#[derive(Clone)]
pub(crate) struct Stream(Arc<Handle>);

struct Handle {
    id: u64,
    device: Arc<Shared>,
    stream: ManuallyDrop<Arc<CudaStream>>,
    /// The same for cudarc's slices, through a context object that keeps no events of cudarc's.
    untracked: OnceLock<Arc<CudaStream>>,
    failure: Arc<Failure>,
}

/// What work on the stream met, for the next call.
#[derive(Default)]
struct Failure {
    met: AtomicBool,
    error: Mutex<Option<Error>>,
}

type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// What the driver's thread is handed.
struct Enqueued {
    id: u64,
    work: Work,
    failure: Arc<Failure>,
}

/// How much is copied to measure the link: enough for its full speed.
const MEASURED: usize = 16 << 20;

/// cudarc's number for the per-thread default stream: a different stream on every thread.
const PER_THREAD: usize = 2;

impl Stream {
    pub(super) fn new(device: &Arc<Shared>, urgent: bool) -> Result<Self> {
        let _scope = device.enter()?;
        let stream = if urgent {
            // The first of the two is the lowest priority there is, the second the highest.
            let (_, highest) = result::stream::get_priority_range()
                .map_err(|e| refused("cuCtxGetStreamPriorityRange", e))?;
            let stream = device.context.new_stream_with_priority(highest);
            stream.map_err(|e| refused("cuStreamCreateWithPriority", e))?
        } else {
            device.context.new_stream().map_err(|e| refused("cuStreamCreate", e))?
        };
        Ok(Self::of(device, stream))
    }

    fn of(device: &Arc<Shared>, stream: Arc<CudaStream>) -> Self {
        add(&device.tally.streams, 1);
        add(&device.tally.live_streams, 1);
        Self(Arc::new(Handle {
            id: next_stream_id(),
            device: device.clone(),
            stream: ManuallyDrop::new(stream),
            untracked: OnceLock::new(),
            failure: Arc::default(),
        }))
    }

    pub(super) fn wrap(device: &Arc<Shared>, stream: Arc<CudaStream>) -> Result<Self> {
        refuse_per_thread(stream.cu_stream())?;
        if stream.context().cu_ctx() != device.context.cu_ctx() {
            let text = format!(
                "the stream belongs to device {} or to a context of its own, not to the primary context of {}",
                stream.context().ordinal(),
                device.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        drop(device.enter()?);
        Ok(Self::of(device, stream))
    }

    /// # Safety
    /// `raw` is a stream that stays alive while the handle, or a batch that was used on it, lives.
    pub(super) unsafe fn from_raw(device: &Arc<Shared>, raw: sys::CUstream) -> Result<Self> {
        refuse_per_thread(raw)?;
        let _scope = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `raw` is alive, by the contract; a valid place for the answer.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(raw, &mut context) })?;
        if context != device.context.cu_ctx() {
            let text = format!("the stream does not belong to the primary context of {}", device.name);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // SAFETY: a stream of this context, checked above, alive by the contract.
        Ok(Self::of(device, unsafe { device.context.wrap_borrowed_stream(raw) }))
    }

    pub(crate) fn cudarc(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    /// The stream for slices of batches. A slice that is cloned keeps it, beyond the batch and this handle.
    pub(super) fn untracked(&self) -> &Arc<CudaStream> {
        if !self.0.stream.context().is_event_tracking() {
            return &self.0.stream;
        }
        self.0.untracked.get_or_init(|| {
            // SAFETY: the stream is of this context. It outlives what is made here: see `Handle::drop`.
            unsafe { self.0.device.context.wrap_borrowed_stream(self.raw()) }
        })
    }

    fn raw(&self) -> sys::CUstream {
        self.0.stream.cu_stream()
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn device(&self) -> super::Device {
        super::Device(self.0.device.clone())
    }

    pub(crate) fn is_running_here(&self) -> bool {
        RUNNING.get() == self.0.id
    }

    /// Returns what earlier work met, once.
    pub(crate) fn surface(&self) -> Result<()> {
        let failure = &self.0.failure;
        if failure.met.load(Ordering::Acquire) && !self.0.device.process.is_forked() {
            let mut error = lock(&failure.error);
            failure.met.store(false, Ordering::Release);
            return error.take().map_or(Ok(()), Err);
        }
        Ok(())
    }

    pub(crate) fn record(&self, event: &super::Event) -> Result<()> {
        let _scope = self.0.device.enter()?;
        if event.device().context.cu_ctx() != self.0.device.context.cu_ctx() {
            let text = "the event belongs to another device than the stream";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.handle(), self.raw()) })?;
        add(&self.0.device.tally.records, 1);
        Ok(())
    }

    pub(crate) fn wait(&self, event: &super::Event) -> Result<()> {
        let _scope = self.0.device.enter()?;
        // SAFETY: both handles are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw(), event.handle(), 0) })?;
        add(&self.0.device.tally.waits, 1);
        Ok(())
    }

    pub(crate) fn enqueue(&self, work: Work) -> Result<()> {
        let _scope = self.0.device.enter()?;
        if self.is_capturing()? {
            let text = "work on the host runs once, and a graph would repeat it: enqueue it when the capture has ended";
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        let enqueued = Box::new(Enqueued { id: self.0.id, work, failure: self.0.failure.clone() });
        let data = Box::into_raw(enqueued).cast();
        // SAFETY: `run` takes the box back, once, on the driver's thread.
        let code = unsafe { sys::cuLaunchHostFunc(self.raw(), Some(run), data) };
        check("cuLaunchHostFunc", code).inspect_err(|_| {
            // SAFETY: the driver refused it and will not call `run`: the box is ours again.
            drop(unsafe { Box::from_raw(data.cast::<Enqueued>()) });
        })
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        let _scope = self.0.device.enter()?;
        self.refuse_capturing()?;
        add(&self.0.device.tally.host_waits, 1);
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw()) })
    }

    /// What would end the user's capture with an error is refused before it does.
    fn refuse_capturing(&self) -> Result<()> {
        if self.is_capturing()? {
            let text =
                "the stream is being captured, and a capture has nothing to wait for: ask when it has ended";
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let _scope = self.0.device.enter()?;
        self.refuse_capturing()?;
        add(&self.0.device.tally.queries, 1);
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    pub(crate) fn is_capturing(&self) -> Result<bool> {
        let _scope = self.0.device.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a valid place for the answer; the stream is alive.
        match unsafe { sys::cuStreamIsCapturing(self.raw(), &mut status) } {
            // The legacy stream, while another one is captured.
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            code => {
                check("cuStreamIsCapturing", code)?;
                Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
            }
        }
    }

    /// # Safety
    /// As [`copy_to_device`](crate::device::Stream::copy_to_device), whose checks were made.
    pub(crate) unsafe fn copy_to_device(
        &self,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
        locked: bool,
    ) -> Result<()> {
        let _scope = self.0.device.enter()?;
        // SAFETY: both sides hold `bytes` bytes and stay alive and unwritten until the copy has passed, by the contract.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(dst as u64, src.cast(), bytes, self.raw()) };
        check("cuMemcpyHtoDAsync", code)?;
        let tally = &self.0.device.tally;
        add(&tally.h2d_copies, 1);
        add(&tally.h2d_bytes, bytes);
        add(&tally.pageable_copies, usize::from(!locked));
        self.0.device.note_copy(bytes);
        Ok(())
    }

    /// Times a copy: on the hot path no event takes the time. Waits for it, and counts nothing of it.
    pub(crate) fn measure_link(&self, from: &HostMemory, to: &DeviceMemory) -> Result<()> {
        let device = &self.0.device;
        let bytes = from.len().min(to.len()).min(MEASURED);
        let (begin, end) = (super::Event::new(device, true)?, super::Event::new(device, true)?);
        {
            let _scope = self.0.device.enter()?;
            // The first copy wakes the link up.
            for _ in 0..2 {
                let (dst, src) = (to.as_ptr() as u64, from.as_ptr().cast_const().cast());
                // SAFETY: all handles are alive; both buffers hold `bytes` bytes, are nobody else's by the caller's
                // contract, and outlive the copy, whose end is waited for.
                unsafe {
                    check("cuEventRecord", sys::cuEventRecord(begin.handle(), self.raw()))?;
                    check("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(dst, src, bytes, self.raw()))?;
                    check("cuEventRecord", sys::cuEventRecord(end.handle(), self.raw()))?;
                    check("cuStreamSynchronize", sys::cuStreamSynchronize(self.raw()))?;
                }
            }
        }
        device.note_link(bytes, end.elapsed_since(&begin)?);
        Ok(())
    }

    /// # Safety
    /// As [`copy_to_host`](crate::device::Stream::copy_to_host), whose checks were made.
    pub(crate) unsafe fn copy_to_host(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        let _scope = self.0.device.enter()?;
        // SAFETY: as above.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src as u64, bytes, self.raw()) };
        check("cuMemcpyDtoHAsync", code)?;
        let tally = &self.0.device.tally;
        add(&tally.d2h_copies, 1);
        add(&tally.d2h_bytes, bytes);
        self.0.device.note_copy(bytes);
        Ok(())
    }
}

fn refuse_per_thread(raw: sys::CUstream) -> Result<()> {
    if raw as usize == PER_THREAD {
        let text =
            "the per-thread default stream is another stream on every thread: make one with `new_stream`";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

/// A host function: runs on a thread of the driver's. A panic must not leave it.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: the box that `enqueue` gave away; the driver calls this once for it.
    let Enqueued { id, work, failure } = *unsafe { Box::from_raw(data.cast::<Enqueued>()) };
    RUNNING.set(id);
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|p| Err(Error::from_panic(p)));
    RUNNING.set(0);
    if let Err(error) = outcome {
        lock(&failure.error).get_or_insert(error);
        failure.met.store(true, Ordering::Release);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Whoever took a clone of a batch's slice, or of its stream, has the stream without owning it: then it is kept for
        // the life of the process.
        if self.untracked.get_mut().is_some_and(|stream| Arc::strong_count(stream) > 1) {
            Box::leak(Box::new(self.stream.clone()));
        }
        // SAFETY: taken once, here.
        let stream = unsafe { ManuallyDrop::take(&mut self.stream) };
        let last = Last { stream: ManuallyDrop::new(stream), device: self.device.clone() };
        if in_host_function() && !self.device.process.is_forked() {
            reaper::reap(Box::new(last));
        }
    }
}

/// The last of a handle. Dropped, it gives up the stream: what is enqueued still runs.
struct Last {
    stream: ManuallyDrop<Arc<CudaStream>>,
    device: Arc<Shared>,
}

impl Drop for Last {
    fn drop(&mut self) {
        // In the scope, so that cudarc leaves no context bound. A forked child owns nothing of it.
        if let Ok(_scope) = self.device.enter() {
            // SAFETY: taken once, here.
            drop(unsafe { ManuallyDrop::take(&mut self.stream) });
            sub(&self.device.tally.live_streams, 1);
            // cudarc keeps an error of it for the next call that makes something, which has nothing to do with it.
            if let Err(error) = self.device.context.check_err() {
                tracing::debug!("{}", refused("cuStreamDestroy", error));
            }
        }
    }
}

impl reaper::Reapable for Last {
    fn passed(&self) -> Result<bool> {
        Ok(reaper::is_here())
    }

    fn bytes(&self) -> usize {
        0
    }
}
