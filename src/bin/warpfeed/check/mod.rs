//! `warpfeed check`: what a device's link, the pipeline on it and the copier reach, and whether what arrives is right.

mod link;
mod steady;
mod stress;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::data::Data;
use crate::pipeline::{Feed, Mode, Plan};
use crate::report::figure;
use crate::rig::{Rig, Target};
use link::Link;

/// Measures a GPU's link and what the pipeline makes of it, and verifies on the GPU that what arrives is right.
///
/// In this order: copies to the device by themselves, by size and kind of memory; what a loader delivers that decodes
/// nothing, also while the device computes; batches under random delays, compared on the device with what the workers
/// wrote; batches at a steady rate, how long each takes to get there, and what the copier's thread uses.
///
/// A figure that must be reached on a GPU has an aim beside it; one that is missed is no error. Bytes that differ are, and
/// so is a part that could not be run. On the CPU device the link is a copy in memory, and nothing is aimed at.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Args {
    /// The device: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    /// Runs all of it, but so little that no figure means anything
    #[arg(long)]
    smoke: bool,
    /// Prints a line of JSON a figure to stdout, and the tables to stderr
    #[arg(long)]
    json: bool,
}

/// What is run.
struct Scale {
    /// The largest copy, in bytes.
    largest: usize,
    /// Rows of one batch of the pipeline, its bytes, and steps.
    small: (u64, usize, u64),
    large: (u64, usize, u64),
    /// Batches of each shape; a fourth of it of large ones.
    stress: u64,
    /// Bytes of a batch, and batches.
    steady: [(usize, u64); 2],
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GPU: Scale = Scale {
    largest: 1 << 30,
    small: (16, 256 * KIB, 2000),
    large: (64, MIB, 400),
    stress: 4000,
    steady: [(MIB, 500), (16 * MIB, 200)],
};
const CPU: Scale = Scale {
    largest: 256 * MIB,
    small: (16, 256 * KIB, 400),
    large: (64, MIB, 50),
    stress: 400,
    steady: [(MIB, 200), (16 * MIB, 100)],
};
const SMOKE: Scale = Scale {
    largest: 4 * MIB,
    small: (4, 16 * KIB, 8),
    large: (8, 128 * KIB, 8),
    stress: 16,
    steady: [(64 * KIB, 12), (MIB, 12)],
};

/// The smallest copy; each next one is four times as large.
const SMALLEST: usize = 64 * KIB;
const INTERVAL: Duration = Duration::from_millis(10);
/// Of the time of a copy, what a step computes: the link stays the longest stage.
const COMPUTE: f64 = 0.9;
/// Of the link, what the pipeline must reach with large batches.
const LINK_AIM: f64 = 0.95;
/// Of a processor, what the copier's thread may take at 100 batches a second.
const COPIER_AIM: f64 = 0.05;

/// Where figures go.
struct Out {
    json: bool,
    device: String,
}

impl Out {
    /// A line for people.
    fn say(&self, line: &str) -> io::Result<()> {
        if self.json { writeln!(io::stderr(), "{line}") } else { writeln!(io::stdout(), "{line}") }
    }

    /// A figure for programs.
    fn put(&self, measure: &str, mut figures: Value) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        figures["measure"] = measure.into();
        figures["device"] = self.device.as_str().into();
        writeln!(io::stdout(), "{figures}")
    }
}

/// Runs it all. A part that fails keeps no other from running.
///
/// # Errors
/// A device that there is not, a part that failed, bytes that differ, a stdout that is closed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let rig = Rig::open(args.device)?;
    let scale = match (args.smoke, rig.is_cpu()) {
        (true, _) => SMOKE,
        (_, true) => CPU,
        _ => GPU,
    };
    let aims = !args.smoke && !rig.is_cpu();
    let check = Check { rig: &rig, scale, aims, out: Out { json: args.json, device: rig.name() } };
    check.out.say(&format!("Device {}", rig.name()))?;
    let mut failed = Vec::new();
    let mut note = |part: &'static str, error: anyhow::Error| {
        if error.downcast_ref::<io::Error>().is_some() {
            return Err(error);
        }
        check.out.say(&format!("{part} failed: {error:#}"))?;
        check.out.put(part, json!({ "error": format!("{error:#}") }))?;
        failed.push(part);
        Ok(())
    };
    let limit = check.link().or_else(|error| note("link", error).map(|()| None))?;
    check.pipeline(limit).or_else(|error| note("pipeline", error))?;
    check.stress().or_else(|error| note("stress", error))?;
    check.steady().or_else(|error| note("steady", error))?;
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

