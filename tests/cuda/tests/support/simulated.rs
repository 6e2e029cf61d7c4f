//! Devices of the simulated driver: a new one for each that a test asks for, so that tests can run side by side.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cusim::{Config, Sim};
use warpfeed::{CpuOptions, CudaOptions, Device};

/// Devices in the machine: more than any test binary takes.
const DEVICES: usize = 10_000;

/// The simulated driver. What comes first decides what the machine is like: `CUSIM_*` variables still count.
pub(crate) fn sim() -> Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    *SIM.get_or_init(|| {
        let sim = Sim::attach().expect("a program that links the package cusim finds its driver");
        sim.change(|machine| {
            machine.devices = DEVICES;
            machine.guard = true;
            machine.pageable_waits = true;
        });
        sim
    })
}

/// The number of a device that no test of this process has had, like the whole machine but for `change`.
pub(crate) fn fresh(change: impl FnOnce(&mut Config)) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, SeqCst);
    assert!(number < DEVICES, "more devices than there are");
    sim().change_device(number, change);
    number
}

/// A device whose copies and memory are as `options` say.
pub(crate) fn device_with(options: CpuOptions) -> Device {
    let number = fresh(|machine| {
        machine.gbps = options.link_gbps.unwrap_or(0.0);
        machine.copy_us = options.copy_time.map_or(0, |t| t.as_micros() as u64);
        if let Some((seed, longest)) = options.copy_delay {
            // Here every operation is late, not the copies alone: about 8 a batch.
            (machine.seed, machine.delay_us) = (seed, longest.as_micros() as u64 / 8);
        }
        machine.memory = options.memory.unwrap_or(machine.memory);
        // The simulation has 0 for no limit.
        machine.pin_limit = options.pin_limit.map_or(0, |bytes| bytes.max(1));
    });
    Device::cuda_with(number, CudaOptions::default().lock(options.lock)).unwrap()
}

/// Fails if the driver has seen anything that is wrong, in whichever test of this process.
pub(crate) fn assert_nothing_wrong() {
    let report = sim().report();
    let findings = report.findings();
    assert!(findings.is_empty(), "the simulated driver found:\n{}", findings.join("\n"));
}

/// What the driver has seen since the last call, nothing of which may be wrong.
pub(crate) fn take() -> cuda::Report {
    let report = sim().take();
    assert!(report.findings().is_empty(), "{:#?}", report.findings());
    report
}

/// Runs `code` in a process of its own, since faults and books are the whole process's. `test` is the caller's name.
pub(crate) fn apart(test: &str, code: impl FnOnce()) {
    crate::support::watch::alone(test, || {
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
    let loader = crate::support::watch::numbers(1).workers(0).build(&Device::cpu()).unwrap();
    let report = loader.close().unwrap();
    (report.leaked, report.leaked_bytes)
}

/// While it lives, its stream goes no further.
pub(crate) struct Held(#[expect(dead_code, reason = "its end is the signal")] std::sync::mpsc::Sender<()>);

/// Holds `stream` up, behind what is enqueued.
pub(crate) fn hold(stream: &warpfeed::Stream) -> Held {
    let (held, released) = std::sync::mpsc::channel();
    stream.enqueue(move || assert!(released.recv().is_err())).unwrap();
    Held(held)
}
