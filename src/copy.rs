pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}
