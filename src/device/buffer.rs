//! Memory that copies go between.

use super::{cpu, each};
#[cfg(feature = "cuda")]
use super::{cuda, reaper};

/// Host memory that a device copies from: page-aligned, at a fixed address, zero when made. Its bytes are
/// reached through the raw pointer only; who owns the buffer decides who may touch which of them.
#[derive(Debug)]
pub(crate) struct HostBuffer(pub(super) HostFlavor);

#[derive(Debug)]
pub(super) enum HostFlavor {
    Cpu(cpu::HostMemory),
    #[cfg(feature = "cuda")]
    Cuda(cuda::HostMemory),
}

impl HostBuffer {
    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        each!(&self.0, HostFlavor, memory => memory.as_ptr())
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        each!(&self.0, HostFlavor, memory => memory.len())
    }

    /// Whether it is page-locked.
    pub(crate) fn is_locked(&self) -> bool {
        each!(&self.0, HostFlavor, memory => memory.is_locked())
    }

    /// Whether a copy out of it may keep the host waiting for what lies before it on the stream: pageable memory of
    /// another device than the CPU.
    pub(crate) fn copies_block(&self) -> bool {
        match &self.0 {
            HostFlavor::Cpu(_) => false,
            #[cfg(feature = "cuda")]
            HostFlavor::Cuda(memory) => !memory.is_locked(),
        }
    }

    /// Whether its device takes calls from the caller, as [`Device::takes_calls_here`](super::Device::takes_calls_here).
    pub(crate) fn takes_calls_here(&self) -> bool {
        match &self.0 {
            HostFlavor::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            HostFlavor::Cuda(_) => !cuda::in_host_function(),
        }
    }

    /// Whether it may be freed on the caller's thread: the driver waits for the device when it frees.
    pub(crate) fn may_free_here(&self) -> bool {
        match &self.0 {
            HostFlavor::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            HostFlavor::Cuda(_) => reaper::is_here(),
        }
    }
}

/// Device memory at a fixed address, full of garbage when made. Reached by what is enqueued on streams.
#[derive(Debug)]
pub(crate) struct DeviceBuffer(pub(super) BufferFlavor);

#[derive(Debug)]
pub(super) enum BufferFlavor {
    Cpu(cpu::DeviceMemory),
    #[cfg(feature = "cuda")]
    Cuda(cuda::DeviceMemory),
}

impl DeviceBuffer {
    /// The first byte, as an address of the device: the host can follow it on the CPU device only.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        each!(&self.0, BufferFlavor, memory => memory.as_ptr())
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        each!(&self.0, BufferFlavor, memory => memory.len())
    }

    /// As [`HostBuffer::may_free_here`].
    pub(crate) fn may_free_here(&self) -> bool {
        match &self.0 {
            BufferFlavor::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            BufferFlavor::Cuda(_) => reaper::is_here(),
        }
    }
}
