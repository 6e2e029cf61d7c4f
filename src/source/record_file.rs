//! Fixed-size records in files.

use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::files::{self, Files, Stamp};
use super::path_list::PathList;
use super::read_ahead::{Advise, ReadAhead, Residence, residence_of_file, residence_of_map, will_need_file};
use super::{Part, Records, Source, out_of_range};
use crate::copy;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{key, key_of_bytes};
use crate::spec::{Field, FieldKind, MAX_FIELDS};

/// How a file is cut into records: a size in bytes is enough, `RecordLayout::new(size).header(n)` says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLayout {
    record_bytes: usize,
    header_bytes: u64,
}

impl RecordLayout {
    /// Records of `record_bytes` bytes from the first byte of a file to its last.
    pub fn new(record_bytes: usize) -> Self {
        Self { record_bytes, header_bytes: 0 }
    }

    /// Skips the first `bytes` bytes of every file.
    #[must_use]
    pub fn header(mut self, bytes: u64) -> Self {
        self.header_bytes = bytes;
        self
    }

    /// How many records a file of `bytes` bytes holds.
    fn count(&self, path: &Path, bytes: u64) -> Result<u64> {
        let (record, header) = (self.record_bytes as u64, self.header_bytes);
        let truncated = |text| {
            let place = Place { path: Some(path.to_path_buf()), ..Place::default() };
            Error::new(ErrorKind::Truncated, text).at(place)
        };
        let Some(body) = bytes.checked_sub(header) else {
            return Err(truncated(format!("the file has {bytes} bytes, its header alone {header}")));
        };
        let (count, rest) = (body / record, body % record);
        if rest == 0 {
            return Ok(count);
        }
        let behind = if header > 0 { format!(" behind a header of {header}") } else { String::new() };
        let text = format!(
            "the file has {body} bytes{behind}: {count} records of {record} bytes and {rest} bytes more"
        );
        let offset = Some(header + count * record);
        Err(truncated(text).at(Place { offset, ..Place::default() }))
    }
}

impl From<usize> for RecordLayout {
    fn from(record_bytes: usize) -> Self {
        Self::new(record_bytes)
    }
}

/// A source of fixed-size records in one or many files, in the order of the files. A record is its bytes; its
/// [parts](RecordFile::part) become the fields of a batch, and go from the file straight into their rows.
///
/// ```no_run
/// use warpfeed::{Field, source::{RecordFile, SourceExt}};
/// // CIFAR-10: a label and 32 × 32 pixels in three planes.
/// let cifar = RecordFile::open_all((1..=5).map(|i| format!("data_batch_{i}.bin")), 3073)?
///     .part(Field::scalar::<u8>("label"), 0..1)?
///     .part(Field::new::<u8>("image", &[3, 32, 32]), 1..3073)?;
/// let (train, val) = cifar.split(0.9, 7)?;
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// Files are read by position (one `pread`, or one `preadv` where the parts follow one another), or copied from
/// a memory map. Up to 1,024 files, or a quarter of the process's limit, stay open all the time and are read
/// without a lock. Of more files 16 stay open, and up to two a reader while it reads.
///
/// The kernel's read-ahead keeps its defaults, which serve sequential reads and leave random ones alone; what will
/// be read at random is told by [`Source::hint`]. On a warm cache a hint costs next to nothing.
///
/// The fingerprint is made from the names of the files (without their directories), their numbers of records, the layout and the
/// parts, so that data may move to another place; it does not see the bytes.
///
/// # Errors
/// A file whose size is no whole number of records is refused when it is opened. One that has become shorter since, or
/// is another one when it is opened again, is an error of the record ([`ErrorKind::Truncated`],
/// [`ErrorKind::Corrupt`]) that names path and offset. Bytes that are overwritten in place go unnoticed.
#[derive(Debug)]
pub struct RecordFile {
    layout: RecordLayout,
    parts: Vec<Part>,
    /// Whether the parts were declared; else there is the one that holds the whole record.
    declared: bool,
    /// Whether each part starts where the one before it ends.
    contiguous: bool,
    /// The first record of each file; their total at the end.
    firsts: Vec<u64>,
    /// What the fingerprint knows of the files.
    names: u64,
    bytes: Bytes,
    ahead: ReadAhead,
}

