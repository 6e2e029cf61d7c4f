//! `warpfeed bench`: what is measured, under which options, and what is said about it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use clap::{ValueEnum, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use warpfeed::source::Source;

use crate::data::Data;
use crate::pipeline::Plan;
use crate::report::Report;

/// What each stage takes for a step where nothing else is asked for.
const EACH: Duration = Duration::from_millis(10);
/// An ImageNet crop: 224 × 224 pixels of three bytes.
const RECORD_BYTES: u64 = 150_528;

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
/// loader, as a GPU does, and two cores show its overlap. Without any of --decode-us, --link-gbps, --compute-ms and
/// --spin, synthetic records get 10 ms for each stage. With one of them, what is left out takes what it takes:
/// decoding is a copy of the record, the link a copy in memory, and compute nothing.
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
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = parse_device)]
    device: Target,
    /// Samples of a batch
    #[arg(long, value_name = "N", default_value = "32", value_parser = up_to(1, 1 << 30))]
    batch_size: u64,
    /// Threads that decode; 0: the consumer's own [default: the CPUs there are]
    #[arg(long, value_name = "N", value_parser = up_to(0, 1024))]
    workers: Option<u64>,
    /// Batches on the host
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to(1, 1024))]
    host_slots: u64,
    /// Batches on the device
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to(1, 1024))]
    device_slots: u64,
    /// Steps that are timed
    #[arg(long, value_name = "N", default_value = "50", value_parser = value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// What a sample takes to decode, in µs on one worker
    #[arg(long, value_name = "MICROSECONDS", value_parser = parse_amount)]
    decode_us: Option<f64>,
    /// Speed of the modelled link, in GB/s (10⁹ bytes)
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Auto,
    Cpu,
    Cuda(u32),
}

fn up_to(least: u64, most: u64) -> RangedU64ValueParser {
    value_parser!(u64).range(least..=most)
}

fn parse_device(text: &str) -> Result<Target, String> {
    let cuda = || text.strip_prefix("cuda:")?.parse().ok();
    match text {
        "auto" => Ok(Target::Auto),
        "cpu" => Ok(Target::Cpu),
        _ => cuda().map(Target::Cuda).ok_or_else(|| "expected auto, cpu, or cuda:N".to_string()),
    }
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

    /// What is run. Whole numbers fit a `usize`: their parsers bound them.
    fn plan(&self) -> Plan {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let mut plan = Plan {
            batch_size: self.batch_size,
            workers: self.workers.map_or_else(cores, |n| n as usize),
            host_slots: self.host_slots as usize,
            device_slots: self.device_slots as usize,
            steps: self.steps,
            decode: Duration::from_secs_f64(self.decode_us.unwrap_or(0.0) / 1e6),
            link_gbps: self.link_gbps,
            compute: Duration::from_secs_f64(self.compute_ms.unwrap_or(0.0) / 1e3),
            spin: self.spin,
        };
        let times = [self.decode_us, self.link_gbps, self.compute_ms];
        if self.records.is_none() && !self.spin && times.iter().all(Option::is_none) {
            let each = EACH.as_secs_f64();
            // `batch_size` samples in `EACH`, by all workers together.
            plan.decode = EACH.mul_f64(plan.workers.max(1) as f64 / self.batch_size as f64);
            plan.link_gbps = Some((self.record_bytes() * self.batch_size) as f64 / each / 1e9);
            plan.compute = EACH;
        }
        plan
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

    fn title(&self, plan: &Plan) -> String {
        let source = self.records.as_ref().map_or("synthetic".into(), |path| path.display().to_string());
        let plural = |n: usize, noun| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        format!(
            "{source}: batches of {} × {} bytes, {}, {}, {}, {} steps, CPU device",
            plan.batch_size,
            self.record_bytes(),
            plural(plan.workers, "worker"),
            plural(plan.host_slots, "host slot"),
            plural(plan.device_slots, "device slot"),
            plan.steps,
        )
    }
}

/// Runs the benchmark and prints what it measured.
///
/// # Errors
/// A device that there is not, a file that can't be read, what the loader meets, a stdout that is closed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match args.device {
        Target::Cpu => {}
        Target::Auto => tracing::info!("no CUDA support in this build: using the CPU device"),
        Target::Cuda(n) => bail!("no device cuda:{n}: this build has no CUDA flavour yet; use --device cpu"),
    }
    let plan = args.plan();
    let data = Arc::new(args.data(&plan)?);
    // Hidden by itself where stderr is no terminal.
    let progress = ProgressBar::new(plan.steps_in_all());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} steps, {eta} left  {msg}") {
        progress.set_style(style);
    }
    let measured = plan.measure(&data, &progress);
    progress.finish_and_clear();
    let report = Report::new(&plan, &measured?);
    let table = report.table(&args.title(&plan));
    if args.json {
        writeln!(io::stdout(), "{}", report.json(&plan, args.record_bytes()))?;
        writeln!(io::stderr(), "{table}")?;
    } else {
        writeln!(io::stdout(), "{table}")?;
    }
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
        Tool::try_parse_from(line.split(' ')).unwrap().args.plan()
    }

    #[test]
    fn without_times_each_stage_takes_as_long() {
        let p = plan("bench --workers 2 --batch-size 40 --record-bytes 1000");
        assert_eq!((p.decode, p.compute), (Duration::from_micros(500), EACH));
        // 40 000 bytes in 10 ms.
        assert!((p.link_gbps.unwrap() - 0.004).abs() < 1e-12);
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
