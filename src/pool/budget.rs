//! Hard ceilings on bytes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A ceiling that several owners share. What is reserved counts until its [`Reservation`] is dropped, which
/// is when the memory is freed: also when that happens late, in the reaper.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    what: &'static str,
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

impl Budget {
    /// A budget of `limit` bytes; `what` is the option that sets it.
    pub(crate) fn new(what: &'static str, limit: usize) -> Self {
        Self(Arc::new(Inner { what, limit, used: Mutex::new(0), freed: Condvar::new() }))
    }

    /// Bytes that could be reserved now.
    pub(crate) fn left(&self) -> usize {
        self.0.limit - *lock(&self.0.used)
    }

    pub(crate) fn limit(&self) -> usize {
        self.0.limit
    }

    /// Reserves `bytes`, waiting up to `patience` for memory that is about to be freed.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] with the arithmetic.
    pub(crate) fn reserve(&self, bytes: usize, patience: Duration) -> Result<Reservation> {
        let deadline = Instant::now() + patience;
        let mut used = lock(&self.0.used);
        while self.0.limit - *used < bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if bytes > self.0.limit || left.is_zero() {
                let text = format!(
                    "{bytes} bytes do not fit into {} of {} bytes, of which {} are in use",
                    self.0.what, self.0.limit, *used
                );
                return Err(Error::new(ErrorKind::LimitExceeded, text));
            }
            used = self.0.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *used += bytes;
        Ok(Reservation { budget: self.clone(), bytes })
    }
}

/// Bytes taken from a [`Budget`] until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *lock(&self.budget.0.used) -= self.bytes;
        self.budget.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_waits_for_one_that_is_about_to_end_and_no_longer() {
        let budget = Budget::new("host_budget", 100);
        let first = budget.reserve(80, Duration::ZERO).unwrap();
        let e = budget.reserve(30, Duration::from_millis(5)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
        assert!(e.to_string().contains("host_budget") && e.to_string().contains("100"), "{e}");
        assert!(budget.reserve(101, Duration::from_secs(60)).is_err());
        let other = budget.clone();
        let waiter = std::thread::spawn(move || other.reserve(30, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(5));
        drop(first);
        let second = waiter.join().unwrap().unwrap();
        assert_eq!(budget.left(), 70);
        drop(second);
        assert_eq!(budget.left(), budget.limit());
    }
}
