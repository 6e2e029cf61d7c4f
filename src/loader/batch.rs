//! A delivered batch: a device slot, ordered on the consumer's stream.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;

use crate::checkpoint::State;
use crate::device::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::{DeviceSlot, Manifest};
use crate::spec::{BatchSpec, Column, DType, Element, FieldKind, MAX_DIMS};
use crate::sync::{Process, lock};

/// What batches share with the loader that they may outlive.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) process: Process,
    /// Batches that are alive.
    pub(crate) held: AtomicUsize,
    /// Slots that will never come back.
    pub(crate) lost: AtomicUsize,
    /// An error that a drop met, for the next call.
    pub(crate) error: Mutex<Option<Error>>,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            process: Process::current(),
            held: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            error: Mutex::new(None),
        }
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        lock(&self.error).take()
    }
}

/// A batch on the device. It is ordered on the stream that its epoch was opened with: work enqueued there sees
/// its bytes, and the host does not wait. Dropping it gives the slot back, behind the work that was enqueued by
/// then on every stream that it was used on.
///
/// A batch may move to another thread and outlive its loader. A batch that is leaked (`mem::forget`) takes its
/// slot along.
pub struct Batch {
    slot: ManuallyDrop<DeviceSlot>,
    home: Sender<DeviceSlot>,
    life: Arc<Life>,
    spec: Arc<BatchSpec>,
    state: State,
}

impl Batch {
    pub(crate) fn new(
        slot: DeviceSlot,
        home: Sender<DeviceSlot>,
        life: Arc<Life>,
        spec: Arc<BatchSpec>,
        state: State,
    ) -> Self {
        life.held.fetch_add(1, Ordering::AcqRel);
        Self { slot: ManuallyDrop::new(slot), home, life, spec, state }
    }

    fn manifest(&self) -> &Manifest {
        self.slot.manifest()
    }

    /// Rows of the batch, holes included.
    #[allow(clippy::len_without_is_empty)] // A batch has at least one row, unless compaction took them all.
    pub fn len(&self) -> usize {
        self.manifest().len
    }

    /// Rows that a full batch has.
    pub fn capacity(&self) -> usize {
        self.spec.capacity()
    }

    /// The layout of its bytes.
    pub fn spec(&self) -> &BatchSpec {
        &self.spec
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.manifest().ticket.epoch
    }

    /// The number of the batch within its epoch, from 0.
    pub fn number(&self) -> u64 {
        self.manifest().ticket.number
    }

    /// The number of its device slot: the same number means the same addresses.
    pub fn slot(&self) -> usize {
        self.slot.number()
    }

    /// Each row's index in the source.
    pub fn indices(&self) -> &[u64] {
        &self.manifest().rows.indices[..self.len()]
    }

    /// Which rows hold a sample; `false` marks a hole that a fault policy left.
    pub fn valid(&self) -> &[bool] {
        &self.manifest().rows.valid[..self.len()]
    }

    /// Whether a row repeats a sample of another rank, so that all ranks have as many.
    pub fn is_padding(&self, row: usize) -> bool {
        row < self.len() && self.manifest().padding == Some(row)
    }

    /// Where the run stands when this batch is done: save it after the training step.
    pub fn state(&self) -> State {
        self.state
    }

