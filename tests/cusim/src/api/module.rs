//! Modules, functions and launches.

use super::{put, text};
use crate::config;
use crate::error::{Code, Result};
use crate::module::{self, SHARED_OPT_IN, Shape};
use crate::state;
use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

api! {
    Unsafe fn cuModuleLoad(out: *mut usize, path: *const c_char) {
        let path = OsStr::from_bytes(text(path)?.to_bytes());
        let image = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        put(out, module::load(image.strip_suffix(b"\0").unwrap_or(&image))?)
    }
    Unsafe fn cuModuleLoadData(out: *mut usize, image: *const c_char) {
        put(out, module::load(text(image)?.to_bytes())?)
    }
    Unsafe fn cuModuleLoadDataEx(
        out: *mut usize,
        image: *const c_char,
        _n: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        put(out, module::load(text(image)?.to_bytes())?)
    }
    Unsafe fn cuModuleUnload(module: usize) { module::unload(module) }
    Context fn cuModuleGetFunction(out: *mut usize, module: usize, name: *const c_char) {
        let name = text(name)?.to_str().map_err(|_| Code::NOT_FOUND)?;
        put(out, module::function(module, name)?)
    }
    Context fn cuModuleGetGlobal_v2(_p: *mut usize, _n: *mut usize, module: usize, _name: *const c_char) {
        let known = state::lock().modules.contains_key(&module);
        Err(if known { Code::NOT_FOUND } else { Code::INVALID_HANDLE })
    }
    Context fn cuFuncGetModule(out: *mut usize, function: usize) {
        put(out, state::lock().functions.get(&function).ok_or(Code::INVALID_HANDLE)?.module)
    }
    Context fn cuFuncGetAttribute(out: *mut c_int, attribute: c_int, function: usize) {
        let dynamic = state::lock().functions.get(&function).ok_or(Code::INVALID_HANDLE)?.dynamic_shared;
        let compute = config::read().compute;
        put(out, match attribute {
            0 => 1024,                      // threads of a block
            4 => 32,                        // registers
            5 | 6 => compute,               // PTX and machine code
            8 => dynamic.max(48 << 10),     // dynamic shared memory
            9 => -1,                        // preferred carve-out
            1..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
    Context fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let mut state = state::lock();
        let function = state.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)?;
        match attribute {
            8 if (0..=SHARED_OPT_IN).contains(&value) => function.dynamic_shared = value,
            9 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
    Context fn cuFuncSetCacheConfig(function: usize, _config: c_int) {
        state::lock().functions.get(&function).map(drop).ok_or(Code::INVALID_HANDLE)
    }
    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int,
        function: usize,
        block: c_int,
        _shared: usize,
    ) {
        state::lock().functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        if block < 1 {
            return Err(Code::INVALID_VALUE);
        }
        put(out, (2048 / ((block.max(32) + 31) & !31)).min(32))
    }
    Context fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        params: *const *const u8,
        extra: *const *const c_void,
    ) {
        if !extra.is_null() {
            crate::unknown::complain("cuLaunchKernel with parameters in `extra`");
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        module::launch("cuLaunchKernel", function, &shape, stream, |i, n| param(params, i, n))
    }
    Context fn cuLaunchCooperativeKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        params: *const *const u8,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        module::launch("cuLaunchCooperativeKernel", function, &shape, stream, |i, n| param(params, i, n))
    }
    Context fn cuLaunchKernelEx(
        launch: *const LaunchConfig,
        function: usize,
        params: *const *const u8,
        extra: *const *const c_void,
    ) {
        // SAFETY: null, or the caller's structure, which lives for the call.
        let launch = unsafe { launch.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        if !extra.is_null() || launch.attributes != 0 {
            crate::unknown::complain("cuLaunchKernelEx with attributes, or parameters in `extra`");
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = Shape { grid: launch.grid, block: launch.block, shared: launch.shared };
        module::launch("cuLaunchKernelEx", function, &shape, launch.stream, |i, n| param(params, i, n))
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    _attributes: *mut c_void,
    attributes: c_uint,
}

/// The bytes of a launch's parameter.
fn param(params: *const *const u8, index: usize, n: usize) -> Result<Vec<u8>> {
    if params.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller gives one pointer a parameter, each to as many bytes as the PTX declares.
    unsafe {
        let p = *params.add(index);
        if p.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        Ok(std::slice::from_raw_parts(p, n).to_vec())
    }
}
