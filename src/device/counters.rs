//! What a device counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of what a device has done since it was made. Bytes are bytes, the rest are numbers of
        /// calls or objects. In the steady state of a loader neither `pins` nor `host_bytes`, `device_bytes`,
        /// `streams` and `events` move.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Time that copies spent on the link, both directions together. Against the time that passed it
            /// says how busy the link was: near 1 (a direction) the link is what limits.
            pub copy_busy: Duration,
        }

        /// The live side of [`Counters`]. Relaxed throughout: nothing is ordered by a counter.
        #[derive(Debug, Default)]
        pub(crate) struct Tally {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) copy_busy_ns: AtomicU64,
        }

        impl Tally {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    copy_busy: Duration::from_nanos(self.copy_busy_ns.load(Relaxed)),
                }
            }
        }
    };
}

counters! {
    /// Host buffers that were page-locked.
    pins,
    /// Page-locked host buffers that were given back.
    unpins,
    /// Calls that asked for page-locked memory and were refused. After the first one a device asks no more.
    pin_failures,
    /// Bytes that are page-locked now.
    pinned_bytes,
    /// The most bytes that were page-locked at one time.
    pinned_peak,
    /// Bytes of host buffers that are allocated now, page-locked or not.
    host_bytes,
    /// Bytes of device buffers that are allocated now.
    device_bytes,
    /// Streams made.
    streams,
    /// Streams that exist now: with a handle, or still working off what was enqueued.
    live_streams,
    /// Events made.
    events,
    /// Events that exist now.
    live_events,
    /// Host-to-device copies enqueued.
    h2d_copies,
    /// Bytes of host-to-device copies enqueued.
    h2d_bytes,
    /// Device-to-host copies enqueued.
    d2h_copies,
    /// Bytes of device-to-host copies enqueued.
    d2h_bytes,
    /// Host-to-device copies out of memory that is not page-locked: each goes through the driver's own buffer.
    pageable_copies,
    /// Events recorded.
    records,
    /// Waits of a stream for an event enqueued.
    waits,
    /// Events and streams asked whether they have passed.
    queries,
    /// Calls in which the host waited for an event or a stream.
    host_waits,
}

/// Adds `n` to `counter`.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}

/// Takes `n` off `counter`.
pub(crate) fn sub(counter: &AtomicU64, n: usize) {
    counter.fetch_sub(n as u64, Relaxed);
}
