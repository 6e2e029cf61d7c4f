//! For tests in a process of their own: the driver's books there, and a stream that is held up.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::sync::mpsc::{Sender, channel};

use warpfeed::{Device, Stream};

use crate::simulated::{assert_nothing_wrong, sim};
use crate::support::watch::{alone, numbers};

/// What the driver has seen since the last call, nothing of which may be wrong.
pub(crate) fn take() -> cusim::Report {
    let report = sim().take();
    assert!(report.findings().is_empty(), "{:#?}", report.findings());
    report
}

/// Runs `code` in a process of its own, since faults and books are the whole process's. `test` is the caller's name.
pub(crate) fn apart(test: &str, code: impl FnOnce()) {
    alone(test, || {
        code();
        assert_nothing_wrong();
    });
}

/// What the driver holds for this process: blocks of device memory, of its own host memory, of ours that it was told of;
/// streams; events.
pub(crate) fn live() -> [u64; 5] {
    let report = sim().report();
    ["device", "host", "registered", "streams", "events"].map(|kind| report.live_of(kind))
}

/// Buffers and bytes that this process had to leak so far, as a report of any loader says.
pub(crate) fn leaked() -> (usize, usize) {
    let loader = numbers(1).workers(0).build(&Device::cpu()).unwrap();
    let report = loader.close().unwrap();
    (report.leaked, report.leaked_bytes)
}

/// While it lives, its stream goes no further.
pub(crate) struct Held(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

/// Holds `stream` up, behind what is enqueued.
pub(crate) fn hold(stream: &Stream) -> Held {
    let (held, released) = channel();
    stream.enqueue(move || assert!(released.recv().is_err())).unwrap();
    Held(held)
}
