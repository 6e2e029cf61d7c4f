//! `warpfeed bench`: what is measured, under which options, and what is said about it.

#[cfg(feature = "image")]
mod images;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{ValueEnum, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use warpfeed::source::Source;

use crate::data::Data;
use crate::pipeline::{Feed, Plan};
use crate::ratio::Ratio;
use crate::report::Report;
use crate::rig::{Rig, Target};

/// The unit of a ratio on the CPU device.
const EACH: Duration = Duration::from_millis(10);
/// An ImageNet crop: 224 × 224 pixels of three bytes.
const RECORD_BYTES: u64 = 150_528;
/// Samples of a batch, and steps, unless said otherwise.
const BATCH_SIZE: u64 = 32;
const STEPS: u64 = 50;

/// Measures how much of a step's shorter stages the pipeline hides behind the longest one.
///
/// Measured are, in this order: filling a batch, copying it and computing on it, each alone; then all of a step one
/// after another; then overlapped, as a training loop has it.
///
/// Reported are the times of a step in ms. ideal = max(load, copy, compute);
/// efficiency = (serial - overlapped) / (serial - ideal): 1 where the two shorter stages are hidden behind the
/// longest one.
///
/// On the CPU device decode and compute wait, and so does a link of a given speed: they leave the processor to the
/// loader, as a GPU does, and two cores show its overlap. On a GPU compute is a kernel on all of its processors, and the
/// link its own.
///
/// Without any of --ratio, --decode-us, --link-gbps, --compute-ms and --spin, synthetic records are loaded, copied and
/// computed on at 1:1:1. With one of the last four, what is left out takes what it takes: decoding is a copy of the
/// record, the link a copy, and compute nothing.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub(crate) struct Args {
    /// Where records come from
    #[arg(long, value_enum, default_value = "synthetic", conflicts_with = "records")]
    source: Origin,
    /// Reads records of --record-bytes from this file, instead of synthetic ones
    #[arg(long, value_name = "FILE", requires = "record_bytes")]
    records: Option<PathBuf>,
    /// Bytes of a record [default: 150528, a crop of 224 × 224 × 3]
    #[arg(long, value_name = "BYTES", value_parser = up_to(1, 1 << 30))]
    record_bytes: Option<u64>,
    /// The device: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    #[cfg(feature = "image")]
    #[command(flatten)]
    images: images::Options,
    /// Samples of a batch [default: 32; with --images 256 or 16, by the recipe]
    #[arg(long, value_name = "N", value_parser = up_to(1, 1 << 30))]
    batch_size: Option<u64>,
    /// Threads that decode; 0: the consumer's own [default: the CPUs there are]
    #[arg(long, value_name = "N", value_parser = up_to(0, 1024))]
    workers: Option<u64>,
    /// Batches on the host
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to(1, 1024))]
    host_slots: u64,
    /// Batches on the device
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to(1, 1024))]
    device_slots: u64,
    /// Steps that are timed [default: 50; with --images 10]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000))]
    steps: Option<u64>,
    /// What load, copy and compute take, in units of 10 ms; on a GPU the unit is what the copy of a batch takes, over COPY
    #[arg(long, value_name = "LOAD:COPY:COMPUTE", conflicts_with_all = ["decode_us", "link_gbps", "compute_ms"])]
    ratio: Option<Ratio>,
    /// What a sample takes to decode, in µs on one worker
    #[arg(long, value_name = "MICROSECONDS", value_parser = parse_amount)]
    decode_us: Option<f64>,
    /// Speed of the modelled link, in GB/s (10⁹ bytes); on the CPU device only
    #[arg(long, value_name = "GB/S", value_parser = parse_speed)]
    link_gbps: Option<f64>,
    /// What a step takes on the device, in ms
    #[arg(long, value_name = "MILLISECONDS", value_parser = parse_amount)]
    compute_ms: Option<f64>,
    /// Decode and compute use the processor, instead of waiting
    #[arg(long)]
    spin: bool,
    /// Prints one line of JSON to stdout, and the table to stderr
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Origin {
    Synthetic,
}

