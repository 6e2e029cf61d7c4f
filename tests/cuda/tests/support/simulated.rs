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
