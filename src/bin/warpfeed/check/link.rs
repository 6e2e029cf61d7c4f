//! What a copy to the device reaches by itself, by its size and by the kind of the memory that it comes from: what the
//! pipeline's figures are to be divided by.

#[cfg(feature = "cuda")]
mod gpu;

use std::time::{Duration, Instant};

use warpfeed::Result;

use crate::rig::Rig;

/// Kinds of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    #[cfg(feature = "cuda")]
    PageLocked,
    #[cfg(feature = "cuda")]
    WriteCombined,
    Pageable,
}

impl Memory {
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "cuda")]
            Self::PageLocked => "page-locked",
            #[cfg(feature = "cuda")]
            Self::WriteCombined => "write-combined",
            Self::Pageable => "pageable",
        }
    }
}

/// So much is copied for one time, by several copies of a smaller size, or one.
const TIMED: usize = 64 << 20;
/// And so many copies at most: what one costs besides its bytes is a part of it.
const MOST_COPIES: usize = 64;
/// Times of one size: as many of the most as fit into the limit, and at least the least.
const LEAST_TIMES: usize = 3;
const MOST_TIMES: usize = 9;
const LIMIT: Duration = Duration::from_millis(1500);

/// Host memory of each kind, and memory of the device.
pub(super) enum Link {
    /// The CPU device's link is a copy in memory.
    Cpu { from: Vec<u8>, to: Vec<u8> },
    #[cfg(feature = "cuda")]
    Gpu(gpu::Link),
}

impl Link {
    /// For copies of up to `most` bytes, or as many as each kind of memory can be had of.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn open(rig: &Rig, most: usize) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if !rig.is_cpu() {
            return gpu::Link::open(&rig.device(None), most).map(Self::Gpu);
        }
        debug_assert!(rig.is_cpu());
        Ok(Self::Cpu { from: vec![0x5A; most], to: vec![0; most] })
    }

    /// The kinds of memory that there are.
    pub(super) fn kinds(&self) -> &'static [Memory] {
        match self {
            Self::Cpu { .. } => &[Memory::Pageable],
            #[cfg(feature = "cuda")]
            Self::Gpu(_) => &[Memory::PageLocked, Memory::WriteCombined, Memory::Pageable],
        }
    }

    /// The rate of copies of `bytes` bytes one behind another, in 10⁹ bytes a second: the median of several times. `None`
    /// where there is less memory of that kind.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn gb_per_s(&mut self, memory: Memory, bytes: usize) -> Result<Option<f64>> {
        let copies = (TIMED / bytes.max(1)).clamp(1, MOST_COPIES);
        // The first wakes the link up.
        if self.time(memory, bytes, copies)?.is_none() {
            return Ok(None);
        }
        let (begun, mut times) = (Instant::now(), Vec::new());
        while times.len() < LEAST_TIMES || (times.len() < MOST_TIMES && begun.elapsed() < LIMIT) {
            times.extend(self.time(memory, bytes, copies)?);
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64);
        Ok(Some((bytes * copies) as f64 / median.max(1e-9) / 1e9))
    }

    fn time(&mut self, memory: Memory, bytes: usize, copies: usize) -> Result<Option<Duration>> {
        match self {
            Self::Cpu { from, to } => {
                let _ = memory; // there is one kind
                let (Some(from), Some(to)) = (from.get(..bytes), to.get_mut(..bytes)) else {
                    return Ok(None);
                };
                let begun = Instant::now();
                for _ in 0..copies {
                    to.copy_from_slice(std::hint::black_box(from));
                    std::hint::black_box(&mut *to);
                }
                Ok(Some(begun.elapsed()))
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(link) => link.time(memory, bytes, copies),
        }
    }
}
