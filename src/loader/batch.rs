//! A delivered batch: a device slot, ordered on the consumer's stream.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;

use super::control::Waker;
use super::host_batch::{HostBatch, Outcome, Pinned, fixed, ragged};
use super::read_back::{ReadBack, Staged};
use super::view::{Dims, RaggedView, View};
use crate::checkpoint::State;
use crate::device::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::{DeviceSlot, Manifest};
use crate::spec::{BatchSpec, Element, FieldKind};
use crate::sync::{Hunger, Process, lock};

/// What batches share with the loader that they may outlive.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) process: Process,
    /// Batches that are alive.
    pub(crate) held: AtomicUsize,
    /// Device slots that will never come back.
    pub(crate) lost: AtomicUsize,
    /// Host slots that will never come back.
    pub(crate) lost_on_host: AtomicUsize,
    /// Slots of batches that were dropped where they could not be released, and where they belong: while a stream was
    /// being captured, or in work on a stream of CUDA's.
    parked: Mutex<Vec<(DeviceSlot, Sender<DeviceSlot>)>>,
    pub(crate) read_back: Arc<ReadBack>,
    /// An error that a drop or `worker_init` met, for the next call.
    pub(crate) error: Arc<Mutex<Option<Error>>>,
    /// Whether a filled batch waits for a device slot, under the control's version.
    pub(crate) hunger: Hunger,
    copier: Arc<Waker>,
}

impl Life {
    pub(crate) fn new(copier: Arc<Waker>, error: Arc<Mutex<Option<Error>>>, read_back: ReadBack) -> Self {
        Self {
            process: Process::current(),
            held: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            lost_on_host: AtomicUsize::new(0),
            parked: Mutex::default(),
            read_back: Arc::new(read_back),
            error,
            hunger: Hunger::new(),
            copier,
        }
    }

    /// Gives a slot back to the copier.
    pub(crate) fn give_back(&self, slot: DeviceSlot, home: &Sender<DeviceSlot>) {
        // The channel has room for every slot. A closed one means that the loader is gone: the slot comes back in the
        // error, and its memory is freed behind its gate.
        drop(home.send(slot));
        self.feed_copier(home);
    }

    /// A batch is dropped: its slot goes back, or is parked or lost.
    fn retire(&self, slot: DeviceSlot, home: &Sender<DeviceSlot>) {
        if let Some(error) = self.release(slot, home) {
            lock(&self.error).get_or_insert(error);
        }
    }

    /// Gives a slot back, or parks it. What that met.
    fn release(&self, mut slot: DeviceSlot, home: &Sender<DeviceSlot>) -> Option<Error> {
        if !slot.may_release_here() {
            lock(&self.parked).push((slot, home.clone()));
            return None;
        }
        let error = slot.release().err();
        if error.as_ref().is_some_and(|e| e.kind() == ErrorKind::Capturing) {
            lock(&self.parked).push((slot, home.clone()));
            return error;
        }
        self.held.fetch_sub(1, Ordering::AcqRel);
        if slot.is_lost() {
            self.lost.fetch_add(1, Ordering::AcqRel);
        } else {
            self.give_back(slot, home);
        }
        error
    }

    /// Gives back what was parked and can be by now. On the consumer's thread: on another one it could meet the begin
    /// of a capture.
    pub(crate) fn unpark(&self) {
        let parked = std::mem::take(&mut *lock(&self.parked));
        for (slot, home) in parked {
            // That a capture goes on was told when the batch was dropped.
            if let Some(error) = self.release(slot, &home).filter(|e| e.kind() != ErrorKind::Capturing) {
                lock(&self.error).get_or_insert(error);
            }
        }
    }

    /// Wakes the copier if it starves and there is something for it.
    pub(crate) fn feed_copier(&self, home: &Sender<DeviceSlot>) {
        if self.hunger.calls(|| home.len(), home.capacity().unwrap_or(0)) {
            self.copier.wake();
        }
    }

    /// # Errors
    /// [`ErrorKind::Forked`] in a forked child.
    pub(crate) fn check_process(&self) -> Result<()> {
        if !self.process.is_forked() {
            return Ok(());
        }
        let text = "this process was forked from the one that built the loader, and does not have its threads: build a \
                    loader of its own here";
        Err(Error::new(ErrorKind::Forked, text))
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        lock(&self.error).take()
    }
}

