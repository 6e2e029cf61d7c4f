//! Streams and events.

use std::fmt;
use std::ops::Range;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "cuda")]
use super::buffer::{BufferFlavor, HostFlavor};
#[cfg(feature = "cuda")]
use super::cuda;
use super::{Device, DeviceBuffer, DeviceFlavor, HostBuffer, cpu, each, map};
use crate::error::{Error, ErrorKind, Result};

/// A queue of device work that runs in order. A handle; clones mean the same stream. Dropping the last one
/// never blocks: what is enqueued still runs.
///
/// A panic in [enqueued](Stream::enqueue) work lets everything behind it pass and is returned once, as
/// [`ErrorKind::Panic`], by the next call on the stream, which then has done nothing (a
/// [`Stream::synchronize`] has waited). All calls return [`ErrorKind::Forked`] in a child of the process that
/// made the device.
#[derive(Clone)]
pub struct Stream(pub(super) StreamFlavor);

#[derive(Clone)]
pub(super) enum StreamFlavor {
    Cpu(cpu::Stream),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Stream),
}

impl Stream {
    /// Records `event` behind all that is enqueued: it passes when the stream gets there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where the event belongs to another device; see [`Stream`].
    pub fn record(&self, event: &Event) -> Result<()> {
        self.surface()?;
        self.mark(event)
    }

    /// Returns what earlier work met, once.
    pub(crate) fn surface(&self) -> Result<()> {
        each!(&self.0, StreamFlavor, stream => stream.surface())
    }

    /// As [`Stream::record`], but leaves what earlier work met to the user's next call: for the pipeline's own records.
    pub(crate) fn mark(&self, event: &Event) -> Result<()> {
        match (&self.0, &event.0) {
            (StreamFlavor::Cpu(stream), EventFlavor::Cpu(event)) => stream.record(event),
            #[cfg(feature = "cuda")]
            (StreamFlavor::Cuda(stream), EventFlavor::Cuda(event)) => stream.record(event),
            #[cfg(feature = "cuda")]
            _ => Err(mixed()),
        }
    }

