//! Contexts: which one is current on a thread, how they begin and end, and what the host waits for in them.

use crate::clock::Clock;
use crate::config;
use crate::error::{Code, Result};
use crate::fence::Fence;
use crate::lane::Poison;
use crate::memory::Block;
use crate::state::{self, State};
use crate::stream;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Context {
    /// The device's number in the machine.
    pub device: usize,
    pub primary: bool,
    pub retained: usize,
    pub flags: u32,
    pub poison: Arc<Poison>,
    /// The legacy default stream.
    pub legacy: usize,
    /// The last work of destroyed streams: non-blocking ones and blocking ones.
    retired: [Retired; 2],
    /// Contexts whose memory kernels of this one can use.
    pub peers: BTreeSet<usize>,
}

/// The last work of streams that are gone: that which is done in one, and what is not.
#[derive(Default)]
struct Retired(Vec<Arc<Fence>>);

impl Retired {
    fn add(&mut self, tail: Arc<Fence>) {
        self.0.push(tail);
        let (done, open): (Vec<_>, _) = self.0.drain(..).partition(|tail| tail.time().is_some());
        let mut clock = Clock::default();
        done.iter().for_each(|tail| clock.join(&tail.clock));
        self.0 = open;
        self.0.push(Fence::passed(clock));
    }
}

impl Context {
    /// Keeps the last work of a stream that is destroyed: a synchronise of the context is for that too.
    pub fn retire(&mut self, tail: Arc<Fence>, blocking: bool) {
        self.retired[usize::from(blocking)].add(tail);
    }

    /// What the legacy stream still comes after.
    pub fn retired_blocking(&self) -> impl Iterator<Item = &Arc<Fence>> {
        self.retired[1].0.iter()
    }

    fn retired(&self) -> impl Iterator<Item = &Arc<Fence>> {
        self.retired.iter().flat_map(|retired| &retired.0)
    }
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(vec![]) };
}

/// The current context's handle, 0 for none. The context may be gone.
pub fn peek() -> usize {
    STACK.try_with(|stack| stack.borrow().last().copied()).ok().flatten().unwrap_or(0)
}

pub fn current() -> Result<usize> {
    match peek() {
        0 => Err(Code::INVALID_CONTEXT),
        handle => Ok(handle),
    }
}

