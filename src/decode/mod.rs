//! From a record to its row of a batch.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::random::SampleRng;
use crate::row::{Row, RowBlock};
use crate::source::{Records, Source};
use crate::spec::Field;

#[cfg(feature = "image")]
mod image;
mod raw;

#[cfg(feature = "image")]
pub use image::{BoxFormat, Geometry, Image, ImageCounts, ImageScratch, OnTruncated, Orientation, codec};
pub use raw::Raw;

/// Writes samples into their rows. Shared by all workers; what a worker needs for itself lives in `Scratch`.
///
/// The rows must be a pure function of the record and of [`Sample::rng`]: that is what makes a run
/// the same on any number of workers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't decode the records of `{S}`",
    note = "give the builder a decoder: `.decode(..)`, or `.decode_with(fields, |sample, row| ..)`"
)]
pub trait Decode<S: Source>: Send + Sync + 'static {
    /// Memory that a worker reuses from sample to sample.
    type Scratch: Default + Send + 'static;

    /// The fields that [`Decode::decode`] writes, in order.
    ///
    /// # Errors
    /// Whatever keeps the source's records from having fields.
    fn fields(&self, source: &S) -> Result<Vec<Field>>;

    /// Writes every field of one sample into `row`.
    ///
    /// # Errors
    /// What is returned becomes a fault of this sample, handled by the loader's policy.
    fn decode(
        &self,
        sample: &mut Sample<'_, S>,
        scratch: &mut Self::Scratch,
        row: &mut Row<'_>,
    ) -> anyhow::Result<()>;

    /// Writes every field of several samples into consecutive rows, where that is cheaper than one by one; `false`
    /// where the decoder does not do that, and none was written. What fails here is decoded again one by one, so
    /// that the sample which fails is known.
    ///
    /// # Errors
    /// Whatever keeps one of the samples from being decoded.
    fn decode_run(
        &self,
        _samples: &mut Samples<'_, S>,
        _scratch: &mut Self::Scratch,
        _rows: &mut RowBlock<'_>,
    ) -> anyhow::Result<bool> {
        Ok(false)
    }
}

/// Several samples on their way into a batch.
pub struct Samples<'a, S: Source> {
    source: &'a S,
    scratch: &'a mut S::Scratch,
    seed: u64,
    epoch: u64,
    indices: &'a [u64],
}

impl<'a, S: Source> Samples<'a, S> {
    pub(crate) fn new(
        source: &'a S,
        scratch: &'a mut S::Scratch,
        [seed, epoch]: [u64; 2],
        indices: &'a [u64],
    ) -> Self {
        Self { source, scratch, seed, epoch, indices }
    }

    /// Their indices in the source, in the order of the rows.
    pub fn indices(&self) -> &'a [u64] {
        self.indices
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The source.
    pub fn source(&self) -> &'a S {
        self.source
    }

    /// The generator of sample `index`: as [`Sample::rng`].
    pub fn rng(&self, index: u64) -> SampleRng {
        SampleRng::new(self.seed, self.epoch, index)
    }

    /// Record `index`.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read(&mut self, index: u64) -> Result<&S::Record> {
        self.source.read(index, self.scratch)
    }
}

/// One sample on its way into a batch.
pub struct Sample<'a, S: Source> {
    source: &'a S,
    scratch: &'a mut S::Scratch,
    seed: u64,
    epoch: u64,
    index: u64,
    clock: Option<&'a mut Duration>,
    /// 1 while reading, for the message of a timeout.
    reading: &'a AtomicU8,
}

impl<'a, S: Source> Sample<'a, S> {
    pub(crate) fn new(
        source: &'a S,
        scratch: &'a mut S::Scratch,
        [seed, epoch, index]: [u64; 3],
        clock: Option<&'a mut Duration>,
        reading: &'a AtomicU8,
    ) -> Self {
        Self { source, scratch, seed, epoch, index, clock, reading }
    }

    /// The sample's index in the source.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The source.
    pub fn source(&self) -> &'a S {
        self.source
    }

    /// A generator keyed by (seed, epoch, index). Each call gives a fresh one, which draws the same numbers; take it before
    /// [`Sample::read`], whose record borrows the sample.
    pub fn rng(&self) -> SampleRng {
        SampleRng::new(self.seed, self.epoch, self.index)
    }

    /// The record.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read(&mut self) -> Result<&S::Record> {
        let start = self.begin_read();
        let record = self.source.read(self.index, self.scratch);
        if record.is_ok() {
            end_read(&mut self.clock, start, self.reading);
        }
        record
    }
}

