//! An event of the CUDA device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent_flags_enum as Flags, CUresult};

use super::driver::Library;
use super::{Shared, check, in_host_function};
use crate::device::counters::{add, sub};
use crate::device::reaper;
use crate::error::{Error, ErrorKind, Result};

/// A handle of an event.
#[derive(Clone)]
pub(crate) struct Event(Arc<Owned>);

struct Owned(Option<Raw>);

/// The driver's event; dropped, it is destroyed.
struct Raw {
    event: sys::CUevent,
    device: Arc<Shared>,
}

// SAFETY: the driver's events may be used from any thread; the handle is destroyed once, by the last owner.
unsafe impl Send for Raw {}
// SAFETY: as above; the driver synchronises its calls.
unsafe impl Sync for Raw {}

/// How long a wait polls without sleeping: a copy that is nearly over costs no sleep.
const SPIN: Duration = Duration::from_micros(10);
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

impl Event {
    pub(super) fn new(device: &Arc<Shared>, timed: bool) -> Result<Self> {
        let _scope = device.enter()?;
        let mut flags = Flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= Flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        let mut event = std::ptr::null_mut();
        // SAFETY: a valid place for the handle; the context is current.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        add(&device.tally.events, 1);
        add(&device.tally.live_events, 1);
        Ok(Self(Arc::new(Owned(Some(Raw { event, device: device.clone() })))))
    }

    fn raw(&self) -> &Raw {
        self.0.0.as_ref().unwrap_or_else(|| unreachable!("the event is taken in drop only"))
    }

    pub(super) fn handle(&self) -> sys::CUevent {
        self.raw().event
    }

    pub(super) fn device(&self) -> &Arc<Shared> {
        &self.raw().device
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let _scope = self.device().enter()?;
        add(&self.device().tally.queries, 1);
        self.poll()
    }

    /// In a scope.
    fn poll(&self) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { sys::cuEventQuery(self.handle()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> Result<bool> {
        let _scope = self.device().enter()?;
        add(&self.device().tally.host_waits, 1);
        let Some(timeout) = timeout else {
            // SAFETY: the event lives as long as `self`.
            return check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle()) })
                .map(|()| true);
        };
        let start = Instant::now();
        loop {
            if self.poll()? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(false);
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                // In proportion, so that a wait ends late by an eighth at most.
                let sleep = (waited / 8).clamp(SHORTEST_SLEEP, LONGEST_SLEEP);
                std::thread::sleep(sleep.min(timeout - waited));
            }
        }
    }

    pub(crate) fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        let _scope = self.device().enter()?;
        let mut ms = 0.0f32;
        // SAFETY: both events live across the call; the scope made the context current.
        match unsafe { Library::load()?.elapsed_time(&mut ms, earlier.handle(), self.handle()) }? {
            CUresult::CUDA_ERROR_NOT_READY | CUresult::CUDA_ERROR_INVALID_HANDLE => {
                let text = "no record of the event has passed yet, or one is under way";
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
            code => {
                check("cuEventElapsedTime", code)?;
                Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
            }
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(raw) = self.0.take()
            && !raw.device.process.is_forked()
            && in_host_function()
        {
            reaper::reap(Box::new(raw));
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A forked child owns nothing of it, and a driver that is shutting down has destroyed it already.
        if let Ok(_scope) = self.device.enter() {
            // SAFETY: the last owner; the driver itself keeps what is pending until it has passed.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
            sub(&self.device.tally.live_events, 1);
        }
    }
}

impl reaper::Reapable for Raw {
    fn passed(&self) -> Result<bool> {
        Ok(reaper::is_here())
    }

    fn bytes(&self) -> usize {
        0
    }
}
