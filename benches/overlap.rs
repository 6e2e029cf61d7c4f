//! How much of the shorter stages the pipeline hides: `cargo bench --bench overlap`. Run as a test, or with
//! `--smoke`, it runs two short cells once.
//!
//! Analysis: load : copy : compute in units of 10 ms, which wait and use no processor, so that what is left of
//! 1 − efficiency is the pipeline's own: a hand-over that comes late, a slot that is not free in time. Two device
//! slots are the least that can overlap; where they do worse than three, a copy began late.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

const BATCH: u32 = 32;
const WORKERS: u32 = 2;
const RECORD_BYTES: u32 = 150_528;
/// Rows: load, copy and compute, in units.
const RATIOS: [[f64; 3]; 4] = [[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]];

/// What `warpfeed bench` measures in one run.
fn run([load, copy, compute]: [f64; 3], unit_ms: f64, device_slots: u32, steps: u32) -> Value {
    let decode_us = load * unit_ms * 1e3 * f64::from(WORKERS) / f64::from(BATCH);
    let link_gbps = f64::from(BATCH) * f64::from(RECORD_BYTES) / (copy * unit_ms * 1e-3) / 1e9;
    let numbers = [
        ("--batch-size", f64::from(BATCH)),
        ("--workers", f64::from(WORKERS)),
        ("--record-bytes", f64::from(RECORD_BYTES)),
        ("--device-slots", f64::from(device_slots)),
        ("--steps", f64::from(steps)),
        ("--decode-us", decode_us),
        ("--link-gbps", link_gbps),
        ("--compute-ms", compute * unit_ms),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    command.args(["bench", "--json", "--device", "cpu"]);
    for (option, number) in numbers {
        command.arg(option).arg(number.to_string());
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The median of a figure, and how far apart the least and the most are, over the runs that have it.
fn median_and_spread(runs: &[Value], key: &str) -> (f64, f64) {
    let mut values: Vec<f64> = runs.iter().filter_map(|r| r[key].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => (f64::NAN, f64::NAN),
        [least, ..] => (values[values.len() / 2], values[values.len() - 1] - least),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let given = |flag: &str| args.iter().any(|a| a == flag);
    if given("--smoke") || !given("--bench") {
        for device_slots in [2, 3] {
            let found = run([1.0, 1.0, 1.0], 1.0, device_slots, 3);
            assert!(found["overlap_efficiency"].is_number() || found["overlap_efficiency"].is_null());
        }
        return;
    }
    let (unit_ms, steps, repeats) = (10.0, 200, 5);
    println!(
        "{BATCH} samples a batch, {WORKERS} workers, units of {unit_ms} ms, {steps} steps; median (spread) of {repeats}"
    );
    println!(
        "load:copy:compute  slots         serial ms     overlapped ms          ideal ms        efficiency   idle ms"
    );
    for ratio in RATIOS {
        for device_slots in [2, 3] {
            let runs: Vec<Value> = (0..repeats).map(|_| run(ratio, unit_ms, device_slots, steps)).collect();
            let cell = |key: &str, digits: usize| {
                let (median, spread) = median_and_spread(&runs, key);
                format!("{median:.digits$} ({spread:.digits$})")
            };
            let [load, copy, compute] = ratio;
            println!(
                "{:<17}  {device_slots:<5} {:>17} {:>17} {:>17} {:>17} {:>9.2}",
                format!("{load}:{copy}:{compute}"),
                cell("serial_ms_per_step", 2),
                cell("overlapped_ms_per_step", 2),
                cell("ideal_ms_per_step", 2),
                cell("overlap_efficiency", 3),
                median_and_spread(&runs, "stall_ms_per_step").0,
            );
        }
    }
}
