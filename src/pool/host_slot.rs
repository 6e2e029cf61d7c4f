//! The host side of a batch.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::Sender;

use super::{DeviceSlot, EventPool, Fault, Manifest, Reservation, Ticket};
use crate::device::{Device, Event, HostBuffer, Stream, reaper};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{HeapLevel, Rows};
use crate::spec::{BatchSpec, FieldKind};
use crate::sync::{Countdown, lock};

/// The memory of a host slot. Who may touch it is decided by which token there is: one owner, or while it is
/// being filled the claims, each on rows of its own.
struct Memory {
    number: usize,
    buffer: HostBuffer,
    spec: Arc<BatchSpec>,
    manifest: UnsafeCell<Manifest>,
    heap: HeapLevel,
    left: Countdown,
    faults: Mutex<Vec<Fault>>,
    _budget: Reservation,
}

// SAFETY: the buffer and the manifest are reached through tokens only. FreeSlot, Filling and FilledSlot are
// unique owners; Claims coexist, and touch disjoint rows by `Rows::claim`; the countdown (release/acquire) orders
// their writes before the FilledSlot that follows them, channels order the rest.
unsafe impl Sync for Memory {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for Memory {}

impl Memory {
    fn arena(&self) -> NonNull<u8> {
        NonNull::new(self.buffer.as_ptr()).unwrap_or(NonNull::dangling())
    }
}

/// A host slot that nobody fills. It may still be the source of a copy, until `copied` has passed.
pub(crate) struct FreeSlot {
    memory: Option<Arc<Memory>>,
    copied: Option<Arc<Event>>,
}

impl FreeSlot {
    /// In `memory`, or else in memory of the device's.
    ///
    /// # Errors
    /// As [`Device::host_buffer`] and [`Device::host_buffer_in`].
    pub(crate) fn new(
        number: usize,
        device: &Device,
        spec: &Arc<BatchSpec>,
        memory: Option<memmap2::MmapMut>,
        budget: Reservation,
    ) -> Result<Self> {
        let buffer = match memory {
            Some(map) => device.host_buffer_in(map, spec.bytes())?,
            None => device.host_buffer(spec.bytes())?,
        };
        let memory = Memory {
            number,
            buffer,
            spec: spec.clone(),
            manifest: UnsafeCell::new(Manifest::new(spec)),
            heap: HeapLevel::default(),
            left: Countdown::new(),
            faults: Mutex::new(Vec::new()),
            _budget: budget,
        };
        Ok(Self { memory: Some(Arc::new(memory)), copied: None })
    }

    pub(crate) fn buffer(&self) -> Option<&HostBuffer> {
        self.memory.as_ref().map(|m| &m.buffer)
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.memory.as_ref().is_some_and(|m| m.buffer.is_locked())
    }

    /// Waits up to `timeout` for the copy out of it.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if let Some(copied) = &self.copied {
            if !copied.synchronize_for(timeout)? {
                return Ok(false);
            }
            self.copied = None;
        }
        Ok(true)
    }

    /// After an error of this kind nothing can prove that a copy out of it has passed: the memory is leaked.
    pub(crate) fn lose(mut self, kind: ErrorKind) {
        if let Some(memory) = self.memory.take() {
            reaper::reap(Box::new(Parked(memory, Err(kind))));
        }
    }

    /// Starts a batch in it.
    ///
    /// # Errors
    /// The slot itself, where the copy out of it has not been [waited](FreeSlot::wait) for.
    pub(crate) fn fill(mut self, ticket: Ticket, len: usize) -> Result<Filling, Self> {
        match (self.memory.take(), &self.copied) {
            (Some(memory), None) => Ok(Filling::begin(memory, ticket, len)),
            (memory, _) => {
                self.memory = memory;
                Err(self)
            }
        }
    }
}

/// Memory without a token. No event but the kind of an error: nothing can prove that the copy out of it has passed.
struct Parked(Arc<Memory>, Result<Arc<Event>, ErrorKind>);

impl reaper::Reapable for Parked {
    fn passed(&self) -> Result<bool> {
        match &self.1 {
            // In work on a stream nothing can be asked: the reaper's thread does.
            Ok(_) if !self.0.buffer.takes_calls_here() => Ok(false),
            Ok(copied) => Ok(copied.query()? && self.0.buffer.may_free_here()),
            Err(kind) => Err(Error::new(*kind, "the copy out of a host slot could not be enqueued whole")),
        }
    }

    fn bytes(&self) -> usize {
        self.0.buffer.len()
    }
}

impl Drop for FreeSlot {
    fn drop(&mut self) {
        if let (Some(memory), Some(copied)) = (self.memory.take(), self.copied.take()) {
            reaper::reap(Box::new(Parked(memory, Ok(copied))));
        }
    }
}

/// A host slot with a batch begun in it, before its rows are given out.
pub(crate) struct Filling(Arc<Memory>);