fn up_to(least: u64, most: u64) -> RangedU64ValueParser {
    value_parser!(u64).range(least..=most)
}

/// The longest time of a sample or a step, in the option's unit: far longer than anyone waits.
const MOST: f64 = 1e7;

fn parse_amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().map_err(|_| "expected a number".to_string())?;
    if (0.0..=MOST).contains(&amount) { Ok(amount) } else { Err(format!("expected 0 to {MOST}")) }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "expected a number".to_string())?;
    if speed >= 1e-6 && speed.is_finite() { Ok(speed) } else { Err("expected a speed above 0".to_string()) }
}

impl Args {
    fn record_bytes(&self) -> u64 {
        self.record_bytes.unwrap_or(RECORD_BYTES)
    }

    fn batch_size(&self) -> u64 {
        self.batch_size.unwrap_or(BATCH_SIZE)
    }

    /// The ratio that was asked for, or stands in for times that were not.
    fn ratio(&self) -> Option<Ratio> {
        let times = [self.decode_us, self.link_gbps, self.compute_ms];
        let nothing = self.records.is_none() && !self.spin && times.iter().all(Option::is_none);
        self.ratio.or(nothing.then_some(Ratio::EVEN))
    }

    /// What is run on the CPU device.
    fn plan_on_cpu(&self) -> Plan {
        let mut plan = self.plan();
        if let Some(ratio) = self.ratio() {
            ratio.set_work(&mut plan, EACH);
            ratio.set_link(&mut plan, EACH, self.record_bytes() * self.batch_size());
        }
        plan
    }

    /// What is run on a GPU: `data`'s copies, measured here, are the unit of a ratio.
    fn plan_on_gpu(&self, rig: &Rig, data: &Arc<Data>) -> anyhow::Result<Plan> {
        let mut plan = self.plan();
        if let Some(ratio) = self.ratio() {
            let copy = plan.copy_alone(rig, &Feed::records(data, &plan), &ProgressBar::hidden())?;
            ratio.set_work(&mut plan, copy.div_f64(ratio.copy));
        }
        Ok(plan)
    }

    /// What is said of the link and of times, as it was given. Whole numbers fit a `usize`: their parsers bound them.
    fn plan(&self) -> Plan {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Plan {
            batch_size: self.batch_size(),
            workers: self.workers.map_or_else(cores, |n| n as usize),
            host_slots: self.host_slots as usize,
            device_slots: self.device_slots as usize,
            steps: self.steps.unwrap_or(STEPS),
            decode: Duration::from_secs_f64(self.decode_us.unwrap_or(0.0) / 1e6),
            link_gbps: self.link_gbps,
            compute: Duration::from_secs_f64(self.compute_ms.unwrap_or(0.0) / 1e3),
            spin: self.spin,
        }
    }

    /// # Errors
    /// An option that a GPU's link does not take.
    fn fits_gpu(&self) -> anyhow::Result<()> {
        let own = "the link of a GPU has its own speed";
        ensure!(self.link_gbps.is_none(), "--link-gbps is for --device cpu: {own}");
        let copies = self.ratio.is_none_or(|ratio| ratio.copy > 0.0);
        ensure!(copies, "--ratio needs a copy above 0 on a GPU: {own}, and what a copy takes is the unit");
        Ok(())
    }

    fn data(&self, plan: &Plan) -> anyhow::Result<Data> {
        let record_bytes = usize::try_from(self.record_bytes())?;
        let Some(path) = &self.records else {
            return Ok(Data::synthetic(plan.batches() * plan.batch_size, record_bytes));
        };
        let file = Data::open(path, record_bytes)?;
        let records = file.len().unwrap_or(0);
        if records < plan.batch_size {
            let path = path.display();
            bail!(
                "{path} has {records} records, fewer than a batch of {}: lower --batch-size",
                plan.batch_size
            );
        }
        Ok(file)
    }

    fn title(&self, device: &str, plan: &Plan) -> String {
        let source = self.records.as_ref().map_or("synthetic".into(), |path| path.display().to_string());
        let batches = format!("batches of {} × {} bytes", plan.batch_size, self.record_bytes());
        format!("{source}: {batches}, {}, {} steps, {device}", shape(plan), plan.steps)
    }
}

