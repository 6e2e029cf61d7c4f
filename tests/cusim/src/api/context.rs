//! Contexts.

use super::put;
use crate::config;
use crate::context;
use crate::error::Code;
use crate::state;
use std::ffi::{c_int, c_uint, c_void};

api! {
    Init fn cuCtxCreate_v2(out: *mut usize, flags: c_uint, device: c_int) { create(out, flags, device) }
    Init fn cuCtxCreate_v3(out: *mut usize, _affinity: *mut c_void, _n: c_int, flags: c_uint, device: c_int) {
        create(out, flags, device)
    }
    Init fn cuCtxDestroy_v2(handle: usize) {
        if state::lock().context(handle)?.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        context::destroy(handle)?;
        if context::peek() == handle {
            context::pop()?;
        }
        Ok(())
    }
    Init fn cuCtxGetCurrent(out: *mut usize) { put(out, context::peek()) }
    Init fn cuCtxSetCurrent(handle: usize) { context::set_current(handle) }
    Init fn cuCtxPushCurrent_v2(handle: usize) { context::push(handle) }
    Init fn cuCtxPopCurrent_v2(out: *mut usize) {
        let popped = context::pop()?;
        if !out.is_null() {
            put(out, popped)?;
        }
        Ok(())
    }
    Init fn cuCtxGetDevice(out: *mut c_int) {
        let state = state::lock();
        let device = state.context(context::current()?)?.device;
        put(out, state.ordinal(device))
    }
    Init fn cuCtxGetFlags(out: *mut c_uint) {
        let state = state::lock();
        put(out, state.context(context::current()?)?.flags)
    }
    Init fn cuCtxGetApiVersion(_context: usize, version: *mut c_uint) { put(version, 3020) }
    Init fn cuCtxGetId(handle: usize, out: *mut u64) {
        let handle = if handle == 0 { context::current()? } else { handle };
        state::lock().context(handle)?;
        put(out, handle as u64)
    }
    Init fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        state::lock().context(context::current()?)?;
        if !least.is_null() {
            put(least, 0)?;
        }
        if !greatest.is_null() {
            put(greatest, -5)?;
        }
        Ok(())
    }
    Unsafe fn cuCtxSynchronize() { context::synchronize(context::current()?) }
    Context fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state::lock();
        let own = context::current()?;
        let (device, other) = (state.context(own)?.device, state.context(peer)?.device);
        if device == other || !config::read().peer {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?.peers;
        if peers.insert(peer) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }
    Context fn cuCtxDisablePeerAccess(peer: usize) {
        let mut state = state::lock();
        let own = context::current()?;
        let peers = &mut state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?.peers;
        if peers.remove(&peer) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}

/// A context of its own, made current.
fn create(out: *mut usize, flags: c_uint, device: c_int) -> crate::error::Result {
    let handle = {
        let mut state = state::lock();
        let number = state.device(device)?;
        state.create_context(number, flags, None)?
    };
    context::push(handle)?;
    put(out, handle)
}