#[derive(Debug)]
enum Bytes {
    Read(Files),
    Mapped { paths: PathList, maps: Vec<Option<Mmap>> },
}

impl RecordFile {
    /// Opens one file of records, to be read by position.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for records of no bytes, [`ErrorKind::Io`] where the file can't be opened or is
    /// none, [`ErrorKind::Truncated`] where its size is no whole number of records.
    pub fn open(path: impl AsRef<Path>, layout: impl Into<RecordLayout>) -> Result<Self> {
        Self::open_all([path], layout)
    }

    /// Opens many files of records, to be read by position. Each is opened once here and its size recorded.
    ///
    /// # Errors
    /// As [`RecordFile::open`]; [`ErrorKind::InvalidConfig`] also for no files.
    pub fn open_all(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        layout: impl Into<RecordLayout>,
    ) -> Result<Self> {
        let mut index = Index::new(layout.into())?;
        let files = Files::open(paths, |path, stamp| index.add(path, stamp))?;
        index.finish(Bytes::Read(files))
    }

    /// Maps one file of records into memory. [`Source::read`] is then a slice of the map, without a copy.
    ///
    /// # Errors
    /// As [`RecordFile::open`].
    ///
    /// # Safety
    /// As long as this source lives nobody, in this process or another, changes or shortens the file. A read of a
    /// mapped file that has become shorter kills the process (`SIGBUS`); one that changes while it is
    /// read is undefined behaviour. Where that can't be promised use [`RecordFile::open`]: there a file that has
    /// become shorter is an error of the records that it lacks.
    pub unsafe fn map(path: impl AsRef<Path>, layout: impl Into<RecordLayout>) -> Result<Self> {
        // SAFETY: the caller keeps the contract for the one file.
        unsafe { Self::map_all([path], layout) }
    }

    /// Maps many files of records into memory: one mapping each, of which Linux allows a process 65,530
    /// unless told otherwise. No descriptor stays open.
    ///
    /// # Errors
    /// As [`RecordFile::open_all`].
    ///
    /// # Safety
    /// As [`RecordFile::map`], for every file.
    pub unsafe fn map_all(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        layout: impl Into<RecordLayout>,
    ) -> Result<Self> {
        let mut index = Index::new(layout.into())?;
        let (mut list, mut maps) = (PathList::default(), Vec::new());
        for path in paths {
            let path = path.as_ref();
            let (file, stamp) = files::open(path)?;
            index.add(path, stamp)?;
            list.push(path);
            // SAFETY: the caller promises that nobody changes or shortens the file while it is mapped.
            let map = (stamp.bytes > 0).then(|| unsafe { Mmap::map(&file) }).transpose();
            maps.push(map.map_err(|e| Error::io(path, "the file can't be mapped", e))?);
        }
        list.shrink();
        index.finish(Bytes::Mapped { paths: list, maps })
    }

    /// Declares a part of the record as a field: `range` are its bytes, in the machine's byte order, as many as the
    /// field's dtype and shape take. Parts may overlap, and need not cover the record. Where none
    /// is declared there is one, `record: u8[record_bytes]`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a range that is empty, outside the record or of another length than the field,
    /// for a field that is not of fixed shape, and for a name that is taken.
    pub fn part(mut self, field: Field, range: Range<usize>) -> Result<Self> {
        let refused = |text| Err(Error::new(ErrorKind::InvalidConfig, text));
        if !self.declared {
            self.parts.clear();
            self.declared = true;
        }
        let FieldKind::Fixed { shape } = field.kind() else {
            return refused(format!("a part of a record has a fixed shape; {field} has none"));
        };
        let bytes = shape.iter().try_fold(field.dtype().size(), |n, &d| n.checked_mul(d));
        if range.is_empty() || range.end > self.layout.record_bytes {
            let record = self.layout.record_bytes;
            return refused(format!("bytes {range:?} for {field} are not within a record of {record} bytes"));
        }
        if bytes != Some(range.len()) {
            let bytes = bytes.map_or("more than can be addressed".to_string(), |n| n.to_string());
            return refused(format!("{field} takes {bytes} bytes, the range {range:?} has {}", range.len()));
        }
        if self.parts.iter().any(|part| part.field.name() == field.name()) {
            return refused(format!("two parts are named {:?}", field.name()));
        }
        if self.parts.len() == MAX_FIELDS {
            return refused(format!("a record has at most {MAX_FIELDS} parts"));
        }
        self.contiguous =
            self.parts.last().is_none_or(|last| self.contiguous && last.range.end == range.start);
        self.parts.push(Part { field, range });
        Ok(self)
    }

