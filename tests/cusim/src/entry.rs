//! What every call of the driver goes through before it does anything.

use crate::context;
use crate::error::{Code, Result};
use crate::{guard, state};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// What a function needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Nothing.
    Any,
    /// cuInit.
    Init,
    /// A current context that has not failed.
    Context,
    /// The same, and it is one of the calls that CUDA calls potentially unsafe during stream capture.
    Unsafe,
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// The thread's name as it is at its first call.
    static THREAD: Arc<str> = guard::thread_name().into();
}

pub fn in_host_function(f: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    f();
    IN_HOST_FUNCTION.set(false);
}

/// The process that initialised the driver; 0 before that.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Calls of this process that was forked from the driver's. Without a lock, which nobody may ever give back there.
static STRAYS: AtomicU64 = AtomicU64::new(0);

pub fn strays() -> u64 {
    STRAYS.load(Ordering::SeqCst)
}

/// The driver has been shut down: every call fails.
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

/// As a real driver's own exit handler does: what runs after it finds no driver any more.
pub extern "C" fn shut_down() {
    SHUT_DOWN.store(true, Ordering::SeqCst);
    // A forked child may exit too: it takes no lock, which its parent may have held.
    if OWNER.load(Ordering::SeqCst) == process() {
        crate::control::leave_report();
    }
}

pub fn own() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler touches one static, and the library is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::atexit(shut_down);
    });
    OWNER.store(process(), Ordering::SeqCst);
}

pub fn disown() {
    OWNER.store(0, Ordering::SeqCst);
    SHUT_DOWN.store(false, Ordering::SeqCst);
}

fn process() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// The name of a function without the version in its symbol.
pub fn base_name(symbol: &str) -> &str {
    match symbol.rsplit_once("_v") {
        Some((base, version)) if version.len() == 1 => base,
        _ => symbol,
    }
}

pub fn call(symbol: &'static str, level: Level, body: impl FnOnce() -> Result) -> c_int {
    match admit(base_name(symbol), level).and_then(|()| body()) {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

fn admit(name: &'static str, level: Level) -> Result {
    // The child of a fork has no driver, and perhaps a lock that nobody will ever give back.
    let owner = OWNER.load(Ordering::SeqCst);
    if owner != 0 && owner != process() {
        STRAYS.fetch_add(1, Ordering::SeqCst);
        if level != Level::Any {
            return Err(Code::NOT_INITIALIZED);
        }
    }
    let mut state = state::lock();
    *state.calls.entry(name).or_default() += 1;
    // A thread that is ending has no name any more.
    let caller = THREAD.try_with(Arc::clone).unwrap_or_default();
    state.callers.entry(name).or_default().insert(caller);
    if IN_HOST_FUNCTION.get() {
        state.blame(name, 0, || format!("{name} is called from a host function"));
        return Err(Code::NOT_PERMITTED);
    }
    if level != Level::Any && SHUT_DOWN.load(Ordering::SeqCst) {
        return Err(Code::DEINITIALIZED);
    }
    if let Some(fault) = state.faults.strike(name) {
        if fault.sticky
            && let Ok(current) = context::current()
            && let Some(context) = state.contexts.get(&current)
        {
            context.poison.set(fault.code);
        }
        return Err(fault.code);
    }
    if level == Level::Any {
        return Ok(());
    }
    if !state.initialised {
        return Err(Code::NOT_INITIALIZED);
    }
    if level == Level::Init {
        return Ok(());
    }
    let context = state.context(context::current()?)?;
    context.poison.check()?;
    if level == Level::Unsafe {
        state.check_unsafe_call()?;
    }
    Ok(())
}
