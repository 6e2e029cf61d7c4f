//! Guard pages: while a copy is in flight, the program's view of page-locked memory can't be written (upload) or
//! not be touched at all (download), until the host has seen the copy done. A thread that is too early faults;
//! the fault becomes a report that names the thread and the copy, and the thread goes on.
//!
//! Only memory of cuMemHostAlloc is guarded: registered memory has no second mapping for the driver to use.
//! A system call given guarded memory fails with EFAULT and is not reported.

use crate::config;
use crate::detector::{Detector, Kind};
use crate::memory::{Block, Place};
use crate::state;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Once;

const PAGE: usize = 4096;

/// Brings the protection of a block's pages in line with what is in flight.
pub fn protect(block: &mut Block, detector: &Detector) {
    if !matches!(block.place, Place::Pinned { .. }) {
        return;
    }
    let in_flight: Vec<_> =
        if config::read().guard { detector.in_flight(block.number).collect() } else { vec![] };
    if in_flight.is_empty() && !block.closed {
        return;
    }
    if !in_flight.is_empty() {
        install_handler();
    }
    let end = block.base + block.len.next_multiple_of(PAGE);
    let mut cuts = vec![block.base, end];
    for access in &in_flight {
        cuts.push(access.span.lo & !(PAGE - 1));
        cuts.push(access.span.hi().next_multiple_of(PAGE));
    }
    cuts.sort_unstable();
    cuts.dedup();
    for run in cuts.windows(2) {
        let mut protection = libc::PROT_READ | libc::PROT_WRITE;
        for access in in_flight.iter().filter(|a| a.span.lo < run[1] && run[0] < a.span.hi()) {
            protection &= if access.kind != Kind::Read { libc::PROT_NONE } else { libc::PROT_READ };
        }
        // SAFETY: `run` is whole pages of the block's mapping; the driver itself uses the other mapping.
        unsafe { libc::mprotect(run[0] as *mut c_void, run[1] - run[0], protection) };
    }
    block.closed = !in_flight.is_empty();
}

struct Previous(UnsafeCell<libc::sigaction>);
// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for Previous {}
// SAFETY: all zeros is a valid `sigaction` (the default action).
static PREVIOUS: Previous = Previous(UnsafeCell::new(unsafe { std::mem::zeroed() }));

fn install_handler() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler has the signature that SA_SIGINFO asks for; PREVIOUS is written here alone.
    ONCE.call_once(|| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), PREVIOUS.0.get());
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    });
}

/// The fault is the thread's own (not another signal), so locks are safe to take: the driver never touches the
/// program's view of guarded memory while it holds one.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes valid pointers to a handler installed with SA_SIGINFO.
    let (address, write) = unsafe { ((*info).si_addr() as usize, was_write(context)) };
    let mut state = state::lock();
    let state = &mut *state;
    let ours = |block: &&Block| matches!(block.place, Place::Pinned { .. });
    let Some(block) = state.memory.at(address).filter(ours) else {
        // Not ours: the previous handler gets the fault when the instruction runs again.
        // SAFETY: PREVIOUS was filled before this handler was installed.
        unsafe { libc::sigaction(signal, PREVIOUS.0.get(), std::ptr::null_mut()) };
        return;
    };
    if !block.closed {
        return; // opened by another thread meanwhile
    }
    // Bytes that merely share a page with bytes in flight are free to use.
    let first = state
        .detector
        .in_flight(block.number)
        .find(|access| access.span.meets_range(address, address + 1) && (write || access.kind != Kind::Read));
    if let Some(copy) = first.map(|access| access.by.clone()) {
        let thread = thread_name();
        let (named, offset) = (block.named(), address - block.base);
        let verb = if write { "WRITES" } else { "READS" };
        state.detector.host_races.add(&copy.call, &thread, block.number, || {
            format!(
                "HOST RACE on {named}: thread {thread:?} {verb} byte {offset:#x} while in flight: {}",
                copy.what
            )
        });
    }
    let lo = address & !(PAGE - 1);
    // SAFETY: the page is part of a live block; opening it lets the thread go on.
    unsafe { libc::mprotect(lo as *mut c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn was_write(context: *mut c_void) -> bool {
    // SAFETY: the third argument of an SA_SIGINFO handler is a ucontext_t; bit 1 of the page-fault error
    // code says that it was a write.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn was_write(_context: *mut c_void) -> bool {
    false // not told apart here: reported as a read
}

pub fn thread_name() -> String {
    let mut name = [0u8; 17];
    // SAFETY: PR_GET_NAME writes at most 16 bytes with their NUL.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned()
}
