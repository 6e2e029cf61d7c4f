//! Bulk copies into the rows of a slot.

/// Copies `len` bytes.
///
/// # Safety
/// - `src` is readable and `dst` writable for `len` bytes, and the two do not overlap.
/// - From this call until the calling thread's next [`fence`], nobody reads or writes `dst`.
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract is the one of copy_nonoverlapping.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Orders all earlier [`copy`]s of this thread before what it does next.
pub(crate) fn fence() {}
