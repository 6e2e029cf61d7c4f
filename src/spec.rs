//! What a batch looks like in memory: dtypes, fields, and their byte offsets in a slot.
//!
//! A slot is one arena. It starts with the `valid` mask (bool, `[capacity]`); then come the fixed
//! fields, each `[capacity, shape…]`, row-major, at an offset that is a multiple of [`FIELD_ALIGN`].
//! A ragged field has in its place a table `[capacity, 2]` of u64: the row's byte offset in the heap
//! and its length in elements. The heap, shared by all ragged fields, ends the arena; each of its rows
//! starts at a multiple of [`ROW_ALIGN`]. So a batch is uploaded by one copy of a prefix.

use std::fmt;

use half::{bf16, f16};

use crate::error::{Error, ErrorKind, Result};

/// Alignment of a field's first byte within a slot, in bytes.
pub const FIELD_ALIGN: usize = 256;
/// Alignment of a ragged row's first byte within the heap, in bytes.
pub const ROW_ALIGN: usize = 16;
/// The most fields that one batch may have.
pub const MAX_FIELDS: usize = 128;
/// The most dimensions of a row.
pub const MAX_DIMS: usize = 7;
/// The name of the mask that every batch carries: 1 where a row holds a sample, 0 where it is a hole.
pub const VALID: &str = "valid";

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
    Bool,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The type's name, as in NumPy and PyTorch short forms: `u8`, `bf16`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a [`DType`] stands for.
///
/// # Safety
/// The type has the size and alignment that `DTYPE` says, has no padding, and every byte pattern for
/// which [`Element::accepts`] is true is a value of it.
pub unsafe trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The type's dtype.
    const DTYPE: DType;

    /// Whether `bytes`, whole elements, are values of this type. True for all but `bool`.
    fn accepts(_bytes: &[u8]) -> bool {
        true
    }
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(
        impl sealed::Sealed for $t {}
        // SAFETY: a primitive number (or half's transparent wrapper of u16): no padding, any bits are a value.
        unsafe impl Element for $t { const DTYPE: DType = DType::$d; }
    )* };
}
elements!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl sealed::Sealed for bool {}
// SAFETY: bool is one byte without padding; only 0 and 1 are values, and `accepts` says so.
unsafe impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn accepts(bytes: &[u8]) -> bool {
        bytes.iter().all(|&b| b <= 1)
    }
}

/// The bytes of `values`.
pub(crate) fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an Element has no padding, so all size_of_val bytes are initialised; u8 has no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// How the rows of a field lie.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldKind {
    /// Every row has this shape (empty: a scalar).
    Fixed {
        /// The shape of a row, without the batch dimension.
        shape: Vec<usize>,
    },
    /// Rows of up to `max_row` elements, each of its own length.
    Ragged {
        /// The most elements of a row.
        max_row: usize,
    },
    /// Text that stays on the host: keys, paths.
    Host,
}

/// A named column of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    name: String,
    dtype: DType,
    kind: FieldKind,
}

impl Field {
    /// A field whose rows have the dtype `T` and `shape`.
    pub fn new<T: Element>(name: impl Into<String>, shape: &[usize]) -> Self {
        Self::of(name, T::DTYPE, shape)
    }

    /// A field of one `T` a row.
    pub fn scalar<T: Element>(name: impl Into<String>) -> Self {
        Self::of(name, T::DTYPE, &[])
    }

    /// A field whose dtype is known at run time only.
    pub fn of(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, kind: FieldKind::Fixed { shape: shape.to_vec() } }
    }

    /// A field of rows of 0 to `max_row` elements of `T`.
    pub fn ragged<T: Element>(name: impl Into<String>, max_row: usize) -> Self {
        Self { name: name.into(), dtype: T::DTYPE, kind: FieldKind::Ragged { max_row } }
    }

    /// Text that is delivered beside the batch and never uploaded.
    pub fn host(name: impl Into<String>) -> Self {
        Self { name: name.into(), dtype: DType::U8, kind: FieldKind::Host }
    }

    /// The field's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dtype of its elements (`u8` for host-only text).
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How its rows lie.
    pub fn kind(&self) -> &FieldKind {
        &self.kind
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FieldKind::Fixed { shape } => write!(f, "{}: {}{shape:?}", self.name, self.dtype),
            FieldKind::Ragged { max_row } => write!(f, "{}: {}[..={max_row}]", self.name, self.dtype),
            FieldKind::Host => write!(f, "{}: text on the host", self.name),
        }
    }
}

/// A field and its place in the arena.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) field: Field,
    /// Byte offset of the field (of its table, where ragged); 0 for host-only fields.
    pub(crate) offset: usize,
    /// Bytes of a row (16 for a ragged table's entry); 0 for host-only fields.
    pub(crate) row_bytes: usize,
    /// Number among the ragged fields, or among the host-only ones.
    pub(crate) ordinal: usize,
}

