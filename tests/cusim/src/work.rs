//! What a stream does: one action for each operation that can be given to it.

use crate::clock::Clock;
use crate::config;
use crate::kernel::Launch;
use crate::lane::Poison;
use crate::{entry, memory, state};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub type HostFn = unsafe extern "C" fn(*mut c_void);

#[derive(Clone)]
pub enum Action {
    Nothing,
    Copy(Copy),
    Fill(Fill),
    Host(HostFn, usize),
    Kernel(Arc<Launch>),
    /// The contents of device memory go with a stream-ordered free; the pages stay until no stream can be
    /// using them, so that a race does not end the process.
    Release(memory::Mapping),
}

#[derive(Clone)]
pub struct Copy {
    pub dst: usize,
    pub src: usize,
    pub width: usize,
    pub rows: usize,
    pub dst_pitch: usize,
    pub src_pitch: usize,
    /// The source as it was at the call (rows without gaps), for pageable memory.
    pub staged: Option<Arc<[u8]>>,
    /// The device that is read; `None`: host memory.
    pub from: Option<usize>,
    /// The device that is written; `None`: host memory.
    pub to: Option<usize>,
}

#[derive(Clone)]
pub struct Fill {
    pub dst: usize,
    pub pitch: usize,
    /// Elements in a row.
    pub width: usize,
    pub rows: usize,
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub size: usize,
}

impl Action {
    /// Does it, on the thread of the stream. Nothing is done in a context that has failed, and its host
    /// functions are not called.
    pub fn perform(&self, clock: &Clock, poison: &Poison) {
        if poison.check().is_err() {
            return;
        }
        match self {
            Action::Nothing => {}
            Action::Release(mapping) => mapping.spoil(),
            Action::Copy(copy) => copy.perform(),
            Action::Fill(fill) => fill.perform(),
            Action::Host(function, data) => {
                state::lock().host_knows(clock);
                entry::in_host_function(|| {
                    // SAFETY: the caller of cuLaunchHostFunc keeps the function and its data until it has run.
                    unsafe { function(*data as *mut c_void) }
                });
            }
            Action::Kernel(launch) => launch.perform(poison),
        }
    }
}

impl Copy {
    fn perform(&self) {
        let end = self.reserve_link();
        let bytes = self.width * self.rows;
        // The bytes move at the end of the copy's time, so that a host that touches them too early is seen.
        let moving = Duration::from_secs_f64(bytes as f64 / 8e9);
        if let Some(end) = end {
            sleep_until(end.checked_sub(moving).unwrap_or(end));
        }
        for row in 0..self.rows {
            let src = match &self.staged {
                Some(staged) => staged.as_ptr() as usize + row * self.width,
                None => self.src + row * self.src_pitch,
            };
            let dst = self.dst + row * self.dst_pitch;
            // SAFETY: both ranges were inside live allocations at the call; an allocation is unmapped only
            // after the work that was given before. Pageable memory is the caller's to keep until then.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, self.width) };
        }
        if let Some(end) = end {
            sleep_until(end);
        }
    }

    /// The time at which a copy given now to the link ends: a link takes one copy at a time in each direction.
    fn reserve_link(&self) -> Option<Instant> {
        static LINKS: LazyLock<Mutex<HashMap<(usize, bool), Instant>>> = LazyLock::new(Mutex::default);
        let (gbps, fixed) = {
            let config = self.to.or(self.from).map_or_else(|| config::read().clone(), config::of);
            (config.gbps, Duration::from_micros(config.copy_us))
        };
        let mut ways = vec![];
        if self.from != self.to {
            ways.extend(self.to.map(|device| (device, true)));
            ways.extend(self.from.map(|device| (device, false)));
        }
        if ways.is_empty() || (gbps <= 0.0 && fixed.is_zero()) {
            return None;
        }
        let bytes = (self.width * self.rows) as f64;
        let time = fixed + Duration::from_secs_f64(if gbps > 0.0 { bytes / (gbps * 1e9) } else { 0.0 });
        let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ways.iter().filter_map(|way| links.get(way).copied()).max();
        let end = free.map_or_else(Instant::now, |free| free.max(Instant::now())) + time;
        for way in ways {
            links.insert(way, end);
        }
        Some(end)
    }
}

impl Fill {
    fn perform(&self) {
        for row in 0..self.rows {
            let start = (self.dst + row * self.pitch) as *mut u8;
            // SAFETY: as for copies: inside a live allocation that is unmapped only after this. The start and the
            // pitch are multiples of the element's size, which was checked at the call.
            unsafe {
                match self.size {
                    1 => start.write_bytes(self.value as u8, self.width),
                    2 => std::slice::from_raw_parts_mut(start.cast(), self.width).fill(self.value as u16),
                    _ => std::slice::from_raw_parts_mut(start.cast(), self.width).fill(self.value),
                }
            }
        }
    }
}

pub fn sleep_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}
