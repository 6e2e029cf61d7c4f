//! Stream capture: work given to a capturing stream becomes a node of a graph instead of being done.

use crate::context;
use crate::error::{Code, Result};
use crate::graph::{Graph, Node, Task};
use crate::state::{self, State};
use crate::stream::{self, Sort, Work};
use std::cell::Cell;
use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub fn from_number(number: u32) -> Result<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed]
            .get(number as usize)
            .copied()
            .ok_or(Code::INVALID_VALUE)
    }
}

/// A capture in progress.
pub struct Capture {
    origin: usize,
    thread: usize,
    mode: Mode,
    pub nodes: Vec<Node>,
    pub valid: bool,
}

/// The nodes that the next work of a stream, or of what waits for an event, depends on.
#[derive(Clone)]
pub struct Tip {
    pub capture: usize,
    pub nodes: BTreeSet<usize>,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// cuThreadExchangeStreamCaptureMode: the mode before.
pub fn exchange_mode(mode: Mode) -> u32 {
    MODE.replace(mode) as u32
}

impl State {
    /// For the calls that CUDA calls potentially unsafe: refuses them where the thread's mode does, and the
    /// captures that they are in the way of are then invalid.
    pub fn check_unsafe_call(&mut self) -> Result {
        let (own, mode) = (stream::this_thread(), MODE.get());
        let prohibits = |capture: &Capture| match mode {
            Mode::Relaxed => false,
            _ if capture.thread == own => capture.mode != Mode::Relaxed,
            Mode::ThreadLocal => false,
            Mode::Global => capture.mode == Mode::Global,
        };
        let mut refused = false;
        for capture in self.captures.values_mut().filter(|capture| prohibits(capture)) {
            capture.valid = false;
            refused = true;
        }
        if refused { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Invalidates a capture, and passes on the reason.
    pub fn invalidate(&mut self, capture: usize, code: Code) -> Code {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.valid = false;
        }
        code
    }

    /// For calls that can't be made of a stream that is being captured.
    pub fn refuse_capturing(&mut self, key: usize) -> Result {
        match self.stream(key)?.capture.as_ref().map(|tip| tip.capture) {
            Some(capture) => Err(self.invalidate(capture, Code::CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// Work of the legacy stream would come after that of blocking streams, also of those that are captured.
    pub fn refuse_implicit(&mut self, key: usize) -> Result {
        match self.in_the_way_of_legacy(key)? {
            Some(capture) => Err(self.invalidate(capture, Code::CAPTURE_IMPLICIT)),
            None => Ok(()),
        }
    }

    /// Of the legacy stream: the capture of a blocking stream, if there is one.
    fn in_the_way_of_legacy(&self, key: usize) -> Result<Option<usize>> {
        let legacy = self.stream(key)?;
        if legacy.sort != Sort::Legacy || self.captures.is_empty() {
            return Ok(None);
        }
        let owner = legacy.context;
        let blocking = |s: &&stream::Stream| s.context == owner && s.flags & stream::NON_BLOCKING == 0;
        let tip = self.streams.values().filter(blocking).find_map(|s| s.capture.as_ref());
        Ok(tip.map(|tip| tip.capture))
    }

    /// Adds a node after what the stream's work so far and waits made it depend on.
    pub fn add_node(&mut self, key: usize, task: Task) -> Result {
        let handle = self.new_handle();
        let tip = self.streams.get_mut(&key).and_then(|s| s.capture.as_mut()).ok_or(Code::INVALID_HANDLE)?;
        let capture = self.captures.get_mut(&tip.capture).ok_or(Code::CAPTURE_INVALIDATED)?;
        if !capture.valid {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        let after = std::mem::replace(&mut tip.nodes, BTreeSet::from([capture.nodes.len()]));
        capture.nodes.push(Node { handle, task, after });
        Ok(())
    }

    /// Work of a capturing stream.
    pub fn capture_work(&mut self, key: usize, work: Work) -> Result {
        self.add_node(key, Task::Work(work))
    }

    /// cuStreamWaitEvent where the event was last recorded in a capture, or the stream is being captured.
    /// `None`: neither is the case.
    pub fn capture_wait(&mut self, key: usize, event: usize, external: bool) -> Result<Option<()>> {
        let captured = self.event(event)?.captured.clone();
        let stream = self.stream(key)?;
        let (sort, own) = (stream.sort, stream.capture.as_ref().map(|tip| tip.capture));
        if external && own.is_some() {
            return self.add_node(key, Task::Wait(event)).map(Some);
        }
        match (captured, own) {
            (None, None) => return Ok(None),
            (None, Some(own)) => return Err(self.invalidate(own, Code::CAPTURE_ISOLATION)),
            (Some(tip), _) if !self.captures.contains_key(&tip.capture) => return Err(Code::CAPTURED_EVENT),
            (Some(tip), Some(own)) if tip.capture != own => {
                self.invalidate(own, Code::CAPTURE_MERGE);
                return Err(self.invalidate(tip.capture, Code::CAPTURE_MERGE));
            }
            (Some(tip), _) if sort == Sort::Legacy => {
                return Err(self.invalidate(tip.capture, Code::CAPTURE_IMPLICIT));
            }
            (Some(tip), _) => {
                let stream = self.streams.get_mut(&key).ok_or(Code::INVALID_HANDLE)?;
                let own = stream.capture.get_or_insert(Tip { nodes: BTreeSet::new(), ..tip.clone() });
                own.nodes.extend(tip.nodes);
            }
        }
        Ok(Some(()))
    }

    /// cuEventRecord in a capturing stream; `None`: it is not one.
    pub fn capture_record(&mut self, key: usize, event: usize, external: bool) -> Result<Option<()>> {
        let Some(tip) = self.stream(key)?.capture.clone() else { return Ok(None) };
        if self.captures.get(&tip.capture).is_none_or(|capture| !capture.valid) {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        if external {
            return self.add_node(key, Task::Record(event)).map(Some);
        }
        if let Some(event) = self.events.get_mut(&event) {
            event.captured = Some(tip);
        }
        Ok(Some(()))
    }

    /// 0: none, 1: active, 2: invalidated; and the capture's number. Asked of the legacy stream while a blocking stream is
    /// captured it is an error, which leaves that capture as it is.
    pub fn capture_status(&self, key: usize) -> Result<(u32, usize)> {
        if self.in_the_way_of_legacy(key)?.is_some() {
            return Err(Code::CAPTURE_IMPLICIT);
        }
        Ok(match &self.stream(key)?.capture {
            None => (0, 0),
            Some(tip) => match self.captures.get(&tip.capture) {
                Some(capture) if capture.valid => (1, tip.capture),
                _ => (2, tip.capture),
            },
        })
    }
}

pub fn begin(handle: usize, mode: Mode) -> Result {
    let mut state = state::lock();
    let key = state.resolve(handle)?;
    let stream = state.stream(key)?;
    if stream.sort == Sort::Legacy {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    if stream.capture.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let number = state.new_handle();
    let thread = stream::this_thread();
    state.captures.insert(number, Capture { origin: key, thread, mode, nodes: vec![], valid: true });
    if let Some(stream) = state.streams.get_mut(&key) {
        stream.capture = Some(Tip { capture: number, nodes: BTreeSet::new() });
    }
    Ok(())
}

/// Ends a capture; the graph's handle.
pub fn end(handle: usize) -> Result<usize> {
    let mut state = state::lock();
    let key = state.resolve(handle)?;
    let tip = state.stream(key)?.capture.clone().ok_or(Code::ILLEGAL_STATE)?;
    let capture = state.captures.get(&tip.capture).ok_or(Code::ILLEGAL_STATE)?;
    if capture.mode != Mode::Relaxed && capture.thread != stream::this_thread() {
        return Err(Code::CAPTURE_WRONG_THREAD);
    }
    if capture.origin != key {
        return Err(state.invalidate(tip.capture, Code::CAPTURE_UNMATCHED));
    }
    let Some(capture) = state.captures.remove(&tip.capture) else { return Err(Code::ILLEGAL_STATE) };
    for stream in state.streams.values_mut() {
        if stream.capture.as_ref().is_some_and(|own| own.capture == tip.capture) {
            stream.capture = None;
        }
    }
    if !capture.valid {
        return Err(Code::CAPTURE_INVALIDATED);
    }
    let graph = Graph { context: context::current()?, nodes: capture.nodes.into() };
    if graph.before(&tip.nodes).len() < graph.nodes.len() {
        return Err(Code::CAPTURE_UNJOINED);
    }
    let handle = state.new_handle();
    state.graphs.insert(handle, graph);
    Ok(handle)
}
