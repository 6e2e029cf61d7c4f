//! A program that does not link the simulator, and that cargo runs with the simulator's folder on its library path: it
//! finds a real driver or none.

use std::ffi::CStr;

#[test]
fn the_driver_is_not_the_simulated_one() {
    for name in [c"libcuda.so", c"libcuda.so.1", c"libnvcuda.so"] {
        // SAFETY: opening a driver library runs its initialisers, as any CUDA program does.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if !library.is_null() {
            let command: &CStr = c"cusim_command";
            // SAFETY: the library is open.
            let found = unsafe { libc::dlsym(library, command.as_ptr()) };
            assert!(found.is_null(), "{name:?} is the simulated driver");
        }
    }
}
