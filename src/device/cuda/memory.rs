//! Page-locked host memory and device memory of the CUDA device.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cudarc::driver::sys;

use super::{Shared, check, numa};
use crate::device::counters::{add, sub};
use crate::device::pages::{Pages, memlock_limit};
use crate::device::reaper;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A host buffer: page-locked where that can be had.
#[derive(Debug)]
pub(crate) struct HostMemory(Option<Box<Host>>);

/// Dropped, it gives the memory back to the driver, which may wait for the device.
#[derive(Debug)]
struct Host {
    start: *mut u8,
    bytes: usize,
    kind: Kind,
    device: Arc<Shared>,
}

// SAFETY: memory that only its owner frees; access to its bytes is under the contracts of the buffers.
unsafe impl Send for Host {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for Host {}

#[derive(Debug)]
enum Kind {
    /// The driver's own, portable: page-locked to every context.
    Allocated,
    /// The owner's, which the driver was told of.
    Registered(#[expect(dead_code, reason = "owned until it is unregistered")] Pages),
    Pageable(#[expect(dead_code, reason = "owned")] Pages),
}

impl HostMemory {
    pub(super) fn new(device: &Arc<Shared>, bytes: usize) -> Result<Self> {
        drop(device.enter()?);
        if let Some(start) = lock_pages(device, bytes, || allocate(device, bytes))? {
            return Ok(Self::of(device, start.0, bytes, Kind::Allocated));
        }
        let pages = Pages::new(bytes)?;
        // SAFETY: fresh memory of at least `bytes` bytes that nobody else knows of. Touched, so that the first batch
        // does not pay for it.
        unsafe { pages.as_ptr().write_bytes(0, bytes) };
        Ok(Self::of(device, pages.as_ptr(), bytes, Kind::Pageable(pages)))
    }

    /// Over memory of the caller's, of at least `bytes` bytes, zeroed and page-locked where that can be had.
    pub(super) fn registered(device: &Arc<Shared>, map: memmap2::MmapMut, bytes: usize) -> Result<Self> {
        let pages = Pages::from_map(map, bytes)?;
        let start = pages.as_ptr();
        // SAFETY: at least `bytes` bytes, checked above, which the map's owner gave away with it.
        unsafe { start.write_bytes(0, bytes) };
        let locked = lock_pages(device, bytes, || {
            let _scope = device.enter()?;
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
            // SAFETY: the memory stays mapped until it is unregistered, in `Host::drop`.
            let code = unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes.max(1), flags) };
            check("cuMemHostRegister", code)
        })?;
        let kind = if locked.is_some() { Kind::Registered(pages) } else { Kind::Pageable(pages) };
        Ok(Self::of(device, start, bytes, kind))
    }

    fn of(device: &Arc<Shared>, start: *mut u8, bytes: usize, kind: Kind) -> Self {
        add(&device.tally.host_bytes, bytes);
        Self(Some(Box::new(Host { start, bytes, kind, device: device.clone() })))
    }

    fn host(&self) -> &Host {
        self.0.as_ref().unwrap_or_else(|| unreachable!("the memory is taken in drop only"))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.host().start
    }

    pub(crate) fn len(&self) -> usize {
        self.host().bytes
    }

    pub(crate) fn is_locked(&self) -> bool {
        !matches!(self.host().kind, Kind::Pageable(_))
    }
}

struct Start(*mut u8);

// SAFETY: the address of memory that nobody else knows of yet, on its way to its owner's thread.
unsafe impl Send for Start {}

/// Allocates page-locked memory near the GPU, and zeroes it.
fn allocate(device: &Arc<Shared>, bytes: usize) -> Result<Start> {
    let mut flags = sys::CU_MEMHOSTALLOC_PORTABLE;
    if device.options.write_combined {
        flags |= sys::CU_MEMHOSTALLOC_WRITECOMBINED;
    }
    numa::on_node(device.node, || {
        let _scope = device.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: a valid place for the address; the context is current.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(1), flags) })?;
        // SAFETY: fresh memory of `bytes` bytes that nobody else knows of.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Start(start.cast()))
    })
}

