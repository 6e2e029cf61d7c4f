//! Copies and fills.

use crate::copy::{End, Transfer, fill};
use crate::error::{Code, Result};
use crate::work::Fill;
use std::ffi::{c_uchar, c_uint, c_ushort};

use End::{Device, Either, Host};

api! {
    Unsafe fn cuMemcpyHtoD_v2(dst: usize, src: usize, n: usize) {
        Transfer::bytes("cuMemcpyHtoD", Device(dst), Host(src), n, 0).run()
    }
    Unsafe fn cuMemcpyDtoH_v2(dst: usize, src: usize, n: usize) {
        Transfer::bytes("cuMemcpyDtoH", Host(dst), Device(src), n, 0).run()
    }
    Unsafe fn cuMemcpyDtoD_v2(dst: usize, src: usize, n: usize) {
        Transfer::bytes("cuMemcpyDtoD", Device(dst), Device(src), n, 0).run()
    }
    Unsafe fn cuMemcpy(dst: usize, src: usize, n: usize) {
        Transfer::bytes("cuMemcpy", Either(dst), Either(src), n, 0).run()
    }
    Context fn cuMemcpyHtoDAsync_v2(dst: usize, src: usize, n: usize, stream: usize) {
        Transfer::bytes("cuMemcpyHtoDAsync", Device(dst), Host(src), n, stream).run()
    }
    Context fn cuMemcpyDtoHAsync_v2(dst: usize, src: usize, n: usize, stream: usize) {
        Transfer::bytes("cuMemcpyDtoHAsync", Host(dst), Device(src), n, stream).run()
    }
    Context fn cuMemcpyDtoDAsync_v2(dst: usize, src: usize, n: usize, stream: usize) {
        Transfer::bytes("cuMemcpyDtoDAsync", Device(dst), Device(src), n, stream).run()
    }
    Context fn cuMemcpyAsync(dst: usize, src: usize, n: usize, stream: usize) {
        Transfer::bytes("cuMemcpyAsync", Either(dst), Either(src), n, stream).run()
    }
    Unsafe fn cuMemcpyPeer(dst: usize, dst_context: usize, src: usize, src_context: usize, n: usize) {
        peer("cuMemcpyPeer", (dst, dst_context), (src, src_context), n, 0)
    }
    Context fn cuMemcpyPeerAsync(
        dst: usize,
        dst_context: usize,
        src: usize,
        src_context: usize,
        n: usize,
        stream: usize,
    ) {
        peer("cuMemcpyPeerAsync", (dst, dst_context), (src, src_context), n, stream)
    }
    Unsafe fn cuMemcpy2D_v2(copy: *const Memcpy2D) { copy_2d("cuMemcpy2D", copy, 0) }
    Unsafe fn cuMemcpy2DUnaligned_v2(copy: *const Memcpy2D) { copy_2d("cuMemcpy2DUnaligned", copy, 0) }
    Context fn cuMemcpy2DAsync_v2(copy: *const Memcpy2D, stream: usize) { copy_2d("cuMemcpy2DAsync", copy, stream) }

    Unsafe fn cuMemsetD8_v2(dst: usize, value: c_uchar, n: usize) {
        fill("cuMemsetD8", 0, row(dst, value.into(), 1, n))
    }
    Unsafe fn cuMemsetD16_v2(dst: usize, value: c_ushort, n: usize) {
        fill("cuMemsetD16", 0, row(dst, value.into(), 2, n))
    }
    Unsafe fn cuMemsetD32_v2(dst: usize, value: c_uint, n: usize) { fill("cuMemsetD32", 0, row(dst, value, 4, n)) }
    Context fn cuMemsetD8Async(dst: usize, value: c_uchar, n: usize, stream: usize) {
        fill("cuMemsetD8Async", stream, row(dst, value.into(), 1, n))
    }
    Context fn cuMemsetD16Async(dst: usize, value: c_ushort, n: usize, stream: usize) {
        fill("cuMemsetD16Async", stream, row(dst, value.into(), 2, n))
    }
    Context fn cuMemsetD32Async(dst: usize, value: c_uint, n: usize, stream: usize) {
        fill("cuMemsetD32Async", stream, row(dst, value, 4, n))
    }
    Context fn cuMemsetD2D8Async(dst: usize, pitch: usize, value: c_uchar, width: usize, rows: usize, stream: usize) {
        fill("cuMemsetD2D8Async", stream, Fill { dst, pitch, width, rows, value: value.into(), size: 1 })
    }
    Context fn cuMemsetD2D16Async(dst: usize, pitch: usize, value: c_ushort, width: usize, rows: usize, stream: usize) {
        fill("cuMemsetD2D16Async", stream, Fill { dst, pitch, width, rows, value: value.into(), size: 2 })
    }
    Context fn cuMemsetD2D32Async(dst: usize, pitch: usize, value: c_uint, width: usize, rows: usize, stream: usize) {
        fill("cuMemsetD2D32Async", stream, Fill { dst, pitch, width, rows, value, size: 4 })
    }
}

fn row(dst: usize, value: u32, size: usize, n: usize) -> Fill {
    Fill { dst, pitch: n * size, width: n, rows: 1, value, size }
}

/// A copy whose ends lie in the memory of the contexts that are named with them.
fn peer(call: &'static str, dst: (usize, usize), src: (usize, usize), n: usize, stream: usize) -> Result {
    {
        let state = crate::state::lock();
        for (address, context) in [dst, src] {
            let device = state.context(context)?.device;
            if state.memory.at(address).is_some_and(|block| block.device() != Some(device)) {
                return Err(Code::INVALID_VALUE);
            }
        }
    }
    Transfer::bytes(call, Device(dst.0), Device(src.0), n, stream).run()
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Memcpy2D {
    src: Side,
    dst: Side,
    width: usize,
    height: usize,
}

#[repr(C)]
struct Side {
    x: usize,
    y: usize,
    memory: c_uint,
    host: usize,
    device: usize,
    array: usize,
    pitch: usize,
}

impl Side {
    /// The end of the copy, and the distance of its rows (0 means the width).
    fn end(&self, width: usize) -> Result<(End, usize)> {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let offset = self.y * pitch + self.x;
        let end = match self.memory {
            1 => Host(self.host + offset),
            2 => Device(self.device + offset),
            4 => Either(self.device + offset),
            _ => return Err(Code::NOT_SUPPORTED), // arrays
        };
        Ok((end, pitch))
    }
}

fn copy_2d(call: &'static str, copy: *const Memcpy2D, stream: usize) -> Result {
    // SAFETY: null, or the caller's structure, which lives for the call.
    let copy = unsafe { copy.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    let (src, src_pitch) = copy.src.end(copy.width)?;
    let (dst, dst_pitch) = copy.dst.end(copy.width)?;
    let bytes = Transfer::bytes(call, dst, src, copy.width, stream);
    Transfer { rows: copy.height, src_pitch, dst_pitch, ..bytes }.run()
}