    /// The text of a host-only field, row by row.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a name that is no such field.
    pub fn text<'b>(&'b self, field: &str) -> Result<impl ExactSizeIterator<Item = &'b str> + use<'b>> {
        let column = self.spec.column(field)?;
        if *column.field.kind() != FieldKind::Host {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("field {} is no text", column.field)));
        }
        let (_, host) = self.spec.ragged_and_host();
        let (text, ordinal) = (&self.manifest().rows.text, column.ordinal);
        Ok((0..self.len()).map(move |row| text[row * host + ordinal].as_str()))
    }

    /// The field on the device, `[len, shape…]`, row-major: a handle, not memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown or ragged field, [`ErrorKind::DTypeMismatch`].
    pub fn view<T: Element>(&self, field: &str) -> Result<View<'_, T>> {
        self.view_of(field, self.len())
    }

    /// The field on the device at full capacity, `[capacity, shape…]`; rows from `len` on are zero. With the field
    /// `valid` this has the same shape in every batch, for captured graphs.
    ///
    /// # Errors
    /// As [`Batch::view`].
    pub fn padded_view<T: Element>(&self, field: &str) -> Result<View<'_, T>> {
        self.view_of(field, self.capacity())
    }

    fn view_of<T: Element>(&self, field: &str, rows: usize) -> Result<View<'_, T>> {
        let (offset, shape) = fixed::<T>(&self.spec, field)?;
        let mut dims = Dims::of(rows);
        shape.iter().for_each(|&d| dims.push(d));
        Ok(View { batch: self, offset, dims, _elements: PhantomData })
    }

    /// A ragged field on the device.
    ///
    /// # Errors
    /// As [`Batch::view`], for a field that is not ragged.
    pub fn ragged_view<T: Element>(&self, field: &str) -> Result<RaggedView<'_, T>> {
        let column = ragged::<T>(&self.spec, field)?;
        Ok(RaggedView { batch: self, ordinal: column.ordinal, table: column.offset, _elements: PhantomData })
    }

    /// The elements of a field, `[len, shape…]`, on the host: waits until the batch is there, and reads it.
    ///
    /// # Errors
    /// As [`Batch::view`]; [`ErrorKind::Corrupt`] where a byte of a bool field is neither 0 nor 1.
    pub fn host<T: Element>(&self, field: &str) -> Result<Cow<'_, [T]>> {
        self.host_batch()?.get(field).map(Cow::Borrowed)
    }

    /// One row of a ragged field on the host: waits until the batch is there.
    ///
    /// # Errors
    /// As [`Batch::host`], for a field that is not ragged, and for a row that there is not.
    pub fn host_ragged<T: Element>(&self, field: &str, row: usize) -> Result<Cow<'_, [T]>> {
        self.host_batch()?.ragged(field, row).map(Cow::Borrowed)
    }

    fn host_batch(&self) -> Result<HostBatch<'_>> {
        self.life.process.check()?;
        if let Some(copied) = self.slot.copied() {
            copied.synchronize()?;
        }
        // SAFETY: the copy into the buffer has passed; while `self` lives nobody writes it: the next copy comes
        // after `release`, and work that we enqueue for users only reads. The buffer is host memory (CPU device).
        Ok(unsafe { HostBatch::new(self.slot.buffer().as_ptr(), &self.spec, self.manifest()) })
    }

    /// Runs `work` on `stream`, behind the batch and what is enqueued there already, with the batch's memory for it
    /// to read. Marks the batch as used on `stream`. The host goes on at once; the batch may be dropped meanwhile. CPU
    /// device only: on another device kernels take the place of `work`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a stream of another device; what earlier work on `stream` met.
    pub fn enqueue(&self, stream: &Stream, work: impl FnOnce(HostBatch<'_>) + Send + 'static) -> Result<()> {
        self.record_stream(stream)?;
        let memory = Pinned {
            arena: self.slot.buffer().as_ptr(),
            len: self.len(),
            epoch: self.epoch(),
            number: self.number(),
            spec: self.spec.clone(),
        };
        stream.enqueue(move || {
            let memory = memory;
            // SAFETY: the stream waits for the copy before this (`record_stream`). The slot is written or freed behind its
            // gate only, which holds an event recorded on this stream after this work; or it is leaked.
            work(unsafe { memory.host() });
        })
    }

    /// Orders `stream` behind the batch, and keeps the slot until what is enqueued on `stream` before the batch is
    /// dropped has run. For streams other than the epoch's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a stream of another device; what earlier work on `stream` met.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        self.life.process.check()?;
        self.slot.use_on(stream)
    }

    /// Waits on the host until the batch is on the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn synchronize(&self) -> Result<()> {
        self.host_batch().map(drop)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("epoch", &self.epoch())
            .field("number", &self.number())
            .field("len", &self.len())
            .field("slot", &self.slot())
            .finish_non_exhaustive()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.life.process.is_forked() {
            // The streams' threads are the parent's, and so is the slot.
            return;
        }
        // SAFETY: taken once, here, where nothing uses `self` any more.
        let mut slot = unsafe { ManuallyDrop::take(&mut self.slot) };
        if let Err(error) = slot.release() {
            lock(&self.life.error).get_or_insert(error);
        }
        if slot.is_lost() {
            self.life.lost.fetch_add(1, Ordering::AcqRel);
            drop(slot);
        } else {
            // The channel has room for every slot. A closed one means that the loader is gone: the slot comes back in
            // the error, and its memory is freed behind its gate.
            drop(self.home.send(slot));
        }
        self.life.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What `enqueue` takes along of a batch that may be dropped before the work runs.
