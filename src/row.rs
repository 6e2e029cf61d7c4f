//! Writing a sample into its row of a batch.

mod block;
mod key;

pub use block::RowBlock;
pub use key::FieldKey;
use key::find;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::spec::{BatchSpec, Column, Element, Field, FieldKind, MAX_FIELDS, ROW_ALIGN, bytes_of};

/// The first field without its bit.
fn missing(spec: &BatchSpec, written: u128) -> Option<&Field> {
    let all = u128::MAX >> (MAX_FIELDS - spec.columns().len());
    let missing = all & !written;
    (missing != 0).then(|| &spec.columns()[missing.trailing_zeros() as usize].field)
}

/// Where a ragged row lies: byte offset within the heap, length in elements, and what was reserved for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    reserved: usize,
}

/// The fill level of a batch's heap, in bytes. Demand that does not fit still counts, so that whether a batch
/// is over its heap depends on the sum of its rows, not on which row came last.
#[derive(Debug, Default)]
pub(crate) struct HeapLevel(AtomicUsize);

impl HeapLevel {
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Relaxed: the ranges handed out are disjoint by arithmetic; the countdown orders their contents.
    fn reserve(&self, bytes: usize) -> usize {
        self.0.fetch_add(bytes, Ordering::Relaxed)
    }
}

/// What a slot keeps beside its arena for each row; columns of plain values, row-major.
#[derive(Debug, Default)]
pub(crate) struct RowTable {
    pub(crate) indices: Vec<u64>,
    pub(crate) valid: Vec<bool>,
    /// `[capacity, ragged fields]`.
    pub(crate) spans: Vec<Span>,
    /// `[capacity, host-only fields]`. Strings keep their memory from batch to batch.
    pub(crate) text: Vec<String>,
}

impl RowTable {
    pub(crate) fn new(spec: &BatchSpec) -> Self {
        let (ragged, host) = spec.ragged_and_host();
        let n = spec.capacity();
        Self {
            indices: vec![0; n],
            valid: vec![false; n],
            spans: vec![Span::default(); n * ragged],
            text: vec![String::new(); n * host],
        }
    }
}

/// An exclusive claim on consecutive rows of a slot that is being filled.
pub(crate) struct Rows<'a> {
    spec: &'a BatchSpec,
    arena: NonNull<u8>,
    heap: &'a HeapLevel,
    first: usize,
    indices: &'a mut [u64],
    valid: &'a mut [bool],
    spans: &'a mut [Span],
    text: &'a mut [String],
    _arena: PhantomData<&'a mut [u8]>,
}

