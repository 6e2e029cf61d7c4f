//! Devices, and what is enqueued on them: one surface over the flavours of device there are.
//!
//! The semantics are CUDA's. A stream runs what is enqueued on it in order; streams are independent unless
//! one waits for an event of the other; no call blocks the host but those named `synchronize`. The CPU
//! flavour runs the same order with threads as streams.

mod counters;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod reaper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
pub use counters::Counters;
pub use cpu::CpuOptions;

/// A device: where batches go. A handle; clones mean the same device.
#[derive(Clone)]
pub struct Device(DeviceFlavor);

#[derive(Clone)]
enum DeviceFlavor {
    Cpu(cpu::Device),
}

impl Device {
    /// The best device there is, named in one line of the log: in this build the CPU device.
    ///
    /// # Errors
    /// None on the CPU device.
    pub fn auto() -> Result<Self> {
        tracing::info!("no CUDA support in this build: using the CPU device");
        Ok(Self::cpu())
    }

    /// A new CPU device with default options.
    pub fn cpu() -> Self {
        Self::cpu_with(CpuOptions::default())
    }

    /// A new CPU device that behaves as `options` say.
    pub fn cpu_with(options: CpuOptions) -> Self {
        Self(DeviceFlavor::Cpu(cpu::Device::new(options)))
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the system has no thread for it (CPU device); [`ErrorKind::Forked`] in a child
    /// of the process that made the device.
    pub fn new_stream(&self) -> Result<Stream> {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Ok(Stream(StreamFlavor::Cpu(device.new_stream()?))),
        }
    }

    /// Makes an event.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a child of the process that made the device.
    pub fn new_event(&self) -> Result<Event> {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Ok(Event(EventFlavor::Cpu(device.new_event()?))),
        }
    }

    /// Makes an event that only orders: [`Event::elapsed_since`] knows nothing of it. For the pipeline's own, several a
    /// batch, which would read the clock each.
    pub(crate) fn new_untimed_event(&self) -> Result<Event> {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Ok(Event(EventFlavor::Cpu(device.new_untimed_event()?))),
        }
    }

    /// What the device has done so far.
    pub fn counters(&self) -> Counters {
        match &self.0 {
            DeviceFlavor::Cpu(device) => device.tally().snapshot(),
        }
    }

    /// [`Counters::copy_busy`] alone.
    pub(crate) fn link_busy(&self) -> Duration {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Duration::from_nanos(device.tally().copy_busy_ns.load(Relaxed)),
        }
    }

    /// The device's name, for people.
    pub fn name(&self) -> String {
        match &self.0 {
            DeviceFlavor::Cpu(_) => "CPU".to_string(),
        }
    }

    /// Whether this is a CPU device, whose memory the host can read.
    pub fn is_cpu(&self) -> bool {
        match &self.0 {
            DeviceFlavor::Cpu(_) => true,
        }
    }

    /// Allocates `bytes` bytes of page-aligned host memory, zero, page-locked where that can be had. Where it
    /// is refused, the log says so once and this and all later buffers of the device are pageable.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where there is no memory; [`ErrorKind::Forked`].
    pub(crate) fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Ok(HostBuffer(HostFlavor::Cpu(device.host_buffer(bytes)?))),
        }
    }

    /// Allocates `bytes` bytes of device memory, full of garbage (0xCD).
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where the device has no such memory; [`ErrorKind::Forked`].
    pub(crate) fn device_buffer(&self, bytes: usize) -> Result<DeviceBuffer> {
        match &self.0 {
            DeviceFlavor::Cpu(device) => Ok(DeviceBuffer(BufferFlavor::Cpu(device.device_buffer(bytes)?))),
        }
    }
}

impl PartialEq for Device {
    /// Whether both are handles of one device.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (DeviceFlavor::Cpu(a), DeviceFlavor::Cpu(b)) => a.is_same(b),
        }
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// A queue of device work that runs in order. A handle; clones mean the same stream. Dropping the last one
/// never blocks: what is enqueued still runs.
///
/// A panic in [enqueued](Stream::enqueue) work lets everything behind it pass and is returned once, as
/// [`ErrorKind::Panic`], by the next call on the stream, which then has done nothing (a
/// [`Stream::synchronize`] has waited). All calls return [`ErrorKind::Forked`] in a child of the process that
/// made the device.
#[derive(Clone)]
pub struct Stream(StreamFlavor);

#[derive(Clone)]
enum StreamFlavor {
    Cpu(cpu::Stream),
}

impl Stream {
    /// Records `event` behind all that is enqueued: it passes when the stream gets there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where the event belongs to another device; see [`Stream`].
    pub fn record(&self, event: &Event) -> Result<()> {
        match (&self.0, &event.0) {
            (StreamFlavor::Cpu(stream), EventFlavor::Cpu(event)) => stream.record(event),
        }
    }

