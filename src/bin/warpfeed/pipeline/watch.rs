//! Which samples have been decoded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use warpfeed::decode::{Decode, Sample};
use warpfeed::sampler::{Sampler, Shuffle};
use warpfeed::source::Source;
use warpfeed::{Field, FieldKind, Result, Row};

use super::lock;

/// How a position tells the number of its batch, over all epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    pub(super) epoch_batches: u64,
    pub(super) batch_size: u64,
}

impl Numbers {
    pub(super) fn of(&self, epoch: u64, position: u64) -> u64 {
        epoch * self.epoch_batches + position / self.batch_size
    }
}

/// Counts samples, and notes when the last one that is used was decoded.
pub(super) struct Watch {
    /// Samples that were decoded.
    pub(super) count: AtomicU64,
    /// The epoch of the last batch that is used, and which samples are in it.
    last: (u64, Box<dyn Fn(u64) -> bool + Send + Sync>),
    pub(super) decoded: Mutex<Option<Instant>>,
}

impl Watch {
    /// `order` is that of the samples; `None`: the source's.
    pub(super) fn new(numbers: Numbers, last: u64, order: Option<&Shuffle>) -> Self {
        let (epoch, batch) = (last / numbers.epoch_batches, last % numbers.epoch_batches);
        let positions = batch * numbers.batch_size..(batch + 1) * numbers.batch_size;
        let is_last: Box<dyn Fn(u64) -> bool + Send + Sync> = match order {
            None => Box::new(move |index| positions.contains(&index)),
            Some(order) => {
                let positions = positions.start..positions.end.min(order.len());
                let mut indices: Vec<u64> = positions.map(|at| order.index(epoch, at)).collect();
                indices.sort_unstable();
                Box::new(move |index| indices.binary_search(&index).is_ok())
            }
        };
        Self { count: AtomicU64::new(0), last: (epoch, is_last), decoded: Mutex::new(None) }
    }

    fn see(&self, epoch: u64, index: u64) {
        self.count.fetch_add(1, Relaxed);
        let (last, holds) = &self.last;
        if epoch == *last && holds(index) {
            *lock(&self.decoded) = Some(Instant::now());
        }
    }
}

/// A decoder whose samples are counted, or one that leaves rows as they are.
pub(super) struct Watched<D> {
    pub(super) decode: D,
    /// The fields that are left as they are; `None`: they are written.
    pub(super) skip: Option<Vec<Field>>,
    pub(super) watch: Arc<Watch>,
}

impl<S: Source, D: Decode<S>> Decode<S> for Watched<D> {
    type Scratch = D::Scratch;

    fn fields(&self, source: &S) -> Result<Vec<Field>> {
        self.decode.fields(source)
    }

    fn decode(
        &self,
        sample: &mut Sample<'_, S>,
        scratch: &mut D::Scratch,
        row: &mut Row<'_>,
    ) -> anyhow::Result<()> {
        if let Some(fields) = &self.skip {
            for (number, field) in fields.iter().enumerate() {
                match field.kind() {
                    FieldKind::Fixed { .. } => _ = row.overwrite(number)?,
                    // Boxes: the one field of that kind that is loaded here.
                    FieldKind::Ragged { .. } => _ = row.ragged::<f32>(number, 0)?,
                    _ => _ = row.text(number)?,
                }
            }
            return Ok(());
        }
        self.decode.decode(sample, scratch, row)?;
        self.watch.see(sample.epoch(), sample.index());
        Ok(())
    }
}
