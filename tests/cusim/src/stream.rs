//! Streams, and how work is given to them.

use crate::capture::Tip;
use crate::context;
use crate::detector::Touch;
use crate::error::{Code, Result};
use crate::fence::Fence;
use crate::lane::Lane;
use crate::state::{self, State};
use crate::work::Action;
use std::sync::Arc;

pub const LEGACY: usize = 1;
pub const PER_THREAD: usize = 2;
pub const NON_BLOCKING: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Created; in order with the legacy stream unless it was created non-blocking.
    Created,
    Legacy,
    PerThread,
}

pub struct Stream {
    pub context: usize,
    pub lane: Arc<Lane>,
    /// Its component in vector clocks, and its number in reports.
    pub id: usize,
    pub flags: u32,
    pub priority: i32,
    /// By cuStreamCreate, and not destroyed.
    pub created: bool,
    pub sort: Sort,
    /// Where it is in a capture.
    pub capture: Option<Tip>,
    /// The last work that was given to it.
    pub tail: Arc<Fence>,
}

/// Work for a stream.
#[derive(Clone)]
pub struct Work {
    /// The function that was called.
    pub call: &'static str,
    /// What follows its name in reports.
    pub detail: String,
    pub touches: Vec<Touch>,
    pub action: Action,
    /// Fences that it waits for.
    pub after: Vec<Arc<Fence>>,
}

impl Work {
    pub fn new(call: &'static str, action: Action) -> Work {
        Work { call, detail: String::new(), touches: vec![], action, after: vec![] }
    }

    pub fn after(self, fence: Arc<Fence>) -> Work {
        Work { after: vec![fence], ..self }
    }

    pub fn inside_graph(mut self) -> Work {
        self.detail.push_str(" in a graph");
        self
    }

    pub fn touching(self, touches: Vec<Touch>) -> Work {
        Work { touches, ..self }
    }

    pub fn detail(self, detail: String) -> Work {
        Work { detail, ..self }
    }
}

pub fn this_thread() -> usize {
    // SAFETY: pthread_self has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

impl State {
    pub fn add_stream(&mut self, key: usize, owner: usize, sort: Sort, flags: u32, priority: i32) -> Result {
        let context = self.context(owner)?;
        let (poison, device) = (context.poison.clone(), context.device);
        let id = self.detector.add_lane();
        let lane = Lane::start(id, device, poison)?;
        let tail = Fence::passed(self.detector.lane(id).clone());
        let created = sort == Sort::Created;
        let stream = Stream { context: owner, lane, id, flags, priority, created, sort, capture: None, tail };
        self.streams.insert(key, stream);
        Ok(())
    }

    pub fn create_stream(&mut self, flags: u32, priority: i32) -> Result<usize> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let key = self.new_handle();
        self.add_stream(key, context::current()?, Sort::Created, flags, priority.clamp(-5, 0))?;
        Ok(key)
    }

    /// The stream that a handle means on this thread, also for the default streams.
    pub fn resolve(&mut self, handle: usize) -> Result<usize> {
        match handle {
            0 | LEGACY => Ok(self.context(context::current()?)?.legacy),
            PER_THREAD => {
                let owner = context::current()?;
                let thread = this_thread();
                if let Some(key) = self.per_thread.get(&(owner, thread)) {
                    return Ok(*key);
                }
                let key = self.new_handle();
                self.add_stream(key, owner, Sort::PerThread, 0, 0)?;
                self.per_thread.insert((owner, thread), key);
                Ok(key)
            }
            handle => self.stream(handle).map(|_| handle),
        }
    }

    /// Gives work to a stream; `None`: the stream is being captured, and the work is not done now.
    pub fn submit(&mut self, key: usize, mut work: Work) -> Result<Option<Arc<Fence>>> {
        if self.stream(key)?.capture.is_some() {
            return self.capture_work(key, work).map(|()| None);
        }
        self.refuse_implicit(key)?;
        let stream = self.streams.get(&key).ok_or(Code::INVALID_HANDLE)?;
        let (id, lane) = (stream.id, stream.lane.clone());
        work.after.extend(self.legacy_order(key)?);
        for fence in &work.after {
            self.detector.join(id, &fence.clock);
        }
        let (number, stamp) = self.detector.begin(id, work.call, &work.detail);
        for touch in &work.touches {
            self.detector.touch(&stamp, touch);
        }
        for touch in &work.touches {
            if let Some(base) = self.memory.at(touch.span.lo).map(|block| block.base) {
                self.protect(base);
            }
        }
        let after = work.after.into_iter().filter(|fence| fence.time().is_none()).collect();
        let done = lane.give(number, after, work.action, self.detector.lane(id).clone());
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.tail = done.clone();
        }
        Ok(Some(done))
    }

    /// What the legacy stream's implicit order makes new work of `key` wait for.
    fn legacy_order(&self, key: usize) -> Result<Vec<Arc<Fence>>> {
        let stream = self.stream(key)?;
        let context = self.context(stream.context)?;
        if stream.sort == Sort::Legacy {
            let blocking = |other: &&Stream| {
                other.context == stream.context
                    && other.sort != Sort::Legacy
                    && other.flags & NON_BLOCKING == 0
            };
            let tails = self.streams.values().filter(blocking).map(|other| other.tail.clone());
            return Ok(tails.chain(context.retired_blocking().cloned()).collect());
        }
        if stream.flags & NON_BLOCKING != 0 {
            return Ok(vec![]);
        }
        Ok(vec![self.stream(context.legacy)?.tail.clone()])
    }
}

/// Waits for a fence; the host has then seen all that it stands for.
pub fn settle(fence: &Fence, owner: usize) -> Result {
    fence.wait();
    let mut state = state::lock();
    state.host_knows(&fence.clock);
    state.contexts.get(&owner).map_or(Ok(()), |context| context.poison.check())
}

/// The last work of a stream; for the legacy stream also that of the streams that it is in order with.
fn tail(handle: usize) -> Result<(Arc<Fence>, usize)> {
    let mut state = state::lock();
    let key = state.resolve(handle)?;
    state.refuse_capturing(key)?;
    let stream = state.stream(key)?;
    let (owner, tail) = (stream.context, stream.tail.clone());
    if stream.sort == Sort::Legacy {
        let all = state.submit(key, Work::new("cuStreamSynchronize", Action::Nothing))?;
        return Ok((all.unwrap_or(tail), owner));
    }
    Ok((tail, owner))
}

pub fn synchronize(handle: usize) -> Result {
    let (fence, owner) = tail(handle)?;
    settle(&fence, owner)
}

/// Waits for the work of a stream, while the host may not take it as known.
pub fn wait_silently(handle: usize) -> Result {
    tail(handle).map(|(fence, _)| fence.wait())
}

pub fn query(handle: usize) -> Result {
    let (fence, owner) = tail(handle)?;
    if !fence.query() {
        return Err(Code::NOT_READY);
    }
    settle(&fence, owner)
}

pub fn destroy(handle: usize) -> Result {
    let mut state = state::lock();
    if !state.stream(handle)?.created {
        return Err(Code::INVALID_HANDLE);
    }
    let Some(stream) = state.streams.remove(&handle) else { return Err(Code::INVALID_HANDLE) };
    stream.lane.close();
    state.detector.retire_lane(stream.id);
    if let Some(tip) = &stream.capture {
        state.invalidate(tip.capture, Code::CAPTURE_INVALIDATED);
    }
    if let Some(context) = state.contexts.get_mut(&stream.context) {
        context.retire(stream.tail, stream.flags & NON_BLOCKING == 0);
    }
    Ok(())
}