impl Filling {
    fn begin(memory: Arc<Memory>, ticket: Ticket, len: usize) -> Self {
        let mut filling = Self(memory);
        filling.0.heap.reset();
        let capacity = filling.0.spec.capacity();
        let manifest = filling.manifest_mut();
        manifest.ticket = ticket;
        manifest.len = len;
        manifest.padding = None;
        manifest.error = None;
        manifest.faults.clear();
        filling.zero_rows(len..capacity);
        filling
    }

    pub(crate) fn manifest_mut(&mut self) -> &mut Manifest {
        // SAFETY: a Filling is the only token of its memory: no claim has been given out yet.
        unsafe { &mut *self.0.manifest.get() }
    }

    pub(crate) fn number(&self) -> usize {
        self.0.number
    }

    /// Zeroes rows, the mask and the tables included.
    fn zero_rows(&mut self, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let (base, n) = (self.0.buffer.as_ptr(), rows.len());
        // SAFETY: the mask and all columns have `capacity` rows inside the arena, which is ours alone.
        unsafe {
            base.add(rows.start).write_bytes(0, n);
            for column in self.0.spec.columns().iter().filter(|c| *c.field.kind() != FieldKind::Host) {
                base.add(column.offset + rows.start * column.row_bytes).write_bytes(0, n * column.row_bytes);
            }
        }
        let manifest = self.manifest_mut();
        let table = &mut manifest.rows;
        let capacity = table.valid.len();
        table.valid[rows.clone()].fill(false);
        let (ragged, host) = (table.spans.len() / capacity, table.text.len() / capacity);
        table.spans[rows.start * ragged..rows.end * ragged].fill(Default::default());
        table.text[rows.start * host..rows.end * host].iter_mut().for_each(String::clear);
    }

    /// Zeroes the rows behind `manifest.len`, where that was lowered.
    pub(crate) fn zero_tail(&mut self) {
        let (len, capacity) = (self.manifest_mut().len, self.0.spec.capacity());
        self.zero_rows(len..capacity);
    }

    /// The slot again, without a batch.
    pub(crate) fn cancel(self) -> FreeSlot {
        FreeSlot { memory: Some(self.0), copied: None }
    }

    /// Gives out its rows, `run` at a time. When the last claim is dropped, the slot goes to `outlet`.
    pub(crate) fn split(mut self, run: usize, outlet: Sender<Item>) -> Claims {
        let len = self.manifest_mut().len;
        self.0.left.start(len);
        Claims { rest: Claim { memory: self.0, rows: 0..len, outlet }, run: run.max(1) }
    }
}

/// The claims on a slot's rows that are not taken yet. Dropped, the rest of the rows counts as done.
pub(crate) struct Claims {
    rest: Claim,
    run: usize,
}

impl Iterator for Claims {
    type Item = Claim;

    fn next(&mut self) -> Option<Claim> {
        let Range { start, end } = self.rest.rows;
        if start == end {
            return None;
        }
        let at = end.min(start + self.run);
        self.rest.rows.start = at;
        Some(self.rest.part(start..at))
    }
}

/// The right to fill some rows of a slot. However it ends, its drop counts the rows as done.
pub(crate) struct Claim {
    memory: Arc<Memory>,
    rows: Range<usize>,
    outlet: Sender<Item>,
}

impl Claim {
    pub(crate) fn rows(&mut self) -> Rows<'_> {
        let m = &*self.memory;
        // SAFETY: 1. arena and table were made for this spec and live as long as `memory`. 2. Claims of one slot
        // are disjoint (`split`, `split_off`), no other token exists until all are dropped, and the heap is this
        // slot's own, reset before the claims were made.
        unsafe {
            let table = &raw mut (*m.manifest.get()).rows;
            Rows::claim(&m.spec, m.arena(), table, &m.heap, self.rows.clone())
        }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        // SAFETY: the ticket is written before the claims exist, and not while they do.
        unsafe { (*self.memory.manifest.get()).ticket }
    }

    /// The number of the host slot.
    pub(crate) fn slot(&self) -> usize {
        self.memory.number
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Takes the claim apart: keeps the rows before `k`, and returns row `k` and those after it.
    pub(crate) fn split_off(&mut self, k: usize) -> (Self, Self) {
        let (at, end) = (self.rows.start + k, self.rows.end);
        self.rows.end = at;
        (self.part(at..at + 1), self.part(at + 1..end))
    }

    /// A claim on rows that this one has given up.
    fn part(&self, rows: Range<usize>) -> Self {
        Self { memory: self.memory.clone(), rows, outlet: self.outlet.clone() }
    }

    pub(crate) fn fault(&self, fault: Fault) {
        lock(&self.memory.faults).push(fault);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        crate::copy::fence();
        if self.memory.left.arrive(self.rows.len()) {
            let slot = FilledSlot::new(self.memory.clone());
            // A closed outlet means that the loader is gone; the slot comes back in the error and is freed.
            drop(self.outlet.send(Item::Batch(slot)));
        }
    }
}

