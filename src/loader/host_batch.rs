//! A batch's bytes, for code on the host to read.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::pool::Manifest;
use crate::spec::{BatchSpec, Column, DType, Element, FieldKind};

/// What work on a batch may return: nothing, or a result.
pub trait Outcome {
    #[doc(hidden)]
    fn result(self) -> Result<()>;
}

impl Outcome for () {
    fn result(self) -> Result<()> {
        Ok(())
    }
}

impl<E: Into<anyhow::Error>> Outcome for Result<(), E> {
    fn result(self) -> Result<()> {
        self.map_err(|e| {
            let error = e.into();
            match error.downcast::<Error>() {
                Ok(ours) => ours,
                Err(other) => Error::new(ErrorKind::Work, other.to_string()).caused_by(other),
            }
        })
    }
}

/// What `enqueue` takes along of a batch that may be dropped before the work runs.
pub(crate) struct Pinned {
    pub(crate) arena: *const u8,
    pub(crate) len: usize,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) spec: Arc<BatchSpec>,
}

// SAFETY: the pointer is to a device slot's memory, which any thread may read while the slot's gate holds it.
unsafe impl Send for Pinned {}

impl Pinned {
    /// # Safety
    /// The batch's bytes are there, and are not written while what this returns lives.
    pub(crate) unsafe fn host(&self) -> HostBatch<'_> {
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
    pub(crate) unsafe fn new(arena: *const u8, spec: &'a BatchSpec, manifest: &Manifest) -> Self {
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
pub(crate) fn fixed<'s, T: Element>(spec: &'s BatchSpec, field: &str) -> Result<(usize, &'s [usize])> {
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

pub(crate) fn ragged<'s, T: Element>(spec: &'s BatchSpec, field: &str) -> Result<&'s Column> {
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