/// Workers and slots in words.
fn shape(plan: &Plan) -> String {
    let plural = |n: usize, noun| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    let (workers, host) = (plural(plan.workers, "worker"), plural(plan.host_slots, "host slot"));
    format!("{workers}, {host}, {}", plural(plan.device_slots, "device slot"))
}

fn progress_of(steps: u64) -> ProgressBar {
    // Hidden by itself where stderr is no terminal.
    let progress = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} steps, {eta} left  {msg}") {
        progress.set_style(style);
    }
    progress
}

/// A table for people, and on request JSON for programs.
fn print(table: &str, json: Option<serde_json::Value>) -> io::Result<()> {
    if cfg!(debug_assertions) {
        writeln!(io::stderr(), "an unoptimised build: its figures say nothing of a release build")?;
    }
    match json {
        Some(json) => {
            writeln!(io::stdout(), "{json}")?;
            writeln!(io::stderr(), "{table}")
        }
        None => writeln!(io::stdout(), "{table}"),
    }
}

/// Runs the benchmark and prints what it measured.
///
/// # Errors
/// A device that there is not, a file that can't be read, what the loader meets, a stdout that is closed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if matches!(args.device, Target::Cuda(_)) {
        args.fits_gpu()?;
    }
    let rig = Rig::open(args.device)?;
    if !rig.is_cpu() {
        args.fits_gpu()?;
    }
    #[cfg(feature = "image")]
    if let Some(path) = args.images.path() {
        return images::run(args, path, &rig);
    }
    let data = Arc::new(args.data(&args.plan())?);
    let plan = if rig.is_cpu() { args.plan_on_cpu() } else { args.plan_on_gpu(&rig, &data)? };
    let progress = progress_of(plan.steps_in_all());
    let measured = plan.measure(&rig, &Feed::records(&data, &plan), &progress);
    progress.finish_and_clear();
    let report = Report::new(&plan, &measured?);
    let device = if rig.is_cpu() { "CPU device".to_string() } else { rig.name() };
    let table = report.table(&args.title(&device, &plan));
    let json = args.json.then(|| {
        let mut json = report.json(&rig.name(), &plan);
        json["record_bytes"] = args.record_bytes().into();
        json
    });
    print(&table, json)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Tool {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Plan {
        Tool::try_parse_from(line.split(' ')).unwrap().args.plan_on_cpu()
    }

    #[test]
    fn without_times_each_stage_takes_as_long() {
        let p = plan("bench --workers 2 --batch-size 40 --record-bytes 1000");
        assert_eq!((p.decode, p.compute), (Duration::from_micros(500), EACH));
        // 40 000 bytes in 10 ms.
        assert!((p.link_gbps.unwrap() - 0.004).abs() < 1e-12);
    }

    #[test]
    fn a_ratio_is_in_units_of_10_ms() {
        let p = plan("bench --workers 2 --batch-size 40 --record-bytes 1000 --ratio 2:0.5:3");
        assert_eq!((p.decode, p.compute), (Duration::from_millis(1), 3 * EACH));
        assert!((p.link_gbps.unwrap() - 0.008).abs() < 1e-12);
        assert_eq!(plan("bench --ratio 1:0:0 --records x --record-bytes 9").link_gbps, None);
    }

    #[test]
    fn one_time_given_leaves_the_others_to_what_they_take() {
        for line in ["bench --compute-ms 3", "bench --compute-ms 3 --spin"] {
            let p = plan(line);
            assert_eq!((p.decode, p.link_gbps, p.compute), (Duration::ZERO, None, Duration::from_millis(3)));
        }
        let p = plan("bench --spin");
        assert_eq!((p.decode, p.link_gbps, p.compute, p.spin), (Duration::ZERO, None, Duration::ZERO, true));
        let p = plan("bench --records x --record-bytes 9");
        assert_eq!((p.decode, p.link_gbps, p.compute), (Duration::ZERO, None, Duration::ZERO));
    }
}
