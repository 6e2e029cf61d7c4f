//! Handles to a batch's fields on the device.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use super::batch::Batch;
#[cfg(feature = "cuda")]
use crate::device::{CudaSliceRef, Stream};
#[cfg(feature = "cuda")]
use crate::error::Result;
use crate::spec::{DType, Element, MAX_DIMS};

/// The sizes of a view's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    sizes: [usize; MAX_DIMS + 1],
    n: usize,
}

impl Dims {
    pub(crate) fn of(rows: usize) -> Self {
        let mut sizes = [0; MAX_DIMS + 1];
        sizes[0] = rows;
        Self { sizes, n: 1 }
    }

    pub(crate) fn push(&mut self, size: usize) {
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
    pub(crate) batch: &'b Batch,
    pub(crate) offset: usize,
    pub(crate) dims: Dims,
    pub(crate) _elements: PhantomData<T>,
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
        self.batch.device_address().wrapping_add(self.offset).cast::<T>()
    }
}

#[cfg(feature = "cuda")]
impl<'b, T: Element> View<'b, T> {
    /// The elements as a slice of cudarc's, to read on `stream`, which is ordered behind the batch and keeps its slot as
    /// by [`Batch::record_stream`]. CUDA only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a stream of another device, and on the CPU
    /// device; [`ErrorKind::Capturing`](crate::ErrorKind::Capturing) where the stream is being captured and was not used
    /// for this batch before.
    pub fn cuda(&self, stream: &Stream) -> Result<CudaSliceRef<'b, T>> {
        self.batch.record_stream(stream)?;
        let start = self.batch.device_address().wrapping_add(self.offset);
        // SAFETY: the field lies in the batch's slot, aligned for every element. The borrow keeps the batch, and the batch
        // the slot, which is written behind what was enqueued on `stream` only.
        unsafe { CudaSliceRef::of(stream, start, self.elements()) }
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
    pub(crate) batch: &'b Batch,
    pub(crate) ordinal: usize,
    pub(crate) table: usize,
    pub(crate) _elements: PhantomData<T>,
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
        let (offset, len) = self.batch.span(row, self.ordinal)?;
        Some((self.heap_offset() + offset, len))
    }

    /// Byte offset in the slot of the table `[capacity, 2]` of u64: byte offset in the heap, length in elements.
    pub fn table_offset(&self) -> usize {
        self.table
    }

    /// Byte offset of the heap in the slot.
    pub fn heap_offset(&self) -> usize {
        self.batch.spec().heap().start
    }

    /// The address of the slot on the device, which the offsets count from.
    ///
    /// # Safety
    /// As [`View::device_ptr`].
    pub unsafe fn device_ptr(&self) -> *const u8 {
        self.batch.device_address()
    }
}

#[cfg(feature = "cuda")]
impl<'b, T: Element> RaggedView<'b, T> {
    /// The table, `[capacity, 2]`, and the heap as slices of cudarc's, to read on `stream`: row r is the `table[2 r + 1]`
    /// elements of the heap from `table[2 r] / size_of::<T>()` on. The heap is shared by all ragged fields. CUDA only.
    ///
    /// # Errors
    /// As [`View::cuda`].
    pub fn cuda(&self, stream: &Stream) -> Result<(CudaSliceRef<'b, u64>, CudaSliceRef<'b, T>)> {
        self.batch.record_stream(stream)?;
        let (slot, spec) = (self.batch.device_address(), self.batch.spec());
        let heap = spec.heap();
        // SAFETY: table and heap lie in the batch's slot, 16-byte aligned; else as in `View::cuda`.
        unsafe {
            let table = CudaSliceRef::of(stream, slot.wrapping_add(self.table), 2 * spec.capacity())?;
            let elements =
                CudaSliceRef::of(stream, slot.wrapping_add(heap.start), heap.len() / size_of::<T>())?;
            Ok((table, elements))
        }
    }
}
