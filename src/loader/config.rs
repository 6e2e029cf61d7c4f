//! The options of a loader, and what is wrong with them.

use std::path::PathBuf;
use std::time::Duration;

use super::control::Start;
use super::fault::OnError;
use crate::checkpoint::State;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::{Remainder, Shard};
use crate::source::Source;

/// The order in which batches are delivered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// By number. Runs are the same whatever the threads do.
    #[default]
    InOrder,
    /// As they get ready, at most 64 batches past the oldest undelivered one, never across an epoch's end. The
    /// order is [recorded](super::Loader::delivered_order).
    AsReady,
    /// As recorded: for each epoch the numbers of its batches. Epochs behind the last are delivered in order.
    Replay(Vec<Vec<u64>>),
}

/// What `next` does when every device slot is held by a live batch and the next batch waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AllHeld {
    /// It returns [`ErrorKind::Exhausted`].
    #[default]
    Error,
    /// It waits this long for another thread to drop a batch, then returns that error.
    Wait(Duration),
}

/// Plain data; [`Builder`](super::Builder) has a method for each.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) batch_size: usize,
    pub(crate) workers: Option<usize>,
    pub(crate) host_slots: usize,
    pub(crate) device_slots: usize,
    pub(crate) host_budget: Option<usize>,
    pub(crate) device_budget: Option<usize>,
    pub(crate) max_batch_bytes: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) shard: Shard,
    pub(crate) remainder: Remainder,
    pub(crate) order: Order,
    pub(crate) on_error: OnError,
    pub(crate) quarantine: Option<PathBuf>,
    pub(crate) compact: bool,
    pub(crate) on_all_held: AllHeld,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drop_last: bool,
    pub(crate) epochs: Option<u64>,
    pub(crate) resume: Option<State>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: 1,
            workers: None,
            host_slots: 3,
            device_slots: 2,
            host_budget: None,
            device_budget: None,
            max_batch_bytes: None,
            seed: 0,
            shuffle: false,
            shard: Shard::WHOLE,
            remainder: Remainder::Pad,
            order: Order::InOrder,
            on_error: OnError::Fail,
            quarantine: None,
            compact: false,
            on_all_held: AllHeld::Error,
            timeout: None,
            drop_last: false,
            epochs: None,
            resume: None,
        }
    }
}

/// More slots or threads than this are a mistake: they would take minutes to make.
const MOST: usize = 4096;

impl Config {
    pub(crate) fn check(&self, length: Option<u64>, sampler: bool, init: bool, runtime: bool) -> Result<()> {
        let refuse = |text: &str| Err(Error::new(ErrorKind::InvalidConfig, text));
        if self.batch_size == 0 {
            return refuse("batch_size is 0: a batch has at least 1 sample");
        }
        if self.host_slots == 0 || self.device_slots == 0 {
            return refuse("host_slots and device_slots are at least 1 each");
        }
        if self.host_slots.max(self.device_slots) > MOST || self.workers.is_some_and(|n| n > MOST) {
            return refuse(&format!("host_slots, device_slots and workers are at most {MOST} each"));
        }
        if self.timeout.is_some_and(|t| t.is_zero()) {
            return refuse("a timeout of 0 lets no batch arrive: leave it out for no limit");
        }
        if sampler && self.shuffle {
            return refuse("`sampler` and `shuffle` both set the order: give one of them");
        }
        let own = [
            (init, "worker_init"),
            (self.workers.is_some(), "workers"),
            (self.host_budget.is_some(), "host_budget"),
            (self.device_budget.is_some(), "device_budget"),
        ];
        if let (true, Some((_, option))) = (runtime, own.iter().find(|(set, _)| *set)) {
            return refuse(&format!("`{option}` is set, but workers and budgets are those of the `runtime`"));
        }
        if length.is_some() {
            return Ok(());
        }
        if sampler || self.shuffle {
            return refuse(
                "a sequence has no index to sample by: shuffle it with a buffer, `source.shuffle_buffer(..)`",
            );
        }
        if self.shard.count() > 1 && self.remainder == Remainder::Pad {
            return refuse(
                "a sequence can't be padded, since its records can't be read again: set remainder to Drop or Uneven",
            );
        }
        if self.on_error.replaces() {
            return refuse("a sequence has no other sample to replace a failed one with: skip it instead");
        }
        if matches!(self.order, Order::Replay(_)) {
            return refuse("the order of a sequence's batches can't be replayed: it is read once, in order");
        }
        Ok(())
    }

    pub(crate) fn start<S: Source>(&self, fingerprint: u64, source: &S) -> Result<Start> {
        let Some(state) = self.resume else { return Ok(Start::default()) };
        let (batch, world) = (self.batch_size as u64, self.shard.count());
        state.check(fingerprint, batch, world)?;
        if source.len().is_none() && !source.reopens() && (state.epoch > 0 || state.position > 0) {
            let text =
                "a source that can be read once can't go on where a saved state says: use `from_iter_fn`";
            return Err(Error::new(ErrorKind::NotResumable, text));
        }
        Ok(Start {
            epoch: state.epoch,
            position: state.position,
            number: state.position.div_ceil(batch.saturating_mul(world)),
            map: state.ahead.map_or(0, |a| a.map),
        })
    }
}
