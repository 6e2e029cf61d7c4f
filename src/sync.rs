//! What the threads of this crate share: a lock that a panic elsewhere does not close, and the
//! process they belong to.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. No user code runs under a lock of this crate, so what a poisoned one guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`, under the rule of [`lock`].
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The process in which something was made. Threads do not survive a fork and a lock may have been held
/// by one of them, so whatever belongs to another process must not be touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The process of the caller.
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether the caller runs in a process forked from this one.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::current()
    }
}
