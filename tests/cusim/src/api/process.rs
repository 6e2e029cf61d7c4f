//! The driver itself: start, version, errors, symbols.

use super::{put, put_if, text};
use crate::config;
use crate::context;
use crate::error::Code;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

api! {
    Any fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        context::initialise()
    }
    Any fn cuDriverGetVersion(version: *mut c_int) { put(version, config::read().driver_version) }
    Any fn cuGetErrorName(error: c_int, out: *mut *const c_char) { describe(error, out, |(name, _)| name) }
    Any fn cuGetErrorString(error: c_int, out: *mut *const c_char) { describe(error, out, |(_, text)| text) }
    // NVRTC opens libcuda by itself and calls this without checking that it is there.
    Any fn cuGetExportTable(table: *mut *const c_void, _id: *const c_void) {
        put(table, std::ptr::null())?;
        Err(Code::NOT_FOUND)
    }
    Any fn cuGetProcAddress(symbol: *const c_char, out: *mut *mut c_void, _version: c_int, _flags: u64) {
        find(symbol, out).map(drop)
    }
    Any fn cuGetProcAddress_v2(
        symbol: *const c_char,
        out: *mut *mut c_void,
        _version: c_int,
        _flags: u64,
        status: *mut c_uint,
    ) {
        let found = find(symbol, out);
        put_if(status, u32::from(found.is_err())); // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND is 1
        found
    }
    Init fn cuProfilerStart() { Ok(()) }
    Init fn cuProfilerStop() { Ok(()) }
}

fn describe(
    error: c_int,
    out: *mut *const c_char,
    which: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> crate::error::Result {
    match crate::error::describe(error) {
        Some(both) => put(out, which(both).as_ptr()),
        None => {
            put(out, std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

/// The newest form of a function of this library.
fn find(symbol: *const c_char, out: *mut *mut c_void) -> crate::error::Result {
    let name = text(symbol)?.to_str().map_err(|_| Code::INVALID_VALUE)?;
    put(out, std::ptr::null_mut())?;
    // SAFETY: `own` is a function of this library, so dladdr finds the library's path, which the loader keeps;
    // the handle is that of a library that is loaded already and stays so.
    let found = unsafe {
        let own = find as *const c_void;
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own, &mut info) == 0 {
            return Err(Code::NOT_FOUND);
        }
        let library = libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let symbols = ["_v3", "_v2", ""].map(|version| CString::new(format!("{name}{version}")));
        let found = symbols.iter().flatten().map(|symbol| libc::dlsym(library, symbol.as_ptr()));
        found.into_iter().find(|p| !p.is_null())
    };
    put(out, found.ok_or(Code::NOT_FOUND)?)
}
