//! What the consumer has been given.

use super::Shared;
use super::control::Start;
use super::feeder::WINDOW;
use crate::checkpoint::{Ahead, State};
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Cursor;

/// The position delivered, within the epoch that the consumer is in.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Where this epoch, or the rest of it, began.
    start: Start,
    /// `None` for a sequence.
    cursor: Option<Cursor>,
    /// The oldest batch that was not delivered, and those after it that were.
    low: u64,
    map: u64,
    /// Batch numbers in order of delivery, where that is not their order.
    order: Vec<u64>,
    /// The epoch failed at this position: the next one starts there.
    pub(crate) failed: bool,
}

impl Progress {
    pub(crate) fn new(shared: &Shared, start: Start) -> Result<Self> {
        let mut progress =
            Self { start, cursor: None, low: start.number, map: start.map, order: Vec::new(), failed: false };
        progress.begin(shared, start)?;
        let left = shared.batches(progress.cursor).unwrap_or(WINDOW).min(WINDOW);
        if start.map & 1 == 1 || start.map.checked_shr(left as u32).unwrap_or(0) != 0 {
            let text =
                format!("the saved state's map {:x} names batches that this epoch does not have", start.map);
            return Err(Error::new(ErrorKind::StateMismatch, text));
        }
        Ok(progress)
    }

    /// Moves to `start`. The recorded order is kept until the first batch behind it.
    pub(crate) fn begin(&mut self, shared: &Shared, start: Start) -> Result<()> {
        self.cursor = match shared.work.len() {
            Some(_) => Some(shared.cursor(start.position)?),
            None => None,
        };
        (self.start, self.low, self.map, self.failed) = (start, start.number, start.map, false);
        Ok(())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.start.epoch
    }

    /// A batch is delivered.
    pub(crate) fn deliver(&mut self, shared: &Shared, number: u64) {
        if !shared.in_order {
            if (self.low, self.map) == (self.start.number, self.start.map) {
                self.order.clear();
                self.order.reserve(shared.batches(self.cursor).map_or(0, |n| n.min(1 << 20) as usize));
            }
            self.order.push(number);
        }
        self.map |= number.checked_sub(self.low).filter(|&k| k < 64).map_or(0, |k| 1 << k);
        while self.map & 1 == 1 {
            self.map >>= 1;
            self.low += 1;
        }
    }

    pub(crate) fn low(&self) -> u64 {
        self.low
    }

    /// Batches of `epoch` that are not delivered yet.
    pub(crate) fn remaining(&self, shared: &Shared, epoch: u64) -> Option<u64> {
        let all = shared.batches(self.cursor)?;
        let ahead = u64::from(self.map.count_ones());
        Some(if epoch == self.start.epoch {
            (self.start.number + all).saturating_sub(self.low + ahead)
        } else {
            0
        })
    }

    pub(crate) fn order(&self) -> &[u64] {
        &self.order
    }

    /// Where feeding would go on.
    pub(crate) fn here(&self, shared: &Shared) -> Start {
        let batches = self.low - self.start.number;
        // An epoch that has no batch is over only once its end has been delivered.
        if shared.batches(self.cursor).is_some_and(|all| all > 0 && batches >= all) {
            return Start { epoch: self.start.epoch + 1, ..Start::default() };
        }
        let samples = batches * shared.batch_size as u64;
        let position = match self.cursor {
            Some(cursor) => cursor.global_after(samples),
            None => self.start.position + samples * shared.world,
        };
        Start { epoch: self.start.epoch, position, number: self.low, map: self.map }
    }

    pub(crate) fn state(&self, shared: &Shared, fingerprint: u64) -> State {
        let Start { epoch, position, map, .. } = self.here(shared);
        let ahead =
            (map != 0).then_some(Ahead { map, batch_size: shared.batch_size as u64, world: shared.world });
        State { epoch, position, fingerprint, ahead }
    }
}