impl<S: Source> Sample<'_, S> {
    fn begin_read(&self) -> Option<Instant> {
        self.reading.store(1, Relaxed);
        self.clock.is_some().then(Instant::now)
    }
}

/// Not called after a failed read: the error's stage is then still "read".
fn end_read(clock: &mut Option<&mut Duration>, start: Option<Instant>, reading: &AtomicU8) {
    if let (Some(clock), Some(start)) = (clock, start) {
        **clock += start.elapsed();
    }
    reading.store(0, Relaxed);
}

impl<S: Records> Sample<'_, S> {
    /// Reads the record's parts straight into the first `source.parts().len()` fields of `row`.
    ///
    /// # Errors
    /// As [`Records::read_into`].
    pub fn read_into(&mut self, row: &mut Row<'_>) -> Result<()> {
        let start = self.begin_read();
        let n = self.source.parts().len();
        let result = if n == 1 {
            self.source.read_into(self.index, &mut [row.overwrite(0)?])
        } else {
            let mut parts: [&mut [u8]; crate::spec::MAX_FIELDS] = std::array::from_fn(|_| Default::default());
            row.overwrite_first(n, &mut parts)?;
            self.source.read_into(self.index, &mut parts[..n])
        };
        if result.is_ok() {
            end_read(&mut self.clock, start, self.reading);
        }
        result
    }
}

/// A decoder made of a list of fields and a closure.
pub struct DecodeFn<F> {
    fields: Vec<Field>,
    decode: F,
}

impl<F> DecodeFn<F> {
    pub(crate) fn new(fields: Vec<Field>, decode: F) -> Self {
        Self { fields, decode }
    }
}

impl<S, F> Decode<S> for DecodeFn<F>
where
    S: Source,
    F: Fn(&mut Sample<'_, S>, &mut Row<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
{
    type Scratch = ();

    fn fields(&self, _source: &S) -> Result<Vec<Field>> {
        Ok(self.fields.clone())
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        (self.decode)(sample, row)
    }
}

/// A decoder made of a list of fields and a closure that writes a run of rows at once.
pub struct DecodeRuns<F>(DecodeFn<F>);

impl<F> DecodeRuns<F> {
    pub(crate) fn new(fields: Vec<Field>, decode: F) -> Self {
        Self(DecodeFn { fields, decode })
    }
}

impl<S, F> Decode<S> for DecodeRuns<F>
where
    S: Source,
    F: Fn(&mut Samples<'_, S>, &mut RowBlock<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
{
    type Scratch = ();

    fn fields(&self, _source: &S) -> Result<Vec<Field>> {
        Ok(self.0.fields.clone())
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        let indices = [sample.index];
        let key = [sample.seed, sample.epoch];
        let mut samples = Samples::new(sample.source, sample.scratch, key, &indices);
        row.with_block(|block| (self.0.decode)(&mut samples, block))
    }

    fn decode_run(
        &self,
        samples: &mut Samples<'_, S>,
        (): &mut (),
        rows: &mut RowBlock<'_>,
    ) -> anyhow::Result<bool> {
        (self.0.decode)(samples, rows).map(|()| true)
    }
}

/// Decodes a run of rows at once; `false` where the decoder does not, or one of them failed.
pub(crate) fn decode_block<S: Source, D: Decode<S>>(
    decode: &D,
    samples: &mut Samples<'_, S>,
    scratch: &mut D::Scratch,
    block: &mut RowBlock<'_>,
) -> bool {
    matches!(decode.decode_run(samples, scratch, block), Ok(true)) && block.finish().is_ok()
}

/// Decodes one row, checks that it is whole, and says what went wrong otherwise. Panics pass through.
pub(crate) fn decode_row<S: Source, D: Decode<S>>(
    decode: &D,
    sample: &mut Sample<'_, S>,
    scratch: &mut D::Scratch,
    row: &mut Row<'_>,
) -> Result<()> {
    decode.decode(sample, scratch, row).map_err(Error::from_user)?;
    row.finish()
}
