//! The exported functions: each checks its pointers and calls one internal function. Exported functions never
//! call each other: such calls would go through the dynamic linker, and to whatever driver it finds.

use crate::error::{Code, Result};
use std::ffi::{CStr, c_char};

macro_rules! api {
    ($($level:ident fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        /// # Safety
        /// As in the CUDA driver API: pointers are null or valid for what the function does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> ::std::ffi::c_int {
            crate::entry::call(stringify!($name), crate::entry::Level::$level, || $body)
        }
    )*};
}

mod context;
mod copy;
mod device;
mod event;
mod graph;
mod memory;
mod module;
mod process;
mod stream;
mod unimplemented;

/// Writes a result through the caller's pointer.
fn put<T>(p: *mut T, value: T) -> Result {
    if p.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller of the API gives a pointer to a `T`.
    unsafe { p.write(value) };
    Ok(())
}

/// The same for results that the caller may not want.
fn put_if<T>(p: *mut T, value: T) {
    let _ = put(p, value);
}

/// A string of the caller's.
fn text<'a>(p: *const c_char) -> Result<&'a CStr> {
    if p.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller gives a string that ends in NUL and lives for the call.
    Ok(unsafe { CStr::from_ptr(p) })
}

/// Writes a string with its NUL into `n` bytes of the caller's; what does not fit is cut.
fn put_text(p: *mut c_char, n: i32, value: &str) -> Result {
    let n = usize::try_from(n).unwrap_or(0);
    if p.is_null() || n == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let len = value.len().min(n - 1);
    // SAFETY: the caller gives `n` bytes; `len` + 1 are written.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr().cast(), p, len);
        p.add(len).write(0);
    }
    Ok(())
}
