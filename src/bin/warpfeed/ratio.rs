//! Load : copy : compute, how long the stages of a step take in relation to each other.

use std::str::FromStr;
use std::time::Duration;

use crate::pipeline::Plan;

/// Three numbers, not all of them 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) load: f64,
    pub(crate) copy: f64,
    pub(crate) compute: f64,
}

/// Beyond these nobody sees a stage or waits for it.
const LEAST: f64 = 1e-3;
const MOST: f64 = 1000.0;

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("expected load:copy:compute, as 2:1:1, of numbers that are 0, or {LEAST} to {MOST}");
        let part = |text: &str| text.parse().ok().filter(|x| *x == 0.0 || (LEAST..=MOST).contains(x));
        let parts: Option<Vec<f64>> = text.split(':').map(part).collect();
        match parts.as_deref() {
            Some(&[load, copy, compute]) if load + copy + compute > 0.0 => Ok(Self { load, copy, compute }),
            Some([_, _, _]) => Err("one of the three must be above 0".to_string()),
            _ => Err(wrong()),
        }
    }
}

impl Ratio {
    pub(crate) const EVEN: Self = Self { load: 1.0, copy: 1.0, compute: 1.0 };

    /// Sets the plan's decode and compute to so many `unit`s a step.
    pub(crate) fn set_work(self, plan: &mut Plan, unit: Duration) {
        // `batch_size` samples by all workers together.
        plan.decode =
            unit.mul_f64(self.load).mul_f64(plan.workers.max(1) as f64 / plan.batch_size.max(1) as f64);
        plan.compute = unit.mul_f64(self.compute);
    }

    /// Sets the plan's link, so that `bytes` take so many `unit`s; for 0 it takes what it takes.
    pub(crate) fn set_link(self, plan: &mut Plan, unit: Duration, bytes: u64) {
        let time = unit.as_secs_f64() * self.copy;
        plan.link_gbps = (time > 0.0).then(|| bytes as f64 / time / 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_are_read() {
        let read = |text: &str| text.parse::<Ratio>();
        assert_eq!(read("2:1:1"), Ok(Ratio { load: 2.0, ..Ratio::EVEN }));
        assert_eq!(read("0.5:0:1000"), Ok(Ratio { load: 0.5, copy: 0.0, compute: 1000.0 }));
        for wrong in [
            "", "1", "1:1", "1:1:1:1", "1:-1:1", "1:nan:1", "1:inf:1", "1:1:1001", "1:1e-4:1", "1::1",
            "a:b:c",
        ] {
            assert!(read(wrong).unwrap_err().contains("2:1:1"), "{wrong}");
        }
        assert!(read("0:0:0").unwrap_err().contains("above 0"));
    }
}
