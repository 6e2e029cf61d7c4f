//! Where samples come from.
//!
//! | records | source |
//! |---|---|
//! | values in memory | [`from_vec`] |
//! | made by a function of the index | [`from_fn`] |
//! | fixed-size records in one or many files | [`RecordFile`] |
//! | images in folders, one a class | [`ImageFolder`] |
//! | images with boxes: YOLO label files, COCO annotations | [`Detection`] (feature `image`) |
//! | WebDataset tar shards, by index; plain, gzip or zstd in sequence | [`Shards`]; [`ShardStream`] (feature `tar`) |
//! | what an iterator gives, in its order | [`from_iter`], [`try_from_iter`]; opened anew: [`from_iter_fn`], [`try_from_iter_fn`] |
//!
//! [`open()`] looks what lies at a path, and opens that. [`SourceExt`] and [`concat()`] select from sources and join them; what they make is a source again.

#[cfg(test)]
mod contract;

mod bundle;
mod concat;
mod dataset;
#[cfg(feature = "image")]
mod detection;
mod files;
mod function;
mod image_folder;
mod memory;
mod path_list;
mod picture;
mod read_ahead;
mod record_file;
mod sequence;
#[cfg(feature = "tar")]
mod shards;
mod shuffle_buffer;
mod subset;
mod take;
mod walk;
mod whole_files;

use std::sync::Arc;

pub use bundle::Bundle;
pub use concat::{Concat, concat};
pub use dataset::{Dataset, open};
#[cfg(all(feature = "image", any(test, fuzzing)))]
#[doc(hidden)]
pub use detection::fuzzing as detection_fuzzing;
#[cfg(feature = "image")]
pub use detection::{BadLabel, Detection, DetectionCounts, DetectionOptions, OnBadLabel};
pub use function::{Function, from_fn};
pub use image_folder::{FolderReport, ImageFolder, ImageFolderOptions};
pub use memory::{Memory, from_vec};
pub use picture::{LabelBox, Labels, Picture, PictureRecord, Pictures, Unit};
pub use record_file::{RecordFile, RecordLayout};
pub use sequence::{Sequence, from_iter, from_iter_fn, try_from_iter, try_from_iter_fn};
#[cfg(all(feature = "tar", any(test, fuzzing)))]
#[doc(hidden)]
pub use shards::fuzzing as shards_fuzzing;
#[cfg(feature = "tar")]
pub use shards::{OnDamage, ShardOptions, ShardReport, ShardStream, Shards, Skipped};
pub use shuffle_buffer::ShuffleBuffer;
pub use subset::Subset;
pub use take::Take;
pub use walk::{LeftOut, SkipReason};

use crate::error::{Error, ErrorKind, Place, Result};

/// A set of records that workers read, each by its index; or, where [`Source::len`] is `None`, a sequence
/// that is pulled in order.
///
/// A source is shared by all workers. What a read needs beyond that (a buffer, an owned record) lives in
/// `Scratch`: one a worker for indexed sources, one a row for sequences. It is reused, never shared.
pub trait Source: Send + Sync + 'static {
    /// What a decoder sees of one record, by reference: `[u8]`, or a type of the user's.
    type Record: ?Sized;
    /// Memory that a reader reuses from record to record.
    type Scratch: Default + Send + 'static;

    /// How many records there are; `None` for a sequence of unknown length.
    fn len(&self) -> Option<u64>;

    /// Whether there is certainly no record.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// A number that stays the same as long as the same index means the same record. A saved state is
    /// refused under another one.
    fn fingerprint(&self) -> u64;

    /// Where record `index` lies: path, shard, member, offset, as far as the source knows.
    fn describe(&self, index: u64) -> Place {
        Place::of_index(index)
    }

    /// Record `index`. For a sequence: the record that [`Source::pull`] left in `scratch`.
    ///
    /// # Errors
    /// Whatever keeps this one record from being read, with its place.
    fn read<'a>(&'a self, index: u64, scratch: &'a mut Self::Scratch) -> Result<&'a Self::Record>;

    /// Tells which records will be read next, in order, so that a source on a disk can fetch them ahead.
    /// Called by one thread; must not wait.
    fn hint(&self, _upcoming: &[u64]) {}

    /// Starts `epoch` of a sequence. `false`: the sequence can be read once and has been.
    ///
    /// # Errors
    /// Whatever keeps the sequence from being opened.
    fn open(&self, _epoch: u64) -> Result<bool> {
        Ok(true)
    }

    /// Takes the next record of a sequence into `scratch`; `false` at its end. A record that can't be had
    /// is an error, and the call after it takes the next one.
    ///
    /// # Errors
    /// [`ErrorKind::NotResumable`] on an indexed source; else whatever keeps the record from being read.
    fn pull(&self, _scratch: &mut Self::Scratch) -> Result<bool> {
        Err(Error::new(ErrorKind::NotResumable, "an indexed source is read by index"))
    }

    /// Whether `open` can start a sequence again from its first record, with the same records.
    fn reopens(&self) -> bool {
        true
    }
}

