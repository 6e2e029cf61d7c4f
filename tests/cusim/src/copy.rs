//! Copies and fills: what is copied where, and what the host may take as done when the call returns.

use crate::config;
use crate::detector::{Kind, Span, Touch};
use crate::error::{Code, Result};
use crate::memory::{self, Found};
use crate::state::{self, State};
use crate::stream::{self, Work};
use crate::work::{Action, Copy, Fill};
use std::sync::Arc;

/// One end of a copy, as the caller names it.
#[derive(Clone, Copy)]
pub enum End {
    Host(usize),
    Device(usize),
    /// The address says which: unified addressing.
    Either(usize),
}

impl End {
    fn address(self) -> usize {
        match self {
            End::Host(p) | End::Device(p) | End::Either(p) => p,
        }
    }
}

pub struct Transfer {
    pub call: &'static str,
    pub dst: End,
    pub src: End,
    pub width: usize,
    pub rows: usize,
    pub dst_pitch: usize,
    pub src_pitch: usize,
    pub stream: usize,
    /// One of the functions without Async in its name.
    pub synchronous: bool,
}

/// What an end turned out to be.
struct Located {
    /// Where the driver reads or writes.
    address: usize,
    /// `None` for pageable memory.
    touch: Option<Touch>,
    device: Option<usize>,
}

impl Located {
    fn pageable(&self) -> bool {
        self.touch.is_none()
    }
}

impl Transfer {
    /// `n` bytes without gaps.
    pub fn bytes(call: &'static str, dst: End, src: End, n: usize, stream: usize) -> Transfer {
        let synchronous = !call.ends_with("Async");
        Transfer { call, dst, src, width: n, rows: 1, dst_pitch: n, src_pitch: n, stream, synchronous }
    }

    fn locate(&self, state: &mut State) -> Result<(Located, Located)> {
        let dst = Span::rows(self.dst.address(), self.width, self.dst_pitch, self.rows);
        let src = Span::rows(self.src.address(), self.width, self.src_pitch, self.rows);
        let src = state.locate(self.call, self.src, src, Kind::Read)?;
        let dst = state.locate(self.call, self.dst, dst, Kind::Write)?;
        Ok((dst, src))
    }

    pub fn run(&self) -> Result {
        if self.width == 0 || self.rows == 0 {
            return state::lock().resolve(self.stream).map(drop);
        }
        if self.rows > 1 && (self.dst_pitch < self.width || self.src_pitch < self.width) {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state::lock();
        let key = state.resolve(self.stream)?;
        let owner = state.stream(key)?.context;
        let (dst, src) = self.locate(&mut state)?;
        // A copy that is captured reads pageable memory when the graph runs.
        let captured = state.stream(key)?.capture.is_some();
        let upload = src.pageable() && dst.device.is_some() && !captured;
        let staged = if upload {
            drop(state);
            // The synchronous form waits for the stream first; the other one may.
            if self.synchronous {
                stream::synchronize(self.stream)?;
            } else if config::read().pageable_waits {
                stream::wait_silently(self.stream)?;
            }
            let staged = self.stage();
            state = state::lock();
            Some(staged)
        } else {
            None
        };
        let both_device = dst.device.is_some() && src.device.is_some();
        let waits = if upload {
            false // returns once the source has been staged
        } else if self.synchronous {
            !both_device
        } else {
            dst.pageable() || src.pageable()
        };
        let action = Action::Copy(Copy {
            dst: dst.address,
            src: src.address,
            width: self.width,
            rows: self.rows,
            dst_pitch: self.dst_pitch,
            src_pitch: self.src_pitch,
            staged,
            from: src.device,
            to: dst.device,
        });
        let touches = [src.touch, dst.touch].into_iter().flatten().collect();
        let detail = format!(" {} B", self.width * self.rows);
        let done = state.submit(key, Work::new(self.call, action).touching(touches).detail(detail))?;
        drop(state);
        match done {
            Some(done) if waits => stream::settle(&done, owner),
            _ => Ok(()),
        }
    }

    fn stage(&self) -> Arc<[u8]> {
        let mut bytes = Vec::with_capacity(self.width * self.rows);
        for row in 0..self.rows {
            let at = (self.src.address() + row * self.src_pitch) as *const u8;
            // SAFETY: the caller of the copy gives memory that can be read for the time of the call.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, self.width) });
        }
        bytes.into()
    }
}

impl State {
    fn locate(&mut self, call: &'static str, end: End, span: Span, kind: Kind) -> Result<Located> {
        let trouble = match self.memory.find(&span) {
            Found::Inside(block) => {
                let right = match end {
                    End::Host(_) => block.device().is_none(),
                    End::Device(_) => block.device().is_some(),
                    End::Either(_) => true,
                };
                if right {
                    return Ok(Located {
                        address: block.driver_address(span.lo),
                        touch: Some(block.touch(span, kind)),
                        device: block.device(),
                    });
                }
                format!("BAD POINTER: {call} is given {} for the other side", block.named())
            }
            Found::Over(block) => format!(
                "OUT OF BOUNDS: {call} of {} B from byte {} of {}",
                span.hi() - span.lo,
                span.lo - block.base,
                block.named()
            ),
            // The program may have pages of its own at an address that was the driver's.
            Found::Freed(_)
                if matches!(end, End::Host(_)) && memory::mapped(span.lo, span.hi() - span.lo) =>
            {
                return Ok(Located { address: span.lo, touch: None, device: None });
            }
            Found::Freed(by) => format!("USE AFTER FREE: {call} of memory that was freed by {by}"),
            Found::Unknown if matches!(end, End::Device(_)) => {
                format!("BAD POINTER: {call} is given an address that is no device memory")
            }
            Found::Unknown => return Ok(Located { address: span.lo, touch: None, device: None }),
        };
        self.blame(call, 0, || trouble);
        Err(Code::INVALID_VALUE)
    }
}

/// A fill of `rows` rows of `width` elements of `size` bytes, `pitch` bytes apart.
pub fn fill(call: &'static str, stream: usize, fill: Fill) -> Result {
    let Fill { dst, pitch, width, rows, size, .. } = fill;
    if !dst.is_multiple_of(size) || (rows > 1 && (pitch < width * size || !pitch.is_multiple_of(size))) {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = state::lock();
    let key = state.resolve(stream)?;
    if width == 0 || rows == 0 {
        return Ok(());
    }
    let owner = state.stream(key)?.context;
    let span = Span::rows(dst, width * size, pitch, rows);
    let at = state.locate(call, End::Either(dst), span, Kind::Write)?;
    let Some(touch) = at.touch else {
        state.blame(call, 0, || {
            format!("BAD POINTER: {call} is given an address that is no memory of CUDA's")
        });
        return Err(Code::INVALID_VALUE);
    };
    let action = Action::Fill(Fill { dst: at.address, ..fill });
    let detail = format!(" {} B", width * size * rows);
    let done = state.submit(key, Work::new(call, action).touching(vec![touch]).detail(detail))?;
    drop(state);
    // Asynchronous also without Async in the name, unless the target is page-locked memory.
    match done {
        Some(done) if at.device.is_none() && !call.ends_with("Async") => stream::settle(&done, owner),
        _ => Ok(()),
    }
}
