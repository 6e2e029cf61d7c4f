//! Devices, and what is enqueued on them: one surface over the flavours of device there are.
//!
//! The semantics are CUDA's. A stream runs what is enqueued on it in order; streams are independent unless
//! one waits for an event of the other; no call blocks the host but those named `synchronize`. The CPU
//! flavour runs the same order with threads as streams.

mod buffer;
mod counters;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod pages;
pub(crate) mod reaper;
mod stream;
pub mod survey;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::Result;
pub(crate) use buffer::{DeviceBuffer, HostBuffer};
pub use counters::Counters;
pub use cpu::CpuOptions;
#[cfg(feature = "cuda")]
pub use cuda::{CudaOptions, CudaSliceRef};
pub use stream::{Event, Stream};

/// Runs an expression on what is inside a flavour.
macro_rules! each {
    ($value:expr, $flavor:ident, $inner:ident => $body:expr) => {
        match $value {
            $flavor::Cpu($inner) => $body,
            #[cfg(feature = "cuda")]
            $flavor::Cuda($inner) => $body,
        }
    };
}

/// As [`each!`], and wraps the result in the same flavour of another type.
macro_rules! map {
    ($value:expr, $from:ident => $into:ident, $inner:ident => $body:expr) => {
        match $value {
            $from::Cpu($inner) => $into::Cpu($body),
            #[cfg(feature = "cuda")]
            $from::Cuda($inner) => $into::Cuda($body),
        }
    };
}
use {each, map};

use buffer::{BufferFlavor, HostFlavor};
use stream::{EventFlavor, StreamFlavor};

/// A device: where batches go. A handle; clones mean the same device.
#[derive(Clone)]
pub struct Device(DeviceFlavor);

#[derive(Clone)]
enum DeviceFlavor {
    Cpu(cpu::Device),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Device),
}

impl Device {
    /// The best device there is, named in one line of the log: the first CUDA device, or else the CPU device, with
    /// the reason; as a warning where there is a driver that can't be used.
    ///
    /// # Errors
    /// None so far: where there is no GPU it is the CPU device.
    pub fn auto() -> Result<Self> {
        #[cfg(feature = "cuda")]
        let why = match Self::cuda(0) {
            Ok(device) => {
                tracing::info!("using {}", device.name());
                return Ok(device);
            }
            Err(error) if cuda::has_driver() => {
                tracing::warn!("using the CPU device, though there is a CUDA driver: {}", error.message());
                return Ok(Self::cpu());
            }
            Err(error) => error.message().to_string(),
        };
        #[cfg(not(feature = "cuda"))]
        let why = "no CUDA support in this build";
        tracing::info!("using the CPU device: {why}");
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

    /// The CUDA device of that number, as `CUDA_VISIBLE_DEVICES` numbers them, on its primary context, which other
    /// libraries of the process share.
    ///
    /// # Errors
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) that says what is missing: the driver, a new enough one, the
    /// device.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Self::cuda_with(ordinal, CudaOptions::default())
    }

    /// As [`Device::cuda`], with options.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    #[cfg(feature = "cuda")]
    pub fn cuda_with(ordinal: usize, options: CudaOptions) -> Result<Self> {
        Ok(Self(DeviceFlavor::Cuda(cuda::Device::open(ordinal, options)?)))
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where the system has no thread for it (CPU device);
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child of the process that made the device;
    /// [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn new_stream(&self) -> Result<Stream> {
        Ok(Stream(map!(&self.0, DeviceFlavor => StreamFlavor, device => device.new_stream()?)))
    }

    /// Makes the stream for a loader's copies: where streams have priorities, at the highest.
    pub(crate) fn new_copy_stream(&self) -> Result<Stream> {
        match &self.0 {
            #[cfg(feature = "cuda")]
            DeviceFlavor::Cuda(device) => Ok(Stream(StreamFlavor::Cuda(device.new_copy_stream()?))),
            DeviceFlavor::Cpu(_) => self.new_stream(),
        }
    }

    /// Makes an event.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child of the process that made the device;
    /// [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn new_event(&self) -> Result<Event> {
        Ok(Event(map!(&self.0, DeviceFlavor => EventFlavor, device => device.new_event()?)))
    }

    /// Makes an event that only orders: [`Event::elapsed_since`] knows nothing of it. For the pipeline's own, several a
    /// batch, which would read the clock each.
    pub(crate) fn new_untimed_event(&self) -> Result<Event> {
        Ok(Event(map!(&self.0, DeviceFlavor => EventFlavor, device => device.new_untimed_event()?)))
    }

    /// What the device has done so far.
    pub fn counters(&self) -> Counters {
        each!(&self.0, DeviceFlavor, device => device.tally().snapshot())
    }

    /// [`Counters::copy_busy`] alone.
    pub(crate) fn link_busy(&self) -> Duration {
        let ns = each!(&self.0, DeviceFlavor, device => device.tally().copy_busy_ns.load(Relaxed));
        Duration::from_nanos(ns)
    }

    /// The device's name, for people.
    pub fn name(&self) -> String {
        match &self.0 {
            DeviceFlavor::Cpu(_) => "CPU".to_string(),
            #[cfg(feature = "cuda")]
            DeviceFlavor::Cuda(device) => device.name(),
        }
    }

    /// Whether this is a CPU device, whose memory the host can read.
    pub fn is_cpu(&self) -> bool {
        matches!(self.0, DeviceFlavor::Cpu(_))
    }

    /// Whether the device takes calls from the caller: CUDA's takes none from work on a stream.
    pub(crate) fn takes_calls_here(&self) -> bool {
        match &self.0 {
            DeviceFlavor::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            DeviceFlavor::Cuda(_) => !cuda::in_host_function(),
        }
    }

    /// Prepares a thread of ours, which will make calls on the device.
    pub(crate) fn bind_thread(&self) -> Result<()> {
        match &self.0 {
            DeviceFlavor::Cpu(_) => Ok(()),
            #[cfg(feature = "cuda")]
            DeviceFlavor::Cuda(device) => device.bind_thread(),
        }
    }

    /// Allocates `bytes` bytes of page-aligned host memory, zero, page-locked where that can be had. Where it
    /// is refused, the log says so once and this and all later buffers of the device are pageable.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where there is no memory; [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub(crate) fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
        Ok(HostBuffer(map!(&self.0, DeviceFlavor => HostFlavor, device => device.host_buffer(bytes)?)))
    }

    /// Makes a host buffer of `bytes` bytes of memory of the caller's: zeroed, page-locked where that can be had.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a map that is shorter;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub(crate) fn host_buffer_in(&self, map: memmap2::MmapMut, bytes: usize) -> Result<HostBuffer> {
        Ok(HostBuffer(map!(&self.0, DeviceFlavor => HostFlavor, device => device.registered(map, bytes)?)))
    }

    /// Allocates `bytes` bytes of device memory, full of garbage (0xCD on the CPU device).
    ///
    /// # Errors
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) where the device has no such memory;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub(crate) fn device_buffer(&self, bytes: usize) -> Result<DeviceBuffer> {
        Ok(DeviceBuffer(map!(&self.0, DeviceFlavor => BufferFlavor, device => device.device_buffer(bytes)?)))
    }
}

impl PartialEq for Device {
    /// Whether both are handles of one device.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (DeviceFlavor::Cpu(a), DeviceFlavor::Cpu(b)) => a.is_same(b),
            #[cfg(feature = "cuda")]
            (DeviceFlavor::Cuda(a), DeviceFlavor::Cuda(b)) => a.is_same(b),
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// The number of the next stream of this process; 0 is none.
fn next_stream_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}
