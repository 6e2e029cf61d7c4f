//! What a benchmark found: a table for people, and a line of JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use crate::pipeline::{Measured, Plan};

/// Columns of the longest bar.
const WIDTH: f64 = 48.0;
/// A stage that waits.
const IDLE: char = '·';
/// Below this share of `serial` there is nothing that an overlap could hide.
const LEAST_GAIN: f64 = 0.01;

/// Times in ms, of a step where not said otherwise; see [`Measured`].
pub(crate) struct Report {
    load: f64,
    copy: f64,
    compute: f64,
    serial: f64,
    overlapped: f64,
    ideal: f64,
    efficiency: Option<f64>,
    stall: f64,
    first_batch: f64,
    fill: f64,
    drain: f64,
    samples_per_s: f64,
    gb_per_s: f64,
    stats: warpfeed::Stats,
}

impl Report {
    pub(crate) fn new(plan: &Plan, m: &Measured) -> Self {
        // To the nanosecond, so that what is derived agrees with what is printed.
        let ms = |time: Duration| (time.as_secs_f64() * 1e9).round() / 1e6;
        let [load, copy, compute, serial, overlapped] =
            [m.load, m.copy, m.compute, m.serial, m.overlapped].map(ms);
        let ideal = load.max(copy).max(compute);
        let steps_per_s = 1e3 / overlapped.max(1e-6);
        Self {
            ideal,
            efficiency: efficiency(serial, overlapped, ideal),
            stall: ms(m.stall),
            first_batch: ms(m.first_batch),
            fill: ms(m.fill),
            drain: ms(m.drain),
            samples_per_s: plan.batch_size as f64 * steps_per_s,
            gb_per_s: m.batch_bytes as f64 * steps_per_s / 1e9,
            stats: m.stats.clone(),
            load,
            copy,
            compute,
            serial,
            overlapped,
        }
    }

    /// The stage that takes longest when it runs alone.
    fn longest(&self) -> &'static str {
        let stages = [("load", self.load), ("copy", self.copy), ("compute", self.compute)];
        stages.into_iter().find(|(_, time)| *time == self.ideal).map_or("none", |(name, _)| name)
    }

    /// One line of JSON.
    pub(crate) fn json(&self, device: &str, plan: &Plan) -> serde_json::Value {
        json!({
            "device": device,
            "batch_size": plan.batch_size,
            "workers": plan.workers,
            "host_slots": plan.host_slots,
            "device_slots": plan.device_slots,
            "steps": plan.steps,
            "spin": plan.spin,
            "load_ms": self.load,
            "copy_ms": self.copy,
            "compute_ms": self.compute,
            "serial_ms_per_step": self.serial,
            "overlapped_ms_per_step": self.overlapped,
            "ideal_ms_per_step": self.ideal,
            "overlap_efficiency": self.efficiency,
            "samples_per_s": self.samples_per_s,
            "gb_per_s": self.gb_per_s,
            "first_batch_ms": self.first_batch,
            "stall_ms_per_step": self.stall,
            "fill_ms": self.fill,
            "drain_ms": self.drain,
            "longest_stage": self.longest(),
            "limit": self.stats.limiting().name(),
        })
    }

    /// A few lines with bars, without a newline at the end.
    pub(crate) fn table(&self, title: &str) -> String {
        let stages = [(self.load, '█'), (self.copy, '▓'), (self.compute, '▒')];
        let sum = self.load + self.copy + self.compute;
        let scale = WIDTH / self.serial.max(self.overlapped).max(sum).max(1e-9);
        // Ends are rounded, not lengths, so that parts add up to the whole.
        let bar = |parts: &[(f64, char)]| {
            let (mut bar, mut sum) = (String::new(), 0.0);
            for (part, fill) in parts {
                let from = (sum * scale).round() as usize;
                sum += part.max(0.0);
                bar.extend(std::iter::repeat_n(*fill, (sum * scale).round() as usize - from));
            }
            bar
        };
        let [load, copy, compute] = stages;
        let longest = stages.into_iter().find(|(time, _)| *time == self.ideal).unwrap_or(load);
        // Beside each other, and how long each waits for the others.
        let [first, second, third] = stages.map(|(time, fill)| {
            let busy = time.min(self.overlapped);
            bar(&[(busy, fill), (self.overlapped - busy, IDLE)])
        });
        let rows = [
            ("load", figure(self.load), bar(&[load])),
            ("copy", figure(self.copy), bar(&[copy])),
            ("compute", figure(self.compute), bar(&[compute])),
            ("serial", figure(self.serial), bar(&[load, copy, compute, (self.serial - sum, IDLE)])),
            ("overlapped", figure(self.overlapped), first),
            ("", String::new(), second),
            ("", String::new(), third),
            ("ideal", figure(self.ideal), bar(&[longest])),
        ];
        let mut out = format!("{title}\n\n             ms a step\n");
        for (name, time, bar) in rows {
            let line = format!("{name:<11}{time:>11}  {bar}");
            let _ = writeln!(out, "{}", line.trim_end());
        }
        let efficiency = match self.efficiency {
            Some(e) if e > 1.05 => format!(
                "{e:.3}  over 1: the stages were slower alone than together; measure on an idle machine"
            ),
            Some(e) => format!("{e:.3}  of what an overlap can hide is hidden"),
            None => "-      nothing to hide: one stage takes all of the serial time".to_string(),
        };
        let lines = [
            ("efficiency", efficiency),
            ("rate", format!("{} samples/s, {} GB/s", figure(self.samples_per_s), figure(self.gb_per_s))),
            ("device idle", format!("{} ms a step", figure(self.stall))),
            ("first batch", format!("{} ms after build was called", figure(self.first_batch))),
            ("apart", format!("fill {} ms, drain {} ms", figure(self.fill), figure(self.drain))),
        ];
        out.push('\n');
        for (name, text) in lines {
            let _ = writeln!(out, "{name:<12} {text}");
        }
        let (longest, stats) = (self.longest(), &self.stats);
        let _ = write!(out, "\nThe longest stage is {longest}. The overlapped run's loader:\n{stats}");
        out
    }
}

/// `(serial − overlapped) / (serial − ideal)`, to six digits; `None` where the serial time is the ideal.
fn efficiency(serial: f64, overlapped: f64, ideal: f64) -> Option<f64> {
    let gain = serial - ideal;
    let worth = gain >= LEAST_GAIN * serial && gain > 0.0;
    worth.then(|| ((serial - overlapped) / gain * 1e6).round() / 1e6)
}

/// Four digits, or all before the point.
pub(crate) fn figure(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 1000.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 10.0 => 2,
        x if x >= 1.0 => 3,
        _ => 4,
    };
    format!("{x:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_is_null_where_there_is_nothing_to_hide() {
        assert_eq!(efficiency(30.0, 10.0, 10.0), Some(1.0));
        assert_eq!(efficiency(30.0, 20.0, 10.0), Some(0.5));
        assert_eq!(efficiency(30.0, 30.0, 10.0), Some(0.0));
        assert_eq!(efficiency(100.0, 99.5, 99.5), None);
        assert_eq!(efficiency(100.0, 99.0, 99.0), Some(1.0));
        assert_eq!(efficiency(10.0, 10.0, 11.0), None, "a serial run faster than its longest stage");
        assert_eq!(efficiency(0.0, 0.0, 0.0), None);
    }

    #[test]
    fn figures_have_four_digits() {
        assert_eq!(
            [0.01234, 1.0, 10.036, 999.96, 12345.6].map(figure),
            ["0.0123", "1.000", "10.04", "1000.0", "12346"]
        );
    }
}