struct Check<'r> {
    rig: &'r Rig,
    scale: Scale,
    /// Whether figures are held against their aims.
    aims: bool,
    out: Out,
}

impl Check<'_> {
    /// Copies by themselves; the rate of the largest out of page-locked memory.
    fn link(&self) -> anyhow::Result<Option<f64>> {
        let mut link = Link::open(self.rig, self.scale.largest)?;
        let kinds = link.kinds();
        self.out.say("\nCopies to the device by themselves, GB/s (10⁹ bytes a second)\n")?;
        let names: String = kinds.iter().map(|kind| format!("{:>16}", kind.name())).collect();
        self.out.say(&format!("{:>10}{names}", "size"))?;
        let mut limit = None;
        let sizes = std::iter::successors(Some(SMALLEST), |size| size.checked_mul(4));
        for size in sizes.take_while(|size| *size <= self.scale.largest) {
            let mut line = format!("{:>10}", bytes(size as u64));
            for (k, kind) in kinds.iter().enumerate() {
                let rate = link.gb_per_s(*kind, size)?;
                line += &format!("{:>16}", rate.map_or("-".to_string(), figure));
                self.out.put(
                    "link",
                    json!({ "memory": kind.name(), "bytes": size, "gb_per_s": rate.map(six) }),
                )?;
                // Page-locked memory comes first.
                limit = if k == 0 { rate.or(limit) } else { limit };
            }
            self.out.say(&line)?;
        }
        Ok(limit)
    }

    /// What a loader delivers whose decoder does nothing.
    fn pipeline(&self, limit: Option<f64>) -> anyhow::Result<()> {
        self.out.say("\nA loader that decodes nothing; of the link: of its largest copy above\n")?;
        self.out.say(&format!(
            "{:>10}{:>14}{:>12}{:>16}{:>10}{:>10}  aim",
            "batch", "device slots", "ms a step", "compute ms", "GB/s", "of link"
        ))?;
        let Scale { small, large, .. } = self.scale;
        let (aim, none) = (self.aims.then_some(LINK_AIM), Duration::ZERO);
        self.deliver(small, 3, none, limit, None)?;
        for slots in [2, 3] {
            let step = self.deliver(large, slots, none, limit, aim)?;
            self.deliver(large, slots, step.mul_f64(COMPUTE), limit, None)?;
        }
        Ok(())
    }

    /// One run; what a step took.
    fn deliver(
        &self,
        (rows, row_bytes, steps): (u64, usize, u64),
        device_slots: usize,
        compute: Duration,
        limit: Option<f64>,
        aim: Option<f64>,
    ) -> anyhow::Result<Duration> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        let plan = Plan {
            batch_size: rows,
            workers,
            host_slots: 3,
            device_slots,
            steps,
            decode: Duration::ZERO,
            link_gbps: None,
            compute,
            spin: false,
        };
        let data = Arc::new(Data::synthetic(plan.batches() * rows, row_bytes));
        let run =
            plan.run(self.rig, &Feed::records(&data, &plan), Mode::Undecoded, &ProgressBar::hidden())?;
        let batch = run.stats.bytes / run.stats.batches.max(1);
        let rate = batch as f64 / run.step.as_secs_f64().max(1e-9) / 1e9;
        let share = limit.map(|limit| rate / limit);
        let reached = aim.zip(share).map(|(aim, share)| share >= aim);
        let (step_ms, compute_ms) = (run.step.as_secs_f64() * 1e3, compute.as_secs_f64() * 1e3);
        self.out.say(&format!(
            "{:>10}{device_slots:>14}{:>12}{:>16}{:>10}{:>10}  {}",
            bytes(batch),
            figure(step_ms),
            figure(compute_ms),
            figure(rate),
            share.map_or("-".to_string(), |share| format!("{share:.3}")),
            aim.map_or(String::new(), |aim| format!("≥ {aim}: {}", verdict(reached))),
        ))?;
        self.out.put(
            "pipeline",
            json!({
                "batch_bytes": batch,
                "device_slots": device_slots,
                "pinned": run.stats.pinned,
                "ms_per_step": six(step_ms),
                "compute_ms": six(compute_ms),
                "gb_per_s": six(rate),
                "of_link": share.map(six),
                "aim": aim,
                "reached": reached,
            }),
        )?;
        Ok(run.step)
    }

    /// Whether what arrives is right.
    fn stress(&self) -> anyhow::Result<()> {
        let place = if self.rig.is_cpu() { "by the stream's thread" } else { "by a kernel" };
        self.out
            .say(&format!("\nBatches under random delays, compared {place} with what the workers wrote\n"))?;
        self.out.say(&format!(
            "{:>12}{:>6}{:>12}{:>14}{:>10}{:>16}{:>12}",
            "row bytes", "rows", "host slots", "device slots", "batches", "bytes compared", "mismatches"
        ))?;
        let mut wrong = Vec::new();
        for (seed, shape) in (1..).zip(stress::SHAPES) {
            let large = shape.row_bytes * shape.batch_size >= MIB;
            let batches = if large { self.scale.stress / 4 } else { self.scale.stress };
            let seen = stress::run(self.rig, shape, batches, seed)?;
            self.out.say(&format!(
                "{:>12}{:>6}{:>12}{:>14}{:>10}{:>16}{:>12}",
                shape.row_bytes,
                shape.batch_size,
                shape.host_slots,
                shape.device_slots,
                seen.batches,
                seen.compared,
                seen.wrong
            ))?;
            self.out.put(
                "stress",
                json!({
                    "row_bytes": shape.row_bytes,
                    "batch_size": shape.batch_size,
                    "host_slots": shape.host_slots,
                    "device_slots": shape.device_slots,
                    "batches": seen.batches,
                    "bytes_compared": seen.compared,
                    "mismatches": seen.wrong,
                    "first_mismatch": seen.first_wrong,
                }),
            )?;
            if let Some(first) = seen.first_wrong {
                let row = first / shape.row_bytes as u64;
                wrong.push(format!(
                    "{} bytes of rows of {} differ, the first at byte {} of sample {row}",
                    seen.wrong,
                    shape.row_bytes,
                    first % shape.row_bytes as u64
                ));
            }
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
    }

    /// Batches at a steady rate.
    fn steady(&self) -> anyhow::Result<()> {
        self.out.say(
            "\nBatches at a steady rate. Latency: from the last sample's decoding until the batch is on the \
             device.\nCopier: its thread's share of a processor at 100 batches a second\n",
        )?;
        self.out.say(&format!(
            "{:>10}{:>12}{:>10}{:>10}{:>10}{:>10}{:>14}{:>10}  aim",
            "batch", "batches/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "copier µs", "copier"
        ))?;
        for (batch_bytes, batches) in self.scale.steady {
            let steady = steady::run(self.rig, batch_bytes, batches, INTERVAL)?;
            let quantiles = [0.5, 0.9, 0.99, 1.0];
            let [p50, p90, p99, most] = quantiles.map(|q| steady.latency(q).as_secs_f64() * 1e3);
            let (copier_us, share) = (steady.copier.as_secs_f64() * 1e6, steady.copier_share());
            let aim = self.aims.then_some(COPIER_AIM);
            let reached = aim.map(|aim| share < aim);
            self.out.say(&format!(
                "{:>10}{:>12}{:>10}{:>10}{:>10}{:>10}{:>14}{share:>10.4}  {}",
                bytes(steady.batch_bytes),
                figure(steady.rate),
                figure(p50),
                figure(p90),
                figure(p99),
                figure(most),
                figure(copier_us),
                aim.map_or(String::new(), |aim| format!("< {aim}: {}", verdict(reached))),
            ))?;
            self.out.put(
                "steady",
                json!({
                    "batch_bytes": steady.batch_bytes,
                    "batches_per_s": six(steady.rate),
                    "latency_ms_p50": six(p50),
                    "latency_ms_p90": six(p90),
                    "latency_ms_p99": six(p99),
                    "latency_ms_max": six(most),
                    "copier_us_per_batch": six(copier_us),
                    "copier_share": six(share),
                    "aim": aim,
                    "reached": reached,
                }),
            )?;
        }
        Ok(())
    }
}

fn verdict(reached: Option<bool>) -> &'static str {
    match reached {
        Some(true) => "reached",
        Some(false) => "MISSED",
        None => "not known",
    }
}

/// Six digits after the point are more than any of it is good for.
fn six(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

/// A number of bytes in the largest unit that leaves a whole number or two digits.
fn bytes(n: u64) -> String {
    let mut size = n as f64;
    let mut units = ["B", "KiB", "MiB", "GiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for next in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, next);
    }
    let digits = if size.fract() < 0.005 { 0 } else { 2 };
    format!("{size:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit() {
        let found = [1, 1023, 1 << 10, 3 << 19, 1 << 26, (1 << 26) + 64, 1 << 30, 1 << 41].map(bytes);
        assert_eq!(
            found,
            ["1 B", "1023 B", "1 KiB", "1.50 MiB", "64 MiB", "64 MiB", "1 GiB", "2048 GiB"].map(String::from)
        );
    }
}
