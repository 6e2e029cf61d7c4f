//! Writing several samples at once, column by column.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{FieldKey, Row, find, missing};
use crate::error::{Error, ErrorKind, Result};
use crate::spec::{BatchSpec, Element, FieldKind};

/// Consecutive rows of a batch, for samples so cheap that a call each would be what they cost.
pub struct RowBlock<'a> {
    spec: &'a BatchSpec,
    arena: NonNull<u8>,
    first: usize,
    rows: usize,
    written: u128,
    _arena: PhantomData<&'a mut [u8]>,
}

impl<'a> RowBlock<'a> {
    /// # Safety
    /// For `'a`, rows `first..first + rows` of the arena, which is laid out by `spec`, belong to the caller alone.
    pub(super) unsafe fn new(spec: &'a BatchSpec, arena: NonNull<u8>, first: usize, rows: usize) -> Self {
        Self { spec, arena, first, rows, written: 0, _arena: PhantomData }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The elements of a field in all these rows, `[rows, shape…]`, zeroed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown field or one whose rows have no shape,
    /// [`ErrorKind::DTypeMismatch`].
    pub fn column<T: Element>(&mut self, field: impl FieldKey) -> Result<&mut [T]> {
        let (number, column) = find(self.spec, field)?;
        column.expect::<T>()?;
        let FieldKind::Fixed { .. } = column.field.kind() else {
            let text =
                format!("field {} has no rows of one shape: it can't be written by columns", column.field);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        self.written |= 1 << number;
        let bytes = self.rows * column.row_bytes;
        // SAFETY: these rows of the column lie inside the arena (`BatchSpec::new`) and are ours (`RowBlock::new`); they
        // start at a multiple of the element's size, hold whole elements, and zero bytes are a value of every Element.
        unsafe {
            let to = self.arena.as_ptr().add(column.offset + self.first * column.row_bytes);
            to.write_bytes(0, bytes);
            Ok(std::slice::from_raw_parts_mut(to.cast(), bytes / size_of::<T>()))
        }
    }

    /// Refuses a block with a field that nobody wrote.
    pub(crate) fn finish(&self) -> Result<()> {
        match missing(self.spec, self.written) {
            None => Ok(()),
            Some(field) => {
                Err(Error::new(ErrorKind::MissingField, format!("the decoder did not write field {field}")))
            }
        }
    }
}

impl Row<'_> {
    /// This row alone as a block.
    pub(crate) fn with_block<R>(&mut self, write: impl FnOnce(&mut RowBlock<'_>) -> R) -> R {
        // SAFETY: the row is exclusively borrowed while the block lives.
        let mut block = unsafe { RowBlock::new(self.spec, self.arena, self.number, 1) };
        let result = write(&mut block);
        self.written |= block.written;
        result
    }
}
