//! Allocation, page-locking, and questions about addresses.

use super::{put, put_if};
use crate::config;
use crate::context;
use crate::detector::Kind;
use crate::error::{Code, Result};
use crate::memory::Place;
use crate::state;
use crate::stream::Work;
use crate::work::Action;
use std::ffi::{c_int, c_uint, c_void};

api! {
    Unsafe fn cuMemAlloc_v2(out: *mut usize, n: usize) { put(out, allocate(n)?) }
    Unsafe fn cuMemAllocPitch_v2(out: *mut usize, pitch: *mut usize, width: usize, height: usize, element: c_uint) {
        if !matches!(element, 4 | 8 | 16) {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.next_multiple_of(512);
        put(out, allocate(row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?)?)?;
        put(pitch, row)
    }
    Unsafe fn cuMemFree_v2(p: usize) { free("cuMemFree", p, |place| matches!(place, Place::Device(_))) }
    Context fn cuMemAllocAsync(out: *mut usize, n: usize, stream: usize) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        let owner = state.stream(key)?.context;
        let device = state.context(owner)?.device;
        state.refuse_memory_nodes(key)?;
        state.reclaim();
        let block = state.memory.allocate(device, n, config::of(device).memory, owner)?;
        // Other streams may use it only after this.
        let (base, touch) = (block.base, block.whole(Kind::Write));
        let work = Work::new("cuMemAllocAsync", Action::Nothing).touching(vec![touch]);
        state.submit(key, work.detail(format!(" {n} B")))?;
        put(out, base)
    }
    Context fn cuMemFreeAsync(p: usize, stream: usize) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        state.refuse_memory_nodes(key)?;
        let Some(block) = state.memory.get(p).filter(|block| block.device().is_some()).cloned() else {
            state.blame_free("cuMemFreeAsync", p);
            return Err(Code::INVALID_VALUE);
        };
        let work = Work::new("cuMemFreeAsync", Action::Release(block.mapping()));
        state.submit(key, work.touching(vec![block.whole(Kind::Write)]))?;
        state.memory.remove(p, "cuMemFreeAsync".into());
        state.bury(block.mapping());
        state.detector.forget(block.number);
        Ok(())
    }
    Unsafe fn cuMemAllocHost_v2(out: *mut usize, n: usize) { put(out, pin(n, 0)?) }
    Unsafe fn cuMemHostAlloc(out: *mut usize, n: usize, flags: c_uint) { put(out, pin(n, flags)?) }
    Unsafe fn cuMemFreeHost(p: usize) { free("cuMemFreeHost", p, |place| matches!(place, Place::Pinned { .. })) }
    Unsafe fn cuMemHostRegister_v2(p: usize, n: usize, flags: c_uint) {
        let owner = context::current()?;
        let mut state = state::lock();
        let limit = config::of(state.context(owner)?.device).pin_limit;
        state.memory.register(p, n, flags, limit, owner).map(drop)
    }
    Unsafe fn cuMemHostUnregister(p: usize) {
        free("cuMemHostUnregister", p, |place| matches!(place, Place::Registered { .. }))
            .map_err(|_| Code::HOST_MEMORY_NOT_REGISTERED)
    }
    Context fn cuMemHostGetDevicePointer_v2(out: *mut usize, p: usize, flags: c_uint) {
        let state = state::lock();
        let host = state.memory.at(p).filter(|block| block.device().is_none());
        if flags != 0 || host.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        put(out, p) // unified addressing
    }
    Context fn cuMemHostGetFlags(out: *mut c_uint, p: usize) {
        let state = state::lock();
        match state.memory.at(p).map(|block| block.place) {
            Some(Place::Pinned { flags, .. } | Place::Registered { flags }) => put(out, flags),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    Context fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let state = state::lock();
        let device = state.context(context::current()?)?.device;
        let all = config::of(device).memory;
        put(free, all.saturating_sub(state.memory.used(device)))?;
        put(total, all)
    }
    Context fn cuMemGetAddressRange_v2(base: *mut usize, n: *mut usize, p: usize) {
        let state = state::lock();
        let block = state.memory.at(p).ok_or(Code::NOT_FOUND)?;
        put_if(base, block.base);
        put_if(n, block.len);
        Ok(())
    }
    Context fn cuPointerGetAttribute(out: *mut c_void, attribute: c_int, p: usize) {
        let state = state::lock();
        let block = state.memory.at(p).ok_or(Code::INVALID_VALUE)?;
        let device = match block.place {
            Place::Device(device) => device,
            _ => state.context(block.context)?.device,
        };
        match attribute {
            1 => put(out.cast(), block.context),
            2 => put(out.cast(), if block.device().is_some() { 2u32 } else { 1u32 }), // CU_MEMORYTYPE_DEVICE, _HOST
            3 => put(out.cast(), p),
            4 if block.device().is_none() => put(out.cast(), p),
            7 => put(out.cast(), block.number),
            8 => put(out.cast(), 0u32), // managed
            9 => put(out.cast(), state.ordinal(device)),
            11 => put(out.cast(), block.base),
            12 => put(out.cast(), block.len),
            13 => put(out.cast(), 1u32), // mapped
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn allocate(n: usize) -> Result<usize> {
    let owner = context::current()?;
    let mut state = state::lock();
    let device = state.context(owner)?.device;
    Ok(state.memory.allocate(device, n, config::of(device).memory, owner)?.base)
}

fn pin(n: usize, flags: u32) -> Result<usize> {
    let owner = context::current()?;
    let mut state = state::lock();
    let limit = config::of(state.context(owner)?.device).pin_limit;
    Ok(state.memory.pin(n, flags, limit, owner)?.base)
}

/// Frees at once. Work in flight on the memory is a report, though the driver waits for it before it unmaps.
fn free(call: &'static str, p: usize, right: fn(&Place) -> bool) -> Result {
    if p == 0 && call != "cuMemHostUnregister" {
        return Ok(());
    }
    let contexts: Vec<usize> = {
        let mut state = state::lock();
        let Some(block) = state.memory.get(p).filter(|block| right(&block.place)).cloned() else {
            state.blame_free(call, p);
            return Err(Code::INVALID_VALUE);
        };
        state.detector.touch_from_host(call, &block.whole(Kind::Write));
        // Work of other contexts is waited for only where it is on this memory.
        let elsewhere = state.detector.in_flight(block.number).next().is_some();
        if elsewhere { state.contexts.keys().copied().collect() } else { vec![block.context] }
    };
    contexts.into_iter().for_each(context::drain);
    let mut state = state::lock();
    let Some(block) = state.memory.remove(p, call.into()) else { return Err(Code::INVALID_VALUE) };
    state.detector.forget(block.number);
    state.discard(&block);
    Ok(())
}

impl state::State {
    /// Graphs that own memory are not simulated.
    fn refuse_memory_nodes(&self, key: usize) -> Result {
        if self.stream(key)?.capture.is_some() {
            crate::unknown::complain("stream-ordered memory inside a capture");
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(())
    }

    fn blame_free(&mut self, call: &'static str, p: usize) {
        use crate::{detector::Span, memory::Found};
        let text = match self.memory.find(&Span::bytes(p, 1)) {
            Found::Freed(by) => format!("DOUBLE FREE: {call} of memory that was freed by {by}"),
            Found::Inside(block) | Found::Over(block) => {
                format!("BAD FREE: {call} of byte {} of {}", p - block.base, block.named())
            }
            Found::Unknown => format!("BAD FREE: {call} of an address that is no memory of CUDA's"),
        };
        self.blame(call, 0, || text);
    }
}