struct Pinned {
    arena: *const u8,
    len: usize,
    epoch: u64,
    number: u64,
    spec: Arc<BatchSpec>,
}

// SAFETY: the pointer is to a device slot's memory, which any thread may read while the slot's gate holds it.
unsafe impl Send for Pinned {}

impl Pinned {
    /// # Safety
    /// The batch's bytes are there, and are not written while what this returns lives.
    unsafe fn host(&self) -> HostBatch<'_> {
        HostBatch {
            arena: self.arena,
            len: self.len,
            epoch: self.epoch,
            number: self.number,
            spec: &self.spec,
            _bytes: PhantomData,
        }
    }
}

/// A batch's memory, for reading: inside work on a stream of the CPU device.
#[derive(Clone, Copy)]
pub struct HostBatch<'a> {
    arena: *const u8,
    len: usize,
    epoch: u64,
    number: u64,
    spec: &'a BatchSpec,
    _bytes: PhantomData<&'a [u8]>,
}

impl<'a> HostBatch<'a> {
    /// # Safety
    /// `arena` holds the bytes of a batch laid out by `spec`, which nobody writes for `'a`.
    unsafe fn new(arena: *const u8, spec: &'a BatchSpec, manifest: &Manifest) -> Self {
        let ticket = manifest.ticket;
        let (len, epoch, number) = (manifest.len, ticket.epoch, ticket.number);
        Self { arena, len, epoch, number, spec, _bytes: PhantomData }
    }

    /// Rows of the batch, holes included.
    #[allow(clippy::len_without_is_empty)] // As for `Batch`.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the batch within its epoch.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Which rows hold a sample.
    pub fn valid(&self) -> &'a [bool] {
        // SAFETY: the mask is the first `capacity` bytes, which only `Rows::set_valid` and zeroing write: 0 or 1.
        unsafe { std::slice::from_raw_parts(self.arena.cast(), self.len) }
    }

    /// The elements of a field, `[len, shape…]`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown or ragged field, [`ErrorKind::DTypeMismatch`];
    /// [`ErrorKind::Corrupt`] where a byte of a bool field is neither 0 nor 1.
    pub fn get<T: Element>(&self, field: &str) -> Result<&'a [T]> {
        self.rows(field, self.len)
    }

    /// The elements of a field, `[capacity, shape…]`; rows from `len` on are zero.
    ///
    /// # Errors
    /// As [`HostBatch::get`].
    pub fn padded<T: Element>(&self, field: &str) -> Result<&'a [T]> {
        self.rows(field, self.spec.capacity())
    }

    fn rows<T: Element>(&self, field: &str, rows: usize) -> Result<&'a [T]> {
        let (offset, shape) = fixed::<T>(self.spec, field)?;
        self.elements(field, offset, rows * shape.iter().product::<usize>())
    }

    /// One row of a ragged field.
    ///
    /// # Errors
    /// As [`HostBatch::get`], for a field that is not ragged, and for a row that there is not.
    pub fn ragged<T: Element>(&self, field: &str, row: usize) -> Result<&'a [T]> {
        let column = ragged::<T>(self.spec, field)?;
        if row >= self.len {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("row {row} of a batch of {}", self.len),
            ));
        }
        // SAFETY: the table has an entry of two u64 a row at `offset`, 8-byte aligned, written by `Row` or zeroed.
        let [offset, len] = unsafe { self.arena.add(column.offset).cast::<[u64; 2]>().add(row).read() };
        let heap = self.spec.heap();
        let (offset, len) = (offset as usize, len as usize);
        if offset.saturating_add(len.saturating_mul(size_of::<T>())) > heap.len() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("row {row} of {field:?} lies outside the heap"),
            ));
        }
        self.elements(field, heap.start + offset, len)
    }

    /// `n` elements at a byte offset inside the arena.
    fn elements<T: Element>(&self, field: &str, offset: usize, n: usize) -> Result<&'a [T]> {
        // SAFETY: the callers stay inside the field's part of the arena; what was not written since the slot was made is
        // initialised all the same (device memory is filled once, as host memory is).
        let bytes = unsafe { std::slice::from_raw_parts(self.arena.add(offset), n * size_of::<T>()) };
        if !T::accepts(bytes) {
            let text = format!("field {field:?} has bytes that are no {}", T::DTYPE);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        // SAFETY: fields, rows and heap rows are aligned for every Element, and the bytes are values of T.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), n) })
    }
}