    /// Lets what is enqueued from here on wait for the record of `event` that is its latest *now*; for
    /// nothing where it has none. The host does not wait.
    ///
    /// # Errors
    /// See [`Stream`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        match (&self.0, &event.0) {
            (StreamFlavor::Cpu(stream), EventFlavor::Cpu(event)) => stream.wait(event),
        }
    }

    /// Runs `work` on the stream, in order. It may make calls on devices, but not wait for its own stream.
    ///
    /// # Errors
    /// See [`Stream`].
    pub fn enqueue(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.enqueue_fallible(move || {
            work();
            Ok(())
        })
    }

    /// As [`Stream::enqueue`]; an error that `work` returns is treated as a panic is.
    pub(crate) fn enqueue_fallible(&self, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match &self.0 {
            StreamFlavor::Cpu(stream) => stream.enqueue(Box::new(work)),
        }
    }

    /// Blocks until all that is enqueued by now is over.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] from work on this very stream; see [`Stream`].
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            StreamFlavor::Cpu(stream) => stream.synchronize(),
        }
    }

    /// Whether all that is enqueued by now is over.
    ///
    /// # Errors
    /// See [`Stream`].
    pub fn query(&self) -> Result<bool> {
        match &self.0 {
            StreamFlavor::Cpu(stream) => stream.query(),
        }
    }

    /// The stream's number: never 0, and no other stream of this process has or had it.
    pub fn id(&self) -> u64 {
        match &self.0 {
            StreamFlavor::Cpu(stream) => stream.id(),
        }
    }

    /// The stream's device.
    pub fn device(&self) -> Device {
        match &self.0 {
            StreamFlavor::Cpu(stream) => Device(DeviceFlavor::Cpu(stream.device())),
        }
    }

    /// Whether the caller is work that runs on this very stream.
    pub(crate) fn is_running_here(&self) -> bool {
        match &self.0 {
            StreamFlavor::Cpu(stream) => stream.is_running_here(),
        }
    }

    /// Whether the stream is being captured into a graph. Never on the CPU device.
    ///
    /// # Errors
    /// None on the CPU device.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        match &self.0 {
            StreamFlavor::Cpu(_) => Ok(false),
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
        match &self.0 {
            // SAFETY: both lengths are checked above, two buffers never overlap, and the caller keeps the rest.
            StreamFlavor::Cpu(stream) => unsafe {
                stream.copy_to_device(dst.as_ptr(), src.as_ptr(), bytes, src.is_locked())
            },
        }
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
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "read-back on a device whose memory the host can't reach")
    )]
    pub(crate) unsafe fn copy_to_host(
        &self,
        dst: *mut u8,
        src: &DeviceBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        if range.start > range.end || range.end > src.len() {
            return Err(out_of_range("device buffer", range.end.max(range.start), src.len()));
        }
        match &self.0 {
            // SAFETY: the range lies in `src`, checked above; `dst` is the caller's, as is the rest.
            StreamFlavor::Cpu(stream) => unsafe {
                stream.copy_to_host(dst, src.as_ptr().add(range.start), range.len())
            },
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
pub struct Event(EventFlavor);

#[derive(Clone)]
enum EventFlavor {
    Cpu(cpu::Event),
}

impl Event {
    /// Whether the latest record has passed.
    ///
    /// # Errors
    /// See [`Event`].
    pub fn query(&self) -> Result<bool> {
        match &self.0 {
            EventFlavor::Cpu(event) => event.query(),
        }
    }

    /// Blocks until the latest record has passed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] from work that lies before the record on the same stream; see [`Event`].
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            EventFlavor::Cpu(event) => event.synchronize(None).map(drop),
        }
    }

    /// Blocks until the latest record has passed, or `timeout` has: then `false`.
    ///
    /// # Errors
    /// As [`Event::synchronize`].
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool> {
        match &self.0 {
            EventFlavor::Cpu(event) => event.synchronize(Some(timeout)),
        }
    }

    /// The time on the device between the last record of `earlier` that has passed and the last record of
    /// this event that has; zero where this one passed first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where one of them has never passed; see [`Event`].
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        match (&self.0, &earlier.0) {
            (EventFlavor::Cpu(event), EventFlavor::Cpu(earlier)) => event.elapsed_since(earlier),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// Host memory that a device copies from: page-aligned, at a fixed address, zero when made. Its bytes are
/// reached through the raw pointer only; who owns the buffer decides who may touch which of them.
#[derive(Debug)]
pub(crate) struct HostBuffer(HostFlavor);

#[derive(Debug)]
enum HostFlavor {
    Cpu(cpu::HostMemory),
}

impl HostBuffer {
    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            HostFlavor::Cpu(memory) => memory.as_ptr(),
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            HostFlavor::Cpu(memory) => memory.len(),
        }
    }

    /// Whether it is page-locked.
    pub(crate) fn is_locked(&self) -> bool {
        match &self.0 {
            HostFlavor::Cpu(memory) => memory.is_locked(),
        }
    }
}

/// Device memory at a fixed address, full of garbage when made. Reached by what is enqueued on streams.
#[derive(Debug)]
pub(crate) struct DeviceBuffer(BufferFlavor);

#[derive(Debug)]
enum BufferFlavor {
    Cpu(cpu::DeviceMemory),
}

impl DeviceBuffer {
    /// The first byte, as an address of the device: the host can follow it on the CPU device only.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            BufferFlavor::Cpu(memory) => memory.as_ptr(),
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            BufferFlavor::Cpu(memory) => memory.len(),
        }
    }
}

fn out_of_range(what: &str, end: usize, len: usize) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a copy up to byte {end} of a {what} of {len} bytes"))
}
