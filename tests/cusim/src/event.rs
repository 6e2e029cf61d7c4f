//! Events. Each record is a new generation; a wait is for the latest record at the time of the call.

use crate::capture::Tip;
use crate::context;
use crate::error::{Code, Result};
use crate::fence::Fence;
use crate::state::{self, State};
use crate::stream::{self, Work};
use crate::work::Action;
use std::sync::Arc;

pub const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

pub struct Event {
    pub context: usize,
    pub flags: u32,
    /// The latest record; `None` before the first.
    pub last: Option<Arc<Fence>>,
    /// The latest record was in a capture.
    pub captured: Option<Tip>,
}

impl State {
    pub fn event(&self, handle: usize) -> Result<&Event> {
        self.events.get(&handle).ok_or(Code::INVALID_HANDLE)
    }
}

pub fn create(flags: u32) -> Result<usize> {
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(Code::INVALID_VALUE);
    }
    let context = context::current()?;
    let mut state = state::lock();
    let handle = state.new_handle();
    state.events.insert(handle, Event { context, flags, last: None, captured: None });
    Ok(handle)
}

pub fn destroy(handle: usize) -> Result {
    state::lock().events.remove(&handle).map(drop).ok_or(Code::INVALID_HANDLE)
}

impl State {
    /// `external`: in a capture, a node that records at each launch.
    pub fn record_event(&mut self, key: usize, handle: usize, external: bool) -> Result {
        if self.event(handle)?.context != self.stream(key)?.context {
            return Err(Code::INVALID_HANDLE);
        }
        if self.capture_record(key, handle, external)?.is_some() {
            return Ok(());
        }
        let done = self.submit(key, Work::new("cuEventRecord", Action::Nothing))?;
        if let Some(event) = self.events.get_mut(&handle) {
            event.last = done;
            event.captured = None;
        }
        Ok(())
    }

    /// `external`: in a capture, a node that waits at each launch.
    pub fn wait_event(&mut self, key: usize, handle: usize, external: bool) -> Result {
        if self.capture_wait(key, handle, external)?.is_some() {
            return Ok(());
        }
        if let Some(fence) = self.event(handle)?.last.clone() {
            self.submit(key, Work::new("cuStreamWaitEvent", Action::Nothing).after(fence))?;
        }
        Ok(())
    }
}

pub fn record(handle: usize, stream: usize, external: bool) -> Result {
    let mut state = state::lock();
    let key = state.resolve(stream)?;
    state.record_event(key, handle, external)
}

pub fn wait(stream: usize, handle: usize, external: bool) -> Result {
    let mut state = state::lock();
    let key = state.resolve(stream)?;
    state.wait_event(key, handle, external)
}

pub fn query(handle: usize) -> Result {
    let Some((fence, owner)) = last(handle)? else { return Ok(()) };
    if !fence.query() {
        return Err(Code::NOT_READY);
    }
    stream::settle(&fence, owner)
}

pub fn synchronize(handle: usize) -> Result {
    match last(handle)? {
        Some((fence, owner)) => stream::settle(&fence, owner),
        None => Ok(()),
    }
}

fn last(handle: usize) -> Result<Option<(Arc<Fence>, usize)>> {
    let mut state = state::lock();
    if let Some(tip) = state.event(handle)?.captured.clone() {
        return Err(state.invalidate(tip.capture, Code::CAPTURED_EVENT));
    }
    state.check_unsafe_call()?;
    let event = state.event(handle)?;
    Ok(event.last.clone().map(|fence| (fence, event.context)))
}

/// Milliseconds between two recorded, completed, timed events of one context.
pub fn elapsed(start: usize, end: usize) -> Result<f32> {
    let (start, end) = {
        let state = state::lock();
        let (start, end) = (state.event(start)?, state.event(end)?);
        if (start.flags | end.flags) & DISABLE_TIMING != 0 || start.context != end.context {
            return Err(Code::INVALID_HANDLE);
        }
        let fence = |last: &Option<Arc<Fence>>| last.clone().ok_or(Code::INVALID_HANDLE);
        (fence(&start.last)?, fence(&end.last)?)
    };
    if !start.query() | !end.query() {
        return Err(Code::NOT_READY);
    }
    let (Some(start), Some(end)) = (start.time(), end.time()) else { return Err(Code::NOT_READY) };
    let forward = end.saturating_duration_since(start).as_secs_f32();
    let backward = start.saturating_duration_since(end).as_secs_f32();
    Ok((forward - backward) * 1e3)
}