impl<'a> Rows<'a> {
    /// Rows `range` of the slot with this arena and table.
    ///
    /// # Safety
    /// 1. `arena` points to `spec.bytes()` writable bytes, aligned to a page, that live for `'a`, and `table` to a
    ///    table made for `spec` that lives as long.
    /// 2. For `'a`, nobody else reads or writes these rows of either; `heap` belongs to the same arena, and ranges
    ///    that it has handed out since its reset are used by the rows that reserved them only.
    pub(crate) unsafe fn claim(
        spec: &'a BatchSpec,
        arena: NonNull<u8>,
        table: *mut RowTable,
        heap: &'a HeapLevel,
        range: std::ops::Range<usize>,
    ) -> Self {
        let (ragged, host) = spec.ragged_and_host();
        let (first, n) = (range.start, range.len());
        debug_assert!(range.end <= spec.capacity());
        // SAFETY: (1) and (2) for this range of each vector; the vectors themselves are not touched (their
        // pointers are read, and no claim changes them), so claims of other ranges don't alias these slices.
        unsafe {
            let at = |p: *mut u64| std::slice::from_raw_parts_mut(p.add(first), n);
            Self {
                spec,
                arena,
                heap,
                first,
                indices: at((*table).indices.as_ptr().cast_mut()),
                valid: std::slice::from_raw_parts_mut((*table).valid.as_ptr().cast_mut().add(first), n),
                spans: std::slice::from_raw_parts_mut(
                    (*table).spans.as_ptr().cast_mut().add(first * ragged),
                    n * ragged,
                ),
                text: std::slice::from_raw_parts_mut(
                    (*table).text.as_ptr().cast_mut().add(first * host),
                    n * host,
                ),
                _arena: PhantomData,
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// The row's number in the batch.
    pub(crate) fn number(&self, k: usize) -> usize {
        self.first + k
    }

    pub(crate) fn index(&self, k: usize) -> u64 {
        self.indices[k]
    }

    pub(crate) fn set_index(&mut self, k: usize, index: u64) {
        self.indices[k] = index;
    }

    pub(crate) fn set_valid(&mut self, k: usize, valid: bool) {
        self.valid[k] = valid;
        // SAFETY: the mask is the first `capacity` bytes of the arena, and this row of it is ours by `claim`.
        unsafe { *self.arena.as_ptr().add(self.first + k) = u8::from(valid) };
    }

    /// All rows of the claim as a block, and their indices.
    pub(crate) fn block(&mut self) -> (&[u64], RowBlock<'_>) {
        self.spans.fill(Span::default());
        // SAFETY: the claim is exclusively borrowed while the block lives.
        let block = unsafe { RowBlock::new(self.spec, self.arena, self.first, self.indices.len()) };
        (self.indices, block)
    }

    pub(crate) fn set_all_valid(&mut self) {
        self.valid.fill(true);
        // SAFETY: the mask is the first `capacity` bytes of the arena, and these rows of it are ours by `claim`.
        unsafe { self.arena.as_ptr().add(self.first).write_bytes(1, self.valid.len()) };
    }

    /// The k-th row of the claim, for writing.
    pub(crate) fn row(&mut self, k: usize) -> Row<'_> {
        let (ragged, host) = self.spec.ragged_and_host();
        Row {
            spec: self.spec,
            arena: self.arena,
            heap: self.heap,
            number: self.first + k,
            index: self.indices[k],
            spans: &mut self.spans[k * ragged..(k + 1) * ragged],
            text: &mut self.text[k * host..(k + 1) * host],
            written: 0,
            _arena: PhantomData,
        }
    }
}

const _: () = assert!(MAX_FIELDS == 128, "Row::written has a bit a field");

/// A sample's row of a batch, in page-locked memory. A decoder writes every field of it, once.
pub struct Row<'a> {
    spec: &'a BatchSpec,
    arena: NonNull<u8>,
    heap: &'a HeapLevel,
    number: usize,
    index: u64,
    spans: &'a mut [Span],
    text: &'a mut [String],
    written: u128,
    _arena: PhantomData<&'a mut [u8]>,
}

impl Row<'_> {
    /// The layout of the batch.
    pub fn spec(&self) -> &BatchSpec {
        self.spec
    }

    /// Writes one scalar.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown field, [`ErrorKind::DTypeMismatch`], or
    /// [`ErrorKind::ShapeMismatch`] where a row of the field is not one element.
    #[inline]
    pub fn set<T: Element>(&mut self, field: impl FieldKey, value: T) -> Result<()> {
        self.copy(field, std::slice::from_ref(&value))
    }

    /// Copies `values` into the row, in row-major order.
    ///
    /// # Errors
    /// As [`Row::set`]; [`ErrorKind::ShapeMismatch`] where the number of elements differs.
    #[inline]
    pub fn copy<T: Element>(&mut self, field: impl FieldKey, values: &[T]) -> Result<()> {
        let (number, column) = find(self.spec, field)?;
        column.expect::<T>()?;
        let (to, row_bytes) = self.fixed(column)?;
        let from = bytes_of(values);
        if from.len() != row_bytes {
            return Err(self.shape_mismatch(column, &[values.len()]));
        }
        self.settle(number);
        // SAFETY: `fixed` gives this row's bytes of the column, `row_bytes` of them, ours by `Rows::claim`; the
        // source is a live slice, which can't overlap memory that is exclusively ours.
        unsafe { crate::copy::copy(to, from.as_ptr(), from.len()) };
        self.written |= 1 << number;
        Ok(())
    }