    fn total(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// The number of the file that holds a record, and the record's offset in it.
    fn locate(&self, index: u64) -> Option<(usize, u64)> {
        if index >= self.total() {
            return None;
        }
        let file = self.firsts.partition_point(|&first| first <= index).checked_sub(1)?;
        let record = index - self.firsts.get(file)?;
        Some((file, self.layout.header_bytes + record * self.layout.record_bytes as u64))
    }

    fn found(&self, index: u64) -> Result<(usize, u64)> {
        self.locate(index).ok_or_else(|| out_of_range(index, self.total()))
    }

    fn paths(&self) -> &PathList {
        match &self.bytes {
            Bytes::Read(files) => &files.paths,
            Bytes::Mapped { paths, .. } => paths,
        }
    }
}

/// The record at `offset` of a map.
fn mapped(maps: &[Option<Mmap>], file: usize, offset: u64, bytes: usize) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    maps.get(file)?.as_ref()?.get(start..start.checked_add(bytes)?)
}

fn not_mapped() -> Error {
    Error::new(ErrorKind::Corrupt, "the record is not within the map of its file")
}

impl Source for RecordFile {
    type Record = [u8];
    type Scratch = Vec<u8>;

    fn len(&self) -> Option<u64> {
        Some(self.total())
    }

    fn fingerprint(&self) -> u64 {
        let RecordLayout { record_bytes, header_bytes } = self.layout;
        let start = key(&[u64::from_le_bytes(*b"records\0"), record_bytes as u64, header_bytes, self.names]);
        self.parts.iter().fold(start, |h, Part { field, range }| {
            key(&[h, key_of_bytes(field.to_string().as_bytes()), range.start as u64, range.end as u64])
        })
    }

    fn describe(&self, index: u64) -> Place {
        let found = self.locate(index).map(|(file, offset)| (self.paths().get(file).to_path_buf(), offset));
        let (path, offset) = found.unzip();
        Place { path, offset, ..Place::of_index(index) }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let (file, offset) = self.found(index)?;
        let record = self.layout.record_bytes;
        match &self.bytes {
            Bytes::Mapped { maps, .. } => {
                mapped(maps, file, offset, record).ok_or_else(|| not_mapped().at(self.describe(index)))
            }
            Bytes::Read(files) => {
                scratch.resize(record, 0);
                let read = files.read(file, offset, &mut [scratch.as_mut_slice()]);
                read.map_err(|e| e.at(Place::of_index(index)))?;
                Ok(scratch)
            }
        }
    }

    fn hint(&self, upcoming: &[u64]) {
        let record = self.layout.record_bytes as u64;
        let ranges = upcoming.iter().filter_map(|&index| {
            let (file, offset) = self.locate(index)?;
            Some((file, offset..offset + record))
        });
        self.ahead.advise(&self.bytes, ranges);
    }
}