/// Byte offset and row shape of a fixed field, or of the mask.
fn fixed<'s, T: Element>(spec: &'s BatchSpec, field: &str) -> Result<(usize, &'s [usize])> {
    if field == crate::spec::VALID {
        return match T::DTYPE {
            DType::Bool | DType::U8 => Ok((0, &[])),
            other => {
                let text = format!("field valid: bool[] was asked for as {other}");
                Err(Error::new(ErrorKind::DTypeMismatch, text))
            }
        };
    }
    let column = spec.column(field)?;
    column.expect::<T>()?;
    match column.field.kind() {
        FieldKind::Fixed { shape } => Ok((column.offset, shape)),
        _ => {
            let text = format!(
                "field {} has rows of different lengths: see `ragged_view`, `host_ragged`",
                column.field
            );
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}

fn ragged<'s, T: Element>(spec: &'s BatchSpec, field: &str) -> Result<&'s Column> {
    let column = spec.column(field)?;
    column.expect::<T>()?;
    match column.field.kind() {
        FieldKind::Ragged { .. } => Ok(column),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("field {} is not ragged: see `view`", column.field),
        )),
    }
}

/// The sizes of a view's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    sizes: [usize; MAX_DIMS + 1],
    n: usize,
}

impl Dims {
    fn of(rows: usize) -> Self {
        let mut sizes = [0; MAX_DIMS + 1];
        sizes[0] = rows;
        Self { sizes, n: 1 }
    }

    fn push(&mut self, size: usize) {
        self.sizes[self.n] = size;
        self.n += 1;
    }
}

impl Deref for Dims {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.n]
    }
}

/// A field of a batch on the device: dtype, shape, strides and address, not memory.
#[derive(Clone, Copy)]
pub struct View<'b, T> {
    batch: &'b Batch,
    offset: usize,
    dims: Dims,
    _elements: PhantomData<T>,
}

impl<T: Element> View<'_, T> {
    /// The dtype of its elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// `[rows, shape…]`.
    pub fn shape(&self) -> &[usize] {
        &self.dims
    }

    /// Steps between neighbours along each dimension, in elements: row-major, without gaps.
    pub fn strides(&self) -> Dims {
        let mut strides = self.dims;
        let mut step = 1;
        for k in (0..strides.n).rev() {
            step *= std::mem::replace(&mut strides.sizes[k], step);
        }
        strides
    }

    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Byte offset of the field in its slot.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The address of the first element on the device.
    ///
    /// # Safety
    /// Reads through it must be ordered behind the batch (on a stream that the batch is used on), must be enqueued
    /// before the batch is dropped, and nothing may be written through it.
    pub unsafe fn device_ptr(&self) -> *const T {
        self.batch.slot.buffer().as_ptr().wrapping_add(self.offset).cast::<T>().cast_const()
    }
}

impl<T: Element> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({}{:?})", T::DTYPE, self.shape())
    }
}

/// A ragged field of a batch on the device.
#[derive(Clone, Copy)]
pub struct RaggedView<'b, T> {
    batch: &'b Batch,
    ordinal: usize,
    table: usize,
    _elements: PhantomData<T>,
}

impl<T: Element> RaggedView<'_, T> {
    /// The dtype of its elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.batch.len()
    }

    /// Byte offset in the slot and length in elements of a row, as known on the host.
    pub fn row(&self, row: usize) -> Option<(usize, usize)> {
        let (ragged, _) = self.batch.spec.ragged_and_host();
        let span =
            self.batch.manifest().rows.spans[..self.rows() * ragged].get(row * ragged + self.ordinal)?;
        Some((self.batch.spec.heap().start + span.offset, span.len))
    }

    /// Byte offset in the slot of the table `[capacity, 2]` of u64: byte offset in the heap, length in elements.
    pub fn table_offset(&self) -> usize {
        self.table
    }

    /// Byte offset of the heap in the slot.
    pub fn heap_offset(&self) -> usize {
        self.batch.spec.heap().start
    }

    /// The address of the slot on the device, which the offsets count from.
    ///
    /// # Safety
    /// As [`View::device_ptr`].
    pub unsafe fn device_ptr(&self) -> *const u8 {
        self.batch.slot.buffer().as_ptr()
    }
}
