//! Host memory in whole pages, and the policy by which it is page-locked.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use super::Shared;
use crate::device::counters::{add, sub};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// What fresh device memory holds: garbage, so that nobody comes to rely on zeros.
const GARBAGE: u8 = 0xCD;

/// From this size on huge pages are asked for.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_FROM: usize = 2 << 20;

/// Page-aligned anonymous memory: zero, at a fixed address until dropped. Access is through the raw pointer
/// only, under the contracts of the buffers that own it.
#[cfg(not(miri))]
#[derive(Debug)]
pub(crate) struct Pages(memmap2::MmapRaw);

#[cfg(not(miri))]
impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let map = memmap2::MmapMut::map_anon(bytes.max(1)).map_err(|e| out_of_memory(bytes).caused_by(e))?;
        let map = memmap2::MmapRaw::from(map);
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            // Advice: a kernel without huge pages refuses it and the memory works all the same.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self(map))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    #[cfg(unix)]
    fn lock(&self) -> std::io::Result<()> {
        self.0.lock()
    }

    #[cfg(not(unix))]
    fn lock(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// As above, for an interpreter that knows no mappings.
#[cfg(miri)]
#[derive(Debug)]
pub(crate) struct Pages(std::ptr::NonNull<u8>, std::alloc::Layout);

// SAFETY: an allocation that only its owner frees; access to its bytes is under the contracts of the buffers.
#[cfg(miri)]
unsafe impl Send for Pages {}
// SAFETY: as above; no method touches the bytes.
#[cfg(miri)]
unsafe impl Sync for Pages {}

#[cfg(miri)]
impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let layout =
            std::alloc::Layout::from_size_align(bytes.max(1), 4096).map_err(|_| out_of_memory(bytes))?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self(std::ptr::NonNull::new(start).ok_or_else(|| out_of_memory(bytes))?, layout))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    fn lock(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[cfg(miri)]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed here only.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
    }
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Io, format!("the system has no {bytes} bytes of memory"))
}

/// Whether this device still tries to lock pages. It stops at the first refusal.
#[derive(Debug, Default)]
pub(super) struct Locking(Mutex<bool>);

impl Locking {
    /// Locks `pages`, or says once for the device why that can't be had. Attempts are serialised, so that a
    /// refusal is met by one call only.
    fn try_lock(&self, device: &Shared, pages: &Pages, bytes: usize) -> bool {
        if !device.options.lock {
            return false;
        }
        let mut refused = lock(&self.0);
        if *refused {
            return false;
        }
        let tally = &device.tally;
        let total = tally.pinned_bytes.load(Relaxed).saturating_add(bytes as u64);
        let outcome = match device.options.pin_limit {
            Some(limit) if total > limit as u64 => {
                Err(std::io::Error::other(format!("the limit set for this device is {limit} bytes")))
            }
            _ => pages.lock(),
        };
        match outcome {
            Ok(()) => {
                add(&tally.pins, 1);
                add(&tally.pinned_bytes, bytes);
                tally.pinned_peak.fetch_max(tally.pinned_bytes.load(Relaxed), Relaxed);
                true
            }
            Err(error) => {
                *refused = true;
                drop(refused);
                add(&tally.pin_failures, 1);
                tracing::warn!(
                    "page-locking {bytes} bytes ({total} in all) was refused: {error}; RLIMIT_MEMLOCK is {}. \
                     Host buffers are pageable from here on, copies are slower. To lock them, raise the limit: \
                     `ulimit -l unlimited`, or LimitMEMLOCK= of the service, or --ulimit memlock=-1 of the \
                     container",
                    memlock_limit()
                );
                false
            }
        }
    }
}

/// RLIMIT_MEMLOCK of this process, in words.
pub(super) fn memlock_limit() -> String {
    #[cfg(all(unix, not(miri)))]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place for the answer and lives across the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0 {
            return if limit.rlim_cur == libc::RLIM_INFINITY {
                "unlimited".to_string()
            } else {
                format!("{} bytes", limit.rlim_cur)
            };
        }
    }
    "unknown".to_string()
}

/// The CPU device's host buffer: page-locked where that can be had.
#[derive(Debug)]
pub(crate) struct HostMemory {
    pages: Pages,
    bytes: usize,
    locked: bool,
    device: Arc<Shared>,
}

impl HostMemory {
    pub(super) fn new(device: &Arc<Shared>, bytes: usize) -> Result<Self> {
        let pages = Pages::new(bytes)?;
        let locked = device.locking.try_lock(device, &pages, bytes);
        if !locked {
            // A lock faults every page in; without it the first batch would pay.
            // SAFETY: fresh memory of at least `bytes` bytes that nobody else knows of.
            unsafe { pages.as_ptr().write_bytes(0, bytes) };
        }
        add(&device.tally.host_bytes, bytes);
        Ok(Self { pages, bytes, locked, device: device.clone() })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let tally = &self.device.tally;
        sub(&tally.host_bytes, self.bytes);
        if self.locked {
            // Unmapping unlocks. A forked child has no lock on its copy; its counts are a copy too.
            add(&tally.unpins, 1);
            sub(&tally.pinned_bytes, self.bytes);
        }
    }
}

/// The CPU device's device buffer.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pages: Pages,
    bytes: usize,
    device: Arc<Shared>,
}

impl DeviceMemory {
    pub(super) fn new(device: &Arc<Shared>, bytes: usize) -> Result<Self> {
        let limit = device.options.memory.map_or(u64::MAX, |limit| limit as u64);
        let used = &device.tally.device_bytes;
        used.fetch_update(Relaxed, Relaxed, |now| now.checked_add(bytes as u64).filter(|&sum| sum <= limit))
            .map_err(|now| {
                let text = format!("no {bytes} bytes of device memory: {now} of {limit} bytes are in use");
                Error::new(ErrorKind::Device, text)
            })?;
        let pages = Pages::new(bytes).inspect_err(|_| sub(used, bytes))?;
        // SAFETY: fresh memory of at least `bytes` bytes that nobody else knows of.
        unsafe { pages.as_ptr().write_bytes(GARBAGE, bytes) };
        Ok(Self { pages, bytes, device: device.clone() })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        sub(&self.device.tally.device_bytes, self.bytes);
    }
}