pub fn set_current(handle: usize) -> Result {
    if handle != 0 {
        state::lock().context(handle)?;
    }
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

pub fn push(handle: usize) -> Result {
    state::lock().context(handle)?;
    STACK.with_borrow_mut(|stack| stack.push(handle));
    Ok(())
}

pub fn pop() -> Result<usize> {
    STACK.with_borrow_mut(|stack| stack.pop()).ok_or(Code::INVALID_CONTEXT)
}

impl State {
    /// A visible device's number in the machine.
    pub fn device(&self, ordinal: i32) -> Result<usize> {
        let known = usize::try_from(ordinal).ok().and_then(|ordinal| self.visible.get(ordinal));
        known.copied().ok_or(Code::INVALID_DEVICE)
    }

    /// The ordinal under which the program sees a device.
    pub fn ordinal(&self, device: usize) -> i32 {
        self.visible.iter().position(|visible| *visible == device).map_or(-1, |at| at as i32)
    }

    pub fn create_context(&mut self, device: usize, flags: u32, primary: Option<usize>) -> Result<usize> {
        if let Some(code) = self.lost.get(&device) {
            return Err(*code);
        }
        let handle = primary.unwrap_or_else(|| self.new_handle());
        let poison = Arc::new(Poison::default());
        let legacy = self.new_handle();
        self.contexts.insert(
            handle,
            Context {
                device,
                primary: primary.is_some(),
                retained: 1,
                flags,
                poison,
                legacy,
                retired: Default::default(),
                peers: BTreeSet::new(),
            },
        );
        let made = self.add_stream(legacy, handle, stream::Sort::Legacy, 0, 0);
        made.inspect_err(|_| drop(self.contexts.remove(&handle)))?;
        Ok(handle)
    }

    pub fn retain_primary(&mut self, device: usize) -> Result<usize> {
        let handle = match self.primary.get(&device) {
            Some(handle) => *handle,
            None => {
                let handle = self.new_handle();
                self.primary.insert(device, handle);
                handle
            }
        };
        match self.contexts.get_mut(&handle) {
            Some(context) => {
                context.retained += 1;
                Ok(handle)
            }
            None => self.create_context(device, 0, Some(handle)),
        }
    }

    /// The last work of every stream of a context, also of those that were destroyed.
    pub fn tails(&self, handle: usize) -> Vec<Arc<Fence>> {
        let streams = self.streams.values().filter(|stream| stream.context == handle);
        let retired = self.contexts.get(&handle).into_iter().flat_map(Context::retired);
        streams.map(|stream| &stream.tail).chain(retired).cloned().collect()
    }

    /// The work of all streams of all contexts that is not done yet.
    pub fn unfinished(&self) -> Vec<Arc<Fence>> {
        let retired = self.contexts.values().flat_map(Context::retired);
        let tails = self.streams.values().map(|stream| &stream.tail).chain(retired);
        tails.filter(|tail| tail.time().is_none()).cloned().collect()
    }
}

/// cuCtxSynchronize for the context `handle`.
pub fn synchronize(handle: usize) -> Result {
    let tails = {
        let mut state = state::lock();
        let keys: Vec<usize> =
            state.streams.iter().filter(|(_, s)| s.context == handle).map(|(k, _)| *k).collect();
        keys.into_iter().try_for_each(|key| state.refuse_capturing(key))?;
        state.tails(handle)
    };
    tails.iter().for_each(|tail| tail.wait());
    let mut state = state::lock();
    tails.iter().for_each(|tail| state.host_knows(&tail.clock));
    state.contexts.get(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)?.poison.check()
}

/// Waits for all work of a context, without letting the host take it as known: what the driver does when it
/// frees memory, and what no program may rely on.
pub fn drain(handle: usize) {
    let tails = state::lock().tails(handle);
    tails.iter().for_each(|tail| tail.wait());
}

/// Ends a context with all that belongs to it; what was left is noted as leaked.
pub fn destroy(handle: usize) -> Result {
    drain(handle);
    let mut state = state::lock();
    let state = &mut *state;
    let context = state.contexts.remove(&handle).ok_or(Code::INVALID_CONTEXT)?;
    let before = state.live();
    for stream in state.streams.values().filter(|stream| stream.context == handle) {
        if let Some(tip) = &stream.capture {
            state.captures.remove(&tip.capture);
        }
    }
    let gone: Vec<usize> =
        state.streams.iter().filter(|(_, s)| s.context == handle).map(|(k, _)| *k).collect();
    for key in gone {
        if let Some(stream) = state.streams.remove(&key) {
            stream.lane.close();
            state.detector.retire_lane(stream.id);
        }
    }
    state.per_thread.retain(|(owner, _), _| *owner != handle);
    state.events.retain(|_, event| event.context != handle);
    state.modules.retain(|_, module| module.context != handle);
    state.graphs.retain(|_, graph| graph.context != handle);
    state.execs.retain(|_, exec| exec.context != handle);
    state.functions.retain(|_, function| function.context != handle);
    let bases: Vec<usize> = state.memory.blocks().filter(|b| b.context == handle).map(|b| b.base).collect();
    let by = || format!("the end of the context of device {}", context.device);
    let blocks: Vec<Block> = bases.into_iter().filter_map(|base| state.memory.remove(base, by())).collect();
    blocks.iter().for_each(|block| state.detector.forget(block.number));
    blocks.iter().for_each(|block| state.discard(block));
    let after = state.live();
    let left: Vec<String> = before
        .iter()
        .filter(|(kind, n)| **n > after[*kind] && **kind != "contexts")
        .map(|(kind, n)| format!("{kind} {}", n - after[kind]))
        .collect();
    if !left.is_empty() {
        state.leaks.push(format!("context of device {} ended with: {}", context.device, left.join(", ")));
    }
    Ok(())
}

/// The devices that the program sees: `CUDA_VISIBLE_DEVICES` as the driver reads it, which stops at the first
/// entry that names no device or one that was named before.
pub fn visible(devices: usize, variable: Option<&str>) -> Vec<usize> {
    let Some(text) = variable else { return (0..devices).collect() };
    let mut visible = vec![];
    for entry in text.split(',') {
        match entry.trim().parse::<usize>() {
            Ok(device) if device < devices && !visible.contains(&device) => visible.push(device),
            _ => break,
        }
    }
    visible
}

/// cuInit.
pub fn initialise() -> Result {
    let (devices, error) = {
        let config = config::read();
        (config.devices, config.init_error)
    };
    let mut state = state::lock();
    if error != 0 {
        return Err(Code(error));
    }
    if !state.initialised {
        let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        state.visible = visible(devices, variable.as_deref());
        if state.visible.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        state.initialised = true;
        crate::entry::own();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn visible_devices_are_read_as_the_driver_does() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(3, Some("2,0")), [2, 0]);
        assert_eq!(visible(3, Some("1,-1,0")), [1]);
        assert_eq!(visible(3, Some("1,1")), [1]);
        assert!(visible(3, Some("")).is_empty());
        assert!(visible(3, Some("-1")).is_empty());
        assert!(visible(3, Some("3")).is_empty());
    }
}
