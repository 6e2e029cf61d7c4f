//! All objects of the driver, under one lock. Nothing waits while it holds the lock.

use crate::capture::Capture;
use crate::clock::Clock;
use crate::context::Context;
use crate::detector::{Detector, Findings};
use crate::error::{Code, Result};
use crate::event::Event;
use crate::fault::Faults;
use crate::fence::Fence;
use crate::graph::{Exec, Graph};
use crate::guard;
use crate::memory::{Block, Mapping, Memory, Place};
use crate::module::{Function, Module};
use crate::stream::Stream;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct State {
    pub initialised: bool,
    /// The devices that the program sees, by their numbers in the machine.
    pub visible: Vec<usize>,
    /// Devices that fell off the bus, and what their calls return.
    pub lost: BTreeMap<usize, Code>,
    /// Primary contexts by device: their handles stay the same.
    pub primary: BTreeMap<usize, usize>,
    pub contexts: BTreeMap<usize, Context>,
    pub streams: BTreeMap<usize, Stream>,
    pub per_thread: HashMap<(usize, usize), usize>,
    pub events: BTreeMap<usize, Event>,
    pub captures: BTreeMap<usize, Capture>,
    pub graphs: BTreeMap<usize, Graph>,
    pub execs: BTreeMap<usize, Exec>,
    pub modules: BTreeMap<usize, Module>,
    pub functions: BTreeMap<usize, Function>,
    pub memory: Memory,
    pub detector: Detector,
    pub misuse: Findings,
    pub leaks: Vec<String>,
    pub calls: BTreeMap<&'static str, u64>,
    /// Which threads made them.
    pub callers: BTreeMap<&'static str, BTreeSet<Arc<str>>>,
    pub unknown: BTreeSet<&'static str>,
    pub faults: Faults,
    /// Memory that was freed, and the work that may still be using it.
    graves: Vec<(Mapping, Vec<Arc<Fence>>)>,
    handles: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

pub fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A handle that was never given out before.
    pub fn new_handle(&mut self) -> usize {
        self.handles += 1;
        0xC05A_0000_0000 + self.handles * 16
    }

    pub fn blame(&mut self, call: &str, object: u64, text: impl FnOnce() -> String) {
        self.misuse.add(call, "", object, text);
    }

    /// As before cuInit. Handles, allocation numbers and streams' clocks are not used again.
    pub fn reset(&mut self) {
        self.reclaim();
        let State { memory, mut detector, graves, handles, .. } = std::mem::take(self);
        detector.clear();
        *self = State { memory, detector, graves, handles, ..State::default() };
    }

    /// The host has seen everything in `clock` done.
    pub fn host_knows(&mut self, clock: &Clock) {
        self.detector.host.join(clock);
        let closed: Vec<usize> = self.memory.blocks().filter(|b| b.closed).map(|b| b.base).collect();
        closed.into_iter().for_each(|base| self.protect(base));
    }

    /// Brings the guard pages of the block at `base` up to date.
    pub fn protect(&mut self, base: usize) {
        if let Some(block) = self.memory.get_mut(base) {
            guard::protect(block, &self.detector);
        }
    }

    pub fn context(&self, handle: usize) -> Result<&Context> {
        self.contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)
    }

    pub fn stream(&self, key: usize) -> Result<&Stream> {
        self.streams.get(&key).ok_or(Code::INVALID_HANDLE)
    }

    /// Unmaps memory once all work that has been given so far is done.
    pub fn bury(&mut self, mapping: Mapping) {
        let tails = self.unfinished();
        self.graves.push((mapping, tails));
        self.reclaim();
    }

    /// Gives back the pages of a block that is out of the books. The program loses page-locked memory at once;
    /// streams lose theirs when they can't be using it any more. Registered memory is the program's own.
    pub fn discard(&mut self, block: &Block) {
        match block.place {
            Place::Device(_) => self.bury(block.mapping()),
            Place::Pinned { .. } => {
                block.mapping().unmap();
                block.alias().into_iter().for_each(|alias| self.bury(alias));
            }
            Place::Registered { .. } => {}
        }
    }

    pub fn reclaim(&mut self) {
        self.graves.retain_mut(|(mapping, tails)| {
            tails.retain(|tail| tail.time().is_none());
            if tails.is_empty() {
                mapping.unmap();
            }
            !tails.is_empty()
        });
    }

    /// Live objects by kind.
    pub fn live(&self) -> BTreeMap<&'static str, usize> {
        let of = |is: fn(&Place) -> bool| self.memory.blocks().filter(|block| is(&block.place)).count();
        BTreeMap::from([
            ("device", of(|place| matches!(place, Place::Device(_)))),
            ("host", of(|place| matches!(place, Place::Pinned { .. }))),
            ("registered", of(|place| matches!(place, Place::Registered { .. }))),
            ("streams", self.streams.values().filter(|stream| stream.created).count()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
            ("graphs", self.graphs.len() + self.execs.len()),
            ("contexts", self.contexts.len()),
        ])
    }
}