/// Page-locks by `attempt`, or says once for the device why that can't be had. Attempts are serialised, so that a
/// refusal is met by one call only.
///
/// # Errors
/// Where it is the device that has failed.
fn lock_pages<T>(device: &Shared, bytes: usize, attempt: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    let mut refused = lock(&device.refused);
    if *refused || !device.options.lock {
        return Ok(None);
    }
    let tally = &device.tally;
    match attempt() {
        Ok(memory) => {
            add(&tally.pins, 1);
            add(&tally.pinned_bytes, bytes);
            tally.pinned_peak.fetch_max(tally.pinned_bytes.load(Relaxed), Relaxed);
            Ok(Some(memory))
        }
        Err(error) if device.memory_info().is_err() => Err(error),
        Err(error) => {
            *refused = true;
            drop(refused);
            add(&tally.pin_failures, 1);
            tracing::warn!(
                "page-locking {bytes} bytes ({} are locked by now) was refused: {}; RLIMIT_MEMLOCK is {}. Host \
                 buffers are pageable from here on: copies are slower, and the copier waits for the GPU. Lower \
                 host_slots or batch_size, or give the machine or container more memory",
                tally.pinned_bytes.load(Relaxed),
                error.message(),
                memlock_limit()
            );
            Ok(None)
        }
    }
}

impl Host {
    fn give_back(&self) -> Result<()> {
        if matches!(self.kind, Kind::Pageable(_)) {
            return Ok(());
        }
        let _scope = self.device.enter()?;
        let start = self.start.cast();
        match &self.kind {
            // SAFETY: the driver's own memory, freed here only; the owners have seen that nothing refers to it.
            Kind::Allocated => check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(start) }),
            // SAFETY: the driver was told of it in `registered`; the owners have seen that nothing refers to it.
            Kind::Registered(_) => check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(start) }),
            Kind::Pageable(_) => Ok(()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            // What a device that has failed may still touch stays mapped.
            let kind = std::mem::replace(&mut self.kind, Kind::Allocated);
            return reaper::leak(kind, self.bytes, &error);
        }
        let tally = &self.device.tally;
        sub(&tally.host_bytes, self.bytes);
        if !matches!(self.kind, Kind::Pageable(_)) {
            add(&tally.unpins, 1);
            sub(&tally.pinned_bytes, self.bytes);
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(host) = self.0.take() {
            leave(host);
        }
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory(Option<Box<OnDevice>>);

/// Dropped, it frees the memory, for which the driver waits for the device.
#[derive(Debug)]
struct OnDevice {
    address: sys::CUdeviceptr,
    bytes: usize,
    device: Arc<Shared>,
}

impl DeviceMemory {
    pub(super) fn new(device: &Arc<Shared>, bytes: usize) -> Result<Self> {
        let _scope = device.enter()?;
        let mut address = 0;
        // SAFETY: a valid place for the address; the context is current.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) }).map_err(|e| {
            // A device that has failed has no answer, and the failure is the error.
            let Ok((free, total)) = device.memory_info() else { return e };
            let text = format!(
                "no {bytes} bytes of device memory on {}: {free} of {total} bytes are free ({})",
                device.name,
                e.message()
            );
            Error::new(ErrorKind::Device, text)
        })?;
        add(&device.tally.device_bytes, bytes);
        Ok(Self(Some(Box::new(OnDevice { address, bytes, device: device.clone() }))))
    }

    fn inner(&self) -> &OnDevice {
        self.0.as_ref().unwrap_or_else(|| unreachable!("the memory is taken in drop only"))
    }

    /// An address of the device: the host can't follow it.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.inner().address as *mut u8
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().bytes
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let outcome = self.device.enter().and_then(|_scope| {
            // SAFETY: allocated in `new`, freed here only; the owners have seen that nothing refers to it.
            check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) })
        });
        match outcome {
            Ok(()) => sub(&self.device.tally.device_bytes, self.bytes),
            Err(error) => reaper::leak(self.address, self.bytes, &error),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            leave(memory);
        }
    }
}

/// Frees on the reaper's thread, which may block.
fn leave<T: reaper::Reapable + 'static>(memory: Box<T>) {
    if reaper::is_here() { drop(memory) } else { reaper::reap(memory) }
}

impl reaper::Reapable for Host {
    fn passed(&self) -> Result<bool> {
        Ok(reaper::is_here() || self.device.process.is_forked())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl reaper::Reapable for OnDevice {
    fn passed(&self) -> Result<bool> {
        Ok(reaper::is_here() || self.device.process.is_forked())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
