//! The CPU device's memory, and the policy by which it is page-locked.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use super::Shared;
use crate::device::counters::{add, sub};
use crate::device::pages::{Pages, memlock_limit};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// What fresh device memory holds: garbage, so that nobody comes to rely on zeros.
const GARBAGE: u8 = 0xCD;

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
        Self::of(device, Pages::new(bytes)?, bytes)
    }

    /// Over memory of the caller's, of at least `bytes` bytes, which is zeroed.
    pub(super) fn over(device: &Arc<Shared>, map: memmap2::MmapMut, bytes: usize) -> Result<Self> {
        let pages = Pages::from_map(map, bytes)?;
        // SAFETY: at least `bytes` bytes, checked above, which the map's owner gave away with it.
        unsafe { pages.as_ptr().write_bytes(0, bytes) };
        Self::of(device, pages, bytes)
    }

    fn of(device: &Arc<Shared>, pages: Pages, bytes: usize) -> Result<Self> {
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