/// The layout of a batch of up to `capacity` rows: see the documentation of its fields.
#[derive(Debug, Clone)]
pub struct BatchSpec {
    capacity: usize,
    columns: Vec<Column>,
    heap: std::ops::Range<usize>,
    ragged: usize,
    host: usize,
}

impl BatchSpec {
    /// Lays out `fields` for `capacity` rows. `max_batch` bounds the heap of ragged rows in bytes (aligned
    /// sizes count); `None` gives room for every row at its `max_row`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for no rows, no fields, an empty, double or reserved name, a row of no bytes;
    /// [`ErrorKind::LimitExceeded`] where a size does not fit the address space.
    pub fn new(fields: Vec<Field>, capacity: usize, max_batch: Option<usize>) -> Result<Self> {
        Self::with_attempts(fields, capacity, max_batch, 1)
    }

    /// As [`BatchSpec::new`], with default room for rows that are reserved `reservations` times (see `Row::ragged`).
    pub(crate) fn with_attempts(
        fields: Vec<Field>,
        capacity: usize,
        max_batch: Option<usize>,
        reservations: usize,
    ) -> Result<Self> {
        let config = |text: String| Error::new(ErrorKind::InvalidConfig, text);
        if capacity == 0 {
            return Err(config("a batch needs room for at least 1 row: batch_size is 0".into()));
        }
        if fields.is_empty() || fields.len() > MAX_FIELDS {
            return Err(config(format!("a batch has 1 to {MAX_FIELDS} fields, not {}", fields.len())));
        }
        let mut spec =
            Self { capacity, columns: Vec::with_capacity(fields.len()), heap: 0..0, ragged: 0, host: 0 };
        let mut end = capacity; // the valid mask
        let mut heap = Some(0usize);
        for field in fields {
            let name = field.name.as_str();
            if name.is_empty() || name == VALID {
                return Err(config(format!(
                    "{name:?} can't be a field's name (`valid` is the batch's own mask)"
                )));
            }
            if spec.columns.iter().any(|c| c.field.name == name) {
                return Err(config(format!("two fields are named {name:?}")));
            }
            if matches!(&field.kind, FieldKind::Fixed { shape } if shape.len() > MAX_DIMS) {
                return Err(config(format!("a row of field {field} has more than {MAX_DIMS} dimensions")));
            }
            let size = field.dtype.size();
            let (row_bytes, ordinal) = match &field.kind {
                FieldKind::Host => (Some(0), spec.host),
                FieldKind::Fixed { shape } => {
                    (shape.iter().try_fold(size, |n, &d| n.checked_mul(d)), spec.columns.len())
                }
                FieldKind::Ragged { max_row } => {
                    let row = max_row.checked_mul(size).and_then(|n| n.checked_next_multiple_of(ROW_ALIGN));
                    let rows = capacity.checked_mul(reservations);
                    heap = heap
                        .zip(row.zip(rows).and_then(|(n, rows)| n.checked_mul(rows)))
                        .and_then(|(a, b)| a.checked_add(b));
                    (Some(16), spec.ragged)
                }
            };
            let offset = end.checked_next_multiple_of(FIELD_ALIGN);
            let (Some(row_bytes), Some(offset)) = (row_bytes, offset) else { return Err(too_large(&field)) };
            if row_bytes == 0 && field.kind != FieldKind::Host {
                return Err(config(format!("a row of field {field} has no bytes")));
            }
            let offset = if field.kind == FieldKind::Host { 0 } else { offset };
            if row_bytes > 0 {
                end = match row_bytes.checked_mul(capacity).and_then(|n| n.checked_add(offset)) {
                    Some(end) if end <= isize::MAX as usize => end,
                    _ => return Err(too_large(&field)),
                };
            }
            spec.ragged += usize::from(matches!(field.kind, FieldKind::Ragged { .. }));
            spec.host += usize::from(field.kind == FieldKind::Host);
            spec.columns.push(Column { field, offset, row_bytes, ordinal });
        }
        spec.heap = end..end;
        if spec.ragged > 0 {
            let start = end.next_multiple_of(FIELD_ALIGN);
            let bytes = max_batch.or(heap).and_then(|n| n.checked_next_multiple_of(ROW_ALIGN));
            let end = bytes.and_then(|n| n.checked_add(start)).filter(|&n| n <= isize::MAX as usize);
            let Some(end) = end else {
                let text = "the heap of the ragged rows does not fit the address space: set max_batch_bytes";
                return Err(Error::new(ErrorKind::LimitExceeded, text));
            };
            spec.heap = start..end;
        }
        Ok(spec)
    }

    /// The most rows of a batch.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The size of a slot in bytes.
    pub fn bytes(&self) -> usize {
        self.heap.end
    }