/// A batch on the device. It is ordered on the stream that its epoch was opened with: work enqueued there sees
/// its bytes, and the host does not wait. Dropping it gives the slot back, behind the work that was enqueued by
/// then on every stream that it was used on.
///
/// While one of those streams is being captured into a graph, hold the batch: one that is dropped then can give its slot
/// back only when a later call of `next` or `close` finds the capture ended, and that call or the one before it returns
/// [`ErrorKind::Capturing`].
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

    /// The address of the slot on the device.
    pub(crate) fn device_address(&self) -> *const u8 {
        self.slot.buffer().as_ptr()
    }

    /// Byte offset within the heap and length in elements of a ragged row.
    pub(crate) fn span(&self, row: usize, ordinal: usize) -> Option<(usize, usize)> {
        let (ragged, _) = self.spec.ragged_and_host();
        let span = self.manifest().rows.spans[..self.len() * ragged].get(row * ragged + ordinal)?;
        Some((span.offset, span.len))
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
        if self.is_on_host() {
            return self.host_batch()?.get(field).map(Cow::Borrowed);
        }
        let (offset, shape) = fixed::<T>(&self.spec, field)?;
        self.read_back(field, offset, self.len() * shape.iter().product::<usize>())
    }

    /// One row of a ragged field on the host: waits until the batch is there.
    ///
    /// # Errors
    /// As [`Batch::host`], for a field that is not ragged, and for a row that there is not.
    pub fn host_ragged<T: Element>(&self, field: &str, row: usize) -> Result<Cow<'_, [T]>> {
        if self.is_on_host() {
            return self.host_batch()?.ragged(field, row).map(Cow::Borrowed);
        }
        let column = ragged::<T>(&self.spec, field)?;
        let Some((offset, len)) = self.span(row, column.ordinal) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("row {row} of a batch of {}", self.len()),
            ));
        };
        self.read_back(field, self.spec.heap().start + offset, len)
    }

    /// Whether the host can read the device's memory.
    fn is_on_host(&self) -> bool {
        self.life.read_back.device().is_cpu()
    }

    fn read_back<T: Element>(&self, field: &str, offset: usize, n: usize) -> Result<Cow<'_, [T]>> {
        self.life.check_process()?;
        let copied = self.slot.copied().map(Arc::as_ref);
        // SAFETY: while `self` lives nobody writes the buffer: the next copy comes after `release`.
        let elements = unsafe { self.life.read_back.elements(self.slot.buffer(), copied, offset, n) };
        elements.map(Cow::Owned).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => Error::new(e.kind(), format!("field {field:?} has {}", e.message())),
            _ => e,
        })
    }

    fn host_batch(&self) -> Result<HostBatch<'_>> {
        self.life.check_process()?;
        if let Some(copied) = self.slot.copied() {
            copied.synchronize()?;
        }
        // SAFETY: the copy into the buffer has passed; while `self` lives nobody writes it: the next copy comes
        // after `release`, and work that we enqueue for users only reads. The buffer is host memory (CPU device).
        Ok(unsafe { HostBatch::new(self.slot.buffer().as_ptr(), &self.spec, self.manifest()) })
    }

    /// Runs `work` on `stream`, behind the batch and what is enqueued there already, with the batch's memory for it
    /// to read. Marks the batch as used on `stream`. The host goes on at once; the batch may be dropped meanwhile. An
    /// error that `work` returns surfaces at the stream's next call, as a panic does.
    ///
    /// On CUDA the batch is copied back first, into page-locked memory that is allocated when it is first needed and
    /// used again: at most two buffers of a slot's size for each device slot, beside `host_budget`. Where all are in use
    /// the call waits for the stream; where page-locking was refused or switched off, for every copy. Kernels are the
    /// fast way there. See [`Stream::enqueue`] for what `work` may do.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a stream of another device; what earlier work on `stream` met.
    pub fn enqueue<R: Outcome>(
        &self,
        stream: &Stream,
        work: impl FnOnce(HostBatch<'_>) -> R + Send + 'static,
    ) -> Result<()> {
        self.record_stream(stream)?;
        if !self.is_on_host() && stream.is_capturing()? {
            let text = "work on the host can't be a part of a graph";
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        let staged = if self.is_on_host() {
            None
        } else {
            // SAFETY: the stream is ordered behind the batch; the slot is written again behind its gate only, which holds
            // an event recorded on this stream after the copy.
            Some(unsafe { self.life.read_back.enqueue(stream, self.slot.buffer(), self.manifest().bytes) }?)
        };
        let memory = Pinned {
            arena: staged.as_ref().map_or(self.slot.buffer().as_ptr(), Staged::as_ptr).cast_const(),
            len: self.len(),
            epoch: self.epoch(),
            number: self.number(),
            spec: self.spec.clone(),
        };
        stream.enqueue_fallible(move || {
            let memory = memory;
            let _arrived = staged.map(Staged::arrive);
            // SAFETY: the stream waits for the copy before this (`record_stream`). The slot is written or freed behind its
            // gate only, which holds an event recorded on this stream after this work; or it is leaked. A copy on the host
            // is this work's alone until `_arrived` gives it back.
            work(unsafe { memory.host() }).result()
        })
    }

    /// Orders `stream` behind the batch, and keeps the slot until what is enqueued on `stream` before the batch is
    /// dropped has run. For streams other than the epoch's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a stream of another device; what earlier work on `stream` met.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        self.life.check_process()?;
        stream.surface()?;
        if !self.slot.is_used_on(stream) && stream.is_capturing()? {
            let text = "the stream is being captured, and the batch is not ordered on it yet: call `record_stream` before \
                        the capture begins";
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        self.slot.use_on(stream)
    }

    /// The field for cudarc, `[len, shape…]` elements in a row, to read on `stream`: shorthand for
    /// [`View::cuda`](super::View::cuda).
    ///
    /// # Errors
    /// As [`Batch::view`] and [`Batch::record_stream`].
    #[cfg(feature = "cuda")]
    pub fn cuda_view<T: Element>(
        &self,
        field: &str,
        stream: &Stream,
    ) -> Result<crate::device::CudaSliceRef<'_, T>> {
        self.view(field)?.cuda(stream)
    }

    /// Waits on the host until the batch is on the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn synchronize(&self) -> Result<()> {
        self.life.check_process()?;
        self.slot.copied().map_or(Ok(()), |copied| copied.synchronize())
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
            // The streams' threads are the parent's, and so is the slot. The last end of a channel takes a lock, which a
            // thread that is not there may hold: with one more of each this is not the last.
            Box::leak(Box::new((self.home.clone(), self.life.clone())));
            return;
        }
        // SAFETY: taken once, here, where nothing uses `self` any more.
        let slot = unsafe { ManuallyDrop::take(&mut self.slot) };
        self.life.retire(slot, &self.home);
    }
}
