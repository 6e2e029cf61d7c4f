//! An event of the CPU device: a note of where it was last recorded.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Shared;
use super::stream::Timeline;
use crate::device::counters::{add, sub};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A handle of an event.
#[derive(Clone)]
pub(crate) struct Event(Arc<Recorded>);

/// What the handles of an event and the records under way share.
pub(super) struct Recorded {
    device: Arc<Shared>,
    /// Notes when its records pass.
    timed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the latest record lies, and how many there were.
    latest: Option<(Arc<Timeline>, u64)>,
    generation: u64,
    /// The latest record that has passed, and when.
    passed: Option<(u64, Instant)>,
}

impl Recorded {
    /// Notes on the stream's thread that record `generation` has been reached.
    pub(super) fn pass(&self, generation: u64) {
        if !self.timed {
            return;
        }
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.passed.is_none_or(|(before, _)| before < generation) {
            state.passed = Some((generation, now));
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        sub(&self.device.tally.live_events, 1);
    }
}

impl Event {
    pub(super) fn new(device: &Arc<Shared>, timed: bool) -> Result<Self> {
        device.check()?;
        add(&device.tally.events, 1);
        add(&device.tally.live_events, 1);
        Ok(Self(Arc::new(Recorded { device: device.clone(), timed, state: Mutex::default() })))
    }

    pub(super) fn device(&self) -> &Arc<Shared> {
        &self.0.device
    }

    /// Notes a new record: `push` puts it on `timeline` and returns its place, and
    /// whether it has passed at once. Under the event's lock, so
    /// that the latest record is the one enqueued last.
    pub(super) fn record(
        &self,
        timeline: &Arc<Timeline>,
        push: impl FnOnce(&Arc<Recorded>, u64) -> (u64, bool),
    ) {
        let mut state = lock(&self.0.state);
        state.generation += 1;
        let (place, passed) = push(&self.0, state.generation);
        if passed && self.0.timed {
            state.passed = Some((state.generation, Instant::now()));
        }
        match &mut state.latest {
            Some((same, at)) if Arc::ptr_eq(same, timeline) => *at = place,
            latest => *latest = Some((timeline.clone(), place)),
        }
    }

    /// Where the latest record lies; `None` before the first.
    pub(super) fn latest(&self) -> Option<(Arc<Timeline>, u64)> {
        lock(&self.0.state).latest.clone()
    }

    pub(crate) fn query(&self) -> Result<bool> {
        self.0.device.check()?;
        add(&self.0.device.tally.queries, 1);
        Ok(self.latest().is_none_or(|(timeline, place)| timeline.has_passed(place)))
    }

    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> Result<bool> {
        self.0.device.check()?;
        add(&self.0.device.tally.host_waits, 1);
        // A timeout beyond what an instant can hold is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        match self.latest() {
            Some((timeline, place)) => timeline.block_host(place, deadline),
            None => Ok(true),
        }
    }

    pub(crate) fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        self.0.device.check()?;
        let passed = |event: &Self| {
            let passed = lock(&event.0.state).passed;
            let text = "no record of the event has passed yet";
            passed.map(|(_, at)| at).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, text))
        };
        let (from, to) = (passed(earlier)?, passed(self)?);
        Ok(to.saturating_duration_since(from))
    }
}
