//! How values are spread.

use std::fmt::Write;

use serde_json::{Value, json};

/// Columns of the longest bar.
const WIDTH: f64 = 40.0;

/// The least, the middle and the largest of some values, and how many lie between powers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spread {
    pub(super) least: u64,
    pub(super) median: u64,
    pub(super) most: u64,
    /// From, below, count. From 0 to 1 first where there are zeros; else from one power of the base to the next.
    bins: Vec<(u64, u64, u64)>,
}

impl Spread {
    /// Of `values`, with bins between powers of `base`; `None` where there are none.
    pub(super) fn of(mut values: Vec<u64>, base: u64) -> Option<Self> {
        values.sort_unstable();
        let (least, most) = (*values.first()?, *values.last()?);
        let median = *values.get(values.len() / 2)?;
        let mut bins = Vec::new();
        let (mut from, mut below) = (0, 1);
        let mut rest = values.as_slice();
        while !rest.is_empty() {
            let n = rest.partition_point(|value| *value < below);
            if n > 0 || !bins.is_empty() {
                bins.push((from, below, n as u64));
            }
            rest = rest.get(n..).unwrap_or_default();
            (from, below) = (below, below.saturating_mul(base));
            if from == below {
                break; // beyond what a u64 holds
            }
        }
        Some(Self { least, median, most, bins })
    }

    pub(super) fn json(&self) -> Value {
        let bin = |(from, below, n): &(u64, u64, u64)| json!({ "from": from, "below": below, "count": n });
        json!({
            "min": self.least,
            "median": self.median,
            "max": self.most,
            "histogram": self.bins.iter().map(bin).collect::<Vec<_>>(),
        })
    }

    /// A line a bin, with values as `show` writes them.
    pub(super) fn text(&self, show: impl Fn(u64) -> String) -> String {
        let label = |from: u64, below: u64| {
            if below - from == 1 { show(from) } else { format!("{} to {}", show(from), show(below - 1)) }
        };
        bars(&self.bins.iter().map(|(from, below, n)| (label(*from, *below), *n)).collect::<Vec<_>>(), None)
    }
}

/// A line each with a bar, the longest of which stands for `most`, or for the largest number.
pub(super) fn bars(rows: &[(String, u64)], most: Option<u64>) -> String {
    let most = most.or(rows.iter().map(|(_, n)| *n).max()).unwrap_or(0).max(1);
    let mut out = String::new();
    for (label, n) in rows {
        let bar = "█".repeat((*n as f64 / most as f64 * WIDTH).ceil() as usize);
        let _ = writeln!(out, "{}", format!("  {label:>24} {n:>9}  {bar}").trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_between_powers() {
        let spread = Spread::of(vec![9, 0, 3, 2, 4, 0], 2).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (0, 3, 9));
        assert_eq!(spread.bins, [(0, 1, 2), (1, 2, 0), (2, 4, 2), (4, 8, 1), (8, 16, 1)]);
        let spread = Spread::of(vec![70, 300], 4).unwrap();
        assert_eq!(spread.bins, [(64, 256, 1), (256, 1024, 1)]);
        assert_eq!(Spread::of(vec![], 2), None);
        let huge = Spread::of(vec![u64::MAX], 4).unwrap();
        assert_eq!(huge.most, u64::MAX);
    }

    #[test]
    fn the_largest_number_has_the_longest_bar() {
        let text = bars(&[("a".into(), 10), ("b".into(), 5), ("c".into(), 0)], None);
        let long = |line: &str| line.chars().filter(|c| *c == '█').count();
        assert_eq!(text.lines().map(long).collect::<Vec<_>>(), [40, 20, 0]);
    }
}