/// A part of a fixed-size record that becomes a field of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Name, dtype and shape.
    pub field: crate::spec::Field,
    /// The bytes of the record that hold it.
    pub range: std::ops::Range<usize>,
}

#[diagnostic::on_unimplemented(
    message = "`{Self}` has no records of a fixed size: give the builder a decoder, `.decode(..)` or `.decode_with(fields, |sample, row| ..)`"
)]
/// A source of fixed-size records whose bytes go straight into the rows of a batch.
pub trait Records: Source<Record = [u8]> {
    /// The parts of a record, in the order of their fields.
    fn parts(&self) -> &[Part];

    /// Reads each part of record `index` into the row that waits for it: `rows[k]` is as long as
    /// `parts()[k].range`.
    ///
    /// # Errors
    /// As [`Source::read`].
    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()>;
}

/// Selections of a source, as methods.
pub trait SourceExt: Source + Sized {
    /// The records `indices` of this source, in that order; an index may come more than once. 4 bytes of
    /// memory an index (8 where the source holds more than 2³² records).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an index outside the source, and on a sequence.
    fn subset(self, indices: impl IntoIterator<Item = u64>) -> Result<Subset<Self>> {
        Subset::new(Arc::new(self), indices)
    }

    /// The first `n` records, or all where there are fewer. Of a sequence: the first `n` of each opening, a
    /// record that can't be had counted.
    fn take(self, n: u64) -> Take<Self> {
        Take::new(self, n)
    }

    /// Two disjoint parts that cover the source: the first holds `fraction` of the records (rounded to the
    /// nearest number), drawn without replacement and keyed by `seed` alone; the second holds the rest. Both keep the
    /// source's order and share the source.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a fraction outside 0 to 1, and on a sequence.
    fn split(self, fraction: f64, seed: u64) -> Result<(Subset<Self>, Subset<Self>)> {
        Subset::split(Arc::new(self), fraction, seed)
    }

    /// Shuffles a sequence within a buffer of `capacity` records: see [`ShuffleBuffer`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on an indexed source, which the sampler shuffles as a whole.
    fn shuffle_buffer(self, capacity: usize, seed: u64) -> Result<ShuffleBuffer<Self>> {
        ShuffleBuffer::new(self, capacity, seed)
    }
}

impl<S: Source> SourceExt for S {}

impl<S: Source> Source for Arc<S> {
    type Record = S::Record;
    type Scratch = S::Scratch;

    fn len(&self) -> Option<u64> {
        (**self).len()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn fingerprint(&self) -> u64 {
        (**self).fingerprint()
    }

    fn describe(&self, index: u64) -> Place {
        (**self).describe(index)
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Self::Scratch) -> Result<&'a Self::Record> {
        (**self).read(index, scratch)
    }

    fn hint(&self, upcoming: &[u64]) {
        (**self).hint(upcoming);
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        (**self).open(epoch)
    }

    fn pull(&self, scratch: &mut Self::Scratch) -> Result<bool> {
        (**self).pull(scratch)
    }

    fn reopens(&self) -> bool {
        (**self).reopens()
    }
}

impl<S: Records> Records for Arc<S> {
    fn parts(&self) -> &[Part] {
        (**self).parts()
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        (**self).read_into(index, rows)
    }
}

/// The length of a source that has to be read by index.
fn known_len(source: &impl Source, what: &str) -> Result<u64> {
    source.len().ok_or_else(|| {
        let text =
            format!("{what} needs a source that is read by index; this one is a sequence of unknown length");
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

fn out_of_range(index: u64, len: u64) -> Error {
    let text = format!("there is no record {index}: the source has {len}");
    Error::new(ErrorKind::InvalidArgument, text).at(Place::of_index(index))
}

/// An error of an inner source under the index that the outer source knows the record by. Where the two
/// differ, the inner error stays as the cause.
fn renumbered(error: Error, index: u64) -> Error {
    match error.place().index {
        Some(inner) if inner != index => {
            let place = Place { index: Some(index), ..error.place().clone() };
            Error::new(error.kind(), error.message()).at(place).caused_by(error)
        }
        _ => error.at(Place::of_index(index)),
    }
}
