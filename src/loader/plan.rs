//! What is left of an epoch, batch by batch.

use std::collections::HashSet;

use super::Shared;
use super::control::Start;
use super::feeder::WINDOW;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Cursor;

/// The rest of an epoch.
pub(crate) struct Plan {
    pub(crate) start: Start,
    /// `None` for a sequence.
    pub(crate) cursor: Option<Cursor>,
    /// Batches that were looked at so far.
    pub(crate) at: u64,
    /// Batches that were dispatched.
    pub(crate) sent: u64,
    pub(crate) ended: bool,
}

impl Plan {
    pub(crate) fn new(shared: &Shared, start: Start) -> Result<Self> {
        let mut plan = Self { start, cursor: None, at: 0, sent: 0, ended: false };
        if shared.work.len().is_some() {
            plan.cursor = Some(shared.cursor(start.position)?);
            if let Some(order) = shared.replay(start.epoch) {
                check_replay(order, start.number + plan.batches(shared), start)?;
            }
            return Ok(plan);
        }
        if !shared.work.open(start.epoch)? {
            tracing::warn!(
                "epoch {} is empty: the source can be read once, and has been; use `from_iter_fn` for more epochs",
                start.epoch
            );
            plan.ended = true;
            return Ok(plan);
        }
        if start.position > 0 && !shared.work.reopens() {
            let text = format!("a source that can be read once can't go on at position {}", start.position);
            return Err(Error::new(ErrorKind::NotResumable, text));
        }
        for _ in 0..start.position {
            if shared.control.is_closed() || !shared.work.skip() {
                plan.ended = true;
                break;
            }
        }
        Ok(plan)
    }

    /// Batches of the cursor.
    pub(crate) fn batches(&self, shared: &Shared) -> u64 {
        self.cursor.map_or(u64::MAX, |c| c.batches(shared.batch_size as u64, shared.drop_last))
    }

    /// The number of the `at`-th candidate: in order, or as a recorded permutation has it.
    fn candidate(&self, shared: &Shared, at: u64) -> Option<u64> {
        match (self.cursor, shared.replay(self.start.epoch)) {
            (Some(_), Some(order)) => order.get(at as usize).copied(),
            _ => (at < self.batches(shared)).then(|| self.start.number + at),
        }
    }

    fn is_delivered(&self, number: u64) -> bool {
        match number.checked_sub(self.start.number) {
            None => true,
            Some(k) => k < WINDOW && self.start.map >> k & 1 == 1,
        }
    }

    pub(crate) fn has_more(&mut self, shared: &Shared) -> bool {
        while let Some(number) = self.candidate(shared, self.at) {
            if self.ended {
                return false;
            }
            if !self.is_delivered(number) {
                return true;
            }
            if self.cursor.is_none()
                && !(0..shared.batch_size as u64 * shared.world).all(|_| shared.work.skip())
            {
                self.ended = true;
            }
            self.at += 1;
        }
        false
    }

    pub(crate) fn next(&mut self, shared: &Shared) -> Option<u64> {
        self.has_more(shared).then(|| self.candidate(shared, self.at)).flatten().inspect(|_| self.at += 1)
    }
}

/// A recorded order must be one of this epoch's batches, and one that a state can hold at any point.
fn check_replay(order: &[u64], batches: u64, start: Start) -> Result<()> {
    let distinct: HashSet<u64> = order.iter().copied().filter(|&n| n < batches).collect();
    if distinct.len() as u64 == batches && order.len() as u64 == batches {
        let mut delivered = vec![false; order.len()];
        let mut low = 0;
        for &number in order {
            if number >= low + WINDOW {
                let text = format!(
                    "the order to replay for epoch {} has batch {number} before batch {low}: batches may be at most \
                     {WINDOW} past the oldest undelivered one",
                    start.epoch
                );
                return Err(Error::new(ErrorKind::InvalidConfig, text));
            }
            delivered[number as usize] = true;
            while delivered.get(low as usize) == Some(&true) {
                low += 1;
            }
        }
        return Ok(());
    }
    let text = format!(
        "the order to replay for epoch {} is no permutation of its {batches} batches: it has {} entries, {} of them distinct",
        start.epoch,
        order.len(),
        distinct.len()
    );
    Err(Error::new(ErrorKind::InvalidConfig, text))
}