    /// The fields, in the order that the decoder declared them.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = &Field> {
        self.columns.iter().map(|c| &c.field)
    }

    /// Byte offset of a field in the slot: of its rows, or of a ragged field's table. `None` for host-only
    /// fields and unknown names.
    pub fn offset(&self, name: &str) -> Option<usize> {
        if name == VALID {
            return Some(0);
        }
        let column = self.columns.iter().find(|c| c.field.name == name)?;
        (column.field.kind != FieldKind::Host).then_some(column.offset)
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn heap(&self) -> std::ops::Range<usize> {
        self.heap.clone()
    }

    /// How many fields are ragged, and how many are host-only.
    pub(crate) fn ragged_and_host(&self) -> (usize, usize) {
        (self.ragged, self.host)
    }

    /// The column of that name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] that lists what there is.
    pub(crate) fn column(&self, name: &str) -> Result<&Column> {
        self.columns.iter().find(|c| c.field.name == name).ok_or_else(|| {
            let all: Vec<String> = self.fields().map(ToString::to_string).collect();
            let text = format!("no field is named {name:?}; there are {}, valid: bool[]", all.join(", "));
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }
}

impl Column {
    /// Refuses another dtype than the field's.
    pub(crate) fn expect<T: Element>(&self) -> Result<()> {
        if self.field.kind == FieldKind::Host {
            let text = format!("field {} has no numbers; read it with `text`", self.field);
            return Err(Error::new(ErrorKind::DTypeMismatch, text));
        }
        if self.field.dtype == T::DTYPE {
            return Ok(());
        }
        let text = format!("field {} was asked for as {}", self.field, T::DTYPE);
        Err(Error::new(ErrorKind::DTypeMismatch, text))
    }
}

fn too_large(field: &Field) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("field {field} does not fit the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(fields: Vec<Field>, capacity: usize) -> BatchSpec {
        BatchSpec::new(fields, capacity, None).unwrap()
    }

    #[test]
    fn fixed_fields_lie_at_256_byte_offsets_behind_the_mask() {
        let s = spec(
            vec![Field::new::<u8>("image", &[3, 5]), Field::host("key"), Field::scalar::<i64>("label")],
            300,
        );
        assert_eq!(s.offset("valid"), Some(0));
        assert_eq!(s.offset("image"), Some(512));
        assert_eq!(s.offset("key"), None);
        assert_eq!(s.offset("label"), Some((512usize + 300 * 15).next_multiple_of(256)));
        assert_eq!(s.bytes(), s.offset("label").unwrap() + 300 * 8);
        assert_eq!(s.ragged_and_host(), (0, 1));
    }

    #[test]
    fn ragged_fields_have_a_table_each_and_one_heap_at_the_end() {
        let fields =
            vec![Field::ragged::<f32>("boxes", 5), Field::scalar::<u8>("n"), Field::ragged::<i32>("ids", 4)];
        let s = spec(fields.clone(), 4);
        assert_eq!((s.offset("boxes"), s.offset("n"), s.offset("ids")), (Some(256), Some(512), Some(768)));
        assert_eq!(s.heap(), 1024..1024 + 4 * 32 + 4 * 16);
        let bounded = BatchSpec::new(fields, 4, Some(100)).unwrap();
        assert_eq!(bounded.heap(), 1024..1024 + 112);
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused_with_a_reason() {
        let kind = |fields, capacity| BatchSpec::new(fields, capacity, None).unwrap_err().kind();
        assert_eq!(kind(vec![Field::scalar::<u8>("a")], 0), ErrorKind::InvalidConfig);
        assert_eq!(kind(vec![], 1), ErrorKind::InvalidConfig);
        assert_eq!(kind(vec![Field::scalar::<u8>("valid")], 1), ErrorKind::InvalidConfig);
        assert_eq!(
            kind(vec![Field::scalar::<u8>("a"), Field::scalar::<u8>("a")], 1),
            ErrorKind::InvalidConfig
        );
        assert_eq!(kind(vec![Field::new::<u8>("a", &[3, 0])], 1), ErrorKind::InvalidConfig);
        assert_eq!(kind(vec![Field::new::<u64>("a", &[usize::MAX])], 1), ErrorKind::LimitExceeded);
        assert_eq!(kind(vec![Field::new::<u64>("a", &[usize::MAX / 64])], 9), ErrorKind::LimitExceeded);
        assert_eq!(kind(vec![Field::ragged::<u64>("a", usize::MAX / 8)], 2), ErrorKind::LimitExceeded);
    }

    #[test]
    fn a_wrong_name_or_dtype_lists_what_exists() {
        let s = spec(vec![Field::new::<u8>("image", &[2]), Field::host("key")], 1);
        let e = s.column("imge").unwrap_err().to_string();
        assert!(e.contains("image: u8[2]") && e.contains("key"), "{e}");
        let e = s.column("image").unwrap().expect::<f32>().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DTypeMismatch);
        assert!(e.to_string().contains("image: u8[2]") && e.to_string().contains("f32"));
        assert!(s.column("key").unwrap().expect::<u8>().is_err());
    }

    #[test]
    fn only_zero_and_one_are_bools() {
        assert!(bool::accepts(&[0, 1]) && !bool::accepts(&[2]) && u8::accepts(&[2]));
    }
}
