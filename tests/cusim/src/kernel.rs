//! Kernels emulated on the host: the table that `emu/table.cpp` builds, and launches of its entries.

use crate::config;
use crate::detector::Kind;
use crate::lane::Poison;
use crate::state;
use crate::work::sleep_until;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{Duration, Instant};

type AccessFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int);

/// `EmuKernel` of `emu/emu.h`.
#[repr(C)]
pub struct EmuKernel {
    name: *const c_char,
    run: unsafe extern "C" fn(*const u32, *const u32, *mut *mut c_void),
    access: Option<unsafe extern "C" fn(*mut *mut c_void, AccessFn, *mut c_void)>,
}

// SAFETY: entries are constants of the table: names and functions.
unsafe impl Sync for EmuKernel {}

unsafe extern "C" {
    static emu_kernels: [EmuKernel; 0];
    static emu_kernel_count: u32;
}

pub fn find(name: &str) -> Option<&'static EmuKernel> {
    // SAFETY: the table has `emu_kernel_count` entries, which never change; names end in NUL.
    unsafe {
        let table = std::slice::from_raw_parts(
            (&raw const emu_kernels).cast::<EmuKernel>(),
            emu_kernel_count as usize,
        );
        table.iter().find(|kernel| CStr::from_ptr(kernel.name).to_bytes() == name.as_bytes())
    }
}

/// The memory that a launch touches.
pub struct Use {
    pub address: usize,
    pub bytes: usize,
    pub kind: Kind,
}

impl EmuKernel {
    /// What a launch with these parameters touches; `None` where the table does not say.
    pub fn uses(&self, params: &[Vec<u8>]) -> Option<Vec<Use>> {
        unsafe extern "C" fn note(uses: *mut c_void, p: *const c_void, bytes: usize, kind: c_int) {
            // SAFETY: `uses` is the vector handed to `access` below, which nothing else uses meanwhile.
            let uses = unsafe { &mut *uses.cast::<Vec<Use>>() };
            let kind = match kind {
                0 => Kind::Read,
                1 => Kind::Write,
                _ => Kind::Atomic,
            };
            uses.push(Use { address: p as usize, bytes, kind });
        }
        let access = self.access?;
        let mut uses: Vec<Use> = vec![];
        let mut pointers = pointers(params);
        // SAFETY: the parameters have the sizes that the kernel's PTX declares, which are those of its source.
        unsafe { access(pointers.as_mut_ptr(), note, (&raw mut uses).cast()) };
        uses.retain(|u| u.bytes != 0);
        Some(uses)
    }
}

fn pointers(params: &[Vec<u8>]) -> Vec<*mut c_void> {
    params.iter().map(|param| param.as_ptr() as *mut c_void).collect()
}

/// One launch, its parameters copied at the call.
pub struct Launch {
    pub name: String,
    /// `None`: not in the table, only time passes.
    pub kernel: Option<&'static EmuKernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub params: Vec<Vec<u8>>,
    /// It touches memory that it may not: a fault instead of a run.
    pub faults: bool,
}

impl Launch {
    pub fn perform(&self, poison: &Poison) {
        let end = Instant::now() + Duration::from_micros(config::read().kernel_us);
        let strike = state::lock().faults.strike(&format!("kernel {}", self.name));
        if let Some(strike) = strike {
            poison.set(strike.code);
        } else if self.faults {
            poison.set(crate::error::Code::ILLEGAL_ADDRESS);
        } else if let Some(kernel) = self.kernel {
            let mut pointers = pointers(&self.params);
            // SAFETY: as for `uses`; what it touches was inside live allocations at the launch, and those are
            // unmapped only after it.
            unsafe { (kernel.run)(self.grid.as_ptr(), self.block.as_ptr(), pointers.as_mut_ptr()) };
        }
        sleep_until(end);
    }
}