    /// Lets what is enqueued from here on wait for the record of `event` that is its latest *now*; for
    /// nothing where it has none. The host does not wait.
    ///
    /// # Errors
    /// See [`Stream`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.surface()?;
        self.follow(event)
    }

    /// As [`Stream::wait`], but leaves what earlier work met to the user's next call.
    pub(crate) fn follow(&self, event: &Event) -> Result<()> {
        match (&self.0, &event.0) {
            (StreamFlavor::Cpu(stream), EventFlavor::Cpu(event)) => stream.wait(event),
            #[cfg(feature = "cuda")]
            (StreamFlavor::Cuda(stream), EventFlavor::Cuda(event)) => stream.wait(event),
            #[cfg(feature = "cuda")]
            _ => Err(mixed()),
        }
    }

    /// Runs `work` on the host when the stream gets there; what is enqueued behind it waits for it. On the CPU device
    /// it may make calls on devices, but not wait for its own stream. On CUDA it runs on a thread of the driver's, which
    /// allows no call on a device: such calls return [`ErrorKind::InvalidArgument`], a batch that is dropped there counts
    /// as held until its epoch's next `next` gives it back, and work of one stream that waits for another's may wait for
    /// ever.
    ///
    /// # Errors
    /// See [`Stream`].
    pub fn enqueue(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.surface()?;
        self.enqueue_fallible(move || {
            work();
            Ok(())
        })
    }

    /// As [`Stream::enqueue`], but leaves what earlier work met; an error that `work` returns is treated as a panic is.
    pub(crate) fn enqueue_fallible(&self, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        each!(&self.0, StreamFlavor, stream => stream.enqueue(Box::new(work)))
    }

    /// Blocks until all that is enqueued by now is over.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] from work on this very stream; [`ErrorKind::Capturing`]; see [`Stream`].
    pub fn synchronize(&self) -> Result<()> {
        each!(&self.0, StreamFlavor, stream => stream.synchronize())?;
        self.surface()
    }

    /// Whether all that is enqueued by now is over.
    ///
    /// # Errors
    /// [`ErrorKind::Capturing`]; see [`Stream`].
    pub fn query(&self) -> Result<bool> {
        self.surface()?;
        each!(&self.0, StreamFlavor, stream => stream.query())
    }

    /// The stream's number: never 0, and no other stream of this process has or had it.
    pub fn id(&self) -> u64 {
        each!(&self.0, StreamFlavor, stream => stream.id())
    }

    /// The stream's device.
    pub fn device(&self) -> Device {
        Device(map!(&self.0, StreamFlavor => DeviceFlavor, stream => stream.device()))
    }

    /// Whether the caller is work that runs on this very stream.
    pub(crate) fn is_running_here(&self) -> bool {
        each!(&self.0, StreamFlavor, stream => stream.is_running_here())
    }

    /// Whether the stream is being captured into a graph. Never on the CPU device.
    ///
    /// # Errors
    /// [`ErrorKind::Device`]; none on the CPU device.
    pub fn is_capturing(&self) -> Result<bool> {
        match &self.0 {
            StreamFlavor::Cpu(_) => Ok(false),
            #[cfg(feature = "cuda")]
            StreamFlavor::Cuda(stream) => stream.is_capturing(),
        }
    }

    /// Measures what a copy on it costs, where the link is a real one: for
    /// [`Counters::copy_busy`](super::Counters::copy_busy). Waits for it; nothing else may use the buffers.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where the copy fails.
    pub(crate) fn measure_link(&self, from: &HostBuffer, to: &DeviceBuffer) -> Result<()> {
        match (&self.0, &from.0, &to.0) {
            #[cfg(feature = "cuda")]
            (StreamFlavor::Cuda(stream), HostFlavor::Cuda(from), BufferFlavor::Cuda(to)) => {
                stream.measure_link(from, to)
            }
            _ => Ok(()),
        }
    }

    /// Enqueues a copy of the first `bytes` bytes of `src` to the start of `dst`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where a buffer is shorter; see [`Stream`]. After an error nothing was
    /// enqueued.
    ///
    /// # Safety
    /// Until an event recorded behind the copy has passed, both buffers stay alive, nobody writes those bytes
    /// of `src`, and nobody reads or writes those of `dst` except in order on this stream.
    pub(crate) unsafe fn copy_to_device(
        &self,
        dst: &DeviceBuffer,
        src: &HostBuffer,
        bytes: usize,
    ) -> Result<()> {
        if bytes > src.len() {
            return Err(out_of_range("host buffer", bytes, src.len()));
        }
        if bytes > dst.len() {
            return Err(out_of_range("device buffer", bytes, dst.len()));
        }
        // SAFETY: both lengths are checked above, two buffers never overlap, and the caller keeps the rest.
        each!(&self.0, StreamFlavor, stream => unsafe {
            stream.copy_to_device(dst.as_ptr(), src.as_ptr(), bytes, src.is_locked())
        })
    }

    /// Enqueues a copy of the bytes `range` of `src` to `dst`, in host memory of any kind.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where the range is not in `src`; see [`Stream`]. After an error nothing
    /// was enqueued.
    ///
    /// # Safety
    /// `dst` is writable for `range.len()` bytes. Until an event recorded behind the copy has passed, both
    /// sides stay alive, nobody touches those bytes at `dst`, and nobody writes those of `src` except in
    /// order on this stream.
    pub(crate) unsafe fn copy_to_host(
        &self,
        dst: *mut u8,
        src: &DeviceBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        if range.start > range.end || range.end > src.len() {
            return Err(out_of_range("device buffer", range.end.max(range.start), src.len()));
        }
        let from = src.as_ptr().wrapping_add(range.start);
        // SAFETY: the range lies in `src`, checked above; `dst` is the caller's, as is the rest.
        each!(&self.0, StreamFlavor, stream => unsafe { stream.copy_to_host(dst, from, range.len()) })
    }
}