/// What arrives at the copier, in any order.
pub(crate) enum Item {
    /// A filled batch.
    Batch(FilledSlot),
    /// The end of the ticket's epoch.
    End(Ticket),
    /// An error in the place of a batch.
    Failed(Ticket, Error),
    /// Nothing: somebody wants the copier to look around.
    Wake,
}

/// A host slot whose batch is complete.
pub(crate) struct FilledSlot(Arc<Memory>);

impl FilledSlot {
    /// Called by the last claim, as it is dropped.
    fn new(memory: Arc<Memory>) -> Self {
        let mut slot = Self(memory);
        let mut faults = std::mem::take(&mut *lock(&slot.0.faults));
        faults.sort_by_key(|f| (f.row, f.attempt));
        let (heap, used) = (slot.0.spec.heap(), slot.0.heap.used());
        let manifest = slot.manifest_mut();
        manifest.faults.append(&mut faults);
        if used > heap.len() {
            let text = format!(
                "the ragged rows of batch {} need {used} bytes, max_batch_bytes allows {}: raise it or lower batch_size",
                manifest.ticket.number,
                heap.len()
            );
            manifest.error = Some(Error::new(ErrorKind::LimitExceeded, text));
        }
        manifest.bytes = heap.start + used.min(heap.len());
        slot
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        // SAFETY: a FilledSlot is the only token of its memory: all claims have been dropped.
        unsafe { &*self.0.manifest.get() }
    }

    pub(crate) fn manifest_mut(&mut self) -> &mut Manifest {
        // SAFETY: as in `manifest`; `&mut self` keeps other borrows away.
        unsafe { &mut *self.0.manifest.get() }
    }

    /// The slot without its batch.
    pub(crate) fn discard(self) -> FreeSlot {
        FreeSlot { memory: Some(self.0), copied: None }
    }

    /// Fills the holes with rows from the end, in position order; what is left has no hole.
    pub(crate) fn compact(&mut self) {
        let spec = self.0.spec.clone();
        let base = self.0.buffer.as_ptr();
        let (ragged, host) = spec.ragged_and_host();
        let manifest = self.manifest_mut();
        let table = &mut manifest.rows;
        let (mut hole, mut end) = (0, manifest.len);
        loop {
            while end > 0 && !table.valid[end - 1] {
                end -= 1;
            }
            while hole < end && table.valid[hole] {
                hole += 1;
            }
            if hole >= end {
                break;
            }
            let from = end - 1;
            for column in spec.columns().iter().filter(|c| *c.field.kind() != FieldKind::Host) {
                // SAFETY: two different rows of a column inside the arena, which is ours alone.
                unsafe {
                    let row = |k: usize| base.add(column.offset + k * column.row_bytes);
                    std::ptr::copy_nonoverlapping(row(from), row(hole), column.row_bytes);
                    row(from).write_bytes(0, column.row_bytes);
                }
            }
            table.indices[hole] = table.indices[from];
            if manifest.padding == Some(from) {
                manifest.padding = Some(hole);
            }
            table.valid.swap(hole, from);
            (0..ragged).for_each(|k| table.spans.swap(hole * ragged + k, from * ragged + k));
            (0..host).for_each(|k| table.text.swap(hole * host + k, from * host + k));
            // SAFETY: the mask is the first `capacity` bytes of the arena.
            unsafe {
                base.add(hole).write(1);
                base.add(from).write(0);
            }
            end -= 1;
        }
        manifest.len = end;
    }
}

impl FilledSlot {
    /// Whether its copy may keep the host waiting for what lies before it on the stream.
    pub(crate) fn copy_blocks(&self) -> bool {
        self.0.buffer.copies_block()
    }
}

/// Enqueues the copy of a filled slot on `stream`: behind the device slot's gate, with `copied` recorded behind
/// it. The manifest goes along. The host never waits.
///
/// # Errors
/// That of the device. Then nothing can tell how far the copy got, and the memory of both is leaked.
pub(crate) fn upload(
    mut from: FilledSlot,
    mut to: DeviceSlot,
    stream: &Stream,
    events: &mut EventPool,
) -> Result<(FreeSlot, DeviceSlot)> {
    let enqueue = |to: &mut DeviceSlot, events: &mut EventPool| -> Result<Arc<Event>> {
        to.wait_for_gate(stream)?;
        let copied = events.take()?;
        // SAFETY: `from` becomes a FreeSlot, which is not filled before `copied` has passed, and `to` a loaded slot,
        // which is read behind `copied` and written behind its gate only; either is leaked if an event fails.
        unsafe { stream.copy_to_device(to.buffer(), &from.0.buffer, from.manifest().bytes)? };
        stream.mark(&copied)?;
        Ok(copied)
    };
    match enqueue(&mut to, events) {
        Ok(copied) => {
            std::mem::swap(from.manifest_mut(), to.manifest_mut());
            to.set_copied(copied.clone());
            Ok((FreeSlot { memory: Some(from.0), copied: Some(copied) }, to))
        }
        Err(error) => {
            to.lose(error.kind());
            reaper::reap(Box::new(Parked(from.0, Err(error.kind()))));
            Err(error)
        }
    }
}
