//! Bulk copies into memory that the processor does not read again: stores that bypass its caches.
//!
//! An ordinary store first reads the line it overwrites and pushes out others; a non-temporal store
//! writes full lines to memory and leaves the caches to the decoder.

/// From this length on [`copy`] bypasses the caches. Measured on a server core, rows out of a cached source
/// into a slot of 128 MiB (test `rate`): 512 B to 2 KiB about even, 4 KiB 1.2 to 1.6 times as fast as a plain
/// copy, 8 KiB to 1 MiB twice.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
const STREAM_FROM: usize = 4 << 10;

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// - `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
/// - From this call until the calling thread's next [`fence`], nobody reads or writes `dst`; the thread
///   passes the memory on (through an atomic, a lock, a channel) only after that fence.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if len >= STREAM_FROM && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: AVX has just been detected; the rest is the caller's contract, handed down.
        return unsafe { x86::stream(dst, src, len) };
    }
    // SAFETY: the caller's contract, handed down.
    unsafe { dst.copy_from_nonoverlapping(src, len) }
}

/// Orders all earlier [`copy`]s of this thread before what it does next. Once for many copies is enough.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: SSE is part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
mod x86 {
    use std::arch::x86_64::{__m256i, _MM_HINT_NTA, _mm_prefetch, _mm256_loadu_si256, _mm256_stream_si256};

    const LINE: usize = 64;
    /// How far ahead the source is prefetched, in bytes.
    const AHEAD: usize = 512;

    /// As [`super::copy`], with non-temporal stores for all whole lines of `dst`.
    ///
    /// # Safety
    /// As [`super::copy`]; the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn stream(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(LINE).min(len);
        // SAFETY: `head <= len`, and the caller vouches for `len` bytes on both sides.
        unsafe { dst.copy_from_nonoverlapping(src, head) };
        let mut at = head;
        while at + 2 * LINE <= len {
            // SAFETY: `at + 128 <= len`, so all four loads and stores lie inside what the caller vouches
            // for; `dst + at` is a multiple of 64, as the store needs 32; a prefetch never faults.
            unsafe {
                let from = src.add(at).cast::<__m256i>();
                let to = dst.add(at).cast::<__m256i>();
                _mm_prefetch::<_MM_HINT_NTA>(src.wrapping_add(at + AHEAD).cast());
                _mm_prefetch::<_MM_HINT_NTA>(src.wrapping_add(at + AHEAD + LINE).cast());
                let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
                _mm256_stream_si256(to, a);
                _mm256_stream_si256(to.add(1), b);
                _mm256_stream_si256(to.add(2), c);
                _mm256_stream_si256(to.add(3), d);
            }
            at += 2 * LINE;
        }
        // SAFETY: `at <= len`; these bytes lie behind all that was streamed.
        unsafe { dst.add(at).copy_from_nonoverlapping(src.add(at), len - at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: u8 = 0xA5;

    /// Copies `len` bytes between the two offsets and compares with a plain copy, the bytes around included.
    fn check(len: usize, from: usize, to: usize) {
        let src: Vec<u8> = (0..from + len).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut got = vec![GUARD; to + len + 160];
        let mut want = got.clone();
        want[to..to + len].copy_from_slice(&src[from..]);
        // SAFETY: both vectors are long enough for `len` bytes from their offsets and are two allocations.
        unsafe { copy(got.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
        fence();
        assert!(got == want, "{len} bytes from offset {from} to offset {to}");
    }

    #[test]
    fn every_length_and_offset_at_an_alignment_border_is_a_plain_copy() {
        let (borders, spread): (&[usize], usize) =
            if cfg!(miri) { (&[0, 4096], 1) } else { (&[0, 64, 2048, 4096, 4096 + 128, 16384], 3) };
        let offsets: &[usize] =
            if cfg!(miri) { &[0, 1, 63] } else { &[0, 1, 2, 15, 16, 31, 32, 33, 63, 64, 65, 127] };
        for &border in borders {
            for len in border.saturating_sub(spread)..=border + spread {
                for &from in offsets {
                    for &to in offsets {
                        check(len, from, to);
                    }
                }
            }
        }
    }

    #[test]
    fn every_length_over_two_lines_past_the_threshold_is_a_plain_copy() {
        for len in (4096..4096 + 260).step_by(if cfg!(miri) { 37 } else { 1 }) {
            check(len, len % 61, len % 67);
        }
    }

    #[test]
    #[ignore = "a measurement: cargo test --release copy::tests::rate -- --ignored --nocapture"]
    fn rate() {
        let mut slot = vec![1u8; 128 << 20];
        let (to, bytes) = (slot.as_mut_ptr(), slot.len());
        let source: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        for shift in 9..=20 {
            let len = 1usize << shift;
            let mut rates = Vec::new();
            for plain in [true, false] {
                let mut best = f64::MAX;
                for _ in 0..5 {
                    let start = std::time::Instant::now();
                    for at in (0..bytes).step_by(len) {
                        let dst = to.wrapping_add(at);
                        let src = source.as_ptr().wrapping_add(at % source.len());
                        // SAFETY: both lie in their vectors for `len` bytes; nobody reads `slot`.
                        unsafe {
                            if plain {
                                dst.copy_from_nonoverlapping(src, len);
                            } else {
                                copy(dst, src, len);
                            }
                        }
                        fence();
                    }
                    best = best.min(start.elapsed().as_secs_f64());
                }
                rates.push(bytes as f64 / best / 1e9);
            }
            println!("{len:>8} B rows: plain {:.2} GB/s, copy {:.2} GB/s", rates[0], rates[1]);
        }
    }
}