#[cfg(feature = "cuda")]
impl Stream {
    /// A stream that other code made with cudarc, on the device's primary context. It is kept alive. The legacy default
    /// stream may be used too; it runs in order with every stream that was not made non-blocking, which ours are.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a CPU device, for the per-thread default stream, which is another stream on
    /// every thread, and for a stream of another device or context.
    pub fn from_cudarc(device: &Device, stream: Arc<cudarc::driver::CudaStream>) -> Result<Self> {
        match &device.0 {
            DeviceFlavor::Cuda(device) => Ok(Self(StreamFlavor::Cuda(device.wrap_stream(stream)?))),
            DeviceFlavor::Cpu(_) => Err(mixed()),
        }
    }

    /// A stream that other code made (C++, another binding), on the device's primary context. It is not destroyed.
    ///
    /// # Errors
    /// As [`Stream::from_cudarc`].
    ///
    /// # Safety
    /// `raw` is a stream that stays alive while this handle, a clone of it, or a batch that was used on it, lives. A batch
    /// that was dropped while a stream was being captured, or in work on a stream, lives on in this sense until its
    /// loader's next `next` or `close`.
    pub unsafe fn from_raw(device: &Device, raw: cudarc::driver::sys::CUstream) -> Result<Self> {
        match &device.0 {
            // SAFETY: the caller keeps the stream alive.
            DeviceFlavor::Cuda(device) => Ok(Self(StreamFlavor::Cuda(unsafe { device.raw_stream(raw)? }))),
            DeviceFlavor::Cpu(_) => Err(mixed()),
        }
    }

    /// The stream for cudarc: to launch kernels, and for libraries built on it. `None` on the CPU device.
    pub fn cudarc(&self) -> Option<&Arc<cudarc::driver::CudaStream>> {
        match &self.0 {
            StreamFlavor::Cuda(stream) => Some(stream.cudarc()),
            StreamFlavor::Cpu(_) => None,
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id()).field("device", &self.device()).finish()
    }
}

/// A point in a stream that others can wait for. A handle; clones mean the same event.
///
/// Queries and waits refer to the latest record; an event that was never recorded has passed. All calls
/// return [`ErrorKind::Forked`] in a child of the process that made the device.
#[derive(Clone)]
pub struct Event(pub(super) EventFlavor);

#[derive(Clone)]
pub(super) enum EventFlavor {
    Cpu(cpu::Event),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Event),
}

impl Event {
    /// Whether the latest record has passed.
    ///
    /// # Errors
    /// See [`Event`].
    pub fn query(&self) -> Result<bool> {
        each!(&self.0, EventFlavor, event => event.query())
    }

    /// Blocks until the latest record has passed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] from work that lies before the record on the same stream; see [`Event`].
    pub fn synchronize(&self) -> Result<()> {
        each!(&self.0, EventFlavor, event => event.synchronize(None).map(drop))
    }

    /// Blocks until the latest record has passed, or `timeout` has: then `false`.
    ///
    /// # Errors
    /// As [`Event::synchronize`].
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool> {
        each!(&self.0, EventFlavor, event => event.synchronize(Some(timeout)))
    }

    /// The time on the device between the last record of `earlier` and that of this event; zero where this one passed
    /// first. A record that has not passed leaves the one before it in force on the CPU device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where one of them has never passed, or on CUDA where the last record has not; see
    /// [`Event`].
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        match (&self.0, &earlier.0) {
            (EventFlavor::Cpu(event), EventFlavor::Cpu(earlier)) => event.elapsed_since(earlier),
            #[cfg(feature = "cuda")]
            (EventFlavor::Cuda(event), EventFlavor::Cuda(earlier)) => event.elapsed_since(earlier),
            #[cfg(feature = "cuda")]
            _ => Err(mixed()),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

#[cfg(feature = "cuda")]
fn mixed() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "a CUDA device, stream or event and one of the CPU device do not go together",
    )
}

fn out_of_range(what: &str, end: usize, len: usize) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a copy up to byte {end} of a {what} of {len} bytes"))
}