    /// Copies `values`, which have `shape`, into the row.
    ///
    /// # Errors
    /// As [`Row::copy`]; [`ErrorKind::ShapeMismatch`] names both shapes and the sample's index.
    pub fn copy_shaped<T: Element>(
        &mut self,
        field: impl FieldKey,
        shape: &[usize],
        values: &[T],
    ) -> Result<()> {
        let (number, column) = find(self.spec, field)?;
        match &column.field.kind() {
            FieldKind::Fixed { shape: expected } if expected != shape => {
                Err(self.shape_mismatch(column, shape))
            }
            _ => self.copy(number, values),
        }
    }

    /// The row's elements, zeroed, to be written in place.
    ///
    /// # Errors
    /// As [`Row::set`], for any shape.
    pub fn slice<T: Element>(&mut self, field: impl FieldKey) -> Result<&mut [T]> {
        let (number, column) = find(self.spec, field)?;
        column.expect::<T>()?;
        let bytes = self.column_bytes(number, column)?;
        bytes.fill(0);
        let (to, n) = (bytes.as_mut_ptr().cast::<T>(), bytes.len() / size_of::<T>());
        // SAFETY: rows start at a multiple of the element's size within a page-aligned arena, hold whole
        // elements, are ours, and zero bytes are a value of every Element.
        Ok(unsafe { std::slice::from_raw_parts_mut(to, n) })
    }

    /// The row's bytes as they are left from an earlier batch, to be overwritten **in full**: the fast way for
    /// codecs and readers that write every byte. Little-endian elements, row-major.
    ///
    /// # Errors
    /// As [`Row::slice`].
    pub fn overwrite(&mut self, field: impl FieldKey) -> Result<&mut [u8]> {
        let (number, column) = find(self.spec, field)?;
        self.column_bytes(number, column)
    }

    /// The bytes of the first `n` fields at once, as [`Row::overwrite`] gives each.
    pub(crate) fn overwrite_first<'s>(&'s mut self, n: usize, out: &mut [&'s mut [u8]]) -> Result<()> {
        for (number, slot) in out.iter_mut().enumerate().take(n) {
            let (_, column) = find(self.spec, number)?;
            let (to, bytes) = self.fixed(column)?;
            // SAFETY: as in `column_bytes`; different columns don't overlap, and all borrow `self` for 's.
            *slot = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            self.written |= 1 << number;
        }
        Ok(())
    }

