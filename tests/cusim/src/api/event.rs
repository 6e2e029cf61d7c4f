//! Events.

use super::put;
use crate::error::Code;
use crate::event;
use std::ffi::c_uint;

api! {
    Context fn cuEventCreate(out: *mut usize, flags: c_uint) { put(out, event::create(flags)?) }
    Context fn cuEventDestroy_v2(event: usize) { event::destroy(event) }
    Context fn cuEventRecord(event: usize, stream: usize) { event::record(event, stream, false) }
    Context fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        event::record(event, stream, flags == 1)
    }
    // Both are unsafe during capture, but first of all the event may be one of a capture.
    Context fn cuEventQuery(event: usize) { event::query(event) }
    Context fn cuEventSynchronize(event: usize) { event::synchronize(event) }
    Context fn cuEventElapsedTime(out: *mut f32, start: usize, end: usize) { put(out, event::elapsed(start, end)?) }
}
