//! How a program comes to this driver. The library is called `libcusim.so`, so that nobody finds it by chance: cargo
//! puts it on the library path of everything that it runs in the workspace, where it must not stand before a real
//! driver. Its SONAME is `libcuda.so`, and a program that links the rlib opens it before `main`; whoever asks the loader
//! for `libcuda.so` after that is given the library that is there.

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;

/// Runs before `main` in programs that link the rlib, and when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    // SAFETY: the program headers of the main program are part of it, as its first function is.
    let program = module_of(unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void);
    if module_of(at_start as *const c_void) != program {
        return;
    }
    // Beside the program, where cargo builds it. Elsewhere the program was moved: to a machine with a GPU, say.
    let library = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("libcusim.so")));
    if let Some(path) = library.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok()) {
        // SAFETY: the library's initialisers are this one, which returns at once there. It stays open.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    }
}

/// Where the program or library that holds `address` begins.
fn module_of(address: *const c_void) -> usize {
    // SAFETY: dladdr writes to this stack alone, and any address may be asked about.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &mut info) == 0 { 0 } else { info.dli_fbase as usize }
    }
}
