//! Where samples come from.

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