    /// Reserves `len` elements of a ragged field for this row, zeroed, to be written in place. Once a row and
    /// field; a second call of a retried sample gets the same place where it fits, else one for `max_row` elements.
    /// Where in the heap a row lies depends on the threads.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for a row over `max_row` (naming the index), or a batch over its heap.
    pub fn ragged<T: Element>(&mut self, field: impl FieldKey, len: usize) -> Result<&mut [T]> {
        let (number, column) = find(self.spec, field)?;
        column.expect::<T>()?;
        let FieldKind::Ragged { max_row } = *column.field.kind() else {
            let text =
                format!("field {} has rows of one shape: write it with `copy` or `slice`", column.field);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        if len > max_row {
            let text = format!("a row of {len} elements is over max_row of field {}", column.field);
            return Err(self.error(ErrorKind::LimitExceeded, text));
        }
        // No overflow: len <= max_row, whose bytes the spec has checked.
        let bytes = (len * size_of::<T>()).next_multiple_of(ROW_ALIGN);
        let heap = self.spec.heap();
        let mut span = self.spans[column.ordinal];
        if span.reserved < bytes {
            // A row that has a place too small for it, from an attempt that failed, gets the largest there is: so it takes
            // two places at the most, however many attempts follow.
            let bytes = match span.reserved {
                0 => bytes,
                _ => (max_row * size_of::<T>()).next_multiple_of(ROW_ALIGN),
            };
            span = Span { offset: self.heap.reserve(bytes), len: 0, reserved: bytes };
            if span.offset.saturating_add(bytes) > heap.len() {
                let text = format!(
                    "the ragged rows of this batch need more than the {} bytes of max_batch_bytes: raise it or lower batch_size",
                    heap.len()
                );
                return Err(Error::new(ErrorKind::LimitExceeded, text));
            }
        }
        span.len = len;
        self.spans[column.ordinal] = span;
        self.write_table(column, span);
        self.written |= 1 << number;
        // SAFETY: the span was reserved for this row and lies within the heap (checked above), 16-byte aligned in
        // a page-aligned arena; it is ours by `Rows::claim`; zero bytes are a value of every Element.
        unsafe {
            let to = self.arena.as_ptr().add(heap.start + span.offset);
            to.write_bytes(0, span.reserved);
            Ok(std::slice::from_raw_parts_mut(to.cast::<T>(), len))
        }
    }

    /// Copies `values` into the row's part of a ragged field.
    ///
    /// # Errors
    /// As [`Row::ragged`].
    pub fn copy_ragged<T: Element>(&mut self, field: impl FieldKey, values: &[T]) -> Result<()> {
        self.ragged(field, values.len())?.copy_from_slice(values);
        Ok(())
    }

    /// The text of a host-only field, empty, to be written in place.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown field or one that is no text.
    pub fn text(&mut self, field: impl FieldKey) -> Result<&mut String> {
        let (number, column) = find(self.spec, field)?;
        if *column.field.kind() != FieldKind::Host {
            let text = format!("field {} is no text", column.field);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.written |= 1 << number;
        let text = &mut self.text[column.ordinal];
        text.clear();
        Ok(text)
    }

    /// Refuses a row with a field that nobody wrote: it would carry bytes of an earlier batch.
    pub(crate) fn finish(&self) -> Result<()> {
        match missing(self.spec, self.written) {
            None => Ok(()),
            Some(field) => {
                Err(self.error(ErrorKind::MissingField, format!("the decoder did not write field {field}")))
            }
        }
    }

    /// Makes a hole of the row: zero bytes, no elements, no text.
    pub(crate) fn clear(&mut self) {
        // What a failed attempt has copied may have gone past the caches.
        crate::copy::fence();
        for column in self.spec.columns() {
            match column.field.kind() {
                FieldKind::Host => self.text[column.ordinal].clear(),
                FieldKind::Ragged { .. } => {
                    let span = &mut self.spans[column.ordinal];
                    span.len = 0;
                    let (span, heap) = (*span, self.spec.heap());
                    self.write_table(column, Span::default());
                    if span.offset.saturating_add(span.reserved) <= heap.len() {
                        // SAFETY: as in `ragged`: a range that this row has reserved, inside the heap.
                        unsafe {
                            self.arena.as_ptr().add(heap.start + span.offset).write_bytes(0, span.reserved);
                        }
                    }
                }
                FieldKind::Fixed { .. } => {
                    if let Ok((to, bytes)) = self.fixed(column) {
                        // SAFETY: this row's bytes of the column, ours by `Rows::claim`.
                        unsafe { to.write_bytes(0, bytes) };
                    }
                }
            }
        }
        self.written = 0;
    }

    /// Forgets what an earlier batch reserved and wrote. Called once before a row's first attempt.
    pub(crate) fn begin(&mut self) {
        self.spans.fill(Span::default());
        self.written = 0;
    }

    /// Before a field is touched again: the copy that wrote it may have gone past the caches.
    fn settle(&self, number: usize) {
        if self.written >> number & 1 == 1 {
            crate::copy::fence();
        }
    }

    fn column_bytes(&mut self, number: usize, column: &Column) -> Result<&mut [u8]> {
        let (to, bytes) = self.fixed(column)?;
        self.settle(number);
        self.written |= 1 << number;
        // SAFETY: `fixed` gives this row's bytes of the column, ours by `Rows::claim`; they were initialised when
        // the slot was made; the borrow of `self` keeps a second slice away.
        Ok(unsafe { std::slice::from_raw_parts_mut(to, bytes) })
    }

    /// Start and size of this row in a fixed column.
    fn fixed(&self, column: &Column) -> Result<(*mut u8, usize)> {
        if let FieldKind::Fixed { .. } = column.field.kind() {
            // SAFETY: offset + capacity * row_bytes lies within the arena (`BatchSpec::new`), and number < capacity.
            let to = unsafe { self.arena.as_ptr().add(column.offset + self.number * column.row_bytes) };
            return Ok((to, column.row_bytes));
        }
        let text =
            format!("field {} has no rows of one shape: write it with `ragged` or `text`", column.field);
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    fn write_table(&mut self, column: &Column, span: Span) {
        let entry = [span.offset as u64, span.len as u64];
        // SAFETY: the table has 16 bytes a row at `offset`, 8-byte aligned, inside the arena; this row is ours.
        unsafe {
            let to = self.arena.as_ptr().add(column.offset + self.number * column.row_bytes);
            to.cast::<[u64; 2]>().write(entry);
        }
    }

    fn shape_mismatch(&self, column: &Column, found: &[usize]) -> Error {
        let text = match column.field.kind() {
            FieldKind::Fixed { shape } => {
                format!(
                    "field {:?} has rows of shape {shape:?}, this sample has {found:?}",
                    column.field.name()
                )
            }
            _ => format!("field {} does not take a row of shape {found:?}", column.field),
        };
        self.error(ErrorKind::ShapeMismatch, text)
    }

    fn error(&self, kind: ErrorKind, text: String) -> Error {
        Error::new(kind, text).at(crate::error::Place::of_index(self.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slot {
        spec: BatchSpec,
        arena: Vec<u128>,
        table: RowTable,
        heap: HeapLevel,
    }

    impl Slot {
        fn new(fields: Vec<Field>, capacity: usize, max_batch: Option<usize>) -> Self {
            let spec = BatchSpec::new(fields, capacity, max_batch).unwrap();
            let arena = vec![u128::from_le_bytes([0xee; 16]); spec.bytes().div_ceil(16)];
            Self { table: RowTable::new(&spec), spec, arena, heap: HeapLevel::default() }
        }

        fn rows(&mut self, range: std::ops::Range<usize>) -> Rows<'_> {
            let arena = NonNull::new(self.arena.as_mut_ptr().cast()).unwrap();
            // SAFETY: the whole slot is borrowed mutably; a u128's alignment is enough for every element.
            unsafe { Rows::claim(&self.spec, arena, &raw mut self.table, &self.heap, range) }
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: u128 has no padding.
            unsafe { std::slice::from_raw_parts(self.arena.as_ptr().cast(), self.arena.len() * 16) }
        }
    }

    #[test]
    fn a_row_lands_where_the_spec_says() {
        let mut slot = Slot::new(vec![Field::new::<u16>("x", &[3]), Field::scalar::<i64>("y")], 4, None);
        let mut rows = slot.rows(1..3);
        let mut row = rows.row(1);
        row.copy("x", &[1u16, 2, 3]).unwrap();
        assert_eq!(row.finish().unwrap_err().kind(), ErrorKind::MissingField);
        row.set(1, -2i64).unwrap();
        row.finish().unwrap();
        rows.set_valid(1, true);
        let (x, y) = (slot.spec.offset("x").unwrap(), slot.spec.offset("y").unwrap());
        assert_eq!(slot.bytes()[x + 12..x + 18], [1, 0, 2, 0, 3, 0]);
        assert_eq!(slot.bytes()[y + 16..y + 24], (-2i64).to_le_bytes());
        assert_eq!(slot.bytes()[..4], [0xee, 0xee, 1, 0xee]);
        assert_eq!(slot.bytes()[x + 18], 0xee);
    }

    #[test]
    fn shapes_that_differ_are_named_both_with_the_index() {
        let mut slot = Slot::new(vec![Field::new::<u8>("image", &[3, 32, 64])], 2, None);
        let mut rows = slot.rows(0..2);
        rows.set_index(1, 1);
        let e = rows.row(1).copy_shaped("image", &[3, 32, 63], &[0u8; 3 * 32 * 63]).unwrap_err();
        assert_eq!((e.kind(), e.place().index), (ErrorKind::ShapeMismatch, Some(1)));
        assert!(e.to_string().contains("[3, 32, 64]") && e.to_string().contains("[3, 32, 63]"), "{e}");
        assert_eq!(rows.row(0).copy("image", &[0u8; 5]).unwrap_err().kind(), ErrorKind::ShapeMismatch);
        assert_eq!(rows.row(0).copy("image", &[0i8; 5]).unwrap_err().kind(), ErrorKind::DTypeMismatch);
    }

    #[test]
    fn ragged_rows_are_aligned_zero_padded_and_kept_by_a_retry() {
        let mut slot = Slot::new(vec![Field::ragged::<u8>("t", 40)], 3, None);
        let mut rows = slot.rows(0..3);
        rows.row(0).copy_ragged("t", &[1u8, 2, 3]).unwrap();
        rows.row(2).copy_ragged("t", &[7u8; 20]).unwrap();
        rows.row(2).copy_ragged("t", &[9u8; 17]).unwrap();
        rows.row(1).copy_ragged::<u8>("t", &[]).unwrap();
        let e = rows.row(1).ragged::<u8>("t", 41).unwrap_err();
        assert_eq!((e.kind(), e.place().index), (ErrorKind::LimitExceeded, Some(0)));
        assert_eq!(slot.heap.used(), 16 + 32);
        let heap = slot.spec.heap().start;
        assert_eq!(slot.bytes()[heap..heap + 16], [1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            slot.bytes()[heap + 16..heap + 34],
            [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]
        );
        let table = slot.spec.offset("t").unwrap() + 32;
        assert_eq!(slot.bytes()[table..table + 9], [16, 0, 0, 0, 0, 0, 0, 0, 17]);
    }

    #[test]
    fn a_batch_over_its_heap_is_refused_whatever_the_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut slot = Slot::new(vec![Field::ragged::<u8>("t", 40)], 3, Some(64));
            let mut rows = slot.rows(0..3);
            let failed = order.map(|k| rows.row(k).ragged::<u8>("t", 10 + 15 * k).is_err());
            assert!(failed.contains(&true));
            assert!(slot.heap.used() > slot.spec.heap().len());
        }
    }

    #[test]
    fn a_hole_is_all_zero() {
        let fields = vec![Field::scalar::<u32>("x"), Field::ragged::<u8>("t", 8), Field::host("key")];
        let mut slot = Slot::new(fields, 1, None);
        let mut rows = slot.rows(0..1);
        let mut row = rows.row(0);
        row.set("x", 7u32).unwrap();
        row.copy_ragged("t", &[1u8; 8]).unwrap();
        row.text("key").unwrap().push('k');
        row.clear();
        assert!(row.finish().is_err());
        let (x, t, heap) =
            (slot.spec.offset("x").unwrap(), slot.spec.offset("t").unwrap(), slot.spec.heap().start);
        assert!(slot.bytes()[x..x + 4].iter().all(|&b| b == 0));
        assert!(slot.bytes()[t..t + 16].iter().all(|&b| b == 0));
        assert!(slot.bytes()[heap..heap + 16].iter().all(|&b| b == 0));
        assert_eq!(slot.table.text[0], "");
    }
}