impl Records for RecordFile {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        let (file, offset) = self.found(index)?;
        let fits = |(row, part): (&&mut [u8], &Part)| row.len() == part.range.len();
        if rows.len() != self.parts.len() || !rows.iter().zip(&self.parts).all(fits) {
            let lens: Vec<usize> = rows.iter().map(|row| row.len()).collect();
            let wanted: Vec<usize> = self.parts.iter().map(|part| part.range.len()).collect();
            let text = format!("the rows have {lens:?} bytes, the parts of the record {wanted:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text).at(Place::of_index(index)));
        }
        match &self.bytes {
            Bytes::Mapped { maps, .. } => {
                let record = mapped(maps, file, offset, self.layout.record_bytes);
                let record = record.ok_or_else(|| not_mapped().at(self.describe(index)))?;
                for (row, part) in rows.iter_mut().zip(&self.parts) {
                    let bytes = record.get(part.range.clone()).unwrap_or_default();
                    let len = bytes.len().min(row.len()); // equal, as checked above
                    // SAFETY: 1. `bytes` is readable and `row` writable for `len` bytes, by the line above; 2. they do
                    // not overlap: a row is borrowed mutably, the map is borrowed from self; 3. the fence below
                    // comes before anybody else can use the row.
                    unsafe { copy::copy(row.as_mut_ptr(), bytes.as_ptr(), len) };
                }
                copy::fence();
                Ok(())
            }
            Bytes::Read(files) => {
                let read = if self.contiguous {
                    let start = self.parts.first().map_or(0, |part| part.range.start);
                    files.read(file, offset + start as u64, rows)
                } else {
                    rows.iter_mut().zip(&self.parts).try_for_each(|(row, part)| {
                        files.read(file, offset + part.range.start as u64, std::slice::from_mut(row))
                    })
                };
                read.map_err(|e| e.at(Place::of_index(index)))
            }
        }
    }
}

impl Advise for Bytes {
    fn residence(&self, file: usize, at: u64) -> Residence {
        match self {
            Self::Read(files) => {
                files.with(file, |file| residence_of_file(file, at)).unwrap_or(Residence::Unknown)
            }
            Self::Mapped { maps, .. } => maps
                .get(file)
                .and_then(Option::as_ref)
                .map_or(Residence::Unknown, |map| residence_of_map(map, at)),
        }
    }

    fn will_need(&self, file: usize, range: Range<u64>) {
        match self {
            Self::Read(files) => drop(files.with(file, |file| will_need_file(file, range))),
            Self::Mapped { maps, .. } => {
                if let Some(Some(map)) = maps.get(file) {
                    // A refusal means no read-ahead, nothing else.
                    let len = (range.end - range.start) as usize;
                    let _ = map.advise_range(memmap2::Advice::WillNeed, range.start as usize, len);
                }
            }
        }
    }
}

/// What becomes known of the files as they are opened.
struct Index {
    layout: RecordLayout,
    firsts: Vec<u64>,
    names: u64,
    empty: u64,
    first_empty: Option<std::path::PathBuf>,
}

impl Index {
    fn new(layout: RecordLayout) -> Result<Self> {
        if layout.record_bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidConfig, "a record has at least 1 byte, not 0"));
        }
        Ok(Self { layout, firsts: vec![0], names: 0, empty: 0, first_empty: None })
    }

    fn add(&mut self, path: &Path, stamp: Stamp) -> Result<()> {
        let count = self.layout.count(path, stamp.bytes)?;
        let total = self.firsts.last().copied().unwrap_or(0).checked_add(count);
        let total = total.ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "more than 2⁶⁴ records"))?;
        self.firsts.push(total);
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        self.names = key(&[self.names, key_of_bytes(name), count]);
        if count == 0 {
            self.empty += 1;
            self.first_empty.get_or_insert_with(|| path.to_path_buf());
        }
        Ok(())
    }

    fn finish(mut self, bytes: Bytes) -> Result<RecordFile> {
        let files = self.firsts.len() - 1;
        if files == 0 {
            return Err(Error::new(ErrorKind::InvalidConfig, "there are no files to read records from"));
        }
        if let Some(first) = self.first_empty {
            tracing::warn!(
                "{} of {files} record files hold no records, the first of them {}",
                self.empty,
                first.display()
            );
        }
        self.firsts.shrink_to_fit();
        let record = self.layout.record_bytes;
        let whole = Part { field: Field::new::<u8>("record", &[record]), range: 0..record };
        Ok(RecordFile {
            layout: self.layout,
            parts: vec![whole],
            declared: false,
            contiguous: true,
            firsts: self.firsts,
            names: self.names,
            bytes,
            ahead: ReadAhead::default(),
        })
    }
}

#[cfg(test)]
mod tests;
