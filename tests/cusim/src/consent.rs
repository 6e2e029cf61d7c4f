//! Who may see a simulated GPU. Cargo puts this library on the library path of *everything* that it runs in the
//! workspace, once it has been built: also of tests and programs that never asked for it. To them it is a machine
//! without a device.
//!
//! A program has asked if it links the rlib (`use cusim as _;` is enough), attaches to the driver with `Sim`, or
//! runs with a `CUSIM_*` variable.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variable, without its prefix, that stands for a program that links the rlib.
pub const CLIENT: &str = "CLIENT";

static ASKED: AtomicBool = AtomicBool::new(false);

pub fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

pub fn given() -> bool {
    ASKED.load(Ordering::SeqCst)
        || std::env::vars_os().any(|(name, _)| name.as_encoded_bytes().starts_with(b"CUSIM_"))
}

/// Runs before `main` in programs that link the rlib, and when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    // SAFETY: the program headers of the main program are part of it, as its first function is.
    let program = module_of(unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void);
    if module_of(at_start as *const c_void) == program {
        // SAFETY: there is one thread as yet.
        unsafe { libc::setenv(c"CUSIM_CLIENT".as_ptr(), c"1".as_ptr(), 1) };
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
