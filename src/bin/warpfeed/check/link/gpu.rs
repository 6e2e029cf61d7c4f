//! The library has no public copy from memory of the caller's, on purpose: these are the driver's own calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, result, sys};
use warpfeed::survey::Survey;
use warpfeed::{Device, Event, Result, Stream};

use super::Memory;
use crate::kernel::{cudarc_of, refused};

/// The library's own way to allocate near the GPU, so that both are measured on the same memory.
#[path = "../../../../device/cuda/numa.rs"]
mod numa;

/// Less than this is no use.
const LEAST: usize = 1 << 16;

pub(crate) struct Link {
    stream: Stream,
    events: [Event; 2],
    context: Arc<CudaContext>,
    locked: HostMemory,
    combined: HostMemory,
    pageable: Vec<u8>,
    to: DeviceMemory,
}

struct HostMemory {
    address: usize,
    bytes: usize,
}

struct DeviceMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Link {
    pub(crate) fn open(device: &Device, most: usize) -> Result<Self> {
        let stream = device.new_stream()?;
        let context = cudarc_of(&stream)?.context().clone();
        let gpus = Survey::take().gpus;
        let gpu = gpus.iter().find(|gpu| gpu.ordinal as usize == context.ordinal());
        let node = gpu.and_then(|gpu| numa::node_of(Path::new("/sys"), &gpu.pci_address.to_lowercase()));
        let host = |flags| {
            numa::on_node(node, || {
                context.bind_to_thread().map_err(|e| refused("cuCtxSetCurrent", e))?;
                HostMemory::new(most, sys::CU_MEMHOSTALLOC_PORTABLE | flags)
            })
        };
        let (locked, combined) = (host(0)?, host(sys::CU_MEMHOSTALLOC_WRITECOMBINED)?);
        context.bind_to_thread().map_err(|e| refused("cuCtxSetCurrent", e))?;
        let to = DeviceMemory::new(most)?;
        let pageable = numa::on_node(node, || vec![0x5A; most]);
        let events = [device.new_event()?, device.new_event()?];
        Ok(Self { stream, events, context, locked, combined, pageable, to })
    }

    /// By events on the stream, which has nothing else to do.
    pub(crate) fn time(&mut self, memory: Memory, bytes: usize, copies: usize) -> Result<Option<Duration>> {
        let (from, len) = match memory {
            Memory::PageLocked => (self.locked.address as *const u8, self.locked.bytes),
            Memory::WriteCombined => (self.combined.address as *const u8, self.combined.bytes),
            Memory::Pageable => (self.pageable.as_ptr(), self.pageable.len()),
        };
        if bytes > len.min(self.to.bytes) {
            return Ok(None);
        }
        self.context.bind_to_thread().map_err(|e| refused("cuCtxSetCurrent", e))?;
        let stream = cudarc_of(&self.stream)?.cu_stream();
        self.stream.record(&self.events[0])?;
        let mut outcome = Ok(());
        for _ in 0..copies {
            // SAFETY: both sides hold `bytes` bytes, checked above, and live as long as `self`, which waits below for
            // the copies; nobody writes the host's side, and nobody else uses the device's.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(self.to.address, from.cast(), bytes, stream) };
            outcome = outcome.and(code.result().map_err(|e| refused("cuMemcpyHtoDAsync", e)));
        }
        self.stream.record(&self.events[1])?;
        self.stream.synchronize()?;
        outcome?;
        self.events[1].elapsed_since(&self.events[0]).map(Some)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Where a record failed, copies may be under way.
        if self.stream.synchronize().is_err() || self.context.bind_to_thread().is_err() {
            return; // a context that is lost has no use for its memory, and gives it back when the process ends
        }
        // SAFETY: all three were allocated in `open`, are freed here only, and no copy is under way.
        let freed = unsafe {
            [
                result::free_host(self.locked.address as _),
                result::free_host(self.combined.address as _),
                result::free_sync(self.to.address),
            ]
        };
        for error in freed.into_iter().filter_map(std::result::Result::err) {
            tracing::debug!("memory of the link: {}", refused("freeing it", error));
        }
    }
}

/// `most` bytes, or a fourth where they are refused, and so on.
fn largest<T>(
    most: usize,
    mut allocate: impl FnMut(usize) -> std::result::Result<T, cudarc::driver::DriverError>,
    what: &str,
) -> Result<(T, usize)> {
    let mut bytes = most.max(1);
    loop {
        match allocate(bytes) {
            Ok(memory) => return Ok((memory, bytes)),
            Err(error) if bytes / 4 < LEAST => return Err(refused(what, error)),
            Err(error) => {
                let error = refused(what, error);
                tracing::warn!("no {bytes} bytes: {error}; larger copies are not measured");
                bytes /= 4;
            }
        }
    }
}

impl HostMemory {
    /// Page-locked, and written once. In the context that is current.
    fn new(most: usize, flags: u32) -> Result<Self> {
        // SAFETY: a context is current.
        let allocate = |bytes| unsafe { result::malloc_host(bytes, flags) };
        let (address, bytes) = largest(most, allocate, "cuMemHostAlloc")?;
        // SAFETY: fresh memory of that many bytes.
        unsafe { address.cast::<u8>().write_bytes(0x5A, bytes) };
        Ok(Self { address: address as usize, bytes })
    }
}

impl DeviceMemory {
    /// In the context that is current.
    fn new(most: usize) -> Result<Self> {
        // SAFETY: a context is current.
        let allocate = |bytes| unsafe { result::malloc_sync(bytes) };
        let (address, bytes) = largest(most, allocate, "cuMemAlloc")?;
        Ok(Self { address, bytes })
    }
}
