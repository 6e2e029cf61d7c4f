//! Streams.

use super::put;
use crate::error::Code;
use crate::event;
use crate::state;
use crate::stream::{self, Work};
use crate::work::{Action, HostFn};
use std::ffi::{c_int, c_uint};

api! {
    Context fn cuStreamCreate(out: *mut usize, flags: c_uint) { put(out, state::lock().create_stream(flags, 0)?) }
    Context fn cuStreamCreateWithPriority(out: *mut usize, flags: c_uint, priority: c_int) {
        put(out, state::lock().create_stream(flags, priority)?)
    }
    Context fn cuStreamDestroy_v2(stream: usize) { stream::destroy(stream) }
    Unsafe fn cuStreamSynchronize(stream: usize) { stream::synchronize(stream) }
    Unsafe fn cuStreamQuery(stream: usize) { stream::query(stream) }
    Context fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        event::wait(stream, event, flags == 1)
    }
    Context fn cuLaunchHostFunc(stream: usize, function: Option<HostFn>, data: usize) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        state.submit(key, Work::new("cuLaunchHostFunc", Action::Host(function, data)))?;
        Ok(())
    }
    Context fn cuStreamGetPriority(stream: usize, out: *mut c_int) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        put(out, state.stream(key)?.priority)
    }
    Context fn cuStreamGetFlags(stream: usize, out: *mut c_uint) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        put(out, state.stream(key)?.flags)
    }
    Context fn cuStreamGetId(stream: usize, out: *mut u64) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        put(out, state.stream(key)?.id as u64)
    }
    Context fn cuStreamGetCtx(stream: usize, out: *mut usize) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        put(out, state.stream(key)?.context)
    }
}
