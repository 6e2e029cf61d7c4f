//! Batch slots: memory made once, handed on as owned tokens. Each state is a value, so what must not happen
//! in a state can't be written down:
//!
//! ```text
//! FreeSlot ── fill ──► Filling ── split ──► Claim … Claim ── last one dropped ──► FilledSlot
//!    ▲                                                                               │ upload
//!    └──────────────── host side, gated by `copied` ◄────────────────────────────────┤
//! DeviceSlot (free, with its gate) ────────── upload ──► DeviceSlot (loaded) ──► Batch ──► DeviceSlot (free)
//! ```

mod budget;
mod device_slot;
mod host_slot;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::row::RowTable;
use crate::spec::BatchSpec;

pub(crate) use budget::{Budget, Reservation};
pub(crate) use device_slot::{DeviceSlot, EventPool};
pub(crate) use host_slot::{Claim, Claims, FilledSlot, FreeSlot, Item, upload};

/// Which batch something is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Raised at each restart of the feeder; what has an older one is stale.
    pub(crate) generation: u64,
    /// Order of dispatch within the epoch (or what is left of it), without gaps; its end has the last.
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    /// Number of the batch within its epoch.
    pub(crate) number: u64,
    /// This rank's number of its first sample, counted from where the epoch (or the rest of it) began.
    pub(crate) first: u64,
    /// Global position of its first sample; the next row's is `world` further on.
    pub(crate) position: u64,
    /// Whether the epoch has no batch after it (as far as the feeder knew).
    pub(crate) last: bool,
}

/// An attempt at a sample that failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) row: usize,
    /// Which attempt at this row, from 0.
    pub(crate) attempt: u32,
    pub(crate) outcome: Outcome,
    pub(crate) error: Error,
}

/// What became of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Failed,
    Retried,
    Replaced,
}

/// What travels with a batch's bytes: from the host slot that it was filled in to the device slot that it is
/// delivered in. Both kinds of slot have one, and an upload swaps them, so that none is ever allocated.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) ticket: Ticket,
    /// Rows of the batch, holes included.
    pub(crate) len: usize,
    /// The row that repeats a sample of another rank: only a rank's last sample can.
    pub(crate) padding: Option<usize>,
    pub(crate) rows: RowTable,
    /// In order of row and attempt.
    pub(crate) faults: Vec<Fault>,
    /// An error of the batch as a whole.
    pub(crate) error: Option<Error>,
    /// Bytes uploaded: the fixed part and the used part of the heap.
    pub(crate) bytes: usize,
}

impl Manifest {
    pub(crate) fn new(spec: &BatchSpec) -> Self {
        Self { rows: RowTable::new(spec), ..Self::default() }
    }
}
